"""The receivers of messages (`v8.annexes.live.ledger.posting`): webhooks, and services that people read.

A webhook is an address, and a secret that signs what it gets.

People read texts of events, which the package `apprise` takes to their services. All that waits is one
message, so that forty series of one close are read at once: alerts first, then forecasts, as many lines as
the service takes. An address such as `tgram://TOKEN/CHAT` is a secret. Nothing of it is printed: parts of it
that may be tokens or passwords are given to `keep_secret`, and what the package logs is kept from handlers of
others.
"""

import hmac
import json
import logging
import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import floor, log10
from typing import Any, Final, Protocol
from urllib.parse import unquote

import requests

from v8.annexes.live.limits import sentence_of
from v8.base.errors import ProfileError
from v8.base.http_client import BROKEN, HttpClient, TimeLimits, TransientError, trouble_of
from v8.base.registry import require_package
from v8.base.safe_text import keep_secret, without_secrets
from v8.base.wording import plural, say
from v8.data.market.sources.downloads import PATIENCE

SECRET_VARIABLE: Final = "V8_POST_SECRET"  # noqa: S105 - its name
_SECRET: Final = re.compile("(?ai)whsec_((?:[a-z0-9+/]{4}){8,}(?:[a-z0-9+/]{2}==|[a-z0-9+/]{3}=)?)")
_ADDRESS: Final = re.compile(r"https?://((?:[A-Za-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?)(?:[/?][!-~]*)?")
TIMES: Final = TimeLimits(connect_s=5.0, silence_s=10.0, try_s=60.0)
"""How long the receiver may take for one message."""
POST_RETRY_POLICY: Final = replace(PATIENCE, try_s=TIMES.try_s)
"""How often a message is tried again: 300 s in all."""

PACKAGE: Final = "apprise"
MOST_TOGETHER: Final = 1_000
"""Events of one message; of those that no line is left for, the number is said."""
_RESERVED_LETTERS: Final = 200  # of a text, for its title and for the last line
_LEAST_TOKEN: Final = 8  # letters of a part of an address that may be a token
_LEAST_OF_ONE_KIND: Final = 16  # of a part of letters alone, or of digits alone
_LONGEST_TEXT: Final = 30_000
_PRICE_DIGITS: Final = 5
_FORECASTS: Final = ("forecast.issued", "forecast.late")


@dataclass(frozen=True)
class Message:
    """An event that waits to be sent."""

    number: int  # in the order of the outbox
    id: str  # the same however often it is sent
    body: str  # JSON with `type`, `timestamp` and `data`


class MessageReceiver(Protocol):
    """Takes messages, one or several together."""

    host: str  # who it is, for messages
    most_together: int  # messages of one call of `deliver`

    def deliver(self, messages: Sequence[Message]) -> None:
        """Send some messages, the oldest first.

        Raises:
            TransientError: If they are not accepted.
        """


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
            rule = "is http://HOST/PATH or https://HOST/PATH, without a user, or names a service such as tgram://"
            fix = "Write for example tgram://TOKEN/CHAT for Telegram"
            raise ProfileError(where="param:post", rule=rule, got="another text", fix=fix)
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


