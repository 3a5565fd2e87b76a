"""Drills with a candle archive on loopback of which one month is faulty until it is repaired.

A call that meets the fault either fails with an error message or ends with the candles and weights of an
archive without faults; nothing in between. Once the archive is repaired, the same command succeeds.
"""

from __future__ import annotations

import hashlib
import io
import socket
import socketserver
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import pandas as pd

from drills.ground import DRILLS, SERIES, Drill, Ground, Place, drill, weights_of
from drills.interrupts import interrupt
from v8.data.market.series import Series
from v8.data.market.sources import open_source

KIND = "archive"
MONTHS = ("2024-09", "2024-10", "2024-11", "2024-12")
BAD_MONTH = "2024-11"
"""The month before the newest: the tiny profile needs a part of it."""

FOLDER = "/data/spot/monthly/klines/{}/{}/"
LIMIT_S = 400.0
"""Six tries of 30 silent seconds, and pauses."""

Send = Callable[[socket.socket, bytes, threading.Event], None]
"""Answers a request for a file of this content; the event is set when the server stops."""


def head(status: str, *lines: str) -> bytes:
    """Write the head of an answer."""
    return "\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *lines, "", ""]).encode()


def http_answer(content: bytes) -> bytes:
    """Write a good answer."""
    return head("200 OK", f"Content-Length: {len(content)}") + content


