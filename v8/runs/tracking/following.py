"""How a run's events reach its trackers.

A tracker that fails must not cost a run: it is dropped with a note, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from v8.artifacts.series_artifact import read_metadata
from v8.runs.events import EpochEnded, Event, Listener, Note, Outcome
from v8.runs.tracking.tracker import TRACKERS, TrackedRun, Tracker, TrackerError
from v8.errors import ArtifactError
from v8.losses.judgement import Judgement
from v8.market.series import Series


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
        listeners: list[Listener] = [listen]
        for name in dict.fromkeys(names):
            follower = Follower(name, TRACKERS[name].open(run), run.path, listen)
            stack.callback(follower.close)
            listeners.append(follower)

        def tell_all(event: Event) -> None:
            for listener in listeners:
                listener(event)

        yield tell_all


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
        """Last epoch of each series that is open."""

    def __call__(self, event: Event) -> None:
        """Pass an event on in the tracker's terms."""
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
        elif isinstance(event, Outcome):
            name, step = str(event.series), self._steps.get(event.series, 0)
            if event.reason is None:
                self._attempt(
                    lambda: self._tracker.log(name, step, _results(read_metadata(self._run / name)))
                )
            self._finish(event.series)

    def close(self) -> None:
        """Close what is open."""
        for series in list(self._steps):
            self._finish(series)

    def _finish(self, series: Series) -> None:
        self._steps.pop(series, None)
        self._attempt(lambda: self._tracker.finish(str(series)))

    def _attempt(self, work: Callable[[], None]) -> None:
        if not self._is_well:
            return
        try:
            work()
        except (TrackerError, OSError, ArtifactError) as error:
            self._is_well = False
            self._listen(Note(f"--track {self._name} stopped, the run goes on: {error}"))


def _results(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return the test span's numbers per task, beside the naive forecast and this series' best baseline."""
    judgement = Judgement.from_json(metadata["judgement"], where=f"metadata of {metadata['series']}")
    values: dict[str, float | None] = {"best_epoch": metadata["training"]["best_epoch"]}
    for task in judgement.errors:
        best = judgement.best_baseline(task)
        values[f"test/{task}/error_over_naive"] = judgement.multiple(task)
        values[f"test/{task}/error_over_best"] = judgement.multiple(task, baseline=best)
        values[f"test/{task}/skill"] = judgement.skill(task)
        values[f"test/{task}/p_value"] = judgement.p_value(task)
        values[f"test/{task}/p_value_against_best"] = judgement.p_value(task, best)
    return {name: float(value) for name, value in values.items() if value is not None}
