"""Baselines: forecasts without a network, which a model has to beat, in the order of the reports.

A baseline is fitted to the train span only and then forecasts any windows from the data known at each of
them, so it can neither see the test span nor be tuned on it. A plug-in adds one by calling
`BASELINES.register`; it may leave out tasks.

Some baselines read only closes: nothing moves, or the average move continues. Others forecast future ranges
from past ranges. They start from the variance of one bar's return, estimated at the window, which gives for a
task:

* Open, high, low, close: a distance from the last close in proportion to the root of the variance.
* Bands and volatility: their windows hold known closes and, k steps ahead, k points of a random walk. The
  expected variance of the twenty closes is that of the naive forecast plus the bar's variance times
  `future_weights`.

All coefficients are fitted per step and column, on train windows, to the absolute error in returns, by which
forecasts are evaluated. `range_paths` is defined in `v8.model.baselines.ranges`; the profile of that name
publishes it as a Keras file, in single precision.

`log_har_clock` is a heterogeneous autoregression in logarithms (Corsi 2009) with waves of the day and the
week (Andersen & Bollerslev 1997, doi:10.1016/S0927-5398(97)00004-2), all that `v8.profile.columns.WAVES`
names, whatever features a profile has.

Two baselines need an optional package. For `garch`, GARCH(1,1) (Bollerslev 1986,
doi:10.1016/0304-4076(86)90063-1) is fitted to the log returns of the train span by `arch`, as others fit it:
mean zero, normal likelihood. Its variance of each bar ahead takes the place of that of `scaled` and `ewma`.
`lightgbm` reads ranges over several horizons and the naive forecast, without a fixed formula. One booster per
task and column is used for all steps: the step is a term. The targets are moves in units of the recent range,
weighted by it, so that the absolute error is one in returns. It is fitted with one thread and a fixed seed:
the same candles give the same forecast.

Legend: N windows, H steps of the horizon, Q levels, C columns of a task, T terms of a regression, R rows of a
table, X any columns.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from operator import attrgetter, methodcaller
from types import ModuleType
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from v8.base.arrays import FloatArray, least_absolute_errors, weighted_median
from v8.base.errors import SeriesError
from v8.base.records import read_yaml
from v8.base.registry import Named, Registry, read_descriptions
from v8.data.scaling import Scaling
from v8.data.span import WINDOWS_AT_ONCE, Span, require_forecasts, require_same_alone
from v8.model.baselines import ranges
from v8.profile.columns import BAND_PERIOD_BARS, CLOSE, MEDIAN, OHLC, RANGE_BARS, TASK_OHLC, WAVE_COLUMNS
from v8.profile.formulas import FLOOR_SHARE, recent_range
from v8.profile.profile import config_path
from v8.profile.tasks import BANDS_TASK, TASKS, Closes, future_weights

TaskForecasts: TypeAlias = Mapping[str, FloatArray]
FittedBaseline: TypeAlias = Callable[[Span], TaskForecasts]


@dataclass(frozen=True)
class Baseline(Named):
    """A forecast without a network.

    Args:
        fit: Maps the train span and the constants of its scaling to a function of windows, a `PastSpan`. That
            function reads only data known at each window and returns arrays of shape (N, H, C)
            (`target_shape`) per task of the profile, float64, in the task's unit. It may leave tasks out.
        title: Its name in words, for readers; None for those of plug-ins.
        brief: What it does in a few words, without a full stop; None for those of plug-ins.
        package: Name of the optional package that it needs; None for most.
        fit_quantiles: Maps train span, constants and levels to a function of windows that returns quantiles,
            (N, H, Q, C) per task of the profile; None for a baseline without quantiles.
    """

    fit: Callable[[Span, Scaling], FittedBaseline]
    title: str | None = None
    brief: str | None = None
    package: str | None = None
    fit_quantiles: Callable[[Span, Scaling, Sequence[float]], FittedBaseline] | None = None

    def is_installed(self) -> bool:
        """Return whether its optional package is installed, without importing it; true without one."""
        return self.package is None or find_spec(self.package) is not None

    def fitted(self, train: Span, scaling: Scaling, levels: Sequence[float] = ()) -> FittedBaseline:
        """Fit the baseline and return a function that forecasts windows.

        The function never sees the actual values of the windows. A baseline of a plug-in does not see candles
        after the train span either, and forecasts some windows a second time, alone, from candles that end
        when the forecast is issued.

        Args:
            train: Windows of the train span.
            scaling: Constants of the train span.
            levels: Levels of quantiles, which a baseline with `fit_quantiles` forecasts in place of points.

        Raises:
            SeriesError: By the returned function, if a plug-in's baseline returns something else than arrays
                by task, or its second forecast differs.
        """
        is_shipped = any(self is baseline for baseline in _SHIPPED)
        if not is_shipped:
            train = train.self_contained
        if levels and self.fit_quantiles:
            forecast = self.fit_quantiles(train, scaling, levels)
        else:
            forecast = self.fit(train, scaling)

        def forecast_past(span: Span) -> TaskForecasts:
            forecasts = forecast(span.past_only)
            if not is_shipped:
                require_forecasts(self.name, span, forecasts)
                require_same_alone(self.name, forecast, span.past_only, forecasts)
            return forecasts

        return forecast_past


def _last_close(span: Span) -> TaskForecasts:
    newest = _implied(span, span.history_close[:, None], span.last_close[:, None], span.range_of_bar(1))
    return {task: np.repeat(values, span.horizon_bars, axis=1) for task, values in newest.items()}


def _fit_offset(train: Span, scaling: Scaling) -> FittedBaseline:
    def forecast(span: Span) -> TaskForecasts:
        with np.errstate(over="ignore"):  # infinite forecasts are refused when errors are measured
            return {task.task: span.naive[task.task] * np.exp(task.offset) for task in scaling.tasks}

    return forecast


def _fit_drift(train: Span, scaling: Scaling) -> FittedBaseline:
    first_move = np.log(train.actual[TASK_OHLC][:, 0, OHLC.index(CLOSE)] / train.last_close)
    drift = float(first_move.mean())

    def forecast(span: Span) -> TaskForecasts:
        path = span.last_close[:, None] * np.exp(drift * np.arange(1, span.horizon_bars + 1))
        closes = np.concatenate([span.history_close, path], axis=1)
        windows = np.lib.stride_tricks.sliding_window_view(closes, BAND_PERIOD_BARS, axis=1)
        return _implied(span, windows[:, 1:], path, span.naive_closes.bar_range)

    return forecast


def _fit_conformal(train: Span, scaling: Scaling, levels: Sequence[float]) -> FittedBaseline:
    """Add the quantiles of past errors, in recent ranges, to the naive forecast."""

    def unit(task: str, span: Span) -> FloatArray:
        return span.unit(task, scaling.floored_range(span.target_unit))

    quantiles_HQC = {}
    for task in train.actual:
        errors_NHC = (train.actual[task] - train.naive[task]) / unit(task, train)
        quantiles_HQC[task] = np.quantile(errors_NHC, levels, axis=0).swapaxes(0, 1)

    def forecast(span: Span) -> TaskForecasts:
        return {
            task: span.naive[task][:, :, None] + quantiles_HQC[task] * unit(task, span)[..., None]
            for task in span.profile.tasks
        }

    return forecast


def _implied(
    span: Span, windows: FloatArray, path: FloatArray, bar_range: FloatArray | None
) -> TaskForecasts:
    """Compute all tasks from future closes (N, H), their windows of twenty closes (N, H, 20) and a range.

    Every bar has the range, which is a log ratio, shape (N, 1), unitless; None without a task of sizes.
    """
    middle = np.empty(windows.shape[:2])
    deviation = np.empty(windows.shape[:2])
    for start in range(0, len(windows), WINDOWS_AT_ONCE):
        rows = slice(start, start + WINDOWS_AT_ONCE)
        own_windows = np.ascontiguousarray(windows[rows])
        middle[rows] = own_windows.mean(axis=2)
        deviation[rows] = own_windows.std(axis=2, ddof=1)
    closes = Closes(1.0, path, middle, deviation, bar_range=bar_range)
    return {task: TASKS[task].implied(np, closes) for task in span.profile.tasks}


def fit_har(train: Span, scaling: Scaling) -> FittedBaseline:
    """Fit a regression per step and column on the ranges over `RANGE_BARS`, with least absolute errors.

    The terms of a step are the deviations that follow if the future ranges equal the mean range over each of
    these horizons; for tasks of the Bollinger window also the deviation of the naive forecast. There is no
    intercept: in a flat market no move is expected. Tasks of sizes are fitted in logarithms (`_fit_sizes`).
    """
    sizes = [task for task in train.profile.tasks if TASKS[task].is_size]
    fitted = ranges.fit_moves(train, partial(_har_terms, train), without=sizes)
    forecast_sizes = _fit_sizes(train, sizes)
    return lambda span: {
        **ranges.move_by(span, fitted, partial(_har_terms, span)),
        **forecast_sizes(span),
    }


def _fit_sizes(train: Span, tasks: Sequence[str]) -> FittedBaseline:
    """Fit the logarithms of sizes to a constant and those of past ranges, with least absolute errors.

    The exponential of the median of a logarithm is the median of the size.
    """
    floor, _ = ranges.floored_logs(train)
    terms = ranges.RangeTerms(RANGE_BARS)
    terms_NT = terms.terms(train, floor)
    fitted_HTC = {}
    for task in tasks:
        _, num_steps, num_columns = train.target_shape(task)
        logs_NX = np.log(np.maximum(train.actual[task], floor)).reshape(len(train), -1)
        fitted_THC = least_absolute_errors(terms_NT, logs_NX).reshape(-1, num_steps, num_columns)
        fitted_HTC[task] = fitted_THC.swapaxes(0, 1)

    def forecast(span: Span) -> TaskForecasts:
        terms_NT = terms.terms(span, floor)
        is_moving_N11 = (span.mean_range(RANGE_BARS[-1]) > 0)[:, None, None]  # a flat market stays flat
        return {
            task: np.exp(np.matmul(terms_NT, fitted).swapaxes(0, 1)) * is_moving_N11
            for task, fitted in fitted_HTC.items()
        }

    return forecast


def _fit_constants(train: Span, variance_of: Callable[[Span], FloatArray]) -> FittedBaseline:
    """Fit one constant per step and column to a variance that is estimated at each window.

    The variance of a bar is the same at all steps, shape (N,), or the mean of the bars up to each, (N, H).
    """
    variance_NH1 = np.broadcast_to(_by_column(variance_of(train)), (len(train), train.horizon_bars, 1))
    constants = {}
    for task, moved_NHC in train.moves().items():
        # Step by step: of many windows all steps together take gigabytes.
        constants_HC = [
            _constants_of_step(train, task, step, moved_NHC[:, step], variance_NH1[:, step])
            for step in range(train.horizon_bars)
        ]
        constants[task] = np.stack(constants_HC)

    return lambda span: {
        task: _ranged(span, task, _by_column(variance_of(span)), constant)
        for task, constant in constants.items()
    }


def _constants_of_step(
    train: Span, task: str, step: int, moved_NC: FloatArray, variance_N1: FloatArray
) -> FloatArray:
    """Fit the constants of one step of a task, (C,), to the variances of a bar."""
    if not TASKS[task].has_window:
        # Distance from the last close = constant x root of the bar's variance.
        deviation_N1 = np.sqrt(variance_N1)
        return _constants(moved_NC, deviation_N1, deviation_N1)
    # Variance of the twenty closes = that of the naive forecast + constant x future variance. The error of a
    # column is that of its deviation, so its slope in the constant is the weight in the median. A column in
    # the middle of the bands (0 deviations) contains no information about it.
    per_column = TASKS[task].column_deviations
    grown_NC = np.divide(moved_NC, per_column, out=np.zeros_like(moved_NC), where=per_column != 0)
    naive_N1 = train.naive_deviation[:, step, None]
    ahead_N1 = variance_N1 * future_weights(train.horizon_bars)[step]
    added_NC = np.maximum(naive_N1 + grown_NC, 0.0) ** 2 - naive_N1**2
    slope_N1 = ahead_N1 / np.sqrt(naive_N1**2 + ahead_N1 + np.finfo(float).tiny)
    return _constants(added_NC, ahead_N1, slope_N1)


def _by_column(variance: FloatArray) -> FloatArray:
    """Give a variance, (N,) or (N, H), the axes of windows, steps and columns."""
    return variance.reshape(len(variance), -1, 1)


def _constants(moved_NC: FloatArray, term_N1: FloatArray, weight_N1: FloatArray) -> FloatArray:
    """Return the constants (C,) in moved = constant x term, as weighted medians of the ratios."""
    is_moving_N1 = term_N1 > 0
    ratios_NC = np.divide(moved_NC, term_N1, out=np.zeros_like(moved_NC), where=is_moving_N1)
    weights_NC = np.broadcast_to(np.where(is_moving_N1, weight_N1, 0.0), moved_NC.shape)
    return weighted_median(ratios_NC, weights_NC)


def _ranged(span: Span, task: str, variance: FloatArray, constant: FloatArray) -> FloatArray:
    if not TASKS[task].has_window:
        return span.moved(task, np.sqrt(variance) * constant)
    naive = span.naive_deviation[:, :, None]
    ahead = variance * future_weights(span.horizon_bars)[:, None]
    deviation = np.sqrt(np.maximum(naive**2 + constant * ahead, 0.0))
    return span.moved(task, (deviation - naive) * TASKS[task].column_deviations)


def _har_terms(span: Span, has_window: bool) -> Iterator[tuple[slice, FloatArray]]:
    """Yield steps and their terms, shape (N, T); those of all steps together could exceed the memory."""
    variances_NR = np.stack([span.range_variance(bars) for bars in RANGE_BARS], axis=-1)
    if not has_window:
        yield slice(0, span.horizon_bars), np.sqrt(variances_NR)
        return
    for step, weight in enumerate(future_weights(span.horizon_bars)):
        naive_N1 = span.naive_deviation[:, step, None]
        terms_NT = np.concatenate([np.sqrt(naive_N1**2 + variances_NR * weight), naive_N1], axis=1)
        yield slice(step, step + 1), terms_NT


def fit_range_paths(train: Span, scaling: Scaling) -> FittedBaseline:
    """Fit the regression of ranges to the train span; forecasts are medians of paths of its bars."""
    levels = train.profile.quantiles or (MEDIAN,)
    quantiles = fit_range_path_quantiles(train, scaling, levels)
    middle = levels.index(MEDIAN)
    return lambda span: {task: values[:, :, middle] for task, values in quantiles(span).items()}


def fit_range_path_quantiles(train: Span, scaling: Scaling, levels: Sequence[float]) -> FittedBaseline:
    """Fit as `fit_range_paths` does; the forecast is quantiles over the paths, shape (N, H, Q, C).

    Medians and quantiles are evaluated one after the other: the same spans are fitted and simulated only
    once.
    """
    forecasts_by_levels = _FITTED.setdefault(train, {})
    key = tuple(levels)
    if key not in forecasts_by_levels:
        formula = ranges.fit_range_paths(train)
        cache = WeakKeyDictionary[Span, TaskForecasts]()

        def forecast(span: Span) -> TaskForecasts:
            if span not in cache:
                cache[span] = formula.simulate(span, levels)
            return cache[span]

        forecasts_by_levels[key] = forecast
    return forecasts_by_levels[key]


_FITTED: Final = WeakKeyDictionary[Span, dict[tuple[float, ...], FittedBaseline]]()
"""Forecasts of quantiles by the train span that they were fitted to, as long as the span exists."""


def _fit_log_har_clock(train: Span, scaling: Scaling) -> FittedBaseline:
    """Fit the log range of each bar ahead to past ranges and the clock, then the moves of every task.

    Ranges and moves are fitted as in the regression of the ensemble (`v8.model.baselines.ranges`).
    """
    floor, logs_NH = ranges.floored_logs(train)
    terms = ranges.RangeTerms(RANGE_BARS, waves=WAVE_COLUMNS)
    train_terms_NL = terms.terms(train, floor)
    fitted_LH = ranges.fit_with_waves(train, terms, train_terms_NL, logs_NH)
    smallest = float(np.log(floor))
    largest = float(logs_NH.max())

    def moved_by(span: Span, terms_NL: FloatArray) -> ranges.Terms:
        is_moving_N1 = (span.mean_range(RANGE_BARS[-1]) > 0)[:, None]  # a flat market stays flat
        ranges_NH = np.exp(np.clip(terms_NL @ fitted_LH, smallest, largest))
        return ranges.by_step(span, ranges_NH * is_moving_N1)

    train_terms_by_step = moved_by(train, train_terms_NL)
    del train_terms_NL, logs_NH  # of many rows hundreds of megabytes, which what follows needs, too
    moves = ranges.fit_moves(train, train_terms_by_step)
    return lambda span: ranges.move_by(span, moves, moved_by(span, terms.terms(span, floor)))


BOOSTING: Final = "lightgbm"  # an optional package, and the baseline that needs it
ARCH: Final = "arch"  # an optional package


@dataclass(frozen=True)
class Garch:
    """The variance of the next return: constant + of_square x squared return + of_variance x variance."""

    constant: float  # squared log return
    of_square: float  # unitless
    of_variance: float  # unitless

    def variances(self, span: Span) -> FloatArray:
        """Forecast the mean variance of the bars up to each step, (N, H), in squared log returns."""
        added_R = self.constant + self.of_square * np.square(log_returns(span))
        variance = 0.0
        next_variances = []
        for added in added_R.tolist():
            variance = added + self.of_variance * variance
            next_variances.append(variance)
        ahead_N = np.array(next_variances)[span.anchors]
        variances = []
        for _ in range(span.horizon_bars):
            variances.append(ahead_N)
            ahead_N = self.constant + (self.of_square + self.of_variance) * ahead_N
        steps = np.arange(1.0, span.horizon_bars + 1)
        return np.asarray(np.cumsum(np.stack(variances, axis=1), axis=1) / steps)


def log_returns(span: Span) -> FloatArray:
    """Return the log return of every row, (R,), zero where the row before is of another segment."""
    returns_R = np.diff(np.log(span.table.column(CLOSE).astype(np.float64)), prepend=np.nan)
    is_first = np.diff(span.table.segment, prepend=-1) != 0
    return np.where(is_first, 0.0, returns_R)


def fit_garch(train: Span) -> Garch:
    """Fit to the returns from the first to the last known row of the train span.

    Raises:
        SeriesError: If the package `arch` is not installed or cannot be loaded.
    """
    arch = _optional("garch", ARCH)
    returns = log_returns(train)[int(train.anchors[0]) : int(train.anchors[-1]) + 1]
    deviation = float(returns.std())
    if deviation == 0.0:
        return Garch(0.0, 0.0, 0.0)  # nothing moves
    # In units of the deviation, in which the optimiser works well.
    model = arch.arch_model(returns / deviation, mean="Zero", vol="GARCH", p=1, q=1, rescale=False)
    fitted = model.fit(disp="off", show_warning=False).params
    return Garch(
        constant=float(fitted["omega"]) * deviation**2,
        of_square=float(fitted["alpha[1]"]),
        of_variance=float(fitted["beta[1]"]),
    )


NUM_TREES: Final = 20  # of each booster
MOST_BOOSTED_WINDOWS: Final = 10_000  # evenly spaced; neighbouring windows share most bars
TERM_DECIMALS: Final = 6
"""Decimals of a term: values that differ only by rounding errors must take the same branch of a tree."""
BOOSTING_SETTINGS: Final = {
    "objective": "l1",
    "num_leaves": 4,
    "learning_rate": 0.15,
    "min_data_in_leaf": 1_000,  # a window has one row per step
    "seed": 42,
    "num_threads": 1,
    "deterministic": True,
    # else the faster of two algorithms is chosen by timing, and they round differently
    "force_row_wise": True,
    "verbosity": -1,
}
"""Settings of LightGBM. On validation spans larger trees, more trees or fewer windows had higher errors."""


def _fit_boosted(train: Span, scaling: Scaling) -> FittedBaseline:
    """Fit one booster for each task and column that a range moves; none if nothing moved at all.

    The other columns stay at the naive forecast, because a range has no direction.
    """
    lightgbm = _optional(BOOSTING, BOOSTING)
    unit = recent_unit(train)
    used = np.flatnonzero(unit > 0)  # without a unit moves cannot be scaled
    used = used[:: max(1, -(-len(used) // MOST_BOOSTED_WINDOWS))]
    boosters = {}
    if len(used):
        terms = _flat(boosting_terms(Span(train.table, train.profile, train.anchors[used])))
        weights = np.repeat(unit[used] / unit.mean(), train.horizon_bars)
        # The terms are binned once for all boosters.
        data = lightgbm.Dataset(terms, weight=weights, params=BOOSTING_SETTINGS)
        for task, moved in train.moves().items():
            moves = _flat(moved[used] / unit[used, None, None])
            for column in np.flatnonzero(TASKS[task].is_moved):
                data.set_label(moves[:, column])
                boosters[task, int(column)] = lightgbm.train(BOOSTING_SETTINGS, data, NUM_TREES)

    def forecast(span: Span) -> TaskForecasts:
        terms = _flat(boosting_terms(span))
        unit_N11 = recent_unit(span)[:, None, None]
        moves = {task: np.zeros_like(naive) for task, naive in span.naive.items()}
        for (task, column), booster in boosters.items():
            moves[task][:, :, column] = booster.predict(terms, num_threads=1).reshape(len(unit_N11), -1)
        return {task: span.moved(task, moved * unit_N11) for task, moved in moves.items()}

    return forecast


def boosting_terms(span: Span) -> FloatArray:
    """Compute the terms of each step of each window, which do not depend on the price level, shape (N, H, T).

    Logarithms of the recent range and of the ranges over `RANGE_BARS` relative to it; middle and deviation of
    the naive forecast's bands in recent ranges; the growth of the deviation if future ranges equal the recent
    one; the step. All but the step are zero where nothing has moved.
    """
    unit = recent_unit(span)
    is_moving = unit > 0
    divisor = np.where(is_moving, unit, 1.0)
    deviations = np.stack([np.sqrt(span.range_variance(bars)) for bars in RANGE_BARS], axis=-1)
    shares = np.maximum(deviations / divisor[:, None], FLOOR_SHARE)
    by_window = np.log(np.concatenate([divisor[:, None], shares], axis=1)) * is_moving[:, None]
    bands = BANDS_TASK.implied(np, span.naive_closes)
    middle = (bands.mean(axis=2) / span.last_close[:, None] - 1.0) / divisor[:, None]
    naive = span.naive_deviation / divisor[:, None]
    grown = np.sqrt(naive**2 + future_weights(span.horizon_bars) * is_moving[:, None]) - naive
    steps = np.broadcast_to(np.arange(1.0, span.horizon_bars + 1), naive.shape)
    by_step = np.stack([middle, naive, grown, steps], axis=-1)
    repeated = np.repeat(by_window[:, None], span.horizon_bars, axis=1)
    return np.concatenate([repeated, by_step], axis=2).round(TERM_DECIMALS)


def recent_unit(span: Span) -> FloatArray:
    """Return the usual size of one bar's move at each window, shape (N,), in returns; 0 in a flat market."""
    deviations = [np.sqrt(span.range_variance(bars)) for bars in RANGE_BARS[1:]]
    shortest, short, long, longest = deviations
    return recent_range(shortest, short, long, longest)


