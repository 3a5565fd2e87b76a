"""Types of arrays, steps of single precision, and fits with the smallest absolute errors.

How far may two computations of the same numbers be apart? Two programs of one formula rarely give the same
bits in float32. A processor with wider registers adds the terms of a sum in another order, and one library
rounds a product before it is added where another does not. What that costs is counted in *steps*: the
distance between neighbouring float32 numbers, at the magnitude of what a result is computed with, not at that
of the result. A volatility of 1e-4 is computed from ratios of closes to the last close, which are about 1. So
it is known to a step of 1 at best, which is 1e-7, and that is a thousandth of it. As a share of the result
the same rounding is anything between nothing and all.

Legend of the fits, by which forecasts are evaluated: N rows or values, P terms, K pairs of terms, M targets.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray: TypeAlias = NDArray[np.float64]
"""Numbers in double precision, of any shape."""

AnyFloatArray: TypeAlias = NDArray[np.floating[Any]]
"""Numbers in single or double precision, of any shape: forecasts come in float32, baselines in float64."""


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of an array through which nothing can be changed."""
    view = array.view()
    view.setflags(write=False)
    return view


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


NUM_ROUNDS: Final = 15  # rounds of reweighting: the sum of errors is then within 0.1 % of the smallest

SMALLEST_ERROR_SHARE: Final = 0.05
"""Errors below this share of the typical target are weighted as if they were that large.

A smaller share converges closer to the smallest sum, but needs more rounds.
"""

NUM_FINE_ROUNDS: Final = 5
FINE_ERROR_SHARE: Final = 0.01  # the smaller share of the last rounds, which start close to the solution

TARGETS_AT_ONCE: Final = 8
"""Targets that are fitted together: products of terms are read once for all of them, and a core's cache holds
what is computed for each."""

ROWS_AT_ONCE: Final = 2**16  # of a problem of least squares that are reduced together

SMALLEST_SINGULAR_SHARE: Final = 1e-9
"""Singular values of terms below this share of the largest are rounding, of up to some million rows."""

RIDGE_SHARE: Final = 1e-9
"""Share of the mean diagonal that is added to the diagonal, so that collinear terms can be solved for."""


def least_absolute_errors(x_NP: FloatArray, y_NM: FloatArray) -> FloatArray:
    """Fit coefficients, shape (P, M), with the smallest sums of absolute errors.

    Iteratively reweighted least squares: the weight is one over the error of the round before (Schlossmacher
    1973, doi:10.1080/01621459.1973.10481457). There is no intercept unless one of the terms is constant.

    Args:
        x_NP: Terms.
        y_NM: Targets.
    """
    # Contiguous rows are processed several times as fast as columns. The matrix of products of two terms is
    # symmetric, so only its upper triangle (K pairs) is computed.
    x_PN = np.ascontiguousarray(x_NP.T)
    first, second, _ = _pairs(len(x_PN))
    products_KN = x_PN[first] * x_PN[second]
    fitted_MP = [
        _fit_targets(x_PN, products_KN, np.ascontiguousarray(y_NM[:, start : start + TARGETS_AT_ONCE].T))
        for start in range(0, max(y_NM.shape[1], 1), TARGETS_AT_ONCE)
    ]
    return np.concatenate(fitted_MP).T.astype(np.float64)


