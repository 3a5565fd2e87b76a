"""Candles: checked OHLCV rows of one series, and the report of what was found in them.

`v8.market.checks` makes them of raw rows. Every row that was read is counted once: `num_read` of the report
is `num_kept` plus all the counts of `dropped`.

Shapes: N candles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.columns import CLOSE, OHLCV, OPEN, OPEN_TIME, VOLUME
from v8.errors import DataError
from v8.market.series import Series, iso
from v8.storage import digest_bytes

MAX_VALUE = 1e18
"""No price or volume is beyond it, and no price below its inverse; the networks' float32 ends at 1e38."""

MAX_LEAP = 2.0
"""Log of an open over the close before it, which ended in the same instant. In two years of 20 coins the
largest is 0.016; cents in the place of dollars make 4.6."""

NUM_GAPS_LISTED = 10


@dataclass(frozen=True)
class Gap:
    """A hole between two neighbouring candles."""

    after: str  # open time of the candle before the hole, ISO 8601, UTC
    num_missing: int  # bars that are not there


@dataclass(frozen=True)
class LostRow:
    """The newest row of all, where it was dropped: the candle before it is not the newest that there is."""

    open_s: int  # when its bar opens, seconds since the epoch, UTC
    told: str  # its number, counted from 1, what is wrong with it, and what it holds


