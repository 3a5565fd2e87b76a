"""What a feature is, and the formulas of indicators: pure, vectorised functions of the past.

Rules of the formulas:

- Row i of a result depends on rows 0..i of the input only (guarantee G3), and no function loops over
  rows. Loops over the 14 to 20 lags of a window do exist: adding whole shifted arrays gives every row
  the same order of additions wherever it lies, so a windowed indicator is bit-identical however much
  history was loaded before the window.
- Arrays are float64 of shape (N,), one contiguous piece of candles, oldest first. Prices are in quote
  currency and positive; volume is in base currency and not negative. `period_bars` counts the bars that a
  window holds, the newest included, and is at least 2.
- Every result is finite for such input, once its warm-up is over. Where a formula divides zero by zero
  (a flat market, a coin nobody trades) its docstring names the value that stands instead, and why.

The formulas are those of the lineage (V7, V8_STABLE, V8_ALIGNED).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from typing import Final

import numpy as np

from v8.arrays import FloatArray
from v8.registry import Named


class Kind(Enum):
    """What kind of number a column holds; it decides how `anchored` scaling treats the column."""

    PRICE = "a price level, in quote currency"
    PRICE_CHANGE = "a difference of prices, in quote currency"
    AMOUNT = "an amount in quote currency, of any sign"
    OTHER = "a number in another unit"
    POSITIVE = "a skewed positive number, unitless"
    CENTRED = "a bounded or roughly symmetric number, unitless or percent"


ANCHORED_KINDS: Final = frozenset({Kind.PRICE, Kind.PRICE_CHANGE, Kind.AMOUNT})
"""What `anchored` scaling measures from a close, or in closes, of the same candles."""


@dataclass(frozen=True)
class Formula:
    """How one column or stage comes from candles, from other columns or from a shared stage.

    The version is raised whenever the function computes something else, or tells the package that computes it
    and its version; it is part of the digest, and `is_windowed` is not, which says nothing of what a column
    means.
    """

    function: Callable[..., FloatArray]  # takes one array per input, then the parameters by keyword
    inputs: tuple[str, ...]  # names of candle columns, features or stages
    parameters: Mapping[str, float | None] = field(default_factory=dict)  # every number, in bars or unitless
    warmup_bars: int = 0  # first rows of a contiguous piece that are not valid although all inputs are
    version: int | str = 1
    is_windowed: bool = False  # whether a row needs its warm-up alone, not all of its contiguous piece


@dataclass(frozen=True)
class Feature(Named):
    """A column that a profile can name."""

    kind: Kind
    formula: Formula | None = None  # None for a price of the candle itself


def ewm_mean(values: FloatArray, newest_weight: float) -> FloatArray:
    """Smooth values of any unit from the first on: y = (1 - w) * y + w * x; a constant stays exactly so."""
    import pandas as pd  # noqa: PLC0415 - profiles name indicators, and reading one must not wait for pandas

    return pd.Series(values).ewm(alpha=newest_weight, adjust=False).mean().to_numpy(dtype=np.float64)


def rsi(close: FloatArray, period_bars: int) -> FloatArray:
    """Compute Wilder's relative strength index (New Concepts in Technical Trading Systems, 1978), 0 to 100.

    100 * average gain / (average gain + average loss), both smoothed with weight 1 / period. Only gains so
    far give 100, only losses 0, and a market that has not moved at all 50: neither side is stronger.
    """
    change = np.diff(close, prepend=close[:1])
    gain = ewm_mean(np.maximum(change, 0.0), 1.0 / period_bars)
    moved = gain + ewm_mean(np.maximum(-change, 0.0), 1.0 / period_bars)
    return 100.0 * ratio(gain, moved, where_zero=0.5)


def macd(close: FloatArray, fast_bars: int, slow_bars: int) -> FloatArray:
    """Subtract the slow exponential average of the close from the fast one, in quote currency.

    The newest weight of an average is 2 / (span + 1); exactly 0 in a flat market.
    """
    return ewm_mean(close, 2.0 / (fast_bars + 1)) - ewm_mean(close, 2.0 / (slow_bars + 1))


def macd_signal(macd_line: FloatArray, signal_bars: int) -> FloatArray:
    """Smooth the MACD line exponentially, in quote currency like it; the span is in bars."""
    return ewm_mean(macd_line, 2.0 / (signal_bars + 1))


def close_moments(close: FloatArray, period_bars: int) -> FloatArray:
    """Compute the simple average of the close, as its distance from the close, and the deviation.

    Two passes over the differences from the newest close of each window. The differences keep every digit of
    a price near 1e-5 as well as of one near 1e5, and make both results exactly zero for a flat window;
    running sums, which are faster, lose up to half of the digits. Shape (2, N), quote currency: average minus
    close, and sample standard deviation (divisor period - 1). The first period - 1 columns are NaN.
    """
    *earlier, newest = windows(close, period_bars)
    differences = [closes - newest for closes in earlier]
    mean = reduce(np.add, differences) / period_bars
    squares = mean * mean  # the newest close's own difference is zero
    for difference in differences:
        np.subtract(difference, mean, out=difference)
        squares += np.square(difference, out=difference)
    return np.stack([late(each, len(close)) for each in (mean, np.sqrt(squares / (period_bars - 1)))])


def bollinger_band(close: FloatArray, moments: FloatArray, stds: float) -> FloatArray:
    """Place a Bollinger band `stds` sample deviations of `close_moments` above the simple average.

    Negative for the lower band (Bollinger on Bollinger Bands, 2001). Quote currency; the close itself in a
    flat market.
    """
    return close + (moments[0] + stds * moments[1])


def relative_deviation(close: FloatArray, moments: FloatArray, stds: float) -> FloatArray:
    """Divide so many sample deviations of `close_moments` by the simple average: volatility (1) or width (4).

    Unitless, not negative; 0 in a flat market.
    """
    return stds * moments[1] / (close + moments[0])


def band_position(moments: FloatArray, stds: float) -> FloatArray:
    """Say where the close lies between the lower band (0) and the upper band (1), or beyond; unitless.

    The bands are `stds` sample deviations of `close_moments` from the average. Where they coincide (a flat
    market) the close is in their middle: 0.5.
    """
    reach = stds * moments[1]
    return ratio(reach - moments[0], 2.0 * reach, where_zero=0.5)


def atr(high: FloatArray, low: FloatArray, close: FloatArray, period_bars: int) -> FloatArray:
    """Average the true range, plainly rather than with Wilder's smoothing, as the lineage does.

    The true range is max(high, previous close) - min(low, previous close) (Wilder, 1978); the first bar has
    no previous close and therefore none. Quote currency, not negative; the first `period_bars` rows are NaN.
    """
    previous = close[:-1]
    true_range = np.maximum(high[1:], previous) - np.minimum(low[1:], previous)
    return late(moving_mean(true_range, period_bars), len(close))


def roc(close: FloatArray, period_bars: int) -> FloatArray:
    """Compute the change from the close `period_bars` before, in percent of it; NaN in the first rows."""
    earlier = close[:-period_bars]
    return late(100.0 * (close[period_bars:] - earlier) / earlier, len(close))


def volume_norm(volume: FloatArray, period_bars: int) -> FloatArray:
    """Divide the volume by its simple average: unitless, between 0 and `period_bars`; NaN in the first rows.

    A window without any trade counts as ordinary: 1, the value of a volume equal to its average.
    """
    return ratio(volume, moving_mean(volume, period_bars), where_zero=1.0)


def moving_mean(values: FloatArray, period_bars: int) -> FloatArray:
    """Average the newest values, of any unit; the first `period_bars` - 1 rows are NaN."""
    return late(reduce(np.add, windows(values, period_bars)) / period_bars, len(values))


def windows(values: FloatArray, period_bars: int) -> FloatArray:
    """View all windows of N values at once, as `sliding_window_view` does in twenty times the time.

    Shape (period_bars, N - period_bars + 1), or (period_bars, 0) where no window is full: the oldest value of
    every window, then the next ones.
    """
    values = np.ascontiguousarray(values)
    shape = period_bars, max(0, len(values) - period_bars + 1)
    return np.ndarray(shape, values.dtype, values, strides=2 * values.strides)


def late(values: FloatArray, num_rows: int) -> FloatArray:
    """Put NaN before values, up to so many rows."""
    return np.concatenate([np.full(num_rows - len(values), np.nan), values])


def ratio(part: FloatArray, whole: FloatArray, *, where_zero: float) -> FloatArray:
    """Divide part by whole, with a result of its own where the whole is zero."""
    return np.divide(part, whole, out=np.full(len(whole), where_zero), where=whole != 0.0)


PARKINSON: Final = 4.0 * np.log(2.0)
"""Mean squared log range of a random walk over its variance (Parkinson 1980, doi:10.1086/296071)."""

RECENT_WEIGHTS: Final = (0.25, 0.35, 0.25, 0.15)
"""Exponents of the deviations over 5, 20, 60 and 240 bars in `recent_range`; they add up to one."""

FLOOR_SHARE: Final = 0.02
"""A deviation below this share of the longest one is raised to it: a dead hour is no law of nature."""

MAX_MOVE: Final = 6.0  # moves above so many times their usual size count as this many
MAX_ROLLED: Final = 10.0  # likewise for distances and deviations of closes within twenty bars

DAY_S: Final = 86_400
PERIODS_S: Final = {"day": DAY_S, "week": 7 * DAY_S}
MONDAY_S: Final = 4 * DAY_S  # 1970-01-05 00:00 UTC, the first Monday of the epoch

WAVE_DECIMALS: Final = 9
"""Digits of a wave: more than single precision holds, fewer than rounding errors reach."""


def range_deviation(high: FloatArray, low: FloatArray, period_bars: int) -> FloatArray:
    """Estimate the deviation of one bar's log return from the newest ranges (Parkinson), unitless."""
    squares = np.square(np.log(high / low))
    return np.sqrt((moving_mean(squares, period_bars) if period_bars > 1 else squares) / PARKINSON)


