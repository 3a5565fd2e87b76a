"""Networks: the lineage's layers, an honest start, reproducible draws."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest

from v8.data.dataset import SeriesData
from v8.models.networks import build_network, num_parameters
from v8.profile import Profile, load_profile, profile_names

FAMILIES = ["bilstm_seq2seq", "lstm_dense"]


@pytest.mark.parametrize("name", profile_names())
def test_the_formula_counts_what_keras_builds(name: str) -> None:
    profile = load_profile(name)
    network = build_network(profile, seed=1)
    assert network.count_params() == num_parameters(profile)
    assert network.input_shape == (None, profile.lookback_bars, profile.num_features)


def test_the_aligned_network_has_the_stated_layers_in_order() -> None:
    kinds = [type(layer).__name__ for layer in build_network(load_profile("aligned"), seed=1).layers]
    recurrent = ["Bidirectional", "LayerNormalization", "Dropout"]
    decoder = ["RepeatVector", "LSTM", "LayerNormalization", "Dropout"]
    assert kinds == ["InputLayer", *recurrent * 3, *decoder, *["EinsumDense"] * 3]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_untrained_network_is_the_constant_it_was_given(
    family: str, make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_profile(family))
    start = {task.task: task.start for task in data.scaling.tasks}
    network = build_network(data.profile, seed=3, start=start)
    outputs = network(np.random.default_rng(1).normal(size=(5, 20, 12)).astype(np.float32))
    for task, constants in start.items():
        np.testing.assert_array_equal(np.asarray(outputs[task]), np.float32([constants] * 5))


@pytest.mark.parametrize("family", FAMILIES)
def test_g20_the_seed_decides_every_weight(family: str, make_profile: Callable[..., Profile]) -> None:
    profile = make_profile(family, dropout=0.3)
    first, same, other = (build_network(profile, seed=seed).get_weights() for seed in (1, 1, 2))
    for one, two in zip(first, same, strict=True):
        np.testing.assert_array_equal(one, two)
    assert any(not np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_dropout_keeps_a_channel_dropped_through_a_sequence(make_profile: Callable[..., Profile]) -> None:
    network = build_network(make_profile(dropout=0.5), seed=1)
    layer = next(layer for layer in network.layers if isinstance(layer, keras.layers.Dropout))
    dropped = np.asarray(layer(np.ones((3, 20, 12), np.float32), training=True))
    assert set(np.unique(dropped)) == {0.0, 2.0}
    assert (dropped == dropped[:, :1]).all()


def test_sixteen_bit_networks_keep_float32_weights_and_heads(make_profile: Callable[..., Profile]) -> None:
    network = build_network(make_profile(), seed=1, precision="mixed_bfloat16")
    assert {weight.dtype for weight in network.trainable_variables} == {"float32"}
    assert {output.dtype for output in network.output.values()} == {"float32"}
    assert network.get_layer("encoder_1").compute_dtype == "bfloat16"
