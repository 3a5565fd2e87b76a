"""The source `rest`: the newest closed candles from the exchange's public API, on one or more hosts.

The main host is not available in all countries, so the hosts of `V8_REST_URL` (comma-separated), or of the
variable of another market, are tried in order. The first that answers comes first from then on; when none
does, the error lists the reason of each.

The exchange counts the weight of requests per minute, reports the used weight in a header, answers 429 to
clients that exceed the limit and 418 to those that continue. Therefore a host gets no request before its
minute is over when its weight is nearly used up, nor before the time that it names in Retry-After; if that is
more than two minutes away, the request fails.
https://developers.binance.com/docs/binance-spot-api-docs/rest-api/limits

A zip of the archive has a published sha256, a response of the API has none. So one implausible row refuses
the whole response here, while a file may lose a few rows. A response is a JSON list of rows of twelve fields:
open time in milliseconds, open, high, low, close and volume as texts of decimal numbers, close time in
milliseconds, and five unused fields. The rows open on the grid of the series, within the requested span, in
ascending order, each once. Candles at which the price jumps are suspect and requested again, until two
responses agree.
https://developers.binance.com/docs/binance-spot-api-docs/rest-api/market-data-endpoints#klinecandlestick-data

Which bars are closed is decided by the exchange's time. It is requested once and then advanced by the
monotonic clock of this machine. But a proxy may return an old time: where the exchange's time differs from
this machine's clock by more than `MOST_APART_S`, the newest candle of the exchange must be consistent with
it, or no candles are returned.
"""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Final, NoReturn, TypeVar
from urllib.parse import urlencode, urlsplit

import numpy as np
import pandas as pd
import requests

from v8.base.errors import DataError, ProfileError, UnknownSeriesError, shown
from v8.base.http_client import TimeLimits, read_date, trouble_of
from v8.data.market.candles import MAX_VALUE, Candles, require_num_bars
from v8.data.market.checks import check_candles
from v8.data.market.series import DAY_S, Series, iso
from v8.data.market.sources import SPOT, Market, downloads
from v8.data.market.store import are_suspect
from v8.profile.columns import OHLCV, OPEN_TIME

MOST_AGE_S: Final = 600.0  # then the time is requested again; a quartz clock drifts by less than 0.1 s in it
REFUSED_S: Final = 30.0  # after a failure the error is repeated so long: forty series would ask one by one
MOST_DRIFT_S: Final = 2.0  # of the wall from the monotonic clock; with more the machine slept or was set
MOST_APART_S: Final = 60.0  # larger differences between exchange and machine are verified by a candle
_FAR_S: Final = 20 * 365 * DAY_S  # how far ahead the newest candle is searched: both clocks may be behind

MOST_ROWS: Final = 1_000  # candles of one response, a limit of the exchange
MAX_ANSWER_BYTES: Final = 1 << 20  # a row has about 150 bytes
NUM_FIELDS: Final = 12
_CLOSE_TIME: Final = 6
_DECIMAL: Final = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
FIRST_TIME_S = 1_500_000_000
LAST_TIME_S = 4_102_444_800
"""2017-07-14, when the exchange opened, and the year 2100: its time must lie between them."""

API_RETRY_POLICY: Final = replace(downloads.PATIENCE, num_tries=3)
LIMITS_OF_API: Final = TimeLimits(connect_s=5.0, silence_s=10.0, try_s=30.0)
_NUM_READS: Final = 2  # invalid responses of a host before the next host is tried
_NUM_AGREEING: Final = 4  # repetitions for missing or suspect candles until two responses agree
_MOST_TROUBLE: Final = 320  # letters for the reasons of all hosts together
_MINUTE_S: Final = 60
_TOO_MANY: Final = frozenset({418, 429})
_INVALID_SYMBOL: Final = -1121
_WEIGHT_HEADER: Final = "X-MBX-USED-WEIGHT-1M"
Answer = TypeVar("Answer")
Read = Callable[[bytes, str], Answer]  # reads the body of a response, given the name of the host


