"""The record that Optuna keeps: read, gone on with, set aside; whatever is wrong with it is a sentence."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import optuna
import pytest

from v8.annexes.search import Range
from v8.annexes.search.trial_record import RECORD_FILE, TrialRecord, set_aside
from v8.base.errors import MAX_MESSAGE, ArtifactError, StorageError

RANGES = {
    "dropout": Range(low=0.1, high=0.5, step=0.1),
    "units": Range(choices=[[32], [64, 64]]),
    "batch_size": Range(low=16, high=256),
    "learning_rate": Range(low=1e-4, high=1e-2, log=True),
}
NUM_FOLDS = 2
NUM_TRIALS = 6


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def add_trials(file: Path, num_trials: int = NUM_TRIALS) -> list[dict[str, object]]:
    """Make trials as a search does, every third one pruned after its first fold; return the values drawn."""
    record = TrialRecord(file, RANGES, NUM_FOLDS)
    drawn = []
    for number in range(len(record.ended()), num_trials):
        trial = record.begin_trial(seed=number)
        trial.write_profile_name(f"frontier-but-{number}")
        trial.report(1, 1.0 + number)
        if number % 3:
            trial.report(2, 2.0 + number)
            trial.complete(2.0 + number)
        else:
            trial.prune()
        drawn.append(dict(trial.values))
    return drawn


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sound") / RECORD_FILE
    add_trials(file)
    return file


@pytest.fixture
def record(sound: Path, tmp_path: Path) -> Path:
    """A copy of a sound record, to be changed."""
    file = tmp_path / RECORD_FILE
    file.write_bytes(sound.read_bytes())
    return file


def change(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_what_ended_is_read_and_one_that_was_killed_is_drawn_again(sound: Path, tmp_path: Path) -> None:
    file = tmp_path / RECORD_FILE
    drawn = add_trials(file, 3)
    killed = TrialRecord(file, RANGES, NUM_FOLDS).begin_trial(seed=3)
    drawn += add_trials(file)
    ended = TrialRecord(file, RANGES, NUM_FOLDS).ended()
    assert drawn[3] == killed.values
    assert ended["state"].tolist() == ["pruned", "complete", "complete"] * 2
    assert ended["folds"].tolist() == [1, 2, 2] * 2
    assert ended["objective"].tolist() == [1.0, 3.0, 4.0, 4.0, 6.0, 7.0]
    assert ended[[*RANGES]].to_dict("records") == drawn
    assert ended["profile"].tolist() == [f"frontier-but-{number}" for number in range(NUM_TRIALS)]
    assert ended.equals(TrialRecord(sound, RANGES, NUM_FOLDS).ended())


def test_other_ranges_begin_a_record_of_their_own_in_the_same_file(record: Path) -> None:
    others = {"dropout": Range(low=0.1, high=0.2)}
    assert TrialRecord(record, others, NUM_FOLDS).ended().empty
    assert len(TrialRecord(record, RANGES, NUM_FOLDS).ended()) == NUM_TRIALS


@pytest.mark.skipif(os.name != "posix", reason="Windows allows fewer signs in names")
@pytest.mark.parametrize(
    "name",
    ["s_a?b", "s_?mode=memory", "s_%41b", "s_{x}", "s_a#b", "file:x?mode=memory", ":memory:", "a b'\"\\"],
)
def test_the_record_lies_in_its_folder_whatever_the_name_of_that(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    add_trials(Path(name) / RECORD_FILE, 2)
    assert len(TrialRecord(Path(name) / RECORD_FILE, RANGES, NUM_FOLDS).ended()) == 2
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        name,
        f"{name}/{RECORD_FILE}",
    ]


SECOND = "trial_id = 2"  # went through all folds
CANNOT = r"what Optuna cannot read \(AssertionError\)"
FAULTS: dict[str, tuple[str, str]] = {
    "another version of alembic": (
        "UPDATE alembic_version SET version_num = 'v9.0.0'",
        "no longer compatible",
    ),
    "a lost table": ("DROP TABLE trial_params", "trial 1 with values of {}|no such table"),
    "broken JSON of a distribution": ("UPDATE trial_params SET distribution_json = '{'", "JSONDecodeError"),
    "another distribution": (
        """UPDATE trial_params SET distribution_json = '{"name": "IntDistribution", "attributes":
        {"low": 1, "high": 900, "step": 1, "log": false}}' WHERE param_name = 'batch_size'""",
        "trial 1 with values of",
    ),
    "a parameter out of its range": (
        "UPDATE trial_params SET param_value = 7.5 WHERE param_name = 'dropout'",
        "trial 1 with dropout 7.5|ValueError",
    ),
    "a parameter that is null": (
        "UPDATE trial_params SET param_value = NULL",
        "TypeError|with dropout|with batch_size",
    ),
    "an unknown state": ("UPDATE trials SET state = 'MAYBE'", "'MAYBE' is not among the defined enum values"),
    "a pruned trial that is called complete": (
        "UPDATE trials SET state = 'COMPLETE'",
        "trial 1 with objectives after 1 of 2 folds",
    ),
    "an objective that is null": (f"UPDATE trial_values SET value = NULL WHERE {SECOND}", CANNOT),
    "an objective that is another": (f"UPDATE trial_values SET value = 0.1 WHERE {SECOND}", "trial 2 with"),
    "two objectives of the study": (
        "INSERT INTO study_directions (direction, study_id, objective) VALUES ('MINIMIZE', 1, 1)",
        "directions MINIMIZE, MINIMIZE",
    ),
    "a study that is to be maximized": (
        "UPDATE study_directions SET direction = 'MAXIMIZE'",
        "directions MAXI",
    ),
    "a profile that is no name": (
        "UPDATE trial_user_attributes SET value_json = '5'",
        "trial 1 with the profile 5",
    ),
    "attributes of the study that are no JSON": (
        "INSERT INTO study_user_attributes (study_id, key, value_json) VALUES (1, 'a', 'b')",
        "JSONDecodeError",
    ),
    "a fold that there is not": (
        "UPDATE trial_intermediate_values SET step = 7 WHERE step = 2",
        r"trial 2 with objectives after the folds \[1, 7\]",
    ),
    "a lost fold": (
        "DELETE FROM trial_intermediate_values WHERE step = 2",
        "trial 2 with objectives after 1 of 2",
    ),
}


