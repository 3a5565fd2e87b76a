"""Connections with time limits, a limit on idle ones, the socket that accepts them, and the server.

A connection is idle from its beginning, and from the end of every response, until the complete head of a
request has arrived. An idle connection is closed after `IDLE_TIMEOUT_S`. If too many are idle, of one address
or in all, the one that has been idle longest is closed. So a client that sends its request at once is served,
however many others are silent.
"""

import errno
import math
import os
import socket
import sys
import time
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from io import FileIO
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from v8.annexes.live.app.guard import AccessMiddleware, error_response
from v8.base.errors import ProfileError
from v8.base.process import stop_signals_handled_by

IDLE_TIMEOUT_S: Final = 15.0  # how long a connection may be idle, in seconds
RESPONSE_TIMEOUT_S: Final = 60.0  # how long a response may take to be made and received, in seconds
MAX_IDLE_CONNECTIONS: Final = 384  # fewer if the process may have few files open
BACKLOG: Final = 1_024  # clients that the system lets wait until they are accepted
NOTIFY_INTERVAL_S: Final = 600.0  # the operator is notified of the same trouble once in so many seconds
SHUTDOWN_S: Final = 1.0  # how long open responses may take when the server stops, in seconds
_SHARE_OF_FILES: Final = 1 / 4
_SHARE_OF_ADDRESS: Final = 2 / 3
_PAUSE_S: Final = 0.05
_NO_FILES_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
Notify = Callable[[str], None]
"""Shows the operator of the server a line."""


