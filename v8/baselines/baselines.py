"""Baselines: forecasts that need no network, which a model has to beat, in the order of the reports.

A baseline is fitted to the train span alone and then forecasts any windows from what is known at them, so
it can neither see the test span nor be tuned on it. One of your own is one file that calls
`BASELINES.register`; it may leave out tasks it says nothing about.

Some know closes alone: nothing moves, or everything goes on as it used to. Others forecast how far prices
will range from how far they did. These start from a variance of one bar's return, known at the window. What
it means for a task:

* Open, high, low, close: a distance from the last close in proportion to its root.
* Bands and volatility: their windows hold known closes and, k steps ahead, k points of a random walk. The
  variance expected of the twenty is that of the naive forecast plus the bar's variance times `future_weights`.

Whatever is fitted is fitted per step and column, on train windows, to the absolute error in returns, by which
forecasts are evaluated. `range_paths` is of `v8.baselines.ranges`; the profile of that name publishes it as a
Keras file, in single precision. `lightgbm` knows ranges over several horizons and what the naive forecast says, but
is free in how it joins them. One booster per task and column serves all steps: the step is a term. Trees
learn moves in recent ranges, each weighed by its range, which makes their absolute error that in returns. No
term depends on price, so that series can be pooled.

LightGBM is optional (`pip install lightgbm`). Fitting takes one thread and a fixed seed: the same candles
give the same forecast.

Legend: N windows, H steps of the horizon, Q levels, C columns of a task, T terms of a regression, P paths, S
rows to learn from.
"""

import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from operator import attrgetter, methodcaller
from types import ModuleType
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from v8.arrays import FloatArray
from v8.baselines import ranges
from v8.columns import BAND_PERIOD_BARS, CLOSE, OHLC, RANGE_BARS, TASK_OHLC
from v8.errors import SeriesError
from v8.features.formulas import FLOOR_SHARE, recent_range
from v8.market.series import iso
from v8.quantile_levels import MEDIAN
from v8.registry import Named, Registry, read_descriptions
from v8.tasks import BANDS_TASK, TASKS, Closes, future_weights
from v8.windows.regression import weighted_median
from v8.windows.scaling import Scaling
from v8.windows.span import KnownSpan, Span

TaskForecasts: TypeAlias = Mapping[str, FloatArray]
Forecast: TypeAlias = Callable[[Span], TaskForecasts]


@dataclass(frozen=True)
class Baseline(Named):
    """A forecast that needs no network.

    Args:
        fit: Maps the train span and the constants of its scaling to a function of windows, a `KnownSpan`.
            That function reads what is known at each of them and returns arrays of shape (N, H, C)
            (`target_shape`) per task of the profile, float64, in the task's unit. It may leave tasks out.
        is_installed: Whether the optional package it needs is there; always when it needs none.
        fit_quantiles: Likewise maps train span, constants and levels to a function of windows that returns
            quantiles, (N, H, Q, C) per task of the profile; None for one that says nothing about them.
    """

    fit: Callable[[Span, Scaling], Forecast]
    is_installed: Callable[[], bool] = lambda: True
    fit_quantiles: Callable[[Span, Scaling, Sequence[float]], Forecast] | None = None

    def fitted(self, train: Span, scaling: Scaling, levels: Sequence[float] = ()) -> Forecast:
        """Fit it, for its quantiles at some levels or without for its points; return forecasts of windows.

        Nobody is handed the actual values of the windows to forecast. One of a plug-in does not see what
        comes after the train span, either, and forecasts some windows again, alone, from candles that end
        where the forecast is issued: a forecast that is another then is refused as a `SeriesError`.
        """
        is_ours = any(self is one for one in _SHIPPED)
        train = train if is_ours else train.self_contained
        if levels:
            forecast = self.fit_quantiles(train, scaling, levels) if self.fit_quantiles else _say_nothing
        else:
            forecast = self.fit(train, scaling)

        def of_known(span: Span) -> TaskForecasts:
            forecasts = forecast(span.known_only)
            if not is_ours:
                _require_causal(self.name, forecast, span.known_only, forecasts)
            return forecasts

        return of_known


