"""The main job on a Ray of two workers, one of which is killed; skipped where Ray is not installed."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for workers in /proc")

GOOD = ("BTCUSDT-15m", "ETHUSDT-1h")
KILLED = GOOD[0]


def leaderboard(run: Path) -> list[dict[str, str]]:
    """Read all of a leaderboard but how long things took."""
    with (run / "leaderboard.csv").open(encoding="utf-8") as file:
        return sorted(({**row, "seconds": ""} for row in csv.DictReader(file)), key=lambda row: row["series"])


def worker_on(series: str, driver: int) -> psutil.Process:
    """Find the process that Ray names after the task."""
    for process in psutil.Process(driver).children(recursive=True):
        if process.name().startswith("ray::v8") and series in " ".join(process.cmdline()):
            return process
    raise AssertionError(f"no worker has {series}")


def test_a_ray_that_loses_a_worker_ends_with_the_weights_and_leaderboard_of_local_workers(
    trained: tuple[Any, CompletedProcess[str]], tmp_path: Path
) -> None:
    local, _ = trained
    place = replace(local, env={**local.env, "TMPDIR": str(tmp_path)})
    words = [*place.words(*GOOD, more=("--engine", "ray", "--workers", "2")), "--runs", str(tmp_path)]
    driver, said = place.start(words), ""
    assert driver.stdout is not None
    for line in driver.stdout:
        said += line
        if f"{KILLED}: epoch 1 of" in line:
            worker_on(KILLED, driver.pid).kill()
            break
    others = psutil.Process(driver.pid).children(recursive=True)
    said += driver.communicate(timeout=300)[0]
    assert driver.returncode == 0, said
    assert said.count(f"{KILLED}: its worker died (WorkerCrashedError); tried once more.\n") == 1
    assert "(raylet)" not in said, "Ray says nothing by itself"
    for name in GOOD:
        assert (tmp_path / "tiny" / name / "model.keras").read_bytes() == (
            local.run / name / "model.keras"
        ).read_bytes()
    assert leaderboard(tmp_path / "tiny") == leaderboard(local.run)
    assert not psutil.wait_procs(others, timeout=20)[1], "Ray's processes end with the driver"
    assert not list(Path("/tmp").glob(f"ray-{driver.pid}-*"))
