"""The present of the candles' source, for threads that must not wait for it.

A source may have to ask the exchange what time it is. Only work does that; whoever answers requests counts on
from what was told last.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Present:
    """The time of a source; that of this machine until the source was asked.

    Args:
        ask: Asks the source, seconds since the epoch, UTC.
    """

    def __init__(self, ask: Callable[[], float]) -> None:
        self._ask = ask
        self._ahead_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Return seconds since the epoch, UTC, at once."""
        return time.monotonic() + self._ahead_s

    def renew(self) -> float:
        """Ask the source, and return its time.

        Raises:
            DataError: If it does not tell.
        """
        told_s = self._ask()
        self._ahead_s = told_s - time.monotonic()
        return told_s
