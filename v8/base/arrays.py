"""Types of arrays, and how far two computations of the same numbers in single precision may be apart.

Two programs of one formula rarely give the same bits in float32. A processor with wider registers adds the
terms of a sum in another order, and one library rounds a product before it is added where another does not.
What that costs is counted in *steps*: the distance between neighbouring float32 numbers, at the magnitude of
what a result is computed with, not at that of the result. A volatility of 1e-4 is computed from ratios of
closes to the last close, which are about 1. So it is known to a step of 1 at best, which is 1e-7, and that is
a thousandth of it. As a share of the result the same rounding is anything between nothing and all.
"""

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray: TypeAlias = NDArray[np.float64]
"""Numbers in double precision, of any shape."""

AnyFloatArray: TypeAlias = NDArray[np.floating[Any]]
"""Numbers in single or double precision, of any shape: forecasts come in float32, baselines in float64."""


MAX_STEPS: Final = 32
"""Steps by which the forecasts of two programs may differ, at `Task.magnitude`.

A range of bars is known to a step at best, and paths multiply it by up to 20 (`v8.model.baselines.ranges`).
Measured were 4 steps at most for usual coins, and 9 for satoshi and stable ones."""

MAX_STEPS_AGAIN: Final = 8
"""Steps by which the forecasts of one program may differ when it computes a window among others, or alone."""


def float32_step(magnitude: ArrayLike) -> FloatArray:
    """Return the distance between neighbouring float32 numbers at a magnitude, in its unit.

    >>> float(float32_step(1.0)) == 2.0**-23, float(float32_step(-60_000.0))
    (True, 0.00390625)
    """
    return np.asarray(np.spacing(np.abs(np.asarray(magnitude, np.float32))), np.float64)


def steps_apart(values: Any, expected: Any, magnitude: ArrayLike) -> float:
    """Return by how many steps of float32 two arrays differ at most; infinity where one has no number.

    Args:
        values: Numbers of one program.
        expected: Those of the other, of the same shape.
        magnitude: Size of what they are computed with, in their unit; an array that fits theirs, or a number.

    >>> steps_apart(np.array([1.0, 2.0]), np.array([1.0, 2.0 + 2.0**-22]), magnitude=1.0)
    2.0
    >>> steps_apart(np.array([0.0, np.nan]), np.array([0.0, np.nan]), magnitude=1.0)
    inf
    """
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(np.asarray(values, np.float64) - np.asarray(expected, np.float64))
        steps = differences / float32_step(magnitude)
    return float(steps.max()) if np.isfinite(steps).all() else np.inf