@dataclass
class Archive:
    """An archive whose files and faults are raw bytes on a socket.

    Args:
        files: Content by path.
        faults: How a path is answered instead of well.
        folder: Where files lie that are not in `files`.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, Send] = field(default_factory=dict)
    folder: Path | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str, to: socket.socket) -> None:
        """Answer one request."""
        content = self.files.get(path)
        if content is None and self.folder and (self.folder / path.lstrip("/")).is_file():
            content = (self.folder / path.lstrip("/")).read_bytes()
        if path in self.faults:
            self.faults[path](to, content or b"", self.stop)
        elif content is None:
            to.sendall(head("404 Not Found", "Content-Length: 0"))
        else:
            to.sendall(http_answer(content))

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve on loopback and yield the address."""
        archive = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    request = self.request.makefile("rb")
                    path = request.readline().split()[1].decode()
                    while request.readline().strip():
                        pass
                    archive.answer(path, self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 64
            block_on_close = False

        with Server(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}"
            finally:
                self.stop.set()
                server.shutdown()


@contextmanager
def serving_folder(folder: Path | None, place: Place) -> Iterator[list[str]]:
    """Serve an archive of real candles to a place, or none; yield the words that choose the source."""
    if folder is None:
        yield ["--source", "demo"]
        return
    with Archive(folder=folder).serving() as url:
        place.more_env["V8_VISION_URL"] = url
        yield ["--source", "vision"]


def packed(members: dict[str, bytes]) -> bytes:
    """Make a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def path_of(month: str) -> str:
    """Return the path of a month's zip."""
    symbol, timeframe = SERIES.split("-")
    return f"{FOLDER.format(symbol, timeframe)}{SERIES}-{month}.zip"


def checksum_of(content: bytes, path: str) -> bytes:
    """Write what the checksum file of a zip holds."""
    return f"{hashlib.sha256(content).hexdigest()}  {path.rpartition('/')[2]}\n".encode()


def with_checksum(path: str, content: bytes) -> dict[str, bytes]:
    """Return a zip and its checksum by their paths."""
    return {path: content, f"{path}.CHECKSUM": checksum_of(content, path)}


@cache
def rows_of(month: str) -> bytes:
    """Return the rows of one month as the archive has them, drawn from the demo market."""
    frame = open_source("demo").candles(Series.parse(SERIES), 24 * 122).to_frame()
    rows = frame[pd.DatetimeIndex(frame.index).strftime("%Y-%m") == month]
    opened = pd.Series(rows.index.astype("datetime64[ms, UTC]").astype("int64"), index=rows.index)
    columns = [opened, *(rows[name] for name in ("open", "high", "low", "close", "volume"))]
    content: str = pd.concat([*columns, *[opened * 0] * 6], axis=1).to_csv(index=False, header=False)
    return content.encode()


def good_files() -> dict[str, bytes]:
    """Return all files of the good archive."""
    files: dict[str, bytes] = {}
    for month in MONTHS:
        files |= with_checksum(path_of(month), packed({f"{SERIES}-{month}.csv": rows_of(month)}))
    return files


# What the zip or its checksum answers instead


def send_bytes(
    answer: Callable[[bytes], bytes], to: socket.socket, content: bytes, stop: threading.Event
) -> None:
    """Send an answer made from the content, and close."""
    to.sendall(answer(content))


def drip(to: socket.socket, content: bytes, stop: threading.Event) -> None:
    """Send one byte a second."""
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
    """Never answer."""
    stop.wait()


def refused(status: str, *lines: str) -> Send:
    """Answer with a status."""
    return partial(send_bytes, lambda content: head(status, "Content-Length: 0", *lines))


def sent(make: Callable[[bytes], bytes]) -> Send:
    """Answer 200 with other content."""
    return partial(send_bytes, lambda content: http_answer(make(content)))


def raw(make: Callable[[bytes], bytes]) -> Send:
    """Answer with any bytes."""
    return partial(send_bytes, make)


ZIP = path_of(BAD_MONTH)
CHECKSUM = f"{ZIP}.CHECKSUM"

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
    """Call into a fault, heal the archive, call again."""
    archive = Archive(files=good_files())
    with archive.serving() as url:
        place.more_env["V8_VISION_URL"] = url
        expected = _reference(ground, archive)
        archive.faults[path] = send
        words = _words(ground, place)
        met = place.call(words, LIMIT_S)
        if met.status == 0:
            place.require(
                _result(ground, place, met.output) == expected, "went on in silence with other candles"
            )
        place.require(met.status in (0, 3), f"exit {met.status}: {met.message}")
        archive.faults.clear()
        healed = place.call(words)
        place.require(healed.status == 0, f"healed, it ended with {healed.status}: {healed.message}")
        if _result(ground, place, healed.output) != expected:
            place.lost.append("the candles or weights of an archive that never misbehaved")
        place.require_tidy()
    return "refused in a sentence; healed, the same result" if met.status else "the same result"


def interrupted_at(path: str, send: Send, ground: Ground, place: Place) -> str:
    """Press Ctrl-C while an archive keeps a call waiting; then heal it."""
    archive = Archive(files=good_files())
    with archive.serving() as url:
        place.more_env["V8_VISION_URL"] = url
        expected = _reference(ground, archive)
        archive.faults[path] = send
        words = _words(ground, place)
        interrupt(ground, place, words, 8.0, is_twice=False)
        interrupt(ground, place, words, 8.0, is_twice=True)
        archive.faults.clear()
        healed = place.call(words)
        if _result(ground, place, healed.output) != expected:
            place.lost.append("the candles or weights of an archive that never misbehaved")
        place.require_tidy()
    return "Ctrl-C ends in time; healed, the same result"


@drill(KIND, "a password in V8_VISION_URL, and a fault")
def password_in_address(ground: Ground, place: Place) -> str:
    """Look for the password in everything that is printed and written, after a refusal and after success."""
    archive = Archive(files=good_files(), faults={ZIP: refused("403 Forbidden")})
    with archive.serving() as url:
        place.more_env["V8_VISION_URL"] = url.replace("://", "://somebody:S3cret-word@")
        words = place.job(more=("--source", "vision"))
        met = place.call(words)
        archive.faults.clear()
        healed = place.call(words)
    place.require(met.status == 3, f"exit {met.status}: {met.message}")
    place.require(healed.status == 0, f"healed, it ended with {healed.status}: {healed.message}")
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


def _reference(ground: Ground, archive: Archive) -> str:
    """Return what the good archive comes to, asked once."""

    def ask(place: Place) -> Path:
        with Archive(files=good_files()).serving() as url:
            place.more_env["V8_VISION_URL"] = url
            ended = place.call(_words(ground, place))
        file = place.folder / "result"
        file.write_text(_result(ground, place, ended.output))
        return file

    return ground.once("good archive", ask).read_text()


def _add(fault: str, size: str, do: Callable[..., str], *arguments: object) -> None:
    DRILLS.append(Drill(KIND, fault, partial(do, *arguments), size))


for _size, _faults in (("small", SMALL), ("usual", RETRIED), ("long", SILENT)):
    for _fault, (_path, _send) in _faults.items():
        _add(_fault, _size, meet, _path, _send)
for _fault, (_path, _send) in SILENT.items():
    _add(f"Ctrl-C during {_fault}", "usual", interrupted_at, _path, _send)
