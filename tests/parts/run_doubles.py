"""Engines, observers, plans and jobs of tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

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
