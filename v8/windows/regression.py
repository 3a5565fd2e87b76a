"""What minimises absolute errors, by which forecasts are judged: a regression, and the weighted median.

Legend: N rows or values, P terms, M targets.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from v8.features.formulas import Floats

NUM_ROUNDS: Final = 15  # rounds of reweighting: they end within a thousandth of the smallest sum of errors

SMALLEST_ERROR_SHARE: Final = 0.05
"""Errors below this share of the typical target weigh as if they were that large.

A smaller share comes closer to the smallest sum in the end, but takes more rounds to get there.
"""

NUM_FINE_ROUNDS: Final = 5
FINE_ERROR_SHARE: Final = 0.01  # the last rounds go closer, from where the others have come

RIDGE_SHARE: Final = 1e-9
"""Share of the mean diagonal added to it, so that terms that repeat each other can be told apart."""


def least_absolute_errors(x_NP: Floats, y_NM: Floats) -> Floats:
    """Fit coefficients, shape (P, M), with the smallest sums of absolute errors.

    Least squares, reweighted by one over the error of the round before (Schlossmacher 1973,
    doi:10.1080/01621459.1973.10481457). There is no constant unless one of the terms is.
    """
    num_terms = x_NP.shape[1]
    products = (x_NP[:, :, None] * x_NP[:, None, :]).reshape(len(x_NP), -1)
    median, mean = np.median(np.abs(y_NM), axis=0), np.abs(y_NM).mean(axis=0)
    typical = np.where(median > 0, median, np.where(mean > 0, mean, 1.0))
    weights = np.ones_like(y_NM)
    for number in range(NUM_ROUNDS + NUM_FINE_ROUNDS):
        smallest = (SMALLEST_ERROR_SHARE if number < NUM_ROUNDS else FINE_ERROR_SHARE) * typical
        # einsum stays on one core: BLAS would wake all for each of these small products, to its harm.
        left = np.einsum("nm,nk->mk", weights, products).reshape(-1, num_terms, num_terms)
        ridge = RIDGE_SHARE * np.trace(left, axis1=1, axis2=2) / num_terms
        left += np.where(ridge > 0, ridge, 1.0)[:, None, None] * np.eye(num_terms)
        right = np.einsum("nm,np->mp", weights * y_NM, x_NP)
        fitted_PM = np.linalg.solve(left, right[:, :, None])[:, :, 0].T
        weights = 1.0 / np.maximum(np.abs(y_NM - np.einsum("np,pm->nm", x_NP, fitted_PM)), smallest)
        weights /= weights.max(axis=0)  # only their ratios matter; small ones cannot overflow
    return fitted_PM.astype(np.float64)


def least_squares(x_NP: Floats, y_NM: Floats) -> Floats:
    """Fit each target by the terms with the smallest sum of squared errors, shape (P, M)."""
    return np.linalg.lstsq(x_NP, y_NM, rcond=None)[0].astype(np.float64)


def fit_without(left_out: Sequence[int], fit: Callable[[Floats], Floats], terms_NP: Floats) -> Floats:
    """Fit coefficients, (P, M), of terms of which those at some places are left out: theirs are zero."""
    if not left_out:
        return fit(terms_NP)
    fitted_KM = fit(np.delete(terms_NP, left_out, axis=1))
    return np.insert(fitted_KM, np.array(left_out) - np.arange(len(left_out)), 0.0, axis=0)


def weighted_median(values: Floats, weights: Floats) -> Floats:
    """Return what minimises the weighted sum of absolute distances, see `weighted_quantiles`.

    >>> weighted_median(np.array([1.0, 2.0, 9.0]), np.array([1.0, 1.0, 5.0])).item()
    9.0
    """
    return weighted_quantiles(values, weights, [0.5])[0]


def weighted_quantiles(values: Floats, weights: Floats, levels: Sequence[float]) -> Floats:
    """Return what minimises the weighted sums of pinball losses, along the first axis: shape (Q, ...).

    Values are finite, weights of the same shape 0 or above, levels between 0 and 1. It is the smallest value
    at which that share of the weight lies at or below; 0 where nothing has a weight.

    >>> weighted_quantiles(np.array([1.0, 2.0, 9.0]), np.array([1.0, 1.0, 2.0]), [0.2, 0.5, 0.6]).tolist()
    [1.0, 2.0, 9.0]
    """
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(np.take_along_axis(weights, order, axis=0), axis=0)
    places = np.stack([np.argmax(reached >= reached[-1] * level, axis=0) for level in levels])
    found = np.take_along_axis(np.take_along_axis(values, order, axis=0), places, axis=0)
    return np.where(reached[-1] > 0, found, 0.0)