class ConnectionLimiter:
    """Closes the longest idle connections if there are too many.

    Connections are accepted in batches of `accept_batch`. At most three batches come between the acceptance
    of a connection and its first read, so a client that sends its request at once is read before its
    connection could be closed.

    Args:
        notify: Is called once in `NOTIFY_INTERVAL_S` if connections are closed.
        max_idle: Idle connections, two thirds of them of one address; None for as many as the process may.
        clock: Returns seconds since any moment.
    """

    def __init__(
        self, notify: Notify, max_idle: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._notify = notify
        self._clock = clock
        self._next_notify_s = -1.0
        self._max_idle = _max_idle_connections() if max_idle is None else max_idle
        self._max_per_address = int(self._max_idle * _SHARE_OF_ADDRESS)
        self.accept_batch: Final = max(1, self._max_per_address // 5)
        self._addresses = dict[Connection, str]()
        """The idle connections, the longest idle first, and the address of each."""

    def __contains__(self, connection: "Connection") -> bool:
        """Return whether a connection is idle."""
        return connection in self._addresses

    def add(self, connection: "Connection") -> None:
        """Count a connection as idle; if there are too many, close the one that has been idle longest."""
        address = connection.client[0] if connection.client else ""
        self._addresses[connection] = address
        num_of_address = list(self._addresses.values()).count(address)
        if num_of_address > self._max_per_address:
            self.close_oldest(f"more than {self._max_per_address} of one address", address)
        elif len(self._addresses) > self._max_idle:
            self.close_oldest(f"more than {self._max_idle}")

    def remove(self, connection: "Connection") -> None:
        """Count a connection as idle no more."""
        self._addresses.pop(connection, None)

    def close_oldest(self, limit: str, address: str | None = None) -> bool:
        """Close the connection that has been idle longest; return whether there was one.

        Args:
            limit: The limit that is exceeded, as the operator reads it.
            address: Only a connection of this address; of any when None.
        """
        if self._clock() >= self._next_notify_s:
            self._next_notify_s = self._clock() + NOTIFY_INTERVAL_S
            self._notify(
                f"Too many idle connections ({limit}): those that have been idle longest are closed."
            )
        for connection, connection_address in self._addresses.items():
            if address in (None, connection_address):
                self.remove(connection)
                connection.transport.abort()
                return True
        return False


class ListeningSocket(socket.socket):
    """A listening socket that copes with clients for whom the process has no file left.

    A client that is not accepted wakes the server again and again. So an idle connection is closed; if there
    is none, a file that was reserved for this is closed, and the client is accepted and disconnected.
    """

    def __init__(self, family: int, kind: int, protocol: int, limiter: ConnectionLimiter) -> None:
        super().__init__(family, kind, protocol)
        self.limiter: Final = limiter
        self._reserved_file = FileIO(os.devnull)

    def listen(self, backlog: int = BACKLOG, /) -> None:
        """Let at least `BACKLOG` clients wait; asyncio asks for as many as it accepts in a batch."""
        super().listen(max(backlog, BACKLOG))

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a client; BlockingIOError if there is none, or it cannot be accepted now."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _NO_FILES_LEFT:
                raise
        if not self.limiter.close_oldest("as many as the process may have files, see ulimit -n"):
            self._reserved_file.close()
            try:
                super().accept()[0].close()
                self._reserved_file = FileIO(os.devnull)
            except OSError:  # the whole system lacks resources: all that helps is to try less often
                time.sleep(_PAUSE_S)
        raise BlockingIOError

    def close(self) -> None:
        """Close the socket and the reserved file."""
        super().close()
        self._reserved_file.close()


class Connection(H11Protocol):
    """One connection with its time limits.

    Args:
        limiter: Limits the idle connections.
        headers: Headers of every response.
        options: As for uvicorn's protocol.
    """

    def __init__(
        self, *, limiter: ConnectionLimiter, headers: Sequence[tuple[bytes, bytes]], **options: Any
    ) -> None:
        super().__init__(**options)
        self._limiter = limiter
        self._headers = headers
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn does
        """Start the timer."""
        super().connection_made(transport)
        self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        super().connection_lost(exc)
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        """Take data; a complete head ends the idle time."""
        super().data_received(data)
        if self._has_request and self in self._limiter:
            self._restart_timer()

    def on_response_complete(self) -> None:
        """Restart the timer: the connection is idle, unless the next request has arrived already."""
        super().on_response_complete()
        self._restart_timer()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP with an error like any other."""
        self._refuse(400, rule="is HTTP/1.1", got="something else", fix="Ask with an HTTP client")

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _restart_timer(self) -> None:
        """Give the client its time: to send a request, or to receive the response."""
        self._stop_timer()
        is_responding = self._has_request or self.transport.get_write_buffer_size() > 0
        timeout_s = RESPONSE_TIMEOUT_S if is_responding else IDLE_TIMEOUT_S
        self._timer = self.loop.call_later(timeout_s, self._on_timeout)
        if not self._has_request:
            self._limiter.add(self)

    def _stop_timer(self) -> None:
        self._limiter.remove(self)
        if self._timer is not None:
            self._timer.cancel()

    def _on_timeout(self) -> None:
        has_partial_request = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if has_partial_request and not self.transport.get_write_buffer_size():
            self._refuse(
                408,
                rule=f"is sent within {IDLE_TIMEOUT_S:g} s",
                got="a part of one",
                fix="Send it at once",
            )
        else:
            self.transport.abort()

    def _refuse(self, status: int, *, rule: str, got: str, fix: str) -> None:
        """Answer a request that the application never saw, and close the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # a response is under way, and there can be no second one
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
        response = error_response(status, where="request", rule=rule, got=got, fix=fix, connection="close")
        headers = [*self.server_state.default_headers, *response.raw_headers, *self._headers]
        head = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _max_idle_connections() -> int:
    """Return how many connections may be idle, by the number of files that the process may have open."""
    max_files = -1 if sys.platform == "win32" else os.sysconf("SC_OPEN_MAX")  # -1: no limit
    if max_files < 0:
        return MAX_IDLE_CONNECTIONS
    return min(MAX_IDLE_CONNECTIONS, int(max_files * _SHARE_OF_FILES))


def open_listener(host: str, port: int, notify: Notify = lambda text: None) -> ListeningSocket:
    """Return a listening socket.

    Args:
        host: Name or address of this machine.
        port: The port; 0 takes any free one.
        notify: Is called if there are too many idle connections.

    Raises:
        ProfileError: If the address is none of this machine, or the port is not free.
    """
    try:
        address_info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = address_info[0]
        # The protocol is named: asyncio sends at once only on sockets that say they are TCP; on others every
        # answer of two parts waits 40 ms for the reader's acknowledgement of the first.
        listener = ListeningSocket(family, kind, protocol, ConnectionLimiter(notify))
        with ExitStack() as on_failure:
            on_failure.callback(listener.close)
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            on_failure.pop_all()
        return listener
    except (OSError, OverflowError) as error:
        raise ProfileError(
            where=f"param:host {host} param:port {port}",
            rule="is an address of this machine and a port that is free",
            got=getattr(error, "strerror", None) or type(error).__name__,
            fix="Stop what listens there, or choose another param:port; 0 takes any that is free",
        ) from error


class _Server(uvicorn.Server):
    """Ends at the signals that end every command, and at no others."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with stop_signals_handled_by(self.handle_exit):
            yield


def make_server(app: AccessMiddleware, limiter: ConnectionLimiter) -> uvicorn.Server:
    """Return the server of an application: `run(sockets=[...])`, until `should_exit`.

    Nothing that clients send is logged; only the limiter of the sockets notifies the operator.
    """
    connection: Any = partial(Connection, limiter=limiter, headers=app.headers)
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=connection,
        proxy_headers=False,  # anybody can write them; a proxy, if there is one, has better limits of its own
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=16_384,
        backlog=limiter.accept_batch,
        timeout_keep_alive=math.ceil(IDLE_TIMEOUT_S),
        timeout_graceful_shutdown=math.ceil(SHUTDOWN_S),
    )
    return _Server(config)
