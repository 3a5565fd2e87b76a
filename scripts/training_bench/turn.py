"""A turn: what a contender did in some seconds, by the clock and in processor time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Turn: TypeAlias = Callable[[float], dict[str, Any]]
"""Works for about so many seconds and tells what it did, at least `rate`."""


class RefusedError(Exception):
    """This machine cannot do what a contender is; the text says what is missing. The others go on."""


@dataclass(frozen=True)
class Stretch:
    """Work without a pause: an epoch, or some steps.

    Args:
        num_windows: Training windows.
        seconds: By the clock.
        cpu_s: Of all threads of this process; seldom more because others work beside it.
    """

    num_windows: float
    seconds: float
    cpu_s: float

    @staticmethod
    def told(stretches: Sequence[Stretch]) -> dict[str, float]:
        """Return windows/s of the median stretch; windows and processor time of all."""
        return {
            "rate": statistics.median(each.num_windows / each.seconds for each in stretches),
            "num_windows": sum(each.num_windows for each in stretches),
            "cpu_s": sum(each.cpu_s for each in stretches),
        }


class Stopwatch:
    """Runs from its making."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._cpu = time.process_time()

    def after(self, num_windows: float) -> Stretch:
        """Return the stretch from the start until now."""
        return Stretch(num_windows, time.perf_counter() - self._started, time.process_time() - self._cpu)


def clocked(work: Callable[[], float]) -> Stretch:
    """Do work that returns its number of windows."""
    watch = Stopwatch()
    return watch.after(work())
