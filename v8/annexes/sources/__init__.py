"""Sources beyond the archive and the exchange: `hub`, a dataset on the Hugging Face Hub, and `yfinance`.

The dataset has one CSV for each series, as the lineage has it:

    klines_binance_us/{SYM}/{SYM}_{TF}_binance_us.csv    open_time, open, high, low, close, volume, close_time

`V8_HUB_DATASET` names it, `USER/NAME` or `USER/NAME@REVISION`; the Hub is that of `HF_ENDPOINT`. The commit
of the revision is requested once, so that all series of a run come from the same commit. The newest candle is
as old as the last update of the files; `predict` says how old it is. Only public datasets: no token is sent.

Yahoo's candles of coins in US dollars are fetched by the package `yfinance`. It has bars of some timeframes
only, and short ones only for some days: other requests are refused, and bars are never combined. It prices
coins in USD, not in USDT, which is a different price; every report names the priced pair. Its volumes are in
dollars, and zero for many bars (https://github.com/ranaroussi/yfinance/issues/2686): they are not read, and
candles of this source have no volume. The rows pass the same checks as those of the archive.

Yahoo distinguishes coins of the same name by numbers that cannot be guessed: `UNI-USD` is not Uniswap. A coin
that is not listed here is refused until `V8_YFINANCE_SYMBOLS` gives its ticker: `OPUSDT=OP-USD,...`.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from typing import Annotated, Any, ClassVar, Final

import pandas as pd
from pydantic import BaseModel, Field, ValidationError

from v8.base import storage
from v8.base.errors import DataError, ProfileError, UnknownSeriesError, listed, shown
from v8.base.registry import require_package
from v8.data.market.candles import Candles, require_num_bars
from v8.data.market.checks import check_candles
from v8.data.market.series import DAY_S, Series, iso
from v8.data.market.sources.downloads import Address, Downloader, read_address
from v8.data.market.sources.tables import read_csv_table
from v8.profile.columns import OHLC, OPEN_TIME, plain_symbol

DATASET_VARIABLE: Final = "V8_HUB_DATASET"
DEFAULT_DATASET: Final = "zongowo111/cpb-models"
ENDPOINT_VARIABLE: Final = "HF_ENDPOINT"
DEFAULT_ENDPOINT: Final = "https://huggingface.co"
MAX_CSV_BYTES: Final = 64 << 20  # 10,000 rows have 1 MB; half a million still fit
MAX_ANSWER_BYTES: Final = 8 << 20  # the Hub's description of a revision lists all its files
_DATASET_NAME: Final = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(@(?P<revision>[A-Za-z0-9][\w.-]{0,99}))?"
)

YAHOO_PACKAGE: Final = "yfinance"
SYMBOLS_VARIABLE: Final = "V8_YFINANCE_SYMBOLS"

REACH_DAYS: Final = {"1m": 7, "5m": 60, "15m": 60, "1h": 730, "1d": 365 * 30}
"""Timeframes that Yahoo has, and for how many days back."""

_YAHOO_OPTIONS: Final = {
    **dict.fromkeys(("auto_adjust", "ignore_tz", "threads", "progress"), False),
    **dict.fromkeys(("keepna", "prepost"), True),
}
_MARGIN_S: Final = 3_600  # Yahoo refuses a span whose start is slightly too old when the request arrives
_TIMEOUT_S: Final = 30  # of each of the few requests that the package makes
_TICKERS: Final = (
    "BTC ETH BNB XRP LTC ADA SOL DOGE AVAX LINK ATOM NEAR INJ SHIB DOT TRX BCH ETC XLM "
    "UNI7083 ARB11841 PEPE24478 SUI20947"
)
COINS: Final = {name.rstrip("0123456789"): name for name in _TICKERS.split()}  # Yahoo's names
_PAIR: Final = re.compile("(?P<coin>[A-Z0-9]+?)(USDT|USDC|FDUSD|TUSD|USD)")
_NAMED_TICKER: Final = re.compile(
    r"\s*(?P<symbol>[A-Za-z0-9./_-]{1,40})\s*=\s*(?P<ticker>[A-Z0-9]{1,20}-[A-Z]{3,5})\s*"
)

_ONE_AT_A_TIME: Final = threading.Lock()
"""The package has one session for all threads, and its log is captured."""


class _Revision(BaseModel):
    """The Hub's description of a revision; only its commit is read."""

    sha: Annotated[str, Field(strict=True, pattern="^[0-9a-f]{40}$")]


@dataclass(frozen=True)
class Dataset:
    """A dataset at a revision: a branch, a tag or a commit."""

    repo: str
    revision: str


