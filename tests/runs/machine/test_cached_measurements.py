"""The cache of measurements: a file that holds anything but one of their kind is measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from v8.profile.profile import Profile, load_profile
from v8.runs import machine
from v8.runs.estimate import RunCost, known_cost, save_cost
from v8.runs.machine import cached_measurement

DEEP = 100_000


@pytest.fixture
def profile() -> Profile:
    return load_profile("frontier")


def put(home: Path, name: str, content: Any) -> None:
    """Put content in the place of the one measurement of a name, as text or as what was found."""
    (file,) = (home / "machine").glob(f"{name}-*.json")
    text = content if isinstance(content, str) else json.dumps({"found": content})
    file.write_text(text)


@pytest.mark.parametrize(
    "content",
    [
        "[" * DEEP,
        '{"found": ' + "[" * DEEP + "]" * DEEP + "}",
        "",
        '{"found": {"float32": Infinity}}',
        '{"found": {"float32": 1' + "0" * 400 + "}}",
        '{"found": {"float32": 1' + "0" * 6_000 + "}}",
        '{"found": {"float32": "5"}}',
        '{"found": {"float32": -5}}',
        {"float32": True},
        {"evil": 9e9, "float32": 1.0},
        {"float64": 9e9},
        "\\udc80",
    ],
)
def test_a_number_format_is_taken_from_the_list_only(
    content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    kind = machine.MEASUREMENT_OF_FORMATS
    sound = {"float32": 1.0, "mixed_bfloat16": 2.0}
    assert cached_measurement(kind, "precision", {}, lambda: sound) == sound
    assert cached_measurement(kind, "precision", {}, dict) == sound
    put(tmp_path, "precision", content)
    assert cached_measurement(kind, "precision", {}, lambda: {"float32": 3.0}) == {"float32": 3.0}
    assert cached_measurement(kind, "precision", {}, dict) == {"float32": 3.0}  # and was written again


def test_what_is_chosen_is_a_format_of_keras(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "MIN_FLOP_TO_MEASURE", 0.0)
    monkeypatch.setattr(machine, "_time_steps", lambda *_, **__: [{"float32": 1.0, "mixed_bfloat16": 0.5}])
    measured = profile.but(precision="auto")

    def chosen() -> str:
        return machine.choose_precision(measured, may_have_gpu=False, on_message=lambda text: None)

    assert chosen() == "float32"
    put(tmp_path, "precision", {"float32": 1.0, "evil": 100.0})
    assert chosen() == "float32"


@pytest.mark.parametrize("content", ["[" * DEEP, "{}", {"num_series": 0}, {"seconds": "many"}, []])
def test_the_cost_of_a_run_that_cannot_be_read_is_not_known(
    profile: Profile, content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    save_cost(profile, RunCost(num_series=2, seconds=3.0, series_s=1.0, num_side_by_side=1))
    assert known_cost(profile) is not None
    put(tmp_path, "run", content)
    assert known_cost(profile) is None
