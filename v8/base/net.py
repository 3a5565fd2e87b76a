"""Waiting: how progress is reported, and threads that nobody waits for.

The user interface opens `reporting_waiting_to` and receives a sentence whenever something makes the user
wait; code that waits calls `report_waiting` from the thread that made the request. Every other step that
takes seconds reports its progress in the same way (`with_progress`).
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

ReportText = Callable[[str], None]
T = TypeVar("T")

_REPORT: Final[ContextVar[ReportText]] = ContextVar("report_waiting", default=lambda text: None)
PROGRESS_INTERVAL_S: Final = 2.0  # between two progress reports, in seconds


@contextmanager
def reporting_waiting_to(report: ReportText) -> Iterator[None]:
    """Send every sentence about waiting to `report` until the block ends."""
    token = _REPORT.set(report)
    try:
        yield
    finally:
        _REPORT.reset(token)


def report_waiting(text: str) -> None:
    """Report what the program waits for; for a network also how long so far and the longest time allowed."""
    report = _REPORT.get()
    report(text)


def with_progress(items: Collection[T], label: str) -> Iterator[T]:
    """Yield the items, and report every `PROGRESS_INTERVAL_S` seconds how many of them are finished."""
    last_report_s = time.monotonic()
    for num_finished, item in enumerate(items):
        if time.monotonic() - last_report_s > PROGRESS_INTERVAL_S:
            last_report_s = time.monotonic()
            report_waiting(f"{label}: {num_finished} of {len(items)}")
        yield item


def in_thread(function: Callable[[], T]) -> Future[T]:
    """Run a function in a daemon thread: not even the end of the process waits for it."""
    future: Future[T] = Future()
    threading.Thread(target=_run, args=(function, future), daemon=True).start()
    return future


def _run(function: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:  # noqa: BLE001 - raised again by the thread that reads the future
        future.set_exception(error)
        del future  # else the error, its traceback and this frame would keep each other
