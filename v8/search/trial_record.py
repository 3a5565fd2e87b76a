"""The record of trials that Optuna keeps for a search, in one file of SQLite.

The file outlives the search that wrote it, so it may be damaged, of another version, or another's. What
Optuna, SQLAlchemy and SQLite raise over such a file is of any kind, and much of it they do not notice: every
trial that has ended is checked before the search goes on from it. No name of a folder changes which file is
opened: SQLite is handed its path, and no address is made of it.
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

from v8.errors import ArtifactError, StorageError, V8Error, shown
from v8.search.ranges import Range, Ranges
from v8.storage import digest_json

RECORD_FILE: Final = "study.sqlite"
PROFILE_NAME: Final = "profile"  # attribute of a trial: name of the profile with its values
ENDED: Final = ("COMPLETE", "PRUNED")  # states of trials that have ended, but not by a kill
MIN_TRIALS_TO_PRUNE: Final = 5  # trials that went through all folds before the median pruner ends one
_BUSY_S: Final = 30.0  # how long to wait for another process that uses the file, in seconds
_JOURNALS: Final = ("-journal", "-wal", "-shm")  # endings of the files that SQLite writes beside a database
_RULE: Final = "must be the record of trials that Optuna keeps for this search"
_FIX: Final = (
    "Repeat the command with param:redo: this file stays under another name, a new record is begun, and what "
    "was trained is used again"
)
_OF_THE_PLACE: Final = frozenset(
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("FULL", "READONLY", "IOERR", "CANTOPEN", "PERM", "BUSY", "LOCKED")
)
"""Codes of SQLite that blame the disk, permissions or another process, and not the content."""


class TrialRecord:
    """The trials of one search.

    Opening it and every method raise `ArtifactError` if the file is no such record, or `StorageError` if it
    cannot be read or written.

    Args:
        file: Where it lies; begun if nothing lies there.
        ranges: What is searched; a record holds the trials of each set of ranges apart.
        num_folds: Of a trial that was not pruned.
    """

    def __init__(self, file: Path, ranges: Ranges, num_folds: int) -> None:
        import optuna  # noqa: PLC0415 - an extra

        self._file = file
        self._ranges = ranges
        self._num_folds = num_folds
        self._distributions = {key: _distribution(one) for key, one in ranges.items()}
        with _explained(file):
            _require_sound_pages(file)
            storage = _storage(file)
            self._study = optuna.create_study(
                storage=storage,
                study_name=digest_json({key: one.model_dump() for key, one in ranges.items()}),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=MIN_TRIALS_TO_PRUNE),
                load_if_exists=True,
            )
            # Optuna reads attributes only when something asks for them, in the middle of a search.
            number = storage.get_study_id_from_name(self._study.study_name)
            storage.get_study_user_attrs(number)
            storage.get_study_system_attrs(number)
            directions = self._study.directions
            ended = [trial for trial in self._study.trials if trial.state.name in ENDED]
        if directions != [optuna.study.StudyDirection.MINIMIZE]:
            names = ", ".join(direction.name for direction in directions)
            raise _refusal(file, f"a study of the directions {names}, where one objective is minimized")
        for trial in ended:
            for fault in self._faults(trial):
                raise _refusal(file, f"trial {trial.number + 1} with {fault}")

    def ended(self) -> pd.DataFrame:
        """Return a row for each trial that has ended, as `ended_of` does."""
        with _explained(self._file):
            return ended_of(self._study, self._ranges)

    def begin_trial(self, seed: int) -> "Trial":
        """Draw the values of a new trial; equal seeds draw equal values after equal trials."""
        import optuna  # noqa: PLC0415 - an extra

        with _explained(self._file):
            self._study.sampler = optuna.samplers.TPESampler(seed=seed)
            return Trial(self._file, self._study, self._study.ask(self._distributions))

    def _faults(self, trial: Any) -> Iterator[str]:
        """Yield what of a trial that has ended cannot be; the first fault may be the cause of others."""
        if trial.distributions != self._distributions:
            yield f"values of {shown(trial.distributions)}"
        for key, one in self._ranges.items():
            if not _is_within(trial.params[key], one):
                yield f"{key} {shown(trial.params[key])}"
        folds = sorted(trial.intermediate_values)
        if folds != [*range(1, len(folds) + 1)] or len(folds) > self._num_folds:
            yield f"objectives after the folds {shown(folds)}, of {self._num_folds}"
        if trial.state.name == "COMPLETE" and len(folds) != self._num_folds:
            yield f"objectives after {len(folds)} of {self._num_folds} folds"
        objectives = [trial.intermediate_values[fold] for fold in folds]
        if not all(map(_is_finite, objectives)) or trial.values != (objectives[-1:] or None):
            yield f"the objective {shown(trial.values)}, and {shown(objectives)} after its folds"
        name = trial.user_attrs.get(PROFILE_NAME)
        if not isinstance(name, str | None) or (folds and name is None):
            yield f"the profile {shown(name)}"


class Trial:
    """One trial that has begun, and has drawn its `values`, by key: numbers, and choices as JSON text."""

    def __init__(self, file: Path, study: Any, trial: Any) -> None:
        self._file = file
        self._study = study
        self._trial = trial
        self.values: Final[Mapping[str, Any]] = dict(trial.params)

    def write_profile_name(self, name: str) -> None:
        """Write down the name of the profile that has the values drawn."""
        with _explained(self._file):
            self._trial.set_user_attr(PROFILE_NAME, name)

    def report(self, fold: int, objective: float) -> bool:
        """Write down the objective after so many folds; return whether the pruner would end the trial."""
        with _explained(self._file):
            self._trial.report(objective, fold)
            return bool(self._trial.should_prune())

    def complete(self, objective: float) -> None:
        """End the trial, which went through all folds."""
        with _explained(self._file):
            self._study.tell(self._trial, objective)

    def prune(self) -> None:
        """End the trial, which did not go through all folds."""
        import optuna  # noqa: PLC0415 - an extra

        with _explained(self._file):
            self._study.tell(self._trial, state=optuna.trial.TrialState.PRUNED)


def ended_of(study: Any, ranges: Ranges) -> pd.DataFrame:
    """Return a row for each trial of a study that has ended, but not by a kill, numbered from 1."""
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
    columns = "state", "folds", "objective", *ranges, PROFILE_NAME
    return pd.DataFrame(rows, range(1, len(rows) + 1), columns).astype({"folds": "Int64", "objective": float})


def set_aside(file: Path) -> Path | None:
    """Rename a record, and what SQLite keeps beside it; return its new name, None where there is no record.

    Raises `StorageError` if the folder cannot be changed.
    """
    if not os.path.lexists(file):
        return None
    for number in count(1):
        aside = file.with_name(f"{file.stem}.replaced-{number}{file.suffix}")
        if not any(os.path.lexists(f"{aside}{ending}") for ending in ("", *_JOURNALS)):
            break
    try:
        # The journals go first: SQLite would take one that is left for that of the new record.
        for ending in (*_JOURNALS, ""):
            if os.path.lexists(f"{file}{ending}"):
                os.replace(f"{file}{ending}", f"{aside}{ending}")
    except OSError as error:
        raise StorageError.of(file, error) from error
    return aside


def _distribution(one: Range) -> Any:
    """Write a range as Optuna does; whole numbers are drawn where all of its numbers are whole."""
    import optuna  # noqa: PLC0415 - an extra

    kinds: Any = optuna.distributions
    if one.choices:
        return kinds.CategoricalDistribution([json.dumps(choice) for choice in one.choices])
    if any(isinstance(number, float) for number in (one.low, one.high, one.step)):
        return kinds.FloatDistribution(one.low, one.high, log=one.log, step=one.step)
    return kinds.IntDistribution(one.low, one.high, log=one.log, step=one.step or 1)


def _is_within(value: Any, one: Range) -> bool:
    if one.choices:
        return value in [json.dumps(choice) for choice in one.choices]
    return _is_finite(value) and (one.low or 0) <= value <= (one.high or 0)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _storage(file: Path) -> Any:
    from optuna.storages import RDBStorage  # noqa: PLC0415 - an extra
    from sqlalchemy.pool import NullPool  # noqa: PLC0415 - Optuna brings it

    # Of an address Optuna fills in braces, and SQLAlchemy reads percent signs and what follows a "?".
    return RDBStorage("sqlite://", {"creator": lambda: _connect(file), "poolclass": NullPool})


def _connect(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file.absolute(), timeout=_BUSY_S, check_same_thread=False)


def _require_sound_pages(file: Path) -> None:
    """Let SQLite look through a record that is there; it finds damage that no query of Optuna meets."""
    if not os.path.lexists(file):
        return
    if not file.is_file():
        raise sqlite3.DatabaseError("a folder, pipe or device")
    with closing(_connect(file)) as connection:
        ((answer,),) = connection.execute("PRAGMA quick_check(1)")
    if answer != "ok":
        raise sqlite3.DatabaseError(answer)


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Turn whatever is raised over a record into an error of ours: nothing of v8 runs within."""
    try:
        yield
    except Exception as error:
        raise _explanation(file, error) from error


def _explanation(file: Path, error: Exception) -> V8Error:
    """Say what SQLite or Optuna said, and whether the place or the content is at fault."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, sqlite3.Error):
        cause = cause.__cause__
    if cause is None:
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        return _refusal(file, f"what Optuna cannot read ({said})")
    got = f"{type(cause).__name__}: {cause}"
    if getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF not in _OF_THE_PLACE:
        return _refusal(file, got)
    fix = "Make room, mend its permissions or wait for the other process, and repeat the same command"
    return StorageError(where=str(file), rule="must be a file that can be read and written", got=got, fix=fix)


def _refusal(file: Path, got: str) -> ArtifactError:
    return ArtifactError(where=str(file), rule=_RULE, got=got, fix=_FIX)
