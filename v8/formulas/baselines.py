"""Every baseline a forecast is shown beside, in the order of the reports.

Some know closes alone: nothing moves, or everything goes on as it used to. Others forecast how far prices
will range from how far they did. These start from a variance of one bar's return, known at the window. What
it means for a task:

* Open, high, low, close: a distance from the last close in proportion to its root.
* Bands and volatility: their windows hold known closes and, k steps ahead, k points of a random walk. The
  variance expected of the twenty is that of roll-forward plus the bar's variance times `future_weights`.

Whatever is fitted is fitted per step and column, on train windows, to the absolute error in returns, by
which forecasts are judged. `range_paths` forecasts the ranges of the coming bars, then lets prices walk that
far (`v8.formulas.range_paths`); the profile of that name publishes it as a Keras file, in single precision.

Legend: N windows, H steps of the horizon, Q levels, C columns of a task, T terms of a regression, P paths.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from v8.columns import BAND_PERIOD_BARS, CLOSE, OHLC, RANGE_BARS, TASK_OHLC
from v8.formulas import range_paths
from v8.formulas.baseline import Baseline, Forecast, TaskForecasts, moved_from_rolled, moves_from_rolled
from v8.formulas.boosting import LIGHTGBM
from v8.formulas.range_paths import Summary, path_medians, path_quantiles, walk_windows
from v8.quantile_levels import MEDIAN
from v8.registry import Registry
from v8.tasks import TASKS, Closes, future_weights
from v8.windows.regression import least_absolute_errors, weighted_median
from v8.windows.scaling import Scaling
from v8.windows.span import Floats, Span


def _last_close(span: Span) -> TaskForecasts:
    newest = _implied(span, span.history_close[:, None], span.last_close[:, None])
    return {task: np.repeat(values, span.horizon_bars, axis=1) for task, values in newest.items()}


def _fit_offset(train: Span, scaling: Scaling) -> Forecast:
    def forecast(span: Span) -> TaskForecasts:
        with np.errstate(over="ignore"):  # infinity is refused where errors are measured
            return {
                task.task: span.rolled[task.task] * np.exp(np.array(task.offset)) for task in scaling.tasks
            }

    return forecast


def _fit_drift(train: Span, scaling: Scaling) -> Forecast:
    first_move = np.log(train.truth[TASK_OHLC][:, 0, OHLC.index(CLOSE)] / train.last_close)
    drift = float(first_move.mean())

    def forecast(span: Span) -> TaskForecasts:
        path = span.last_close[:, None] * np.exp(drift * np.arange(1, span.horizon_bars + 1))
        closes = np.concatenate([span.history_close, path], axis=1)
        windows = np.lib.stride_tricks.sliding_window_view(closes, BAND_PERIOD_BARS, axis=1)
        return _implied(span, windows[:, 1:].copy(), path)

    return forecast


def _fit_conformal(train: Span, scaling: Scaling, levels: Sequence[float]) -> Forecast:
    """Add the quantiles of past errors, in recent ranges, to the roll-forward forecast."""

    def unit(task: str, span: Span) -> Floats:
        range_N = scaling.floored_range(span.recent_range)
        return np.asarray(TASKS[task].size(span.last_close, range_N))[:, None, None]

    errors = {task: (train.truth[task] - train.rolled[task]) / unit(task, train) for task in train.truth}
    beyond_HQC = {task: np.quantile(one, levels, axis=0).swapaxes(0, 1) for task, one in errors.items()}

    def forecast(span: Span) -> TaskForecasts:
        return {
            task: span.rolled[task][:, :, None] + beyond_HQC[task] * unit(task, span)[..., None]
            for task in span.profile.tasks
        }

    return forecast


def _implied(span: Span, windows: Floats, path: Floats) -> TaskForecasts:
    """Return what every task would be with these closes (N, H) and windows of twenty (N, H, 20)."""
    closes = Closes(1.0, path, windows.mean(axis=2), windows.std(axis=2, ddof=1))
    return {task: TASKS[task].implied(np, closes) for task in span.profile.tasks}


LAST_CLOSE: Final = Baseline(
    "last_close",
    "Nothing moves: candles stay at the last close, bands and volatility at their last value.",
    "random walk without drift; Hyndman & Athanasopoulos, Forecasting: Principles and Practice, 5.2",
    lambda train, scaling: _last_close,
)

ROLL_FORWARD: Final = Baseline(
    "roll_forward",
    "The close stays at the last close; bands and volatility are recomputed as known closes leave "
    "their window.",
    "random walk without drift, carried through the lineage's indicator definitions",
    lambda train, scaling: lambda span: span.rolled,
    # Split conformal prediction: Lei et al. 2018, doi:10.1080/01621459.2017.1307116.
    fit_quantiles=_fit_conformal,
)

OFFSET: Final = Baseline(
    "offset",
    "Roll-forward times one constant per task, step and column: its usual distance from the truth.",
    "medians of the train span of the same series",
    _fit_offset,
)

DRIFT: Final = Baseline(
    "drift",
    "The close goes on by the train span's mean return per bar; bands and volatility follow it.",
    "random walk with drift; Hyndman & Athanasopoulos, Forecasting: Principles and Practice, 5.2",
    _fit_drift,
)


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


def fit_range_paths(train: Span, scaling: Scaling) -> Forecast:
    """Fit the regressions to the train span and keep what followed its windows."""
    levels = train.profile.quantiles
    if not levels:
        return _fitted(train, partial(path_medians, np))
    quantiles, middle = fit_range_path_quantiles(train, scaling, levels), levels.index(MEDIAN)
    return lambda span: {task: values[:, :, middle] for task, values in quantiles(span).items()}


def fit_range_path_quantiles(train: Span, scaling: Scaling, levels: Sequence[float]) -> Forecast:
    """Do the same; the forecast is quantiles over the paths, shape (N, H, Q, C).

    Medians and quantiles are judged one after the other: fit and walk of the same spans are done once.
    """
    known = _FITTED.setdefault(train, {})
    if tuple(levels) not in known:
        known[tuple(levels)] = _walked_once(_fitted(train, partial(path_quantiles, np, levels)))
    return known[tuple(levels)]


_FITTED: Final[WeakKeyDictionary[Span, dict[tuple[float, ...], Forecast]]] = WeakKeyDictionary()
"""Forecasts of quantiles by the train span they were fitted to, while anybody holds it."""


def _walked_once(forecast: Forecast) -> Forecast:
    walked: WeakKeyDictionary[Span, TaskForecasts] = WeakKeyDictionary()

    def remembered(span: Span) -> TaskForecasts:
        if span not in walked:
            walked[span] = forecast(span)
        return walked[span]

    return remembered


def _fitted(train: Span, summed_up: Summary) -> Forecast:
    fitted = range_paths.fit_range_paths(train)

    def forecast(span: Span) -> TaskForecasts:
        return walk_windows(span, fitted.ranges(span), fitted.lent_PHC, summed_up)

    return forecast


RANGE_PATHS: Final = Baseline(
    "range_paths",
    "Medians of 512 paths of past bars, each bar scaled to the range that a regression forecasts for it.",
    "filtered historical simulation: Barone-Adesi, Giannopoulos & Vosper (1999), J. Futures Markets 19",
    fit_range_paths,
    fit_quantiles=fit_range_path_quantiles,
)


NAIVE: Final = ROLL_FORWARD.name
"""The baseline every skill, multiple and verdict is measured against first, for every task."""

BASELINES: Final[Registry[Baseline]] = Registry(
    "baseline",
    [LAST_CLOSE, ROLL_FORWARD, OFFSET, DRIFT, SCALED, EWMA, HAR, RANGE_PATHS, LIGHTGBM],
)
"""One of a package that is not installed is not there to be beaten, and reports leave it out."""


def called(baseline: str) -> str:
    """Return what readers know a baseline by: "naive", or its key.

    >>> called("roll_forward"), called("har")
    ('naive', 'har')
    """
    return "naive" if baseline == NAIVE else baseline
