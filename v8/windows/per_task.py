"""Arrays per task, computed when asked for, and kept unless they are large.

What a span knows of a task is asked for again and again, so it is kept. Of a million windows ten steps ahead
all of it would be gigabytes, and a part is needed at a time: that is worked out again, to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

LARGEST_KEPT_BYTES: Final = 64 << 20
"""Of one task: 200,000 windows of candles ten steps ahead."""

Floats = NDArray[np.float64]


class PerTask(Mapping[str, Floats]):
    """A mapping from tasks to arrays.

    Args:
        tasks: Its keys, in their order.
        compute: Computes the array of one. Who keeps this mapping must not be known to it, or the two would
            hold on to each other, and to all memory of both, for long.
    """

    def __init__(self, tasks: Iterable[str], compute: Callable[[str], Floats]) -> None:
        self._tasks, self._compute = tuple(tasks), compute
        self._kept: dict[str, Floats] = {}

    def __getitem__(self, task: str) -> Floats:
        if task in self._kept:
            return self._kept[task]
        if task not in self._tasks:
            raise KeyError(task)
        found = self._compute(task)
        if found.nbytes <= LARGEST_KEPT_BYTES:
            self._kept[task] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks
