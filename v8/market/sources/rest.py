"""The source `rest`: the newest closed candles from the exchange's public API, on one or more hosts.

The main host does not serve every place, so the hosts of `V8_REST_URL` (comma-separated) are tried in order.
The first that answers is asked first from then on; when none does, the error names each with its reason.

The exchange counts the weight of requests by the minute, tells what was used in a header, answers 429 to
those who exceed it and 418 to those who go on. So nobody here asks a host again before its minute is over
when its weight is nearly used, nor before the time that it names in Retry-After; one that asks for more than
two minutes has refused. https://developers.binance.com/docs/binance-spot-api-docs/rest-api/limits

A zip of the archive has a published sha256, an answer of the API has nothing: so here one row that cannot be
true refuses the whole answer, where a file may lose a few. An answer is a JSON list of rows of twelve fields:
open time in milliseconds, open, high, low, close and volume as texts of decimal numbers, close time in
milliseconds, and five that are of no use to us. The rows open on the grid of the series, within the span that
was asked for, in ascending order, each once. A price that jumps is doubted and asked for again; only another
answer decides.
https://developers.binance.com/docs/binance-spot-api-docs/rest-api/market-data-endpoints#klinecandlestick-data

What is closed is decided by the exchange's own time, which is asked for once and then counted by this
machine's monotonic clock. But a proxy may answer with an old time: where the two clocks are more than
`MOST_APART_S` apart, the newest candle of the exchange must not contradict its time, or nothing is served.
"""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial
from math import inf
from typing import Any, ClassVar, Final, NoReturn, TypeVar
from urllib.parse import urlencode, urlsplit

import numpy as np
import pandas as pd
import requests

from v8.columns import OHLCV, OPEN_TIME
from v8.errors import DataError, ProfileError, UnknownSeriesError, shown
from v8.market.candles import MAX_VALUE, Candles, require_num_bars
from v8.market.checks import check_candles
from v8.market.series import DAY_S, Series, iso
from v8.market.sources import downloads
from v8.market.sources.source import require_listed
from v8.market.store import are_doubted

MOST_AGE_S: Final = 600.0  # then it is asked again; a clock of quartz errs by less than 0.1 s until then
REFUSED_S: Final = 30.0  # one that did not tell is not asked again so soon, by forty series one by one
MOST_DRIFT_S: Final = 2.0  # two clocks of a machine that slept, or was set, disagree by more than this
MOST_APART_S: Final = 60.0  # of the exchange's time and this machine's; beyond it a candle is asked
_FAR_S: Final = 20 * 365 * DAY_S  # both clocks may be behind: so far on the newest candle is looked for

MOST_ROWS: Final = 1_000  # candles of one answer, set by the exchange
MAX_ANSWER_BYTES: Final = 1 << 20  # a row has about 150 bytes
NUM_FIELDS: Final = 12
_CLOSE_TIME: Final = 6
_DECIMAL: Final = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
FIRST_TIME_S = 1_500_000_000
LAST_TIME_S = 4_102_444_800
"""2017-07-14, when the exchange opened, and the year 2100: its time lies between."""

URL_VARIABLE: Final = "V8_REST_URL"
DEFAULT_URLS: Final = "https://api.binance.com,https://data-api.binance.vision"
"""The exchange's main host, and the one that serves market data only, to everyone."""

