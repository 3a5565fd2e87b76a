"""The machine: cores within a container's quota, and GPUs that TensorFlow has code for, before it starts."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from v8.base.errors import ProfileError
from v8.base.hardware import (
    gpus_without_code,
    may_have_gpu,
    num_usable_cores,
    process_variables,
    replacement_notice,
    replacing_variables,
    visible_gpus,
)
from v8.runs.engines import choose_device


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


REPOSITORY = Path(__file__).parents[2]
NEW = "NVIDIA GeForce RTX 5090, 12.0, GPU-5090"
OLD = "NVIDIA H200, 9.0, GPU-200"


def driver_of(folder: Path, *gpus: str) -> str:
    """Write a program nvidia-smi that lists these GPUs; return a PATH on which it is found."""
    program = folder / "nvidia-smi"
    program.write_text("\n".join(["#!/bin/sh", *(f"echo '{gpu}'" for gpu in gpus)]) + "\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(autouse=True)
def plain_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "KERAS_BACKEND"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [
        ((NEW,), None, ("NVIDIA GeForce RTX 5090 (compute capability 12.0)",)),
        ((OLD,), None, ()),
        ((OLD, NEW), "0", ("NVIDIA GeForce RTX 5090 (compute capability 12.0)",)),
        ((OLD, NEW), "GPU-200", ()),
        ((OLD, NEW), "GPU-5", ("NVIDIA GeForce RTX 5090 (compute capability 12.0)",)),
        ((NEW,), "-1", ()),
        ((NEW,), "", ()),
        (("NVIDIA-SMI has failed",), None, ()),
    ],
)
def test_gpus_without_code_are_those_of_capability_12_that_are_visible(
    gpus: tuple[str, ...],
    visible: str | None,
    expected: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", driver_of(tmp_path, *gpus))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus_without_code() == expected
    assert (replacement_notice("auto") is None) == (expected == ())


def test_the_cpu_computes_in_place_of_such_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", driver_of(tmp_path, NEW))
    (tmp_path / "nvidiactl").touch()
    assert not may_have_gpu(tmp_path)
    variables = process_variables("auto")
    assert variables["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "TF_NUM_INTRAOP_THREADS" in {**variables, **os.environ}
    with pytest.raises(ProfileError, match="RTX 5090"):
        choose_device("gpu")
    assert replacing_variables("cpu") == {}


def test_jax_computes_where_it_is_installed_with_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", driver_of(tmp_path, NEW))
    for package in ("jax", "jax_cuda12_plugin"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    information = tmp_path / "jax_cuda12_plugin-0.7.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: jax-cuda12-plugin\nVersion: 0.7.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert may_have_gpu(tmp_path)
    assert process_variables("auto")["KERAS_BACKEND"] == "jax"
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # as in the processes that these variables are for
    assert replacing_variables("auto") == {}


@pytest.mark.process
def test_a_run_says_so_in_one_sentence_and_goes_on(tmp_path: Path) -> None:
    environment = {"PATH": driver_of(tmp_path, NEW), "V8_HOME": str(tmp_path)}
    words = ("run", "range_paths", "--source", "demo", "--series", "BTCUSDT-1h", "--dry-run")
    process = subprocess.run(
        [sys.executable, "-m", "v8", *words, "--runs", str(tmp_path / "runs")],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    (notice,) = (line for line in process.stderr.splitlines() if "RTX 5090" in line)
    assert "compute capability 12.0" in notice
    assert "the CPU computes" in notice
