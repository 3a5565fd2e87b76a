"""The tasks: what can be forecast, and the formulas of the Bollinger window that they share.

Everything that differs from task to task is a field of `Task`. Functions take their array namespace as the
first argument, `numpy` or `keras.ops`, so that the naive forecast that a model is evaluated against and the
one inside the published file are computed by the same code. Slices are written as `take`, which every version
of Keras can save. A plug-in adds a task of its own by calling `TASKS.register`.

Legend: N windows, H steps of the horizon, C columns of the task, P paths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.base.registry import Named, Registry, read_descriptions
from v8.profile import columns as c
from v8.profile.columns import BAND_PERIOD_BARS, BAND_WIDTH_STDS, OHLC

QUOTE_CURRENCY: Final = "quote currency"
UNITLESS: Final = "unitless"

PRICE_FLOOR_SHARE: Final = 0.01
"""Prices below this share of the window's price level are raised to it: a lower band can fall to zero."""

LARGEST_LOG_RANGE: Final = 16.0
"""Size of the logarithm of the smallest range that occurs, 1e-7 of a price."""


@dataclass(frozen=True, eq=False)
class Closes:
    """Future closes, with mean and sample deviation of the twenty closes that end at each of them.

    With P simulated paths the arrays are (N, H, P) instead of (N, H).
    """

    unit: Any  # the other fields are multiples of it: the last close, (N, 1), quote currency; or 1
    close: Any  # close at each step, (N, H)
    middle: Any  # mean of the twenty closes, (N, H)
    deviation: Any  # their sample deviation, (N, H)
    candles: Any = None
    """Open, high, low and close of each step as log ratios to the last close, (N, H, 4, P); None where only
    closes are forecast."""
    bar_range: Any = None
    """Log range of every bar of the naive forecast, (N, 1), unitless; None where no range is forecast."""


@dataclass(frozen=True, eq=False)
class Task(Named):
    """One forecasting task.

    Args:
        sides: Direction in which a wider range moves each column: 1 up, -1 down, 0 not at all.
        deviations: Distance of a column from the mean of the twenty closes, in their sample deviations per
            unit of its side; None for a task that follows from the future closes themselves.
        implied: Maps namespace and future closes to the values of the task, shape (N, H, C).
        coherent: Maps namespace, values (N, H, C), last close (N, 1, 1) and the smallest value of a
            unitless task to values that are consistent with each other.
        on_paths: Maps namespace, task, closes along P paths and a function that summarises (N, H, C, P) over
            the paths to that summary of the task, in units of the last close.
        inputs: Columns of the bars ahead that the actual values are computed from; None where they are
            columns of the bars themselves.
        realised: Maps the inputs of the bars ahead, shape (N, H, inputs), to actual values, (N, H, C).
        is_size: Whether the values are sizes, in proportion to a range: its moves are counted from zero, not
            from the naive forecast.
    """

    title: str  # name for readers
    columns: tuple[str, ...]  # forecast columns, in the order of the output's last axis
    unit: str  # QUOTE_CURRENCY or UNITLESS; prices are evaluated as shares of the last close too
    colour: str  # key of the palette
    sides: tuple[float, ...]
    deviations: float | None
    implied: Callable[[Any, Closes], Any]
    coherent: Callable[[Any, Any, Any, Any], Any]
    on_paths: Callable[..., Any] = lambda xp, task, closes, summarise: summarise(
        xp.transpose(task.implied(xp, closes), (0, 1, 3, 2))
    )
    inputs: tuple[str, ...] | None = None
    realised: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda inputs: inputs
    is_size: bool = False

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Columns of the bars ahead that the actual values are computed from."""
        return self.columns if self.inputs is None else self.inputs

    @property
    def is_of_bars(self) -> bool:
        """Whether each value is a column of one bar, so that known bars have values, too."""
        return self.inputs is None

    @property
    def is_price(self) -> bool:
        """Whether it forecasts price levels, so that its errors have two units."""
        return self.unit == QUOTE_CURRENCY

    @property
    def has_window(self) -> bool:
        """Whether it depends on the twenty closes of a Bollinger window, not on the last close alone."""
        return self.deviations is not None

    @property
    def min_lookback_bars(self) -> int:
        """Rows that its naive forecast reads."""
        return BAND_PERIOD_BARS if self.has_window or self.is_size else 1

    @property
    def max_horizon_bars(self) -> int | None:
        """Largest step ahead at which its naive forecast knows two closes or more; None without a limit."""
        return c.MAX_ROLLED_STEPS if self.has_window else None

    @property
    def is_moved(self) -> NDArray[np.float64]:
        """1 for the columns that a range moves, shape (C,)."""
        return np.abs(np.sign(np.array(self.sides)))

    @property
    def column_deviations(self) -> NDArray[np.float64]:
        """Distance of each column from the mean of the twenty closes, in their deviations, shape (C,)."""
        return np.array(self.sides) * (self.deviations or 0.0)

    def size(self, last_close: Any, share: Any = 1.0) -> Any:
        """Convert a share of the last close to the task's unit; for unitless tasks it stays the share."""
        return last_close * share if self.is_price else share

    def magnitude(self, last_close: Any, values: Any) -> Any:
        """Return the size of what values of the task are computed with, in its unit: for `v8.base.arrays`.

        A price is the last close and a move, which is a multiple of a range, which is the exponential of a
        logarithm of up to 16: a step of that is as large a share of the move as 16 steps of the move. The
        largest move of the columns counts: a lower band may be a small difference of large numbers.
        """
        start = self.size(last_close)
        moves = values - start if self.is_price else values
        return start + LARGEST_LOG_RANGE * np.abs(moves).max(axis=-1, keepdims=True)

    def floored(self, xp: Any, values: Any, reference: Any, floor: Any) -> Any:
        """Raise values, (N, H, C), to a positive minimum, so that their logarithms stay in a useful range.

        The first column of the reference, the naive forecast, represents the price level; `floor` is the
        smallest value of a unitless task.
        """
        level = PRICE_FLOOR_SHARE * xp.take(reference, [0], axis=-1)
        return xp.maximum(values, level if self.is_price else floor)


