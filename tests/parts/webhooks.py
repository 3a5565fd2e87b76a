"""A receiver of webhooks on loopback: what it was sent, and how it answers.

`with WebhookReceiver() as receiver:` takes what is posted to `receiver.url`, and refuses it while
`receiver.status` is 503.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from base64 import b64decode, b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "whsec_" + b64encode(b"thirty-two bytes that both know!").decode()


class WebhookReceiver:
    """Takes messages, and checks their signatures as https://www.standardwebhooks.com says.

    Attributes:
        status: What it answers.
        taken: Every message that was answered with 2xx, in order: its id and its content.
        num_asked: How often anything was sent.
        asked: The paths that anything was sent to.
    """

    def __init__(self) -> None:
        self.status = 204
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.num_asked = 0
        self.asked: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> WebhookReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hooks/v8?key=in-the-address"

    @property
    def forecasts(self) -> list[tuple[str, str]]:
        """Series and close of every forecast that it took."""
        data = [
            told["data"] for _, told in self.taken if told["type"] in ("forecast.issued", "forecast.late")
        ]
        return [(one["series"], one["issued_for"]) for one in data]

    @property
    def kinds(self) -> list[str]:
        """The type of every message that it took."""
        return [told["type"] for _, told in self.taken]


def is_signed(headers: Any, body: bytes) -> bool:
    """Tell whether the secret signed a message."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b64decode(SECRET.removeprefix("whsec_")), signed, hashlib.sha256).digest()
    return hmac.compare_digest(f"v1,{b64encode(digest).decode()}", headers["webhook-signature"])


def _handler(receiver: WebhookReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.num_asked += 1
            receiver.asked.add(self.path)
            status = receiver.status if is_signed(self.headers, body) else 401
            if status < 300:
                receiver.taken.append((self.headers["webhook-id"], json.loads(body)))
            self.send_response(status)
            self.send_header("content-length", "0")
            if status == 307:
                self.send_header("location", f"{receiver.url}&elsewhere=1")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Handler
