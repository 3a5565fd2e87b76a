"""The steps of `check_candles`: each drops or refuses rows for one reason and counts them.

`v8/market/candles.py` says in which order they run and why they are what they are.
Shapes: R raw rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.columns import CLOSE, HIGH, LOW, OHLC, OHLCV, OPEN, OPEN_TIME, VOLUME
from v8.errors import DataError, listed
from v8.market.candle_report import CandleReport
from v8.market.open_times import US_PER_S, iso
from v8.market.series import Series

COLUMN = {name: number for number, name in enumerate(OHLCV)}
"""Place of each column in `values`."""

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

_MOST_DECIMALS = 12
_FEWEST_STEPS_TO_JUDGE = 10


@dataclass(frozen=True, eq=False)
class Rows:
    """Raw rows on their way to become candles.

    Args:
        series: What they claim to be.
        where: Series and source, for errors.
        open_us: Open times, microseconds since the epoch, UTC, shape (R,), int64.
        values: Columns of `OHLCV`, shape (R, 5), float64, prices in quote currency.
        report: What was found in them so far.
    """

    series: Series
    where: str
    open_us: NDArray[np.int64]
    values: NDArray[np.float64]
    report: CandleReport

    def at(self, chosen: NDArray[np.bool_] | NDArray[np.intp] | slice, **found: Any) -> Rows:
        """Return the chosen rows (a mask, row numbers or a slice), and note what was found."""
        report = replace(self.report, **found)
        return replace(self, open_us=self.open_us[chosen], values=self.values[chosen], report=report)

    def opens(self, is_chosen: NDArray[np.bool_]) -> str:
        """List the open times of the chosen rows in words, each once."""
        return listed([iso(open_us / US_PER_S) for open_us in np.unique(self.open_us[is_chosen])])


def require_columns(frame: pd.DataFrame, where: str) -> None:
    """Refuse a frame without an open time or one of `OHLCV`."""
    missing = [name for name in (OPEN_TIME, *OHLCV) if name not in frame.columns]
    if missing:
        raise DataError(
            where=where,
            rule=f"candles need the columns {', '.join((OPEN_TIME, *OHLCV))}",
            got=f"no {', '.join(missing)} among {listed(list(frame.columns))}",
            fix="Rename or add the columns",
        )


def require_rows(num_left: int, num_read: int, where: str) -> None:
    """Refuse a series of which nothing is left."""
    if num_left == 0:
        raise DataError(
            where=where,
            rule="needs at least one closed candle",
            got=f"none in {num_read} rows",
            fix="Fetch a longer history",
        )


def require_readable(column: pd.Series, is_readable: NDArray[np.bool_], where: str) -> None:
    """Refuse a time column with a row that holds no time: such a row cannot be placed."""
    if not is_readable.all():
        unreadable = column[~is_readable]
        raise DataError(
            where=where,
            rule="an open time is a number of s, ms, us or ns after 2001-09, or ISO 8601 text",
            got=f"{len(unreadable)} of {len(column)} others: {listed([str(item) for item in unreadable])}",
            fix="Mend the time column; a row without its time cannot be placed",
        )


def numbers(frame: pd.DataFrame) -> NDArray[np.float64]:
    """Return the `OHLCV` columns as numbers, shape (R, 5); NaN where there is none."""
    columns = [pd.to_numeric(frame[name], errors="coerce") for name in OHLCV]
    values = np.stack([column.to_numpy(dtype=np.float64, na_value=np.nan) for column in columns], axis=1)
    return values + 0.0  # turns -0.0 into 0.0, so that equal candles have equal digests


def without_faults(rows: Rows) -> Rows:
    """Drop and count the rows that cannot be true; refuse when they are many."""
    faults = _faults(rows)
    count = {name: int(mask.sum()) for name, mask in faults.items()}
    worst = max(count, key=lambda name: count[name])
    reason = f"mostly {_FAULTS[worst]} ({rows.opens(faults[worst])})"
    _require_few(sum(count.values()), rows, reason)
    return rows.at(~np.logical_or.reduce(list(faults.values())), **count)


_FAULTS = {
    "num_unreadable": "values that are missing or no numbers",
    "num_non_positive": "prices not above zero or volume below zero",
    "num_inconsistent": "low <= open, close <= high broken",
    "num_off_grid": "opens between two bars of this timeframe",
}
"""Counts of the report, and what each means."""


def _faults(rows: Rows) -> dict[str, NDArray[np.bool_]]:
    """Mark the rows that cannot be true, each under its first fault only.

    Returns:
        Per key of `_FAULTS` a mask of shape (R,).
    """
    values = rows.values
    opened, high, low, close = (values[:, COLUMN[name]] for name in (OPEN, HIGH, LOW, CLOSE))
    prices = values[:, [COLUMN[name] for name in OHLC]]
    masks = {
        "num_unreadable": ~np.isfinite(values).all(axis=1),
        "num_non_positive": (prices <= 0).any(axis=1) | (values[:, COLUMN[VOLUME]] < 0),
        "num_inconsistent": (low > np.minimum(opened, close)) | (high < np.maximum(opened, close)),
        "num_off_grid": rows.open_us % (rows.series.bar_s * US_PER_S) != 0,
    }
    is_taken = np.zeros(len(values), dtype=np.bool_)
    for name, mask in masks.items():
        masks[name] = mask & ~is_taken
        is_taken |= mask
    return masks


def _require_few(num_bad: int, rows: Rows, reason: str) -> None:
    if num_bad > MAX_DROPPED_SHARE * rows.report.num_read:
        raise DataError(
            where=rows.where,
            rule=f"at most {MAX_DROPPED_SHARE:.0%} of the rows may be unusable",
            got=f"{num_bad} of {rows.report.num_read}, {reason}",
            fix="Check that the file is of this symbol and timeframe, and its columns and time zone",
        )


def without_unclosed(rows: Rows, now_s: int | None) -> Rows:
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


def without_repetition(rows: Rows) -> Rows:
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
    rows: Rows, is_rounded: NDArray[np.bool_], starts: NDArray[np.intp], sizes: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Find the row with the most decimals in every rounded group; larger values decide a tie.

    Returns:
        Row numbers, shape (groups,); only those of rounded groups mean anything.
    """
    group = np.repeat(np.arange(len(starts)), sizes)
    members = np.flatnonzero(is_rounded[group])
    values = rows.values[members]
    order = np.lexsort((*values.T[::-1], _num_decimals(values), group[members]))
    chosen = starts.copy()
    chosen[group[members[order]]] = members[order]  # the last of each group wins
    return chosen