@pytest.mark.parametrize(("statement", "got"), FAULTS.values(), ids=[*FAULTS])
def test_a_record_with_a_fault_is_refused_in_a_sentence(statement: str, got: str, record: Path) -> None:
    change(record, statement)
    with pytest.raises(ArtifactError, match=rf"study.sqlite: .* got .*({got})") as caught:
        add_trials(record, NUM_TRIALS + 1)
    assert "--redo" in str(caught.value)
    assert len(str(caught.value)) <= MAX_MESSAGE


@pytest.mark.nightly
def test_noise_anywhere_is_refused_or_changes_nothing(sound: Path, tmp_path: Path) -> None:
    content = sound.read_bytes()
    expected = TrialRecord(sound, RANGES, NUM_FOLDS).ended()
    chance = random.Random(35)
    outcomes = set()
    for number in range(60):
        noisy = bytearray(content)
        place = chance.randrange(0, len(noisy), 512)
        noisy[place : place + 512] = chance.randbytes(512)
        file = tmp_path / f"{number}.sqlite"
        file.write_bytes(noisy)
        try:
            assert TrialRecord(file, RANGES, NUM_FOLDS).ended().equals(expected)
            outcomes.add("unchanged")
        except ArtifactError:
            outcomes.add("refused")
    assert outcomes == {"unchanged", "refused"}


def test_a_record_of_fewer_folds_is_refused(record: Path) -> None:
    with pytest.raises(ArtifactError, match=r"study.sqlite: .*got trial 2 with .*\[1, 2\], of 1"):
        TrialRecord(record, RANGES, 1)


@pytest.mark.parametrize("make", [Path.mkdir, getattr(os, "mkfifo", Path.mkdir)])
def test_what_is_no_file_is_refused_and_not_waited_for(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / RECORD_FILE)
    with pytest.raises(ArtifactError, match="got DatabaseError: a folder"):
        TrialRecord(tmp_path / RECORD_FILE, RANGES, NUM_FOLDS)


def test_a_record_in_use_is_no_fault_of_its_content(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v8.annexes.search.trial_record._BUSY_S", 0.05)
    with closing(sqlite3.connect(record, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageError, match=r"got OperationalError: database is locked\. Free some space"):
            TrialRecord(record, RANGES, NUM_FOLDS)


def test_what_is_set_aside_is_renamed_with_its_journal_and_nothing_is_lost(record: Path) -> None:
    content = record.read_bytes()
    Path(f"{record}-journal").write_text("a journal")
    aside = set_aside(record)
    assert aside == record.with_name("study.replaced-1.sqlite")
    assert (aside.read_bytes(), Path(f"{aside}-journal").read_text()) == (content, "a journal")
    assert set_aside(record) is None
    record.write_text("another")
    assert set_aside(record) == record.with_name("study.replaced-2.sqlite")
    assert aside.read_bytes() == content
