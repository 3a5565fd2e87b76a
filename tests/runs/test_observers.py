"""Observers of a run: who is called, in which order, and that each one that began ends."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from run_doubles import Recorder, new_plan

from v8.data.market.series import Series
from v8.profile.profile import load_profile
from v8.runs.events import (
    Event,
    Note,
    ObserverGroup,
    RunContext,
    RunObserver,
    RunSummary,
    SeriesOutcome,
    observed,
    warnings_as_notes,
)
from v8.runs.plan import Plan


class Named(RunObserver):
    """Writes down what it is called for."""

    def __init__(self, name: str, calls: list[str], *, is_broken: bool = False) -> None:
        self.name = name
        self.calls = calls
        self.is_broken = is_broken

    def on_begin(self, context: RunContext) -> None:
        if self.is_broken:
            raise OSError("no terminal")
        self.calls.append(f"{self.name} begins")

    def on_event(self, event: Event) -> None:
        self.calls.append(f"{self.name}: {event.text}" if isinstance(event, Note) else self.name)

    def on_finished(self, summary: RunSummary) -> None:
        self.calls.append(f"{self.name} finishes")

    def on_end(self) -> None:
        self.calls.append(f"{self.name} ends")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return new_plan(load_profile("range_paths"), (), tmp_path)


def test_a_group_is_called_in_its_order_and_ends_in_the_reverse_order(plan: Plan) -> None:
    calls: list[str] = []
    group = ObserverGroup([Named("a", calls), Named("b", calls)])
    with observed(group, plan, "demo") as follower:
        follower.on_event(Note("one"))
        follower.on_finished(RunSummary(0, 0, ()))
    assert calls == [
        *("a begins", "b begins"),
        *("a: one", "b: one"),
        *("a finishes", "b finishes"),
        *("b ends", "a ends"),
    ]


def test_observers_that_began_end_where_another_cannot_begin_or_the_run_fails(plan: Plan) -> None:
    calls: list[str] = []
    broken = ObserverGroup([Named("a", calls), Named("b", calls, is_broken=True)])
    with pytest.raises(OSError, match="no terminal"), observed(broken, plan, "demo"):
        raise AssertionError("it has not begun")
    assert calls == ["a begins", "a ends"]
    calls.clear()
    with pytest.raises(KeyboardInterrupt, match=r"^$"), observed(Named("a", calls), plan, "demo"):
        raise KeyboardInterrupt
    assert calls == ["a begins", "a ends"]


def test_a_note_is_passed_on_once_also_one_that_a_failure_has_said(plan: Plan) -> None:
    recorder = Recorder()
    failure = SeriesOutcome(Series("BTCUSDT", "15m"), reason="no candles")
    with observed(recorder, plan, "demo") as follower:
        for event in (Note("one"), failure, Note("one"), Note("no candles"), failure):
            follower.on_event(event)
    assert recorder.events == [Note("one"), failure, failure]


def test_an_observer_may_send_events_to_all_of_them(plan: Plan) -> None:
    class Answering(RunObserver):
        def on_begin(self, context: RunContext) -> None:
            self.notify = context.notify

        def on_event(self, event: Any) -> None:
            if event == Note("question"):
                self.notify(Note("answer"))

    recorder = Recorder()
    with observed(ObserverGroup([recorder, Answering()]), plan, "demo") as follower:
        follower.on_event(Note("question"))
    assert recorder.notes == ["question", "answer"]


def test_warnings_of_modules_become_notes_until_the_block_ends() -> None:
    recorder = Recorder()
    with warnings_as_notes(recorder):
        logging.getLogger("v8").warning("a slow disk")
    logging.getLogger("v8").warning("later")
    assert recorder.notes == ["a slow disk"]
