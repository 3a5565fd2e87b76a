"""Networks: the lineage's layers, an honest start, reproducible draws."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
from float32_steps import assert_within_steps
from tiny_profiles import demo_data, network_profiles, tiny_profile

from v8.model.networks.networks import build_network
from v8.profile.profile import load_profile

pytestmark = pytest.mark.tf

FAMILIES = ["bilstm_seq2seq", "lstm_dense", "dense_newest"]
FAMILIES += ["transformer", "gru_attention", "lstm_attention", "lstm_close"]
# Of the V4 family the lineage tells 926,852, 334,597 and 1,984,772; configs/ says what makes the difference.
PARAMETERS = {
    "v4_transformer": 926_852 + 36,
    "v4_gru": 334_597 + 36 - 1,
    "v4_lstm": 1_984_772 + 36 - 4 * 4 * 256,
    # Closes to 50 units to 50: 4 x 50 x (1 + 50 + 1) + 4 x 50 x (50 + 50 + 1), two norms, a head of 4.
    "v3": 10_400 + 20_200 + 2 * 100 + 204,
}


@pytest.mark.parametrize("name", network_profiles())
def test_a_shipped_network_reads_its_window_and_nothing_of_it_stands_still(name: str) -> None:
    profile = load_profile(name)
    network = build_network(profile, seed=1)
    assert network.count_params() == sum(math.prod(one.shape) for one in network.trainable_variables)
    assert network.input_shape == (None, profile.lookback_bars, len(profile.features))
    assert network.count_params() == PARAMETERS.get(name, network.count_params())


def test_the_aligned_network_has_the_stated_layers_in_order() -> None:
    kinds = [type(layer).__name__ for layer in build_network(load_profile("aligned"), seed=1).layers]
    recurrent = ["Bidirectional", "LayerNormalization", "Dropout"]
    decoder = ["RepeatVector", "LSTM", "LayerNormalization", "Dropout"]
    assert kinds == ["InputLayer", *recurrent * 3, *decoder, *["EinsumDense"] * 3]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_untrained_network_is_the_constant_it_was_given(family: str) -> None:
    data = demo_data(tiny_profile(family))
    start = {task.task: task.start for task in data.scaling.tasks}
    network = build_network(data.profile, seed=3, start=start)
    outputs = network(np.random.default_rng(1).normal(size=(5, 20, 12)).astype(np.float32))
    for task, constants in start.items():
        np.testing.assert_array_equal(np.asarray(outputs[task]), np.float32([constants] * 5))


def test_the_parameters_of_a_newest_row_network_by_hand() -> None:
    # 12 features to 6 units to 4: 13 x 6 + 7 x 4 = 106. Three tasks read 4 units into 3 steps: 36. A
    # column of the 4 + 2 + 1 has one side and 3 constants: 28.
    assert build_network(tiny_profile("dense_newest"), seed=1).count_params() == 170


def test_a_newest_row_network_reads_the_newest_row_and_nothing_else() -> None:
    network = build_network(tiny_profile("dense_newest"), seed=1)
    for weight in network.trainable_variables:
        weight.assign(np.random.default_rng(2).normal(size=weight.shape))
    window = np.random.default_rng(1).normal(size=(1, 20, 12)).astype(np.float32)
    earlier = window.copy()
    newest = window.copy()
    earlier[:, :-1] += 1
    newest[:, -1] += 1
    said, same, other = (np.asarray(network(each)["ohlc"]) for each in (window, earlier, newest))
    np.testing.assert_array_equal(same, said)
    assert (other != said).all()


def test_one_number_a_step_first_moves_high_and_low_apart_and_open_and_close_not_at_all() -> None:
    start = {"ohlc": [[0.0, 2.0, -2.0, 0.5]] * 3, "bands": [[1.0, -1.0]] * 3, "volatility": [[0.25]] * 3}
    network = build_network(tiny_profile("dense_newest"), seed=1, start=start)
    for task in start:
        layer = network.get_layer(f"range_{task}")
        layer.kernel.assign(np.ones(layer.kernel.shape))
    window = np.random.default_rng(1).normal(size=(4, 20, 12)).astype(np.float32)
    outputs = {task: np.asarray(values) for task, values in network(window).items()}
    width = outputs["volatility"] - 0.25  # (B, H, 1): what every task's number is
    assert np.abs(width).min() > 0
    sides = {"ohlc": [0, 1, -1, 0], "bands": [1, -1]}
    for task, side in sides.items():
        expected = np.array(start[task]) + width * side
        assert_within_steps(outputs[task], expected, steps=8)


@pytest.mark.parametrize("family", FAMILIES)
def test_g20_the_seed_decides_every_weight(family: str) -> None:
    profile = tiny_profile(family, dropout=0.3)
    first, same, other = (build_network(profile, seed=seed).get_weights() for seed in (1, 1, 2))
    for one, two in zip(first, same, strict=True):
        np.testing.assert_array_equal(one, two)
    assert any(not np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_dropout_keeps_a_channel_dropped_through_a_sequence() -> None:
    network = build_network(tiny_profile(dropout=0.5), seed=1)
    layer = next(layer for layer in network.layers if isinstance(layer, keras.layers.Dropout))
    dropped = np.asarray(layer(np.ones((3, 20, 12), np.float32), training=True))
    assert set(np.unique(dropped)) == {0.0, 2.0}
    assert (dropped == dropped[:, :1]).all()


def test_sixteen_bit_networks_keep_float32_weights_and_heads() -> None:
    network = build_network(tiny_profile(), seed=1, precision="mixed_bfloat16")
    assert {weight.dtype for weight in network.trainable_variables} == {"float32"}
    assert {output.dtype for output in network.output.values()} == {"float32"}
    assert network.get_layer("encoder_1").compute_dtype == "bfloat16"
