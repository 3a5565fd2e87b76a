"""Options that are defined once: words, flags and keywords follow from the class."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from v8.api.arguments import argument_kind, checked_argument
from v8.base.errors import ArgumentError
from v8.base.records import AtLeastOne, Flag, Options
from v8.cli.shared import takes_options
from v8.runs.options import RunOptions


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
