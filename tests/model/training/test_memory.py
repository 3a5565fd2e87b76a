"""A process that trains series after series does not grow with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

TESTS = Path(__file__).parents[2]

PROGRAM = """
import json, os, sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {tests!r} + "/parts"]
from tiny_profiles import demo_table, tiny_profile
from trained_alone import fit
from v8.data.windows import prepare_series
from v8.model.training.trainer import Trainer

network = dict(family="lstm_dense", encoder_units=(2,), dense_units=(2,), dropout=0.0)
profile = tiny_profile("lstm_dense", network=network,
                       training=dict(epochs=1, batch_size=64))
data = [prepare_series(demo_table(profile, series=name), profile) for name in ("BTCUSDT-15m", "ETHUSDT-1h")]
trainer = Trainer(profile)

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

resident = []
for number in range(50):
    fit(trainer, data[number % 2], seed=number)
    resident.append(resident_bytes())
print(json.dumps(resident))
"""


@pytest.mark.nightly
def test_fifty_series_in_one_process_grow_it_by_less_than_22_mb_after_the_first_ten() -> None:
    """Two series' data under fifty seeds: each is a network, a set of batches and a result of its own."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(TESTS.parent)}
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(tests=str(TESTS))],
        env=env,
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    resident = json.loads(process.stdout.splitlines()[-1])
    assert len(resident) == 50
    grown_bytes = resident[-1] - resident[9]
    assert grown_bytes < 22e6
