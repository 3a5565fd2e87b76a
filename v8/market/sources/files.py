"""The source `files`: a folder of candle tables of any kind that `FILE_KINDS` lists.

Folders inside the folder are searched too, and the rows of all files of a series are checked together. Hidden
files are left alone. The names of files tell their series, in the forms in which people and programs write:

`BTCUSDT-15m`, `BTCUSDT_15m` and `BTCUSDT 15m` as whole words, whatever stands before and behind them:
`BTCUSDT-15m-2024-08`, `Binance_BTCUSDT_15m`. A pair may be parted (`BTC_USDT-1h`), and settled in a currency
(`BTC_USDT_USDT-1h-futures`, as freqtrade does). TradingView writes exchange, symbol and minutes:
`BINANCE_BTCUSDT, 60`. Capital letters matter in the timeframe only, where `1m` is a minute and `1M` a month.
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

from v8.columns import plain_symbol
from v8.errors import DataError, UnknownSeriesError, listed
from v8.market.candles import Candles, require_one_unit
from v8.market.checks import check_candles
from v8.market.series import TIMEFRAME_S, TIMEFRAMES, Series, is_series_name, series_advice
from v8.market.sources.tables import FILE_KINDS, MAX_FILE_BYTES, read_table, split_ending
from v8.records import read_plain

_WORD_END: Final = r"(?![A-Za-z0-9])"
_TIMEFRAME: Final = re.compile(rf"(?<=[-_ ])({'|'.join(TIMEFRAME_S)}){_WORD_END}")
_EXPORTED: Final = re.compile(r"[A-Z0-9]+_([A-Z0-9.]+), (\d+|\d*[DW])(_[0-9a-f]+)?( ?\(\d+\))?")
"""How TradingView names what it exports, and browsers what they download again."""

_QUOTES: Final = re.compile(
    r"USDT|USDC|USD|BUSD|FDUSD|TUSD|USDP|DAI|BTC|ETH|BNB|EUR|GBP|JPY|TRY|BRL|AUD|KRW|PERP", re.IGNORECASE
)
"""Currencies in which pairs are quoted: behind one of these words the base stands before."""

_MOST_LETTERS: Final = 255
MAX_ENTRIES: Final = 50_000  # files and folders that are looked through; a system's root has millions
_ENDINGS: Final = " or ".join([", ".join([*FILE_KINDS][:-1]), [*FILE_KINDS][-1]])


def named_series(stem: str) -> tuple[Series, ...]:
    """List the series that the name of a file tells, each once.

    >>> named_series("BTC_USDT_USDT-1h-futures") == named_series("BINANCE_BTCUSDT, 60")
    True
    >>> [str(series) for series in named_series("BINANCE_BTCUSDT, 240")]
    ['BTCUSDT-4h']
    """
    exported = _EXPORTED.fullmatch(stem[:_MOST_LETTERS])
    if exported:
        pairs = [(exported[1], _timeframe(exported[2]))]
    else:
        found = _TIMEFRAME.finditer(stem[:_MOST_LETTERS])
        pairs = [(_symbol(stem[: match.start() - 1]), match[1]) for match in found]
    told = [f"{plain_symbol(symbol)}-{timeframe}" for symbol, timeframe in pairs]
    return tuple(dict.fromkeys(Series.parse(name) for name in told if is_series_name(name)))


def holds_name(stem: str, series: Series) -> bool:
    """Tell whether the name of a file holds a series as a whole word.

    >>> minutes = Series("BTCUSDT", "1m")
    >>> holds_name("Binance_BTCUSDT_1m-2024", minutes), holds_name("1000BTCUSDT-1m", minutes)
    (True, False)
    """
    if series.symbol.lower() not in stem.lower():  # a thousand series look at a thousand names each
        return False
    word = rf"(?<![A-Za-z0-9])(?i:{re.escape(series.symbol)})[-_]{series.timeframe}{_WORD_END}"
    return re.search(word, stem) is not None


def _symbol(text: str) -> str:
    """Read the symbol off the end of what stands before a timeframe: the last word, or a pair of words."""
    words = [word for word in re.split(r"[-_, ]+", text) if word]
    while len(words) > 2 and words[-1] == words[-2]:  # the currency that settles is the one that quotes
        words.pop()
    is_parted = len(words) > 1 and _QUOTES.fullmatch(words[-1]) is not None
    return "".join(words[-2:] if is_parted else words[-1:])


def _timeframe(minutes: str) -> str:
    """Write TradingView's minutes, days or weeks as a timeframe; empty for one that there is not."""
    if not minutes.isdigit():
        return f"{minutes[:-1] or 1}{minutes[-1].lower()}"
    return TIMEFRAMES.get(int(minutes[:9]) * 60, "")


