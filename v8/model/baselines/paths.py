"""Simulated paths: quantiles over them, for any array namespace or by NumPy, and the range that they stay in.

The second half of the paths are mirror images of the first half: their log ratios have the other sign, and
high and low change places. NumPy simulates the first half and the closes of both. It goes on bar by bar, with
few enough windows for all arrays to stay in the cache of a core, which takes half the time of whole arrays.
The numbers are sorted, not selected: NumPy sorts 512 of them in half the time in which it selects one.

"9 of 10 times the price stays between A and B": A and B are quantiles, over the paths, of the lowest low and
of the highest high of all bars ahead. Quantiles of single bars are no such range: a path leaves it as soon as
one of its bars does. How often the range held is counted on the test span.

Legend: W or N windows, H steps of the horizon, P paths, which are the last axis because contiguous rows are
sorted many times as fast as columns, Q levels, R ranks, C columns of a task, K the 20 known closes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import AnyFloatArray, FloatArray
from v8.base.records import Count, Positive
from v8.data.span import Span
from v8.profile.columns import (
    BAND_PERIOD_BARS,
    BAND_WIDTH_STDS,
    CLOSE,
    HIGH,
    LOW,
    MEDIAN,
    OHLC,
    OPEN,
    TASK_OHLC,
)
from v8.profile.tasks import (
    BANDS_TASK,
    OHLC_TASK,
    RANGE_TASK,
    VOLATILITY_TASK,
    Closes,
    Task,
    running_sums,
    suffix_sums,
    window_moments,
)

WINDOWS_AT_ONCE: Final = 64  # windows that are simulated together

MIRRORED: Final = tuple(OHLC.index({HIGH: LOW, LOW: HIGH}.get(name, name)) for name in OHLC)
"""Positions of the columns in a mirrored bar: high and low change places."""


SERIES_LIMIT: Final = 0.25
"""Largest log ratio, either sign, whose return is a series; those beyond it, which are rare, are `expm1`."""

SINH_COEFFICIENTS: Final = (1 / 5_040, 1 / 120, 1 / 6)
COSH_COEFFICIENTS: Final = (1 / 720, 1 / 24, 1 / 2)
"""Of sinh(x) / x - 1 and of cosh(x) - 1, the highest power of x squared first. What is left out is below 2e-9
of the return, a thirtieth of a step of single precision."""

NUM_SERIES_BUFFERS: Final = 3


def path_quantiles(
    xp: Any, levels: Sequence[float], tasks: Sequence[Task], history_close: Any, moved: Any
) -> dict[str, Any]:
    """Simulate paths as `path_closes` does; return quantiles per task, shape (W, H, Q, C), in its unit."""
    paths = path_closes(xp, history_close, moved)
    summarise = partial(_quantiles, xp, levels)
    last = xp.take(history_close, [history_close.shape[1] - 1], axis=1)
    last = xp.expand_dims(xp.expand_dims(last, -1), -1)
    return {task.name: task.size(last, task.on_paths(xp, task, paths, summarise)) for task in tasks}


def mirrored_path_quantiles(
    levels: Sequence[float],
    tasks: Sequence[Task],
    history_close_WK: FloatArray,
    ranges_WH: FloatArray,
    half_HCP: FloatArray,
) -> dict[str, FloatArray]:
    """Compute `path_quantiles` with numpy from the first half of the paths, bit for bit.

    Args:
        levels: Levels of the quantiles, ascending, Q of them.
        tasks: The tasks to forecast.
        history_close_WK: Known closes, oldest first, quote currency, in any precision.
        ranges_WH: Log range that is forecast for each bar, in the precision of the paths.
        half_HCP: Open, high, low and close of each bar of the first half of the paths, log ratios to the
            close before, in multiples of the range.

    Returns:
        Per task quantiles, shape (W, H, Q, C), in its unit.
    """
    parts = []
    for start in range(0, len(ranges_WH), WINDOWS_AT_ONCE):
        windows = slice(start, start + WINDOWS_AT_ONCE)
        parts.append(
            _quantiles_of_windows(levels, tasks, history_close_WK[windows], ranges_WH[windows], half_HCP)
        )
    return {task.name: np.concatenate([part[task.name] for part in parts]) for task in tasks}


def _quantiles_of_windows(
    levels: Sequence[float],
    tasks: Sequence[Task],
    history_close_WK: FloatArray,
    ranges_WH: FloatArray,
    half_HCP: FloatArray,
) -> dict[str, FloatArray]:
    """Compute `mirrored_path_quantiles` of windows that are simulated together."""
    quantiles = _quantiles_by_bar(
        levels, [task for task in tasks if task in _RANKED], history_close_WK, ranges_WH, half_HCP
    )
    others = [task for task in tasks if task not in _RANKED]
    if others:
        all_HCP = np.concatenate([half_HCP, -half_HCP[:, MIRRORED]], axis=-1)
        moved_WHCP = ranges_WH[:, :, None, None] * all_HCP
        quantiles |= path_quantiles(np, levels, others, history_close_WK, moved_WHCP)
    return quantiles


def _quantiles_by_bar(
    levels: Sequence[float],
    tasks: Sequence[Task],
    history_close_WK: FloatArray,
    ranges_WH: FloatArray,
    half_HCP: FloatArray,
) -> dict[str, FloatArray]:
    """Compute the quantiles of tasks in `_RANKED`, bar after bar."""
    num_windows, num_steps = ranges_WH.shape
    low_ranks, high_ranks, share_Q = _places(levels, 2 * half_HCP.shape[-1])
    ranks_R = np.array([*low_ranks, *high_ranks])
    ranked = {
        task: np.empty((num_windows, num_steps, len(task.columns), len(ranks_R)), half_HCP.dtype)
        for task in tasks
    }
    paths = _MirroredPaths(history_close_WK, half_HCP)
    for step in range(num_steps):
        paths.advance(ranges_WH[:, step])
        for task, ranked_WHCR in ranked.items():
            ranked_WHCR[:, step] = _RANKED[task](paths, ranks_R).swapaxes(0, 1)
    last_W111 = history_close_WK[:, -1:, None, None]
    quantiles = {}
    for task, ranked_WHCR in ranked.items():
        low_WHCQ, high_WHCQ = np.split(ranked_WHCR, 2, axis=-1)
        shares_WHQC = _interpolated(np, low_WHCQ, high_WHCQ, share_Q)
        if task is OHLC_TASK:
            shares_WHQC = np.exp(shares_WHQC)
        quantiles[task.name] = task.size(last_W111, shares_WHQC)
    return quantiles


class _MirroredPaths:
    """The paths of some windows at one bar after another, of which the first is reached by `advance`."""

    def __init__(self, history_close_WK: FloatArray, half_HCP: FloatArray) -> None:
        num_windows = len(history_close_WK)
        num_steps, num_columns, num_half = half_HCP.shape
        known_WK = history_close_WK / history_close_WK[:, -1:] - 1.0
        dtype = half_HCP.dtype
        half = (num_windows, num_half)
        both_ways = (num_windows, 2 * num_half)
        self._half_HCP = half_HCP
        self._step = -1
        self._known_sums_WH = suffix_sums(np, known_WK, num_steps).astype(dtype)
        self._known_squares_WH = suffix_sums(np, np.square(known_WK), num_steps).astype(dtype)
        self._moved_closes_WP = np.zeros(half, dtype)
        self._closes_before_WP = np.empty(half, dtype)
        self._sums_WP = np.zeros(both_ways, dtype)
        self._squares_WP = np.zeros(both_ways, dtype)
        self._zeros_WP = np.zeros(both_ways, dtype)
        self._closes_WP = np.empty(both_ways, dtype)
        self._series_SWP = np.empty((NUM_SERIES_BUFFERS, *half), dtype)
        self.candles_CWP = np.empty((num_columns, *half), dtype)
        """Candles of the first half of the paths, log ratios to the last known close."""
        self.middle_WP = np.empty(both_ways, dtype)
        """Mean of the twenty closes that end at the bar, in units of the last known close."""
        self.deviation_WP = np.empty(both_ways, dtype)
        """Sample deviation of these closes, in the same unit."""
        self.highest_WP = np.full(half, -np.inf, dtype)
        """Highest high so far of the first half of the paths, log ratio to the last known close."""
        self.lowest_WP = np.full(half, np.inf, dtype)
        """Their lowest low so far."""
        self.sorted_CWP = np.empty((2, *both_ways), dtype)
        """Memory in which two columns are sorted, used again and again: new memory takes longer to get."""
        self.sorted_halves_CWP = np.empty((2, *half), dtype)
        """The same for the first half of the paths."""

    def candle(self, name: str) -> FloatArray:
        """Return a column of the candles of the first half of the paths, (W, P)."""
        column_WP: FloatArray = self.candles_CWP[OHLC.index(name)]
        return column_WP

    def advance(self, ranges_W: FloatArray) -> None:
        """Go on by a bar, for which these log ranges are forecast."""
        self._step += 1
        np.multiply(ranges_W[:, None], self._half_HCP[self._step][:, None], out=self.candles_CWP)
        moves_WP = self.candle(CLOSE)
        self._moved_closes_WP += moves_WP
        np.subtract(self._moved_closes_WP, moves_WP, out=self._closes_before_WP)
        self.candles_CWP += self._closes_before_WP
        np.maximum(self.highest_WP, self.candle(HIGH), out=self.highest_WP)
        np.minimum(self.lowest_WP, self.candle(LOW), out=self.lowest_WP)
        self._roll_window()

    def _roll_window(self) -> None:
        """Compute `window_moments` in place."""
        closes_WP = self._closes_WP
        mirrored_returns(self._moved_closes_WP, self._series_SWP, closes_WP)
        self._sums_WP += closes_WP
        np.square(closes_WP, out=closes_WP)
        self._squares_WP += closes_WP
        mean_WP = np.add(self._known_sums_WH[:, self._step, None], self._sums_WP, out=self.middle_WP)
        mean_WP /= BAND_PERIOD_BARS
        variance_WP = np.add(
            self._known_squares_WH[:, self._step, None], self._squares_WP, out=self.deviation_WP
        )
        mean_squares_WP = np.square(mean_WP, out=closes_WP)
        mean_squares_WP *= BAND_PERIOD_BARS
        variance_WP -= mean_squares_WP
        variance_WP /= BAND_PERIOD_BARS - 1
        # With the number 0 in place of an array it takes three times as long.
        np.maximum(variance_WP, self._zeros_WP, out=variance_WP)
        np.sqrt(variance_WP, out=variance_WP)
        mean_WP += 1.0


def mirrored_returns(logs_WP: FloatArray, buffers_SWP: FloatArray, returns_WP: FloatArray) -> None:
    """Write the returns of log ratios and, after them, of their mirror images: `expm1` of x and of -x.

    Both are one series: expm1(x) = sinh(x) + (cosh(x) - 1), and the first term of the mirror image has the
    other sign. With AVX2 NumPy takes seven times as long: it computes `expm1` one number after the other.

    Args:
        logs_WP: Log ratios, P of them a window.
        buffers_SWP: Memory to compute in, `NUM_SERIES_BUFFERS` arrays of the same shape.
        returns_WP: Where the returns are written, 2 P a window.
    """
    num_half = logs_WP.shape[1]
    squares_WP, sinh_WP, cosh_WP = buffers_SWP
    np.square(logs_WP, out=squares_WP)
    _sum_series(SINH_COEFFICIENTS, squares_WP, sinh_WP)
    _sum_series(COSH_COEFFICIENTS, squares_WP, cosh_WP)
    sinh_WP *= logs_WP
    sinh_WP += logs_WP
    np.add(cosh_WP, sinh_WP, out=returns_WP[:, :num_half])
    np.subtract(cosh_WP, sinh_WP, out=returns_WP[:, num_half:])
    if squares_WP.max() > SERIES_LIMIT**2:
        is_large_WP = squares_WP > SERIES_LIMIT**2
        for sign, half in ((1.0, slice(None, num_half)), (-1.0, slice(num_half, None))):
            returns_WP[:, half][is_large_WP] = np.expm1(sign * logs_WP[is_large_WP])


def _sum_series(coefficients: Sequence[float], squares_WP: FloatArray, sums_WP: FloatArray) -> None:
    """Write the sums of a power series without a constant, the highest power first, by Horner's rule."""
    np.multiply(squares_WP, coefficients[0], out=sums_WP)
    for coefficient in coefficients[1:]:
        sums_WP += coefficient
        sums_WP *= squares_WP


