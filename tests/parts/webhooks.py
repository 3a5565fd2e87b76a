"""A receiver of webhooks on loopback: what it was sent, and how it answers.

`with WebhookReceiver() as receiver:` takes what is posted to `receiver.url`, and refuses it while
`receiver.status` is 503.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from typing import Any

from local_server import LocalServer, QuietHandler

SECRET = "whsec_" + b64encode(b"thirty-two bytes that both know!").decode()


class WebhookReceiver(LocalServer):
    """Takes messages, and checks their signatures as https://www.standardwebhooks.com says.

    Attributes:
        status: What it answers.
        taken: Every message that was answered with 2xx, in order: its id and its content.
        num_asked: How often anything was sent.
        asked: The paths that anything was sent to.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.status = 204
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.num_asked = 0
        self.asked: set[str] = set()

    @property
    def url(self) -> str:
        return f"{super().url}/hooks/v8?key=in-the-address"

    @property
    def forecasts(self) -> list[tuple[str, str]]:
        """Series and close of every forecast that it took."""
        data = [
            told["data"] for _, told in self.taken if told["type"] in ("forecast.issued", "forecast.late")
        ]
        return [(one["series"], one["issued_for"]) for one in data]

    @property
    def kinds(self) -> list[str]:
        return [told["type"] for _, told in self.taken]


def is_signed(headers: Any, body: bytes) -> bool:
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b64decode(SECRET.removeprefix("whsec_")), signed, hashlib.sha256).digest()
    return hmac.compare_digest(f"v1,{b64encode(digest).decode()}", headers["webhook-signature"])


class _Handler(QuietHandler):
    server: WebhookReceiver

    def do_POST(self) -> None:
        receiver = self.server
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
