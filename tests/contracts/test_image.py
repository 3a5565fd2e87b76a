"""The Dockerfile as it is written: what goes into the image, who owns it, and how its health is asked for."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from local_server import LocalServer, QuietHandler

from v8.cli.app import app

REPOSITORY = Path(__file__).parents[2]


def instructions() -> Iterator[tuple[str, str]]:
    """Yield each instruction of the Dockerfile, such as COPY, with the rest of its line."""
    lines = (REPOSITORY / "Dockerfile").read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            instruction, _, rest = line.partition(" ")
            yield instruction, " ".join(rest.split())


INSTRUCTIONS = list(instructions())
STARTS = [place for place, (instruction, _) in enumerate(INSTRUCTIONS) if instruction == "FROM"]
STAGES = {
    INSTRUCTIONS[start][1]: INSTRUCTIONS[start + 1 : end]
    for start, end in zip(STARTS, [*STARTS[1:], None], strict=True)
}
BASE = next(iter(STAGES)).partition(" ")[0]
SETTINGS = dict(STAGES[f"{BASE} AS runtime"])
HEALTHCHECK = json.loads(SETTINGS["HEALTHCHECK"].partition("CMD ")[2])


def test_it_is_made_of_what_a_wheel_is_made_of_and_nothing_else() -> None:
    rules = (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines()
    rules = [rule for rule in rules if not rule.startswith("#")]
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert rules[0] == "*"
    assert rules[-1] == "**/__pycache__"
    folders = {"v8", "configs"}
    files = {"LICENSE", "MANIFEST.in", "README.md", "THIRD_PARTY.md"}
    files |= {"pyproject.toml", "requirements-serve.txt", "setup.cfg", "setup.py"}
    assert allowed == folders | files
    assert [name for name in allowed if not (REPOSITORY / name).exists()] == []


def test_an_image_takes_only_an_installed_environment_from_where_it_is_built() -> None:
    names = ["AS build", "AS build-serve", "AS runtime"]
    assert list(STAGES) == [*(f"{BASE} {name}" for name in names), "runtime AS serve", "runtime"]
    assert STAGES["runtime"] == [("COPY", "--from=build /opt/v8 /opt/v8")]
    assert STAGES["runtime AS serve"] == [("COPY", "--from=build-serve /opt/v8 /opt/v8")]


def test_the_image_that_serves_is_built_of_its_list_alone() -> None:
    (line,) = [rest for instruction, rest in STAGES[f"{BASE} AS build-serve"] if instruction == "RUN"]
    installs = line.split(" && ")[1:]
    assert [install.partition("--no-cache-dir ")[2] for install in installs] == [
        "--requirement requirements-serve.txt",
        "--no-deps .",
    ]


def test_it_runs_as_a_user_who_owns_nothing_but_the_volume() -> None:
    user, group = SETTINGS["USER"].split(":")
    volume = SETTINGS["VOLUME"]
    assert int(user) > 0
    assert SETTINGS["RUN"] == f"install --directory --owner={user} --group={group} {volume}"
    assert SETTINGS["WORKDIR"] == volume
    order = [instruction for instruction, _ in STAGES[f"{BASE} AS runtime"]]
    # What RUN made before USER belongs to the administrator; what COPY makes does without `--chown`.
    assert order.index("RUN") < order.index("USER") < order.index("ENTRYPOINT")
    environment = dict(pair.split("=", 1) for pair in shlex.split(SETTINGS["ENV"]))
    assert environment["HOME"] == volume
    assert environment["PATH"].startswith("/opt/v8/bin:")


def test_its_own_command_is_one_of_ours_on_the_port_that_is_exposed() -> None:
    assert json.loads(SETTINGS["ENTRYPOINT"]) == ["v8"]
    name, *words = json.loads(SETTINGS["CMD"])
    context = typer.main.get_command(app).commands[name].make_context(name, words)
    assert str(context.params["port"]) == SETTINGS["EXPOSE"]


@pytest.mark.process
@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_image_is_healthy_when_the_page_says_so(status: int, code: int) -> None:
    class Page(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/api/health" else 404)
            self.end_headers()

    with LocalServer(Page) as server:
        port = server.url.rpartition(":")[2]
        program, *words = (re.sub(rf"\b{SETTINGS['EXPOSE']}\b", port, word) for word in HEALTHCHECK)
        assert program == "python"
        assert subprocess.run([sys.executable, *words], check=False).returncode == code
