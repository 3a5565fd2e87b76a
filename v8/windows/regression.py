"""What minimises absolute errors, by which forecasts are evaluated: a regression, and the weighted median.

Legend: N rows or values, P terms, M targets.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from v8.arrays import FloatArray

NUM_ROUNDS: Final = 15  # rounds of reweighting: they end within a thousandth of the smallest sum of errors

SMALLEST_ERROR_SHARE: Final = 0.05
"""Errors below this share of the typical target weigh as if they were that large.

A smaller share comes closer to the smallest sum in the end, but takes more rounds to get there.
"""

NUM_FINE_ROUNDS: Final = 5
FINE_ERROR_SHARE: Final = 0.01  # the last rounds go closer, from where the others have come

RIDGE_SHARE: Final = 1e-9
"""Share of the mean diagonal added to it, so that terms that repeat each other can be told apart."""


def least_absolute_errors(x_NP: FloatArray, y_NM: FloatArray) -> FloatArray:
    """Fit coefficients, shape (P, M), with the smallest sums of absolute errors.

    Least squares, reweighted by one over the error of the round before (Schlossmacher 1973,
    doi:10.1080/01621459.1973.10481457). There is no constant unless one of the terms is.
    """
    # Rows of numbers are gone through several times as fast as columns; of a product of two terms and its
    # mirror image one will do.
    x_PN = np.ascontiguousarray(x_NP.T)
    y_MN = np.ascontiguousarray(y_NM.T)
    first, second = np.triu_indices(len(x_PN))
    products_KN = x_PN[first] * x_PN[second]
    left_MPP = np.empty((len(y_MN), len(x_PN), len(x_PN)))
    median_M1, mean_M1 = (of(np.abs(y_MN), axis=1, keepdims=True) for of in (np.median, np.mean))
    typical_M1 = np.where(median_M1 > 0, median_M1, np.where(mean_M1 > 0, mean_M1, 1.0))
    weights_MN = np.ones_like(y_MN)
    for number in range(NUM_ROUNDS + NUM_FINE_ROUNDS):
        smallest = (SMALLEST_ERROR_SHARE if number < NUM_ROUNDS else FINE_ERROR_SHARE) * typical_M1
        left_MPP[:, first, second] = left_MPP[:, second, first] = weights_MN @ products_KN.T
        ridge = RIDGE_SHARE * np.trace(left_MPP, axis1=1, axis2=2) / len(x_PN)
        left_MPP += np.where(ridge > 0, ridge, 1.0)[:, None, None] * np.eye(len(x_PN))
        right_MP = (weights_MN * y_MN) @ x_PN.T
        fitted_MP = np.linalg.solve(left_MPP, right_MP[:, :, None])[:, :, 0]
        weights_MN = 1.0 / np.maximum(np.abs(y_MN - fitted_MP @ x_PN), smallest)
        weights_MN /= weights_MN.max(axis=1, keepdims=True)  # only ratios matter; small ones cannot overflow
    return fitted_MP.T.astype(np.float64)


def least_squares(x_NP: FloatArray, y_NM: FloatArray) -> FloatArray:
    """Fit each target by the terms with the smallest sum of squared errors, shape (P, M)."""
    return np.linalg.lstsq(x_NP, y_NM, rcond=None)[0].astype(np.float64)


def fit_without(
    left_out: Sequence[int], fit: Callable[[FloatArray], FloatArray], terms_NP: FloatArray
) -> FloatArray:
    """Fit coefficients, (P, M), of terms of which those at some places are left out: theirs are zero."""
    if not left_out:
        return fit(terms_NP)
    fitted_KM = fit(np.delete(terms_NP, left_out, axis=1))
    return np.insert(fitted_KM, np.array(left_out) - np.arange(len(left_out)), 0.0, axis=0)


def weighted_median(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return what minimises the weighted sum of absolute distances, along the first axis.

    Values are finite, weights of the same shape 0 or above. It is the smallest value at which half of the
    weight lies at or below; 0 where nothing has a weight.

    >>> weighted_median(np.array([1.0, 2.0, 9.0]), np.array([1.0, 1.0, 5.0])).item()
    9.0
    """
    # Rows of numbers are gone through faster than columns.
    rows, weight_rows = (np.ascontiguousarray(np.moveaxis(each, 0, -1)) for each in (values, weights))
    order = np.argsort(rows, axis=-1)
    reached = np.cumsum(np.take_along_axis(weight_rows, order, axis=-1), axis=-1)
    place = np.argmax(reached >= reached[..., -1:] * 0.5, axis=-1)[..., None]
    found = np.take_along_axis(rows, np.take_along_axis(order, place, axis=-1), axis=-1)[..., 0]
    return np.where(reached[..., -1] > 0, found, 0.0)
