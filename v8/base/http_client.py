"""Requests over HTTP: one client, one time limit for all of a request, one rule for trying again.

The exchange's archive and API (`v8.data.market.sources.downloads`), whatever posts messages and the Hub
(`v8.publish.hub.client`) use the rules of this module.

- A request and the reading of its response end within a limit of seconds, whatever the server does: it may
  send its header byte by byte, or `100 Continue` for ever. `call_within` says how.
- An error that may be temporary is a `TransientError`. `RetryPolicy` repeats the request after the time that
  the server names, or else after a pause that doubles each time and is randomised, so that many clients do
  not return at the same moment (exponential backoff with jitter).
- A password is sent only where the address of a source contains one. Those of `~/.netrc` are meant for other
  programs: `requests` sends them only from a `Session`, and no request here goes through one.
- Proxies and certificates come from the environment (HTTPS_PROXY, NO_PROXY, REQUESTS_CA_BUNDLE ...).
"""

import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPConnection, HTTPException
from math import inf
from random import uniform
from typing import Any, Final, Self, TypeVar
from urllib.parse import urljoin

import requests
from requests.exceptions import SSLError, TooManyRedirects
from urllib3.exceptions import HTTPError

from v8.base.version import VERSION

BROKEN: Final = (OSError, HTTPError, HTTPException, ValueError)
"""Raised for a broken response: the errors of requests are OSErrors, and a bad header may raise any of
these."""

_MAX_DIGITS: Final = 300  # no server means a longer number, and a float cannot hold it

Auth = tuple[str, str]  # user and password
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """How long a request may take, in seconds."""

    connect_s: float = 10.0  # until a connection to one address of the host is established
    silence_s: float = 30.0  # between two pieces of a response
    try_s: float = 120.0  # one request, from the look-up of the host's name to the last byte that is read
    file_s: float = 300.0  # all tries of a file and the pauses between them
    quiet_s: float = 5.0  # waiting before the first report of it, and between two reports


class HttpClient:
    """Sends requests from any number of threads over persistent connections.

    Close it after use, or use it in a `with` block.

    Args:
        headers: Sent with every request.
        max_redirects: Largest number of redirects to follow; 0 returns the first response as it is.
    """

    def __init__(self, headers: Mapping[str, str], *, max_redirects: int = 0) -> None:
        # With compression the announced length would not be that of the content.
        own = {"User-Agent": f"v8/{VERSION}", "Accept": "*/*", "Accept-Encoding": "identity"}
        self._headers = {**own, **headers}
        self._max_redirects = max_redirects
        self._idle: list[_Line] = []

    def ask(
        self,
        method: str,
        url: str,
        read: Callable[[requests.Response], T],
        *,
        limits: TimeLimits,
        auth: Auth | None = None,
        body: bytes | None = None,
        given_up: "Future[None] | None" = None,
    ) -> T:
        """Send a request and return the result of `read`, which gets the response with its body unread.

        Args:
            method: HTTP method, such as "GET".
            url: Address, http or https.
            read: Reads the response and returns the result.
            limits: Time limits, in seconds.
            auth: User and password, sent as basic authentication; None for none.
            body: Content of the request.
            given_up: Ends the request when it gets a result, from whatever thread.

        Raises:
            Exception: One of `BROKEN` if the response is broken or takes too long, and what `read` raises.
        """
        line = self._idle.pop() if self._idle else _Line()
        request = requests.Request(method, url, headers=self._headers, data=body, auth=auth)

        def call() -> T:
            with self._response(line, request, limits) as response:
                return read(response)

        try:
            result = call_within(limits.try_s, call, given_up)
        except BaseException:
            line.cut()
            raise
        self._idle.append(line)
        return result

    def _response(self, line: "_Line", request: requests.Request, limits: TimeLimits) -> requests.Response:
        """Send a request and follow redirects; their bodies have no size limit and are not read."""
        for _ in range(self._max_redirects + 1):
            response = line.send(request.prepare(), limits)
            if not self._max_redirects or not response.is_redirect:
                return response
            response.close()
            location = response.headers["Location"].encode("latin-1").decode()
            target = urljoin(request.url, location)
            if line.session.should_strip_auth(request.url, target):  # type: ignore[no-untyped-call]
                request.auth = None
            request.url = target
        raise TooManyRedirects(f"Exceeded {self._max_redirects} redirects.")

    def close(self) -> None:
        """Close the open connections."""
        while self._idle:
            self._idle.pop().cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Line:
    """Carries one request at a time, and knows its connections: `cut` ends whatever waits for them."""

    def __init__(self) -> None:
        self.session = requests.Session()
        self.is_cut = False
        self._connections: list[HTTPConnection] = []

    def send(self, request: requests.PreparedRequest, limits: TimeLimits) -> requests.Response:
        """Send a request once, without the session: it would read passwords and the bodies of redirects."""
        settings = self.session.merge_environment_settings(request.url, {}, True, None, None)
        adapter: Any = self.session.get_adapter(str(request.url))
        pool = adapter.get_connection_with_tls_context(request, settings["verify"], settings["proxies"])
        if isinstance(pool.ConnectionCls, type):
            pool.ConnectionCls = partial(self._connection, pool.ConnectionCls)
        response: requests.Response = adapter.send(
            request, timeout=(limits.connect_s, limits.silence_s), **settings
        )
        return response

    def _connection(self, kind: Callable[..., HTTPConnection], **options: Any) -> HTTPConnection:
        """Make a connection that is not used if the line was cut while it was established.

        A handshake of TLS hides its socket, so `cut` cannot end it; but its limit holds for all of it.
        """
        connection = kind(**options)
        for step in ("connect", "_tunnel"):  # headers of a tunnel that end because they were cut do not count
            setattr(connection, step, partial(self._finish, getattr(connection, step)))
        self._connections.append(connection)
        return connection

    def _finish(self, step: Callable[[], None]) -> None:
        step()
        if self.is_cut:
            raise TimeoutError("the request was given up")

    def cut(self) -> None:
        """End all waiting for the server, and use the connections for nothing else."""
        self.is_cut = True
        for connection in self._connections:
            # Through a proxy with TLS of its own, urllib3 keeps the socket within an object.
            carrier: Any = getattr(connection.sock, "socket", connection.sock)
            if carrier:
                with suppress(OSError):  # the server may have closed the connection already
                    carrier.shutdown(socket.SHUT_RDWR)
        self.session.close()


