"""Downloads through one bounded pool of threads, with retries and time limits; and addresses of servers.

How a response is interpreted is the `ServerPolicy` of the server. For a folder of files: status 404 means
that the file is absent. Status 429, any 5xx, and every broken response (a closed connection, silence, single
bytes at long intervals, a short body, contradictory headers) are retried as `v8.base.http_client` describes.
Anything else is an error immediately. A long wait is reported to the user.
"""

import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit

import requests
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema, TooManyRedirects
from requests.utils import get_auth_from_url

from v8.base.errors import DataError, ProfileError
from v8.base.http_client import (
    BROKEN,
    Auth,
    HttpClient,
    RetryFailure,
    RetryPolicy,
    TimeLimits,
    TransientError,
    certificate_fault,
    trouble_of,
)
from v8.base.process import report_waiting

NUM_WORKERS = 5  # enough to hide latency, and no more than the queue of `python -m http.server` holds
MOST_REDIRECTS = 3
LONGEST_RETRY_AFTER_S = 120.0  # upper limit of the pause that a server can ask for
LIMITS: Final = TimeLimits()
PATIENCE: Final = RetryPolicy(most_asked_s=LONGEST_RETRY_AFTER_S)
TRIES_OF_FAILING: Final = 3
"""Most tries of a file of a server whose last download has failed after all its tries. So forty series of a
server that cannot be reached take a minute, not eight, and those after half a minute without it are read."""

_CHUNK_BYTES = 1 << 16
_PASSING = frozenset({429, *range(500, 600)})  # status codes of temporary failures
_NO_ADDRESS = (InvalidSchema, InvalidURL, MissingSchema, TooManyRedirects)

Item = TypeVar("Item")
Result = TypeVar("Result")


class ServerPolicy:
    """How requests are sent to a server and its responses interpreted; this one is for a folder of files.

    Args:
        variable: Environment variable that holds the address of the server.
    """

    kind = "archive"

    def __init__(self, variable: str) -> None:
        self.variable = variable

    def wait(self, url: str) -> None:
        """Wait until the next request is allowed; for a folder of files it always is."""

    def has_content(self, url: str, response: requests.Response) -> bool:
        """Return whether the body of a response is the requested content; if not, the content is absent.

        Raises:
            TransientError: If the failure is temporary.
            DataError: If it is not.
        """
        if response.status_code in _PASSING:
            raise trouble_of(response)
        if response.status_code not in {200, 404}:
            raise DataError(
                where=url,
                rule="the archive must answer 200, or 404 for a file it does not have",
                got=f"status {response.status_code} {response.reason}",
                fix=f"Check that the archive may be reached from here, or set {self.variable} to a mirror",
            )
        return response.status_code == 200

    def content(self, url: str, response: requests.Response, max_bytes: int) -> bytes:
        """Read the body of a response; a DataError if it has more than `max_bytes`."""
        content = bytearray()
        for piece in response.raw.stream(_CHUNK_BYTES, decode_content=False):
            content += piece
            if len(content) > max_bytes:
                raise DataError(
                    where=url,
                    rule=f"a file of the {self.kind} has at most {max_bytes} bytes",
                    got=f"more than {max_bytes} bytes",
                    fix=f"Check that {self.variable} is a candle {self.kind}",
                )
        return bytes(content)


class FileFetcher(Protocol):
    """Downloads files."""

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Call `work` for every item and return the results in order; the first error is raised."""

    def fetch(self, url: str, *, max_bytes: int, auth: Auth | None = None, name: str = "") -> bytes | None:
        """Download one file; None when it is absent."""


class OfflineFetcher:
    """Downloads nothing: every file is absent, so that only cached files are read."""

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Call `work` for every item, one after another."""
        return [work(item) for item in items]

    def fetch(self, url: str, *, max_bytes: int, auth: Auth | None = None, name: str = "") -> bytes | None:
        """Return None: the file is absent."""
        return None


