"""Two formulas that say how far the coming bars range, and thereby how far prices go.

Both begin with one regression: for each step the log range of that bar, by least squares on the log ranges
behind and, where the profile has them and the train span holds them often enough, on the waves of the day and
of the week (`v8.windows.span.unheld_waves`). Then

* the *paths*: windows of the train span lend the bars that followed them, open, high, low and close as log
  ratios to the close before, each in multiples of the range forecast for its bar (filtered historical
  simulation: Barone-Adesi, Giannopoulos & Vosper 1999). Fat tails, and how calm and wild bars follow each
  other, come as they were. Scaled by the ranges forecast now they make paths; candles, bands and volatility
  are worked out on each path, and their medians are the forecast. Every path goes up once and down once, for
  nothing is known about which way.
* the *regression* gives each step and column two coefficients, fitted to the smallest absolute error in
  returns, by which forecasts are evaluated: for candles of the walk that these ranges make and of the bar's own
  range, for bands and volatility of the deviation that follows and of the naive forecast's own.

The paths alone know ranges and no waves: the baseline `range_paths` computes them with `numpy`, the published
file of the profile of that name with `keras.ops`; what follows the fit is written once, over an array
namespace. The ensemble is both, with bars chosen evenly over the span: `calibration: ensemble` adds it to
a network. It needs no scaling and, beside open, high, low and close, no features: ranges are read from the
window's candles, those over more bars than the window from the features that hold them. So every network
can have it at its side, however small its window.

A window that does not tell of the longest range does not know how wild the market is of late, and a
regression on the others expects it to become what it was in the train span. Where it has just changed that is
wrong, so it is believed by half: the other half is a regression that knows no level, in which ranges of any
size, all so many times larger, lead to ranges that much larger.

Who has how much say the validation span tells. Per task and step there are two factors from 0 to 1: how much
of the way from the regression to the paths, then how much of the way from their mean to the network. Each is
the one with the smallest absolute error in returns, and goes but half of the way from where it would be
without any knowledge: equal shares of regression and paths, which are hard to beat by fitted ones (Clemen
1989, doi:10.1016/0169-2070(89)90012-5), and none of the network, which was fitted to one fold and errs most
where the market has just changed. Half of the way may still be far from a member that is much better than the
others; where the mix errs by more than `MOST_LOST` times what one of its members does, that one speaks alone.
docs/research/frontier.md has the figures.

Legend: W windows, H steps of the horizon, L terms of a log range, R terms of a task, P paths, which come last
because rows of numbers are sorted many times as fast as columns, Q levels, C columns of a task, M members,
K the 20 known closes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from v8.arrays import FloatArray
from v8.columns import (
    CLOSE,
    HIGH,
    LOW,
    OHLC,
    OPEN,
    RANGE_BARS,
    RECENT_RANGE,
    TASK_OHLC,
    WAVE_COLUMNS,
    range_column,
)
from v8.features.formulas import FLOOR_SHARE
from v8.profile import Profile
from v8.quantile_levels import MEDIAN, apart, outer
from v8.tasks import (
    BANDS_TASK,
    OHLC_TASK,
    RANGE_TO_VARIANCE,
    TASKS,
    Closes,
    Task,
    running_sums,
    variance_weights,
    window_moments,
)
from v8.windows.regression import fit_without, least_absolute_errors, least_squares, weighted_median
from v8.windows.span import Span, unheld_waves

MEMBERS: Final = ("network", "regression", "paths")
"""Who forecasts, in the order of an ensemble's shares."""

NUM_PATHS: Final = 512  # paths of a window, half of them mirror images of the others

PATH_LAYERS: Final = ("ensemble_paths", "paths")
"""Names of the layers of published models that make the paths: of networks beside formulas, of a formula."""

MAX_MULTIPLE: Final = 20.0
"""Returns of more forecast ranges count as so many: after a dead hour any move is huge."""

