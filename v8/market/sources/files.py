"""The source `files`: a folder of candle tables of any kind that `FILE_KINDS` lists.

Subfolders are searched too, and the rows of all files of a series are checked together. Hidden files are
ignored. The series is read from the name of a file, in one of these forms:

`BTCUSDT-15m`, `BTCUSDT_15m` and `BTCUSDT 15m` as whole words, with any text before and after them:
`BTCUSDT-15m-2024-08`, `Binance_BTCUSDT_15m`. A pair may have a separator (`BTC_USDT-1h`) and a settlement
currency (`BTC_USDT_USDT-1h-futures`, as freqtrade writes it). TradingView writes exchange, symbol and
minutes: `BINANCE_BTCUSDT, 60`. Small and capital letters differ in the timeframe only: `1m` is a minute and
`1M` a month.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import pandas as pd

from v8.columns import QUOTE_CURRENCIES, plain_symbol
from v8.errors import DataError, UnknownSeriesError, listed
from v8.market.candles import Candles, require_one_unit
from v8.market.checks import check_candles
from v8.market.series import TIMEFRAME_S, TIMEFRAMES, Series, is_series_name, series_advice
from v8.market.sources.tables import FILE_KINDS, MAX_FILE_BYTES, read_table, split_ending
from v8.records import read_plain

_WORD_END: Final = r"(?![A-Za-z0-9])"
_TIMEFRAME: Final = re.compile(rf"(?<=[-_ ])({'|'.join(TIMEFRAME_S)}){_WORD_END}")
_EXPORTED: Final = re.compile(r"[A-Z0-9]+_([A-Z0-9.]+), (\d+|\d*[DW])(_[0-9a-f]+)?( ?\(\d+\))?")
"""Names of files that TradingView exports, with the number that browsers add to a repeated download."""

_SECOND_WORDS: Final = {*QUOTE_CURRENCIES, "PERP"}
"""Second words of a pair: the word before one of them is the base currency."""

_MOST_LETTERS: Final = 255
MAX_ENTRIES: Final = 50_000  # files and folders that are searched; the root folder of a system has millions
_ENDINGS: Final = " or ".join([", ".join([*FILE_KINDS][:-1]), [*FILE_KINDS][-1]])


def named_series(stem: str) -> tuple[Series, ...]:
    """List the series in the name of a file, each once.

    >>> named_series("BTC_USDT_USDT-1h-futures") == named_series("BINANCE_BTCUSDT, 60")
    True
    >>> [str(series) for series in named_series("BINANCE_BTCUSDT, 240")]
    ['BTCUSDT-4h']
    """
    exported = _EXPORTED.fullmatch(stem[:_MOST_LETTERS])
    if exported:
        pairs = [(exported[1], _timeframe(exported[2]))]
    else:
        matches = _TIMEFRAME.finditer(stem[:_MOST_LETTERS])
        pairs = [(_symbol(stem[: match.start() - 1]), match[1]) for match in matches]
    names = [f"{plain_symbol(symbol)}-{timeframe}" for symbol, timeframe in pairs]
    return tuple(dict.fromkeys(Series.parse(name) for name in names if is_series_name(name)))


def holds_name(stem: str, series: Series) -> bool:
    """Return whether the name of a file contains a series as a whole word.

    >>> minutes = Series("BTCUSDT", "1m")
    >>> holds_name("Binance_BTCUSDT_1m-2024", minutes), holds_name("1000BTCUSDT-1m", minutes)
    (True, False)
    """
    if (
        series.symbol.lower() not in stem.lower()
    ):  # fast path: there may be a thousand series and a thousand names
        return False
    word = rf"(?<![A-Za-z0-9])(?i:{re.escape(series.symbol)})[-_]{series.timeframe}{_WORD_END}"
    return re.search(word, stem) is not None


def _symbol(text: str) -> str:
    """Read the symbol at the end of the text before a timeframe: the last word, or a pair of words."""
    words = [word for word in re.split(r"[-_, ]+", text) if word]
    while len(words) > 2 and words[-1] == words[-2]:  # the settlement currency repeats the quote currency
        words.pop()
    is_pair = len(words) > 1 and words[-1].upper() in _SECOND_WORDS
    return "".join(words[-2:] if is_pair else words[-1:])


def _timeframe(minutes: str) -> str:
    """Convert TradingView's minutes, days or weeks to a timeframe; an empty text if there is no such one."""
    if not minutes.isdigit():
        return f"{minutes[:-1] or 1}{minutes[-1].lower()}"
    return TIMEFRAMES.get(int(minutes[:9]) * 60, "")