def realised_deviation(close: FloatArray, period_bars: int) -> FloatArray:
    """Root of the mean squared log return of the newest `period_bars` returns, unitless; NaN before."""
    squares = np.square(np.diff(np.log(close)))
    return late(np.sqrt(moving_mean(squares, period_bars)), len(close))


def recent_range(
    shortest: FloatArray, short: FloatArray, long: FloatArray, longest: FloatArray
) -> FloatArray:
    """Blend deviations over four horizons geometrically: the move to expect of the next bar, unitless.

    The weights follow the heterogeneous autoregression of Corsi (2009, doi:10.1093/jjfinec/nbp001): people
    trade on several horizons, and each leaves its trace. It is 0 where the longest is, where nothing has
    moved for as long.
    """
    floor = FLOOR_SHARE * longest
    blend = np.ones_like(longest)
    for deviation, weight in zip((shortest, short, long, longest), RECENT_WEIGHTS, strict=True):
        blend *= np.maximum(deviation, floor) ** weight
    return blend


def share_of_recent(deviation: FloatArray, recent: FloatArray) -> FloatArray:
    """Divide a deviation by `recent_range`, both unitless; 1 in a market that stands still."""
    return ratio(deviation, recent, where_zero=1.0)


def move(close: FloatArray, recent: FloatArray, period_bars: int) -> FloatArray:
    """Size of the move over some bars, in multiples of the usual one: `recent` times the root of the bars.

    From 0 to `MAX_MOVE`; the first `period_bars` rows are NaN.
    """
    size = late(np.abs(np.log(close[period_bars:] / close[:-period_bars])), len(close))
    return np.minimum(ratio(size, np.sqrt(period_bars) * recent, where_zero=0.0), MAX_MOVE)


