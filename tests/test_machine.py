"""How many cores may be used: those of the process, less what a container's quota takes away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from v8.machine import num_usable_cores


@pytest.mark.parametrize(
    ("quota", "most"),
    [("100000 100000", 1), ("50000 100000", 1), ("max 100000", 1_000), ("6400000 100000", 64), ("", 1_000)],
)
def test_a_container_s_quota_bounds_the_cores(quota: str, most: int, tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota, "ascii")
    available = len(os.sched_getaffinity(0))
    assert num_usable_cores(file) == min(available, most)
    assert num_usable_cores(tmp_path / "missing") == available
