"""Losses: shapes first, then the arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from v8.model.training.step import fleet_loss
from v8.profile.settings import TaskSettings

pytestmark = pytest.mark.tf


def loss(
    kind: str, actual: np.ndarray, forecast: np.ndarray, weights: np.ndarray | None = None
) -> list[float]:
    tasks = {"ohlc": TaskSettings(weight=2.0, loss=kind)}
    weights = np.ones(actual.shape[:2], np.float32) if weights is None else weights
    return np.asarray(fleet_loss(tasks, {"ohlc": actual}, {"ohlc": forecast}, weights)).tolist()


def test_g6_a_silent_broadcast_is_impossible() -> None:
    """(N, 1, 4) less (N, 4) would be (N, N, 4), whose best forecast is the mean of the batch."""
    actual = np.zeros((5, 1, 1, 4), np.float32)
    forecast = np.zeros((5, 1, 4), np.float32)
    with pytest.raises(ValueError, match=r"ohlc: .*one shape; got \(5, 1, 1, 4\) and \(5, 1, 4\)"):
        loss("mse", actual, forecast)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("mae", (0.5 + 3) / 2),
        ("mse", (0.25 + 9) / 2),
        ("huber", (0.125 + 2.5) / 2),  # half the square of 0.5; 3 - 1/2 beyond the turn
    ],
)
def test_the_loss_of_two_residuals_by_hand(kind: str, expected: float) -> None:
    actual = np.float32([[[[0.5, -3.0]], [[0.0, 0.0]]]])  # one window of two models
    assert loss(kind, actual, np.zeros_like(actual)) == pytest.approx([2.0 * expected, 0.0])


def test_filling_has_no_weight() -> None:
    actual = np.float32([[[[1.0]]], [[[np.nan]]]])
    assert loss("mae", actual, np.zeros_like(actual), np.float32([[1], [0]])) == pytest.approx([2.0])
