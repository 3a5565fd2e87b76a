"""Engines, observers, plans and jobs of tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from v8.data.market.candles import Candles
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.profile.profile import Profile
from v8.runs.events import Event, Note, RunContext, RunObserver, SeriesOutcome
from v8.runs.plan import Job, Plan, Recipe

Train = Callable[[Sequence[Job], RunObserver], Iterator[SeriesOutcome]]


def new_plan(profile: Profile, series: Iterable[Series], path: Path) -> Plan:
    return Plan(
        Recipe(profile, is_publishable=True), path, dict.fromkeys(series, "pending"), "python -m v8 run"
    )


def demo_jobs(profile: Profile, names: Sequence[str], run: Path) -> list[Job]:
    """Make the jobs of a profile for some series, each in a folder of its name; their seeds count from 0."""
    recipe = Recipe(profile, is_publishable=False)
    return [
        Job(recipe, DemoSource().candles(Series.parse(name), profile.newest_bars), seed, run / name)
        for seed, name in enumerate(names)
    ]


def train_series(home: Path, profile: Profile, candles: Candles, *, is_publishable: bool = True) -> None:
    """Train, evaluate and save one series in `home/runs/NAME`."""
    from v8.runs.local import InProcessEngine
    from v8.runs.run_folder import RunFolder, RunRecord

    path = home / "runs" / profile.name
    record = RunRecord.begin(profile, candles.source, is_publishable, "python -m v8 run")
    with pytest.MonkeyPatch.context() as patch, RunFolder(path, record) as folder:
        patch.setenv("V8_HOME", str(home / "caches"))
        recipe = Recipe(profile, is_publishable=is_publishable)
        job = Job(recipe, candles, 7, path / str(candles.series))
        (outcome,) = InProcessEngine().train([job], RunObserver())
        assert outcome.reason is None, outcome.trace
        folder.set_state(candles.series, status="done")


class EngineOf:
    """An engine that is one function, and needs no settings of its process."""

    variables: Mapping[str, str] = {}

    def __init__(self, train: Train) -> None:
        self.train = train


class Recorder(RunObserver):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    @property
    def notes(self) -> list[str]:
        """Texts of the plain notes, which are no other kind of event."""
        return [event.text for event in self.events if type(event) is Note]


class NotesBetweenRuns(RunObserver):
    """Keeps the texts of notes that came while no run was under way."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self._is_in_run = False

    def on_begin(self, context: RunContext) -> None:
        self._is_in_run = True

    def on_event(self, event: Event) -> None:
        if isinstance(event, Note) and not self._is_in_run:
            self._texts.append(event.text)

    def on_end(self) -> None:
        self._is_in_run = False
