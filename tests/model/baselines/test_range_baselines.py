"""Baselines of the range: what they fit is found again when the actual values follows their formula."""

from __future__ import annotations

import numpy as np
import pytest

from v8.data.span import Span
from v8.model.baselines.baselines import BASELINES, fit_har
from v8.profile.tasks import future_weights


def _deviations(span: Span) -> np.ndarray:
    """Deviation of the naive forecast's twenty closes over the last close, shape (N, H), written plainly."""
    found = []
    for closes in span.history_close:
        path = np.concatenate([closes, np.full(span.horizon_bars, closes[-1])])
        found.append([np.std(path[k : k + 20], ddof=1) / closes[-1] for k in range(1, span.horizon_bars + 1)])
    return np.array(found)


def _ranged(span: Span, variance: np.ndarray, constant: float) -> dict[str, np.ndarray]:
    """The actual values of a market in which every deviation is what the formula says, high up, low down."""
    last = span.last_close[:, None]
    before = _deviations(span)
    grown = np.sqrt(before**2 + constant * variance[:, None] * future_weights(span.horizon_bars)) - before
    reach = np.repeat(np.sqrt(variance)[:, None], span.horizon_bars, axis=1)
    ohlc = np.stack([0 * reach, 1.5 * reach, -0.5 * reach, 0 * reach], axis=2)
    return {
        "ohlc": span.naive["ohlc"] * (1 + ohlc),
        "bands": span.naive["bands"] + (grown * last)[:, :, None] * np.array([2, -2]),
        "volatility": span.naive["volatility"] + grown[:, :, None],
    }


@pytest.mark.parametrize("constant", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("name", ["scaled", "ewma"])
def test_constants_of_a_market_that_follows_the_formula_are_found(
    make_market_span, name: str, constant: float
) -> None:
    series = make_market_span(horizon_bars=4)
    fit = BASELINES[name].fit

    def actual(span: Span) -> dict[str, np.ndarray]:
        variance = span.range_variance(20) if name == "scaled" else span.ewma_variance
        return _ranged(span, variance, constant)

    made = fit(series.learned(actual=actual(series.train)).train, series.scaling)(series.test)
    for task, values in actual(series.test).items():
        np.testing.assert_allclose(made[task], values, rtol=1e-9, atol=1e-12)


def test_a_regression_finds_the_range_that_counts(make_market_span) -> None:
    # Highs reach as far as the range of five bars says and lows as far as that of sixty.
    series = make_market_span(num_train=400, tasks=("ohlc",))

    def actual(span: Span) -> np.ndarray:
        five, sixty = (np.sqrt(span.range_variance(bars)) for bars in (5, 60))
        moved = np.stack([0 * five, 1.2 * five, -0.8 * sixty, 0 * five], axis=1)
        return span.last_close[:, None, None] * (1 + np.repeat(moved[:, None], 3, axis=1))

    teacher_forced = series.learned(actual={"ohlc": actual(series.train)}).train
    forecast = fit_har(teacher_forced, series.scaling)(series.test)
    np.testing.assert_allclose(forecast["ohlc"], actual(series.test), rtol=1e-6)


def test_a_regression_leaves_open_and_close_at_the_last_close(make_market_span) -> None:
    series = make_market_span(tasks=("ohlc",))
    forecast = fit_har(series.train, series.scaling)(series.train)["ohlc"]
    for column in (0, 3):
        np.testing.assert_array_equal(
            forecast[:, :, column], np.repeat(series.train.last_close[:, None], 3, axis=1)
        )
    assert (forecast[:, :, 1] > forecast[:, :, 3]).mean() > 0.95
    assert (forecast[:, :, 2] < forecast[:, :, 3]).mean() > 0.95


def test_the_clock_learns_at_which_quarters_of_the_hour_bars_are_long(make_market_span) -> None:
    # 20 days of 96 bars: waves of an hour are fitted from 16 days on.
    series = make_market_span(num_train=2_000, num_windows=500, tasks=("ohlc", "range"))
    is_full_hour = series.test.table.open_time_s % 3_600 == 0

    def longer_at_full_hours(name: str, values: np.ndarray) -> np.ndarray:
        return values * np.where(is_full_hour, 1.02, 1.0) if name == "high" else values

    recut = series.recut(longer_at_full_hours)
    actual = recut.test.actual["range"]
    errors = {
        name: np.abs(recut.forecast(name)["range"] - actual).mean() for name in ("log_har_clock", "har")
    }
    assert errors["log_har_clock"] < 0.5 * errors["har"]
