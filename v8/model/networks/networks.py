"""Networks, from scaled windows to scaled targets, and fleets of them.

`stack` clones the graph of a network with a twin for each layer, which computes all models along a model
axis, and copies all weights. The fleet is a functional Keras model with inputs (B, M, ...) and outputs
(B, M, ...). A network with a layer that has no twin (`unstackable_layers` lists them) can be a fleet of one
only, in which Keras' own layer computes. In a larger fleet it is refused: models are never run one after
another without the user knowing.

Shape legend: B batch, M model, T lookback, F features, H horizon, C columns of a task.
"""

import os
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

import keras

from v8.base.hardware import has_gpu
from v8.model.networks.loops import STEPS_VARIABLE, chosen_steps_per_trip
from v8.model.networks.products import FLOAT32, MixedMatmul, Products
from v8.model.networks.stacked_layers import (
    TWINS,
    Layer,
    SingleModelLayer,
    StackedBidirectional,
    StackedLayer,
    StackedLSTM,
)
from v8.model.networks.trips import in_trips
from v8.profile.columns import OHLC
from v8.profile.families.family import HEAD_PREFIX, Layers, TeacherForcingSettings
from v8.profile.profile import Profile, network_outputs

SEEDS_A_NETWORK = 1_000  # seeds reserved for the draws of one network: neighbouring seeds share none
WINDOW: Final = "window"
ACTUAL: Final = "actual"
"""Names of inputs; a taught network alone has the second."""

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
"""Layers that compute element by element and so need no twin."""

ROWWISE: Final = (keras.layers.Dense, keras.layers.LayerNormalization)
"""Layers that compute along the last axis only, so that TimeDistributed around them changes nothing."""

SHAPELESS_OPERATIONS = frozenset(
    {
        "Add",
        "Divide",
        "Greater",
        "Matmul",
        "Maximum",
        "Minimum",
        "Multiply",
        "Negative",
        "OnesLike",
        "Sigmoid",
        "StopGradient",
        "Subtract",
        "Tanh",
        "TrueDivide",
        "Where",
        "ZerosLike",
    }
)
"""Operations of `keras.ops` that compute element by element, or over the last two axes."""
AXIS_OPERATIONS = frozenset({"Concatenate", "ExpandDims", "Max", "Mean", "Softmax", "Squeeze", "Sum", "Take"})
"""Operations along an axis, which must be counted from the last."""


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
    float32, scaled. Head kernels (in `dense_newest`, the layers before them) start at zero, so that the
    untrained network is a constant forecast. Heads are float32 whatever the precision of the other layers.

    A network of `TeacherForcingSettings` reads its own forecasts. With `uses_teacher_forcing` it is built as
    it is trained, with teacher forcing: the same layers, a second input `actual`, the scaled candles of the
    horizon, (B, H, 4), and one more layer that draws for which windows to read these. Its inputs are a dict
    then.

    Args:
        profile: The profile.
        seed: Determines all initial weights and all dropout draws.
        start: Initial biases of the heads, per task, (H, C), scaled; None for zeros.
        precision: Keras dtype policy of all layers but the heads.
        uses_teacher_forcing: Whether to build it with the second input, if the profile has teacher forcing.

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
    """Return whether the network is trained with teacher forcing."""
    network = profile.network
    uses_teacher_forcing = isinstance(network, TeacherForcingSettings) and network.teacher_forcing > 0
    # The first bar is forecast from known candles alone.
    return uses_teacher_forcing and profile.horizon_bars > 1


def counterparts(network: keras.Model, other: keras.Model) -> list[int]:
    """List the place of each trainable weight of a network among those of `other`.

    That is the same network with teacher forcing, or a fleet. Layers are matched by name, because Keras
    orders them otherwise where there is a second input, or in a clone.
    """
    places = {id(weight): place for place, weight in enumerate(other.trainable_variables)}
    places_by_weight: dict[int, int] = {}
    for layer in network.layers:
        other_weights = other.get_layer(layer.name).trainable_weights
        for weight, other_weight in zip(layer.trainable_weights, other_weights, strict=True):
            places_by_weight[id(weight)] = places[id(other_weight)]
    return [places_by_weight[id(weight)] for weight in network.trainable_variables]


def stack_for_device(network: keras.Model, num_models: int, *, products: Products = FLOAT32) -> keras.Model:
    """Build a fleet as `stack` does, with loops over time in the form for the device that computes.

    With `STEPS_VARIABLE` in the environment they have the form for a GPU on any device.
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
    """Build a fleet of copies of a network; `load` gives each model weights of its own.

    It has the inputs and outputs of the network with a model axis after the batch axis.

    Args:
        network: A network as `build_network` returns it: functional, of stock layers, built.
        num_models: Length of the model axis.
        are_directions_merged: Run both directions of a bidirectional layer in one loop.
        steps_per_trip: Time steps in one trip of a loop; above 1 loops have the form for a GPU, see
            `v8.model.networks.trips`.
        products: Which products have factors in 16 bits, of layers whose policy is mixed; everything else is
            float32.

    Raises:
        ValueError: If a layer has no twin, in a fleet of several.
        SeriesError: If a layer has weights that are not trained.
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
    # Layers of other networks of the profile may have other automatic names, but the order is the same.
    fleet.stacked_names = tuple(layer.name for layer in _layers(network))
    load(fleet, [network] * num_models)
    return fleet


def load(fleet: keras.Model, networks: Sequence[keras.Model]) -> None:
    """Copy all weights and dropout seeds of networks of its architecture into a fleet of as many models."""
    layers_by_network = [_layers(network) for network in networks]
    for place, name in enumerate(fleet.stacked_names):
        twin = fleet.get_layer(name)
        if isinstance(twin, StackedLayer):
            twin.load([layers[place] for layers in layers_by_network])


def unstackable_layers(network: keras.Model) -> list[str]:
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
    # Keras also records options that are None, such as a missing mask, which twins do not take.
    named = {name: value for name, value in kwargs.items() if value is not None}
    if isinstance(twin, SingleModelLayer):
        return twin.connected((args, named))
    return twin(*args, **named)


def _twin(layer: Layer, num_models: int, products: Products) -> Layer:
    """Return the twin of a layer; in a fleet of one, any layer has one."""
    try:
        return _stacked(layer, num_models, products)
    except ValueError:
        if num_models > 1:
            raise
    policy = {"dtype": layer.dtype_policy} if isinstance(layer, keras.layers.Layer) else {}
    return SingleModelLayer(layer, name=layer.name, num_models=1, **policy)


def _stacked(layer: Layer, num_models: int, products: Products) -> Layer:
    """Return the twin of a layer or operation for a number of models, or raise ValueError."""
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
    """Return an operation of `keras.ops` that can be used as it is, or raise ValueError.

    One that counts axes from the last does the same with a model axis in front.
    """
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
