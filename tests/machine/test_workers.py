"""The number of workers follows the cores that can be used and the memory that is free."""

from __future__ import annotations

import pytest

from v8.machine.choices import WORKER_BYTES, affordable_workers
from v8.runs.engines import place

PLENTY = 1 << 50


@pytest.mark.parametrize(("num_bytes", "expected"), [(0, 1), (1, 1), (3 * WORKER_BYTES, 3), (PLENTY, 8)])
def test_every_worker_has_its_memory(num_bytes: int, expected: int) -> None:
    assert affordable_workers(8, num_bytes) == expected


def test_a_number_left_to_the_machine_has_cores_and_memory_and_one_that_is_given_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("v8.hardware.num_usable_cores", lambda: 8)
    for num_bytes, expected in ((3 * WORKER_BYTES, 3), (PLENTY, 8)):
        monkeypatch.setattr("v8.machine.choices.free_bytes", lambda num_bytes=num_bytes: num_bytes)
        assert place("cpu", "auto", "auto").num_workers == expected
        assert place("cpu", "5", "auto").num_workers == 5