def _num_decimals(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Count the decimals that the values of a row need together, shape (R,)."""
    decimals = np.full(values.shape, _MOST_DECIMALS, dtype=np.int64)
    for places in reversed(range(_MOST_DECIMALS)):
        decimals[np.round(values, places) == values] = places
    return np.asarray(decimals.sum(axis=1))


def require_timeframe(rows: Rows) -> None:
    """Refuse coarser candles that happen to lie on the grid of a finer timeframe.

    Too few rows to tell pass.
    """
    steps_s, bar_s = np.diff(rows.open_us) // US_PER_S, rows.series.bar_s
    if len(steps_s) >= _FEWEST_STEPS_TO_JUDGE and np.median(steps_s) != bar_s:
        raise DataError(
            where=rows.where,
            rule=f"most candles must follow {bar_s} s after the one before",
            got=f"a median step of {np.median(steps_s):.0f} s",
            fix=f"Check that the rows are of timeframe {rows.series.timeframe}",
        )


def newest_life(rows: Rows) -> Rows:
    """Keep only what follows the last leap that no coin makes: after it the symbol means another one."""
    hole_s = np.diff(rows.open_us) // US_PER_S - rows.series.bar_s
    leap = np.abs(np.diff(np.log(rows.values[:, COLUMN[CLOSE]])))
    leaps = np.flatnonzero((hole_s > RELISTING_HOLE_S) & (leap > RELISTING_LOG_RETURN))
    if len(leaps) == 0:
        return rows
    first = int(leaps[-1]) + 1
    relisted_at = iso(rows.open_us[first] / US_PER_S)
    return rows.at(slice(first, None), num_older_life=first, relisted_at=relisted_at)
