"""The database of the ledger: only ever added to, one writer, nothing but what v8 wrote."""

from __future__ import annotations

import json
import re
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from full_disk import file_limit
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from ledger_entries import FIRST_S, ISSUER, made_entry, made_score, said
from typer.testing import CliRunner

from v8.annexes.live.backup import back_up
from v8.annexes.live.entries import ForecastCounts, Score, pack, place_name, unpack, unpack_plain
from v8.annexes.live.ledger import Ledger, make_tables
from v8.annexes.live.record import live_record
from v8.base.errors import ArtifactError, StorageError
from v8.cli.app import app

PLACE = "./tiny"
SERIES = "BTCUSDT-15m"


def test_a_forecast_comes_back_as_it_was_written(ledger: Ledger) -> None:
    written = made_entry(3)
    assert ledger.add(written)
    (read,) = ledger.pending(PLACE, SERIES).values()
    assert (read.issuer, read.issued_for_s, read.written_s) == (
        written.issuer,
        written.issued_for_s,
        written.written_s,
    )
    assert read.candles_digest == written.candles_digest
    np.testing.assert_array_equal(read.values, written.values)
    assert read.values.dtype == np.float32
    # K x V: 2 steps of 4 prices, then 2 volatilities, for each forecaster.
    np.testing.assert_array_equal(said(read, "naive")["volatility"], [[121.0], [122.0]])


def test_a_close_of_a_series_has_one_forecast_whoever_comes_second(ledger: Ledger) -> None:
    assert ledger.add(made_entry(0))
    assert not ledger.add(made_entry(0, replace(ISSUER, model_sha256="9" * 64)))
    assert ledger.add(made_entry(0, replace(ISSUER, place="you/name")))
    assert ledger.add(made_entry(1))
    pending = [*ledger.pending(PLACE, SERIES).values()]
    assert pending[0].issuer.model_sha256 == "0" * 64
    assert ledger.newest(PLACE, SERIES) == made_entry(1).issued_for_s
    assert [entry.issued_for_s for entry in pending] == [made_entry(n).issued_for_s for n in (0, 1)]
    assert ledger.places() == [PLACE, "you/name"]
    assert ledger.series(PLACE) == [SERIES]
    assert ledger.newest(PLACE, "ETHUSDT-15m") is None


def test_a_score_is_written_once_and_ends_the_waiting(ledger: Ledger) -> None:
    entries = [made_entry(number, delay_s=1_000 if number == 2 else 5) for number in range(4)]
    for entry in entries:
        ledger.add(entry)
    first, second, *rest = ledger.pending(PLACE, SERIES)
    assert [*ledger.pending(PLACE, SERIES, entries[2].issued_for_s)] == rest
    losses = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert ledger.add_score(first, made_score(losses, entries[0]))
    assert not ledger.add_score(first, made_score([[9.0, 9.0]] * 3, entries[0]))
    assert ledger.add_score(second, Score(entries[1].due_s, None, None, None))
    assert [one.issued_for_s for one in ledger.pending(PLACE, SERIES).values()] == [
        entry.issued_for_s for entry in entries[2:]
    ]
    assert ledger.count_forecasts(PLACE, SERIES) == ForecastCounts(
        num_issued=4, num_late=1, num_scored=1, num_void=1
    )
    (scored,) = ledger.scored(PLACE, SERIES)
    np.testing.assert_array_equal(scored.losses, [losses])
    np.testing.assert_array_equal(scored.issued_for_s, [entries[0].issued_for_s])


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM scores",
        "DELETE FROM forecasts",
        "UPDATE forecasts SET written_s = 0",
        "UPDATE issuers SET about = '{}'",
        "UPDATE scores SET losses = NULL",
        "INSERT OR REPLACE INTO scores SELECT * FROM scores",
        "INSERT OR REPLACE INTO forecasts SELECT * FROM forecasts",
        "INSERT OR REPLACE INTO tracks VALUES (7, './tiny', 'BTCUSDT-15m')",
    ],
)
def test_no_row_is_changed_or_removed(ledger: Ledger, statement: str) -> None:
    ledger.add(made_entry())
    ((number, entry),) = ledger.pending(PLACE, SERIES).items()
    ledger.add_score(number, made_score([[1.0, 1.0]] * 3, entry))
    with sqlite3.connect(ledger.path) as other, pytest.raises(sqlite3.IntegrityError, match="only added to"):
        other.execute(statement)
    other.close()
    assert ledger.count_forecasts(PLACE, SERIES).num_scored == 1


