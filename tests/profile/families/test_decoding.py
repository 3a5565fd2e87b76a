"""Decoders: what is published is step-by-step decoding, and what is taught never sees a later candle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from fleets import fleet_of
from float32_steps import assert_within_steps
from keras import ops
from tiny_profiles import tiny_profile

from v8.model.networks.networks import ACTUAL, WINDOW, build_network, counterparts, has_teacher_forcing
from v8.profile.families import positions
from v8.profile.profile import Profile

pytestmark = pytest.mark.tf

DECODERS = ["transformer", "gru_attention", "lstm_attention"]
NUM_WINDOWS = 16


def drawn(network: keras.Model, seed: int = 2) -> keras.Model:
    """Give a network weights with which its heads say anything."""
    draws = np.random.default_rng(seed)
    network.set_weights([draws.normal(0, 0.4, one.shape).astype(np.float32) for one in network.get_weights()])
    return network


def window_of(profile: Profile) -> np.ndarray:
    shape = (NUM_WINDOWS, profile.lookback_bars, len(profile.features))
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def attend(network: keras.Model, name: str, x: Any, to: Any, *, is_causal: bool = False) -> Any:
    """Attend with keras.layers.MultiHeadAttention and the weights of one of ours."""
    _, num_heads, size = network.get_layer(f"{name}_query").kernel.shape
    stock = keras.layers.MultiHeadAttention(num_heads, size)
    stock.build(x.shape, to.shape)
    weights = []
    for role in ("query", "key", "value"):
        kernel, bias = network.get_layer(f"{name}_{role}").get_weights()
        weights += [kernel, bias.reshape(num_heads, size)]
    stock.set_weights([*weights, *network.get_layer(f"{name}_output").get_weights()])
    return stock(x, to, use_causal_mask=is_causal)


def transformer(network: keras.Model, profile: Profile, window: np.ndarray, candles: Any) -> Any:
    """All candles at once through stock attention under a causal mask, nothing kept from before."""
    layer = network.get_layer
    settings = profile.network

    def added(name: str, x: Any, y: Any) -> Any:
        return layer(f"{name}_norm")(x + y)

    def dense(name: str, x: Any) -> Any:
        return added(f"{name}_dense", x, layer(f"{name}_narrow")(layer(f"{name}_widen")(x)))

    x = layer("embedding")(window) + positions(profile.lookback_bars, settings.width)
    for number in range(1, len(settings.encoder_units) + 1):
        name = f"encoder_{number}"
        x = dense(name, added(f"{name}_own", x, attend(network, f"{name}_own", x, x)))
    y = layer("candle_embedding")(candles) + positions(candles.shape[1], settings.width)
    for number in range(1, len(settings.decoder_units) + 1):
        name = f"decoder_{number}"
        y = added(f"{name}_own", y, attend(network, f"{name}_own", y, y, is_causal=True))
        y = dense(name, added(f"{name}_other", y, attend(network, f"{name}_other", y, x)))
    return y


def last_states(network: keras.Model, profile: Profile, window: np.ndarray, candles: Any, kind: Any) -> Any:
    """Run stock layers over the window, and from their last states on over the candles."""
    x = window
    y = candles
    for number, units in enumerate(profile.network.recurrent_units, 1):
        x, *states = network.get_layer(f"encoder_{number}")(x)
        stock = kind(units, return_sequences=True)
        stock.build(y.shape)
        stock.set_weights(network.get_layer(f"decoder_{number}").get_weights())
        y = stock(y, initial_state=states)
    return x, y


def gru_attention(network: keras.Model, profile: Profile, window: np.ndarray, candles: Any) -> Any:
    """Attention of Bahdanau et al. 2015, written down."""
    x, y = last_states(network, profile, window, candles, keras.layers.GRU)
    query = network.get_layer("query")(y)
    key = network.get_layer("key")(x)
    (scale,) = network.get_layer("attention").get_weights()
    scores = ops.sum(scale * ops.tanh(query[:, :, None] + key[:, None]), axis=-1)
    return y + ops.softmax(scores, axis=-1) @ x


def lstm_attention(network: keras.Model, profile: Profile, window: np.ndarray, candles: Any) -> Any:
    """Stock attention, and dense layers over both."""
    x, y = last_states(network, profile, window, candles, keras.layers.LSTM)
    return network.get_layer("dense_1")(ops.concatenate([y, attend(network, "attention", y, x)], axis=-1))


BY_HAND: dict[str, Callable[..., Any]] = {
    "transformer": transformer,
    "gru_attention": gru_attention,
    "lstm_attention": lstm_attention,
}


@pytest.mark.parametrize("family", DECODERS)
def test_the_published_graph_decodes_as_one_does_step_by_step(family: str) -> None:
    profile = tiny_profile(family)
    network = drawn(build_network(profile, seed=1))
    window = window_of(profile)
    said = np.asarray(network(window)["ohlc"])
    kernel, bias = network.get_layer("head_ohlc").get_weights()
    candles = window[:, -1:, :4]  # open, high, low, close of the newest row
    for bar in range(profile.horizon_bars):
        bars = np.asarray(BY_HAND[family](network, profile, window, candles))
        forecast = bars[:, -1] @ kernel + bias[bar]
        assert_within_steps(said[:, bar], forecast, steps=16)
        candles = np.concatenate([candles, forecast[:, None]], axis=1)
    assert np.abs(np.diff(said, axis=1)).min() > 0


@pytest.mark.parametrize("family", DECODERS)
def test_no_output_depends_on_a_later_target_and_the_published_graph_on_none(family: str) -> None:
    profile = tiny_profile(family, dropout=0.3, teacher_forcing=0.5)
    fleet = fleet_of([drawn(build_network(profile, seed=1, uses_teacher_forcing=True))])
    weights = [ops.convert_to_numpy(one) for one in fleet.trainable_variables]
    constants = [ops.convert_to_numpy(one) for one in fleet.non_trainable_variables]
    window = window_of(profile)[:, None]
    actual = (
        np.random.default_rng(3).normal(size=(NUM_WINDOWS, 1, profile.horizon_bars, 4)).astype(np.float32)
    )

    def said(actual: np.ndarray) -> dict[str, np.ndarray]:
        # The same constants, so the same draws.
        inputs = {WINDOW: window, ACTUAL: actual}
        outputs, _ = fleet.stateless_call(weights, constants, inputs, training=True)
        return {task: np.asarray(values)[:, 0] for task, values in outputs.items()}

    before = said(actual)
    for bar in range(profile.horizon_bars):
        changed = actual.copy()
        changed[:, :, bar] += 1
        after = said(changed)
        for task, values in before.items():
            np.testing.assert_array_equal(after[task][:, : bar + 1], values[:, : bar + 1])
        if bar + 1 < profile.horizon_bars:
            assert (after["ohlc"][:, bar + 1] != before["ohlc"][:, bar + 1]).any()
    assert [one.name for one in build_network(profile, seed=1).inputs] == [WINDOW]


@pytest.mark.parametrize("family", DECODERS)
def test_a_teacher_s_share_decides_how_often_the_actual_values_is_read(family: str) -> None:
    profile = tiny_profile(family, teacher_forcing=0.25)
    network = build_network(profile, seed=1, uses_teacher_forcing=True)
    is_own = np.asarray(network.get_layer("teacher")(np.ones((4_000, 2, 1)), training=True)) > 0
    # 8,000 draws: the share has a deviation of sqrt(0.25 x 0.75 / 8,000) = 0.005; 5 of them are 0.025.
    assert abs(1 - is_own.mean() - 0.25) < 0.025
    assert not has_teacher_forcing(tiny_profile(family))
    assert not has_teacher_forcing(tiny_profile(family, teacher_forcing=0.5, horizon_bars=1))


@pytest.mark.parametrize("family", DECODERS)
def test_a_taught_network_has_the_weights_of_the_published_one_by_name(family: str) -> None:
    profile = tiny_profile(family, teacher_forcing=0.5)
    free, teacher_forced = (
        build_network(profile, seed=4, uses_teacher_forcing=flag) for flag in (False, True)
    )
    places = counterparts(free, teacher_forced)
    assert sorted(places) == list(range(len(teacher_forced.trainable_variables)))
    for mine, place in zip(free.trainable_variables, places, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(teacher_forced.trainable_variables[place]))
