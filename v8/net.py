"""Waiting for a network, whoever is asked: how long, how often again, who is told, and how it is left.

The exchange's archive and API (`v8.market.sources.downloads`) and the Hub (`v8.hub.client`) wait as it is
said here. What fails and may pass is a `TransientError`; `RetryPolicy` asks again after the time that the
server names, or else after a pause that doubles and is spread at random, so that many clients do not return
at once. Whoever shows things opens `told_of_waiting`; whoever waits calls `tell_waiting` from the thread that
asked. So does whatever else takes seconds: every command gives signs of life (`counted`).
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

Tell = Callable[[str], None]
Found = TypeVar("Found")

_TELL: Final[ContextVar[Tell]] = ContextVar("tell_waiting", default=lambda text: None)
PACE_S: Final = 2.0  # from one sign of life to the next, in seconds
_MOST_DIGITS: Final = 300  # a longer number is none that a server means, nor one that a float holds


@contextmanager
def told_of_waiting(tell: Tell) -> Iterator[None]:
    """Let `tell` get every sentence about waiting until the block ends."""
    token = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(token)


def tell_waiting(text: str) -> None:
    """Tell what is waited for; of a network how long, and how much longer at most."""
    _TELL.get()(text)


def counted(items: Collection[Found], what: str) -> Iterator[Found]:
    """Yield items, and tell every `PACE_S` seconds how many of them are done."""
    told_s = time.monotonic()
    for num_done, item in enumerate(items):
        if time.monotonic() - told_s > PACE_S:
            told_s = time.monotonic()
            tell_waiting(f"{what}: {num_done} of {len(items)}")
        yield item


class TransientError(Exception):
    """A server did not answer, or asked to come back later; the same question may be answered then.

    The text is a clause without secrets; the seconds are None when the server did not say how many.
    """

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.wait_s = wait_s


@dataclass(frozen=True)
class Refused:
    """Why nothing is asked again: after how many tries in a row, how long, and which pause (s) was due."""

    trouble: TransientError
    num_tries: int
    waited_s: float
    pause_s: float
    is_late: bool  # whether time is up; else it was tried often enough


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a server that has trouble is asked again, after which pauses, and until when."""

    num_tries: int = 6  # most tries in a row that move nothing
    first_s: float = 0.5  # the first pause, in seconds; each is twice as long as the one before
    longest_s: float = 30.0  # no pause of ours is longer, in seconds
    least_share: float = 0.5  # pauses are spread evenly from this share of their length up to all of it
    most_asked_s: float = inf  # a server that asks for a longer pause, in seconds, gets this one
    most_s: float = 300.0  # all tries and pauses since something last moved, in seconds
    try_s: float = 0.0  # what a try may take, in seconds: none begins that could end after `most_s`
    sleep: Callable[[float], None] = time.sleep  # waits for a number of seconds

    def call(
        self,
        ask: Callable[[float], Found],
        refuse: Callable[[Refused], Exception],
        *,
        before_pause: Callable[[TransientError, float], None] = lambda trouble, pause_s: None,
        progress: Callable[[], int] = lambda: 0,
    ) -> Found:
        """Call `ask`, with the seconds that are left, until it raises no `TransientError`.

        Args:
            refuse: Makes the error that is raised when the trouble does not pass.
            before_pause: Told of each trouble, and of the pause in seconds that follows it.
            progress: Counts what was moved for good so far; a try that moves something starts the count anew.
        """
        num_tries = 0
        moved = progress()
        begun_s = time.monotonic()
        while True:
            try:
                return ask(begun_s + self.most_s - time.monotonic())
            except TransientError as error:
                trouble = error
            if progress() > moved:
                num_tries = 0
                moved = progress()
                begun_s = time.monotonic()
            num_tries += 1
            waited_s = time.monotonic() - begun_s
            pause_s = self.pause_s(num_tries, trouble.wait_s)
            is_late = waited_s + pause_s + self.try_s > self.most_s
            if num_tries >= self.num_tries or is_late:
                # Outside of the handler, so that no request and no token hangs on it.
                raise refuse(Refused(trouble, num_tries, waited_s, pause_s, num_tries < self.num_tries))
            before_pause(trouble, pause_s)
            self.sleep(pause_s)

    def pause_s(self, num_tries: int, asked_s: float | None = None) -> float:
        """Return the seconds to wait after so many tries in a row, for a server that asks for `asked_s`."""
        if asked_s is not None:
            return min(asked_s, self.most_asked_s)
        longest_s = min(self.first_s * 2.0 ** (num_tries - 1), self.longest_s)
        return longest_s * random.uniform(self.least_share, 1.0)  # noqa: S311 - spreads pauses, guards nothing


def asked_wait_s(retry_after: str | None) -> float | None:
    """Read a Retry-After of seconds or of a date (RFC 9110, 10.2.3); None when it is neither.

    >>> asked_wait_s("7"), asked_wait_s("Wed, 21 Oct 2015 07:28:00 GMT"), asked_wait_s("later")
    (7.0, 0.0, None)
    """
    text = (retry_after or "").strip()
    if re.fullmatch(rf"[0-9]{{1,{_MOST_DIGITS}}}", text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time())
    except (ValueError, TypeError, IndexError, OverflowError):  # no date, or the year 99999
        return None


def in_thread(ask: Callable[[], Found]) -> Future[Found]:
    """Run a function in a thread that nobody has to wait for, not even the end of the process."""
    answer: Future[Found] = Future()

    def settle() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            answer.set_exception(error)

    threading.Thread(target=settle, daemon=True).start()
    return answer


def call_within(limit_s: float, call: Callable[[], Found], cut: Callable[[], object]) -> Found:
    """Return or raise what `call` does in a thread of its own; leave it once its time is up.

    A limit of a socket bounds each wait for a piece of an answer, and a server that sends one byte after
    another never reaches it. This bounds everything together: the look-up of the name, connecting, TLS,
    sending, headers and body.

    Args:
        limit_s: The most time that the call may take in all, in seconds.
        call: What is called; it reads the context variables of the caller.
        cut: Called when the call is left, after its time or at Ctrl-C: closes what the call waits for.

    Raises:
        TimeoutError: If the call takes longer.
    """
    context = copy_context()
    answer = in_thread(lambda: context.run(call))
    try:
        wait([answer], timeout=max(0.0, limit_s))
    finally:
        is_left = not answer.done()
        if is_left:
            cut()
    if is_left:
        raise TimeoutError(f"it took longer than {limit_s:.3g} s in all")
    return answer.result()
