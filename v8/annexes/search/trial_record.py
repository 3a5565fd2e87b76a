"""Optuna's record of the trials of a search, in one file of SQLite.

The file outlives the search that wrote it, so it may be damaged, of another version, or of another search.
Optuna, SQLAlchemy and SQLite raise many kinds of errors for such a file, and do not notice every damage.
Therefore every trial that has ended is checked before the search continues from it. SQLite gets the path of
the file and not a URL, so that no character of a folder's name changes which file is opened.
"""

import json
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import pandas as pd

from v8.annexes.search import Range, Ranges
from v8.base.errors import ArtifactError, StorageError, V8Error, shown
from v8.base.storage import digest_json

RECORD_FILE: Final = "study.sqlite"
PROFILE_NAME: Final = "profile"  # attribute of a trial: name of the profile with its values
ENDED: Final = ("COMPLETE", "PRUNED")  # states of trials that have ended and were not interrupted
MIN_TRIALS_TO_PRUNE: Final = 5  # trials that went through all folds before the median pruner ends one
_BUSY_S: Final = 30.0  # how long to wait for another process that uses the file, in seconds
_JOURNALS: Final = ("-journal", "-wal", "-shm")  # endings of the files that SQLite adds to a database
_RULE: Final = "must be the record of trials that Optuna keeps for this search"
_FIX: Final = (
    "Repeat the command with param:redo: this file stays under another name, a new record is begun, and what "
    "was trained is used again"
)
_STORAGE_ERROR_CODES: Final = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("FULL", "READONLY", "IOERR", "CANTOPEN", "PERM", "BUSY", "LOCKED")
)
"""Error codes of SQLite for trouble with the disk, permissions or another process; others mean damage."""


class TrialRecord:
    """The trials of one search.

    Args:
        file: Its path; a new one is begun if there is no file.
        ranges: What is searched; a record holds the trials of each set of ranges separately.
        num_folds: Folds of a trial that was not pruned.

    Raises:
        ArtifactError: Here and in every method, if the file is no such record.
        StorageError: Likewise, if it cannot be read or written.
    """

    def __init__(self, file: Path, ranges: Ranges, num_folds: int) -> None:
        import optuna  # noqa: PLC0415 - an extra

        self._file = file
        self._ranges = ranges
        self._num_folds = num_folds
        self._distributions = {key: _distribution(value_range) for key, value_range in ranges.items()}
        with _errors_translated(file):
            _check_integrity(file)
            storage = _storage(file)
            contents = {key: value_range.model_dump() for key, value_range in ranges.items()}
            self._study = optuna.create_study(
                storage=storage,
                study_name=digest_json(contents),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=MIN_TRIALS_TO_PRUNE),
                load_if_exists=True,
            )
            # Optuna would read these only in the middle of a search, and fail there if they are damaged.
            study_id = storage.get_study_id_from_name(self._study.study_name)
            storage.get_study_user_attrs(study_id)
            storage.get_study_system_attrs(study_id)
            directions = self._study.directions
            ended = [trial for trial in self._study.trials if trial.state.name in ENDED]
        if directions != [optuna.study.StudyDirection.MINIMIZE]:
            names = ", ".join(direction.name for direction in directions)
            raise _refusal(file, f"a study of the directions {names}, where one objective is minimized")
        for trial in ended:
            # The first fault is reported: it may be the cause of others.
            for fault in self._faults(trial):
                raise _refusal(file, f"trial {trial.number + 1} with {fault}")

    def ended(self) -> pd.DataFrame:
        """Return a row for each trial that has ended, as `ended_of` does."""
        with _errors_translated(self._file):
            return ended_of(self._study, self._ranges)

    def begin_trial(self, seed: int) -> "Trial":
        """Draw the values of a new trial; equal seeds draw equal values after equal trials."""
        import optuna  # noqa: PLC0415 - an extra

        with _errors_translated(self._file):
            self._study.sampler = optuna.samplers.TPESampler(seed=seed)
            return Trial(self._file, self._study, self._study.ask(self._distributions))

    def _faults(self, trial: Any) -> Iterator[str]:
        """Yield what is impossible about a trial that has ended."""
        if trial.distributions != self._distributions:
            yield f"values of {shown(trial.distributions)}"
        for key, value_range in self._ranges.items():
            if not _is_within(trial.params[key], value_range):
                yield f"{key} {shown(trial.params[key])}"
        folds = sorted(trial.intermediate_values)
        if folds != list(range(1, len(folds) + 1)) or len(folds) > self._num_folds:
            yield f"objectives after the folds {shown(folds)}, of {self._num_folds}"
        if trial.state.name == "COMPLETE" and len(folds) != self._num_folds:
            yield f"objectives after {len(folds)} of {self._num_folds} folds"
        objectives = [trial.intermediate_values[fold] for fold in folds]
        all_finite = all(_is_finite(objective) for objective in objectives)
        expected_values = objectives[-1:] or None  # the objective of a trial is that after its last fold
        if not all_finite or trial.values != expected_values:
            yield f"the objective {shown(trial.values)}, and {shown(objectives)} after its folds"
        name = trial.user_attrs.get(PROFILE_NAME)
        if not isinstance(name, str | None) or (folds and name is None):
            yield f"the profile {shown(name)}"