class _Table(NamedTuple):
    """A candle file."""

    path: Path
    stem: str  # of its name
    ending: str  # of its name, a key of `FILE_KINDS`, perhaps with that of a compression
    series: tuple[Series, ...]  # in its name


@dataclass(frozen=True)
class FilesSource:
    """Candles from files of the user."""

    name: ClassVar = "files"
    is_publishable: ClassVar = True

    folder: Path
    now: Callable[[], float] = time.time  # clock in seconds since the epoch: the running bar is dropped

    def series(self) -> tuple[Series, ...]:
        """List the series in the names of the files, sorted; see `SeriesLister`."""
        all_series = {series for table in self._tables for series in table.series}
        if not all_series:
            raise DataError(
                where=f"param:data_dir {self.folder}",
                rule=f"needs files ({_ENDINGS}) whose names contain series and timeframe",
                got=self._table_names,
                fix="Rename them like BTCUSDT-15m.csv, BTC_USDT-1h.json or BRK.B-1d.parquet",
            )
        return tuple(sorted(all_series))

    def require(self, series: Series) -> None:
        """Refuse a series without a file; see `ChecksSeries`."""
        self._matching(series)

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the files that match; see `CandleSource`."""
        tables = []
        fix = "Check its permissions, and split a longer file into several ones"
        for file in self._matching(series):
            content = read_plain(file.path, fix=fix, most_bytes=MAX_FILE_BYTES, kind=DataError)
            tables.append(read_table(content, file.ending, series, str(file.path)))
        frame = pd.concat(tables, ignore_index=True)
        checked = check_candles(frame, series, source=self.name, now_s=int(self.now()))
        require_one_unit(checked)
        return checked.newest(num_bars, end_s)

    def _matching(self, series: Series) -> list[_Table]:
        """List the files of a series; the error for none names the most similar file."""
        tables = [table for table in self._tables if series in table.series or holds_name(table.stem, series)]
        if tables:
            return tables
        others = [path for path in self._everything if split_ending(path.name) is None and path.is_file()]
        names = sorted(path.name for path in others)
        near = [name for name in names if series in named_series(name) or holds_name(name, series)]
        all_names = dict.fromkeys(str(other) for table in self._tables for other in table.series)
        fix = series_advice(str(series), list(all_names), "Rename the file or choose another param:data_dir")
        if near:
            fix = f"Save {near[0]} as one of these; a spreadsheet, for instance, can be saved as CSV"
        rule = f"needs a file ({_ENDINGS}) with {series} in its name under {self.folder}"
        got = listed(near) if near else self._table_names
        raise UnknownSeriesError(where=f"{series} from {self.name}", rule=rule, got=got, fix=fix)

    @property
    def _table_names(self) -> str:
        """The names of the candle files, for messages."""
        names = [str(table.path.relative_to(self.folder)) for table in self._tables]
        return listed(names) if names else "no candle file at all"

    @cached_property
    def _tables(self) -> list[_Table]:
        """The candle files, in the same order on every file system."""
        tables = []
        for path in sorted(self._everything):
            parts = None if path.name.startswith(".") else split_ending(path.name)
            if parts and path.is_file():
                stem, ending = parts
                tables.append(_Table(path, stem, ending, named_series(stem)))
        return tables

    @cached_property
    def _everything(self) -> list[Path]:
        """All files and subfolders of the folder."""
        paths = list(islice(self.folder.rglob("*"), MAX_ENTRIES + 1))
        if len(paths) > MAX_ENTRIES:
            got = f"one with more than {MAX_ENTRIES:,} files and folders in it"
            fix = "Name the subfolder that holds the candles"
            location = f"param:data_dir {self.folder}"
            raise DataError(where=location, rule="is the folder of the candle files", got=got, fix=fix)
        return paths
