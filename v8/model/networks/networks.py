"""Networks, from scaled windows to scaled targets, and fleets of them.

`stack` clones the graph of a network with a twin for each layer, which computes all models along a model
axis, and copies all weights. The fleet is a functional Keras model with inputs (B, M, ...) and outputs
(B, M, ...). A network with a layer that has no twin (`unstackable_layers` lists them) can be a fleet of one
only, in which Keras' own layer computes. In a larger fleet it is refused: models are never run one after
another without the user knowing.

On a GPU the loops of LSTM and GRU are compiled in another form (`in_trips`), with little more than two
kernels a step. A GPU waits 2.5 to 5 us for every kernel that is launched, hardly less than a step of a
recurrent layer computes. Written as for a CPU (`v8.model.networks.recurrence`), a step is six to seven
kernels: a product, one or two of elementwise work, three that store outputs and one that counts. In this form
a trip of the loop takes several steps and stores and counts once, and each step is

* forward, a product and one kernel, which computes the states and, for the backward loop, slopes: the factors
  by which the gradients of state and cell become those of the gates. The backward loop then only multiplies
  and adds, which XLA fuses into one kernel; it would give a hyperbolic tangent a kernel of its own.
* backward, one kernel, whose results are in one array, and a product that reads all of it. Rows of zeros in
  the recurrent kernel cancel the part that the product does not need: a slice would be one more kernel.

Gradients of biases are sums over the stored gradients, one kernel a layer.

Shape legend: B batch, M model, T lookback, F features, H horizon, C columns of a task; in loops as in
`v8.model.networks.recurrence`, and S counts slopes.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

import keras
from keras import ops

from v8.base.errors import ProfileError, V8Error, message_of
from v8.base.hardware import STEPS_VARIABLE, backend, backend_name, has_gpu
from v8.base.registry import digest_of, kind_and_line
from v8.model.networks.products import FLOAT32, MixedMatmul, Products
from v8.model.networks.recurrence import (
    GRU,
    GRU_GATES,
    LSTM,
    LSTM_GATES,
    Cell,
    Gradients,
    Step,
    Tensor,
    Tensors,
    gru_gates,
    lstm_gates,
    scan,
    tanh,
)
from v8.model.networks.stacked_layers import (
    TWINS,
    Layer,
    SingleModelLayer,
    StackedBidirectional,
    StackedLayer,
    StackedLSTM,
)
from v8.profile.columns import OHLC
from v8.profile.family import HEAD_PREFIX, Layers, TeacherForcingSettings
from v8.profile.profile import Profile, network_outputs

STEPS_PER_TRIP: Final = 6
"""Time steps in one trip of a loop on a GPU: more hardly save kernels, and take much longer to compile."""
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
        ProfileError: If the profile is a formula, which has no network, or the family of a plug-in fails.
    """
    window = keras.Input((profile.lookback_bars, len(profile.features)), name=WINDOW)
    seeds = count(seed * SEEDS_A_NETWORK)
    inputs = window
    actual = None
    if uses_teacher_forcing and has_teacher_forcing(profile):
        actual = keras.Input((profile.horizon_bars, len(OHLC)), name=ACTUAL)
        inputs = {WINDOW: window, ACTUAL: actual}
    layers = Layers(keras, profile.shape, precision, seeds, actual)
    network = keras.Model(inputs, _outputs(profile, window, layers), name=profile.name)
    for task, constants in (start or {}).items():
        network.get_layer(HEAD_PREFIX + task).bias.assign(constants)
    return network


def _outputs(profile: Profile, window: Any, layers: Layers) -> Any:
    """Let the family of a profile lay out its network; an error in a plug-in becomes one of the profile."""
    outputs = network_outputs(profile)
    try:
        return outputs(profile.network, window, layers)
    except Exception as error:
        if isinstance(error, V8Error) or not digest_of(outputs):
            raise
        raise ProfileError(
            where=f"profile {profile.name}, key network",
            rule=f"names a family whose plug-in lays out the network ({profile.family.name})",
            got=f"{kind_and_line(error)}: {message_of(error)}",
            fix="Correct the plug-in",
        ) from error


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
            steps_per_trip=int(os.environ.get(STEPS_VARIABLE, STEPS_PER_TRIP)),
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
            `in_trips`.
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
    axes = axis if isinstance(axis, list | tuple) else [axis]  # Keras lists those of some operations
    is_from_last = kind in AXIS_OPERATIONS and all(isinstance(one, int) and one < 0 for one in axes)
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