def wave(open_time_s: FloatArray, period_s: int, num_waves: int, is_cosine: bool) -> FloatArray:
    """Turn the time of the day or week (seconds since 1970, UTC) into a number without a jump at midnight.

    A period starts on a Monday at midnight and has `num_waves`. Between -1 and 1, rounded: where every bar
    meets a wave at zero (three waves a day at four hours a bar), errors of 1e-16 would be all there is, and
    scaling brings that to unit size.
    """
    angle: FloatArray = 2.0 * np.pi * num_waves * np.mod(open_time_s - MONDAY_S, period_s) / period_s
    exact: FloatArray = np.cos(angle) if is_cosine else np.sin(angle)
    return exact.round(WAVE_DECIMALS)


def rolled_moments(close: FloatArray, period_bars: int, num_steps: int) -> FloatArray:
    """Average and deviate the closes of a window of which the first steps ahead repeat the last close.

    These are the naive forecast Bollinger bands: `k` steps ahead, below `period_bars`, the window holds the
    newest period - k known closes and k times the last one. Shape (2, num_steps, N), as shares of the last
    close: average minus last close, and sample deviation. The first `period_bars` - 1 rows are NaN.
    """
    closes = windows(close, period_bars)
    moments = np.full((2, num_steps, len(close)), np.nan)
    total, squares = np.zeros((2, closes.shape[1]))
    for step in reversed(range(1, period_bars - 1)):
        distance = closes[step] / closes[-1] - 1.0
        total += distance
        squares += distance * distance
        if step <= num_steps:
            mean = total / period_bars
            variance = (squares - period_bars * mean * mean) / (period_bars - 1)
            moments[:, step - 1, period_bars - 1 :] = mean, np.sqrt(np.maximum(variance, 0.0))
    return moments


def rolled_middle(moments: FloatArray, recent: FloatArray, step: int) -> FloatArray:
    """Distance of the middle of `rolled_moments` from the last close, in recent ranges, without its sign."""
    return np.minimum(ratio(np.abs(moments[0, step - 1]), recent, where_zero=0.0), MAX_ROLLED)


def rolled_deviation(moments: FloatArray, recent: FloatArray, step: int) -> FloatArray:
    """Deviation of `rolled_moments`, in recent ranges; steps ahead count from 1."""
    return np.minimum(ratio(moments[1, step - 1], recent, where_zero=0.0), MAX_ROLLED)
