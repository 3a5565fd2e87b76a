"""How the Hub's client speaks: plain HTTP with time limits, watched, and left when next to nothing moves.

The client is `huggingface_hub`, unmodified, but four of its habits are not wanted here.

- It waits for ever. Here every request has a limit, and a call during which fewer than `SLOWEST_BYTES_S`
  move for that long is given up; the user sees the silence counted.
- It retries some requests and not others, and once the answer to a commit is lost it can commit twice. Here
  it never retries: `v8.hub.client.RetryPolicy` does, after looking at what is there.
- It moves large files by xet where that is installed: a client in Rust that takes no limit, tells nothing and
  cannot be interrupted. Here large files go by LFS and come by plain downloads, which every Hub offers; xet
  saves traffic by deduplication, and models of a few megabytes share nothing.
- Its uploads wait for their threads even when the user presses Ctrl-C. Here a call runs in a thread that can
  be left, and so does every request of it: leaving ends all waiting, and no request is begun any more.

It speaks `httpx` in its first major version and `httpx2` in its second, and neither is named here.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, TypeVar

from huggingface_hub import close_session, constants, get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

SLOWEST_BYTES_S: Final = 1_000
"""A transfer that is slower, in bytes a second, counts as silence as far as it is."""

TOLD_EVERY_S: Final = 10
"""Silence is told about every so many seconds."""

_GRACE_S: Final = 3.0
"""A request that ends by its own limit says more than a call that is left."""

_SHORTEST_S: Final = 1.0
"""Every try may be silent for this long, in seconds, however late it begins."""

_TO_LEAVE_S: Final = 5.0
"""A call that is left ends within this, in seconds, unless it waits for another process."""

_PIECE_BYTES: Final = 1 << 16
_RESET: Final = re.compile(r"\bt\s*=\s*(\d+)")
_BUSY: Final = frozenset({408, 425, 429})
_ONE_AT_A_TIME: Final = threading.Lock()

HTTP: Final = import_module(HfHubHTTPError.__bases__[0].__module__)
"""What the client speaks HTTP with."""

Found = TypeVar("Found")


class PassingTroubleError(Exception):
    """The Hub did not answer, or asked to come back later. What it did meanwhile has to be looked at.

    Args:
        text: What happened, as a clause without secrets.
        wait_s: How long the Hub asks to wait, in seconds; None when it did not say.
    """

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.text, self.wait_s = text, wait_s


class StuckError(Exception):
    """A call that was left and goes on: another process holds the file it wants."""


class Traffic:
    """What moves between this process and the Hub, and for how long next to nothing did.

    Args:
        timeout_s: Longest silence, in seconds.
        tell: What is told about silence.

    Attributes:
        succeeded: Requests that succeeded by their method: each PUT has stored a large file.
    """

    def __init__(self, timeout_s: float, tell: Callable[[str], None]) -> None:
        self.timeout_s, self.succeeded = timeout_s, Counter[str]()
        self._tell, self._end_s = tell, math.inf
        self._call = _Call(timeout_s)

    @contextmanager
    def ending_within(self, seconds: float) -> Iterator[None]:
        """Shorten the silence of the calls in the block, so that one that is silent ends within this time."""
        before, self._end_s = self._end_s, time.monotonic() + seconds
        try:
            yield
        finally:
            self._end_s = before

    def call(self, where: str, ask: Callable[[], Found]) -> Found:
        """Return or raise what `ask` does in a thread of its own; one call at a time.

        What is told about silence begins with `where`, the repository.

        Raises:
            PassingTroubleError: If next to nothing moves for too long.
            StuckError: If it cannot be left either.
        """
        left_s = self._end_s - time.monotonic() - _GRACE_S
        call = self._call = _Call(min(self.timeout_s, max(_SHORTEST_S, left_s)))
        answer = _in_thread(ask)
        try:
            while not wait([answer], timeout=1).done:
                if call.silent_s() >= call.timeout_s + _GRACE_S:
                    call.leave()
                    if not wait([answer], timeout=_TO_LEAVE_S).done:
                        raise StuckError
                    raise PassingTroubleError(f"{call.silence()} for {call.timeout_s:.3g} s")
                if told := call.next_told():
                    self._tell(f"{where}: {call.silence()} for {told} s of at most {call.timeout_s:.3g} s")
        finally:
            call.leave()  # after an interruption nothing of it may go on
        return answer.result()

    def send(self, send: Callable[..., Any], request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request in a thread of its own; raise instead of an answer that means to try again.

        Raises:
            PassingTroubleError: If there is no answer, or the Hub is busy, or the call was left.
        """
        call = self._call
        call.check(is_beginning=True)
        # Some calls of the Hub's client ask for no limit; there is one for them, too.
        limits = dict.fromkeys(("connect", "read", "write", "pool"), call.timeout_s)
        request.extensions = {**request.extensions, "timeout": limits}
        request.stream = _Watched(request.stream, call)

        def answered() -> Any:
            response = send(request, stream=True, **options)
            response.stream = _Watched(response.stream, call)
            if _is_trouble(response) or call.is_left.done():
                response.close()
            elif not stream:
                response.read()
                call.moved(None)
            return response

        answer = _in_thread(answered)
        wait([answer, call.is_left], return_when=FIRST_COMPLETED)
        call.check()
        return self._checked(answer, call)

    def _checked(self, answer: Future[Any], call: _Call) -> Any:
        try:
            response = answer.result()
        except HTTP.TransportError as error:
            trouble = PassingTroubleError(f"no answer ({type(error).__name__})")
        else:
            if not _is_trouble(response):
                self.succeeded[response.request.method] += response.is_success
                return response
            trouble = PassingTroubleError(f"status {response.status_code}", _asked_wait_s(response))
        call.trouble = trouble
        raise trouble  # outside of the handler, so that no request and no token hangs on it


