"""What a run tells while it works; displays and logs listen, nothing else depends on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from v8.market.series import Series

if TYPE_CHECKING:  # whoever only listens must not start TensorFlow
    from v8.training.epoch_record import EpochRecord

STAGES = ("candles", "features", "windows", "train", "judge", "save")
"""What happens to every series, in this order."""


@dataclass(frozen=True)
class Note:
    """Something the user should know, one sentence."""

    text: str


@dataclass(frozen=True)
class SeriesStarted:
    """A series left the queue."""

    series: Series


@dataclass(frozen=True)
class StageStarted:
    """A series entered one of `STAGES`."""

    series: Series
    stage: str


@dataclass(frozen=True)
class EpochEnded:
    """One epoch of a series is over.

    Args:
        series: Which series.
        record: What the epoch did.
        num_epochs: Most epochs there will be.
    """

    series: Series
    record: EpochRecord
    num_epochs: int


@dataclass(frozen=True)
class Outcome:
    """How a series, or one stage of it, ended.

    Args:
        series: Which series.
        reason: Why it failed, one sentence; None when it did not.
        is_data_error: Whether candles or features were at fault.
        trace: The full traceback of a failure.
        seconds: Wall time.
    """

    series: Series
    reason: str | None = None
    is_data_error: bool = False
    trace: str = ""
    seconds: float = 0.0


Event = Note | SeriesStarted | StageStarted | EpochEnded | Outcome
Listener = Callable[[Event], None]
