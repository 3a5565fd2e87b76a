"""How loops are compiled follows a measurement of this machine, taken once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from v8.engine import loop_design
from v8.engine.loop_design import STEPWISE, WHOLE, choose_loops, compile_loops
from v8.models.cost import training_flop_per_window
from v8.profile import Profile

MakeProfile = Callable[..., Profile]


@pytest.fixture(autouse=True)
def single_threaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    monkeypatch.setenv("XLA_FLAGS", STEPWISE)
    monkeypatch.setattr(loop_design, "WORTHWHILE_FLOP", 1.0)


def told(monkeypatch: pytest.MonkeyPatch, *answers: list[float]) -> list[Profile]:
    """Let measurements answer one after another; what was measured is returned."""
    asked, waiting = list[Profile](), list(answers)

    def measured(profile: Profile) -> list[float]:
        asked.append(profile)
        return waiting.pop(0)

    monkeypatch.setattr(loop_design, "_measured", measured)
    return asked


def settled(profile: Profile) -> str:
    compile_loops(choose_loops(profile, tell=lambda text: None))
    return os.environ["XLA_FLAGS"]


@pytest.mark.parametrize(
    ("speeds", "flags"),
    [([600.0, 750.0], WHOLE), ([600.0, 620.0], STEPWISE), ([600.0, 0.0], STEPWISE), ([0.0, 0.0], STEPWISE)],
)
def test_loops_become_one_kernel_where_that_is_clearly_faster(
    make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch, speeds: list[float], flags: str
) -> None:
    told(monkeypatch, speeds)
    assert settled(make_profile()) == flags


def test_a_network_is_measured_once(make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = told(monkeypatch, [600.0, 750.0])
    assert settled(make_profile()) == WHOLE
    monkeypatch.setenv("XLA_FLAGS", STEPWISE)  # another process begins
    assert settled(make_profile()) == WHOLE
    assert len(asked) == 1


@pytest.mark.parametrize("flags", ["--xla_cpu_enable_fast_math=false", None])
def test_flags_of_the_user_and_of_a_process_with_a_gpu_stand(
    make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch, flags: str | None
) -> None:
    asked = told(monkeypatch)
    monkeypatch.delenv("XLA_FLAGS") if flags is None else monkeypatch.setenv("XLA_FLAGS", flags)
    compile_loops(choose_loops(make_profile(), tell=lambda text: None))
    compile_loops("whole")
    assert (os.environ.get("XLA_FLAGS"), asked) == (flags, [])


def test_a_short_training_is_not_worth_the_measurement(
    make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, profile = told(monkeypatch), make_profile()
    num_windows = profile.training.epochs * profile.newest_bars
    least = 1.01 * num_windows * training_flop_per_window(profile)
    monkeypatch.setattr(loop_design, "WORTHWHILE_FLOP", least)
    assert (settled(profile), asked) == (STEPWISE, [])


def test_each_set_of_flags_is_measured_in_a_process_of_its_own(
    make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[Any] = []

    def ask(given: Any, **options: Any) -> list[Any]:
        orders.extend(given)
        return [loop_design.Answer(({"float32": rate},), None, 0.0, 0, "") for rate in (600.0, 750.0)]

    monkeypatch.setattr(loop_design, "ask", ask)
    assert settled(make_profile()) == WHOLE
    assert [order.environment["XLA_FLAGS"] for order in orders] == [STEPWISE, WHOLE]
    assert orders[0].measurements == orders[1].measurements
