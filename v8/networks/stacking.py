"""Stack networks into a fleet, and take single networks out of it again.

`stack` clones the graph of the first network with a twin for each layer and copies all weights in.
The fleet is a functional Keras model with inputs (B, M, ...) and outputs (B, M, ...), B batch and M
model. A layer without a twin is refused by name; nothing is run one by one behind one's back.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops
from numpy.typing import NDArray

from v8.networks.stacked_layers import TWINS, Layer, StackedBidirectional, StackedLayer

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
SHAPELESS_OPERATIONS = frozenset(
    {
        *("Add", "Divide", "Greater", "Matmul", "Maximum", "Minimum", "Multiply", "Negative", "OnesLike"),
        *("Sigmoid", "StopGradient", "Subtract", "Tanh", "TrueDivide", "Where", "ZerosLike"),
    }
)
"""What `keras.ops` does element by element, or over the last two axes."""
AXIS_OPERATIONS = frozenset({"Concatenate", "ExpandDims", "Max", "Mean", "Softmax", "Squeeze", "Sum", "Take"})
"""What it does along an axis, which must be counted from the last."""


def stack(networks: Sequence[keras.Model], *, are_directions_merged: bool = False) -> keras.Model:
    """Build one fleet out of networks of the same architecture: functional, of stock layers, built.

    It has the inputs and outputs of one network and a model axis after the batch axis, a copy of every
    weight, and the dropout seeds of the networks' layers. Both directions of bidirectional layers may run in
    one loop (GPU).

    Raises:
        ValueError: If a layer has no twin, or the networks differ in architecture.
    """
    first, num_models = networks[0], len(networks)
    for number, network in enumerate(networks):
        if _architecture(network) != _architecture(first):
            raise ValueError(
                f"network {number}: must have the architecture of network 0; got other layers or shapes. "
                "Stack networks of one profile only."
            )
    inputs = keras.tree.map_structure(
        lambda tensor: keras.Input((num_models, *tensor.shape[1:]), dtype=tensor.dtype, name=tensor.name),
        first.input,
    )
    fleet = keras.models.clone_model(
        first,
        input_tensors=inputs,
        clone_function=lambda layer: _twin(layer, num_models),
        # Without the options that Keras noted as None, such as a mask that is not there.
        call_function=lambda twin, *args, **kwargs: twin(
            *args, **{name: value for name, value in kwargs.items() if value is not None}
        ),
    )
    for layer in fleet.layers:
        if isinstance(layer, StackedBidirectional):
            layer.are_directions_merged = are_directions_merged
    # Networks built one after another have other automatic names; their order is the same.
    fleet.stacked_names = tuple(layer.name for layer in _layers(first))
    load(fleet, networks)
    return fleet


def load(fleet: keras.Model, networks: Sequence[keras.Model]) -> None:
    """Copy all weights and dropout seeds of `networks` into an existing fleet of the same size."""
    for twin, *originals in zip(_twins(fleet), *(_layers(network) for network in networks), strict=True):
        if isinstance(twin, StackedLayer):
            twin.load(originals)


def unstack(fleet: keras.Model, index: int, network: keras.Model) -> list[NDArray[Any]]:
    """Return the weights of one model, in the order of `network.get_weights()`, which is not changed."""
    arrays = {
        id(weight): ops.convert_to_numpy(variable)[index]
        for layer, twin in zip(_layers(network), _twins(fleet), strict=True)
        for weight, variable in zip(layer.weights, getattr(twin, "stock_weights", ()), strict=True)
    }
    return [arrays[id(weight)] for weight in network.weights]


def _twin(layer: Layer, num_models: int) -> Layer:
    if not isinstance(layer, keras.layers.Layer):
        return _operation(layer)
    if isinstance(layer, SHAPELESS) or (isinstance(layer, keras.layers.Concatenate) and layer.axis == -1):
        return type(layer).from_config(layer.get_config())
    if type(layer) in TWINS:
        return TWINS[type(layer)](layer, name=layer.name, num_models=num_models, dtype=layer.dtype_policy)
    raise ValueError(
        f"{layer.name}: must be a layer with a stacked twin; got {type(layer).__name__}. "
        "Use another layer or mark a class of your own with twin_of."
    )


def _operation(operation: Any) -> Any:
    """Let pass what `keras.ops` does, if it counts axes from the last: a model axis then changes nothing."""
    kind, axis = type(operation).__name__, getattr(operation, "axis", None)
    is_from_last = (
        axis < 0 if kind in AXIS_OPERATIONS and isinstance(axis, int) else kind in SHAPELESS_OPERATIONS
    )
    if is_from_last:
        return operation
    raise ValueError(
        f"{operation.name}: must be an operation without axes, or with one counted from the last; got {kind} "
        f"with axis = {axis}. Count from the last axis, or use a layer with a stacked twin."
    )


def _architecture(network: keras.Model) -> list[Any]:
    return [(type(layer), [weight.shape for weight in layer.weights]) for layer in network.layers]


def _layers(network: keras.Model) -> list[Layer]:
    return [layer for layer in network.layers if not isinstance(layer, keras.layers.InputLayer)]


def _twins(fleet: keras.Model) -> list[Layer]:
    return [fleet.get_layer(name) for name in fleet.stacked_names]
