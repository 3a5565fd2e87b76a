"""Posts the events of a ledger to an address; each message is sent until the receiver has accepted it.

A message is a webhook (https://www.standardwebhooks.com): JSON with `type`, `timestamp` and `data`, an
id that is the same however often it is sent, and an HMAC-SHA256 of both by the secret of `V8_POST_SECRET`.

    forecast.issued    a forecast of the model and of every baseline
    forecast.late      the same, if the first of its bars had closed when it was written
    forecast.refused   why a series, or all of a place, could not be forecast
    model.replaced     a series is forecast by another model than before
    model.decayed      in the live record a model is significantly worse than on its test span
    limit.passed       volatility or range ahead has risen above a limit (`v8.annexes.live`)
    candles.late       the newest candle of a series has not come in time

People get the same events as texts, which the package `apprise` takes to their services. All that waits is
one message, so that forty series of one close are read at once: alerts first, then forecasts, as many lines
as the service takes. An address such as `tgram://TOKEN/CHAT` is a secret. Nothing of it is printed: parts of
it that may be tokens or passwords are given to `keep_secret`, and what the package logs is kept from handlers
of others.

Messages wait in the outbox, a file in the ledger's folder. New forecasts are read from the ledger, and the
position up to which they were read is written in one transaction with their messages: a process that is
killed at any moment loses no message and makes none twice. Messages are sent in order, and stay until the
receiver has accepted them. A process that is killed after that and before it has removed the message sends
it again: a webhook with the same id, by which the receiver recognises it.
"""

import hmac
import json
import logging
import os
import re
import sqlite3
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from math import floor, log10
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias
from urllib.parse import unquote

import requests

from v8.annexes.live import Limit, sentence_of, values_of
from v8.annexes.live.entries import Entry
from v8.annexes.live.ledger import BUSY_S, Database, Ledger, sqlite_errors_translated
from v8.annexes.live.record import live_losses
from v8.base.errors import ProfileError, PublishError, V8Error
from v8.base.http_client import (
    BROKEN,
    HttpClient,
    RetryFailure,
    RetryPolicy,
    TimeLimits,
    TransientError,
    trouble_of,
)
from v8.base.registry import require_package
from v8.base.storage import digest_json
from v8.base.wording import keep_secret, plural, say, without_secrets
from v8.data.market.series import iso
from v8.data.market.sources.downloads import PATIENCE
from v8.forecaster.forecaster import Forecaster
from v8.model.baselines.baselines import NAIVE
from v8.model.baselines.paths import PriceRange
from v8.model.evaluation.evaluation import MODEL, detect_decay
from v8.model.evaluation.leaderboard import references
from v8.profile.columns import CLOSE, TASK_OHLC, TASK_VOLATILITY
from v8.profile.formulas import DAY_S

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
POLL_S: Final = 1.0
"""Seconds between two looks into the outbox."""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS messages (number INTEGER PRIMARY KEY, place TEXT, id TEXT UNIQUE, body TEXT);
CREATE TABLE IF NOT EXISTS known (what TEXT PRIMARY KEY, value);
CREATE TABLE IF NOT EXISTS ranges (place TEXT, series TEXT, issued_for_s INTEGER, low REAL, high REAL,
    PRIMARY KEY (place, series, issued_for_s));
