"""A plan knows seeds, states and the size of the work."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from run_doubles import new_plan
from tiny_profiles import demo_data, tiny_profile

from v8.base.errors import DataError
from v8.data.market.series import Series, load_universe
from v8.data.windows import windows_without_holes
from v8.runs.options import RunOptions
from v8.runs.plan import series_seed

BTC = Series("BTCUSDT", "15m")


def test_every_series_of_the_universe_has_a_seed_of_its_own_that_selection_does_not_change(
    tmp_path: Path,
) -> None:
    profile = tiny_profile(seed=100)
    whole = new_plan(profile, load_universe(), tmp_path / "none")
    assert [series_seed(profile, one) for one in whole.series] == list(range(100, 140))
    alone = new_plan(profile, [Series("LUNAUSDT", "1h")], tmp_path / "none")
    assert [series_seed(profile, one) for one in alone.series] == [139]


def test_a_series_outside_the_universe_has_a_seed_by_its_name() -> None:
    profile = tiny_profile(seed=100)
    seeds = {series_seed(profile, Series(name, "5m")) for name in ("BTCUSDT", "ETHUSDT", "TRXUSDT")}
    assert len(seeds) == 3
    assert min(seeds) >= 140
    assert seeds == {series_seed(profile, Series(name, "5m")) for name in ("TRXUSDT", "ETHUSDT", "BTCUSDT")}


def test_the_largest_seed_stays_in_range() -> None:
    # 2**31 - 1 plus place 1 of the universe wraps to 0.
    assert series_seed(tiny_profile(seed=2**31 - 1), Series("BTCUSDT", "1h")) == 0


def test_windows_are_counted_as_the_split_does() -> None:
    profile = tiny_profile()
    data = demo_data(profile)
    spans = ("train", "validation", "test")
    assert windows_without_holes(profile.newest_bars, profile) == {
        name: data.num_windows(name) for name in spans
    }


@pytest.mark.parametrize("name", ["aligned", "stable", "v7"])
def test_a_smoke_budget_is_enough_for_every_shipped_profile(name: str) -> None:
    budget = RunOptions(profile=name, smoke=True).resolved_profile()
    assert min(windows_without_holes(budget.newest_bars, budget).values()) >= 20


def test_too_few_bars_are_refused_before_anything_starts() -> None:
    with pytest.raises(DataError, match=r"100 candles: needs at least \d+ rows"):
        windows_without_holes(100, tiny_profile())


def test_a_plan_is_plain_data(tmp_path: Path) -> None:
    plan = new_plan(tiny_profile(), [BTC], tmp_path)
    assert copy.deepcopy(plan) == plan
    assert plan.todo == [*plan.series]