class Downloader:
    """A pool of threads with persistent connections, and at most `num_workers` requests at the same time.

    Args:
        variable: Environment variable that holds the address of the server; errors name it.
        policy: How requests and responses are handled; by default as for a folder of files.
        num_workers: Number of threads and connections.
        patience: Retries and pauses; its time limits are those of `limits`.
        limits: Time limits of downloads.
    """

    def __init__(
        self,
        variable: str,
        *,
        policy: ServerPolicy | None = None,
        num_workers: int = NUM_WORKERS,
        patience: RetryPolicy = PATIENCE,
        limits: TimeLimits = LIMITS,
    ) -> None:
        self._policy = policy or ServerPolicy(variable)
        self._limits = limits
        self._patience = replace(patience, most_s=limits.file_s, try_s=limits.try_s)
        self._downloads: list[_Download] = []
        self._is_failing = False  # since the server last answered, a download has failed after all its tries
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="v8-download")
        self._client = HttpClient({}, max_redirects=MOST_REDIRECTS)
        resources = ExitStack()
        resources.callback(self._client.close)
        # The last reference may be held by one of its own threads, which cannot wait for itself.
        resources.callback(self._pool.shutdown, wait=False, cancel_futures=True)
        self._finalizer = weakref.finalize(self, resources.close)

    def close(self) -> None:
        """End the threads and connections; this also happens when the object is garbage collected."""
        self._finalizer()

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Call `work` for every item in the pool and return the results in order.

        The first error cancels what is left and is raised. `work` must not call `map` itself: with all
        threads waiting for others, none would be free to work.
        """
        threads: set[int] = set()  # those that work for this call now

        def work_in_thread(item: Item) -> Result:
            threads.add(threading.get_ident())
            try:
                return work(item)
            finally:
                threads.discard(threading.get_ident())

        futures = [self._pool.submit(work_in_thread, item) for item in items]
        try:
            pending = set(futures)
            while pending:
                finished, pending = wait(pending, self._limits.quiet_s, FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                self._report_longest()
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
            for download in list(self._downloads):
                if download.thread in threads:  # only after an error; the process would wait for its end
                    download.given_up.set_result(None)

    def fetch(self, url: str, *, max_bytes: int, auth: Auth | None = None, name: str = "") -> bytes | None:
        """Download one file within the calling thread; None when the server says that it is absent.

        Args:
            url: Address of the file.
            max_bytes: Largest size; a DataError beyond it.
            auth: User and password, None for none.
            name: Name of the file in reports; by default the last part of the address, which contains no
                user and password.

        Raises:
            DataError: If the file cannot be downloaded within the limits.
        """
        download = _Download(url, name or urlsplit(url).path.rpartition("/")[2], time.monotonic())
        patience = self._patience
        if self._is_failing:
            patience = replace(patience, num_tries=min(TRIES_OF_FAILING, patience.num_tries))

        def request(remaining_s: float) -> bytes | None:
            content = self._request(download, max_bytes, auth)
            self._is_failing = False
            return content

        def failure(reason: RetryFailure) -> DataError:
            self._is_failing = True
            limit = f"{patience.most_s:g} s" if reason.is_late else f"{patience.num_tries} tries"
            return self._failure(download, reason.trouble, limit)

        def before_pause(trouble: TransientError, pause_s: float) -> None:
            if download.given_up.done():
                raise self._failure(download, trouble, f"{patience.most_s:g} s")
            download.num_tries += 1

        self._downloads.append(download)
        try:
            return patience.call(request, failure, before_pause=before_pause)
        finally:
            self._downloads.remove(download)

    def _report_longest(self) -> None:
        """Report the download that has been waiting for the longest time, if that is long."""
        longest = min(list(self._downloads), key=lambda download: download.start_s, default=None)
        if longest is None:
            return
        passed_s = time.monotonic() - longest.start_s
        if passed_s >= self._limits.quiet_s:
            limit = f"{passed_s:.0f} s of at most {self._limits.file_s:g} s"
            tries = f"try {longest.num_tries} of {self._patience.num_tries}"
            report_waiting(f"waiting for {longest}, {limit}; {tries}")

    def _request(self, download: "_Download", max_bytes: int, auth: Auth | None) -> bytes | None:
        """Send the request of a download once."""
        policy = self._policy
        url = download.url
        policy.wait(url)

        def read(response: requests.Response) -> bytes | None:
            if not policy.has_content(url, response):
                return None
            return policy.content(url, response, max_bytes)

        try:
            return self._client.ask(
                "GET", url, read, limits=self._limits, auth=auth, given_up=download.given_up
            )
        except _NO_ADDRESS as error:
            raise DataError(
                where=url,
                rule="must be an address that can be requested",
                got=str(error),
                fix=f"Check {policy.variable}",
            ) from error
        except DataError:
            raise
        except BROKEN as error:
            fault = certificate_fault(error)
            if fault:
                raise DataError(
                    where=url,
                    rule="the host must have a certificate that this machine trusts",
                    got=fault,
                    fix="Check clock and proxy of this machine, or name your certificates in "
                    "REQUESTS_CA_BUNDLE",
                ) from None
            trouble = TransientError(f"a broken connection ({type(error).__name__})")
        raise trouble  # outside the handler: it must not be chained to a request, which may hold a password

    def _failure(self, download: "_Download", trouble: TransientError, limit: str) -> DataError:
        return DataError(
            where=str(download),
            rule=f"must be downloaded within {limit}",
            got=f"{trouble} at the last one, number {download.num_tries}",
            fix="Check the connection and try again; completed downloads are kept",
        )


@dataclass(eq=False)
class _Download:
    """A download in progress."""

    url: str
    name: str  # of the file, for reports
    start_s: float  # start of the first try, seconds of the monotonic clock
    num_tries: int = 1  # number of the present try, counted from 1
    thread: int = field(default_factory=threading.get_ident)  # identifier of the thread that downloads
    given_up: Future[None] = field(default_factory=Future)  # gets a result when it is to end

    def __str__(self) -> str:
        """Return what is downloaded and from where: a whole address is wider than most terminals."""
        return f"{self.name} from {urlsplit(self.url).netloc}"


@dataclass(frozen=True)
class Address:
    """The address of a server, with its credentials; only `url` is ever shown or written."""

    url: str  # without user and password, without a slash at the end
    auth: Auth | None = field(default=None, repr=False)  # user and password, if the address contains them

    @property
    def host(self) -> str:
        """Host and port, for people."""
        return urlsplit(self.url).netloc

    @property
    def folder_name(self) -> str:
        """Name of the cache folder of this server: files of two servers must not mix."""
        return re.sub(r"[^A-Za-z0-9.-]+", "_", self.url.partition("://")[2])


def read_address(variable: str, default: str, kind: str, *, url: str | None = None) -> Address:
    """Check a base address and split off user and password.

    Args:
        variable: Environment variable that holds the address; messages name it.
        default: Address if the variable is not set.
        kind: What the server is, for messages.
        url: Address to check instead of that of the variable.

    Raises:
        ProfileError: If it is not a valid address.
    """
    if url is None:
        url = os.environ.get(variable) or default
    try:
        address = urlsplit(url)
        prepared = requests.Request("GET", url).prepare()
        is_sound = address.scheme in {"http", "https"} and bool(address.hostname) and bool(prepared.url)
    except ValueError:  # also raised by requests, for an invalid host
        is_sound = False
    # An @ after the host belongs to a password that contains a slash: its first part would be taken for the
    # host.
    if not is_sound or not url.isprintable() or re.search(r"[ ?#]|://[^/]*/.*@", url):
        raise ProfileError(
            where=variable,
            rule=f"is the address of {kind}, http://HOST/PATH or https://HOST/PATH",
            got=_shown_address(url),
            fix=f"Correct it, or unset it for {default}",
        )
    user, password = get_auth_from_url(url)
    bare = address._replace(netloc=address.netloc.rpartition("@")[2])
    auth = (user, password) if user or password else None
    return Address(urlunsplit(bare).rstrip("/"), auth)


def _shown_address(url: str) -> str:
    """Quote a refused address without secrets: a password may precede an @, a key follow a ?."""
    if re.search("[?#].*@", url, re.DOTALL):
        return "an address that may hold a password"
    bare, sign, _ = re.split("([?#])", f"{url.rpartition('@')[2]}?", maxsplit=1)
    return repr(bare) if "?" not in url and "#" not in url else f"{bare!r} with more behind a {sign}"
