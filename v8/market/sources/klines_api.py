"""The exchange's public API on one or more hosts: asked as it wants to be asked, its answers read strictly.

The main host does not serve every place, so the hosts of `V8_REST_URL` (comma-separated) are tried in order.
The first that answers is asked first from then on; when none does, the error names each with its reason.

The exchange counts the weight of requests by the minute, tells what was used in a header, answers 429 to
those who exceed it and 418 to those who go on. So nobody here asks a host again before its minute is over
when its weight is nearly used, nor before the time that it names in Retry-After. All waits have a limit; a
host that asks for more than that has refused.
https://developers.binance.com/docs/binance-spot-api-docs/rest-api/limits

A zip of the archive has a published sha256, an answer of the API has nothing: so here one row that cannot be
true refuses the whole answer, where a file may lose a few. An answer is a JSON list of rows of twelve fields:
open time in milliseconds, open, high, low, close and volume as texts of decimal numbers, close time in
milliseconds, and five that are of no use to us. The rows open on the grid of the series, within the span that
was asked for, in ascending order, each once.
https://developers.binance.com/docs/binance-spot-api-docs/rest-api/market-data-endpoints#klinecandlestick-data

A price that jumps is doubted and asked for again: a coin opens where it closed, and 5 % away, and 12 times as
far as prices of that series usually are, is rare. Only another answer decides.

Shapes: N candles, with columns of `OHLCV`.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import urlencode, urlsplit

import numpy as np
import pandas as pd
import requests
from numpy.typing import NDArray

from v8.columns import CLOSE, OHLC, OHLCV, OPEN_TIME
from v8.errors import DataError, ProfileError
from v8.market.candles import MAX_VALUE
from v8.market.series import Series, iso
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
from v8.net import asked_wait_s
from v8.redaction import shown

LEAST_JUMP: Final = 0.05
"""Log distance below which nothing is doubted; in 15 minutes Bitcoin goes so far some times a year."""

NUM_TYPICAL: Final = 12.0  # a jump goes so many times as far as the median candle does
_CLOSE: Final = OHLCV.index(CLOSE)
MOST_ROWS: Final = 1_000  # candles of one answer, set by the exchange
MAX_ANSWER_BYTES: Final = 1 << 20  # a row has about 150 bytes
NUM_FIELDS: Final = 12
_CLOSE_TIME: Final = 6
_DECIMAL: Final = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
FIRST_TIME_S, LAST_TIME_S = 1_500_000_000, 4_102_444_800
"""2017-07-14, when the exchange opened, and the year 2100: its time lies between."""

URL_VARIABLE: Final = "V8_REST_URL"
DEFAULT_URLS: Final = "https://api.binance.com,https://data-api.binance.vision"
"""The exchange's main host, and the one that serves market data only, to everyone."""

NEAR_WEIGHT: Final = 5_400
"""Of the weight of 6,000 that a minute allows, as much is used; the rest is for others behind one router."""

PATIENCE_OF_API: Final = replace(PATIENCE, num_tries=3)
LIMITS_OF_API: Final = TimeLimits(connect_s=5.0, silence_s=10.0, try_s=30.0)
_NUM_READS: Final = 2  # how often a host may answer wrongly before the next is asked
_NUM_AGREEING: Final = 4  # how often what is missing or doubted is asked for until two answers agree
_MOST_TROUBLE: Final = 320  # letters for the reasons of all hosts together; each host shall be named
_MINUTE_S: Final = 60
_TOO_MANY: Final = frozenset({418, 429})
_INVALID_SYMBOL: Final = -1121
_WEIGHT_HEADER: Final = "X-MBX-USED-WEIGHT-1M"
Answer = TypeVar("Answer")
Read = Callable[[bytes, str], Answer]
"""Turns the body of an answer of a host into what it says, or refuses it."""


def distances(values: NDArray[np.float64], reference: Any) -> NDArray[np.float64]:
    """Return how far the farthest price of each candle lies from a price.

    Args:
        values: Columns of `OHLCV`, shape (N, 5), quote currency.
        reference: The price, shape (N,), quote currency; nan where there is none.

    Returns:
        Absolute log distances, shape (N,), unitless; nan where there is no price.
    """
    away: NDArray[np.float64] = np.abs(np.log(values[:, : len(OHLC)] / np.reshape(reference, (-1, 1))))
    return away.max(axis=1)


