"""Networks: a profile's layers, from scaled windows to scaled targets; and fleets of them.

`stack` clones the graph of a network with a twin for each layer and copies all weights in. The fleet is a
functional Keras model with inputs (B, M, ...) and outputs (B, M, ...), B batch and M model. A network with a
layer that has no twin is a fleet of one at most, in which Keras' own layer does the work: `without_twins`
says so. It is refused in a larger fleet; nothing is run one by one behind one's back.

Shape legend: B batch, T lookback, F features, H horizon, C columns of a task.
"""

import os
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

import keras

from v8.columns import OHLC
from v8.families.family import HEAD_PREFIX, Layers, TeacherForcingSettings
from v8.hardware import has_gpu
from v8.networks.products import FLOAT32, MixedMatmul, Products
from v8.networks.stacked_layers import (
    TWINS,
    AloneLayer,
    Layer,
    StackedBidirectional,
    StackedLayer,
    StackedLSTM,
)
from v8.networks.steps_per_trip import STEPS_VARIABLE, chosen_steps_per_trip
from v8.networks.trips import in_trips
from v8.profile import Profile, network_outputs

SEEDS_A_NETWORK = 1_000  # room for the draws of one network, so that neighbouring seeds share none
WINDOW: Final = "window"
ACTUAL: Final = "actual"
"""Names of inputs; a taught network alone has the second."""

SHAPELESS = (
    *(keras.layers.Activation, keras.layers.Add, keras.layers.Average, keras.layers.Identity),
    *(keras.layers.LeakyReLU, keras.layers.Multiply, keras.layers.ReLU, keras.layers.Subtract),
)
"""Layers that work element by element and so need no twin."""

ROWWISE: Final = (keras.layers.Dense, keras.layers.LayerNormalization)
"""Layers that work on the last axis, whatever lies between: within TimeDistributed they do the same."""

SHAPELESS_OPERATIONS = frozenset(
    {
        *("Add", "Divide", "Greater", "Matmul", "Maximum", "Minimum", "Multiply", "Negative", "OnesLike"),
        *("Sigmoid", "StopGradient", "Subtract", "Tanh", "TrueDivide", "Where", "ZerosLike"),
    }
)
"""What `keras.ops` does element by element, or over the last two axes."""
AXIS_OPERATIONS = frozenset({"Concatenate", "ExpandDims", "Max", "Mean", "Softmax", "Squeeze", "Sum", "Take"})
"""What it does along an axis, which must be counted from the last."""


def build_network(
    profile: Profile,
    *,
    seed: int,
    start: Mapping[str, Sequence[Sequence[float]]] | None = None,
    precision: str = "float32",
    uses_teacher_forcing: bool = False,
) -> keras.Model:
    """Build the network of a profile.

    The input is named `window`, shape (B, T, F), float32, scaled; the output is a dict, task to (B, H, C),
    float32, scaled. Head biases start at `start`, per task, (H, C), scaled, and head kernels (in
    `dense_newest`, what they multiply) at zero, so that the untrained network is a constant forecast. Heads
    are float32 whatever the policy of the other layers, `precision`. Every first weight and every dropout
    draw follows from the seed.

    A network of `TeacherForcingSettings` reads its own forecasts. With `uses_teacher_forcing` it is built as it is trained: the
    same layers, a second input `actual`, the scaled candles to come, (B, H, 4), and one layer more that draws
    when to read those. Its inputs are a dict then.

    Raises:
        ProfileError: If the profile is a formula, which has no network.
    """
    window = keras.Input((profile.lookback_bars, len(profile.features)), name=WINDOW)
    seeds = count(seed * SEEDS_A_NETWORK)
    inputs = window
    actual = None
    if uses_teacher_forcing and has_teacher_forcing(profile):
        actual = keras.Input((profile.horizon_bars, len(OHLC)), name=ACTUAL)
        inputs = {WINDOW: window, ACTUAL: actual}
    layers = Layers(keras, profile.shape, precision, seeds, actual)
    outputs = network_outputs(profile)(profile.network, window, layers)
    network = keras.Model(inputs, outputs, name=profile.name)
    for task, constants in (start or {}).items():
        network.get_layer(HEAD_PREFIX + task).bias.assign(constants)
    return network


def has_teacher_forcing(profile: Profile) -> bool:
    """Say whether the network is shown the actual values of earlier bars while it is trained."""
    network = profile.network
    uses_teacher_forcing = isinstance(network, TeacherForcingSettings) and network.teacher_forcing > 0
    return uses_teacher_forcing and profile.horizon_bars > 1  # before the first bar everything is known


def counterparts(network: keras.Model, other: keras.Model) -> list[int]:
    """List where each trainable weight of a network stands among those of it as it is taught, or of a fleet.

    Layers are matched by name: a second input moves them in the order that Keras keeps, and so may a clone.
    """
    places = {id(weight): place for place, weight in enumerate(other.trainable_variables)}
    found = {
        id(own): places[id(its)]
        for layer in network.layers
        for own, its in zip(
            layer.trainable_weights, other.get_layer(layer.name).trainable_weights, strict=True
        )
    }
    return [found[id(weight)] for weight in network.trainable_variables]


