"""Polite downloads: one bounded pool, retries with back-off, and a clear end.

An answer of 404 means absent. 429, any 5xx, cut connections, time-outs and short bodies are tried
again, after the time the server asks for in Retry-After or else after a delay that doubles and is
spread at random, so that many clients do not return at once. Anything else is an error at once.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import Self, TypeVar

import requests

from v8.errors import DataError
from v8.version import VERSION

NUM_WORKERS = 5
"""Enough to hide waiting, and no more than a small mirror (`python -m http.server`) lets queue up."""

NUM_TRIES = 6
TIMEOUT_S = (10.0, 30.0)
"""Longest wait for a connection, and for the next piece of an answer."""

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
LONGEST_RETRY_AFTER_S = 120.0
"""A server that asks for more than this is treated as if it asked for this."""

_CHUNK_BYTES = 1 << 16
_NOT_FOUND = 404
_TOO_MANY_REQUESTS = 429

Item = TypeVar("Item")
Result = TypeVar("Result")


class _PassingError(Exception):
    """A failure that may pass, and the delay the server asked for, if any, in seconds."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class Downloader:
    """A pool of threads with one keep-alive session each.

    Args:
        num_workers: Most requests in flight at once.
        num_tries: Attempts per address, at least 1.
        sleep: Called with the seconds to wait before the next attempt.
        now: Clock in seconds since the epoch, for a Retry-After that is a date.
    """

    def __init__(
        self,
        *,
        num_workers: int = NUM_WORKERS,
        num_tries: int = NUM_TRIES,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._num_tries = num_tries
        self._sleep = sleep
        self._now = now
        self._jitter = random.Random()  # noqa: S311 - spreads delays, guards nothing
        self._local = threading.local()
        self._sessions: list[requests.Session] = []
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="v8-download")
        self._finalizer = weakref.finalize(self, _close, self._pool, self._sessions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and their connections; also happens when the object is forgotten."""
        self._finalizer()

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Do `work` for every item in the pool; the first error cancels what has not begun.

        `work` must not call `map` itself: with all threads waiting, nothing would move.

        Returns:
            Results in the order of the items.
        """
        return list(self._pool.map(work, items))

    def fetch(self, url: str, *, max_bytes: int) -> bytes | None:
        """Download one file within the calling thread.

        Args:
            url: Its address.
            max_bytes: Largest size to accept.

        Returns:
            The content; None when the server says it is absent (404).

        Raises:
            DataError: If it is too large, refused, or still failing after the last try.
        """
        for attempt in itertools.count():
            try:
                return self._attempt(url, max_bytes)
            except _PassingError as failure:
                if attempt + 1 == self._num_tries:
                    raise _gave_up(url, self._num_tries, str(failure)) from failure
                self._sleep(self._delay_s(attempt, failure.after_s))
        raise AssertionError("counting never ends")

    def _attempt(self, url: str, max_bytes: int) -> bytes | None:
        try:
            with self._session().get(url, stream=True, timeout=TIMEOUT_S) as answer:
                if answer.status_code == _NOT_FOUND:
                    return None
                self._require_success(url, answer)
                return _body(url, answer, max_bytes)
        except (
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
        ) as error:
            raise _PassingError(f"a broken connection ({type(error).__name__})") from error
        except requests.RequestException as error:
            raise DataError(
                where=url,
                rule="must be an address that can be requested",
                got=" ".join(str(error).split()),
                fix="Check V8_VISION_URL",
            ) from error

    def _require_success(self, url: str, answer: requests.Response) -> None:
        status = answer.status_code
        if status == _TOO_MANY_REQUESTS or status >= 500:
            raise _PassingError(f"status {status}", self._retry_after_s(answer.headers.get("Retry-After")))
        if status != 200:
            raise DataError(
                where=url,
                rule="the archive must answer 200, or 404 for a file it does not have",
                got=f"status {status} {answer.reason}",
                fix="Check that the archive may be reached from here, or set V8_VISION_URL to a mirror",
            )

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = requests.Session()
            # A compressed answer would make the promised length meaningless.
            session.headers.update({"User-Agent": f"v8/{VERSION}", "Accept-Encoding": "identity"})
            self._local.session = session
            self._sessions.append(session)
        return session

    def _delay_s(self, attempt: int, after_s: float | None) -> float:
        if after_s is not None:
            return min(after_s, LONGEST_RETRY_AFTER_S)
        ceiling = min(FIRST_DELAY_S * 2.0**attempt, LONGEST_DELAY_S)
        return ceiling * self._jitter.uniform(0.5, 1.0)

    def _retry_after_s(self, header: str | None) -> float | None:
        """Read a Retry-After of seconds or of a date (RFC 9110, 10.2.3); None when it is neither."""
        if header is None:
            return None
        if header.strip().isdigit():
            return float(header)
        try:
            return max(0.0, parsedate_to_datetime(header).timestamp() - self._now())
        except ValueError:
            return None


def _body(url: str, answer: requests.Response, max_bytes: int) -> bytes:
    pieces = bytearray()
    for piece in answer.iter_content(_CHUNK_BYTES):
        pieces += piece
        if len(pieces) > max_bytes:
            raise DataError(
                where=url,
                rule=f"a file of the archive has at most {max_bytes} bytes",
                got="more",
                fix="Check that V8_VISION_URL is a candle archive",
            )
    promised = answer.headers.get("Content-Length")
    if promised is not None and int(promised) != len(pieces):
        raise _PassingError(f"{len(pieces)} of {promised} bytes")
    return bytes(pieces)


def _gave_up(url: str, num_tries: int, reason: str) -> DataError:
    return DataError(
        where=url,
        rule=f"must be downloaded within {num_tries} tries",
        got=f"{reason} at the last one",
        fix="Check the connection and try again; what is complete is kept",
    )


def _close(pool: ThreadPoolExecutor, sessions: list[requests.Session]) -> None:
    pool.shutdown(wait=True, cancel_futures=True)
    for session in sessions:
        session.close()
