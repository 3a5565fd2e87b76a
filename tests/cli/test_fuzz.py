"""The fuzzer in its short form, and what it must not overlook."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import run_program

pytestmark = [pytest.mark.tf, pytest.mark.process, pytest.mark.nightly]

REPOSITORY = Path(__file__).parents[2]


def fuzz(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return run_program([sys.executable, REPOSITORY / "tests" / "fuzzing", "--jobs", "1", *words], cwd=folder)


def test_a_hundred_inputs_are_accepted_or_refused_in_a_sentence(trained_run: Any, tmp_path: Path) -> None:
    process = fuzz(tmp_path, "--run", trained_run.path, "--inputs", "100")
    assert process.returncode == 0, process.stdout + process.stderr
    printed = {
        row.split(" | ")[0].strip("| "): row for row in process.stdout.splitlines() if row.startswith("| ")
    }
    kinds = (
        "profiles candles archives frames rewritten covariates records plans words ledgers days calls prices"
    )
    assert printed.keys() >= {*kinds.split()}
    assert "| all | 100 |" in process.stdout
    assert not (tmp_path / "fuzz-failures").exists()


def test_a_failing_input_is_saved_and_can_be_tried_again(trained_run: Any, tmp_path: Path) -> None:
    # A kind that nothing is done with stands for a fault: KeyError is no sentence of ours.
    case = {"kind": "fuzzer", "name": "unknown", "files": {}, "words": []}
    (tmp_path / "case.json").write_text(json.dumps(case))
    process = fuzz(tmp_path, "--run", trained_run.path, "--replay", tmp_path / "case.json")
    assert process.returncode == 1
    assert "| all | 1 | 0 | 0 | 1 |" in process.stdout