class Trial:
    """A trial that has begun; `values` are the drawn values by key: numbers, and choices as JSON text."""

    def __init__(self, file: Path, study: Any, trial: Any) -> None:
        self._file = file
        self._study = study
        self._trial = trial
        self.values: Final[Mapping[str, Any]] = dict(trial.params)

    def write_profile_name(self, name: str) -> None:
        """Record the name of the profile with the drawn values."""
        with _errors_translated(self._file):
            self._trial.set_user_attr(PROFILE_NAME, name)

    def report(self, fold: int, objective: float) -> bool:
        """Record the objective after so many folds; return whether the pruner would end the trial."""
        with _errors_translated(self._file):
            self._trial.report(objective, fold)
            return bool(self._trial.should_prune())

    def complete(self, objective: float) -> None:
        """End the trial, which has finished all folds."""
        with _errors_translated(self._file):
            self._study.tell(self._trial, objective)

    def prune(self) -> None:
        """End the trial, which has not finished all folds."""
        import optuna  # noqa: PLC0415 - an extra

        with _errors_translated(self._file):
            self._study.tell(self._trial, state=optuna.trial.TrialState.PRUNED)


def ended_of(study: Any, ranges: Ranges) -> pd.DataFrame:
    """Return a row for each trial of a study that has ended, without interrupted ones, numbered from 1."""
    rows = [
        {
            **trial.params,
            PROFILE_NAME: trial.user_attrs.get(PROFILE_NAME),
            "state": trial.state.name.lower(),
            "folds": len(trial.intermediate_values),
            "objective": trial.value,
        }
        for trial in study.trials
        if trial.state.name in ENDED
    ]
    columns = ("state", "folds", "objective", *ranges, PROFILE_NAME)
    return pd.DataFrame(rows, range(1, len(rows) + 1), columns).astype({"folds": "Int64", "objective": float})


def set_aside(file: Path) -> Path | None:
    """Rename a record and the journals of SQLite; return its new path, None if there is no record.

    Raises:
        StorageError: If the folder cannot be changed.
    """
    if not os.path.lexists(file):
        return None
    for number in count(1):
        new_path = file.with_name(f"{file.stem}.replaced-{number}{file.suffix}")
        if not any(os.path.lexists(f"{new_path}{ending}") for ending in ("", *_JOURNALS)):
            break
    try:
        # The journals go first: SQLite would take one that is left for that of the new record.
        for ending in (*_JOURNALS, ""):
            if os.path.lexists(f"{file}{ending}"):
                os.replace(f"{file}{ending}", f"{new_path}{ending}")
    except OSError as error:
        raise StorageError.of(file, error) from error
    return new_path


def _distribution(value_range: Range) -> Any:
    """Return the distribution of Optuna for a range; of whole numbers if all its numbers are whole."""
    import optuna  # noqa: PLC0415 - an extra

    kinds: Any = optuna.distributions
    low = value_range.low
    high = value_range.high
    step = value_range.step
    if value_range.choices:
        return kinds.CategoricalDistribution([json.dumps(choice) for choice in value_range.choices])
    if any(isinstance(number, float) for number in (low, high, step)):
        return kinds.FloatDistribution(low, high, log=value_range.log, step=step)
    return kinds.IntDistribution(low, high, log=value_range.log, step=step or 1)


def _is_within(value: Any, value_range: Range) -> bool:
    if value_range.choices:
        return value in [json.dumps(choice) for choice in value_range.choices]
    return _is_finite(value) and (value_range.low or 0) <= value <= (value_range.high or 0)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _storage(file: Path) -> Any:
    from optuna.storages import RDBStorage  # noqa: PLC0415 - an extra
    from sqlalchemy.pool import NullPool  # noqa: PLC0415 - Optuna brings it

    # In a URL Optuna would replace braces, and SQLAlchemy percent signs and everything after a "?".
    return RDBStorage("sqlite://", {"creator": lambda: _connect(file), "poolclass": NullPool})


def _connect(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file.absolute(), timeout=_BUSY_S, check_same_thread=False)


def _check_integrity(file: Path) -> None:
    """Let SQLite check an existing record; it finds damage that no query of Optuna meets."""
    if not os.path.lexists(file):
        return
    if not file.is_file():
        raise sqlite3.DatabaseError("a folder, pipe or device")
    with closing(_connect(file)) as connection:
        ((answer,),) = connection.execute("PRAGMA quick_check(1)")
    if answer != "ok":
        raise sqlite3.DatabaseError(answer)


@contextmanager
def _errors_translated(file: Path) -> Iterator[None]:
    """Raise every error of a block as an error of v8 about the record; the block runs no code of v8."""
    try:
        yield
    except Exception as error:
        raise _translated(file, error) from error


def _translated(file: Path, error: Exception) -> V8Error:
    """Return the error of v8 for one of SQLite or Optuna: `StorageError` or `ArtifactError`."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, sqlite3.Error):
        cause = cause.__cause__
    if cause is None:
        message = f"{type(error).__name__}: {error}".removesuffix(": ")
        return _refusal(file, f"what Optuna cannot read ({message})")
    got = f"{type(cause).__name__}: {cause}"
    if getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF not in _STORAGE_ERROR_CODES:
        return _refusal(file, got)
    return StorageError(
        where=str(file),
        rule="must be a file that can be read and written",
        got=got,
        fix="Free some space, mend its permissions or wait for the other process, and repeat the "
        "same command",
    )


def _refusal(file: Path, got: str) -> ArtifactError:
    return ArtifactError(where=str(file), rule=_RULE, got=got, fix=_FIX)