def _say_nothing(span: Span) -> TaskForecasts:
    return {}


NUM_CHECKED: Final = 4  # windows that a plug-in's baseline forecasts again


def _require_causal(name: str, forecast: Forecast, span: KnownSpan, forecasts: TaskForecasts) -> None:
    """Refuse forecasts, by task (N, ...), that are others where candles end at their issue."""
    if span.ends_there:
        return
    for place in dict.fromkeys(np.linspace(0, len(span) - 1, NUM_CHECKED).astype(int).tolist()):
        window = span.window(place)
        alone = forecast(window)
        for task, values in forecasts.items():
            now = np.asarray(values[place], np.float64)
            before = np.asarray(alone[task][0], np.float64)
            if now.shape == before.shape and np.allclose(now, before, rtol=1e-6, atol=0.0, equal_nan=True):
                continue
            issued_s = int(window.table.open_time_s[-1]) + window.table.series.bar_s
            where = f"{span.table.series}, baseline {name}, forecast of {task} at {iso(issued_s)}"
            rule = "is the same when it is made alone, from candles that end where it is issued"
            got = f"{now.flat[0]:.7g} among other windows, {before.flat[0]:.7g} alone"
            fix = "Let it read what is known at each window only, and draw nothing by chance"
            raise SeriesError(where=where, rule=rule, got=got, fix=fix)


def _last_close(span: Span) -> TaskForecasts:
    newest = _implied(span, span.history_close[:, None], span.last_close[:, None])
    return {task: np.repeat(values, span.horizon_bars, axis=1) for task, values in newest.items()}


def _fit_offset(train: Span, scaling: Scaling) -> Forecast:
    def forecast(span: Span) -> TaskForecasts:
        with np.errstate(over="ignore"):  # infinity is refused where errors are measured
            return {each.task: span.naive[each.task] * np.exp(each.offset) for each in scaling.tasks}

    return forecast


def _fit_drift(train: Span, scaling: Scaling) -> Forecast:
    first_move = np.log(train.actual[TASK_OHLC][:, 0, OHLC.index(CLOSE)] / train.last_close)
    drift = float(first_move.mean())

    def forecast(span: Span) -> TaskForecasts:
        path = span.last_close[:, None] * np.exp(drift * np.arange(1, span.horizon_bars + 1))
        closes = np.concatenate([span.history_close, path], axis=1)
        windows = np.lib.stride_tricks.sliding_window_view(closes, BAND_PERIOD_BARS, axis=1)
        return _implied(span, windows[:, 1:].copy(), path)

    return forecast


def _fit_conformal(train: Span, scaling: Scaling, levels: Sequence[float]) -> Forecast:
    """Add the quantiles of past errors, in recent ranges, to the naive forecast."""

    def unit(task: str, span: Span) -> FloatArray:
        return span.unit(task, scaling.floored_range(span.recent_range))

    errors = {task: (train.actual[task] - train.naive[task]) / unit(task, train) for task in train.actual}
    beyond_HQC = {task: np.quantile(one, levels, axis=0).swapaxes(0, 1) for task, one in errors.items()}

    return lambda span: {
        task: span.naive[task][:, :, None] + beyond_HQC[task] * unit(task, span)[..., None]
        for task in span.profile.tasks
    }


def _implied(span: Span, windows: FloatArray, path: FloatArray) -> TaskForecasts:
    """Return what every task would be with these closes (N, H) and windows of twenty (N, H, 20)."""
    closes = Closes(1.0, path, windows.mean(axis=2), windows.std(axis=2, ddof=1))
    return {task: TASKS[task].implied(np, closes) for task in span.profile.tasks}


SCALED_BARS: Final = 20  # bars of the range in `scaled`: those of the bands


def fit_har(train: Span, scaling: Scaling) -> Forecast:
    """Fit a regression per step and column on the ranges of `RANGE_BARS`, by least absolute errors.

    The terms of a step are the deviations that would follow if bars ahead ranged as they did over each of
    those, and for tasks of the band's window that of the naive forecast. There is no constant: in a market that
    stands still nothing is expected to move.
    """
    fitted = ranges.fit_moves(train, partial(_har_terms, train))
    return lambda span: ranges.move_by(span, fitted, partial(_har_terms, span))


