"""Answers that are broken as HTTP, and a server that sends them: what any client of ours must bear."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

LATEST_S = 30.0
"""A guard against a hang, far above what a few tries may take."""


class RawServer:
    """Sends the same bytes to everyone who connects, at a pace, and hangs up or stays.

    Args:
        pieces: What is sent; a number is a pause in seconds.
        repeats: Whether to send them again and again until the other side hangs up.
        stays: Whether to stay connected afterwards.
    """

    def __init__(self, pieces: list[bytes | float], *, repeats: bool = False, stays: bool = False) -> None:
        self._pieces = pieces
        self._repeats = repeats
        self._stays = stays
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._is_over = threading.Event()
        self.num_connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        self._is_over.set()
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                there, _ = self._socket.accept()
                self.num_connections += 1
                threading.Thread(target=self._serve, args=(there,), daemon=True).start()

    def _serve(self, there: socket.socket) -> None:
        with there, suppress(OSError):
            there.recv(65_536)
            is_first = True
            while is_first or (self._repeats and not self._is_over.is_set()):
                is_first = False
                for piece in self._pieces:
                    if isinstance(piece, bytes):
                        there.sendall(piece)
                    else:
                        self._is_over.wait(piece)
            if self._stays:
                self._is_over.wait(LATEST_S)


def answer(*headers: str, status: str = "200 OK", body: bytes = b"candles") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "Connection: close", "", ""]).encode("latin-1") + body


BROKEN: dict[str, list[bytes | float]] = {
    "two content lengths": [answer("Content-Length: 7", "Content-Length: 9")],
    "content length in two values": [answer("Content-Length: 7, 9")],
    "content length too long": [answer("Content-Length: 9000")],
    "status 99": [answer(status="99 Low")],
    "status abc": [answer(status="abc OK")],
    "no http": [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "nothing": [],
    "a cut status line": [b"HTTP/1.1 2"],
    "header of 1 MB": [answer("X-Long: " + "x" * 1_000_000)],
    "10,000 headers": [answer(*(f"X-{number}: 1" for number in range(10_000)))],
    "chunk of bad size": [answer("Transfer-Encoding: chunked", body=b"zz\r\ncandles\r\n0\r\n\r\n")],
    "chunk of negative size": [answer("Transfer-Encoding: chunked", body=b"-5\r\ncandles\r\n0\r\n\r\n")],
    "chunks cut": [answer("Transfer-Encoding: chunked", body=b"ff\r\ncandles")],
    "retry after abc": [answer("Retry-After: soon", status="503 Busy")],
    "retry after 5,000 digits": [answer("Retry-After: " + "9" * 5_000, status="503 Busy")],
    "retry after in the year 99999": [
        answer("Retry-After: Fri, 31 Dec 99999 23:59:59 GMT", status="503 Busy")
    ],
    "retry after in other digits": [answer("Retry-After: \u00b2\u00b3", status="429 Slow down")],
    "redirect to no host": [answer("Location: http://", status="302 Found")],
    "redirect to half an address": [answer("Location: http://[", status="302 Found")],
    "redirect to a port that is none": [answer("Location: http://127.0.0.1:99999/", status="301 Moved")],
    "redirect to a file": [answer("Location: file:///etc/hostname", status="302 Found")],
    "redirect to ftp": [answer("Location: ftp://127.0.0.1/a", status="307 Temporary")],
    "redirect to itself": [answer("Location: /a", status="308 Permanent")],
    "redirect in bytes": [answer("Location: http://\xff\xfe\x01/", status="302 Found")],
    "redirect to nowhere": [answer(status="302 Found")],
    "early hints only": [answer(status="103 Early Hints", body=b"")],
    "not modified": [answer(status="304 Not Modified", body=b"")],
    "a part": [answer("Content-Range: bytes 0-6/9", "Content-Length: 7", status="206 Partial Content")],
    "more than asked for": [answer(body=b"x" * 2_000)],
    "words with escapes": [answer(status="400 \x1b[31mred\x07")],
}


def drip(piece: bytes, pause_s: float, times: int) -> list[bytes | float]:
    """Return a piece to send many times, with a pause behind each."""
    return [piece, pause_s] * times


STALLED: dict[str, tuple[list[bytes | float], bool]] = {
    "no answer at all": ([], False),
    "a status and silence": ([b"HTTP/1.1 200 OK\r\n"], False),
    "half a body and silence": ([answer("Content-Length: 9")], False),
    "headers that drip": ([b"HTTP/1.1 200 OK\r\nX: ", *drip(b"x", 0.05, 600)], True),
    "a body that drips": ([answer("Content-Length: 9000"), *drip(b"x", 0.05, 600)], True),
    "chunks that drip": (
        [answer("Transfer-Encoding: chunked", body=b""), *drip(b"1\r\nx\r\n", 0.05, 600)],
        True,
    ),
    "1xx for ever": ([b"HTTP/1.1 100 Continue\r\n\r\n", 0.05], True),
}