NEAR_WEIGHT: Final = 5_400  # of the 6,000 that a minute allows; the rest is for others behind one router
API_RETRY_POLICY: Final = replace(downloads.PATIENCE, num_tries=3)
LIMITS_OF_API: Final = downloads.TimeLimits(connect_s=5.0, silence_s=10.0, try_s=30.0)
_NUM_READS: Final = 2  # how often a host may answer wrongly before the next is asked
_NUM_AGREEING: Final = 4  # how often what is missing or doubted is asked for until two answers agree
_MOST_TROUBLE: Final = 320  # letters for the reasons of all hosts together; each host shall be named
_MINUTE_S: Final = 60
_TOO_MANY: Final = frozenset({418, 429})
_INVALID_SYMBOL: Final = -1121
_WEIGHT_HEADER: Final = "X-MBX-USED-WEIGHT-1M"
Answer = TypeVar("Answer")
Read = Callable[[bytes, str], Answer]  # what the body of an answer of a host says, or its refusal


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

    def pages(self) -> "list[Span]":
        """Part it into spans that one answer holds, newest first."""
        page_s = MOST_ROWS * self.series.bar_s
        series = self.series
        stops_s = range(self.last_s, self.first_s - 1, -page_s)
        return [Span(series, max(self.first_s, stop_s - page_s + series.bar_s), stop_s) for stop_s in stops_s]

    def doubtful(self, rows: pd.DataFrame) -> "Span | None":
        """Return the shortest span that holds every bar without a row and every doubted one; None without."""
        grid = np.arange(self.first_s, self.last_s + 1, self.series.bar_s)
        open_time_s = rows[OPEN_TIME].to_numpy(np.int64) // 1_000
        absent = np.setdiff1d(grid, open_time_s, assume_unique=True)
        asked = np.union1d(absent, open_time_s[are_doubted(rows[list(OHLCV)].to_numpy(np.float64))])
        return Span(self.series, int(asked[0]), int(asked[-1])) if len(asked) else None