"""


@dataclass(frozen=True)
class Message:
    """An event that waits to be sent."""

    number: int  # in the order of the outbox
    id: str  # the same however often it is sent
    body: str  # JSON with `type`, `timestamp` and `data`


class Receiver:
    """Receives messages. Of the address only the host is shown; the secret of the environment never is.

    Args:
        url: The address.
        limits: How long the receiver may take for one message.

    Raises:
        ProfileError: If the address or the secret is missing or not valid.
    """

    most_together = 1  # messages of one call of `deliver`

    def __init__(self, url: str, limits: TimeLimits = TIMES) -> None:
        address = _ADDRESS.fullmatch(url)
        if not address:
            raise ProfileError(
                where="param:post",
                rule="is http://HOST/PATH or https://HOST/PATH, without a user, or names a service such as tgram://",
                got="another text",
                fix="Write for example tgram://TOKEN/CHAT for Telegram",
            )
        secret = _SECRET.fullmatch(os.environ.get(SECRET_VARIABLE, ""))
        if not secret:
            raise ProfileError(
                where=SECRET_VARIABLE,
                rule="is whsec_ and at least 24 bytes in base64, which the receiver knows, too",
                got="another text" if SECRET_VARIABLE in os.environ else "none",
                fix="Make one: python -c 'import base64, os; "
                'print("whsec_" + base64.b64encode(os.urandom(32)).decode())\'',
            )
        self.url = url
        self.host = address[1]
        self._secret = b64decode(secret[1])
        self._limits = limits

    def deliver(self, messages: Sequence[Message]) -> None:
        """Send a message.

        Raises:
            TransientError: If it is not accepted.
        """
        (message,) = messages
        timestamp = str(int(time.time()))
        signed = f"{message.id}.{timestamp}.{message.body}"
        digest = hmac.digest(self._secret, signed.encode(), "sha256")
        headers = {
            "webhook-id": message.id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{b64encode(digest).decode()}",
            "content-type": "application/json",
        }
        try:
            with HttpClient(headers) as client:
                body = message.body.encode()
                client.ask("POST", self.url, _require_accepted, limits=self._limits, body=body)
        except BROKEN as error:  # the texts of these errors hold the address, which may be secret
            raise TransientError(f"no answer ({type(error).__name__})") from None


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
            raise ProfileError(
                where="param:post",
                rule="is an http(s) address, or one of a service of apprise such as tgram://TOKEN/CHAT",
                got=f"another address that begins with {scheme}://",
                fix="See https://github.com/caronc/apprise for the services and their addresses",
            )
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


MessageReceiver: TypeAlias = Receiver | PeopleReceiver


def open_receiver(url: str) -> MessageReceiver:
    """Open the receiver of an address: a webhook for http and https, else a service that people read."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme.lower() not in ("http", "https"):
        return PeopleReceiver(url)
    return Receiver(url)


def _keep_secrets(url: str, server: str) -> None:
    """Let nothing of an address be printed that may be a token; the name of a mail server may."""
    keep_secret(url)
    for part in re.split(r"[/:@?&=#]+", url):
        for text in (part, unquote(part)):
            # Numbers of chats and words are no secrets.
            may_be_token = re.search(r"\d", text) and not text.lstrip("-").isdigit()
            least_letters = _LEAST_TOKEN if may_be_token else _LEAST_OF_ONE_KIND
            if len(text) >= least_letters and text != server:
                keep_secret(text)


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
        return sentence_of(data["kind"], data["series"], f"{data['value']:.3f}", f"{data['limit']:g}")
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


@dataclass(frozen=True)
class Wishes:
    """What is sent of the forecasts."""

    limits: tuple[Limit, ...] = ()
    has_forecasts: bool = True  # each of them, not only what passes a limit


ALL_FORECASTS: Final = Wishes()


