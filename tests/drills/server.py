"""Drills with connections to `app` that send nothing or very slowly: other clients are answered all the same.

What the server prints meanwhile must stay short. A page of another site, whose host name leads to this
machine (DNS rebinding), reads nothing.
"""

from __future__ import annotations

import http.client
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from drills.ground import Ground, ImpossibleHereError, Place, drill, kill, killed_after

KIND = "server"
NUM_CONNECTIONS = 1_100
NUM_FILES = 1_024
NUM_ASKED = 10
LOOK_S = 5.0
"""For so long it is seen how busy the crowd keeps the server."""

MOST_BUSY = 0.5
"""Of a core, for a crowd that sends next to nothing."""

MOST_TOLD = 2_000
"""Letters on standard error."""

Send = Callable[[int], bytes]


@contextmanager
def served(place: Place, run: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], tuple[str, int]]]:
    """Serve a run with few files to open, while the block lasts; `words` are further options."""
    if not hasattr(psutil.Process, "rlimit"):
        raise ImpossibleHereError("another process' limits cannot be set")
    with killed_after(place.start(["app", str(run), "--source", "demo", "--port", "0", *words])) as process:
        psutil.Process(process.pid).rlimit(psutil.RLIMIT_NOFILE, (NUM_FILES, NUM_FILES))
        match = None
        while not match:
            if process.poll() is not None:
                raise RuntimeError(f"the page is not served: {place.told_so_far(process)}")
            time.sleep(0.1)
            match = re.search(r"http://([\d.]+):(\d+)/", place.told_so_far(process))
        yield process, (match[1], int(match[2]))


def crowd(ground: Ground, place: Place, send: Send) -> str:
    """Connect and be as good as silent; ask meanwhile, and look how busy the server is."""
    limit = psutil.RLIMIT_NOFILE
    own = psutil.Process()
    if own.rlimit(limit)[1] < 2 * NUM_CONNECTIONS:
        raise ImpossibleHereError(f"not even {2 * NUM_CONNECTIONS:,} files may be open here")
    before = own.rlimit(limit)
    own.rlimit(limit, (max(before[0], 2 * NUM_CONNECTIONS), before[1]))
    with served(place, ground.undisturbed()) as (process, address), ExitStack() as stack:
        for number in range(NUM_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(address, 60))
            with suppress(ConnectionError):  # a crowd is sent away
                connection.sendall(send(number))
        place.require(is_heard(address), "who asks is not answered")
        share = busy(process.pid)
        place.require(share <= MOST_BUSY, f"keeps {share:.0%} of a core busy")
        kill(process, 2)
        ended = place.finish(process)
    place.require(ended.status == 130, f"ended with {ended.status}")
    place.require(len(ended.errors) <= MOST_TOLD, f"{len(ended.errors):,} letters on standard error")
    return "all who ask are answered"


def is_heard(address: tuple[str, int]) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        for _ in range(NUM_ASKED):
            opener.open("http://{}:{}/api/health".format(*address), timeout=60).close()
    except OSError:
        return False
    return True


def busy(pid: int) -> float:
    watched = psutil.Process(pid)
    watched.cpu_percent()
    time.sleep(LOOK_S)
    return watched.cpu_percent() / 100


@drill(KIND, "1,100 connections that say nothing, 1,024 files", "small")
def silent(ground: Ground, place: Place) -> str:
    return crowd(ground, place, lambda number: b"")


@drill(KIND, "1,100 connections that send a part of a head, 1,024 files")
def dripping(ground: Ground, place: Place) -> str:
    return crowd(ground, place, lambda number: b"GET / HTTP/1.1\r\nX-Part: "[: 1 + number % 24])


@drill(KIND, "requests by the host name of another site, --host 127.0.0.1", "small")
def rebound(ground: Ground, place: Place) -> str:
    with served(place, ground.undisturbed(), "--host", "127.0.0.1") as (process, address):
        for path in ("/", "/api/series", "/api/health", "/metrics", "/openapi.json"):
            for host in ("evil.example", f"evil.example:{address[1]}", "127.0.0.1.evil.example", ""):
                status = status_of(address, path, host)
                place.require(status == 400, f"{path} is answered with {status} to the host {host!r}")
        place.require(
            status_of(address, "/api/series", f"localhost:{address[1]}") == 200, "localhost is refused"
        )
        kill(process, 2)
        ended = place.finish(process)
    place.require(ended.status == 130, f"ended with {ended.status}")
    return "names of this machine alone are answered"


def status_of(address: tuple[str, int], path: str, host: str) -> int:
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()
