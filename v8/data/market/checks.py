"""Checks that turn raw rows into candles, or refuse the whole series with the reason: `check_candles`.

The steps, in this order; every row that is not kept is counted in the report:

1. Open times of any unit become UTC seconds. A row without a readable time refuses the series, and so does
   evidence of another symbol or timeframe, such as the median time between rows.
2. Implausible rows are dropped: unreadable values, prices not above zero, volume below zero, values beyond
   1e18, `low <= open, close <= high` violated, open times between two bars of the grid. The grid is the one
   of most rows: weeks start on Monday, and hours may start at half past.
3. The running bar is dropped; more than one bar from the future refuses the series. Before all steps, rows
   are dropped of which a column says that their bar is not closed.
4. Rows are sorted. Rows of one bar that agree to 0.01 % become one: the row written with the most decimals.
   Rows of one bar that disagree are all dropped, because nothing shows which of them is right.
5. If steps 2 and 4 dropped more than 5 % of the rows, the series is refused: then the file is probably not
   what it claims to be.
6. Of a re-listed symbol (an implausible price change across a long gap) only the rows after the last
   re-listing are kept.
7. Contradictions within a table refuse it, because forecasts from it would be wrong without any sign of it:
   open times a second or less before the end of a bar are close times, other times between two minutes are
   no open times; opens and closes that do not continue each other are swapped, or the rows are in reverse
   order; numbers of 16 bits hold only three digits of a price.
8. A market with closing hours is refused: its gaps return at the same hours, and a longer history has them
    too.
9. Gaps stay gaps: `segment` rises by one after each, and nothing is ever filled in.

If no row has a volume, the candles have none: it is nan in every row. A volume that only some rows lack is a
fault of these rows. Flat candles without volume are kept: the exchange writes them in quiet markets as well
as in outages, and it is true that nothing was traded.

Shapes: N candles, R raw rows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.base.errors import MAX_LISTED, DataError, listed, shown
from v8.data.market import frames
from v8.data.market.candles import MAX_VALUE, CandleReport, Candles, LostRow, Mask, Times, Values, assembled
from v8.data.market.column_names import IS_CLOSED
from v8.data.market.series import TIMEFRAMES, US_PER_S, WEEK_S, Series, iso
from v8.profile.columns import CLOSE, OHLC, OHLCV, OPEN_TIME, VOLUME

MAX_DROPPED_SHARE = 0.05
"""Largest share of rows that may violate a rule. The worst real file (LTC, February 2018) has 1.7 %; a file
of another timeframe, or with swapped columns, has far more than half."""

ROUNDING_SHARE = 1e-4
"""Two rows of one bar that differ by less are one candle, written twice (unitless, of the value).
Public files cut volumes to two decimals and take an open from the close before: of 585 bars listed
twice in a real file 577 agree to this share, the other 8 differ in the open by up to 0.1 %, in the
close by 0.4 % or in the volume by 20 %. That one is a rounding of the other is not asked for: 77 of the
895 values that differ so little in that file are none."""

RELISTING_HOLE_S = 48 * 3_600
"""A gap must be longer than this to be a re-listing. The longest outage of the exchange lasted 33 hours
(2018-02-08); LUNA was not traded for 437 hours."""

RELISTING_LOG_RETURN = 2.0
"""The close must change by more than a factor of 7.4 across that gap. Ordinary coins moved by a log return of
0.27 at most across a gap of 56 days; LUNA came back at +12.05, and a token split of 1 to 10 is 2.3."""

SWAPPED_SHARE: Final = 0.5
"""Open and close are swapped if the mean distance from an open to the next close is less than this share of
that from a close to the next open. In correct candles it is at least 1.9 times as large, mostly above 10
times, in any month of 20 coins."""

MOST_CHANCE: Final = 5.0
"""Standard deviations by which a sign test over the bars must confirm it, which takes at least 25 bars: a few
bars of a price that jumps between two ticks can look like anything. Of 5,320 windows of 80 real bars none is
refused; with open and close swapped 5,285 are."""

_LATEST_CLOSE_US: Final = US_PER_S  # exchanges write closes a second, a ms or a us before the next open
_MOST_DECIMALS: Final = 12
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,9})?)?")
_MOST_CLOCK_DIGITS: Final = 6  # hours, minutes and seconds
_FEWEST_STEPS: Final = 10  # time differences from which the timeframe is derived
_FEWEST_SLOTS: Final = 6  # slots of a cycle: with fewer, one missing candle would be a large part of it
_MOST_FILLED: Final = 0.05  # share of cycles in which a closed hour may be traded: special sessions
_HOUR_S: Final = 3_600
_CYCLES: Final = (("week", WEEK_S, 3, 24 * _HOUR_S), ("day", 24 * _HOUR_S, 4, 3 * _HOUR_S))
"""Cycles after which opening hours repeat: name, length in seconds, number of cycles in which an hour must be
closed (fewer may be an accident), and seconds of a cycle that must be closed (less may be maintenance)."""

_FAULTS: Final = (
    ("num_unreadable", "values that are missing, not numbers or beyond 1e18"),
    ("num_non_positive", "prices not above zero or volume below zero"),
    ("num_inconsistent", "low <= open, close <= high violated"),
    ("num_off_grid", "opens between two bars of this timeframe"),
)
"""Counts of the report, with their descriptions for messages."""
_UNREADABLE: Final = 0
_UNNAMED_ORDER: Final = f"without names they are time, {', '.join(OHLCV)}"


def check_candles(table: frames.RawCandles, series: Series, *, source: str, now_s: float = np.inf) -> Candles:
    """Turn raw rows into candles by the steps that the module describes.

    Args:
        table: R rows in any order, of the kinds that `candle_table` reads; the volume may be missing, or nan.
        series: Symbol and timeframe of the rows.
        source: Name of the source, for messages and the candles.
        now_s: The present, seconds since the epoch; by default every bar is known to be closed.

    Raises:
        DataError: If the series is refused.
    """
    location = f"{series} from {source}"
    frame = frames.candle_table(table, series, location)
    num_read = len(frame)
    if IS_CLOSED in frame:
        frame = frame[frame[IS_CLOSED]].reset_index(drop=True)
    columns = OHLCV if _has_volume(frame) else OHLC
    _require_rows(len(frame), num_read, location)
    times = _read_times(frame[OPEN_TIME], series, location)
    report = CandleReport(
        num_read=num_read,
        num_unclosed=num_read - len(frame),
        time_units=dict(sorted(times.units.items())),
        num_unsorted=int(np.count_nonzero(np.diff(times.open_us) < 0)),
    )
    values = np.stack([_numbers(frame[name], location) for name in columns], axis=1)
    values += 0.0  # turns -0.0 into 0.0, so that equal candles have equal digests
    raw = _Rows(series, location, times.open_us, values, report)
    rows = _without_faults(raw, _odd_texts(frame, columns, values))
    rows = _without_unclosed(rows, now_s)
    rows = _without_repetition(rows)
    _require_rows(len(rows.open_us), num_read, location)
    _require_opens(rows)
    rows = _after_last_relisting(rows)
    _require_open_market(rows)
    _require_continuity(rows)
    report = replace(rows.report, newest_lost=_newest_lost(raw, rows.open_us[-1], now_s))
    # Without a volume column, the volume is nan.
    values = np.pad(rows.values, ((0, 0), (0, len(OHLCV) - len(columns))), constant_values=np.nan)
    return assembled(series, rows.open_us // US_PER_S, values, report, source, covariates={})


def _has_volume(frame: pd.DataFrame) -> bool:
    """Return whether a table has a volume column with at least one value; so has an empty column."""
    volume = frame.get(VOLUME)
    if volume is None:
        return False
    is_blank = volume.isna() if frames.is_real(volume) else volume.astype(object).map(_is_blank)
    return not (len(volume) and is_blank.all())


def _is_blank(item: object) -> bool:
    """Return whether a cell says that there is no value."""
    return item is None or item is pd.NA or str(item).strip().lower() in ("", "nan", "null", "none")


def _read_times(column: pd.Series, series: Series, location: str) -> frames.OpenTimes:
    """Read all open times; refuse the table if one is unreadable, or if they are of another timeframe."""
    times = frames.read_open_times(column)
    if not times.is_readable.all():
        unreadable = column[~times.is_readable]
        first = ", ".join(shown(item, 40) for item in unreadable[:MAX_LISTED])
        if unreadable.map(_is_time_of_day).all():
            raise DataError(
                where=location,
                rule="an open time is a date and a time of day in one column",
                got=f"{len(unreadable)} of {len(column)} without a date: {first}",
                fix="Join date and time, such as 2024-07-13 01:00:00, in UTC",
            )
        raise DataError(
            where=location,
            rule="an open time is a number of s, ms, us or ns after 2001-09, or ISO 8601 text",
            got=f"{len(unreadable)} of {len(column)} others: {first}",
            fix="Correct the time column; a row without its time cannot be placed",
        )
    _require_timeframe(times.steps_s, series, location)
    return times


def _is_time_of_day(item: object) -> bool:
    """Return whether a value is a time without a date: 01:00, 01:00:00 or 10000 for it.

    >>> [_is_time_of_day(item) for item in ("01:00", "1:00:00", 10_000, "2024.07.13", 99, None)]
    [True, True, True, False, False, False]
    """
    text = str(item).strip()
    if text.isascii() and text.isdigit():
        hours, minutes_and_seconds = divmod(int(text[:_MOST_CLOCK_DIGITS]), 10_000)
        minutes, seconds = divmod(minutes_and_seconds, 100)
        return len(text) <= _MOST_CLOCK_DIGITS and hours < 24 and minutes < 60 and seconds < 60
    return _CLOCK.fullmatch(text) is not None


@dataclass(frozen=True, eq=False)
class _Rows:
    """Raw rows that are being checked.

    Args:
        open_us: Open times, microseconds since the epoch, UTC, shape (R,), int64.
        values: Columns of `OHLCV`, shape (R, 5), float64, prices in quote currency; (R, 4) without a volume.
    """

    series: Series
    location: str
    open_us: Times
    values: Values
    report: CandleReport

    @property
    def bar_us(self) -> int:
        return self.series.bar_s * US_PER_S

    def at(self, selection: Mask | NDArray[np.intp] | slice, **report_changes: Any) -> "_Rows":
        """Return selected rows (a mask, row numbers or a slice), with new values of fields of the report."""
        report = replace(self.report, **report_changes)
        return replace(self, open_us=self.open_us[selection], values=self.values[selection], report=report)

    def opens(self, is_selected: Mask) -> str:
        """List the open times of the selected rows for a message, each once."""
        return listed([iso(open_us / US_PER_S) for open_us in np.unique(self.open_us[is_selected])])

    def first_faults(self, phase_us: int) -> NDArray[np.intp]:
        """Return the number of the first of `_FAULTS` that each row has, shape (R,); `len(_FAULTS)` for none.

        The grid of the bars starts at `phase_us`, microseconds after the epoch.
        """
        opened, high, low, close = self.values.T[:4]
        is_unreadable = ~(np.abs(self.values) <= MAX_VALUE).all(axis=1)
        is_non_positive = np.minimum.reduce([opened, high, low, close]) < 1 / MAX_VALUE
        if self.values.shape[1] == len(OHLCV):
            is_non_positive |= self.values[:, OHLCV.index(VOLUME)] < 0
        is_inconsistent = (low > np.minimum(opened, close)) | (high < np.maximum(opened, close))
        is_off_grid = (self.open_us - phase_us) % self.bar_us != 0
        is_any = np.ones(len(close), dtype=np.bool_)
        return np.argmax([is_unreadable, is_non_positive, is_inconsistent, is_off_grid, is_any], axis=0)

    def require_few(self, num_bad: int, reason: str) -> None:
        """Refuse the series if too many rows are unusable."""
        if num_bad > MAX_DROPPED_SHARE * self.report.num_read:
            raise DataError(
                where=self.location,
                rule=f"at most {MAX_DROPPED_SHARE:.0%} of the rows may be unusable",
                got=f"{num_bad} of {self.report.num_read}, {reason}",
                fix="Check that the file is of this symbol and timeframe, its time zone, and its columns "
                f"({_UNNAMED_ORDER}); leave out the rows of bars without a price",
            )


def _numbers(column: pd.Series, location: str) -> Values:
    """Read a column as numbers; refuse numbers of 16 bits."""
    if frames.is_coarse(column):
        raise frames.too_coarse(location, str(column.name))
    return frames.numbers(column)


def _require_rows(num_left: int, num_read: int, location: str) -> None:
    if num_left == 0:
        raise DataError(
            where=location,
            rule="needs at least one closed candle",
            got=f"none in {num_read} rows",
            fix="Fetch a longer history",
        )


def _odd_texts(frame: pd.DataFrame, columns: Sequence[str], values: Values) -> list[str]:
    """List the first values of each column that are neither numbers nor missing, for messages."""
    texts = []
    for number, name in enumerate(columns):
        if not frames.is_real(frame[name]):
            items = frame[name][np.isnan(values[:, number])].head(MAX_LISTED)
            texts += [f"{shown(item, 20)} in {name}" for item in items if not _is_blank(item)]
    return texts


def _without_faults(rows: _Rows, odd_texts: Sequence[str]) -> _Rows:
    """Drop and count the implausible rows, each under its first fault; refuse the series if they are many.

    Of `odd_texts`, values that are not numbers, the first is shown.
    """
    phases_us, num_rows = np.unique(rows.open_us % rows.bar_us, return_counts=True)
    first = rows.first_faults(int(phases_us[num_rows.argmax()]))
    counts = np.bincount(first, minlength=len(_FAULTS) + 1)[: len(_FAULTS)]
    worst = int(counts.argmax())
    fault = _FAULTS[worst][1]
    if odd_texts and worst == _UNREADABLE:
        fault = f"{fault}, such as {odd_texts[0]}"
    rows.require_few(int(counts.sum()), f"mostly {fault} ({rows.opens(first == worst)})")
    counts_by_name = {name: int(count) for (name, _), count in zip(_FAULTS, counts, strict=True)}
    return rows.at(first == len(_FAULTS), **counts_by_name)


def _newest_lost(raw: _Rows, last_us: np.int64, now_s: float) -> LostRow | None:
    """Return the newest row if it was dropped and its bar, after the last one kept, has closed."""
    bars_us = raw.open_us - (raw.open_us - last_us) % raw.bar_us
    lost = np.flatnonzero((bars_us + raw.bar_us <= now_s * US_PER_S) & (bars_us > last_us))
    if not len(lost):
        return None
    row = int(lost[raw.open_us[lost].argmax()])
    fault = raw.at(slice(row, row + 1)).first_faults(int(last_us % raw.bar_us))[0]
    reasons = [reason for _, reason in _FAULTS] + ["listed more than once with different values"]
    values = ", ".join(f"{name} {value:.10g}" for name, value in zip(OHLCV, raw.values[row], strict=False))
    description = f"row {row + 1:,} of {iso(raw.open_us[row] / US_PER_S)}: {reasons[fault]} ({values})"
    return LostRow(int(bars_us[row]) // US_PER_S, description)


def _without_unclosed(rows: _Rows, now_s: float) -> _Rows:
    """Drop and count the running bar; refuse rows of later bars."""
    is_unclosed = rows.open_us + rows.bar_us > now_s * US_PER_S
    if len(np.unique(rows.open_us[is_unclosed])) > 1:
        raise DataError(
            where=rows.location,
            rule=f"only the running bar may end after now, {iso(now_s)}",
            got=f"bars that open at {rows.opens(is_unclosed)}",
            fix="Check the clock of this machine and the unit and time zone of the file",
        )
    num_unclosed = rows.report.num_unclosed + int(is_unclosed.sum())
    return rows.at(~is_unclosed, num_unclosed=num_unclosed)


def _without_repetition(rows: _Rows) -> _Rows:
    """Sort the rows and keep one, or none, for every bar that is listed more than once."""
    rows = rows.at(np.argsort(rows.open_us, kind="stable"))
    starts = np.flatnonzero(np.diff(rows.open_us, prepend=-1))
    if len(starts) == len(rows.open_us):
        return rows
    sizes = np.diff(starts, append=len(rows.open_us))
    largest = np.maximum.reduceat(rows.values, starts, axis=0)
    spread = largest - np.minimum.reduceat(rows.values, starts, axis=0)
    is_identical = (spread == 0).all(axis=1)
    is_conflicting = (spread > ROUNDING_SHARE * largest).any(axis=1)
    is_rounded = ~is_identical & ~is_conflicting
    kept_rows = _most_precise(rows, is_rounded, starts, sizes)[~is_conflicting]
    single = rows.at(
        kept_rows,
        num_identical=int((sizes[is_identical] - 1).sum()),
        num_rounded=int((sizes[is_rounded] - 1).sum()),
        num_conflicting=int(sizes[is_conflicting].sum()),
    )
    offenders = rows.opens(np.repeat(is_conflicting, sizes))
    reason = f"mostly bars listed more than once with different values ({offenders})"
    num_bad = single.report.num_conflicting + sum(getattr(single.report, name) for name, _ in _FAULTS)
    single.require_few(num_bad, reason)
    return single


def _most_precise(
    rows: _Rows, is_rounded: Mask, starts: NDArray[np.intp], sizes: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the row with the most decimals of each rounded group, of others the first; larger values win."""
    group = np.repeat(np.arange(len(starts)), sizes)
    members = np.flatnonzero(is_rounded[group])
    values = rows.values[members]
    decimals = np.full(values.shape, _MOST_DECIMALS)
    for places in reversed(range(_MOST_DECIMALS)):
        decimals[np.round(values, places) == values] = places
    order = np.lexsort((*values.T[::-1], decimals.sum(axis=1), group[members]))
    selected = starts.copy()
    selected[group[members[order]]] = members[order]  # of several assignments to a group the last one stays
    return selected


