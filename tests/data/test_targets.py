"""The roll-forward forecast against a plain recomputation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.data.targets import roll_forward


@given(seed=st.integers(0, 2**32 - 1), horizon=st.integers(1, 25), price=st.sampled_from([1e-5, 1.0, 6e4]))
def test_bands_and_volatility_equal_moments_of_repeated_closes(seed: int, horizon: int, price: float) -> None:
    closes = price * np.exp(np.cumsum(np.random.default_rng(seed).normal(0, 0.01, 20)))
    rolled = roll_forward(closes[None], horizon)
    future = np.concatenate([closes, np.full(horizon, closes[-1])])
    windows = np.stack([future[step : step + 20] for step in range(1, horizon + 1)])
    mean, std = windows.mean(axis=1), windows.std(axis=1, ddof=1)
    np.testing.assert_allclose(rolled["bands"][0, :, 0], mean + 2 * std, rtol=1e-9)
    np.testing.assert_allclose(rolled["bands"][0, :, 1], mean - 2 * std, rtol=1e-9)
    np.testing.assert_allclose(rolled["volatility"][0, :, 0], std / mean, rtol=1e-9, atol=1e-12)


def test_every_candle_of_the_future_is_the_last_close() -> None:
    rolled = roll_forward(np.arange(1.0, 21.0)[None], 2)
    assert rolled["ohlc"].tolist() == [[[20.0] * 4] * 2]


def test_one_step_by_hand() -> None:
    # 19 closes of 1, then 2. One step on: 18 ones and two twos; mean 1.1,
    # variance (18 * 0.01 + 2 * 0.81) / 19 = 1.8 / 19.
    rolled = roll_forward(np.array([[1.0] * 19 + [2.0]]), 1)
    std = (1.8 / 19) ** 0.5
    assert rolled["bands"][0, 0].tolist() == pytest.approx([1.1 + 2 * std, 1.1 - 2 * std])
    assert rolled["volatility"][0, 0, 0] == pytest.approx(std / 1.1)


def test_a_flat_market_has_bands_on_the_price_and_no_volatility() -> None:
    rolled = roll_forward(np.full((1, 20), 7.0), 3)
    assert rolled["bands"].tolist() == [[[7.0, 7.0]] * 3]
    assert rolled["volatility"].tolist() == [[[0.0]] * 3]
