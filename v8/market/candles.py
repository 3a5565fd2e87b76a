"""Candles: checked OHLCV rows of one series, and the one function that checks them.

What `check_candles` does, in this order; every row it does not keep is counted in the report:

1. Open times of any unit become UTC seconds; a row without a readable time refuses the series. What tells
   another symbol or timeframe does, too, and so does what `v8.market.contradictions` finds.
2. Rows that cannot be true are dropped: unreadable values, prices not above zero, volume below zero, values
   beyond 1e18, `low <= open, close <= high` broken, opens between two bars of the grid. The grid is the one
   on which most rows lie: weeks begin on Monday, and hours may begin at half past.
3. The running bar is dropped; more than one bar from the future refuses the series.
4. Rows are sorted. Rows of one bar that agree to 0.01 % become one: the row written with the most
   decimals. Rows of one bar that disagree are all dropped, because nobody can say which is right.
5. If steps 2 and 4 dropped more than 5 % of the rows, or most neighbours are not one bar apart, the
   series is refused: then the file is not what it claims to be.
6. A re-listed symbol (a leap beyond any plausible one across a long hole) starts anew: only the rows
   after the last such leap are kept.
7. A market that closes is refused: `v8.market.closing` says how it is told.
8. Holes stay holes: `segment` rises by one after each, and nothing is ever filled in.

A whole table without a volume is one of candles without a volume: it is nan everywhere and zero nowhere. A
volume that only some rows lack is a fault of these rows.

Flat candles without volume are kept: the exchange writes them in quiet markets as in outages, and
they say truthfully that nothing traded. The report counts them and their longest run.

Where the newest bar that has closed is among those dropped, the report names it, and `require_newest` refuses
such candles wherever a forecast is made: it would be of a bar that has closed.

Shapes: N candles, R raw rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.columns import CLOSE, OHLC, OHLCV, OPEN, OPEN_TIME, VOLUME
from v8.errors import MAX_LISTED, DataError, listed
from v8.market.candle_report import NUM_GAPS_LISTED, CandleReport, Gap, LostRow
from v8.market.closing import closed_hours
from v8.market.contradictions import is_coarse, require_continuity, require_opens, too_coarse
from v8.market.frames import require_named
from v8.market.open_times import US_PER_S, is_real, iso, read_open_times
from v8.market.series import Series
from v8.redaction import shown
from v8.storage import digest_bytes

MAX_DROPPED_SHARE = 0.05
"""Rows that may break a rule. The worst real file (LTC, February 2018) has 1.7 %; a file of another
timeframe, or with columns swapped, has far more than half."""

MAX_VALUE = 1e18
"""No price or volume is beyond it, and no price below its inverse; the networks' float32 ends at 1e38."""

ROUNDING_SHARE = 1e-4
"""Two rows of one bar that differ by less are one candle, rounded twice (unitless, of the value).
Public files cut volumes to two decimals and take an open from the close before: of 585 bars listed
twice in a real file 577 agree to this share, the other 8 differ in the open by up to 0.1 %, in the
close by 0.4 % or in the volume by 20 %."""

RELISTING_HOLE_S = 48 * 3_600
"""A hole must be longer than this to be a re-listing. The longest outage of the exchange lasted 33
hours (2018-02-08); LUNA was away for 437 hours."""

RELISTING_LOG_RETURN = 2.0
"""The close must change by more than a factor of 7.4 across that hole. Ordinary coins moved by 0.27 at
most across a hole of 56 days; LUNA came back at +12.05, and a token split of 1 to 10 is 2.3."""

MAX_LEAP = 2.0
"""Log of an open over the close before it, which ended in the same instant. In two years of 20 coins the
largest is 0.016; cents in the place of dollars make 4.6."""

_MOST_DECIMALS = 12
_FEWEST_STEPS_TO_JUDGE = 10


