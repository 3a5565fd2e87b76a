"""The receiver of webhooks (`v8.annexes.live.ledger.posting`): an address, and a secret that signs them."""

import hmac
import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import requests

from v8.annexes.live.ledger.outgoing import Message, MessageReceiver
from v8.annexes.live.ledger.people import PeopleReceiver
from v8.base.errors import ProfileError
from v8.base.http_client import BROKEN, HttpClient, TimeLimits, TransientError, trouble_of
from v8.data.market.sources.downloads import PATIENCE

SECRET_VARIABLE: Final = "V8_POST_SECRET"  # noqa: S105 - its name
_SECRET: Final = re.compile("(?ai)whsec_((?:[a-z0-9+/]{4}){8,}(?:[a-z0-9+/]{2}==|[a-z0-9+/]{3}=)?)")
_ADDRESS: Final = re.compile(r"https?://((?:[A-Za-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?)(?:[/?][!-~]*)?")
TIMES: Final = TimeLimits(connect_s=5.0, silence_s=10.0, try_s=60.0)
"""How long the receiver may take for one message."""
POST_RETRY_POLICY: Final = replace(PATIENCE, try_s=TIMES.try_s)
"""How often a message is tried again: 300 s in all."""


class Receiver:
    """Receives messages. Of the address only the host is shown; the secret of the environment never is.

    Args:
        url: The address.
        limits: How long the receiver may take for one message.

    Raises:
        ProfileError: If the address or the secret is missing or not valid.
    """

    most_together = 1

    def __init__(self, url: str, limits: TimeLimits = TIMES) -> None:
        address = _ADDRESS.fullmatch(url)
        if not address:
            rule = "is http://HOST/PATH or https://HOST/PATH, without a user"
            raise ProfileError(where="param:post", rule=rule, got="another text", fix="Name your receiver")
        secret = _SECRET.fullmatch(os.environ.get(SECRET_VARIABLE, ""))
        if not secret:
            rule = "is whsec_ and at least 24 bytes in base64, which the receiver knows, too"
            got = "another text" if SECRET_VARIABLE in os.environ else "none"
            code = 'import base64, os; print("whsec_" + base64.b64encode(os.urandom(32)).decode())'
            raise ProfileError(where=SECRET_VARIABLE, rule=rule, got=got, fix=f"Make one: python -c '{code}'")
        self.url = url
        self.host = address[1]
        self._secret = b64decode(secret[1])
        self._limits = limits

    def deliver(self, messages: Sequence[Message]) -> None:
        """Send messages; see `MessageReceiver`."""
        for message in messages:
            self.send(message.id, message.body)

    def send(self, message_id: str, body: str) -> None:
        """Send a message.

        Raises:
            TransientError: If it is not accepted.
        """
        timestamp = str(int(time.time()))
        digest = hmac.digest(self._secret, f"{message_id}.{timestamp}.{body}".encode(), "sha256")
        headers = {
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{b64encode(digest).decode()}",
            "content-type": "application/json",
        }
        try:
            with HttpClient(headers) as client:
                client.ask("POST", self.url, _require_accepted, limits=self._limits, body=body.encode())
        except BROKEN as error:  # the texts of these errors hold the address, which may be secret
            raise TransientError(f"no answer ({type(error).__name__})") from None


def open_receiver(url: str) -> MessageReceiver:
    """Open the receiver of an address: a webhook for http and https, else a service that people read."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme.lower() not in ("http", "https"):
        return PeopleReceiver(url)
    return Receiver(url)


def _require_accepted(response: requests.Response) -> None:
    """Raise `TransientError` for an answer other than 2xx; a redirect is not followed."""
    if not 200 <= response.status_code < 300:
        raise trouble_of(response)
