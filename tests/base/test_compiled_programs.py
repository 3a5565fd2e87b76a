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

TESTS = Path(__file__).parents[1]
TRAINING = """
import json, os, sys
from pathlib import Path
from v8.base.storage import digest_bytes
from v8.base.programs import kept_programs

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
import json, os, sys
from v8.base.programs import kept_programs

before = dict(os.environ)
told = []
for changed in json.loads(sys.argv[2]):
    os.environ.clear()
    os.environ.update(before | changed)
    with kept_programs():
        within = os.environ.get("TF_XLA_FLAGS")
    told.append([within, os.environ.get("TF_XLA_FLAGS")])
print(json.dumps(told))
"""


def run(program: str, home: Path, *words: str) -> Any:
    """Run a program in a process of its own, and return what it prints."""
    env = {**os.environ, "V8_HOME": str(home), "PYTHONPATH": str(TESTS.parent)}
    command = [sys.executable, "-c", program, str(TESTS), *words]
    process = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.nightly
def test_the_next_process_reads_what_is_whole_compiles_the_rest_and_trains_the_same_weights(
    tmp_path: Path,
) -> None:
    """TensorFlow writes a file anew, under another number, whenever it did not take the one it found."""
    first = run(TRAINING, tmp_path)
    assert first["before"] == {}
    kept = sorted(tmp_path.glob("programs/*/*.pb"), key=lambda file: file.stat().st_size)
    assert sorted(first["after"]) == sorted(file.name for file in kept)
    assert len(kept) == 2  # a step and a loss
    damaged, whole = kept
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    second = run(TRAINING, tmp_path)
    assert set(second["before"]) == {whole.name}
    assert set(second["after"]) == set(first["after"])
    assert second["after"][whole.name] == second["before"][whole.name]
    assert second["weights"] == first["weights"]
    assert damaged.read_bytes() != bytes(content)
    assert not list(tmp_path.glob("programs/passing-*"))


def test_tensorflow_is_told_of_a_folder_while_the_block_lasts_where_one_can_be_kept(tmp_path: Path) -> None:
    """Not of JAX, not where nothing can be written or no flag can name it, not where the user keeps them."""
    own = "--tf_xla_persistent_cache_directory=mine"
    nothing = ({"KERAS_BACKEND": "jax"}, {"V8_HOME": __file__}, {"V8_HOME": str(tmp_path / "a user's home")})
    told, *others = run(FLAGS, tmp_path, json.dumps([{}, *nothing, {"TF_XLA_FLAGS": own}]))
    assert told[0].startswith(f"--tf_xla_persistent_cache_directory={tmp_path / 'programs'}/passing-")
    assert "--tf_xla_persistent_cache_device_types=CPU" in told[0]
    assert told[1] is None
    assert others == [[None, None]] * 3 + [[own, own]]