def _returns(logs: FloatArray) -> FloatArray:
    """Return the returns of log ratios, of any shape, to the bit as `mirrored_returns` writes them."""
    logs_1P = logs.reshape(1, -1)
    returns_1P = np.empty((1, 2 * logs.size), logs.dtype)
    mirrored_returns(logs_1P, np.empty((NUM_SERIES_BUFFERS, *logs_1P.shape), logs.dtype), returns_1P)
    return returns_1P[0, : logs.size].reshape(logs.shape)


def _ranked_candles(paths: _MirroredPaths, ranks_R: NDArray[np.int64]) -> FloatArray:
    """Return order statistics of the candles, (C, W, R), as log ratios to the last known close."""
    num_half = paths.candles_CWP.shape[-1]
    sizes_CWP = paths.sorted_halves_CWP
    np.abs(paths.candle(OPEN), out=sizes_CWP[0])
    np.abs(paths.candle(CLOSE), out=sizes_CWP[1])
    sizes_CWP.sort(axis=-1)
    is_negative = ranks_R < num_half
    # Opens and closes are symmetric about zero: their sorted values are -sizes descending, then sizes.
    symmetric = sizes_CWP.take(np.where(is_negative, num_half - 1 - ranks_R, ranks_R - num_half), axis=-1)
    opened, closed = np.where(is_negative, -symmetric, symmetric)
    highs_WP = paths.sorted_CWP[0]
    highs_WP[:, :num_half] = paths.candle(HIGH)
    np.negative(paths.candle(LOW), out=highs_WP[:, num_half:])
    highs_WP.sort(axis=-1)
    # The lows are the highs with the other sign, in reverse order.
    low = -highs_WP.take(2 * num_half - 1 - ranks_R, axis=-1)
    return np.stack([opened, highs_WP.take(ranks_R, axis=-1), low, closed])


