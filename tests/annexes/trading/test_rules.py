"""Results of forecasts by each rule: literal sums, those of naive and of perfect foresight, significance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from wandering import wandering

from v8.annexes.trading.rules import (
    EARNED,
    GAIN,
    NAIVE,
    PERFECT_FORESIGHT,
    SHARPE,
    TRADING_RULES,
    MarketForecast,
    MarketWindows,
    TradingCase,
    TradingResults,
    TradingTerms,
    bootstrap_mean,
    by_direction,
    by_limits,
    by_ranges,
    by_variance,
    by_volatility,
    calibrate_forecast,
    evaluate_trading,
    log_ranges,
    mean_variance,
    require_ranges,
)
from v8.base.errors import DataError
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.significance import BEATS

FREE = TradingTerms(fee=0.0, spread=0.0)
COSTS = TradingTerms(fee=0.001, spread=0.0002)  # 11 bps where one cannot wait, 10 where one can


def market(*bars: tuple[float, float, float, float], numbers: tuple[int, ...] | None = None) -> MarketWindows:
    """Windows one bar ahead, each after a close of 100."""
    made = np.array(bars)[:, None]
    at = np.array(numbers or range(len(bars)))
    return MarketWindows(made, np.full(len(bars), 100.0), at, 900)


def outlook(**values: float) -> MarketForecast:
    told = {"low": 99.0, "high": 101.0, "close": 100.0, "variance": 1e-4} | values
    ends = (np.array([told.pop("bottom", 98.0)]), np.array([told.pop("top", 102.0)]))
    return MarketForecast(**{name: np.array([value]) for name, value in told.items()}, close_interval=ends)


def test_an_order_is_filled_where_a_bar_trades_through_it_and_made_good_at_the_close_otherwise() -> None:
    through = by_limits(market((100, 102, 98, 101)), outlook(), COSTS)
    # Bought at 99, sold at 101: 1 % better than the close either way, at 10 bps each.
    assert through[GAIN].tolist() == pytest.approx([100 - 10])
    assert through["filled, %"] == 100
    touched = by_limits(market((100, 101, 99, 100.5)), outlook(), COSTS)
    # Neither was filled: bought and sold at 100.5, which cancel, at 11 bps each.
    assert touched[GAIN].tolist() == pytest.approx([-11])
    assert touched["filled, %"] == 0
    assert by_limits(market((100, 101, 99, 100)), None, COSTS)[GAIN].tolist() == pytest.approx([-11])


def test_a_direction_pays_for_every_change_and_for_leaving_at_a_hole() -> None:
    rising = market((100, 101, 99, 101), (102, 103, 99, 103), (50, 51, 49, 51), numbers=(0, 1, 9))
    up = replace(outlook(), close=np.array([101.0, 101.0, 99.0]))
    played = by_direction(rising, up, COSTS)
    # From open to open, then to the close before the hole; the third is short beyond it.
    earned = np.array([2 / 100, 1 / 102, -1 / 50])
    assert played[EARNED] == pytest.approx(earned - 0.0011 * np.array([1.0, 1.0, 2.0]))
    assert played[GAIN] == pytest.approx(100 * 365 * 96 * played[EARNED])
    assert by_direction(rising, replace(up, close=np.full(3, 100.0)), COSTS)[EARNED] == pytest.approx(
        [0, 0, 0]
    )


def test_a_range_costs_its_width_and_twenty_times_what_lies_beyond_and_its_ends_are_stops() -> None:
    within = by_ranges(market((100, 101, 99, 100)), outlook(), COSTS)
    assert within[GAIN].tolist() == pytest.approx([-400])
    assert (within["closes beyond the range, %"], within["stopped, %"]) == (0, 0)
    beyond = by_ranges(market((97, 98, 96, 97.5)), outlook(), COSTS)
    assert beyond[GAIN].tolist() == pytest.approx([-(400 + 20 * 50)])
    # A long position opens below its stop and is out at 97, half a point below the close; a short one stays.
    assert beyond["lost by stops (−: gained), bps a trade"] == pytest.approx(50 / 2)
    assert (beyond["closes beyond the range, %"], beyond["stopped, %"]) == (100, 50)


def test_who_knows_the_volatility_has_the_utility_of_the_source_and_a_perfect_score() -> None:
    bars = market(*[(100, 101 + at % 3, 99, 100) for at in range(96)])
    knows = calibrate_forecast(bars, bars.actual_NHC, bars.last_close_N, bars.actual_NHC)
    played = by_volatility(bars, knows, replace(FREE, target=0.2, max_leverage=1e9))
    # 8 % a year for the risk that is wanted, less 4 % for bearing it.
    assert played["utility before costs, % a year"] == pytest.approx(100 * SHARPE * 0.2 / 2)
    assert by_variance(bars, knows, FREE)[GAIN] == pytest.approx(np.zeros(96), abs=1e-12)
    half = replace(knows, variance=knows.variance / 2)
    assert by_variance(bars, half, FREE)[GAIN] == pytest.approx(np.full(96, -(2 - np.log(2) - 1)))
    capped = by_volatility(bars, knows, replace(COSTS, max_leverage=0.01))
    assert capped["traded, times a year"].mean() == pytest.approx(365 * 2 * 0.01)  # in and out, once a day


def test_the_level_of_ranges_is_learnt_from_the_past_alone() -> None:
    past = market((100, 102, 98, 101))
    now = market((100, 101, 99, 100))
    told = np.array([[[100, 101, 99, 100.0]]])
    calibrated = calibrate_forecast(past, told, now.last_close_N, told)
    assert calibrated.variance == pytest.approx(mean_variance(log_ranges(past.actual_NHC)))
    # A forecast of the ranges themselves decides, if there is one; candles are as before.
    ranges = (np.array([[0.05]]), np.array([[0.15]]))
    ranged = calibrate_forecast(past, told, now.last_close_N, told, ranges_NH=ranges)
    assert ranged.variance == pytest.approx(9 * mean_variance(log_ranges(past.actual_NHC)))
    assert (ranged.low, ranged.high) == (calibrated.low, calibrated.high)
    assert np.log(calibrated.close_interval[1] / 100) == pytest.approx(
        np.log([101 / 100])
    )  # as far as the past's close moved


@pytest.fixture(scope="module")
def known() -> TradingResults:
    return evaluate_trading([wandering(90), replace(wandering(90, 1), series="ETHUSDT-1h")], FREE)


def test_what_is_known_of_volatility_is_worth_more_than_chance_and_the_close_is_not(
    known: TradingResults,
) -> None:
    outcomes = {one.rule: one.best.outcome for one in known.pooled}
    assert outcomes["volatility"] == outcomes["variance"] == outcomes["ranges"] == BEATS
    assert outcomes["direction"] == "not significantly different from"  # buy and hold, by chance
    assert known.pooled[2].naive.outcome == "equals"  # neither says where it goes
    assert [one.num_days for one in known.pooled] == [91] * len(TRADING_RULES)
    assert {one.series for one in known.by_series} == {"BTCUSDT-1h", "ETHUSDT-1h"}


@pytest.mark.parametrize("terms", [FREE, COSTS])
def test_the_actual_values_is_a_bound(terms: TradingTerms) -> None:
    trading = evaluate_trading([wandering(30)], terms)
    for one in (*trading.pooled, *trading.by_series):
        assert one.gains[PERFECT_FORESIGHT] == max(one.gains.values())


def test_the_naive_forecast_in_place_of_the_model_is_worth_nothing() -> None:
    study = wandering(60)
    same_forecasts = {**study.forecasts, MODEL: study.forecasts[NAIVE]}
    same = evaluate_trading([replace(study, forecasts=same_forecasts)], COSTS)
    assert {one.naive.outcome for one in same.pooled} == {"equals"}
    assert {one.naive.corrected_p_value for one in (*same.pooled, *same.by_series)} == {None}


@pytest.mark.parametrize("num_days", [13, 50])
def test_chance_alone_is_called_chance(num_days: int) -> None:
    rng = np.random.default_rng(1)
    p_values = [bootstrap_mean(rng.normal(size=num_days))[1] for _ in range(200)]
    assert np.mean(np.array(p_values) < 0.05) <= 0.08
    interval, p_value = bootstrap_mean(rng.normal(1.5, 1.0, size=num_days))
    assert interval is not None
    assert p_value is not None
    assert interval[0] > 0 and p_value < 0.01


def coarse_case(*, is_drawn_as_line: bool = False) -> TradingCase:
    """A coin of 2 satoshi for 40 days: no bar has a range but each eighth, which reaches 3, 1 or both."""
    rng = np.random.default_rng(5)
    num = 24 * 40
    last = np.full(num, 2e-8)
    bars = np.repeat(last[:, None, None], 4, axis=2)
    moving = np.arange(0, num, 8)
    if is_drawn_as_line:
        bars[moving] = 3e-8
    else:
        bars[moving, 0, 1] = 3e-8
        bars[moving, 0, 3] = rng.choice([1e-8, 2e-8, 3e-8], len(moving))
        bars[moving, 0, 2] = np.minimum(bars[moving, 0, 3], 2e-8)
    coarse = MarketWindows(bars, last, np.arange(num), 3_600)
    flat = np.repeat(last[:, None, None], 4, axis=2)
    forecast = calibrate_forecast(coarse, flat, last, flat)
    return TradingCase("HOTBTC-1h", coarse, {MODEL: forecast, NAIVE: forecast})


def test_the_variance_of_a_random_walk_is_found_again() -> None:
    """At 1ad3d8c1 it was 9 % too large: pi / 8 belongs to the square of the mean range."""
    rng = np.random.default_rng(3)
    steps = 1_600
    paths = rng.normal(0.0, 0.01 / np.sqrt(steps), (4_000, steps)).cumsum(axis=1)
    ranges = paths.max(axis=1).clip(0) - paths.min(axis=1).clip(max=0)
    # Seen at its steps only, a walk misses 0.5826 deviations of a step at either end (Asmussen et al. 1995).
    ranges += 2 * 0.5826 * 0.01 / np.sqrt(steps)
    assert mean_variance(ranges[None])[0] == pytest.approx(1e-4, rel=0.03)


def test_forecasts_without_a_range_are_scored_by_the_smallest_range_that_prices_have() -> None:
    case = coarse_case()
    # By the step from 2 to 3 satoshi, the smallest one: a mean squared range is 4 ln 2 variances of returns.
    assert case.market.smallest_variance == pytest.approx(np.log(1.5) ** 2 / (4 * np.log(2)))
    low, high = case.forecasts[MODEL].close_interval
    assert 1e-9 < low.min() <= high.max() < 1e-7
    results = evaluate_trading([case], COSTS)
    assert np.isfinite([gain for result in results.pooled for gain in result.gains.values()]).all()


def test_bars_of_which_none_has_a_range_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        require_ranges(coarse_case(is_drawn_as_line=True).market, "test span of HOTBTC-1h")
    assert (caught.value.where, caught.value.got) == (
        "test span of HOTBTC-1h",
        "none with one in 960 windows",
    )
    require_ranges(coarse_case().market, "test span of HOTBTC-1h")


def test_gains_beyond_all_numbers_are_refused() -> None:
    """A price that leaps a million times up and down again each hour, for whoever knows it."""
    market = coarse_case().market
    leaping = market.actual_NHC * np.where(np.arange(960) % 2, 1e6, 1.0)[:, None, None]
    case = replace(coarse_case(), market=replace(market, actual_NHC=leaping))
    with pytest.raises(DataError) as caught:
        evaluate_trading([case], COSTS)
    assert caught.value.where.startswith("HOTBTC-1h, ")
