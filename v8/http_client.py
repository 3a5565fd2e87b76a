"""The one HTTP client of v8: bounded in time as a whole, no password that nobody named, proxies as usual.

- A request and the reading of its answer end within a limit of seconds, whatever the server does: it may
  send its header byte by byte, or `100 Continue` for ever. `v8.net.call_within` says how.
- `requests` reads the passwords of `~/.netrc`, its `default` entry too, and sends them to every host. They
  are meant for other programs: here a password is sent only where the address of a source names one.
- Proxies and certificates come from the environment (HTTPS_PROXY, NO_PROXY, REQUESTS_CA_BUNDLE ...).
"""

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, Self, TypeVar

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from v8.net import call_within

BROKEN: Final = (OSError, HTTPError, HTTPException, ValueError)
"""What a broken answer raises: those of requests are OSErrors, and a bad header may raise any of them."""

Auth = tuple[str, str]  # user and password
Answered = TypeVar("Answered")


@dataclass(frozen=True, kw_only=True)
class RequestTimes:
    """How long a request may take, in seconds."""

    connect_s: float  # until a connection to one address of the host stands
    silence_s: float  # between two pieces of an answer
    all_s: float  # from the look-up of the host's name to the last byte that is read


class HttpClient:
    """Sends requests from any number of threads over connections that are kept; close it, or use a block.

    Args:
        headers: Sent with every request.
        num_connections: How many connections to a host are kept open.
        max_redirects: How often an answer may lead to another address; 0 returns the first answer as it is.
    """

    def __init__(
        self, headers: Mapping[str, str], *, num_connections: int = 1, max_redirects: int = 0
    ) -> None:
        self._session = _Session()
        self._session.headers.update(headers)
        self._follows = max_redirects > 0
        if self._follows:
            self._session.max_redirects = max_redirects
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _WatchedAdapter(pool_maxsize=num_connections))

    def ask(
        self,
        method: str,
        url: str,
        read: Callable[[requests.Response], Answered],
        *,
        times: RequestTimes,
        auth: Auth | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        handle: "RequestHandle | None" = None,
    ) -> Answered:
        """Send a request and return what `read` makes of its answer, whose body is not read yet.

        A thread that has the `handle`, a new one for each request, may end it. Raises what `read` raises, and
        one of `BROKEN` if the answer is broken or takes too long.
        """
        request = handle or RequestHandle()
        limits = (times.connect_s, times.silence_s)

        def call() -> Answered:
            _CURRENT.set(request)
            try:
                with self._session.request(
                    method,
                    url,
                    data=body,
                    headers=headers,
                    auth=auth,
                    timeout=limits,
                    allow_redirects=self._follows,
                    stream=True,
                ) as answer:
                    answered = read(answer)
                request.require_wanted()  # without a length, an answer that was cut looks like a whole one
                return answered
            finally:
                request.close()

        return call_within(times.all_s, call, request.cut)

    def close(self) -> None:
        """Close the connections that are kept."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(eq=False)
class RequestHandle:
    """Ends one request from another thread, before or while it is sent.

    It holds a second descriptor of each socket that carries the request. The first moves into the TLS
    connection while that is made, and out of reach; a shutdown by the second ends every wait of the first.
    """

    _sockets: list[socket.socket] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_cut: bool = False

    def watch(self, connected: socket.socket) -> None:
        """Take a second descriptor; refuse a connection that is made after the request was cut."""
        with self._lock:
            self.require_wanted()
            self._sockets.append(socket.fromfd(connected.fileno(), socket.AF_INET, socket.SOCK_STREAM))

    def require_wanted(self) -> None:
        """Refuse to go on after the request was cut, where the end of an answer looks like a whole one."""
        if self._is_cut:
            raise TimeoutError("the request was given up")

    def cut(self) -> None:
        """End all waiting for the server."""
        with self._lock:
            self._is_cut = True
            for connected in self._sockets:
                with suppress(OSError):  # the server may have hung up
                    connected.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the second descriptors back; the connections stay as they are."""
        with self._lock:
            for connected in self._sockets:
                connected.close()
            self._sockets.clear()


_CURRENT: Final[ContextVar[RequestHandle]] = ContextVar("current_request")


class _Session(requests.Session):
    """Sends no password that the caller did not name, and reads nothing of an answer that leads elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.auth = _unchanged  # while there is one, no netrc is looked up; proxies still are

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Take the password off before a redirect to another host; `requests` would look for another one."""
        before = str(response.request.url)
        after = str(prepared_request.url)
        if self.should_strip_auth(before, after):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return where a redirect leads; what else its answer holds has no limit, and is not read."""
        if resp.is_redirect:
            resp._content = b""
            resp.close()
        return super().get_redirect_target(resp)


def _unchanged(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Authenticate by nothing."""
    return request


class _WatchedAdapter(HTTPAdapter):
    """Asks once, over connections whose sockets are watched."""

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        """Return a pool, of a proxy or not, that makes watched connections."""
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        if not issubclass(pool.ConnectionCls, _Watched):
            pool.ConnectionCls = type("WatchedConnection", (_Watched, pool.ConnectionCls), {})
        return pool


class _OneLengthResponse(HTTPResponse):
    """An answer that says once how long it is."""

    def begin(self) -> None:
        """Read the headers; an error here closes the connection, a later one of urllib3 would not."""
        super().begin()
        lengths = ",".join(self.headers.get_all("Content-Length", ()))
        if len({length.strip() for length in lengths.split(",")}) > 1:
            raise HTTPException("two lengths of one answer")


class _Watched:
    """What a connection of urllib3 does more: the request that it carries can be cut at any time."""

    response_class = _OneLengthResponse
    sock: Any

    def _new_conn(self) -> socket.socket:
        """Connect, before TLS and a tunnel through a proxy."""
        connected: socket.socket = super()._new_conn()  # type: ignore[misc]
        try:
            _CURRENT.get().watch(connected)
        except BaseException:
            connected.close()
            raise
        return connected

    def _tunnel(self) -> None:
        """Ask a proxy for a tunnel; headers that end because the request was cut are none."""
        super()._tunnel()  # type: ignore[misc]
        _CURRENT.get().require_wanted()

    def putrequest(self, *args: Any, **options: Any) -> None:
        """Begin a request, perhaps over a connection that was kept."""
        if self.sock is not None:
            _CURRENT.get().watch(self.sock)
        super().putrequest(*args, **options)  # type: ignore[misc]