class _Call:
    """One call: when something last moved, what failed of it, and whether it was left.

    Args:
        timeout_s: Longest silence, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.is_left: Future[None] = Future()
        self.trouble: PassingTroubleError | None = None
        self._moved_at = self._heard_at = time.monotonic()
        self._told_s = 0

    def moved(self, num_bytes: int | None) -> None:
        """Note that so many bytes moved; None for a whole request."""
        self._heard_at = now = time.monotonic()
        paid_s = self.silent_s() if num_bytes is None else num_bytes / SLOWEST_BYTES_S
        self._moved_at = min(now, self._moved_at + paid_s)

    def silent_s(self) -> float:
        """Return for how long next to nothing moved, in seconds."""
        return time.monotonic() - self._moved_at

    def silence(self) -> str:
        """Say how little moves."""
        is_drip = self._heard_at > self._moved_at
        return f"fewer than {SLOWEST_BYTES_S:,} bytes a second moved" if is_drip else "no bytes moved"

    def next_told(self) -> int | None:
        """Return the seconds of silence to tell now; None when they have been told, or are too few."""
        whole_s = int(self.silent_s()) // TOLD_EVERY_S * TOLD_EVERY_S
        is_new, self._told_s = whole_s > self._told_s, whole_s
        return whole_s if is_new else None

    def leave(self) -> None:
        """End all waiting of this call, and let it begin nothing more."""
        if not self.is_left.done():
            self.is_left.set_result(None)

    def check(self, *, is_beginning: bool = False) -> None:
        """Raise PassingTroubleError when the call was left, or to begin a request after one that failed.

        Of several requests at once any may be heard first, so each tells what happened.
        """
        if is_beginning and self.trouble:
            raise PassingTroubleError(self.trouble.text, self.trouble.wait_s)
        if self.is_left.done():
            raise PassingTroubleError("the call was given up")


class _Watched(HTTP.SyncByteStream):  # type: ignore[name-defined, misc]
    """A body, whose every piece is noted."""

    def __init__(self, body: Any, call: _Call) -> None:
        self._body, self._call = body, call

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._body:
                for start in range(0, len(piece), _PIECE_BYTES):
                    self._call.check()
                    yield piece[start : start + _PIECE_BYTES]
                    self._call.moved(min(_PIECE_BYTES, len(piece) - start))
        except HTTP.TimeoutException as error:
            trouble = PassingTroubleError(f"no answer ({type(error).__name__})")
        else:
            return
        raise trouble  # which the client does not retry

    def close(self) -> None:
        """Close the body, and the connection with it."""
        if hasattr(self._body, "close"):
            self._body.close()


@contextmanager
def strict_client(
    timeout_s: float, tell: Callable[[str], None], *, shows_progress: bool = False
) -> Iterator[Traffic]:
    """Make the client behave as said at the top of this module, until the block ends.

    The client is one for the whole process, so threads wait here for each other. It stays the one that the
    user's own factory made, with its proxies and certificates; the next one is as before. Progress bars are
    for terminals only.
    """
    with _ONE_AT_A_TIME:
        client, traffic = get_session(), Traffic(timeout_s, tell)
        had_bars, had_no_xet = not are_progress_bars_disabled(), constants.HF_HUB_DISABLE_XET
        send = client.send
        client.send = lambda *request, **options: traffic.send(send, *request, **options)  # type: ignore[method-assign]
        constants.HF_HUB_DISABLE_XET = True
        if not shows_progress:
            disable_progress_bars()
        try:
            yield traffic
        finally:
            constants.HF_HUB_DISABLE_XET = had_no_xet
            if had_bars:
                enable_progress_bars()
            close_session()


def _in_thread(ask: Callable[[], Found]) -> Future[Found]:
    """Run a function in a thread that nobody has to wait for, not even the end of the process."""
    answer: Future[Found] = Future()

    def settle() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            answer.set_exception(error)

    threading.Thread(target=settle, daemon=True).start()
    return answer


def _is_trouble(response: Any) -> bool:
    return response.status_code in _BUSY or response.status_code >= 500


def _asked_wait_s(response: Any) -> float | None:
    """Return the pause the Hub asks for, from `Retry-After` or its rate limit header, in seconds."""
    retry_after = response.headers.get("retry-after", "").strip()[:9]
    if retry_after.isdecimal():
        return float(retry_after)
    reset = _RESET.search(response.headers.get("ratelimit", "")) if response.status_code == 429 else None
    return float(reset[1]) if reset else None
