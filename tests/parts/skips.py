"""Skipped tests, counted; a reason that tests/skips.yaml does not name fails the run.

A test that is skipped everywhere is no test. The list says of every reason where the test is run instead.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

LIST = Path(__file__).parents[1] / "skips.yaml"


def known_reasons() -> dict[str, str]:
    """Return where each kind of skipped test is run, by the regular expression that its reason matches."""
    reasons: dict[str, str] = yaml.safe_load(LIST.read_text("utf-8"))
    return reasons


def is_known(reason: str) -> bool:
    return any(re.fullmatch(pattern, reason) for pattern in known_reasons())


class SkipCounter:
    """A pytest plugin that counts skipped tests by reason and fails a run with a reason that is not listed.

    It works where results come together: without pytest-xdist, or in its first process.
    """

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._count(report)

    def _count(self, report: Any) -> None:
        # An expected failure is a skip, too, and has no reason of its own.
        if report.skipped and not hasattr(report, "wasxfail"):
            _, _, message = report.longrepr
            self._reasons[message.removeprefix("Skipped: ")] += 1

    def _unknown(self) -> list[str]:
        return [reason for reason in self._reasons if not is_known(reason)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._unknown() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._reasons:
            total = self._reasons.total()
            terminalreporter.write_line(f"skipped: {total} tests for {len(self._reasons)} reasons")
        for reason in self._unknown():
            where = "tests/skips.yaml must name every reason"
            terminalreporter.write_line(
                f"error: {where}; got {reason!r}. Add where the test is run.", red=True
            )