@dataclass(frozen=True, eq=False, kw_only=True)
class HubSource:
    """Candles from a dataset on the Hub: that of `V8_HUB_DATASET`, else the lineage's."""

    name: ClassVar = "hub"
    is_publishable: ClassVar = True

    dataset: Dataset = field(default_factory=lambda: read_dataset(os.environ.get(DATASET_VARIABLE)))
    downloader: Downloader = field(default_factory=partial(Downloader, ENDPOINT_VARIABLE))
    now: Callable[[], float] = time.time  # clock in seconds since the epoch

    @property
    def dataset_name(self) -> str:
        """The dataset, `user/name`: model cards name it."""
        return self.dataset.repo

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the dataset; see `CandleSource`."""
        require_num_bars(num_bars, series)
        path = f"klines_binance_us/{series.symbol}/{series.symbol}_{series.timeframe}_binance_us.csv"
        url = f"{self._address.url}/datasets/{self.dataset.repo}/resolve/{self._commit}/{path}"
        content = self.downloader.fetch(url, max_bytes=MAX_CSV_BYTES, auth=self._address.auth)
        if content is None:
            raise UnknownSeriesError(
                where=f"{series} from {self.name}",
                rule=f"needs {path} in the dataset {self.dataset.repo}",
                got="no such file",
                fix=f"Choose another series, or name another dataset in {DATASET_VARIABLE}",
            )
        table = read_csv_table(content, series, url)
        return check_candles(table, series, source=self.name, now_s=int(self.now())).newest(num_bars, end_s)

    @cached_property
    def _address(self) -> Address:
        return read_address(ENDPOINT_VARIABLE, DEFAULT_ENDPOINT, "a Hub")

    @cached_property
    def _commit(self) -> str:
        """The commit to which the revision points now."""
        repo = self.dataset.repo
        revision = self.dataset.revision
        url = f"{self._address.url}/api/datasets/{repo}/revision/{revision}"
        answer = self.downloader.fetch(url, max_bytes=MAX_ANSWER_BYTES, auth=self._address.auth)
        try:
            return _Revision.model_validate_json(answer or b"").sha
        except ValidationError as error:
            raise DataError(
                where=url,
                rule="must return the commit of a public dataset",
                got="no such dataset or revision" if answer is None else repr(shown(str(answer[:40]))),
                fix=f"Check {DATASET_VARIABLE}, and that the Hub can be reached",
            ) from error


def read_dataset(name: str | None) -> Dataset:
    """Read the name of a dataset, `USER/NAME` or `USER/NAME@REVISION`; None means the lineage's."""
    parts = _DATASET_NAME.fullmatch(name or DEFAULT_DATASET)
    if not parts or ".." in parts[0]:
        raise ProfileError(
            where=DATASET_VARIABLE,
            rule="names a dataset on the Hub, USER/NAME or USER/NAME@REVISION",
            got=repr(name),
            fix=f"Correct it, or unset it for {DEFAULT_DATASET}",
        )
    return Dataset(parts["repo"], parts["revision"] or "main")


