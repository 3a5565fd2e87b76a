"""Forecasts on a GPU: full float32, and no price that TF32 could round."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_profiles import demo_data, tiny_profile

from v8.base import hardware
from v8.base.hardware import full_float32
from v8.data.span import Span
from v8.model.baselines.ranges import fit_formulas
from v8.model.networks import published
from v8.model.networks.networks import build_network
from v8.model.networks.published import without_cudnn
from v8.model.networks.serving import ServingGraph, ServingModel

pytestmark = pytest.mark.tf

TF32_BITS = 10


def rounded_to_tf32(values: object) -> object:
    """Round float32 to the 10 explicit bits of the fraction that TF32 has."""
    fraction, exponent = np.frexp(np.asarray(values, np.float32))
    return np.ldexp(np.round(fraction * 2.0 ** (TF32_BITS + 1)) / 2.0 ** (TF32_BITS + 1), exponent)


def test_tensorflow_multiplies_in_full_precision_until_the_last_thread_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "_gpu_devices", lambda: ["GPU:0"])
    may_use_tf32 = tf.config.experimental.tensor_float_32_execution_enabled
    assert may_use_tf32()
    with full_float32():
        assert not may_use_tf32()
        with full_float32():
            pass
        assert not may_use_tf32()
    assert may_use_tf32()


def test_on_a_cpu_the_setting_stays() -> None:
    with full_float32():
        assert tf.config.experimental.tensor_float_32_execution_enabled()


def test_prices_survive_a_gpu_that_rounds_factors_to_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    data = demo_data(tiny_profile("lstm_dense", calibration="ensemble"))
    profile = data.profile
    span = Span(data.table, profile, data.anchors["test"][:64])
    graph = ServingGraph(profile, data.scaling, build_network(profile, seed=5))
    weights = [np.asarray(weight) for weight in graph.network.trainable_variables]
    model = ServingModel(graph, data.scaling, weights)
    shares = np.repeat([[0.2], [0.3], [0.5]], profile.horizon_bars, axis=1)
    model.add_calibration(fit_formulas(data.spans["train"]), dict.fromkeys(profile.tasks, shares), {})
    exact = graph.model(span.raw_windows())
    einsum = keras.src.ops.einsum
    matmul = keras.src.ops.matmul
    monkeypatch.setattr(
        keras.src.ops, "einsum", lambda *args, **options: einsum(args[0], *map(rounded_to_tf32, args[1:]))
    )
    monkeypatch.setattr(keras.src.ops, "matmul", lambda *args: matmul(*map(rounded_to_tf32, args)))
    rounded = graph.model(span.raw_windows())
    for task in ("ohlc", "bands"):
        np.testing.assert_allclose(rounded[task], exact[task], rtol=2e-5)


def test_without_cudnn_reaches_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build_network(tiny_profile("bilstm_seq2seq"), seed=0)
    outer = keras.Model(network.input, network(network.input))
    without_cudnn(outer)
    flags = [layer.forward_layer.use_cudnn for layer in network.layers if hasattr(layer, "forward_layer")]
    assert flags and set(flags) == {"auto"}
    monkeypatch.setattr(published, "has_gpu", lambda: True)
    monkeypatch.setattr(published, "backend_name", lambda: "jax")
    without_cudnn(outer)
    recurrent = [
        part
        for layer in network.layers
        for part in (layer, getattr(layer, "forward_layer", None), getattr(layer, "backward_layer", None))
        if hasattr(part, "use_cudnn")
    ]
    assert recurrent and not any(part.use_cudnn for part in recurrent)