def call_within(limit_s: float, call: Callable[[], T], given_up: "Future[None] | None" = None) -> T:
    """Run `call` in a thread of its own and return its result, or raise its error, within a time limit.

    The timeout of a socket limits each wait for a piece of an answer, so a server that sends one byte after
    another never exceeds it. This limits the sum: name look-up, connecting, TLS, sending, headers and body.

    Args:
        limit_s: Longest duration of the call as a whole, in seconds.
        call: The function to call; it sees the context variables of the caller. Nobody waits for its end when
            its time is over or the user presses Ctrl-C.
        given_up: Abandons the call, too, when it gets a result, from whatever thread.

    Raises:
        TimeoutError: If the call takes longer, or is given up.
    """
    context = copy_context()
    answer = in_thread(lambda: context.run(call))
    given_up = given_up or Future()
    ends: list[Future[Any]] = [answer, given_up]
    wait(ends, timeout=max(0.0, limit_s), return_when=FIRST_COMPLETED)
    if given_up.done():
        raise TimeoutError("the request was given up")
    if not answer.done():
        raise TimeoutError(f"it took longer than {limit_s:.3g} s in all")
    try:
        return answer.result()
    finally:
        del answer, ends  # else an error, its traceback and this frame would keep each other, and a socket


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


def certificate_fault(error: Exception) -> str | None:
    """Return why the certificate of a host is not trusted, in the words of OpenSSL; None for other errors."""
    fault = re.search(r"certificate verify failed: ([^()]+)", f"{error}")
    return fault[1].strip() if fault and isinstance(error, SSLError) else None


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
        return longest_s * uniform(self.least_share, 1.0)  # noqa: S311 - not used for security


def trouble_of(response: requests.Response) -> TransientError:
    """Return the temporary error for the status of a response, with the pause that the server asks for."""
    wait_s = asked_wait_s(response.headers.get("Retry-After"))
    return TransientError(f"status {response.status_code}", wait_s)


def asked_wait_s(retry_after: str | None) -> float | None:
    """Read the seconds of a Retry-After header, a number or a date (RFC 9110, 10.2.3); None for other text.

    >>> asked_wait_s("7"), asked_wait_s("Wed, 21 Oct 2015 07:28:00 GMT"), asked_wait_s("later")
    (7.0, 0.0, None)
    """
    text = (retry_after or "").strip()
    if re.fullmatch(rf"[0-9]{{1,{_MAX_DIGITS}}}", text):
        return float(text)
    date = read_date(text)
    return max(0.0, date.timestamp() - time.time()) if date else None


def read_date(text: str) -> datetime | None:
    """Read the date of a header, in UTC if it names no time zone; None if it is none, or the year 99999."""
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
