"""The twenty closes of a band's window, against plain recomputations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from v8.tasks import TASKS
from v8.tasks.closes import future_weights, standing_closes, suffix_sums, window_moments
from v8.tasks.task import roll_forward


def rolled_forward(closes: np.ndarray, horizon_bars: int) -> dict[str, np.ndarray]:
    return roll_forward(np, list(TASKS.values()), closes, horizon_bars)


@given(seed=st.integers(0, 2**32 - 1), horizon=st.integers(1, 25), price=st.sampled_from([1e-5, 1.0, 6e4]))
def test_bands_and_volatility_equal_moments_of_repeated_closes(seed: int, horizon: int, price: float) -> None:
    closes = price * np.exp(np.cumsum(np.random.default_rng(seed).normal(0, 0.01, 20)))
    rolled = rolled_forward(closes[None], horizon)
    future = np.concatenate([closes, np.full(horizon, closes[-1])])
    windows = np.stack([future[step : step + 20] for step in range(1, horizon + 1)])
    mean, std = windows.mean(axis=1), windows.std(axis=1, ddof=1)
    np.testing.assert_allclose(rolled["bands"][0, :, 0], mean + 2 * std, rtol=1e-9)
    np.testing.assert_allclose(rolled["bands"][0, :, 1], mean - 2 * std, rtol=1e-9)
    np.testing.assert_allclose(rolled["volatility"][0, :, 0], std / mean, rtol=1e-9, atol=1e-12)


def test_every_candle_of_the_future_is_the_last_close() -> None:
    rolled = rolled_forward(np.arange(1.0, 21.0)[None], 2)
    assert rolled["ohlc"].tolist() == [[[20.0] * 4] * 2]


def test_one_step_by_hand() -> None:
    # 19 closes of 1, then 2. One step on: 18 ones and two twos; mean 1.1,
    # variance (18 * 0.01 + 2 * 0.81) / 19 = 1.8 / 19.
    rolled = rolled_forward(np.array([[1.0] * 19 + [2.0]]), 1)
    std = (1.8 / 19) ** 0.5
    assert rolled["bands"][0, 0].tolist() == pytest.approx([1.1 + 2 * std, 1.1 - 2 * std])
    assert rolled["volatility"][0, 0, 0] == pytest.approx(std / 1.1)


def test_a_flat_market_has_bands_on_the_price_and_no_volatility() -> None:
    rolled = rolled_forward(np.full((1, 20), 7.0), 3)
    assert rolled["bands"].tolist() == [[[7.0, 7.0]] * 3]
    assert rolled["volatility"].tolist() == [[[0.0]] * 3]


@given(seed=st.integers(0, 2**32 - 1), horizon=st.integers(1, 25))
def test_moments_along_paths_are_those_of_the_closes_on_them(seed: int, horizon: int) -> None:
    rng = np.random.default_rng(seed)
    known = rng.normal(0, 0.05, (2, 20))
    paths = np.cumsum(rng.normal(0, 0.05, (2, 3, horizon)), axis=2)
    mean, deviation = window_moments(np, known, horizon, paths)
    assert mean.shape == deviation.shape == (2, 3, horizon)
    for window, path in np.ndindex(2, 3):
        closes = np.concatenate([known[window], paths[window, path]])
        windows = np.stack([closes[step : step + 20] for step in range(1, min(horizon, 20) + 1)])
        # Beyond twenty steps the path itself would leave the window, which no horizon does.
        np.testing.assert_allclose(mean[window, path, :20], windows.mean(axis=1), atol=1e-12)
        np.testing.assert_allclose(deviation[window, path, :20], windows.std(axis=1, ddof=1), atol=1e-9)


def test_candles_alone_need_no_window_of_twenty() -> None:
    closes = standing_closes(np, np.array([[3.0, 4.0]]), 2, has_window=False)
    assert (closes.unit.tolist(), closes.close.tolist()) == ([[4.0]], [[1.0, 1.0]])
    assert closes.middle is closes.deviation is closes.candles is None
    rolled = roll_forward(np, [TASKS["ohlc"]], np.array([[3.0, 4.0]]), 2)
    assert {task: values.tolist() for task, values in rolled.items()} == {"ohlc": [[[4.0] * 4] * 2]}


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_what_is_left_when_the_oldest_have_gone_is_summed_in_either_namespace(num_steps: int) -> None:
    values = np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]], np.float32)
    left = [[6.0, 4.0, 0.0, 0.0, 0.0], [48.0, 32.0, 0.0, 0.0, 0.0]]
    expected = [row[:num_steps] for row in left]
    assert suffix_sums(np, values, num_steps).tolist() == expected
    assert np.asarray(suffix_sums(ops, ops.convert_to_tensor(values), num_steps)).tolist() == expected


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