def jump_of(values: NDArray[np.float64]) -> float:
    """Return from which distance on a price of some candles is doubted, a log distance, unitless.

    >>> jump_of(np.full((3, 5), 100.0))
    0.05
    """
    away = _from_close_before(values)
    return max(LEAST_JUMP, NUM_TYPICAL * float(np.median(away))) if len(away) else LEAST_JUMP


def are_doubted(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which candles jump, or lie before one that does, shape (N,): either may be the wrong one.

    >>> are_doubted(np.full((4, 5), [[1.0], [1.0], [9.0], [9.0]])).tolist()
    [False, True, True, False]
    >>> are_doubted(np.empty((0, 5))).tolist()
    []
    """
    is_jump = _from_close_before(values) > jump_of(values)
    is_doubted = np.zeros(len(values), dtype=np.bool_)
    is_doubted[1:] |= is_jump
    is_doubted[:-1] |= is_jump
    return is_doubted


def _from_close_before(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return distances(values[1:], values[:-1, _CLOSE])


@dataclass(frozen=True)
class Span:
    """Candles of one series that open between two times."""

    series: Series
    first_s: int  # open time of the first, seconds since the epoch, UTC
    last_s: int  # open time of the last, not before it

    @property
    def num_bars(self) -> int:
        """Bars of the span, whether or not there is a candle for each."""
        return (self.last_s - self.first_s) // self.series.bar_s + 1

    def pages(self) -> list[Span]:
        """Part it into spans that one answer holds, newest first."""
        page_s = MOST_ROWS * self.series.bar_s
        stops_s = range(self.last_s, self.first_s - 1, -page_s)
        first_s = [max(self.first_s, stop_s - page_s + self.series.bar_s) for stop_s in stops_s]
        return [Span(self.series, *each) for each in zip(first_s, stops_s, strict=True)]

    def doubtful(self, rows: pd.DataFrame) -> Span | None:
        """Return the shortest span that holds every bar without a row and every doubted one; None without."""
        grid = np.arange(self.first_s, self.last_s + 1, self.series.bar_s)
        open_time_s = rows[OPEN_TIME].to_numpy(np.int64) // 1_000
        absent = np.setdiff1d(grid, open_time_s, assume_unique=True)
        asked = np.union1d(absent, open_time_s[are_doubted(rows[list(OHLCV)].to_numpy(np.float64))])
        return Span(self.series, int(asked[0]), int(asked[-1])) if len(asked) else None


def read_klines(content: bytes, where: str, span: Span, most: int) -> pd.DataFrame:
    """Read the rows of an answer.

    Returns:
        Columns `open_time`, in milliseconds, int64, and `OHLCV`, float64, ascending; no row at all when the
        answer is an empty list.
    """
    rows = read_json(content, where)
    if not isinstance(rows, list):
        _refuse(where, "candles come as a list of rows", shown(rows))
    if len(rows) > most:
        _refuse(where, f"at most {most} rows were asked for", str(len(rows)))
    for row in rows:
        _require_row(row, span.series.bar_s, where)
    open_ms = np.array([row[0] for row in rows], dtype=np.int64)
    values = np.array([list(map(float, row[1:_CLOSE_TIME])) for row in rows]).reshape(len(rows), len(OHLCV))
    _require_times(open_ms, span, where)
    _require_plausible(open_ms, values, where)
    return pd.DataFrame(values, columns=list(OHLCV)).assign(**{OPEN_TIME: open_ms})


def read_time(content: bytes, where: str) -> float:
    """Read the exchange's time, seconds since the epoch."""
    answer = read_json(content, where)
    time_ms: Any = answer.get("serverTime") if isinstance(answer, dict) else None
    is_whole = isinstance(time_ms, int) and not isinstance(time_ms, bool)
    if not (is_whole and FIRST_TIME_S <= time_ms / 1_000 < LAST_TIME_S):
        _refuse(where, "must tell its time in milliseconds as serverTime", shown(answer))
    return float(time_ms) / 1_000


def read_code(content: bytes) -> tuple[int, str]:
    """Read code and message of a refusal; 0 and nothing where it has none."""
    try:
        answer = read_json(content, "")
    except DataError:
        return 0, ""
    number, message = (answer.get(key) for key in ("code", "msg")) if isinstance(answer, dict) else (0, "")
    return (number, shown(message)) if isinstance(number, int) else (0, "")


def read_json(content: bytes, where: str) -> Any:
    """Read JSON without the numbers that only Python knows (NaN, Infinity)."""
    try:
        return json.loads(content, parse_constant=_no_number)
    except (ValueError, RecursionError):  # text that is no UTF-8, and integers of 5,000 digits, too
        begin = shown(content[:200].decode("utf-8", "replace"), 60)
        _refuse(where, "must answer in JSON", repr(begin) if content else "an empty answer")


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _require_row(row: Any, bar_s: int, where: str) -> None:
    """Refuse what is no row of twelve fields with times of this timeframe and texts of numbers."""
    is_row = isinstance(row, list) and len(row) == NUM_FIELDS
    if not is_row or not all(type(row[place]) is int for place in (0, _CLOSE_TIME)):
        _refuse(where, f"a candle is a row of {NUM_FIELDS} fields with its times in milliseconds", shown(row))
    if not all(isinstance(text, str) and _DECIMAL.fullmatch(text) for text in row[1:_CLOSE_TIME]):
        _refuse(where, "prices and volume are texts of decimal numbers", shown(row[:_CLOSE_TIME]))
    if not 0 <= row[0] < LAST_TIME_S * 1_000 or row[_CLOSE_TIME] != row[0] + bar_s * 1_000 - 1:
        times = f"{shown(row[0], 40)} to {shown(row[_CLOSE_TIME], 40)}"
        _refuse(where, f"a candle closes {bar_s} s after it opens, less a millisecond", times)


def _require_times(open_ms: np.ndarray, span: Span, where: str) -> None:
    first_ms, last_ms, bar_ms = span.first_s * 1_000, span.last_s * 1_000, span.series.bar_s * 1_000
    is_outside = (open_ms < first_ms) | (open_ms > last_ms)
    if is_outside.any():
        asked = f"candles of {iso(span.first_s)} to {iso(span.last_s)} were asked for"
        _refuse(where, asked, f"one of {_written(open_ms, is_outside)}")
    is_off_grid = (open_ms - first_ms) % bar_ms != 0
    if is_off_grid.any():
        _refuse(where, f"candles open every {bar_ms // 1_000} s", f"one at {_written(open_ms, is_off_grid)}")
    is_late = np.diff(open_ms, prepend=first_ms - 1) <= 0
    if is_late.any():
        rule = "candles come in the order of time, each once"
        _refuse(where, rule, f"{_written(open_ms, is_late)} after one that is not older")


def _require_plausible(open_ms: np.ndarray, values: np.ndarray, where: str) -> None:
    """Refuse rows whose numbers cannot be true; the rules are those of `v8.market.candles`."""
    opened, high, low, close, volume = values.T
    is_wrong = ~((values <= MAX_VALUE).all(axis=1) & (np.minimum(low, high) >= 1 / MAX_VALUE) & (volume >= 0))
    is_wrong |= (low > np.minimum(opened, close)) | (high < np.maximum(opened, close))
    if is_wrong.any():
        row = values[np.argmax(is_wrong)].tolist()
        rule = f"prices lie between low and high, above zero, and nothing is beyond {MAX_VALUE:g}"
        _refuse(where, rule, f"{shown(row)} at {_written(open_ms, is_wrong)}")


def _written(open_ms: np.ndarray, is_chosen: np.ndarray) -> str:
    return iso(int(open_ms[np.argmax(is_chosen)]) / 1_000)


def _refuse(where: str, rule: str, got: str) -> NoReturn:
    raise DataError(where=where, rule=rule, got=got, fix="Try again later, or ask another address of the API")


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
            rule, got = "must ask for a symbol that the exchange lists", f"status 400, {number} {message}"
            raise RefusedRequestError(where=url, rule=rule, got=got, fix="Check the symbol")
        raise _host_refuses(url, f"status 400, {number} {message}" if number else "status 400")


class KlinesApi:
    """The klines and the time of the exchange, from the first host that gives them.

    Args:
        addresses: Hosts in the order in which they are tried, at least one; those of `V8_REST_URL` when None.
        downloader: What fetches; it must keep the `ApiEtiquette`.
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
        """Ask for the exchange's time, seconds since the epoch."""
        return self._told(lambda: self._ask("time", {}, "the time", read_time))

    def edge_open_s(self, series: Series, last_s: int, *, is_newest: bool = False) -> int | None:
        """Ask when the oldest, or newest, candle up to one opens, seconds since the epoch; None without."""
        whole = Span(series, last_s % series.bar_s, last_s)
        rows = self._told(lambda: self._page(whole, 1, is_newest=is_newest))
        return None if rows.empty else int(rows[OPEN_TIME].iloc[0]) // 1_000

    def klines(self, span: Span) -> pd.DataFrame:
        """Fetch at most 1,000 candles within the calling thread; what is missing or jumps is asked for again.

        Returns:
            Columns `open_time` (milliseconds) and `OHLCV`, ascending; fewer rows than bars where the exchange
            says twice that it has none, and a price far from its neighbours' where it says that twice.
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
        where, got = f"{span.series} from {self._order[0].host}", f"{_NUM_AGREEING + 1} answers that differ"
        fix = f"Try again later, or ask another address with {URL_VARIABLE}"
        raise DataError(where=where, rule="the same candles must be answered twice alike", got=got, fix=fix)

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
        return self._ask("klines", query, str(span.series), partial(read_klines, span=span, most=most))

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
            with self._changing:
                self._order.sort(key=lambda each: each != address)
            return found
        raise DataError(
            where=f"{name} from the exchange's API",
            rule=f"must be answered by one of the hosts of {URL_VARIABLE}",
            got="; ".join(shown(trouble, _MOST_TROUBLE // len(troubles)) for trouble in troubles),
            fix=f"Check the connection, set {URL_VARIABLE} to other hosts, or take what the archive has with "
            "param:source vision",
        )

    def _answer(self, address: Address, words: str, name: str, read: Read[Answer]) -> Answer:
        """Ask one host, and again where its answer is wrong."""
        for _ in range(_NUM_READS):
            url = address.url + words
            content = self.downloader.fetch(url, max_bytes=MAX_ANSWER_BYTES, auth=address.auth, name=name)
            try:
                return read(content or b"", address.host)
            except DataError as error:
                wrong = error
        told = f"{wrong.got}, where {wrong.rule}"
        raise DataError(where=wrong.where, rule=wrong.rule, got=told, fix=wrong.fix) from wrong


def read_addresses(given: str | None = None) -> tuple[Address, ...]:
    """Read addresses of the API, comma-separated: those given, of `V8_REST_URL`, or the exchange's own."""
    texts = (given or os.environ.get(URL_VARIABLE) or DEFAULT_URLS).split(",")
    kind = "the exchange's API, or of several, comma-separated"
    found = tuple(
        read_address(text.strip(), variable=URL_VARIABLE, kind=kind, default=DEFAULT_URLS) for text in texts
    )
    if len({address.url for address in found}) < len(found):
        where, got = URL_VARIABLE, ", ".join(address.url for address in found)
        raise ProfileError(where=where, rule="names each address once", got=got, fix="Remove the repetition")
    return found


def _second_of_minute(date: str) -> int:
    """Read the second of an answer's date; 0, the begin of a minute, where it tells none."""
    try:
        return parsedate_to_datetime(date).second
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0


def _host_refuses(url: str, got: str) -> DataError:
    fix = f"Check that it may be reached from here, or set {URL_VARIABLE} to other hosts"
    return DataError(where=url, rule="the API must answer 200", got=got, fix=fix)
