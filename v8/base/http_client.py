"""The HTTP client of v8: every request has a time limit, and only explicitly configured passwords are sent.

- A request and the reading of its response end within a limit of seconds, whatever the server does: it may
  send its header byte by byte, or `100 Continue` for ever. `v8.base.net.call_within` says how.
- `requests` reads the passwords of `~/.netrc`, its `default` entry too, and sends them to every host. They
  are meant for other programs: here a password is sent only where the address of a source contains one.
- Proxies and certificates come from the environment (HTTPS_PROXY, NO_PROXY, REQUESTS_CA_BUNDLE ...).
"""

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, Self, TypeVar

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from v8.base.net import call_within

BROKEN: Final = (OSError, HTTPError, HTTPException, ValueError)
"""Raised for a broken response: the errors of requests are OSErrors, and a bad header may raise any of
these."""

Auth = tuple[str, str]  # user and password
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class RequestTimes:
    """How long a request may take, in seconds."""

    connect_s: float  # until a connection to one address of the host is established
    silence_s: float  # between two pieces of a response
    all_s: float  # in total, from the look-up of the host's name to the last byte that is read


class HttpClient:
    """Sends requests from any number of threads over persistent connections.

    Close it after use, or use it in a `with` block.

    Args:
        headers: Sent with every request.
        num_connections: Number of connections to a host that stay open.
        max_redirects: Largest number of redirects to follow; 0 returns the first response as it is.
    """

    def __init__(
        self, headers: Mapping[str, str], *, num_connections: int = 1, max_redirects: int = 0
    ) -> None:
        self._session = _Session()
        self._handles: dict[int, RequestHandle] = {}
        """The request that is under way in each thread; `ask` gives each one a thread of its own."""
        self._session.headers.update(headers)
        self._follows_redirects = max_redirects > 0
        if self._follows_redirects:
            self._session.max_redirects = max_redirects
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _WatchedAdapter(self._handles, num_connections))

    def ask(
        self,
        method: str,
        url: str,
        read: Callable[[requests.Response], Result],
        *,
        times: RequestTimes,
        auth: Auth | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        handle: "RequestHandle | None" = None,
    ) -> Result:
        """Send a request and return the result of `read`, which gets the response with its body unread.

        Args:
            method: HTTP method, such as "GET".
            url: Address, http or https.
            read: Reads the response and returns the result.
            times: Time limits, in seconds.
            auth: User and password, sent as basic authentication; None for none.
            headers: Sent in addition to those of the client.
            body: Content of the request.
            handle: A new one for each request; any thread that holds it may cancel the request.

        Raises:
            Exception: One of `BROKEN` if the response is broken or takes too long, and what `read` raises.
        """
        request = handle or RequestHandle()
        limits = (times.connect_s, times.silence_s)

        def call() -> Result:
            self._handles[threading.get_ident()] = request
            try:
                with self._session.request(
                    method,
                    url,
                    data=body,
                    headers=headers,
                    auth=auth,
                    timeout=limits,
                    allow_redirects=self._follows_redirects,
                    stream=True,
                ) as response:
                    result = read(response)
                # Without a length, a response that was cut off by `cancel` looks like a complete one.
                request.require_active()
                return result
            finally:
                del self._handles[threading.get_ident()]
                request.close()

        return call_within(times.all_s, call, request.cancel)

    def close(self) -> None:
        """Close the open connections."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(eq=False)
class RequestHandle:
    """Cancels one request from another thread, before or while it is sent.

    It holds a second file descriptor of each socket that carries the request. The TLS layer takes the first
    descriptor over and hides it; a shutdown through the second one ends everything that waits on the first.
    """

    _sockets: list[socket.socket] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_cancelled: bool = False

    def watch(self, connection: socket.socket) -> None:
        """Duplicate the descriptor of a connection; refuse one that is made after `cancel`."""
        with self._lock:
            self.require_active()
            self._sockets.append(socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM))

    def require_active(self) -> None:
        """Raise a TimeoutError if the request was cancelled."""
        if self._is_cancelled:
            raise TimeoutError("the request was cancelled")

    def cancel(self) -> None:
        """End all waiting for the server."""
        with self._lock:
            self._is_cancelled = True
            for connection in self._sockets:
                with suppress(OSError):  # the server may have closed the connection already
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the duplicate descriptors; the connections themselves stay as they are."""
        with self._lock:
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()


class _Session(requests.Session):
    """A session that sends no password of its own accord and reads no body of a redirect."""

    def __init__(self) -> None:
        super().__init__()
        self.auth = _unchanged  # with an `auth`, requests does not read netrc; it still reads the proxies

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Remove the password before a redirect to another host; `requests` would look for another one."""
        before = str(response.request.url)
        after = str(prepared_request.url)
        if self.should_strip_auth(before, after):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return the target of a redirect; its body has no size limit and is not read."""
        if resp.is_redirect:
            resp._content = b""
            resp.close()
        return super().get_redirect_target(resp)


def _unchanged(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Add no authentication."""
    return request


class _WatchedAdapter(HTTPAdapter):
    """Sends each request once, over connections whose sockets can be shut down by a `RequestHandle`.

    Args:
        handles: The request of each thread; `urllib3` makes connections itself, and hands nothing to them.
        num_connections: Number of connections to a host that stay open.
    """

    def __init__(self, handles: Mapping[int, RequestHandle], num_connections: int) -> None:
        self._handles = handles
        super().__init__(pool_maxsize=num_connections)

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        """Return a connection pool, through a proxy or not, that makes watched connections."""
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        if not issubclass(pool.ConnectionCls, _Watched):
            pool.ConnectionCls = type(
                "WatchedConnection", (_Watched, pool.ConnectionCls), {"handles": self._handles}
            )
        return pool


class _OneLengthResponse(HTTPResponse):
    """A response with a single content length."""

    def begin(self) -> None:
        """Read the headers; unlike a later error of urllib3, an error here closes the connection."""
        super().begin()
        lengths = ",".join(self.headers.get_all("Content-Length", ()))
        if len({length.strip() for length in lengths.split(",")}) > 1:
            raise HTTPException("two content lengths in one response")


class _Watched:
    """Mixin for a connection of urllib3: the request that it carries can be cancelled at any time."""

    response_class = _OneLengthResponse
    sock: Any
    handles: Mapping[int, RequestHandle]

    def _new_conn(self) -> socket.socket:
        """Connect, before TLS and a tunnel through a proxy."""
        connection: socket.socket = super()._new_conn()  # type: ignore[misc]
        try:
            self.handles[threading.get_ident()].watch(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _tunnel(self) -> None:
        """Ask a proxy for a tunnel; headers that end because the request was cancelled do not count."""
        super()._tunnel()  # type: ignore[misc]
        self.handles[threading.get_ident()].require_active()

    def putrequest(self, *args: Any, **options: Any) -> None:
        """Start a request, perhaps over a connection that is already open."""
        if self.sock is not None:
            self.handles[threading.get_ident()].watch(self.sock)
        super().putrequest(*args, **options)  # type: ignore[misc]
