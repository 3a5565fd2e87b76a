"""A server on loopback that answers from a thread of its own while a block lasts.

class Answers(QuietHandler):
    def do_GET(self) -> None: ...

with LocalServer(Answers) as server:
    requests.get(server.url)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from serving_thread import start_serving


class QuietHandler(BaseHTTPRequestHandler):
    """Answers, and prints nothing of it."""

    def log_message(self, *_: object) -> None:
        pass


class LocalServer(ThreadingHTTPServer):
    """Listens on a free port from the start, and answers within its block."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        self._thread = start_serving(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing when a client hangs up early, which some tests make it do."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