NUM_LSTM_SLOPES = 9
NUM_GRU_SLOPES = 5


def in_trips(cell: Cell, steps_per_trip: int) -> Cell:
    """Return `LSTM` or `GRU` in the form for a GPU, with `steps_per_trip` steps in one trip of the loop.

    Results equal those of the cell up to rounding.

    Raises:
        ValueError: If the cell is another one, or a trip has fewer than two steps.
    """
    if steps_per_trip < 2:
        raise ValueError(
            f"in_trips: a trip has at least 2 steps; got {steps_per_trip}. Use the cell itself for one."
        )
    if cell == LSTM:
        return _cell(cell, steps_per_trip, NUM_LSTM_SLOPES, _lstm_step, _lstm_backward)
    if cell == GRU:
        return _cell(cell, steps_per_trip, NUM_GRU_SLOPES, _gru_step, _gru_backward)
    raise ValueError(f"in_trips: needs LSTM or GRU; got {cell!r}. Write its two loops here.")


def _cell(
    cell: Cell,
    steps_per_trip: int,
    num_slopes: int,
    forward: Callable[[Tensor, Tensor, Products], Step],
    backward: Callable[..., Gradients],
) -> Cell:
    def outputs_like(_: Tensor, state_U: Tensor) -> Tensors:
        return ops.stack([state_U] * num_slopes), state_U

    backward_in_trips = partial(backward, steps_per_trip=steps_per_trip)
    return Cell(cell.num_states, forward, backward_in_trips, outputs_like, steps_per_trip)