class _LastWarning(logging.Handler):
    """Keeps the last warning of the package, and lets none be printed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class PeopleReceiver:
    """Sends texts to Telegram, Discord, Slack, by e-mail, or to another service of `apprise`.

    Args:
        url: The address, as https://github.com/caronc/apprise describes it for each service.

    Raises:
        ProfileError: If the package is not installed, or the address is none of a service.
    """

    most_together = MOST_TOGETHER

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0].lower()
        require_package(PACKAGE, where=f"param:post {scheme}://...", rule=f"needs the package {PACKAGE}")
        apprise = import_module(PACKAGE)
        self._log = _LastWarning()
        logger = logging.getLogger(PACKAGE)
        logger.addHandler(self._log)
        logger.setLevel(logging.WARNING)  # what it logs below that holds addresses
        logger.propagate = False
        asset = apprise.AppriseAsset(app_id="v8", app_desc="v8", app_url="", image_url_mask=None)
        self._service = apprise.Apprise.instantiate(url, asset=asset)
        server = self._service.host if scheme.startswith("mail") and self._service else ""
        _keep_secrets(url, server)
        if self._service is None:
            rule = "is an http(s) address, or one of a service of apprise such as tgram://TOKEN/CHAT"
            got = f"another address that begins with {scheme}://"
            fix = "See https://github.com/caronc/apprise for the services and their addresses"
            raise ProfileError(where="param:post", rule=rule, got=got, fix=fix)
        # As it is: no service may take a price or a name for markup, or join the lines.
        self._plain = apprise.NotifyFormat.TEXT
        self._service.notify_format = self._plain
        if self._service.password:
            keep_secret(self._service.password)
        self.host = str(self._service.service_name)

    def deliver(self, messages: Sequence[Message]) -> None:
        """Send the text of some events as one message.

        Raises:
            TransientError: If the service does not take it.
        """
        most_letters = min(self._service.body_maxlen, _LONGEST_TEXT) - _RESERVED_LETTERS
        title, body = text_of([json.loads(message.body) for message in messages], most_letters)
        self._log.text = ""
        if not self._service.notify(body=body, title=title, body_format=self._plain):
            reason = without_secrets(self._log.text) or "no answer"
            raise TransientError(f"not taken: {reason}")


def _keep_secrets(url: str, server: str) -> None:
    """Let nothing of an address be printed that may be a token; the name of a mail server may."""
    keep_secret(url)
    for part in re.split(r"[/:@?&=#]+", url):
        for text in (part, unquote(part)):
            if len(text) >= _least_letters(text) and text != server:
                keep_secret(text)


def _least_letters(text: str) -> int:
    """Return from how many letters on a text may be a token: numbers of chats and words are no secrets."""
    has_digits = re.search(r"\d", text)
    return _LEAST_TOKEN if has_digits and not text.lstrip("-").isdigit() else _LEAST_OF_ONE_KIND


def text_of(events: Sequence[Mapping[str, Any]], most_letters: int) -> tuple[str, str]:
    """Return title and text of some events: a line each, alerts before forecasts.

    Args:
        events: Contents of messages, the oldest first.
        most_letters: Longest text.
    """
    forecasts = [event for event in events if event["type"] in _FORECASTS]
    alerts = [event for event in events if event["type"] not in _FORECASTS]
    counts = [plural(len(alerts), "alert")] if alerts else []
    counts += [plural(len(forecasts), "forecast")] if forecasts else []
    lines = [_alert_line(event) for event in alerts]
    lines += _forecast_lines(forecasts)
    return f"v8: {', '.join(counts)}", "\n".join(_fitting(lines, most_letters))


def _fitting(lines: Sequence[str], most_letters: int) -> list[str]:
    """Return as many lines as fit, and one that counts the others."""
    fitting: list[str] = []
    num_letters = 0
    for position, line in enumerate(lines):
        num_letters += len(line) + 1
        if num_letters > most_letters:
            return [*fitting, say("and {n} more", n=len(lines) - position)]
        fitting.append(line)
    return fitting


def _alert_line(event: Mapping[str, Any]) -> str:
    data = event["data"]
    kind = event["type"]
    if kind == "limit.passed":
        value = f"{data['value']:.3f}"
        return sentence_of(data["kind"], data["series"], value, f"{data['limit']:g}")
    if kind == "candles.late":
        return f"{data['series']}: the candle that closed at {data['closed_at']} has not come"
    if kind == "model.decayed":
        return f"{data['series']}: its model has decayed: {data['why']}"
    if kind == "model.replaced":
        until = data["now"]["trained_until"]
        return f"{data['series']}: another model forecasts it now, trained until {until}"
    return without_secrets(str(data["error"]))


def _forecast_lines(events: Iterable[Mapping[str, Any]]) -> list[str]:
    by_close: dict[str, list[str]] = {}
    for event in events:
        data = event["data"]
        by_close.setdefault(data["issued_for"], []).append(_forecast_line(data))
    lines = []
    for close, of_close in by_close.items():
        lines += [close, *of_close]
    return lines


def _forecast_line(data: Mapping[str, Any]) -> str:
    """Return close, range and volatility ahead of a series."""
    forecasts = data["forecasts"]
    parts = [f"{data['series']}: {_price(forecasts['close']['naive'][0])}"]
    if "range" in data:
        ahead = data["range"]
        parts.append(f"{100 * ahead['share']:.0f} %: {_price(ahead['low'])} – {_price(ahead['high'])}")
    if "volatility" in forecasts:
        parts.append(f"vol {100 * forecasts['volatility']['model'][-1]:.2f} %")
    return ", ".join(parts)


def _price(value: float) -> str:
    """Write a price with five significant digits.

    >>> _price(97204.31), _price(0.0000211349)
    ('97,204', '0.000021135')
    """
    decimals = max(0, _PRICE_DIGITS - 1 - floor(log10(value)))
    return f"{value:,.{decimals}f}"
