"""The API over HTTP: what it answers, when it answers anew, and how calmly it refuses."""

from __future__ import annotations

import http.client
import json
import re
import selectors
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from v8.annexes.live.app import server
from v8.annexes.live.app.answers import description
from v8.annexes.live.app.service import ForecastIssuer
from v8.base.errors import DataError
from v8.base.storage import digest_bytes
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.forecaster.forecaster import Forecaster

pytestmark = pytest.mark.tf

BTC = "BTCUSDT-15m"
ETH = "ETHUSDT-1h"


def test_the_forecast_is_that_of_the_model_on_the_newest_closed_candles(served: Any) -> None:
    content = served.get(f"/api/forecast/{BTC}").json()
    assert content["candles"]["closed_at"] == content["first_bar"] == "2024-12-31T18:00:00Z"
    forecaster = Forecaster.load(served.run / BTC)
    candles = open_source("demo").candles(
        Series.parse(BTC), forecaster.needed_bars, end_s=1_735_668_000 - 900
    )
    expected = forecaster.predict(candles)
    assert [row["close"] for row in content["forecast"]] == pytest.approx(list(expected["close"]), rel=1e-6)
    assert len(content["forecast"]) == 3
    assert content["model"]["quality"]["ohlc"].keys() >= {
        "relative_mae",
        "best_baseline",
        "relative_mae_to_best",
    }
    assert (
        content["trained"]["model_sha256"]
        == content["model"]["sha256"]
        == forecaster.metadata["model_sha256"]
    )


def test_every_route_that_is_described_is_there_and_no_other(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STREAM_S", 1)
    described = served.get("/openapi.json").json()["paths"]
    assert described.keys() == description()["paths"].keys()
    for route in described:
        response = served.get(route.replace("{series}", ETH))
        assert response.status == 200, route
        (kind,) = described[route]["get"]["responses"]["200"]["content"]
        assert response.headers["content-type"].partition(";")[0] == kind
        assert kind in ("text/plain", "text/event-stream") or json.loads(response.body)


def test_one_forecast_a_candle_however_often_it_is_asked_for(
    serve: Callable[..., AbstractContextManager[Any]],
) -> None:
    with serve() as page:
        first = page.get(f"/api/forecast/{BTC}")
        page.until(lambda: "being made" not in page.get("/part").text)  # nothing is asked for meanwhile
        num_asked = len(page.exchange.klines_requests())
        assert all(page.get(f"/api/forecast/{BTC}").body == first.body for _ in range(20))
        assert len(page.exchange.klines_requests()) == num_asked
        assert 400 < int(first.headers["cache-control"].removeprefix("private, max-age=")) <= 8 * 60 + 1
        page.exchange.now_s += 900
        page.until(lambda: page.get(f"/api/forecast/{BTC}").json()["first_bar"] == "2024-12-31T18:15:00Z")
        assert len(page.exchange.klines_requests()) == num_asked + 1


def test_another_model_is_taken_up_and_a_broken_one_leaves_the_old(
    serve: Callable[..., AbstractContextManager[Any]],
) -> None:
    with serve() as page:
        before = page.get(f"/api/forecast/{BTC}").json()
        metadata = page.run / BTC / "metadata.json"
        whole = metadata.read_text()
        metadata.write_text("{")
        page.until(lambda: page.is_told("is not shown"))
        assert page.get(f"/api/forecast/{BTC}").status == 404
        assert page.get(f"/api/forecast/{ETH}").status == 200
        # A model that was trained further: the same network in another file.
        content = (page.run / BTC / "model.keras").read_bytes()
        (page.run / BTC / "model.keras").write_bytes(content[:-2] + b"\x01\x00+")
        changed = json.loads(whole)
        changed["model_sha256"] = digest_bytes(content[:-2] + b"\x01\x00+")
        metadata.write_text(json.dumps(changed))
        page.until(lambda: page.get(f"/api/forecast/{BTC}").status == 200)
        after = page.get(f"/api/forecast/{BTC}").json()
        assert after["model"]["sha256"] == changed["model_sha256"] != before["model"]["sha256"]
        assert after["forecast"] == before["forecast"]
        (page.run / "serving.json").write_text("{")
        page.until(lambda: page.is_told("serve on"))
        assert page.get("/api/series").json()["series"]


def test_an_exchange_in_trouble_is_told_without_paths_and_asked_again_later(
    serve: Callable[..., AbstractContextManager[Any]],
) -> None:
    with serve() as page:
        page.exchange.is_blocked = True
        response = page.get(f"/api/forecast/{ETH}")
        assert response.status == 503
        assert response.headers["retry-after"] == "10"
        assert response.json()["error"].keys() == {"where", "rule", "got", "fix"}
        num_asked = len(page.exchange.requests)
        part = page.get(f"/part/{ETH}")
        assert (part.status, 'role="alert"' in part.text) == (503, True)
        assert len([each for each in page.exchange.requests[num_asked:] if "klines" in each]) == 0
        for secret in (str(page.run), "Traceback", ".py"):
            assert secret not in response.text + part.text


@pytest.mark.parametrize(
    "name",
    ["NOPE", "btcusdt-15m", "..", "%2e%2e", "BTCUSDT-15m%00", "%0d%0aSet-Cookie:x", "'", "A" * 1_500, "%ff"],
)
def test_what_is_no_series_is_404_in_one_form(served: Any, name: str) -> None:
    for route in ("/api/forecast/", "/api/track/", "/part/", "/series/"):
        response = served.get(route + name)
        assert response.status == 404
        # A name is suggested where it is close, and `btcusdt-15m` means a series that is shown.
        is_close = name.lower().startswith("btcusdt-15m")
        meant = "Did you mean BTCUSDT-15m" if is_close else "Choose one of these"
        assert response.json()["error"]["fix"] == meant
        assert len(response.body) < 800


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/forecast/../../etc/passwd", 404),
        ("/api/forecast/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 404),
        ("/api/forecast/", 404),
        ("//evil.example/", 404),
        ("/api/series?" + "x" * 3_000, 400),
        ("/" + "a" * 3_000, 400),
        ("/?series=NOPE", 404),
        ("/?series=%3Cscript%3E", 404),
        ("/api/series?anything=%00&series=1", 400),
    ],
)
def test_hostile_addresses_are_answered_calmly(served: Any, path: str, status: int) -> None:
    response = served.get(path)
    assert response.status == status
    if status != 200:
        assert response.json()["error"].keys() == {"where", "rule", "got", "fix"}
    assert "<script>" not in response.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_only_reading_is_allowed(served: Any, method: str) -> None:
    response = served.get("/api/series", method=method)
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")