@dataclass(frozen=True, eq=False)
class Candles:
    """Checked candles of one series: UTC, on the grid, unique, ascending, closed.

    Args:
        series: Which symbol and timeframe.
        open_time_s: Seconds since the epoch, UTC, strictly ascending, shape (N,), int64, read-only.
        values: Columns of `v8.columns.OHLCV`, shape (N, 5), float64, read-only; prices in quote
            currency and above zero, volume in base currency and not below zero, or nan in every row.
        segment: Number of the contiguous piece a row lies in, shape (N,), int32: 0, and one more
            after every hole.
        report: What was found, repaired and dropped.
        source: Name of the source: "vision", "files", "demo" or another of `SOURCES`.
        beside: Columns from elsewhere at the same bars, each of shape (N,), float64, read-only, by names such
            as "BTCUSDT.high" or "csv.funding_rate"; `v8.features.covariates` says what these are.
    """

    series: Series
    open_time_s: NDArray[np.int64]
    values: NDArray[np.float64]
    segment: NDArray[np.int32]
    report: CandleReport
    source: str
    beside: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.open_time_s)

    @cached_property
    def digest(self) -> str:
        """Sha256 of series, times, values and columns beside; 64 hex digits. Where from does not count."""
        others = sorted(self.beside.items())
        return digest_bytes(
            str(self.series).encode("ascii"),
            self.open_time_s.astype("<i8").tobytes(),
            self.values.astype("<f8").tobytes(),
            *(part for name, each in others for part in (name.encode("ascii"), each.astype("<f8").tobytes())),
        )

    @property
    def has_volume(self) -> bool:
        """Whether the volume is known, which it is for all candles or for none."""
        return not np.isnan(self.column(VOLUME)[0])

    def column(self, name: str) -> NDArray[np.float64]:
        """Return one column of `OHLCV` by name, shape (N,), float64.

        Raises:
            KeyError: If there is no such column.
        """
        return dict(zip(OHLCV, self.values.T, strict=True))[name]

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
        outside, newer = len(self) - (span.stop - span.start), len(self) - stop
        lost = self.report.newest_lost
        is_asked = lost is not None and newer == 0 and (end_s is None or lost.open_s <= end_s)
        report = replace(
            self.report,
            num_outside=self.report.num_outside + outside,
            num_newer=self.report.num_newer + newer,
            newest_lost=lost if is_asked else None,
        )
        beside = {name: values[span] for name, values in self.beside.items()}
        return _assembled(
            self.series, self.open_time_s[span], self.values[span], report, self.source, beside=beside
        )

    def at(
        self, rows: NDArray[np.intp], beside: Mapping[str, NDArray[np.float64]], lacking: Mapping[str, int]
    ) -> Candles:
        """Return some rows with columns beside them.

        Args:
            rows: Their numbers, ascending, at least one.
            beside: Values at those rows, as `beside`.
            lacking: Per place that the columns come from, how many of all rows have nothing there.
        """
        num_alone = self.report.num_alone + len(self) - len(rows)
        report = replace(self.report, num_alone=num_alone, lacking=dict(lacking))
        return _assembled(
            self.series, self.open_time_s[rows], self.values[rows], report, self.source, beside=beside
        )

    def to_frame(self) -> pd.DataFrame:
        """Return the columns of `OHLCV` under a UTC DatetimeIndex named `open_time`."""
        index = pd.DatetimeIndex(pd.to_datetime(self.open_time_s, unit="s", utc=True), name=OPEN_TIME)
        return pd.DataFrame(self.values.copy(), index=index, columns=list(OHLCV))


