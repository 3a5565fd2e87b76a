"""What fails runs once more, alone; what then passes is named, and only then is the run green."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from once_more import MOST_FAILED

PROGRAM = Path(__file__).parents[1] / "parts" / "once_more.py"
AT_FIRST = """
import os, pytest
from pathlib import Path

def is_first(name):
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def test_good():
    pass
"""
FLAKY = """
@pytest.mark.parametrize("word", ["a word", "x[1]"])
def test_flaky(word):
    assert not is_first("seen " + word)
"""
BAD = "def test_bad():\n    assert False\n"
MANY = f"""
@pytest.mark.parametrize("number", range({MOST_FAILED + 1}))
def test_many(number):
    assert not is_first(str(number))
"""
CRASH = "def test_crash():\n    if is_first('crash'):\n        os._exit(1)\n"
NOT_COLLECTED = "if is_first('collection'):\n    raise ValueError\n"
INTERRUPTED = "def test_interrupted():\n    if is_first('interrupt'):\n        raise KeyboardInterrupt\n"
TORN_DOWN = """
@pytest.fixture
def torn():
    yield
    assert not is_first("torn")

def test_torn(torn):
    pass
"""
NAMED = ("test_it.py::test_flaky[a word]", "test_it.py::test_flaky[x[1]]")


def suite(folder: Path, content: str, *words: str) -> tuple[int, str, list[str]]:
    """Run a suite of one file; return exit code, output, and the lines about flaky tests."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (folder / "test_it.py").write_text(AT_FIRST + content)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "flaky.txt", *words],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout, (folder / "flaky.txt").read_text().splitlines()


@pytest.mark.parametrize("words", [(), ("-n", "2")], ids=["one process", "two"])
def test_what_passes_alone_is_named_and_the_run_is_green(tmp_path: Path, words: tuple[str, ...]) -> None:
    status, said, flaky = suite(tmp_path, FLAKY + TORN_DOWN, *words)
    assert status == 0, said
    assert sorted(flaky) == [f"flaky: {name}" for name in (*NAMED, "test_it.py::test_torn")]
    assert " 3 passed in " in said.splitlines()[-1]


def test_what_fails_again_fails_beside_what_is_flaky(tmp_path: Path) -> None:
    status, said, flaky = suite(tmp_path, FLAKY + BAD)
    assert status == 1
    assert flaky == [f"flaky: {name}" for name in NAMED]
    assert " 1 failed, 2 passed in " in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("content", "words", "status"),
    [
        pytest.param(MANY, (), 1, id="many"),
        pytest.param(FLAKY + CRASH, ("-n", "1"), 1, id="a worker died"),
        pytest.param(FLAKY + CRASH, (), 1, id="pytest died"),
        pytest.param(NOT_COLLECTED, (), 2, id="not collected"),
        pytest.param(FLAKY + NOT_COLLECTED, ("-n", "2"), 1, id="not collected by one of two"),
        pytest.param(FLAKY + INTERRUPTED, (), 2, id="Ctrl-C"),
        pytest.param(FLAKY, ("-x",), 1, id="stopped early"),
        pytest.param(FLAKY, ("no_such_file.py",), 4, id="usage"),
    ],
)
def test_a_run_that_broke_is_not_repeated_and_not_green(
    tmp_path: Path, content: str, words: tuple[str, ...], status: int
) -> None:
    """Each would pass if it were repeated."""
    ended, said, flaky = suite(tmp_path, content, *words)
    assert (ended, flaky) == (status, []), said
    assert said.count("test session starts") <= 1


def test_a_good_run_is_run_once(tmp_path: Path) -> None:
    status, said, flaky = suite(tmp_path, "")
    assert (status, flaky) == (0, [])
    assert said.count("test session starts") == 1
