"""Run pytest; what fails runs once more, alone, and what then passes is flaky and no failure.

    python tests/parts/once_more.py FILE [WORDS OF PYTEST]

Among thousands of tests on a shared machine one may fail for what else the machine does. It is named in FILE,
a line each, so that somebody mends it. A run that broke, or in which many tests failed, is not repeated.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MOST_FAILED = 20
"""More than these have one cause, and running them again would take the time that CI has."""


class Watched:
    """A plugin that writes down which tests failed, and whether anything else did.

    Args:
        file: Written at the end: JSON. A process that dies before leaves none.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.failed, self.is_broken = file, dict[str, None](), False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.is_broken |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None
            # pytest-xdist invents a phase for the test in which a process of its own died.
            self.is_broken |= report.when not in ("setup", "call", "teardown")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_broken = self.is_broken or bool(session.shouldstop or session.shouldfail)
        self.file.write_text(json.dumps([list(self.failed), is_broken]))


def main(flaky: Path, words: Sequence[str]) -> int:
    """Run pytest, at most twice.

    Args:
        flaky: Gets a line for each test that failed at first.
        words: Of the first run.

    Returns:
        Pytest's exit code: of the first run, or 0 when all that failed in it passed in the second.
    """
    flaky.write_text("")
    status, failed = run(words)
    if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST_FAILED:
        return status
    again, still = run(["-rap", *failed])
    if again in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and (still or not again):
        flaky.write_text("".join(f"flaky: {name}\n" for name in failed if name not in still))
    return again


def run(words: Sequence[str]) -> tuple[int, list[str]]:
    """Run pytest in a fresh process; return its exit code and what failed, nothing of a run that broke."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "told.json"
        done = subprocess.run([sys.executable, __file__, "--watched", str(file), *words], check=False)
        failed, is_broken = json.loads(file.read_text()) if file.exists() else ([], True)
    return done.returncode, [] if is_broken else failed


if __name__ == "__main__":
    if sys.argv[1] == "--watched":
        sys.path[0] = str(Path.cwd())  # as `python -m pytest` has it
        sys.exit(pytest.main(sys.argv[3:], plugins=[Watched(Path(sys.argv[2]))]))
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
