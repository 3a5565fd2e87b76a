"""Every command in the README and on the pages of the site exists, with every flag it shows."""

from __future__ import annotations

import re
import shlex
from configparser import ConfigParser
from pathlib import Path

import pytest
import typer.main

from v8.cli.app import app
from v8.profile.profile import profile_names

REPOSITORY = Path(__file__).parents[2]

README = (REPOSITORY / "README.md").read_text("utf-8")
PAGES = "\n".join(page.read_text("utf-8") for page in sorted((REPOSITORY / "docs/en").rglob("*.md")))
BLOCK = re.compile(r"```[a-z]*\n(.*?)```", re.DOTALL)

SETUP = ConfigParser()
SETUP.read(REPOSITORY / "setup.cfg", "utf-8")
EXTRAS = set(SETUP["options.extras_require"])


def shown_commands(text: str) -> list[str]:
    """Return the command lines of a text's code blocks, comments cut off."""
    lines = "\n".join(BLOCK.findall(text)).splitlines()
    commands = [line.partition(" #")[0].strip() for line in lines]
    return [line for line in commands if re.match(r"scripts/|python -m v8|v8 ", line)]


def named_commands(text: str) -> list[str]:
    """Return the commands that stand in a text's sentences and tables, each once."""
    matches = re.findall(r"`(scripts/(?:run|v8)\s[^`]+)`", BLOCK.sub("", text))
    return sorted({" ".join(command.split()) for command in matches} - {"scripts/v8 COMMAND"})


def test_the_readme_shows_two_commands() -> None:
    assert [line.split()[0] for line in shown_commands(README)] == ["scripts/run", "scripts/v8"]


@pytest.mark.parametrize(
    "line", dict.fromkeys([*shown_commands(README + PAGES), *named_commands(README), *named_commands(PAGES)])
)
def test_a_command_of_the_readme_or_a_page_parses(line: str) -> None:
    program, *words = shlex.split(line)
    assert (REPOSITORY / program).is_file()
    if program == "scripts/test":
        return
    if words[:1] == ["install"]:  # of the script, not of v8
        assert set(words[1:]) <= EXTRAS
        return
    name, *rest = words if program == "scripts/v8" else ["run", *words]
    context = typer.main.get_command(app).commands[name].make_context(name, rest)
    if context.params.get("profile") and not context.params["profile"].endswith(".yaml"):
        assert context.params["profile"] in profile_names()
