"""The weighted median: what minimises a weighted sum of absolute distances.

Legend: N values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what minimises the weighted sum of absolute distances, along the first axis.

    Args:
        values: Shape (N, ...), finite.
        weights: The same shape, 0 or above.

    Returns:
        Shape (...): the smallest value at which half of the weight lies at or below; 0 where nothing
        has a weight.

    >>> weighted_median(np.array([1.0, 2.0, 9.0]), np.array([1.0, 1.0, 5.0])).item()
    9.0
    """
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(np.take_along_axis(weights, order, axis=0), axis=0)
    place = np.argmax(reached >= reached[-1:] / 2, axis=0)
    found = np.take_along_axis(np.take_along_axis(values, order, axis=0), place[None], axis=0)[0]
    medians: NDArray[np.float64] = np.where(reached[-1] > 0, found, 0.0)
    return medians
