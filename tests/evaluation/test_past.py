"""What baselines know: variances of bars worked out by hand, and rows that fit their series."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from v8.data.dataset import SeriesData
from v8.data.targets import future_weights
from v8.evaluation.past import Bars, past_of
from v8.profile import Profile


def _bars(closes: list[float], ratios: list[float], segment: list[int]) -> Bars:
    """Bars that open at their close; high over low is the ratio given."""
    close, ratio = np.array(closes), np.array(ratios)
    ohlc = np.stack([close, close * np.sqrt(ratio), close / np.sqrt(ratio), close], axis=1)
    return Bars(ohlc, np.array(segment, np.int32))


def test_the_variance_of_a_range_is_pi_over_8_of_its_mean_squared() -> None:
    # log ranges 0.01, 0.03, 0.05: means over two bars 0.01 (one bar there is), 0.02, 0.04.
    bars = _bars([10.0, 10.0, 10.0], list(np.exp([0.01, 0.03, 0.05])), [0, 0, 0])
    expected = np.pi / 8 * np.array([0.01, 0.02, 0.04]) ** 2
    np.testing.assert_allclose(bars.range_variance(2), expected, rtol=1e-12)


def test_a_random_walk_s_variance_is_found_from_its_ranges() -> None:
    rng = np.random.default_rng(2)
    paths = np.cumsum(rng.normal(0, 1e-3, (4_000, 400)), axis=1)
    top, bottom = np.maximum(paths.max(axis=1), 0), np.minimum(paths.min(axis=1), 0)
    ohlc = np.exp(np.stack([top * 0, top, bottom, paths[:, -1]], axis=1))
    variance = Bars(ohlc, np.zeros(4_000, np.int32)).range_variance(4_000)[-1]
    # 400 steps of 1e-6; steps miss the extremes between them, about 5 % of the variance.
    assert variance == pytest.approx(4e-4, rel=0.1)


def test_the_weighted_variance_follows_riskmetrics_and_leaves_out_holes() -> None:
    # Returns 1 %, 2 %; then a hole, whose 50 % says nothing; then 4 %.
    closes = np.exp(np.cumsum([0.0, 0.01, 0.02, 0.50, 0.04]))
    bars = _bars(list(closes), [1.0] * 5, [0, 0, 0, 1, 1])
    expected = [
        0.0,
        1e-4,
        (4e-4 + 0.94 * 1e-4) / 1.94,
        (4e-4 + 0.94 * 1e-4) / 1.94,
        (16e-4 + 0.94 * 4e-4 + 0.94**2 * 1e-4) / (1 + 0.94 + 0.94**2),
    ]
    np.testing.assert_allclose(bars.ewma_variance, expected, rtol=1e-10)


@pytest.mark.parametrize("horizon_bars", [1, 10, 18])
def test_coming_bars_add_the_trace_of_their_covariances_to_a_window_s_variance(horizon_bars: int) -> None:
    centred = np.eye(20) - np.full((20, 20), 1 / 20)
    for step, weight in enumerate(future_weights(horizon_bars), start=1):
        covariance = np.zeros((20, 20))
        covariance[:step, :step] = np.minimum.outer(np.arange(1, step + 1), np.arange(1, step + 1))
        assert weight == pytest.approx(np.trace(centred @ covariance) / 19)


def test_the_variance_expected_of_a_window_is_that_of_simulated_walks() -> None:
    rng = np.random.default_rng(4)
    known = np.cumsum(rng.normal(0, 1, 20))
    known -= known[-1]
    walks = np.cumsum(rng.normal(0, 0.7, (40_000, 8)), axis=1)
    windows = np.concatenate([np.tile(known[8:], (40_000, 1)), walks], axis=1)
    rolled = np.var(np.concatenate([known[8:], np.zeros(8)]), ddof=1)
    expected = rolled + 0.49 * future_weights(8)[-1]
    assert windows.var(axis=1, ddof=1).mean() == pytest.approx(expected, rel=0.02)


def test_the_past_of_a_span_holds_bars_windows_and_what_followed_them(
    make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_profile())
    anchors = data.anchors["validation"]
    past = past_of(data, anchors)
    np.testing.assert_array_equal(past.rows, anchors)
    np.testing.assert_array_equal(past.train.rows, data.anchors["train"])
    np.testing.assert_array_equal(past.train.bars.column("high"), data.table.column("high"))
    # The newest close known and the candle after it, of every train window.
    np.testing.assert_array_equal(past.train.last_close, past.train.bars.column("close")[past.train.rows])
    followed = past.train.bars.ohlc[past.train.rows + 1]
    np.testing.assert_array_equal(past.train_truth["ohlc"][:, 0], followed)
    assert set(past.train_truth) == {"ohlc", "bands", "volatility"}
    assert pd.Series(past.train.rows).max() < data.split.validation[0]
