"""Indicator formulas: pure, vectorised functions of the past.

Rules of this module:

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

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHORT_ROWS: Final = 512
"""Up to so many rows, calling pandas takes longer than its work does in plain Python."""


class Average:
    """The exponential averages that one formula takes, which can go on where they stood.

    Args:
        stood: Where each of them stood, in the order in which the formula takes them; none of them when they
            begin with their values.
        row: Row of the values at which they stood; they are NaN before it.
    """

    def __init__(self, stood: Sequence[float] = (), row: int = 0) -> None:
        self._stood, self._row = stood, row
        self.newest: list[float] = []
        """Where each of them stands after the last row."""

    def __call__(self, values: Floats, newest_weight: float) -> Floats:
        """Return `ewm_mean` of values from their beginning, or go on from where the average stood."""
        if self._stood:
            stood = self._stood[len(self.newest)]
            rest = ewm_mean(np.concatenate([[stood], values[self._row + 1 :]]), newest_weight)
            smooth = np.concatenate([np.full(self._row, np.nan), rest])
        else:
            smooth = ewm_mean(values, newest_weight)
        self.newest += smooth[-1:].tolist()
        return smooth


def rsi(close: Floats, period_bars: int, average: Average | None = None) -> Floats:
    """Compute Wilder's relative strength index (New Concepts in Technical Trading Systems, 1978).

    100 * average gain / (average gain + average loss), both smoothed with weight 1 / period. Only gains
    so far give 100, only losses 0, and a market that has not moved at all 50: neither side is stronger.

    Returns:
        Shape (N,), between 0 and 100, unitless.
    """
    change = np.diff(close, prepend=close[:1])
    average = average or Average()
    gain = average(np.maximum(change, 0.0), 1.0 / period_bars)
    moved = gain + average(np.maximum(-change, 0.0), 1.0 / period_bars)
    return 100.0 * ratio(gain, moved, where_zero=0.5)


def macd(close: Floats, fast_bars: int, slow_bars: int, average: Average | None = None) -> Floats:
    """Subtract the slow exponential average of the close from the fast one.

    Args:
        close: Shape (N,), quote currency.
        fast_bars: Span of the fast average, in bars; its newest weight is 2 / (span + 1).
        slow_bars: Span of the slow average, in bars.
        average: What takes the averages; they begin with the first row when None.

    Returns:
        Shape (N,), quote currency; exactly 0 in a flat market.
    """
    average = average or Average()
    return average(close, 2.0 / (fast_bars + 1)) - average(close, 2.0 / (slow_bars + 1))


def macd_signal(macd_line: Floats, signal_bars: int, average: Average | None = None) -> Floats:
    """Smooth the MACD line exponentially, in quote currency like it; the span is in bars."""
    return (average or Average())(macd_line, 2.0 / (signal_bars + 1))


def close_moments(close: Floats, period_bars: int) -> Floats:
    """Compute the simple average of the close, as its distance from the close, and the deviation.

    Two passes over the differences from the newest close of each window. The differences keep every
    digit of a price near 1e-5 as well as of one near 1e5, and make both results exactly zero for a flat
    window; running sums, which are faster, lose up to half of the digits.

    Returns:
        Shape (2, N), quote currency: average minus close, and sample standard deviation (divisor
        period - 1). The first period - 1 columns are NaN.
    """
    moments = np.full((2, len(close)), np.nan)
    if len(close) < period_bars:
        return moments
    *earlier, newest = windows(close, period_bars)
    differences = [closes - newest for closes in earlier]
    mean = reduce(np.add, differences) / period_bars
    squares = mean * mean  # the newest close's own difference is zero
    for difference in differences:
        np.subtract(difference, mean, out=difference)
        squares += np.square(difference, out=difference)
    moments[0, period_bars - 1 :] = mean
    moments[1, period_bars - 1 :] = np.sqrt(squares / (period_bars - 1))
    return moments


def bollinger_band(close: Floats, moments: Floats, stds: float) -> Floats:
    """Place a Bollinger band `stds` sample deviations of `close_moments` above the simple average.

    Negative for the lower band (Bollinger on Bollinger Bands, 2001).

    Returns:
        Shape (N,), quote currency; the close itself in a flat market.
    """
    return close + (moments[0] + stds * moments[1])


def relative_deviation(close: Floats, moments: Floats, stds: float) -> Floats:
    """Divide so many sample deviations of `close_moments` by the simple average: volatility (1) or width (4).

    Returns:
        Shape (N,), unitless, not negative; 0 in a flat market.
    """
    return stds * moments[1] / (close + moments[0])


def band_position(moments: Floats, stds: float) -> Floats:
    """Say where the close lies between the lower band (0) and the upper band (1).

    The bands are `stds` sample deviations of `close_moments` from the average. Where they coincide (a flat
    market) the close is in their middle: 0.5.

    Returns:
        Shape (N,), unitless; may leave 0..1.
    """
    reach = stds * moments[1]
    return ratio(reach - moments[0], 2.0 * reach, where_zero=0.5)


def atr(high: Floats, low: Floats, close: Floats, period_bars: int) -> Floats:
    """Average the true range, plainly rather than with Wilder's smoothing, as the lineage does.

    The true range is max(high, previous close) - min(low, previous close) (Wilder, 1978); the first bar
    has no previous close and therefore none.

    Returns:
        Shape (N,), quote currency, not negative; the first `period_bars` rows are NaN.
    """
    previous = close[:-1]
    true_range = np.maximum(high[1:], previous) - np.minimum(low[1:], previous)
    return np.concatenate([np.full(min(1, len(close)), np.nan), moving_mean(true_range, period_bars)])


def roc(close: Floats, period_bars: int) -> Floats:
    """Compute the rate of change between closes that lie `period_bars` apart.

    Returns:
        Shape (N,), percent of the earlier close; the first `period_bars` rows are NaN.
    """
    change_pct = np.full(len(close), np.nan)
    earlier = close[: max(0, len(close) - period_bars)]
    change_pct[period_bars:] = 100.0 * (close[period_bars:] - earlier) / earlier
    return change_pct


def volume_norm(volume: Floats, period_bars: int) -> Floats:
    """Divide the volume by its simple average.

    A window without any trade counts as ordinary: 1, the value of a volume equal to its average.

    Returns:
        Shape (N,), unitless, between 0 and `period_bars`; the first `period_bars` - 1 rows are NaN.
    """
    return ratio(volume, moving_mean(volume, period_bars), where_zero=1.0)


def ewm_mean(values: Floats, newest_weight: float) -> Floats:
    """Smooth values of any unit from the first on: y = (1 - w) * y + w * x; a constant stays exactly so."""
    if 0 < len(values) <= SHORT_ROWS and _is_step_of_pandas():
        smooth = _stepped(values, newest_weight)
        if not np.isnan(smooth[-1]):  # nan stays where it once was; pandas steps over it
            return smooth
    return _by_pandas(values, newest_weight)


def _by_pandas(values: Floats, newest_weight: float) -> Floats:
    import pandas as pd  # noqa: PLC0415 - profiles name indicators, and reading one must not wait for pandas

    smooth = pd.Series(values).ewm(alpha=newest_weight, adjust=False).mean()
    return smooth.to_numpy(dtype=np.float64)


def _stepped(values: Floats, newest_weight: float) -> Floats:
    """Take the steps of pandas one by one: it keeps a weight as a centre of mass and divides by the sum."""
    newest = 1.0 / (1.0 + (1.0 - newest_weight) / newest_weight)
    older = 1.0 - newest
    whole = older + newest
    smooth, steps = values[0].item(), []
    for value in values.tolist():
        if value != smooth:
            smooth = (older * smooth + newest * value) / whole
        steps.append(smooth)
    return np.array(steps)


@cache
def _is_step_of_pandas() -> bool:
    """Tell whether `_stepped` gives the bits of pandas: some processors multiply and add in one rounding."""
    values = np.modf(np.arange(1.0, 200.0) * np.sqrt(2.0))[0]
    weights = (1.0 / 14.0, 2.0 / 13.0, 2.0 / 27.0, 0.2)
    return all(np.array_equal(_stepped(values, each), _by_pandas(values, each)) for each in weights)


def moving_mean(values: Floats, period_bars: int) -> Floats:
    """Average the newest values, of any unit; the first `period_bars` - 1 rows are NaN."""
    means = np.full(len(values), np.nan)
    if len(values) >= period_bars:
        means[period_bars - 1 :] = reduce(np.add, windows(values, period_bars)) / period_bars
    return means


def windows(values: Floats, period_bars: int) -> Floats:
    """View all windows of N values at once, as `sliding_window_view` does in twenty times the time.

    Returns:
        Shape (period_bars, N - period_bars + 1): the oldest value of every window, then the next ones.
    """
    values = np.ascontiguousarray(values)
    shape = period_bars, len(values) - period_bars + 1
    return np.ndarray(shape, values.dtype, values, strides=2 * values.strides)


def ratio(part: Floats, whole: Floats, *, where_zero: float) -> Floats:
    """Divide part by whole, with a result of its own where the whole is zero."""
    return np.divide(part, whole, out=np.full(len(whole), where_zero), where=whole != 0.0)
