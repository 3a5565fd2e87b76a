"""A server on loopback that gives the answers of an app, one after another, the last one for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from local_server import LocalServer, QuietHandler


@contextmanager
def answering(answers: Sequence[Any]) -> Iterator[SimpleNamespace]:
    """Yield its `address` and what was `asked`: paths with their authorization."""
    asked: list[tuple[str, str | None]] = []

    class Answers(QuietHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answers[min(len(asked), len(answers)) - 1]).encode())

    with LocalServer(Answers) as server:
        yield SimpleNamespace(address=server.url, asked=asked)
