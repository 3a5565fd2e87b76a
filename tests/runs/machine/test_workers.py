"""The number of workers follows what threads reach together and the memory that is free."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from v8.runs.machine import NUM_TRIES, WORKER_BYTES, affordable_workers, measured_workers, useful_workers

PLENTY = 1 << 50


@pytest.mark.parametrize(
    ("num_real", "num_cores", "expected"), [(1, 8, 1), (2, 8, 2), (3, 8, 4), (8, 8, 8), (2, 64, 2), (6, 6, 6)]
)
def test_workers_stop_where_more_threads_do_no_more_work(
    num_real: int, num_cores: int, expected: int
) -> None:
    def speed(num_threads: int) -> float:
        return float(min(num_threads, num_real))

    assert useful_workers(num_cores, speed) == expected


def test_one_disturbed_measurement_costs_no_worker() -> None:
    asked: Counter[int] = Counter()

    def speed(num_threads: int) -> float:
        asked[num_threads] += 1
        return 1.0 if asked[num_threads] < NUM_TRIES and num_threads > 1 else float(num_threads)

    assert useful_workers(2, speed) == 2
    assert asked == {1: 1, 2: NUM_TRIES}


@pytest.mark.parametrize(("num_bytes", "expected"), [(0, 1), (1, 1), (3 * WORKER_BYTES, 3), (PLENTY, 8)])
def test_every_worker_has_its_memory(num_bytes: int, expected: int) -> None:
    assert affordable_workers(8, num_bytes) == expected


def test_a_single_core_needs_no_measurement() -> None:
    def refuse(num_threads: int) -> float:
        raise AssertionError(num_threads)

    assert useful_workers(1, refuse) == 1


def test_what_was_measured_serves_the_next_run_but_memory_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    chosen = measured_workers(2)
    assert chosen in (1, 2)
    (file,) = (tmp_path / "machine").glob("workers-*.json")
    monkeypatch.setattr("v8.runs.machine.threads_speed", None)
    assert measured_workers(2) == chosen
    monkeypatch.setattr("v8.runs.machine.free_bytes", lambda: 0)
    assert measured_workers(2) == 1
    monkeypatch.undo()
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    file.write_text("damaged", "utf-8")
    assert measured_workers(2) in (1, 2)
    assert "found" in file.read_text("utf-8")
