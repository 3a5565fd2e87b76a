"""Who is told that something outside makes us wait: a display while a run reads, standard error elsewhere.

Whoever shows things opens `told_of_waiting`; whoever waits calls `tell_waiting` from the thread that asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

Tell = Callable[[str], None]

_TELL: Final[ContextVar[Tell]] = ContextVar("tell_waiting", default=lambda text: None)


@contextmanager
def told_of_waiting(tell: Tell) -> Iterator[None]:
    """Let `tell` get every sentence about waiting until the block ends."""
    token = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(token)


def tell_waiting(text: str) -> None:
    """Tell for what, how long, and how much longer at most."""
    _TELL.get()(text)
