"""What happens in a run, and who follows it: displays, trackers; and how one series' failure stops no other.

Events are frozen values. Engines make them, wherever they train, and pass them to an observer: a display, a
tracker, the writer of the report. A run calls its observer as Keras calls a callback. A subclass of
`RunObserver` overrides what it needs:

    on_begin(context)       the plan is known, and nothing has been read
    on_event(event)         something happened
    on_finished(summary)    every series has ended; this process still holds the run folder
    on_end()                the last call, also after an error or Ctrl-C

One observer may follow several runs one after another, as the folds of a back-test; between two of them it
may still get notes.

A tracker of v8 is a class of an annex and an entry of its `annex.yaml`; a tracker of your own calls
`TRACKERS.register`. It runs in the process that handles the events of the run, never in a worker, so it needs
no TensorFlow and gets every series, wherever it trains. Its package is imported only when it is requested.
"""

import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from v8.base.errors import DataError, SeriesError, V8Error, message_of, shown, with_parameters
from v8.base.registry import (
    Named,
    Registry,
    added_entries,
    kind_and_line,
    make_entries,
    require_package,
)
from v8.data.market.series import Series

if TYPE_CHECKING:
    from v8.model.evaluation.significance import BaselineComparison
    from v8.model.training.progress import EpochRecord
    from v8.runs.plan import Plan


STAGES: Final = ("candles", "features", "windows", "train", "evaluate", "save")
"""What happens to every series, in this order."""
_MOST_LETTERS: Final = 300
"""Letters of a tracker's or an unexpected error's message that are shown; a traceback is kept whole."""


@dataclass(frozen=True)
class Note:
    """Something the user should know, one sentence."""

    text: str


@dataclass(frozen=True)
class GettingReady(Note):
    """The candles of all series are read: training begins, with what a run does once.

    Observers take it as the start of training, too; a run that has nothing to train has no such event.
    """


@dataclass(frozen=True)
class CandleFinding(Note):
    """What is to be known of the candles before they are trained on (`v8.runs.reading`)."""


@dataclass(frozen=True)
class PageWritten(Note):
    """The page of the run exists from now on."""

    page: Path


@dataclass(frozen=True)
class SeriesStarted:
    """A series left the queue."""

    series: Series


@dataclass(frozen=True)
class StageStarted:
    """A series entered one of `STAGES`."""

    series: Series
    stage: str
    at_s: float = field(default_factory=time.time, compare=False, repr=False)  # since the epoch, UTC


@dataclass(frozen=True)
class Waiting:
    """Reading the candles of a series waits for a server."""

    series: Series
    text: str  # for what, how long, and how much longer at most


@dataclass(frozen=True)
class EpochEnded:
    """One epoch of a series is over."""

    series: Series
    record: "EpochRecord"
    num_epochs: int  # most epochs there will be


@dataclass(frozen=True)
class SeriesOutcome:
    """How a series, or one stage of it, ended."""

    series: Series
    reason: str | None = None  # why it failed, one sentence; None when it did not
    trace: str = ""  # the full traceback of a failure
    seconds: float = 0.0  # wall time; of a series that trained in a fleet its share
    compile_s: float = 0.0  # of these, what each process does only once: compiling
    fleet_size: int = 1  # series that trained as one program with it, itself included
    comparisons: "tuple[BaselineComparison, ...]" = ()  # after the evaluation: compared with baselines
    onnx_fault: str | None = None  # why it has no `model.onnx`, where one was wanted
    error: V8Error | None = field(default=None, compare=False)  # what the reason was made of, if it is ours


Event = Note | SeriesStarted | StageStarted | Waiting | EpochEnded | SeriesOutcome


@dataclass(frozen=True)
class NewerCandles:
    """Candles that have come since a run read its own, and that it does not use."""

    series: Series
    num_bars: int  # at most: some bars may be missing
    first_s: int  # when the first may open, seconds since the epoch, UTC


@dataclass(frozen=True)
class RunSummary:
    """How a run ended."""

    num_trained: int  # series that this call finished
    num_finished_before: int  # that earlier calls had finished, on the candles that are still there
    failures: tuple[SeriesOutcome, ...]  # one per failed series
    newer_candles: tuple[NewerCandles, ...] = ()  # per series whose source has candles after the pinned ones
    without_onnx: tuple[SeriesOutcome, ...] = ()  # trained now, but without the `model.onnx` that was wanted

    @property
    def exit_code(self) -> int:
        """0, or 4 where a series failed or lacks a file, or 3 where all failed, for candles or features."""
        if not self.failures:
            return SeriesError.exit_code if self.without_onnx else 0
        codes = {
            failure.error.exit_code if failure.error else SeriesError.exit_code for failure in self.failures
        }
        is_none_finished = self.num_trained + self.num_finished_before == 0
        if is_none_finished and codes == {DataError.exit_code}:
            return DataError.exit_code
        return SeriesError.exit_code


Result = TypeVar("Result")


