"""What a run tells while it works; displays and logs listen, nothing else depends on it."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from v8.errors import DataError, V8Error, shown
from v8.market.series import Series

if TYPE_CHECKING:
    from v8.training.progress import EpochRecord


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
class Waiting:
    """Reading a series' candles waits for something outside.

    Args:
        series: Which series.
        text: For what, how long, and how much longer at most.
    """

    series: Series
    text: str


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
        is_data_error: Whether candles, features or what is saved of it were at fault.
        trace: The full traceback of a failure.
        seconds: Wall time.
        error: The error of ours that the reason is of; None for any other.
    """

    series: Series
    reason: str | None = None
    is_data_error: bool = False
    trace: str = ""
    seconds: float = 0.0
    error: V8Error | None = field(default=None, compare=False)


Event = Note | SeriesStarted | StageStarted | Waiting | EpochEnded | Outcome
Listener = Callable[[Event], None]


def told_once(listen: Listener) -> Listener:
    """Return a listener that passes a note on once, however many series and processes have it to tell."""
    told: set[str | None] = set()

    def tell(event: Event) -> None:
        if not (isinstance(event, Note) and event.text in told):
            listen(event)
        if isinstance(event, Note | Outcome):
            told.add(event.text if isinstance(event, Note) else event.reason)

    return tell


@contextmanager
def log_told_as_notes(listen: Listener) -> Iterator[None]:
    """Turn the warnings of modules that know no listener into notes until the block ends."""
    log, notes = logging.getLogger("v8"), _Notes(listen)
    log.addHandler(notes)
    try:
        yield
    finally:
        log.removeHandler(notes)


class _Notes(logging.Handler):
    def __init__(self, listen: Listener) -> None:
        super().__init__(logging.WARNING)
        self._listen = listen

    def emit(self, record: logging.LogRecord) -> None:
        self._listen(Note(record.getMessage()))


_MOST_TOLD = 300
"""Characters of an error that nobody foresaw; its traceback is kept whole."""

Made = TypeVar("Made")


def isolated(series: Series, work: Callable[[], Made]) -> tuple[Made | None, Outcome]:
    """Do the work of one series; an error becomes its outcome, traceback included.

    Args:
        series: Which series.
        work: What to do.

    Returns:
        What the work returned, None after an error; and how it ended.
    """
    started = time.perf_counter()
    try:
        made = work()
    except Exception as error:  # noqa: BLE001 - this series must not stop the others
        return None, Outcome(
            series,
            reason=_reason(series, error),
            is_data_error=isinstance(error, DataError),
            trace=traceback.format_exc(),
            seconds=time.perf_counter() - started,
            error=error if isinstance(error, V8Error) else None,
        )
    return made, Outcome(series, seconds=time.perf_counter() - started)


def _reason(series: Series, error: Exception) -> str:
    if isinstance(error, V8Error):
        return str(error)
    from v8.artifacts.run_folder import ERROR_FILE  # noqa: PLC0415 - it needs pandas, and listeners do not

    told = shown(error, _MOST_TOLD) or "no message"
    return f"{series}: unexpected {type(error).__name__}: {told}. {ERROR_FILE} in its folder tells where."
