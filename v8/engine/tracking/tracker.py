"""The seam of experiment trackers: what one can do, which there are, and how a run's events reach it.

A tracker is a file of this folder with two functions, and a line in `TRACKERS`: `check() -> None` refuses
before anything starts, `open_tracker(run: TrackedRun) -> Tracker` opens it. It lives in the process that
listens to the run, never in a worker, so it needs no TensorFlow and sees every series, wherever it trains.
Its package is imported only when it is asked for.

A tracker that fails must not cost a run: it is dropped with a note, and the run goes on.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from v8.artifacts.series_artifact import read_metadata
from v8.engine.events import EpochEnded, Event, Listener, Note, Outcome
from v8.errors import ArtifactError, ProfileError
from v8.evaluation.judgement import Judgement
from v8.market.series import Series
from v8.registry import nearest


class TrackerError(Exception):
    """A tracker cannot go on; its text says why."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run before it starts.

    Args:
        path: The run folder.
        profile: The profile with its budget, as JSON values.
        source: Name of the candle source.
    """

    path: Path
    profile: Mapping[str, Any]
    source: str


class Tracker(Protocol):
    """Keeps curves of a run."""

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Keep numbers of a series.

        Args:
            series: Its name, "BTCUSDT-15m".
            step: Epoch they belong to, from 1; never falls within a series.
            values: By name, such as "loss/train".

        Raises:
            TrackerError: If they cannot be kept.
            OSError: Likewise.
        """

    def finish(self, series: str) -> None:
        """Close what is open for a series; there may be nothing."""

    def close(self) -> None:
        """Close everything."""


@dataclass(frozen=True)
class TrackerKind:
    """A tracker that can be asked for.

    Args:
        module: Our module that opens it.
        package: The package it needs, which is also the name of our extra that installs it.
    """

    module: str
    package: str


TRACKERS: Final[dict[str, TrackerKind]] = {
    "tensorboard": TrackerKind("v8.engine.tracking.tensorboard", "tensorboard"),
    "wandb": TrackerKind("v8.engine.tracking.wandb", "wandb"),
}
"""Every tracker by the name that `--track` takes."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse what cannot be tracked with, before anything starts.

    Args:
        names: As given on the command line.

    Raises:
        ProfileError: If a name is unknown, its package is not installed, or the tracker itself refuses.
    """
    for name in names:
        if name not in TRACKERS:
            raise ProfileError(
                where=f"--track {name}",
                rule=f"a tracker is one of {', '.join(TRACKERS)}",
                got=repr(name),
                fix=f"Did you mean {nearest(name, TRACKERS)}",
            )
        package = TRACKERS[name].package
        if find_spec(package) is None:
            raise ProfileError(
                where=f"--track {name}",
                rule=f"needs the package {package}",
                got="none installed",
                fix=f"Run: pip install 'v8[{package}]'",
            )
        importlib.import_module(TRACKERS[name].module).check()


@contextmanager
def open_trackers(names: Sequence[str], run: TrackedRun, listen: Listener) -> Iterator[Listener]:
    """Follow a run with trackers until the block ends.

    Args:
        names: Keys of `TRACKERS`; none gives back `listen` itself.
        run: What is tracked.
        listen: Who is told about everything, the trackers' own trouble included.

    Yields:
        A listener that tells `listen` first and then the trackers.
    """
    if not names:
        yield listen
        return
    with ExitStack() as stack:
        followers = []
        for name in dict.fromkeys(names):
            tracker: Tracker = importlib.import_module(TRACKERS[name].module).open_tracker(run)
            follower = Follower(name, tracker, run.path, listen)
            stack.callback(follower.close)
            followers.append(follower)
        yield lambda event: _tell_all([listen, *followers], event)


class Follower:
    """Tells one tracker what happens, until the tracker fails.

    Args:
        name: The tracker's name, for the note about its failure.
        tracker: Who is told.
        run: The run folder, where finished series have their metadata.
        listen: Who is told that the tracker failed.
    """

    def __init__(self, name: str, tracker: Tracker, run: Path, listen: Listener) -> None:
        self._name, self._tracker, self._run, self._listen = name, tracker, run, listen
        self._is_well = True
        self._steps: dict[Series, int] = {}

    def __call__(self, event: Event) -> None:
        """Pass an event on in the tracker's terms."""
        if isinstance(event, EpochEnded):
            self._steps[event.series] = event.record.epoch
            self._attempt(lambda: self._tracker.log(str(event.series), event.record.epoch, _curves(event)))
        elif isinstance(event, Outcome) and event.reason is None:
            self._attempt(lambda: self._log_result(event.series))
        elif isinstance(event, Outcome):
            self._attempt(lambda: self._tracker.finish(str(event.series)))

    def close(self) -> None:
        """Close the tracker."""
        self._attempt(self._tracker.close)

    def _log_result(self, series: Series) -> None:
        values = _results(read_metadata(self._run / str(series)))
        self._tracker.log(str(series), self._steps.get(series, 0), values)
        self._tracker.finish(str(series))

    def _attempt(self, work: Any) -> None:
        if not self._is_well:
            return
        try:
            work()
        except (TrackerError, OSError, ArtifactError) as error:
            self._is_well = False
            self._listen(Note(f"--track {self._name} stopped, the run goes on: {error}"))


def _curves(event: EpochEnded) -> dict[str, float]:
    record = event.record
    return {
        "loss/train": record.train_loss,
        "loss/validation": record.validation_loss,
        "learning_rate": record.learning_rate,
        "speed/windows_per_s": record.windows_per_s,
        "speed/epoch_s": record.seconds,
    }


def _results(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return the test span's numbers per task: error as a multiple of naive's, skill, p-value."""
    judgement = Judgement.from_json(metadata["judgement"], where=f"metadata of {metadata['series']}")
    values: dict[str, float | None] = {"best_epoch": metadata["training"]["best_epoch"]}
    for task in judgement.errors:
        values[f"test/{task}/error_over_naive"] = judgement.multiple(task)
        values[f"test/{task}/skill"] = judgement.skill(task)
        values[f"test/{task}/p_value"] = judgement.p_value(task)
    return {name: float(value) for name, value in values.items() if value is not None}


def _tell_all(listeners: Sequence[Listener], event: Event) -> None:
    for listener in listeners:
        listener(event)