_DESCRIPTIONS: Final = read_descriptions("v8.profile", "tasks.yaml")


def _coherent_candles(xp: Any, values: Any, last: Any, least: Any) -> Any:
    """Make low <= open, close <= high, with no price below a share of the last close."""
    values = xp.maximum(values, PRICE_FLOOR_SHARE * last)
    opened = xp.take(values, [0], axis=-1)
    closed = xp.take(values, [3], axis=-1)
    high = xp.max(xp.take(values, [0, 1, 3], axis=-1), axis=-1, keepdims=True)
    low = xp.min(xp.take(values, [0, 2, 3], axis=-1), axis=-1, keepdims=True)
    return xp.concatenate([opened, high, low, closed], axis=-1)


def _bands(xp: Any, closes: Closes) -> Any:
    middle = closes.unit * closes.middle
    half_width = closes.unit * (BAND_WIDTH_STDS * closes.deviation)
    return xp.stack([middle + half_width, middle - half_width], axis=-1)


def _realised_ranges(inputs_NHI: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the log range of each bar, and from the lowest low to the highest high so far, (N, H, 2)."""
    high_NH, low_NH = np.moveaxis(inputs_NHI, -1, 0)
    highest_NH = running_largest(np, high_NH)
    lowest_NH = -running_largest(np, -low_NH)
    return np.log(np.stack([high_NH / low_NH, highest_NH / lowest_NH], axis=-1))


def _naive_ranges(xp: Any, closes: Closes) -> Any:
    """Repeat the range of a bar; that of k bars of a random walk grows with the root of k (Feller 1951)."""
    num_steps = closes.close.shape[1]
    roots = np.sqrt(np.arange(1.0, num_steps + 1)).astype(np.float32 if xp is not np else np.float64)
    return xp.stack([closes.bar_range * np.ones_like(roots), closes.bar_range * roots], axis=-1)


def _ranges_on_paths(xp: Any, task: "Task", closes: Closes, summarise: Any) -> Any:
    high = xp.take(closes.candles, OHLC.index(c.HIGH), axis=2)
    low = xp.take(closes.candles, OHLC.index(c.LOW), axis=2)
    total = running_largest(xp, high) + running_largest(xp, -low)
    return summarise(xp.stack([high - low, total], axis=2))


def _coherent_ranges(xp: Any, values: Any, last: Any, least: Any) -> Any:
    """Raise ranges above zero, and the total range to that of every bar up to it."""
    values = xp.maximum(values, least)
    total = running_largest(xp, xp.max(values, axis=-1, keepdims=True))
    return xp.concatenate([xp.take(values, [0], axis=-1), total], axis=-1)


OHLC_TASK: Final = Task(
    **_DESCRIPTIONS[c.TASK_OHLC],
    columns=OHLC,
    unit=QUOTE_CURRENCY,
    sides=(0.0, 1.0, -1.0, 0.0),
    deviations=None,
    implied=lambda xp, closes: xp.repeat(xp.expand_dims(closes.unit * closes.close, -1), len(OHLC), axis=-1),
    coherent=_coherent_candles,
    # Summarised as logarithms, in which rises and falls are symmetric.
    on_paths=lambda xp, task, closes, summarise: xp.exp(summarise(closes.candles)),
)


BANDS_TASK: Final = Task(
    **_DESCRIPTIONS[c.TASK_BANDS],
    columns=(c.BB_UPPER, c.BB_LOWER),
    unit=QUOTE_CURRENCY,
    sides=(1.0, -1.0),
    deviations=BAND_WIDTH_STDS,
    implied=_bands,
    # The upper band is the larger of the two.
    coherent=lambda xp, values, last, least: xp.flip(xp.sort(values, axis=-1), axis=-1),
)


VOLATILITY_TASK: Final = Task(
    **_DESCRIPTIONS[c.TASK_VOLATILITY],
    columns=(c.VOLATILITY,),
    unit=UNITLESS,
    sides=(1.0,),
    deviations=1.0,
    implied=lambda xp, closes: xp.expand_dims(closes.deviation / closes.middle, -1),
    coherent=lambda xp, values, last, least: xp.maximum(values, least),  # above zero
)


RANGE_TASK: Final = Task(
    **_DESCRIPTIONS[c.TASK_RANGE],
    columns=(c.BAR_RANGE, c.TOTAL_RANGE),
    unit=UNITLESS,
    sides=(1.0, 1.0),
    deviations=None,
    implied=_naive_ranges,
    coherent=_coherent_ranges,
    on_paths=_ranges_on_paths,
    inputs=(c.HIGH, c.LOW),
    realised=_realised_ranges,
    is_size=True,
)

TASKS: Final[Registry[Task]] = Registry("task", [RANGE_TASK, OHLC_TASK, BANDS_TASK, VOLATILITY_TASK])
"""Every task, in the order of every report: what is of most use comes first."""


def is_share(column: str) -> bool:
    """Return whether a forecast column, or a quantile of it, is unitless, to be written in per cent.

    >>> is_share("volatility_q5"), is_share("total_range"), is_share("close_q5")
    (True, True, False)
    """
    names = [name for task in TASKS.values() if not task.is_price for name in task.columns]
    return any(column == name or column.startswith(f"{name}_q") for name in names)


def naive_closes(xp: Any, history_close: Any, horizon_bars: int, *, has_window: bool = True) -> Closes:
    """Return the future closes of the naive forecast: the close stays at the last close.

    Bands and volatility still change, because known closes leave their window and copies of the last close
    enter it. At step k the window holds the newest 20 - k known closes and k copies of the last close. The
    ratio of a copy to the last close, minus one, is zero, so sums over the known ratios are sufficient.

    Args:
        xp: `numpy` or `keras.ops`.
        history_close: The last 20 known closes, oldest first, (N, 20), quote currency; fewer are enough
            without a window.
        horizon_bars: Steps ahead, H.
        has_window: Whether mean and deviation of the window are computed; else they are None.
    """
    last = xp.take(history_close, [history_close.shape[1] - 1], axis=1)
    close = xp.ones((1, horizon_bars))
    if not has_window:
        return Closes(last, close, None, None)
    mean, deviation = window_moments(xp, history_close / last - 1.0, horizon_bars)
    return Closes(last, close, 1.0 + mean, deviation)


def window_moments(xp: Any, history: Any, num_steps: int, path: Any = None) -> tuple[Any, Any]:
    """Return mean and sample deviation of the twenty closes that end at each step ahead.

    All closes are ratios to the last known close, minus one, unitless. k steps ahead the window holds the
    newest 20 - k known closes and the first k closes of the path.

    Args:
        xp: `numpy` or `keras.ops`.
        history: The last 20 known closes, oldest first, (N, 20).
        num_steps: Steps ahead, H.
        path: Future closes, (N, H, P); without a path they stay at the last close.

    Returns:
        Two arrays, (N, H, P), or (N, H) without a path.
    """
    total = suffix_sums(xp, history, num_steps)
    squares = suffix_sums(xp, xp.square(history), num_steps)
    if path is not None:
        total = xp.expand_dims(total, 2) + running_sums(xp, path)
        squares = xp.expand_dims(squares, 2) + running_sums(xp, xp.square(path))
    mean = total / BAND_PERIOD_BARS
    variance = (squares - BAND_PERIOD_BARS * xp.square(mean)) / (BAND_PERIOD_BARS - 1)
    return mean, xp.sqrt(xp.maximum(variance, 0.0))


def running_sums(xp: Any, steps: Any) -> Any:
    """Return cumulative sums along the second axis, shape (N, H, ...)."""
    if xp is not np:
        return xp.cumsum(steps, axis=1)
    # np.cumsum works through one path after another, which takes ten times as long.
    sums = np.array(steps)
    for step in range(1, sums.shape[1]):
        sums[:, step] += sums[:, step - 1]
    return sums


def running_largest(xp: Any, steps: Any) -> Any:
    """Return the largest value so far along the second axis, shape (N, H, ...)."""
    if xp is np:
        return np.maximum.accumulate(steps, axis=1)
    largest = [xp.take(steps, [0], axis=1)]
    for step in range(1, steps.shape[1]):
        largest.append(xp.maximum(largest[-1], xp.take(steps, [step], axis=1)))
    return xp.concatenate(largest, axis=1)


def suffix_sums(xp: Any, values: Any, num_steps: int) -> Any:
    """Sum values, (N, K), oldest first, without the oldest 1, 2, ... of them: (N, num_steps).

    A product with a triangular matrix gives the same sums, but its rounding depends on the number of rows.
    """
    sums = xp.flip(xp.cumsum(xp.flip(values, axis=1), axis=1), axis=1)
    num_missing = num_steps + 1 - values.shape[1]
    if num_missing > 0:
        sums = xp.concatenate([sums, *[xp.zeros_like(values[:, :1])] * num_missing], axis=1)
    return xp.take(sums, [*range(1, num_steps + 1)], axis=1)


def future_weights(horizon_bars: int) -> NDArray[np.float64]:
    """Return by how much a variance of one per bar raises the variance of a Bollinger window, shape (H,).

    k steps ahead, at most 20, the window holds 20 - k known closes and the first k points of a random walk
    from the last close. The expected sample variance of the twenty closes is that of the naive forecast plus
    the walk's variance per bar times the sum of the `variance_weights` of its k bars.

    >>> [round(float(weight), 3) for weight in future_weights(3)]  # (1 - 1/20) / 19 = 0.05 first
    [0.05, 0.145, 0.279]
    """
    weights: NDArray[np.float64] = variance_weights(horizon_bars).sum(axis=1)
    return weights


def variance_weights(horizon_bars: int) -> NDArray[np.float64]:
    """Return the share of each future bar's variance in the variance of a window: by step and bar, (H, H).

    k steps ahead, at most 20, bar j, at most k, has shifted the newest n = k - j + 1 of the twenty closes
    by the same amount. Shifting n of 20 values adds n (1 - n / 20) / 19 of the squared shift to their sample
    variance. Each row sums to `future_weights`.

    >>> [round(float(weight), 3) for weight in variance_weights(2)[1]]  # n = 2, then n = 1
    [0.095, 0.05]
    """
    steps = np.arange(1, horizon_bars + 1)
    moved = np.maximum(steps[:, None] - steps[None, :] + 1.0, 0.0)
    return moved * (1.0 - moved / BAND_PERIOD_BARS) / (BAND_PERIOD_BARS - 1)
