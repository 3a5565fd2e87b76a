"""A turn: how many windows a contender trained on in some seconds, by the clock and in processor time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Turn: TypeAlias = Callable[[float], dict[str, Any]]
"""Works for about so many seconds and returns what it did, at least `rate`."""


class RefusedError(Exception):
    """This machine cannot do what a contender is; the text says what is missing. The others go on."""


@dataclass(frozen=True)
class Stretch:
    """Work without a pause: an epoch, or some steps.

    Args:
        num_windows: Training windows.
        seconds: By the clock.
        cpu_s: Of all threads of this process; seldom more because others work at the same time.
    """

    num_windows: float
    seconds: float
    cpu_s: float

    @staticmethod
    def summary(stretches: Sequence[Stretch]) -> dict[str, float]:
        """Return windows/s of the median stretch; windows and processor time of all."""
        return {
            "rate": statistics.median(stretch.num_windows / stretch.seconds for stretch in stretches),
            "num_windows": sum(stretch.num_windows for stretch in stretches),
            "cpu_s": sum(stretch.cpu_s for stretch in stretches),
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
