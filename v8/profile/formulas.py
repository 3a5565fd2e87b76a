"""Features: their definition, the formulas of indicators, and tests for look-ahead of what is not part of v8.

Rules of the formulas, which are pure, vectorised functions of past candles:

- Row i of a result depends on rows 0..i of the input only, and no function loops over rows.
  Some loop over the 14 to 20 lags of a window: adding whole shifted arrays sums every row in the same order,
  wherever the row lies, so a windowed indicator is bit-identical whatever history was loaded before its
  window.
- Arrays are float64 of shape (N,), one contiguous segment of candles, oldest first. Prices are in quote
  currency and positive; volume is in base currency and not negative. `period_bars` is the number of bars in a
  window, the newest included, and is at least 2.
- After the warm-up every result is finite for such input. Where a formula divides zero by zero (a flat
  market, a coin without trades), its docstring names the value used instead, and why.

The formulas are those of the lineage (V7, V8_STABLE, V8_ALIGNED).

Features of the package `ta` and of plug-ins are examined on synthetic candles. The value of a feature at a
candle may depend on the candles up to this one only. So the values at the first candles must not change with
later candles, nor when they are computed again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, reduce
from typing import Final, TypeAlias

import numpy as np

from v8.base.arrays import FloatArray
from v8.base.registry import Named
from v8.profile.columns import CLOSE, HIGH, LOW, OPEN, OPEN_TIME, VOLUME


class Kind(Enum):
    """Kind of number in a column; it decides how `anchored` scaling treats the column."""

    PRICE = "a price level, in quote currency"
    PRICE_CHANGE = "a difference of prices, in quote currency"
    AMOUNT = "an amount in quote currency, of any sign"
    OTHER = "a number in another unit"
    POSITIVE = "a skewed positive number, unitless"
    CENTRED = "a bounded or roughly symmetric number, unitless or percent"


ANCHORED_KINDS: Final = frozenset({Kind.PRICE, Kind.PRICE_CHANGE, Kind.AMOUNT})
"""Kinds that `anchored` scaling expresses relative to a close of the same candles."""


@dataclass(frozen=True)
class Formula:
    """How a column or stage is computed from candles, other columns or stages.

    A stage is an intermediate result that several columns share. The version is raised whenever the function
    computes something else, or it names the package that computes the values, with its version. It is part of
    the digest; `is_windowed` is not, because it does not change the meaning of a column.
    """

    function: Callable[..., FloatArray]  # takes one array per input, then the parameters by keyword
    inputs: tuple[str, ...]  # names of candle columns, features or stages
    parameters: Mapping[str, float | None] = field(default_factory=dict)  # all numbers, in bars or unitless
    warmup_bars: int = 0  # first rows of a contiguous segment that are not valid although all inputs are
    version: int | str = 1
    is_windowed: bool = False  # whether a row depends on its warm-up only, not on all of its segment


@dataclass(frozen=True)
class Feature(Named):
    """A column that a profile can name."""

    kind: Kind
    formula: Formula | None = None  # None for a price of the candle itself


def ewm_mean(values: FloatArray, newest_weight: float) -> FloatArray:
    """Smooth values of any unit from the first on: y = (1 - w) * y + w * x; exact for a constant."""
    import pandas as pd  # noqa: PLC0415 - profiles name indicators, and reading one must not wait for pandas

    return pd.Series(values).ewm(alpha=newest_weight, adjust=False).mean().to_numpy(dtype=np.float64)


def rsi(close: FloatArray, period_bars: int) -> FloatArray:
    """Compute Wilder's relative strength index (New Concepts in Technical Trading Systems, 1978), 0 to 100.

    100 * average gain / (average gain + average loss), both smoothed with weight 1 / period. It is 100 if
    there were only gains so far, 0 if there were only losses, and 50 if the price has not moved: neither side
    is stronger.
    """
    change = np.diff(close, prepend=close[:1])
    average_gain = ewm_mean(np.maximum(change, 0.0), 1.0 / period_bars)
    average_loss = ewm_mean(np.maximum(-change, 0.0), 1.0 / period_bars)
    return 100.0 * ratio(average_gain, average_gain + average_loss, where_zero=0.5)


def macd(close: FloatArray, fast_bars: int, slow_bars: int) -> FloatArray:
    """Subtract the slow exponential average of the close from the fast one, in quote currency.

    The newest weight of an average is 2 / (span + 1); exactly 0 in a flat market.
    """
    return ewm_mean(close, 2.0 / (fast_bars + 1)) - ewm_mean(close, 2.0 / (slow_bars + 1))


def macd_signal(macd_line: FloatArray, signal_bars: int) -> FloatArray:
    """Smooth the MACD line exponentially, in quote currency like it; the span is in bars."""
    return ewm_mean(macd_line, 2.0 / (signal_bars + 1))


def close_moments(close: FloatArray, period_bars: int) -> FloatArray:
    """Compute the simple average of the close, as its distance from the newest close, and the deviation.

    Two passes over the differences from the newest close of each window. The differences keep all digits of
    prices near 1e-5 as well as near 1e5, and both results are exactly zero for a flat window; running sums,
    which are faster, lose up to half of the digits.

    Returns:
        Shape (2, N), quote currency: average minus newest close, and sample standard deviation (divisor
        period - 1). The first period - 1 columns are NaN.
    """
    closes = windows(close, period_bars)
    newest = closes[-1]
    differences = [earlier - newest for earlier in closes[:-1]]
    mean = reduce(np.add, differences) / period_bars
    squares = mean * mean  # the deviation of the newest close, whose difference is zero
    for difference in differences:
        np.subtract(difference, mean, out=difference)
        squares += np.square(difference, out=difference)
    deviation = np.sqrt(squares / (period_bars - 1))
    return np.stack([pad_start(mean, len(close)), pad_start(deviation, len(close))])


def bollinger_band(close: FloatArray, moments: FloatArray, stds: float) -> FloatArray:
    """Compute a Bollinger band: simple average plus `stds` sample deviations (Bollinger, 2001).

    `stds` is negative for the lower band; the moments are those of `close_moments`. Quote currency; in a flat
    market the band is the close itself.
    """
    return close + (moments[0] + stds * moments[1])


def relative_deviation(close: FloatArray, moments: FloatArray, stds: float) -> FloatArray:
    """Divide `stds` sample deviations by the simple average: the volatility for 1, the band width for 4.

    The moments are those of `close_moments`. Unitless, not negative; 0 in a flat market.
    """
    return stds * moments[1] / (close + moments[0])


def band_position(moments: FloatArray, stds: float) -> FloatArray:
    """Compute the position of the close: 0 at the lower band, 1 at the upper band, possibly beyond; unitless.

    The bands are `stds` sample deviations from the average, both of `close_moments`. Where they coincide (a
    flat market), the close is in their middle: 0.5.
    """
    half_width = stds * moments[1]
    above_lower = half_width - moments[0]
    return ratio(above_lower, 2.0 * half_width, where_zero=0.5)


def atr(high: FloatArray, low: FloatArray, close: FloatArray, period_bars: int) -> FloatArray:
    """Compute the simple average of the true range; the lineage does not use Wilder's smoothing.

    The true range is max(high, previous close) - min(low, previous close) (Wilder, 1978); the first bar has
    no previous close and therefore no true range. Quote currency, not negative; the first `period_bars` rows
    are NaN.
    """
    previous = close[:-1]
    true_range = np.maximum(high[1:], previous) - np.minimum(low[1:], previous)
    return pad_start(moving_mean(true_range, period_bars), len(close))


def roc(close: FloatArray, period_bars: int) -> FloatArray:
    """Compute the change from the close `period_bars` before, in percent of it; NaN in the first rows."""
    earlier = close[:-period_bars]
    return pad_start(100.0 * (close[period_bars:] - earlier) / earlier, len(close))


def volume_norm(volume: FloatArray, period_bars: int) -> FloatArray:
    """Divide the volume by its simple average: unitless, between 0 and `period_bars`; NaN in the first rows.

    In a window without any trade it is 1, the value of a volume equal to its average.
    """
    return ratio(volume, moving_mean(volume, period_bars), where_zero=1.0)


def moving_mean(values: FloatArray, period_bars: int) -> FloatArray:
    """Average the newest values, of any unit; the first `period_bars` - 1 rows are NaN."""
    return pad_start(reduce(np.add, windows(values, period_bars)) / period_bars, len(values))


def windows(values: FloatArray, period_bars: int) -> FloatArray:
    """Return a view of all windows of N values, twenty times as fast as `sliding_window_view`.

    The shape is (period_bars, N - period_bars + 1), or (period_bars, 0) if no window is complete. The first
    axis goes from the oldest to the newest value of a window.
    """
    values = np.ascontiguousarray(values)
    shape = (period_bars, max(0, len(values) - period_bars + 1))
    return np.ndarray(shape, values.dtype, values, strides=2 * values.strides)


def pad_start(values: FloatArray, num_rows: int) -> FloatArray:
    """Prepend NaN to values, up to so many rows."""
    return np.concatenate([np.full(num_rows - len(values), np.nan), values])


def ratio(part: FloatArray, whole: FloatArray, *, where_zero: float) -> FloatArray:
    """Divide `part` by `whole`; the result is `where_zero` where `whole` is zero."""
    return np.divide(part, whole, out=np.full(len(whole), where_zero), where=whole != 0.0)


RANGE_TO_VARIANCE: Final = np.pi / 8
"""Variance of a random walk over its squared mean range: E[range] = sqrt(8 / pi) deviations (Feller 1951,
doi:10.1214/aoms/1177729589). The mean of squared ranges (Parkinson 1980) would remember one wild bar as long
as its window: see docs/research/frontier.md."""

RECENT_WEIGHTS: Final = (0.25, 0.35, 0.25, 0.15)
"""Exponents of the deviations over 5, 20, 60 and 240 bars in `recent_range`; they add up to one."""

FLOOR_SHARE: Final = 0.02
"""A deviation below this share of the longest one is raised to it: an hour without trades must not
dominate."""

MAX_MOVE: Final = 6.0  # upper limit of moves, in multiples of their usual size
MAX_ROLLED: Final = 10.0  # the same for distances and deviations of closes within twenty bars

DAY_S: Final = 86_400
PERIODS_S: Final = {"day": DAY_S, "week": 7 * DAY_S}
MONDAY_S: Final = 4 * DAY_S  # 1970-01-05 00:00 UTC, the first Monday of the epoch

WAVE_DECIMALS: Final = 9
"""Decimals of a wave: more than single precision holds, and too few for rounding errors to show."""


def range_deviation(high: FloatArray, low: FloatArray, period_bars: int) -> FloatArray:
    """Estimate the deviation of one bar's log return from the mean of the newest log ranges, unitless."""
    ranges = np.log(high / low)
    mean_range = moving_mean(ranges, period_bars) if period_bars > 1 else ranges
    return np.sqrt(RANGE_TO_VARIANCE) * mean_range