SEED: Final = 1999  # of all that is drawn by lot; the same candles give the same forecast
WINDOWS_AT_ONCE: Final = 16  # windows whose paths are walked together: they stay in a core's own cache

MIRRORED: Final = tuple(OHLC.index({HIGH: LOW, LOW: HIGH}.get(name, name)) for name in OHLC)
"""Columns of a bar turned upside down."""


@dataclass(frozen=True)
class KnownRanges:
    """The ranges behind of which a profile's windows tell."""

    from_candles: tuple[int, ...]  # bars whose mean range is read from the candles of the window
    from_features: tuple[int, ...] = ()  # bars whose range is a feature, as a share of the recent range
    waves: tuple[str, ...] = ()  # features that tell the time

    @property
    def num_ranges(self) -> int:
        """Ranges among the terms; the last one is the longest."""
        return len(self.from_candles) + len(self.from_features)

    @property
    def has_level(self) -> bool:
        """Whether the longest of all ranges is among them."""
        return RANGE_BARS[-1] in (*self.from_candles, *self.from_features)

    def terms(self, span: Span, floor: float) -> FloatArray:
        """Return a constant, the floored log deviations behind and the waves, shape (W, L)."""
        deviations = [np.sqrt(span.range_variance(bars)) for bars in self.from_candles]
        if self.from_features:
            shares_WX = span.known((RECENT_RANGE, *map(range_column, self.from_features)))
            deviations += [*(shares_WX[:, :1] * shares_WX[:, 1:]).T]
        logs = [np.log(np.maximum(one, floor)) for one in deviations]
        waves = span.known(self.waves).T if self.waves else ()
        return np.stack([np.ones(len(span)), *logs, *waves], axis=1)


def known_ranges(profile: Profile) -> KnownRanges:
    """Say which ranges behind a profile's windows tell of, each once; long ones may be missing."""
    longer = [bars for bars in RANGE_BARS if bars > profile.lookback_bars]
    has_recent = RECENT_RANGE in profile.features
    return KnownRanges(
        tuple(bars for bars in RANGE_BARS if bars <= profile.lookback_bars),
        tuple(bars for bars in longer if has_recent and range_column(bars) in profile.features),
        tuple(name for name in WAVE_COLUMNS if name in profile.features),
    )


