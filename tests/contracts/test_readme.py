"""Every command in the README exists, with every flag it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from v8.commands.app import app
from v8.profile import profile_names

REPOSITORY = Path(__file__).parents[2]


def shown_commands() -> list[str]:
    """Return the command lines of the README's code blocks, comments cut off."""
    blocks = re.findall(r"```[a-z]*\n(.*?)```", (REPOSITORY / "README.md").read_text("utf-8"), re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(r"(python -m v8|scripts/)", line)]


def test_the_readme_shows_the_main_job_and_both_scripts() -> None:
    starts = {line.split()[0] if line.startswith("scripts") else line[:16] for line in shown_commands()}
    assert {"scripts/run", "scripts/test", "python -m v8.run"} <= starts


@pytest.mark.parametrize("line", shown_commands())
def test_a_command_of_the_readme_parses(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "scripts/test":
        return
    if words[0].startswith("scripts/") and words[0] != "scripts/run":
        assert (REPOSITORY / words[0]).is_file()
        return
    arguments = words[3:] if words[0] == "python" else ["run", *words[1:]]
    if words[2:3] == ["v8.run"]:
        arguments = ["run", *arguments]
    commands = typer.main.get_command(app).commands
    name, *rest = arguments
    context = commands[name].make_context(name, rest)
    if "profile" in context.params and not context.params["profile"].endswith(".yaml"):
        assert context.params["profile"] in profile_names()