def run_isolated(series: Series, work: Callable[[], Result]) -> tuple[Result | None, SeriesOutcome]:
    """Do the work of one series and catch its failure; return its result, or None, and how it ended.

    The work failed where the outcome has a `reason`; a result of None may be a result.

    The work may run a plug-in's code, so everything that is raised but Ctrl-C is caught, `SystemExit` too,
    and the limit of recursion afterwards is what it was before: the other series go on.
    """
    started = time.perf_counter()
    recursion_limit = sys.getrecursionlimit()
    try:
        result = work()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - this series must not stop the others
        sys.setrecursionlimit(recursion_limit)  # first: describing the error takes calls, too
        failure = SeriesOutcome(
            series=series,
            reason=_reason(series, error),
            trace=traceback.format_exc(),
            seconds=time.perf_counter() - started,
            error=error if isinstance(error, V8Error) else None,
        )
        return None, failure
    finally:
        sys.setrecursionlimit(recursion_limit)
    return result, SeriesOutcome(series, seconds=time.perf_counter() - started)


def _reason(series: Series, error: BaseException) -> str:
    if isinstance(error, V8Error):
        return message_of(error)
    from v8.forecaster.metadata import ERROR_FILE  # noqa: PLC0415 - it needs pandas, and displays do not

    message = shown(message_of(error), _MOST_LETTERS) or "no message"
    kind = kind_and_line(error)
    return f"{series}: unexpected {kind}: {message}. {ERROR_FILE} in its folder shows where."


def _save_nothing() -> None:
    pass


@dataclass(frozen=True)
class RunContext:
    """What an observer may use of the run that begins."""

    plan: "Plan"  # as far as an earlier call brought it
    source_name: str  # name of the candle source
    notify: Callable[[Event], None]  # passes an event of the observer's own to all observers
    save_record: Callable[[], None] = _save_nothing  # writes `run.json` now


class RunObserver:
    """Follows runs; this one does nothing."""

    def on_begin(self, context: RunContext) -> None:
        """Prepare to follow a run. If this raises, `on_end` is not called."""

    def on_event(self, event: Event) -> None:
        """Take note of an event."""

    def on_finished(self, summary: RunSummary) -> None:
        """Do what is to be done while the folder of the finished run is still held."""

    def on_end(self) -> None:
        """Release what `on_begin` took."""


class EventCallback(RunObserver):
    """Calls a function with every event."""

    def __init__(self, callback: Callable[[Event], object]) -> None:
        self._callback = callback

    def on_event(self, event: Event) -> None:
        """Call the function."""
        self._callback(event)


class ObserverGroup(RunObserver):
    """Several observers, called in their order; they end in the reverse order."""

    def __init__(self, observers: Sequence[RunObserver]) -> None:
        self._observers = tuple(observers)
        self._endings = ExitStack()

    def on_begin(self, context: RunContext) -> None:
        """Begin each observer; where one raises, those before it end."""
        with ExitStack() as endings:
            for observer in self._observers:
                observer.on_begin(context)
                endings.callback(observer.on_end)
            self._endings = endings.pop_all()

    def on_event(self, event: Event) -> None:
        """Pass an event on to each observer."""
        for observer in self._observers:
            observer.on_event(event)

    def on_finished(self, summary: RunSummary) -> None:
        """Pass the end of all series on to each observer."""
        for observer in self._observers:
            observer.on_finished(summary)

    def on_end(self) -> None:
        """End each observer."""
        self._endings.close()


class NoteDeduplicator(RunObserver):
    """Passes everything on, but a note only once, however many series and processes have it to say."""

    def __init__(self, observer: RunObserver) -> None:
        self._observer = observer
        self._texts: set[str | None] = set()

    def on_event(self, event: Event) -> None:
        """Pass an event on, unless it is a note whose text has been passed on."""
        is_repeated = isinstance(event, Note) and event.text in self._texts
        if not is_repeated:
            self._observer.on_event(event)
        if isinstance(event, Note):
            self._texts.add(event.text)
        elif isinstance(event, SeriesOutcome):
            self._texts.add(event.reason)

    def on_finished(self, summary: RunSummary) -> None:
        """Pass it on."""
        self._observer.on_finished(summary)


@contextmanager
def observed(
    observer: RunObserver, plan: "Plan", source_name: str, save_record: Callable[[], None] = _save_nothing
) -> Iterator[RunObserver]:
    """Let an observer follow a run until the block ends; yield the one to call, which gets each note once."""
    deduplicator = NoteDeduplicator(observer)
    observer.on_begin(RunContext(plan, source_name, deduplicator.on_event, save_record))
    try:
        yield deduplicator
    finally:
        observer.on_end()


