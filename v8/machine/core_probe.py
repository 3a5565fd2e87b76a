"""How many processes this machine really runs side by side, measured in a moment.

Counting cores misleads: two of them may be one core's hyper-threads, and each process needs memory. So
`--workers auto` lets threads do arithmetic side by side and takes the smallest number that nearly reaches
the best total. A thread's speed is its work per second of processor time, not of the clock: a program that
happens to run beside the measurement must not cost a worker for hours. (What a container may use of the
cores is known beforehand, see `v8.hardware.num_usable_cores`.)
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from pydantic import TypeAdapter

from v8.hardware import available_bytes as free_bytes
from v8.machine.measurements import kept
from v8.records import Count

STRETCH_S = 0.2
"""Time of one measurement."""

WORTHWHILE_GAIN = 1.1
"""Twice the processes must do at least this much more, or their memory is better saved."""

WORKER_BYTES = 1_600 << 20
"""Memory to have free for each process; one that trains `aligned` was seen to take 1.5 GB at most."""

NUM_TRIES = 3
"""Measurements before more processes are given up: another program may disturb one of them."""

_COUNT = TypeAdapter(Count)

_NUM_NUMBERS = 1 << 16
"""Numbers a thread works on at a time: they stay in a core's own cache, so that cores do not share."""


def measured_workers(num_cores: int, most: int | None = None) -> int:
    """Choose the number of worker processes: as many as run side by side here and have their memory.

    Args:
        num_cores: Cores that may be used.
        most: Processes that have work; None for one a core.
    """
    useful = kept(_COUNT, "workers", {"num_cores": num_cores}, partial(useful_workers, num_cores))
    return affordable_workers(min(useful, most or num_cores))


def affordable_workers(num_workers: int, available_bytes: int | None = None) -> int:
    """Bound a number of worker processes by memory, at least 1.

    Args:
        num_workers: Most processes.
        available_bytes: Memory that may be used; None asks the system.

    >>> affordable_workers(8, 5 << 30), affordable_workers(8, 64 << 30), affordable_workers(2, 1 << 30)
    (3, 8, 1)
    """
    free = free_bytes() if available_bytes is None else available_bytes
    return max(1, min(num_workers, free // WORKER_BYTES))


def useful_workers(num_cores: int, speed_of: Callable[[int], float] | None = None) -> int:
    """Measure how many processes really run side by side.

    Args:
        num_cores: Most processes.
        speed_of: Work per second of processor time of a number of threads; None measures.

    Returns:
        Between 1 and `num_cores`.

    >>> useful_workers(8, lambda threads: min(threads, 2.0)), useful_workers(6, float)
    (2, 6)
    """
    speed_of = speed_of or threads_speed
    chosen, speed = 1, speed_of(1) if num_cores > 1 else 1.0
    while chosen < num_cores:
        tried = min(2 * chosen, num_cores)
        speeds = map(speed_of, [tried] * NUM_TRIES)
        faster = next((each for each in speeds if each >= WORTHWHILE_GAIN * speed), None)
        if faster is None:
            break
        chosen, speed = tried, faster
    return chosen


def threads_speed(num_threads: int) -> float:
    """Return passes of arithmetic per second of processor time, of a number of threads at once."""
    start = threading.Barrier(num_threads)

    def work(_: int) -> float:
        numbers = np.linspace(0.0, 1.0, _NUM_NUMBERS, dtype=np.float32)
        result = np.empty_like(numbers)
        start.wait()
        num_passes, begun, end = 0, time.thread_time(), time.perf_counter() + STRETCH_S
        while time.perf_counter() < end:
            np.exp(numbers, out=result)  # NumPy lets other threads run meanwhile
            num_passes += 1
        return num_passes / max(time.thread_time() - begun, 1e-9)

    with ThreadPoolExecutor(num_threads) as threads:
        return math.fsum(threads.map(work, range(num_threads)))
