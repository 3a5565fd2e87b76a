"""Waiting for a network: how long, how often a request is repeated, and how progress is reported.

The exchange's archive and API (`v8.data.market.sources.downloads`) and the Hub (`v8.publish.hub.client`) use
the rules of this module. An error that may be temporary is a `TransientError`. `RetryPolicy` repeats the
request after the time that the server names, or else after a pause that doubles each time and is randomised,
so that many clients do not return at the same moment (exponential backoff with jitter).

The user interface opens `reporting_waiting_to` and receives a sentence whenever something makes the user
wait; code that waits calls `report_waiting` from the thread that made the request. Every other step that
takes seconds reports its progress in the same way (`with_progress`).
"""

import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import inf
from typing import Final, TypeVar

ReportText = Callable[[str], None]
T = TypeVar("T")

_REPORT: Final[ContextVar[ReportText]] = ContextVar("report_waiting", default=lambda text: None)
PROGRESS_INTERVAL_S: Final = 2.0  # between two progress reports, in seconds
_MAX_DIGITS: Final = 300  # no server means a longer number, and a float cannot hold it


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


class TransientError(Exception):
    """A temporary failure: the server did not answer, or asked to come back later.

    Args:
        text: A clause that describes the failure; it contains no secrets.
        wait_s: Seconds that the server asks the client to wait; None when it names none.
    """

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.wait_s = wait_s


@dataclass(frozen=True)
class RetryFailure:
    """Why a request is not repeated any more."""

    trouble: TransientError  # the last error
    num_tries: int  # failed tries in a row
    waited_s: float  # seconds since the first of them
    pause_s: float  # seconds of the pause that was due next
    is_late: bool  # whether the time limit was reached; else the number of tries was


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a failing request is repeated, after which pauses, and until when."""

    num_tries: int = 6  # most failed tries in a row without any progress
    first_s: float = 0.5  # the first pause, in seconds; each is twice as long as the one before
    longest_s: float = 30.0  # upper limit of our own pauses, in seconds
    least_share: float = 0.5  # a pause is drawn uniformly between this share of its length and all of it
    most_asked_s: float = inf  # upper limit of a pause that the server asks for, in seconds
    most_s: float = 300.0  # upper limit of all tries and pauses since the last progress, in seconds
    try_s: float = 0.0  # longest duration of one try, in seconds: none starts that could end after `most_s`
    sleep: Callable[[float], None] = time.sleep  # waits for a number of seconds

    def call(
        self,
        ask: Callable[[float], T],
        refuse: Callable[[RetryFailure], Exception],
        *,
        before_pause: Callable[[TransientError, float], None] = lambda trouble, pause_s: None,
        progress: Callable[[], int] = lambda: 0,
    ) -> T:
        """Call `ask` with the seconds that remain, until it raises no `TransientError`.

        Args:
            ask: Sends the request once.
            refuse: Makes the error to raise when the request keeps failing.
            before_pause: Called after each failed try, with the error and the seconds of the pause to come.
            progress: Counts what has been completed for good; after a try that completes something, tries and
                time are counted from the beginning again.
        """
        num_tries = 0
        completed = progress()
        start_s = time.monotonic()
        while True:
            try:
                return ask(start_s + self.most_s - time.monotonic())
            except TransientError as error:
                trouble = error
            if progress() > completed:
                num_tries = 0
                completed = progress()
                start_s = time.monotonic()
            num_tries += 1
            waited_s = time.monotonic() - start_s
            pause_s = self.pause_s(num_tries, trouble.wait_s)
            is_late = waited_s + pause_s + self.try_s > self.most_s
            if num_tries >= self.num_tries or is_late:
                # Raised outside of the handler: else the error would hold the failed request and its token.
                raise refuse(RetryFailure(trouble, num_tries, waited_s, pause_s, num_tries < self.num_tries))
            before_pause(trouble, pause_s)
            self.sleep(pause_s)

    def pause_s(self, num_tries: int, requested_s: float | None = None) -> float:
        """Return the seconds to wait after some failed tries in a row.

        `requested_s` is what the server asks for, None where it asks for nothing.
        """
        if requested_s is not None:
            return min(requested_s, self.most_asked_s)
        longest_s = min(self.first_s * 2.0 ** (num_tries - 1), self.longest_s)
        return longest_s * random.uniform(self.least_share, 1.0)  # noqa: S311 - not used for security


def asked_wait_s(retry_after: str | None) -> float | None:
    """Read the seconds of a Retry-After header, a number or a date (RFC 9110, 10.2.3); None for other text.

    >>> asked_wait_s("7"), asked_wait_s("Wed, 21 Oct 2015 07:28:00 GMT"), asked_wait_s("later")
    (7.0, 0.0, None)
    """
    text = (retry_after or "").strip()
    if re.fullmatch(rf"[0-9]{{1,{_MAX_DIGITS}}}", text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        if not date.tzinfo:
            date = date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - time.time())
    except (ValueError, TypeError, IndexError, OverflowError):  # not a date, or a date such as the year 99999
        return None


def in_thread(function: Callable[[], T]) -> Future[T]:
    """Run a function in a daemon thread: not even the end of the process waits for it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that reads the future
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def call_within(limit_s: float, call: Callable[[], T], cancel: Callable[[], object]) -> T:
    """Run `call` in a thread of its own and return its result, or raise its error, within a time limit.

    The timeout of a socket limits each wait for a piece of an answer, so a server that sends one byte after
    another never exceeds it. This limits the sum: name look-up, connecting, TLS, sending, headers and body.

    Args:
        limit_s: Longest duration of the call as a whole, in seconds.
        call: The function to call; it sees the context variables of the caller.
        cancel: Called when the call is abandoned, after its time or at Ctrl-C; it must close what the call
            waits for.

    Raises:
        TimeoutError: If the call takes longer.
    """
    context = copy_context()
    future = in_thread(lambda: context.run(call))
    try:
        wait([future], timeout=max(0.0, limit_s))
    finally:
        is_unfinished = not future.done()
        if is_unfinished:
            cancel()
    if is_unfinished:
        raise TimeoutError(f"it took longer than {limit_s:.3g} s in all")
    return future.result()
