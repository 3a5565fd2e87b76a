"""A plan tells the time that runs of its profile really took here, and says so where nobody knows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from v8.cli.printing import print_plan
from v8.formulas import baselines
from v8.market.series import load_universe
from v8.market.sources.demo import DemoSource
from v8.runs.plan import RunCost, keep_cost, known_cost, make_plan


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def told(profile: Any, place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a plan of forty series says of its time."""
    print_plan(make_plan(profile, load_universe(), place / "none"), DemoSource())
    return capsys.readouterr().out.splitlines()[-1]


def test_where_nothing_was_measured_judging_is_named_and_no_whole_is_told(
    make_profile: Any, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(make_profile(), tmp_path, capsys)
    assert said.startswith("Estimated time: not known. Training itself takes at most ")
    assert "judging (every baseline is fitted for each series) and saving come on top" in said
    assert not home.exists()  # a plan does nothing


def test_a_plan_counts_all_that_the_largest_run_took(
    make_profile: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = make_profile()
    for cost in (RunCost(1, 30.0), RunCost(20, 90.0), RunCost(2, 40.0)):
        keep_cost(profile, cost)
    assert known_cost(profile) == RunCost(20, 90.0)
    # 90 s for 20 are 4.5 s each and 180 s for 40.
    assert told(profile, tmp_path, capsys) == (
        "Estimated time: about 3 min, judging and saving included: 20 models took 2 min here, of at most 3 "
        "epochs each."
    )


def test_a_newer_run_of_as_many_series_counts(make_profile: Any) -> None:
    for seconds in (90.0, 60.0):
        keep_cost(make_profile(), RunCost(20, seconds))
    assert known_cost(make_profile()) == RunCost(20, 60.0)


def test_what_was_measured_with_other_work_says_nothing(
    make_profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_cost(make_profile(), RunCost(20, 90.0))
    assert known_cost(make_profile(name="renamed", seed=7)) == RunCost(20, 90.0)
    assert known_cost(make_profile(newest_bars=800)) is None
    assert known_cost(make_profile(training={"epochs": 4})) is None
    lighter = {name: one for name, one in baselines.BASELINES.items() if name != "har"}
    monkeypatch.setattr("v8.runs.plan.BASELINES", lighter)
    assert known_cost(make_profile()) is None
