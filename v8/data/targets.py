"""What a forecast is compared with and learned against: the roll-forward forecast.

Roll-forward means the close stays at the last close. Open, high, low and close are then the last
close; Bollinger bands and volatility still move, because known closes leave their window and repeated
last closes enter it. It is the honest naive forecast of every task, and `anchored` scaling trains on
the log ratio of the truth to it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.columns import (
    BAND_PERIOD_BARS,
    BAND_WIDTH_STDS,
    HIGH,
    LOW,
    OHLC,
    TASK_BANDS,
    TASK_OHLC,
    TASK_VOLATILITY,
)

RANGE_TO_VARIANCE: Final = np.pi / 8
"""Variance of a random walk over its squared mean range: E[range] = sqrt(8 / pi) deviations (Feller 1951,
doi:10.1214/aoms/1177729589)."""

HAS_RANGE: Final[dict[str, NDArray[np.float64]]] = {
    TASK_OHLC: np.array([float(name in (HIGH, LOW)) for name in OHLC]),
    TASK_BANDS: np.ones(2),
    TASK_VOLATILITY: np.ones(1),
}
"""1 for the columns that a range moves."""


def roll_forward(history_close: NDArray[np.float64], horizon_bars: int) -> dict[str, NDArray[np.float64]]:
    """Forecast every task as if the close stayed at the last close.

    Args:
        history_close: Closes of the last 20 known rows, oldest first, shape (N, 20), quote currency.
        horizon_bars: Steps ahead, at least 1.

    Returns:
        Per task of `v8.columns.TASK_COLUMNS`, shape (N, horizon, columns), float64; quote currency,
        volatility unitless.
    """
    last = history_close[:, -1:]
    mean_ratio, std_ratio = _future_moments(history_close / last - 1.0, horizon_bars)
    middle = last * (1.0 + mean_ratio)
    reach = last * BAND_WIDTH_STDS * std_ratio
    return {
        TASK_OHLC: np.broadcast_to(last[:, :, None], (len(last), horizon_bars, 4)).copy(),
        TASK_BANDS: np.stack([middle + reach, middle - reach], axis=-1),
        TASK_VOLATILITY: (std_ratio / (1.0 + mean_ratio))[:, :, None],
    }


def future_weights(horizon_bars: int) -> NDArray[np.float64]:
    """Say how much each coming bar's variance adds to the variance of the closes of a band's window.

    k steps ahead the window holds 20 - k known closes and the first k points of a random walk from the
    last close. The sample variance of the twenty is expected to be that of the roll-forward forecast plus
    the walk's variance per bar times (k (k + 1) / 2 - k (k + 1) (2k + 1) / 6 / 20) / 19: the trace of the
    covariances min(i, j) of its points, less their sum over 20.

    Args:
        horizon_bars: Steps ahead, at most 20.

    Returns:
        Shape (H,), unitless.

    >>> [round(float(weight), 3) for weight in future_weights(3)]  # (1 - 1/20) / 19 = 0.05 first
    [0.05, 0.145, 0.279]
    """
    steps = np.arange(1, horizon_bars + 1, dtype=np.float64)
    trace = steps * (steps + 1) / 2
    total = steps * (steps + 1) * (2 * steps + 1) / 6
    return (trace - total / BAND_PERIOD_BARS) / (BAND_PERIOD_BARS - 1)


def suffix_sums(values: NDArray[np.float64], num_steps: int) -> NDArray[np.float64]:
    """Sum what is left of values when the oldest 1, 2, ... have gone.

    Args:
        values: Oldest first, shape (N, K).
        num_steps: Steps ahead.

    Returns:
        Shape (N, num_steps); 0 from the step on at which none is left.
    """
    sums = np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
    padding = np.zeros((len(values), max(0, num_steps + 1 - values.shape[1])))
    return np.concatenate([sums, padding], axis=1)[:, 1 : num_steps + 1]


def _future_moments(
    returns: NDArray[np.float64], horizon_bars: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and sample deviation of the 20 closes at each step ahead, as ratios to the last close.

    At step k the window holds the newest 20 - k known closes and k times the last close, whose ratio
    minus one is zero, so suffix sums of the known ratios are all that is needed.
    """
    total = suffix_sums(returns, horizon_bars)
    squares = suffix_sums(returns**2, horizon_bars)
    mean = total / BAND_PERIOD_BARS
    variance = (squares - BAND_PERIOD_BARS * mean**2) / (BAND_PERIOD_BARS - 1)
    return mean, np.sqrt(np.maximum(variance, 0.0))
