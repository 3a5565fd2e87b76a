"""The database of the ledger: one SQLite file that is only ever added to.

    tracks      a place and one of its series
    issuers     who forecasts it: model, profile, source, tasks, forecasters; JSON
    forecasts   one row for each close of a track
    scores      at most one row for each forecast; without losses where a candle never came

* A forecast is one row, written in one transaction and kept on the disk before the call returns; a place and
  series has at most one for each close. Triggers refuse to change or remove a row.
* The schema has a version. A file of a newer one, of another program, or of none is refused and left alone.
* One process at a time writes, by a lock; others may read meanwhile (write-ahead log).
* Numbers are little-endian; those of a forecast are packed: prices that forecasters foresee begin with the
  same bits, so bytes of equal rank stand together before they are compressed. Times are seconds, UTC.

What is read back is checked like a stranger's file: its numbers are finite and of the shape they must have.
"""

import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from v8.errors import ArtifactError, ProfileError, StorageError, V8Error
from v8.invocation import command
from v8.ledger.entries import Entry, Issuer, Score, Scored, Tally
from v8.market.series import Series
from v8.records import AS_WRITTEN, OpenTime, Sha256, adapter, checked
from v8.storage import WriterLock, packaged, require_replaceable, write_with

Numbers = TypeVar("Numbers", bound=NDArray[Any])

_LEVEL: Final = 9
BUSY_S: Final = 30.0  # how long one waits for another process to let go, in seconds
_BESIDE: Final = ("-wal", "-shm", "-journal")  # what SQLite opens beside a database
_FIX: Final = "Restore the file from a copy, or begin another ledger with param:ledger"
_OTHER_FIX: Final = (
    "Name another file with param:ledger, or use the v8 that wrote this one; it is left as it is"
)
_OF_THE_PLACE: Final = {
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("FULL", "READONLY", "IOERR", "CANTOPEN", "PERM", "BUSY", "LOCKED")
}
"""What SQLite says when the place is at fault and not the content."""

APPLICATION_ID: Final = 0x76386C67  # marks a SQLite file as a ledger of v8: "v8lg"
SCHEMA_VERSION: Final = 1

_KEYS: Final = {
    "tracks": "place = :place AND series = :series",
    "issuers": "track = :track AND about = :about",
    "forecasts": "track = :track AND issued_for_s = :issued_for_s",
    "scores": "forecast = :forecast",
}
"""By what a row is known, as the triggers of the schema have it."""


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of a ledger in an empty database, and the triggers that guard them."""
    connection.executescript(packaged("v8.ledger", "schema.sql"))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def schema_fault(connection: sqlite3.Connection) -> str | None:
    """Say why a database is no ledger of this version; None for one that is."""
    ((mark,),) = connection.execute("PRAGMA application_id")
    ((version,),) = connection.execute("PRAGMA user_version")
    if mark != APPLICATION_ID:
        return "the file of another program"
    if version != SCHEMA_VERSION:
        return f"schema {version}"
    found = set(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    with closing(sqlite3.connect(":memory:")) as example:
        make_tables(example)
        expected = set(example.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    strange = sorted({str(name) for name, _ in found ^ expected})
    return f"other tables or triggers than v8 makes ({', '.join(strange)})" if strange else None


def pack(values: NDArray[np.float32]) -> bytes:
    """Write float32 numbers of any shape, compressed.

    >>> unpack(pack(np.array([[1.5, 2.0]], np.float32)), (1, 2))
    array([[1.5, 2. ]], dtype=float32)
    """
    by_rank = np.frombuffer(values.astype("<f4").tobytes(), np.uint8).reshape(-1, 4).T
    return zlib.compress(by_rank.tobytes(), _LEVEL)


def unpack(content: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Read what `pack` wrote. Raises `ValueError` if the bytes are not those of so many finite numbers."""
    size = 4 * int(np.prod(shape))
    try:
        by_rank = zlib.decompressobj().decompress(content, size + 1)  # a bomb is not unpacked
    except zlib.error as error:
        raise ValueError(f"no packed numbers ({error})") from error
    if len(by_rank) != size:
        raise ValueError(f"not {size // 4:,} numbers")
    plain = np.frombuffer(by_rank, np.uint8).reshape(4, -1).T.tobytes()
    return _finite(np.frombuffer(plain, "<f4").astype(np.float32).reshape(shape))