def test_head_is_get_without_a_body(served: Any) -> None:
    seen = served.get("/api/series", method="HEAD")
    answer = served.get("/api/series")
    assert (seen.status, seen.body) == (200, b"")
    assert seen.headers["content-length"] == str(len(answer.body))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8008", "127.0.0.1.evil.example", "", "[::2]"])
def test_a_name_that_a_stranger_made_lead_here_is_refused(served: Any, host: str) -> None:
    response = served.get("/api/series", Host=host)
    assert (response.status, response.json()["error"]["where"]) == (400, "header Host")


def test_every_answer_carries_the_same_guards(served: Any) -> None:
    for path in (
        "/",
        "/page.js",
        "/api/series",
        "/nowhere",
        f"/part/{BTC}",
        f"/series/{BTC}",
        "/leaderboard",
    ):
        headers = served.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_more_requests_than_are_answered_at_once_are_told_to_come_back(
    serve: Callable[..., AbstractContextManager[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work that all wait for goes on until those that are too many have their answer."""
    from v8.annexes.live.app import guard

    monkeypatch.setattr(server, "WAIT_S", 300.0)
    is_enough = threading.Event()

    def slow() -> None:
        is_enough.wait(300.0)

    def status(one: http.client.HTTPConnection) -> int:
        answer = one.getresponse()
        answer.read()
        one.close()
        return answer.status

    with serve(record=slow) as page, selectors.DefaultSelector() as coming:
        address = urlsplit(page.url)
        asking = [http.client.HTTPConnection(address.hostname, address.port, timeout=300) for _ in range(140)]
        for one in asking:
            one.request("GET", f"/api/track/{BTC}")
            coming.register(one.sock, selectors.EVENT_READ, one)
        refused: list[http.client.HTTPConnection] = []
        while len(refused) < 140 - guard.MAX_CONCURRENT_REQUESTS:
            ready = [key.data for key, _ in coming.select(timeout=300)]
            assert ready
            for one in ready:
                coming.unregister(one.sock)
                refused.append(one)
                assert status(one) == 503
        assert len(refused) == 140 - guard.MAX_CONCURRENT_REQUESTS
        is_enough.set()
        assert {status(one) for one in asking if one not in refused} == {200}


def test_the_page_works_without_its_script(served: Any) -> None:
    page = served.get(f"/series/{ETH}").text
    assert f"<h1>{ETH}</h1>" in page
    volatility = served.get(f"/api/forecast/{ETH}").json()["forecast"][-1]["volatility"]
    assert f"<td>{100 * volatility:.3f} %</td>" in page
    assert "No live record yet" in page
    record = served.get("/record").text
    assert re.search(r"<code>[^<]* forecast runs/[^ /<]+ --source rest --every</code>", record)
    assert "of the last 20 closes" in page
    assert re.search(r"made at [\d: -]+ UTC, [\d a-z.]+ after the close\.", page)
    assert re.search(r"Best baselines: [^<]*\([a-z_]+\)", page)
    # The one link to another host is what the licence of the charts asks for; nothing is requested there.
    assert re.findall(r"https?://[^ \"<]*", page) == ["https://www.tradingview.com/"] * 2


def test_the_address_that_a_series_had_leads_to_the_one_it_has(served: Any) -> None:
    assert f"<h1>{ETH}</h1>" in served.get(f"/?series={ETH}").text
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=60)
    connection.request("GET", f"/?series={ETH}", headers={"Host": "localhost"})
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("location")) == (308, f"/series/{ETH}")
    connection.close()


def tiles_of(page: Any, path: str = "/") -> list[str]:
    """Return the markup of each tile, in their order."""
    return re.findall(r"<li data-series(.*?)</li>", page.get(path).text)


@pytest.mark.parametrize(
    ("path", "writer"),
    [("/api/leaderboard", "answers.leaderboard"), ("/", "tile_list"), ("/record", "whole_record_part")],
)
def test_others_are_answered_while_an_answer_about_all_series_is_written(
    served: Any, monkeypatch: pytest.MonkeyPatch, path: str, writer: str
) -> None:
    is_writing = threading.Event()
    may_end = threading.Event()

    def slow(*values: Any, **names: Any) -> Any:
        is_writing.set()
        assert may_end.wait(60)
        return write(*values, **names)

    write = attrgetter(writer)(server)
    with ThreadPoolExecutor(2) as readers, monkeypatch.context() as patch:
        patch.setattr(f"v8.annexes.live.app.server.{writer}", slow)
        slow_answer = readers.submit(served.get, path)
        try:
            assert is_writing.wait(60)
            assert readers.submit(served.get, "/api/health").result(timeout=10).status == 200
        finally:
            may_end.set()
        assert slow_answer.result(timeout=60).status == 200


def test_the_overview_has_a_tile_a_series_the_wildest_first_in_one_answer(served: Any) -> None:
    served.until(lambda: "being made" not in served.get("/part").text)
    tiles = tiles_of(served)
    assert {re.search(r'href="/series/([^"]*)"', tile)[1] for tile in tiles} == {BTC, ETH}
    ranks = [int(re.search(r"higher than (\d+) % of the time", tile)[1]) for tile in tiles]
    assert ranks[0] >= ranks[1]
    # What the tiles are ordered by stands on them, in the table, and in the order's name by one name.
    assert [int(re.search(r'class="percentile">(\d+)<i>/100<', tile)[1]) for tile in tiles] == ranks
    for tile, rank in zip(tiles, ranks, strict=True):
        assert f"volatility percentile {rank} of 100" in tile
    overview = served.get("/").text
    assert re.search(r'<option value="wild"[^>]*>By volatility percentile<', overview)
    assert re.search(r"<span title=[^>]*>Mood, volatility percentile</span>", overview)
    for tile in tiles:
        name = re.search(r"<h2>([^<]*)</h2>", tile)[1]
        rows = served.get(f"/api/forecast/{name}").json()["forecast"]
        low = min(row["low"] for row in rows)
        high = max(row["high"] for row in rows)
        match = re.search(r"Next 3 bars \([^)]*\): medians from ([\d.,]+) to ([\d.,]+);", tile)
        ends = [float(text.replace(",", "")) for text in match.groups()[:2]]
        assert ends == pytest.approx([low, high], rel=1e-5)
        # The range says how far ahead it reaches: without it, it reads as that of the last day.
        hours = "45 min" if name == BTC else "3 h"
        assert re.search(rf'class="ahead"[^>]*>next {hours}: <span>[\d.,]+ – [\d.,]+</span>', tile)
        assert f"Volatility ahead: {100 * rows[-1]['volatility']:.3f} %" in tile
        price = float(re.search(r'class="price">([\d.,]+)<', tile)[1].replace(",", ""))
        candles = open_source("demo").candles(Series.parse(name), 900).to_frame()["close"]
        at = candles.index.get_loc("2024-12-31T17:45Z" if name == BTC else "2024-12-31T17:00Z")
        assert price == pytest.approx(candles.iloc[at], rel=1e-6)
        day = 96 if name == BTC else 24
        change = 100 * (candles.iloc[at] / candles.iloc[at - day] - 1)
        sign, size = re.search(r'class="change (?:gain|loss)"><i>24 h </i>(.)([\d.]+) %<', tile).groups()
        assert float(f"{'-' if sign == '−' else ''}{size}") == pytest.approx(change, abs=0.006)
        # No model of the tiny run is tested: the page says so once, and shows no chip in tiles.
        assert (tile.count("<svg"), tile.count('class="chip unknown"')) == (1, 1)
    assert overview.count("No model is tested") == 1
    assert "As of 2024-12-31 18:00 UTC." in served.get("/part").text
    assert len(served.get("/").body) < 14_000
    assert [re.search("<h2>(.*?)</h2>", tile)[1] for tile in tiles_of(served, "/?q=eth")] == [ETH]
    assert tiles_of(served, "/?q=%3Cscript%3E") == []
    assert "<script>" not in served.get("/?q=%22%3E%3Cscript%3E").text


def test_what_is_calm_or_wild_is_told_by_its_own_month(served: Any) -> None:
    text = served.get(f"/part/{ETH}").text
    ahead, mood, share = re.search(
        r"Volatility ahead: ([\d.]+) %, (\w+): volatility percentile (\d+) of 100, higher than \3 % of", text
    ).groups()
    candles = open_source("demo").candles(Series.parse(ETH), 900, 1_735_603_200 - 3_600)  # until midnight
    close = candles.to_frame()["close"]
    volatility = 100 * (close.rolling(20).std() / close.rolling(20).mean()).dropna().iloc[-720:]
    below = 100 * (volatility < float(ahead)).mean()
    assert int(share) == pytest.approx(below, abs=1.5)
    assert mood == ("calm" if int(share) < 20 else "usual" if int(share) < 80 else "wild")


def test_a_tile_that_is_not_ready_says_so_and_one_in_trouble_why(
    serve: Callable[..., AbstractContextManager[Any]],
) -> None:
    may_go_on = threading.Event()
    forecasts: list[ForecastIssuer] = []

    def issue(fleet: Any, series: Series) -> Any:
        if not forecasts:
            forecasts.append(ForecastIssuer(open_source("rest")))
        if str(series) == ETH:
            may_go_on.wait(60)
            raise DataError(where=f"/secret/{ETH}.csv", rule="needs rows", got="0", fix="Add some")
        return forecasts[0](fleet, series)

    with serve(issue=issue) as page:
        page.until(lambda: "Next 3 bars" in page.get("/part").text)
        waiting = page.get("/part")
        assert [("being made" in tile) for tile in tiles_of(page)] == [False, True]
        assert "1 of 2 forecasts are ready" in waiting.text
        may_go_on.set()
        page.until(lambda: "being made" not in page.get("/part").text)
        ready, broken = tiles_of(page)
        assert "Next 3 bars" in ready
        assert "(a file): needs rows; got 0. Add some." in broken
        assert "secret" not in broken


def test_an_old_model_says_so_at_the_top(serve: Callable[..., AbstractContextManager[Any]]) -> None:
    with serve() as page:
        assert "Old model" not in page.get(f"/part/{BTC}").text
        metadata = page.run / BTC / "metadata.json"
        content = json.loads(metadata.read_text())
        # As if its newest candle were of the day before: from 16:15 to 18:00 there are 104 of 15 minutes.
        content["candles"]["last_open"] = "2024-12-30T16:00:00Z"
        content["split"]["test"]["rows"] = [0, 103]
        metadata.write_text(json.dumps(content))
        last_open = content["candles"]["last_open"]
        page.until(lambda: last_open in page.get("/api/series").text)
        page.exchange.now_s += 900  # a new candle, a new forecast
        page.until(lambda: "Old model" in page.get(f"/part/{BTC}").text)
        part = page.get(f"/part/{BTC}").text
        assert re.match(r'\s*<p class="old">[^<]* 104 candles [^<]* 103 ', part)


def test_a_page_speaks_the_language_of_the_browser_unless_another_is_asked_for(served: Any) -> None:
    chinese = {"Accept-Language": "zh-TW,zh;q=0.9,en;q=0.8"}
    for path in ("/", f"/series/{ETH}"):
        response = served.get(path, **chinese)
        assert '<html lang="zh-TW">' in response.text and "總覽" in response.text
        assert response.headers["vary"] == "Accept-Language"
        assert '<html lang="en">' in served.get(path).text
    assert '<html lang="en">' in served.get("/?lang=en", **chinese).text
    assert '<html lang="zh-TW">' in served.get("/?lang=xx", **chinese).text
    # Numbers and names are the same.
    english, other = (served.get(f"/part/{ETH}?lang={name}").text for name in ("en", "zh-TW"))
    cells = [re.findall(r"<td>([\d.,–% ]+)</td>", text) for text in (english, other)]
    assert cells[0] == cells[1] != []
    assert served.get(f"/api/forecast/{ETH}", **chinese).body == served.get(f"/api/forecast/{ETH}").body


def test_what_the_asker_has_is_not_sent_again(served: Any) -> None:
    served.until(lambda: "being made" not in served.get("/part").text)
    for path in ("/part", f"/part/{ETH}"):
        first = served.get(path)
        again = served.get(path, **{"If-None-Match": first.headers["etag"]})
        assert (first.status, again.status, again.body) == (200, 304, b"")
        assert served.get(path, **{"If-None-Match": '"other"'}).body == first.body


def test_a_chart_has_the_candles_and_the_forecast_of_the_api(served: Any) -> None:
    chart = served.get(f"/api/chart/{BTC}").json()
    forecast = served.get(f"/api/forecast/{BTC}").json()
    assert len(chart["open_times"]) == 500
    assert chart["closed_at"] == forecast["candles"]["closed_at"]
    candles = open_source("demo").candles(Series.parse(BTC), 900)
    last = int(np.searchsorted(candles.open_time_s, 1_735_668_000 - 900))
    close = candles.column("close")[: last + 1]
    assert chart["columns"]["close"] == pytest.approx(close[-500:], rel=1e-6)
    # Bollinger bands: two deviations of 20 closes
    middle = close[-20:].mean()
    deviation = close[-20:].std(ddof=1)
    assert chart["columns"]["bb_upper"][-1] == pytest.approx(middle + 2 * deviation, rel=1e-4)
    assert chart["columns"]["bb_upper"][0] is None
    assert chart["forecast_open_times"] == [row["open_time"] for row in forecast["forecast"]]
    for name, values in chart["forecast"].items():
        assert values == pytest.approx([row[name] for row in forecast["forecast"]], rel=1e-6), name
    assert served.get("/api/chart/NOPE").status == 404


def test_errors_are_pages_for_browsers_and_json_for_programs(served: Any) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml", "Accept-Language": "zh-TW"}
    for path, status in (("/series/NOPE", 404), ("/nowhere", 404), (f"/api/candles/{BTC}?limit=x", 400)):
        response = served.get(path)
        assert (response.status, response.headers["content-type"]) == (status, "application/json")
        assert response.json()["error"]["fix"]
        page = served.get(path, **browser)
        assert (page.status, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert "Accept" in page.headers["vary"]
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert '<html lang="zh-TW">' in page.text and '<a href="/">' in page.text
        assert response.json()["error"]["rule"].replace("'", "&#x27;") in page.text
    assert "NOPE" in served.get("/series/NOPE", Accept="text/html").text
    assert "<script>" not in served.get("/series/%3Cscript%3E", Accept="text/html").text
    assert served.get("/", method="PUT", Accept="text/html").headers["allow"] == "GET, HEAD"


def test_the_page_on_the_api_lists_every_route() -> None:
    page = (Path(__file__).parents[4] / "docs/en/how-to/page-and-api.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(/[^`]*)` \| ([^|]*) \|$", page, re.MULTILINE))
    told = {route: about["get"]["summary"] for route, about in description()["paths"].items()}
    assert {route: about.replace("`", "") for route, about in rows.items()} == told
