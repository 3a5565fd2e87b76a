"""The source `files`: a folder of candle tables of any kind that `FILE_KINDS` lists.

Subfolders are searched too, and the rows of all files of a series are checked together. Hidden files are
ignored. The series is read from the name of a file, in one of these forms:

`BTCUSDT-15m`, `BTCUSDT_15m` and `BTCUSDT 15m` as whole words, with any text before and after them:
`BTCUSDT-15m-2024-08`, `Binance_BTCUSDT_15m`. A pair may have a separator (`BTC_USDT-1h`) and a settlement
currency (`BTC_USDT_USDT-1h-futures`, as freqtrade writes it). TradingView writes exchange, symbol and
minutes: `BINANCE_BTCUSDT, 60`. Small and capital letters differ in the timeframe only: `1m` is a minute and
`1M` a month.

Other words of the name, and the folders above it, tell what a file holds (`OTHER_KINDS`, `MARKETS`): mark,
index and premium prices, funding rates and the like are not read, and files of two markets are never joined.
Next to a zip of the exchange archive stands its .CHECKSUM, as the exchange's downloader leaves it: the zip
must have that sha256.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import pandas as pd

from v8.base.errors import DataError, listed, shown
from v8.base.records import read_plain
from v8.base.storage import digest_bytes
from v8.data.market.candles import Candles, require_one_unit
from v8.data.market.checks import check_candles
from v8.data.market.column_names import IS_CLOSED, MARKETS, OTHER_KINDS
from v8.data.market.frames import matches_series
from v8.data.market.series import TIMEFRAME_S, TIMEFRAMES, Series, is_series_name, nearest_advice
from v8.data.market.sources import AdvisedSeriesError
from v8.data.market.sources.tables import (
    FILE_KINDS,
    MAX_CHECKSUM_BYTES,
    MAX_FILE_BYTES,
    ZIP,
    checksum_of,
    read_table,
    split_ending,
)
from v8.profile.columns import QUOTE_CURRENCIES, plain_symbol

_WORD_END: Final = r"(?![A-Za-z0-9])"
_TIMEFRAME: Final = re.compile(rf"(?<=[-_ ])({'|'.join(TIMEFRAME_S)}){_WORD_END}")
_EXPORTED: Final = re.compile(r"[A-Z0-9]+_([A-Z0-9.]+), (\d+|\d*[DW])(_[0-9a-f]+)?( ?\(\d+\))?")
"""Names of files that TradingView exports, with the number that browsers add to a repeated download."""

_SECOND_WORDS: Final = {*QUOTE_CURRENCIES, "PERP"}
"""Second words of a pair: the word before one of them is the base currency."""

_ARCHIVE_FOLDERS: Final = ("priceklines", "premiumindexklines", "fundingrate")
"""How folders of the exchange archive end that hold other prices, small letters; the files do not say so."""

_PUNCTUATION: Final = re.compile(r"[.()\[\]+]")
_DATE: Final = re.compile(r"\d{8}")
_LAST_DAY: Final = re.compile(r"\d{6}")
_SPOT: Final = MARKETS["spot"]
_CHECKSUM: Final = ".CHECKSUM"
_MOST_LETTERS: Final = 255
MAX_ENTRIES: Final = 50_000  # files and folders that are searched; the root folder of a system has millions
_ENDINGS: Final = f"{', '.join(FILE_KINDS)} or {ZIP}"


class FileName(NamedTuple):
    """What the name of a file tells, without its ending."""

    series: tuple[Series, ...]  # each once
    words: frozenset[str]  # all other words, in small letters


def read_name(stem: str) -> FileName:
    """Read series and other words from the name of a file.

    >>> name = read_name("BTC_USDT_USDT-1h-funding_rate")
    >>> [str(series) for series in name.series], sorted(name.words)
    (['BTCUSDT-1h'], ['funding', 'funding_rate', 'rate'])
    >>> [str(series) for series in read_name("BINANCE_BTCUSDT, 240").series]
    ['BTCUSDT-4h']
    """
    exported = _EXPORTED.fullmatch(stem[:_MOST_LETTERS])
    if exported:
        return FileName(_series([(exported[1], _timeframe(exported[2]))]), frozenset())
    pairs = []
    others: list[str] = []
    start = 0
    for match in _TIMEFRAME.finditer(stem[:_MOST_LETTERS]):
        symbol, before = _symbol(stem[: match.start() - 1])
        pairs.append((symbol, match[1]))
        others += before if start == 0 else []
        start = match.end()
    others += _words(stem[start:_MOST_LETTERS])
    small = [part for word in others for part in _PUNCTUATION.split(word.lower()) if part]
    joined = [f"{first}_{second}" for first, second in pairwise(small)]
    return FileName(_series(pairs), frozenset((*small, *joined)))


def _series(pairs: Sequence[tuple[str, str]]) -> tuple[Series, ...]:
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


def _symbol(text: str) -> tuple[str, list[str]]:
    """Read the symbol at the end of the text before a timeframe, and all other words.

    The symbol is the last word or a pair of words. A kind, a market or a date may follow it, and the day on
    which a contract ends, which is part of the symbol.

    >>> _symbol("BTC-USDT-SWAP"), _symbol("Binance_BTCUSDT_mark"), _symbol("index")
    (('BTCUSDT', ['SWAP']), ('BTCUSDT', ['Binance', 'mark']), ('index', []))
    >>> _symbol("BTCUSDT_240628"), _symbol("BTC_USDT_20240628")
    (('BTCUSDT240628', []), ('BTCUSDT', ['20240628']))
    """
    words = _words(text)
    others = []
    while len(words) > 1 and _is_added(words[-1]) and words[-2].upper().endswith(QUOTE_CURRENCIES):
        others.append(words.pop())
    has_end = (
        len(words) > 1 and _LAST_DAY.fullmatch(words[-1]) and words[-2].upper().endswith(QUOTE_CURRENCIES)
    )
    last_day = words.pop() if has_end else ""
    while len(words) > 2 and words[-1] == words[-2]:  # the settlement currency repeats the quote currency
        words.pop()
    is_pair = len(words) > 1 and words[-1].upper() in _SECOND_WORDS
    num_words = 2 if is_pair else 1
    return "".join([*words[-num_words:], last_day]), [*words[:-num_words], *others]


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[-_, ]+", text) if word]


def _is_added(word: str) -> bool:
    """Return whether a word after a symbol is a kind, a market or a date, and no part of the symbol."""
    small = word.lower()
    is_kind = small in OTHER_KINDS or small in MARKETS
    return (is_kind and word.upper() not in _SECOND_WORDS) or _DATE.fullmatch(word) is not None


def _may_hold(stem: str, series: Series) -> bool:
    """Return whether a name without a timeframe, or with another way to write it, could be of a series.

    >>> hourly = Series("XBTUSD", "1h")
    >>> [_may_hold(stem, hourly) for stem in ("XBTUSD_60", "xbt_usd 1H", "XBTUSD", "XBTUSD_15", "ETHUSD_60")]
    [True, True, True, False, False]
    """
    words = _words(stem)
    for stop in range(1, len(words) + 1):
        pairs = ("".join(words[max(0, stop - num_words) : stop]) for num_words in (1, 2))
        if series.symbol in map(str.upper, pairs):
            return stop == len(words) or matches_series("timeframe", words[stop], series)
    return False


def _timeframe(minutes: str) -> str:
    """Convert TradingView's minutes, days or weeks to a timeframe; an empty text if there is no such one."""
    if not minutes.isdigit():
        return f"{minutes[:-1] or 1}{minutes[-1].lower()}"
    return TIMEFRAMES.get(int(minutes[:9]) * 60, "")


