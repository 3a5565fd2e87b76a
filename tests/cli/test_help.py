"""The help of every command: its examples parse, nothing is broken, and flags stand alone."""

from __future__ import annotations

import re
import shlex

import pytest
import typer.main
from typer.testing import CliRunner

from v8.cli.app import GROUPS, app

COMMANDS = typer.main.get_command(app).commands
CALLED = "python -m v8 "


def shown(*words: str) -> str:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words, "--help"], prog_name=CALLED.strip())
    assert result.exit_code == 0, result.output
    return result.stdout


def require_narrow(text: str) -> None:
    assert max(map(len, text.splitlines())) <= 80
    assert "<bool>" not in text
    for words in re.findall(r"^  (--[a-z-]+)  +(\S+)", text, re.MULTILINE):
        assert not words[1].startswith("<"), words


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_s_help_is_narrow_says_each_thing_once_and_ends_with_examples_that_parse(name: str) -> None:
    text = shown(name)
    require_narrow(text)
    for word, flag in (("PROFILE", "--profile"), ("RUN", "--run")):
        rows = re.findall(rf"^  (?:{word}|{flag}) .*", text, re.MULTILINE)
        assert len(rows) <= 1, rows
    told, _, examples = text.partition("\n  Examples:\n")
    assert told and examples.strip(), "no examples"
    for line in map(str.strip, examples.strip().splitlines()):
        called, *words = shlex.split(line.removeprefix(CALLED))
        assert line.startswith(CALLED) and called == name
        COMMANDS[name].make_context(name, words)


def test_every_command_is_listed_with_a_whole_sentence() -> None:
    text = shown()
    require_narrow(text)
    assert [name for name in COMMANDS if f"\n  {name} " not in text] == []
    assert "..." not in text.partition("\nTrain:\n")[2]
    assert "A row is one bar ahead" not in text  # what stands below the first sentence


def test_commands_are_in_groups_of_what_they_are_for() -> None:
    text = shown().partition("Options:")[2]
    groups = re.findall(r"^([A-Z]\w+):$", text, re.MULTILINE)
    assert tuple(groups) == GROUPS
    by_group = {
        group: re.findall(r"^  ([a-z-]+)  ", part, re.MULTILINE)
        for group, part in zip(groups, re.split(r"^[A-Z]\w+:$", text, flags=re.MULTILINE)[1:], strict=True)
    }
    assert by_group == {
        "Train": ["run", "update", "search"],
        "Forecast": ["predict", "forecast", "app"],
        "Evaluate": ["report", "backtest", "compare-profiles", "worth", "track"],
        "Share": ["publish", "pull", "export"],
        "Inspect": ["data", "features", "doctor"],
    }


def test_the_first_commands_stand_in_the_help_of_all_and_parse() -> None:
    lines = [line.strip() for line in shown().splitlines() if line.startswith(f"    {CALLED}")]
    assert [shlex.split(line.removeprefix(CALLED))[0] for line in lines] == ["run", "predict"]
    for line in lines:
        name, *words = shlex.split(line.removeprefix(CALLED))
        COMMANDS[name].make_context(name, words)
    assert "docs/en/index.md" in shown()


def test_flags_of_a_run_are_in_groups_none_of_them_long() -> None:
    parts = re.split(r"^([A-Z][\w ]+):$", shown("run"), flags=re.MULTILINE)[1:]
    flags = {
        group: re.findall(r"^  (?:-h, )?(--[a-z-]+)", part, re.MULTILINE)
        for group, part in zip(parts[::2], parts[1::2], strict=True)
    }
    assert [*flags] == ["What to train", "Candles", "Machine", "Run folder", "Results", "Options"]
    assert max(map(len, flags.values())) <= 8
    every = [flag for group in flags.values() for flag in group]
    assert len(every) == len(set(every)) == len(COMMANDS["run"].params) - 1 + 1  # not the word, but --help
