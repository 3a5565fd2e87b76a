"""Polite downloads: one bounded pool, retries, limits of time, and a clear end; and the addresses they go to.

What an answer means is the server's `Etiquette`; to a folder of files the following applies. An answer of 404
means absent. 429, any 5xx, and every broken answer (a cut connection, silence, a drip, a
short body, headers that contradict each other) are tried again as `v8.net` says. Anything else is an error
at once. Whoever waits long is told so.
"""

import os
import re
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit

import requests
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema, TooManyRedirects
from requests.utils import get_auth_from_url

from v8.errors import DataError, ProfileError
from v8.http_client import BROKEN, Auth, HttpClient, RequestHandle, RequestTimes
from v8.net import Refused, RetryPolicy, TransientError, asked_wait_s, tell_waiting
from v8.version import VERSION

NUM_WORKERS = 5  # enough to hide waiting, and no more than `python -m http.server` lets queue up
MOST_REDIRECTS = 3
LONGEST_RETRY_AFTER_S = 120.0  # a server that asks for more than this is treated as if it asked for this
PATIENCE: Final = RetryPolicy(most_asked_s=LONGEST_RETRY_AFTER_S)

_CHUNK_BYTES = 1 << 16
_PASSING = frozenset({429, *range(500, 600)})  # status codes of failures that may pass
_NO_ADDRESS = (InvalidSchema, InvalidURL, MissingSchema, TooManyRedirects)

_BATCH: Final[ContextVar[object]] = ContextVar("batch_of_downloads", default=None)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """How long a download may take, in seconds."""

    connect_s: float = 10.0  # until a connection stands
    silence_s: float = 30.0  # between two pieces of an answer
    try_s: float = 120.0  # of a request, from the look-up of the host to the last byte of its answer
    file_s: float = 300.0  # all tries of a file and the pauses between them
    quiet_s: float = 5.0  # waiting that nobody is told of, and the pause between two sentences about it


class Etiquette:
    """How a server is asked, which a `variable` names, and what it means; here a folder of files."""

    kind = "archive"

    def __init__(self, variable: str) -> None:
        self.variable = variable

    def wait(self, url: str) -> None:
        """Wait until the server may be asked; a folder always may."""

    def is_there(self, url: str, answer: requests.Response) -> bool:
        """Tell whether the body of an answer is what was asked for; if not, it is absent.

        What may be answered later raises a `TransientError`.
        """
        if answer.status_code in _PASSING:
            raise trouble_of(answer)
        if answer.status_code not in {200, 404}:
            rule = "the archive must answer 200, or 404 for a file it does not have"
            fix = f"Check that the archive may be reached from here, or set {self.variable} to a mirror"
            raise DataError(where=url, rule=rule, got=f"status {answer.status_code} {answer.reason}", fix=fix)
        return answer.status_code == 200

    def content(self, url: str, answer: requests.Response, max_bytes: int) -> bytes:
        """Read a body to its end."""
        content = bytearray()
        for piece in answer.raw.stream(_CHUNK_BYTES, decode_content=False):
            content += piece
            if len(content) > max_bytes:
                rule = f"a file of the {self.kind} has at most {max_bytes} bytes"
                fix = f"Check that {self.variable} is a candle {self.kind}"
                raise DataError(where=url, rule=rule, got=f"more than {max_bytes} bytes", fix=fix)
        return bytes(content)


def trouble_of(answer: requests.Response) -> TransientError:
    """Return the trouble that the status of an answer tells, and the pause that it asks for."""
    wait_s = asked_wait_s(answer.headers.get("Retry-After"))
    return TransientError(f"status {answer.status_code}", wait_s)


class Fetching(Protocol):
    """What files are downloaded with."""

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Do `work` for every item, results in their order; the first error ends it."""

    def fetch(self, url: str, *, max_bytes: int, auth: Auth | None = None, name: str = "") -> bytes | None:
        """Download one file; None when it is absent."""


class NobodyAsked:
    """Downloads nothing: of each file it says that it is absent, so that only what is kept is read."""

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Do `work` for every item, one after another."""
        return [work(item) for item in items]

    def fetch(self, url: str, *, max_bytes: int, auth: Auth | None = None, name: str = "") -> bytes | None:
        """Say that the file is absent."""
        return None