def stack_for_device(network: keras.Model, num_models: int, *, products: Products = FLOAT32) -> keras.Model:
    """Build a fleet as `stack` does, with loops over time in the form for the device that computes.

    `STEPS_VARIABLE` in the environment asks for the form for a GPU on any device.
    """
    if has_gpu() or STEPS_VARIABLE in os.environ:
        return stack(
            network,
            num_models,
            are_directions_merged=True,
            steps_per_trip=chosen_steps_per_trip(),
            products=products,
        )
    return stack(network, num_models, are_directions_merged=num_models > 1, products=products)


def stack(
    network: keras.Model,
    num_models: int,
    *,
    are_directions_merged: bool = False,
    steps_per_trip: int = 1,
    products: Products = FLOAT32,
) -> keras.Model:
    """Build a fleet of copies of a network: functional, of stock layers, built; `load` makes them differ.

    It has the inputs and outputs of the network and a model axis after the batch axis.

    Args:
        network: What `build_network` returned.
        num_models: Length of the model axis.
        are_directions_merged: Run both directions of a bidirectional layer in one loop (GPU).
        steps_per_trip: Steps over time that one trip of a loop takes; above 1 the form for a GPU, see
            `v8.networks.trips`.
        products: Which products have factors in 16 bits, of layers whose policy is mixed; all else is
            float32.

    Raises:
        ValueError: If a layer of a fleet of several has no twin.
        SeriesError: If one keeps weights that are not trained.
    """
    inputs = keras.tree.map_structure(
        lambda tensor: keras.Input((num_models, *tensor.shape[1:]), dtype=tensor.dtype, name=tensor.name),
        network.input,
    )
    fleet = keras.models.clone_model(
        network,
        input_tensors=inputs,
        clone_function=lambda layer: _twin(layer, num_models, products),
        call_function=_call,
    )
    for layer in fleet.layers:
        if isinstance(layer, StackedBidirectional):
            layer.are_directions_merged = are_directions_merged
        if isinstance(layer, StackedLSTM) and steps_per_trip > 1:
            layer.cell = in_trips(layer.cell, steps_per_trip)
    # Networks built one after another have other automatic names; their order is the same.
    fleet.stacked_names = tuple(layer.name for layer in _layers(network))
    load(fleet, [network] * num_models)
    return fleet


def load(fleet: keras.Model, networks: Sequence[keras.Model]) -> None:
    """Copy all weights and dropout seeds of networks of its architecture into a fleet of as many models."""
    twins = map(fleet.get_layer, fleet.stacked_names)
    for twin, *originals in zip(twins, *(_layers(network) for network in networks), strict=True):
        if isinstance(twin, StackedLayer):
            twin.load(originals)


def without_twins(network: keras.Model) -> list[str]:
    """List the layers and operations of a network that no fleet of several can hold, by name and kind."""
    lacking = []
    for layer in network.operations:
        try:
            if not isinstance(layer, keras.layers.InputLayer):
                _stacked(layer, 2, FLOAT32)
        except ValueError:
            lacking.append(f"{layer.name} ({type(layer).__name__})")
    return lacking


def _call(twin: Layer, *args: Any, **kwargs: Any) -> Any:
    # Without the options that Keras noted as None, such as a mask that is not there.
    named = {name: value for name, value in kwargs.items() if value is not None}
    return twin.connected((args, named)) if isinstance(twin, AloneLayer) else twin(*args, **named)


def _twin(layer: Layer, num_models: int, products: Products) -> Layer:
    try:
        return _stacked(layer, num_models, products)
    except ValueError:
        if num_models > 1:
            raise
    policy = {"dtype": layer.dtype_policy} if isinstance(layer, keras.layers.Layer) else {}
    return AloneLayer(layer, name=layer.name, num_models=1, **policy)


def _stacked(layer: Layer, num_models: int, products: Products) -> Layer:
    """Return what does for each of some models what a layer does for one; a ValueError if there is none."""
    if not isinstance(layer, keras.layers.Layer):
        return _operation(layer, products)
    if isinstance(layer, SHAPELESS) or (isinstance(layer, keras.layers.Concatenate) and layer.axis == -1):
        return type(layer).from_config({**layer.get_config(), "dtype": "float32"})
    stock = layer.layer if isinstance(layer, keras.layers.TimeDistributed) else layer
    if type(stock) in (TWINS if stock is layer else ROWWISE):
        twin = TWINS[type(stock)](stock, name=layer.name, num_models=num_models, dtype="float32")
        if isinstance(twin, StackedLayer) and layer.compute_dtype != "float32":
            twin.products = products
        return twin
    raise ValueError(
        f"{layer.name}: must be a layer with a stacked twin; got {type(layer).__name__}. "
        "Use another layer or mark a class of your own with twin_of."
    )


def _operation(operation: Any, products: Products) -> Any:
    """Let pass what `keras.ops` does, if it counts axes from the last: a model axis then changes nothing."""
    kind = type(operation).__name__
    axis = getattr(operation, "axis", None)
    is_from_last = kind in AXIS_OPERATIONS and isinstance(axis, int) and axis < 0
    if kind == "Matmul" and products.kinds:
        return MixedMatmul(products, operation.name)
    if is_from_last or kind in SHAPELESS_OPERATIONS:
        return operation
    raise ValueError(
        f"{operation.name}: must be an operation without axes, or with one counted from the last; got {kind} "
        f"with axis = {axis}. Count from the last axis, or use a layer with a stacked twin."
    )


def _layers(network: keras.Model) -> list[Layer]:
    return [layer for layer in network.layers if not isinstance(layer, keras.layers.InputLayer)]
