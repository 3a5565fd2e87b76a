"""Companions: joins the candles of a series with the covariates of a profile, row by row.

A covariate is a column of another series (a *neighbour*) or of a table of the user, such as funding rates. A
neighbour's candle is joined with the candle that opens, and therefore closes, at the same time. A table of
the user is joined as of the close: with the newest row whose time plus `available_after_s` is at or before
the close and whose age is at most `max_age_s`. So a bar never contains information that was unknown when it
closed. Nothing is guessed: the times of a table have a time zone or are numbers since the epoch, they ascend,
and every value is a number.

A candle without all of its covariates is dropped, so no window contains it: a gap of a neighbour is a gap of
the series. The candle report counts them. Where the newest candles lack a covariate, the same number of
candles up to the newest complete one is used: a later request that ends there returns the same candles, even
after the missing values have arrived.

Shapes: N candles of a series, R rows of a table.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.base.errors import DataError, listed, shown
from v8.base.records import read_plain
from v8.data.market.candles import MAX_VALUE, Candles, Columns, Mask, Times, rows_at
from v8.data.market.checks import check_candles
from v8.data.market.frames import read_open_times
from v8.data.market.series import US_PER_S, Series, iso
from v8.data.market.sources import CandleSource, candles_of, present_source, tables_of
from v8.data.market.sources.tables import SEPARATORS, decoded, read_rows, require_even
from v8.profile.columns import USER, VOLUME, split_origin, with_origin
from v8.profile.profile import TABLES_PLACE, Profile, tables_folder
from v8.profile.settings import TableSettings

MAX_TABLE_BYTES: Final = 2**28  # a row a minute for ten years has 150 MB
_ZONED: Final = re.compile(r"(?:Z|UTC|[+-]\d\d:?\d\d)$", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d+(?:\.\d*)?")


@dataclass(frozen=True, eq=False)
class UserTable:
    """A checked table of the user."""

    settings: TableSettings
    time_us: Times  # microseconds since the epoch, UTC, ascending, shape (R,)
    columns: Columns  # by name, finite, shape (R,)
    known_until_s: int | None = None  # bars that close later have no value; None for no limit

    def rows_known(self, close_s: Times) -> NDArray[np.intp]:
        """Return the row that is valid at each close (seconds since the epoch), shape (N,); -1 for none."""
        available_us = self.time_us + self.settings.available_after_s * US_PER_S
        close_us = close_s * US_PER_S
        rows = np.searchsorted(available_us, close_us, side="right") - 1
        is_fresh = close_us - self.time_us[rows] <= self.settings.max_age_s * US_PER_S
        is_known = True if self.known_until_s is None else close_s <= self.known_until_s
        return np.where((rows >= 0) & is_fresh & is_known, rows, -1)

    def to_csv(self) -> str:
        """Write the table as CSV that reads back exactly; times are microseconds since the epoch."""
        frame = pd.DataFrame({self.settings.time: self.time_us, **self.columns})
        return str(frame.to_csv(index=False, lineterminator="\n"))


def read_user_table(settings: TableSettings, folder: Path | None = None) -> UserTable:
    """Read the CSV file of a table from the folder of the user's tables, and check it."""
    path = tables_folder(folder) / settings.file
    how = f"The profile's covariates read it: name its folder with param:tables FOLDER or by {TABLES_PLACE}"
    fix = f'{how}, or give covariates={{"{settings.file}": table}} in Python'
    content = read_plain(path, fix=fix, most_bytes=MAX_TABLE_BYTES, kind=DataError)
    location = f"covariates of the profile, {path}"
    frame = _read_frame(decoded(content, location), settings, location)
    return user_table(frame, settings, location)


def user_table(table: Any, settings: TableSettings, location: str) -> UserTable:
    """Check a table in memory: a data frame, or what `pandas.DataFrame` accepts.

    Raises:
        DataError: If columns are missing, or times or values cannot be used; `location` names the table.
    """
    try:
        frame = table if isinstance(table, pd.DataFrame) else pd.DataFrame(table)
    except (ValueError, TypeError) as error:
        raise _wrong_columns(settings, type(table).__name__, location) from error
    is_time = frame.index.name == settings.time or isinstance(frame.index, pd.DatetimeIndex)
    if is_time and settings.time not in frame.columns:
        frame = frame.reset_index(names=settings.time)
    _needed_columns(list(map(str, frame.columns)), settings, location)
    if not len(frame):
        raise DataError(where=location, rule="needs at least one row", got="none", fix="Add rows")
    time_us = _read_times(frame[settings.time], location)
    columns = {}
    fix = "Leave out the rows without one; the row before them stays valid until max_age_s"
    for name in settings.columns:
        values = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        with np.errstate(invalid="ignore"):
            is_wrong = ~(np.abs(values) <= MAX_VALUE)
        rule = "every row has a number, up to 1e18"
        _require_none(is_wrong, frame[name], f"{location}, column {name}", rule, fix)
        columns[name] = values
    return UserTable(settings, time_us, columns)


