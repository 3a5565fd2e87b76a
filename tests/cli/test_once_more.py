"""What fails is repeated alone, twice; flaky tests are named, and fail the run if they are many or known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from once_more import MAX_REPEATED

pytestmark = pytest.mark.process

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
@pytest.mark.parametrize("number", range({MAX_REPEATED + 1}))
def test_many(number):
    assert not is_first(str(number))
"""
CRASH = "def test_crash():\n    if is_first('crash'):\n        os._exit(1)\n"
NOT_COLLECTED = "if is_first('collection'):\n    raise ValueError\n"
INTERRUPTED = "def test_interrupted():\n    if is_first('interrupt'):\n        raise KeyboardInterrupt\n"
FAILS_IN_TURN = """
def test_fails_in_turn():
    runs = Path("runs")
    runs.write_text((runs.read_text() if runs.exists() else "") + "x")
    assert len(runs.read_text()) == 2
"""
TORN_DOWN = """
@pytest.fixture
def torn():
    yield
    assert not is_first("torn")

def test_torn(torn):
    pass
"""
NAMES = ("test_it.py::test_flaky[a word]", "test_it.py::test_flaky[x[1]]")


def suite(folder: Path, content: str, *words: str) -> tuple[int, str, list[str]]:
    """Run a suite of one file; return exit code, output, and the lines about flaky tests."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (folder / "test_it.py").write_text(AT_FIRST + content)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "flaky.txt", "history.json", *words],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout, (folder / "flaky.txt").read_text().splitlines()


@pytest.mark.parametrize("words", [(), ("-n", "2")], ids=["one process", "two"])
def test_one_or_two_tests_that_pass_alone_are_named_and_the_run_is_green(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    status, output, lines = suite(tmp_path, FLAKY, *words)
    assert status == 0, output
    assert sorted(lines) == [f"flaky: {name}" for name in NAMES]
    assert " 2 passed in " in output.splitlines()[-1]
    assert output.count("test session starts") == 3  # the run, and each failure twice alone


def test_more_than_two_flaky_tests_fail_the_run(tmp_path: Path) -> None:
    status, output, lines = suite(tmp_path, FLAKY + TORN_DOWN)
    assert status == 1, output
    assert lines == [
        *(f"flaky: {name}" for name in (*NAMES, "test_it.py::test_torn")),
        "error: at most 2 tests may be flaky in a run; got 3. Mend them.",
    ]


def test_a_test_that_was_flaky_before_fails_the_run(tmp_path: Path) -> None:
    assert suite(tmp_path, FLAKY)[0] == 0
    for name in ("seen a word", "seen x[1]"):
        (tmp_path / name).unlink()
    status, output, lines = suite(tmp_path, FLAKY)
    assert status == 1, output
    expected = [f"error: a test may be flaky once; {name} was flaky before. Mend it." for name in NAMES]
    assert lines[2:] == expected


def test_what_was_flaky_longer_ago_is_forgotten(tmp_path: Path) -> None:
    long_ago = dict.fromkeys(NAMES, "2024-01-01")
    (tmp_path / "history.json").write_text(json.dumps(long_ago))
    status, output, lines = suite(tmp_path, FLAKY)
    assert status == 0, output
    assert lines == [f"flaky: {name}" for name in NAMES]
    assert json.loads((tmp_path / "history.json").read_text()).keys() == {*NAMES}


def test_what_fails_again_fails_and_is_not_called_flaky(tmp_path: Path) -> None:
    status, output, lines = suite(tmp_path, FLAKY + BAD)
    assert status == 1
    assert lines == [f"flaky: {name}" for name in NAMES]
    assert " 1 failed, 2 passed in " in output.splitlines()[-1]


def test_what_fails_alone_in_one_of_two_repetitions_is_a_failure(tmp_path: Path) -> None:
    status, output, lines = suite(tmp_path, FAILS_IN_TURN)
    assert (status, lines) == (1, []), output


def test_a_flaky_test_is_a_warning_on_the_forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    status, output, _ = suite(tmp_path, FLAKY)
    assert status == 0
    assert f"::warning title=Flaky test::flaky: {NAMES[0]}" in output


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
