"""The number format of training follows a measurement of this machine, taken once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_profiles import tiny_profile

from v8.profile.profile import load_profile
from v8.runs import machine
from v8.runs.machine import FORMATS, choose_precision, fastest_format

AUTO = {"precision": "auto"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    monkeypatch.setattr(
        machine, "MIN_FLOP_TO_MEASURE", 0.0
    )  # else no network of a test is worth a measurement
    return tmp_path


def told(monkeypatch: pytest.MonkeyPatch, *answers: dict[str, float]) -> list[tuple[bool, tuple[str, ...]]]:
    """Let measurements answer one after another; what was asked for is returned."""
    asked = []
    waiting = list(answers)

    def timed(profile: Any, formats: Any, *, is_short: bool, **options: Any) -> list[dict[str, float]]:
        asked.append((is_short, tuple(formats)))
        return [waiting.pop(0)]

    monkeypatch.setattr(machine, "_time_steps", timed)
    return asked


def test_a_slow_16_bit_format_is_not_chosen_whatever_the_processor_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = told(monkeypatch, {"float32": 439.0, "mixed_bfloat16": 225.0, "mixed_float16": 300.0})
    lines: list[str] = []
    chosen = choose_precision(tiny_profile(training=AUTO), may_have_gpu=False, on_message=lines.append)
    assert (chosen, asked) == ("float32", [(True, FORMATS)])
    assert "mixed_bfloat16 0.51, mixed_float16 0.68" in lines[-1]


@pytest.mark.parametrize(("whole", "expected"), [(1.5, "mixed_bfloat16"), (0.8, "float32")])
def test_a_format_that_wins_on_the_small_network_has_to_win_on_the_whole_one(
    monkeypatch: pytest.MonkeyPatch, whole: float, expected: str
) -> None:
    small = {"float32": 100.0, "mixed_bfloat16": 180.0, "mixed_float16": 20.0}
    asked = told(monkeypatch, small, {"float32": 100.0, "mixed_bfloat16": 100 * whole})
    chosen = choose_precision(tiny_profile(training=AUTO), may_have_gpu=False, on_message=lambda text: None)
    assert (chosen, asked[1]) == (expected, (False, ("float32", "mixed_bfloat16")))


def test_a_machine_is_measured_once_and_another_network_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = told(monkeypatch, *[{"float32": 100.0, "mixed_bfloat16": 1.0, "mixed_float16": 1.0}] * 2)
    for _ in range(2):
        choose_precision(tiny_profile(training=AUTO), may_have_gpu=False, on_message=lambda text: None)
    assert len(asked) == 1
    wider = tiny_profile(training={**AUTO, "batch_size": 64})
    choose_precision(wider, may_have_gpu=False, on_message=lambda text: None)
    assert len(asked) == 2


def test_a_format_that_was_asked_for_needs_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = told(monkeypatch)
    profile = tiny_profile(training={"precision": "mixed_float16"})
    assert choose_precision(profile, may_have_gpu=True, on_message=lambda text: None) == "mixed_float16"
    assert not asked


def test_work_of_seconds_is_not_measured_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MIN_FLOP_TO_MEASURE", 2e13)
    asked = told(monkeypatch)
    lines = list[str]()
    for profile in (load_profile("frontier"), tiny_profile(training=AUTO)):
        assert choose_precision(profile, may_have_gpu=False, on_message=lines.append) == "float32"
    assert (asked, lines) == ([], [])
    # 100 epochs over 8,000 bars of 127 MFLOP each are an hour of a core: worth 20 s.
    asked = told(monkeypatch, {"float32": 100.0})
    choose_precision(load_profile("aligned"), may_have_gpu=False, on_message=lines.append)
    assert len(asked) == 1


def test_a_measurement_that_fails_means_float32_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, {})
    lines: list[str] = []
    assert (
        choose_precision(tiny_profile(training=AUTO), may_have_gpu=False, on_message=lines.append)
        == "float32"
    )
    assert "could not be measured" in lines[-1]


@pytest.mark.nightly
@pytest.mark.process
def test_the_real_measurement_times_every_format(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = machine._time_steps
    found = list[dict[str, float]]()

    def remembered(*given: Any, **options: Any) -> list[dict[str, float]]:
        found.extend(timed(*given, **options))
        return found[-1:]

    monkeypatch.setattr(machine, "_time_steps", remembered)
    tasks = {"ohlc": {"weight": 1.0, "loss": "mae"}}
    small = tiny_profile("dense_newest", tasks=tasks, training=AUTO)  # every format is compiled by itself
    chosen = choose_precision(small, may_have_gpu=False, on_message=lambda text: None)
    assert set(found[0]) == set(FORMATS)
    assert chosen == fastest_format(found[-1])  # on the whole network where 16 bits won on one layer
    (file,) = (home / "machine").glob("precision-*.json")
    assert json.loads(file.read_text("utf-8"))["found"] == found[-1]
