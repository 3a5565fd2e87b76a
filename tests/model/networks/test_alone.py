"""A network of layers without stacked twins: a fleet of one that does what stock Keras does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from fleets import fleet_of
from float32_steps import assert_within_steps

from v8.base.errors import SeriesError
from v8.model.networks.networks import counterparts, stack, unstackable_layers

pytestmark = pytest.mark.tf

L = keras.layers
WINDOWS = np.random.default_rng(1).normal(size=(5, 7, 6)).astype(np.float32)


def convolved_twice(x: Any) -> Any:
    shared = L.Conv1D(4, 3, activation="relu")
    return L.Concatenate()([L.Flatten()(shared(x)), L.Flatten()(shared(-x))])


def summed_directions(x: Any) -> Any:
    return L.Bidirectional(L.LSTM(4), merge_mode="sum")(x)


KINDS: dict[str, Callable[[Any], Any]] = {
    "flatten": lambda x: L.Dense(3)(L.Flatten(name="flat")(x)),
    "convolution": lambda x: L.GlobalMaxPooling1D()(L.Conv1D(4, 3, activation="relu")(x)),
    "shared": convolved_twice,
    "sum of directions": summed_directions,
    "an axis from the first": lambda x: L.Dense(3)(keras.ops.max(x, axis=1)),
    "constant": lambda x: L.Flatten()(keras.ops.take(x, np.array([0, 2]), axis=2)),
    "states": lambda x: L.Concatenate()(list(L.SimpleRNN(3, return_state=True)(x))),
}


def network(kind: str) -> Any:
    x = keras.Input((7, 6), name="window")
    return keras.Model(x, KINDS[kind](x))


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_the_keras_network(kind: str) -> None:
    import tensorflow as tf

    plain = network(kind)
    alone = fleet_of([plain])
    assert alone(WINDOWS[:, None]).shape == (5, 1, *plain.output.shape[1:])
    gradients = {}
    for name, model, inputs in (("plain", plain, WINDOWS), ("alone", alone, WINDOWS[:, None])):
        with tf.GradientTape() as tape:
            values = model(inputs)
            loss = tf.reduce_sum(values * values)
        gradients[name] = np.asarray(values), tape.gradient(loss, model.trainable_variables)
    assert_within_steps(gradients["alone"][0][:, 0], gradients["plain"][0], steps=8)
    for place, expected in zip(counterparts(plain, alone), gradients["plain"][1], strict=True):
        assert_within_steps(gradients["alone"][1][place][0], expected, steps=8)


@pytest.mark.parametrize("kind", KINDS)
def test_several_are_no_fleet(kind: str) -> None:
    assert unstackable_layers(network(kind))
    with pytest.raises(ValueError, match=r"stacked|axis"):
        stack(network(kind), 2)


def test_a_network_of_twins_is_a_fleet() -> None:
    x = keras.Input((7, 6))
    assert unstackable_layers(keras.Model(x, L.Dense(2)(L.LSTM(3)(x)))) == []


def test_random_draws_go_on_from_the_seed_of_the_layer() -> None:
    x = keras.Input((7, 6))
    plain = keras.Model(x, L.Flatten()(L.GaussianNoise(1.0, seed=3)(x)))
    alone = fleet_of([plain])
    for _ in range(2):
        expected = plain(WINDOWS, training=True)
        drawn = alone(WINDOWS[:, None], training=True)
        assert_within_steps(np.asarray(drawn)[:, 0], expected, steps=8)
    np.testing.assert_array_equal(np.asarray(alone(WINDOWS[:, None]))[:, 0], WINDOWS.reshape(5, -1))


def test_weights_that_are_not_trained_are_refused() -> None:
    x = keras.Input((7, 6))
    plain = keras.Model(x, L.BatchNormalization(name="norm")(x))
    with pytest.raises(SeriesError, match=r"layer norm: .*trainable weights only"):
        stack(plain, 1)
