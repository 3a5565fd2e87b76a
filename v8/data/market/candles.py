"""Candles: checked OHLCV rows of one series, and the report of their checks.

`v8.data.market.checks` makes them from raw rows. Every row that was read is counted once: `num_read` of the
report is `num_kept` plus all counts of `dropped`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.base.errors import DataError
from v8.base.records import Count, Moment, Sha256
from v8.base.storage import digest_bytes
from v8.base.wording import plural
from v8.data.market.series import Series, iso
from v8.profile.columns import CLOSE, OHLCV, OPEN, OPEN_TIME, VOLUME

MAX_VALUE = 1e18  # upper limit of prices and volumes; 1 / MAX_VALUE is the lower limit of prices
MAX_LEAP = 2.0
"""Largest log ratio of an open to the close before it, which are of the same instant. In two years of 20
coins the largest is 0.016; a change from dollars to cents gives 4.6."""

LEAP_FACTOR: Final = 4.0
"""A price that changes by this factor from a close to the next candle, up or down, is pointed out as a leap.
Of 20 coins none does so in two years, and a coin of three satoshi may fall to one. A redenomination has a
factor of 10 or more."""

Times: TypeAlias = NDArray[np.int64]
Values: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Columns: TypeAlias = Mapping[str, Values]
NUM_GAPS_LISTED: Final = 10


def price_decimals(prices: Values) -> int:
    """Return the number of decimals of prices, of any shape; at most as many as give seven digits.

    >>> price_decimals(np.array([64_000.1, 63_999.25])), price_decimals(np.array([0.00001234]))
    (2, 8)
    """
    most = max(0, 6 - math.floor(math.log10(prices.max())))
    for num_decimals in range(most):
        if np.allclose(prices.round(num_decimals), prices, 1e-9, 0.0):
            return num_decimals
    return most


def simulated_price_decimals(price: float) -> int:
    """Return the number of decimals of a simulated price, whose steps are finer than an exchange's.

    It gets four digits, or five where that takes no more than two decimals, as on exchanges.

    >>> [simulated_price_decimals(price) for price in (93_576.0, 3_412.55, 103.29, 4.917, 0.00002113)]
    [0, 1, 2, 3, 8]
    """
    magnitude = math.floor(math.log10(price))
    return max(3 - magnitude, min(2, 4 - magnitude), 0)


@dataclass(frozen=True)
class Gap:
    """A gap between two consecutive candles."""

    after: str  # open time of the candle before the gap, ISO 8601, UTC
    num_missing: int  # bars without a candle


@dataclass(frozen=True)
class Leap:
    """A price that does not continue the one before: another unit, a split, another coin, or an error."""

    at: str  # open time of the first candle after it, ISO 8601, UTC
    factor: float  # price after it over the price before, unitless
    num_missing: int  # bars without a candle between the two
    num_candles_since: int  # candles from the newest leap on

    def __str__(self) -> str:
        hole = f", after {self.num_missing:,} missing bars" if self.num_missing else ""
        return f"{times(self.factor)} what it was, at {self.at}{hole}"


@dataclass(frozen=True)
class LostRow:
    """The newest raw row, if it was dropped: then the newest candle kept is not the newest that exists."""

    open_s: int  # when its bar opens, seconds since the epoch, UTC
    told: str  # its number, counted from 1, its fault, and its values


def _dropped(reason: str) -> Any:
    """Declare a count of rows that were read but not kept, with the reason for readers."""
    return field(default=0, metadata={"dropped": reason})


@dataclass(frozen=True)
class CandlePin:
    """Identifies the candles that a series of a run was started with, or that a model was made from."""

    first_open: Moment  # open time of the oldest candle, ISO 8601 in UTC
    last_open: Moment  # open time of the newest candle, ISO 8601 in UTC; a continued run reads no newer ones
    num_bars: Count  # number of candles
    digest: Sha256  # of the candles, 64 hex digits

    @property
    def last_open_s(self) -> int:
        """Open time of the newest candle in UTC seconds since the epoch."""
        return int(datetime.fromisoformat(self.last_open).timestamp())

    def __str__(self) -> str:
        span = f"{self.num_bars:,} candles from {self.first_open} to {self.last_open}"
        return f"{span} with digest {self.digest[:12]}"


@dataclass(frozen=True)
class CandleReport:
    """Counts of rows, unitless, unless a comment says otherwise."""

    num_read: int  # rows the source delivered
    num_kept: int = 0  # rows that became candles
    first_open: str = ""  # open time of the oldest candle kept, ISO 8601, UTC
    last_open: str = ""  # open time of the newest candle kept, ISO 8601, UTC
    time_units: dict[str, int] = field(default_factory=dict)  # rows by the unit of their open time
    num_unsorted: int = 0  # rows that followed a newer one; all rows are sorted
    num_identical: int = _dropped("identical duplicates")  # equal to another row
    num_rounded: int = _dropped("rounded duplicates")  # equal to another row to 0.01 %, with fewer decimals
    num_conflicting: int = _dropped("rows of contradictory duplicates")  # of one bar, which becomes a gap
    num_off_grid: int = _dropped("off the grid")  # open times between two bars
    num_unclosed: int = _dropped("unclosed")  # the bar is not over yet
    num_unreadable: int = _dropped("with unreadable values")  # a value is missing or not a number
    num_non_positive: int = _dropped("with non-positive prices or negative volume")
    num_inconsistent: int = _dropped("with inconsistent prices")  # low <= open, close <= high is violated
    num_older_life: int = _dropped("from before the re-listing")
    num_outside: int = _dropped("outside the requested span")  # valid rows
    num_alone: int = _dropped("without a covariate")  # a covariate of a feature is missing at this bar
    lacking: dict[str, int] = field(default_factory=dict)  # candles without a covariate, by its name
    num_newer: int = 0  # candles of the source after the requested end
    relisted_at: str | None = None  # first open after the last re-listing, ISO 8601, UTC; None without one
    relisted_factor: float | None = None  # price after the last re-listing over the price before, unitless
    num_flat: int = 0  # candles kept with four equal prices and no volume: outages and quiet markets
    longest_flat_bars: int = 0  # longest run of such candles, in bars
    num_gaps: int = 0  # gaps between candles kept
    num_missing: int = 0  # bars in all these gaps
    gaps: tuple[Gap, ...] = ()  # the longest gaps, longest first, at most `NUM_GAPS_LISTED`
    largest_log_return: float = 0.0  # largest |log(close / close before)| within a segment, unitless
    num_leaps: int = (
        0  # prices that changed by `LEAP_FACTOR` or more from one candle to the next, holes included
    )
    largest_leap: Leap | None = None  # the largest of them
    has_volume: bool = True  # whether the source has volumes
    num_revised: int = 0  # candles kept of which the exchange sent two versions
    newest_lost: LostRow | None = None  # the newest row, if its bar has closed and it was dropped
    priced_as: str = ""  # the priced pair if it is not the symbol of the series, such as BTC-USD for BTCUSDT

    def dropped(self) -> dict[str, int]:
        """Return the number of rows that were read but not kept, by reason."""
        counts = {}
        for count_field in fields(self):
            reason = count_field.metadata.get("dropped")
            if reason:
                counts[reason] = getattr(self, count_field.name)
        return counts

    def summary(self) -> str:
        """Describe everything that is not zero in one line; leaps are told by `v8.runs.reading`."""
        parts = [f"{self.num_kept} of {self.num_read} rows kept, {self.first_open} to {self.last_open}"]
        parts += [f"{count} {reason}" for reason, count in self.dropped().items() if count]
        if self.relisted_at:
            parts.append(f"listed again at {self.relisted_at}")
        if self.num_unsorted:
            parts.append(f"sorted ({self.num_unsorted} rows out of order)")
        if len(self.time_units) > 1:
            units = " and ".join(f"{unit} ({count})" for unit, count in self.time_units.items())
            parts.append(f"times in {units}")
        if self.num_gaps:
            longest = self.gaps[0]
            gaps = f"{plural(self.num_gaps, 'gap')}, {plural(self.num_missing, 'bar')} missing"
            parts.append(f"{gaps}, most ({longest.num_missing}) after {longest.after}")
        parts += [f"{count} bars lack {name}" for name, count in self.lacking.items()]
        if not self.has_volume:
            parts.append("no volume")
        if self.newest_lost:
            parts.append(f"the newest dropped: {self.newest_lost.told}")
        if self.priced_as:
            parts.append(f"prices of {self.priced_as}")
        if self.num_revised:
            parts.append(f"{self.num_revised} in two versions")
        if self.num_flat:
            run = f"longest run {self.longest_flat_bars}"
            parts.append(f"{self.num_flat} flat candles without volume kept ({run})")
        return "; ".join(parts)


@dataclass(frozen=True, eq=False)
class Candles:
    """Checked candles of one series: UTC, on the grid, unique, ascending, closed; all arrays are read-only.

    Args:
        open_time_s: Seconds since the epoch, UTC, strictly ascending, shape (N,), int64.
        values: Columns of `OHLCV`, shape (N, 5), float64; prices in quote currency and above zero, volume in
            base currency and not below zero, or nan in every row.
        segment: Number of the unbroken run that a row is in, shape (N,), int32: it rises by one at every gap.
        covariates: Columns from other sources at the same bars, shape (N,), float64, by their full names
            (`v8.profile.columns`).
    """

    series: Series
    open_time_s: Times
    values: Values
    segment: NDArray[np.int32]
    report: CandleReport
    source: str  # name of the source: "vision", "files", "demo" or another of `SOURCES`
    covariates: Columns = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.open_time_s)

    @cached_property
    def digest(self) -> str:
        """Sha256 of series, times, values and covariates, 64 hex digits; the source is not part of it."""
        parts = [
            str(self.series).encode("ascii"),
            self.open_time_s.astype("<i8").tobytes(),
            self.values.astype("<f8").tobytes(),
        ]
        for name, column in sorted(self.covariates.items()):
            parts += [name.encode("ascii"), column.astype("<f8").tobytes()]
        return digest_bytes(*parts)

    @property
    def has_volume(self) -> bool:
        """Whether volumes are known: for all candles or for none."""
        return not np.isnan(self.column(VOLUME)[0])

    def column(self, name: str) -> Values:
        """Return one column of `OHLCV` by name, shape (N,); raises a `KeyError` for another name."""
        return dict(zip(OHLCV, self.values.T, strict=True))[name]

    def newest(self, num_bars: int, end_s: int | None = None) -> "Candles":
        """Return the newest candles that open at or before a time, at most `num_bars`.

        Args:
            num_bars: Largest number of candles.
            end_s: Latest open time, seconds since the epoch; None for no limit.

        Returns:
            The candles, with segments counted from 0 again and all others counted in `num_outside`.

        Raises:
            DataError: If no candle opens by then.
        """
        require_num_bars(num_bars, self.series)
        stop = len(self) if end_s is None else int(np.searchsorted(self.open_time_s, end_s, side="right"))
        if stop == 0:
            raise none_until(end_s or 0, self.open_time_s[0], f"{self.series} from {self.source}")
        start = max(0, stop - num_bars)
        num_outside = len(self) - (stop - start)
        num_newer = len(self) - stop
        lost = self.report.newest_lost
        is_in_span = lost is not None and num_newer == 0 and (end_s is None or lost.open_s <= end_s)
        return self.select_rows(
            slice(start, stop),
            num_outside=self.report.num_outside + num_outside,
            num_newer=self.report.num_newer + num_newer,
            newest_lost=lost if is_in_span else None,
        )

    def select_rows(
        self, rows: NDArray[np.intp] | slice, covariates: Columns | None = None, **report_changes: Any
    ) -> "Candles":
        """Return some rows, ascending and at least one.

        Args:
            rows: Row numbers or a slice.
            covariates: Columns of these rows that replace the covariates; None keeps them.
            **report_changes: Fields of the report with new values.
        """
        if covariates is None:
            covariates = {name: column[rows] for name, column in self.covariates.items()}
        return assembled(
            self.series,
            self.open_time_s[rows],
            self.values[rows],
            replace(self.report, **report_changes),
            self.source,
            covariates=covariates,
        )

    def with_report(self, **changes: Any) -> "Candles":
        """Return the same candles with other values in some fields of the report."""
        return replace(self, report=replace(self.report, **changes))

    def to_frame(self) -> pd.DataFrame:
        """Return the columns of `OHLCV` under a UTC DatetimeIndex named `open_time`."""
        index = pd.DatetimeIndex(pd.to_datetime(self.open_time_s, unit="s", utc=True), name=OPEN_TIME)
        return pd.DataFrame(self.values.copy(), index=index, columns=list(OHLCV))


def rows_at(times_s: Times, open_time_s: Times) -> tuple[NDArray[np.intp], Mask]:
    """Return the row of the candle that opens at each time, and whether there is one.

    Where there is none, the row is arbitrary.

    Args:
        times_s: Times in seconds since the epoch, shape (T,).
        open_time_s: Open times of the candles, ascending, shape (N,).
    """
    rows = np.minimum(np.searchsorted(open_time_s, times_s), len(open_time_s) - 1)
    return rows, open_time_s[rows] == times_s


def require_newest(candles: Candles) -> None:
    """Refuse candles whose newest row was dropped: a forecast would be of a bar that has already closed."""
    lost = candles.report.newest_lost
    if lost:
        raise DataError(
            where=f"{candles.series} from {candles.source}",
            rule="a forecast starts after the newest candle, which must be usable",
            got=lost.told,
            fix=f"Correct it; to forecast from {candles.report.last_open} all the same, remove it",
        )


def require_one_unit(candles: Candles) -> None:
    """Refuse candles of a user whose prices change their unit, such as from dollars to cents."""
    opened = candles.column(OPEN)
    close = candles.column(CLOSE)
    leaps = np.where(np.diff(candles.segment) == 0, np.abs(np.log(opened[1:] / close[:-1])), 0.0)
    if leaps.max(initial=0.0) > MAX_LEAP:
        row = int(leaps.argmax())
        raise DataError(
            where=f"{candles.series} from {candles.source}",
            rule=f"no bar opens {np.exp(MAX_LEAP):.2g} times above or below the close before it",
            got=f"{opened[row + 1]:.10g} after {close[row]:.10g} at {iso(candles.open_time_s[row + 1])}",
            fix="Write all prices in one unit, and correct values that are not prices",
        )


def require_num_bars(num_bars: int, series: Series) -> None:
    """Refuse a request for less than one candle."""
    if num_bars < 1:
        raise DataError(
            where=str(series),
            rule="at least 1 bar must be requested",
            got=str(num_bars),
            fix="Raise the number of bars",
        )


def none_until(end_s: int, first_s: int, location: str) -> DataError:
    """Return the error for a request for candles from before the first one."""
    return DataError(
        where=location,
        rule=f"needs a candle that opens at or before {iso(end_s)}",
        got=f"the first one at {iso(first_s)}",
        fix="Ask for a later time",
    )


def assembled(
    series: Series,
    open_time_s: Times,
    values: Values,
    report: CandleReport,
    source: str,
    *,
    covariates: Columns,
) -> Candles:
    """Build candles of checked rows: segments are numbered, the report completed, all arrays read-only."""
    num_missing = np.diff(open_time_s) // series.bar_s - 1
    segment = np.concatenate([[0], np.cumsum(num_missing > 0)]).astype(np.int32)
    open_time_s = np.ascontiguousarray(open_time_s)
    values = np.ascontiguousarray(values)
    covariates = {name: np.ascontiguousarray(column) for name, column in covariates.items()}
    arrays: list[NDArray[Any]] = [open_time_s, values, segment, *covariates.values()]
    for array in arrays:
        array.flags.writeable = False
    report = _with_gaps(report, open_time_s, num_missing)
    report = _with_prices(report, values, num_missing)
    report = _with_leaps(report, open_time_s, values, num_missing)
    return Candles(
        series=series,
        open_time_s=open_time_s,
        values=values,
        segment=segment,
        report=report,
        source=source,
        covariates=covariates,
    )


def _with_gaps(report: CandleReport, open_time_s: Times, num_missing: Times) -> CandleReport:
    """Add the extent of the candles and their gaps; `num_missing` bars lack after each, shape (N - 1,)."""
    gap_rows = np.flatnonzero(num_missing > 0)
    longest = gap_rows[np.argsort(-num_missing[gap_rows], kind="stable")][:NUM_GAPS_LISTED]
    return replace(
        report,
        num_kept=len(open_time_s),
        first_open=iso(open_time_s[0]),
        last_open=iso(open_time_s[-1]),
        num_gaps=len(gap_rows),
        num_missing=int(num_missing[gap_rows].sum()),
        gaps=tuple(Gap(iso(open_time_s[row]), int(num_missing[row])) for row in longest),
    )


def _with_prices(report: CandleReport, values: Values, num_missing: Times) -> CandleReport:
    """Add flat candles, the largest move of the close, and whether there are volumes."""
    opened, high, low, close, volume = values.T
    is_flat = (np.ptp([opened, high, low, close], axis=0) == 0) & (volume == 0)
    # Rows at which runs of flat candles start and stop, alternately.
    run_edges = np.flatnonzero(np.diff(np.concatenate([[False], is_flat, [False]])))
    run_bars = run_edges[1::2] - run_edges[::2]
    log_returns = np.abs(np.diff(np.log(close)))[num_missing == 0]
    return replace(
        report,
        num_flat=int(is_flat.sum()),
        longest_flat_bars=int(run_bars.max(initial=0)),
        largest_log_return=float(log_returns.max(initial=0.0)),
        has_volume=not np.isnan(volume[0]),
    )


def _with_leaps(report: CandleReport, open_time_s: Times, values: Values, num_missing: Times) -> CandleReport:
    """Add where the price leaps from one candle to the next, across a hole or not."""
    opened, _, _, close = np.log(values.T[:4])
    to_open = opened[1:] - close[:-1]
    to_close = close[1:] - close[:-1]
    leaps = np.where(np.abs(to_open) > np.abs(to_close), to_open, to_close)
    rows = np.flatnonzero(np.abs(leaps) >= np.log(LEAP_FACTOR))
    if not len(rows):
        return replace(report, num_leaps=0, largest_leap=None)
    largest = int(rows[np.abs(leaps[rows]).argmax()])
    leap = Leap(
        at=iso(open_time_s[largest + 1]),
        factor=float(np.exp(leaps[largest])),
        num_missing=int(num_missing[largest]),
        num_candles_since=len(open_time_s) - 1 - int(rows[-1]),
    )
    return replace(report, num_leaps=len(rows), largest_leap=leap)


def times(factor: float) -> str:
    """Write a factor of prices for people, to two digits.

    >>> times(1034.0), times(4.96), times(0.0009998)
    ('1,000 times', '5 times', '1/1,000 of')
    """
    if factor < 1:
        return f"1/{_two_digits(1 / factor)} of"
    return f"{_two_digits(factor)} times"


def _two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):,.10g}"


def pin_of(candles: Candles) -> CandlePin:
    """Return what identifies these candles."""
    first = datetime.fromtimestamp(int(candles.open_time_s[0]), UTC)
    last = datetime.fromtimestamp(int(candles.open_time_s[-1]), UTC)
    return CandlePin(
        first_open=first.isoformat(),
        last_open=last.isoformat(),
        num_bars=len(candles),
        digest=candles.digest,
    )
