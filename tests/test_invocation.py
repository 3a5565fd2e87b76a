"""Commands that v8 prints are those it was started by; where it cannot start it says why, in one sentence."""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from v8.invocation import collected_later, command, explained_start

REPOSITORY = Path(__file__).parents[1]

PACKAGE_IS_MISSING = """
import sys
sys.modules[sys.argv[1]] = None  # as if it were not installed
sys.argv = ["v8", *sys.argv[2:]]
from v8.__main__ import main
main()
"""


def test_a_printed_command_has_the_form_by_which_the_process_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("V8_COMMAND", "../main/scripts/v8")
    assert command("pull", "--repo", "a b/c") == "../main/scripts/v8 pull --repo 'a b/c'"
    assert command() == "../main/scripts/v8"
    monkeypatch.delenv("V8_COMMAND")
    assert command("run") == "python -m v8 run"


def test_no_message_writes_the_form_of_a_command_itself() -> None:
    fixed = re.compile(r"`python -m v8 |^python -m v8( |$)|pip install .?v8")
    for path in (REPOSITORY / "v8").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else None
            is_docstring = isinstance(text, str) and (text.startswith("`python") or "\n" in text)
            if isinstance(text, str) and not is_docstring and path.name != "invocation.py":
                assert not fixed.search(text), path


def test_a_script_tells_v8_how_it_was_called(tmp_path: Path) -> None:
    # A stand-in for the virtual environment's Python.
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$V8_COMMAND" "$@"\n')
    python.chmod(0o755)
    for script, words in (("scripts/v8", "pull --repo a/b"), ("scripts/run", "--smoke")):
        done = subprocess.run(
            [script, *words.split()],
            cwd=REPOSITORY,
            env={**os.environ, "V8_VENV": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        told = words if script == "scripts/v8" else f"run {words}"
        assert done.stdout.splitlines()[-1] == f"scripts/v8 -m v8 {told}"


@pytest.mark.parametrize("package", ["typer", "pydantic", "tensorflow"])
def test_a_missing_package_is_one_sentence_that_names_the_interpreter_and_the_way(
    package: str, tmp_path: Path
) -> None:
    words = ["run", "--source", "demo", "--smoke", "--series", "BTCUSDT-15m", "--precision", "float32"]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PACKAGE_IS_MISSING,
            package,
            *words,
            "--workers",
            "1",
            "--runs",
            str(tmp_path / "runs"),
        ],
        env={**os.environ, "V8_HOME": str(tmp_path / "home"), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: v8: needs the package {package}; got none in {sys.executable}. Start it as scripts/v8, "
        "which installs what is missing into .venv, or with .venv/bin/python.\n"
    )


def test_an_older_python_is_told_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2, "final", 0))
    with pytest.raises(SystemExit, match="1"), explained_start():
        raise AssertionError("nothing else is imported")
    assert capsys.readouterr().err.startswith("error: v8: needs Python 3.11 or newer; got Python 3.10 in ")


def test_a_missing_module_of_v8_itself_is_a_fault_of_ours_and_stays_one() -> None:
    with pytest.raises(ModuleNotFoundError), explained_start():
        raise ModuleNotFoundError("No module named 'v8.nothing'", name="v8.nothing")


def test_a_ctrl_c_during_the_imports_is_one_line_and_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="130"), explained_start():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "interrupted: nothing was begun. Repeat the same command.\n"


def test_the_collector_is_off_within_the_block_alone_whatever_happens_there() -> None:
    assert gc.isenabled()
    with collected_later(), collected_later():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collected_later():
        _ = 1 / 0
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collected_later():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
