"""Baselines that forecast how far prices will range from how far they did.

All start from a variance of one bar's return, known at the window. What it means for a task:

* Open, high, low, close: a distance from the last close in proportion to its root.
* Bands and volatility: their windows hold known closes and, k steps ahead, k points of a random walk. The
  variance expected of the twenty is that of roll-forward plus the bar's variance times `future_weights`.

Whatever is fitted is fitted per step and column, on train windows, to the absolute error in returns, by
which forecasts are judged.

Legend: N windows, H steps of the horizon, C columns of a task, T terms of a regression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.columns import BAND_WIDTH_STDS, TASK_BANDS, TASK_OHLC, TASK_VOLATILITY
from v8.data.medians import weighted_median
from v8.data.regression import least_absolute_errors
from v8.data.targets import HAS_RANGE, future_weights
from v8.evaluation.past import Forecast, Known, Lesson, TaskForecasts

SCALED_BARS: Final = 20
"""Bars of the range in `scaled`: those of the bands."""

HAR_BARS: Final = (1, 5, 20, 60, 240)
"""Bars of the terms of `har`, in place of Corsi's day, week and month."""

Floats = NDArray[np.float64]


def fit_scaled(lesson: Lesson) -> Forecast:
    """Fit one constant per step and column to the range of the newest `SCALED_BARS` bars."""
    return _fit_constants(lesson, lambda known: known.bars.range_variance(SCALED_BARS)[known.rows])


def fit_ewma(lesson: Lesson) -> Forecast:
    """Fit one constant per step and column to the RiskMetrics variance."""
    return _fit_constants(lesson, lambda known: known.bars.ewma_variance[known.rows])


def fit_har(lesson: Lesson) -> Forecast:
    """Fit a regression per step and column on the ranges of `HAR_BARS`, by least absolute errors.

    The terms of a step are the deviations that would follow if bars ahead ranged as they did over each of
    those, and for bands and volatility that of roll-forward. There is no constant: in a market that stands
    still nothing is expected to move. Open and close stay at the last close, for a range says nothing about
    which way they go.
    """
    terms = _har_terms(lesson.known)
    fitted = {
        task: np.stack(
            [
                least_absolute_errors(terms_NT, moved_NC) * HAS_RANGE[task]
                for terms_NT, moved_NC in zip(terms[task], np.moveaxis(moved, 1, 0), strict=True)
            ]
        )
        for task, moved in moves_from_rolled(lesson).items()
    }

    def forecast(known: Known) -> TaskForecasts:
        terms = _har_terms(known)
        return {
            task: moved_from_rolled(known, task, np.einsum("hnt,htc->nhc", terms[task], fitted_HTC))
            for task, fitted_HTC in fitted.items()
        }

    return forecast


def moves_from_rolled(lesson: Lesson) -> dict[str, Floats]:
    """Return how far the truth lay from roll-forward, per task, shape (N, H, C), in returns."""
    known = lesson.known
    return {task: (truth - known.rolled[task]) / _unit(known, task) for task, truth in lesson.truth.items()}


def moved_from_rolled(known: Known, task: str, moves: Floats) -> Floats:
    """Move roll-forward by so much, the inverse of `moves_from_rolled`.

    Args:
        known: What is known at the windows.
        task: The task forecast.
        moves: Shape (N, H, C), in returns.

    Returns:
        Shape (N, H, C), quote currency, volatility unitless.
    """
    return known.rolled[task] + moves * _unit(known, task)


def rolled_deviation(known: Known) -> Floats:
    """Return the deviation of the twenty closes of the roll-forward forecast, shape (N, H), in returns."""
    upper, lower = np.moveaxis(known.rolled[TASK_BANDS], -1, 0)
    deviation: Floats = (upper - lower) / (2 * BAND_WIDTH_STDS) / known.last_close[:, None]
    return deviation


def _fit_constants(lesson: Lesson, variance_of: Callable[[Known], Floats]) -> Forecast:
    known = lesson.known
    ahead = variance_of(known)[:, None, None] * _weights(known)
    constants = {}
    for task, truth in lesson.truth.items():
        if task == TASK_OHLC:
            # Distance from the last close = constant x root of the bar's variance.
            reach = np.broadcast_to(np.sqrt(variance_of(known))[:, None, None], truth.shape)
            constants[task] = _constants(moves_from_rolled(lesson)[task], reach, reach)
        else:
            # Variance of the twenty closes = roll-forward's + constant x variance ahead. A column errs by as
            # much as its deviation, whose slope in the constant is the weight.
            grown = _deviation(known, task, truth) ** 2 - rolled_deviation(known)[:, :, None] ** 2
            slope = ahead / np.sqrt(rolled_deviation(known)[:, :, None] ** 2 + ahead + np.finfo(float).tiny)
            constants[task] = _constants(grown, ahead, np.broadcast_to(slope, grown.shape))

    def forecast(known: Known) -> TaskForecasts:
        variance = variance_of(known)
        return {task: _ranged(known, task, variance, constant) for task, constant in constants.items()}

    return forecast


def _constants(moved: Floats, terms: Floats, weights: Floats) -> Floats:
    """Return the constants (H, C) with moved = constant x term, by the median with these weights."""
    is_moving = terms > 0
    ratios = np.divide(moved, terms, out=np.zeros_like(moved), where=is_moving)
    return weighted_median(ratios, np.where(is_moving, weights, 0.0))


def _ranged(known: Known, task: str, variance: Floats, constant: Floats) -> Floats:
    if task == TASK_OHLC:
        return moved_from_rolled(known, task, np.sqrt(variance)[:, None, None] * constant)
    rolled = rolled_deviation(known)[:, :, None]
    ahead = variance[:, None, None] * _weights(known)
    deviation = np.sqrt(np.maximum(rolled**2 + constant * ahead, 0.0))
    return moved_from_rolled(known, task, (deviation - rolled) * _DEVIATIONS[task])


def _har_terms(known: Known) -> dict[str, Floats]:
    """Return the terms of each task, shape (H, N, T), in returns."""
    variances = np.stack([known.bars.range_variance(bars)[known.rows] for bars in HAR_BARS], axis=-1)
    rolled = rolled_deviation(known).T[:, :, None]
    ahead = variances * future_weights(known.horizon_bars)[:, None, None]
    deviations = np.concatenate([np.sqrt(rolled**2 + ahead), rolled], axis=2)
    reaches = np.broadcast_to(np.sqrt(variances), (known.horizon_bars, *variances.shape))
    return {TASK_OHLC: reaches, TASK_BANDS: deviations, TASK_VOLATILITY: deviations}


def _unit(known: Known, task: str) -> Floats:
    unit = np.ones_like(known.last_close) if task == TASK_VOLATILITY else known.last_close
    return unit[:, None, None]


def _weights(known: Known) -> Floats:
    return future_weights(known.horizon_bars)[:, None]


def _deviation(known: Known, task: str, values: Floats) -> Floats:
    """Return the deviation at which each column would have its value, shape (N, H, C), in returns."""
    rolled = known.rolled[task]
    moved = (values - rolled) / _unit(known, task) / _DEVIATIONS[task]
    return np.maximum(rolled_deviation(known)[:, :, None] + moved, 0.0)


_DEVIATIONS: Final[dict[str, Floats]] = {
    TASK_BANDS: np.array([BAND_WIDTH_STDS, -BAND_WIDTH_STDS]),
    TASK_VOLATILITY: np.array([1.0]),
}
"""By how many deviations each column lies off the middle; volatility counts as one, its middle near one."""
