"""Stack networks into a fleet, and take single networks out of it again.

`stack` clones the graph of the first network with a twin for each layer and copies all weights in.
The fleet is a functional Keras model with inputs (B, M, ...) and outputs (B, M, ...), B batch and M
model. A layer without a twin is refused by name; nothing is run one by one behind one's back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.models.stacked_layers import (
    StackedAdditiveAttention,
    StackedCropping1D,
    StackedDense,
    StackedDropout,
    StackedEinsumDense,
    StackedGlobalAveragePooling1D,
    StackedLayer,
    StackedLayerNormalization,
    StackedMultiHeadAttention,
    StackedRepeatVector,
    StackedReshape,
)
from v8.models.stacked_recurrent import StackedBidirectional, StackedGRU, StackedLSTM

Layer: TypeAlias = Any
SHAPELESS = (
    keras.layers.Activation,
    keras.layers.Add,
    keras.layers.Average,
    keras.layers.Identity,
    keras.layers.LeakyReLU,
    keras.layers.Multiply,
    keras.layers.ReLU,
    keras.layers.Subtract,
)
"""Layers that work element by element and so need no twin."""


def stack(networks: Sequence[keras.Model], *, are_directions_merged: bool = False) -> keras.Model:
    """Build one fleet out of networks of the same architecture.

    Args:
        networks: Functional models of stock layers, built and not compiled.
        are_directions_merged: Run both directions of bidirectional layers in one loop (GPU).

    Returns:
        Functional model with the inputs and outputs of one network and a model axis after the batch
        axis, holding a copy of every weight. Dropout seeds are those of the networks' layers.

    Raises:
        ValueError: If a layer has no twin, or the networks differ in architecture.
    """
    first, num_models = networks[0], len(networks)
    _check_alike(networks)

    def twin_of(layer: Layer) -> Layer:
        twin = stacked_twin(layer, num_models)
        if isinstance(twin, StackedBidirectional):
            twin.are_directions_merged = are_directions_merged
        return twin

    inputs = keras.tree.map_structure(
        lambda tensor: keras.Input((num_models, *tensor.shape[1:]), dtype=tensor.dtype, name=tensor.name),
        first.input,
    )
    fleet = keras.models.clone_model(
        first, input_tensors=inputs, clone_function=twin_of, call_function=_call_twin
    )
    # Networks built one after another have other automatic names; their order is the same.
    fleet.stacked_names = tuple(layer.name for layer in _layers(first))
    load(fleet, networks)
    return fleet


def load(fleet: keras.Model, networks: Sequence[keras.Model]) -> None:
    """Copy all weights and dropout seeds of `networks` into an existing fleet of the same size."""
    for twin, *originals in zip(_twins(fleet), *(_layers(network) for network in networks), strict=True):
        if isinstance(twin, StackedDropout):
            twin.seeds.assign([_seed(original) for original in originals])
            twin.draws.assign([0] * len(networks))
        for number, variable in enumerate(_stock_weights(twin)):
            variable.assign(
                np.stack([ops.convert_to_numpy(original.weights[number]) for original in originals])
            )


def unstack(fleet: keras.Model, index: int, network: keras.Model) -> list[NDArray[Any]]:
    """Return the weights of one model, in the order of `network.get_weights()`.

    Args:
        fleet: What `stack` built.
        index: Place on the model axis.
        network: Any network of the same architecture; gives the order and is not changed.
    """
    arrays = {
        id(weight): ops.convert_to_numpy(variable)[index]
        for layer, twin in zip(_layers(network), _twins(fleet), strict=True)
        for weight, variable in zip(layer.weights, _stock_weights(twin), strict=True)
    }
    return [arrays[id(weight)] for weight in network.weights]


def stacked_twin(layer: Layer, num_models: int) -> Layer:
    """Build the twin of one stock layer, without its weights.

    Raises:
        ValueError: If there is no twin, or an option of the layer is not supported.
    """
    if isinstance(layer, SHAPELESS) or (isinstance(layer, keras.layers.Concatenate) and layer.axis == -1):
        return type(layer).from_config(layer.get_config())
    for kind, build in _TWINS.items():
        if type(layer) is kind:
            return build(layer, name=layer.name, num_models=num_models, dtype=layer.dtype_policy)
    raise ValueError(
        f"{layer.name}: must be a layer with a stacked twin; got {type(layer).__name__}. "
        "Use another layer or add its twin to stacking.py."
    )


def _call_twin(twin: Layer, *args: Any, **kwargs: Any) -> Any:
    """Call without the options that Keras noted as None, such as a mask that is not there."""
    return twin(*args, **{name: value for name, value in kwargs.items() if value is not None})


def _check_alike(networks: Sequence[keras.Model]) -> None:
    first = networks[0]
    shapes = [tuple(weight.shape) for weight in first.weights]
    for number, network in enumerate(networks):
        kinds = [type(layer) for layer in network.layers]
        same_layers = kinds == [type(layer) for layer in first.layers]
        if not same_layers or [tuple(weight.shape) for weight in network.weights] != shapes:
            raise ValueError(
                f"network {number}: must have the architecture of network 0; got other layers or shapes. "
                "Stack networks of one profile only."
            )


def _layers(network: keras.Model) -> list[Layer]:
    return [layer for layer in network.layers if not isinstance(layer, keras.layers.InputLayer)]


def _twins(fleet: keras.Model) -> list[Layer]:
    return [fleet.get_layer(name) for name in fleet.stacked_names]


def _stock_weights(twin: Layer) -> list[Any]:
    return twin.stock_weights if isinstance(twin, StackedLayer) else list(twin.weights)


def _seed(layer: Layer) -> int:
    return int(layer.seed or 0) % 2**31


def _require(layer: Layer, option: str, *allowed: Any) -> None:
    value = getattr(layer, option)
    value = getattr(value, "__name__", value)
    if value not in allowed:
        raise ValueError(
            f"{layer.name}: a stacked {type(layer).__name__} needs {option} = {allowed[0]!r}; got {value!r}. "
            f"Set it so, or add it to the twin."
        )


def _recurrent_options(layer: Layer) -> dict[str, Any]:
    _require(layer, "activation", "tanh")
    _require(layer, "recurrent_activation", "sigmoid")
    for option in ("dropout", "recurrent_dropout"):
        _require(layer, option, 0, 0.0)
    for option in ("return_state", "stateful"):
        _require(layer, option, False)
    _require(layer, "use_bias", True)
    if isinstance(layer, keras.layers.GRU):
        _require(layer, "reset_after", True)
    return {"units": layer.units, "return_sequences": layer.return_sequences}


def _lstm(layer: Layer, **common: Any) -> Layer:
    return StackedLSTM(go_backwards=layer.go_backwards, **_recurrent_options(layer), **common)


def _gru(layer: Layer, **common: Any) -> Layer:
    return StackedGRU(go_backwards=layer.go_backwards, **_recurrent_options(layer), **common)


def _bidirectional(layer: Layer, **common: Any) -> Layer:
    _require(layer, "merge_mode", "concat")
    options = _recurrent_options(layer.forward_layer)
    if _recurrent_options(layer.backward_layer) != options:
        raise ValueError(
            f"{layer.name}: both directions need the same units; got two. Give both layers one size."
        )
    kind = StackedLSTM if isinstance(layer.forward_layer, keras.layers.LSTM) else StackedGRU
    return StackedBidirectional(kind=kind, **options, **common)


def _dense(layer: Layer, **common: Any) -> Layer:
    return StackedDense(units=layer.units, activation=layer.activation, use_bias=layer.use_bias, **common)


def _einsum_dense(layer: Layer, **common: Any) -> Layer:
    bias_shape = None if layer.bias is None else tuple(layer.bias.shape)
    return StackedEinsumDense(
        equation=layer.equation,
        kernel_shape=tuple(layer.kernel.shape),
        bias_shape=bias_shape,
        activation=layer.activation,
        **common,
    )


def _layer_normalization(layer: Layer, **common: Any) -> Layer:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    if axes not in ([-1], [len(layer.input.shape) - 1]):
        raise ValueError(
            f"{layer.name}: a stacked LayerNormalization needs the last axis; got {layer.axis}. Set axis=-1."
        )
    return StackedLayerNormalization(epsilon=layer.epsilon, center=layer.center, scale=layer.scale, **common)


def _dropout(layer: Layer, **common: Any) -> Layer:
    return StackedDropout(rate=layer.rate, noise_shape=layer.noise_shape, **common)


def _repeat_vector(layer: Layer, **common: Any) -> Layer:
    return StackedRepeatVector(num_steps=layer.n, **common)


def _cropping(layer: Layer, **common: Any) -> Layer:
    return StackedCropping1D(cropping=tuple(layer.cropping), **common)


def _reshape(layer: Layer, **common: Any) -> Layer:
    return StackedReshape(target_shape=tuple(layer.output.shape[1:]), **common)


def _pooling(layer: Layer, **common: Any) -> Layer:
    _require(layer, "keepdims", False)
    return StackedGlobalAveragePooling1D(**common)


def _time_distributed(layer: Layer, **common: Any) -> Layer:
    inner = layer.layer
    if type(inner) not in (keras.layers.Dense, keras.layers.LayerNormalization):
        raise ValueError(
            f"{layer.name}: TimeDistributed needs Dense or LayerNormalization inside; "
            f"got {type(inner).__name__}. Use the layer itself, or add its twin."
        )
    return _dense(inner, **common) if isinstance(inner, keras.layers.Dense) else _inner_norm(inner, **common)


def _inner_norm(inner: Layer, **common: Any) -> Layer:
    return StackedLayerNormalization(epsilon=inner.epsilon, center=inner.center, scale=inner.scale, **common)


def _additive_attention(layer: Layer, **common: Any) -> Layer:
    _require(layer, "dropout", 0, 0.0)
    return StackedAdditiveAttention(use_scale=layer.use_scale, **common)


def _multi_head_attention(layer: Layer, **common: Any) -> Layer:
    _require(layer, "dropout", 0, 0.0)
    return StackedMultiHeadAttention(
        num_heads=layer.num_heads,
        key_dim=layer.key_dim,
        value_dim=layer.value_dim,
        use_bias=layer.use_bias,
        **common,
    )


_TWINS: dict[type[Layer], Callable[..., Layer]] = {
    keras.layers.LSTM: _lstm,
    keras.layers.GRU: _gru,
    keras.layers.Bidirectional: _bidirectional,
    keras.layers.Dense: _dense,
    keras.layers.EinsumDense: _einsum_dense,
    keras.layers.LayerNormalization: _layer_normalization,
    keras.layers.Dropout: _dropout,
    keras.layers.RepeatVector: _repeat_vector,
    keras.layers.Cropping1D: _cropping,
    keras.layers.Reshape: _reshape,
    keras.layers.GlobalAveragePooling1D: _pooling,
    keras.layers.TimeDistributed: _time_distributed,
    keras.layers.AdditiveAttention: _additive_attention,
    keras.layers.MultiHeadAttention: _multi_head_attention,
}
