"""What the program waits for is told to whoever listens, and what a thread raises whoever waits gets."""

from __future__ import annotations

import pytest

from v8.base.http_client import in_thread
from v8.base.process import report_waiting, reporting_waiting_to


def test_what_a_thread_raises_whoever_waits_gets() -> None:
    assert in_thread(lambda: 7).result(timeout=60) == 7
    with pytest.raises(ZeroDivisionError, match="division"):
        in_thread(lambda: 1 // 0).result(timeout=60)


def test_sentences_about_waiting_go_to_the_innermost_listener_alone() -> None:
    outer: list[str] = []
    inner: list[str] = []
    report_waiting("nobody listens")
    with reporting_waiting_to(outer.append):
        with reporting_waiting_to(inner.append):
            report_waiting("for a file")
        report_waiting("for another")
    assert (outer, inner) == (["for another"], ["for a file"])