class Outbox(Database):
    """The messages about a place in a ledger that the receiver has not accepted yet."""

    def __init__(self, ledger: Path, place: str) -> None:
        path = ledger.with_name(f"{ledger.name}.outbox")
        with sqlite_errors_translated(path):
            super().__init__(path, sqlite3.connect(path, BUSY_S, isolation_level=None))
            self._connection.executescript(_TABLES)
        self.place = place
        self.num_sent = 0

    def collect(
        self, ledger: Ledger, model_of: Callable[[str], Forecaster], wishes: Wishes = ALL_FORECASTS
    ) -> None:
        """Put in messages about the forecasts since the last call; the first call only notes the position.

        At the first close of each day the models are tested for decay.

        Args:
            ledger: The ledger.
            model_of: Returns the model that serves a series, by its name.
            wishes: What is sent besides what happens to the models.
        """
        with self._transaction():
            last_number = ledger.last_number
            first_number = self._exchange_note("", last_number)
            if first_number is None:
                first_number = last_number
            for recorded in ledger.forecasts_after(self.place, first_number):
                entry = self._with_range(recorded)
                issuer = entry.issuer
                model_before = self._exchange_note(issuer.series, issuer.model_sha256)
                if model_before not in (None, issuer.model_sha256):
                    self.put(
                        "model.replaced",
                        entry.written_s,
                        {"series": issuer.series, "before": model_before, "now": issuer.to_json()},
                    )
                if wishes.has_forecasts:
                    kind = "forecast.late" if entry.is_late else "forecast.issued"
                    self.put(kind, entry.written_s, entry.to_json())
                self._compare(entry, wishes.limits)
                if entry.issued_for_s % DAY_S == 0:
                    with suppress(V8Error):  # the next forecast reports a model that cannot be opened
                        self._test_for_decay(model_of(issuer.series), ledger, entry.written_s)

    def put(self, kind: str, at_s: int, data: Mapping[str, Any]) -> None:
        """Put a message in, unless it is there already.

        Args:
            kind: Type of the message.
            at_s: When the event happened, seconds since the epoch, UTC.
            data: JSON values about the event.
        """
        content = {"type": kind, "timestamp": iso(at_s), "data": {"place": self.place, **data}}
        self._rows(
            "INSERT OR IGNORE INTO messages (place, id, body) VALUES (:place, :id, :body)",
            place=self.place,
            id=f"msg_{digest_json(content)[:32]}",
            body=json.dumps(content),
        )

    def put_late(self, series: str, close_s: int, at_s: int) -> None:
        """Put in a message, once, that the candle of a close has not come."""
        with self._transaction():
            if self._exchange_note(f"{series} late", close_s) != close_s:
                self.put("candles.late", at_s, {"series": series, "closed_at": iso(close_s)})

    def put_refused(self, subject: str, error: V8Error, at_s: int) -> None:
        """Put in a message that a subject cannot be forecast, once for each trouble until `end_refusals`."""
        with self._transaction():
            if self._exchange_note(f"{subject} refused {trouble_key(error)}", 1) is None:
                self.put("forecast.refused", at_s, {"what": subject, "error": str(error)})

    def end_refusals(self, subject: str) -> None:
        """Note that a subject can be forecast again."""
        with self._transaction():
            delete = "DELETE FROM known WHERE substr(what, 1, length(:beginning)) = :beginning"
            self._rows(delete, beginning=f"{self.place} {subject} refused ")

    def _compare(self, entry: Entry, limits: Sequence[Limit]) -> None:
        """Put in a message for each limit that a forecast has passed and the one before it had not."""
        series = entry.issuer.series
        values = _compared_values(entry)
        for limit in limits:
            share = values[limit.kind]
            is_passed = limit.is_passed(series, share)
            if is_passed is None or share is None:
                continue
            was_passed = self._exchange_note(f"{series} {limit}", int(is_passed))
            if is_passed and not was_passed:
                self.put(
                    "limit.passed",
                    entry.written_s,
                    {
                        "series": series,
                        "issued_for": iso(entry.issued_for_s),
                        "kind": limit.kind,
                        "value": round(100 * share, 6),
                        "limit": limit.percent,
                    },
                )

    def keep_range(self, entry: Entry) -> None:
        """Keep the range of a forecast until its message is made: the ledger has no place for it."""
        if entry.price_range is None:
            return
        with self._transaction():
            self._rows(
                "INSERT OR REPLACE INTO ranges VALUES (:place, :series, :issued_for_s, :low, :high)",
                **self._key_of(entry),
                low=entry.price_range.low,
                high=entry.price_range.high,
            )

    def _with_range(self, entry: Entry) -> Entry:
        """Return a forecast of the ledger with its range, if that was kept, and forget the range."""
        key = self._key_of(entry)
        rows = self._rows(
            "SELECT low, high FROM ranges WHERE place = :place AND series = :series "
            "AND issued_for_s = :issued_for_s",
            **key,
        )
        self._rows(
            "DELETE FROM ranges WHERE place = :place AND series = :series AND issued_for_s = :issued_for_s",
            **key,
        )
        return replace(entry, price_range=PriceRange(*rows[0])) if rows else entry

    def _key_of(self, entry: Entry) -> dict[str, Any]:
        return {"place": self.place, "series": entry.issuer.series, "issued_for_s": entry.issued_for_s}

    def send_all(self, receiver: MessageReceiver) -> None:
        """Send the messages, the oldest first, and remove those that are accepted.

        Raises:
            TransientError: If a message is not accepted.
        """
        messages = self._waiting(receiver.most_together)
        while messages:
            receiver.deliver(messages)
            delete = "DELETE FROM messages WHERE place = :place AND number <= :number"
            self._rows(delete, place=self.place, number=messages[-1].number)
            self.num_sent += len(messages)
            messages = self._waiting(receiver.most_together)

    def _waiting(self, most: int) -> list[Message]:
        query = "SELECT number, id, body FROM messages WHERE place = :place ORDER BY number LIMIT :most"
        rows = self._rows(query, place=self.place, most=most)
        return [Message(number, message_id, body) for number, message_id, body in rows]

    def _test_for_decay(self, model: Forecaster, ledger: Ledger, at_s: int) -> None:
        """Put in a message if the live record shows decay of a model; one message a model."""
        metadata = model.about
        series = model.series
        losses = live_losses(ledger, self.place, series, metadata.model_sha256, 0)
        if not losses or not metadata.is_evaluated:
            return
        has_decayed, reason = detect_decay(metadata.evaluation, losses, references(metadata.verdicts))
        if not has_decayed:
            return
        reported_model = self._exchange_note(f"{series} decayed", metadata.model_sha256)
        if reported_model != metadata.model_sha256:
            self.put(
                "model.decayed",
                at_s,
                {"series": str(series), "model_sha256": metadata.model_sha256, "why": reason},
            )

    def _exchange_note(self, subject: str, value: int | str) -> Any:
        """Write a note about a subject of the place, and return the note before it; None at first."""
        key = f"{self.place} {subject}"
        rows = self._rows("SELECT value FROM known WHERE what = :what", what=key)
        if rows != [(value,)]:
            self._rows("INSERT OR REPLACE INTO known VALUES (:what, :value)", what=key, value=value)
        return rows[0][0] if rows else None


