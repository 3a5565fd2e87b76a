"""Events as they come: who listens is told each forecast once, goes on where it was, and bounds hold."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from v8.annexes.live.app import server
from v8.annexes.live.app.guard import AccessPolicy
from v8.annexes.live.app.service import ForecastIssuer
from v8.base.errors import DataError
from v8.data.market.series import Series
from v8.data.market.sources.rest import ExchangeClock, KlinesApi, RestSource

pytestmark = pytest.mark.tf

BTC = "BTCUSDT-15m"
ETH = "ETHUSDT-1h"
TOKEN = "a-token-of-a-test"

Serve = Callable[..., AbstractContextManager[Any]]


class Listener:
    """A program that reads events."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.answer = answer
        self.comments: list[str] = []

    def event(self) -> dict[str, str]:
        """Return the fields of the next event; none at the end of the stream."""
        told: dict[str, str] = {}
        for line in iter(lambda: self.answer.readline().decode(), ""):
            name, _, value = line.rstrip("\n").partition(": ")
            if not name and not line.rstrip("\n") and "data" in told:
                return told
            if line.startswith(":"):
                self.comments.append(value)
            elif name:
                told[name] = value
        return {}


@contextmanager
def listening(page: Any, **headers: str) -> Iterator[Listener]:
    connection = http.client.HTTPConnection(urlsplit(page.url).netloc, timeout=60)
    connection.request("GET", "/api/stream", headers={"Host": "localhost", **headers})
    try:
        yield Listener(connection.getresponse())
    finally:
        connection.close()


@pytest.mark.nightly
def test_who_listens_is_told_every_forecast_once_and_goes_on_where_it_was(serve: Serve) -> None:
    with serve() as page:
        with listening(page) as first:
            assert first.answer.status == 200
            assert first.answer.getheader("content-type") == "text/event-stream; charset=utf-8"
            assert first.answer.getheader("content-security-policy")
            told = [first.event(), first.event()]
            assert [one["event"] for one in told] == ["forecast"] * 2
            assert [json.loads(one["data"])["series"] for one in told] == [BTC, ETH]
            assert told[0]["data"] == page.get(f"/api/forecast/{BTC}").text
            assert told[0]["retry"] == "1000"
            page.exchange.now_s += 900
            later = first.event()
            assert json.loads(later["data"])["first_bar"] == "2024-12-31T18:15:00Z"
        with listening(page, **{"Last-Event-ID": told[1]["id"]}) as again:
            assert again.event() == {**later, "retry": "1000"}
        for stranger in ("1-999999", "x", f"{told[0]['id'].partition('-')[0]}-{'9' * 5_000}"):
            with listening(page, **{"Last-Event-ID": stranger}) as anew:
                assert {json.loads(anew.event()["data"])["series"] for _ in range(2)} == {BTC, ETH}


@pytest.mark.nightly
def test_a_fault_is_an_event_once_and_so_is_what_comes_after_it(serve: Serve) -> None:
    forecasts: list[ForecastIssuer] = []
    is_broken = threading.Event()

    def issue(fleet: Any, series: Series) -> Any:
        if not forecasts:
            api = KlinesApi()
            forecasts.append(ForecastIssuer(RestSource(api, ExchangeClock(api.time_s, most_age_s=0.0))))
        if is_broken.is_set() and str(series) == ETH:
            raise DataError(where=f"/secret/{ETH}.csv", rule="needs rows", got="0", fix="Add some")
        return forecasts[0](fleet, series)

    with serve(issue=issue) as page, listening(page) as heard:
        before = {told["id"]: told["data"] for told in (heard.event(), heard.event())}
        is_broken.set()
        page.exchange.now_s += 3_600
        told = sorted((heard.event(), heard.event()), key=lambda one: one["event"])
        assert [one["event"] for one in told] == ["fault", "forecast"]
        content = json.loads(told[0]["data"])
        assert content["series"] == ETH
        assert content["error"] == {"where": "(a file)", "rule": "needs rows", "got": "0", "fix": "Add some"}
        is_broken.clear()
        page.exchange.now_s += 11  # it is asked for again
        last = heard.event()
        assert (last["event"], json.loads(last["data"])["first_bar"]) == ("forecast", "2024-12-31T19:00:00Z")
        assert not {told[0]["id"], told[1]["id"], last["id"]} & {*before}


