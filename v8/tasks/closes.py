"""What the twenty closes of a band's window will be: the arithmetic that tasks share.

Functions take their array namespace first, `numpy` or `keras.ops`, so that the forecast a model is judged
against and the one inside the published file are the same lines of code. Slices are written as `take`,
which every Keras can save.

Legend: N windows, H steps of the horizon, P paths.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.columns import BAND_PERIOD_BARS

RANGE_TO_VARIANCE: Final = np.pi / 8
"""Variance of a random walk over its squared mean range: E[range] = sqrt(8 / pi) deviations (Feller 1951,
doi:10.1214/aoms/1177729589)."""


@dataclass(frozen=True, eq=False)
class Closes:
    """The coming closes, with mean and sample deviation of the twenty that end at each.

    Args:
        unit: What the others are multiples of, such as the last close, shape (N, 1), quote currency; or 1.
        close: Close at each step, shape (N, H).
        middle: Mean of the twenty, same shape.
        deviation: Their sample deviation, same shape.
        candles: Open, high, low and close of each step as log ratios to the last close, shape (N, P, H, 4);
            None where only closes are foreseen. `middle` and `deviation` are (N, P, H) then.
    """

    unit: Any
    close: Any
    middle: Any
    deviation: Any
    candles: Any = None


def standing_closes(xp: Any, history_close: Any, horizon_bars: int, *, has_window: bool = True) -> Closes:
    """Say what follows if the close stays at the last close: the honest naive forecast of every task.

    Bands and volatility still move, because known closes leave their window and repeated last closes enter
    it. At step k it holds the newest 20 - k known closes and k times the last close, whose ratio minus one is
    zero, so suffix sums of the known ratios are all that is needed. The history is the last 20 known closes,
    oldest first, (N, 20), quote currency; fewer will do where mean and deviation are not wanted.
    """
    last = xp.take(history_close, [history_close.shape[1] - 1], axis=1)
    close = xp.ones((1, horizon_bars))
    if not has_window:
        return Closes(last, close, None, None)
    mean, deviation = window_moments(xp, history_close / last - 1.0, horizon_bars)
    return Closes(last, close, 1.0 + mean, deviation)


def window_moments(xp: Any, known: Any, num_steps: int, path: Any = None) -> tuple[Any, Any]:
    """Mean and sample deviation of the twenty closes at each step, as ratios to the last close less one.

    k steps ahead the window holds the newest 20 - k known closes, (N, 20), oldest first, and the first k of
    the path, (N, P, H), all as such ratios; without a path they stay at the last close. Two arrays (N, P, H),
    or (N, H), unitless.
    """
    total = suffix_sums(xp, known, num_steps)
    squares = suffix_sums(xp, xp.square(known), num_steps)
    if path is not None:
        total = xp.expand_dims(total, 1) + xp.cumsum(path, axis=2)
        squares = xp.expand_dims(squares, 1) + xp.cumsum(xp.square(path), axis=2)
    mean = total / BAND_PERIOD_BARS
    variance = (squares - BAND_PERIOD_BARS * xp.square(mean)) / (BAND_PERIOD_BARS - 1)
    return mean, xp.sqrt(xp.maximum(variance, 0.0))


def suffix_sums(xp: Any, values: Any, num_steps: int) -> Any:
    """Sum what is left of values, (N, K), oldest first, when the oldest 1, 2, ... have gone: (N, num_steps).

    A product with a triangular matrix would say the same, but rounds a row by how many rows there are.
    """
    sums = xp.flip(xp.cumsum(xp.flip(values, axis=1), axis=1), axis=1)
    num_missing = num_steps + 1 - values.shape[1]
    if num_missing > 0:
        sums = xp.concatenate([sums, *[xp.zeros_like(values[:, :1])] * num_missing], axis=1)
    return xp.take(sums, [*range(1, num_steps + 1)], axis=1)


def future_weights(horizon_bars: int) -> NDArray[np.float64]:
    """Say how much each coming bar's variance adds to the variance of the closes of a band's window, (H,).

    k steps ahead, at most 20, the window holds 20 - k known closes and the first k points of a random walk
    from the last close. The sample variance of the twenty is expected to be that of the roll-forward forecast
    plus the walk's variance per bar times (k (k + 1) / 2 - k (k + 1) (2k + 1) / 6 / 20) / 19: the trace of
    the covariances min(i, j) of its points, less their sum over 20.

    >>> [round(float(weight), 3) for weight in future_weights(3)]  # (1 - 1/20) / 19 = 0.05 first
    [0.05, 0.145, 0.279]
    """
    steps = np.arange(1, horizon_bars + 1, dtype=np.float64)
    trace = steps * (steps + 1) / 2
    total = steps * (steps + 1) * (2 * steps + 1) / 6
    return (trace - total / BAND_PERIOD_BARS) / (BAND_PERIOD_BARS - 1)


def moved_closes(horizon_bars: int) -> NDArray[np.float64]:
    """Count the closes of a band's window that a coming bar has moved: by step, then by bar, shape (H, H).

    >>> moved_closes(3).tolist()
    [[1.0, 0.0, 0.0], [2.0, 1.0, 0.0], [3.0, 2.0, 1.0]]
    """
    steps = np.arange(1, horizon_bars + 1)
    return np.maximum(steps[:, None] - steps[None, :] + 1.0, 0.0)


def variance_weights(horizon_bars: int) -> NDArray[np.float64]:
    """Say how much each coming bar adds to the variance of a band's window: by step, then by bar, (H, H).

    k steps ahead, at most 20, bar j, at most k, has moved the newest n = k - j + 1 of the twenty closes
    alike, which adds n (1 - n / 20) / 19 of its variance to their sample variance. Rows add up to
    `future_weights`.

    >>> [round(float(weight), 3) for weight in variance_weights(2)[1]]  # n = 2, then n = 1
    [0.095, 0.05]
    """
    moved = moved_closes(horizon_bars)
    return moved * (1.0 - moved / BAND_PERIOD_BARS) / (BAND_PERIOD_BARS - 1)
