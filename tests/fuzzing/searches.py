"""The study of a search, as Optuna stores it, with changes, in a folder of any name; and its continuation."""

from __future__ import annotations

import functools
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import optuna

from fuzzing.cases import Case
from v8.annexes.search import Range
from v8.annexes.search.trial_record import RECORD_FILE, TrialRecord

RANGES: Final = {
    "dropout": Range(low=0.1, high=0.5, step=0.1),
    "units": Range(choices=[[32], [64, 64]]),
    "learning_rate": Range(low=1e-4, high=1e-2, log=True),
}
NUM_FOLDS: Final = 2
NUM_TRIALS: Final = 4
FOLDER_NAMES: Final = (
    "s",
    "s_a?b",
    "s_?mode=memory",
    "s_%41b",
    "s_{x}",
    "s_a#b",
    "file:x",
    ":memory:",
    "a b'",
)
ODD_CELLS: Final = (None, "text", "", "{", "[]", -1, 0, 5, 1e308, b"\xff\x00", "NaN", "MAXIMIZE", "RUNNING")
"""What a cell of a table is changed into."""


def _add_trials(file: Path, num_trials: int) -> None:
    record = TrialRecord(file, RANGES, NUM_FOLDS)
    for number in range(len(record.ended()), num_trials):
        trial = record.begin_trial(seed=number)
        trial.write_profile_name(f"frontier-but-{number}")
        for fold in range(1, NUM_FOLDS + 1):
            trial.report(fold, 1.0 / fold)
        trial.complete(1.0 / NUM_FOLDS)


@functools.cache
def _sound() -> bytes:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with TemporaryDirectory() as folder:
        file = Path(folder) / RECORD_FILE
        _add_trials(file, NUM_TRIALS)
        return file.read_bytes()


def record_of_search_case(random: Random) -> Case:
    """Put a changed record into a folder of any name."""
    name = random.choice(FOLDER_NAMES)
    return Case(name, {f"{name}/{RECORD_FILE}": _changed_record(random)})


def _changed_record(random: Random) -> bytes:
    """Return a record with bytes that are noise, a cell that is another, or without some rows."""
    if random.random() < 0.3:
        content = bytearray(_sound())
        place = random.randrange(len(content))
        content[place : place + random.choice((1, 16, 512))] = random.randbytes(16)
        return bytes(content)
    with TemporaryDirectory() as folder:
        file = Path(folder) / RECORD_FILE
        file.write_bytes(_sound())
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            query = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            table = random.choice([name for (name,) in connection.execute(query)])
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            try:
                with connection:
                    if random.random() < 0.2:
                        connection.execute(f"DELETE FROM {table}")
                    else:
                        change = f"UPDATE {table} SET {random.choice(columns)} = ?"
                        connection.execute(change, (random.choice(ODD_CELLS),))
            except sqlite3.IntegrityError:
                pass  # the schema forbids it; the record stays sound
        return file.read_bytes()


def use_record(folder: Path) -> None:
    """Go on with the record as a search does; it must lie in its folder, and nothing next to it."""
    _add_trials(folder / RECORD_FILE, NUM_TRIALS + 1)
    left = [path.name for path in folder.parent.iterdir()]
    if left != [folder.name]:
        raise AssertionError(f"written next to {folder.name!r}: {left}")