@dataclass(frozen=True, eq=False)
class RangeFormula:
    """What was fitted to one series: the paths, and in an ensemble the regression."""

    known: KnownRanges  # what it reads of the bars behind
    floor: float  # deviation of a bar to which smaller ones are raised, unitless, above 0
    path_LH: FloatArray  # coefficients of the log range of each coming bar
    resampled_PHC: NDArray[
        Any
    ]  # the bars that paths are made of, see `resampled_bars`, as they are published
    bounds: tuple[float, float] = (-np.inf, np.inf)  # smallest and largest log range that is forecast
    moves: Mapping[str, FloatArray] = field(default_factory=dict)
    """Per task, coefficients (H, R, C) of the regression, in returns per unit of a term."""

    def ranges(self, span: Span) -> FloatArray:
        """Forecast the log range of each coming bar, shape (W, H), unitless."""
        return np.exp(np.clip(self.known.terms(span, self.floor) @ self.path_LH, *self.bounds))

    def walk(self, span: Span, levels: Sequence[float]) -> dict[str, FloatArray]:
        """Walk the paths, a few windows at a time: quantiles per task, shape (W, H, Q, C), in its unit.

        The precision of the walk is that of the bars that were lent.
        """
        resampled_HCP = np.moveaxis(self.resampled_PHC[: len(self.resampled_PHC) // 2], 0, -1)
        resampled_HCP = np.ascontiguousarray(resampled_HCP)
        ranges_WH11 = self.ranges(span)[:, :, None, None].astype(resampled_HCP.dtype)
        history_WK = span.history_close.astype(resampled_HCP.dtype)
        tasks = [TASKS[name] for name in span.profile.tasks]
        parts = []
        for start in range(0, len(span), WINDOWS_AT_ONCE):
            windows = slice(start, start + WINDOWS_AT_ONCE)
            moved_WHCP = ranges_WH11[windows] * resampled_HCP
            parts.append(mirrored_path_quantiles(levels, tasks, history_WK[windows], moved_WHCP))
        return {task.name: np.concatenate([part[task.name] for part in parts]) for task in tasks}

    def regress(self, span: Span) -> dict[str, FloatArray]:
        """Forecast by the regression, per task, shape (W, H, C), in the task's unit."""
        return move_by(span, self.moves, _by_step(span, self.ranges(span)))

    def said(
        self, span: Span, network: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, Mapping[str, NDArray[Any]]], dict[str, FloatArray]]:
        """Put beside a network's forecasts those of the formulas: by member and task, shape (W, H, C).

        And how far the outer quantiles of the paths lie off their median, per task, shape (W, H, L, C).
        """
        levels = span.profile.quantiles or (MEDIAN,)
        simulated = self.walk(span, levels)
        parted = {task: apart(np, levels, values) for task, values in simulated.items()}
        medians, distances = ({task: pair[part] for task, pair in parted.items()} for part in (0, 1))
        return dict(zip(MEMBERS, (network, self.regress(span), medians), strict=True)), distances


def fit_range_paths(train: Span) -> RangeFormula:
    """Fit the paths alone to the train span: they read the candles of all bars behind."""
    floor, logs_WH = _floored_logs(train)
    known = KnownRanges(RANGE_BARS)
    terms_WL = known.terms(train, floor)
    path_LH = least_squares(terms_WL, logs_WH)
    drawn = np.random.default_rng(SEED).integers(len(train), size=NUM_PATHS // 2)
    return RangeFormula(known, floor, path_LH, resampled_bars(train, np.exp(terms_WL @ path_LH), drawn))


def fit_ensemble(train: Span) -> RangeFormula:
    """Fit both formulas to the train span alone."""
    floor, logs_WH = _floored_logs(train)
    known = known_ranges(train.profile)
    unheld = [1 + known.num_ranges + place for place in unheld_waves(train, known.waves)]
    terms_WL = known.terms(train, floor)
    path_LH = fit_without(unheld, lambda held_WK: fit_log_ranges(held_WK, logs_WH, known), terms_WL)
    bounds = float(np.log(floor)), float(logs_WH.max())
    forecast_WH = np.exp(np.clip(terms_WL @ path_LH, *bounds))
    # Evenly over the span: as good as twice as many drawn by lot, see docs/research/frontier.md.
    chosen = np.linspace(0, len(train) - 1, NUM_PATHS // 2).round().astype(np.int64)
    moves = fit_moves(train, _by_step(train, forecast_WH))
    resampled_PHC = resampled_bars(train, forecast_WH, chosen).astype(np.float32)
    return RangeFormula(known, floor, path_LH, resampled_PHC, bounds, moves)


def _floored_logs(train: Span) -> tuple[float, FloatArray]:
    """Return the deviation to which smaller ones are raised, and the log ranges of the bars that followed."""
    ohlc_WHC = train.actual[TASK_OHLC]
    tiny = float(np.finfo(np.float32).tiny)
    ranges_WH = np.log(ohlc_WHC[:, :, OHLC.index(HIGH)] / ohlc_WHC[:, :, OHLC.index(LOW)])
    # Above 0, though no bar has a range.
    floor = FLOOR_SHARE * (float(np.median(ranges_WH)) or max(float(ranges_WH.mean()), tiny))
    return floor, np.log(np.maximum(ranges_WH, floor))


def fit_log_ranges(terms_WL: FloatArray, logs_WH: FloatArray, known: KnownRanges) -> FloatArray:
    """Fit the coefficients of the log range of each coming bar, shape (L, H).

    Terms are one, the log ranges behind, the longest last, and the waves, if they are not left out.
    """
    fitted_LH = least_squares(terms_WL, logs_WH)
    if known.has_level:
        return fitted_LH
    return (fitted_LH + _fit_without_level(terms_WL, logs_WH, known.num_ranges)) / 2


def _fit_without_level(terms_WL: FloatArray, logs_WH: FloatArray, num_ranges: int) -> FloatArray:
    """Fit coefficients of which those of the ranges add up to one, shape (L, H)."""
    identity_LL = np.eye(terms_WL.shape[1])
    # What any other range has, the longest one lacks.
    basis_LK = np.delete(identity_LL, num_ranges, axis=1)
    basis_LK[num_ranges, 1:num_ranges] = -1.0
    free_KH = least_squares(terms_WL @ basis_LK, logs_WH - terms_WL[:, [num_ranges]])
    return np.asarray(identity_LL[:, [num_ranges]] + basis_LK @ free_KH)


def move_terms(xp: Any, standing: Closes, ranges: Any) -> dict[bool, Any]:
    """Compute the terms of the regression, (W, H, 2), in returns, by `Task.has_window`.

    Ranges are the log range of each coming bar, (W, H), unitless. Those with a window of closes are there
    where `standing`, the coming closes if the close stays where it is, has them.
    """
    squares = RANGE_TO_VARIANCE * xp.square(ranges)
    walk = [xp.sqrt(xp.cumsum(squares, axis=1)), xp.sqrt(squares)]
    terms = {False: xp.stack(walk, axis=-1)}
    if standing.deviation is not None:
        weights = variance_weights(ranges.shape[1]).T.astype(np.float32 if xp is not np else np.float64)
        widened = xp.sqrt(xp.square(standing.deviation) + xp.matmul(squares, weights))
        terms[True] = xp.stack([widened, standing.deviation], axis=-1)
    return terms


Terms: TypeAlias = Callable[[bool], Iterable[FloatArray]]
"""Maps `Task.has_window` to the terms of each step, shape (W, R)."""


def _by_step(span: Span, ranges_WH: FloatArray) -> Terms:
    terms = move_terms(np, span.standing, ranges_WH)
    return lambda has_window: np.moveaxis(terms[has_window], 1, 0)


def fit_moves(train: Span, terms: Terms) -> dict[str, FloatArray]:
    """Fit the moves of every task by terms with the smallest absolute errors: per task, shape (H, R, C).

    Columns that a range does not move stay, for a range says nothing about which way they go.
    """
    fitted = {}
    for task, moved_WHC in train.moves().items():
        is_moved = TASKS[task].is_moved > 0
        by_step = zip(terms(TASKS[task].has_window), moved_WHC[:, :, is_moved].swapaxes(0, 1), strict=True)
        fitted_HRM = np.stack([least_absolute_errors(*step) for step in by_step])
        fitted[task] = fitted_HRM @ np.eye(len(is_moved))[is_moved]
    return fitted


def move_by(span: Span, fitted: Mapping[str, FloatArray], terms: Terms) -> dict[str, FloatArray]:
    """Forecast by what `fit_moves` has fitted, per task, shape (W, H, C), in the task's unit."""
    made = {}
    for task, fitted_HRC in fitted.items():
        by_step = zip(terms(TASKS[task].has_window), fitted_HRC, strict=True)
        made[task] = span.moved(task, np.stack([np.matmul(*step) for step in by_step], axis=1))
    return made


def path_quantiles(
    xp: Any, levels: Sequence[float], tasks: Sequence[Task], history_close: Any, moved: Any
) -> dict[str, Any]:
    """Walk the paths as `path_closes` does: per task quantiles on them, shape (W, H, Q, C), in its unit."""
    paths = path_closes(xp, history_close, moved)
    summed_up = partial(_quantiles, xp, levels)
    last = xp.take(history_close, [history_close.shape[1] - 1], axis=1)
    last = xp.expand_dims(xp.expand_dims(last, -1), -1)
    return {task.name: task.size(last, task.on_paths(xp, task, paths, summed_up)) for task in tasks}


_READING_NO_CANDLES: Final = (Task.on_paths, BANDS_TASK.on_paths, OHLC_TASK.on_paths)
"""What sums up tasks in `mirrored_path_quantiles` without the candles of all paths."""


def mirrored_path_quantiles(
    levels: Sequence[float], tasks: Sequence[Task], history_close: FloatArray, moved: FloatArray
) -> dict[str, FloatArray]:
    """Do in numpy what `path_quantiles` does, to the same bits, given the first half of the paths alone.

    The other half are their mirror images, as `resampled_bars` makes them: what moves up in one moves down as far
    in the other, without any rounding. So the order of all candles follows from half of them.

    Args:
        levels: Of the quantiles, ascending, Q of them.
        tasks: What is wanted.
        history_close: Known closes, oldest first, (W, K), quote currency.
        moved: Open, high, low and close of each coming bar of the first half of the paths, log ratios to the
            close before, (W, H, C, P / 2).

    Returns:
        Per task quantiles, shape (W, H, Q, C), in its unit.
    """
    steps = moved[:, :, OHLC.index(CLOSE)]
    simulated = running_sums(np, steps)
    candles = (simulated - steps)[:, :, None] + moved
    both_ways = np.concatenate([simulated, -simulated], axis=-1)
    closes = _closes_of(np, history_close, history_close[:, -1:], both_ways)
    if any(task.on_paths not in _READING_NO_CANDLES for task in tasks):
        closes = replace(closes, candles=np.concatenate([candles, -candles[:, :, MIRRORED]], axis=-1))
    last = history_close[:, -1:, None, None]
    made = {}
    for task in tasks:
        if task is OHLC_TASK:
            summed_up = np.exp(_mirrored_quantiles(levels, candles))
        else:
            summed_up = task.on_paths(np, task, closes, partial(_quantiles, np, levels))
        made[task.name] = task.size(last, summed_up)
    return made


def _mirrored_quantiles(levels: Sequence[float], candles: FloatArray) -> FloatArray:
    """Return what `_quantiles` does of candles and their mirror images: (W, H, C, P / 2) to (W, H, Q, C)."""
    num_half = candles.shape[-1]
    opened, high, low, closed = (candles[:, :, OHLC.index(name)] for name in (OPEN, HIGH, LOW, CLOSE))
    sizes = np.abs(np.stack([opened, closed], axis=2))
    sizes.sort(axis=-1)
    highs = np.concatenate([high, -low], axis=-1)
    highs.sort(axis=-1)

    def ranked(places: NDArray[np.int64]) -> FloatArray:
        """Take what stands at some places, (Q,), of all numbers of each candle, sorted: (W, H, C, Q)."""
        is_negative = places < num_half
        # Half of the opens are as far below zero as the others are above it, and so are the closes.
        chosen = sizes[..., np.where(is_negative, num_half - 1 - places, places - num_half)]
        chosen = np.where(is_negative, -chosen, chosen)
        # The lows are the highs with the other sign, in the other order.
        highest = highs[..., places]
        lowest = -highs[..., 2 * num_half - 1 - places]
        return np.stack([chosen[:, :, 0], highest, lowest, chosen[:, :, 1]], axis=2)

    return _between(np, _places(levels, 2 * num_half), ranked)


def _quantiles(xp: Any, levels: Sequence[float], values: Any) -> Any:
    """Interpolate between order statistics, (W, H, C, P) to (W, H, Q, C).

    Not the namespaces' own quantile: numpy sorts all numbers in a sixth of the time it takes to select a few.
    """
    if xp is np:
        # Numpy would sort a view of columns as such, one number here, one there.
        sorted_WHCP = np.array(values, order="C")
        sorted_WHCP.sort(axis=-1)
    else:
        sorted_WHCP = xp.sort(values, axis=-1)

    def ranked(places: NDArray[np.int64]) -> Any:
        return xp.take(sorted_WHCP, places.tolist(), axis=-1)

    return _between(xp, _places(levels, values.shape[-1]), ranked)


def _places(levels: Sequence[float], num_paths: int) -> FloatArray:
    """Say where quantiles lie among so many sorted numbers, (Q,), from 0; they may lie between two."""
    return np.array(levels) * (num_paths - 1)


def _between(xp: Any, places: FloatArray, ranked: Callable[[NDArray[np.int64]], Any]) -> Any:
    """Interpolate between the numbers, (W, H, C, Q), that `ranked` has at whole places: (W, H, Q, C)."""
    low = ranked(np.floor(places).astype(np.int64))
    high = ranked(np.ceil(places).astype(np.int64))
    share_Q = (places - np.floor(places)).astype(np.float32 if xp is not np else np.float64)
    return xp.transpose(low + (high - low) * share_Q, (0, 1, 3, 2))


def path_closes(xp: Any, history_close: Any, moved: Any) -> Closes:
    """Walk the paths: what comes in units of the last close, by path, arrays of shape (W, H, P) and more.

    Known closes, oldest first, (W, K), are in quote currency; `moved` is open, high, low and close of each
    coming bar of each path as log ratios to the close before, (W, H, C, P).
    """
    # Published files number their operations in this order.
    last = xp.take(history_close, [history_close.shape[1] - 1], axis=1)
    steps = xp.take(moved, OHLC.index(CLOSE), axis=2)
    simulated = running_sums(xp, steps)
    candles = xp.expand_dims(simulated - steps, 2) + moved
    return replace(_closes_of(xp, history_close, last, simulated), candles=candles)


def _closes_of(xp: Any, history_close: Any, last: Any, simulated: Any) -> Closes:
    """Return the closes of paths, (W, H, P), at so many log ratios to the last known close, (W, 1)."""
    path = xp.expm1(simulated)
    mean, deviation = window_moments(xp, history_close / last - 1.0, path.shape[1], path)
    return Closes(1.0, 1.0 + path, 1.0 + mean, deviation)


def drawn_paths(
    moved_HCP: FloatArray, levels: Sequence[float], quantiles_HQC: FloatArray, last_close: float
) -> FloatArray:
    """Walk the paths of one window so that they are what its quantiles say: candles, (P, H, C), as prices.

    At each step every column keeps the order of its paths and takes the quantiles that are published: between
    them it is interpolated, beyond the outer ones stretched as those are (ensemble copula coupling: Schefzik,
    Thorarinsdottir and Gneiting 2013, arXiv:1302.7149). Then low and high are made to hold open and close.

    Args:
        moved_HCP: The bars of each path, log ratios to the close before.
        levels: Of the quantiles, ascending; the median among them.
        quantiles_HQC: What is published of open, high, low and close, as prices.
        last_close: As a price.
    """
    steps_HP = moved_HCP[:, OHLC.index(CLOSE)]
    before_HP = np.cumsum(steps_HP, axis=0) - steps_HP
    simulated_HCP = last_close * np.exp(before_HP[:, None] + moved_HCP)
    for step, column in np.ndindex(*simulated_HCP.shape[:2]):
        simulated_HCP[step, column] = _taking(
            simulated_HCP[step, column], levels, quantiles_HQC[step, :, column]
        )
    return np.asarray(TASKS[TASK_OHLC].coherent(np, np.moveaxis(simulated_HCP, -1, 0), last_close, 0.0))


def _taking(values_P: FloatArray, levels: Sequence[float], wanted_Q: FloatArray) -> FloatArray:
    """Move values, in their order, to where they have the wanted quantiles."""
    own_Q = np.quantile(values_P, levels)
    middle = [*levels].index(MEDIAN)
    ends = np.array([values_P.min(), values_P.max()])
    own_2, wanted_2 = (each[[0, -1]] - each[middle] for each in (own_Q, wanted_Q))
    stretch_2 = np.divide(wanted_2, own_2, out=np.ones(2), where=own_2 != 0)
    first, last = wanted_Q[[0, -1]] + stretch_2 * (ends - own_Q[[0, -1]])
    return np.interp(values_P, [ends[0], *own_Q, ends[1]], [first, *wanted_Q, last])


def resampled_bars(train: Span, forecast_WH: FloatArray, drawn: NDArray[np.int64]) -> FloatArray:
    """Take the bars that followed the train windows at some places, (D,), and their mirrors.

    Forecast ranges, (W, H), are unitless and above 0. Returns log ratios to the close before, in multiples of
    the range forecast, shape (2 D, H, C).
    """
    ohlc = train.actual[TASK_OHLC][drawn]
    before = np.concatenate([train.last_close[drawn, None], ohlc[:, :-1, OHLC.index(CLOSE)]], axis=1)
    multiples = np.log(ohlc / before[:, :, None]) / forecast_WH[drawn][:, :, None]
    resampled = np.clip(multiples, -MAX_MULTIPLE, MAX_MULTIPLE)
    return np.concatenate([resampled, -resampled[:, :, MIRRORED]])


MOST_LOST: Final = 1.02
"""Error of the mix over that of its best member, by step, up to which the mix is published: going half of the
way costs up to 0.5 % on the validation span of real candles, and that is meant."""


EQUAL_SHARE: Final = 0.5  # of two forecasts that count alike


def fit_shares(span: Span, said: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, FloatArray]:
    """Fit everybody's shares on the validation span: per task, (M, H) in the order of `MEMBERS`.

    Those of a step add up to one. `said` is what each member forecasts for these windows, per task, shape (W,
    H, C), in the task's unit.
    """
    shares = {}
    for task, actual_WHC in span.actual.items():
        members = [said[member][task].astype(np.float64) for member in MEMBERS]
        network, regressed, simulated = members
        # Prices of a series weigh by their level alone, which hardly moves: no need of returns.
        paths_H = (EQUAL_SHARE + _factor(actual_WHC, regressed, simulated)) / 2
        mean_WHC = regressed + paths_H[:, None] * (simulated - regressed)
        network_H = _factor(actual_WHC, mean_WHC, network) / 2
        rest_H = 1.0 - network_H
        fitted_MH = np.stack([network_H, rest_H * (1.0 - paths_H), rest_H * paths_H])
        shares[task] = _without_loss(actual_WHC, members, fitted_MH)
    return shares


def network_alone(horizon_bars: int) -> FloatArray:
    """Return the shares of a task, (M, H), of which the network has all."""
    return np.repeat(np.eye(len(MEMBERS))[:, [MEMBERS.index("network")]], horizon_bars, axis=1)


def mix(
    shares: Mapping[str, FloatArray], said: Mapping[str, Mapping[str, NDArray[Any]]]
) -> dict[str, FloatArray]:
    """Return what the members forecast together, per task, shape (W, H, C)."""
    return {task: _mixed(one, (said[member][task] for member in MEMBERS)) for task, one in shares.items()}


def told_shares(shares: Mapping[str, FloatArray]) -> list[dict[str, Any]]:
    """Say what metadata holds of the shares: the network's, from 0 to 1 per step, and what the rest is.

    Models from before have `constant` or `regression` as the anchor in their files.
    """
    kept = {task: shares_MH[MEMBERS.index("network")].tolist() for task, shares_MH in shares.items()}
    return [{"task": task, "factors": kept_H, "anchor": "ensemble"} for task, kept_H in kept.items()]


def _without_loss(actual_WHC: FloatArray, members: Sequence[FloatArray], shares_MH: FloatArray) -> FloatArray:
    """Leave the steps to the best member in which their mix errs by too much more than it, shape (M, H)."""
    mixed_WHC = _mixed(shares_MH, members)
    error_H, *errors = (np.abs(one - actual_WHC).mean(axis=(0, 2)) for one in (mixed_WHC, *members))
    best_H = np.argmin(errors, axis=0)
    alone_MH = (np.arange(len(members))[:, None] == best_H).astype(np.float64)
    return np.where(error_H > MOST_LOST * np.min(errors, axis=0), alone_MH, shares_MH)


def _mixed(shares_MH: FloatArray, members: Iterable[FloatArray]) -> FloatArray:
    return sum(share_H[:, None] * one for share_H, one in zip(shares_MH, members, strict=True))


def _factor(actual_WHC: FloatArray, start_WHC: FloatArray, end_WHC: FloatArray) -> FloatArray:
    """Fit how much of the way from start to end has the smallest absolute error, per step, shape (H,)."""
    asked, way = (
        np.moveaxis(one - start_WHC, 1, 2).reshape(-1, actual_WHC.shape[1]) for one in (actual_WHC, end_WHC)
    )
    ratios = np.divide(asked, way, out=np.zeros_like(asked), where=way != 0)
    return np.clip(weighted_median(ratios, np.abs(way)), 0.0, 1.0) + 0.0  # -0.0 is told as 0


DOUBTED_WINDOWS: Final = 200
"""Independent windows from which on more than half of a move is believed. Measured on three folds of real
candles: all of it cost up to 1 % of CRPS where the fold changed, and coverage was as right without."""


def conformal_widths(
    levels: Sequence[float],
    actual: Mapping[str, NDArray[Any]],
    points: Mapping[str, FloatArray],
    distances: Mapping[str, FloatArray],
) -> dict[str, FloatArray]:
    """Return how many times as far each outer quantile must lie off to hold its share of the windows.

    Quantiles lie off the median as those of the paths do, times a factor: on the validation span every one
    is stretched by what is missing there to its level, the level's own quantile of actual values over distance
    (conformalised quantile regression: Romano, Patterson and Candès 2019, arXiv:1905.03222, each end by
    itself). Windows overlap, so that few of them are news: of a move a share is kept (`kept_share`).

    Per task, actual values and median forecasts are (W, H, C), distances of the outer quantiles off a median (W, H,
    L, C), all in one unit; factors are (H, L, C). Levels are all, ascending.
    """
    factors = {}
    for task, actual_WHC in actual.items():
        found = []
        for place, level in enumerate(outer(levels)):
            distance_WHC = distances[task][:, :, place]
            beyond_WHC = actual_WHC - points[task]
            # Where nothing ever moved no factor widens anything.
            ratio_WHC = np.divide(
                beyond_WHC, distance_WHC, out=np.ones_like(beyond_WHC), where=distance_WHC != 0
            )
            found.append(_shift(ratio_WHC, max(level, 1 - level)))
        moved_HLC = np.stack(found, axis=1) - 1.0
        factors[task] = np.maximum(1.0 + kept_share(*actual_WHC.shape[:2]) * moved_HLC, 0.0)
    return factors


def kept_share(num_windows: int, horizon_bars: int) -> float:
    """Say how much of a move is kept that was found in so many windows, which overlap by their horizons.

    >>> kept_share(2_000, 10)
    0.5
    """
    num_independent = num_windows / horizon_bars
    return num_independent / (num_independent + DOUBTED_WINDOWS)


def _shift(beyond_WHC: FloatArray, level: float) -> FloatArray:
    """Return the order statistic that a new window exceeds with the chance that its level leaves."""
    num_windows = len(beyond_WHC)
    # The outer end is the cautious one: of n windows and the new one, ceil((n + 1) level) are at or below.
    above = level > MEDIAN
    rank = np.ceil((num_windows + 1) * (level if above else 1 - level))
    place = int(np.clip(rank, 1, num_windows)) - 1
    ordered = np.sort(beyond_WHC, axis=0)
    found: FloatArray = ordered[place if above else num_windows - 1 - place]
    return found
