"""What stands before every route: connections and their patience, calm answers to what is not understood.

A page on this machine is a target of other pages in the same browser: a name that a stranger's page resolves
to this machine must not open it, so the Host is one of this machine's unless a host was chosen. Nothing but
our own files is loaded by the page, and nothing of it is framed, guessed or referred.

A connection waits from its beginning, and from the end of every answer, until the whole head of a request is
there; while it waits, it counts. One that waits too long is ended. When too many wait, of one address or in
all, the one that has waited longest gives way, so whoever asks at once is heard, however many are silent.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import h11
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from v8.app.answers import fault, written
from v8.errors import shown

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
MOST_AT_ONCE: Final = 128
"""Requests that are answered or wait at the same time."""
_MOST_ADDRESS: Final = 2_048
"""Letters of a path or a query."""
_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors "
)
PATIENCE_S: Final = 15.0
"""How long a connection may wait, in seconds."""
TAKING_S: Final = 60.0
"""How long an answer may take to be made and taken, in seconds."""
MOST_WAITING: Final = 384
"""Connections that wait; fewer where a process may have few files open."""
QUEUE: Final = 1_024
"""Callers whom the system lets wait until they are accepted."""
TOLD_EVERY_S: Final = 600.0
"""The operator reads of the same trouble once in so many seconds."""
_SHARE_OF_FILES: Final = 1 / 4
_SHARE_OF_ADDRESS: Final = 2 / 3
_PAUSE_S: Final = 0.05
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
Tell = Callable[[str], None]


def json_answer(content: bytes | dict[str, Any], status: int = 200, **headers: str) -> Response:
    """Answer with JSON; underscores of header names are dashes."""
    body = content if isinstance(content, bytes) else written(content)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status, {"cache-control": "no-store", **named}, "application/json")


@dataclass(frozen=True)
class Policy:
    """Names that the header Host may have, without a port, None for any; origins that may frame the page."""

    hosts: frozenset[str] | None = LOOPBACK_NAMES
    frames: tuple[str, ...] = ()


class Guard:
    """Wraps an application by a policy; every answer carries its `headers`."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._hosts, self._num_open = app, policy.hosts, 0
        frames = " ".join(policy.frames) or "'none'"
        self.headers: Final = (
            (b"content-security-policy", f"{_POLICY}{frames}".encode("ascii")),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.headers]
            await send(message)

        self._num_open += 1
        try:
            await (self._refusal(scope) or self._app)(scope, receive, send_guarded)
        finally:
            self._num_open -= 1

    def _refusal(self, scope: Scope) -> Response | None:
        if self._num_open > MOST_AT_ONCE:
            content = fault("the server", f"answers {MOST_AT_ONCE} requests at once", "more", "Ask again")
            return json_answer(content, 503, retry_after="2")
        if {name for name, _ in scope["headers"]} >= _LENGTHS:
            # Somebody before us may have seen another end of it, and another request after that.
            content = fault("header Content-Length", "stands beside no Transfer-Encoding", "both", "Send one")
            return json_answer(content, 400, connection="close")
        if scope["method"] not in ("GET", "HEAD"):
            content = fault("method", "is GET or HEAD", shown(scope["method"], 20), "Ask with GET")
            return json_answer(content, 405, allow="GET, HEAD")
        if max(len(scope["raw_path"] or b""), len(scope["query_string"])) > _MOST_ADDRESS:
            content = fault("address", f"has at most {_MOST_ADDRESS:,} letters", "more", "Ask for less")
            return json_answer(content, 400)
        if self._hosts is not None and _host(scope["headers"]) not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            content = fault("header Host", f"is one of {names}", "another", "Open it by such a name")
            return json_answer(content, 400)
        return None


