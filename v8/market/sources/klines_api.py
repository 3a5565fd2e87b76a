"""The exchange's public API on one or more hosts, asked as it wants to be asked.

The main host does not serve every place, so the hosts of `V8_REST_URL` (comma-separated) are tried in order.
The first that answers is asked first from then on; when none does, the error names each with its reason.

The exchange counts the weight of requests by the minute, tells what was used in a header, answers 429 to
those who exceed it and 418 to those who go on. So nobody here asks a host again before its minute is over
when its weight is nearly used, nor before the time that it names in Retry-After. All waits have a limit; a
host that asks for more than that has refused.

https://developers.binance.com/docs/binance-spot-api-docs/rest-api/limits
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final, TypeVar
from urllib.parse import urlencode, urlsplit

import pandas as pd
import requests

from v8.columns import OPEN_TIME
from v8.errors import DataError, ProfileError
from v8.market.sources.downloads import (
    LONGEST_RETRY_AFTER_S,
    PATIENCE,
    Address,
    Downloader,
    Etiquette,
    TimeLimits,
    read_address,
    trouble_of,
)
from v8.market.sources.klines import (
    MAX_ANSWER_BYTES,
    Span,
    read_code,
    read_klines,
    read_time,
)
from v8.net import asked_wait_s
from v8.redaction import shown

URL_VARIABLE: Final = "V8_REST_URL"
DEFAULT_URLS: Final = "https://api.binance.com,https://data-api.binance.vision"
"""The exchange's main host, and the one that serves market data only, to everyone."""

NEAR_WEIGHT: Final = 5_400
"""Of the weight of 6,000 that a minute allows, as much is used; the rest is for others behind one router."""

PATIENCE_OF_API: Final = replace(PATIENCE, num_tries=3)
LIMITS_OF_API: Final = TimeLimits(connect_s=5.0, silence_s=10.0, try_s=30.0)

_NUM_READS: Final = 2
"""How often a host may answer wrongly before the next is asked."""

_NUM_AGREEING: Final = 4
"""How often what is missing or doubted is asked for until two answers agree."""

_MOST_TROUBLE: Final = 320
"""Letters for the reasons of all hosts together; each host shall be named."""

_MINUTE_S: Final = 60
_TOO_MANY: Final = frozenset({418, 429})
_INVALID_SYMBOL: Final = -1121
_WEIGHT_HEADER: Final = "X-MBX-USED-WEIGHT-1M"

Answer = TypeVar("Answer")
Read = Callable[[bytes, str], Answer]
"""Turns the body of an answer of a host into what it says, or refuses it."""


class RefusedRequestError(DataError):
    """A request that the exchange understood and refuses: another host would do the same."""


class ApiEtiquette(Etiquette):
    """How the exchange is asked: not beyond its weights, and not before it allows.

    Args:
        sleep: Waits for a number of seconds.
    """

    kind = "API"

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(URL_VARIABLE)
        self._sleep = sleep
        self._opens_at: dict[str, float] = {}
        """Monotonic time in seconds before which a host must not be asked."""

    def wait(self, url: str) -> None:
        """Wait until the host may be asked again, whichever thread it has told so."""
        pause_s = self._opens_at.get(urlsplit(url).netloc, 0.0) - time.monotonic()
        if pause_s > 0:
            self._sleep(pause_s)

    def is_there(self, url: str, answer: requests.Response) -> bool:
        """See `Etiquette`; a refusal's reason is read, and used weight is noted."""
        self._note_weight(url, answer)
        if answer.status_code in _TOO_MANY:
            self._note_pause(url, answer)
            raise trouble_of(answer)
        if answer.status_code == 400:
            self._refuse(url, answer)
        if answer.status_code >= 500:
            return super().is_there(url, answer)
        if answer.status_code != 200:
            raise _host_refuses(url, f"status {answer.status_code} {answer.reason}")
        return True

    def _note_weight(self, url: str, answer: requests.Response) -> None:
        used = answer.headers.get(_WEIGHT_HEADER, "")
        if used.isascii() and used.isdigit() and len(used) < 10 and int(used) >= NEAR_WEIGHT:
            self._close(url, _MINUTE_S - _second_of_minute(answer.headers.get("Date", "")))

    def _note_pause(self, url: str, answer: requests.Response) -> None:
        asked_s = asked_wait_s(answer.headers.get("Retry-After"))
        if asked_s is not None and asked_s > LONGEST_RETRY_AFTER_S:
            most = f"{LONGEST_RETRY_AFTER_S:.0f} s"
            raise _host_refuses(url, f"status {answer.status_code}, not to be asked again within {most}")
        self._close(url, asked_s or 0.0)

    def _close(self, url: str, pause_s: float) -> None:
        host = urlsplit(url).netloc
        self._opens_at[host] = max(self._opens_at.get(host, 0.0), time.monotonic() + pause_s)

    def _refuse(self, url: str, answer: requests.Response) -> None:
        number, message = read_code(self.content(url, answer, MAX_ANSWER_BYTES))
        if number == _INVALID_SYMBOL:
            raise RefusedRequestError(
                where=url,
                rule="must ask for a symbol that the exchange lists",
                got=f"status 400, {number} {message}",
                fix="Check the symbol",
            )
        raise _host_refuses(url, f"status 400, {number} {message}" if number else "status 400")