class RestSource:
    """Candles from the exchange's API, by default that of `V8_REST_URL`, whose clock says what is closed."""

    name: ClassVar = "rest"
    is_publishable: ClassVar = True

    def __init__(self, api: "KlinesApi | None" = None, clock: "ExchangeClock | None" = None) -> None:
        self.api = api or KlinesApi()
        self.clock = clock or ExchangeClock(self.api.time_s)
        self.now_s = self.clock.now_s
        self._confirmed_ahead_s: float | None = None

    def confirmed_now_s(self, series: Series) -> int:
        """Return the exchange's time, which its newest candle does not contradict.

        The candle is asked for once for each answer of the exchange's clock, and only where this machine's
        differs: one that opens later proves the answer old. One that is over proves nothing by itself, for
        the symbol may no longer be traded, but against a time that this machine's has not reached either.
        """
        now_s = self.now_s()
        ahead_s = self.clock.ahead_s
        if abs(ahead_s) <= MOST_APART_S or ahead_s == self._confirmed_ahead_s:
            return now_s
        machine_s = int(now_s + ahead_s)
        latest_s = series.last_closed_s(max(now_s, machine_s) + _FAR_S)
        newest_s = self.api.edge_open_s(series, latest_s, is_newest=True)
        if newest_s is not None:
            is_behind = now_s + MOST_APART_S < newest_s
            is_ahead = now_s - MOST_APART_S > newest_s + series.bar_s and machine_s < now_s
            if is_behind or is_ahead:
                near = f"within {MOST_APART_S:.0f} s of this machine's"
                rule = f"the exchange's time is {near}, or its newest candle bears it out"
                told = f"{iso(now_s)} from the exchange, {iso(machine_s)} here"
                got = f"{told}, and a newest candle that opens at {iso(newest_s)}"
                fix = f"Name an address in {URL_VARIABLE} that no proxy answers, or set this machine's clock"
                raise DataError(where=f"{series} from the exchange's API", rule=rule, got=got, fix=fix)
        self._confirmed_ahead_s = ahead_s
        return now_s

    def require(self, series: Series) -> None:
        """Refuse a series of which the exchange has no candle; see `ChecksSeries`."""
        require_listed(series, self.name)
        self._begin_s(series, series.last_closed_s(self.now_s()))

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the exchange; see `CandleSource`."""
        require_num_bars(num_bars, series)
        require_listed(series, self.name)
        now_s = self.confirmed_now_s(series)
        newest_s = series.last_closed_s(now_s)
        last_s = series.last_wanted_s(now_s, end_s)
        found = self._collected(series, num_bars, last_s, now_s).newest(num_bars, last_s)
        return found.noting(num_newer=(newest_s - last_s) // series.bar_s)

    def _collected(self, series: Series, num_bars: int, last_s: int, now_s: int) -> Candles:
        """Fetch pages, newest first, until they hold enough candles or there are no more."""
        begin_s = self._begin_s(series, last_s) if num_bars > MOST_ROWS else None
        tables: list[pd.DataFrame] = []
        stop_s = last_s
        num_missing = num_bars
        while True:
            first_s = max(stop_s - (num_missing - 1) * series.bar_s, begin_s or 0)
            spans = Span(series, first_s, stop_s).pages()
            tables += self.api.downloader.map(self.api.klines, spans)
            frame = pd.concat(reversed(tables), ignore_index=True)
            begin_s = self._begin_s(series, last_s) if begin_s is None and len(frame) < num_bars else begin_s
            stop_s = spans[-1].first_s - series.bar_s
            is_all = begin_s is None or stop_s < begin_s
            if len(frame) or is_all:
                found = check_candles(frame, series, source=self.name, now_s=now_s)
                num_missing = num_bars - len(found)
                if num_missing <= 0 or is_all or found.report.relisted_at:
                    return found

    def _begin_s(self, series: Series, last_s: int) -> int:
        begin_s = self.api.edge_open_s(series, last_s)
        if begin_s is None:
            where = f"{series} from {self.name}"
            rule = f"needs a candle that opens at or before {iso(last_s)}"
            fix = "Check the symbol and the timeframe, or ask for a later time"
            raise UnknownSeriesError(where=where, rule=rule, got="none that the exchange knows", fix=fix)
        return begin_s


class ExchangeClock:
    """Keeps the exchange's time, never ahead of it: what it said, and what has passed since it was heard.

    It is asked again after `most_age_s`, each time after 0. `ask` and the machine's `wall` tell seconds since
    the epoch, `monotonic` those that pass.
    """

    def __init__(
        self,
        ask: Callable[[], float],
        *,
        most_age_s: float = MOST_AGE_S,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ask = ask
        self._most_age_s = most_age_s
        self._monotonic = monotonic
        self._wall = wall
        self._told_s = self._wall_s = 0.0
        self._heard_s = -inf
        self._refusal: DataError | None = None
        self._refused_s = 0.0
        self._asking = threading.Lock()

    def now_s(self) -> int:
        """Return the exchange's time, whole seconds since the epoch."""
        with self._asking:
            age_s = self._monotonic() - self._heard_s
            passed_s = self._wall() - self._wall_s
            if age_s >= self._most_age_s or abs(passed_s - age_s) > MOST_DRIFT_S:
                self._told_s = self._asked()
                self._heard_s, self._wall_s = self._monotonic(), self._wall()
            return int(self._told_s + self._monotonic() - self._heard_s)

    @property
    def ahead_s(self) -> float:
        """Seconds by which this machine's clock was ahead when the exchange was asked; 0 before."""
        return self._wall_s - self._told_s

    def _asked(self) -> float:
        """Ask, unless that was refused a moment ago: then the reason is the same."""
        if self._refusal and self._monotonic() - self._refused_s < min(REFUSED_S, self._most_age_s):
            raise copy(self._refusal)
        try:
            return self._ask()
        except DataError as error:
            self._refusal, self._refused_s = copy(error), self._monotonic()
            raise


