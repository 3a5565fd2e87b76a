"""What a user hands to a forecaster, turned into checked candles of its series, or refused.

Nothing is guessed: a frame that says or shows that it is of another series or timeframe is refused, a
hole in the rows that a forecast needs is never filled in, and the bar that is still running is dropped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

import numpy as np
import pandas as pd

from v8.columns import OPEN_TIME
from v8.errors import DataError, listed
from v8.market.candles import Candles, check_candles
from v8.market.open_times import US_PER_S, iso, read_open_times
from v8.market.series import TIMEFRAME_S, Series
from v8.untrusted import shown


def checked_candles(candles: Candles | pd.DataFrame, series: Series, now_s: int | None = None) -> Candles:
    """Return checked candles of a series.

    Args:
        candles: Checked candles, or a frame of raw ones: `open_time` as a column or as the index, in any
            unit that `v8.market.open_times` reads (without a zone: UTC), and `OHLCV`, any row order. A
            column or an entry of `attrs` named `symbol`, `timeframe` or `series` must agree.
        series: What they must be of.
        now_s: The present, seconds since the epoch, UTC; None for this machine's clock. Only a frame's
            running bar depends on it.

    Raises:
        DataError: If they are of another series or timeframe, or cannot be repaired without guessing.
    """
    if isinstance(candles, Candles):
        if candles.series != series:
            raise _of_another_series(series, str(candles.series))
        return candles
    frame = _with_open_time(candles)
    _require_names(frame, series)
    _require_spacing(frame, series)
    return check_candles(frame, series, source="a frame", now_s=present_s(now_s))


def require_unbroken(candles: Candles, lookback_bars: int, warmup_bars: int) -> None:
    """Refuse candles that break off before a window and its warm-up are complete.

    Raises:
        DataError: If fewer than `lookback_bars` + `warmup_bars` candles end without a hole.
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

    Raises:
        DataError: If more than `max_age_bars` bars have closed since the newest candle closed, at `now_s`
            (seconds since the epoch, UTC; None for this machine's clock).
    """
    series, now_s = candles.series, present_s(now_s)
    closed_s = int(candles.open_time_s[-1]) + series.bar_s
    age_bars = (now_s - closed_s) // series.bar_s
    if age_bars > max_age_bars:
        raise DataError(
            where=str(series),
            rule=f"at most {max_age_bars} bars may have closed after the newest candle",
            got=f"{age_bars:,} bars between its close at {iso(closed_s)} and now, {iso(now_s)}",
            fix="Fetch newer candles, or allow old ones (--allow-old; in Python max_age_bars=None)",
        )


def present_s(now_s: int | None) -> int:
    """Return the given time, or this machine's, in seconds since the epoch, UTC."""
    return int(time.time()) if now_s is None else now_s


def _with_open_time(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose open times are a column, where its index holds them."""
    index, rows = frame.index, frame.reset_index(drop=True)
    is_indexed = isinstance(index, pd.DatetimeIndex) or list(index.names) == [OPEN_TIME]
    if is_indexed and OPEN_TIME not in list(frame.columns):
        rows[OPEN_TIME] = index.to_series(index=rows.index)
    return rows


def _require_names(frame: pd.DataFrame, series: Series) -> None:
    expected = {"symbol": series.symbol, "timeframe": series.timeframe, "series": str(series)}
    for key, name in expected.items():
        columns = [number for number, name in enumerate(frame.columns) if name == key]
        told = [shown(value) for number in columns for value in _different(frame.iloc[:, number])]
        told += [shown(frame.attrs[key])] if key in frame.attrs else []
        if key == "symbol":  # as the exchange writes it: BTC/USDT, BTC-USDT and btcusdt are BTCUSDT
            others = [value for value in told if re.sub(r"[/_-]", "", value).upper() != name]
        else:
            others = [value for value in told if value != name]
        if others:
            raise _of_another_series(series, f"{key} {listed(others)}")


def _different(column: pd.Series) -> Iterable[str]:
    return dict.fromkeys(map(str, column))


def _require_spacing(frame: pd.DataFrame, series: Series) -> None:
    """Say plainly that a frame is of another timeframe, before its rows are called unusable."""
    if list(frame.columns).count(OPEN_TIME) != 1:
        return
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


def _of_another_series(series: Series, got: str) -> DataError:
    return DataError(
        where=str(series),
        rule="a forecaster reads candles of its own series",
        got=got,
        fix="Load the forecaster of that series",
    )