def realised_deviation(close: FloatArray, period_bars: int) -> FloatArray:
    """Compute the root mean square of the newest log returns, unitless; NaN in the first rows."""
    squares = np.square(np.diff(np.log(close)))
    return pad_start(np.sqrt(moving_mean(squares, period_bars)), len(close))


def recent_range(
    shortest: FloatArray, short: FloatArray, long: FloatArray, longest: FloatArray
) -> FloatArray:
    """Compute the weighted geometric mean of deviations over four horizons: the expected next move.

    Horizons as in the heterogeneous autoregression of Corsi (2009, doi:10.1093/jjfinec/nbp001): traders with
    different horizons all influence the volatility. Unitless; 0 where the longest deviation is 0, that is,
    where the price has not moved for so long.
    """
    floor = FLOOR_SHARE * longest
    blend = np.ones_like(longest)
    for deviation, weight in zip((shortest, short, long, longest), RECENT_WEIGHTS, strict=True):
        blend *= np.maximum(deviation, floor) ** weight
    return blend


def share_of_recent(deviation: FloatArray, recent: FloatArray) -> FloatArray:
    """Divide a deviation by `recent_range`, both unitless; 1 in a flat market."""
    return ratio(deviation, recent, where_zero=1.0)


def move(close: FloatArray, recent: FloatArray, period_bars: int) -> FloatArray:
    """Compute the absolute log return over some bars, in multiples of its usual size.

    The usual size is `recent` times the square root of the number of bars, as for a random walk. From 0 to
    `MAX_MOVE`; the first `period_bars` rows are NaN.
    """
    log_return = np.log(close[period_bars:] / close[:-period_bars])
    size = pad_start(np.abs(log_return), len(close))
    usual_size = np.sqrt(period_bars) * recent
    return np.minimum(ratio(size, usual_size, where_zero=0.0), MAX_MOVE)