class Downloader:
    """A pool of threads with keep-alive connections, and at most `num_workers` requests in flight at once.

    Errors name the environment variable by which the user asks elsewhere.
    """

    def __init__(
        self,
        variable: str,
        *,
        etiquette: Etiquette | None = None,
        num_workers: int = NUM_WORKERS,
        patience: RetryPolicy = PATIENCE,
        limits: TimeLimits = TimeLimits(),
    ) -> None:
        self._etiquette = etiquette or Etiquette(variable)
        self._limits = limits
        self._patience = replace(patience, most_s=limits.file_s, try_s=limits.try_s)
        self._waiting: list[_Waiting] = []
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="v8-download")
        # A compressed answer would make the promised length meaningless.
        headers = {"User-Agent": f"v8/{VERSION}", "Accept-Encoding": "identity"}
        self._client = HttpClient(headers, num_connections=num_workers, max_redirects=MOST_REDIRECTS)
        self._times = RequestTimes(connect_s=limits.connect_s, silence_s=limits.silence_s, all_s=limits.try_s)
        resources = ExitStack()
        resources.callback(self._client.close)
        # The last to forget it may be one of its own threads, which cannot wait for itself.
        resources.callback(self._pool.shutdown, wait=False, cancel_futures=True)
        self._finalizer = weakref.finalize(self, resources.close)

    def close(self) -> None:
        """End the threads and their connections; also happens when the object is forgotten."""
        self._finalizer()

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Do `work` for every item in the pool, results in their order; the first error cancels what is left.

        `work` must not call `map` itself: with all threads waiting, nothing would move.
        """
        batch = object()

        def work_in_batch(item: Item) -> Result:
            _BATCH.set(batch)
            return work(item)

        futures = [self._pool.submit(work_in_batch, item) for item in items]
        try:
            pending = set(futures)
            while pending:
                done, pending = wait(pending, self._limits.quiet_s, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                self._tell_longest()
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
            for waiting in list(self._waiting):
                if waiting.batch is batch:  # which is so only where something went wrong
                    waiting.end()

    def fetch(self, url: str, *, max_bytes: int, auth: Auth | None = None, name: str = "") -> bytes | None:
        """Download one file within the calling thread; None when the server says it is absent (404).

        Who waits is told its name, or else the last part of the address, which holds no user and password.
        """
        waiting = _Waiting(url, name or urlsplit(url).path.rpartition("/")[2], time.monotonic())

        def before_pause(trouble: TransientError, pause_s: float) -> None:
            if not waiting.is_wanted:
                raise self._gave_up(waiting, Refused(trouble, waiting.num_tries, 0.0, pause_s, is_late=True))
            waiting.num_tries += 1

        self._waiting.append(waiting)
        try:
            ask = partial(self._ask, waiting, max_bytes, auth)
            refuse = partial(self._gave_up, waiting)
            return self._patience.call(ask, refuse, before_pause=before_pause)
        finally:
            self._waiting.remove(waiting)

    def _tell_longest(self) -> None:
        longest = min(list(self._waiting), key=lambda waiting: waiting.begun_s, default=None)
        if longest and (passed_s := time.monotonic() - longest.begun_s) >= self._limits.quiet_s:
            limit = f"{passed_s:.0f} s of at most {self._limits.file_s:g} s"
            tries = f"try {longest.num_tries} of {self._patience.num_tries}"
            tell_waiting(f"waiting for {longest.name} from {urlsplit(longest.url).netloc}, {limit}; {tries}")

    def _ask(self, waiting: "_Waiting", max_bytes: int, auth: Auth | None, _: float) -> bytes | None:
        etiquette = self._etiquette
        url = waiting.url
        etiquette.wait(url)
        handle = waiting.handle_of_try()

        def read(answer: requests.Response) -> bytes | None:
            return etiquette.content(url, answer, max_bytes) if etiquette.is_there(url, answer) else None

        try:
            return self._client.ask("GET", url, read, times=self._times, auth=auth, handle=handle)
        except _NO_ADDRESS as error:
            rule = "must be an address that can be requested"
            got = str(error)
            raise DataError(where=url, rule=rule, got=got, fix=f"Check {etiquette.variable}") from error
        except DataError:
            raise
        except BROKEN as error:
            raise TransientError(f"a broken connection ({type(error).__name__})") from error

    def _gave_up(self, waiting: "_Waiting", refused: Refused) -> DataError:
        limit = f"{self._limits.file_s:g} s" if refused.is_late else f"{self._patience.num_tries} tries"
        got = f"{refused.trouble} at the last one, number {waiting.num_tries}"
        fix = "Check the connection and try again; what is complete is kept"
        return DataError(where=waiting.url, rule=f"must be downloaded within {limit}", got=got, fix=fix)


@dataclass(eq=False)
class _Waiting:
    """A file under way, since a time of the monotonic clock in seconds, and at which try it is."""

    url: str
    name: str
    begun_s: float
    num_tries: int = 1
    is_wanted: bool = True
    batch: object = field(default_factory=_BATCH.get)  # of the call of `map` that it belongs to
    _handle: RequestHandle | None = None

    def handle_of_try(self) -> RequestHandle:
        """Return a new handle, by which the try that begins now can be ended."""
        handle = self._handle = RequestHandle()
        if not self.is_wanted:
            handle.cut()
        return handle

    def end(self) -> None:
        """End it at once: a process would wait for it until the end of its try."""
        self.is_wanted = False
        if self._handle:
            self._handle.cut()


@dataclass(frozen=True)
class Address:
    """Where a server is, and what opens it; no text but `url` is ever shown or written."""

    url: str  # without user and password, without a slash at the end
    auth: Auth | None = field(default=None, repr=False)  # user and password, if the address named them

    @property
    def host(self) -> str:
        """Host and port, for people."""
        return urlsplit(self.url).netloc

    @property
    def folder_name(self) -> str:
        """A name for a folder of its own: what comes from two servers must not mix, whoever runs them."""
        return re.sub(r"[^A-Za-z0-9.-]+", "_", self.url.partition("://")[2])


def read_address(variable: str, default: str, kind: str, *, url: str | None = None) -> Address:
    """Check a base address, that of a variable or else a default, and split off user and password."""
    url = (os.environ.get(variable) or default) if url is None else url
    try:
        address = urlsplit(url)
        prepared = requests.Request("GET", url).prepare()
        is_sound = address.scheme in {"http", "https"} and bool(address.hostname) and bool(prepared.url)
    except ValueError:  # of requests, too: for a host that is none
        is_sound = False
    # An @ behind the host is that of a password with a / in it, which would be taken for the host.
    if not is_sound or not url.isprintable() or re.search(r"[ ?#]|://[^/]*/.*@", url):
        rule = f"is the address of {kind}, http://HOST/PATH or https://HOST/PATH"
        got = repr(url.rpartition("@")[2])  # a password may stand before it, in whatever form
        raise ProfileError(where=variable, rule=rule, got=got, fix=f"Correct it, or unset it for {default}")
    user, password = get_auth_from_url(url)
    bare = address._replace(netloc=address.netloc.rpartition("@")[2])
    return Address(urlunsplit(bare).rstrip("/"), (user, password) if user or password else None)
