"""Experiment trackers: their interface, their registry, and the observer that follows a run with one.

A tracker of v8 is a module of an annex and an entry of its `annex.yaml`; a tracker of your own calls
`TRACKERS.register`. It runs in the process that handles the events of the run, never in a worker, so it needs
no TensorFlow and gets every series, wherever it trains. Its package is imported only when it is requested.

The command line reads the names from here, so this module imports little.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from v8.base.errors import V8Error, message_of, shown, with_parameters
from v8.base.registry import Named, Registry, added_entries, make_entries, require_package
from v8.data.market.series import Series
from v8.runs.events import EpochEnded, Event, Note, RunContext, RunObserver, SeriesOutcome


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

    open: Callable[[TrackedRun], Tracker]  # opens it for a run; `later` imports its module only then
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


_MOST_LETTERS: Final = 300
"""Letters of a tracker's message that are shown."""


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
                self._attempt(lambda: self._tracker.log(name, step, _results(self._run / name)))
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


def _results(artifact: Path) -> dict[str, float]:
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
