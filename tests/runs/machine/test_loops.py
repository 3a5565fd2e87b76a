"""How loops are compiled follows a measurement of this machine, taken once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tiny_profiles import tiny_profile

from v8.base.child import ChildResult
from v8.base.hardware import STEPS_VARIABLE
from v8.profile.profile import Profile, load_profile
from v8.runs import machine
from v8.runs.machine import (
    FLAGS,
    GPU_LOOPS,
    MEASURED_GPU_LOOPS,
    TASK_PER_OPERATION,
    Loops,
    choose_loops,
    loops_in_environment,
)

LEAST_FLOP_ON_GPU = machine.MIN_FLOP_TO_MEASURE_ON_GPU  # the tests set another
SPEEDS = [600.0, 750.0, 700.0]
"""Windows per processor second with each set of flags: the second is fastest."""


@pytest.fixture(autouse=True)
def single_threaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    monkeypatch.setenv("XLA_FLAGS", TASK_PER_OPERATION)
    for name in ("MIN_FLOP_TO_MEASURE", "MIN_FLOP_TO_MEASURE_ON_GPU"):
        monkeypatch.setattr(machine, name, 1.0)


def told(monkeypatch: pytest.MonkeyPatch, *answers: list[float]) -> list[Profile]:
    """Let measurements answer one after another; what was measured is returned."""
    asked = list[Profile]()
    waiting = list(answers)

    def timed(profile: Profile, *given: Any, **options: Any) -> list[dict[str, float]]:
        asked.append(profile)
        return [{"float32": speed} if speed else {} for speed in waiting.pop(0)]

    monkeypatch.setattr(machine, "_time_steps", timed)
    return asked


def settled(profile: Profile) -> str:
    with loops_in_environment(choose_loops(profile, on_message=lambda text: None)):
        flags = os.environ["XLA_FLAGS"]
    assert os.environ["XLA_FLAGS"] == TASK_PER_OPERATION  # the next call finds what this one found
    return flags


@pytest.mark.parametrize(
    ("speeds", "loops"),
    [
        ([600.0, 750.0, 700.0], "whole"),
        ([600.0, 550.0, 700.0], "whole_of_16"),
        ([600.0, 620.0, 610.0], "stepwise"),
        ([600.0, 0.0, 0.0], "stepwise"),
        ([0.0, 0.0, 0.0], "stepwise"),
        ([0.0, 500.0, 400.0], "stepwise"),
    ],
)
def test_loops_become_one_kernel_where_that_is_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, speeds: list[float], loops: Loops
) -> None:
    told(monkeypatch, speeds)
    assert settled(tiny_profile()) == FLAGS[loops]


@pytest.mark.parametrize("flags", ["--xla_cpu_enable_fast_math=false", None])
def test_flags_of_the_user_and_of_a_process_with_a_gpu_stand(
    monkeypatch: pytest.MonkeyPatch, flags: str | None
) -> None:
    asked = told(monkeypatch)
    monkeypatch.delenv("XLA_FLAGS") if flags is None else monkeypatch.setenv("XLA_FLAGS", flags)
    with (
        loops_in_environment(choose_loops(tiny_profile(), on_message=lambda text: None)),
        loops_in_environment("whole"),
    ):
        assert (os.environ.get("XLA_FLAGS"), asked) == (flags, [])


def test_a_short_training_is_not_worth_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = told(monkeypatch)
    profile = tiny_profile()
    num_windows = profile.training.epochs * profile.newest_bars
    least = 1.01 * num_windows * profile.training_flop_per_window
    monkeypatch.setattr(machine, "MIN_FLOP_TO_MEASURE", least)
    assert (settled(profile), asked) == (TASK_PER_OPERATION, [])


@pytest.mark.process
def test_each_set_of_flags_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Any] = []

    def run_in_children(calls: Any, **options: Any) -> list[Any]:
        measured.extend(calls)
        return [ChildResult(({"float32": rate},), None, 0.0, 0, "") for rate in SPEEDS]

    monkeypatch.setattr(machine, "run_in_children", run_in_children)
    assert settled(tiny_profile()) == FLAGS["whole"]
    assert [call.environment["XLA_FLAGS"] for call in measured] == list(FLAGS.values())
    assert all(call.options == measured[0].options for call in measured)


def gpu_speeds(monkeypatch: pytest.MonkeyPatch, **speeds: float) -> list[dict[str, str]]:
    """Let every way for a GPU have a speed, or fail; return the variables of the processes that measure."""
    environments = list[dict[str, str]]()
    by_variables = {json.dumps(GPU_LOOPS[loops]): speed for loops, speed in speeds.items()}

    def run_in_children(calls: Any, **options: Any) -> list[Any]:
        (call,) = calls
        environments.append(call.environment)
        speed = by_variables.get(json.dumps(call.environment))
        if speed is None:  # the process crashed
            return [ChildResult((), None, 0.0, -6, "")]
        return [ChildResult(({"float32": speed},), None, 0.0, 0, "")]

    monkeypatch.setattr(machine, "run_in_children", run_in_children)
    monkeypatch.delenv("XLA_FLAGS")
    return environments


@pytest.mark.process
def test_on_a_gpu_the_fastest_way_that_works_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    environments = gpu_speeds(monkeypatch, gpu=100.0, gpu_trips_of_60=130.0, gpu_double_buffering=200.0)
    lines = list[str]()
    for _ in range(2):
        assert choose_loops(tiny_profile(), may_have_gpu=True, on_message=lines.append) == "gpu_trips_of_60"
    assert environments == [dict(GPU_LOOPS[loops]) for loops in MEASURED_GPU_LOOPS]  # each alone, and once
    assert lines[-1].startswith("Loops run as gpu_trips_of_60: 1.30 times ")
    with loops_in_environment("gpu_trips_of_60"):
        assert os.environ[STEPS_VARIABLE] == "60"
    assert STEPS_VARIABLE not in os.environ


@pytest.mark.process
def test_a_training_of_minutes_on_a_gpu_is_not_worth_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MIN_FLOP_TO_MEASURE_ON_GPU", LEAST_FLOP_ON_GPU)
    environments = gpu_speeds(monkeypatch, gpu=100.0, gpu_trips_of_60=130.0)
    assert choose_loops(load_profile("aligned"), may_have_gpu=True, on_message=pytest.fail) == "gpu"
    assert not environments


@pytest.mark.process
@pytest.mark.parametrize("speeds", [{"gpu": 100.0, "gpu_trips_of_60": 104.0}, {}, {"gpu_trips_of_60": 9.0}])
def test_on_a_gpu_the_usual_way_stays_without_a_clear_gain(
    monkeypatch: pytest.MonkeyPatch, speeds: dict[str, float]
) -> None:
    gpu_speeds(monkeypatch, **speeds)
    assert choose_loops(tiny_profile(), may_have_gpu=True, on_message=lambda text: None) == "gpu"


@pytest.mark.process
def test_on_a_gpu_flags_of_the_user_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    environments = gpu_speeds(monkeypatch, gpu=100.0, gpu_trips_of_60=200.0)
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0")
    assert choose_loops(tiny_profile(), may_have_gpu=True, on_message=lambda text: None) == "gpu"
    with loops_in_environment("gpu_trips_of_60"):
        assert (os.environ["XLA_FLAGS"], environments) == ("--xla_gpu_autotune_level=0", [])


def test_what_a_gpu_likes_changes_nothing_on_a_cpu() -> None:
    with loops_in_environment("gpu_command_buffers"):
        assert os.environ["XLA_FLAGS"] == TASK_PER_OPERATION
