"""Polite downloads: one bounded pool, retries with back-off, limits of time, and a clear end.

What an answer means is the server's `Etiquette`; to a folder of files the following applies. An answer of 404
means absent. 429, any 5xx, and every broken answer (a cut connection, silence, a drip, a
short body, headers that contradict each other) are tried again, after the time the server asks for in
Retry-After or else after a delay that doubles and is spread at random, so that many clients do not return
at once. Anything else is an error at once. Whoever waits long is told so, see `v8.market.sources.waiting`.
"""

from __future__ import annotations

import io
import random
import socket
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema, TooManyRedirects
from urllib3 import HTTPConnectionPool, PoolManager
from urllib3.exceptions import HTTPError, InvalidHeader, MaxRetryError, ProtocolError
from urllib3.response import BaseHTTPResponse
from urllib3.util import Retry

from v8.errors import DataError
from v8.market.sources.addresses import Auth
from v8.market.sources.waiting import tell_waiting
from v8.version import VERSION

NUM_WORKERS = 5
"""Enough to hide waiting, and no more than a small mirror (`python -m http.server`) lets queue up."""

NUM_TRIES = 6
MOST_REDIRECTS = 3

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
LONGEST_RETRY_AFTER_S = 120.0
"""A server that asks for more than this is treated as if it asked for this."""

_CHUNK_BYTES = 1 << 16
_NOT_FOUND = 404
_PASSING = frozenset({429, *range(500, 600)})
"""Status codes of failures that may pass."""

