"""Companions: the candles of a profile's series with its covariates beside them.

Row by row: a neighbour's candle lies beside the one that opens, and so closes, at the same moment; a table
of the user's, such as funding rates read from CSV or a frame, gives the row that was known at the close: the
newest of those whose time and `available_after_s` lie at or before it, and not more than `max_age_s` old. So
a bar sees nothing that was not known when it closed. Nothing is guessed: times of a table have a zone or
are numbers since the epoch, rise from row to row, and every value is a number.

A candle that lacks something beside it is left out, so no window touches it: a hole of a neighbour is a hole
of the series. The candle report counts them. Where the newest candles lack something, as many candles up to
the newest whole one are taken: asked for until that one, a source gives the same later, when what lacked has
come.

Shapes: N candles of a series, R rows of a table.
"""

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.columns import USER, VOLUME, beside, parted
from v8.errors import DataError, listed, shown
from v8.features.indicators import needed_beside
from v8.market.candles import MAX_VALUE, Candles, Columns, Mask, Times, places
from v8.market.checks import check_candles
from v8.market.frames import read_open_times
from v8.market.series import US_PER_S, Series, iso
from v8.market.sources.source import CandleSource
from v8.market.sources.tables import SEPARATORS, decoded, read_rows, require_even
from v8.profile import TABLES_PLACE, Profile, TableSettings
from v8.records import read_plain
from v8.storage import expanded

