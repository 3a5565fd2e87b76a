"""The HTTP client: every answer ends within the limit, what may pass is tried again, no password is sent."""

from __future__ import annotations

import os
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest
import requests
from broken_http import STALLED, RawServer
from local_server import LocalServer, QuietHandler

from v8.annexes.live.posting import SECRET_VARIABLE, Message, Receiver
from v8.base.http_client import (
    BROKEN,
    HttpClient,
    RetryFailure,
    RetryPolicy,
    TimeLimits,
    TransientError,
    asked_wait_s,
    call_within,
)
from v8.data.market.sources.downloads import Downloader

TIMES = TimeLimits(connect_s=5.0, silence_s=5.0, try_s=0.5)
"""Less than a silence: so what ends a request is the limit of everything together."""
PATIENT = TimeLimits(connect_s=20.0, silence_s=20.0, try_s=60.0)

ONE_BY_ONE: list[bytes | float] = [b"x", 0.05]


class Recorder(LocalServer):
    """Answers everything, as a server or as a proxy, and keeps the path and the headers of each request."""

    def __init__(self) -> None:
        super().__init__(_Recording)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.leads_to: str | None = None


class _Recording(QuietHandler):
    server: Recorder
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        names = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.path, names))
        self.send_response(302 if self.server.leads_to else 200)
        if self.server.leads_to:
            self.send_header("location", self.server.leads_to)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def server() -> Iterator[Recorder]:
    with Recorder() as opened:
        yield opened


@pytest.fixture(params=["machine", "default"])
def _netrc(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a real netrc where every program looks for it: an entry of the host, or one for every host."""
    entry = "machine 127.0.0.1" if request.param == "machine" else "default"
    (tmp_path / ".netrc").write_text(f"{entry} login somebody password S3cret-word\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert requests.utils.get_netrc_auth("http://127.0.0.1/") == ("somebody", "S3cret-word")


def status(answered: requests.Response) -> int:
    return answered.status_code


def body(answered: requests.Response) -> bytes:
    return answered.raw.read()


def headers(server: Recorder) -> dict[str, str]:
    ((_, names),) = server.asked
    return names


@pytest.mark.usefixtures("_netrc")
def test_a_receiver_of_messages_gets_no_password_of_a_netrc(
    server: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "whsec_" + "A" * 32)
    Receiver(f"{server.url}/hooks").deliver([Message(1, "msg_1", "{}")])
    assert "authorization" not in headers(server)
    assert headers(server)["webhook-id"] == "msg_1"


@pytest.mark.usefixtures("_netrc")
def test_a_host_of_candles_gets_no_password_of_a_netrc_but_that_of_its_address(server: Recorder) -> None:
    with closing(Downloader("V8_VISION_URL")) as downloader:
        downloader.fetch(f"{server.url}/a", max_bytes=9)
        assert "authorization" not in headers(server)
        server.asked.clear()
        downloader.fetch(f"{server.url}/a", max_bytes=9, auth=("me", "word"))
    assert headers(server)["authorization"] == f"Basic {b64encode(b'me:word').decode()}"


@pytest.mark.usefixtures("_netrc")
def test_a_host_that_an_answer_leads_to_gets_no_password(server: Recorder) -> None:
    with Recorder() as first, closing(Downloader("V8_VISION_URL")) as downloader:
        first.leads_to = f"{server.url}/b"
        downloader.fetch(f"{first.url}/a", max_bytes=9, auth=("me", "word"))
        assert "authorization" in headers(first)
    assert "authorization" not in headers(server)


@pytest.mark.usefixtures("_netrc")
def test_the_proxy_of_the_environment_is_asked_with_its_own_password(
    server: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url.replace("://", "://door:key@"))
    monkeypatch.setenv("http_proxy", server.url.replace("://", "://door:key@"))
    monkeypatch.setenv(SECRET_VARIABLE, "whsec_" + "A" * 32)
    with closing(Downloader("V8_VISION_URL")) as downloader:
        downloader.fetch("http://candles.example/a", max_bytes=9)
    Receiver("http://receiver.example/hooks").deliver([Message(1, "msg_1", "{}")])
    assert [path for path, _ in server.asked] == ["http://candles.example/a", "http://receiver.example/hooks"]
    for _, names in server.asked:
        assert names["proxy-authorization"] == f"Basic {b64encode(b'door:key').decode()}"
        assert "authorization" not in names


@pytest.mark.parametrize(("pieces", "repeats"), STALLED.values(), ids=STALLED)
def test_an_answer_that_never_ends_is_cut_at_the_limit(pieces: list[bytes | float], repeats: bool) -> None:
    with (
        closing(RawServer(pieces, repeats=repeats, stays=True)) as server,
        HttpClient({}) as client,
        pytest.raises(TimeoutError, match=r"it took longer than 0\.5 s in all"),
    ):
        client.ask("GET", server.url, body, limits=TIMES)


@pytest.mark.nightly
def test_a_handshake_of_tls_that_drips_is_cut_at_the_limit() -> None:
    """A record of TLS that says it has 16,384 bytes, which come one by one."""
    with (
        closing(RawServer([b"\x16\x03\x03\x40\x00", *ONE_BY_ONE * 600], stays=True)) as server,
        HttpClient({}) as client,
        pytest.raises(TimeoutError, match="it took longer"),
    ):
        # Long enough for the certificates to be read: the handshake has begun when time is up.
        limits = TimeLimits(connect_s=20.0, silence_s=20.0, try_s=4.0)
        client.ask("GET", server.url.replace("http:", "https:"), body, limits=limits)


def test_a_proxy_that_drips_is_cut_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(RawServer([b"HTTP/1.1 200 OK\r\nX: ", *ONE_BY_ONE * 600], stays=True)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with HttpClient({}) as client, pytest.raises(TimeoutError, match="it took longer"):
            client.ask("GET", "https://candles.example/a", body, limits=TIMES)


def test_the_connection_of_a_request_that_was_cut_is_closed() -> None:
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening, HttpClient({}) as client:

        def serve() -> None:
            connected, _ = listening.accept()
            with connected:
                while connected.recv(65_536):
                    pass
                ended.set()

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(TimeoutError):
            client.ask("GET", f"http://127.0.0.1:{listening.getsockname()[1]}/", body, limits=TIMES)
        assert ended.wait(30)


def test_connections_are_kept_and_may_be_cut_later() -> None:
    with Recorder() as server, HttpClient({}) as client:
        for _ in range(3):
            assert client.ask("GET", server.url, status, limits=PATIENT) == 200
            assert client.ask("GET", server.url, body, limits=PATIENT) == b""
    pieces: list[bytes | float] = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 1.0, *ONE_BY_ONE * 600]
    with closing(RawServer(pieces, stays=True)) as raw, HttpClient({}) as client:
        assert client.ask("GET", raw.url, body, limits=PATIENT) == b"ok"
        with pytest.raises(BROKEN):
            client.ask("GET", raw.url, body, limits=TIMES)
        assert raw.num_connections == 1


def test_a_receiver_that_drips_is_trouble_that_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 967f431 the waits for single bytes had limits, and all of them together had none."""
    monkeypatch.setenv(SECRET_VARIABLE, "whsec_" + "A" * 32)
    for name in ("headers that drip", "1xx for ever"):
        pieces, repeats = STALLED[name]
        with (
            closing(RawServer(pieces, repeats=repeats)) as server,
            pytest.raises(TransientError, match=r"no answer \(TimeoutError\)"),
        ):
            Receiver(server.url, TIMES).deliver([Message(1, "msg_1", "{}")])


def test_what_a_call_raises_or_returns_in_time_comes_back() -> None:
    def fail() -> None:
        raise KeyError("mine")

    assert call_within(60, lambda: 7) == 7
    with pytest.raises(KeyError, match="mine"):
        call_within(60, fail)
    waiting = threading.Event()
    with pytest.raises(TimeoutError, match=r"longer than 0\.01 s in all"):
        call_within(0.01, lambda: waiting.wait(60))
    given_up: Future[None] = Future()
    threading.Timer(0.01, given_up.set_result, [None]).start()
    with pytest.raises(TimeoutError, match="given up"):
        call_within(60, lambda: waiting.wait(60), given_up)
    waiting.set()


class GaveUpError(Exception):
    def __init__(self, refused: RetryFailure) -> None:
        super().__init__(str(refused.trouble))
        self.refused = refused


def failing(times: int, wait_s: float | None = None) -> Callable[[float], str]:
    """Fail so many times, then answer."""
    troubles = [TransientError("status 503", wait_s) for _ in range(times)]

    def ask(_: float) -> str:
        if troubles:
            raise troubles.pop()
        return "answer"

    return ask


@pytest.fixture
def pauses_s() -> list[float]:
    return []


def test_pauses_double_up_to_the_longest_and_are_spread(pauses_s: list[float]) -> None:
    patience = RetryPolicy(num_tries=5, first_s=1.0, longest_s=4.0, sleep=pauses_s.append)
    assert patience.call(failing(4), GaveUpError) == "answer"
    ceilings_s = [1.0, 2.0, 4.0, 4.0]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses_s, ceilings_s, strict=True))