def trouble_key(error: V8Error) -> str:
    """Return what the errors of one trouble have in common: all but what was got, which changes meanwhile."""
    return digest_json([type(error).__name__, error.where, error.rule, error.fix])


def _compared_values(entry: Entry) -> dict[str, float | None]:
    """Return what limits are compared with; the naive forecast of the close is the newest close."""
    issuer = entry.issuer
    model, naive = (issuer.split(entry.values[issuer.forecasters.index(name)]) for name in (MODEL, NAIVE))
    closes = naive[TASK_OHLC][:, issuer.tasks[TASK_OHLC].index(CLOSE)]
    volatility = float(model[TASK_VOLATILITY][-1, 0]) if TASK_VOLATILITY in model else None
    return values_of(float(closes[0]), volatility, entry.price_range)


def send_messages(
    ledger: Path, place: str, receiver: MessageReceiver, patience: RetryPolicy = POST_RETRY_POLICY
) -> None:
    """Send the messages of a place until none is left.

    Args:
        ledger: Path of the ledger.
        place: The place, as the ledger names it.
        receiver: The address that they are sent to.
        patience: How often and how long a message is tried again.

    Raises:
        PublishError: If a message is not accepted in the end.
    """

    def publish_error(refused: RetryFailure) -> PublishError:
        return PublishError(
            where=receiver.host,
            rule="takes each message with an answer of 2xx"
            if receiver.most_together == 1
            else "takes messages",
            got=str(refused.trouble),
            fix=f"See what it lacks; {outbox.path} keeps the messages until they are taken",
        )

    with Outbox(ledger, place) as outbox:
        patience.call(lambda _: outbox.send_all(receiver), publish_error, progress=lambda: outbox.num_sent)


def keep_sending(
    ledger: Path, place: str, receiver: MessageReceiver, notify: Callable[[str], object]
) -> NoReturn:
    """Send waiting and coming messages until the process ends.

    `notify` gets the text of an error once, until another one occurs or a message is sent again.
    """
    last_error = ""
    while True:
        try:
            send_messages(ledger, place, receiver)
            last_error = ""
            pause_s = POLL_S
        except V8Error as error:
            if str(error) != last_error:
                notify(str(error))
            last_error = str(error)
            pause_s = POST_RETRY_POLICY.longest_s
        time.sleep(pause_s)