def unpack_plain(content: bytes, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Read float64 numbers that were written as they are; raises as `unpack` does.

    >>> unpack_plain(np.array([0.1]).astype("<f8").tobytes(), (1,))
    array([0.1])
    """
    if len(content) != 8 * int(np.prod(shape)):
        raise ValueError(f"not {int(np.prod(shape)):,} numbers")
    return _finite(np.frombuffer(content, "<f8").astype(np.float64).reshape(shape))


def _finite(values: Numbers) -> Numbers:
    if not np.isfinite(values).all():
        raise ValueError("numbers that are infinite or none")
    return values


def place_name(place: Path | str, ledger: Path) -> str:
    """Name a place of models as the ledger does.

    Args:
        place: The folder of a run as a `Path`; as text `user/name` on the Hub, or what this returned before.

    >>> place_name("you/name", Path("runs/ledger.sqlite"))
    'you/name'
    >>> place_name(Path("runs/aligned"), Path("runs/ledger.sqlite"))
    './aligned'
    """
    if isinstance(place, str):
        return place
    folder = place.resolve()
    beside = ledger.resolve().parent
    if folder.is_relative_to(beside):
        return f"./{folder.relative_to(beside).as_posix()}"
    return folder.as_posix()


class Database:
    """An open SQLite file, of one thread at a time, whose troubles are errors of ours."""

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

    def _rows(self, query: str, **named: Any) -> list[Any]:
        with spoken(self.path):
            return self._connection.execute(query, named).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Do all of the block or nothing."""
        with spoken(self.path):
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
        """Open a ledger to read it, whoever writes it; `ArtifactError` if there is none of this version."""
        return cls(path, _connected(path))

    @classmethod
    def open_to_write(cls, path: Path) -> Self:
        """Open a ledger to add to it, made where there is no such file; `ArtifactError` if another writes."""
        rule = "one process at a time writes a ledger"
        fix = "Wait until it ends, or use another param:ledger"
        lock = WriterLock(path, rule=rule, fix=fix)
        try:
            if not os.path.lexists(path):
                write_with(path, _make)
            return cls(path, _connected(path, is_writer=True), lock)
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Close the file and let it go."""
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
        found = self._rows(query, place=self.place(place))
        with self._as_written("tracks"):
            return [str(Series.parse(row[0])) for row in found]

    def newest(self, place: Path | str, series: str) -> int | None:
        """Return the newest close that a forecast was issued for, seconds since the epoch; None at first."""
        newest = "SELECT MAX(issued_for_s) FROM forecasts WHERE track = :track"
        ((found,),) = self._rows_of(place, series, newest)
        with self._as_written("forecasts"):
            return None if found is None else int(found)

    def add(self, entry: Entry) -> bool:
        """Write a forecast, on the disk at return; False if there is one of the same place, series, close."""
        issuer = entry.issuer
        with self._transaction():
            track = self._known("tracks", place=issuer.place, series=issuer.series)
            row = {
                "track": track,
                "issued_for_s": entry.issued_for_s,
                "written_s": entry.written_s,
                "issuer": self._known("issuers", track=track, about=_about(issuer)),
                "candles_digest": entry.candles_digest,
                "forecasts": pack(entry.values),
            }
            return self._insert_new("forecasts", row)

    def add_score(self, number: int, score: Score) -> bool:
        """Write the score of the forecast of a number that `pending` gave; False if it has one."""
        row = {
            "forecast": number,
            "scored_s": score.scored_s,
            "actual_digest": score.actual_digest,
            "losses": None if score.losses is None else score.losses.astype("<f8").tobytes(),
            "actual": None if score.actual is None else pack(score.actual),
        }
        with self._transaction():
            return self._insert_new("scores", row)

    def pending(self, place: Path | str, series: str, since_s: int = 0) -> dict[int, Entry]:
        """Return the forecasts that have no score yet, by number, in the order of time.

        Those that were issued for a close before `since_s` are left out: who knows that they are scored need
        not look at them.
        """
        which = "scored_s IS NULL AND issued_for_s >= :since_s"
        return {number: entry for number, entry, _ in self._entries(place, series, which, since_s=since_s)}

    def days(self, place: Path | str) -> list[int]:
        """List the days of closes that forecasts were issued for, seconds since the epoch, UTC, ascending."""
        query = (
            "SELECT DISTINCT issued_for_s / 86400 * 86400 AS day_s FROM forecasts "
            "JOIN tracks ON tracks.id = track WHERE place = :place ORDER BY day_s"
        )
        return [int(day_s) for (day_s,) in self._rows(query, place=self.place(place))]

    def of_day(self, place: Path | str, series: str, day_s: int) -> list[tuple[Entry, Score | None]]:
        """Return the forecasts for the closes of a day and their scores, without actual values, in order of time."""
        which = "issued_for_s >= :day_s AND issued_for_s < :day_s + 86400"
        return [(entry, score) for _, entry, score in self._entries(place, series, which, day_s=day_s)]

    @property
    def last_number(self) -> int:
        """The number of the newest forecast of all; 0 without any."""
        return int(self._rows("SELECT COALESCE(MAX(id), 0) FROM forecasts")[0][0])

    def since(self, place: Path | str, number: int) -> Iterator[Entry]:
        """Yield what was forecast after a number, in order."""
        query = (
            "SELECT forecasts.id, issuer, issued_for_s, written_s, candles_digest, forecasts FROM forecasts "
            "JOIN tracks ON tracks.id = track WHERE place = :place AND forecasts.id > :number ORDER BY 1"
        )
        yield from (self._entry(*row) for row in self._rows(query, place=self.place(place), number=number))

    def tally(self, place: Path | str, series: str) -> Tally:
        """Count the forecasts of a series."""
        query = (
            "SELECT COUNT(*), TOTAL(written_s >= issued_for_s + :bar_s), COUNT(losses), "
            "TOTAL(forecast IS NOT NULL AND losses IS NULL) "
            "FROM forecasts LEFT JOIN scores ON forecast = forecasts.id WHERE track = :track"
        )
        (counts,) = self._rows_of(place, series, query, bar_s=Series.parse(series).bar_s)
        return Tally(*map(int, counts))

    def scored(self, place: Path | str, series: str) -> list[Scored]:
        """Return the scored forecasts of a series, one entry for each issuer, oldest first."""
        scored = []
        for issuer, rows in self._by_issuer(place, series, "losses", "ORDER BY issued_for_s"):
            with self._as_written("scores"):
                times = np.array([row[:2] for row in rows], np.int64)
                shape = (len(rows), len(issuer.forecasters), len(issuer.tasks))
                losses = unpack_plain(b"".join(row[2] for row in rows), shape)
                if (losses < 0).any():
                    raise ValueError("errors below zero")
            scored.append(Scored(issuer, times[:, 0], times[:, 1], losses))
        return scored

    def newest_actual_values(
        self, place: Path | str, series: str, most: int
    ) -> list[tuple[Issuer, NDArray[np.float32], NDArray[np.float32]]]:
        """Return the newest scored forecasts of a series that were in time, and what happened.

        Only those of issuers with quantiles, one entry for each: who forecast, what every forecaster said,
        shape (N, K, V), and what happened, shape (N, V).
        """
        actual_values = []
        newest = "ORDER BY issued_for_s DESC LIMIT :most"
        for issuer, rows in self._by_issuer(place, series, "forecasts, actual", newest, most=most):
            shape = (len(issuer.forecasters), issuer.num_values)
            with self._as_written("scores"):
                in_time = [packed for at_s, written_s, *packed in rows if written_s < at_s + issuer.bar_s]
                if in_time and issuer.levels:
                    values = np.stack([unpack(packed, shape) for packed, _ in in_time])
                    actual = np.stack([unpack(packed, shape[1:]) for _, packed in in_time])
                    actual_values.append((issuer, values, actual))
        return actual_values

    def _by_issuer(
        self, place: Path | str, series: str, columns: str, order: str, **named: Any
    ) -> list[tuple[Issuer, list[Any]]]:
        """Return scored forecasts by issuer: what for, when written, and some columns."""
        query = (
            f"SELECT issuer, issued_for_s, written_s, {columns} FROM forecasts "  # noqa: S608 - our own words
            f"JOIN scores ON forecast = forecasts.id WHERE track = :track AND losses IS NOT NULL {order}"
        )
        found: dict[int, list[Any]] = {}
        for number, *row in self._rows_of(place, series, query, **named):
            found.setdefault(number, []).append(row)
        return [(self._issuer(number), rows) for number, rows in found.items()]

    def _entries(
        self, place: Path | str, series: str, which: str, **named: Any
    ) -> Iterator[tuple[int, Entry, Score | None]]:
        """Yield some forecasts, by number, and their scores, without actual values, in the order of time."""
        query = (
            "SELECT id, scored_s, actual_digest, losses, issuer, issued_for_s, written_s, candles_digest, "  # noqa: S608 - our own words
            f"forecasts FROM forecasts LEFT JOIN scores ON forecast = id WHERE track = :track AND {which} "
            "ORDER BY issued_for_s"
        )
        for number, scored_s, digest, packed, *row in self._rows_of(place, series, query, **named):
            entry = self._entry(number, *row)
            shape = (len(entry.issuer.forecasters), len(entry.issuer.tasks))
            with self._as_written(f"score of forecast {number}"):
                losses = None if packed is None else unpack_plain(packed, shape)
            yield number, entry, None if scored_s is None else Score(scored_s, digest, None, losses)

    def _entry(self, number: int, *row: Any) -> Entry:
        where = f"{self.path}, forecast {number}"
        issuer = self._issuer(row[0])
        packed = row[-1]
        times = checked(tuple[OpenTime, OpenTime, Sha256], row[1:-1], where=where, fix=_FIX, rule=AS_WRITTEN)
        with self._as_written(f"forecast {number}"):
            return Entry(issuer, *times, unpack(packed, (len(issuer.forecasters), issuer.num_values)))

    def _issuer(self, number: int) -> Issuer:
        query = "SELECT place, series, about FROM issuers JOIN tracks ON tracks.id = track"
        found = self._rows(f"{query} WHERE issuers.id = :number", number=number)
        with self._as_written(f"issuer {number}"):
            ((place, series, about),) = found
            content = {**json.loads(about), "place": place, "series": series}
        where = f"{self.path}, issuer {number}"
        return checked(Issuer, content, where=where, fix=_FIX, rule=AS_WRITTEN)

    def _known(self, table: str, **row: Any) -> int:
        """Return the number of a row that is added where it is not there yet."""
        self._insert_new(table, row)
        with self._as_written(table):
            ((number,),) = self._rows(f"SELECT id FROM {table} WHERE {_KEYS[table]}", **row)  # noqa: S608
            return int(number)

    def _insert_new(self, table: str, row: Mapping[str, Any]) -> bool:
        names = ", ".join(row)
        values = ", ".join(f":{name}" for name in row)
        missing = f"NOT EXISTS (SELECT 1 FROM {table} WHERE {_KEYS[table]})"  # noqa: S608 - our own words
        insert = f"INSERT INTO {table} ({names}) SELECT {values} WHERE {missing}"
        return self._connection.execute(insert, row).rowcount == 1

    def _rows_of(self, place: Path | str, series: str, query: str, **named: Any) -> list[Any]:
        """Ask for rows of a place and series, whose number is `:track`."""
        track = "SELECT id FROM tracks WHERE place = :place AND series = :series"
        found = self._rows(track, place=self.place(place), series=series)
        return self._rows(query, track=found[0][0] if found else None, **named)

    @contextmanager
    def _as_written(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, OverflowError, AttributeError, ProfileError) as error:
            raise _damaged(self.path, f"{what} with {error}") from error


def _about(issuer: Issuer) -> str:
    """Write an issuer, but for place and series, in the one way that equal ones share."""
    content = adapter(Issuer).dump_python(issuer, mode="json", exclude={"place", "series"})
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _make(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        make_tables(connection)


def _connected(path: Path, *, is_writer: bool = False) -> sqlite3.Connection:
    """Open a ledger's file that is there, and look at its schema."""
    mode = _mode(path, is_writer=is_writer)
    with spoken(path):
        address = f"{path.absolute().as_uri()}?{mode}"
        connection = sqlite3.connect(address, timeout=BUSY_S, isolation_level=None, uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            found = schema_fault(connection)
            if found:
                rule = f"must be a ledger of schema {SCHEMA_VERSION}"
                raise ArtifactError(where=str(path), rule=rule, got=found, fix=_OTHER_FIX)
            # A power cut must not lose what was said to be written.
            connection.execute("PRAGMA synchronous = FULL" if is_writer else "PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
    return connection


def _mode(path: Path, *, is_writer: bool) -> str:
    """Say how SQLite must open a file: as one that cannot change where nobody can write it."""
    try:
        if not path.is_file():
            begin = command("forecast", "runs/frontier")
            got = "no such file" if not os.path.lexists(path) else "a folder, pipe or device"
            fix = f"Begin one with `{begin}`, or name another with param:ledger"
            raise ArtifactError(where=str(path), rule="must be a ledger", got=got, fix=fix)
        for ending in _BESIDE:
            require_replaceable(path.with_name(path.name + ending))
        has_log = False
        with suppress(FileNotFoundError):  # whoever closes it last removes its log at any moment
            has_log = path.with_name(f"{path.name}-wal").stat().st_size > 0
    except OSError as error:
        raise StorageError.of(error.filename or path, error) from error
    if is_writer or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return "mode=rw"
    if has_log:
        where = str(path)
        rule = "must lie where its write-ahead log can be taken up"
        fix = "Read it as the user who writes it, or copy both files"
        raise StorageError(where=where, rule=rule, got="a log beside it, and no permission to write", fix=fix)
    return "mode=ro&immutable=1"


@contextmanager
def spoken(path: Path) -> Iterator[None]:
    """Turn what SQLite says, and text that is no UTF-8, into an error of ours."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code not in _OF_THE_PLACE:
            raise _damaged(path, str(error)) from error
        raise StorageError(
            where=str(path),
            rule="must be written and read",
            got=str(error),
            fix="Make room or choose another place with param:ledger, and repeat the same command; what was "
            "written is kept",
        ) from error


def _damaged(path: Path, got: str) -> V8Error:
    return ArtifactError(where=str(path), rule="must be a ledger's file as v8 wrote it", got=got, fix=_FIX)