def test_a_stream_ends_after_its_time_and_says_that_it_lives(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.until(lambda: "being made" not in served.get("/part").text)
    with listening(served) as first:
        newest = [first.event(), first.event()][1]["id"]
    monkeypatch.setattr(server, "STREAM_S", 2)
    monkeypatch.setattr(server, "HEARTBEAT_S", 1)
    with listening(served, **{"Last-Event-ID": newest}) as again:
        assert again.event() == {}
        assert again.comments == ["nothing new"] * 2
    response = served.get("/api/stream", method="HEAD")
    assert (response.status, response.body) == (200, b"")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_one_address_keeps_no_other_out(served: Any) -> None:
    served.until(lambda: served.get("/api/stream", method="HEAD").status == 200)
    with ExitStack() as opened:
        heard = [opened.enter_context(listening(served)) for _ in range(8)]
        assert [each.answer.status for each in heard] == [200] * 8
        response = served.get("/api/stream")
        assert (response.status, response.headers["retry-after"]) == (429, "10")
        assert response.json()["error"]["rule"] == "has at most 8 streams at once"
        assert opened.enter_context(elsewhere(served)).startswith(b"HTTP/1.1 200")
        assert served.get("/api/series").status == 200
    served.until(lambda: served.get("/api/stream", method="HEAD").status == 200)


@contextmanager
def elsewhere(page: Any) -> Iterator[bytes]:
    """Open a stream from another address of this machine; yield the first line of its answer."""
    server_address = urlsplit(page.url).hostname, urlsplit(page.url).port
    try:
        caller = socket.create_connection(server_address, 60, source_address=("127.0.0.2", 0))
    except OSError:
        pytest.skip("this machine has one address, 127.0.0.1")
    with caller:
        caller.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield caller.makefile("rb").readline()


def test_no_more_are_open_where_a_crowd_asks_in_the_same_moment(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_STREAMS", 2)
    served.until(lambda: served.get("/api/stream", method="HEAD").status == 200)
    with ExitStack() as opened:
        address = urlsplit(served.url)
        crowd = [socket.create_connection((address.hostname, address.port), 60) for _ in range(40)]
        for caller in map(opened.enter_context, crowd):
            caller.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answers = Counter(caller.makefile("rb").readline().split()[1] for caller in crowd)
        response = served.get("/api/stream")
        assert (response.status, response.headers["retry-after"]) == (503, "10")
        assert response.json()["error"]["rule"] == "sends 2 streams at once"
        assert served.get("/api/series").status == 200
    assert answers == {b"200": 2, b"503": 38}


def test_who_shows_no_token_hears_nothing_and_a_server_that_stops_leaves_a_stream_without_a_word(
    serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    origin = "https://you.example"
    with serve(AccessPolicy(token=TOKEN, origins=(origin,))) as page:
        with listening(page) as refused:
            assert refused.answer.status == 401
        with listening(page, Host="evil.example") as refused:
            assert refused.answer.status == 400
        asked = {"Origin": origin, "Access-Control-Request-Method": "GET"}
        asked["Access-Control-Request-Headers"] = "authorization, last-event-id"
        assert page.get("/api/stream", method="OPTIONS", **asked).status == 200
        manager = listening(page, Authorization=f"Bearer {TOKEN}", Origin=origin)
        heard = manager.__enter__()
        assert heard.event()["event"] == "forecast"
        assert heard.answer.getheader("access-control-allow-origin") == origin
    while heard.event():
        pass
    manager.__exit__(None, None, None)
    assert capfd.readouterr() == ("", "")