def _read_frame(text: str, settings: TableSettings, location: str) -> pd.DataFrame:
    """Read the needed columns of a CSV as text; the first line that is not empty is the header."""
    rows = io.StringIO(text, newline=None)
    header = next((line for line in rows if line.strip()), "")
    separator = max(SEPARATORS, key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
    columns = {names.index(name): name for name in _needed_columns(names, settings, location)}
    require_even(text, separator, len(names), location)
    return read_rows(rows, separator, len(names), columns, location, dtype=str, na_filter=False)


def _needed_columns(names: list[str], settings: TableSettings, location: str) -> list[str]:
    """Return the names of the needed columns; raise a DataError unless the table has each exactly once."""
    needed = [settings.time, *settings.columns]
    if any(names.count(name) != 1 for name in needed):
        raise _wrong_columns(settings, listed([shown(name, 40) for name in names]) or "none", location)
    return needed


def _wrong_columns(settings: TableSettings, got: str, location: str) -> DataError:
    return DataError(
        where=location,
        rule=f"needs a table with the columns {', '.join((settings.time, *settings.columns))}, each once",
        got=got,
        fix="Correct its header, or covariates in the profile",
    )


def _read_times(column: pd.Series, location: str) -> Times:
    """Return the times of the rows, microseconds since the epoch; refuse times that are ambiguous."""
    format_fix = "Write times in UTC as 2024-01-31T16:00:00Z, or in seconds since the epoch"
    _require_none(_is_naive(column), column, location, "a time has a time zone", format_fix)
    times = read_open_times(column)
    rule = "every row has a time: s, ms, us or ns since the epoch after 2001-09, or ISO 8601 text"
    _require_none(~times.is_readable, column, location, rule, format_fix)
    is_ascending = np.diff(times.open_us, prepend=times.open_us[0] - 1) > 0
    fix = "Sort the rows by time, and keep one row of each time"
    _require_none(~is_ascending, column, location, "times ascend from row to row, each once", fix)
    return times.open_us


def _is_naive(column: pd.Series) -> Mask:
    """Return which times are text or dates without a time zone."""
    if isinstance(column.dtype, pd.DatetimeTZDtype) or pd.api.types.is_numeric_dtype(column.dtype):
        return np.zeros(len(column), np.bool_)
    texts = column.astype(str).str.strip()
    is_unambiguous = texts.str.contains(_ZONED) | texts.str.fullmatch(_NUMBER) | (texts == "")
    return np.asarray(~is_unambiguous, np.bool_)


def _require_none(is_wrong: Mask, column: pd.Series, location: str, rule: str, fix: str) -> None:
    """Raise an error for wrong rows: it shows the first, counted from 1, and their number."""
    rows = np.flatnonzero(is_wrong)
    if len(rows):
        others = f" ({len(rows)} such rows)" if len(rows) > 1 else ""
        raise DataError(
            where=location,
            rule=rule,
            got=f"{shown(repr(column.iloc[rows[0]]), 60)} in row {rows[0] + 1}{others}",
            fix=fix,
        )


@dataclass(frozen=True, eq=False)
class _Aligned:
    """The covariates of one origin, aligned with the candles of a series."""

    name: str  # the neighbour, or the file of the table
    has: Mask  # which candles have these covariates, shape (N,)
    columns: Columns  # by full name, shape (N,); arbitrary values where a candle has none
    span: str  # first and last time of the origin, for messages


class Companions:
    """The covariates that a profile joins with the candles of a series; most profiles have none.

    Args:
        columns: Full names of the covariate columns, such as `BTCUSDT.high`: `covariate_inputs` of the
            features.
        tables: The profile's key `covariates`.
        in_memory: Candles and tables by symbol or by name of the file; other tables are read from their
            files.
        folder: Folder of these files; that of `V8_TABLES` when None.

    Raises:
        DataError: If `in_memory` holds something that the features do not read.
    """

    def __init__(
        self,
        columns: Sequence[str],
        tables: Sequence[TableSettings] = (),
        in_memory: Mapping[str, Any] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._neighbour_columns: dict[str, list[str]] = {}
        for column in columns:
            origin, plain = split_origin(column)
            if origin != USER:
                self._neighbour_columns.setdefault(origin, []).append(plain)
        self._settings = tuple(tables)
        self._source_tables: dict[tuple[str, Series, int, int], UserTable] = {}
        self._in_memory = dict(in_memory or {})
        self._folder = folder
        self._cache: dict[tuple[Series, int, int], Candles] = {}
        names = [*self._neighbour_columns, *(settings.file for settings in self._settings)]
        unknown = [repr(name) for name in self._in_memory if name not in names]
        if unknown:
            raise DataError(
                where="covariates",
                rule=f"names only covariates of the features: {listed(names) or 'nothing'}",
                got=listed(unknown),
                fix="Give candles by their symbol and tables by the name of their file, and nothing else",
            )

    @classmethod
    def of(
        cls, profile: Profile, in_memory: Mapping[str, Any] | None = None, folder: Path | None = None
    ) -> "Companions":
        """Return the covariates of a profile."""
        return cls(profile.covariate_columns, profile.covariates, in_memory, folder)

    def __bool__(self) -> bool:
        return bool(self._neighbour_columns or self._settings)

    @cached_property
    def tables(self) -> list[UserTable]:
        """The tables of the user, read when they are first needed."""
        tables = []
        for settings in self._settings:
            if self._is_of_source(settings):
                continue
            if settings.file in self._in_memory:
                table = self._in_memory[settings.file]
                tables.append(user_table(table, settings, f"covariates, {settings.file}"))
            else:
                tables.append(read_user_table(settings, self._folder))
        return tables

    def with_neighbours(self, series: Sequence[Series]) -> list[Series]:
        """List some series and all neighbours that they need, each once."""
        neighbours = [Series(symbol, own.timeframe) for own in series for symbol in self._neighbour_columns]
        return list(dict.fromkeys([*series, *neighbours]))

    def candles(
        self, source: CandleSource, series: Series, num_bars: int, end_s: int | None = None
    ) -> Candles:
        """Return candles of a source with their covariates; arguments as of `CandleSource.candles`."""
        own = candles_of(source, series, num_bars, end_s)
        joined = self.joined(own, source)
        last_s = int(joined.open_time_s[-1])
        if last_s == int(own.open_time_s[-1]):
            return joined
        # The newest candles lack a covariate: use as many candles that end at the newest complete one.
        complete = self.joined(candles_of(source, series, num_bars, last_s), source)
        # The report describes the request of the caller, not the second one.
        return complete.with_report(num_newer=own.report.num_newer, lacking=joined.report.lacking)

    def newest(self, source: CandleSource, series: Series, num_bars: int) -> Candles:
        """Return the newest candles of a source; a DataError if the very newest lacks a covariate."""
        return self.joined(candles_of(source, series, num_bars), source, needs_newest=True)

    def joined(
        self, own: Candles, source: CandleSource | None = None, *, needs_newest: bool = False
    ) -> Candles:
        """Join candles with their covariates, and drop those that lack one.

        Args:
            own: Candles of the series.
            source: Source of neighbours that are not in memory; without it, all must be in memory.
            needs_newest: Refuse to drop the newest candle.

        Raises:
            DataError: If no candle has all covariates, or a neighbour cannot be used; or, with
                `needs_newest`, the newest candle lacks a covariate.
        """
        if not self:
            return own
        origins = self._aligned_neighbours(own, source) + self._aligned_tables(own, source)
        incomplete = [origin for origin in origins if not origin.has.all()]
        rows = np.flatnonzero(np.logical_and.reduce([origin.has for origin in origins]))
        if not len(rows):
            available = "; ".join(f"{origin.name} has {origin.span}" for origin in incomplete)
            fix = "Give a table (param:tables FOLDER) and candles of the same time, or raise its max_age_s"
            if any(settings.is_of_source for settings in self._settings):
                fix = f"Take more candles, or param:source {present_source(own.source)}"
            raise DataError(
                where=str(own.series),
                rule=f"needs candles with the covariates {listed([origin.name for origin in incomplete])}",
                got=f"none of {len(own)}, {_span(own.open_time_s)}; {available}",
                fix=fix,
            )
        late = [origin for origin in incomplete if not origin.has[-1]]
        if needs_newest and late:
            raise _late_covariates(own, late)
        columns = {name: column[rows] for origin in origins for name, column in origin.columns.items()}
        num_dropped = len(own) - len(rows)
        return own.select_rows(
            rows,
            columns,
            num_alone=own.report.num_alone + num_dropped,
            lacking={origin.name: int((~origin.has).sum()) for origin in incomplete},
        )

    def _aligned_neighbours(self, own: Candles, source: CandleSource | None) -> list[_Aligned]:
        origins = []
        for symbol, names in self._neighbour_columns.items():
            other = self._neighbour(symbol, own, source)
            if VOLUME in names and not other.has_volume:
                raise DataError(
                    where=str(other.series),
                    rule="a covariate of the profile is computed from its volume",
                    got=f"candles without a volume from {other.source}",
                    fix="Remove that covariate from the profile's key features, or use a source with volumes",
                )
            rows, has_candle = rows_at(own.open_time_s, other.open_time_s)
            columns = {with_origin(symbol, name): other.column(name)[rows] for name in names}
            origins.append(_Aligned(str(other.series), has_candle, columns, _span(other.open_time_s)))
        return origins

    def _is_of_source(self, settings: TableSettings) -> bool:
        return settings.is_of_source and settings.file not in self._in_memory

    def _source_table(self, settings: TableSettings, own: Candles, source: CandleSource | None) -> UserTable:
        """Return the table of a series that the source of its candles has."""
        first_s, last_s = (int(open_s) for open_s in own.open_time_s[[0, -1]])
        key = (settings.file, own.series, first_s, last_s)
        if key not in self._source_tables:
            offering = tables_of(source)
            if offering is None or settings.file not in offering.table_names:
                raise DataError(
                    where=str(own.series),
                    rule=f"the profile's covariates read {settings.file} from the source of the candles",
                    got=f"the source {source.name}, which has no such table" if source else "no source",
                    fix=f'Use a source that has it, or give covariates={{"{settings.file}": table}} '
                    f"in Python",
                )
            location = f"{settings.file} of {own.series}"
            table = offering.table(settings.file, own)
            checked = user_table(table.frame, settings, location)
            self._source_tables[key] = replace(checked, known_until_s=table.known_until_s)
        return self._source_tables[key]

    def _aligned_tables(self, own: Candles, source: CandleSource | None) -> list[_Aligned]:
        origins = []
        close_s = own.open_time_s + own.series.bar_s
        of_source = [settings for settings in self._settings if self._is_of_source(settings)]
        for table in [*self.tables, *(self._source_table(settings, own, source) for settings in of_source)]:
            rows = table.rows_known(close_s)
            columns = {with_origin(USER, name): column[rows] for name, column in table.columns.items()}
            span = _span(table.time_us // US_PER_S)
            origins.append(_Aligned(table.settings.file, rows >= 0, columns, span))
        return origins

    def _neighbour(self, symbol: str, own: Candles, source: CandleSource | None) -> Candles:
        """Return the candles of a neighbour: those in memory, else those of the source."""
        series = Series(symbol, own.series.timeframe)
        if symbol in self._in_memory:
            table = self._in_memory[symbol]
            if isinstance(table, Candles):
                return table  # checked before
            return check_candles(table, series, source="covariates")
        if series == own.series:
            return own
        if source is None:
            raise DataError(
                where=str(own.series),
                rule=f"its features need the candles of {series}",
                got=f"those of {own.series} alone",
                fix=f'Give them, too: covariates={{"{symbol}": candles}}',
            )
        first_s = int(own.open_time_s[0])
        last_s = int(own.open_time_s[-1])
        num_bars = (last_s - first_s) // series.bar_s + 1
        key = (series, num_bars, last_s)
        other = self._cache.get(key) or candles_of(source, series, num_bars, last_s)
        if other.open_time_s[-1] == last_s:  # else its newest candle may still arrive
            self._cache[key] = other
        return other


def _late_covariates(own: Candles, late: Sequence[_Aligned]) -> DataError:
    """Return the error for a newest candle that lacks covariates; each of them has an earlier one."""
    names = listed([origin.name for origin in late])
    newest = iso(own.open_time_s[-1])
    last = [f"{origin.name} up to the one of {iso(own.open_time_s[origin.has][-1])}" for origin in late]
    return DataError(
        where=str(own.series),
        rule=f"a forecast needs {names} at its newest candle, too",
        got=f"{listed(last)}, while the newest candle opened at {newest}",
        fix="Try again when it has arrived, or give newer candles or a newer table (param:tables FOLDER)",
    )


def _span(times_s: Times) -> str:
    return f"{iso(int(times_s[0]))} to {iso(int(times_s[-1]))}"