def _require_opens(rows: _Rows) -> None:
    """Refuse times at which no bar opens, such as close times: candles would be placed at wrong bars."""
    first_us = int(rows.open_us[0])
    beyond_us = first_us % (60 * US_PER_S)
    early_us = -first_us % rows.bar_us
    if beyond_us == 0:
        return
    got = f"{beyond_us / US_PER_S:g} s off"
    fix = f"subtract {beyond_us / US_PER_S:g} s, if it is these"
    if early_us <= _LATEST_CLOSE_US:
        got = f"{early_us / US_PER_S:g} s before a bar ends: closes"
        fix = f"add {early_us / US_PER_S:g} s and subtract a bar, {rows.series.bar_s} s"
    raise DataError(
        where=rows.location,
        rule="a candle is placed by when it opens, on a full minute",
        got=f"times such as {iso(first_us / US_PER_S)}, {got}",
        fix=f"Give the times at which the bars open: {fix}",
    )


def _require_timeframe(steps_s: Values, series: Series, location: str) -> None:
    """Refuse another timeframe, by the median step between rows; with too few rows it is not checked."""
    if len(steps_s) < _FEWEST_STEPS:
        return
    step_s = float(np.median(steps_s))
    if step_s != series.bar_s:
        name = f" ({TIMEFRAMES[step_s]})" if step_s in TIMEFRAMES else ""
        raise DataError(
            where=location,
            rule=f"needs candles that open {series.bar_s:,} s apart ({series.timeframe})",
            got=f"rows that are mostly {step_s:,.10g} s apart{name}",
            fix="Fetch candles of that timeframe, or name the series, or load the forecaster, of this one",
        )


