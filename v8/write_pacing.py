"""How often a file is written anew that grows with the number of series, so that it costs no run much.

A record of 40 series is written in a hundredth of a second, after each thing that happens. One of 4,000 takes
a hundred times as long, a hundred times as often. From some number of series on it is therefore written when
that takes a twentieth of the time at most; who needs it whole at some moment says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

FEW_SERIES: Final = 40
"""Up to so many series, those of the default universe, everything is written at once."""

LARGEST_SHARE: Final = 1 / 20
"""Of the time of a run of more: what writing one file again and again may take of it."""


class Pace:
    """Tells whether it is time to write again.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next_s = clock, -1.0

    def is_due(self, num_series: int) -> bool:
        """Tell whether writing now, of so many series, keeps to its share of the time."""
        return num_series <= FEW_SERIES or self._clock() >= self._next_s

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time a writing, which decides when the next one is due."""
        started_s = self._clock()
        try:
            yield
        finally:
            ended_s = self._clock()
            self._next_s = ended_s + (ended_s - started_s) / LARGEST_SHARE
