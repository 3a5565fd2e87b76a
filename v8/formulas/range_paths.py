"""A formula that forecasts the ranges of the coming bars, then lets prices walk that far.

One linear regression a step forecasts the log range of that bar from the log ranges behind. Windows of the
train span then lend the bars that followed them: open, high, low and close as log ratios to the close
before, each in multiples of the range forecast for its bar (filtered historical simulation: Barone-Adesi,
Giannopoulos & Vosper 1999). Fat tails, and how calm and wild bars follow each other, come as they were.
Scaled by the ranges forecast now they make paths; candles, bands and volatility are worked out on each
path, and their medians are the forecast. Every path goes up once and down once, for nothing is known about
which way.

The baseline `range_paths` computes it with `numpy`, the published file of the profile of that name with
`keras.ops`: what follows the fit is written once, over an array namespace.

Legend: N windows, H steps of the horizon, C open, high, low, close, T terms, P paths, K the 20 known closes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from v8.columns import CLOSE, HIGH, LOW, OHLC, RANGE_BARS, TASK_OHLC
from v8.features.formulas import FLOOR_SHARE
from v8.quantile_levels import MEDIAN
from v8.tasks import TASKS, Closes, Task, window_moments
from v8.windows.span import Floats, Span

NUM_PATHS: Final = 512
"""Paths of a window, half of them mirror images of the others."""

MAX_MULTIPLE: Final = 20.0
"""Returns of more forecast ranges count as so many: after a dead hour any move is huge."""

SEED: Final = 1999
"""Of the choice of train windows; the same candles give the same forecast."""

WINDOWS_AT_ONCE: Final = 32
"""Windows whose paths are in memory at the same time."""

Summary: TypeAlias = Callable[[Sequence[Task], Floats, Floats], Mapping[str, Floats]]
"""Maps tasks, known closes (N, 20) and the moves of paths (N, P, H, C) to what is said of them."""

MIRRORED: Final = tuple(OHLC.index({HIGH: LOW, LOW: HIGH}.get(name, name)) for name in OHLC)
"""Columns of a bar turned upside down."""


@dataclass(frozen=True, eq=False)
class RangePaths:
    """The fitted formula.

    Args:
        floor: Deviation of a bar to which smaller ones are raised, unitless, above 0.
        coefficients_TH: Of a constant and the log deviations over `RANGE_BARS`, for the log range of each
            coming bar, shape (T, H).
        lent_PHC: The bars that followed train windows, and their mirrors: log ratios to the close before,
            in multiples of the bar's forecast range, shape (P, H, C).
    """

    floor: float
    coefficients_TH: Floats
    lent_PHC: Floats

    def ranges(self, span: Span) -> Floats:
        """Forecast the log range of each coming bar, shape (N, H), unitless."""
        return np.exp(_terms(span, self.floor) @ self.coefficients_TH)


def fit_range_paths(train: Span) -> RangePaths:
    """Fit the regressions to the train span and keep what followed its windows."""
    ranges_NH = log_ranges(train.truth[TASK_OHLC])
    floor = least_deviation(ranges_NH)
    terms_NT = _terms(train, floor)
    asked_NH = np.log(np.maximum(ranges_NH, floor))
    coefficients_TH: Floats = np.linalg.lstsq(terms_NT, asked_NH, rcond=None)[0].astype(np.float64)
    drawn = np.random.default_rng(SEED).integers(len(train), size=NUM_PATHS // 2)
    return RangePaths(floor, coefficients_TH, lent_bars(train, np.exp(terms_NT @ coefficients_TH), drawn))


def walk_windows(span: Span, ranges_NH: Floats, lent_PHC: Floats, summed_up: Summary) -> dict[str, Floats]:
    """Walk the paths of some windows, a few at a time, and sum them up: per task, one row a window.

    Ranges, (N, H), are the log ranges forecast for each coming bar, unitless; `lent_PHC` is of `lent_bars`.
    """
    starts = range(0, len(span), WINDOWS_AT_ONCE)
    parts = [slice(start, start + WINDOWS_AT_ONCE) for start in starts]
    moves = (ranges_NH[part, None, :, None] * lent_PHC for part in parts)
    tasks = [TASKS[name] for name in span.profile.tasks]
    made = [
        summed_up(tasks, span.history_close[part], moved) for part, moved in zip(parts, moves, strict=True)
    ]
    return {task: np.concatenate([part[task] for part in made]) for task in span.profile.tasks}


def path_medians(xp: Any, tasks: Sequence[Task], history_close: Any, moved: Any) -> dict[str, Any]:
    """Walk the paths as `path_closes` does: per task the median on them, shape (N, H, C), in its unit."""
    found = path_quantiles(xp, (MEDIAN,), tasks, history_close, moved)
    return {task: xp.squeeze(values, axis=2) for task, values in found.items()}


def path_quantiles(
    xp: Any, levels: Sequence[float], tasks: Sequence[Task], history_close: Any, moved: Any
) -> dict[str, Any]:
    """Do the same with the quantiles of some levels, of which the median is one: shape (N, H, Q, C)."""
    paths, summed_up = path_closes(xp, history_close, moved), partial(_quantiles, xp, levels)
    last = xp.take(history_close, [history_close.shape[1] - 1], axis=1)
    last = xp.expand_dims(xp.expand_dims(last, -1), -1)
    return {task.name: task.size(last, task.on_paths(xp, task, paths, summed_up)) for task in tasks}


def _quantiles(xp: Any, levels: Sequence[float], values: Any) -> Any:
    """Interpolate between order statistics, (N, P, H, C) to (N, H, Q, C).

    Not the namespaces' own quantile: numpy sorts all numbers in a sixth of the time it takes to select a few.
    """
    places = np.array(levels) * (values.shape[1] - 1)
    below, above = np.floor(places), np.ceil(places)
    sorted_NPHC = xp.sort(values, axis=1)
    low, high = (xp.take(sorted_NPHC, [*map(int, which)], axis=1) for which in (below, above))
    share_Q11 = (places - below)[:, None, None].astype(np.float32 if xp is not np else np.float64)
    return xp.transpose(low + (high - low) * share_Q11, (0, 2, 1, 3))


def path_closes(xp: Any, history_close: Any, moved: Any) -> Closes:
    """Walk the paths: what comes in units of the last close, by path, arrays of shape (N, P, H) and more.

    Args:
        xp: Array namespace, `numpy` or `keras.ops`.
        history_close: Closes of the last 20 known rows, oldest first, shape (N, K), quote currency.
        moved: Open, high, low and close of each coming bar of each path as log ratios to the close before,
            shape (N, P, H, C).
    """
    last = xp.take(history_close, [history_close.shape[1] - 1], axis=1)
    steps = xp.take(moved, OHLC.index(CLOSE), axis=3)
    walked = xp.cumsum(steps, axis=2)
    candles = xp.expand_dims(walked - steps, -1) + moved
    path = xp.expm1(walked)
    mean, deviation = window_moments(xp, history_close / last - 1.0, path.shape[2], path)
    return Closes(1.0, 1.0 + path, 1.0 + mean, deviation, candles)


def _terms(span: Span, floor: float) -> Floats:
    """Return a constant and the log deviations over `RANGE_BARS`, shape (N, T)."""
    deviations = [np.sqrt(span.range_variance(bars)) for bars in RANGE_BARS]
    return np.stack([np.ones(len(span)), *(np.log(np.maximum(one, floor)) for one in deviations)], axis=1)


def least_deviation(ranges_NH: Floats) -> float:
    """Return the deviation of a bar to which smaller ones are raised: above 0, though no bar has a range."""
    tiny = float(np.finfo(np.float32).tiny)
    return FLOOR_SHARE * (float(np.median(ranges_NH)) or max(float(ranges_NH.mean()), tiny))


def log_ranges(ohlc_NHC: Floats) -> Floats:
    """Return the log range of each bar, shape (N, H), unitless."""
    return np.log(ohlc_NHC[:, :, OHLC.index(HIGH)] / ohlc_NHC[:, :, OHLC.index(LOW)])


def lent_bars(train: Span, forecast_NH: Floats, drawn: NDArray[np.int64]) -> Floats:
    """Take the bars that followed the train windows at some places, (D,), and their mirrors.

    Forecast ranges, (N, H), are unitless and above 0. Returns log ratios to the close before, in multiples of
    the range forecast, shape (2 D, H, C).
    """
    ohlc = train.truth[TASK_OHLC][drawn]
    before = np.concatenate([train.last_close[drawn, None], ohlc[:, :-1, OHLC.index(CLOSE)]], axis=1)
    multiples = np.log(ohlc / before[:, :, None]) / forecast_NH[drawn][:, :, None]
    lent = np.clip(multiples, -MAX_MULTIPLE, MAX_MULTIPLE)
    return np.concatenate([lent, -lent[:, :, MIRRORED]])
