"""Where folds lie: in order, within the history, each embargoed within itself."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.base.errors import DataError
from v8.data.market.series import Series
from v8.data.windows import rows_needed, split_rows, table_columns
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile, load_profile
from v8.runs.backtest import CandleSpan, fewest_step_bars, lay_folds

START_S = 1_600_000_200
"""A full quarter of an hour."""

COINS = tuple(Series(f"{name}USDT", "15m") for name in ("BTC", "ETH", "SOL"))


def of_bars(first: int, num_bars: int, bar_s: int = 900) -> CandleSpan:
    start_s = START_S - START_S % bar_s
    return CandleSpan(start_s + first * bar_s, start_s + (first + num_bars - 1) * bar_s)


def short_profile(newest_bars: int) -> Profile:
    return load_profile("frontier").with_budget(newest_bars=newest_bars)


profiles = st.integers(900, 3_000).map(short_profile)


@given(profiles, st.integers(1, 9), st.integers(0, 20_000), st.integers(0, 5_000))
def test_folds_lie_in_order_within_the_history_and_the_last_ends_with_it(
    profile: Profile, num_folds: int, spare: int, late: int
) -> None:
    num_bars = profile.newest_bars + (num_folds - 1) * fewest_step_bars(profile) + spare
    histories: dict[Series, Any] = dict.fromkeys(COINS[:2], of_bars(0, num_bars))
    histories[COINS[2]] = of_bars(late, num_bars)  # the half of the series that decides ends with the others
    folds = lay_folds(histories, profile, num_folds)
    ends = [fold.newest_s["BTCUSDT-15m"] for fold in folds]
    assert [fold.number for fold in folds] == [*range(1, num_folds + 1)]
    assert ends[-1] == histories[COINS[0]].newest_s
    assert ends[0] >= histories[COINS[0]].first_s + (profile.newest_bars - 1) * 900
    steps = {later - earlier for earlier, later in pairwise(ends)}
    assert len(steps) <= 1 and all(step >= fewest_step_bars(profile) * 900 for step in steps)
    for fold in folds:
        assert len(set(fold.newest_s.values())) == 1  # all are evaluated on the same days


@given(profiles, st.integers(0, 400))
def test_no_test_span_of_a_fold_meets_what_it_was_fitted_on_or_their_embargo(
    profile: Profile, missing: int
) -> None:
    num_rows = max(rows_needed(profile), profile.newest_bars - warmup_bars(table_columns(profile)) - missing)
    split = split_rows(num_rows, profile, location="a fold")
    assert split["test"][0] - split["validation"][1] >= profile.lookback_bars + profile.horizon_bars
    assert split["validation"][0] - split["train"][1] >= profile.lookback_bars + profile.horizon_bars
    assert split["test"][1] == num_rows  # so the test spans of two folds begin as far apart as the folds end
    assert 2 * fewest_step_bars(profile) >= split["test"][1] - split["test"][0] - missing


def test_a_young_coin_and_one_that_left_take_part_where_they_can() -> None:
    profile = short_profile(1_000)
    old = of_bars(0, 5_000)
    young = of_bars(3_500, 1_500)
    gone = of_bars(0, 2_500)
    folds = lay_folds(dict(zip(COINS, (old, young, gone), strict=True)), profile, 3)
    # The median series begins at bar 0 and ends at bar 4,999: folds end at bars 999, 2,999 and 4,999.
    assert [{*fold.newest_s} for fold in folds] == [
        {"BTCUSDT-15m", "SOLUSDT-15m"},
        {"BTCUSDT-15m"},
        {"BTCUSDT-15m", "ETHUSDT-15m"},
    ]


def test_timeframes_have_moments_of_their_own() -> None:
    hourly = Series("BTCUSDT", "1h")
    histories = {COINS[0]: of_bars(0, 4_000), hourly: of_bars(0, 2_000, 3_600)}
    (fold,) = lay_folds(histories, short_profile(1_000), 1)
    assert fold.newest_s == {str(one): history.newest_s for one, history in histories.items()}


def test_a_history_that_is_too_short_says_how_much_is_needed() -> None:
    profile = short_profile(1_000)
    needed = 1_000 + 2 * fewest_step_bars(profile)
    with pytest.raises(DataError, match=rf"3 folds of 15m: need {needed:,} bars, .*; got {needed - 1:,}, "):
        lay_folds({COINS[0]: of_bars(0, needed - 1)}, profile, 3)
    assert len(lay_folds({COINS[0]: of_bars(0, needed)}, profile, 3)) == 3