_NO_ADDRESS = (InvalidSchema, InvalidURL, MissingSchema, TooManyRedirects)
_BROKEN = (OSError, HTTPError, HTTPException, ValueError)
"""What a broken answer raises: those of requests are OSErrors, and a bad header may raise any of them."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """How long a download may take.

    Args:
        connect_s: Until a connection stands, in seconds.
        silence_s: Between two pieces of an answer, in seconds.
        try_s: From a request to the last byte of its answer, in seconds; ends a drip.
        file_s: All tries of a file and the pauses between them, in seconds.
        quiet_s: Waiting that nobody is told of, and the pause between two sentences about it, in seconds.
    """

    connect_s: float = 10.0
    silence_s: float = 30.0
    try_s: float = 120.0
    file_s: float = 300.0
    quiet_s: float = 5.0


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
        except (InvalidHeader, ValueError, OverflowError):  # no date, 5,000 digits, the year 99999
            return None

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        """Wait before the next attempt."""
        time.sleep(self.delay_s(response))


PATIENCE: Final = Patience(NUM_TRIES - 1)


class PassingTroubleError(Exception):
    """A failure that may pass, and the answer that was one, if any."""

    def __init__(self, text: str, answer: BaseHTTPResponse | None = None) -> None:
        super().__init__(text)
        self.answer = answer


class Etiquette:
    """How a server is asked and what its answers mean; this one is that of a folder of files.

    Args:
        variable: The environment variable by which the user asks elsewhere, for errors.
    """

    kind = "archive"

    def __init__(self, variable: str) -> None:
        self.variable = variable

    def wait(self, url: str) -> None:
        """Wait until the server may be asked; a folder always may."""

    def is_there(self, url: str, answer: requests.Response) -> bool:
        """Tell whether the body of an answer is what was asked for; if not, it is absent.

        Raises:
            PassingTroubleError: If the same request may be answered later.
            DataError: If it will not be.
        """
        if answer.status_code in _PASSING:
            raise PassingTroubleError(f"status {answer.status_code}", answer.raw)
        if answer.status_code not in {200, _NOT_FOUND}:
            raise DataError(
                where=url,
                rule="the archive must answer 200, or 404 for a file it does not have",
                got=f"status {answer.status_code} {answer.reason}",
                fix=f"Check that the archive may be reached from here, or set {self.variable} to a mirror",
            )
        return answer.status_code == 200


def read_content(url: str, answer: requests.Response, max_bytes: int, etiquette: Etiquette) -> bytes:
    """Read a body to its end.

    Raises:
        DataError: If it has more than `max_bytes`.
    """
    content = bytearray()
    for piece in answer.raw.stream(_CHUNK_BYTES, decode_content=False):
        content += piece
        if len(content) > max_bytes:
            raise DataError(
                where=url,
                rule=f"a file of the {etiquette.kind} has at most {max_bytes} bytes",
                got=f"more than {max_bytes} bytes",
                fix=f"Check that {etiquette.variable} is a candle {etiquette.kind}",
            )
    return bytes(content)


class Downloader:
    """A pool of threads with keep-alive connections.

    Args:
        variable: The environment variable by which the user asks elsewhere, for errors.
        etiquette: How the server is asked; that of a folder of files when None.
        num_workers: Most requests in flight at once.
        patience: How often an address is asked again, and after which delays.
        limits: How long downloads may take.
    """

    def __init__(
        self,
        variable: str,
        *,
        etiquette: Etiquette | None = None,
        num_workers: int = NUM_WORKERS,
        patience: Patience = PATIENCE,
        limits: TimeLimits = TimeLimits(),
    ) -> None:
        self._etiquette = etiquette or Etiquette(variable)
        self._patience, self._limits = patience, limits
        self._waiting: list[_Waiting] = []
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="v8-download")
        self._session = _Session()
        self._session.max_redirects = MOST_REDIRECTS
        # A compressed answer would make the promised length meaningless.
        self._session.headers.update({"User-Agent": f"v8/{VERSION}", "Accept-Encoding": "identity"})
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _BoundedAdapter(num_workers, limits.try_s))
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
        futures = [self._pool.submit(work, item) for item in items]
        try:
            self._wait_for(futures)
            return [future.result() for future in futures]
        finally:
            for waiting in list(self._waiting):  # none, unless something went wrong
                waiting.is_wanted = False
            for future in futures:
                future.cancel()

    def fetch(
        self, url: str, *, max_bytes: int, auth: Auth | None = None, name: str | None = None
    ) -> bytes | None:
        """Download one file within the calling thread.

        Args:
            url: Its address, without user and password.
            max_bytes: Largest size to accept.
            auth: User and password, if the server asks for them.
            name: What it is, for those who wait; the last part of the address when None.

        Returns:
            The content; None when the server says it is absent (404).

        Raises:
            DataError: If it is too large, refused, or still failing after the last try.
        """
        waiting = _Waiting(url, name or urlsplit(url).path.rpartition("/")[2], time.monotonic())
        self._waiting.append(waiting)
        try:
            return self._insist(waiting, lambda: self._ask(url, max_bytes, auth))
        finally:
            self._waiting.remove(waiting)

    def _wait_for(self, futures: Sequence[Future[Any]]) -> None:
        """Wait until all are done, or one has failed, and tell of long waiting."""
        pending = set(futures)
        while pending:
            _, pending = wait(pending, self._limits.quiet_s, FIRST_EXCEPTION)
            for future in futures:
                if future.done():
                    future.result()
            self._tell_longest()

    def _tell_longest(self) -> None:
        longest = min(list(self._waiting), key=lambda waiting: waiting.begun_s, default=None)
        if longest and longest.seconds >= self._limits.quiet_s:
            host, most_s = urlsplit(longest.url).netloc, self._limits.file_s
            tell_waiting(
                f"waiting for {longest.name} from {host}, {longest.seconds:.0f} s of at most {most_s:g} s; "
                f"try {longest.num_tries} of {self._num_tries}"
            )

    def _insist(self, waiting: _Waiting, ask: Callable[[], bytes | None]) -> bytes | None:
        patience = self._patience
        while True:
            try:
                return ask()
            except PassingTroubleError as error:
                trouble = error
            try:
                patience = patience.increment("GET", waiting.url, error=ProtocolError(str(trouble)))
            except MaxRetryError:
                raise self._gave_up(waiting, f"{self._num_tries} tries", trouble) from trouble
            next_ends_s = waiting.seconds + patience.delay_s(trouble.answer) + self._limits.try_s
            if next_ends_s > self._limits.file_s or not waiting.is_wanted:
                raise self._gave_up(waiting, f"{self._limits.file_s:g} s", trouble) from trouble
            patience.sleep(trouble.answer)
            waiting.num_tries += 1

    def _ask(self, url: str, max_bytes: int, auth: Auth | None) -> bytes | None:
        times = (self._limits.connect_s, self._limits.silence_s)
        self._etiquette.wait(url)
        try:
            with self._session.get(url, stream=True, timeout=times, auth=auth) as answer:
                is_there = self._etiquette.is_there(url, answer)
                return read_content(url, answer, max_bytes, self._etiquette) if is_there else None
        except _NO_ADDRESS as error:
            raise DataError(
                where=url,
                rule="must be an address that can be requested",
                got=str(error),
                fix=f"Check {self._etiquette.variable}",
            ) from error
        except DataError:
            raise
        except _BROKEN as error:
            raise PassingTroubleError(f"a broken connection ({type(error).__name__})") from error

    @property
    def _num_tries(self) -> int:
        return int(self._patience.total or 0) + 1

    def _gave_up(self, waiting: _Waiting, limit: str, trouble: PassingTroubleError) -> DataError:
        return DataError(
            where=waiting.url,
            rule=f"must be downloaded within {limit}",
            got=f"{trouble} at the last one, number {waiting.num_tries}",
            fix="Check the connection and try again; what is complete is kept",
        )


@dataclass(eq=False)
class _Waiting:
    """A file under way, since a time of the monotonic clock in seconds, and at which try it is."""

    url: str
    name: str
    begun_s: float
    num_tries: int = 1
    is_wanted: bool = True

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun_s


class _Session(requests.Session):
    """Follows redirects without reading what else their answers hold: that has no limit."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        if resp.is_redirect:
            resp._content = b""
            resp.close()
        return super().get_redirect_target(resp)


