"""The database of the ledger: one append-only SQLite file.

    tracks      a place and one of its series
    issuers     the models that forecast it: digest, profile, source, tasks, forecasters; JSON
    forecasts   one row for each close of a track
    scores      at most one row for each forecast; without losses if a candle never came

* A forecast is one row, written in one transaction and on the disk before the call returns; a place and
  series has at most one for each close. Triggers refuse to change or remove a row.
* The schema has a version. A file with another version, of another program, or without a schema is refused
  and not changed.
* One process at a time writes, by a lock; others may read meanwhile (write-ahead log).
* Numbers are little-endian. Those of a forecast are packed: forecast prices begin with the same bits, so
  bytes of equal significance are stored next to each other before they are compressed. Times are seconds
  since the epoch, UTC.

Rows are checked when they are read, like a file of unknown origin: numbers are finite and have the expected
shape, and each forecast and score has the checksum that was written with it. `Ledger.require_intact` compares
all checksums, and the tables with their indexes, which hold places, issuers and times a second time.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from v8.annexes.live.entries import (
    ActualValues,
    Entry,
    ForecastCounts,
    Issuer,
    Score,
    ScoredForecasts,
    checksum_of,
    pack,
    place_name,
    require_checksum,
    require_packed,
    unpack,
    unpack_plain,
)
from v8.base.errors import ArtifactError, ProfileError, StorageError, V8Error
from v8.base.process import command
from v8.base.records import AS_WRITTEN, OpenTime, Sha256, adapter, checked, parse_json
from v8.base.storage import WriterLock, packaged, require_replaceable, write_with
from v8.data.market.series import Series

BUSY_S: Final = 30.0  # how long to wait for another process that uses the file, in seconds
_SQLITE_ENDINGS: Final = ("-wal", "-shm", "-journal")  # of the files that SQLite opens with a database
_FIX: Final = "Restore the file from a copy, or begin another ledger with param:ledger"
_STORAGE_ERROR_CODES: Final = {
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("FULL", "READONLY", "IOERR", "CANTOPEN", "PERM", "BUSY", "LOCKED")
}
"""Error codes of SQLite for trouble with the disk, permissions or locks; others mean a damaged content."""

APPLICATION_ID: Final = 0x76386C67  # marks a SQLite file as a ledger of v8: "v8lg"
SCHEMA_VERSION: Final = 3

_ENTRY_COLUMNS: Final = "issuer, issued_for_s, written_s, candles_digest, forecasts, forecasts.checksum"
"""Columns of the table `forecasts` that an `Entry` is made of."""

_CHECKED_OF_FORECAST: Final = ("issuer", "issued_for_s", "written_s", "candles_digest", "forecasts")
"""Columns of the table `forecasts` that its checksum is of."""

_CHECKED_OF_SCORE: Final = ("forecast", "scored_s", "actual_digest", "losses")
"""Columns of the table `scores` that its checksum is of; packed actual values have one of their own."""

_UNIQUE_KEYS: Final = {
    "tracks": "place = :place AND series = :series",
    "issuers": "track = :track AND about = :about",
    "forecasts": "track = :track AND issued_for_s = :issued_for_s",
    "scores": "forecast = :forecast",
}
"""The condition that identifies a row of each table, as in the triggers of the schema."""


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of a ledger in an empty database, and the triggers that protect their rows."""
    connection.executescript(packaged("v8.annexes.live", "schema.sql"))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def schema_fault(connection: sqlite3.Connection) -> str | None:
    """Say why a database is not a ledger of this schema; None if it is one."""
    ((application_id,),) = connection.execute("PRAGMA application_id")
    ((version,),) = connection.execute("PRAGMA user_version")
    if application_id != APPLICATION_ID:
        return "the file of another program"
    if version != SCHEMA_VERSION:
        return f"schema {version}"
    statements = set(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    with closing(sqlite3.connect(":memory:")) as example:
        make_tables(example)
        expected = set(example.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    different = sorted({str(name) for name, _ in statements ^ expected})
    if different:
        return f"other tables or triggers than v8 makes ({', '.join(different)})"
    return None


class Database:
    """An open SQLite file for one thread at a time; errors of SQLite are raised as errors of v8."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, query: str, **parameters: Any) -> list[Any]:
        with sqlite_errors_translated(self.path):
            return self._connection.execute(query, parameters).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Make all changes of the block, or none of them."""
        with sqlite_errors_translated(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.rollback()
                raise
            self._connection.execute("COMMIT")


class Ledger(Database):
    """An open ledger, of one thread at a time; `open` and `open_to_write` make one."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: WriterLock | None = None) -> None:
        super().__init__(path, connection)
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a ledger to read it, also while another process writes it.

        Raises:
            ArtifactError: If there is none of this version.
        """
        return cls(path, _connect(path))

    @classmethod
    def open_to_write(cls, path: Path) -> Self:
        """Open a ledger to add to it; a new one is made if there is no such file.

        Raises:
            ArtifactError: If another process writes it, or it is no ledger of this version.
        """
        lock = WriterLock(
            path,
            rule="one process at a time writes a ledger",
            fix="Wait until it ends, or use another param:ledger",
        )
        try:
            if not os.path.lexists(path):
                write_with(path, _make_file)
            return cls(path, _connect(path, is_writer=True), lock)
        except BaseException:
            lock.release()
            raise

    def require_intact(self) -> None:
        """Compare all tables with their indexes, and all rows with their checksums.

        Reads the whole file: 20,000 short forecasts with their scores, 7 MB, in 0.2 s.

        Raises:
            ArtifactError: If they differ, or the file is damaged otherwise.
        """
        ((found,),) = self._rows("PRAGMA integrity_check(1)")
        if found != "ok":
            raise _damaged(self.path, str(found))
        for row, actual, checksum, *values in self._checked_rows():
            with self._damage_reported(row):
                require_checksum(checksum, *values)
                if actual is not None:
                    require_packed(actual)

    def _checked_rows(self) -> Iterator[Sequence[Any]]:
        """Yield all forecasts and scores, one at a time: a name, actual values, checksum, what it is of."""
        forecast_names = ", ".join(_CHECKED_OF_FORECAST)
        score_names = ", ".join(_CHECKED_OF_SCORE)
        with sqlite_errors_translated(self.path):
            yield from self._connection.execute(
                f"SELECT 'forecast ' || id, NULL, checksum, {forecast_names} FROM forecasts"  # noqa: S608
            )
            yield from self._connection.execute(
                f"SELECT 'score of ' || forecast, actual, checksum, {score_names} FROM scores"  # noqa: S608
            )

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the file, as far as no reader needs it; waits for nobody."""
        self._rows("PRAGMA wal_checkpoint(PASSIVE)")

    def copy_into(self, path: Path) -> None:
        """Copy this ledger into an empty file, its log included, also while another process writes."""
        with sqlite_errors_translated(path), closing(sqlite3.connect(path)) as target:
            self._connection.backup(target)

    def identity_of(self, number: int) -> list[Any]:
        """Return what identifies the forecast of a number, as one row; no row if there is none."""
        query = (
            "SELECT place, series, issued_for_s, written_s, candles_digest FROM forecasts "
            "JOIN tracks ON tracks.id = track WHERE forecasts.id = :number"
        )
        return self._rows(query, number=number)

    def close(self) -> None:
        """Close the file and release its lock."""
        super().close()
        if self._lock:
            self._lock.release()

    def place(self, place: Path | str) -> str:
        """Name a place of models as this ledger does, see `place_name`."""
        return place_name(place, self.path)

    def places(self) -> list[str]:
        """List the places that have forecasts here, in order."""
        return [row[0] for row in self._rows("SELECT DISTINCT place FROM tracks ORDER BY place")]

    def series(self, place: Path | str) -> list[str]:
        """List the series of a place that have forecasts here, in order."""
        query = "SELECT series FROM tracks WHERE place = :place ORDER BY series"
        rows = self._rows(query, place=self.place(place))
        with self._damage_reported("tracks"):
            return [str(Series.parse(row[0])) for row in rows]

    def newest(self, place: Path | str, series: str) -> int | None:
        """Return the newest close that a forecast was issued for, seconds since the epoch; None at first."""
        query = "SELECT MAX(issued_for_s) FROM forecasts WHERE track = :track"
        ((newest_s,),) = self._track_rows(place, series, query)
        with self._damage_reported("forecasts"):
            return None if newest_s is None else int(newest_s)

    def add(self, entry: Entry) -> bool:
        """Write a forecast, on the disk at return; False if there is one of the same place, series, close."""
        issuer = entry.issuer
        content = adapter(Issuer).dump_python(issuer, mode="json", exclude={"place", "series"})
        about = json.dumps(content, separators=(",", ":"), allow_nan=False)  # equal issuers have equal text
        with self._transaction():
            track = self._find_or_insert("tracks", place=issuer.place, series=issuer.series)
            row: dict[str, Any] = {
                "track": track,
                "issued_for_s": entry.issued_for_s,
                "written_s": entry.written_s,
                "issuer": self._find_or_insert("issuers", track=track, about=about),
                "candles_digest": entry.candles_digest,
                "forecasts": pack(entry.values),
            }
            row["checksum"] = checksum_of(*(row[name] for name in _CHECKED_OF_FORECAST))
            return self._insert_new("forecasts", row)

    def add_score(self, number: int, score: Score) -> bool:
        """Write the score of a forecast by its number in `pending`; False if it has one already."""
        row = {
            "forecast": number,
            "scored_s": score.scored_s,
            "actual_digest": score.actual_digest,
            "losses": None if score.losses is None else score.losses.astype("<f8").tobytes(),
            "actual": None if score.actual is None else pack(score.actual),
        }
        row["checksum"] = checksum_of(*(row[name] for name in _CHECKED_OF_SCORE))
        with self._transaction():
            return self._insert_new("scores", row)

    def pending(self, place: Path | str, series: str, since_s: int = 0) -> dict[int, Entry]:
        """Return the forecasts that have no score yet, by number, in the order of time.

        Only those issued for closes from `since_s` on, seconds since the epoch, UTC: a caller who knows that
        all earlier ones have a score saves the search.
        """
        condition = "scored_s IS NULL AND issued_for_s >= :since_s"
        entries = self._entries(place, series, condition, since_s=since_s)
        return {number: entry for number, entry, _ in entries}

    def days(self, place: Path | str) -> list[int]:
        """List the days of closes that forecasts were issued for, seconds since the epoch, UTC, ascending."""
        query = (
            "SELECT DISTINCT issued_for_s / 86400 * 86400 AS day_s FROM forecasts "
            "JOIN tracks ON tracks.id = track WHERE place = :place ORDER BY day_s"
        )
        return [int(day_s) for (day_s,) in self._rows(query, place=self.place(place))]

    def forecasts_of_day(
        self, place: Path | str, series: str, day_s: int
    ) -> list[tuple[Entry, Score | None]]:
        """Return the forecasts for the closes of a day and their scores without actual values, by time."""
        condition = "issued_for_s >= :day_s AND issued_for_s < :day_s + 86400"
        return [(entry, score) for _, entry, score in self._entries(place, series, condition, day_s=day_s)]

    def forecasts_since(self, place: Path | str, series: str, since_s: int) -> list[Entry]:
        """Return the forecasts for closes from a time on, seconds since the epoch, UTC, in order."""
        condition = "issued_for_s >= :since_s"
        return [entry for _, entry, _ in self._entries(place, series, condition, since_s=since_s)]

    @property
    def last_number(self) -> int:
        """The number of the newest forecast of all; 0 without any."""
        return int(self._rows("SELECT COALESCE(MAX(id), 0) FROM forecasts")[0][0])

    @property
    def num_rows(self) -> tuple[int, int]:
        """How many forecasts and scores it has, of all places."""
        ((num_forecasts, num_scores),) = self._rows(
            "SELECT (SELECT COUNT(*) FROM forecasts), (SELECT COUNT(*) FROM scores)"
        )
        return int(num_forecasts), int(num_scores)

    def forecasts_after(self, place: Path | str, number: int) -> Iterator[Entry]:
        """Yield the forecasts with a larger number, in order."""
        query = (
            f"SELECT forecasts.id, {_ENTRY_COLUMNS} FROM forecasts "  # noqa: S608 - our own words
            "JOIN tracks ON tracks.id = track WHERE place = :place AND forecasts.id > :number ORDER BY 1"
        )
        for entry_number, *columns in self._rows(query, place=self.place(place), number=number):
            yield self._entry(entry_number, columns)

    def count_forecasts(self, place: Path | str, series: str) -> ForecastCounts:
        """Count the forecasts of a series."""
        query = (
            "SELECT COUNT(*), TOTAL(written_s >= issued_for_s + :bar_s), COUNT(losses), "
            "TOTAL(losses IS NOT NULL AND written_s >= issued_for_s + :bar_s), "
            "TOTAL(forecast IS NOT NULL AND losses IS NULL) "
            "FROM forecasts LEFT JOIN scores ON forecast = forecasts.id WHERE track = :track"
        )
        (row,) = self._track_rows(place, series, query, bar_s=Series.parse(series).bar_s)
        num_issued, num_late, num_scored, num_scored_late, num_void = row
        return ForecastCounts(
            num_issued=int(num_issued),
            num_late=int(num_late),
            num_scored=int(num_scored),
            num_scored_late=int(num_scored_late),
            num_void=int(num_void),
        )

    def scored(self, place: Path | str, series: str) -> list[ScoredForecasts]:
        """Return the scored forecasts of a series, one element for each issuer, oldest first."""
        by_issuer = []
        columns = "losses, scores.checksum, forecast, scored_s, actual_digest"
        for issuer, rows in self._scored_rows(place, series, columns, "ORDER BY issued_for_s"):
            with self._damage_reported("scores"):
                for _, _, packed_losses, checksum, number, scored_s, actual_digest in rows:
                    require_checksum(checksum, number, scored_s, actual_digest, packed_losses)
                times = np.array([row[:2] for row in rows], np.int64)
                shape = (len(rows), len(issuer.forecasters), len(issuer.tasks))
                losses = unpack_plain(b"".join(row[2] for row in rows), shape)
                if (losses < 0).any():
                    raise ValueError("errors below zero")
            by_issuer.append(
                ScoredForecasts(issuer=issuer, issued_for_s=times[:, 0], written_s=times[:, 1], losses=losses)
            )
        return by_issuer

    def newest_actual_values(self, place: Path | str, series: str, most: int) -> list[ActualValues]:
        """Return the newest scored forecasts of a series that were issued in time, and their actual values.

        Only issuers with quantiles are included, at most `most` forecasts are read.
        """
        actual_values = []
        order = "ORDER BY issued_for_s DESC LIMIT :most"
        for issuer, rows in self._scored_rows(place, series, "forecasts, actual", order, most=most):
            shape = (len(issuer.forecasters), issuer.num_values)
            with self._damage_reported("scores"):
                in_time = [row for row in rows if row[1] < row[0] + issuer.bar_s]
                if in_time and issuer.levels:
                    actual_values.append(
                        ActualValues(
                            issuer=issuer,
                            issued_for_s=np.array([row[0] for row in in_time], np.int64),
                            values=np.stack([unpack(row[2], shape) for row in in_time]),
                            actual=np.stack([unpack(row[3], shape[1:]) for row in in_time]),
                        )
                    )
        return actual_values

    def _scored_rows(
        self, place: Path | str, series: str, columns: str, order: str, **parameters: Any
    ) -> list[tuple[Issuer, list[Any]]]:
        """Return the scored forecasts by issuer; a row is issued_for_s, written_s and the columns."""
        query = (
            f"SELECT issuer, issued_for_s, written_s, {columns} FROM forecasts "  # noqa: S608 - our own words
            f"JOIN scores ON forecast = forecasts.id WHERE track = :track AND losses IS NOT NULL {order}"
        )
        rows_by_issuer: dict[int, list[Any]] = {}
        for number, *row in self._track_rows(place, series, query, **parameters):
            rows_by_issuer.setdefault(number, []).append(row)
        return [(self._issuer(number), rows) for number, rows in rows_by_issuer.items()]

    def _entries(
        self, place: Path | str, series: str, condition: str, **parameters: Any
    ) -> Iterator[tuple[int, Entry, Score | None]]:
        """Yield the forecasts that meet a condition, in the order of time.

        Each comes with its number before it and its score, without actual values, behind it.
        """
        query = (
            f"SELECT id, scored_s, actual_digest, losses, scores.checksum, {_ENTRY_COLUMNS} "  # noqa: S608
            f"FROM forecasts LEFT JOIN scores ON forecast = id WHERE track = :track AND {condition} "
            "ORDER BY issued_for_s"
        )
        rows = self._track_rows(place, series, query, **parameters)
        for number, scored_s, actual_digest, packed_losses, checksum, *columns in rows:
            entry = self._entry(number, columns)
            shape = (len(entry.issuer.forecasters), len(entry.issuer.tasks))
            with self._damage_reported(f"score of forecast {number}"):
                losses = None if packed_losses is None else unpack_plain(packed_losses, shape)
                if scored_s is not None:
                    require_checksum(checksum, number, scored_s, actual_digest, packed_losses)
            score = None
            if scored_s is not None:
                score = Score(scored_s=scored_s, actual_digest=actual_digest, actual=None, losses=losses)
            yield number, entry, score

    def _entry(self, number: int, columns: Sequence[Any]) -> Entry:
        """Make the forecast of a number from its `_ENTRY_COLUMNS`."""
        issuer_number, issued_for_s, written_s, candles_digest, packed_values, checksum = columns
        location = f"{self.path}, forecast {number}"
        issuer = self._issuer(issuer_number)
        content = (issued_for_s, written_s, candles_digest)
        issued_for_s, written_s, candles_digest = checked(
            tuple[OpenTime, OpenTime, Sha256], content, where=location, fix=_FIX, rule=AS_WRITTEN
        )
        shape = (len(issuer.forecasters), issuer.num_values)
        with self._damage_reported(f"forecast {number}"):
            values = unpack(packed_values, shape)
            require_checksum(checksum, *columns[:-1])
            return Entry(
                issuer=issuer,
                issued_for_s=issued_for_s,
                written_s=written_s,
                candles_digest=candles_digest,
                values=values,
            )

    def _issuer(self, number: int) -> Issuer:
        query = "SELECT place, series, about FROM issuers JOIN tracks ON tracks.id = track"
        rows = self._rows(f"{query} WHERE issuers.id = :number", number=number)
        with self._damage_reported(f"issuer {number}"):
            ((place, series, issuer_json),) = rows
            content = {**parse_json(issuer_json), "place": place, "series": series}
        location = f"{self.path}, issuer {number}"
        return checked(Issuer, content, where=location, fix=_FIX, rule=AS_WRITTEN)

    def _find_or_insert(self, table: str, **row: Any) -> int:
        """Return the number of a row, which is added if it is not there yet."""
        self._insert_new(table, row)
        with self._damage_reported(table):
            query = f"SELECT id FROM {table} WHERE {_UNIQUE_KEYS[table]}"  # noqa: S608 - our own words
            ((number,),) = self._rows(query, **row)
            return int(number)

    def _insert_new(self, table: str, row: Mapping[str, Any]) -> bool:
        """Add a row, unless the table has one with the same key; return whether it was added."""
        names = ", ".join(row)
        values = ", ".join(f":{name}" for name in row)
        is_new = f"NOT EXISTS (SELECT 1 FROM {table} WHERE {_UNIQUE_KEYS[table]})"  # noqa: S608
        insert = f"INSERT INTO {table} ({names}) SELECT {values} WHERE {is_new}"
        return self._connection.execute(insert, row).rowcount == 1

    def _track_rows(self, place: Path | str, series: str, query: str, **parameters: Any) -> list[Any]:
        """Return the rows of a query about a place and series, whose number is its parameter `:track`."""
        track_query = "SELECT id FROM tracks WHERE place = :place AND series = :series"
        tracks = self._rows(track_query, place=self.place(place), series=series)
        track = tracks[0][0] if tracks else None
        return self._rows(query, track=track, **parameters)

    @contextmanager
    def _damage_reported(self, subject: str) -> Iterator[None]:
        """Raise `ArtifactError` if the content of a row cannot be converted."""
        try:
            yield
        except (ValueError, TypeError, OverflowError, AttributeError, ProfileError) as error:
            raise _damaged(self.path, f"{subject} with {error}") from error


def _make_file(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        make_tables(connection)


def _connect(path: Path, *, is_writer: bool = False) -> sqlite3.Connection:
    """Open the existing file of a ledger, and check its schema."""
    mode = _open_mode(path, is_writer=is_writer)
    with sqlite_errors_translated(path):
        address = f"{path.absolute().as_uri()}?{mode}"
        connection = sqlite3.connect(address, timeout=BUSY_S, isolation_level=None, uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            fault = schema_fault(connection)
            if fault:
                raise ArtifactError(
                    where=str(path),
                    rule=f"must be a ledger of schema {SCHEMA_VERSION}",
                    got=fault,
                    fix="Begin another ledger with param:ledger, or use the v8 that wrote this one; it is "
                    "left as it is",
                )
            if is_writer:
                connection.execute("PRAGMA synchronous = FULL")  # a power cut loses no committed forecast
            else:
                connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
    return connection


def _open_mode(path: Path, *, is_writer: bool) -> str:
    """Return how SQLite must open a file: as immutable if this process cannot write it or its folder."""
    try:
        if not path.is_file():
            example = command("forecast", "runs/frontier")
            raise ArtifactError(
                where=str(path),
                rule="must be a ledger",
                got="a folder, pipe or device" if os.path.lexists(path) else "no such file",
                fix=f"Begin one with `{example}`, or name another with param:ledger",
            )
        for ending in _SQLITE_ENDINGS:
            require_replaceable(path.with_name(path.name + ending))
        has_log = False
        with suppress(FileNotFoundError):  # the last process that closes the file removes its log
            has_log = path.with_name(f"{path.name}-wal").stat().st_size > 0
    except OSError as error:
        raise StorageError.of(error.filename or path, error) from error
    if is_writer or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return "mode=rw"
    if has_log:
        raise StorageError(
            where=str(path),
            rule="must lie where its write-ahead log can be taken up",
            got="a log next to it, and no permission to write",
            fix="Read it as the user who writes it, or copy both files",
        )
    return "mode=ro&immutable=1"


@contextmanager
def sqlite_errors_translated(path: Path) -> Iterator[None]:
    """Raise errors of SQLite, and text that is not UTF-8, as errors of v8.

    Raises:
        StorageError: If the disk, permissions or a lock are at fault.
        ArtifactError: If the file is damaged.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code not in _STORAGE_ERROR_CODES:
            raise _damaged(path, str(error)) from error
        raise StorageError(
            where=str(path),
            rule="must be written and read",
            got=str(error),
            fix="Free some space or choose another place with param:ledger, and repeat the command; what was "
            "written is kept",
        ) from error


def _damaged(path: Path, got: str) -> V8Error:
    return ArtifactError(where=str(path), rule="must be a ledger's file as v8 wrote it", got=got, fix=_FIX)
