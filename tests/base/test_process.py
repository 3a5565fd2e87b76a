"""Commands that v8 prints are those it was started by; where it cannot start it says why, in one sentence."""

from __future__ import annotations

import ast
import gc
import os
import re
import shutil
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from v8.base.child import ChildCall, run_in_children
from v8.base.process import (
    collected_later,
    command,
    explained_start,
    report_waiting,
    reporting_waiting_to,
)
from v8.profile.profile import load_profile
from v8.runs.machine import MeasurementRequest, take_measurements
from v8.runs.workers import Process

REPOSITORY = Path(__file__).parents[2]

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
            if isinstance(text, str) and not is_docstring and path.name != "process.py":
                assert not fixed.search(text), path


@pytest.mark.process
def test_a_script_tells_v8_how_it_was_called(tmp_path: Path) -> None:
    # A stand-in for the virtual environment's Python.
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$V8_COMMAND" "$@"\n')
    python.chmod(0o755)
    for script, words in (("scripts/v8", "pull --repo a/b"), ("scripts/run", "--smoke")):
        process = subprocess.run(
            [script, *words.split()],
            cwd=REPOSITORY,
            env={**os.environ, "V8_VENV": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        told = words if script == "scripts/v8" else f"run {words}"
        assert process.stdout.splitlines()[-1] == f"scripts/v8 -m v8 {told}"


@pytest.mark.process
@pytest.mark.parametrize("package", ["typer", "pydantic", "tensorflow"])
def test_a_missing_package_is_one_sentence_that_names_the_interpreter_and_the_way(
    package: str, tmp_path: Path
) -> None:
    words = ["run", "--source", "demo", "--smoke", "--series", "BTCUSDT-15m", "--precision", "float32"]
    process = subprocess.run(
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
    if package == "tensorflow":  # an engine asks for it before candles are read
        assert process.returncode == 2 and not (tmp_path / "runs").exists()
        assert process.stderr.endswith(f"Run: {sys.executable} -m pip install tensorflow.\n")
        return
    assert process.returncode == 1
    assert process.stderr.startswith(
        f"error: v8: needs the package {package}; got none in {sys.executable}. Start it as scripts/v8, "
    )


LIBRARY_FAILS = """
import sys
from importlib.machinery import ModuleSpec
class Breaks:
    def find_spec(self, name, path, target=None):
        return ModuleSpec(name, self) if name == "tensorflow" else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        try:
            raise ImportError(sys.argv[1], name="_pywrap", path="/a/site-packages/tensorflow/x.so")
        except ImportError:
            raise ImportError("Traceback (most recent call last):" + chr(10) * 9 + "Failed to load it.")
sys.meta_path.insert(0, Breaks())
from v8.__main__ import main
if __name__ == "__main__":
    main(sys.argv[2:])
"""


NO_MEMORY = "libtensorflow_cc.so.2: failed to map segment from shared object"
NO_FILE = "libx.so.1: cannot open shared object file: No such file or directory"


@pytest.mark.process
@pytest.mark.parametrize(
    ("said", "fix", "workers"),
    [
        (NO_MEMORY, "Let the process", "1"),
        pytest.param(NO_MEMORY, "Let the process", "2", marks=pytest.mark.nightly),
        (NO_FILE, "Install the library", "1"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_one_sentence(
    said: str, fix: str, workers: str, tmp_path: Path
) -> None:
    script = tmp_path / "started.py"  # worker processes read it again
    script.write_text(LIBRARY_FAILS)
    words = ["run", "--source", "demo", "--smoke", "--profile", "frontier", "--precision", "float32"]
    words += ["--series", "BTCUSDT-15m", "--series", "ETHUSDT-15m", "--runs", str(tmp_path / "runs")]
    process = subprocess.run(
        [sys.executable, script, said, *words, "--workers", workers],
        env={**os.environ, "V8_HOME": str(tmp_path / "home"), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == (1 if workers == "1" else 4)
    errors = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    sentence = f"; got {said}. {fix}"
    assert errors
    assert all(line.startswith("error: v8: ") and sentence in line for line in errors)
    assert "Traceback" not in process.stdout + process.stderr


def test_a_name_that_v8_itself_lacks_is_a_fault_of_ours_and_stays_one() -> None:
    with pytest.raises(ImportError), explained_start():
        raise ImportError("cannot import name 'x' from 'v8.base.errors'", name="v8.base.errors")


def test_an_older_python_is_told_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2, "final", 0))
    with pytest.raises(SystemExit, match="1"), explained_start():
        raise AssertionError("nothing else is imported")
    assert capsys.readouterr().err.startswith("error: v8: needs Python 3.11 or newer; got Python 3.10 in ")


def test_a_ctrl_c_during_the_imports_is_one_line_and_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="130"), explained_start():
        raise KeyboardInterrupt
    assert capsys.readouterr().err.startswith("interrupted: nothing was started. ")


def test_the_collector_is_off_within_the_block_alone_whatever_happens_there() -> None:
    assert gc.isenabled()
    with collected_later(), collected_later():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collected_later():
        _ = 1 / 0
    assert gc.isenabled()


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a file for every module of Python's own; one that runs leaves its name."""
    folder = tmp_path / "trap"
    folder.mkdir()
    text = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + chr(10))\nraise SystemExit('trapped')\n"
    for name in sys.stdlib_module_names:
        (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    return tmp_path / "ran"


@pytest.mark.process
def test_the_trap_works(trap: Path) -> None:
    process = subprocess.run([sys.executable, "-m", "v8", "--version"], capture_output=True, check=False)
    assert process.returncode != 0
    assert trap.exists()


@pytest.mark.process
@pytest.mark.parametrize("script", ["scripts/v8", "scripts/run"])
def test_scripts_start_without_the_working_folder_on_the_path(
    script: str, trap: Path, tmp_path: Path
) -> None:
    # The Python of these tests stands for that of the virtual environment; nothing is installed into it.
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\n[ "$2" = pip ] || exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    process = subprocess.run(
        [REPOSITORY / script, "--help"],
        env={**os.environ, "V8_VENV": str(python.parents[1]), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, trap.exists()) == (0, False), process.stderr


@pytest.mark.process
def test_the_entry_point_starts_without_the_working_folder_on_the_path(trap: Path, tmp_path: Path) -> None:
    # As pip writes it, into a folder of its own.
    program = tmp_path / "bin" / "v8"
    program.parent.mkdir()
    program.write_text("import sys\nfrom v8.__main__ import main\nsys.exit(main())\n")
    process = subprocess.run(
        [sys.executable, program, "--version"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, trap.exists()) == (0, False), process.stderr


@pytest.mark.process
@pytest.mark.nightly
def test_processes_that_we_start_do_not_look_for_modules_in_the_working_folder(trap: Path) -> None:
    (answer,) = run_in_children(
        [
            ChildCall(
                take_measurements, MeasurementRequest(load_profile("range_paths"), [{"measure": "backend"}])
            )
        ]
    )
    assert (answer.exit_code, trap.exists()) == (0, False), answer.errors
    assert "PYTHONSAFEPATH" not in os.environ
    worker = Process("v8-worker", send_path)
    has_safe_path = worker.pipe.recv()
    worker.end(60.0)
    assert has_safe_path
    assert not trap.exists()


def send_path(pipe: Connection) -> None:
    """Send whether this process started without its working folder among the places of modules."""
    pipe.send(sys.flags.safe_path)


@pytest.mark.process
def test_a_program_of_ours_is_of_the_package_that_runs_wherever_that_lies(tmp_path: Path) -> None:
    # A package that was never installed and lies in the working folder, from which `python -m v8` works.
    shutil.copytree(REPOSITORY / "v8", tmp_path / "v8", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "v8" / "base" / "version.py").open("a") as file:
        file.write("if __name__ == '__main__':\n    print('the version of this copy')\n")
    code = (
        "import os, subprocess; from v8.base.process import program_of\n"
        "safe = {**os.environ, 'PYTHONSAFEPATH': '1'}\n"
        "subprocess.run(program_of('v8.base.version'), env=safe, check=True)\n"
    )
    words = [sys.executable, "-c", code]
    process = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert process.stdout == "the version of this copy\n"


def test_sentences_about_waiting_go_to_the_innermost_listener_alone() -> None:
    outer: list[str] = []
    inner: list[str] = []
    report_waiting("nobody listens")
    with reporting_waiting_to(outer.append):
        with reporting_waiting_to(inner.append):
            report_waiting("for a file")
        report_waiting("for another")
    assert (outer, inner) == (["for another"], ["for a file"])
