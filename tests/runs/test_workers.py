"""Worker processes give what one process gives, outlive their losses and leave nothing behind."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_weights import weights
from tiny_profiles import tiny_profile

CREW = Path(__file__).with_name("crew.py")
REPOSITORY = Path(__file__).parents[2]
KILLED_ONCE = "BTCUSDT-15m"
KILLED_ALWAYS = "XRPUSDT-15m"
LEFT_ALONE = "ETHUSDT-1h"
EARLY = "SOLUSDT-1h"
END_S = 5.0
"""How long processes may outlive their parent; Python's resource tracker always does, by milliseconds."""

HANG_S = 300.0
"""A crew that takes longer has hung and is killed, so that its test fails instead of waiting."""

ONE_THREAD = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]


@contextmanager
def crew_at_work(
    folder: Path, profile: Any, num_workers: int | str, *names: str
) -> Iterator[subprocess.Popen[str]]:
    """Start `crew.py` in a process group of its own; end whatever is left of the group."""
    folder.mkdir(exist_ok=True)
    (folder / "profile.pickle").write_bytes(pickle.dumps(profile))
    env = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(REPOSITORY)}
    env.pop("TF_CPP_MIN_LOG_LEVEL", None)
    process = subprocess.Popen(
        [sys.executable, str(CREW), str(folder), str(num_workers), *names],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    watchdog = threading.Timer(HANG_S, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        if members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def members(group: int) -> list[int]:
    """List the living processes of a process group."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = file.read_text().rpartition(") ")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(file.parent.name))
    return found


def read_until(process: subprocess.Popen[str], *wanted: str) -> str:
    """Read the crew's lines until each of the wanted ones has come."""
    assert process.stdout is not None
    seen = ""
    missing = set(wanted)
    for line in process.stdout:
        seen += line
        missing = {text for text in missing if text not in line}
        if not missing:
            return seen
    raise AssertionError(f"{missing} never came:\n{seen}")


def is_gone_after(group: int, seconds: float) -> bool:
    """Wait until a process group is empty."""
    deadline = time.monotonic() + seconds
    while members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(scope="module")
def profile() -> Any:
    """A small network; all crews keep its programs in one place, so that only the first compiles it."""
    return tiny_profile(
        "lstm_dense",
        newest_bars=400,
        features=("open", "high", "low", "close"),
        network={"family": "lstm_dense", "dropout": 0.2, "encoder_units": (4,), "dense_units": (4,)},
        tasks={"ohlc": {"weight": 1.0, "loss": "mae"}},
        training={"epochs": 12, "batch_size": 8},
    )


@dataclass(frozen=True)
class Crews:
    """What two crews left that trained the same series.

    Args:
        alone: Folder of the one that trained in one process.
        folder: Folder of the one with two workers, which lost some.
        said: What the latter printed.
        killed: Process id of its worker that was killed.
        is_gone: Whether all its processes ended with it.
    """

    alone: Path
    folder: Path
    said: str
    killed: int
    is_gone: bool


@pytest.fixture(scope="module")
def crews(profile: Any, tmp_path_factory: pytest.TempPathFactory) -> Crews:
    """Both crews at the same time, for there are cores to fill. Places give seeds, so they are the same."""
    root = tmp_path_factory.mktemp("crews")
    alone = root / "alone"
    folder = root / "decimated"
    names = (f"{KILLED_ONCE}:signed", LEFT_ALONE, f"{KILLED_ALWAYS}:deadly", f"{EARLY}:early")
    with (
        crew_at_work(alone, profile, 0, KILLED_ONCE, LEFT_ALONE) as one,
        crew_at_work(folder, profile, 2, *names) as two,
    ):
        said = read_until(two, f"{KILLED_ONCE} epoch 1")
        killed = int((folder / f"{KILLED_ONCE}.pid").read_text())
        os.kill(killed, signal.SIGKILL)
        rest, _ = two.communicate(timeout=240)
        is_gone = is_gone_after(two.pid, END_S)
        assert two.returncode == 0, said + rest
        said_alone, _ = one.communicate(timeout=120)
        assert one.returncode == 0, said_alone
    return Crews(alone, folder, said + rest, killed, is_gone)


@pytest.mark.nightly
def test_two_workers_train_the_weights_that_one_process_trains(crews: Crews) -> None:
    for name in (KILLED_ONCE, LEFT_ALONE):
        one = weights(crews.alone / name / "model.keras")
        two = weights(crews.folder / name / "model.keras")
        assert one.keys() == two.keys()
        for key in one:
            np.testing.assert_array_equal(two[key], one[key], err_msg=f"{name} {key}")


@pytest.mark.nightly
def test_a_worker_goes_on_with_the_next_run(crews: Crews) -> None:
    """The first run, of another profile, had one worker, which the second run gave its first series."""
    assert int((crews.folder / f"{EARLY}.pid").read_text()) == crews.killed


@pytest.mark.nightly
def test_a_killed_worker_is_replaced_and_its_series_goes_on_from_its_checkpoint(crews: Crews) -> None:
    assert crews.said.count(f"{KILLED_ONCE}: its worker died (SIGKILL); tried once more.\n") == 1
    assert json.loads((crews.folder / "outcomes.json").read_text())[KILLED_ONCE] is None
    metadata = json.loads((crews.folder / KILLED_ONCE / "metadata.json").read_text())
    assert metadata["training"]["resumed_from_epoch"] >= 1  # the first epoch is always saved


@pytest.mark.nightly
def test_a_series_whose_worker_dies_twice_has_failed_and_the_others_finish(crews: Crews) -> None:
    assert crews.said.count(f"{KILLED_ALWAYS}: its worker died (SIGKILL); tried once more.\n") == 1
    reasons = json.loads((crews.folder / "outcomes.json").read_text())
    assert re.search(f"{KILLED_ALWAYS}: .*; got SIGKILL 2 times. ", reasons.pop(KILLED_ALWAYS))
    assert reasons == dict.fromkeys([EARLY, KILLED_ONCE, LEFT_ALONE])
    assert crews.is_gone


@pytest.mark.nightly
def test_ctrl_c_stops_the_workers_after_their_batch_and_leaves_no_process(
    profile: Any, tmp_path: Path
) -> None:
    long = profile.with_budget(epochs=5000)
    with crew_at_work(tmp_path / "crew", long, 2, KILLED_ONCE, LEFT_ALONE) as process:
        read_until(process, f"{KILLED_ONCE} epoch 1")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to parent and workers alike
        said, _ = process.communicate(timeout=40)
        assert process.returncode == 130, said
        assert is_gone_after(process.pid, END_S)
    assert said.count("stopping the workers") == 1
    assert "Traceback" not in said
    assert (tmp_path / "crew" / KILLED_ONCE / ".training" / "checkpoint.npz").exists()


@pytest.mark.nightly
def test_workers_end_within_seconds_when_their_parent_is_killed(profile: Any, tmp_path: Path) -> None:
    with crew_at_work(tmp_path / "crew", profile, 2, KILLED_ONCE, LEFT_ALONE) as process:
        read_until(process, f"{KILLED_ONCE} started")
        assert len(members(process.pid)) == 4  # parent, two workers, Python's resource tracker
        process.kill()
        assert is_gone_after(process.pid, END_S)


@pytest.mark.nightly
def test_each_worker_sees_its_gpu_alone_and_a_series_that_kills_its_fleet_fails_by_itself(
    profile: Any, tmp_path: Path
) -> None:
    """The GPUs are simulated: what decides which one a process computes on is CUDA_VISIBLE_DEVICES."""
    names = ("BTCUSDT-15m", "ETHUSDT-15m", "BNBUSDT-15m")
    short = profile.with_budget(epochs=1)
    with crew_at_work(
        tmp_path / "crew", short, "3,GPU-5e:2", *(f"{name}:placed" for name in names), "XRPUSDT-15m:deadly"
    ) as crew:
        said, _ = crew.communicate(timeout=HANG_S)
    assert crew.returncode == 0, said
    outcomes = json.loads((tmp_path / "crew" / "outcomes.json").read_text())
    assert [outcomes[name] for name in names] == [None] * 3
    assert "; got SIGKILL 2 times" in outcomes["XRPUSDT-15m"]
    seen = [(tmp_path / "crew" / f"{name}.gpu").read_text().splitlines() for name in names]
    gpu_of = [dict(line.split() for line in lines) for lines in seen]
    assert set(gpu_of[0].values()) | set(gpu_of[1].values()) == {"3", "GPU-5e"}, "the first two jobs"
    processes = {process: gpu for each in gpu_of for process, gpu in each.items()}
    assert all(each[process] == processes[process] for each in gpu_of for process in each)
    for process, gpu in processes.items():
        assert re.search(f"Process {process} .* GPU {gpu}, .* 2.", said)


def begin_times(said: str) -> dict[tuple[str, str], float]:
    """Return when each series began each stage, by series and stage."""
    lines = re.findall(r"^(\S+) (\w+) at (\S+)$", said, flags=re.MULTILINE)
    return {(series, stage): float(at_s) for series, stage, at_s in lines}


def finisher_of(series: str, folder: Path) -> int:
    """Wait until a process has begun to finish a series that signs; return its id."""
    file = folder / f"{series}.pid"
    end_s = time.monotonic() + HANG_S
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < end_s
        time.sleep(0.02)
    return int(file.read_text())


def repeatable(folder: Path) -> dict[str, Any]:
    """Return what the metadata of a series say that does not depend on which process did what, and when."""
    content = json.loads((folder / "metadata.json").read_text())
    for name in ("peak_process_bytes", "peak_memory_bytes", "windows_per_s", "resumed_from_epoch"):
        del content["training"][name]
    kept = ("model_sha256", "evaluation", "features", "scaling", "training")
    return {**{key: content[key] for key in kept}, "stages": set(content["seconds"])}


@pytest.mark.nightly
def test_others_finish_what_one_process_trains_and_one_that_dies_is_replaced(
    profile: Any, crews: Crews, tmp_path: Path
) -> None:
    """As beside a GPU: one process trains, two others evaluate and save."""
    folder = tmp_path / "crew"
    with crew_at_work(folder, profile, "1+2", f"{KILLED_ONCE}:signed", LEFT_ALONE) as crew:
        os.kill(finisher_of(KILLED_ONCE, folder), signal.SIGKILL)
        said, _ = crew.communicate(timeout=HANG_S)
        assert crew.returncode == 0, said
        assert is_gone_after(crew.pid, END_S)
    assert said.count(f"{KILLED_ONCE}: its worker died (SIGKILL); tried once more.\n") == 1
    assert json.loads((folder / "outcomes.json").read_text()) == dict.fromkeys([KILLED_ONCE, LEFT_ALONE])
    began_s = begin_times(said)
    assert began_s[LEFT_ALONE, "train"] < began_s[KILLED_ONCE, "save"]  # they overlap
    for name in (KILLED_ONCE, LEFT_ALONE):
        assert repeatable(folder / name) == repeatable(crews.alone / name)
