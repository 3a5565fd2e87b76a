"""The number of workers follows what threads reach together and the memory that is free."""

from __future__ import annotations

from collections import Counter

import pytest

from v8.engine.core_probe import NUM_TRIES, WORKER_BYTES, measured_workers, threads_speed

PLENTY = 1 << 50


@pytest.mark.parametrize(
    ("num_real", "num_cores", "expected"),
    [(1, 8, 1), (2, 8, 2), (3, 8, 4), (8, 8, 8), (2, 64, 2), (6, 6, 6)],
)
def test_workers_stop_where_more_threads_do_no_more_work(
    num_real: int, num_cores: int, expected: int
) -> None:
    def speed(num_threads: int) -> float:
        return float(min(num_threads, num_real))

    assert measured_workers(num_cores, speed_of=speed, available_bytes=PLENTY) == expected


def test_one_disturbed_measurement_costs_no_worker() -> None:
    asked: Counter[int] = Counter()

    def speed(num_threads: int) -> float:
        asked[num_threads] += 1
        return 1.0 if asked[num_threads] < NUM_TRIES and num_threads > 1 else float(num_threads)

    assert measured_workers(2, speed_of=speed, available_bytes=PLENTY) == 2
    assert asked == {1: 1, 2: NUM_TRIES}


@pytest.mark.parametrize(("num_bytes", "expected"), [(0, 1), (1, 1), (3 * WORKER_BYTES, 3), (PLENTY, 8)])
def test_every_worker_has_its_memory(num_bytes: int, expected: int) -> None:
    assert measured_workers(8, speed_of=float, available_bytes=num_bytes) == expected


def test_a_single_core_needs_no_measurement() -> None:
    def refuse(num_threads: int) -> float:
        raise AssertionError(num_threads)

    assert measured_workers(1, speed_of=refuse, available_bytes=PLENTY) == 1


def test_the_real_measurement_counts_work_of_every_thread() -> None:
    assert threads_speed(1) > 0
    assert threads_speed(2) > 0
    assert measured_workers(2) in (1, 2)
