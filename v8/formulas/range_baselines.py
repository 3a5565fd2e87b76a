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

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from v8.columns import RANGE_BARS
from v8.formulas.baseline import Baseline, Forecast, TaskForecasts
from v8.tasks import TASKS
from v8.tasks.closes import future_weights
from v8.windows.per_task import PerTask
from v8.windows.regression import least_absolute_errors, weighted_median
from v8.windows.scaling import Scaling
from v8.windows.span import Floats, Span

SCALED_BARS: Final = 20
"""Bars of the range in `scaled`: those of the bands."""


def fit_har(train: Span, scaling: Scaling) -> Forecast:
    """Fit a regression per step and column on the ranges of `RANGE_BARS`, by least absolute errors.

    The terms of a step are the deviations that would follow if bars ahead ranged as they did over each of
    those, and for tasks of the band's window that of roll-forward. There is no constant: in a market that
    stands still nothing is expected to move. Columns that a range does not move stay, for a range says
    nothing about which way they go.
    """
    fitted = {}
    for task, moved in moves_from_rolled(train).items():
        by_step = zip(_har_terms_by_step(train, task), np.moveaxis(moved, 1, 0), strict=True)
        fitted[task] = np.stack(
            [least_absolute_errors(*of_step) * TASKS[task].is_moved for of_step in by_step]
        )

    def forecast(span: Span) -> TaskForecasts:
        return {
            task: moved_from_rolled(span, task, np.einsum("hnt,htc->nhc", _har_terms(span, task), fitted_HTC))
            for task, fitted_HTC in fitted.items()
        }

    return forecast


def moves_from_rolled(span: Span) -> PerTask:
    """Return how far the truth lay from roll-forward, per task, shape (N, H, C), in returns."""

    def compute(task: str) -> Floats:
        moved = span.truth[task] - span.rolled[task]
        return np.divide(moved, _unit(span, task), out=moved)

    return PerTask(span.truth, compute)


def moved_from_rolled(span: Span, task: str, moves: Floats) -> Floats:
    """Move roll-forward by so much, the inverse of `moves_from_rolled`.

    Args:
        span: The windows.
        task: The task forecast.
        moves: Shape (N, H, C), in returns.

    Returns:
        Shape (N, H, C), in the task's unit.
    """
    return span.rolled[task] + moves * _unit(span, task)


def _fit_constants(train: Span, variance_of: Callable[[Span], Floats]) -> Forecast:
    """Fit one constant per step and column to a variance that is known at each window."""
    variance = variance_of(train)[:, None, None]
    ahead, rolled = variance * future_weights(train.horizon_bars)[:, None], train.rolled_deviation[:, :, None]
    constants = {}
    for task, moved in moves_from_rolled(train).items():
        if TASKS[task].has_window:
            # Variance of the twenty closes = roll-forward's + constant x variance ahead. A column errs by as
            # much as its deviation, whose slope in the constant is the weight. One on the middle itself
            # tells nothing, and keeps the deviation of roll-forward.
            per_column = TASKS[task].column_deviations
            grown = np.divide(moved, per_column, out=np.zeros_like(moved), where=per_column != 0)
            added = np.maximum(rolled + grown, 0.0) ** 2 - rolled**2
            slope = ahead / np.sqrt(rolled**2 + ahead + np.finfo(float).tiny)
            constants[task] = _constants(added, ahead, np.broadcast_to(slope, added.shape))
        else:
            # Distance from the last close = constant x root of the bar's variance.
            reach = np.broadcast_to(np.sqrt(variance), moved.shape)
            constants[task] = _constants(moved, reach, reach)

    def forecast(span: Span) -> TaskForecasts:
        variance = variance_of(span)
        return {task: _ranged(span, task, variance, constant) for task, constant in constants.items()}

    return forecast


def _constants(moved: Floats, terms: Floats, weights: Floats) -> Floats:
    """Return the constants (H, C) with moved = constant x term, by the median with these weights."""
    terms_NHC, steps = np.broadcast_to(terms, moved.shape), range(moved.shape[1])
    return np.stack([_constant(moved[:, k], terms_NHC[:, k], weights[:, k]) for k in steps])


def _constant(moved_NC: Floats, terms_NC: Floats, weights_NC: Floats) -> Floats:
    """Return the constants (C,) of one step."""
    is_moving = terms_NC > 0
    ratios = np.divide(moved_NC, terms_NC, out=np.zeros_like(moved_NC), where=is_moving)
    return weighted_median(ratios, np.where(is_moving, weights_NC, 0.0))


def _ranged(span: Span, task: str, variance: Floats, constant: Floats) -> Floats:
    if not TASKS[task].has_window:
        return moved_from_rolled(span, task, np.sqrt(variance)[:, None, None] * constant)
    rolled = span.rolled_deviation[:, :, None]
    ahead = variance[:, None, None] * future_weights(span.horizon_bars)[:, None]
    deviation = np.sqrt(np.maximum(rolled**2 + constant * ahead, 0.0))
    return moved_from_rolled(span, task, (deviation - rolled) * TASKS[task].column_deviations)


def _har_terms(span: Span, task: str) -> Floats:
    """Return the terms of a task, shape (H, N, T), in returns."""
    by_step = _har_terms_by_step(span, task)
    if TASKS[task].has_window:
        return np.stack([*by_step])
    terms_NT = next(by_step)  # the same at each step
    return np.broadcast_to(terms_NT, (span.horizon_bars, *terms_NT.shape))


def _har_terms_by_step(span: Span, task: str) -> Iterator[Floats]:
    """Yield the terms of each step, shape (N, T); those of all steps of a long span would fill the memory."""
    variances_NR = np.stack([span.range_variance(bars) for bars in RANGE_BARS], axis=-1)
    for step, weight in enumerate(future_weights(span.horizon_bars)):
        if TASKS[task].has_window:
            rolled_N1 = span.rolled_deviation[:, step, None]
            yield np.concatenate([np.sqrt(rolled_N1**2 + variances_NR * weight), rolled_N1], axis=1)
        else:
            yield np.sqrt(variances_NR)


def _unit(span: Span, task: str) -> Floats:
    return np.asarray(TASKS[task].size(span.last_close, np.ones(len(span))))[:, None, None]


SCALED: Final = Baseline(
    "scaled",
    "Roll-forward moved by one constant per step and column times the mean range of the newest 20 bars.",
    "range as a measure of variance: Feller (1951); weighted medians of the train span",
    lambda train, scaling: _fit_constants(train, lambda span: span.range_variance(SCALED_BARS)),
)

EWMA: Final = Baseline(
    "ewma",
    "Likewise, with an exponentially weighted mean of squared returns (decay 0.94) for the range.",
    "RiskMetrics Technical Document (J.P. Morgan, 1996), section 5",
    lambda train, scaling: _fit_constants(train, lambda span: span.ewma_variance),
)

HAR: Final = Baseline(
    "har",
    "Roll-forward moved by a regression, per step and column, on ranges over 1, 5, 20, 60 and 240 bars.",
    "heterogeneous autoregression: Corsi (2009), doi:10.1093/jjfinec/nbp001; least absolute errors",
    fit_har,
)
