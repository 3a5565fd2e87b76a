"""Run pytest; repeat what failed alone, twice, and tell flaky tests from failures.

    python tests/parts/once_more.py REPORT HISTORY [ARGUMENTS OF PYTEST]

Among thousands of tests on a shared machine one may fail because of what else the machine does. A test that
fails and then passes twice alone is flaky. REPORT names it in a line, and HISTORY keeps its name for 30 days.

    green   every test passed at once
    yellow  one or two tests were flaky, each for the first time: exit code 0, REPORT says `flaky: NAME`
    red     a test failed again; more than two tests were flaky; or one of them stands in HISTORY, as it was
            flaky before: exit code 1

Whoever has mended a test takes its line out of HISTORY. A run that broke, or in which many tests failed, is
red and not repeated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MAX_REPEATED = 20
"""More failures than these have one cause, and repeating them would take the time that CI has."""
MAX_FLAKY = 2
REPETITIONS = 2
KEPT_FOR = timedelta(days=30)


class FailureLog:
    """A plugin that writes down which tests failed, and whether anything else went wrong.

    Args:
        file: JSON, written at the end. A process that dies before leaves none.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.failed: dict[str, None] = {}
        self.is_broken = False

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


def main(report: Path, history: Path, words: Sequence[str]) -> int:
    """Run pytest, and what failed in it again.

    Args:
        report: Gets a line for each flaky test, and the reason where flaky tests fail the run.
        history: The tests that were flaky before: JSON, from name to day.
        words: Arguments of the first run.

    Returns:
        Pytest's exit code: of the first run, or of the repetition in which something failed, or 0 or 1 by the
        flaky tests alone.
    """
    report.write_text("")
    status, failed = run(words)
    if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MAX_REPEATED:
        return status
    failed_again: dict[str, None] = {}
    for _ in range(REPETITIONS):
        status, failing = run(["-rap", *failed])
        is_explained = status == pytest.ExitCode.OK or (status == pytest.ExitCode.TESTS_FAILED and failing)
        if not is_explained:
            return status
        failed_again.update(dict.fromkeys(failing))
    flaky = [name for name in failed if name not in failed_again]
    lines = [f"flaky: {name}" for name in flaky]
    reasons = reasons_to_fail(flaky, remember(flaky, history))
    report.write_text("".join(f"{line}\n" for line in [*lines, *reasons]))
    if "GITHUB_ACTIONS" in os.environ:
        for line in lines:
            print(f"::warning title=Flaky test::{line}", flush=True)
    return int(pytest.ExitCode.TESTS_FAILED) if failed_again or reasons else 0


def reasons_to_fail(flaky: Sequence[str], flaky_before: Sequence[str]) -> list[str]:
    """Say why flaky tests make the run red; an empty list if it stays yellow."""
    reasons = [f"error: a test may be flaky once; {name} was flaky before. Mend it." for name in flaky_before]
    if len(flaky) > MAX_FLAKY:
        reasons.append(
            f"error: at most {MAX_FLAKY} tests may be flaky in a run; got {len(flaky)}. Mend them."
        )
    return reasons


def remember(flaky: Sequence[str], history: Path) -> list[str]:
    """Add flaky tests to the history; return those of them that stood in it."""
    today = datetime.now(UTC).date()
    known: dict[str, str] = json.loads(history.read_text()) if history.exists() else {}
    recent = {name: day for name, day in known.items() if today - date.fromisoformat(day) <= KEPT_FOR}
    flaky_before = [name for name in flaky if name in recent]
    recent.update(dict.fromkeys(flaky, today.isoformat()))
    if flaky or known:
        history.write_text(json.dumps(recent, indent=1))
    return flaky_before


def run(words: Sequence[str]) -> tuple[int, list[str]]:
    """Run pytest in a fresh process; return its exit code and what failed, nothing of a run that broke."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "failures.json"
        done = subprocess.run([sys.executable, __file__, "--log", str(file), *words], check=False)
        failed, is_broken = json.loads(file.read_text()) if file.exists() else ([], True)
    return done.returncode, [] if is_broken else failed


if __name__ == "__main__":
    if sys.argv[1] == "--log":
        sys.path[0] = str(Path.cwd())  # as `python -m pytest` has it
        sys.exit(pytest.main(sys.argv[3:], plugins=[FailureLog(Path(sys.argv[2]))]))
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
