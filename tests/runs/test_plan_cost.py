"""A plan tells the time that runs of its profile really took here, and says so where nobody knows it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_doubles import new_plan
from tiny_profiles import tiny_profile

from v8.cli.runs import print_plan, print_profiles
from v8.data.market.series import load_universe
from v8.data.market.sources.demo import DemoSource
from v8.model.baselines import baselines
from v8.profile.profile import audiences, load_profile, profile_names
from v8.runs.estimate import RunCost, known_cost, save_cost
from v8.runs.options import RunOptions

NOT_KNOWN = "Estimated time: not known. A run of this profile measures it; one series is enough."


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def told(profile: Any, place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a plan of forty series says of its time."""
    print_plan(new_plan(profile, load_universe(), place / "none"), DemoSource())
    return capsys.readouterr().out.splitlines()[-1]


def test_where_nothing_was_measured_no_time_is_told_but_how_it_gets_measured(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(tiny_profile(), tmp_path, capsys)
    assert said == NOT_KNOWN
    assert not home.exists()  # a plan does nothing


def test_a_plan_counts_all_that_the_largest_run_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tiny_profile()
    for cost in (RunCost(1, 30.0, 30.0, 1), RunCost(20, 90.0, 8.0, 2), RunCost(2, 40.0, 8.0, 2)):
        save_cost(profile, cost)
    assert known_cost(profile) == RunCost(20, 90.0, 8.0, 2)
    # 20 series, two at a time, are ten rounds of 8 s; 40 are ten rounds more: 90 s and 80 s.
    assert re.fullmatch(
        "Estimated time: about 3 min, .*: 20 series took 2 min here.", told(profile, tmp_path, capsys)
    )


def test_a_plan_of_nothing_takes_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = new_plan(tiny_profile(), load_universe(), tmp_path)
    print_plan(replace(plan, series=dict.fromkeys(plan.series, "done")), DemoSource())
    assert capsys.readouterr().out.splitlines()[-1].startswith("Estimated time: none, ")


def test_what_ran_all_at_once_tells_of_more_by_the_stages_of_a_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # As an older v8 kept it: of 30 s nobody knows how many were for what is done once.
    save_cost(tiny_profile(), RunCost(2, 30.0, 30.0, 2))
    assert told(tiny_profile(), tmp_path, capsys) == NOT_KNOWN
    # One round took 30 s, of which 8 s were a series' own; forty are nineteen rounds more: 30 s and 152 s.
    save_cost(tiny_profile(), RunCost(2, 30.0, 30.0, 2, own_s=8.0))
    assert re.fullmatch(
        "Estimated time: at most about 3 min, .*: 2 series took 30 s here, .* 8 s .* 2 in parallel.",
        told(tiny_profile(), tmp_path, capsys),
    )


def test_a_cost_that_an_older_v8_kept_says_nothing(home: Path) -> None:
    save_cost(tiny_profile(), RunCost(2, 40.0, 8.0, 2))
    (file,) = (home / "machine").iterdir()
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "found": {"num_series": 20, "seconds": 90.0}}))
    assert known_cost(tiny_profile()) is None


def test_every_shipped_profile_says_for_whom_it_is_and_what_forty_series_cost_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sorted(audiences()) == profile_names()
    assert next(iter(audiences())) == RunOptions().profile == "frontier"
    save_cost(load_profile("frontier"), RunCost(20, 90.0, 8.0, 2))
    print_profiles()
    text = " ".join(capsys.readouterr().out.split())
    assert "40 series " in text
    assert f"frontier 3 min {audiences()['frontier']}" in text


def test_a_newer_run_of_as_many_series_counts() -> None:
    for seconds in (90.0, 60.0):
        save_cost(tiny_profile(), RunCost(20, seconds, 8.0, 2))
    assert known_cost(tiny_profile()) == RunCost(20, 60.0, 8.0, 2)


def test_what_was_measured_with_other_work_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    save_cost(tiny_profile(), RunCost(20, 90.0, 8.0, 2))
    assert known_cost(tiny_profile(name="renamed", seed=7)) == RunCost(20, 90.0, 8.0, 2)
    assert known_cost(tiny_profile(newest_bars=800)) is None
    assert known_cost(tiny_profile(training={"epochs": 4})) is None
    lighter = {name: one for name, one in baselines.BASELINES.items() if name != "har"}
    monkeypatch.setattr("v8.runs.estimate.BASELINES", lighter)
    assert known_cost(tiny_profile()) is None