def _ranked_bands(paths: _MirroredPaths, ranks_R: NDArray[np.int64]) -> FloatArray:
    """Return order statistics of the bands, (C, W, R), in units of the last known close."""
    upper_WP, lower_WP = paths.sorted_CWP
    half_width_WP = np.multiply(BAND_WIDTH_STDS, paths.deviation_WP, out=lower_WP)
    np.add(paths.middle_WP, half_width_WP, out=upper_WP)
    np.subtract(paths.middle_WP, half_width_WP, out=lower_WP)
    paths.sorted_CWP.sort(axis=-1)
    return np.asarray(paths.sorted_CWP.take(ranks_R, axis=-1))


def _ranked_volatility(paths: _MirroredPaths, ranks_R: NDArray[np.int64]) -> FloatArray:
    """Return order statistics of the volatility, (C, W, R), unitless."""
    volatility_CWP = paths.sorted_CWP[:1]
    np.divide(paths.deviation_WP, paths.middle_WP, out=volatility_CWP[0])
    volatility_CWP.sort(axis=-1)
    return np.asarray(volatility_CWP.take(ranks_R, axis=-1))


def _ranked_ranges(paths: _MirroredPaths, ranks_R: NDArray[np.int64]) -> FloatArray:
    """Return order statistics of the log ranges, (C, W, R), unitless."""
    ranges_CWP = paths.sorted_halves_CWP
    np.subtract(paths.candle(HIGH), paths.candle(LOW), out=ranges_CWP[0])
    np.subtract(paths.highest_WP, paths.lowest_WP, out=ranges_CWP[1])
    ranges_CWP.sort(axis=-1)
    # The mirror image of a path has the same ranges: among all paths every range occurs twice.
    return np.asarray(ranges_CWP.take(ranks_R // 2, axis=-1))


_RANKED: Final[Mapping[Task, Callable[[_MirroredPaths, NDArray[np.int64]], FloatArray]]] = {
    OHLC_TASK: _ranked_candles,
    BANDS_TASK: _ranked_bands,
    VOLATILITY_TASK: _ranked_volatility,
    RANGE_TASK: _ranked_ranges,
}
"""By task, what returns order statistics over the paths of a bar; of other tasks `Task.on_paths` is used."""


def _quantiles(xp: Any, levels: Sequence[float], values: Any) -> Any:
    """Compute quantiles by interpolating order statistics, (W, H, C, P) to (W, H, Q, C).

    The function `quantile` of the namespaces is not used: numpy sorts all numbers in a sixth of its time.
    """
    sorted_WHCP = xp.sort(values, axis=-1)
    low_ranks, high_ranks, share_Q = _places(levels, values.shape[-1])
    low = xp.take(sorted_WHCP, low_ranks, axis=-1)
    high = xp.take(sorted_WHCP, high_ranks, axis=-1)
    return _interpolated(xp, low, high, share_Q)


def _places(levels: Sequence[float], num_values: int) -> tuple[list[int], list[int], FloatArray]:
    """Return where quantiles are among sorted numbers: ranks below and above, from 0, and shares, (Q,)."""
    ranks = np.array(levels) * (num_values - 1)
    low_ranks = np.floor(ranks).astype(np.int64)
    high_ranks = np.ceil(ranks).astype(np.int64)
    return low_ranks.tolist(), high_ranks.tolist(), ranks - low_ranks


def _interpolated(xp: Any, low: Any, high: Any, share_Q: FloatArray) -> Any:
    """Interpolate between two order statistics, (W, H, C, Q), and return (W, H, Q, C)."""
    share = share_Q.astype(np.float32 if xp is not np else np.float64)
    return xp.transpose(low + (high - low) * share, (0, 1, 3, 2))


def path_closes(xp: Any, history_close: Any, moved: Any) -> Closes:
    """Return closes, (W, H, P), and candles, (W, H, C, P), along paths, in units of the last close.

    Args:
        xp: `numpy` or `keras.ops`.
        history_close: Known closes, oldest first, (W, K), quote currency.
        moved: Open, high, low and close of each future bar of each path as log ratios to the close before,
            (W, H, C, P).
    """
    # Do not reorder: published files number their operations in this order.
    last = xp.take(history_close, [history_close.shape[1] - 1], axis=1)
    steps = xp.take(moved, OHLC.index(CLOSE), axis=2)
    simulated = running_sums(xp, steps)
    candles = xp.expand_dims(simulated - steps, 2) + moved
    path = _returns(simulated) if xp is np else xp.expm1(simulated)
    mean, deviation = window_moments(xp, history_close / last - 1.0, path.shape[1], path)
    return Closes(1.0, 1.0 + path, 1.0 + mean, deviation, candles=candles)


def drawn_paths(
    moved_HCP: FloatArray, levels: Sequence[float], quantiles_HQC: FloatArray, last_close: float
) -> FloatArray:
    """Simulate paths of one window that have the published quantiles: candles, (P, H, C), as prices.

    At each step every column keeps the ranks of its paths but gets the published quantiles, with
    interpolation between them and linear extrapolation beyond the outer ones (ensemble copula coupling:
    Schefzik, Thorarinsdottir and Gneiting 2013, arXiv:1302.7149). Then low and high are extended to include
    open and close.

    Args:
        moved_HCP: The bars of each path, log ratios to the close before.
        levels: Levels of the quantiles, ascending; the median is one of them.
        quantiles_HQC: Published quantiles of open, high, low and close, as prices.
        last_close: The last known close, as a price.
    """
    steps_HP = moved_HCP[:, OHLC.index(CLOSE)]
    before_HP = np.cumsum(steps_HP, axis=0) - steps_HP
    simulated_HCP = last_close * np.exp(before_HP[:, None] + moved_HCP)
    own_QHC = np.quantile(simulated_HCP, levels, axis=-1)
    own_HCX, target_HCX = _mapped_points(simulated_HCP, levels, own_QHC, quantiles_HQC)
    for values_P, own_X, target_X in zip(
        simulated_HCP.reshape(-1, simulated_HCP.shape[-1]),
        own_HCX.reshape(-1, own_HCX.shape[-1]),
        target_HCX.reshape(-1, target_HCX.shape[-1]),
        strict=True,
    ):
        values_P[:] = np.interp(values_P, own_X, target_X)
    return np.asarray(OHLC_TASK.coherent(np, np.moveaxis(simulated_HCP, -1, 0), last_close, 0.0))


def _mapped_points(
    values_HCP: FloatArray, levels: Sequence[float], own_QHC: FloatArray, target_HQC: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return points of values, and what these are mapped to so that the values get the target quantiles.

    The points, (H, C, Q + 2), are the smallest value, the quantiles and the largest value. Beyond the outer
    quantiles, distances are scaled as those of the outer quantiles from the median are.
    """
    median = list(levels).index(MEDIAN)
    own_HCQ = np.moveaxis(own_QHC, 0, -1)
    target_HCQ = np.moveaxis(target_HQC, 1, -1)
    ends_HC2 = np.stack([values_HCP.min(axis=-1), values_HCP.max(axis=-1)], axis=-1)
    own_HC2 = own_HCQ[..., [0, -1]] - own_HCQ[..., [median]]
    target_HC2 = target_HCQ[..., [0, -1]] - target_HCQ[..., [median]]
    stretch_HC2 = np.divide(target_HC2, own_HC2, out=np.ones_like(own_HC2), where=own_HC2 != 0)
    mapped_HC2 = target_HCQ[..., [0, -1]] + stretch_HC2 * (ends_HC2 - own_HCQ[..., [0, -1]])

    def joined(ends_HC2: FloatArray, inner_HCQ: FloatArray) -> FloatArray:
        return np.concatenate([ends_HC2[..., :1], inner_HCQ, ends_HC2[..., 1:]], axis=-1)

    return joined(ends_HC2, own_HCQ), joined(mapped_HC2, target_HCQ)


RANGE_SHARE: Final = 0.9
"""Probability that all bars ahead lie within a `PriceRange`."""

ENOUGH_WINDOWS: Final = 50
"""So many windows tell whether a range is true: 5 of them are expected outside, fewer vary by chance too
much."""

MOST_WINDOWS: Final = 60
"""Most windows whose range is evaluated in a run: their paths take 0.15 s of a core with `frontier`."""


@dataclass(frozen=True)
class PriceRange:
    """Two prices that all bars ahead stay between with the probability `RANGE_SHARE`."""

    low: float  # quote currency
    high: float  # quote currency


def range_json(ahead: PriceRange | None) -> dict[str, Any]:
    """Return the key `range` of a forecast as plain JSON values; no key without a range."""
    return {} if ahead is None else {"range": {"share": RANGE_SHARE, **asdict(ahead)}}


@dataclass(frozen=True)
class RangeCoverage:
    """How often all bars ahead lay within the range that was forecast, on windows of the test span."""

    num_windows: Positive  # windows evaluated
    num_inside: Count  # those in which no bar left the range

    def __post_init__(self) -> None:
        if self.num_inside > self.num_windows:
            raise ValueError("has at most as many windows inside as there are")

    @property
    def share(self) -> float:
        """Share of windows inside, 0 to 1; it should be `RANGE_SHARE`."""
        return self.num_inside / self.num_windows

    @property
    def has_enough_windows(self) -> bool:
        """Whether there are enough windows to tell whether the range is true."""
        return self.num_windows >= ENOUGH_WINDOWS

    @property
    def standard_error(self) -> float:
        """That of the stated share, by the binomial distribution: `sqrt(p (1 - p) / N)`."""
        return math.sqrt(RANGE_SHARE * (1.0 - RANGE_SHARE) / self.num_windows)

    @property
    def is_too_narrow(self) -> bool:
        """Whether it held less often than stated, beyond two standard errors, in enough windows."""
        return self.has_enough_windows and self.share < RANGE_SHARE - 2.0 * self.standard_error


def pooled(coverages: Iterable[RangeCoverage | None]) -> RangeCoverage | None:
    """Add up the windows of several series; None if none was evaluated."""
    evaluated = [coverage for coverage in coverages if coverage is not None]
    if not evaluated:
        return None
    return RangeCoverage(
        num_windows=sum(coverage.num_windows for coverage in evaluated),
        num_inside=sum(coverage.num_inside for coverage in evaluated),
    )


def range_of(paths_PHC: NDArray[np.float64]) -> PriceRange:
    """Return the range of simulated candles, (P, H, C) in the order of `OHLC`, as prices."""
    beyond = (1.0 - RANGE_SHARE) / 2.0
    low = np.quantile(paths_PHC[..., OHLC.index(LOW)].min(axis=1), beyond)
    high = np.quantile(paths_PHC[..., OHLC.index(HIGH)].max(axis=1), 1.0 - beyond)
    return PriceRange(float(low), float(high))


def evaluated_windows(span: Span, most: int = MOST_WINDOWS) -> NDArray[np.int64]:
    """Return the numbers of the windows whose range is evaluated, (N,), at equal distances.

    They are at least a horizon apart: windows that overlap share most of their bars, so that evaluating them,
    too, would take long and tell little more.
    """
    every = max(span.horizon_bars, -(-len(span) // most))
    return np.arange(0, len(span), every, dtype=np.int64)


def measure_range(
    span: Span, levels: Sequence[float], quantiles_NHQC: AnyFloatArray, path_bars_NHCP: AnyFloatArray
) -> RangeCoverage:
    """Count the windows in which all bars ahead lay within the range that was forecast.

    Args:
        span: The windows, at least one, with the actual candles.
        levels: Levels of the quantiles, ascending.
        quantiles_NHQC: The published quantiles of open, high, low and close, as prices.
        path_bars_NHCP: The bars of each path, log ratios to the close before.
    """
    actual_NHC = span.actual[TASK_OHLC]
    lowest_N = actual_NHC[..., OHLC.index(LOW)].min(axis=1)
    highest_N = actual_NHC[..., OHLC.index(HIGH)].max(axis=1)
    num_inside = 0
    for number, last_close in enumerate(span.last_close.tolist()):
        path_bars_HCP = path_bars_NHCP[number].astype(np.float64)
        quantiles_HQC = quantiles_NHQC[number].astype(np.float64)
        ahead = range_of(drawn_paths(path_bars_HCP, levels, quantiles_HQC, last_close))
        num_inside += bool(ahead.low <= lowest_N[number] and highest_N[number] <= ahead.high)
    return RangeCoverage(num_windows=len(span), num_inside=num_inside)
