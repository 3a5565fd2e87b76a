"""Companions: the candles of a profile's series with its covariates beside them.

Row by row: a neighbour's candle lies beside the one that opens, and so closes, at the same moment; a table
of the user's gives the row that was known at the close (`v8.market.user_tables`). A candle that lacks one of
them is left out, so no window touches it: a hole of a neighbour is a hole of the series. The candle report
counts them. Where the newest candles lack something, as many candles up to the newest whole one are taken:
asked for until that one, a source gives the same later, when what lacked has come.

Shapes: N candles of a series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.columns import VOLUME
from v8.errors import DataError, listed
from v8.features.covariates import USER, beside, parted
from v8.features.indicators import needed_beside
from v8.market.candles import Candles, check_candles
from v8.market.frames import candle_table
from v8.market.open_times import US_PER_S, iso
from v8.market.series import Series
from v8.market.sources.source import CandleSource
from v8.market.user_tables import UserTable, read_user_table, user_table
from v8.profile import Profile, TableSettings

Column = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Beside:
    """What lies beside some candles, of one origin.

    Args:
        name: Of the series or of the table's file.
        has: Which of the candles have it beside them, shape (N,).
        columns: By name, shape (N,), of any value where a candle lacks it.
        span: From when to when it is there at all, in words.
    """

    name: str
    has: NDArray[np.bool_]
    columns: Mapping[str, Column]
    span: str


class Companions:
    """What a profile needs beside the candles of a series; nothing for most profiles.

    Args:
        columns: Features of the profile.
        tables: Its key `covariates`.
        given: Candles and tables in memory, by symbol or name of the file. A table that is not among them is
            read from the folder of tables.

    Raises:
        DataError: If something is given that no feature reads: a slip of the pen would be left out unseen.
    """

    def __init__(
        self,
        columns: Sequence[str],
        tables: Sequence[TableSettings] = (),
        given: Mapping[str, Any] | None = None,
    ) -> None:
        needed = [parted(name) for name in needed_beside(columns)]
        self._of_symbol: dict[str, list[str]] = {}
        for origin, plain in needed:
            if origin != USER:
                self._of_symbol.setdefault(origin, []).append(plain)
        self._settings, self._given = tuple(tables), dict(given or {})
        self._tables: list[UserTable] | None = None
        self._kept: dict[tuple[Series, int, int], Candles] = {}
        self._until_s: dict[str, int] = {}
        """Of what lacked beside the newest of the candles that were joined last: the last that had it."""
        self._require_read(self._given)

    @classmethod
    def of(cls, profile: Profile, given: Mapping[str, Any] | None = None) -> Companions:
        """Return those of a profile."""
        return cls(profile.features, profile.covariates, given)

    def __bool__(self) -> bool:
        return bool(self._of_symbol or self._settings)

    def tables(self) -> list[UserTable]:
        """Return the tables, read when they are first needed.

        Raises:
            DataError: If one cannot be read, or is not what the profile says.
        """
        if self._tables is None:
            self._tables = [
                user_table(self._given[each.file], each, f"covariates, {each.file}")
                if each.file in self._given
                else read_user_table(each)
                for each in self._settings
            ]
        return self._tables

    def with_neighbours(self, series: Sequence[Series]) -> list[Series]:
        """List series and the neighbours that their candles need, each once."""
        others = [Series(symbol, one.timeframe) for one in series for symbol in self._of_symbol]
        return [*dict.fromkeys((*series, *others))]

    def candles(
        self, source: CandleSource, series: Series, num_bars: int, end_s: int | None = None
    ) -> Candles:
        """Return candles of a source with what lies beside them; as it is asked for in `CandleSource`.

        Raises:
            DataError: If the source has none of the series or of a neighbour, or no candle has all it needs.
        """
        own = source.candles(series, num_bars, end_s)
        if not self:
            return own
        found = self.joined(own, source)
        if (last_s := int(found.open_time_s[-1])) == int(own.open_time_s[-1]):
            return found
        whole = self.joined(source.candles(series, num_bars, last_s), source)
        # What lacks is no news to a run that did not ask until a time of the past.
        report = replace(whole.report, num_newer=own.report.num_newer, lacking=found.report.lacking)
        return replace(whole, report=report)

    def newest(self, source: CandleSource, series: Series, num_bars: int) -> Candles:
        """Return the newest candles of a source, of which the newest of all has all it needs.

        Raises:
            DataError: As for `candles`, or if something lacks beside the newest candle.
        """
        own = source.candles(series, num_bars)
        return self.reaching(own, self.joined(own, source))

    def joined(self, own: Candles, source: CandleSource | None = None) -> Candles:
        """Return candles with what lies beside them, without those that lack something.

        Args:
            own: Candles of a series.
            source: Where candles of neighbours come from that were not given; None for nowhere.

        Raises:
            DataError: If there are no candles of a neighbour, or no candle has all it needs.
        """
        if not self:
            return own
        every = [*self._of_neighbours(own, source), *self._of_tables(own)]
        lacking = [one for one in every if not one.has.all()]
        rows = np.flatnonzero(np.logical_and.reduce([one.has for one in every]))
        if not len(rows):
            raise _never_together(own, lacking)
        self._until_s = {one.name: int(own.open_time_s[one.has][-1]) for one in lacking if not one.has[-1]}
        columns = {name: each[rows] for one in every for name, each in one.columns.items()}
        return own.at(rows, columns, {one.name: int((~one.has).sum()) for one in lacking})

    def reaching(self, own: Candles, found: Candles) -> Candles:
        """Return the candles that were joined last, which reach as far as those of the series.

        Raises:
            DataError: If something lacks beside the newest candle.
        """
        if found.open_time_s[-1] == own.open_time_s[-1]:
            return found
        until = [f"{name} up to the one of {iso(last_s)}" for name, last_s in self._until_s.items()]
        raise DataError(
            where=str(own.series),
            rule=f"a forecast needs {listed([*self._until_s])} at its newest candle, too, which "
            f"opened at {iso(own.open_time_s[-1])}",
            got=listed(until),
            fix="Try again when it has come, or give newer candles or a newer table (--tables FOLDER)",
        )

    def _of_neighbours(self, own: Candles, source: CandleSource | None) -> Iterator[_Beside]:
        for symbol, wanted in self._of_symbol.items():
            other = self._neighbour(symbol, own, source)
            _require_volume(other, wanted)
            at, has = _places(own, other)
            columns = {beside(symbol, name): other.column(name)[at] for name in wanted}
            yield _Beside(str(other.series), has, columns, _span(*other.open_time_s[[0, -1]]))

    def _of_tables(self, own: Candles) -> Iterator[_Beside]:
        for table in self.tables():
            rows = table.rows_known(own.open_time_s + own.series.bar_s)
            columns = {beside(USER, name): each[rows] for name, each in table.columns.items()}
            yield _Beside(table.settings.file, rows >= 0, columns, _span(*table.time_us[[0, -1]] // US_PER_S))

    def _require_read(self, given: Mapping[str, Any]) -> None:
        read = [*self._of_symbol, *(each.file for each in self._settings)]
        if strange := [name for name in given if name not in read]:
            raise DataError(
                where="covariates",
                rule=f"names what the features read beside their candles: {listed(read) or 'nothing'}",
                got=listed(list(map(repr, strange))),
                fix="Give candles by their symbol and tables by the name of their file, and nothing else",
            )

    def _neighbour(self, symbol: str, own: Candles, source: CandleSource | None) -> Candles:
        series = Series(symbol, own.series.timeframe)
        if symbol in self._given:
            return _given_candles(self._given[symbol], series)
        if series == own.series:
            return own
        if source is None:
            raise DataError(
                where=str(own.series),
                rule=f"its features need the candles of {series}",
                got=f"those of {own.series} alone",
                fix=f'Give them, too: covariates={{"{symbol}": candles}}',
            )
        first_s, last_s = (int(time_s) for time_s in own.open_time_s[[0, -1]])
        wanted = (series, (last_s - first_s) // series.bar_s + 1, last_s)
        other = self._kept.get(wanted) or source.candles(*wanted)
        if other.open_time_s[-1] == last_s:  # else its newest may yet come
            self._kept[wanted] = other
        return other


def _given_candles(given: Any, series: Series) -> Candles:
    if isinstance(given, Candles):
        return given
    where = f"covariates, {series}"
    return check_candles(candle_table(given, series, where), series, source="a frame")


def _places(own: Candles, other: Candles) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Find the candle of a neighbour beside each of the series, and whether there is one."""
    at = np.minimum(np.searchsorted(other.open_time_s, own.open_time_s), len(other) - 1)
    return at, other.open_time_s[at] == own.open_time_s


def _require_volume(other: Candles, wanted: Sequence[str]) -> None:
    if VOLUME in wanted and not other.has_volume:
        raise DataError(
            where=str(other.series),
            rule="a covariate of the profile is computed from its volume",
            got=f"candles without a volume from {other.source}",
            fix="Take that covariate out of the profile's key features, or use a source with volumes",
        )


def _span(first_s: Any, last_s: Any) -> str:
    return f"{iso(int(first_s))} to {iso(int(last_s))}"


def _never_together(own: Candles, lacking: Sequence[_Beside]) -> DataError:
    there = "; ".join(f"{one.name} has {one.span}" for one in lacking)
    return DataError(
        where=str(own.series),
        rule=f"needs candles that have {listed([one.name for one in lacking])} beside them",
        got=f"none of {len(own)}, {_span(*own.open_time_s[[0, -1]])}; {there}",
        fix="Give a table (--tables FOLDER) and candles of the same time, or raise max_age_s of the table",
    )