def _host(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the one Host of a request in small letters, without its port.

    >>> _host([(b"host", b"LocalHost:8008")]), _host([(b"host", b"[::1]:80")]), _host([])
    ('localhost', '[::1]', None)
    """
    found = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
    if len(found) != 1:
        return None
    name, colon, port = found[0].rpartition(":")
    return name if colon and port.isdigit() else found[0]


class Crowd:
    """The connections that wait, the longest first. Of too many is told once in `TOLD_EVERY_S`.

    At `most` so many may wait, two thirds of them of one address; None is as many as this process may.
    `at_once` callers are accepted in a row. Three such rows at most come between being accepted and being
    read, so whoever asks at once is read before it would give way.
    """

    def __init__(
        self, tell: Tell, most: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell, self._clock, self._next_s = tell, clock, -1.0
        self._most = _most_waiting() if most is None else most
        self._most_of_address = int(self._most * _SHARE_OF_ADDRESS)
        self.at_once: Final = max(1, self._most_of_address // 5)
        self._waiting = dict[Connection, str]()  # with the address of each

    def __contains__(self, one: Connection) -> bool:
        """Tell whether a connection waits."""
        return one in self._waiting

    def enter(self, one: Connection) -> None:
        """Let a connection wait; if there are too many, the one that has waited longest gives way."""
        address = one.client[0] if one.client else ""
        self._waiting[one] = address
        if list(self._waiting.values()).count(address) > self._most_of_address:
            self.give_way(f"{self._most_of_address} connections of one address", address)
        elif len(self._waiting) > self._most:
            self.give_way(f"{self._most} connections")

    def leave(self, one: Connection) -> None:
        """Count a connection no more."""
        self._waiting.pop(one, None)

    def give_way(self, room: str, address: str | None = None) -> bool:
        """Close the connection that has waited longest, of an address or of all; tell whether there was one.

        The operator reads what there is `room` for.
        """
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + TOLD_EVERY_S
            self._tell(f"There is room for {room} that ask nothing; those that wait longest are closed.")
        found = next((each for each, other in self._waiting.items() if address in (None, other)), None)
        if found is not None:
            self.leave(found)
            found.transport.abort()
        return found is not None


class Listener(socket.socket):
    """A socket that listens, and copes with callers for whom the process has no file left.

    A caller who is not accepted wakes the server again and again. So a connection that waits gives way; where
    none waits, a file is given up that was kept for this, and the caller is accepted and sent away.
    """

    def __init__(self, family: int, kind: int, protocol: int, crowd: Crowd) -> None:
        super().__init__(family, kind, protocol)
        self.crowd: Final = crowd
        self._reserve: int | None = os.open(os.devnull, os.O_RDONLY)

    def listen(self, backlog: int = QUEUE, /) -> None:
        """Let `QUEUE` callers wait at least; asyncio asks for as many as it accepts in a row."""
        super().listen(max(backlog, QUEUE))

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a caller; BlockingIOError if there is none, or not at this moment."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
        if not self.crowd.give_way("as many connections as the process may have files (ulimit -n)"):
            self._give_up_reserve()
            try:
                super().accept()[0].close()
                self._reserve = os.open(os.devnull, os.O_RDONLY)
            except OSError:  # the whole system lacks what it takes: all that helps is to ask less often
                time.sleep(_PAUSE_S)
        raise BlockingIOError

    def close(self) -> None:
        """Close it, and the file in reserve."""
        super().close()
        self._give_up_reserve()

    def _give_up_reserve(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None


class Connection(H11Protocol):
    """One connection of a crowd, with its patience; `headers` are what every answer carries."""

    def __init__(self, *, crowd: Crowd, headers: Sequence[tuple[bytes, bytes]], **options: Any) -> None:
        super().__init__(**options)
        self._crowd, self._headers = crowd, headers
        self._end: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn does
        """Begin to wait."""
        super().connection_made(transport)
        self._attend()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        self._let_go()

    def data_received(self, data: bytes) -> None:
        """Take what came; a whole head ends the wait."""
        super().data_received(data)
        if self._is_asked and self in self._crowd:
            self._attend()

    def on_response_complete(self) -> None:
        """Begin to wait anew, unless the next request is there."""
        super().on_response_complete()
        self._attend()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP as everything else is refused."""
        self._refuse(400, fault("request", "is HTTP/1.1", "something else", "Ask with an HTTP client"))

    @property
    def _is_asked(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _attend(self) -> None:
        """Give the connection its time: to ask, or to take the answer."""
        self._let_go()
        is_owed = self._is_asked or self.transport.get_write_buffer_size() > 0
        self._end = self.loop.call_later(TAKING_S if is_owed else PATIENCE_S, self._end_patience)
        if not self._is_asked:
            self._crowd.enter(self)

    def _let_go(self) -> None:
        self._crowd.leave(self)
        if self._end is not None:
            self._end.cancel()

    def _end_patience(self) -> None:
        has_begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if has_begun and not self.transport.get_write_buffer_size():
            rule = f"is sent within {PATIENCE_S:g} s"
            self._refuse(408, fault("request", rule, "a part of one", "Send it at once"))
        else:
            self.transport.abort()

    def _refuse(self, status: int, content: dict[str, Any]) -> None:
        """Answer for the application, which never saw the request, and end the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # in the middle of an answer there is no other
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
        response = json_answer(content, status, connection="close")
        headers = [*self.server_state.default_headers, *response.raw_headers, *self._headers]
        head = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _most_waiting() -> int:
    """Count the connections that may wait in a process that may have so many files open."""
    if sys.platform == "win32":
        return MOST_WAITING
    import resource  # noqa: PLC0415 - POSIX only

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    has_end = soft != resource.RLIM_INFINITY
    return min(MOST_WAITING, int(soft * _SHARE_OF_FILES)) if has_end else MOST_WAITING
