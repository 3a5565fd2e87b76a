"""Candles of any exchange that ccxt knows, as a source of v8: a plug-in of one file.

    python -m pip install ccxt
    export V8_CCXT=kraken V8_PLUGINS=docs/bridges/ccxt/ccxt_source.py
    python -m v8 run --source ccxt --series BTCUSD-1h

`V8_CCXT` names the exchange, and behind a colon the kind of its markets: `bybit:swap`; without it `spot`.
`V8_CCXT_OPTIONS` is JSON that ccxt's exchange is opened with, such as `{"httpsProxy": "http://..."}`; it is
never printed. A series is a pair by its letters: BTCUSD-1h is the market BTC/USD.

The rules are those of the source `live`, whose store, paging and checks these are, in a store of its own:
only closed candles by the exchange's time (by this machine's where it has none), what is missing or jumps
is asked for again until two answers agree, one row that cannot be true refuses the whole answer, holes are
named, and a candle that differs when it is read again is kept next to the first. No bar is made of others.

An exchange may say nothing of a span although it has older candles: where a series begins is looked for by
halving the years since 2010. Some have no more than their newest (Kraken 720): then there are as many.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, NoReturn

import numpy as np
import pandas as pd

from v8.base import storage
from v8.base.errors import DataError, ProfileError, listed, message_of, shown
from v8.base.http_client import RetryFailure, RetryPolicy, TransientError
from v8.base.process import report_waiting, with_progress
from v8.base.registry import advice
from v8.base.wording import keep_secret
from v8.data.market.candles import Candles
from v8.data.market.series import Series
from v8.data.market.sources import SOURCES, SourceKind, downloads, rest
from v8.data.market.sources.live import LiveSource
from v8.data.market.sources.vision import NotArchivedError
from v8.data.market.store import CandleStore
from v8.profile.columns import OHLCV, OPEN_TIME, plain_symbol

EXCHANGE_VARIABLE: Final = "V8_CCXT"
OPTIONS_VARIABLE: Final = "V8_CCXT_OPTIONS"
CREDENTIALS: Final = frozenset(
    {
        *("accountId", "apiKey", "login", "password", "privateKey", "secret", "token", "twofa", "uid"),
        "walletAddress",
    }
)
"""Options that ccxt takes for an account. Source: `requiredCredentials` of ccxt's base class."""
FIRST_S: Final = 1_262_304_000
"""2010-01-01: no exchange has older candles."""
USUAL_LIMIT: Final = 100  # candles of one answer, where ccxt does not know how many the exchange gives
PATIENCE: Final = RetryPolicy(num_tries=4, first_s=1.0, most_s=120.0)
_FIX: Final = f"Try again later, or name another exchange with {EXCHANGE_VARIABLE}"


