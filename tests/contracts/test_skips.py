"""tests/skips.yaml names every reason for which a test is skipped, and no other."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import run_program
from skips import is_known, known_reasons

TESTS = Path(__file__).parents[1]
SKIPS = ("pytest.skip", "pytest.mark.skipif", "pytest.importorskip")
ELSEWHERE = ("floors",)
"""Tests of other environments, which this conftest does not watch."""


def reasons(file: Path) -> Iterator[str]:
    """Yield the reasons that a file gives, with a word in the place of what is known only when it runs."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SKIPS:
            given = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
            if not given and ast.unparse(node.func) == "pytest.skip":
                given = node.args[:1]
            assert given, f"{file}:{node.lineno}: a skipped test must say why. Give a reason."
            yield text_of(given[0])


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "word" for part in node.values)
    assert isinstance(node, ast.Constant), ast.unparse(node)
    return str(node.value)


def test_every_reason_in_the_tests_is_in_the_list_and_the_list_has_no_other() -> None:
    files = [file for file in TESTS.rglob("*.py") if file.parent.name not in ELSEWHERE]
    found = {reason for file in files for reason in reasons(file) if file != Path(__file__)}
    assert len(found) > 20
    # The tools of test_workflows.py stand in the list by their names.
    tools = {"no word: the workflow Tests installs it"}
    assert sorted(reason for reason in found - tools if not is_known(reason)) == []
    unused = [
        pattern
        for pattern in known_reasons()
        if not any(re.fullmatch(pattern, reason) for reason in found) and "the workflow Tests" not in pattern
    ]
    assert unused == []


@pytest.mark.process
@pytest.mark.parametrize(("reason", "status"), [("needs Docker", 0), ("no time today", 1)])
def test_a_reason_that_is_not_in_the_list_fails_the_run(reason: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (tmp_path / "conftest.py").write_text(
        "from skips import SkipCounter\n\n"
        "def pytest_configure(config):\n"
        "    if not hasattr(config, 'workerinput'):\n"
        "        config.pluginmanager.register(SkipCounter(), 'skips')\n"
    )
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n\ndef test_good():\n    pass\n\ndef test_skipped():\n    pytest.skip({reason!r})\n"
    )
    process = run_program(
        [sys.executable, "-m", "pytest", "-n", "1"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS / "parts"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-p xdist.plugin",
        },
    )
    assert process.returncode == status, process.stdout + process.stderr
    assert "skipped: 1 tests for 1 reasons" in process.stdout
    assert (f"; got {reason!r}." in process.stdout) == bool(status)
