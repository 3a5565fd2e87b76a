"""The core works without its annexes: each folder is removed in turn, and then all of them at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from v8.annexes import FILE, annexes

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what is installed of v8, and nothing else."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("v8", "configs"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def call(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the copied checkout in an empty folder beside it."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "V8_HOME": str(checkout / "home"),
        "COLUMNS": "100",
    }
    return subprocess.run(
        [sys.executable, "-P", "-m", "v8", *words],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def commands_of(annex: str) -> list[str]:
    """Name the commands that an annex adds, as they are typed."""
    functions = [place.partition(":")[2] for place in annexes()[annex].get("commands", ())]
    return ["app" if function == "serve" else function.replace("_", "-") for function in functions]


@pytest.mark.process
@pytest.mark.parametrize("annex", sorted(annexes()))
def test_without_one_annex_all_other_commands_are_there(checkout: Path, annex: str, tmp_path: Path) -> None:
    shutil.copytree(checkout, tmp_path / "less", ignore=shutil.ignore_patterns(annex, "home"))
    with_it = call(checkout, "--help").stdout
    without = call(tmp_path / "less", "--help")
    assert without.returncode == 0, without.stderr
    listed = {line.split()[0] for line in with_it.splitlines() if line.startswith("  ")}
    left = {line.split()[0] for line in without.stdout.splitlines() if line.startswith("  ")}
    assert listed - left == set(commands_of(annex))


@pytest.mark.tf
@pytest.mark.process
def test_without_any_annex_the_core_trains_reports_and_forecasts(checkout: Path, tmp_path: Path) -> None:
    less = tmp_path / "less"
    shutil.copytree(checkout, less, ignore=shutil.ignore_patterns(*annexes(), "home"))
    assert not [*(less / "v8").glob(f"*/{FILE}")]
    trained = call(less, "run", "--source", "demo", "--smoke", "--series", "BTCUSDT-15m")
    assert trained.returncode == 0, trained.stderr
    assert (less / "runs/frontier-smoke/report.html").is_file()
    issued = call(less, "predict", "runs/frontier-smoke", "--source", "demo", "--format", "json")
    assert issued.returncode == 0, issued.stderr
    refused = call(less, "run", "--source", "demo", "--smoke", "--track", "tensorboard")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
