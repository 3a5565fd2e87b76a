"""The doctor examines a real machine in real processes, with or without a GPU."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import run_program
from tiny_profiles import tiny_profile

from v8.base.child import ChildCall, ChildResult, run_in_children
from v8.runs.doctor import Findings, ask_driver, failure_of, report_of
from v8.runs.machine import MeasurementRequest, take_measurements

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    network = {"family": "dense_newest", "dense_units": (4,), "dropout": 0.0}
    profile = tiny_profile("dense_newest", network=network, tasks={"ohlc": {"weight": 1.0, "loss": "mae"}})
    path = tmp_path_factory.mktemp("profiles") / "tiny.yaml"
    path.write_text(yaml.safe_dump(json.loads(profile.model_dump_json())))
    return path


def call(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, "-m", "v8", "doctor", *words],
        cwd=REPOSITORY,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **variables},
        timeout=300,
    )


@pytest.mark.nightly
@pytest.mark.process
def test_a_machine_without_gpu_is_examined_and_told_so(tiny_file: Path) -> None:
    process = call("--profile", str(tiny_file), "--json", "--seconds", "0.1")
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)  # one document and nothing else
    keys = "verdict recommended profile machine driver backend matmul steps workers notes seconds"
    assert list(report) == keys.split()
    assert report["verdict"]["state"] in {"good", "slow"}
    assert report["verdict"]["device"] == "CPU:0"
    assert "no GPU was found" in report["verdict"]["why"]
    flags = {each["flag"]: each["value"] for each in report["recommended"]}
    assert flags["--fleet-size"] == "1"
    assert int(flags["--workers"]) == report["workers"]["num_workers"] == report["machine"]["num_cores"]
    assert flags["--precision"] in {"float32", "mixed_float16", "mixed_bfloat16"}
    measured = {(step["path"], step["precision"], step["is_short"]) for step in report["steps"]}
    formats = {"float32", "mixed_float16", "mixed_bfloat16"}
    assert measured == {
        *((path, "float32", False) for path in ("stock", "ours")),
        *(("ours", precision, True) for precision in formats),
    }
    assert all(step["windows_per_s"] > 0 for step in report["steps"])
    assert set(report["matmul"]) == {"all threads", "one thread"}


def stand_in_for_nvidia_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))


def test_the_driver_is_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_nvidia_smi(tmp_path, "echo '560.35.03, NVIDIA H200, 143771'", monkeypatch)
    assert ask_driver() == {
        "is_found": True,
        "version": "560.35.03",
        "gpus": [{"name": "NVIDIA H200", "memory_mib": 143771.0}],
    }


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'NVIDIA-SMI has failed'; exit 9", "nvidia-smi printed: NVIDIA-SMI has failed"),
        ("exit 0", "nvidia-smi printed: nothing"),
    ],
)
def test_a_driver_that_fails_is_reported_and_does_not_stop_the_doctor(
    script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_nvidia_smi(tmp_path, script, monkeypatch)
    assert ask_driver() == {"is_found": False, "why": why, "gpus": []}


def step(path: str, windows_per_s: float, **changes: Any) -> dict[str, Any]:
    plain = {"path": path, "precision": "float32", "is_short": False, "num_models": 1}
    return {**plain, "device": "GPU:0", "windows_per_s": windows_per_s, **changes}


H200 = {"is_found": True, "version": "560.35.03", "gpus": [{"name": "NVIDIA H200", "memory_mib": 143771.0}]}


def on_gpu(**changes: Any) -> Findings:
    findings = Findings(H200, num_workers=1)
    findings.backend = {"gpus": ["NVIDIA H200"]}
    findings.matmul = {"all threads": {"device": "GPU:0", "gflop_per_s": 50_000.0}}
    findings.steps = [
        step("stock", 2_000.0),
        step("ours", 3_000.0),
        step("ours", 3_900.0, precision="mixed_bfloat16"),
        step("ours", 3_300.0, precision="mixed_float16"),
        step("ours", 60_000.0, precision="mixed_bfloat16", num_models=40),
    ]
    for name, value in changes.items():
        setattr(findings, name, value)
    return findings


def test_on_a_gpu_the_fastest_format_and_the_faster_fleet_are_recommended() -> None:
    report = report_of(on_gpu(), tiny_profile(), 1.0)
    flags = {each["flag"]: (each["value"], each["why"]) for each in report["recommended"]}
    # 3,900 / 3,000 and 3,300 / 3,000.
    assert flags["--precision"][0] == "mixed_bfloat16"
    assert "mixed_bfloat16 1.30, mixed_float16 1.10" in flags["--precision"][1]
    assert flags["--fleet-size"] == ("40", "40 models together: 60,000 windows/s; one alone: 3,900")
    assert flags["--workers"][0] == "1"
    assert report["verdict"]["state"] == "good"
    assert "60,000 windows/s, 30.0 times the stock layers' 2,000" in report["verdict"]["why"]


def test_work_beside_an_idle_gpu_is_misplaced_however_fast() -> None:
    findings = on_gpu(backend={"gpus": []}, matmul={"all threads": {"device": "CPU:0", "gflop_per_s": 150.0}})
    findings.workers = [step("ours", 9_000.0, device="CPU:0")]
    verdict = report_of(findings, tiny_profile(), 1.0)["verdict"]
    assert (verdict["state"], verdict["device"]) == ("misplaced", "CPU:0")
    assert "lies on CPU:0" in verdict["why"]


@pytest.mark.parametrize(
    ("unused_gpus", "why"),
    [
        ("CUDA_VISIBLE_DEVICES hides all", "CUDA_VISIBLE_DEVICES hides all"),
        ("", "nvidia-smi is not on the PATH"),
        ("TensorFlow has no code for it", "TensorFlow has no code for it"),
    ],
)
def test_a_missing_gpu_is_hidden_only_where_the_user_hides_it(
    monkeypatch: pytest.MonkeyPatch, unused_gpus: str, why: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as `doctor` itself sets it for processes of a CPU
    driver = {"is_found": False, "why": "nvidia-smi is not on the PATH", "gpus": []}
    findings = on_gpu(driver=driver, backend={"gpus": []}, unused_gpus=unused_gpus)
    findings.workers = [step("ours", 9_000.0, device="CPU:0")]
    assert f"no GPU was found ({why})" in report_of(findings, tiny_profile(), 1.0)["verdict"]["why"]


@pytest.mark.process
def test_a_measuring_process_that_dies_leaves_its_last_words() -> None:
    wanted = [{"measure": "matmul", "seconds": 0.01, "size": 8}, {"measure": "stock", "precision": "float8"}]
    (answer,) = run_in_children([ChildCall(take_measurements, MeasurementRequest(tiny_profile(), wanted))])
    assert [line["size"] for line in answer.values] == [8]
    failure = failure_of(answer, wanted)
    assert failure is not None
    assert failure.startswith("not measured: stock float8; exit code 1, last words: ")


def test_a_note_about_a_refusal_has_one_final_stop() -> None:
    refused = ChildResult(values=(), refusal="v8: needs the package keras.")
    assert failure_of(refused, []) == "v8: needs the package keras"


def test_training_that_could_not_be_measured_is_incomplete() -> None:
    findings = Findings(H200, num_workers=2, notes=["not measured: ours float32"])
    verdict = report_of(findings, tiny_profile(), 1.0)["verdict"]
    assert verdict == {
        "state": "incomplete",
        "device": "nowhere",
        "why": "training in float32 could not be measured",
    }
