"""Who is let in: by a token, from pages of other origins, and how often."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import pytest
from local_server import LocalServer, QuietHandler
from starlette.requests import Request

from v8.annexes.live.app import guard
from v8.annexes.live.app.guard import AccessControl, AccessPolicy
from v8.base.errors import ProfileError

BTC = "BTCUSDT-15m"
TOKEN = "made-up.Token_of~16"
OPEN = frozenset({"/page.css"})
OURS = "https://desk.example:8443"


def request(path: str = "/api/series", query: str = "", host: str = "192.0.2.1", **headers: str) -> Request:
    """Return a request as the gate gets it."""
    named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request(
        {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"host", b"here:8008"), *named],
            "client": (host, 1),
            "server": ("here", 8008),
            "scheme": "http",
        }
    )


@pytest.mark.parametrize(
    ("address", "name", "own"),
    [
        ("127.0.0.1", None, ()),
        ("127.0.0.1", "localhost", ()),
        ("::1", "::1", ()),
        ("127.0.1.1", "MyBox", ("127.0.1.1", "mybox")),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", ("[::ffff:127.0.0.1]",)),
    ],
)
def test_as_long_as_only_this_machine_can_connect_its_names_alone_are_allowed(
    address: str, name: str | None, own: tuple[str, ...]
) -> None:
    assert guard.allowed_hosts(address, name) == guard.LOOPBACK_NAMES | {*own}


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "fe80::1%eth0"])
def test_where_others_can_connect_any_name_is_allowed(address: str) -> None:
    assert guard.allowed_hosts(address, address) is None


@pytest.fixture(scope="module")
def closed(serve: Callable[..., AbstractContextManager[Any]]) -> Any:
    """A page that asks for a token."""
    with serve(AccessPolicy(token=TOKEN, origins=("http://localhost:3000", OURS))) as page:
        yield page


PATHS = (
    "/api/series",
    f"/api/forecast/{BTC}",
    f"/api/candles/{BTC}",
    "/metrics",
    "/openapi.json",
    "/api",
    "/",
)


@pytest.mark.tf
@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \xff\xfe",
    ],
)
def test_without_the_token_nothing_is_told(closed: Any, header: str | None) -> None:
    for path in PATHS:
        response = closed.get(path, **({} if header is None else {"Authorization": header}))
        assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
        assert response.json()["error"].keys() == {"where", "rule", "got", "fix"}
        assert response.json()["error"]["got"] == ("none" if header is None else "another one")
        assert response.headers["cache-control"] == "no-store"
        assert BTC not in response.text
        assert TOKEN not in response.text


@pytest.mark.tf
def test_with_the_token_everything_is_told(closed: Any) -> None:
    for path in PATHS:
        for kind in ("Bearer", "bearer"):
            assert closed.get(path, Authorization=f"{kind} {TOKEN}").status == 200, path


@pytest.mark.tf
def test_whether_it_works_is_told_to_all_and_the_rest_of_it_to_those_with_the_token(closed: Any) -> None:
    assert closed.get("/api/health").json() == {"status": "ok"}
    content = closed.get("/api/health", Authorization=f"Bearer {TOKEN}").json()
    assert content.keys() > {"status", "version", "place", "num_series"}


@pytest.mark.process
@pytest.mark.tf
def test_a_browser_is_asked_for_the_token_and_keeps_a_cookie_that_is_not_the_token(
    closed: Any, browser: Any
) -> None:
    for path in ("/", f"/?series={BTC}", "/api", "/api/series"):
        response = closed.get(path, Accept="text/html")
        assert (response.status, response.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert 'type="password"' in response.text
        assert BTC not in response.text
    browser.look(390, is_dark=True)
    browser.open(closed.url, "document.getElementById('token') !== null")
    assert browser.value("document.querySelector('[role=alert]').hidden")
    assert browser.value("getComputedStyle(document.querySelector('[role=alert]')).display") == "none"
    assert browser.value("document.documentElement.scrollWidth") == 390
    enter = "const box = document.getElementById('token'); box.value = '{}'; box.form.requestSubmit();"
    browser.value(enter.format("x" * 20))
    browser.wait("document.querySelector('[role=alert]')?.hidden === false")
    browser.value(enter.format(TOKEN))
    browser.wait("document.documentElement.dataset.shown > 0")
    assert TOKEN not in browser.value("location.href")
    been = [entry["url"] for entry in browser.tell("Page.getNavigationHistory")["entries"]]
    assert f"{closed.url}/" in been
    assert not any(TOKEN in url or "x" * 20 in url for url in been)
    assert browser.value("document.cookie") == ""  # no script reads it
    (cookie,) = browser.tell("Network.getCookies")["cookies"]
    assert TOKEN not in cookie["name"] + cookie["value"]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Lax", False)
    assert closed.get("/api/series", Cookie=f"{cookie['name']}={cookie['value']}").status == 200
    assert closed.get("/api/series", Cookie=f"{cookie['name']}={cookie['value'][:-1]}").status == 401
    assert browser.value("document.documentElement.dataset.errors") == "0"


@pytest.mark.parametrize(
    ("path", "query", "kept"),
    [
        ("/", "token={}", "/"),
        ("/", "series=ETHUSDT-1h&token={}&lang=zh-TW", "/?series=ETHUSDT-1h&lang=zh-TW"),
        ("//evil.example/", "token={}", "/evil.example/"),
        ("/\\evil.example", "token={}", "/%5Cevil.example"),
        ("/a\r\nSet-Cookie: x=y", "token={}", "/aSet-Cookie:%20x=y"),
        ("/\t/evil.example", "token={}", "/evil.example"),
        ("/series/BTCUSDT-15m", "token={}", "/series/BTCUSDT-15m"),
    ],
)
def test_an_address_with_the_token_leads_to_the_same_without_it_and_to_no_other_server(
    path: str, query: str, kept: str
) -> None:
    gate = AccessControl(AccessPolicy(token=TOKEN), OPEN)
    answer = gate.refusal(request(path, query.format(TOKEN)))
    assert answer is not None
    assert (answer.status_code, answer.headers["location"]) == (303, kept)
    name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
    assert "secure" not in answer.headers["set-cookie"].lower()
    # Whoever has the cookie and comes by such an address again is sent on, too.
    again = gate.refusal(
        request(path, query.format(TOKEN), cookie=f"{name}={value}", x_forwarded_proto="https")
    )
    assert again is not None
    assert "; secure" in again.headers["set-cookie"].lower()
    assert gate.refusal(request(path, cookie=f"{name}={value}")) is None
    wrong = gate.refusal(request(path, "token=other"))
    assert wrong is not None
    assert (wrong.status_code, wrong.headers.get("set-cookie")) == (401, None)
    typed = gate.refusal(request(path, "token=almost-it", accept="text/html"))
    assert typed is not None
    assert (typed.status_code, typed.headers.get("set-cookie")) == (303, None)
    assert typed.headers["location"] == f"{kept.partition('?')[0]}?token="
    empty = gate.refusal(request(path, "token=", accept="text/html"))
    assert empty is not None
    assert (empty.status_code, b"hidden" in empty.body) == (401, False)


def test_the_cookie_of_another_token_is_none() -> None:
    ours, theirs = (
        AccessControl(AccessPolicy(token=token), OPEN) for token in (TOKEN, "another-token-of-it")
    )
    answer = theirs.refusal(request("/", "token=another-token-of-it"))
    assert answer is not None
    assert ours.refusal(request(cookie=answer.headers["set-cookie"].partition(";")[0])) is not None


def test_without_a_token_an_address_that_holds_one_is_as_any() -> None:
    assert AccessControl(AccessPolicy(), OPEN).refusal(request("/", f"token={TOKEN}")) is None


@pytest.mark.parametrize(
    "token", ["", "short", "x" * 15, "x" * 257, "with blank with blank", "ünicode-ünicode-ü", "a\nb" * 9]
)
def test_what_is_no_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ProfileError, match=r"^V8_APP_TOKEN: is 16 to 256 letters") as caught:
        AccessPolicy(token=token)
    assert not token or token not in str(caught.value)
    assert f"got another text of {len(token)} letters" in str(caught.value)
    assert TOKEN not in repr(AccessPolicy(token=TOKEN))


@pytest.mark.parametrize(
    "origin",
    [
        "example.org",
        "https://example.org/",
        "https://Example.org",
        "ftp://a",
        "null",
        "https://a b",
        "",
        "https://a:1:2",
    ],
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ProfileError, match=r"--cors: .*host and port"):
        AccessPolicy(origins=(origin,))


@pytest.mark.tf
def test_pages_of_an_origin_read_what_others_must_not(closed: Any) -> None:
    theirs = "https://evil.example"
    token = {"Authorization": f"Bearer {TOKEN}"}
    asked = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}
    before = closed.get("/api/series", method="OPTIONS", Origin=OURS, **asked)
    assert before.status == 200
    assert before.headers["access-control-allow-origin"] == OURS
    assert "authorization" in before.headers["access-control-allow-headers"].lower()
    assert before.headers["x-content-type-options"] == "nosniff"
    refused = closed.get("/api/series", method="OPTIONS", Origin=theirs, **asked)
    assert (refused.status, refused.headers.get("access-control-allow-origin")) == (400, None)
    for path, status in (("/api/series", 200), ("/nowhere", 404)):
        response = closed.get(path, Origin=OURS, **token)
        assert (response.status, response.headers["access-control-allow-origin"]) == (status, OURS)
        assert "access-control-allow-credentials" not in response.headers
        assert "Origin" in response.headers["vary"]
        assert "Retry-After" in response.headers["access-control-expose-headers"]
    # What was refused can be read, too, so that a page can say why.
    assert closed.get("/api/series", Origin=OURS).headers["access-control-allow-origin"] == OURS
    other = closed.get("/api/series", Origin=theirs, **token)
    assert (other.status, other.headers.get("access-control-allow-origin")) == (200, None)
    # It is still a name of this machine that it must be asked by.
    assert closed.get("/api/series", Origin=OURS, Host="evil.example").status == 400
    assert closed.get("/api/series", method="OPTIONS").status == 405


@pytest.mark.process
@pytest.mark.tf
def test_a_browser_lets_pages_of_that_origin_read_it_and_no_others(
    serve: Callable[..., AbstractContextManager[Any]], browser: Any
) -> None:
    class Page(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>a page of somebody else's</title>")

    with LocalServer(Page) as origin:
        port = origin.server_port
        with serve(AccessPolicy(origins=(f"http://127.0.0.1:{port}",), token=TOKEN)) as page:
            asking = f"fetch('{page.url}/api/series', {{headers: {{Authorization: 'Bearer {TOKEN}'}}}})"
            read = f"{asking}.then((told) => told.json()).then((told) => told.series.length, () => 'blocked')"
            found = []
            for name in ("127.0.0.1", "localhost"):  # another origin, though the same server
                browser.open(f"http://{name}:{port}/", "document.title !== ''")
                told = browser.tell("Runtime.evaluate", expression=read, awaitPromise=True)
                found.append(told["result"]["value"])
    assert found == [2, "blocked"]


@pytest.mark.tf
def test_without_an_origin_no_page_of_another_reads_anything(served: Any) -> None:
    response = served.get("/api/series", Origin="https://evil.example")
    assert "access-control-allow-origin" not in response.headers
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"}
    assert served.get("/api/series", method="OPTIONS", **asked).status == 405


@pytest.mark.tf
def test_guesses_of_a_token_are_counted_whatever_name_and_address_they_claim(
    serve: Callable[..., AbstractContextManager[Any]],
) -> None:
    policy = AccessPolicy(None, ("https://frames.example",), token=TOKEN, max_per_minute=5)
    with serve(policy) as page:
        found = []
        for number in range(12):
            claimed = {"X-Forwarded-For": f"192.0.2.{number}", "Host": "me.example"}
            found.append(page.get("/api/series", Authorization=f"Bearer {number:020}", **claimed))
        statuses = [told.status for told in found]
        # The minute of the clock may turn meanwhile, once.
        assert statuses[:5] == [401] * 5
        assert statuses.count(429) >= 12 - 2 * 5
        told = next(told for told in found if told.status == 429)
        assert 1 <= int(told.headers["retry-after"]) <= 60
        assert told.json()["error"]["rule"] == "asks at most 5 times a minute"
        assert told.headers["content-security-policy"].endswith("frame-ancestors https://frames.example")
        for path in ("/api/health", "/page.css"):
            assert {page.get(path).status for _ in range(12)} == {200}


def test_addresses_are_counted_each_by_itself_anew_each_minute_and_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [30.0]
    gate = AccessControl(AccessPolicy(max_per_minute=2), OPEN, lambda: now_s[0])

    def status(host: str) -> int:
        answer = gate.refusal(request(host=host))
        return answer.status_code if answer else 200

    assert [status("192.0.2.1") for _ in range(3)] == [200, 200, 429]
    assert [status("192.0.2.2") for _ in range(3)] == [200, 200, 429]
    # Of IPv6 one has 64 bits at least; what an old address looks like to a new socket is itself.
    assert [status(f"2001:db8::{number}") for number in range(3)] == [200, 200, 429]
    assert status("2001:db8:0:1::1") == 200
    assert [status("::ffff:192.0.2.1"), status("::ffff:192.0.2.9")] == [429, 200]
    answer = gate.refusal(request(host="192.0.2.1"))
    assert answer is not None
    assert answer.headers["retry-after"] == "31"
    now_s[0] = 60.0
    assert [status("192.0.2.1") for _ in range(3)] == [200, 200, 429]
    monkeypatch.setattr(guard, "MAX_ADDRESSES", 100)
    for number in range(300):
        assert status(f"198.51.{number // 250}.{number % 250}") == 200
    assert len(gate._num_requests) == 100


@pytest.mark.tf
def test_nothing_of_the_token_is_said_to_the_operator(closed: Any, capfd: pytest.CaptureFixture[str]) -> None:
    closed.get(f"/?token={TOKEN}")
    closed.get(f"/nowhere?token={TOKEN}x")
    said = capfd.readouterr()
    assert TOKEN not in said.out + said.err + "".join(closed.told)


@pytest.mark.tf
def test_the_page_that_asks_loads_only_what_is_open(closed: Any) -> None:
    page = closed.get("/", Accept="text/html").text
    wanted = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert wanted
    for path in wanted:
        assert urlsplit(path).netloc == ""
        assert closed.get(path).status == 200, path