def _after_last_relisting(rows: _Rows) -> _Rows:
    """Keep only the rows after the last re-listing: from then on the symbol means another coin."""
    gap_s = np.diff(rows.open_us) // US_PER_S - rows.series.bar_s
    log_returns = np.diff(np.log(rows.values[:, OHLCV.index(CLOSE)]))
    relistings = np.flatnonzero((gap_s > RELISTING_HOLE_S) & (np.abs(log_returns) > RELISTING_LOG_RETURN))
    if len(relistings) == 0:
        return rows
    first = int(relistings[-1]) + 1
    relisted_at = iso(rows.open_us[first] / US_PER_S)
    factor = float(np.exp(log_returns[first - 1]))
    return rows.at(slice(first, None), num_older_life=first, relisted_at=relisted_at, relisted_factor=factor)


def _require_open_market(rows: _Rows) -> None:
    """Refuse a market with closing hours."""
    closed = closed_hours(rows.open_us // US_PER_S, rows.series.bar_s)
    if closed:
        raise DataError(
            where=rows.location,
            rule="v8 forecasts markets that never close, such as those of coins",
            got=f"a market without candles in {closed}",
            fix="Choose a market that trades around the clock; a longer history does not help",
        )


def _require_continuity(rows: _Rows) -> None:
    """Refuse prices that do not continue each other from bar to bar."""
    opened = np.log(rows.values[:, 0])
    close = np.log(rows.values[:, 3])
    is_next = np.diff(rows.open_us) == rows.bar_us
    # In correct candles the first distance is small; if open and close are swapped, the second one is.
    steps = np.abs(opened[1:] - close[:-1])[is_next]
    swapped = np.abs(close[1:] - opened[:-1])[is_next]
    # Sign test: under chance the sum of n signs has the standard deviation sqrt(n).
    signs = np.sign(steps - swapped)
    is_significant = signs.sum() > MOST_CHANCE * np.sqrt(np.abs(signs).sum())
    if is_significant and swapped.sum() < SWAPPED_SHARE * steps.sum():
        means = (
            f"opens {steps.mean():.2%} from the close before, and closes {swapped.mean():.2%} from the open"
        )
        raise DataError(
            where=rows.location,
            rule="a bar opens where the one before closed",
            got=f"{means} before: open and close swapped, or prices in reverse order of their times",
            fix=f"Name the columns correctly ({_UNNAMED_ORDER})",
        )


def closed_hours(open_time_s: Times, bar_s: int) -> str | None:
    """Describe the closing hours of a market; None if it has none, or too few candles to decide.

    Open times are seconds since the epoch, UTC, strictly ascending, shape (N,), N at least 1.

    >>> weekdays_s = np.arange(5 * 24 * 3_600, step=3_600)
    >>> closed_hours(np.concatenate([week * WEEK_S + weekdays_s for week in range(4)]), 3_600)
    '48 of the 168 hours of every week (3 weeks)'
    """
    slot_s = max(bar_s, _HOUR_S)
    for name, length_s, fewest_cycles, least_closed_s in _CYCLES:
        if length_s >= _FEWEST_SLOTS * slot_s and length_s % slot_s == 0:
            num_cycles = _closed_cycles(open_time_s // slot_s, length_s // slot_s)
            closed_s = int((num_cycles >= fewest_cycles).sum()) * slot_s
            if closed_s >= least_closed_s:
                hours = f"{closed_s // _HOUR_S} of the {length_s // _HOUR_S} hours"
                return f"{hours} of every {name} ({num_cycles.max()} {name}s)"
    return None


def _closed_cycles(slots: Times, num_slots: int) -> Times:
    """Count the cycles in which each slot was closed, shape (num_slots,); 0 for slots with trading.

    Args:
        slots: Numbers of the slots with candles, counted from the epoch, ascending.
        num_slots: Slots of a cycle. A gap as long as a cycle says nothing about hours and is ignored.
    """
    filled = np.unique(slots)
    absent = np.setdiff1d(np.arange(filled[0], filled[-1]), filled, assume_unique=True)
    after = np.searchsorted(filled, absent)
    is_short = filled[after] - filled[after - 1] <= num_slots
    closed = np.bincount(absent[is_short] % num_slots, minlength=num_slots)
    traded = np.bincount(filled % num_slots, minlength=num_slots)
    return np.where(traded <= _MOST_FILLED * closed, closed, 0)