@dataclass(frozen=True)
class CandleSpan:
    """Candles of one series that open between two times."""

    series: Series
    first_s: int  # open time of the first, seconds since the epoch, UTC
    last_s: int  # open time of the last, not before it

    @property
    def num_bars(self) -> int:
        """Bars of the span, whether or not there is a candle for each."""
        return (self.last_s - self.first_s) // self.series.bar_s + 1

    def pages(self) -> "list[CandleSpan]":
        """Split it into spans that fit into one response, newest first."""
        page_s = MOST_ROWS * self.series.bar_s
        series = self.series
        stops_s = range(self.last_s, self.first_s - 1, -page_s)
        return [
            CandleSpan(series, max(self.first_s, stop_s - page_s + series.bar_s), stop_s)
            for stop_s in stops_s
        ]

    def suspect_part(self, rows: pd.DataFrame) -> "CandleSpan | None":
        """Return the shortest span with all bars that have no row or a suspect one; None without any."""
        grid = np.arange(self.first_s, self.last_s + 1, self.series.bar_s)
        open_time_s = rows[OPEN_TIME].to_numpy(np.int64) // 1_000
        is_suspect = are_suspect(rows[list(OHLCV)].to_numpy(np.float64))
        missing_s = np.setdiff1d(grid, open_time_s, assume_unique=True)
        times_s = np.union1d(missing_s, open_time_s[is_suspect])
        return CandleSpan(self.series, int(times_s[0]), int(times_s[-1])) if len(times_s) else None


