"""Connections that are silent, drip, take no answers or speak no HTTP; and who asks meanwhile."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from v8.annexes.live.app import connections
from v8.annexes.live.app.connections import ConnectionLimiter

GUARDS = ("content-security-policy", "x-content-type-options", "referrer-policy", "date")

CROWDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from starlette.responses import PlainTextResponse
from v8.annexes.live.app.connections import ConnectionLimiter
from v8.annexes.live.app.guard import AccessMiddleware, AccessPolicy
from v8.annexes.live.app.server import open_listener, make_server
with open_listener("127.0.0.1", 0, print) as listener:
    crowd = ConnectionLimiter(print, int(sys.argv[1])) if sys.argv[1:] else listener.limiter
    listener.limiter = crowd
    print(listener.getsockname()[1], flush=True)
    make_server(AccessMiddleware(PlainTextResponse("heard"), AccessPolicy()), crowd).run(sockets=[listener])
"""

FULL = """
import os, resource, sys
from v8.annexes.live.app.server import open_listener
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with open_listener("127.0.0.1", 0) as listener:
    print(listener.getsockname()[1], flush=True)
    sys.stdin.readline()
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError:
        pass
    for _ in range(3):
        try:
            listener.accept()
        except BlockingIOError:
            print("sent away")
"""

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def connected(served: Any) -> Iterator[Callable[[bytes], socket.socket]]:
    """Return what connects, sends something and leaves the rest to the test."""
    address = urlsplit(served.url)
    with ExitStack() as stack:

        def connect(content: bytes) -> socket.socket:
            connection = socket.create_connection((address.hostname, address.port), timeout=60)
            stack.enter_context(connection).sendall(content)
            return connection

        yield connect


def all_of(one: socket.socket) -> bytes:
    """Read until the other side ends."""
    with one.makefile("rb") as coming:
        return coming.read()


def assert_refused(answer: bytes, status: bytes, where: str) -> None:
    """Require one answer, of the form that all refusals have, and the end of the connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert head.startswith(b"HTTP/1.1 " + status)
    names = {line.split(":")[0].lower() for line in head.decode("ascii").split("\r\n")[1:]}
    assert names >= {*GUARDS}
    assert b"content-type: application/json" in head.lower()
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"].keys() == {"where", "rule", "got", "fix"}
    assert json.loads(body)["error"]["where"] == where


@pytest.mark.tf
@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000,
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
def test_what_is_no_http_is_refused_as_all_else_is_and_said_to_nobody(
    connected: Any, served: Any, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_refused(all_of(connected(content)), b"400", "request")
    assert served.get("/api/health").json()["status"] == "ok"
    assert capfd.readouterr().err == ""


@pytest.mark.tf
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_request_of_two_lengths_is_refused_and_no_other_is_seen_behind_it(
    connected: Any, method: bytes
) -> None:
    """Who stands between may believe the length, and take the second request for its body."""
    hidden = b"0\r\n\r\nGET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    lengths = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(hidden)
    one = connected(method + b" /api/series HTTP/1.1\r\nHost: localhost\r\n" + lengths + hidden)
    assert_refused(all_of(one), b"400", "header Content-Length")


@pytest.mark.tf
def test_who_is_silent_is_left_and_who_drips_is_told(
    connected: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connections, "IDLE_TIMEOUT_S", 0.5)
    assert all_of(connected(b"")) == b""
    assert_refused(all_of(connected(b"GET / HTTP/1.1\r\nX")), b"408", "request")
    again = connected(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /api/hea")
    first, begin, last = all_of(again).partition(b"HTTP/1.1 408")
    assert first.startswith(b"HTTP/1.1 200")
    assert_refused(begin + last, b"408", "request")
    # A body that never ends delays nothing either: the answer needs none of it.
    endless = connected(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nab")
    assert all_of(endless).startswith(b"HTTP/1.1 200")
    assert capfd.readouterr().err == ""


@pytest.mark.tf
def test_an_answer_that_is_neither_made_nor_taken_in_time_is_given_up(
    serve: Callable[..., AbstractContextManager[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "RESPONSE_TIMEOUT_S", 0.5)
    is_enough = threading.Event()
    with serve(record=lambda: is_enough.wait(300.0) and None) as page:
        address = urlsplit(page.url)
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            connection.sendall(b"GET /api/track/BTCUSDT-15m HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1) == b""
        is_enough.set()


def test_of_too_many_the_one_that_has_waited_longest_gives_way_of_its_own_address_first() -> None:
    messages: list[str] = []
    gone: list[str] = []
    clock = SimpleNamespace(now_s=0.0)
    crowd = ConnectionLimiter(messages.append, 6, lambda: clock.now_s)

    class Toy:
        def __init__(self, name: str, address: str) -> None:
            self.client = (address, 1)
            self.name = name
            self.transport = self

        def abort(self) -> None:
            gone.append(self.name)

    quiet, *loud = Toy("quiet", "b"), *[Toy(f"loud {number}", "a") for number in range(5)]
    for one in (quiet, *loud):
        crowd.add(one)
    assert gone == ["loud 0"]
    others = [Toy(f"other {number}", "c") for number in range(2)]
    for one in others:
        crowd.add(one)
    assert gone == ["loud 0", "quiet"]
    assert loud[0] not in crowd
    end = "those that have been idle longest are closed."
    assert messages == [f"Too many idle connections (more than 4 of one address): {end}"]
    clock.now_s = connections.NOTIFY_INTERVAL_S
    crowd.remove(loud[1])
    crowd.add(loud[1])
    crowd.add(Toy("last", "d"))
    assert gone == ["loud 0", "quiet", "loud 2"]
    assert messages[1:] == [f"Too many idle connections (more than 6): {end}"]
    assert not ConnectionLimiter(messages.append, 6).close_oldest("one")


@pytest.mark.tf
@pytest.mark.process
def test_where_nobody_can_give_way_a_caller_is_sent_away() -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-c", FULL], env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        address = ("127.0.0.1", int(server.stdout.readline()))
        callers = [socket.create_connection(address, timeout=60) for _ in range(3)]
        assert server.communicate("they are here\n")[0] == "sent away\n" * 3
        for one in callers:
            with one:
                assert all_of(one) == b""


@pytest.mark.process
@pytest.mark.parametrize("most", [None, "1000"], ids=["as many as files allow", "more than files"])
def test_who_asks_is_heard_however_many_are_silent_and_the_operator_reads_one_sentence(
    most: str | None,
) -> None:
    words = [sys.executable, "-u", "-c", CROWDED, *([most] if most else [])]
    with (
        subprocess.Popen(words, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server,
        ExitStack() as stack,
    ):
        assert server.stdout is not None
        assert server.stderr is not None
        address = ("127.0.0.1", int(server.stdout.readline()))
        for number in range(300):
            one = stack.enter_context(socket.create_connection(address, timeout=60))
            if number % 2:
                one.sendall(b"GET / HTT")
        for _ in range(20):
            with socket.create_connection(address, timeout=60) as asking:
                asking.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
                assert all_of(asking).endswith(b"heard")
        server.terminate()
        said = server.stdout.read()
        assert server.wait(timeout=60) is not None
        assert server.stderr.read() == ""
    assert said.count("Too many idle connections") == said.count("\n") == 1
