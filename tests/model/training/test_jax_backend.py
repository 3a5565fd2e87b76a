"""The same fleet under the JAX backend: the same losses, with TensorFlow installed and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from float32_steps import assert_within_steps

pytestmark = pytest.mark.process

TESTS = Path(__file__).parents[2]

# Each backend draws initial weights in its own way, so `SameStart` gives both the same.
PROGRAM = """
import json, sys
from pathlib import Path

sys.path[:0] = [{tests!r}, {tests!r} + "/parts"]
if {is_blocked}:
    from no_tensorflow import hide_tensorflow
    hide_tensorflow()
import keras
import numpy as np
from tiny_profiles import demo_table, tiny_profile
from v8.data.windows import prepare_series
from v8.data.span import Span
from v8.model.training.trainer import FleetMember, Trainer

class SameStart(Trainer):
    def first_state(self, members):
        state, draw = super().first_state(members), np.random.default_rng(1)
        return state._replace(weights=draw.normal(0, 0.3, state.weights.shape).astype("float32"))

network = dict(family="bilstm_seq2seq", encoder_units=(4,), decoder_units=(4,), dropout=0.0)
profile = tiny_profile(network=network, training=dict(epochs=2, batch_size=32))
names = ("BTCUSDT-15m", 698), ("XRPUSDT-1h", 570)
data = [prepare_series(demo_table(profile, series=name, num_bars=bars), profile) for name, bars in names]
trainer = SameStart(profile)
results = dict(trainer.fit_fleet([FleetMember(each, seed) for seed, each in enumerate(data)]))
closes = []
for place, each in enumerate(data):
    model = trainer.serving_model(each, results[place].weights)
    windows = Span(each.table, each.profile, each.anchors["test"][:5]).raw_windows()
    closes.append(model.forecast_all(windows).points["ohlc"][..., 3].tolist())
    model.save(Path({model!r}))

print(json.dumps(dict(
    backend=keras.backend.backend(),
    device=results[0].device,
    has_tensorflow="tensorflow" in sys.modules,
    closes=closes,
    losses=[[(one.train_loss, one.validation_loss) for one in results[place].history] for place in (0, 1)],
)))
"""


def train(backend: str, model: Path, *, is_blocked: bool = False) -> dict[str, Any]:
    """Train a fleet of two for two epochs, dropout off, in a process of its own."""
    program = PROGRAM.format(tests=str(TESTS), model=str(model), is_blocked=is_blocked)
    env = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
    env["PYTHONPATH"] = str(TESTS.parent)
    process = subprocess.run(
        [sys.executable, "-c", program], env=env, text=True, capture_output=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stderr
    printed: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return printed


@pytest.fixture(scope="module")
def on_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train("tensorflow", tmp_path_factory.mktemp("tensorflow") / "model.keras")


@pytest.mark.nightly
@pytest.mark.parametrize("is_blocked", [False, True])
def test_g18_a_fleet_under_jax_follows_the_one_under_tensorflow(
    is_blocked: bool, on_tensorflow: dict[str, Any], tmp_path: Path
) -> None:
    told = train("jax", tmp_path / "model.keras", is_blocked=is_blocked)
    assert told["backend"] == "jax"
    assert told["device"] == "CPU:0"
    assert told["has_tensorflow"] is not is_blocked
    assert_within_steps(told["losses"], on_tensorflow["losses"], steps=64)
    # One model serves both series; prices of some 50,000 and some 2 cannot be mixed up.
    for closes, expected in zip(told["closes"], on_tensorflow["closes"], strict=True):
        assert_within_steps(closes, expected, steps=64)
    with zipfile.ZipFile(tmp_path / "model.keras") as saved:
        assert {"config.json", "metadata.json", "model.weights.h5"} <= set(saved.namelist())
