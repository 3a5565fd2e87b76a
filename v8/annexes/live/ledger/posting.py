"""Posts the events of a ledger to an address; each message is sent until the receiver has accepted it.

A message is a webhook (https://www.standardwebhooks.com): JSON with `type`, `timestamp` and `data`, an
id that is the same however often it is sent, and an HMAC-SHA256 of both by the secret of `V8_POST_SECRET`.

    forecast.issued    a forecast of the model and of every baseline
    forecast.late      the same, if the first of its bars had closed when it was written
    forecast.refused   why a series, or all of a place, could not be forecast
    model.replaced     a series is forecast by another model than before
    model.decayed      in the live record a model is significantly worse than on its test span
    limit.passed       volatility or range ahead has risen above a limit (`v8.annexes.live.limits`)
    candles.late       the newest candle of a series has not come in time

People get the same events as texts (`v8.annexes.live.ledger.receiver`).

Messages wait in the outbox, a file in the ledger's folder. New forecasts are read from the ledger, and the
position up to which they were read is written in one transaction with their messages: a process that is
killed at any moment loses no message and makes none twice. Messages are sent in order, and stay until the
receiver has accepted them. A process that is killed after that and before it has removed the message sends
it again: a webhook with the same id, by which the receiver recognises it.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from v8.annexes.live.ledger.database import BUSY_S, Database, Ledger, sqlite_errors_translated
from v8.annexes.live.ledger.entries import Entry
from v8.annexes.live.ledger.receiver import POST_RETRY_POLICY, Message, MessageReceiver
from v8.annexes.live.ledger.record import live_losses
from v8.annexes.live.limits import Limit, values_of
from v8.base.errors import PublishError, V8Error
from v8.base.http_client import RetryFailure, RetryPolicy
from v8.base.storage import digest_json
from v8.data.market.series import iso
from v8.forecaster.forecaster import Forecaster
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation.evaluation import MODEL, detect_decay
from v8.model.evaluation.leaderboard import references
from v8.model.evaluation.price_range import PriceRange
from v8.profile.columns import CLOSE, TASK_OHLC, TASK_VOLATILITY
from v8.profile.formulas import DAY_S

POLL_S: Final = 1.0
"""Seconds between two looks into the outbox."""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS messages (number INTEGER PRIMARY KEY, place TEXT, id TEXT UNIQUE, body TEXT);
CREATE TABLE IF NOT EXISTS known (what TEXT PRIMARY KEY, value);
CREATE TABLE IF NOT EXISTS ranges (place TEXT, series TEXT, issued_for_s INTEGER, low REAL, high REAL,
    PRIMARY KEY (place, series, issued_for_s));
"""


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
                    data = {"series": issuer.series, "before": model_before, "now": issuer.to_json()}
                    self.put("model.replaced", entry.written_s, data)
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
                data = {
                    "series": series,
                    "issued_for": iso(entry.issued_for_s),
                    "kind": limit.kind,
                    "value": round(100 * share, 6),
                    "limit": limit.percent,
                }
                self.put("limit.passed", entry.written_s, data)

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
            data = {"series": str(series), "model_sha256": metadata.model_sha256, "why": reason}
            self.put("model.decayed", at_s, data)

    def _exchange_note(self, subject: str, value: int | str) -> Any:
        """Write a note about a subject of the place, and return the note before it; None at first."""
        key = f"{self.place} {subject}"
        rows = self._rows("SELECT value FROM known WHERE what = :what", what=key)
        if rows != [(value,)]:
            self._rows("INSERT OR REPLACE INTO known VALUES (:what, :value)", what=key, value=value)
        return rows[0][0] if rows else None


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
        rule = "takes each message with an answer of 2xx" if receiver.most_together == 1 else "takes messages"
        got = str(refused.trouble)
        fix = f"See what it lacks; {outbox.path} keeps the messages until they are taken"
        return PublishError(where=receiver.host, rule=rule, got=got, fix=fix)

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
