"""The set-up scripts say what is missing, and install once; the benchmarks run, on a tiny budget."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from programs import run_program
from tiny_profiles import tiny_profile

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with the everyday tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "cat", "dirname", "sha256sum"):
        (folder / tool).symlink_to(shutil.which(tool))
    return folder


def call(script: str, path: Path, venv: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        ["bash", REPOSITORY / "scripts" / script, *words],
        cwd=venv.parent,
        env={**os.environ, "PATH": str(path), "V8_VENV": str(venv)},
    )


@pytest.mark.parametrize("script", ["run", "test"])
def test_a_machine_without_python_is_told_what_to_install(
    script: str, bare_path: Path, tmp_path: Path
) -> None:
    process = call(script, bare_path, tmp_path / "venv")
    assert process.returncode == 1
    assert process.stderr.startswith("error: needs Python 3.11 ")
    assert not (tmp_path / "venv").exists()


def stand_in(file: Path, does: str = "") -> Path:
    """Write a program that notes what it is asked to do in the file `asked` beside its environment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'#!/bin/sh\necho "${{0##*/}} $@" >> {file.parents[2]}/asked\n{does}\n')
    file.chmod(0o755)
    return file


def asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "asked").read_text().splitlines()


def test_installing_happens_once_and_again_only_when_setup_cfg_changes(
    bare_path: Path, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    stand_in(venv / "bin" / "python")
    for word in ("one", "two"):
        assert call("run", bare_path, venv, word).returncode == 0
    uv, package, *runs = asked(tmp_path)
    # No uv is there and none can be fetched: pip installs.
    assert uv.startswith("python -m pip install --quiet ")
    assert uv.endswith(" uv")
    assert package.startswith("python -m pip install ")
    assert package.endswith(f"--editable {REPOSITORY}[app]")
    assert "--quiet" not in package
    assert runs == ["python -m v8 run one", "python -m v8 run two"]
    (venv / ".v8-installed").write_text("another repository and setup.cfg app")
    assert call("run", bare_path, venv, "three").returncode == 0
    assert sum("--editable" in line for line in asked(tmp_path)) == 2


@pytest.mark.parametrize("is_working", [True, False])
def test_uv_installs_where_it_is_there_and_pip_where_it_fails(
    is_working: bool, bare_path: Path, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    stand_in(venv / "bin" / "python")
    stand_in(venv / "bin" / "uv", "" if is_working else "exit 1")
    process = call("run", bare_path, venv)
    assert process.returncode == 0
    assert process.stdout == ""  # it belongs to what the command prints
    uv, *others = asked(tmp_path)
    assert uv.startswith(f"uv --directory {REPOSITORY} pip install --python {venv}/bin/python --constraint ")
    assert uv.endswith(f"--editable {REPOSITORY}[app]")
    assert len(others) == (1 if is_working else 2)
    assert ("pip installs" in process.stderr) == (not is_working)


def test_an_extra_is_installed_beside_those_that_are_there_and_stays(bare_path: Path, tmp_path: Path) -> None:
    (bare_path / "sed").symlink_to(shutil.which("sed") or "")
    venv = tmp_path / "venv"
    stand_in(venv / "bin" / "python")
    stand_in(venv / "bin" / "uv")
    assert call("v8", bare_path, venv, "install", "onnx", "ray").returncode == 0
    assert call("v8", bare_path, venv, "doctor").returncode == 0
    installed, doctor = asked(tmp_path)
    assert installed.endswith(f"--editable {REPOSITORY}[app,onnx,ray]")
    assert doctor == "python -m v8 doctor"
    state = venv / ".v8-installed"
    state.write_text(f"another repository and setup.cfg {state.read_text().split()[-1]}")
    assert call("v8", bare_path, venv, "doctor").returncode == 0
    assert asked(tmp_path)[2] == installed


@pytest.mark.parametrize(("words", "got"), [((), "none"), (("onnx", "onx"), "onx"), (("*",), "*")])
def test_an_extra_that_is_none_is_refused(
    words: tuple[str, ...], got: str, bare_path: Path, tmp_path: Path
) -> None:
    (bare_path / "sed").symlink_to(shutil.which("sed") or "")
    stand_in(tmp_path / "venv" / "bin" / "python")
    process = call("v8", bare_path, tmp_path / "venv", "install", *words)
    assert process.returncode == 2
    assert "app, arch, baselines, ccxt, docs," in process.stderr
    assert f"; got {got}. " in process.stderr
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("num_failed", "fails_again", "num_runs", "status"),
    [(1, False, 3, 0), (2, False, 3, 0), (1, True, 2, 1), (3, False, 1, 1)],
)
def test_what_fails_must_pass_twice_alone(
    num_failed: int, fails_again: bool, num_runs: int, status: int, bare_path: Path, tmp_path: Path
) -> None:
    # Stand-ins again: of Python, which runs the tests and names those that failed, and of what checks beside.
    venv = tmp_path / "venv"
    names = [f"tests/test_one.py::test_{number}" for number in range(num_failed)]
    lists = "; ".join(f"echo {name}" for name in names)
    alone = f"*test_0*) exit {int(fails_again)}"
    again = f'case "$*" in *lastfailed*) {lists};; {alone};; *numprocesses*) exit 1;; esac'
    stand_in(venv / "bin" / "python", again)
    last_failed = venv / "pytest" / "v" / "cache" / "lastfailed"
    last_failed.parent.mkdir(parents=True)
    last_failed.touch()
    for name in ("ruff", "mypy", "lint-imports"):
        stand_in(venv / "bin" / name)
    assert call("test", bare_path, venv).returncode == status
    runs = [line for line in asked(tmp_path) if line.startswith("python -m pytest ")]
    assert ["--numprocesses" in line for line in runs] == [True] + [False] * (num_runs - 1)
    assert all(line.endswith(" ".join(names)) for line in runs[1:])


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "marks"),
    [
        ((), "not drill and not nightly"),
        (("--all",), ""),
        (("--quick",), "not tf and not process and not drill and not nightly"),
    ],
)
def test_every_change_runs_all_but_the_nightly_tests_and_all_runs_the_oldest_versions_too(
    words: tuple[str, ...], marks: str, bare_path: Path, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    for name in ("python", "ruff", "mypy", "lint-imports"):
        stand_in(venv / "bin" / name)
    for tool in ("rm", "sed"):
        (bare_path / tool).symlink_to(shutil.which(tool) or "")
    process = call("test", bare_path, venv, *words)
    called = asked(tmp_path)
    (tests,) = (line for line in called if "-m pytest" in line)
    assert tests.partition(" -m pytest ")[2].partition(" -m ")[2] == marks
    assert ("--cov=v8 --cov-branch" in tests) == ("--cov-fail-under=" in tests) == (words == ())
    is_all = "--all" in words
    assert any("save_models.py" in line for line in called) == is_all
    # Where no Python is, the environment of the oldest versions cannot be made.
    assert ("floor oldest: installing" in process.stdout) == is_all
    assert process.returncode == int(is_all), process.stderr


@pytest.mark.parametrize(
    "script",
    [
        "scripts/v8",
        "scripts/run",
        "scripts/test",
        "scripts/check",
        "scripts/translations",
        "scripts/image",
        "scripts/gpu_day",
        ".ci/run",
    ],
)
def test_scripts_can_be_started(script: str) -> None:
    assert os.access(REPOSITORY / script, os.X_OK)
    subprocess.run(["bash", "-n", str(REPOSITORY / script)], check=True)


def measured(
    script: str, *words: str | Path, folder: Path, path: Sequence[Path] = ()
) -> tuple[dict[str, Any], str]:
    """Run a benchmark in a folder of its own, with more to import from; return figures and printed lines."""
    process = run_program(
        [sys.executable, REPOSITORY / "scripts" / script, *words, "--json", "figures.json"],
        cwd=folder,
        env={
            **os.environ,
            "V8_HOME": str(folder),
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join(map(str, path)),
        },
    )
    assert process.returncode == 0, process.stderr
    return json.loads((folder / "figures.json").read_text("utf-8")), process.stdout


@pytest.mark.nightly
def test_bench_training_lets_every_contender_take_a_turn_where_tensorflow_is_not_installed(
    tmp_path: Path,
) -> None:
    # Python reads this file at the start of every process, those that measure included.
    (tmp_path / "sitecustomize.py").write_text("from no_tensorflow import hide_tensorflow; hide_tensorflow()")
    write_tiny_profile(tmp_path)
    words = ["--profile", "tiny.yaml", "--bars", "400", "--seconds", "0.05", "--rounds", "1"]
    words += ["--processes", "1", "--contenders", "stock", "product"]
    parts = REPOSITORY / "tests" / "parts"
    told, printed = measured("bench_training.py", *words, folder=tmp_path, path=(tmp_path, parts))
    assert told["backends"] == ["jax"]
    (table,) = told["tables"]
    shown = {row["name"]: row for row in table["rows"]}
    assert {"stock fit, JAX, 1 process", "product float32, JAX, 1 process"} <= set(shown)
    assert all(row["windows_per_s"] > 0 and row["cpu_s_per_1000"] > 0 for row in shown.values())
    assert all(name in printed for name in shown)
    assert set(table["ceiling_windows_per_s"]) == {"float32", "bfloat16"}


def write_tiny_profile(folder: Path) -> Path:
    network = {"family": "lstm_dense", "encoder_units": (4,), "dense_units": (4,), "dropout": 0.0}
    file = folder / "tiny.yaml"
    file.write_text(tiny_profile("lstm_dense", network=network).model_dump_json())  # JSON is YAML
    return file


@pytest.mark.nightly
def test_a_gpu_s_day_can_be_rehearsed_without_one(tmp_path: Path) -> None:
    words = ["frontier", "--device", "cpu", "--tiny", "--profile", write_tiny_profile(tmp_path)]
    process = run_program(
        ["bash", REPOSITORY / "scripts" / "gpu_day", *words, "--out", tmp_path / "found"],
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert process.returncode == 0, process.stderr
    found = {file.name for file in (tmp_path / "found").iterdir()}
    assert found == {"frontier.json", "frontier.txt"}
    (table,) = json.loads((tmp_path / "found" / "frontier.json").read_text("utf-8"))["tables"]
    assert [row["name"] for row in table["rows"] if row["windows_per_s"] > 0] == ["fleet of 2 float32, JAX"]


@pytest.mark.parametrize("words", [["holiday"], ["bench", "--warp", "9"]])
def test_a_gpu_s_day_says_what_it_takes(words: list[str]) -> None:
    process = run_program(["bash", REPOSITORY / "scripts" / "gpu_day", *words])
    assert process.returncode == 2
    assert f"got '{words[-1] if len(words) == 1 else words[1]}'" in process.stderr