@dataclass(frozen=True, eq=False, kw_only=True)
class YahooSource:
    """Candles from Yahoo."""

    name: ClassVar = "yfinance"
    is_publishable: ClassVar = True

    download: Callable[..., Any]  # `yfinance.download`
    now: Callable[[], float] = time.time  # clock in seconds since the epoch

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles that Yahoo has; see `CandleSource`."""
        require_num_bars(num_bars, series)
        ticker = ticker_of(series)
        now_s = int(self.now())
        if series.timeframe not in REACH_DAYS:
            raise _refused(
                series,
                rule=f"Yahoo has bars of {', '.join(REACH_DAYS)}, and bars are not combined",
                got=series.timeframe,
                fix="Choose one of these timeframes, or another source",
            )
        oldest_s = now_s - REACH_DAYS[series.timeframe] * DAY_S + _MARGIN_S
        newest_s = series.last_closed_s(now_s)
        last_s = series.last_wanted_s(now_s, end_s)
        if last_s < oldest_s:
            raise _refused(
                series,
                rule=f"Yahoo keeps bars of {series.timeframe} for {REACH_DAYS[series.timeframe]} days",
                got=f"a request for candles until {iso(last_s)}",
                fix=f"Ask for a time after {iso(oldest_s)}, for longer bars, or for another source",
            )
        first_s = max(last_s - (num_bars - 1) * series.bar_s, oldest_s)
        frame = self._fetch(series, ticker, first_s, last_s + series.bar_s)
        candles = check_candles(frame, series, source=self.name, now_s=now_s).newest(num_bars, last_s)
        return candles.with_report(num_newer=(newest_s - last_s) // series.bar_s, priced_as=ticker)

    def _fetch(self, series: Series, ticker: str, first_s: int, end_s: int) -> pd.DataFrame:
        """Fetch the bars that open from `first_s` up to, but not at, `end_s`."""
        with _ONE_AT_A_TIME, _captured_log() as messages:
            table = self.download(
                ticker,
                start=pd.Timestamp(first_s, unit="s", tz="UTC").to_pydatetime(),
                end=pd.Timestamp(end_s, unit="s", tz="UTC").to_pydatetime(),
                interval=series.timeframe,
                **_YAHOO_OPTIONS,
                timeout=_TIMEOUT_S,
            )
        if table is None or table.empty or table.isna().to_numpy().all():
            raise _refused(
                series,
                rule=f"needs bars of {ticker} that Yahoo has from {iso(first_s)} on",
                got=shown(" ".join(messages), 200) or "none",
                fix="Check the connection, try again later, or choose another source",
            )
        return _rows(table, series, ticker)


def open_yahoo() -> YahooSource:
    """Open the source with the installed package; the package stores its cookies in the folder of v8."""
    require_package(
        YAHOO_PACKAGE,
        where=f"param:source {YahooSource.name}",
        rule=f"needs the package {YAHOO_PACKAGE}, an extra of v8",
    )
    package = import_module(YAHOO_PACKAGE)
    package.set_tz_cache_location(str(storage.home() / YAHOO_PACKAGE))
    return YahooSource(download=package.download)


def ticker_of(series: Series) -> str:
    """Return Yahoo's ticker of a pair.

    >>> ticker_of(Series("BTCUSDT", "1h")), ticker_of(Series("UNIUSDC", "1h"))
    ('BTC-USD', 'UNI7083-USD')
    """
    text = os.environ.get(SYMBOLS_VARIABLE, "")
    parts = [_NAMED_TICKER.fullmatch(part) for part in text.split(",") if part.strip()]
    if None in parts:
        raise ProfileError(
            where=SYMBOLS_VARIABLE,
            rule="names pairs and their tickers at Yahoo, such as OPUSDT=OP-USD, comma-separated",
            got=repr(shown(text, 120)),
            fix="Correct it or unset it",
        )
    named = {plain_symbol(part["symbol"]): part["ticker"] for part in parts if part}
    if series.symbol in named:
        return named[series.symbol]
    pair = _PAIR.fullmatch(series.symbol)
    if not pair or pair["coin"] not in COINS:
        raise _refused(
            series,
            rule=f"the tickers of {', '.join(COINS)} in dollars are known, and others are not guessed",
            got=series.symbol,
            fix=f"Look it up and name it: {SYMBOLS_VARIABLE}={series.symbol}=NAME-USD",
        )
    return f"{COINS[pair['coin']]}-USD"


def _rows(table: pd.DataFrame, series: Series, ticker: str) -> pd.DataFrame:
    """Convert the result of the package: columns by price and ticker, an index of times with a time zone."""
    columns = {name: (name.capitalize(), ticker) for name in OHLC}
    places: list[Any] = list(table.columns.to_flat_index())
    missing = [place for place in columns.values() if places.count(place) != 1]
    if missing or not isinstance(table.index, pd.DatetimeIndex) or table.index.tz is None:
        raise _refused(
            series,
            rule=f"{YAHOO_PACKAGE} returns prices by name and ticker, and times with a time zone",
            got=f"no single {missing[0]} among {listed(places)}" if missing else "times of another kind",
            fix=f"Install the newest {YAHOO_PACKAGE}",
        )
    opens = table.index.tz_convert("UTC").tz_localize(None)
    prices = {name: table[place].to_numpy() for name, place in columns.items()}
    return pd.DataFrame({OPEN_TIME: opens, **prices})


@contextmanager
def _captured_log() -> Iterator[list[str]]:
    """Collect the messages in the log of the package, which contain its errors, instead of showing them."""
    log = logging.getLogger(YAHOO_PACKAGE)
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    propagates = log.propagate
    log.propagate = False
    handlers = log.handlers
    log.handlers = [handler]
    try:
        yield messages
    finally:
        log.propagate = propagates
        log.handlers = handlers


def _refused(series: Series, *, rule: str, got: str, fix: str) -> DataError:
    return DataError(where=f"{series} from {YahooSource.name}", rule=rule, got=got, fix=fix)