@dataclass(frozen=True)
class CandleReport:
    """Counts of rows, unitless, except where a line says otherwise.

    Args:
        num_conflicting: Rows dropped because another of the same open time says something else; all
            rows of such a bar are dropped and it becomes a gap.
        lacking: How many candles of all that were read lack what, by series or table, where any do.
        num_flat: Candles kept whose four prices are equal and whose volume is zero: the exchange
            fills short outages and quiet markets with them, and a file cannot tell which.
        newest_lost: The newest row, if its bar has closed and it was dropped because it could not be true.
    """

    num_read: int  # rows the source delivered
    num_kept: int = 0  # rows that became candles
    first_open: str = ""  # open time of the oldest candle kept, ISO 8601, UTC
    last_open: str = ""  # open time of the newest candle kept, ISO 8601, UTC
    time_units: dict[str, int] = field(default_factory=dict)  # rows per unit their open time was written in
    num_unsorted: int = 0  # rows that stood after a newer one; all rows are sorted
    num_identical: int = 0  # rows dropped because another says exactly the same
    num_rounded: int = 0  # rows dropped because another says the same to 0.01 % with more decimals
    num_conflicting: int = 0
    num_off_grid: int = 0  # rows dropped because they open between two bars
    num_unclosed: int = 0  # rows dropped because their bar was still running
    num_unreadable: int = 0  # rows dropped because a value is missing or no number
    num_non_positive: int = 0  # rows dropped because a price is not above zero or a volume is below zero
    num_inconsistent: int = 0  # rows dropped because low <= open, close <= high is broken
    num_older_life: int = 0  # rows dropped because the symbol was listed anew after them
    num_outside: int = 0  # good rows outside the span that was asked for
    num_alone: int = 0  # candles dropped because something that a feature needs beside them is not there
    lacking: dict[str, int] = field(default_factory=dict)
    num_newer: int = 0  # candles that the source has after the time until which was asked for
    relisted_at: str | None = None  # first open of the newest life, ISO 8601, UTC; None without a re-listing
    num_flat: int = 0
    longest_flat_bars: int = 0  # longest run of such candles, in bars
    num_gaps: int = 0  # holes between candles kept
    num_missing: int = 0  # bars in all these holes
    gaps: tuple[Gap, ...] = ()  # the longest holes, longest first, at most `NUM_GAPS_LISTED`
    largest_log_return: float = 0.0  # largest |log(close / close before)| within a segment, unitless
    has_volume: bool = True  # whether the source told a volume
    num_revised: int = 0  # candles kept of which the exchange told another version, too
    newest_lost: LostRow | None = None
    priced_as: str = ""  # what was priced, where that is not what the series names: BTC-USD is not BTCUSDT

    @property
    def num_unusable(self) -> int:
        """Rows that were lost because they could not be true, not because they were not needed."""
        impossible = self.num_unreadable + self.num_non_positive + self.num_inconsistent
        return impossible + self.num_off_grid + self.num_conflicting

    def dropped(self) -> dict[str, int]:
        """Return how many rows were read and not kept, by reason, in plain words."""
        return {
            "identical duplicates": self.num_identical,
            "rounded duplicates": self.num_rounded,
            "rows of contradictory duplicates": self.num_conflicting,
            "off the grid": self.num_off_grid,
            "unclosed": self.num_unclosed,
            "with unreadable values": self.num_unreadable,
            "with non-positive prices or negative volume": self.num_non_positive,
            "with inconsistent prices": self.num_inconsistent,
            "from before the re-listing": self.num_older_life,
            "outside the span asked for": self.num_outside,
            "without a covariate": self.num_alone,
        }

    def summary(self) -> str:
        """Say everything that is not zero in one line."""
        parts = [f"{self.num_kept} of {self.num_read} rows kept, {self.first_open} to {self.last_open}"]
        parts += [f"{count} {reason}" for reason, count in self.dropped().items() if count]
        if self.relisted_at:
            parts.append(f"listed anew at {self.relisted_at}")
        if self.num_unsorted:
            parts.append(f"sorted ({self.num_unsorted} rows out of order)")
        if len(self.time_units) > 1:
            units = " and ".join(f"{unit} ({count})" for unit, count in self.time_units.items())
            parts.append(f"times in {units}")
        if self.num_gaps:
            longest = self.gaps[0]
            parts.append(
                f"{self.num_gaps} gaps of {self.num_missing} bars, "
                f"the longest {longest.num_missing} after {longest.after}"
            )
        parts += [f"{count} bars lack {name}" for name, count in self.lacking.items()]
        if not self.has_volume:
            parts.append("no volume")
        if self.newest_lost:
            parts.append(f"the newest dropped: {self.newest_lost.told}")
        if self.priced_as:
            parts.append(f"prices of {self.priced_as}")
        if self.num_revised:
            parts.append(f"{self.num_revised} told in two versions")
        if self.num_flat:
            run = f"longest run {self.longest_flat_bars}"
            parts.append(f"{self.num_flat} flat candles without volume kept ({run})")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return every count under its own name, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Candles:
    """Checked candles of one series: UTC, on the grid, unique, ascending, closed.

    Args:
        open_time_s: Seconds since the epoch, UTC, strictly ascending, shape (N,), int64, read-only.
        values: Columns of `v8.columns.OHLCV`, shape (N, 5), float64, read-only; prices in quote
            currency and above zero, volume in base currency and not below zero, or nan in every row.
        segment: Number of the contiguous piece a row lies in, shape (N,), int32: 0, and one more
            after every hole.
        beside: Columns from elsewhere at the same bars, each of shape (N,), float64, read-only, by names such
            as "BTCUSDT.high" or "csv.funding_rate"; `v8.columns` says what these are.
    """

    series: Series
    open_time_s: NDArray[np.int64]
    values: NDArray[np.float64]
    segment: NDArray[np.int32]
    report: CandleReport
    source: str  # name of the source: "vision", "files", "demo" or another of `SOURCES`
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
        return self._picked(
            span,
            {name: values[span] for name, values in self.beside.items()},
            num_outside=self.report.num_outside + outside,
            num_newer=self.report.num_newer + newer,
            newest_lost=lost if is_asked else None,
        )

    def at(
        self, rows: NDArray[np.intp], beside: Mapping[str, NDArray[np.float64]], lacking: Mapping[str, int]
    ) -> Candles:
        """Return some rows with columns beside them.

        Args:
            rows: Their numbers, ascending, at least one.
            beside: Values at those rows, as `beside`.
        """
        num_alone = self.report.num_alone + len(self) - len(rows)
        return self._picked(rows, beside, num_alone=num_alone, lacking=dict(lacking))

    def _picked(
        self, rows: NDArray[np.intp] | slice, beside: Mapping[str, NDArray[np.float64]], **found: Any
    ) -> Candles:
        times_s, values, report = self.open_time_s[rows], self.values[rows], replace(self.report, **found)
        return assembled(self.series, times_s, values, report, self.source, beside=beside)

    def noting(self, **found: Any) -> Candles:
        """Return the same candles with something else in the report."""
        return replace(self, report=replace(self.report, **found))

    def to_frame(self) -> pd.DataFrame:
        """Return the columns of `OHLCV` under a UTC DatetimeIndex named `open_time`."""
        index = pd.DatetimeIndex(pd.to_datetime(self.open_time_s, unit="s", utc=True), name=OPEN_TIME)
        return pd.DataFrame(self.values.copy(), index=index, columns=list(OHLCV))


def places(
    times_s: NDArray[np.int64], open_time_s: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Find the candle that opens at each time, and whether there is one; rows where none is mean nothing."""
    at = np.minimum(np.searchsorted(open_time_s, times_s), len(open_time_s) - 1)
    return at, open_time_s[at] == times_s


def require_newest(candles: Candles) -> None:
    """Refuse candles of which the newest was dropped: a closed bar would be forecast as the future."""
    if lost := candles.report.newest_lost:
        raise DataError(
            where=f"{candles.series} from {candles.source}",
            rule="a forecast begins behind the newest candle, which must be usable",
            got=lost.told,
            fix=f"Mend it; to forecast from {candles.report.last_open} all the same, take it out",
        )


def require_one_unit(candles: Candles) -> None:
    """Refuse candles of a user's whose prices change their unit, such as from dollars to cents."""
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
    """Refuse a request for no candles at all."""
    if num_bars < 1:
        raise DataError(
            where=str(series),
            rule="at least 1 bar must be asked for",
            got=str(num_bars),
            fix="Raise the number of bars",
        )


def assembled(
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
