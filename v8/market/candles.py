"""Candles: checked OHLCV rows of one series, and the report of what was found in them.

`v8.market.checks` makes them of raw rows. Every row that was read is counted once: `num_read` of the report
is `num_kept` plus all the counts of `dropped`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.columns import CLOSE, OHLCV, OPEN, OPEN_TIME, VOLUME
from v8.errors import DataError
from v8.market.series import Series, iso
from v8.storage import digest_bytes

MAX_VALUE = 1e18  # no price or volume is beyond it, no price below its inverse; float32 ends at 1e38
MAX_LEAP = 2.0
"""Log of an open over the close before it, which ended in the same instant. In two years of 20 coins the
largest is 0.016; cents in the place of dollars make 4.6."""

Times: TypeAlias = NDArray[np.int64]
Values: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Columns: TypeAlias = Mapping[str, Values]
NUM_GAPS_LISTED: Final = 10


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


def _dropped(reason: str) -> Any:
    """Count rows that were read and not kept, which a reason in plain words tells."""
    return field(default=0, metadata={"dropped": reason})


@dataclass(frozen=True)
class CandleReport:
    """Counts of rows, unitless, except where a line says otherwise."""

    num_read: int  # rows the source delivered
    num_kept: int = 0  # rows that became candles
    first_open: str = ""  # open time of the oldest candle kept, ISO 8601, UTC
    last_open: str = ""  # open time of the newest candle kept, ISO 8601, UTC
    time_units: dict[str, int] = field(default_factory=dict)  # rows per unit their open time was written in
    num_unsorted: int = 0  # rows that stood after a newer one; all rows are sorted
    num_identical: int = _dropped("identical duplicates")  # another says exactly the same
    num_rounded: int = _dropped("rounded duplicates")  # another says the same to 0.01 %, and more decimals
    num_conflicting: int = _dropped("rows of contradictory duplicates")  # their bar becomes a gap
    num_off_grid: int = _dropped("off the grid")  # they open between two bars
    num_unclosed: int = _dropped("unclosed")  # their bar was still running
    num_unreadable: int = _dropped("with unreadable values")  # one is missing or no number
    num_non_positive: int = _dropped("with non-positive prices or negative volume")
    num_inconsistent: int = _dropped("with inconsistent prices")  # not low <= open, close <= high
    num_older_life: int = _dropped("from before the re-listing")
    num_outside: int = _dropped("outside the span asked for")  # good rows
    num_alone: int = _dropped("without a covariate")  # a feature needs it beside them
    lacking: dict[str, int] = field(default_factory=dict)  # how many of all that were read lack what
    num_newer: int = 0  # candles that the source has after the time until which was asked for
    relisted_at: str | None = None  # first open of the newest life, ISO 8601, UTC; None without a re-listing
    num_flat: int = 0  # candles kept of four equal prices and no volume: short outages and quiet markets
    longest_flat_bars: int = 0  # longest run of such candles, in bars
    num_gaps: int = 0  # holes between candles kept
    num_missing: int = 0  # bars in all these holes
    gaps: tuple[Gap, ...] = ()  # the longest holes, longest first, at most `NUM_GAPS_LISTED`
    largest_log_return: float = 0.0  # largest |log(close / close before)| within a segment, unitless
    has_volume: bool = True  # whether the source told a volume
    num_revised: int = 0  # candles kept of which the exchange told another version, too
    newest_lost: LostRow | None = None  # the newest row, if its bar has closed and it could not be true
    priced_as: str = ""  # what was priced, where that is not what the series names: BTC-USD is not BTCUSDT

    def dropped(self) -> dict[str, int]:
        """Return how many rows were read and not kept, by reason, in plain words."""
        reasons = {each.metadata.get("dropped"): getattr(self, each.name) for each in fields(self)}
        return {reason: count for reason, count in reasons.items() if reason}

    def summary(self) -> str:
        """Say everything that is not zero in one line."""
        parts = [f"{self.num_kept} of {self.num_read} rows kept, {self.first_open} to {self.last_open}"]
        parts += [f"{count} {reason}" for reason, count in self.dropped().items() if count]
        units = " and ".join(f"{unit} ({count})" for unit, count in self.time_units.items())
        longest = next(iter(self.gaps), Gap("", 0))
        gaps = f"{self.num_gaps} gaps of {self.num_missing} bars, the longest {longest.num_missing}"
        flat = f"{self.num_flat} flat candles without volume kept (longest run {self.longest_flat_bars})"
        told: tuple[tuple[object, str], ...] = (
            (self.relisted_at, f"listed anew at {self.relisted_at}"),
            (self.num_unsorted, f"sorted ({self.num_unsorted} rows out of order)"),
            (len(self.time_units) > 1, f"times in {units}"),
            (self.num_gaps, f"{gaps} after {longest.after}"),
            *((True, f"{count} bars lack {name}") for name, count in self.lacking.items()),
            (not self.has_volume, "no volume"),
            (self.newest_lost, f"the newest dropped: {self.newest_lost and self.newest_lost.told}"),
            (self.priced_as, f"prices of {self.priced_as}"),
            (self.num_revised, f"{self.num_revised} told in two versions"),
            (self.num_flat, flat),
        )
        return "; ".join([*parts, *(text for is_so, text in told if is_so)])


@dataclass(frozen=True, eq=False)
class Candles:
    """Checked candles of one series: UTC, on the grid, unique, ascending, closed; all arrays are read-only.

    Args:
        open_time_s: Seconds since the epoch, UTC, strictly ascending, shape (N,), int64.
        values: Columns of `OHLCV`, shape (N, 5), float64; prices in quote currency and above zero, volume in
            base currency and not below zero, or nan in every row.
        segment: Number of the contiguous piece a row lies in, shape (N,), int32: one more after every hole.
        beside: Columns from elsewhere at the same bars, shape (N,), float64, by names of `v8.columns`.
    """

    series: Series
    open_time_s: Times
    values: Values
    segment: NDArray[np.int32]
    report: CandleReport
    source: str  # name of the source: "vision", "files", "demo" or another of `SOURCES`
    beside: Columns = field(default_factory=dict)

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

    def column(self, name: str) -> Values:
        """Return one column of `OHLCV` by name, shape (N,); a `KeyError` where there is no such column."""
        return dict(zip(OHLCV, self.values.T, strict=True))[name]

    def newest(self, num_bars: int, end_s: int | None = None) -> "Candles":
        """Return the newest candles that open at or before a time in seconds since the epoch.

        There are at most `num_bars`, segments counted from 0 again, and the rest counted as outside.
        """
        require_num_bars(num_bars, self.series)
        stop = len(self) if end_s is None else int(np.searchsorted(self.open_time_s, end_s, side="right"))
        if stop == 0:
            raise none_until(end_s or 0, self.open_time_s[0], f"{self.series} from {self.source}")
        span = slice(max(0, stop - num_bars), stop)
        outside = len(self) - (span.stop - span.start)
        newer = len(self) - stop
        lost = self.report.newest_lost
        is_asked = lost is not None and newer == 0 and (end_s is None or lost.open_s <= end_s)
        return self.picked(
            span,
            num_outside=self.report.num_outside + outside,
            num_newer=self.report.num_newer + newer,
            newest_lost=lost if is_asked else None,
        )

    def picked(
        self, rows: NDArray[np.intp] | slice, beside: Columns | None = None, **found: Any
    ) -> "Candles":
        """Return some rows, ascending and at least one, with their own columns `beside` them or others.

        The report notes what was `found`.
        """
        if beside is None:
            beside = {name: values[rows] for name, values in self.beside.items()}
        times_s = self.open_time_s[rows]
        values = self.values[rows]
        report = replace(self.report, **found)
        return assembled(self.series, times_s, values, report, self.source, beside=beside)

    def noting(self, **found: Any) -> "Candles":
        """Return the same candles with something else in the report."""
        return replace(self, report=replace(self.report, **found))

    def to_frame(self) -> pd.DataFrame:
        """Return the columns of `OHLCV` under a UTC DatetimeIndex named `open_time`."""
        index = pd.DatetimeIndex(pd.to_datetime(self.open_time_s, unit="s", utc=True), name=OPEN_TIME)
        return pd.DataFrame(self.values.copy(), index=index, columns=list(OHLCV))


def places(times_s: Times, open_time_s: Times) -> tuple[NDArray[np.intp], Mask]:
    """Find the candle that opens at each time, and whether there is one; rows where none is mean nothing."""
    at = np.minimum(np.searchsorted(open_time_s, times_s), len(open_time_s) - 1)
    return at, open_time_s[at] == times_s


def require_newest(candles: Candles) -> None:
    """Refuse candles of which the newest was dropped: a closed bar would be forecast as the future."""
    lost = candles.report.newest_lost
    if lost:
        rule = "a forecast begins behind the newest candle, which must be usable"
        fix = f"Mend it; to forecast from {candles.report.last_open} all the same, take it out"
        raise DataError(where=f"{candles.series} from {candles.source}", rule=rule, got=lost.told, fix=fix)


def require_one_unit(candles: Candles) -> None:
    """Refuse candles of a user's whose prices change their unit, such as from dollars to cents."""
    opened = candles.column(OPEN)
    close = candles.column(CLOSE)
    leaps = np.where(np.diff(candles.segment) == 0, np.abs(np.log(opened[1:] / close[:-1])), 0.0)
    if leaps.max(initial=0.0) > MAX_LEAP:
        row = int(leaps.argmax())
        rule = f"no bar opens {np.exp(MAX_LEAP):.2g} times above or below the close before it"
        got = f"{opened[row + 1]:.10g} after {close[row]:.10g} at {iso(candles.open_time_s[row + 1])}"
        fix = "Write all prices in one unit, and mend what is no price"
        raise DataError(where=f"{candles.series} from {candles.source}", rule=rule, got=got, fix=fix)


def require_num_bars(num_bars: int, series: Series) -> None:
    """Refuse a request for no candles at all."""
    if num_bars < 1:
        rule = "at least 1 bar must be asked for"
        fix = "Raise the number of bars"
        raise DataError(where=str(series), rule=rule, got=str(num_bars), fix=fix)


def none_until(end_s: int, first_s: int, where: str) -> DataError:
    """Build the error for a wish for candles from before the first one."""
    rule = f"needs a candle that opens at or before {iso(end_s)}"
    got = f"the first one at {iso(first_s)}"
    return DataError(where=where, rule=rule, got=got, fix="Ask for a later time")


def assembled(
    series: Series, open_time_s: Times, values: Values, report: CandleReport, source: str, *, beside: Columns
) -> Candles:
    """Number the segments, describe what is kept, and close the arrays against writing."""
    missing = np.diff(open_time_s) // series.bar_s - 1
    segment = np.concatenate([[0], np.cumsum(missing > 0)]).astype(np.int32)
    arrays = (np.ascontiguousarray(open_time_s), np.ascontiguousarray(values), segment)
    others = {name: np.ascontiguousarray(each) for name, each in beside.items()}
    sealed: list[NDArray[Any]] = [*arrays, *others.values()]
    for array in sealed:
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
