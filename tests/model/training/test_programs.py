"""Compiled programs that one process keeps for the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

TESTS = Path(__file__).parents[2]
TRAINING = """
import json, os, sys
from pathlib import Path
from v8.base.storage import digest_bytes
from v8.model.networks.programs import kept_programs

def found():
    (passing,) = Path(os.environ["V8_HOME"], "programs").glob("passing-*")
    return {file.name: file.stat().st_ino for file in passing.iterdir()}

with kept_programs():
    sys.path[:0] = [sys.argv[1], sys.argv[1] + "/parts"]
    before = found()
    from tiny_profiles import demo_table, tiny_profile
    from trained_alone import fit
    from v8.data.windows import prepare_series
    from v8.model.training.trainer import Trainer
    profile = tiny_profile("dense_newest", dropout=0.2, training={"epochs": 2})
    result = fit(Trainer(profile), prepare_series(demo_table(profile), profile), seed=3)
    digest = digest_bytes(*(array.tobytes() for array in result.weights))
    print(json.dumps({"before": before, "after": found(), "weights": digest}))
"""
FLAGS = """
import os
from v8.model.networks.programs import kept_programs
with kept_programs():
    print(os.environ.get("TF_XLA_FLAGS"))
print(os.environ.get("TF_XLA_FLAGS"))
"""


def run(program: str, home: Path, **changed: str) -> list[str]:
    """Run a program in a process of its own, and return its lines."""
    env = {**os.environ, "V8_HOME": str(home), "PYTHONPATH": str(TESTS.parent), **changed}
    words = [sys.executable, "-c", program, str(TESTS)]
    process = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def trained(home: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run(TRAINING, home)[-1])
    return content


@pytest.mark.nightly
def test_the_next_process_reads_what_is_whole_compiles_the_rest_and_trains_the_same_weights(
    tmp_path: Path,
) -> None:
    """TensorFlow writes a file anew, under another number, whenever it did not take the one it found."""
    first = trained(tmp_path)
    assert first["before"] == {}
    kept = sorted(tmp_path.glob("programs/*/*.pb"), key=lambda file: file.stat().st_size)
    assert sorted(first["after"]) == sorted(file.name for file in kept)
    assert len(kept) == 2  # a step and a loss
    damaged, whole = kept
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    second = trained(tmp_path)
    assert set(second["before"]) == {whole.name}
    assert set(second["after"]) == set(first["after"])
    assert second["after"][whole.name] == second["before"][whole.name]
    assert second["weights"] == first["weights"]
    assert damaged.read_bytes() != bytes(content)
    assert not list(tmp_path.glob("programs/passing-*"))


def test_tensorflow_is_told_of_a_folder_while_the_block_lasts(tmp_path: Path) -> None:
    told, after = run(FLAGS, tmp_path / "home")
    assert told.startswith(f"--tf_xla_persistent_cache_directory={tmp_path / 'home' / 'programs'}/passing-")
    assert "--tf_xla_persistent_cache_device_types=CPU" in told
    assert after == "None"


def test_a_home_that_no_flag_can_name_keeps_nothing(tmp_path: Path) -> None:
    assert run(FLAGS, tmp_path / "a user's home") == ["None", "None"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"KERAS_BACKEND": "jax"}, "None"),
        ({"V8_HOME": __file__}, "None"),
        (
            {"TF_XLA_FLAGS": "--tf_xla_persistent_cache_directory=mine"},
            "--tf_xla_persistent_cache_directory=mine",
        ),
    ],
)
def test_nothing_is_kept_of_jax_where_nothing_can_be_written_or_where_the_user_keeps_it(
    changed: dict[str, str], told: str, tmp_path: Path
) -> None:
    assert run(FLAGS, tmp_path, **changed) == [told, told]