def _fit_constants(train: Span, variance_of: Callable[[Span], FloatArray]) -> Forecast:
    """Fit one constant per step and column to a variance that is known at each window."""
    variance = variance_of(train)[:, None, None]
    ahead = variance * future_weights(train.horizon_bars)[:, None]
    rolled = train.rolled_deviation[:, :, None]
    constants = {}
    for task, moved in train.moves().items():
        if TASKS[task].has_window:
            # Variance of the twenty closes = the naive forecast's + constant x variance ahead. A column errs by as
            # much as its deviation, whose slope in the constant is the weight. One on the middle itself
            # tells nothing, and keeps the deviation of the naive forecast.
            per_column = TASKS[task].column_deviations
            grown = np.divide(moved, per_column, out=np.zeros_like(moved), where=per_column != 0)
            added = np.maximum(rolled + grown, 0.0) ** 2 - rolled**2
            slope = ahead / np.sqrt(rolled**2 + ahead + np.finfo(float).tiny)
            constants[task] = _constants(added, ahead, slope)
        else:
            # Distance from the last close = constant x root of the bar's variance.
            constants[task] = _constants(moved, np.sqrt(variance), np.sqrt(variance))

    return lambda span: {
        task: _ranged(span, task, variance_of(span), constant) for task, constant in constants.items()
    }