def check_candles(frame: pd.DataFrame, series: Series, *, source: str, now_s: int | None = None) -> Candles:
    """Turn raw rows into candles, or refuse them with the reason; the module says how.

    Args:
        frame: Columns `open_time` (numbers, datetimes or text of any unit) and `OHLCV`, any order,
            R rows. The volume may be missing or without any value.
        series: What the rows claim to be.
        source: Name of the source, for the report and for errors.
        now_s: The present, seconds since the epoch; a bar that ends later is not closed. None when
            the caller knows every bar to be closed.

    Raises:
        DataError: If the rows cannot be repaired without guessing.
    """
    where = f"{series} from {source}"
    _require_columns(frame, where)
    _require_rows(len(frame), len(frame), where)
    require_named(frame, series)
    times = read_open_times(frame[OPEN_TIME])
    _require_readable(frame[OPEN_TIME], times.is_readable, where)
    report = CandleReport(
        num_read=len(frame),
        time_units=dict(sorted(times.units.items())),
        num_unsorted=int(np.count_nonzero(np.diff(times.open_us) < 0)),
    )
    values = np.stack([_numbers(frame[name], where) for name in _known_columns(frame)], axis=1)
    values += 0.0  # turns -0.0 into 0.0, so that equal candles have equal digests
    raw = _Rows(series, where, times.open_us, values, report)
    rows = _without_repetition(_without_unclosed(_without_faults(raw), now_s))
    _require_rows(len(rows.open_us), len(frame), where)
    require_opens(rows.open_us, series.bar_s, where)
    _require_timeframe(rows)
    rows = _newest_life(rows)
    _require_open_market(rows)
    require_continuity(rows.open_us, rows.values, series.bar_s, where)
    rows = rows.at(slice(None), newest_lost=_newest_lost(raw, rows.open_us[-1], now_s))
    return _assembled(series, rows.open_us // US_PER_S, _with_volume(rows.values), rows.report, source)


def require_newest(candles: Candles) -> None:
    """Refuse candles of which the newest was dropped: a bar that has closed would be forecast as the future.

    Raises:
        DataError: If the newest row could not be true.
    """
    if lost := candles.report.newest_lost:
        raise DataError(
            where=f"{candles.series} from {candles.source}",
            rule="a forecast begins behind the newest candle, which must be usable",
            got=lost.told,
            fix=f"Mend it; to forecast from {candles.report.last_open} all the same, take it out",
        )


def require_one_unit(candles: Candles) -> None:
    """Refuse candles of a user's whose prices change their unit, such as from dollars to cents.

    Raises:
        DataError: If a bar opens far from where the one before closed.
    """
    opened, close = candles.column(OPEN), candles.column(CLOSE)
    leaps = np.where(np.diff(candles.segment) == 0, np.abs(np.log(opened[1:] / close[:-1])), 0.0)
    if leaps.max(initial=0.0) > MAX_LEAP:
        row = int(leaps.argmax())
        raise DataError(
            where=f"{candles.series} from {candles.source}",
            rule=f"no bar opens {np.exp(MAX_LEAP):.2g} times above or below the close before it",
            got=f"{opened[row + 1]:.10g} after {close[row]:.10g} at {iso(candles.open_time_s[row + 1])}",
            fix="Write all prices in one unit, and mend what is no price",
        )


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
    *,
    beside: Mapping[str, NDArray[np.float64]] | None = None,
) -> Candles:
    """Number the segments, describe what is kept, and close the arrays against writing."""
    missing = np.diff(open_time_s) // series.bar_s - 1
    segment = np.concatenate([[0], np.cumsum(missing > 0)]).astype(np.int32)
    arrays = (np.ascontiguousarray(open_time_s), np.ascontiguousarray(values), segment)
    others = {name: np.ascontiguousarray(each) for name, each in (beside or {}).items()}
    for each in others.values():
        each.flags.writeable = False
    for array in arrays:
        array.flags.writeable = False
    holes = np.flatnonzero(missing > 0)
    longest = holes[np.argsort(-missing[holes], kind="stable")][:NUM_GAPS_LISTED]
    opened, high, low, close, volume = values.T
    is_flat = (np.ptp([opened, high, low, close], axis=0) == 0) & (volume == 0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_flat, [False]])))
    leaps = np.abs(np.diff(np.log(close)))[missing == 0]
    report = replace(
        report,
        num_kept=len(open_time_s),
        first_open=iso(open_time_s[0]),
        last_open=iso(open_time_s[-1]),
        num_flat=int(is_flat.sum()),
        longest_flat_bars=int((edges[1::2] - edges[::2]).max(initial=0)),
        num_gaps=len(holes),
        num_missing=int(missing[holes].sum()),
        gaps=tuple(Gap(iso(open_time_s[row]), int(missing[row])) for row in longest),
        largest_log_return=float(leaps.max(initial=0.0)),
        has_volume=not np.isnan(volume[0]),
    )
    return Candles(series, *arrays, report=report, source=source, beside=others)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Raw rows on their way to become candles.

    Args:
        series: What they claim to be.
        where: Series and source, for errors.
        open_us: Open times, microseconds since the epoch, UTC, shape (R,), int64.
        values: Columns of `OHLCV`, shape (R, 5), float64, prices in quote currency; (R, 4) without a volume.
        report: What was found in them so far.
    """

    series: Series
    where: str
    open_us: NDArray[np.int64]
    values: NDArray[np.float64]
    report: CandleReport

    def at(self, chosen: NDArray[np.bool_] | NDArray[np.intp] | slice, **found: Any) -> _Rows:
        """Return the chosen rows (a mask, row numbers or a slice), and note what was found."""
        report = replace(self.report, **found)
        return replace(self, open_us=self.open_us[chosen], values=self.values[chosen], report=report)

    def opens(self, is_chosen: NDArray[np.bool_]) -> str:
        """List the open times of the chosen rows in words, each once."""
        opens = np.unique(self.open_us[is_chosen])
        first = [iso(open_us / US_PER_S) for open_us in opens[:MAX_LISTED]]
        return (
            ", ".join(first) if len(opens) <= MAX_LISTED else f"{', '.join(first)} ... ({len(opens)} in all)"
        )


def _require_columns(frame: pd.DataFrame, where: str) -> None:
    names = list(frame.columns)
    counts = {name: names.count(name) for name in (OPEN_TIME, *OHLCV)}
    most = {VOLUME: (0, 1)}
    wrong = [f"{count or 'no'} {name}" for name, count in counts.items() if count not in most.get(name, (1,))]
    if wrong:
        raise DataError(
            where=where,
            rule=f"candles need the columns {', '.join(counts)}, each once",
            got=f"{', '.join(wrong)} among {listed(names)}",
            fix="Rename, add or remove columns",
        )


def _known_columns(frame: pd.DataFrame) -> tuple[str, ...]:
    """Name the columns of a table, without a volume that is missing or nan in every row."""
    if VOLUME not in frame.columns:
        return OHLC
    is_unknown = len(frame) > 0 and is_real(frame[VOLUME]) and frame[VOLUME].isna().all()
    return OHLC if is_unknown else OHLCV


def _with_volume(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return all columns of `OHLCV`, shape (R, 5): an unknown volume is nan."""
    num_missing = len(OHLCV) - values.shape[1]
    return np.pad(values, ((0, 0), (0, num_missing)), constant_values=np.nan) if num_missing else values