MAX_TABLE_BYTES: Final = 2**28  # a row a minute for ten years has 150 MB
_ZONED: Final = re.compile(r"(?:Z|UTC|[+-]\d\d:?\d\d)$", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d+(?:\.\d*)?")


@dataclass(frozen=True, eq=False)
class UserTable:
    """A checked table of the user's: its columns by name, finite, shape (R,)."""

    settings: TableSettings
    time_us: Times  # microseconds since the epoch, UTC, ascending, shape (R,)
    columns: Columns

    def rows_known(self, close_s: Times) -> NDArray[np.intp]:
        """Find the row that counts for each bar, by when it closes (seconds since the epoch); -1 for none."""
        known_us = self.time_us + self.settings.available_after_s * US_PER_S
        close_us = close_s * US_PER_S
        rows = np.searchsorted(known_us, close_us, side="right") - 1
        is_fresh = close_us - self.time_us[rows] <= self.settings.max_age_s * US_PER_S
        return np.where((rows >= 0) & is_fresh, rows, -1)

    def to_csv(self) -> str:
        """Write it as the CSV that reads back as the same numbers: times in microseconds since the epoch."""
        frame = pd.DataFrame({self.settings.time: self.time_us, **self.columns})
        return str(frame.to_csv(index=False, lineterminator="\n"))


def read_user_table(settings: TableSettings) -> UserTable:
    """Read the CSV of a table from the user's folder of tables."""
    path = expanded(os.environ.get(TABLES_PLACE) or ".", variable=TABLES_PLACE) / settings.file
    place = f"The profile's covariates read it: name its folder with param:tables FOLDER or by {TABLES_PLACE}"
    fix = f'{place}, or give covariates={{"{settings.file}": table}} in Python'
    content = read_plain(path, fix=fix, most_bytes=MAX_TABLE_BYTES, kind=DataError)
    where = f"covariates of the profile, {path}"
    return user_table(_frame(decoded(content, where), settings, where), settings, where)


def user_table(given: Any, settings: TableSettings, where: str) -> UserTable:
    """Check a table in memory."""
    try:
        frame = given if isinstance(given, pd.DataFrame) else pd.DataFrame(given)
    except (ValueError, TypeError) as error:
        raise _unlike(settings, type(given).__name__, where) from error
    is_time = frame.index.name == settings.time or isinstance(frame.index, pd.DatetimeIndex)
    if is_time and settings.time not in frame.columns:
        frame = frame.reset_index(names=settings.time)
    _wanted(list(map(str, frame.columns)), settings, where)
    if not len(frame):
        raise DataError(where=where, rule="needs at least one row", got="none", fix="Add rows")
    time_us = _times(frame[settings.time], where)
    columns = {}
    fix = "Leave out the rows that have none; the row before them counts on until max_age_s"
    for name in settings.columns:
        values = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        with np.errstate(invalid="ignore"):
            is_wrong = ~(np.abs(values) <= MAX_VALUE)
        place = f"{where}, column {name}"
        rule = "every row has a number, up to 1e18"
        _require_none(is_wrong, frame[name], place, rule, fix)
        columns[name] = values
    return UserTable(settings, time_us, columns)


def _frame(text: str, settings: TableSettings, where: str) -> pd.DataFrame:
    """Read the columns that are needed as text; the first line that is not empty is the header."""
    rows = io.StringIO(text, newline=None)
    header = next(filter(str.strip, rows), "")
    separator = max(SEPARATORS, key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
    wanted = {names.index(name): name for name in _wanted(names, settings, where)}
    require_even(text, separator, len(names), where)
    return read_rows(rows, separator, len(names), wanted, where, dtype=str, na_filter=False)


def _wanted(names: list[str], settings: TableSettings, where: str) -> list[str]:
    """Name the columns that are needed, each of which is there once."""
    wanted = [settings.time, *settings.columns]
    if any(names.count(name) != 1 for name in wanted):
        raise _unlike(settings, listed([shown(name, 40) for name in names]) or "none", where)
    return wanted


def _unlike(settings: TableSettings, got: str, where: str) -> DataError:
    rule = f"needs a table with the columns {', '.join((settings.time, *settings.columns))}, each once"
    return DataError(where=where, rule=rule, got=got, fix="Correct its header, or covariates in the profile")


def _times(column: pd.Series, where: str) -> Times:
    """Return the times of the rows, refusing those that could mean another moment."""
    mend = "Write times in UTC as 2024-01-31T16:00:00Z, or in seconds since the epoch"
    _require_none(_is_naive(column), column, where, "a time tells its zone", mend)
    times = read_open_times(column)
    rule = "every row has a time: s, ms, us or ns since the epoch after 2001-09, or ISO 8601 text"
    _require_none(~times.is_readable, column, where, rule, mend)
    is_late = np.diff(times.open_us, prepend=times.open_us[0] - 1) > 0
    fix = "Sort the rows by time, and leave one row of each time"
    _require_none(~is_late, column, where, "times rise from row to row, each there once", fix)
    return times.open_us


def _is_naive(column: pd.Series) -> Mask:
    """Tell which times are text or dates without a zone."""
    if isinstance(column.dtype, pd.DatetimeTZDtype) or pd.api.types.is_numeric_dtype(column.dtype):
        return np.zeros(len(column), np.bool_)
    texts = column.astype(str).str.strip()
    is_told = texts.str.contains(_ZONED) | texts.str.fullmatch(_NUMBER) | (texts == "")
    return np.asarray(~is_told, np.bool_)


def _require_none(is_wrong: Mask, column: pd.Series, where: str, rule: str, fix: str) -> None:
    """Refuse rows at fault, naming the first, counted from 1, and how many there are."""
    rows = np.flatnonzero(is_wrong)
    if len(rows):
        others = f" ({len(rows)} such rows)" if len(rows) > 1 else ""
        got = f"{shown(repr(column.iloc[rows[0]]), 60)} in row {rows[0] + 1}{others}"
        raise DataError(where=where, rule=rule, got=got, fix=fix)


@dataclass(frozen=True, eq=False)
class _Beside:
    """What lies beside some candles, of one origin."""

    name: str
    has: Mask  # which of the candles have it beside them, shape (N,)
    columns: Columns  # by name, shape (N,), of any value where a candle lacks it
    span: str


class Companions:
    """What a profile needs beside the candles of a series; nothing for most profiles.

    Args:
        features: Its features; what they read beside a series' own candles is needed, such as `BTCUSDT.high`.
        tables: Its key `covariates`.
        given: Candles and tables in memory, by symbol or name of the file; other tables are read from theirs.
    """

    def __init__(
        self,
        features: Sequence[str],
        tables: Sequence[TableSettings] = (),
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._of_symbol: dict[str, list[str]] = {}
        for origin, plain in map(parted, needed_beside(features)):
            if origin != USER:
                self._of_symbol.setdefault(origin, []).append(plain)
        self._settings = tuple(tables)
        self._given = dict(given or {})
        self._kept: dict[tuple[Series, int, int], Candles] = {}
        self._until_s: dict[str, int] = {}
        """Of what lacked beside the newest of the candles that were joined last: the last that had it."""
        read = [*self._of_symbol, *(each.file for each in self._settings)]
        strange = [repr(name) for name in self._given if name not in read]
        if strange:
            rule = f"names what the features read beside their candles: {listed(read) or 'nothing'}"
            fix = "Give candles by their symbol and tables by the name of their file, and nothing else"
            raise DataError(where="covariates", rule=rule, got=listed(strange), fix=fix)

    @classmethod
    def of(cls, profile: Profile, given: Mapping[str, Any] | None = None) -> "Companions":
        """Return those of a profile."""
        return cls(profile.features, profile.covariates, given)

    def __bool__(self) -> bool:
        return bool(self._of_symbol or self._settings)

    @cached_property
    def tables(self) -> list[UserTable]:
        """The tables, read when they are first needed."""
        return [
            user_table(self._given[each.file], each, f"covariates, {each.file}")
            if each.file in self._given
            else read_user_table(each)
            for each in self._settings
        ]

    def with_neighbours(self, series: Sequence[Series]) -> list[Series]:
        """List series and the neighbours that their candles need, each once."""
        others = [Series(symbol, one.timeframe) for one in series for symbol in self._of_symbol]
        return [*dict.fromkeys((*series, *others))]

    def candles(
        self, source: CandleSource, series: Series, num_bars: int, end_s: int | None = None
    ) -> Candles:
        """Return candles of a source with what lies beside them; as it is asked for in `CandleSource`."""
        own = source.candles(series, num_bars, end_s)
        found = self.joined(own, source)
        last_s = int(found.open_time_s[-1])
        if last_s == int(own.open_time_s[-1]):
            return found
        whole = self.joined(source.candles(series, num_bars, last_s), source)
        # What lacks is no news to a run that did not ask until a time of the past.
        return whole.noting(num_newer=own.report.num_newer, lacking=found.report.lacking)

    def newest(self, source: CandleSource, series: Series, num_bars: int) -> Candles:
        """Return the newest candles of a source, of which the newest of all has all it needs."""
        own = source.candles(series, num_bars)
        return self.reaching(own, self.joined(own, source))

    def joined(self, own: Candles, source: CandleSource | None = None) -> Candles:
        """Return candles with what lies beside them, without those that lack something.

        Neighbours that were not given come from the source, if there is one.
        """
        if not self:
            return own
        every = list(self._beside(own, source))
        lacking = [one for one in every if not one.has.all()]
        rows = np.flatnonzero(np.logical_and.reduce([one.has for one in every]))
        if not len(rows):
            there = "; ".join(f"{one.name} has {one.span}" for one in lacking)
            rule = f"needs candles that have {listed([one.name for one in lacking])} beside them"
            got = f"none of {len(own)}, {_span(*own.open_time_s[[0, -1]])}; {there}"
            together = "Give a table (param:tables FOLDER) and candles of the same time"
            fix = f"{together}, or raise max_age_s of the table"
            raise DataError(where=str(own.series), rule=rule, got=got, fix=fix)
        self._until_s = {one.name: int(own.open_time_s[one.has][-1]) for one in lacking if not one.has[-1]}
        columns = {name: each[rows] for one in every for name, each in one.columns.items()}
        num_alone = own.report.num_alone + len(own) - len(rows)
        counts = {one.name: int((~one.has).sum()) for one in lacking}
        return own.picked(rows, columns, num_alone=num_alone, lacking=counts)

    def reaching(self, own: Candles, found: Candles) -> Candles:
        """Return the candles that were joined last, which reach as far as those of the series."""
        if found.open_time_s[-1] == own.open_time_s[-1]:
            return found
        names = listed([*self._until_s])
        newest = iso(own.open_time_s[-1])
        rule = f"a forecast needs {names} at its newest candle, too, which opened at {newest}"
        got = listed([f"{name} up to the one of {iso(last_s)}" for name, last_s in self._until_s.items()])
        fix = "Try again when it has come, or give newer candles or a newer table (param:tables FOLDER)"
        raise DataError(where=str(own.series), rule=rule, got=got, fix=fix)

    def _beside(self, own: Candles, source: CandleSource | None) -> Iterator[_Beside]:
        for symbol, wanted in self._of_symbol.items():
            other = self._neighbour(symbol, own, source)
            if VOLUME in wanted and not other.has_volume:
                rule = "a covariate of the profile is computed from its volume"
                got = f"candles without a volume from {other.source}"
                fix = "Take that covariate out of the profile's key features, or use a source with volumes"
                raise DataError(where=str(other.series), rule=rule, got=got, fix=fix)
            at, has = places(own.open_time_s, other.open_time_s)
            columns = {beside(symbol, name): other.column(name)[at] for name in wanted}
            yield _Beside(str(other.series), has, columns, _span(*other.open_time_s[[0, -1]]))
        for table in self.tables:
            rows = table.rows_known(own.open_time_s + own.series.bar_s)
            columns = {beside(USER, name): each[rows] for name, each in table.columns.items()}
            yield _Beside(table.settings.file, rows >= 0, columns, _span(*table.time_us[[0, -1]] // US_PER_S))

    def _neighbour(self, symbol: str, own: Candles, source: CandleSource | None) -> Candles:
        series = Series(symbol, own.series.timeframe)
        given = self._given.get(symbol)
        if isinstance(given, Candles):
            return given
        if symbol in self._given:
            return check_candles(self._given[symbol], series, source="covariates")
        if series == own.series:
            return own
        if source is None:
            rule = f"its features need the candles of {series}"
            fix = f'Give them, too: covariates={{"{symbol}": candles}}'
            raise DataError(where=str(own.series), rule=rule, got=f"those of {own.series} alone", fix=fix)
        first_s, last_s = (int(time_s) for time_s in own.open_time_s[[0, -1]])
        wanted = (series, (last_s - first_s) // series.bar_s + 1, last_s)
        other = self._kept.get(wanted) or source.candles(*wanted)
        if other.open_time_s[-1] == last_s:  # else its newest may yet come
            self._kept[wanted] = other
        return other


def _span(first_s: Any, last_s: Any) -> str:
    return f"{iso(int(first_s))} to {iso(int(last_s))}"