class _BoundedAdapter(HTTPAdapter):
    """Asks once, and ends an answer that takes longer than a limit in seconds, headers included."""

    def __init__(self, num_connections: int, limit_s: float) -> None:
        self._limit_s = limit_s
        super().__init__(pool_maxsize=num_connections)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self._bound(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        is_known = proxy in self.proxy_manager
        manager = super().proxy_manager_for(proxy, **options)
        if not is_known:
            self._bound(manager)
        return manager

    def _bound(self, manager: PoolManager) -> None:
        pools = manager.pool_classes_by_scheme.items()
        manager.pool_classes_by_scheme = {scheme: _bounded(pool, self._limit_s) for scheme, pool in pools}


def _bounded(pool: type[HTTPConnectionPool], limit_s: float) -> type[HTTPConnectionPool]:
    answers = staticmethod(partial(_BoundedAnswer, limit_s))
    connection = type("BoundedConnection", (pool.ConnectionCls,), {"response_class": answers})
    return type("BoundedPool", (pool,), {"ConnectionCls": connection})


class _BoundedAnswer(HTTPResponse):
    """An answer that must be read to its end within a limit; urllib3 bounds each wait for a piece only."""

    def __init__(self, limit_s: float, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_BoundedReads(self.fp.detach(), sock, limit_s))

    def begin(self) -> None:
        """Read the headers; an error here closes the connection, a later one of urllib3 would not."""
        super().begin()
        lengths = ",".join(self.headers.get_all("Content-Length", ()))
        if len({length.strip() for length in lengths.split(",")}) > 1:
            raise HTTPException("two lengths of one answer")


class _BoundedReads(io.RawIOBase):
    """Reads a socket until a time has passed, and never waits longer than the socket would."""

    def __init__(self, stream: io.RawIOBase, sock: socket.socket, limit_s: float) -> None:
        self._stream, self._sock = stream, sock
        self._silence_s, self._end_s = sock.gettimeout() or limit_s, time.monotonic() + limit_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer took too long")
        self._sock.settimeout(min(left_s, self._silence_s))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()