def _numbers(column: pd.Series, where: str) -> NDArray[np.float64]:
    """Read a column of any type as numbers; nan where a row holds none (a date or true is none)."""
    if is_coarse(column):
        raise too_coarse(where, str(column.name))
    if is_real(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.array([_number(item) for item in column.astype(object)], dtype=np.float64)


def _number(item: Any) -> float:
    if isinstance(item, bool) or not isinstance(item, str | Real | Decimal):
        return np.nan
    try:  # Python reads 1_000 as a number, which no candle file means
        return np.nan if isinstance(item, str) and "_" in item else float(item)
    except (ValueError, OverflowError):  # a text that is no number, a number beyond float64
        return np.nan


def _require_rows(num_left: int, num_read: int, where: str) -> None:
    if num_left == 0:
        raise DataError(
            where=where,
            rule="needs at least one closed candle",
            got=f"none in {num_read} rows",
            fix="Fetch a longer history",
        )


def _require_readable(column: pd.Series, is_readable: NDArray[np.bool_], where: str) -> None:
    """Refuse a time column with a row that holds no time: such a row cannot be placed."""
    if not is_readable.all():
        unreadable = [shown(item, 40) for item in column[~is_readable][:MAX_LISTED]]
        num_unreadable = int(np.count_nonzero(~is_readable))
        raise DataError(
            where=where,
            rule="an open time is a number of s, ms, us or ns after 2001-09, or ISO 8601 text",
            got=f"{num_unreadable} of {len(column)} others: {', '.join(unreadable)}",
            fix="Mend the time column; a row without its time cannot be placed",
        )


_FAULTS = (
    ("num_unreadable", "values that are missing, no numbers or beyond 1e18"),
    ("num_non_positive", "prices not above zero or volume below zero"),
    ("num_inconsistent", "low <= open, close <= high broken"),
    ("num_off_grid", "opens between two bars of this timeframe"),
)
"""Counts of the report, and what each means."""


def _without_faults(rows: _Rows) -> _Rows:
    """Drop and count the rows that cannot be true, each under its first fault; refuse when they are many."""
    phases_us, num_rows = np.unique(rows.open_us % (rows.series.bar_s * US_PER_S), return_counts=True)
    first = _first_faults(rows, int(phases_us[num_rows.argmax()]))
    counts = np.bincount(first, minlength=len(_FAULTS) + 1)[: len(_FAULTS)]
    worst = int(counts.argmax())
    reason = f"mostly {_FAULTS[worst][1]} ({rows.opens(first == worst)})"
    _require_few(int(counts.sum()), rows, reason)
    found = {name: int(count) for (name, _), count in zip(_FAULTS, counts, strict=True)}
    return rows.at(first == len(_FAULTS), **found)


def _first_faults(rows: _Rows, phase_us: int) -> NDArray[np.intp]:
    """Tell which of `_FAULTS` each row has first, shape (R,); one more than there are for a sound row."""
    opened, high, low, close, *volume = rows.values.T
    masks = [
        ~(np.abs(rows.values) <= MAX_VALUE).all(axis=1),
        (np.minimum.reduce([opened, high, low, close]) < 1 / MAX_VALUE) | (sum(volume) < 0),
        (low > np.minimum(opened, close)) | (high < np.maximum(opened, close)),
        rows.open_us % (rows.series.bar_s * US_PER_S) != phase_us,
        np.ones(len(close), dtype=np.bool_),
    ]
    return np.argmax(masks, axis=0)


def _newest_lost(raw: _Rows, last_us: np.int64, now_s: int | None) -> LostRow | None:
    """Tell of the newest row, if it was dropped and lies in a bar that has closed after the last one kept."""
    bar_us = raw.series.bar_s * US_PER_S
    bars_us = raw.open_us - (raw.open_us - last_us) % bar_us
    is_closed = np.full(len(bars_us), True) if now_s is None else bars_us + bar_us <= now_s * US_PER_S
    lost = np.flatnonzero(is_closed & (bars_us > last_us))
    if not len(lost):
        return None
    row = int(lost[raw.open_us[lost].argmax()])
    fault = _first_faults(raw.at(slice(row, row + 1)), int(last_us % bar_us))[0]
    why = [reason for _, reason in _FAULTS] + ["listed more than once with different values"]
    held = ", ".join(f"{name} {value:.10g}" for name, value in zip(OHLCV, raw.values[row], strict=False))
    told = f"row {row + 1:,} of {iso(raw.open_us[row] / US_PER_S)}: {why[fault]} ({held})"
    return LostRow(int(bars_us[row]) // US_PER_S, told)


def _require_few(num_bad: int, rows: _Rows, reason: str) -> None:
    if num_bad > MAX_DROPPED_SHARE * rows.report.num_read:
        raise DataError(
            where=rows.where,
            rule=f"at most {MAX_DROPPED_SHARE:.0%} of the rows may be unusable",
            got=f"{num_bad} of {rows.report.num_read}, {reason}",
            fix="Check that the file is of this symbol and timeframe, and its columns and time zone",
        )


def _without_unclosed(rows: _Rows, now_s: int | None) -> _Rows:
    """Drop and count the running bar; refuse rows from a future beyond it."""
    if now_s is None:
        return rows
    is_unclosed = rows.open_us + rows.series.bar_s * US_PER_S > now_s * US_PER_S
    if len(np.unique(rows.open_us[is_unclosed])) > 1:
        raise DataError(
            where=rows.where,
            rule=f"only the running bar may end after now, {iso(now_s)}",
            got=f"bars that open at {rows.opens(is_unclosed)}",
            fix="Check the clock of this machine and the unit and time zone of the file",
        )
    return rows.at(~is_unclosed, num_unclosed=int(is_unclosed.sum()))


def _without_repetition(rows: _Rows) -> _Rows:
    """Sort the rows and leave one, or none, for every bar that is listed more than once."""
    rows = rows.at(np.argsort(rows.open_us, kind="stable"))
    is_first = np.diff(rows.open_us, prepend=-1) != 0
    if is_first.all():
        return rows
    starts = np.flatnonzero(is_first)
    sizes = np.diff(starts, append=len(is_first))
    largest = np.maximum.reduceat(rows.values, starts, axis=0)
    spread = largest - np.minimum.reduceat(rows.values, starts, axis=0)
    is_identical = (spread == 0).all(axis=1)
    is_conflicting = (spread > ROUNDING_SHARE * largest).any(axis=1)
    is_rounded = ~is_identical & ~is_conflicting
    kept = np.where(is_rounded, _most_precise(rows, is_rounded, starts, sizes), starts)
    single = rows.at(
        kept[~is_conflicting],
        num_identical=int((sizes[is_identical] - 1).sum()),
        num_rounded=int((sizes[is_rounded] - 1).sum()),
        num_conflicting=int(sizes[is_conflicting].sum()),
    )
    offenders = rows.opens(np.repeat(is_conflicting, sizes))
    reason = f"mostly bars listed more than once with different values ({offenders})"
    _require_few(single.report.num_unusable, single, reason)
    return single


def _most_precise(
    rows: _Rows, is_rounded: NDArray[np.bool_], starts: NDArray[np.intp], sizes: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Find the row of each rounded group with the most decimals; larger values win ties."""
    group = np.repeat(np.arange(len(starts)), sizes)
    members = np.flatnonzero(is_rounded[group])
    values = rows.values[members]
    decimals = np.full(values.shape, _MOST_DECIMALS)
    for places in reversed(range(_MOST_DECIMALS)):
        decimals[np.round(values, places) == values] = places
    order = np.lexsort((*values.T[::-1], decimals.sum(axis=1), group[members]))
    chosen = starts.copy()
    chosen[group[members[order]]] = members[order]  # the last of each group wins
    return chosen


def _require_timeframe(rows: _Rows) -> None:
    """Refuse coarser candles that happen to lie on the grid of a finer timeframe; too few to tell pass."""
    steps_s, bar_s = np.diff(rows.open_us) // US_PER_S, rows.series.bar_s
    if len(steps_s) >= _FEWEST_STEPS_TO_JUDGE and np.median(steps_s) != bar_s:
        raise DataError(
            where=rows.where,
            rule=f"most candles must follow {bar_s} s after the one before",
            got=f"a median step of {np.median(steps_s):.0f} s",
            fix=f"Check that the rows are of timeframe {rows.series.timeframe}",
        )


def _require_open_market(rows: _Rows) -> None:
    """Refuse stocks, currencies and sessions at once: no longer history would fill their holes."""
    if closed := closed_hours(rows.open_us // US_PER_S, rows.series.bar_s):
        raise DataError(
            where=rows.where,
            rule="v8 forecasts markets that never close, such as those of coins",
            got=f"a market without candles in {closed}",
            fix="Take a market that trades around the clock; a longer history does not help",
        )


def _newest_life(rows: _Rows) -> _Rows:
    """Keep only what follows the last leap that no coin makes: after it the symbol means another one."""
    hole_s = np.diff(rows.open_us) // US_PER_S - rows.series.bar_s
    leap = np.abs(np.diff(np.log(rows.values[:, OHLCV.index(CLOSE)])))
    leaps = np.flatnonzero((hole_s > RELISTING_HOLE_S) & (leap > RELISTING_LOG_RETURN))
    if len(leaps) == 0:
        return rows
    first = int(leaps[-1]) + 1
    relisted_at = iso(rows.open_us[first] / US_PER_S)
    return rows.at(slice(first, None), num_older_life=first, relisted_at=relisted_at)