class _Table(NamedTuple):
    """A candle file."""

    path: Path
    stem: str  # of its name
    ending: str  # of its name: a key of `FILE_KINDS`, perhaps with that of a compression, or `ZIP`
    series: tuple[Series, ...]  # in its name
    other: str  # what it holds if not candles of trades, a value of `OTHER_KINDS`; else empty
    market: str  # a value of `MARKETS`; spot if nothing tells


def _table(path: Path, folder: Path) -> _Table | None:
    """Describe a file by its name and the folders above it; None if it is of no kind that is read."""
    parts = None if path.name.startswith(".") else split_ending(path.name)
    if parts is None or not path.is_file():
        return None
    name = read_name(parts[0])
    folders = [part.lower() for part in path.relative_to(folder).parts[:-1]]
    archived = [part.lower() for part in folder.absolute().parts if part.lower().endswith(_ARCHIVE_FOLDERS)]
    words = [*sorted(name.words), *folders, *archived]
    others = [OTHER_KINDS[word] for word in words if word in OTHER_KINDS]
    markets = [MARKETS[word] for word in words if word in MARKETS]
    # Of "futures" and "futures in the coin" the longer one says more.
    return _Table(path, *parts, name.series, "".join(others[:1]), max(markets, key=len, default=_SPOT))