def _constants(moved_NHC: FloatArray, terms: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the constants (H, C) with moved = constant x term, by the median with these weights."""
    constants = []
    by_step = (
        np.moveaxis(np.broadcast_to(one, moved_NHC.shape), 1, 0) for one in (moved_NHC, terms, weights)
    )
    for moved_NC, terms_NC, weights_NC in zip(*by_step, strict=True):
        is_moving = terms_NC > 0
        ratios = np.divide(moved_NC, terms_NC, out=np.zeros_like(moved_NC), where=is_moving)
        constants.append(weighted_median(ratios, np.where(is_moving, weights_NC, 0.0)))
    return np.stack(constants)


def _ranged(span: Span, task: str, variance: FloatArray, constant: FloatArray) -> FloatArray:
    if not TASKS[task].has_window:
        return span.moved(task, np.sqrt(variance)[:, None, None] * constant)
    rolled = span.rolled_deviation[:, :, None]
    ahead = variance[:, None, None] * future_weights(span.horizon_bars)[:, None]
    deviation = np.sqrt(np.maximum(rolled**2 + constant * ahead, 0.0))
    return span.moved(task, (deviation - rolled) * TASKS[task].column_deviations)


def _har_terms(span: Span, has_window: bool) -> Iterator[FloatArray]:
    """Yield the terms of each step, shape (N, T); those of all steps of a long span would fill the memory."""
    variances_NR = np.stack([span.range_variance(bars) for bars in RANGE_BARS], axis=-1)
    for step, weight in enumerate(future_weights(span.horizon_bars)):
        if has_window:
            rolled_N1 = span.rolled_deviation[:, step, None]
            yield np.concatenate([np.sqrt(rolled_N1**2 + variances_NR * weight), rolled_N1], axis=1)
        else:
            yield np.sqrt(variances_NR)


def fit_range_paths(train: Span, scaling: Scaling) -> Forecast:
    """Fit the regressions to the train span and keep what followed its windows."""
    levels = train.profile.quantiles or (MEDIAN,)
    quantiles = fit_range_path_quantiles(train, scaling, levels)
    middle = levels.index(MEDIAN)
    return lambda span: {task: values[:, :, middle] for task, values in quantiles(span).items()}


def fit_range_path_quantiles(train: Span, scaling: Scaling, levels: Sequence[float]) -> Forecast:
    """Do the same; the forecast is quantiles over the paths, shape (N, H, Q, C).

    Medians and quantiles are evaluated one after the other: fit and walk of the same spans are done once.
    """
    known = _FITTED.setdefault(train, {})
    if tuple(levels) not in known:
        fitted = ranges.fit_range_paths(train)
        simulated = WeakKeyDictionary[Span, TaskForecasts]()

        def forecast(span: Span) -> TaskForecasts:
            if span not in simulated:
                simulated[span] = fitted.walk(span, levels)
            return simulated[span]

        known[tuple(levels)] = forecast
    return known[tuple(levels)]


_FITTED: Final = WeakKeyDictionary[Span, dict[tuple[float, ...], Forecast]]()
"""Forecasts of quantiles by the train span they were fitted to, while anybody holds it."""


PACKAGE: Final = "lightgbm"

TERM_DECIMALS: Final = 6
"""Digits of a term: what differs by rounding only must not fall on either side of a branch."""


@dataclass(frozen=True)
class Boosting:
    """How boosters are grown."""

    num_trees: int  # trees of each booster
    num_leaves: int  # leaves of a tree
    learning_rate: float  # share of each tree's answer that counts
    min_leaf: int  # fewest rows of a leaf; a window gives one row per step
    max_windows: int  # most windows of a series to learn from, evenly spread; neighbours share most bars

    def settings(self) -> dict[str, Any]:
        """Return them under LightGBM's names, with those that make it repeatable."""
        return {
            "objective": "l1",
            "num_leaves": self.num_leaves,
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": self.min_leaf,
            "seed": 42,
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,  # else the quicker of two ways is timed, and they round differently
            "verbosity": -1,
        }


ALONE: Final = Boosting(num_trees=20, num_leaves=4, learning_rate=0.15, min_leaf=1_000, max_windows=10_000)
"""For one series. Chosen on validation spans, where larger trees, more of them or fewer windows err more."""


def fit_boosted(spans: Sequence[Span], boosting: Boosting = ALONE) -> Forecast:
    """Fit one booster per task and column to the train spans of one or several series.

    Columns that a range does not move stay at the naive forecast, for it says nothing about which way they go. A
    SeriesError tells that LightGBM is missing or cannot be loaded.
    """
    boosters = _boosters(_lightgbm(), spans, boosting)

    def forecast(span: Span) -> TaskForecasts:
        terms = _flat(boosting_terms(span))
        unit_N11 = recent_unit(span)[:, None, None]
        moves = {task: np.zeros_like(rolled) for task, rolled in span.naive.items()}
        for (task, column), booster in boosters.items():
            moves[task][:, :, column] = booster.predict(terms, num_threads=1).reshape(len(unit_N11), -1)
        return {task: span.moved(task, made * unit_N11) for task, made in moves.items()}

    return forecast


def boosting_terms(span: Span) -> FloatArray:
    """Describe each step of each window by numbers that do not depend on price, shape (N, H, T).

    Logarithms of the recent range and of those over `RANGE_BARS` as shares of it; middle and deviation of
    the naive forecast's bands in recent ranges; by how much the deviation would grow if bars ahead ranged as of
    late; the step. Zeros but for the step where nothing has moved.
    """
    unit = recent_unit(span)
    is_moving = unit > 0
    divisor = np.where(is_moving, unit, 1.0)
    deviations = np.stack([np.sqrt(span.range_variance(bars)) for bars in RANGE_BARS], axis=-1)
    shares = np.maximum(deviations / divisor[:, None], FLOOR_SHARE)
    by_window = np.log(np.concatenate([divisor[:, None], shares], axis=1)) * is_moving[:, None]
    bands = BANDS_TASK.implied(np, span.standing)
    middle = (bands.mean(axis=2) / span.last_close[:, None] - 1.0) / divisor[:, None]
    rolled = span.rolled_deviation / divisor[:, None]
    grown = np.sqrt(rolled**2 + future_weights(span.horizon_bars) * is_moving[:, None]) - rolled
    steps = np.broadcast_to(np.arange(1.0, span.horizon_bars + 1), rolled.shape)
    by_step = np.stack([middle, rolled, grown, steps], axis=-1)
    repeated = np.repeat(by_window[:, None], span.horizon_bars, axis=1)
    return np.concatenate([repeated, by_step], axis=2).round(TERM_DECIMALS)


def recent_unit(span: Span) -> FloatArray:
    """Return the going size of one bar's move at each window, shape (N,), in returns; 0 in a dead market."""
    return recent_range(*(np.sqrt(span.range_variance(bars)) for bars in RANGE_BARS[1:]))


def _boosters(lightgbm: ModuleType, spans: Sequence[Span], boosting: Boosting) -> dict[tuple[str, int], Any]:
    """Return one booster for each task and column that a range moves; none where there is no row."""
    terms = []
    weights = []
    moves = defaultdict(list)
    for span in spans:
        unit = recent_unit(span)
        used = np.flatnonzero(unit > 0)  # where nothing moves there is no unit to learn in
        used = used[:: max(1, -(-len(used) // boosting.max_windows))]
        terms.append(_flat(boosting_terms(Span(span.table, span.profile, span.anchors[used]))))
        weights.append(np.repeat(unit[used] / unit.mean(), span.horizon_bars))
        for task, moved in span.moves().items():
            moves[task].append(_flat(moved[used] / unit[used, None, None]))
    if not any(len(one) for one in terms):
        return {}
    settings = boosting.settings()
    # The terms are put into bins once and serve every booster.
    data = lightgbm.Dataset(np.concatenate(terms), weight=np.concatenate(weights), params=settings)
    boosters = {}
    for task, made in moves.items():
        for column in np.flatnonzero(TASKS[task].is_moved):
            data.set_label(np.concatenate([moved[:, column] for moved in made]))
            boosters[task, int(column)] = lightgbm.train(settings, data, boosting.num_trees)
    return boosters


def _flat(values_NHX: FloatArray) -> FloatArray:
    """Put the steps of all windows below one another, shape (N x H, X)."""
    return values_NHX.reshape(-1, values_NHX.shape[-1])


def _lightgbm() -> ModuleType:
    try:
        return importlib.import_module(PACKAGE)
    except (ImportError, OSError) as error:  # OSError: its library misses another one, such as libgomp
        where = f"baseline {PACKAGE}"
        rule = f"needs the optional package {PACKAGE}, whole or not at all"
        fix = f"Run: pip install {PACKAGE}, or uninstall it to go without"
        raise SeriesError(where=where, rule=rule, got=f"{type(error).__name__} ({error})", fix=fix) from error


NAIVE: Final = "naive"
"""The baseline every skill, multiple and verdict is measured against first, for every task."""

_TOLD: Final = read_descriptions("v8.baselines", "baselines.yaml")


def _ours(name: str, fit: Callable[[Span, Scaling], Forecast], **more: Any) -> Baseline:
    return Baseline(**_TOLD[name], fit=fit, **more)


BASELINES: Final[Registry[Baseline]] = Registry(
    "baseline",
    [
        _ours("last_close", lambda train, scaling: _last_close),
        # Split conformal prediction: Lei et al. 2018, doi:10.1080/01621459.2017.1307116.
        _ours(NAIVE, lambda train, scaling: lambda span: span.naive, fit_quantiles=_fit_conformal),
        _ours("offset", _fit_offset),
        _ours("drift", _fit_drift),
        _ours(
            "scaled",
            lambda train, scaling: _fit_constants(train, methodcaller("range_variance", SCALED_BARS)),
        ),
        _ours("ewma", lambda train, scaling: _fit_constants(train, attrgetter("ewma_variance"))),
        _ours("har", fit_har),
        _ours("range_paths", fit_range_paths, fit_quantiles=fit_range_path_quantiles),
        # That it is there is known without importing it.
        _ours(
            PACKAGE,
            lambda train, scaling: fit_boosted([train]),
            is_installed=lambda: find_spec(PACKAGE) is not None,
        ),
    ],
)
"""One of a package that is not installed is not there to be beaten, and reports leave it out."""

_SHIPPED: Final = tuple(BASELINES.values())


def called(baseline: str) -> str:
    """Return what readers know a baseline by: "naive", or its key.

    >>> called("naive"), called("har")
    ('naive', 'har')
    """
    return "naive" if baseline == NAIVE else baseline
