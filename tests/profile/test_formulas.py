"""The formulas' edge cases and their numerical accuracy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.profile import formulas


def two_pass_std(window: np.ndarray) -> float:
    mean = math.fsum(window) / len(window)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in window) / (len(window) - 1))


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    price=st.sampled_from([1e-5, 1.0, 1e5]),
    step=st.sampled_from([1e-6, 1e-3, 0.1]),
)
def test_rolling_deviation_equals_two_passes_to_nine_digits_at_any_price(
    seed: int, price: float, step: float
) -> None:
    close = price * np.exp(np.cumsum(np.random.default_rng(seed).normal(0, step, 60)))
    gap, std = formulas.close_moments(close, 20)
    expected = [two_pass_std(close[row - 19 : row + 1]) for row in range(19, 60)]
    np.testing.assert_allclose(std[19:], expected, rtol=1e-9)
    means = [math.fsum(close[row - 19 : row + 1]) / 20 for row in range(19, 60)]
    np.testing.assert_allclose(close[19:] + gap[19:], means, rtol=1e-12)


def test_a_flat_window_has_exactly_no_deviation_even_after_a_wild_one() -> None:
    # A running sum of squares would leave rounding errors of the earlier prices behind.
    close = np.concatenate([[1e5, 3.3, 7e4], np.full(25, 0.1)])
    gap, std = formulas.close_moments(close, 20)
    assert gap[22:].tolist() == [0.0] * 6
    assert std[22:].tolist() == [0.0] * 6


@pytest.mark.parametrize("num_rows", [1, 2, 13, 19])
def test_less_rows_than_a_window_give_only_invalid_rows(num_rows: int) -> None:
    close = np.linspace(1.0, 2.0, num_rows)
    assert np.isnan(formulas.close_moments(close, 20)).all()
    assert np.isnan(formulas.atr(close, close, close, 20)).all()
    assert np.isnan(formulas.roc(close, 20)).all()
    assert np.isnan(formulas.volume_norm(close, 20)).all()
    assert formulas.roc(close, 20).shape == formulas.atr(close, close, close, 20).shape == (num_rows,)


def test_true_range_counts_the_jump_from_the_previous_close() -> None:
    # Bar 1 trades 12..13 after a close of 10: 13 - 10 = 3. Bar 2 trades 5..6 after 12.5: 12.5 - 5 = 7.5.
    high = np.array([10.0, 13, 6])
    low = np.array([10.0, 12, 5])
    close = np.array([10.0, 12.5, 5.5])
    assert formulas.atr(high, low, close, 2)[2] == (3 + 7.5) / 2
    assert np.isnan(formulas.atr(high, low, close, 2)[:2]).all()
