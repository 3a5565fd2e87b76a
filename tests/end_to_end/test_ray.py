"""The main job on a Ray that loses a worker, or a process of its own; skipped where Ray is not installed."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="needs Ray: pip install ray")
pytestmark = [
    pytest.mark.tf,
    pytest.mark.process,
    pytest.mark.nightly,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for workers in /proc"),
]

GOOD = ("BTCUSDT-15m", "ETHUSDT-1h")
KILLED = GOOD[0]
END_S = 20.0
"""How long Ray's processes and its folder may outlive the driver."""


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


@pytest.fixture
def _tidy() -> Iterator[None]:
    """Require that no folder of a Ray stays once its last process has ended."""
    before = {*Path("/tmp").glob("ray-*")}
    yield
    deadline_s = time.monotonic() + END_S
    while {*Path("/tmp").glob("ray-*")} - before and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not {*Path("/tmp").glob("ray-*")} - before


@pytest.mark.usefixtures("_tidy")
def test_a_ray_that_loses_a_worker_ends_with_the_weights_and_leaderboard_of_local_workers(
    trained: tuple[Any, CompletedProcess[str]], tmp_path: Path
) -> None:
    local, _ = trained
    place = replace(local, env={**local.env, "TMPDIR": str(tmp_path)})
    words = [
        *place.words(*GOOD, more=("--engine", "ray", "--workers", "2", "--verbose")),
        "--runs",
        str(tmp_path),
    ]
    driver = place.start(words)
    said = ""
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
    assert not psutil.wait_procs(others, timeout=END_S)[1], "Ray's processes end with the driver"


@pytest.mark.parametrize("killed", ["ray::DashboardAg", "ray::RuntimeEnv"])
def test_a_ray_whose_own_process_is_killed_ends_in_one_sentence_and_the_same_command_goes_on(
    trained: tuple[Any, CompletedProcess[str]], tmp_path: Path, killed: str
) -> None:
    """An agent that the raylet does not outlive; without raylet or GCS Ray ends in a minute, likewise."""
    local, _ = trained
    place = replace(local, env={**local.env, "TMPDIR": str(tmp_path)})
    words = [
        *place.words(*GOOD, more=("--engine", "ray", "--workers", "1", "--verbose")),
        "--runs",
        str(tmp_path),
    ]
    driver = place.start(words)
    said = ""
    assert driver.stdout is not None
    for line in driver.stdout:
        said += line
        if f"{GOOD[1]}: epoch 1 of" in line:
            children = psutil.Process(driver.pid).children(recursive=True)
            next(each for each in children if each.name().startswith(killed)).kill()
            break
    said += driver.communicate(timeout=300)[0]
    assert driver.returncode == 4, said
    assert said.splitlines()[-1].startswith("error: --engine ray: needs Ray ")
    assert "Traceback" not in said
    assert "core_worker" not in said
    again = place.call(words)
    assert again.returncode == 0, again.stdout
    assert "1 series trained now, 1 finished before, 0 failed." in again.stdout
    assert leaderboard(tmp_path / "tiny") == leaderboard(local.run)
