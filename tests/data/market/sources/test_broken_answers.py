"""An archive that speaks broken HTTP: every answer is content, absence or one sentence, and never a hang."""

from __future__ import annotations

import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from broken_http import BROKEN, STALLED, RawServer, answer

from v8.base.errors import DataError
from v8.base.http_client import RetryPolicy, TimeLimits
from v8.base.process import reporting_waiting_to
from v8.data.market.sources.downloads import Downloader

NUM_TRIES = 2
LIMITS = TimeLimits(connect_s=2.0, silence_s=0.5, try_s=1.0, file_s=60.0, quiet_s=0.1)


OWN_CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgdskxdYs9BSB7WrOP
HT9N78Ql+gwxtWvJd1GgU3IoSxChRANCAATIg/JlEYyepUsPOAFaBIAAugBYtxuK
6hOAT3MwINNTrDiYcpCkLmUh2AtgKGxrEjwNFpQQApwNQUYd+JSievAZ
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBkDCCATagAwIBAgIUHWTJOW6E+ANBR+ZooJ2uxXySHggwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyODAzNDA0OFoYDzIxMjYxMTA0
MDM0MDQ4WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATIg/JlEYyepUsPOAFaBIAAugBYtxuK6hOAT3MwINNTrDiYcpCkLmUh
2AtgKGxrEjwNFpQQApwNQUYd+JSievAZo2QwYjAdBgNVHQ4EFgQU2nsln5WMQPw0
5iGqqscMdmpQvL4wHwYDVR0jBBgwFoAU2nsln5WMQPw05iGqqscMdmpQvL4wDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0gAMEUC
IG4QjA653WixlIEZSwCoCGizFN3BwzO+S+TNDHAZOA/AAiEA8TW148iKqvt1xPgc
DD9xK5PN5BN7/VToZH8WQ5N1SIs=
-----END CERTIFICATE-----
"""
"""A key and its certificate for 127.0.0.1 that nobody else has signed, for this test alone."""


@pytest.fixture
def downloader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Downloader]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    patience = RetryPolicy(num_tries=NUM_TRIES, sleep=lambda pause_s: None)
    with closing(Downloader("V8_VISION_URL", patience=patience, limits=LIMITS)) as opened:
        yield opened


@pytest.mark.parametrize("pieces", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_one_sentence(downloader: Downloader, pieces: list[bytes | float]) -> None:
    with closing(RawServer(pieces)) as server, pytest.raises(DataError) as caught:
        downloader.fetch(f"{server.url}/a", max_bytes=1_000)
    assert len(str(caught.value)) <= 600
    assert str(caught.value).isprintable()


def test_who_waits_long_is_told_how_long_and_at_which_try(downloader: Downloader) -> None:
    messages: list[str] = []
    with (
        closing(RawServer([], stays=True)) as server,
        reporting_waiting_to(messages.append),
        pytest.raises(DataError, match="must be downloaded"),
    ):
        downloader.map(lambda path: downloader.fetch(server.url + path, max_bytes=9), ["/data/a-2024-07.zip"])
    words = r"waiting for a-2024-07\.zip from 127\.0\.0\.1:\d+, 0 s of at most 60 s; try 1 of 2"
    assert re.fullmatch(words, messages[0])
    assert any(text.endswith(f"try 2 of {NUM_TRIES}") for text in messages)


def test_what_is_whole_is_content_whatever_the_headers_claim_it_to_be(downloader: Downloader) -> None:
    """A compressed answer is not unpacked, so it cannot be a bomb; its checksum tells what it is."""
    with closing(RawServer([answer("Content-Encoding: gzip", "Content-Length: 7")])) as server:
        assert downloader.fetch(f"{server.url}/a", max_bytes=1_000) == b"candles"
    with closing(RawServer([answer("X-One: a\rb", "Content-Length: abc")])) as server:
        assert downloader.fetch(f"{server.url}/a", max_bytes=1_000) == b"candles"


def test_the_body_of_a_redirect_is_not_read(downloader: Downloader) -> None:
    """It has no limit, and might be compressed."""
    endless = [answer("Location: /a", "Content-Encoding: gzip", status="302 Found", body=b""), b"x" * 65_536]
    with (
        closing(RawServer(endless, repeats=True)) as server,
        pytest.raises(DataError, match="; got Exceeded 3 redirects"),
    ):
        downloader.fetch(f"{server.url}/a", max_bytes=1_000)


def test_what_is_under_way_ends_with_the_first_error_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 967f431 a process waited for such a try to its end: 367 s of the 300 s that it may take."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    patience = RetryPolicy(num_tries=NUM_TRIES, sleep=lambda pause_s: None)
    limits = TimeLimits(connect_s=60.0, silence_s=60.0, try_s=60.0, file_s=300.0, quiet_s=0.1)
    drips: list[bytes | float] = [b"HTTP/1.1 200 OK\r\nX: ", *[b"x", 0.05] * 1_200]
    with (
        closing(RawServer([answer(status="403 No", body=b"")])) as refusing,
        closing(RawServer(drips, stays=True)) as dripping,
        closing(Downloader("V8_VISION_URL", patience=patience, limits=limits)) as patient,
    ):
        ended: list[BaseException | None] = []

        def fetch(url: str) -> bytes | None:
            if url == refusing.url:
                while not dripping.num_connections:
                    time.sleep(0.01)
            try:
                return patient.fetch(f"{url}/a", max_bytes=1_000)
            finally:
                ended.append(sys.exception())

        with pytest.raises(DataError, match="got status 403"):
            patient.map(fetch, [dripping.url, refusing.url])
        patient._pool.shutdown(wait=True)
        refused, given_up = ended
    assert "got status 403" in str(refused)
    assert "got a broken connection" in str(given_up)
    assert dripping.num_connections == 1


def test_a_try_that_was_cut_does_not_cut_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    pieces, _ = STALLED["headers that drip"]
    limits = TimeLimits(connect_s=20.0, silence_s=20.0, try_s=2.0, file_s=60.0)
    with closing(RawServer(list(pieces))) as server:

        def mend(pause_s: float) -> None:
            server._pieces[:] = [answer("Content-Length: 7")]

        patience = RetryPolicy(num_tries=2, sleep=mend)
        with closing(Downloader("V8_VISION_URL", patience=patience, limits=limits)) as downloader:
            assert downloader.fetch(f"{server.url}/a", max_bytes=9) == b"candles"
        assert server.num_connections == 2


def test_a_certificate_that_nobody_trusts_is_a_sentence_at_once(
    downloader: Downloader, tmp_path: Path
) -> None:
    """At 56f927dc it was tried six times, and was a broken connection (SSLError)."""
    (tmp_path / "own.pem").write_text(OWN_CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem")
    num_connections = 0
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            nonlocal num_connections
            with suppress(OSError):
                while True:
                    there, _ = listening.accept()
                    num_connections += 1
                    with there, suppress(OSError):
                        context.wrap_socket(there, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(DataError) as caught:
            downloader.fetch(f"https://127.0.0.1:{listening.getsockname()[1]}/a", max_bytes=9)
    assert caught.value.got == "self-signed certificate"
    assert "REQUESTS_CA_BUNDLE" in caught.value.fix
    assert num_connections == 1