@cache
def _pairs(num_terms: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the two terms of each product, (K,), and the number of the product of every two, (P, P)."""
    first, second = np.triu_indices(num_terms)
    number_PP = np.zeros((num_terms, num_terms), np.int64)
    number_PP[first, second] = np.arange(len(first))
    return first, second, np.maximum(number_PP, number_PP.T)


def _fit_targets(x_PN: FloatArray, products_KN: FloatArray, y_MN: FloatArray) -> NDArray[Any]:
    """Fit the coefficients of some targets, shape (M, P), see `least_absolute_errors`.

    Args:
        x_PN: Terms.
        products_KN: Products of every two terms, the upper triangle of their matrix.
        y_MN: Targets.
    """
    num_terms = len(x_PN)
    pair_PP = _pairs(num_terms)[2]
    median_M1 = np.median(np.abs(y_MN), axis=1, keepdims=True)
    mean_M1 = np.mean(np.abs(y_MN), axis=1, keepdims=True)
    # The typical size of a target; the mean if more than half of them are zero, 1 if all are.
    typical_M1 = np.where(median_M1 > 0, median_M1, np.where(mean_M1 > 0, mean_M1, 1.0))
    weights_MN = np.ones_like(y_MN)
    # Memory that is used again in every round: new memory takes longer than what is computed there.
    errors_MN = np.empty_like(y_MN)
    smallest_MN = np.empty_like(y_MN)
    for number in range(NUM_ROUNDS + NUM_FINE_ROUNDS):
        share = SMALLEST_ERROR_SHARE if number < NUM_ROUNDS else FINE_ERROR_SHARE
        if number in (0, NUM_ROUNDS):
            smallest_MN[:] = share * typical_M1
        # Normal equations of weighted least squares: (X' W X) b = X' W y, for each target.
        weighted_products_MK = weights_MN @ products_KN.T
        left_MPP = weighted_products_MK.take(pair_PP, axis=1)
        diagonal_MP = left_MPP.reshape(len(y_MN), -1)[:, :: num_terms + 1]
        ridge_M1 = RIDGE_SHARE * diagonal_MP.sum(axis=1, keepdims=True) / num_terms
        diagonal_MP += np.where(ridge_M1 > 0, ridge_M1, 1.0)
        right_MP = np.multiply(weights_MN, y_MN, out=errors_MN) @ x_PN.T
        fitted_MP = np.linalg.solve(left_MPP, right_MP[:, :, None])[:, :, 0]
        np.matmul(fitted_MP, x_PN, out=errors_MN)
        np.subtract(y_MN, errors_MN, out=errors_MN)
        np.abs(errors_MN, out=errors_MN)
        # With a number for each row in place of an array it takes three times as long.
        np.maximum(errors_MN, smallest_MN, out=errors_MN)
        # Only ratios matter: with the smallest error above, no weight exceeds 1, and none can overflow.
        np.divide(share * typical_M1, errors_MN, out=weights_MN)
    return fitted_MP


def least_squares(x_NP: FloatArray, y_NM: FloatArray) -> FloatArray:
    """Fit each target by the terms with the smallest sum of squared errors, shape (P, M)."""
    fitted_PM = np.linalg.lstsq(*reduced_rows(x_NP, y_NM), rcond=SMALLEST_SINGULAR_SHARE)[0]
    return fitted_PM.astype(np.float64)


def reduced_rows(x_NP: FloatArray, y_NM: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return terms and targets whose least-squares fits are those of the given ones: of many rows few.

    Many become a triangle of at most P + M rows with the same sums of squares and products, in pieces (a QR
    factorisation of rows after rows): NumPy would copy all of them twice.
    """
    if len(x_NP) <= ROWS_AT_ONCE:
        return x_NP, y_NM
    num_terms = x_NP.shape[1]
    triangle = np.zeros((0, num_terms + y_NM.shape[1]))
    for start in range(0, len(x_NP), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        joined = np.concatenate([triangle, np.concatenate([x_NP[rows], y_NM[rows]], axis=1)])
        triangle = np.asarray(np.linalg.qr(joined, mode="r"))
    return triangle[:, :num_terms], triangle[:, num_terms:]


def fit_without(
    left_out: Sequence[int], fit: Callable[[FloatArray], FloatArray], terms_NP: FloatArray
) -> FloatArray:
    """Fit coefficients, (P, M), without the terms at some positions, whose coefficients are zero."""
    if not left_out:
        return fit(terms_NP)
    fitted_KM = fit(np.delete(terms_NP, left_out, axis=1))
    return np.insert(fitted_KM, np.array(left_out) - np.arange(len(left_out)), 0.0, axis=0)


def weighted_median(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the weighted median along the first axis: it minimises the weighted sum of absolute distances.

    It is the smallest value such that half of the weight is at or below it; 0 where all weights are zero.
    Values are finite; weights have the same shape and are not negative.

    >>> weighted_median(np.array([1.0, 2.0, 9.0]), np.array([1.0, 1.0, 5.0])).item()
    9.0
    """
    values_XN = np.moveaxis(values, 0, -1)
    weights_XN = np.moveaxis(weights, 0, -1)
    medians_X = np.zeros(values_XN.shape[:-1])
    for place in np.ndindex(medians_X.shape):  # row by row the copies take no memory to speak of
        row_N = np.ascontiguousarray(values_XN[place])  # which is processed faster
        weights_N = np.ascontiguousarray(weights_XN[place])
        total = float(weights_N.sum())
        if total > 0:
            order = np.argsort(row_N)
            half = int(np.searchsorted(np.cumsum(weights_N[order]), 0.5 * total))
            medians_X[place] = row_N[order[min(half, len(row_N) - 1)]]
    return medians_X