@dataclass(frozen=True)
class FilesSource:
    """Candles from files of the user."""

    name: ClassVar = "files"
    is_publishable: ClassVar = True

    folder: Path
    now: Callable[[], float] = time.time  # clock in seconds since the epoch: the running bar is dropped

    def series(self) -> tuple[Series, ...]:
        """List the series in the names of the files, sorted; see `SeriesLister`."""
        all_series = {series for table in self._tables if not table.other for series in table.series}
        if not all_series:
            raise DataError(
                where=f"param:data_dir {self.folder}",
                rule=f"needs files ({_ENDINGS}) whose names contain a symbol and a timeframe "
                f"({', '.join(TIMEFRAME_S)})",
                got=self._table_names,
                fix="Rename them like BTCUSDT-15m.csv, BTC_USDT-1h.json or BRK.B-1d.parquet",
            )
        return tuple(sorted(all_series))

    def unread(self) -> str | None:
        """Name candle files that belong to no series; see `NamesUnread`."""
        nameless = [table for table in self._tables if not table.series and not table.other]
        if not nameless:
            return None
        names = listed([shown(table.path.relative_to(self.folder)) for table in nameless])
        return (
            f"Not read, for no name has a symbol and a timeframe ({', '.join(TIMEFRAME_S)}): {names}. "
            "Rename them like BTCUSDT-1h.csv."
        )

    def require(self, series: Series) -> None:
        """Refuse a series without a file; see `ChecksSeries`."""
        self._matching(series)

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the files that match; see `CandleSource`."""
        files = self._matching(series)
        tables = [self._read(file, series) for file in files]
        if any(IS_CLOSED in table for table in tables):  # a file without it has closed bars only
            tables = [table if IS_CLOSED in table else table.assign(**{IS_CLOSED: True}) for table in tables]
        frame = pd.concat(tables, ignore_index=True)
        try:
            checked = check_candles(frame, series, source=self.name, now_s=int(self.now()))
            require_one_unit(checked)
        except DataError as error:
            if len(files) == 1:
                raise
            names = listed([str(file.path.relative_to(self.folder)) for file in files])
            where = f"{error.where}, one series in {len(files)} files ({names})"
            raise DataError(where=where, rule=error.rule, got=error.got, fix=error.fix) from error
        return checked.newest(num_bars, end_s)

    def _read(self, file: _Table, series: Series) -> pd.DataFrame:
        """Read a candle file; one with a .CHECKSUM next to it must have that sha256."""
        fix = "Check its permissions, and split a longer file into several ones"
        content = read_plain(file.path, fix=fix, most_bytes=MAX_FILE_BYTES, kind=DataError)
        checksum_path = file.path.with_name(f"{file.path.name}{_CHECKSUM}")
        if checksum_path.is_file():
            published = read_plain(checksum_path, fix=fix, most_bytes=MAX_CHECKSUM_BYTES, kind=DataError)
            if digest_bytes(content) != checksum_of(published, file.path.name):
                raise DataError(
                    where=str(file.path),
                    rule=f"must have the sha256 in {checksum_path.name}",
                    got="another one",
                    fix="Download both again",
                )
        return read_table(content, file.ending, series, str(file.path))

    def _matching(self, series: Series) -> list[_Table]:
        """List the files with candles of a series; the error for none names the most similar file."""
        tables = [table for table in self._tables if series in table.series or holds_name(table.stem, series)]
        traded = [table for table in tables if not table.other]
        if traded:
            self._require_one_market(traded, series)
            return traded
        got = self._table_names
        fix = self._advice(series)
        if tables:
            got = listed([f"{table.path.name}, which holds {table.other}" for table in tables])
        else:
            near = self._near(series)
            if near:
                got = listed(near)
                fix = f"Save {near[0]} as one of these; a spreadsheet, for instance, can be saved as CSV"
        raise AdvisedSeriesError(
            where=f"{series} from {self.name}",
            rule=f"needs a file ({_ENDINGS}) with {series} in its name under {self.folder}",
            got=got,
            fix=fix,
        )

    def _require_one_market(self, tables: Sequence[_Table], series: Series) -> None:
        """Refuse files of several markets: their candles differ, and so they cannot be joined."""
        names = {table.market: str(table.path.relative_to(self.folder)) for table in tables}
        if len(names) > 1:
            raise DataError(
                where=f"{series} from {self.name}",
                rule="candles of one series are of one market",
                got=listed([f"{market}: {name}" for market, name in names.items()]),
                fix="Name the folder of one market as param:data_dir, or move the files of the others",
            )

    def _near(self, series: Series) -> list[str]:
        """List the files of a series that are no candle files."""
        others = [path for path in self._everything if split_ending(path.name) is None and path.is_file()]
        names = sorted(path.name for path in others if path.suffix != _CHECKSUM)
        return [name for name in names if series in read_name(name).series or holds_name(name, series)]

    def _advice(self, series: Series) -> str:
        """Suggest a file that could be renamed, or another series of the folder."""
        for table in self._tables:
            if not table.series and not table.other and _may_hold(table.stem, series):
                new_name = f"{series}{table.ending}"
                return f"Rename {table.path.name} to {new_name}, if it holds candles of {series.timeframe}"
        named = dict.fromkeys(
            str(other) for table in self._tables if not table.other for other in table.series
        )
        return nearest_advice(str(series), list(named), "Rename the file or choose another param:data_dir")

    @property
    def _table_names(self) -> str:
        """The names of the candle files, for messages."""
        names = []
        for table in self._tables:
            name = str(table.path.relative_to(self.folder))
            names.append(f"{name} ({table.other})" if table.other else name)
        return listed(names) if names else "no candle file at all"

    @cached_property
    def _tables(self) -> list[_Table]:
        """The candle files, in the same order on every file system."""
        described = [_table(path, self.folder) for path in sorted(self._everything)]
        return [table for table in described if table is not None]

    @cached_property
    def _everything(self) -> list[Path]:
        """All files and subfolders of the folder."""
        paths = list(islice(self.folder.rglob("*"), MAX_ENTRIES + 1))
        if len(paths) > MAX_ENTRIES:
            raise DataError(
                where=f"param:data_dir {self.folder}",
                rule="is the folder of the candle files",
                got=f"one with more than {MAX_ENTRIES:,} files and folders in it",
                fix="Name the subfolder that holds the candles",
            )
        return paths
