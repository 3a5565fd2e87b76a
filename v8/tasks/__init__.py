"""The tasks: what can be forecast, in the order of every report. One of your own calls `TASKS.register`."""

from typing import Final

from v8.registry import Registry
from v8.tasks.shipped import BANDS_TASK, OHLC_TASK, VOLATILITY_TASK
from v8.tasks.task import Task

TASKS: Final[Registry[Task]] = Registry("task", [OHLC_TASK, BANDS_TASK, VOLATILITY_TASK])