def _flat(values_NHX: FloatArray) -> FloatArray:
    """Stack the steps of all windows, shape (N x H, X)."""
    return values_NHX.reshape(-1, values_NHX.shape[-1])


def _optional(baseline: str, package: str) -> ModuleType:
    """Import the optional package of a baseline."""
    try:
        return importlib.import_module(package)
    except (ImportError, OSError) as error:  # OSError: a library that it needs is missing, such as libgomp
        raise SeriesError(
            where=f"baseline {baseline}",
            rule=f"needs a complete installation of the optional package {package}, or none",
            got=f"{type(error).__name__} ({error})",
            fix=f"Run: pip install {package}, or uninstall it to go without",
        ) from error


NAIVE: Final = "naive"
"""Key of the naive forecast, the first baseline with which every model is compared, for every task."""

_DESCRIPTIONS: Final = read_descriptions("v8.model.baselines", "baselines.yaml")


def _shipped(name: str, fit: Callable[[Span, Scaling], FittedBaseline], **options: Any) -> Baseline:
    """Return a baseline of v8, described in `baselines.yaml`."""
    return Baseline(**_DESCRIPTIONS[name], fit=fit, **options)


BASELINES: Final[Registry[Baseline]] = Registry(
    "baseline",
    [
        _shipped("last_close", lambda train, scaling: _last_close),
        # Split conformal prediction: Lei et al. 2018, doi:10.1080/01621459.2017.1307116.
        _shipped(NAIVE, lambda train, scaling: lambda span: span.naive, fit_quantiles=_fit_conformal),
        _shipped("offset", _fit_offset),
        _shipped("drift", _fit_drift),
        _shipped(
            "scaled",
            lambda train, scaling: _fit_constants(train, methodcaller("range_variance", BAND_PERIOD_BARS)),
        ),
        _shipped("ewma", lambda train, scaling: _fit_constants(train, attrgetter("ewma_variance"))),
        _shipped("har", fit_har),
        _shipped("range_paths", fit_range_paths, fit_quantiles=fit_range_path_quantiles),
        _shipped("log_har_clock", _fit_log_har_clock),
        _shipped(
            "garch",
            lambda train, scaling: _fit_constants(train, fit_garch(train).variances),
            package=ARCH,
        ),
        _shipped(BOOSTING, _fit_boosted, package=BOOSTING),
    ],
)
"""All baselines; reports leave out those whose optional package is not installed."""

_SHIPPED: Final = tuple(BASELINES.values())


@cache
def reference_baseline(task: str) -> str | None:
    """Return the name of the reference of a task: the baseline that is compared with every model.

    `configs/references.yaml` names them, and says how they were chosen. None for a task of a plug-in, which
    has none.

    >>> reference_baseline("ohlc")
    'log_har_clock'
    """
    references: dict[str, str] = read_yaml(config_path("references"))
    return references.get(task)
