"""Errors: four parts in one sentence, an exit code each; what they quote is one line without passwords."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.base import errors
from v8.base.errors import MAX_MESSAGE, ArtifactError, V8Error, shown


def test_an_error_keeps_its_parts_on_the_way_between_processes() -> None:
    error = errors.DivergedError(where="a", rule="b", got="c", fix="d")
    rebuilt = pickle.loads(pickle.dumps(error))
    assert (type(rebuilt), str(rebuilt), rebuilt.fix) == (errors.DivergedError, str(error), "d")


def test_what_a_caller_gave_wrongly_is_a_value_error_too() -> None:
    for kind in (errors.ProfileError, errors.ArgumentError, errors.DataError):
        with pytest.raises(ValueError, match=r"a: b; got c\. d\."):
            raise kind(where="a", rule="b", got="c", fix="d")
    assert issubclass(errors.ArgumentError, TypeError)
    for kind in (errors.ArtifactError, errors.SeriesError, errors.StorageError, errors.PullError):
        assert not issubclass(kind, ValueError)


def test_a_part_that_ends_with_a_stop_does_not_make_two() -> None:
    error = errors.V8Error(
        where="a", rule="b.", got="what was finished is kept.", fix="Mend that and repeat."
    )
    assert str(error) == "a: b; got what was finished is kept. Mend that and repeat."
    error = errors.V8Error(where="a", rule="b", got="1, 2, 3 ...", fix="c")
    assert str(error) == "a: b; got 1, 2, 3 .... c."


def test_a_parameter_is_written_as_the_door_takes_it() -> None:
    error = errors.DataError(where="param:data_dir x", rule="is one", got="none", fix="Drop param:bars")
    assert str(error) == "--data-dir x: is one; got none. Drop --bars."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert errors.with_parameters(error.where, errors.as_argument) == "data_dir= x"


def test_below_the_doors_no_error_knows_how_a_door_writes_its_parameters() -> None:
    """A part of an error, or what becomes one; commands to paste are whole command lines, and may."""
    package = Path(errors.__file__).parents[1]
    surface = (Path(__file__).parents[1] / "cli/surface.txt").read_text("utf-8")
    for file in sorted(package.rglob("*.py")):
        text = file.read_text("utf-8")
        for name in re.findall(r"param:([a-z_]+)", text):
            assert f"--{name.replace('_', '-')}" in surface, (file, name)
        is_interface = {"cli", "api"} & {*file.relative_to(package).parts} or file.name == "commands.py"
        if not is_interface:
            parts = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.keyword)]
            told = [ast.unparse(one.value) for one in parts if one.arg in errors.PARTS]
            flags = (re.sub(r"command\([^()]*(\([^()]*\)[^()]*)*\)|ray start \S+", "", one) for one in told)
            assert not [one for one in flags if re.search(r"(?<![\w-])--[a-z]", one)], file


@given(st.text(), st.integers(10, 300))
def test_whatever_is_shown_is_one_bounded_printable_line(text: str, most: int) -> None:
    line = shown(text, most)
    assert line.isprintable()
    assert len(line) <= most


@given(st.text(), st.text(), st.text(), st.text())
def test_an_error_is_one_bounded_line_whatever_it_quotes(where: str, rule: str, got: str, fix: str) -> None:
    sentence = str(V8Error(where=where * 40, rule=rule * 40, got=got * 400, fix=fix * 40))
    assert len(sentence) <= MAX_MESSAGE
    assert sentence.isprintable()


def test_a_long_error_keeps_the_begin_and_the_end_of_each_part() -> None:
    path = "/home/me/" + "deep/" * 200 + "run.json"
    sentence = str(ArtifactError(where=path, rule="must be whole", got="x" * 5_000, fix="Restore it"))
    assert sentence.startswith("/home/me/deep/")
    assert "run.json: must be whole; got xxx" in sentence
    assert sentence.endswith("xxx. Restore it.")