class KlinesApi:
    """The klines and the time of the exchange, from the first host in order that gives them.

    The hosts are those of `V8_REST_URL` when None; what fetches must keep the `ApiEtiquette`.
    """

    def __init__(
        self,
        addresses: Sequence[downloads.Address] | None = None,
        downloader: downloads.Downloader | None = None,
    ) -> None:
        self.addresses = tuple(read_addresses() if addresses is None else addresses)
        self.downloader = downloader or downloads.Downloader(
            URL_VARIABLE, etiquette=ApiEtiquette(), patience=API_RETRY_POLICY, limits=LIMITS_OF_API
        )
        self._order = list(self.addresses)
        self._changing = threading.Lock()

    def time_s(self) -> float:
        """Ask for the exchange's time, seconds since the epoch, in the pool: whoever waits for it is told."""
        return self.downloader.map(lambda path: self._ask(path, "the time", read_time), ["time"])[0]

    def edge_open_s(self, series: Series, last_s: int, *, is_newest: bool = False) -> int | None:
        """Ask when the oldest, or newest, candle up to one opens, seconds since the epoch; None without."""
        whole = Span(series, last_s % series.bar_s, last_s)
        (rows,) = self.downloader.map(lambda span: self._page(span, 1, is_newest=is_newest), [whole])
        return None if rows.empty else int(rows[OPEN_TIME].iloc[0]) // 1_000

    def klines(self, span: Span) -> pd.DataFrame:
        """Fetch at most 1,000 candles within the calling thread; what is missing or jumps is asked for again.

        Columns are `open_time` (milliseconds) and `OHLCV`, ascending; fewer rows than bars where the exchange
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
        where = f"{span.series} from {self._order[0].host}"
        got = f"{_NUM_AGREEING + 1} answers that differ"
        fix = f"Try again later, or ask another address with {URL_VARIABLE}"
        raise DataError(where=where, rule="the same candles must be answered twice alike", got=got, fix=fix)

    def _page(self, span: Span, most: int, *, is_newest: bool = False) -> pd.DataFrame:
        """Ask for the oldest candles of a span, or for the newest."""
        series = span.series
        first = {} if is_newest else {"startTime": span.first_s * 1_000}
        until = {"endTime": span.last_s * 1_000, "limit": most}
        query = urlencode({"symbol": series.symbol, "interval": series.timeframe, **first, **until})
        return self._ask(f"klines?{query}", str(series), partial(read_klines, span=span, most=most))

    def _ask(self, query: str, name: str, read: Read[Answer]) -> Answer:
        troubles = []
        for address in list(self._order):
            try:
                found = self._answer(address, query, name, read)
            except RefusedRequestError:
                raise
            except DataError as error:
                troubles.append(f"{address.host}: {error.got}")
                continue
            with self._changing:
                self._order.sort(key=lambda each: each != address)
            return found
        rule = f"must be answered by one of the hosts of {URL_VARIABLE}"
        got = "; ".join(shown(trouble, _MOST_TROUBLE // len(troubles)) for trouble in troubles)
        instead = f"set {URL_VARIABLE} to other hosts, or take what the archive has with param:source vision"
        fix = f"Check the connection, {instead}"
        raise DataError(where=f"{name} from the exchange's API", rule=rule, got=got, fix=fix)

    def _answer(self, address: downloads.Address, query: str, name: str, read: Read[Answer]) -> Answer:
        """Ask one host, and again where its answer is wrong."""
        for _ in range(_NUM_READS):
            url = f"{address.url}/api/v3/{query}"
            content = self.downloader.fetch(url, max_bytes=MAX_ANSWER_BYTES, auth=address.auth, name=name)
            try:
                return read(content or b"", address.host)
            except DataError as error:
                wrong = error
        told = f"{wrong.got}, where {wrong.rule}"
        raise DataError(where=wrong.where, rule=wrong.rule, got=told, fix=wrong.fix) from wrong


def read_addresses(given: str | None = None) -> tuple[downloads.Address, ...]:
    """Read addresses of the API, comma-separated: those given, of `V8_REST_URL`, or the exchange's own."""
    texts = (given or os.environ.get(URL_VARIABLE) or DEFAULT_URLS).split(",")
    kind = "the exchange's API, or of several, comma-separated"
    read = partial(downloads.read_address, URL_VARIABLE, DEFAULT_URLS, kind)
    found = tuple(read(url=text.strip()) for text in texts)
    if len({address.url for address in found}) < len(found):
        where = URL_VARIABLE
        got = ", ".join(address.url for address in found)
        raise ProfileError(where=where, rule="names each address once", got=got, fix="Remove the repetition")
    return found


