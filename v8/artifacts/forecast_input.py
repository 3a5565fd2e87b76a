"""What a user hands to a forecaster, turned into checked candles of its series, or refused.

Nothing is guessed: a frame that says or shows that it is of another series or timeframe is refused, a
hole in the rows that a forecast needs is never filled in, the bar that is still running is dropped, and a
newest candle that has closed and cannot be used is not left out in silence.
"""

import time
from typing import Final

import numpy as np
import pandas as pd

from v8.columns import OPEN_TIME
from v8.errors import DataError
from v8.market.candles import Candles, require_newest, require_one_unit
from v8.market.checks import check_candles
from v8.market.frames import GivenCandles, candle_table, of_another_series, read_open_times
from v8.market.series import TIMEFRAME_S, US_PER_S, Series, iso

FRAME: Final = "a frame"
"""Name of the source of candles that were given as a table in memory."""


def checked_candles(candles: Candles | GivenCandles, series: Series, now_s: int | None = None) -> Candles:
    """Return checked candles of a series.

    Args:
        candles: Checked candles, or a table of raw ones as `v8.market.frames` reads it: a frame, rows of an
            exchange library, columns by name; open times in any unit that `v8.market.frames` reads
            (without a zone: UTC), any row order. What names symbol, timeframe or series must agree.
        series: What they must be of.
        now_s: The present, seconds since the epoch, UTC; None for this machine's clock. Only a frame's
            running bar depends on it.

    Raises `DataError` if they are of another series or timeframe, cannot be repaired without guessing, or
    their newest row that has closed cannot be used.
    """
    checked = _checked(candles, series, now_s)
    require_newest(checked)
    return checked


def _checked(candles: Candles | GivenCandles, series: Series, now_s: int | None) -> Candles:
    if isinstance(candles, Candles):
        if candles.series != series:
            raise of_another_series(series, str(candles.series))
        return candles
    frame = candle_table(candles, series, f"{series} from {FRAME}")
    _require_spacing(frame, series)
    checked = check_candles(frame, series, source=FRAME, now_s=present_s(now_s))
    require_one_unit(checked)
    return checked


def require_unbroken(candles: Candles, lookback_bars: int, warmup_bars: int) -> None:
    """Refuse candles that break off before a window and its warm-up are complete.

    Raises `DataError` if fewer than `lookback_bars` + `warmup_bars` candles end without a hole.
    """
    needed = lookback_bars + warmup_bars
    unbroken = int(np.count_nonzero(candles.segment == candles.segment[-1]))
    if unbroken >= needed:
        return
    hole = f" after the hole that ends at {iso(candles.open_time_s[-unbroken])}"
    raise DataError(
        where=str(candles.series),
        rule=f"needs {needed} unbroken candles at the end ({lookback_bars} lookback + {warmup_bars} warm-up)",
        got=f"{unbroken}{hole if unbroken < len(candles) else ''}",
        fix="Fetch the missing candles, or a longer history",
    )


def require_recent(candles: Candles, max_age_bars: int, now_s: int | None = None) -> None:
    """Refuse candles after which too many bars have closed.

    Raises `DataError` if more than `max_age_bars` bars have closed since the newest candle closed, at
    `now_s` (seconds since the epoch, UTC; None for this machine's clock).
    """
    series, now_s = candles.series, present_s(now_s)
    closed_s = int(candles.open_time_s[-1]) + series.bar_s
    age_bars = (now_s - closed_s) // series.bar_s
    if age_bars > max_age_bars:
        raise DataError(
            where=str(series),
            rule=f"at most {max_age_bars} bars may have closed after the newest candle",
            got=f"{age_bars:,} bars between its close at {iso(closed_s)} and now, {iso(now_s)}",
            fix="Take newer ones (param:source live), or allow old (param:allow_old; "
            "in Python max_age_bars=None)",
        )


def present_s(now_s: int | None) -> int:
    """Return the given time, or this machine's, in seconds since the epoch, UTC."""
    return int(time.time()) if now_s is None else now_s


def _require_spacing(frame: pd.DataFrame, series: Series) -> None:
    """Say plainly that a frame is of another timeframe, before its rows are called unusable."""
    times = read_open_times(frame[OPEN_TIME])
    steps_s = np.diff(np.unique(times.open_us[times.is_readable])) / US_PER_S
    if len(steps_s) < 2 or np.median(steps_s) == series.bar_s:
        return
    step_s = float(np.median(steps_s))
    name = next((f" ({name})" for name, bar_s in TIMEFRAME_S.items() if bar_s == step_s), "")
    raise DataError(
        where=str(series),
        rule=f"reads candles that open {series.bar_s:,} s apart ({series.timeframe})",
        got=f"rows that are mostly {step_s:,.10g} s apart{name}",
        fix="Load the forecaster of that timeframe, or fetch candles of this one",
    )