def wave(open_time_s: FloatArray, period_s: int, num_waves: int, is_cosine: bool) -> FloatArray:
    """Encode the time of the day or week (seconds since 1970, UTC) as a sine or cosine wave.

    A period starts on a Monday at midnight and has `num_waves` waves. Between -1 and 1, rounded: where all
    bars lie at zeros of a wave (three waves a day with bars of four hours), only rounding errors of 1e-16
    would be left, and scaling would enlarge them to unit size.
    """
    angle: FloatArray = 2.0 * np.pi * num_waves * np.mod(open_time_s - MONDAY_S, period_s) / period_s
    exact: FloatArray = np.cos(angle) if is_cosine else np.sin(angle)
    return exact.round(WAVE_DECIMALS)


def rolled_moments(close: FloatArray, period_bars: int, num_steps: int) -> FloatArray:
    """Compute mean and deviation of the naive forecast's Bollinger window: future closes repeat the last one.

    k steps ahead, k < `period_bars`, the window holds the newest period - k known closes and k copies of the
    last one.

    Returns:
        Shape (2, num_steps, N), as shares of the last close: average minus last close, and sample deviation.
        The first `period_bars` - 1 rows are NaN.
    """
    closes = windows(close, period_bars)
    moments = np.full((2, num_steps, len(close)), np.nan)
    total = np.zeros(closes.shape[1])
    squares = np.zeros(closes.shape[1])
    for step in reversed(range(1, period_bars - 1)):
        distance = closes[step] / closes[-1] - 1.0
        total += distance
        squares += distance * distance
        if step <= num_steps:
            mean = total / period_bars
            variance = (squares - period_bars * mean * mean) / (period_bars - 1)
            moments[0, step - 1, period_bars - 1 :] = mean
            moments[1, step - 1, period_bars - 1 :] = np.sqrt(np.maximum(variance, 0.0))
    return moments


