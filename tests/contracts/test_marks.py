"""A test that starts a process or a framework without the mark for it fails: tests/parts/marks.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PARTS = Path(__file__).parents[1] / "parts"
CONFTEST = """
from marks import MarkGuard

def pytest_configure(config):
    config.pluginmanager.register(MarkGuard(), "marks")
"""
SETTINGS = "[pytest]\naddopts = -p no:cacheprovider\nmarkers =\n    tf\n    process\n"
HEAD = "import subprocess, sys, pytest\n"
START = "subprocess.run([sys.executable, '-c', ''], check=True)"
FRAMEWORK = "def TFE_Py_Execute(*arguments):\n    return 7\n"
"""Stands for TensorFlow: the function through which its operations go."""


def run_suite(folder: Path, content: str) -> tuple[int, str]:
    """Run tests that stand in one file, guarded; return pytest's exit code and its output."""
    package = folder / "tensorflow" / "python"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "pywrap_tfe.py").write_text(FRAMEWORK)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_it.py").write_text(HEAD + content)
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{folder}{os.pathsep}{PARTS}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return process.returncode, process.stdout


@pytest.mark.parametrize(
    ("mark", "body"),
    [
        ("process", START),
        ("process", "import os\n    if os.fork() == 0:\n        os._exit(0)\n    os.wait()"),
        ("tf", "import tensorflow"),
        ("tf", "from tensorflow.python import pywrap_tfe"),
    ],
)
def test_a_test_without_the_mark_of_what_it_starts_fails(mark: str, body: str, tmp_path: Path) -> None:
    content = f"def test_lost():\n    {body}\n\ndef test_other():\n    pass\n"
    status, output = run_suite(tmp_path / "lost", content)
    assert status == 1, output
    assert f" and has lost its mark; write @pytest.mark.{mark} above it." in output
    assert "2 passed, 1 error" in output
    status, output = run_suite(tmp_path / "marked", f"@pytest.mark.{mark}\n{content}")
    assert status == 0, output


def test_computing_with_a_framework_that_is_imported_already_needs_its_mark(tmp_path: Path) -> None:
    content = (
        "from tensorflow.python import pywrap_tfe\n\n"
        "def test_lost():\n    assert pywrap_tfe.TFE_Py_Execute() == 7\n"
    )
    status, output = run_suite(tmp_path / "lost", content)
    assert status == 1, output
    assert "write @pytest.mark.tf above it" in output
    status, output = run_suite(tmp_path / "marked", content.replace("def ", "@pytest.mark.tf\ndef "))
    assert status == 0, output


def test_what_a_shared_fixture_starts_counts_for_every_test_that_asks_for_it(tmp_path: Path) -> None:
    fixture = f"@pytest.fixture(scope='module')\ndef started():\n    {START}\n\n"
    tests = (
        "@pytest.mark.process\ndef test_first(started):\n    pass\n\ndef test_second(started):\n    pass\n"
    )
    status, output = run_suite(tmp_path, fixture + tests)
    assert status == 1, output
    assert "test_it.py::test_second: starts " in output
    assert "test_first: starts" not in output


def test_asking_git_for_the_commit_needs_no_mark(tmp_path: Path) -> None:
    status, output = run_suite(
        tmp_path, "def test_it():\n    subprocess.run(['git', '--version'], check=True)\n"
    )
    assert status == 0, output
