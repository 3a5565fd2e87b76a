"""How many cores may be used: those of the process, less what a container's quota takes away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from v8.base.hardware import num_usable_cores, visible_gpus


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


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, ("0", "1")),
        ("1,0", ("1", "0")),
        ("GPU-5e, 1", ("GPU-5e", "1")),
        ("1,-1,0", ("1",)),
        ("", ()),
        ("-1", ()),
    ],
)
def test_gpus_are_those_of_the_driver_unless_the_user_names_others(
    told: str | None, expected: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if told is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", told)
    for name in ("nvidia0", "nvidia1", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus(tmp_path) == (), "without a driver there are none"
    (tmp_path / "nvidiactl").touch()
    assert visible_gpus(tmp_path) == expected