def test_one_process_writes_and_others_read_meanwhile(ledger: Ledger) -> None:
    with pytest.raises(ArtifactError, match=r"ledger.sqlite: .*got process \d+ at work"):
        Ledger.open_to_write(ledger.path)
    with Ledger.open(ledger.path) as reader:
        assert reader.newest(PLACE, SERIES) is None
        ledger.add(made_entry())
        assert reader.newest(PLACE, SERIES) == made_entry().issued_for_s
        with pytest.raises(StorageError, match="readonly"):
            reader.add(made_entry(1))


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (a)")
    other.close()


def tampered(path: Path) -> None:
    Ledger.open_to_write(path).close()
    with sqlite3.connect(path) as other:
        other.execute("DROP TRIGGER forecasts_stay")
    other.close()


def renamed(path: Path) -> None:
    """Give an entry of the schema a name that is no text."""
    Ledger.open_to_write(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA writable_schema = ON")
        other.execute(
            "UPDATE sqlite_master SET name = CAST('scores_once' AS BLOB) WHERE name = 'scores_once'"
        )
    other.close()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (renamed, r"v8 makes \(b'scores_once', scores_once\)"),
        (lambda path: path.write_bytes(b""), "the file of another"),
        (lambda path: path.write_text("my notes\n" * 1_000), r"ledger.sqlite: .*file is not a"),
        (foreign, "the file of another"),
        (tampered, r"ledger.sqlite: .*triggers .*\(forecasts_stay\)"),
        (lambda path: path.mkdir(), r"ledger.sqlite: .*pipe or device"),
    ],
)
def test_what_is_no_ledger_is_refused_and_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], Any], match: str
) -> None:
    path = tmp_path / "ledger.sqlite"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    for opened in (Ledger.open, Ledger.open_to_write):
        with pytest.raises(ArtifactError, match=match):
            opened(path)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_ledger_that_is_not_there_is_said_and_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"ledger.sqlite: .*got no such file"):
        Ledger.open(tmp_path / "ledger.sqlite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("UPDATE forecasts SET forecasts = X'FFFFFF'", "forecast 1 with no packed numbers"),
        ("UPDATE forecasts SET forecasts = substr(forecasts, 1, 9)", "forecast 1 with not 30 numbers"),
        ("UPDATE forecasts SET issued_for_s = 1.5", "forecast 1"),
        ("UPDATE forecasts SET issued_for_s = 'soon'", "forecasts with invalid literal"),
        ("UPDATE tracks SET series = '../../etc'", "tracks with"),
        ("UPDATE issuers SET about = '{'", "issuer 1 with"),
        (f"UPDATE issuers SET about = '{'[' * 100_000}'", "issuer 1 with more values"),
        ("UPDATE issuers SET about = '{}'", "no such key"),
        ("UPDATE issuers SET about = replace(about, 'naive', 'x')", "issuer 1"),
    ],
)
def test_what_somebody_changed_past_the_triggers_is_refused(
    tmp_path: Path, statement: str, match: str
) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open_to_write(path) as ledger:
        ledger.add(made_entry())
    change_anyway(path, statement)
    with Ledger.open(path) as ledger, pytest.raises(ArtifactError, match=match) as caught:
        for series in ledger.series(PLACE):
            ledger.newest(PLACE, series)
            ledger.pending(PLACE, series)
    assert len(str(caught.value)) <= 600


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a ledger with nine forecasts, six of them scored."""
    path = tmp_path_factory.mktemp("sound") / "ledger.sqlite"
    with Ledger.open_to_write(path) as ledger:
        for number in range(9):
            ledger.add(made_entry(number))
        for number, entry in [*ledger.pending(PLACE, SERIES).items()][:6]:
            ledger.add_score(number, made_score([[1.0, 2.0 + number], [3.0, 4.0], [5.0, 6.0]], entry))
    return path.read_bytes()


def told(path: Path) -> str:
    """Return all that a ledger says: its record, its forecasts and their scores."""
    with Ledger.open(path) as ledger:
        ledger.require_intact()
        rows = [json.dumps(live_record(ledger, PLACE).to_json())]
        for entry, score in ledger.forecasts_of_day(PLACE, SERIES, FIRST_S):
            rows.append(json.dumps(entry.to_json()))
            rows.append(f"{score.scored_s} {score.actual_digest} {score.losses}" if score else "none")
    return "\n".join(rows)


@pytest.mark.parametrize("digit", range(8))
def test_a_bit_that_is_another_is_damage_or_changes_nothing(sound: bytes, tmp_path: Path, digit: int) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(sound)
    expected = told(path)
    losses = np.array([5.0, 6.0]).astype("<f8").tobytes()
    places = [found.start() + digit for found in re.finditer(re.escape(losses), sound)]
    places += [sound.index(b"3" * 64) + digit, sound.index(b"2" * 64) + digit]
    places += Random(digit).sample([place for place, byte in enumerate(sound) if byte], 40)
    refused = 0
    for place in places:
        content = bytearray(sound)
        content[place] ^= 1 << digit
        path.write_bytes(content)
        try:
            assert told(path) == expected, place
        except ArtifactError:
            refused += 1
    assert refused >= 8


@pytest.mark.parametrize("column", ["forecasts.forecasts", "scores.losses", "scores.actual"])
def test_a_bit_of_any_row_is_found_before_anything_is_added_or_copied(
    sound: bytes, tmp_path: Path, column: str
) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(sound)
    table, _, name = column.partition(".")
    with sqlite3.connect(path) as reader:
        rows = [row[0] for row in reader.execute(f"SELECT {name} FROM {table}")]
    reader.close()
    assert len(rows) == (9 if table == "forecasts" else 6)  # pending ones, too
    for place in sorted({sound.index(row) for row in rows}):
        content = bytearray(sound)
        content[place + 5] ^= 1
        path.write_bytes(content)
        with Ledger.open(path) as ledger:
            with pytest.raises(ArtifactError):
                ledger.require_intact()
            with pytest.raises(ArtifactError):
                back_up(ledger, tmp_path / "copy.sqlite")
    assert not (tmp_path / "copy.sqlite").exists()


@pytest.mark.parametrize("version", [0, 1, 2, 4])
def test_a_ledger_of_another_schema_is_refused_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as other:
        make_tables(other)
        other.execute(f"PRAGMA user_version = {version}")
    content = path.read_bytes()
    for open_ledger in (Ledger.open, Ledger.open_to_write):
        with pytest.raises(ArtifactError) as refusal:
            open_ledger(path)
        assert (refusal.value.where, refusal.value.got) == (str(path), f"schema {version}")
        assert "--ledger" in str(refusal.value)
    assert path.read_bytes() == content


def test_a_backup_holds_all_while_the_ledger_is_written_and_is_made_again(
    ledger: Ledger, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.sqlite"
    for number in range(2):
        ledger.add(made_entry(number))
        with Ledger.open(ledger.path) as reader:
            back_up(reader, copy)
        with Ledger.open_to_write(copy) as copied:
            assert copied.last_number == number + 1
    left = sorted(
        path.name for path in tmp_path.iterdir() if "copy" in path.name and ".lock" not in path.name
    )
    assert left == [copy.name]


def other_forecasts(path: Path) -> None:
    with Ledger.open_to_write(path) as ledger:
        ledger.add(made_entry(7))


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (other_forecasts, "other forecasts"),
        (lambda path: path.write_text("my notes\n" * 1_000), "not a database"),
        (lambda path: path.symlink_to(path.with_name("nowhere")), "a broken link"),
        (lambda path: path.mkdir(), "a folder"),
        (lambda path: path.with_name(f"{path.name}-wal").write_bytes(b"log"), "copy.sqlite-wal next to it"),
    ],
)
def test_a_backup_replaces_nothing_but_an_earlier_one(
    ledger: Ledger, tmp_path: Path, make: Callable[[Path], Any], got: str
) -> None:
    ledger.add(made_entry())
    copy = tmp_path / "copy.sqlite"
    make(copy)
    with pytest.raises(ArtifactError) as caught:
        back_up(ledger, copy)
    assert got in caught.value.got
    with pytest.raises(ArtifactError, match="the ledger itself"):
        back_up(ledger, ledger.path)


def test_a_copy_that_cannot_be_written_is_named_as_it_was_asked_for(ledger: Ledger, tmp_path: Path) -> None:
    ledger.add(made_entry())
    copy = tmp_path / "copy.sqlite"
    with file_limit(4_096), pytest.raises(StorageError) as full:
        back_up(ledger, copy)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as no_folder:
        back_up(ledger, tmp_path / "file" / "copy.sqlite")
    for caught, path in ((full, copy), (no_folder, tmp_path / "file" / "copy.sqlite")):
        assert caught.value.where == str(path)
        assert "param:backup" in caught.value.fix and "param:ledger" not in caught.value.fix
    assert no_folder.value.got in ("Not a directory", "File exists")


def test_a_damaged_ledger_is_not_copied(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    place = sound.rindex(b"./tiny")
    path.write_bytes(sound[:place] + b"./tino" + sound[place + 6 :])
    with Ledger.open(path) as ledger, pytest.raises(ArtifactError):
        back_up(ledger, tmp_path / "copy.sqlite")
    assert not (tmp_path / "copy.sqlite").exists()


def test_the_command_copies_a_ledger_and_refuses_to_do_more_at_once(ledger: Ledger, tmp_path: Path) -> None:
    ledger.add(made_entry())
    words = ["track", "--ledger", str(ledger.path), "--backup"]
    result = CliRunner().invoke(app, [*words, str(tmp_path / "copy.sqlite")])
    assert (result.exit_code, result.stderr) == (0, "")
    with Ledger.open(tmp_path / "copy.sqlite") as copied:
        assert copied.last_number == 1
    for more in (
        ["runs/x"],
        ["--repo", "a/b"],
        ["--series", SERIES],
        ["--publish", "a/b"],
        ["--format", "csv"],
    ):
        result = CliRunner().invoke(app, [*words, str(tmp_path / "other.sqlite"), *more])
        assert (result.exit_code, result.stdout) == (2, "")
    result = CliRunner().invoke(app, [*words, str(tmp_path / "nowhere/copy.sqlite")])
    assert result.exit_code == 2
    assert not (tmp_path / "other.sqlite").exists()


def test_the_command_shows_no_error_of_a_damaged_ledger(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    content = bytearray(sound)
    content[sound.rindex(np.array([5.0, 6.0]).astype("<f8").tobytes())] ^= 1
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["track", str(tmp_path / "tiny"), "--ledger", str(path)])
    assert (result.exit_code, result.stdout) == (3, "")
    assert "error: " in result.stderr and "ledger's file" in result.stderr


def change_anyway(path: Path, statement: str) -> None:
    """Do what the triggers forbid, and put them back."""
    with sqlite3.connect(path) as other:
        triggers = other.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            other.execute(f"DROP TRIGGER {name}")
        other.execute(statement)
        for _, sql in triggers:
            other.execute(sql)
    other.close()


def test_a_full_disk_is_a_place_that_cannot_be_written(ledger: Ledger) -> None:
    ledger.add(made_entry())
    ledger._connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StorageError, match="full"):
        for number in range(1, 200):
            ledger.add(made_entry(number))
    ledger._connection.execute("PRAGMA max_page_count = 1000000")
    assert ledger.add(made_entry(500))


def test_a_ledger_where_nothing_can_be_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "there" / "ledger.sqlite"
    with Ledger.open_to_write(path) as ledger:
        ledger.add(made_entry())
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with Ledger.open(path) as reader:
            assert reader.newest(PLACE, SERIES) == made_entry().issued_for_s
    finally:
        path.parent.chmod(0o755)


def test_runs_are_named_from_the_ledger_s_folder_so_that_both_can_be_moved(tmp_path: Path) -> None:
    ledger = tmp_path / "runs" / "ledger.sqlite"
    assert place_name(tmp_path / "runs" / "aligned", ledger) == "./aligned"
    assert place_name(tmp_path / "runs" / ".." / "runs" / "aligned", ledger) == "./aligned"
    assert place_name(tmp_path / "elsewhere", ledger) == (tmp_path / "elsewhere").resolve().as_posix()
    assert place_name("./aligned", ledger) == "./aligned"


# Packed numbers: what is read is what was written, or an error

SHAPES = array_shapes(min_dims=1, max_dims=3, max_side=6)
SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False)
DOUBLE = st.floats(allow_nan=False, allow_infinity=False)


@given(arrays(np.float32, SHAPES, elements=SINGLE), arrays(np.float64, SHAPES, elements=DOUBLE))
def test_numbers_come_back_to_the_bit(single: np.ndarray, double: np.ndarray) -> None:
    assert unpack(pack(single), single.shape).tobytes() == single.tobytes()
    assert unpack_plain(double.astype("<f8").tobytes(), double.shape).tobytes() == double.tobytes()


@given(st.binary(max_size=200))
def test_bytes_that_nobody_packed_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"no packed numbers|not 3 numbers"):
        unpack(content, (3,))


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(ValueError, match="not 3 numbers"):
        unpack(zlib.compress(bytes(1 << 24)), (3,))


@pytest.mark.parametrize("strange", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused(strange: float) -> None:
    with pytest.raises(ValueError, match="infinite or none"):
        unpack(pack(np.array([1, strange], np.float32)), (2,))
    with pytest.raises(ValueError, match="infinite or none"):
        unpack_plain(np.array([1, strange]).tobytes(), (2,))
