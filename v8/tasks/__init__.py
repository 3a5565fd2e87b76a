"""The tasks: what can be forecast, one file each, in the order of every report."""

from typing import Final

from v8.registry import Registry
from v8.tasks.bands import BANDS_TASK
from v8.tasks.ohlc import OHLC_TASK
from v8.tasks.task import Task
from v8.tasks.volatility import VOLATILITY_TASK

TASKS: Final[Registry[Task]] = Registry("task", [OHLC_TASK, BANDS_TASK, VOLATILITY_TASK])
