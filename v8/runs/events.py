"""What a run tells while it works; displays and logs listen, nothing else depends on it."""

import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from v8.errors import V8Error, message_of, shown
from v8.market.series import Series
from v8.net import reporting_waiting_to

if TYPE_CHECKING:
    from pathlib import Path

    from v8.evaluation.significance import BaselineComparison
    from v8.training.progress import EpochRecord


STAGES = ("candles", "features", "windows", "train", "evaluate", "save")
"""What happens to every series, in this order."""
_MOST_TOLD = 300  # characters of an error that nobody foresaw; its traceback is kept whole


@dataclass(frozen=True)
class Note:
    """Something the user should know, one sentence."""

    text: str


@dataclass(frozen=True)
class GettingReady(Note):
    """Candles are read; what is done once comes before the first series is begun."""


@dataclass(frozen=True)
class PageWritten(Note):
    """There is a page of the run to look at from now on."""

    page: "Path"


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
    """Reading a series' candles waits for something outside."""

    series: Series
    text: str  # for what, how long, and how much longer at most


@dataclass(frozen=True)
class EpochEnded:
    """One epoch of a series is over."""

    series: Series
    record: "EpochRecord"
    num_epochs: int  # most epochs there will be


@dataclass(frozen=True)
class Outcome:
    """How a series, or one stage of it, ended."""

    series: Series
    reason: str | None = None  # why it failed, one sentence; None when it did not
    trace: str = ""  # the full traceback of a failure
    seconds: float = 0.0  # wall time; of a series that trained in a fleet its share
    once_s: float = 0.0  # of these, what its process does once: compiling
    fleet_size: int = 1  # series that trained as one program with it, itself included
    worth: "tuple[BaselineComparison, ...]" = ()  # once evaluated, its error on candles beside baselines'
    error: V8Error | None = field(default=None, compare=False)  # of ours, which the reason is of


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
    log = logging.getLogger("v8")
    notes = logging.Handler(logging.WARNING)
    notes.emit = lambda record: listen(Note(record.getMessage()))  # type: ignore[method-assign]
    log.addHandler(notes)
    try:
        yield
    finally:
        log.removeHandler(notes)


Made = TypeVar("Made")


def isolated(series: Series, work: Callable[[], Made]) -> tuple[Made | None, Outcome]:
    """Do the work of one series; an error becomes its outcome, traceback included, and None what was made.

    The work may run a plug-in's code, so everything that is raised but Ctrl-C is caught, `SystemExit` too,
    and the limit of recursion afterwards is what it was before: the other series go on.
    """
    started = time.perf_counter()
    recursion_limit = sys.getrecursionlimit()
    try:
        made = work()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - this series must not stop the others
        sys.setrecursionlimit(recursion_limit)  # first: to tell of the error takes calls, too
        seconds = time.perf_counter() - started
        ours = error if isinstance(error, V8Error) else None
        return None, Outcome(series, _reason(series, error), traceback.format_exc(), seconds, error=ours)
    finally:
        sys.setrecursionlimit(recursion_limit)
    return made, Outcome(series, seconds=time.perf_counter() - started)


def refused(error: V8Error, outcome: Outcome) -> Outcome:
    """Return an outcome that ended with an error, told in the words of another one."""
    return replace(outcome, reason=str(error), error=error)


def read_isolated(series: Series, listen: Listener, read: Callable[[], Made]) -> tuple[Made | None, Outcome]:
    """Read the candles of one series as its stage of that name; waiting for something outside is told."""
    listen(StageStarted(series, "candles"))
    with reporting_waiting_to(lambda text: listen(Waiting(series, text))):
        return isolated(series, read)


def _reason(series: Series, error: BaseException) -> str:
    if isinstance(error, V8Error):
        return message_of(error)
    from v8.artifacts.run_folder import ERROR_FILE  # noqa: PLC0415 - it needs pandas, and listeners do not

    told = shown(message_of(error), _MOST_TOLD) or "no message"
    return f"{series}: unexpected {type(error).__name__}: {told}. {ERROR_FILE} in its folder tells where."
