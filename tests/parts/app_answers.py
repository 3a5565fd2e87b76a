"""A server on loopback that gives the answers of an app, one after another, the last one for ever."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any


@contextmanager
def answering(answers: Sequence[Any]) -> Iterator[SimpleNamespace]:
    """Yield its `address` and what was `asked`: paths with their authorization."""
    asked: list[tuple[str, str | None]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answers[min(len(asked), len(answers)) - 1]).encode())

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield SimpleNamespace(address=f"http://127.0.0.1:{server.server_port}", asked=asked)
        finally:
            server.shutdown()
            thread.join()
