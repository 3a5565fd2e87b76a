"""Records: what a file must hold; and options, defined once: words, flags and keywords follow."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from v8.api.arguments import argument_kind, checked_argument
from v8.base.errors import ArgumentError, ArtifactError
from v8.base.records import (
    AtLeastOne,
    Count,
    Flag,
    Number,
    Options,
    Sha256,
    Text,
    check_format,
    checked,
    read_json_object,
)
from v8.cli.shared import takes_options
from v8.runs.options import RunOptions


@dataclass(frozen=True)
class Shipment:
    """A record with one key of each kind."""

    num_crates: Count
    weight_kg: Number
    receiver: Text
    seal: Sha256
    stops: tuple[Text, ...] = ()


CONTENT = {"num_crates": 3, "weight_kg": 4, "receiver": "Ada", "seal": "0f" * 32, "stops": ["Bern", "Oslo"]}


def test_a_whole_record_is_read_and_keys_it_does_not_know_are_left_alone() -> None:
    read = checked(Shipment, CONTENT | {"colour": "red"}, where="a.json", fix="Restore it")
    assert read == Shipment(3, 4.0, "Ada", "0f" * 32, ("Bern", "Oslo"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_crates": -1}, "key num_crates: .*; got -1\\."),
        ({"num_crates": True}, "key num_crates: .*; got True\\."),
        ({"num_crates": 3.0}, "key num_crates: .*; got 3.0\\."),
        ({"weight_kg": "4"}, "key weight_kg: .*; got '4'\\."),
        ({"weight_kg": float("nan")}, "key weight_kg: .*; got nan\\."),
        ({"weight_kg": float("inf")}, "key weight_kg: .*; got inf\\."),
        ({"receiver": ""}, "key receiver: .*; got ''\\."),
        ({"seal": "0F" * 32}, "key seal: .* pattern"),
        ({"seal": "0f" * 32 + "\n"}, "key seal: .* pattern"),
        ({"stops": ["Bern", None]}, "key stops.1: .*; got None\\."),
        ({"stops": "Bern"}, "key stops: .*; got 'Bern'\\."),
    ],
)
def test_the_first_key_at_fault_is_named_with_its_value(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        checked(Shipment, CONTENT | changes, where="a.json", fix="Restore it")
    assert re.search(f"a.json, {sentence}", str(caught.value))


def test_a_missing_key_a_key_of_a_key_and_a_value_too_long_to_show() -> None:
    with pytest.raises(ArtifactError, match=r"^a\.json, key a\.num_crates: .*got no such key"):
        checked(Shipment, {}, where="a.json, key a", fix="Mend it", rule="must be as v8 wrote it")
    with pytest.raises(ArtifactError, match=r"a\.json, key weight_kg: .*got 'x{116}\.\.\. \("):
        content = CONTENT | {"weight_kg": "x" * 999}
        checked(Shipment, content, where="a.json", fix="Mend it", rule="must be as v8 wrote it")


@pytest.mark.parametrize(
    "content", [{"format": 4}, {"format": "3"}, {"format": 3.0}, {"format": True}, {}, [], None]
)
def test_only_one_format_is_read(content: object) -> None:
    check_format({"format": 3}, 3, kind="run", where="a.json", fix="Mend it")
    with pytest.raises(ArtifactError, match=r"^a\.json: .*format 3; got format "):
        check_format(content, 3, kind="run", where="a.json", fix="Mend it")


def test_a_file_nested_without_end_is_damage(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(ArtifactError, match=r"deep\.json: .*got damage"):
        read_json_object(tmp_path / "deep.json", fix="Restore it")


class Brewing(Options):
    """Options of a toy."""

    profile: Annotated[str, Flag("Which.", "NAME", word="PROFILE")] = "frontier"
    leaves: Annotated[tuple[str, ...], Flag("Which leaves; repeat.", "LEAF")] = ()
    cups: Annotated[AtLeastOne | None, Flag("How many cups.", "N")] = None
    pots: Annotated[int | str, Flag("How many pots.", "auto|N")] = "auto"
    is_hot: Annotated[bool, Flag("Hot or cold.", names=("--hot/--cold",))] = True
    again: Annotated[bool, Flag("Once more.", is_once=True)] = False
    shelf: Annotated[Path | None, Flag("Where they lie.", "DIR")] = None
    hidden: int = 0


def brewed(*words: str) -> tuple[int, Any, str]:
    """Call a command with these options; return its exit code, what it got, and what it printed."""
    got: list[Any] = []

    @takes_options(Brewing)
    def brew(options: Brewing, quiet: bool = typer.Option(False, "--quiet")) -> None:
        got.append((options, quiet))

    app = typer.Typer()
    app.command()(brew)
    result = CliRunner().invoke(app, [*words])
    return result.exit_code, got[0] if got else None, result.output


def test_a_command_gets_its_options_as_one_value() -> None:
    words = ["stable", "--leaves", "a", "--leaves", "b", "--cups", "2", "--pots", "3", "--cold", "--quiet"]
    options = Brewing(profile="stable", leaves=("a", "b"), cups=2, pots="3", is_hot=False)
    assert brewed(*words)[:2] == (0, (options, True))
    assert brewed()[:2] == (0, (Brewing(), False))


def test_the_words_of_options_give_these_options_again() -> None:
    options = Brewing(profile="stable", leaves=("a", "b"), cups=2, is_hot=False, shelf=Path("x y"))
    assert options.words() == [
        *("--profile", "stable", "--leaves", "a", "--leaves", "b", "--cups", "2", "--cold"),
        *("--shelf", "x y"),
    ]
    assert brewed(*options.words())[1] == (options, False)
    assert Brewing(again=True, hidden=1).words() == []  # what holds for one call, and what is no flag


def test_a_flag_has_the_range_and_the_sentence_of_its_option() -> None:
    assert brewed("--cups", "0")[0] == 2
    text = brewed("--help")[2]
    assert "How many cups." in text and "x>=1" in text and "--hidden" not in text


@pytest.mark.parametrize(
    ("name", "good", "wrong"),
    [
        ("leaves", ("a", ["a", "b"], None), (1, [1], "")),
        ("cups", (1, None), (0, 1.5, "1")),
        ("pots", (1, "auto"), (1.5, "")),
        ("is_hot", (True,), ("yes", 1)),
        ("shelf", ("x", Path("x")), (1, "")),
    ],
)
def test_a_keyword_takes_what_its_option_takes(name: str, good: Any, wrong: Any) -> None:
    kind = argument_kind(Brewing.model_fields[name].annotation)
    for value in good:
        assert checked_argument("v8.brew", name, value, kind) == value
    for value in wrong:
        with pytest.raises(ArgumentError):
            checked_argument("v8.brew", name, value, kind)


def test_every_option_of_a_run_is_a_flag_but_two() -> None:
    from v8.cli.commands import run

    offered = {name for name, _, _ in RunOptions.flags()}
    assert RunOptions.model_fields.keys() - offered == {"plugin"}
    assert offered <= inspect.signature(run).parameters.keys()