class KlinesApi:
    """The klines and the time of the exchange, from the first host that gives them.

    Args:
        addresses: Hosts in the order in which they are tried, at least one; those of `V8_REST_URL` when None.
        downloader: What fetches; it must keep the `ApiEtiquette`.

    Raises:
        ProfileError: If `V8_REST_URL` holds something else than addresses.
    """

    def __init__(
        self, addresses: Sequence[Address] | None = None, downloader: Downloader | None = None
    ) -> None:
        self.addresses = tuple(read_addresses() if addresses is None else addresses)
        self.downloader = downloader or Downloader(
            URL_VARIABLE, etiquette=ApiEtiquette(), patience=PATIENCE_OF_API, limits=LIMITS_OF_API
        )
        self._order = list(self.addresses)
        self._changing = threading.Lock()

    def time_s(self) -> float:
        """Ask for the exchange's time, seconds since the epoch.

        Raises:
            DataError: If no host tells.
        """
        return self._told(lambda: self._ask("time", {}, "the time", read_time))

    def first_open_s(self, span: Span) -> int | None:
        """Ask when the oldest candle opens that the exchange has up to the end of a span; None without any.

        Raises:
            DataError: If no host tells.
        """
        series, bar_s = span.series, span.series.bar_s
        rows = self._told(lambda: self._page(Span(series, span.first_s % bar_s, span.last_s), 1))
        return None if rows.empty else int(rows[OPEN_TIME].iloc[0]) // 1_000

    def newest_open_s(self, span: Span) -> int | None:
        """Ask when the newest candle opens that the exchange has up to the end of a span; None without any.

        Raises:
            DataError: If no host tells.
        """
        whole = Span(span.series, span.first_s % span.series.bar_s, span.last_s)
        rows = self._told(lambda: self._page(whole, 1, is_newest=True))
        return None if rows.empty else int(rows[OPEN_TIME].iloc[0]) // 1_000

    def klines(self, span: Span) -> pd.DataFrame:
        """Fetch at most 1,000 candles within the calling thread; what is missing or jumps is asked for again.

        Returns:
            Columns `open_time` (milliseconds) and `OHLCV`, ascending; fewer rows than bars where the exchange
            says twice that it has none, and a price far from its neighbours' where it says that twice.

        Raises:
            DataError: If no host gives them, or they contradict each other.
        """
        rows = self._page(span, span.num_bars)
        for _ in range(_NUM_AGREEING):
            asked = span.doubtful(rows)
            if asked is None:
                return rows
            again = self._page(asked, asked.num_bars)
            known = rows[OPEN_TIME].between(asked.first_s * 1_000, asked.last_s * 1_000)
            if again.equals(rows[known].reset_index(drop=True)):
                return rows
            rows = pd.concat([rows[~known], again]).sort_values(OPEN_TIME, ignore_index=True)
        raise DataError(
            where=f"{span.series} from {self._order[0].host}",
            rule="the same candles must be answered twice alike",
            got=f"{_NUM_AGREEING + 1} answers that differ",
            fix=f"Try again later, or ask another address with {URL_VARIABLE}",
        )

    def _told(self, work: Callable[[], Answer]) -> Answer:
        """Do one piece of work in the pool, so that whoever waits for it is told."""
        return self.downloader.map(lambda _: work(), [None])[0]

    def _page(self, span: Span, most: int, *, is_newest: bool = False) -> pd.DataFrame:
        """Ask for the oldest candles of a span, or for the newest."""
        query = {
            "symbol": span.series.symbol,
            "interval": span.series.timeframe,
            "startTime": span.first_s * 1_000,
            "endTime": span.last_s * 1_000,
            "limit": most,
        }
        if is_newest:
            del query["startTime"]
        read = partial(_read_page, span, most)
        return self._ask("klines", query, str(span.series), read)

    def _ask(self, path: str, query: dict[str, object], name: str, read: Read[Answer]) -> Answer:
        words = f"/api/v3/{path}?{urlencode(query)}" if query else f"/api/v3/{path}"
        troubles = []
        for address in list(self._order):
            try:
                found = self._answer(address, words, name, read)
            except RefusedRequestError:
                raise
            except DataError as error:
                troubles.append(f"{address.host}: {error.got}")
                continue
            self._prefer(address)
            return found
        raise self._out_of_reach(name, troubles)

    def _answer(
        self,
        address: Address,
        words: str,
        name: str,
        read: Read[Answer],
        num_reads: int = _NUM_READS,
    ) -> Answer:
        """Ask one host, and again where its answer is wrong."""
        url = address.url + words
        content = self.downloader.fetch(url, max_bytes=MAX_ANSWER_BYTES, auth=address.auth, name=name)
        try:
            return read(content or b"", address.host)
        except DataError as error:
            if num_reads > 1:
                return self._answer(address, words, name, read, num_reads - 1)
            told = f"{error.got}, where {error.rule}"
            raise DataError(where=error.where, rule=error.rule, got=told, fix=error.fix) from error

    def _prefer(self, address: Address) -> None:
        with self._changing:
            self._order.sort(key=lambda each: each != address)

    def _out_of_reach(self, name: str, troubles: Sequence[str]) -> DataError:
        return DataError(
            where=f"{name} from the exchange's API",
            rule=f"must be answered by one of the hosts of {URL_VARIABLE}",
            got="; ".join(shown(trouble, _MOST_TROUBLE // len(troubles)) for trouble in troubles),
            fix=f"Check the connection, set {URL_VARIABLE} to other hosts, or take what the archive has with "
            "--source vision",
        )


def read_addresses(given: str | None = None) -> tuple[Address, ...]:
    """Read base addresses of the API, comma-separated: those given, of `V8_REST_URL`, or the exchange's own.

    Raises:
        ProfileError: If one is no address, or given twice.
    """
    texts = (given or os.environ.get(URL_VARIABLE) or DEFAULT_URLS).split(",")
    kind = "the exchange's API, or of several, comma-separated"
    found = tuple(
        read_address(text.strip(), variable=URL_VARIABLE, kind=kind, default=DEFAULT_URLS) for text in texts
    )
    if len({address.url for address in found}) < len(found):
        raise ProfileError(
            where=URL_VARIABLE,
            rule="names each address once",
            got=", ".join(address.url for address in found),
            fix="Remove the repetition",
        )
    return found


def _read_page(span: Span, most: int, content: bytes, where: str) -> pd.DataFrame:
    return read_klines(content, span, most, where)


def _second_of_minute(date: str) -> int:
    """Read the second of an answer's date; 0, the begin of a minute, where it tells none."""
    try:
        return parsedate_to_datetime(date).second
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0


def _host_refuses(url: str, got: str) -> DataError:
    return DataError(
        where=url,
        rule="the API must answer 200",
        got=got,
        fix=f"Check that it may be reached from here, or set {URL_VARIABLE} to other hosts",
    )
