"""Closes of any price and any tick, from which two programs forecast: one in float32, one in float64.

A stable coin moves by ticks of a ten thousandth of its price and less, a satoshi coin by whole prices. In
neither may the two be further apart than `v8.base.arrays` allows, or such a coin would have no model.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import MAX_STEPS, FloatArray
from v8.model.networks.published import forecasts_apart
from v8.profile.tasks import RANGE_TASK, TASKS, naive_closes

NUM_WINDOWS: Final = 8
HORIZON_BARS: Final = 6


def odd_closes(random: Random) -> FloatArray:
    """Return the closes of some windows, oldest first, shape (N, 20)."""
    price = 10.0 ** random.uniform(-8, 6)
    tick = price * 10.0 ** random.uniform(-7, -0.5)
    draws = np.random.default_rng(random.randrange(2**31))
    moves = draws.integers(-1, 2, (NUM_WINDOWS, 20)) * (draws.random((NUM_WINDOWS, 20)) < random.random())
    ticks = moves if random.random() < 0.5 else np.cumsum(moves, axis=1)
    return np.maximum(price + tick * ticks, 0.1 * price)


def compare_precisions(random: Random) -> None:
    """Raise AssertionError if the naive forecasts of both precisions are further apart than allowed."""
    closes = odd_closes(random).astype(np.float32)
    in_double = closes.astype(np.float64)
    steps = forecasts_apart(_naive_forecasts(closes), _naive_forecasts(in_double), in_double[:, -1])
    if not max(steps.values()) <= MAX_STEPS:
        raise AssertionError(f"float32 and float64 are so many steps apart: {steps}")


def _naive_forecasts(closes: NDArray[Any]) -> dict[str, NDArray[Any]]:
    standing = naive_closes(np, closes, HORIZON_BARS)
    # The naive forecast of ranges is computed from bars, not from closes.
    implied = [task for task in TASKS.values() if task is not RANGE_TASK]
    return {task.name: task.implied(np, standing) for task in implied}
