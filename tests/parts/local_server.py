"""A server on loopback that answers from a thread of its own while a block lasts.

class Answers(QuietHandler):
    def do_GET(self) -> None: ...

with LocalServer(Answers) as server:
    requests.get(server.url)
"""

from __future__ import annotations

import socketserver
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

POLL_S = 0.01
"""How often the server looks whether it shall stop."""


def start_serving(server: socketserver.BaseServer) -> threading.Thread:
    """Let a server serve in a thread of its own, and return the thread once it runs.

    Under coverage, Python 3.11 sometimes ends a thread before it runs because another one starts at the same
    moment ("Cannot install a trace function ..."). A server without its thread can never be shut down: the
    test would wait for ever. So such a thread is replaced.
    """
    while True:
        is_running = threading.Event()

        def serve(is_running: threading.Event = is_running) -> None:
            is_running.set()
            server.serve_forever(POLL_S)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        while thread.is_alive() and not is_running.wait(POLL_S):
            pass
        if is_running.is_set():
            return thread


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
