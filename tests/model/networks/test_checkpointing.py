"""Activation checkpointing: the same gradients and draws, in less memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from fleets import fleet_of
from float32_steps import assert_within_steps
from keras import ops
from tiny_profiles import tiny_profile

from v8.model.networks.networks import ACTUAL, WINDOW, build_network
from v8.model.training.probe import random_batch
from v8.model.training.state import flattened, initial_state, unflattened
from v8.model.training.step import checkpointed, compiled_step, gradients_of
from v8.profile.families import FAMILIES
from v8.profile.profile import Profile

MEMORY = """
import json, jax, keras
from keras import layers, ops
from v8.model.training.step import checkpointed
from v8.model.training.step import gradients_of

x = first = keras.Input((64,))
for number in range(16):
    x = layers.Dense(64, "tanh")(x)
network = keras.Model(first, x)
arrays = [each.value for each in network.trainable_variables]
batch = ops.ones((4096, 64))
found = {}
for name, call in dict(plain=network.stateless_call, checkpointed=checkpointed(network)).items():
    def found_of(arrays, call=call):
        return gradients_of(lambda arrays: (ops.sum(ops.square(call(arrays, [], batch)[0])), None), arrays)[0]
    compiled = jax.jit(found_of).lower(arrays).compile()
    norm = float(sum(abs(each).sum() for each in compiled(arrays)))
    found[name] = compiled.memory_analysis().temp_size_in_bytes, norm
print(json.dumps(found))
"""
"""Sixteen layers of 64 channels, 4,096 windows: an array between two layers is 1,048,576 bytes."""


def gradients_and_draws(fleet: keras.Model, call: Any, profile: Profile) -> tuple[list[Any], list[Any]]:
    x_BMTF, y = random_batch(profile, 2)
    inputs = {WINDOW: x_BMTF, ACTUAL: y["ohlc"]} if isinstance(fleet.input, dict) else x_BMTF
    constants = [each.value for each in fleet.non_trainable_variables]

    def loss_of(weights: Any) -> Any:
        forecast, drawn = call(weights, constants, inputs)
        return sum(ops.sum(ops.square(forecast[task] - y[task])) for task in y), drawn

    # A head's kernel of zero would let no gradient through.
    draw = np.random.default_rng(3)
    weights = [ops.convert_to_tensor(draw.normal(0, 0.3, each.shape).astype("float32"))
               for each in fleet.trainable_variables]  # fmt: skip
    found, drawn = gradients_of(loss_of, weights)
    return [np.asarray(each) for each in found], [np.asarray(each) for each in drawn]


@pytest.mark.tf
@pytest.mark.parametrize("family", [each.name for each in FAMILIES.values() if not each.is_formula])
def test_gradients_and_draws_are_those_of_the_network(family: str) -> None:
    profile = tiny_profile(family, dropout=0.3, teacher_forcing=0.5, training={"batch_size": 8})
    networks = [build_network(profile, seed=seed, uses_teacher_forcing=True) for seed in (1, 2)]
    fleet = fleet_of(networks)
    plain, drawn = gradients_and_draws(
        fleet, lambda *args: fleet.stateless_call(*args, training=True), profile
    )
    again, drawn_again = gradients_and_draws(fleet, checkpointed(fleet), profile)
    assert all(np.abs(each).max() > 0 for each in plain)
    # What an attention's keys add to every score alike has no gradient but that of rounding.
    largest = max(np.abs(each).max() for each in plain)
    for one, other in zip(plain, again, strict=True):
        assert_within_steps(one, other, magnitude=largest, steps=8)
    for one, other in zip(drawn, drawn_again, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.nightly
@pytest.mark.tf
def test_a_compiled_step_of_a_fleet_that_gathers_batches_is_the_same_with_and_without() -> None:
    found = []
    for checkpoint_activations in (False, True):
        training = {"batch_size": 4, "gradient_accumulation": 2}
        profile = tiny_profile(
            "dense_newest",
            dropout=0.3,
            tasks={"ohlc": {"weight": 1.0, "loss": "mae"}},
            training={**training, "checkpoint_activations": checkpoint_activations},
        )
        fleet = fleet_of([build_network(profile, seed=seed) for seed in (1, 2)])
        state = initial_state(fleet, "float32")
        weights = [np.random.default_rng(3).normal(0, 0.3, each.shape) for each in fleet.trainable_variables]
        state = state._replace(weights=np.asarray(flattened(weights)).astype("float32"))
        step = compiled_step(fleet, profile, "float32")
        x_BMTF, y = random_batch(profile, 2)
        ones = np.ones(x_BMTF.shape[:2], np.float32)
        found.append(step(state, np.float32([0.1, 0.1]), np.ones(2, bool), x_BMTF, y, ones).on_host())
    plain, again = found
    assert all(np.abs(each).max() > 0 for each in unflattened(fleet, plain.means))
    assert_within_steps(plain.means, again.means, steps=8)
    for one, other in zip(plain.constants, again.constants, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.nightly
@pytest.mark.process
def test_xla_allocates_less_for_the_same_gradients() -> None:
    """JAX tells what XLA allocates for a compiled program; both backends compile with it."""
    env = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = str(Path(__file__).parents[3])
    process = subprocess.run(
        [sys.executable, "-c", MEMORY], env=env, text=True, capture_output=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stderr
    content = json.loads(process.stdout.splitlines()[-1])
    plain_bytes, plain_norm = content["plain"]
    bytes_, norm = content["checkpointed"]
    assert norm == pytest.approx(plain_norm, rel=1e-4)
    assert plain_bytes > 16 * 1_048_576, "every layer's results are kept without"
    assert bytes_ < 0.75 * plain_bytes