def rolled_middle(moments: FloatArray, recent: FloatArray, step: int) -> FloatArray:
    """Return the absolute distance of the mean of `rolled_moments` from the last close, in recent ranges."""
    return np.minimum(ratio(np.abs(moments[0, step - 1]), recent, where_zero=0.0), MAX_ROLLED)


def rolled_deviation(moments: FloatArray, recent: FloatArray, step: int) -> FloatArray:
    """Return the deviation of `rolled_moments`, in recent ranges; steps ahead count from 1."""
    return np.minimum(ratio(moments[1, step - 1], recent, where_zero=0.0), MAX_ROLLED)


Market: TypeAlias = Mapping[str, FloatArray]
"""Columns of candles by name, each of shape (N,)."""

Compute: TypeAlias = Callable[[Market], FloatArray]
"""Computes the values of a feature, shape (N,), from columns of candles."""

BAR_S: Final = 900

_WILD: Final = 1e9 / 7.0
"""Factor of the later prices and volumes: so large that its effect on earlier values is always visible."""


def first_unstable_row(
    compute: Compute, market: Market, *, first: int = 0, resolution: float = 0.0
) -> int | None:
    """Return the first row whose value differs when it is computed again; None if none does.

    Args:
        compute: The feature.
        market: Columns of candles.
        first: Rows before this one, such as a warm-up, are not compared.
        resolution: Largest difference that is ignored, as a share of the largest value.
    """
    return _first_difference(compute(market), compute(market), first, resolution)