class _Table(NamedTuple):
    """A candle file: its name's stem and ending, and the series that the name tells."""

    path: Path
    stem: str
    ending: str
    told: tuple[Series, ...]


@dataclass(frozen=True)
class FilesSource:
    """Candles from files of the user."""

    name: ClassVar = "files"
    is_publishable: ClassVar = True

    folder: Path
    now: Callable[[], float] = time.time  # clock in seconds since the epoch: the running bar is dropped

    def series(self) -> tuple[Series, ...]:
        """List the series that the names of the files tell, by name; see `SeriesLister`."""
        found = {series for each in self._tables for series in each.told}
        if not found:
            where = f"param:data_dir {self.folder}"
            rule = "whose names tell series and timeframe"
            fix = "Rename them like BTCUSDT-15m.csv, BTC_USDT-1h.json or BRK.B-1d.parquet"
            raise DataError(where=where, rule=f"needs files ({_ENDINGS}) {rule}", got=self._there, fix=fix)
        return tuple(sorted(found))

    def require(self, series: Series) -> None:
        """Refuse a series that no file tells; see `ChecksSeries`."""
        self._matching(series)

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the files that match; see `CandleSource`."""
        tables = []
        fix = "Check its permissions, and split what is longer into several files"
        for path, _, ending, _ in self._matching(series):
            content = read_plain(path, fix=fix, most_bytes=MAX_FILE_BYTES, kind=DataError)
            tables.append(read_table(content, ending, series, str(path)))
        frame = pd.concat(tables, ignore_index=True)
        checked = check_candles(frame, series, source=self.name, now_s=int(self.now()))
        require_one_unit(checked)
        return checked.newest(num_bars, end_s)

    def _matching(self, series: Series) -> list[_Table]:
        """List the files of a series; the error for none says which file comes nearest."""
        found = [each for each in self._tables if series in each.told or holds_name(each.stem, series)]
        if found:
            return found
        others = [path for path in self._everything if split_ending(path.name) is None and path.is_file()]
        names = sorted(path.name for path in others)
        near = [name for name in names if series in named_series(name) or holds_name(name, series)]
        told = dict.fromkeys(str(each) for table in self._tables for each in table.told)
        fix = series_advice(str(series), list(told), "Rename the file or choose another param:data_dir")
        if near:
            fix = f"Save {near[0]} as one of these; a spreadsheet, for instance, can be saved as CSV"
        rule = f"needs a file ({_ENDINGS}) with {series} in its name under {self.folder}"
        got = listed(near) if near else self._there
        raise UnknownSeriesError(where=f"{series} from {self.name}", rule=rule, got=got, fix=fix)

    @property
    def _there(self) -> str:
        names = [str(each.path.relative_to(self.folder)) for each in self._tables]
        return listed(names) if names else "no candle file at all"

    @cached_property
    def _tables(self) -> list[_Table]:
        """List the candle files, sorted, whatever the file system does."""
        found = []
        for path in sorted(self._everything):
            parts = None if path.name.startswith(".") else split_ending(path.name)
            if parts and path.is_file():
                found.append(_Table(path, *parts, named_series(parts[0])))
        return found

    @cached_property
    def _everything(self) -> list[Path]:
        there = list(islice(self.folder.rglob("*"), MAX_ENTRIES + 1))
        if len(there) > MAX_ENTRIES:
            where = f"param:data_dir {self.folder}"
            got = f"one with more than {MAX_ENTRIES:,} files and folders in it"
            fix = "Name the folder further down that holds the candles"
            raise DataError(where=where, rule="is the folder of the candle files", got=got, fix=fix)
        return there