class CcxtApi(rest.KlinesApi):
    """One exchange, asked by ccxt as `rest` asks its own: the same pages, the same doubts."""

    def __init__(self, exchange: Any, kind: str) -> None:
        self.exchange = exchange
        self.kind = kind
        self.errors = import_module("ccxt")
        self.addresses = (downloads.Address(f"https://{exchange.id}"),)
        self.downloader: Any = self  # one request at a time: ccxt keeps the exchange's limits that way
        self._order = [*self.addresses]
        self._asking = threading.Lock()

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Do some work for each item, one after the other."""
        return [work(item) for item in with_progress(items, f"Asking {self.exchange.id}")]

    def time_s(self) -> float:
        """Ask for the exchange's time, seconds since the epoch; this machine's where it has none."""
        if not self.exchange.has.get("fetchTime"):
            return time.time()
        time_ms = self._call("fetch_time")
        if (
            not isinstance(time_ms, int | float)
            or not rest.FIRST_TIME_S <= time_ms / 1_000 < rest.LAST_TIME_S
        ):
            self._refuse(self.exchange.id, "must give its time in milliseconds", shown(time_ms))
        return time_ms / 1_000

    def listing(self, series: Series) -> dict[str, Any]:
        """Return the one market of a series; `DataError` where there is none, several, or no such bar."""
        if not self.exchange.markets:
            self._call("load_markets")
        markets = [market for market in self.exchange.markets.values() if self._is_of_kind(market)]
        matching = [market for market in markets if _symbol_of(market) == series.symbol]
        if len(matching) != 1:
            names = sorted(_symbol_of(market) for market in markets)
            rule = f"is one of the {len(names):,} markets of kind {self.kind} that {self.exchange.id} has"
            got = listed([market["symbol"] for market in matching]) or "none of that name"
            fix = advice(
                series.symbol, names, f"Choose another, or another kind: {EXCHANGE_VARIABLE}=ID:swap"
            )
            self._refuse(series, rule, got, fix)
        timeframes = self.exchange.timeframes or {}
        if series.timeframe not in timeframes:
            lengths = ", ".join(timeframes) or "no length"
            rule = f"{self.exchange.id} has bars of {lengths}, and none is made of others"
            self._refuse(series, rule, series.timeframe, "Choose one of these timeframes")
        return matching[0]

    def _is_of_kind(self, market: Any) -> bool:
        """Return whether a market is of the kind that is asked for, and has all that is read of one."""
        if not isinstance(market, dict) or market.get("type") != self.kind:
            return False
        return all(isinstance(market.get(key), str) for key in ("symbol", "base", "quote"))

    def _page(self, span: rest.CandleSpan, most: int, *, is_newest: bool = False) -> pd.DataFrame:
        market = self.listing(span.series)
        step_s = self._limit(span.series) * span.series.bar_s
        if is_newest:
            rows = self._rows(market, span)[-most:]
        elif most < span.num_bars:
            rows = self._oldest(market, span, step_s)[:most]
        else:
            opens_s = range(span.first_s, span.last_s + 1, step_s)
            lasts_s = [min(span.last_s, at_s + step_s - span.series.bar_s) for at_s in opens_s]
            rows = []
            for first_s, last_s in zip(opens_s, lasts_s, strict=True):
                rows += self._rows(market, rest.CandleSpan(span.series, first_s, last_s), first_s)
        try:
            open_ms = np.array([row[0] for row in rows], np.int64)
            values = np.array([row[1:6] for row in rows], np.float64).reshape(len(rows), len(OHLCV))
        except (TypeError, ValueError) as error:
            self._refuse(span.series, "a candle is a time and five numbers", shown(error))
        rest._require_plausible(open_ms, values, span, f"{span.series} from {self.exchange.id}")
        return pd.DataFrame(values, columns=list(OHLCV)).assign(**{OPEN_TIME: open_ms})

    def _oldest(self, market: dict[str, Any], span: rest.CandleSpan, step_s: int) -> list[Any]:
        """Return the oldest rows of a span, halving the time in which they may begin."""
        low_s = max(span.first_s, FIRST_S)
        high_s = span.last_s
        rows = self._rows(market, span, low_s)
        if rows:
            return rows
        while high_s - low_s >= step_s:
            middle_s = low_s + (high_s - low_s) // 2
            if self._rows(market, span, middle_s):
                high_s = middle_s
            else:
                low_s = middle_s
        near = (self._rows(market, span, at_s) for at_s in range(low_s, high_s + 2 * step_s, step_s))
        return next(filter(None, near), [])

    def _rows(self, market: dict[str, Any], span: rest.CandleSpan, since_s: int | None = None) -> list[Any]:
        """Ask for the rows from a time on, or the newest, and return those of a span."""
        options = {} if since_s is None else {"since": since_s * 1_000}
        limit = self._limit(span.series)
        timeframe = span.series.timeframe
        rows = self._call("fetch_ohlcv", market["symbol"], timeframe, limit=limit, **options)
        try:
            return [row for row in rows if span.first_s * 1_000 <= row[0] <= span.last_s * 1_000]
        except (TypeError, IndexError) as error:
            self._refuse(span.series, "a candle is a time and five numbers", shown(error))

    def _limit(self, series: Series) -> int:
        """Return how many candles one answer holds."""
        symbol = self.listing(series)["symbol"]
        most = self._call("feature_value", symbol, "fetchOHLCV", "limit", USUAL_LIMIT)
        if not isinstance(most, int | float) or not most >= 1:
            return USUAL_LIMIT
        return int(min(most, rest.MOST_ROWS))

    def _call(self, call: str, *arguments: Any, **options: Any) -> Any:
        """Ask ccxt, and again where trouble may pass."""

        def once(left_s: float) -> Any:
            try:
                with self._asking:
                    return getattr(self.exchange, call)(*arguments, **options)
            except self.errors.NetworkError as error:
                raise TransientError(shown(message_of(error), 300)) from None
            except Exception as error:  # noqa: BLE001 - where an answer lacks a key, ccxt raises anything
                self._refuse(self.exchange.id, f"must answer ccxt's {call}", self._text_of(error))

        def refuse(refused: RetryFailure) -> DataError:
            place = f"{self.exchange.id} by ccxt"
            rule = f"must answer ccxt's {call}"
            return DataError(where=place, rule=rule, got=str(refused.trouble), fix=_FIX)

        def print_waiting(trouble: TransientError, pause_s: float) -> None:
            report_waiting(f"{self.exchange.id} does not answer, asked again in {pause_s:.0f} s: {trouble}")

        return PATIENCE.call(once, refuse, before_pause=print_waiting)

    def _text_of(self, error: Exception) -> str:
        """Return the message of an error, with the name of its class where it is none of ccxt's own."""
        text = shown(message_of(error), 300)
        return text if isinstance(error, self.errors.BaseError) else f"{type(error).__name__}: {text}"

    def _refuse(self, subject: object, rule: str, got: str, fix: str = _FIX) -> NoReturn:
        place = f"{subject} from {self.exchange.id}" if isinstance(subject, Series) else f"{subject} by ccxt"
        raise DataError(where=place, rule=rule, got=got, fix=fix) from None


