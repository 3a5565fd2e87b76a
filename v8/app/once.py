"""Work that requests share: done once a key until it is stale, one piece at a time, in a thread of its own.

However many requests come, there is at most one piece of work a key waiting or running, and keys are as many
as the caller has series. What failed is kept for `RETRY_S`, too, so that asking again costs nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

RETRY_S: Final = 10.0
"""What failed, or is not there yet, is tried again after so many seconds."""

Work = Callable[[], tuple[Any, float]]
"""Returns what it found and until when that is fresh, by the clock."""


@dataclass
class Kept:
    """What comes of some work, now or later.

    Args:
        answer: It, or what went wrong.
        until_s: Until when it is fresh, by the clock; without end while the work goes on.
    """

    answer: Future[Any] = field(default_factory=Future)
    until_s: float = math.inf


class Once:
    """What was worked out, and what is being worked out.

    Args:
        clock: The present, in seconds since any moment.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[Hashable, Kept] = {}
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="v8-app")

    def ask(self, key: Hashable, work: Work) -> Kept:
        """Return what comes of some work, now or later.

        Args:
            key: What the work is about.
            work: Begun only if nothing fresh of that key is there or on its way.
        """
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or self._clock() >= kept.until_s:
                kept = self._kept[key] = Kept()
                kept.answer = self._worker.submit(self._do, kept, work)
            return kept

    def drop(self, is_stale: Callable[[Hashable], bool]) -> None:
        """Forget what was worked out for some keys; what is being worked out now is left."""
        with self._lock:
            for key in [key for key, kept in self._kept.items() if kept.answer.done() and is_stale(key)]:
                del self._kept[key]

    def close(self) -> None:
        """Begin nothing any more."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _do(self, kept: Kept, work: Work) -> Any:
        until_s = -math.inf
        try:
            until_s = self._clock() + RETRY_S
            found, until_s = work()
        finally:
            kept.until_s = until_s
        return found