def _lstm_step(recurrent: Tensor, bias: Tensor, products: Products) -> Step:
    bias_G = ops.expand_dims(bias, axis=-2)

    def step(carry: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        h_U, c_U = carry
        (z_G,) = inputs
        i_U, f_U, g_U, o_U = lstm_gates(h_U, z_G, recurrent, bias_G, products)
        next_U = f_U * c_U + i_U * g_U
        tanh_U = tanh(next_U)
        h_U = o_U * tanh_U
        h_U, next_U, i_U, f_U, g_U, o_U, tanh_U = stored([h_U, next_U, i_U, f_U, g_U, o_U, tanh_U])
        from_cell = [
            g_U * i_U * (1 - i_U),  # to the input gate
            c_U * f_U * (1 - f_U),  # to the forget gate
            i_U * (1 - g_U * g_U),  # to the candidate
            f_U,  # to the cell before
        ]
        to_cell_U = o_U * (1 - tanh_U * tanh_U)
        from_state = [to_cell_U * slope_U for slope_U in from_cell]
        to_output_U = tanh_U * o_U * (1 - o_U)
        slopes = [*from_cell, *from_state, to_output_U]
        return (h_U, next_U), (ops.stack(slopes), h_U)

    return step


def _lstm_backward(
    saved: Tensors,
    before_TU: Tensor,
    after_TU: Sequence[Tensor],
    recurrent: Tensor,
    go_backwards: bool,
    *,
    products: Products,
    steps_per_trip: int,
) -> Gradients:
    slopes_TSU, _ = saved
    dh_TU, *dcells = after_TU
    num_gates_U = recurrent.shape[-1]
    kernel = _with_rows_of_zeros(ops.swapaxes(recurrent, -1, -2))

    def step(carry: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        dh_U, dc_U = carry
        slopes_SU, upstream_U = inputs
        dh_U = dh_U + upstream_U
        di_U, df_U, dg_U, dbefore_U = (dc_U * slopes_SU[s] + dh_U * slopes_SU[4 + s] for s in range(4))
        do_U = dh_U * slopes_SU[8]
        (gradient,) = stored([ops.concatenate([di_U, df_U, dg_U, do_U, dbefore_U], axis=-1)])
        before = (products.matmul(gradient, kernel, "loop"), gradient[..., num_gates_U:])
        return before, (gradient,)

    zero_U = ops.zeros_like(dh_TU[0])
    like = (ops.concatenate([zero_U] * (LSTM_GATES + 1), axis=-1),)
    inputs = (slopes_TSU, dh_TU)
    dinitial, (gradient_T,) = scan(
        step, (zero_U, *dcells), inputs, like, is_reversed=not go_backwards, steps_per_trip=steps_per_trip
    )
    dz_TG = gradient_T[..., :num_gates_U]
    return dz_TG, dz_TG, _sum_of_steps(dz_TG), tuple(dinitial)


def _gru_step(recurrent: Tensor, bias: Tensor, products: Products) -> Step:
    input_bias_G = ops.expand_dims(bias[..., 0, :], axis=-2)
    recurrent_bias_G = ops.expand_dims(bias[..., 1, :], axis=-2)

    def step(carry: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        (h_U,) = carry
        (z_G,) = inputs
        update_U, reset_U, own_U, own_r_U = gru_gates(
            h_U, z_G + input_bias_G, recurrent, recurrent_bias_G, products
        )
        to_own_U = (1 - update_U) * (1 - own_U * own_U)
        slopes = [
            (h_U - own_U) * update_U * (1 - update_U),  # from the state to the update gate
            to_own_U * own_r_U * reset_U * (1 - reset_U),  # to the reset gate
            to_own_U * reset_U,  # to the recurrent part of the candidate
            to_own_U,  # to the candidate
            update_U,  # to the state before
        ]
        h_U = update_U * h_U + (1 - update_U) * own_U
        h_U, *slopes = stored([h_U, *slopes])
        return (h_U,), (ops.stack(slopes), h_U)

    return step


def _gru_backward(
    saved: Tensors,
    before_TU: Tensor,
    after_TU: Sequence[Tensor],
    recurrent: Tensor,
    go_backwards: bool,
    *,
    products: Products,
    steps_per_trip: int,
) -> Gradients:
    slopes_TSU, _ = saved
    (dh_TU,) = after_TU
    num_gates_U = recurrent.shape[-1]
    kernel = _with_rows_of_zeros(ops.swapaxes(recurrent, -1, -2))

    def step(carry: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        (dh_U,) = carry
        slopes_SU, upstream_U = inputs
        to_update_U, to_reset_U, to_own_r_U, _, to_before_U = (slopes_SU[s] for s in range(NUM_GRU_SLOPES))
        dh_U = dh_U + upstream_U
        gradients = [dh_U * to_update_U, dh_U * to_reset_U, dh_U * to_own_r_U, dh_U]
        (gradient,) = stored([ops.concatenate(gradients, axis=-1)])
        dbefore_U = gradient[..., num_gates_U:] * to_before_U + products.matmul(gradient, kernel, "loop")
        return (dbefore_U,), (gradient,)

    zero_U = ops.zeros_like(dh_TU[0])
    like = (ops.concatenate([zero_U] * (GRU_GATES + 1), axis=-1),)
    inputs = (slopes_TSU, dh_TU)
    dinitial, (gradient_T,) = scan(
        step, (zero_U,), inputs, like, is_reversed=not go_backwards, steps_per_trip=steps_per_trip
    )
    num_units = zero_U.shape[-1]
    dr_TG = gradient_T[..., :num_gates_U]
    down_TU = gradient_T[..., num_gates_U:] * slopes_TSU[:, 3]
    dz_TG = ops.concatenate([dr_TG[..., : 2 * num_units], down_TU], axis=-1)
    dbias = ops.stack([_sum_of_steps(dz_TG), _sum_of_steps(dr_TG)], axis=-2)
    return dz_TG, dr_TG, dbias, tuple(dinitial)


def _with_rows_of_zeros(kernel: Tensor) -> Tensor:
    """Append to a transposed recurrent kernel, (., G, U), as many rows of zeros as it has columns."""
    return ops.concatenate([kernel, ops.zeros_like(kernel[..., : kernel.shape[-1], :])], axis=-2)


def _sum_of_steps(gradient_TG: Tensor) -> Tensor:
    """Sum (T, M, B, G) or (T, B, G) over steps and batch, in float32: the gradient of a bias."""
    return ops.cast(ops.sum(ops.cast(gradient_TG, "float32"), axis=(0, -2)), gradient_TG.dtype)


def stored(arrays: list[Tensor]) -> list[Tensor]:
    """Return arrays that XLA must store: otherwise each reader would compute its part in a kernel of its own.

    TensorFlow has no such barrier, and needs one more kernel for a step.
    """
    if backend_name() != "jax":
        return arrays
    return list(backend().lax.optimization_barrier(arrays))