def first_lookahead_row(
    compute: Compute,
    market: Market,
    nums_known: Iterable[int],
    *,
    first: int = 0,
    resolution: float = 0.0,
) -> int | None:
    """Return the first row whose value changes with later candles; None if none does.

    Args:
        compute: The feature.
        market: Columns of candles.
        nums_known: For each number, the values of so many first candles are compared: computed from these
            alone, and from all candles, with the later ones changed.
        first: Rows before this one, such as a warm-up, are not compared.
        resolution: Largest difference that is ignored, as a share of the largest value.
    """
    for num_known in nums_known:
        truncated = compute({name: values[:num_known] for name, values in market.items()})
        for factor in (
            _WILD,
            1.0 / _WILD,
        ):  # a minimum, for example, would not show later values that are higher
            full = compute(_with_changed_future(market, num_known, factor))
            row = _first_difference(truncated, full[:num_known], first, resolution)
            if row is not None:
                return row
    return None


def _with_changed_future(market: Market, num_known: int, factor: float) -> Market:
    """Multiply all prices and volumes after the first candles by a factor."""
    changed = {name: values.copy() for name, values in market.items()}
    for name, values in changed.items():
        if name != OPEN_TIME:
            values[num_known:] *= factor
        values.setflags(write=False)
    return changed


def _first_difference(values: FloatArray, others: FloatArray, first: int, resolution: float) -> int | None:
    """Return the first row from `first` on in which two arrays differ; None if they are equal."""
    if len(values) != len(others):
        return min(len(values), len(others))
    finite = np.abs(values[first:][np.isfinite(values[first:])])
    tolerance = resolution * finite.max(initial=0.0)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        is_same = np.abs(values - others) <= tolerance
    is_same |= (values == others) | (np.isnan(values) & np.isnan(others))
    differing = np.flatnonzero(~is_same[first:])
    return first + int(differing[0]) if len(differing) else None


@cache
def synthetic_market(num_rows: int) -> Market:
    """Draw candles with quiet, wild and trending days, equal on every machine; the arrays are read-only."""
    # RandomState is the only generator of NumPy whose numbers are guaranteed not to change.
    random = np.random.RandomState(20_261_122)
    num_days = num_rows // 64 + 1
    size = np.repeat(random.choice([0.001, 0.004, 0.02], num_days), 64)[:num_rows]
    drift = np.repeat(random.choice([-0.5, 0.0, 0.0, 0.5], num_days), 64)[:num_rows]
    returns = (random.standard_normal(num_rows) + drift) * size
    close = 100.0 * np.exp(np.cumsum(returns - returns.mean()))
    opened = np.concatenate([close[:1], close[:-1]])
    reach = random.uniform(0.0, 1.0, (2, num_rows)) * size
    market = {
        OPEN: opened,
        HIGH: np.maximum(opened, close) * (1.0 + reach[0]),
        LOW: np.minimum(opened, close) * (1.0 - reach[1]),
        CLOSE: close,
        VOLUME: random.gamma(2.0, 10.0, num_rows),
    }
    for values in market.values():
        values.setflags(write=False)
    return market