class RestSource:
    """Candles from the exchange's API, by default that of spot, and by the exchange's time."""

    name = "rest"
    is_publishable: ClassVar = True

    def __init__(self, api: "KlinesApi | None" = None, clock: "ExchangeClock | None" = None) -> None:
        self.api = api or KlinesApi()
        self.market = self.api.market
        self.name = f"rest{self.market.source_suffix}"
        self.clock = clock or ExchangeClock(self.api.time_s)
        self.now_s = self.clock.now_s
        self._confirmed_ahead_s: float | None = None

    def confirmed_now_s(self, series: Series) -> int:
        """Return the exchange's time, seconds since the epoch, after comparing it with its newest candle.

        The candle is requested once for each response of the exchange's clock, and only if this machine's
        clock differs. A candle that opens later than the time proves that the time is old. A candle that is
        over long before the time proves nothing by itself, because the symbol may no longer be traded, unless
        this machine's clock has not reached the time either.

        Raises:
            DataError: If time and candle contradict each other.
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
                raise DataError(
                    where=f"{series} from the exchange's API",
                    rule=f"the exchange's time is within {MOST_APART_S:.0f} s of this machine's, or its "
                    "newest candle confirms it",
                    got=f"{iso(now_s)} from the exchange, {iso(machine_s)} here, and a newest candle that "
                    f"opens at {iso(newest_s)}",
                    fix=f"Name an address in {self.market.hosts_variable} that no proxy answers, or set this "
                    "machine's clock",
                )
        self._confirmed_ahead_s = ahead_s
        return now_s

    def require(self, series: Series) -> None:
        """Refuse a series of which the exchange has no candle; see `ChecksSeries`."""
        self.market.require_listed(series, self.name)
        self._first_open_s(series, series.last_closed_s(self.now_s()))

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the exchange; see `CandleSource`."""
        require_num_bars(num_bars, series)
        self.market.require_listed(series, self.name)
        now_s = self.confirmed_now_s(series)
        newest_s = series.last_closed_s(now_s)
        last_s = series.last_wanted_s(now_s, end_s)
        candles = self._collected(series, num_bars, last_s, now_s).newest(num_bars, last_s)
        return candles.with_report(num_newer=(newest_s - last_s) // series.bar_s)

    def _collected(self, series: Series, num_bars: int, last_s: int, now_s: int) -> Candles:
        """Fetch pages, newest first, until they hold enough candles or the exchange has no more."""
        begin_s = self._first_open_s(series, last_s) if num_bars > MOST_ROWS else None
        tables: list[pd.DataFrame] = []
        stop_s = last_s
        num_missing = num_bars
        while True:
            first_s = max(stop_s - (num_missing - 1) * series.bar_s, begin_s or 0)
            spans = CandleSpan(series, first_s, stop_s).pages()
            tables += self.api.downloader.map(self.api.klines, spans)
            frame = pd.concat(reversed(tables), ignore_index=True)
            if begin_s is None and len(frame) < num_bars:
                begin_s = self._first_open_s(series, last_s)
            stop_s = spans[-1].first_s - series.bar_s
            has_all = begin_s is None or stop_s < begin_s
            if len(frame) or has_all:
                candles = check_candles(frame, series, source=self.name, now_s=now_s)
                num_missing = num_bars - len(candles)
                if num_missing <= 0 or has_all or candles.report.relisted_at:
                    return candles

    def _first_open_s(self, series: Series, last_s: int) -> int:
        """Return the open time of the exchange's oldest candle; an error if it has none up to a time."""
        begin_s = self.api.edge_open_s(series, last_s)
        if begin_s is None:
            otherwise = "Check the symbol and the timeframe, or ask for a later time"
            raise UnknownSeriesError(
                where=f"{series} from {self.name}",
                rule=f"needs a candle that opens at or before {iso(last_s)}",
                got="none that the exchange knows",
                fix=self.market.advice(series, otherwise),
            )
        return begin_s


class ExchangeClock:
    """Keeps the exchange's time, and is never ahead: its last response plus the seconds since then.

    Args:
        ask: Requests the exchange's time, seconds since the epoch.
        most_age_s: Seconds after which it is requested again; 0 for each time.
        monotonic: Monotonic clock of this machine, in seconds.
        wall: Wall clock of this machine, seconds since the epoch.
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
        self._exchange_s = 0.0  # last response of the exchange
        self._wall_s = 0.0  # wall clock at that moment
        self._received_s = -inf  # monotonic clock at that moment
        self._error: DataError | None = None
        self._failed_s = 0.0  # monotonic clock at the last failure
        self._lock = threading.Lock()

    def now_s(self) -> int:
        """Return the exchange's time, whole seconds since the epoch."""
        with self._lock:
            age_s = self._monotonic() - self._received_s
            wall_age_s = self._wall() - self._wall_s
            if age_s >= self._most_age_s or abs(wall_age_s - age_s) > MOST_DRIFT_S:
                self._exchange_s = self._request()
                self._received_s = self._monotonic()
                self._wall_s = self._wall()
            return int(self._exchange_s + self._monotonic() - self._received_s)

    @property
    def ahead_s(self) -> float:
        """Seconds by which this machine's clock was ahead at the last response; 0 before the first."""
        return self._wall_s - self._exchange_s

    def _request(self) -> float:
        """Request the exchange's time; shortly after a failure, raise the same error without a request."""
        if self._error and self._monotonic() - self._failed_s < min(REFUSED_S, self._most_age_s):
            raise copy(self._error)
        try:
            return self._ask()
        except DataError as error:
            self._error = copy(error)
            self._failed_s = self._monotonic()
            raise


class KlinesApi:
    """Candles and time of the exchange, from the first host that answers.

    Args:
        addresses: The hosts, in order; those of the market's variable when None.
        downloader: Sends the requests; it must follow the `ApiPolicy`.
        market: The market whose candles it has.
    """

    market: Market = SPOT

    def __init__(
        self,
        addresses: Sequence[downloads.Address] | None = None,
        downloader: downloads.Downloader | None = None,
        market: Market = SPOT,
    ) -> None:
        self.market = market
        self.addresses = tuple(read_addresses(market=market) if addresses is None else addresses)
        policy = ApiPolicy(market=market)
        self.downloader = downloader or downloads.Downloader(
            market.hosts_variable, policy=policy, patience=API_RETRY_POLICY, limits=LIMITS_OF_API
        )
        self._order = list(self.addresses)
        self._order_lock = threading.Lock()

    def time_s(self) -> float:
        """Request the exchange's time, seconds since the epoch, in the pool, which reports long waiting."""
        return self.downloader.map(lambda path: self.ask(path, "the time", read_time), ["time"])[0]

    def edge_open_s(self, series: Series, last_s: int, *, is_newest: bool = False) -> int | None:
        """Return the open time (s) of the oldest, or newest, candle up to a time; None without one."""
        all_time = CandleSpan(series, last_s % series.bar_s, last_s)
        (rows,) = self.downloader.map(lambda span: self._page(span, 1, is_newest=is_newest), [all_time])
        return None if rows.empty else int(rows[OPEN_TIME].iloc[0]) // 1_000

    def klines(self, span: CandleSpan) -> pd.DataFrame:
        """Fetch at most 1,000 candles within the calling thread; missing and suspect ones are verified.

        These are requested again until two responses agree.

        Returns:
            Columns `open_time` (milliseconds) and `OHLCV`, ascending; bars without a candle have no row.

        Raises:
            DataError: If no two responses agree, or a request fails.
        """
        rows = self._page(span, span.num_bars)
        for _ in range(_NUM_AGREEING):
            suspect = span.suspect_part(rows)
            if suspect is None:
                return rows
            second = self._page(suspect, suspect.num_bars)
            is_suspect = rows[OPEN_TIME].between(suspect.first_s * 1_000, suspect.last_s * 1_000)
            if second.equals(rows[is_suspect].reset_index(drop=True)):
                return rows
            rows = pd.concat([rows[~is_suspect], second]).sort_values(OPEN_TIME, ignore_index=True)
        raise DataError(
            where=f"{span.series} from {self._order[0].host}",
            rule="two responses with the same candles must be equal",
            got=f"{_NUM_AGREEING + 1} responses that differ",
            fix=f"Try again later, or ask another address with {self.market.hosts_variable}",
        )

    def _page(self, span: CandleSpan, most: int, *, is_newest: bool = False) -> pd.DataFrame:
        """Request the oldest candles of a span, or the newest, at most `most`."""
        parameters: dict[str, str | int] = {
            "symbol": self.market.symbol_of(span.series),
            "interval": span.series.timeframe,
            "endTime": span.last_s * 1_000,
            "limit": most,
        }
        if not is_newest:
            parameters["startTime"] = span.first_s * 1_000

        def read(content: bytes, host: str) -> pd.DataFrame:
            return read_klines(content, host, span, most)

        try:
            return self.ask(f"klines?{urlencode(parameters)}", str(span.series), read)
        except UnknownSymbolError as error:
            fix = self.market.advice(span.series, error.fix)
            raise UnknownSymbolError(where=error.where, rule=error.rule, got=error.got, fix=fix) from error

    def ask(self, query: str, name: str, read: Read[Answer]) -> Answer:
        """Try the hosts in order and return what `read` makes of the first valid response.

        Args:
            query: Path below the API's, with its parameters.
            name: What is requested, for messages.
            read: Reads the body of a response; a `DataError` refuses it.
        """
        troubles = []
        for address in list(self._order):
            try:
                answer = self._answer(address, query, name, read)
            except RefusedRequestError:
                raise
            except DataError as error:
                troubles.append(f"{address.host}: {error.got}")
                continue
            with self._order_lock:  # this host comes first from now on
                self._order.sort(key=lambda other: other != address)
            return answer
        variable = self.market.hosts_variable
        raise DataError(
            where=f"{name} from the exchange's API",
            rule=f"must be answered by one of the hosts of {variable}",
            got="; ".join(shown(trouble, _MOST_TROUBLE // len(troubles)) for trouble in troubles),
            fix=f"Check the connection, set {variable} to other hosts, or take what the archive has with "
            f"param:source vision{self.market.source_suffix}",
        )

    def _answer(self, address: downloads.Address, query: str, name: str, read: Read[Answer]) -> Answer:
        """Send the request to one host, and again if its response is invalid."""
        for _ in range(_NUM_READS):
            url = f"{address.url}/{self.market.api_folder}/{query}"
            content = self.downloader.fetch(url, max_bytes=MAX_ANSWER_BYTES, auth=address.auth, name=name)
            try:
                return read(content or b"", address.host)
            except DataError as error:
                last_error = error
        raise DataError(
            where=last_error.where,
            rule=last_error.rule,
            got=f"{last_error.got}, where {last_error.rule}",
            fix=last_error.fix,
        ) from last_error


def read_addresses(urls: str | None = None, market: Market = SPOT) -> tuple[downloads.Address, ...]:
    """Read comma-separated addresses of the API: the argument, the market's variable, or the exchange's."""
    variable = market.hosts_variable
    texts = (urls or os.environ.get(variable) or market.default_hosts).split(",")
    kind = "the exchange's API, or of several, comma-separated"
    addresses = tuple(
        downloads.read_address(variable, market.default_hosts, kind, url=text.strip()) for text in texts
    )
    if len({address.url for address in addresses}) < len(addresses):
        raise ProfileError(
            where=variable,
            rule="names each address once",
            got=", ".join(address.url for address in addresses),
            fix="Remove the repetition",
        )
    return addresses


def read_klines(content: bytes, location: str, span: CandleSpan, most: int) -> pd.DataFrame:
    """Read the candles of a response, none for an empty list.

    Args:
        content: The body, JSON.
        location: Name of the host, for messages.
        span: The requested span.
        most: Largest number of rows that was requested.

    Returns:
        Columns `open_time`, in milliseconds, int64, and `OHLCV`, float64, ascending.

    Raises:
        DataError: If anything in the response is not as the module describes.
    """
    rows = read_json(content, location)
    if not isinstance(rows, list):
        _refuse(location, "candles come as a list of rows", shown(rows))
    if len(rows) > most:
        _refuse(location, f"at most {most} rows were requested", str(len(rows)))
    for row in rows:
        _require_row(row, span.series.bar_s, location)
    open_ms = np.array([row[0] for row in rows], dtype=np.int64)
    values = np.array([list(map(float, row[1:_CLOSE_TIME])) for row in rows]).reshape(len(rows), len(OHLCV))
    _require_plausible(open_ms, values, span, location)
    return pd.DataFrame(values, columns=list(OHLCV)).assign(**{OPEN_TIME: open_ms})


def read_time(content: bytes, location: str) -> float:
    """Read the exchange's time from a response, seconds since the epoch."""
    answer = read_json(content, location)
    time_ms: Any = answer.get("serverTime") if isinstance(answer, dict) else None
    is_whole = isinstance(time_ms, int) and not isinstance(time_ms, bool)
    if not (is_whole and FIRST_TIME_S <= time_ms / 1_000 < LAST_TIME_S):
        _refuse(location, "must return its time in milliseconds as serverTime", shown(answer))
    return float(time_ms) / 1_000


def read_code(content: bytes) -> tuple[int, str]:
    """Read code and message of an error response; 0 and an empty text if it has none."""
    try:
        answer = read_json(content, "")
    except DataError:
        return 0, ""
    if not isinstance(answer, dict) or not isinstance(answer.get("code"), int):
        return 0, ""
    return answer["code"], shown(answer.get("msg"))


def read_json(content: bytes, location: str) -> Any:
    """Read JSON; NaN and Infinity, which only Python accepts, are refused."""
    try:
        return json.loads(content, parse_constant=int)  # int("NaN") raises a ValueError
    except (ValueError, RecursionError):  # also for text that is not UTF-8, and integers of 5,000 digits
        begin = shown(content[:200].decode("utf-8", "replace"), 60)
        _refuse(location, "must answer in JSON", repr(begin) if content else "an empty answer")


def _require_row(row: Any, bar_s: int, location: str) -> None:
    """Refuse anything but a row of twelve fields with times of this timeframe and numbers as texts."""
    is_row = isinstance(row, list) and len(row) == NUM_FIELDS
    if not is_row or not all(type(row[place]) is int for place in (0, _CLOSE_TIME)):
        _refuse(
            location, f"a candle is a row of {NUM_FIELDS} fields with its times in milliseconds", shown(row)
        )
    if not all(isinstance(text, str) and _DECIMAL.fullmatch(text) for text in row[1:_CLOSE_TIME]):
        _refuse(location, "prices and volume are texts of decimal numbers", shown(row[:_CLOSE_TIME]))
    if not 0 <= row[0] < LAST_TIME_S * 1_000 or row[_CLOSE_TIME] != row[0] + bar_s * 1_000 - 1:
        times = f"{shown(row[0], 40)} to {shown(row[_CLOSE_TIME], 40)}"
        _refuse(location, f"a candle closes {bar_s} s after it opens, less a millisecond", times)


def _require_plausible(open_ms: np.ndarray, values: np.ndarray, span: CandleSpan, location: str) -> None:
    """Refuse rows that were not requested and implausible ones; see `v8.data.market.checks`."""
    bar_s = span.series.bar_s
    first_ms = span.first_s * 1_000
    opened, high, low, close, volume = values.T
    is_in_limits = (
        (values <= MAX_VALUE).all(axis=1) & (np.minimum(low, high) >= 1 / MAX_VALUE) & (volume >= 0)
    )
    is_consistent = ~((low > np.minimum(opened, close)) | (high < np.maximum(opened, close)))
    requested = f"candles of {iso(span.first_s)} to {iso(span.last_s)} were requested"
    limits = f"prices lie between low and high, above zero, and nothing is beyond {MAX_VALUE:g}"
    order = "candles come in the order of time, each once"
    rules = (
        ((open_ms < first_ms) | (open_ms > span.last_s * 1_000), requested, "one of {time}"),
        ((open_ms - first_ms) % (bar_s * 1_000) != 0, f"candles open every {bar_s} s", "one at {time}"),
        (np.diff(open_ms, prepend=first_ms - 1) <= 0, order, "{time} after one that is not older"),
        (~(is_in_limits & is_consistent), limits, "{values} at {time}"),
    )
    for is_wrong, rule, got in rules:
        if is_wrong.any():
            row = int(is_wrong.argmax())
            time_text = iso(int(open_ms[row]) / 1_000)
            _refuse(location, rule, got.format(time=time_text, values=shown(values[row].tolist())))


def _refuse(location: str, rule: str, got: str) -> NoReturn:
    raise DataError(
        where=location, rule=rule, got=got, fix="Try again later, or ask another address of the API"
    )


class RefusedRequestError(DataError):
    """A request that the exchange understood and refused: another host would refuse it, too."""


class UnknownSymbolError(RefusedRequestError, UnknownSeriesError):
    """A request for a symbol that the exchange does not list."""


class ApiPolicy(downloads.ServerPolicy):
    """Respects the weight limits of the exchange and the pauses that it asks for."""

    kind = "API"

    def __init__(self, sleep: Callable[[float], None] = time.sleep, *, market: Market = SPOT) -> None:
        super().__init__(market.hosts_variable)
        self._sleep = sleep
        self._near_weight = market.near_weight
        self._blocked_until_s: dict[str, float] = {}
        """By host: time of the monotonic clock before which it gets no request, in seconds."""

    def wait(self, url: str) -> None:
        """Wait until the host allows a request, whichever thread it has asked to pause."""
        pause_s = self._blocked_until_s.get(urlsplit(url).netloc, 0.0) - time.monotonic()
        if pause_s > 0:
            self._sleep(pause_s)

    def has_content(self, url: str, response: requests.Response) -> bool:
        """See `ServerPolicy`; the used weight is checked, and the reason of an error response is read."""
        used = response.headers.get(_WEIGHT_HEADER, "")
        if used.isascii() and used.isdigit() and len(used) < 10 and int(used) >= self._near_weight:
            date = read_date(response.headers.get("Date", ""))
            self._block(url, _MINUTE_S - (date.second if date else 0))
        status = response.status_code
        if status in _TOO_MANY:
            trouble = trouble_of(response)
            pause_s = trouble.wait_s or 0.0
            if pause_s > downloads.LONGEST_RETRY_AFTER_S:
                most = f"{downloads.LONGEST_RETRY_AFTER_S:.0f} s"
                raise self._host_refuses(url, f"status {status}, not to be asked again within {most}")
            self._block(url, pause_s)
            raise trouble
        if status == 400:
            number, message = read_code(self.content(url, response, MAX_ANSWER_BYTES))
            raise self._refusal(url, number, message)
        if status >= 500:
            return super().has_content(url, response)
        if status != 200:
            raise self._host_refuses(url, f"status {status} {response.reason}")
        return True

    def _block(self, url: str, pause_s: float) -> None:
        """Send no request to the host of an address for so many seconds."""
        host = urlsplit(url).netloc
        until_s = time.monotonic() + pause_s
        self._blocked_until_s[host] = max(self._blocked_until_s.get(host, 0.0), until_s)

    def _refusal(self, url: str, number: int, message: str) -> DataError:
        got = f"status 400, {number} {message}" if number else "status 400"
        if number != _INVALID_SYMBOL:
            return self._host_refuses(url, got)
        return UnknownSymbolError(
            where=url,
            rule="must ask for a symbol that the exchange lists",
            got=got,
            fix="Check the symbol",
        )

    def _host_refuses(self, url: str, got: str) -> DataError:
        return DataError(
            where=url,
            rule="the API must answer 200",
            got=got,
            fix=f"Check that it may be reached from here, or set {self.variable} to other hosts",
        )
