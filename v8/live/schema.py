"""What tables a ledger has, and that nothing in them is ever changed or removed.

    tracks      a place and one of its series
    issuers     who forecasts it: model, profile, source, tasks, forecasters; JSON
    forecasts   one row for each close of a track
    scores      at most one row for each forecast; without losses where a candle never came

Numbers are packed by `v8.live.packing`. Times are seconds since the epoch, UTC.
"""

from __future__ import annotations

import sqlite3
from typing import Final

APPLICATION_ID: Final = 0x76386C67
"""Marks a SQLite file as a ledger of v8: "v8lg"."""

SCHEMA_VERSION: Final = 1

_TABLES: Final = (
    """CREATE TABLE tracks (
        id INTEGER PRIMARY KEY,
        place TEXT NOT NULL,
        series TEXT NOT NULL,
        UNIQUE (place, series)
    )""",
    """CREATE TABLE issuers (
        id INTEGER PRIMARY KEY,
        track INTEGER NOT NULL REFERENCES tracks (id),
        about TEXT NOT NULL,
        UNIQUE (track, about)
    )""",
    """CREATE TABLE forecasts (
        id INTEGER PRIMARY KEY,
        track INTEGER NOT NULL REFERENCES tracks (id),
        issued_for_s INTEGER NOT NULL,
        written_s INTEGER NOT NULL,
        issuer INTEGER NOT NULL REFERENCES issuers (id),
        candles_digest TEXT NOT NULL,
        forecasts BLOB NOT NULL,
        UNIQUE (track, issued_for_s)
    )""",
    """CREATE TABLE scores (
        forecast INTEGER PRIMARY KEY REFERENCES forecasts (id),
        scored_s INTEGER NOT NULL,
        truth_digest TEXT,
        losses BLOB,
        truth BLOB
    )""",
    # The live record reads times of all forecasts, and none of what they say.
    "CREATE INDEX times ON forecasts (track, issued_for_s, written_s, issuer)",
)

_KEYS: Final = {
    "tracks": "place = NEW.place AND series = NEW.series",
    "issuers": "track = NEW.track AND about = NEW.about",
    "forecasts": "track = NEW.track AND issued_for_s = NEW.issued_for_s",
    "scores": "forecast = NEW.forecast",
}
"""By what a row is known; INSERT OR REPLACE would remove the row that has it, past a trigger of DELETE."""


def _triggers(table: str, key: str) -> list[str]:
    refuse = "BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END"
    is_there = f"EXISTS (SELECT 1 FROM {table} WHERE {key})"  # noqa: S608 - our own words
    return [
        f"CREATE TRIGGER {table}_stay BEFORE DELETE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_stand BEFORE UPDATE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_once BEFORE INSERT ON {table} WHEN {is_there} {refuse}",
    ]


SCHEMA: Final = (*_TABLES, *(line for table, key in _KEYS.items() for line in _triggers(table, key)))
"""What makes a ledger, statement by statement."""


def make(connection: sqlite3.Connection) -> None:
    """Make the tables of a ledger in an empty database."""
    for statement in SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def fault(connection: sqlite3.Connection) -> str | None:
    """Say why a database is no ledger of this version; None for one that is."""
    ((mark,),) = connection.execute("PRAGMA application_id")
    ((version,),) = connection.execute("PRAGMA user_version")
    if mark != APPLICATION_ID:
        return "the file of another program"
    if version != SCHEMA_VERSION:
        return f"schema {version}"
    found = set(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    with sqlite3.connect(":memory:") as example:
        make(example)
        expected = set(example.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    example.close()
    strange = sorted({str(name) for name, _ in found ^ expected})
    return f"other tables or triggers than v8 makes ({', '.join(strange)})" if strange else None