def test_the_pause_that_a_server_asks_for_is_kept_up_to_a_limit(pauses_s: list[float]) -> None:
    assert RetryPolicy(sleep=pauses_s.append).call(failing(1, 7.0), GaveUpError) == "answer"
    assert RetryPolicy(sleep=pauses_s.append, most_asked_s=5.0).call(failing(1, 7.0), GaveUpError) == "answer"
    assert pauses_s == [7.0, 5.0]


def test_after_the_last_try_the_refusal_tells_how_often_it_was_tried(pauses_s: list[float]) -> None:
    with pytest.raises(GaveUpError, match="status 503") as caught:
        RetryPolicy(num_tries=3, sleep=pauses_s.append).call(failing(9), GaveUpError)
    assert (caught.value.refused.num_tries, caught.value.refused.is_late, len(pauses_s)) == (3, False, 2)


def test_no_try_begins_that_could_end_too_late(pauses_s: list[float]) -> None:
    with pytest.raises(GaveUpError, match="status 503") as caught:
        RetryPolicy(most_s=10.0, try_s=4.0, sleep=pauses_s.append).call(failing(9, 7.0), GaveUpError)
    assert (caught.value.refused.is_late, caught.value.refused.pause_s, pauses_s) == (True, 7.0, [])


def test_a_try_that_moves_something_starts_the_count_anew(pauses_s: list[float]) -> None:
    moved = iter([0, 1, 1, 2, 2, 3, 3])
    patience = RetryPolicy(num_tries=2, sleep=pauses_s.append)
    assert patience.call(failing(3), GaveUpError, progress=lambda: next(moved)) == "answer"
    assert len(pauses_s) == 3


@pytest.mark.parametrize(
    "text", [None, "", "later", "-1", "7.5 s", "9" * 5_000, "Wed, 21 Oct 99999 07:28:00 GMT"]
)
def test_a_retry_after_that_means_nothing_is_none(text: str | None) -> None:
    assert asked_wait_s(text) is None
