"""Formulas for how far prices range, over several horizons, and for what time it is.

The rules of `v8.features.formulas` hold here too: past only, no loop over rows, float64 of shape (N,),
finite once the warm-up is over, and bit-identical however much history was loaded.

Most results are shares of `recent_range`, the going size of one bar's move, so that they mean the same for
every coin, timeframe and year.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from v8.features.formulas import Floats, moving_mean, ratio

PARKINSON: Final = 4.0 * np.log(2.0)
"""Mean squared log range of a random walk over its variance (Parkinson 1980, doi:10.1086/296071)."""

RECENT_WEIGHTS: Final = (0.25, 0.35, 0.25, 0.15)
"""Exponents of the deviations over 5, 20, 60 and 240 bars in `recent_range`; they add up to one."""

FLOOR_SHARE: Final = 0.02
"""A deviation below this share of the longest one is raised to it: a dead hour is no law of nature."""

MAX_MOVE: Final = 6.0
"""Moves above so many times their usual size count as this many."""

MAX_ROLLED: Final = 10.0
"""Likewise for distances and deviations of closes within twenty bars."""

DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S
MONDAY_S: Final = 4 * DAY_S
"""1970-01-05 00:00 UTC, the first Monday of the epoch."""

WAVE_DECIMALS: Final = 9
"""Digits of a wave: more than single precision holds, fewer than rounding errors reach."""


def range_deviation(high: Floats, low: Floats, period_bars: int) -> Floats:
    """Estimate the deviation of one bar's log return from the ranges of the newest bars (Parkinson).

    Returns:
        Shape (N,), unitless, not negative.
    """
    squares = np.square(np.log(high / low))
    return np.sqrt((moving_mean(squares, period_bars) if period_bars > 1 else squares) / PARKINSON)


def realised_deviation(close: Floats, period_bars: int) -> Floats:
    """Root of the mean squared log return of the newest `period_bars` returns.

    Returns:
        Shape (N,), unitless, not negative; the first `period_bars` rows are NaN.
    """
    squares = np.square(np.diff(np.log(close)))
    return np.concatenate([np.full(min(1, len(close)), np.nan), np.sqrt(moving_mean(squares, period_bars))])


def recent_range(shortest: Floats, short: Floats, long: Floats, longest: Floats) -> Floats:
    """Blend deviations over four horizons geometrically: the size of move to expect of the next bar.

    The weights follow the heterogeneous autoregression of Corsi (2009, doi:10.1093/jjfinec/nbp001): people
    trade on several horizons, and each leaves its trace.

    Args:
        shortest: Deviation over the fewest bars, shape (N,), unitless.
        short: Over more.
        long: Over more still.
        longest: Over the most bars; 0 only where nothing has moved for as long.

    Returns:
        Shape (N,), unitless; 0 where `longest` is.
    """
    floor = FLOOR_SHARE * longest
    blend = np.ones_like(longest)
    for deviation, weight in zip((shortest, short, long, longest), RECENT_WEIGHTS, strict=True):
        blend *= np.maximum(deviation, floor) ** weight
    return blend


def share_of_recent(deviation: Floats, recent: Floats) -> Floats:
    """Divide a deviation by `recent_range`, both unitless; 1 in a market that stands still."""
    return ratio(deviation, recent, where_zero=1.0)


def move(close: Floats, recent: Floats, period_bars: int) -> Floats:
    """Size of the move over some bars, in multiples of the usual one: `recent` times the root of the bars.

    Returns:
        Shape (N,), unitless, from 0 to `MAX_MOVE`; the first `period_bars` rows are NaN.
    """
    size = np.full(len(close), np.nan)
    size[period_bars:] = np.abs(np.log(close[period_bars:] / close[: max(0, len(close) - period_bars)]))
    return np.minimum(ratio(size, np.sqrt(period_bars) * recent, where_zero=0.0), MAX_MOVE)


def wave(open_time_s: Floats, period_s: int, num_waves: int, is_cosine: bool) -> Floats:
    """Turn the time of the day or week into a number without a jump at midnight.

    Args:
        open_time_s: Shape (N,), seconds since 1970, UTC.
        period_s: Length of the period, in seconds; it starts on a Monday at midnight.
        num_waves: Waves in a period.
        is_cosine: Cosine instead of sine.

    Returns:
        Shape (N,), -1 to 1, unitless, rounded: where every bar meets a wave at zero (three waves a day at
        four hours a bar), errors of 1e-16 would be all there is, and scaling brings that to unit size.
    """
    angle: Floats = 2.0 * np.pi * num_waves * np.mod(open_time_s - MONDAY_S, period_s) / period_s
    exact: Floats = np.cos(angle) if is_cosine else np.sin(angle)
    return exact.round(WAVE_DECIMALS)


def rolled_moments(close: Floats, period_bars: int, num_steps: int) -> Floats:
    """Average and deviate the closes of a window of which the first steps ahead repeat the last close.

    These are the roll-forward Bollinger bands: `k` steps ahead the window holds the newest period - k
    known closes and k times the last one.

    Args:
        close: Shape (N,), quote currency.
        period_bars: Closes in the window.
        num_steps: Most steps ahead, below `period_bars`.

    Returns:
        Shape (2, num_steps, N), as shares of the last close: average minus last close, and sample
        deviation. The first `period_bars` - 1 rows are NaN.
    """
    moments = np.full((2, num_steps, len(close)), np.nan)
    if len(close) < period_bars:
        return moments
    newest = close[period_bars - 1 :]
    total, squares = np.zeros_like(newest), np.zeros_like(newest)
    for lag in range(1, period_bars - 1):
        distance = close[period_bars - 1 - lag : len(close) - lag] / newest - 1.0
        total += distance
        squares += distance * distance
        step = period_bars - 1 - lag
        if step <= num_steps:
            mean = total / period_bars
            variance = (squares - period_bars * mean * mean) / (period_bars - 1)
            moments[0, step - 1, period_bars - 1 :] = mean
            moments[1, step - 1, period_bars - 1 :] = np.sqrt(np.maximum(variance, 0.0))
    return moments


def rolled_middle(moments: Floats, recent: Floats, step: int) -> Floats:
    """Distance of the middle of `rolled_moments` from the last close, in recent ranges, without its sign."""
    return np.minimum(ratio(np.abs(moments[0, step - 1]), recent, where_zero=0.0), MAX_ROLLED)


def rolled_deviation(moments: Floats, recent: Floats, step: int) -> Floats:
    """Deviation of `rolled_moments`, in recent ranges; steps ahead count from 1."""
    return np.minimum(ratio(moments[1, step - 1], recent, where_zero=0.0), MAX_ROLLED)
