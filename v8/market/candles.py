"""Candles: checked OHLCV rows of one series, and the one function that checks them.

What `check_candles` does, in this order; every row it does not keep is counted in the report:

1. Open times of any unit become UTC seconds; a row without a readable time refuses the series.
2. Rows that cannot be true are dropped: unreadable values, prices not above zero, volume below zero,
   `low <= open, close <= high` broken, opens between two bars of the grid.
3. The running bar is dropped; more than one bar from the future refuses the series.
4. Rows are sorted. Rows of one bar that agree to 0.01 % become one: the row written with the most
   decimals. Rows of one bar that disagree are all dropped, because nobody can say which is right.
5. If steps 2 and 4 dropped more than 5 % of the rows, or most neighbours are not one bar apart, the
   series is refused: then the file is not what it claims to be.
6. A re-listed symbol (a leap beyond any plausible one across a long hole) starts anew: only the rows
   after the last such leap are kept.
7. Holes stay holes: `segment` rises by one after each, and nothing is ever filled in.

Flat candles without volume are kept: the exchange writes them in quiet markets as in outages, and
they say truthfully that nothing traded. The report counts them and their longest run.

Shapes: N candles, R raw rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.columns import CLOSE, OHLC, OHLCV, OPEN_TIME, VOLUME
from v8.errors import DataError
from v8.market.candle_report import NUM_GAPS_LISTED, CandleReport, Gap
from v8.market.open_times import US_PER_S, iso, read_open_times
from v8.market.repairs import (
    COLUMN,
    Rows,
    newest_life,
    numbers,
    require_columns,
    require_readable,
    require_rows,
    require_timeframe,
    without_faults,
    without_repetition,
    without_unclosed,
)
from v8.market.series import Series
from v8.storage import digest_bytes


@dataclass(frozen=True, eq=False)
class Candles:
    """Checked candles of one series: UTC, on the grid, unique, ascending, closed.

    Args:
        series: Which symbol and timeframe.
        open_time_s: Seconds since the epoch, UTC, strictly ascending, shape (N,), int64, read-only.
        values: Columns of `v8.columns.OHLCV`, shape (N, 5), float64, read-only; prices in quote
            currency and above zero, volume in base currency and not below zero.
        segment: Number of the contiguous piece a row lies in, shape (N,), int32: 0, and one more
            after every hole.
        report: What was found, repaired and dropped.
        source: Name of the source: "vision", "files" or "demo".
    """

    series: Series
    open_time_s: NDArray[np.int64]
    values: NDArray[np.float64]
    segment: NDArray[np.int32]
    report: CandleReport
    source: str

    def __len__(self) -> int:
        return len(self.open_time_s)

    @cached_property
    def digest(self) -> str:
        """Sha256 of series, times and values, 64 hex digits; where they came from does not count."""
        return digest_bytes(
            str(self.series).encode("ascii"),
            self.open_time_s.astype("<i8").tobytes(),
            self.values.astype("<f8").tobytes(),
        )

    def column(self, name: str) -> NDArray[np.float64]:
        """Return one column of `OHLCV` by name, shape (N,), float64.

        Raises:
            KeyError: If there is no such column.
        """
        return self.values[:, COLUMN[name]]

    def newest(self, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest candles that open at or before a time.

        Args:
            num_bars: Most candles to return, at least 1.
            end_s: Latest open time, seconds since the epoch; None for no limit.

        Returns:
            At most `num_bars` candles, segments counted from 0 again, the rest counted as outside.

        Raises:
            DataError: If no candle opens at or before `end_s`.
        """
        require_num_bars(num_bars, self.series)
        stop = len(self) if end_s is None else int(np.searchsorted(self.open_time_s, end_s, side="right"))
        if stop == 0:
            raise DataError(
                where=f"{self.series} from {self.source}",
                rule=f"needs a candle that opens at or before {iso(end_s or 0)}",
                got=f"the first one at {iso(self.open_time_s[0])}",
                fix="Ask for a later time",
            )
        span = slice(max(0, stop - num_bars), stop)
        outside = len(self) - (span.stop - span.start)
        report = replace(self.report, num_outside=self.report.num_outside + outside)
        return _assembled(self.series, self.open_time_s[span], self.values[span], report, self.source)

    def to_frame(self) -> pd.DataFrame:
        """Return the columns of `OHLCV` under a UTC DatetimeIndex named `open_time`."""
        index = pd.DatetimeIndex(pd.to_datetime(self.open_time_s, unit="s", utc=True), name=OPEN_TIME)
        return pd.DataFrame(self.values.copy(), index=index, columns=list(OHLCV))


