"""Jumps: prices so far from the close before that one of two neighbours may not be true.

A coin opens where it closed. A price 5 % away, and 12 times as far as prices of that series usually are, is
rare; it is doubted, which costs a request, and only another answer decides.

Shapes: N candles, with columns of `OHLCV`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.columns import CLOSE, OHLC, OHLCV

LEAST_JUMP: Final = 0.05
"""Log distance below which nothing is doubted; in 15 minutes Bitcoin goes so far some times a year."""

NUM_TYPICAL: Final = 12.0
"""A jump goes so many times as far as the median candle does."""

_CLOSE: Final = OHLCV.index(CLOSE)


def distances(values: NDArray[np.float64], reference: Any) -> NDArray[np.float64]:
    """Return how far the farthest price of each candle lies from a price.

    Args:
        values: Columns of `OHLCV`, shape (N, 5), quote currency.
        reference: The price, shape (N,), quote currency; nan where there is none.

    Returns:
        Absolute log distances, shape (N,), unitless; nan where there is no price.
    """
    away: NDArray[np.float64] = np.abs(np.log(values[:, : len(OHLC)] / np.reshape(reference, (-1, 1))))
    return away.max(axis=1)


def jump_of(values: NDArray[np.float64]) -> float:
    """Return from which distance on a price of some candles is doubted, a log distance, unitless.

    >>> jump_of(np.full((3, 5), 100.0))
    0.05
    """
    away = _from_close_before(values)
    return max(LEAST_JUMP, NUM_TYPICAL * float(np.median(away))) if len(away) else LEAST_JUMP


def are_doubted(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which candles jump, or lie before one that does, shape (N,): either may be the wrong one.

    >>> are_doubted(np.full((4, 5), [[1.0], [1.0], [9.0], [9.0]])).tolist()
    [False, True, True, False]
    >>> are_doubted(np.empty((0, 5))).tolist()
    []
    """
    is_jump = _from_close_before(values) > jump_of(values)
    is_doubted = np.zeros(len(values), dtype=np.bool_)
    is_doubted[1:] |= is_jump
    is_doubted[:-1] |= is_jump
    return is_doubted


def _from_close_before(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return distances(values[1:], values[:-1, _CLOSE])
