"""Raw rows become candles, or are refused with the reason: `check_candles`.

In this order; every row that is not kept is counted in the report:

1. Open times of any unit become UTC seconds; a row without a readable time refuses the series, and so does
   what tells another symbol or timeframe, be it by the time from most rows to the next.
2. Rows that cannot be true are dropped: unreadable values, prices not above zero, volume below zero, values
   beyond 1e18, `low <= open, close <= high` broken, opens between two bars of the grid. The grid is the one
   on which most rows lie: weeks begin on Monday, and hours may begin at half past.
3. The running bar is dropped; more than one bar from the future refuses the series.
4. Rows are sorted. Rows of one bar that agree to 0.01 % become one: the row written with the most
   decimals. Rows of one bar that disagree are all dropped, because nobody can say which is right.
5. If steps 2 and 4 dropped more than 5 % of the rows, the series is refused: then the file is not what it
   claims to be.
6. A re-listed symbol (a leap beyond any plausible one across a long hole) starts anew: only the rows
   after the last such leap are kept.
7. What a table tells against itself refuses it, because a forecast from it would be wrong unseen: opens that
   lie a second or less before a bar ends are closes, others between two minutes no opens; opens and closes
   that do not continue each other are swapped, or run backwards; 16 bits hold three digits of a price.
8. A market that closes is refused: its holes come back at the same hours, and no longer history fills them.
9. Holes stay holes: `segment` rises by one after each, and nothing is ever filled in.

A whole table without a volume is one of candles without a volume: it is nan everywhere and zero nowhere. A
volume that only some rows lack is a fault of these rows. Flat candles without volume are kept: the exchange
writes them in quiet markets as in outages, and they say truthfully that nothing traded.

Shapes: N candles, R raw rows.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.columns import CLOSE, OHLC, OHLCV, OPEN_TIME, VOLUME
from v8.errors import MAX_LISTED, DataError, listed, shown
from v8.market import frames
from v8.market.candles import MAX_VALUE, CandleReport, Candles, LostRow, Mask, Times, Values, assembled
from v8.market.series import TIMEFRAMES, US_PER_S, WEEK_S, Series, iso

MAX_DROPPED_SHARE = 0.05
"""Rows that may break a rule. The worst real file (LTC, February 2018) has 1.7 %; a file of another
timeframe, or with columns swapped, has far more than half."""

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

SWAPPED_SHARE: Final = 0.5
"""If the step from open to next close has less than this share of the step from close to next open, the two
are swapped. Rightly named candles have 1.9 times
at least, mostly above 10, in any month of 20 coins."""

MOST_CHANCE: Final = 5.0
"""Standard deviations by which it must be so bar by bar, too, which takes 25 bars: a few bars of a price that
jumps between two ticks may look like anything. Of 5,320 windows of 80 bars none is refused, and 5,285 are if
their open and close are swapped."""

_LATEST_CLOSE_US: Final = US_PER_S  # exchanges write closes a second, a ms or a us before the next open
_MOST_DECIMALS: Final = 12
_FEWEST_STEPS_TO_EVALUATE: Final = 10
_FEWEST_SLOTS: Final = 6  # slots of a round: with fewer, one lost candle would be a large part of it
_MOST_FILLED: Final = 0.05  # share of rounds in which a closed hour may be traded: special sessions
_HOUR_S: Final = 3_600
_CYCLES: Final = (("week", WEEK_S, 3, 24 * _HOUR_S), ("day", 24 * _HOUR_S, 4, 3 * _HOUR_S))
"""Spans after which opening hours repeat: name, seconds, in how many rounds an hour must be closed to be no
accident, and seconds of a round that must be closed to be no maintenance."""

_FAULTS: Final = (
    ("num_unreadable", "values that are missing, no numbers or beyond 1e18"),
    ("num_non_positive", "prices not above zero or volume below zero"),
    ("num_inconsistent", "low <= open, close <= high broken"),
    ("num_off_grid", "opens between two bars of this timeframe"),
)
"""Counts of the report, and what each means."""


def check_candles(
    given: frames.GivenCandles, series: Series, *, source: str, now_s: float = np.inf
) -> Candles:
    """Turn raw rows into candles, or refuse them with the reason; the module says how.

    Args:
        given: A table of R rows in any order, as `candle_table` reads it; its volume may be missing, or nan.
        now_s: The present, seconds since the epoch; without it every bar is known to be closed.
    """
    where = f"{series} from {source}"
    frame = frames.candle_table(given, series, where)
    volume = frame.get(VOLUME)
    is_known = volume is not None and not (len(volume) and frames.is_real(volume) and volume.isna().all())
    columns = OHLCV if is_known else OHLC
    _require_rows(len(frame), len(frame), where)
    times = frames.read_open_times(frame[OPEN_TIME])
    if not times.is_readable.all():  # such a row cannot be placed
        unreadable = frame[OPEN_TIME][~times.is_readable]
        first = ", ".join(shown(item, 40) for item in unreadable[:MAX_LISTED])
        rule = "an open time is a number of s, ms, us or ns after 2001-09, or ISO 8601 text"
        got = f"{len(unreadable)} of {len(frame)} others: {first}"
        fix = "Mend the time column; a row without its time cannot be placed"
        raise DataError(where=where, rule=rule, got=got, fix=fix)
    _require_timeframe(times.steps_s, series, where)
    report = CandleReport(
        num_read=len(frame),
        time_units=dict(sorted(times.units.items())),
        num_unsorted=int(np.count_nonzero(np.diff(times.open_us) < 0)),
    )
    values = np.stack([_numbers(frame[name], where) for name in columns], axis=1)
    values += 0.0  # turns -0.0 into 0.0, so that equal candles have equal digests
    raw = _Rows(series, where, times.open_us, values, report)
    rows = _without_repetition(_without_unclosed(_without_faults(raw), now_s))
    _require_rows(len(rows.open_us), len(frame), where)
    _require_opens(rows)
    rows = _newest_life(rows)
    closed = closed_hours(rows.open_us // US_PER_S, series.bar_s)
    if closed:
        rule = "v8 forecasts markets that never close, such as those of coins"
        fix = "Take a market that trades around the clock; a longer history does not help"
        raise DataError(where=where, rule=rule, got=f"a market without candles in {closed}", fix=fix)
    _require_continuity(rows)
    report = replace(rows.report, newest_lost=_newest_lost(raw, rows.open_us[-1], now_s))
    # An unknown volume is nan.
    values = np.pad(rows.values, ((0, 0), (0, len(OHLCV) - len(columns))), constant_values=np.nan)
    return assembled(series, rows.open_us // US_PER_S, values, report, source, beside={})


@dataclass(frozen=True, eq=False)
class _Rows:
    """Raw rows on their way to become candles.

    Args:
        open_us: Open times, microseconds since the epoch, UTC, shape (R,), int64.
        values: Columns of `OHLCV`, shape (R, 5), float64, prices in quote currency; (R, 4) without a volume.
    """

    series: Series
    where: str
    open_us: Times
    values: Values
    report: CandleReport

    @property
    def bar_us(self) -> int:
        return self.series.bar_s * US_PER_S

    def at(self, chosen: Mask | NDArray[np.intp] | slice, **found: Any) -> "_Rows":
        """Return the chosen rows (a mask, row numbers or a slice), and note what was found."""
        report = replace(self.report, **found)
        return replace(self, open_us=self.open_us[chosen], values=self.values[chosen], report=report)

    def opens(self, is_chosen: Mask) -> str:
        """List the open times of the chosen rows in words, each once."""
        return listed([iso(open_us / US_PER_S) for open_us in np.unique(self.open_us[is_chosen])])

    def first_faults(self, phase_us: int) -> NDArray[np.intp]:
        """Tell which of `_FAULTS` each row has first, shape (R,); one more than there are for a sound row."""
        opened, high, low, close, *volume = self.values.T
        masks = [
            ~(np.abs(self.values) <= MAX_VALUE).all(axis=1),
            (np.minimum.reduce([opened, high, low, close]) < 1 / MAX_VALUE) | (sum(volume) < 0),
            (low > np.minimum(opened, close)) | (high < np.maximum(opened, close)),
            (self.open_us - phase_us) % self.bar_us != 0,
            np.ones(len(close), dtype=np.bool_),
        ]
        return np.argmax(masks, axis=0)

    def require_few(self, num_bad: int, reason: str) -> None:
        if num_bad > MAX_DROPPED_SHARE * self.report.num_read:
            rule = f"at most {MAX_DROPPED_SHARE:.0%} of the rows may be unusable"
            got = f"{num_bad} of {self.report.num_read}, {reason}"
            fix = "Check that the file is of this symbol and timeframe, and its columns and time zone"
            raise DataError(where=self.where, rule=rule, got=got, fix=fix)


def _numbers(column: pd.Series, where: str) -> Values:
    """Read a column of any type as numbers; nan where a row holds none (a date or true is none)."""
    if frames.is_coarse(column):
        raise frames.too_coarse(where, str(column.name))
    if frames.is_real(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.array([frames.number(item) for item in column.astype(object)], dtype=np.float64)


def _require_rows(num_left: int, num_read: int, where: str) -> None:
    if num_left == 0:
        rule = "needs at least one closed candle"
        got = f"none in {num_read} rows"
        raise DataError(where=where, rule=rule, got=got, fix="Fetch a longer history")


def _without_faults(rows: _Rows) -> _Rows:
    """Drop and count the rows that cannot be true, each under its first fault; refuse when they are many."""
    phases_us, num_rows = np.unique(rows.open_us % rows.bar_us, return_counts=True)
    first = rows.first_faults(int(phases_us[num_rows.argmax()]))
    counts = np.bincount(first, minlength=len(_FAULTS) + 1)[: len(_FAULTS)]
    worst = int(counts.argmax())
    rows.require_few(int(counts.sum()), f"mostly {_FAULTS[worst][1]} ({rows.opens(first == worst)})")
    found = {name: int(count) for (name, _), count in zip(_FAULTS, counts, strict=True)}
    return rows.at(first == len(_FAULTS), **found)


def _newest_lost(raw: _Rows, last_us: np.int64, now_s: float) -> LostRow | None:
    """Tell of the newest row, if it was dropped and lies in a bar that has closed after the last one kept."""
    bars_us = raw.open_us - (raw.open_us - last_us) % raw.bar_us
    lost = np.flatnonzero((bars_us + raw.bar_us <= now_s * US_PER_S) & (bars_us > last_us))
    if not len(lost):
        return None
    row = int(lost[raw.open_us[lost].argmax()])
    fault = raw.at(slice(row, row + 1)).first_faults(int(last_us % raw.bar_us))[0]
    why = [reason for _, reason in _FAULTS] + ["listed more than once with different values"]
    held = ", ".join(f"{name} {value:.10g}" for name, value in zip(OHLCV, raw.values[row], strict=False))
    told = f"row {row + 1:,} of {iso(raw.open_us[row] / US_PER_S)}: {why[fault]} ({held})"
    return LostRow(int(bars_us[row]) // US_PER_S, told)


def _without_unclosed(rows: _Rows, now_s: float) -> _Rows:
    """Drop and count the running bar; refuse rows from a future beyond it."""
    is_unclosed = rows.open_us + rows.bar_us > now_s * US_PER_S
    if len(np.unique(rows.open_us[is_unclosed])) > 1:
        rule = f"only the running bar may end after now, {iso(now_s)}"
        got = rows.opens(is_unclosed)
        fix = "Check the clock of this machine and the unit and time zone of the file"
        raise DataError(where=rows.where, rule=rule, got=f"bars that open at {got}", fix=fix)
    return rows.at(~is_unclosed, num_unclosed=int(is_unclosed.sum()))


def _without_repetition(rows: _Rows) -> _Rows:
    """Sort the rows and leave one, or none, for every bar that is listed more than once."""
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
    single = rows.at(
        _most_precise(rows, is_rounded, starts, sizes)[~is_conflicting],
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
    """Find the row of each rounded group with the most decimals, else the first; larger values win ties."""
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


def _require_opens(rows: _Rows) -> None:
    """Refuse times at which no bar opens: candles would be placed a bar late, or beside the minute."""
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
    rule = "a candle is placed by when it opens, on a full minute"
    got = f"{iso(first_us / US_PER_S)}, {got}"
    fix = f"Give the times at which the bars open: {fix}"
    raise DataError(where=rows.where, rule=rule, got=f"times such as {got}", fix=fix)


def _require_timeframe(steps_s: Values, series: Series, where: str) -> None:
    """Refuse another timeframe before its rows are called unusable; too few to tell pass."""
    if len(steps_s) >= _FEWEST_STEPS_TO_EVALUATE and (step_s := float(np.median(steps_s))) != series.bar_s:
        rule = f"needs candles that open {series.bar_s:,} s apart ({series.timeframe})"
        fix = "Fetch candles of that timeframe, or name the series, or load the forecaster, of this one"
        name = f" ({TIMEFRAMES[step_s]})" if step_s in TIMEFRAMES else ""
        got = f"rows that are mostly {step_s:,.10g} s apart{name}"
        raise DataError(where=where, rule=rule, got=got, fix=fix)


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


def _require_continuity(rows: _Rows) -> None:
    """Refuse prices that do not continue each other as candles in the order of time do."""
    opened = np.log(rows.values[:, 0])
    close = np.log(rows.values[:, 3])
    is_next = np.diff(rows.open_us) == rows.bar_us
    steps = np.abs(opened[1:] - close[:-1])[is_next]
    swapped = np.abs(close[1:] - opened[:-1])[is_next]
    signs = np.sign(steps - swapped)
    is_sure = signs.sum() > MOST_CHANCE * np.sqrt(np.abs(signs).sum())
    if is_sure and swapped.sum() < SWAPPED_SHARE * steps.sum():
        far = f"opens {steps.mean():.2%} from the close before, and closes {swapped.mean():.2%} from the open"
        got = f"{far} before: open and close swapped, or prices backwards under their times"
        fix = "Name the columns rightly (rows without names are time, open, high, low, close, volume)"
        raise DataError(where=rows.where, rule="a bar opens where the one before closed", got=got, fix=fix)


def closed_hours(open_time_s: Times, bar_s: int) -> str | None:
    """Say when a market is closed; None for one that never is, or that was seen too shortly to tell.

    Open times are seconds since the epoch, UTC, strictly ascending, shape (N,), N at least 1.

    >>> weekdays_s = np.arange(5 * 24 * 3_600, step=3_600)
    >>> closed_hours(np.concatenate([week * WEEK_S + weekdays_s for week in range(4)]), 3_600)
    '48 of the 168 hours of every week (3 weeks)'
    """
    slot_s = max(bar_s, _HOUR_S)
    for name, length_s, fewest_rounds, least_closed_s in _CYCLES:
        if length_s >= _FEWEST_SLOTS * slot_s and length_s % slot_s == 0:
            num_rounds = _rounds_closed(open_time_s // slot_s, length_s // slot_s)
            closed_s = int((num_rounds >= fewest_rounds).sum()) * slot_s
            if closed_s >= least_closed_s:
                hours = f"{closed_s // _HOUR_S} of the {length_s // _HOUR_S} hours"
                return f"{hours} of every {name} ({num_rounds.max()} {name}s)"
    return None


def _rounds_closed(slots: Times, num_slots: int) -> Times:
    """Count in how many rounds each slot was closed, shape (num_slots,); 0 for those that are traded.

    A hole that is as long as a round says nothing about hours and is left out. `slots` ascend.
    """
    filled = np.unique(slots)
    absent = np.setdiff1d(np.arange(filled[0], filled[-1]), filled, assume_unique=True)
    after = np.searchsorted(filled, absent)
    is_short = filled[after] - filled[after - 1] <= num_slots
    closed = np.bincount(absent[is_short] % num_slots, minlength=num_slots)
    traded = np.bincount(filled % num_slots, minlength=num_slots)
    return np.where(traded <= _MOST_FILLED * closed, closed, 0)
