"""A search whose record of trials is damaged or another's, and searches in folders of odd names.

One search of a tiny profile is left alone. Copies of it get a record (`study.sqlite`) that was changed as
the fault says: the same command refuses it in a sentence and changes neither it nor the winner, and with
`--redo` it keeps that file under another name and ends with the same winner. A search in a folder of any name
stays within that folder.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from drills.ground import SERIES, Ground, ImpossibleHereError, Place, add, digests

KIND = "search"
RECORD = "study.sqlite"
WINNER = "winner.yaml"
RESULTS = (RECORD, WINNER, "trials.csv", "trials.json")
"""What a search that is refused must leave as it was; its back-test of the start is drawn again."""

RANGES = "dropout: {low: 0.1, high: 0.5, step: 0.1}\n"
SIZES = ("--trials", "2", "--folds", "1", "--later", "1", "--history", "1500", "--bars", "900")

Damage = Callable[[Path], object]


def search_words(place: Place, out: str) -> list[str]:
    (place.folder / "ranges.yaml").write_text(RANGES)
    words = ["search", str(place.folder / "tiny.yaml"), "--ranges", str(place.folder / "ranges.yaml")]
    chosen = ["--series", SERIES, "--source", "demo", "--workers", "1", "--device", "cpu"]
    return [*words, *SIZES, *chosen, "--out", out]


def undisturbed(ground: Ground) -> Path:
    if find_spec("optuna") is None:
        raise ImpossibleHereError("optuna is not installed")

    def make(place: Place) -> Path:
        place.make(search_words(place, "searches/tiny"))
        return place.folder / "searches" / "tiny"

    return ground.once("search", make)


def damaged_record(damage: Damage, ground: Ground, place: Place) -> str:
    """Damage the record of a search: it is refused by a sentence, and `--redo` keeps it aside."""
    sound = undisturbed(ground)
    folder = place.folder / "searches" / "tiny"
    shutil.copytree(sound, folder)
    damage(folder / RECORD)
    before = digests(folder)
    words = search_words(place, "searches/tiny")
    met = place.call(words)
    place.require(met.status == 3, f"exit {met.status}: {met.errors}")
    place.require(RECORD in met.errors and "--redo" in met.output + met.errors, f"printed {met.errors}")
    after = digests(folder)
    place.lost += [name for name in RESULTS if after.get(name) != before[name]]
    again = place.call([*words, "--redo"])
    place.require(again.status == 0, f"with --redo, exit {again.status}: {again.errors}")
    place.require_same_contents({WINNER: winner_of(folder)}, {WINNER: winner_of(sound)})
    if digests(folder).get("study.replaced-1.sqlite") != before[RECORD]:
        place.lost.append("the record that was set aside")
    return "refused in a sentence; with `--redo` it lies aside, the same winner"


def odd_folder(name: str, ground: Ground, place: Place) -> str:
    """Search into a folder whose name means something in an address of SQLite."""
    sound = undisturbed(ground)
    words = search_words(place, name)
    before = {path.name for path in place.folder.iterdir()}
    for _ in range(2):  # a new record, and one that is opened again
        ended = place.call(words)
        place.require(ended.status == 0, f"exit {ended.status}: {ended.errors}")
    new_names = {path.name for path in place.folder.iterdir()} - before
    place.require(new_names == {name}, f"written: {', '.join(sorted(new_names)) or 'nothing'}")
    place.require((place.folder / name / RECORD).is_file(), "no record of trials in the folder")
    place.require_same_contents({WINNER: winner_of(place.folder / name)}, {WINNER: winner_of(sound)})
    return "all of it lies in that folder, the same winner"


def winner_of(folder: Path) -> str:
    """Return the profile that a search found; nothing where there is none."""
    file = folder / WINNER
    return file.read_text() if file.is_file() else ""


def noise(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4_096:8_192] = bytes(number * 167 % 256 for number in range(4_096))
    file.write_bytes(content)


def changed(statement: str, file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        with connection:
            done = connection.execute(statement)
        if done.rowcount < 1:
            raise RuntimeError(f"nothing was changed by: {statement}")


STATEMENTS = {
    "of another version of Optuna": "UPDATE alembic_version SET version_num = 'v99.0.0.a'",
    "with parameters out of every range": "UPDATE trial_params SET param_value = 99",
    "with a distribution that nobody knows": (
        """UPDATE trial_params SET distribution_json = '{"name": "Other", "attributes": {}}'"""
    ),
    "with a distribution that is no JSON": "UPDATE trial_params SET distribution_json = '{'",
    "with a state that nobody knows": "UPDATE trials SET state = 'DONE'",
    "without an objective": "DELETE FROM trial_values",
    "with a text as objective": "UPDATE trial_values SET value = 'x'",
    "with two objectives": (
        "INSERT INTO study_directions (direction, study_id, objective) "
        "SELECT direction, study_id, 1 FROM study_directions"
    ),
    "with attributes that are no JSON": "UPDATE trial_user_attributes SET value_json = '{'",
    "of a study that maximizes": "UPDATE study_directions SET direction = 'MAXIMIZE'",
}
FOLDER_NAMES = {
    "s_a?b": "usual",
    "s_?mode=memory": "usual",
    "s_%41b": "usual",
    "s_a#b": "long",
    "file:x": "long",
    "a b'": "long",
}

add(KIND, f"`{RECORD}` with noise", "usual", damaged_record, noise)
for _fault, _statement in STATEMENTS.items():
    add(KIND, f"`{RECORD}` {_fault}", "usual", damaged_record, partial(changed, _statement))
for _name, _size in FOLDER_NAMES.items():
    add(KIND, f"`search --out '{_name}'`", _size, odd_folder, _name)
