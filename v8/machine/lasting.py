"""What one run sets up and the next can use: worker processes with TensorFlow, and compiled programs."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

_open: list[dict[Hashable, Any]] = []


@contextmanager
def lasting() -> Iterator[dict[Hashable, Any]]:
    """Yield what lasts, by a key of its maker's; it is closed at the end of the outermost block."""
    kept = _open[-1] if _open else {}
    _open.append(kept)
    try:
        yield kept
    finally:
        _open.pop()
        if not _open:
            let_go(kept)


def let_go(kept: dict[Hashable, Any]) -> None:
    """Close what was kept for others, so that memory holds one of them at a time."""
    while kept:
        kept.popitem()[1].close()