def check_candles(frame: pd.DataFrame, series: Series, *, source: str, now_s: int | None = None) -> Candles:
    """Turn raw rows into candles, or refuse them with the reason; the module says how.

    Args:
        frame: Columns `open_time` (numbers, datetimes or text of any unit) and `OHLCV`, any order,
            R rows.
        series: What the rows claim to be.
        source: Name of the source, for the report and for errors.
        now_s: The present, seconds since the epoch; a bar that ends later is not closed. None when
            the caller knows every bar to be closed.

    Raises:
        DataError: If the rows cannot be repaired without guessing.
    """
    where = f"{series} from {source}"
    require_columns(frame, where)
    require_rows(len(frame), len(frame), where)
    times = read_open_times(frame[OPEN_TIME])
    require_readable(frame[OPEN_TIME], times.is_readable, where)
    report = CandleReport(
        num_read=len(frame),
        time_units=dict(sorted(times.units.items())),
        num_unsorted=int(np.count_nonzero(np.diff(times.open_us) < 0)),
    )
    rows = Rows(series, where, times.open_us, numbers(frame), report)
    rows = without_repetition(without_unclosed(without_faults(rows), now_s))
    require_rows(len(rows.open_us), len(frame), where)
    require_timeframe(rows)
    rows = newest_life(rows)
    return _assembled(series, rows.open_us // US_PER_S, rows.values, rows.report, source)


def require_num_bars(num_bars: int, series: Series) -> None:
    """Refuse a request for no candles at all.

    Raises:
        DataError: If `num_bars` is below 1.
    """
    if num_bars < 1:
        raise DataError(
            where=str(series),
            rule="at least 1 bar must be asked for",
            got=str(num_bars),
            fix="Raise the number of bars",
        )


def _assembled(
    series: Series,
    open_time_s: NDArray[np.int64],
    values: NDArray[np.float64],
    report: CandleReport,
    source: str,
) -> Candles:
    """Number the segments, describe what is kept, and close the arrays against writing."""
    missing = np.diff(open_time_s) // series.bar_s - 1
    segment = np.concatenate([[0], np.cumsum(missing > 0)]).astype(np.int32)
    arrays = (np.ascontiguousarray(open_time_s), np.ascontiguousarray(values), segment)
    for array in arrays:
        array.flags.writeable = False
    report = _described(report, open_time_s, values, missing)
    return Candles(series, *arrays, report=report, source=source)


def _described(
    report: CandleReport,
    open_time_s: NDArray[np.int64],
    values: NDArray[np.float64],
    missing: NDArray[np.int64],
) -> CandleReport:
    holes = np.flatnonzero(missing > 0)
    longest = holes[np.argsort(-missing[holes], kind="stable")][:NUM_GAPS_LISTED]
    prices = values[:, [COLUMN[name] for name in OHLC]]
    is_flat = (np.ptp(prices, axis=1) == 0) & (values[:, COLUMN[VOLUME]] == 0)
    leaps = np.abs(np.diff(np.log(values[:, COLUMN[CLOSE]])))[missing == 0]
    return replace(
        report,
        num_kept=len(open_time_s),
        first_open=iso(open_time_s[0]),
        last_open=iso(open_time_s[-1]),
        num_flat=int(is_flat.sum()),
        longest_flat_bars=_longest_run(is_flat),
        num_gaps=len(holes),
        num_missing=int(missing[holes].sum()),
        gaps=tuple(Gap(iso(open_time_s[row]), int(missing[row])) for row in longest),
        largest_log_return=float(leaps.max(initial=0.0)),
    )


def _longest_run(is_member: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_member, [False]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))
