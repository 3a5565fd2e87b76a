"""The source `rest` against an exchange on loopback: its candles, or one sentence, and nothing else."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from exchange_api import NOW_S, ApiFault, ExchangeApi, blocked, code, too_many

from v8.base.errors import DataError, ProfileError
from v8.base.http_client import TimeLimits
from v8.data.market.series import Series, iso
from v8.data.market.sources import KeepsTime, open_source, present_of, rest
from v8.data.market.sources.downloads import Downloader
from v8.data.market.sources.live import LiveSource
from v8.data.market.sources.rest import (
    API_RETRY_POLICY,
    MOST_APART_S,
    ApiPolicy,
    ExchangeClock,
    KlinesApi,
    RestSource,
    read_addresses,
)

SERIES = Series("BTCUSDT", "15m")
BAR_S = 900
LAST_S = NOW_S // BAR_S * BAR_S - BAR_S
"""11:45, whose candle closed at 12:00; it is 12:07."""

START_S = LAST_S - 2_999 * BAR_S
NOWHERE = "http://127.0.0.1:9"
"""Port 9 (discard) is below 1024 and served nowhere in a test."""
USERS_LIMITS = TimeLimits()


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def opened(waits: list[float]) -> Iterator[Callable[..., RestSource]]:
    """Open sources that never really sleep, at addresses in a text.

    They are as patient as a user's, for an answer that a busy machine gives late is not asked for twice.
    """
    downloaders = []

    def open_rest(addresses: str | None = None, limits: TimeLimits = USERS_LIMITS) -> RestSource:
        etiquette = ApiPolicy(sleep=waits.append)
        patience = replace(API_RETRY_POLICY, sleep=waits.append)
        downloader = Downloader("V8_REST_URL", policy=etiquette, patience=patience, limits=limits)
        downloaders.append(downloader)
        return RestSource(KlinesApi(read_addresses(addresses), downloader))

    yield open_rest
    for downloader in downloaders:
        downloader.close()


@pytest.fixture
def exchange(exchange_api: ExchangeApi, valid_frame: Any) -> ExchangeApi:
    """Hold 3,000 closed candles, the running one, and a day to come."""
    exchange_api.put(str(SERIES), valid_frame(3_097, BAR_S, start_s=START_S))
    return exchange_api


def test_the_newest_closed_candles_take_one_request_and_one_for_the_time(exchange, opened) -> None:
    source = opened()
    candles = source.candles(SERIES, 1_000)
    np.testing.assert_array_equal(candles.values, exchange.frame(str(SERIES))[-1_000:])
    assert (candles.source, int(candles.open_time_s[-1]), len(exchange.requests)) == ("rest", LAST_S, 2)
    source.candles(SERIES, 10)
    assert len(exchange.requests) == 3


def test_more_candles_come_in_pages_of_a_thousand(exchange, opened) -> None:
    candles = opened().candles(SERIES, 2_500)
    np.testing.assert_array_equal(candles.values, exchange.frame(str(SERIES))[-2_500:])
    assert [asked["limit"] for asked in exchange.klines_requests()].count("1000") == 2
    assert len(exchange.klines_requests()) == 4  # the oldest candle there is, and three pages


@pytest.mark.parametrize("num_bars", [700, 100_000])
def test_fewer_come_back_where_there_are_no_more(exchange_api, opened, valid_frame, num_bars) -> None:
    exchange_api.put(str(SERIES), valid_frame(601, BAR_S, start_s=LAST_S - 599 * BAR_S))
    assert len(opened().candles(SERIES, num_bars)) == 600


def test_the_running_candle_is_never_used_and_closes_by_the_exchanges_clock(exchange, opened) -> None:
    exchange.now_s = LAST_S + 2 * BAR_S - 60
    assert opened().candles(SERIES, 5).open_time_s[-1] == LAST_S
    exchange.now_s = LAST_S + 2 * BAR_S
    exchange.has_running = False
    assert opened().candles(SERIES, 5).open_time_s[-1] == LAST_S + BAR_S


def test_the_exchanges_time_is_kept_and_is_the_present(exchange, opened) -> None:
    source = opened()
    assert isinstance(source, KeepsTime)
    assert present_of(source) - NOW_S in range(5)
    assert source.clock.ahead_s == pytest.approx(time.time() - NOW_S, abs=5)
    source.now_s()
    assert exchange.requests == ["/api/v3/time"]


def test_an_end_is_kept_and_what_came_since_is_counted(exchange, opened) -> None:
    candles = opened().candles(SERIES, 10, end_s=LAST_S - 100 * BAR_S + 1)
    assert (int(candles.open_time_s[-1]), candles.report.num_newer) == (LAST_S - 100 * BAR_S, 100)


def test_a_hole_is_asked_for_again_and_stays_a_hole(exchange, opened) -> None:
    exchange.cut_hole(str(SERIES), LAST_S - 20 * BAR_S, LAST_S - 11 * BAR_S)
    report = opened().candles(SERIES, 100).report
    assert (report.num_gaps, report.num_missing, report.num_kept) == (1, 10, 100)
    again = exchange.klines_requests()[1]
    assert (int(again["startTime"]), again["limit"]) == ((LAST_S - 20 * BAR_S) * 1_000, "10")


def test_holes_longer_than_a_page_are_crossed(exchange, opened) -> None:
    exchange.cut_hole(str(SERIES), LAST_S - 2_500 * BAR_S, LAST_S - 5 * BAR_S)
    candles = opened().candles(SERIES, 50)
    np.testing.assert_array_equal(candles.values, exchange.frame(str(SERIES))[-50:])


@pytest.mark.parametrize("lost", [slice(0, 3), slice(40, 50), slice(97, 100), slice(0, 100)])
def test_rows_that_were_left_out_once_are_found(exchange, opened, lost) -> None:
    exchange.faults = [ApiFault(rows=lambda rows: rows[: lost.start] + rows[lost.stop :])]
    candles = opened().candles(SERIES, 100)
    np.testing.assert_array_equal(candles.values, exchange.frame(str(SERIES))[-100:])


def test_answers_that_contradict_each_other_for_ever_are_refused(exchange, opened) -> None:
    exchange.faults = [ApiFault(rows=lambda rows: rows[:-9]), *[ApiFault(rows=lambda rows: rows[:1])] * 8]
    with pytest.raises(DataError, match="got 5 responses"):
        opened().candles(SERIES, 100)


def ahead(rows: list[list[Any]], num_bars: int) -> list[list[Any]]:
    """The rows with the first as a row so many bars away from where it was."""
    return [*shifted(rows[:1], num_bars * BAR_S * 1_000), *rows[1:]]


def changed(place: int, value: Any) -> Callable[[list[list[Any]]], Any]:
    return lambda rows: [*rows[:7], [*rows[7][:place], value, *rows[7][place + 1 :]], *rows[8:]]


def shifted(rows: list[list[Any]], by_ms: int) -> list[list[Any]]:
    return [[row[0] + by_ms, *row[1:6], row[6] + by_ms, *row[7:]] for row in rows]


WRONG: dict[str, tuple[ApiFault, str]] = {
    "empty body": (ApiFault(body=b""), "an empty answer, where must answer in JSON"),
    "html": (ApiFault(body=b"<html>sign in</html>"), "sign in.*where must answer in JSON"),
    "an error that claims to be well": (
        ApiFault(body=code(-1121, "Invalid symbol.")),
        "-1121, 'msg': 'Invalid symbol.'.*come as a list of rows",
    ),
    "gzip that nobody asked for": (
        ApiFault(headers={"Content-Encoding": "gzip"}, body=gzip.compress(b"[]")),
        "must answer in JSON",
    ),
    "deep": (ApiFault(body=b"[" * 100_000), "must answer in JSON"),
    "2 MB": (ApiFault(body=b"[" + b" " * 2_000_000 + b"]"), "more than 1048576 bytes"),
    "cut": (ApiFault(cut_bytes=100), "a broken connection"),
    "eleven fields": (ApiFault(rows=lambda rows: [row[:11] for row in rows]), "a row of 12 fields"),
    "nan": (ApiFault(rows=changed(4, float("nan"))), "must answer in JSON"),
    "nan in text": (ApiFault(rows=changed(4, "nan")), "texts of decimal numbers"),
    "huge": (ApiFault(rows=changed(5, "9" * 20)), r"nothing is beyond 1e\+18"),
    "zero": (ApiFault(rows=changed(3, "0.0")), "prices lie between low and high, above zero"),
    "negative": (ApiFault(rows=changed(5, "-1.0")), "texts of decimal numbers"),
    "low above": (ApiFault(rows=changed(3, "99999.0")), "prices lie between low and high"),
    "text for time": (ApiFault(rows=changed(0, "soon")), "times in milliseconds"),
    "other timeframe": (ApiFault(rows=changed(6, (LAST_S + 3_600) * 1_000)), "a candle closes 900 s after"),
    "newest first": (ApiFault(rows=lambda rows: rows[::-1]), "in the order of time, each once"),
    "too many": (ApiFault(rows=lambda rows: rows + rows), "at most 100 rows were requested; got|200"),
    "the running bar": (ApiFault(rows=lambda rows: ahead(rows[::-1], 1)[::-1]), "were requested"),
    "off the grid": (ApiFault(rows=lambda rows: shifted(rows[:-1], 7_000)), "candles open every 900 s"),
    "other days": (ApiFault(rows=lambda rows: shifted(rows, -86_400_000)), "were requested"),
    "status 403": (ApiFault(403), "status 403"),
    "status 400": (ApiFault(400, body=code(-1100, "Illegal characters")), "status 400, -1100 Illegal"),
    "blocked": (blocked(), "status 451"),
    "too many requests": (too_many(), "status 429"),
    "banned": (too_many(418), "status 418"),
    "banned for a day": (too_many(418, "86400"), "status 418, not to be asked again within 120 s"),
    "drip": (ApiFault(drip_s=0.3), "a broken connection"),
}


@pytest.mark.parametrize(("fault", "words"), WRONG.values(), ids=WRONG)
def test_an_answer_that_is_wrong_for_ever_is_one_sentence(exchange, opened, fault, words) -> None:
    exchange.faults = [fault] * 12
    source = opened(limits=TimeLimits(silence_s=0.5, try_s=1.0) if fault.drip_s else TimeLimits())
    exchange.faults.insert(0, ApiFault(of="/api/v3/time"))
    with pytest.raises(DataError, match=words) as caught:
        source.candles(SERIES, 100)
    assert str(caught.value).startswith("BTCUSDT-15m from the exchange's API: ")
    assert exchange.url.removeprefix("http://") in str(caught.value)
    assert "--source vision" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 600


@pytest.mark.parametrize(
    "fault",
    [fault for fault, _ in WRONG.values() if not fault.drip_s],
    ids=[key for key in WRONG if key != "drip"],
)
def test_an_answer_that_is_wrong_once_changes_nothing(exchange, opened, fault) -> None:
    source = opened()
    source.now_s()
    exchange.faults = [fault]
    is_refusal = fault.status in {400, 403, 404, 451} or "86400" in fault.headers.values()
    if is_refusal or len(fault.body or b"") > 1_000_000:
        with pytest.raises(DataError, match=r"BTCUSDT-15m from the exchange's API: .*of the hosts"):
            source.candles(SERIES, 100)
    candles = source.candles(SERIES, 100)
    np.testing.assert_array_equal(candles.values, exchange.frame(str(SERIES))[-100:])


def test_whether_a_series_is_there_is_asked_with_one_candle(exchange, opened) -> None:
    source = opened()
    source.require(SERIES)
    with pytest.raises(DataError, match="got status 400, -1121 Invalid symbol"):
        source.require(Series("NOPEUSDT", "15m"))
    requests = [path for path in exchange.requests if "klines" in str(path)]
    assert requests and all("limit=1&" in f"{path}&" or "limit" not in str(path) for path in requests)


def test_a_symbol_that_the_exchange_does_not_list_is_refused_at_once(exchange, opened) -> None:
    with pytest.raises(DataError, match="got status 400, -1121 Invalid symbol"):
        opened(f"{exchange.url},{NOWHERE}").candles(Series("NOPEUSDT", "15m"), 10)
    assert len(exchange.requests) == 2
    with pytest.raises(DataError, match=r"BRK.B-1d from rest: .*got BRK.B"):
        opened().candles(Series("BRK.B", "1d"), 10)
    assert len(exchange.requests) == 2


def test_a_timeframe_without_candles_is_one_sentence(exchange, opened) -> None:
    with pytest.raises(DataError, match=r"BTCUSDT-1h from rest: .*got none that"):
        opened().candles(Series("BTCUSDT", "1h"), 10)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"serverTime": "now"}', b'{"serverTime": 12}', b'{"serverTime": 1e12}', b"{}", b"NaN"],
)
def test_a_time_that_is_none_is_one_sentence(exchange, opened, body) -> None:
    exchange.faults = [ApiFault(body=body, of="/api/v3/time")] * 6
    with pytest.raises(DataError, match=r"the exchange's API: .*must be answered"):
        opened().candles(SERIES, 10)


DAY_S = 86_400


@pytest.fixture
def clocked(exchange, opened, monkeypatch) -> Callable[..., RestSource]:
    """Open a source with its real tolerance where the two clocks are off by so many seconds."""
    monkeypatch.setattr(rest, "MOST_APART_S", MOST_APART_S)

    def open_at(exchange_off_s: float = 0, machine_off_s: float = 0) -> RestSource:
        source = opened()
        machine_s = exchange.now_s + machine_off_s
        told = {"serverTime": int((exchange.now_s + exchange_off_s) * 1_000)}
        exchange.faults = [ApiFault(body=json.dumps(told).encode(), of="/api/v3/time")]
        clock = ExchangeClock(source.api.time_s, monotonic=lambda: 0.0, wall=lambda: machine_s)
        return RestSource(source.api, clock)

    return open_at


@pytest.mark.parametrize(
    ("exchange_off_s", "machine_off_s"),
    [
        (-30 * DAY_S, 0),
        (-1_000, 0),
        (-30 * DAY_S, 5 * DAY_S),
        (30 * DAY_S, 0),
        (600, 0),
        (DAY_S, -DAY_S),
        (-DAY_S, -9 * DAY_S),
    ],
)
def test_a_time_of_the_exchange_that_its_candles_contradict_is_refused_with_all_three(
    exchange, clocked, exchange_off_s, machine_off_s, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    exchange_s = NOW_S + exchange_off_s
    machine_s = NOW_S + machine_off_s
    three = rf"got {iso(exchange_s)} from the exchange, {iso(machine_s)} here, .* 2024-09-04T12:00:00Z\. Name"
    with pytest.raises(DataError, match=three):
        clocked(exchange_off_s, machine_off_s).candles(SERIES, 10)
    source = LiveSource(clocked(exchange_off_s, machine_off_s))
    with pytest.raises(DataError, match=three):
        source.candles(SERIES, 10)
    assert source.store.read(SERIES) is None


@pytest.mark.parametrize("machine_off_s", [-3_000 * DAY_S, -61, -59, 0, 59, 61, 700, 3_000 * DAY_S])
def test_a_machine_with_a_wrong_clock_goes_by_the_exchanges_which_its_candle_bears_out(
    exchange, clocked, machine_off_s
) -> None:
    source = clocked(0, machine_off_s)
    assert [source.candles(SERIES, 10).open_time_s[-1] for _ in range(2)] == [LAST_S] * 2
    is_asked = abs(machine_off_s) > 60
    assert len(exchange.klines_requests()) == 2 + is_asked  # once for an answer of the clock


def test_a_symbol_that_is_no_longer_traded_does_not_contradict_the_time(exchange_api, clocked, valid_frame):
    exchange_api.put("OLDUSDT-15m", valid_frame(50, BAR_S, start_s=LAST_S - 9_000 * BAR_S))
    assert len(clocked(0, DAY_S).candles(Series("OLDUSDT", "15m"), 9_001)) == 50


def test_a_blocked_host_is_left_for_the_next_which_is_asked_first_from_then_on(exchange, opened) -> None:
    with ExchangeApi() as shut:
        shut.is_blocked = True
        source = opened(f"{shut.url}, {exchange.url}")
        assert len(source.candles(SERIES, 2_000)) == 2_000
        assert len(shut.requests) == 1
        assert len(exchange.klines_requests()) == 3


def test_the_error_names_every_host_and_its_reason(exchange, opened) -> None:
    exchange.is_blocked = True
    with pytest.raises(DataError) as caught:
        opened(f"{NOWHERE},{exchange.url}").candles(SERIES, 10)
    host = exchange.url.removeprefix("http://")
    assert re.search(r"127.0.0.1:9: .*\(ConnectionError\) .*, number 3; ", str(caught.value))
    assert f"{host}: status 451" in str(caught.value)
    assert re.search("set V8_REST_URL .* --source vision", str(caught.value))


@pytest.mark.parametrize("status", [429, 418])
def test_retry_after_is_obeyed_by_all_threads(exchange, opened, waits, status) -> None:
    source = opened()
    source.now_s()
    exchange.faults = [too_many(status, "7")]
    assert len(source.candles(SERIES, 3_000)) == 3_000
    assert waits.count(7.0) == 1
    shared = [wait for wait in waits if wait != 7.0]
    assert shared
    assert all(6.0 < wait <= 7.0 for wait in shared)


def test_when_the_weight_is_nearly_used_the_next_minute_is_awaited(exchange, opened, waits) -> None:
    exchange.used_weight = 5_390
    source = opened()
    source.candles(SERIES, 10)
    assert waits == []
    exchange.used_weight = 5_398
    source.candles(SERIES, 10)
    assert waits == []
    source.candles(SERIES, 10)
    assert len(waits) == 1
    assert 0 < waits[0] <= 60


def test_a_password_in_the_address_opens_the_api_and_is_shown_nowhere(exchange, opened) -> None:
    exchange.password = ("me", "s3cr3t")
    source = opened(exchange.url.replace("://", "://me:s3cr3t@"))
    assert len(source.candles(SERIES, 10)) == 10
    exchange.is_blocked = True
    with pytest.raises(DataError) as caught:
        source.candles(SERIES, 10)
    assert "s3cr3t" not in str(caught.value) + repr(source.api.addresses)


@pytest.mark.parametrize(
    "text",
    ["ftp://host", "http://", "host", "http://a,,http://b", "http://a,http://a/", "http://me:s3cret/x@host"],
)
def test_addresses_that_are_none_are_refused_before_anything_is_asked(monkeypatch, text) -> None:
    monkeypatch.setenv("V8_REST_URL", text)
    with pytest.raises(ProfileError, match=r"^V8_REST_URL: ") as caught:
        open_source("rest")
    assert "s3cret" not in str(caught.value)


def test_without_the_variable_the_exchanges_own_hosts_are_asked(monkeypatch) -> None:
    monkeypatch.delenv("V8_REST_URL", raising=False)
    with closing(Downloader("V8_REST_URL")) as downloader:
        hosts = [address.host for address in KlinesApi(downloader=downloader).addresses]
    assert hosts == ["api.binance.com", "data-api.binance.vision"]


class Clocks:
    """Three clocks: the exchange's, one of seconds that pass, and this machine's."""

    def __init__(self) -> None:
        self.exchange_s = 1_725_451_620.9
        self.passed_s = 50.0
        self.wall_s = 1e9
        self.num_asked = 0

    def pass_on(self, seconds: float, *, slept_s: float = 0.0) -> None:
        self.exchange_s += seconds + slept_s
        self.wall_s += seconds + slept_s
        self.passed_s += seconds  # a machine that sleeps does not count

    def ask(self) -> float:
        self.num_asked += 1
        return self.exchange_s


def kept(clocks: Clocks, **options: float) -> ExchangeClock:
    return ExchangeClock(clocks.ask, monotonic=lambda: clocks.passed_s, wall=lambda: clocks.wall_s, **options)


def test_the_exchange_is_asked_once_and_its_seconds_are_counted() -> None:
    clocks = Clocks()
    clock = kept(clocks)
    assert (clock.now_s(), round(clock.ahead_s)) == (1_725_451_620, round(1e9 - 1_725_451_620.9))
    clocks.pass_on(59.1)
    assert (clock.now_s(), clocks.num_asked) == (1_725_451_680, 1)


def test_it_is_asked_again_after_minutes_a_sleep_and_a_set_clock() -> None:
    clocks = Clocks()
    clock = kept(clocks)
    clock.now_s()
    clocks.pass_on(601)
    assert (clock.now_s(), clocks.num_asked) == (int(clocks.exchange_s), 2)
    clocks.pass_on(1, slept_s=3_600)
    assert (clock.now_s(), clocks.num_asked) == (int(clocks.exchange_s), 3)
    clocks.wall_s -= 86_400
    assert (clock.now_s(), clocks.num_asked) == (int(clocks.exchange_s), 4)


def test_who_did_not_tell_is_not_asked_again_for_half_a_minute() -> None:
    clocks = Clocks()
    refused: list[int] = []

    def ask() -> float:
        refused.append(clocks.ask())
        if len(refused) < 3:
            raise DataError(where="the time", rule="must be told", got="nothing", fix="Wait")
        return clocks.exchange_s

    clock = ExchangeClock(ask, monotonic=lambda: clocks.passed_s, wall=lambda: clocks.wall_s)
    for seconds in (0, 29, 2):
        clocks.pass_on(seconds)
        with pytest.raises(DataError, match=r"the time: must be told; got nothing\. Wait\."):
            clock.now_s()
    assert clocks.num_asked == 2
    clocks.pass_on(31)
    assert clock.now_s() == int(clocks.exchange_s)


def test_a_clock_that_keeps_nothing_asks_each_time() -> None:
    clocks = Clocks()
    clock = kept(clocks, most_age_s=0)
    assert [clock.now_s(), clock.now_s()] == [int(clocks.exchange_s)] * 2
    assert clocks.num_asked == 2
