"""Drills with a candle archive on loopback of which one month is faulty until it is repaired.

A call that meets the fault either fails with an error message or ends with the candles and weights of an
archive without faults; nothing in between. Once the archive is repaired, the same command succeeds.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import exchange_api
from local_server import LocalServer, QuietHandler

from drills.ground import SERIES, Ground, Place, add, drill, weights_of
from drills.interrupts import interrupt
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.data.market.sources.demo import END_S

KIND = "archive"
NUM_BARS = 24 * 122
ZIP = f"/data/spot/monthly/klines/{SERIES.replace('-', '/')}/{SERIES}-2024-11.zip"
"""The month before the newest: the tiny profile needs a part of it."""

CHECKSUM = f"{ZIP}.CHECKSUM"
LIMIT_S = 400.0
"""Six tries of 30 silent seconds, and pauses."""

Send = Callable[[socket.socket, bytes, threading.Event], None]
"""Answers a request for a file of this content; the event is set when the server stops."""


def head(status: str, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *lines, "", ""]).encode()


def http_answer(content: bytes) -> bytes:
    return head("200 OK", f"Content-Length: {len(content)}") + content


class Archive(exchange_api.ExchangeApi):
    """The archive of the demo market; `broken` says how a path is answered instead of well."""

    def __init__(self, broken: dict[str, Send] | None = None) -> None:
        super().__init__(END_S)
        self.RequestHandlerClass: Any = _Handler
        self.broken = broken or {}
        self.is_over = threading.Event()
        self.put(SERIES, open_source("demo").candles(Series.parse(SERIES), NUM_BARS).to_frame())

    def __exit__(self, *error: object) -> None:
        self.is_over.set()
        super().__exit__(*error)


class _Handler(exchange_api._Handler):
    server: Archive

    def do_GET(self) -> None:
        send = self.server.broken.get(self.path)
        if send is None:
            super().do_GET()
            return
        _, content, _ = self.server.answer(self.path, None)
        self.close_connection = True
        with suppress(OSError):
            send(self.connection, content, self.server.is_over)


class _FolderHandler(QuietHandler, SimpleHTTPRequestHandler):
    """Serves an archive of real candles."""


@contextmanager
def serving_folder(folder: Path | None, place: Place) -> Iterator[list[str]]:
    """Serve an archive of real candles to a place, or none; yield the words that choose the source."""
    if folder is None:
        yield ["--source", "demo"]
        return
    with LocalServer(partial(_FolderHandler, directory=str(folder))) as server:
        place.more_env["V8_VISION_URL"] = server.url
        yield ["--source", "vision"]


# What the zip or its checksum answers instead


def send_bytes(
    answer: Callable[[bytes], bytes], to: socket.socket, content: bytes, stop: threading.Event
) -> None:
    to.sendall(answer(content))


def drip(to: socket.socket, content: bytes, stop: threading.Event) -> None:
    to.sendall(head("200 OK", f"Content-Length: {len(content)}"))
    for byte in content:
        to.sendall(bytes([byte]))
        if stop.wait(1.0):
            return


def drip_head(to: socket.socket, content: bytes, stop: threading.Event) -> None:
    """Send a header that never ends, a byte a second."""
    to.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while not stop.wait(1.0):
        to.sendall(b"x")


def go_on(to: socket.socket, content: bytes, stop: threading.Event) -> None:
    """Ask to go on, for ever."""
    while not stop.wait(0.5):
        to.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


def stall(to: socket.socket, content: bytes, stop: threading.Event) -> None:
    """Send half, then nothing more."""
    to.sendall(http_answer(content)[: -len(content) // 2])
    stop.wait()


def silent(to: socket.socket, content: bytes, stop: threading.Event) -> None:
    stop.wait()


def refused(status: str, *lines: str) -> Send:
    return partial(send_bytes, lambda content: head(status, "Content-Length: 0", *lines))


def sent(make: Callable[[bytes], bytes]) -> Send:
    return partial(send_bytes, lambda content: http_answer(make(content)))


def raw(make: Callable[[bytes], bytes]) -> Send:
    return partial(send_bytes, make)


SMALL = {
    "zip 200, empty body": (ZIP, sent(lambda content: b"")),
    "zip 404, checksum there": (ZIP, refused("404 Not Found")),
    "redirect to `http://[`": (ZIP, refused("302 Found", "Location: http://[")),
}
RETRIED = {
    "cut body for ever": (ZIP, raw(lambda content: http_answer(content)[: -len(content) // 2])),
    "connection closed for ever": (ZIP, raw(lambda content: b"")),
    "500 for ever": (ZIP, refused("500 Internal Server Error")),
    "503 for ever, Retry-After `soon`": (ZIP, refused("503 Service Unavailable", "Retry-After: soon")),
    "429 for ever, Retry-After 1": (ZIP, refused("429 Too Many Requests", "Retry-After: 1")),
    "429 for ever, Retry-After -5": (ZIP, refused("429 Too Many Requests", "Retry-After: -5")),
}
SILENT = {
    "an answer that never comes": (ZIP, silent),
    "a body that stalls": (ZIP, stall),
    "a body of 1 byte/s": (ZIP, drip),
    "a header of 1 byte/s": (CHECKSUM, drip_head),
    "100 Continue for ever": (CHECKSUM, go_on),
}


def meet(path: str, send: Send, ground: Ground, place: Place) -> str:
    expected = _reference(ground)
    words = _words(ground, place)
    with Archive({path: send}) as archive:
        place.more_env["V8_VISION_URL"] = archive.url
        met = place.call(words, LIMIT_S)
        if met.status == 0:
            is_same = _result(ground, place, met.output) == expected
            place.require(is_same, "went on in silence with other candles")
        place.require(met.status in (0, 3), f"exit {met.status}: {met.message}")
        _require_healed(archive, expected, words, ground, place)
    return "refused in a sentence; healed, the same result" if met.status else "the same result"


def interrupted_at(path: str, send: Send, ground: Ground, place: Place) -> str:
    expected = _reference(ground)
    words = _words(ground, place)
    with Archive({path: send}) as archive:
        place.more_env["V8_VISION_URL"] = archive.url
        interrupt(ground, place, words, 8.0, is_twice=False)
        interrupt(ground, place, words, 8.0, is_twice=True)
        _require_healed(archive, expected, words, ground, place)
    return "Ctrl-C ends in time; healed, the same result"


def _require_healed(archive: Archive, expected: str, words: list[str], ground: Ground, place: Place) -> None:
    archive.broken.clear()
    healed = place.again(words)
    if _result(ground, place, healed.output) != expected:
        place.lost.append("the candles or weights of an archive that never misbehaved")


@drill(KIND, "a password in V8_VISION_URL, and a fault")
def password_in_address(ground: Ground, place: Place) -> str:
    """Look for the password in everything that is printed and written, after a refusal and after success."""
    with Archive({ZIP: refused("403 Forbidden")}) as archive:
        place.more_env["V8_VISION_URL"] = archive.url.replace("://", "://somebody:S3cret-word@")
        words = place.job(more=("--source", "vision"))
        met = place.call(words)
        archive.broken.clear()
        healed = place.again(words)
    place.require(met.status == 3, f"exit {met.status}: {met.message}")
    leaks = [
        name for name in ("output", "errors") for ended in (met, healed) if "S3cret" in getattr(ended, name)
    ]
    leaks += [str(path) for path in place.folder.rglob("*") if _holds(path, b"S3cret")]
    place.require(not leaks, f"the password is in {', '.join(leaks[:4])}")
    return "nowhere but in memory"


def _holds(path: Path, secret: bytes) -> bool:
    return secret.decode() in path.name or (path.is_file() and secret in path.read_bytes())


def _words(ground: Ground, place: Place) -> list[str]:
    if ground.size == "long":
        return place.job(more=("--source", "vision"))
    return ["data", "--series", SERIES, "--bars", "900"]


def _result(ground: Ground, place: Place, output: str) -> str:
    """Return what a call came to: weights in the long form, else the lines about candles."""
    return str(weights_of(place.run)) if ground.size == "long" else output


def _reference(ground: Ground) -> str:
    """Return what the good archive comes to, asked once."""

    def ask(place: Place) -> Path:
        with Archive() as archive:
            place.more_env["V8_VISION_URL"] = archive.url
            ended = place.make(_words(ground, place))
        file = place.folder / "result"
        file.write_text(_result(ground, place, ended.output))
        return file

    return ground.once("good archive", ask).read_text()


for _size, _faults in (("small", SMALL), ("usual", RETRIED), ("long", SILENT)):
    for _fault, (_path, _send) in _faults.items():
        add(KIND, _fault, _size, meet, _path, _send)
for _fault, (_path, _send) in SILENT.items():
    add(KIND, f"Ctrl-C during {_fault}", "usual", interrupted_at, _path, _send)
