"""Metrics: literal numbers, units, and what must not change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.base.errors import SeriesError
from v8.model.evaluation.metrics import (
    ErrorGrid,
    SquaredErrorGrid,
    StepDirection,
    measure_direction,
    measure_errors,
    wilson_interval,
)


def test_errors_of_two_windows_are_those_worked_out_by_hand(make_candles) -> None:
    # Step 1: errors +3 and -1 around last closes 100 and 50: MAE (3 + 1) / 2 = 2, RMSE sqrt(10 / 2),
    # in returns 0.03 and -0.02: MAE 0.025, RMSE sqrt((9 + 4) / 2) %. Step 2: errors 0 and +5: MAE 2.5.
    candles = make_candles(
        np.array([[100.0, 100.0], [50.0, 50.0]]), [100, 50], np.array([[103.0, 100.0], [49.0, 55.0]])
    )
    errors, losses = measure_errors(candles.test, "ohlc", candles.model["ohlc"])
    assert errors.mae_price.by_step == pytest.approx((2.0, 2.5))
    assert errors.rmse_price.by_step == pytest.approx((5**0.5, 12.5**0.5))
    assert errors.mae_return.by_step == pytest.approx((0.025, 0.05))
    assert errors.rmse_return.by_step[0] == pytest.approx(6.5**0.5 / 100)
    # Over both steps: (3 + 1 + 0 + 5) / 4 = 2.25 and sqrt((9 + 1 + 0 + 25) / 4) = sqrt(8.75).
    assert errors.mae_price.overall == pytest.approx(2.25)
    assert errors.rmse_price.overall == pytest.approx(8.75**0.5)
    # In returns, over both steps of a window: (0.03 + 0) / 2 and (0.02 + 0.1) / 2.
    assert losses == pytest.approx([0.015, 0.06])


def test_means_over_columns_and_over_all_follow_the_kind_of_error() -> None:
    cells = ((3.0, 0.0), (4.0, 1.0))
    absolute = ErrorGrid(cells)
    squared = SquaredErrorGrid(cells)
    assert absolute.by_step == (1.5, 2.5)
    assert absolute.overall == 2.0
    # Root mean squares: sqrt((9 + 0) / 2), sqrt((16 + 1) / 2), sqrt(26 / 4).
    assert squared.by_step == pytest.approx((4.5**0.5, 8.5**0.5))
    assert squared.overall == pytest.approx(6.5**0.5)


def test_errors_of_a_column_are_found_in_its_place(make_span) -> None:
    span = make_span(tasks=("ohlc",)).test
    forecast = span.actual["ohlc"].copy()
    forecast[:, 2, 1] += 6.0  # the high, at step 3 of 3
    grid = measure_errors(span, "ohlc", forecast)[0].mae_price
    assert grid.cells == pytest.approx(np.array([[0, 0, 0, 0], [0, 0, 0, 0], [0, 6.0, 0, 0]]))
    assert grid.by_step == pytest.approx((0, 0, 1.5))


@pytest.mark.parametrize("task", ["ohlc", "bands", "volatility"])
def test_the_mean_of_the_windows_losses_is_the_error_of_the_leaderboard(make_span, task: str) -> None:
    span = make_span()
    errors, losses = measure_errors(span.test, task, span.model[task])
    assert losses.shape == (7,)
    assert losses.mean() == pytest.approx(errors.mae_return.overall, rel=1e-12)


def test_volatility_keeps_its_own_unit_in_both(make_span) -> None:
    span = make_span().test
    errors, _ = measure_errors(span, "volatility", span.actual["volatility"] + 0.003)
    assert errors.mae_price.overall == pytest.approx(0.003)
    assert errors.mae_return == errors.mae_price
    assert errors.rmse_return == errors.rmse_price


@given(exponent=st.integers(-5, 5), seed=st.integers(0, 1_000))
@settings(max_examples=20, deadline=None)
def test_g8_errors_scale_with_the_price_and_errors_in_returns_do_not(
    make_span, exponent: int, seed: int
) -> None:
    factor = 10.0**exponent
    span = make_span(seed=seed)
    dearer = span.told(
        actual=_rescaled(span.test.actual, factor), history_close=span.test.history_close * factor
    )
    dearer = replace(dearer, model=_rescaled(span.model, factor))
    for task in ("ohlc", "bands"):
        before, after = (measure_errors(each.test, task, each.model[task])[0] for each in (span, dearer))
        assert after.mae_price.overall == pytest.approx(before.mae_price.overall * factor, rel=1e-9)
        assert after.rmse_price.overall == pytest.approx(before.rmse_price.overall * factor, rel=1e-9)
        assert after.mae_return.overall == pytest.approx(before.mae_return.overall, rel=1e-9)
        assert after.rmse_return.overall == pytest.approx(before.rmse_return.overall, rel=1e-9)


@pytest.mark.parametrize("size", [1e120, np.inf, np.nan])
def test_errors_too_large_to_square_are_refused(make_span, size: float) -> None:
    span = make_span().test
    with pytest.raises(SeriesError, match=r"BTCUSDT-15m, forecast of ohlc: .* 1e\+100"):
        measure_errors(span, "ohlc", np.full((7, 3, 4), size))


def test_direction_counts_hits_misses_and_both_kinds_of_flat_windows(make_candles) -> None:
    # Windows, all from 100: hit up, hit down, miss, actual values flat, forecast flat, both flat.
    actual = np.array([101.0, 99.0, 99.0, 100.0, 101.0, 100.0])[:, None]
    model = np.array([102.0, 98.0, 101.0, 103.0, 100.0, 100.0])[:, None]
    (step,) = _direction(make_candles(actual, [100] * 6, model))
    assert (step.step, step.num_hits, step.num_counted, step.num_rises) == (1, 2, 3, 1)
    assert (step.num_flat_actual, step.num_flat_forecast) == (2, 1)
    assert step.rate == pytest.approx(2 / 3)


def test_the_interval_of_the_hit_rate_is_for_as_many_windows_as_are_effective(make_candles) -> None:
    # 40 windows rise, 40 fall, and the forecast always rises: hits and misses lie in two long stretches.
    actual = np.repeat([101.0, 99.0], 40)[:, None]
    candles = make_candles(actual, [100] * 80, np.full((80, 1), 101.0))
    (step,) = _direction(candles)
    assert (step.num_hits, step.num_counted, step.rate) == (40, 80, 0.5)
    # Lag 1.3 x sqrt(80) = 11.6, so 12. Deviations are +1/2 and -1/2. Of the 80 - k pairs k bars apart, k
    # straddle the middle with a product of -1/4: the sum of all is (80 - 3k) / 4.
    inflation = 1 + 2 * sum((1 - k / 13) * (80 - 3 * k) / 80 for k in range(1, 13))
    assert step.num_effective == pytest.approx(80 / inflation)
    assert step.interval == wilson_interval(0.5 * step.num_effective, step.num_effective)
    # A hole of a year in the middle leaves no pair across it: (80 - 2k) / 4.
    bars = np.arange(80) + np.repeat([0, 35_040], 40)
    (parted,) = _direction(candles.told(bar_numbers=bars))
    inflation = 1 + 2 * sum((1 - k / 13) * (80 - 2 * k) / 80 for k in range(1, 13))
    assert parted.num_effective == pytest.approx(80 / inflation)


def test_direction_reads_the_close_and_no_other_column(make_span) -> None:
    span = make_span(tasks=("ohlc",))
    model = span.model["ohlc"].copy()
    model[:, :, :3] = 1.0  # open, high and low: far below
    model[:, :, 3] = span.test.actual["ohlc"][:, :, 3]
    assert [step.rate for step in measure_direction(span.test, model)] == [1.0, 1.0, 1.0]


def test_the_last_close_rounded_to_float32_names_no_direction(make_candles) -> None:
    # 0.1 and 12345.678 are no float32: rounding moves them by 1.5e-9 and 3.2e-5, which is no forecast.
    last = [0.1, 12_345.678, 61_234.57]
    model = np.array(last, np.float32).reshape(3, 1)
    assert (model[:, 0].astype(np.float64) != last).all()
    actual = np.array(last)[:, None] * 1.01
    (step,) = _direction(make_candles(actual, last, model))
    assert (step.num_counted, step.num_flat_forecast, step.rate, step.interval) == (0, 3, None, None)


def test_one_tick_of_a_dear_coin_is_a_direction_of_the_actual_values(make_candles) -> None:
    # 60,000.01 after 60,000.00 is a return of 1.7e-7: below the rounding of forecasts, yet true.
    (step,) = _direction(make_candles(np.array([[60_000.01]]), [60_000.0], np.array([[60_001.0]])))
    assert (step.num_hits, step.num_flat_actual) == (1, 0)


@given(num_trials=st.integers(1, 5_000), share=st.floats(0, 1))
def test_the_wilson_interval_holds_the_share_and_stays_within_0_and_1(num_trials: int, share: float) -> None:
    num_hits = round(share * num_trials)
    low, high = wilson_interval(num_hits, num_trials)
    assert 0 <= low <= num_hits / num_trials + 1e-12
    assert num_hits / num_trials - 1e-12 <= high <= 1
    # Misses mirror hits.
    mirrored = wilson_interval(num_trials - num_hits, num_trials)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


def _direction(made: Any) -> tuple[StepDirection, ...]:
    return measure_direction(made.test, made.model["ohlc"])


def _rescaled(values: Mapping[str, np.ndarray], factor: float) -> dict[str, np.ndarray]:
    return {task: each if task == "volatility" else each * factor for task, each in values.items()}
