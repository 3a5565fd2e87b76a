"""Polite downloads: one bounded pool, retries with back-off, and a clear end.

An answer of 404 means absent. 429, any 5xx, cut connections, time-outs and short bodies are tried
again, after the time the server asks for in Retry-After or else after a delay that doubles and is
spread at random, so that many clients do not return at once. Anything else is an error at once.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final, TypeVar

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import InvalidHeader, MaxRetryError, ProtocolError
from urllib3.response import BaseHTTPResponse
from urllib3.util import Retry

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
_PASSING = frozenset({429, *range(500, 600)})
"""Status codes of failures that may pass."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Patience(Retry):
    """How often an address is asked again, and after which delays.

    Other than its parent it waits before the first repetition too, spreads every delay at random, and takes
    a Retry-After that means nothing for none.
    """

    def delay_s(self, answer: BaseHTTPResponse | None = None) -> float:
        """Return the seconds to wait after an answer, or after none."""
        asked_s = None if answer is None else self.get_retry_after(answer)
        if asked_s is not None:
            return min(asked_s, LONGEST_RETRY_AFTER_S)
        ceiling = min(FIRST_DELAY_S * 2.0 ** (len(self.history) - 1), LONGEST_DELAY_S)
        return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 - spreads delays, guards nothing

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """Read a Retry-After of seconds or of a date (RFC 9110, 10.2.3); None when it is neither."""
        try:
            return super().get_retry_after(response)
        except InvalidHeader:
            return None

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        """Wait before the next attempt."""
        time.sleep(self.delay_s(response))


PATIENCE: Final = Patience(NUM_TRIES - 1, status_forcelist=_PASSING, raise_on_status=False)


class Downloader:
    """A pool of threads with keep-alive connections.

    Args:
        variable: The environment variable by which the user asks elsewhere, for errors.
        num_workers: Most requests in flight at once.
        patience: How often an address is asked again, and after which delays.
    """

    def __init__(self, variable: str, *, num_workers: int = NUM_WORKERS, patience: Retry = PATIENCE) -> None:
        self._variable = variable
        self._patience = patience
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="v8-download")
        self._session = requests.Session()
        # A compressed answer would make the promised length meaningless.
        self._session.headers.update({"User-Agent": f"v8/{VERSION}", "Accept-Encoding": "identity"})
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=num_workers, max_retries=patience))
        resources = ExitStack()
        resources.callback(self._session.close)
        # The last to forget it may be one of its own threads, which cannot wait for itself.
        resources.callback(self._pool.shutdown, wait=False, cancel_futures=True)
        self._finalizer = weakref.finalize(self, resources.close)

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
        patience = self._patience
        while True:
            with self._answer(url) as answer:
                if answer.status_code == _NOT_FOUND:
                    return None
                try:
                    return self._body(url, answer, max_bytes)
                except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
                    cut = error
            try:  # the adapter's patience ends where a body begins
                patience = patience.increment("GET", url, error=ProtocolError(_broken(cut)))
            except MaxRetryError:
                raise self._gave_up(url, _broken(cut)) from cut
            patience.sleep()

    def _answer(self, url: str) -> requests.Response:
        """Ask until there is an answer that stays: 200 or 404."""
        try:
            answer = self._session.get(url, stream=True, timeout=TIMEOUT_S)
        except (requests.ConnectionError, requests.Timeout) as error:
            raise self._gave_up(url, _broken(error)) from error
        except requests.RequestException as error:
            raise DataError(
                where=url,
                rule="must be an address that can be requested",
                got=" ".join(str(error).split()),
                fix=f"Check {self._variable}",
            ) from error
        if answer.status_code in {200, _NOT_FOUND}:
            return answer
        answer.close()
        if answer.status_code in _PASSING:
            raise self._gave_up(url, f"status {answer.status_code}")
        raise DataError(
            where=url,
            rule="the archive must answer 200, or 404 for a file it does not have",
            got=f"status {answer.status_code} {answer.reason}",
            fix=f"Check that the archive may be reached from here, or set {self._variable} to a mirror",
        )

    def _body(self, url: str, answer: requests.Response, max_bytes: int) -> bytes:
        content = bytearray()
        for piece in answer.iter_content(_CHUNK_BYTES):
            content += piece
            if len(content) > max_bytes:
                raise DataError(
                    where=url,
                    rule=f"a file of the archive has at most {max_bytes} bytes",
                    got="more",
                    fix=f"Check that {self._variable} is a candle archive",
                )
        return bytes(content)

    def _gave_up(self, url: str, reason: str) -> DataError:
        return DataError(
            where=url,
            rule=f"must be downloaded within {int(self._patience.total or 0) + 1} tries",
            got=f"{reason} at the last one",
            fix="Check the connection and try again; what is complete is kept",
        )


def _broken(error: requests.RequestException) -> str:
    return f"a broken connection ({type(error).__name__})"
