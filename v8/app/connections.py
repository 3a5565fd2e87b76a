"""Connections, their patience, and what listens for them.

A connection waits from its beginning, and from the end of every answer, until the whole head of a request is
there; while it waits, it counts. One that waits too long is ended. When too many wait, of one address or in
all, the one that has waited longest gives way, so whoever asks at once is heard, however many are silent.
"""

import errno
import os
import socket
import sys
import time
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Sequence
from io import FileIO
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from v8.app.guard import refused

PATIENCE_S: Final = 15.0  # how long a connection may wait, in seconds
TAKING_S: Final = 60.0  # how long an answer may take to be made and taken, in seconds
MOST_WAITING: Final = 384  # connections that wait; fewer where a process may have few files open
QUEUE: Final = 1_024  # callers whom the system lets wait until they are accepted
TOLD_EVERY_S: Final = 600.0  # the operator reads of the same trouble once in so many seconds
_SHARE_OF_FILES: Final = 1 / 4
_SHARE_OF_ADDRESS: Final = 2 / 3
_PAUSE_S: Final = 0.05
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
Tell = Callable[[str], None]


class Crowd:
    """The connections that wait, the longest first. Of too many is told once in `TOLD_EVERY_S`.

    At `most` so many may wait, two thirds of them of one address; None is as many as this process may.
    `at_once` callers are accepted in a row. Three such rows at most come between being accepted and being
    read, so whoever asks at once is read before it would give way.
    """

    def __init__(
        self, tell: Tell, most: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._next_s = -1.0
        self._most = _most_waiting() if most is None else most
        self._most_of_address = int(self._most * _SHARE_OF_ADDRESS)
        self.at_once: Final = max(1, self._most_of_address // 5)
        self._waiting = dict[Connection, str]()  # with the address of each

    def __contains__(self, one: "Connection") -> bool:
        """Tell whether a connection waits."""
        return one in self._waiting

    def enter(self, one: "Connection") -> None:
        """Let a connection wait; if there are too many, the one that has waited longest gives way."""
        address = one.client[0] if one.client else ""
        self._waiting[one] = address
        if list(self._waiting.values()).count(address) > self._most_of_address:
            self.give_way(f"{self._most_of_address} connections of one address", address)
        elif len(self._waiting) > self._most:
            self.give_way(f"{self._most} connections")

    def leave(self, one: "Connection") -> None:
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
        self._reserve = FileIO(os.devnull)

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
            self._reserve.close()
            try:
                super().accept()[0].close()
                self._reserve = FileIO(os.devnull)
            except OSError:  # the whole system lacks what it takes: all that helps is to ask less often
                time.sleep(_PAUSE_S)
        raise BlockingIOError

    def close(self) -> None:
        """Close it, and the file in reserve."""
        super().close()
        self._reserve.close()


class Connection(H11Protocol):
    """One connection of a crowd, with its patience; `headers` are what every answer carries."""

    def __init__(self, *, crowd: Crowd, headers: Sequence[tuple[bytes, bytes]], **options: Any) -> None:
        super().__init__(**options)
        self._crowd = crowd
        self._headers = headers
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
        self._refuse(400, "is HTTP/1.1", "something else", "Ask with an HTTP client")

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
            self._refuse(408, rule, "a part of one", "Send it at once")
        else:
            self.transport.abort()

    def _refuse(self, status: int, rule: str, got: str, fix: str) -> None:
        """Answer for the application, which never saw the request, and end the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # in the middle of an answer there is no other
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
        response = refused(status, "request", rule, got, fix, connection="close")
        headers = [*self.server_state.default_headers, *response.raw_headers, *self._headers]
        head = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _most_waiting() -> int:
    """Count the connections that may wait in a process that may have so many files open."""
    most_files = -1 if sys.platform == "win32" else os.sysconf("SC_OPEN_MAX")  # -1: without end
    return MOST_WAITING if most_files < 0 else min(MOST_WAITING, int(most_files * _SHARE_OF_FILES))