class CcxtSource(LiveSource):
    """Candles of the exchange that the environment names, kept in a store of its own."""

    name = "ccxt"

    def __init__(self) -> None:
        exchange, kind = opened_exchange()
        api = CcxtApi(exchange, kind)
        self.exchange = api.exchange.id
        self.rest = rest.RestSource(api)
        self.archive = NoArchive()  # type: ignore[assignment]  # has what LiveSource calls of an archive
        self.now_s = self.rest.now_s
        folder = (
            f"ccxt-{self.exchange}-{api.kind}-{storage.digest_json(os.environ.get(OPTIONS_VARIABLE))[:8]}"
        )
        self.store = CandleStore(storage.home() / "candles" / folder)

    def require(self, series: Series) -> None:
        """Refuse a series of which the exchange has no candle; see `ChecksSeries`."""
        with self._named():
            self.rest.require(series)

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the exchange; see `CandleSource`."""
        with self._named():
            return replace(super().candles(series, num_bars, end_s), source=self.name)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Let errors of the rules of `live` and `rest` name this exchange and what can be done here."""
        try:
            yield
        except DataError as error:
            place = error.where
            for other in ("from live", "from rest", "from the exchange's API"):
                place = place.replace(other, f"from {self.exchange}")
            fix = _FIX if "V8_REST_URL" in error.fix or "address" in error.fix else error.fix
            raise DataError(where=place, rule=error.rule, got=error.got, fix=fix) from error


def _symbol_of(market: dict[str, Any]) -> str:
    return plain_symbol(f"{market['base']}{market['quote']}")


class NoArchive:
    """No exchange of ccxt has an archive here."""

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Refuse, so that the exchange itself is asked."""
        raise NotArchivedError(where=str(series), rule="has an archive", got="none", fix="Ask the exchange")


def opened_exchange() -> tuple[Any, str]:
    """Open the exchange that the environment names, and say which kind of its markets is meant."""
    try:
        ccxt = import_module("ccxt")
    except ModuleNotFoundError:
        rule = "is read by the package ccxt"
        fix = "Install it: python -m pip install ccxt"
        raise ProfileError(where="param:source ccxt", rule=rule, got="none", fix=fix) from None
    name, _, kind = os.environ.get(EXCHANGE_VARIABLE, "").strip().partition(":")
    if name not in ccxt.exchanges:
        rule = f"names one of the {len(ccxt.exchanges)} exchanges of ccxt {ccxt.__version__}"
        fix = advice(name, ccxt.exchanges, f"Write for example {EXCHANGE_VARIABLE}=kraken")
        got = repr(name) if name else "none"
        raise ProfileError(where=EXCHANGE_VARIABLE, rule=rule, got=got, fix=fix)
    try:
        options = json.loads(os.environ.get(OPTIONS_VARIABLE) or "{}")
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict):
        rule = "is a JSON object of ccxt's options"
        fix = 'Write for example {"timeout": 20000}'
        raise ProfileError(where=OPTIONS_VARIABLE, rule=rule, got="another text", fix=fix)
    _keep_secret(options)
    try:
        exchange = getattr(ccxt, name)({"enableRateLimit": True, **options})
        has_candles = exchange.has.get("fetchOHLCV") is True
    except Exception as error:  # noqa: BLE001 - ccxt looks at no option before it uses it
        rule = f"holds options that ccxt can open {name} with"
        got = f"{type(error).__name__}: {shown(message_of(error), 300)}"
        fix = "Leave out options until it opens"
        raise ProfileError(where=OPTIONS_VARIABLE, rule=rule, got=got, fix=fix) from None
    if not has_candles:
        rule = "names an exchange that gives candles"
        fix = "Choose another one"
        raise ProfileError(where=EXCHANGE_VARIABLE, rule=rule, got=f"{name}, which does not", fix=fix)
    return exchange, kind or "spot"


def _keep_secret(value: Any, key: str = "") -> None:
    """Let no message show the texts of the options; plain words, such as a kind of market, may be shown."""
    if isinstance(value, dict):
        for name, part in value.items():
            _keep_secret(part, name)
    elif isinstance(value, list):
        for part in value:
            _keep_secret(part, key)
    elif isinstance(value, str) and (key in CREDENTIALS or not (value.isalpha() and value.islower())):
        keep_secret(value)


SOURCES.register(
    SourceKind(
        "ccxt",
        f"candles of the exchange that {EXCHANGE_VARIABLE} names, by the package ccxt",
        "https://github.com/ccxt/ccxt",
        CcxtSource,
    )
)