@contextmanager
def warnings_as_notes(observer: RunObserver) -> Iterator[None]:
    """Turn the warnings of modules that know no observer into notes until the block ends."""
    log = logging.getLogger("v8")
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: observer.on_event(Note(record.getMessage()))  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class TrackerError(Exception):
    """A tracker cannot go on; its text says why."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker gets to know of a run before it starts."""

    path: Path  # the run folder
    profile: Mapping[str, Any]  # the profile with its budget, as JSON values
    source: str  # name of the candle source


class Tracker(Protocol):
    """Keeps curves of a run."""

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Keep numbers of a series ("BTCUSDT-15m") by name ("loss/train").

        The step is the epoch they belong to, from 1; it never falls within a series. Raises `TrackerError` if
        they cannot be kept. After any error the tracker is left alone, and the run goes on.
        """

    def finish(self, series: str) -> None:
        """Close what is open for a series; there may be nothing."""


@dataclass(frozen=True)
class TrackerKind(Named):
    """A tracker that can be requested."""

    open: Callable[[TrackedRun], Tracker]  # opens it for a run; its module is imported only then
    package: str | None = None  # package that it needs, by its name for pip; None needs nothing
    check: Callable[[], None] | None = None  # refuses, before anything starts, what would fail later


TRACKERS: Final = Registry("tracker", make_entries(TrackerKind, added_entries("trackers"), "open", "check"))
"""Every tracker by the name that `--track` takes."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse, before anything starts, names of the command line of trackers that cannot be used.

    Raises:
        ProfileError: If a name is unknown, its package is not installed, or the tracker itself refuses.
    """
    for name in names:
        kind = TRACKERS.find(name, where=f"param:track {name}")
        if kind.package:
            rule = f"needs the package {kind.package}"
            require_package(kind.package, where=f"param:track {name}", rule=rule)
        if kind.check:
            kind.check()


def followers(names: Sequence[str]) -> list[RunObserver]:
    """Return an observer for each tracker, keys of `TRACKERS`, which follows runs with it.

    Raises:
        ProfileError: If a name is unknown, its package is not installed, or the tracker itself refuses.
    """
    check_trackers(names)
    return [Follower(name) for name in dict.fromkeys(names)]


class Follower(RunObserver):
    """Follows runs with a tracker, until it fails; then a note says so, and the run goes on."""

    _tracker: Tracker

    def __init__(self, name: str) -> None:
        self._name = name
        self._steps: dict[Series, int] = {}
        """Last epoch of each series that is open."""

    def on_begin(self, context: RunContext) -> None:
        """Open the tracker for a run."""
        plan = context.plan
        self._run = plan.path
        self._notify = context.notify
        self._has_failed = False
        profile = plan.profile.model_dump(mode="json")
        self._attempt(lambda: self._open(TrackedRun(plan.path, profile, context.source_name)))

    def on_event(self, event: Event) -> None:
        """Pass an event on as numbers by name."""
        if isinstance(event, EpochEnded):
            record = event.record
            curves = {
                "loss/train": record.train_loss,
                "loss/validation": record.validation_loss,
                "learning_rate": record.learning_rate,
                "speed/windows_per_s": record.windows_per_s,
                "speed/epoch_s": record.seconds,
            }
            self._steps[event.series] = record.epoch
            self._attempt(lambda: self._tracker.log(str(event.series), record.epoch, curves))
        elif isinstance(event, SeriesOutcome):
            name = str(event.series)
            step = self._steps.get(event.series, 0)
            if event.reason is None:
                self._attempt(lambda: self._tracker.log(name, step, _test_results(self._run / name)))
            self._finish(event.series)

    def on_end(self) -> None:
        """Close the series that are still open."""
        for series in list(self._steps):
            self._finish(series)

    def _open(self, run: TrackedRun) -> None:
        self._tracker = TRACKERS[self._name].open(run)

    def _finish(self, series: Series) -> None:
        self._steps.pop(series, None)
        self._attempt(lambda: self._tracker.finish(str(series)))

    def _attempt(self, work: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - another package's code, which must not stop the run
            self._has_failed = True
            reason = shown(message_of(error), _MOST_LETTERS)
            if not isinstance(error, TrackerError | OSError | V8Error):
                reason = f"unexpected {type(error).__name__}: {reason or 'no message'}"
            message = f"param:track {self._name} stopped, the run goes on: {reason}"
            self._notify(Note(with_parameters(message)))


def _test_results(artifact: Path) -> dict[str, float]:
    """Return the test span's figures per task, compared with naive."""
    from v8.forecaster.metadata import read_metadata  # noqa: PLC0415 - pandas, which the command line waits for

    metadata = read_metadata(artifact)
    values: dict[str, float | None] = {"best_epoch": metadata.training.best_epoch}
    if metadata.is_evaluated:
        evaluation = metadata.evaluation
        for task in evaluation.errors:
            naive = evaluation.against(task)
            values[f"test/{task}/error_over_naive"] = naive.relative_mae
            values[f"test/{task}/skill"] = naive.skill
            values[f"test/{task}/p_value"] = naive.p_value
    return {name: float(value) for name, value in values.items() if value is not None}