def read_klines(content: bytes, where: str, span: Span, most: int) -> pd.DataFrame:
    """Read the rows of an answer, none for an empty list.

    Columns are `open_time`, in milliseconds, int64, and `OHLCV`, float64, ascending.
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
    _require_true(open_ms, values, span, where)
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
        return json.loads(content, parse_constant=int)  # which they are not
    except (ValueError, RecursionError):  # text that is no UTF-8, and integers of 5,000 digits, too
        begin = shown(content[:200].decode("utf-8", "replace"), 60)
        _refuse(where, "must answer in JSON", repr(begin) if content else "an empty answer")


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


def _require_true(open_ms: np.ndarray, values: np.ndarray, span: Span, where: str) -> None:
    """Refuse rows that were not asked for, and those that cannot be true; see `v8.market.checks`."""
    bar_s = span.series.bar_s
    first_ms = span.first_s * 1_000
    opened, high, low, close, volume = values.T
    is_wild = ~((values <= MAX_VALUE).all(axis=1) & (np.minimum(low, high) >= 1 / MAX_VALUE) & (volume >= 0))
    is_wild |= (low > np.minimum(opened, close)) | (high < np.maximum(opened, close))
    asked = f"candles of {iso(span.first_s)} to {iso(span.last_s)} were asked for"
    limits = f"prices lie between low and high, above zero, and nothing is beyond {MAX_VALUE:g}"
    order = "candles come in the order of time, each once"
    rules = (
        ((open_ms < first_ms) | (open_ms > span.last_s * 1_000), asked, "one of {time}"),
        ((open_ms - first_ms) % (bar_s * 1_000) != 0, f"candles open every {bar_s} s", "one at {time}"),
        (np.diff(open_ms, prepend=first_ms - 1) <= 0, order, "{time} after one that is not older"),
        (is_wild, limits, "{values} at {time}"),
    )
    for is_wrong, rule, got in rules:
        if is_wrong.any():
            row = int(is_wrong.argmax())
            told = {"time": iso(int(open_ms[row]) / 1_000), "values": shown(values[row].tolist())}
            _refuse(where, rule, got.format(**told))


def _refuse(where: str, rule: str, got: str) -> NoReturn:
    raise DataError(where=where, rule=rule, got=got, fix="Try again later, or ask another address of the API")


class RefusedRequestError(DataError):
    """A request that the exchange understood and refuses: another host would do the same."""


class UnknownSymbolError(RefusedRequestError, UnknownSeriesError):
    """A request for a symbol that the exchange does not list."""


class ApiEtiquette(downloads.Etiquette):
    """How the exchange is asked: not beyond its weights, and not before it allows."""

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
        used = answer.headers.get(_WEIGHT_HEADER, "")
        if used.isascii() and used.isdigit() and len(used) < 10 and int(used) >= NEAR_WEIGHT:
            self._close(url, _MINUTE_S - _second_of_minute(answer.headers.get("Date", "")))
        status = answer.status_code
        if status in _TOO_MANY:
            trouble = downloads.trouble_of(answer)
            pause_s = trouble.wait_s or 0.0
            if pause_s > downloads.LONGEST_RETRY_AFTER_S:
                most = f"{downloads.LONGEST_RETRY_AFTER_S:.0f} s"
                raise _host_refuses(url, f"status {status}, not to be asked again within {most}")
            self._close(url, pause_s)
            raise trouble
        if status == 400:
            raise self._refusal(url, *read_code(self.content(url, answer, MAX_ANSWER_BYTES)))
        if status >= 500:
            return super().is_there(url, answer)
        if status != 200:
            raise _host_refuses(url, f"status {status} {answer.reason}")
        return True

    def _close(self, url: str, pause_s: float) -> None:
        host = urlsplit(url).netloc
        self._opens_at[host] = max(self._opens_at.get(host, 0.0), time.monotonic() + pause_s)

    def _refusal(self, url: str, number: int, message: str) -> DataError:
        got = f"status 400, {number} {message}" if number else "status 400"
        if number != _INVALID_SYMBOL:
            return _host_refuses(url, got)
        rule = "must ask for a symbol that the exchange lists"
        return UnknownSymbolError(where=url, rule=rule, got=got, fix="Check the symbol")


def _second_of_minute(date: str) -> int:
    """Read the second of an answer's date; 0, the begin of a minute, where it tells none."""
    try:
        return parsedate_to_datetime(date).second
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0


def _host_refuses(url: str, got: str) -> DataError:
    fix = f"Check that it may be reached from here, or set {URL_VARIABLE} to other hosts"
    return DataError(where=url, rule="the API must answer 200", got=got, fix=fix)
