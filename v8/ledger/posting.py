"""Posting: what happens to a ledger, sent to an address, each message until it is taken.

A message is a webhook (https://www.standardwebhooks.com): JSON with `type`, `timestamp` and `data`, an
id that is the same however often it is sent, and an HMAC-SHA256 of both by the secret of `V8_POST_SECRET`.

    forecast.issued    a forecast: what the model and every baseline said
    forecast.late      the same, where the first of its bars had closed when it was written
    forecast.refused   why a series, or all of a place, could not be forecast
    model.replaced     a series is forecast by another model than before
    model.decayed      by the live record a model is worse than its test span promised, by more than chance

Messages wait in the outbox, a file beside the ledger. Forecasts are read from the ledger, and how far they
were is written together with their messages: a process that is killed anywhere loses none and makes none
twice. They leave in order, and stay until the receiver answers 2xx. Who is killed between that answer and its
note sends the same id once more, by which the receiver knows it.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from v8.artifacts.forecaster import Forecaster
from v8.errors import PublishError, V8Error
from v8.features.formulas import DAY_S
from v8.ledger.database import BUSY_S, Database, Ledger, spoken
from v8.ledger.receiver import POST_RETRY_POLICY, Receiver
from v8.market.series import iso
from v8.net import RetryFailure, RetryPolicy
from v8.promotion.champion_test import decay_of
from v8.promotion.renewal import recorded_losses
from v8.storage import digest_json

LOOK_S: Final = 1.0
"""How long a message may lie before somebody looks, in seconds."""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS messages (number INTEGER PRIMARY KEY, place TEXT, id TEXT UNIQUE, body TEXT);
CREATE TABLE IF NOT EXISTS known (what TEXT PRIMARY KEY, value);
"""


class Outbox(Database):
    """The messages about a place in a ledger that are not taken yet."""

    def __init__(self, ledger: Path, place: str) -> None:
        path = ledger.with_name(f"{ledger.name}.outbox")
        with spoken(path):
            super().__init__(path, sqlite3.connect(path, BUSY_S, isolation_level=None))
            self._connection.executescript(_TABLES)
        self.place = place
        self.num_taken = 0

    def collect(self, ledger: Ledger, model_of: Callable[[str], Forecaster]) -> None:
        """Put in what was forecast since the last call; the first finds nothing: what is there is no news.

        At the first close of a day the models, by series, are held against their promise.
        """
        with self._transaction():
            newest = ledger.last_number
            known = self._noted("", newest)
            for entry in ledger.since(self.place, newest if known is None else known):
                issuer = entry.issuer
                at_s = entry.written_s
                before = self._noted(issuer.series, issuer.model_sha256)
                if before not in (None, issuer.model_sha256):
                    told = {"series": issuer.series, "before": before, "now": issuer.to_json()}
                    self.put("model.replaced", at_s, told)
                self.put(f"forecast.{'late' if entry.is_late else 'issued'}", at_s, entry.to_json())
                if entry.issued_for_s % DAY_S == 0:
                    with suppress(V8Error):  # a model that cannot be opened is told of by who forecasts
                        self._look_at(model_of(issuer.series), ledger, at_s)

    def put(self, kind: str, at_s: int, data: Mapping[str, Any]) -> None:
        """Put a message in, unless it is there."""
        told = {"type": kind, "timestamp": iso(at_s), "data": {"place": self.place, **data}}
        row = {"place": self.place, "id": f"msg_{digest_json(told)[:32]}", "body": json.dumps(told)}
        self._rows("INSERT OR IGNORE INTO messages (place, id, body) VALUES (:place, :id, :body)", **row)

    def empty(self, receiver: Receiver) -> None:
        """Send the messages, the oldest first; `TransientError` at one that is not taken."""
        oldest = "SELECT number, id, body FROM messages WHERE place = :place ORDER BY number LIMIT 1"
        while found := self._rows(oldest, place=self.place):
            ((number, name, body),) = found
            receiver.send(name, body)
            self._rows("DELETE FROM messages WHERE number = :number", number=number)
            self.num_taken += 1

    def _look_at(self, model: Forecaster, ledger: Ledger, at_s: int) -> None:
        """Tell once of a model that it has decayed, by what the ledger says of it."""
        about = model.about
        series = model.series
        losses = recorded_losses(ledger, self.place, series, about.model_sha256, 0)
        has_decayed, why = (
            decay_of(about.evaluation, losses) if losses and about.is_evaluated else (False, "")
        )
        if has_decayed and self._noted(f"{series} decayed", about.model_sha256) != about.model_sha256:
            told = {"series": str(series), "model_sha256": about.model_sha256, "why": why}
            self.put("model.decayed", at_s, told)

    def _noted(self, what: str, value: int | str) -> Any:
        """Note a value of the place, and return the one that was noted before; None at first."""
        what = f"{self.place} {what}"
        found = self._rows("SELECT value FROM known WHERE what = :what", what=what)
        if found != [(value,)]:
            self._rows("INSERT OR REPLACE INTO known VALUES (:what, :value)", what=what, value=value)
        return found[0][0] if found else None


def send_messages(
    ledger: Path, place: str, receiver: Receiver, patience: RetryPolicy = POST_RETRY_POLICY
) -> None:
    """Send the messages of a place until none waits; `PublishError` where one is not taken in the end."""

    def refuse(refused: RetryFailure) -> PublishError:
        rule = "takes each message with an answer of 2xx"
        got = str(refused.trouble)
        fix = f"See what it lacks; {outbox.path} keeps the messages until they are taken"
        return PublishError(where=receiver.host, rule=rule, got=got, fix=fix)

    with Outbox(ledger, place) as outbox:
        patience.call(lambda _: outbox.empty(receiver), refuse, progress=lambda: outbox.num_taken)


def keep_sending(ledger: Path, place: str, receiver: Receiver, tell: Callable[[str], object]) -> NoReturn:
    """Send what waits, and what comes, until the process ends; tell trouble once until it is over."""
    told = ""
    while True:
        try:
            send_messages(ledger, place, receiver)
            told = ""
            pause_s = LOOK_S
        except V8Error as error:
            if str(error) != told:
                tell(str(error))
            told = str(error)
            pause_s = POST_RETRY_POLICY.longest_s
        time.sleep(pause_s)
