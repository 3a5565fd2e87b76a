"""One optimiser step of a whole fleet as a pure function of state and batch, compiled by XLA.

Every array of the state has the model axis first. The models share nothing: each has its own learning rate,
step count, gradient norm, loss scale and windows, and a model that is not active keeps all of its state, its
dropout draws included. A model that diverges fills its own weights with NaN and no others.

Adam is that of keras.optimizers.Adam (Kingma & Ba 2015, epsilon outside the corrected root), and AdamW that
of keras.optimizers.AdamW (Loshchilov & Hutter 2019): weights shrink by rate x decay before Adam's step. With
gradient accumulation a batch is computed in micro-batches, one after another; its gradient is the mean over
all of its windows.

The gradient comes from either backend. With activation checkpointing a network is cut into segments of which
only the inputs are stored. In the backward pass each segment is computed once more from its inputs (Chen et
al. 2016, arXiv:1604.06174): that costs one more forward pass, and memory holds only the arrays between
segments and those inside one of them. With about as many segments as calls in each, both are few. Any
functional network can be cut, so families and published models are not affected: weights, draws and results
are those of the network itself. Keras' own `RematScope` wraps single layers, and on JAX it passes `training`
as an array, on which layers cannot branch. Here a segment is a function of arrays alone, the same for both
backends.

Shape legend: B batch, M model, P parameters of one model, T lookback, F features, H horizon, C columns of a
task.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, cast

import keras
import numpy as np
from keras import ops

from v8.base.hardware import backend, backend_name, has_gpu
from v8.data.windows import Tables, gathered
from v8.model.networks.networks import ACTUAL, WINDOW
from v8.model.training.state import FleetState, Tensor, flattened, unflattened
from v8.profile.columns import TASK_OHLC
from v8.profile.profile import Profile
from v8.profile.settings import HUBER_TURN, TaskSettings, TrainingSettings

BETA_1 = 0.9
BETA_2 = 0.999
EPSILON = 1e-7
"""Adam's constants: the defaults of keras.optimizers.Adam."""
GOOD_STEPS_TO_DOUBLE = 2_000
"""Loss scaling of mixed float16: the default of keras.optimizers.LossScaleOptimizer."""


def compiled_table_step(
    fleet: keras.Model, profile: Profile, precision: str, num_micro_batches: int | None = None
) -> Callable[..., FleetState]:
    """Compile `step(state, learning_rate_M, is_active_M, tables, indices_BM) -> state`.

    It cuts its windows out of the tables of the fleet, which stay on the device (`v8.data.windows`),
    and then does what `compiled_step` does. Indices are int32.
    """
    step = optimiser_step(fleet, profile, precision, num_micro_batches)

    def table_step(
        state: FleetState, learning_rate_M: Tensor, is_active_M: Tensor, tables: Tables, indices_BM: Tensor
    ) -> FleetState:
        batch = gathered(ops, tables, indices_BM)
        return step(state, learning_rate_M, is_active_M, batch.x_BMTF, batch.y_BMHC, batch.weight_BM)

    return _compiled(table_step)


def compiled_step(
    fleet: keras.Model, profile: Profile, precision: str, num_micro_batches: int | None = None
) -> Callable[..., FleetState]:
    """Compile `optimiser_step`, which takes windows directly: for measurements and tests."""
    return _compiled(optimiser_step(fleet, profile, precision, num_micro_batches))


def optimiser_step(
    fleet: keras.Model, profile: Profile, precision: str, num_micro_batches: int | None = None
) -> Callable[..., FleetState]:
    """Return `step(state, learning_rate_M, is_active_M, x_BMTF, y, weight_BM) -> state`, not compiled.

    Learning rates are float32, active models bool; targets `y` are by task, (B, M, H, C); window weights are
    0 for padding, and a model whose windows all have weight 0 does not take the step. Under `mixed_float16`
    losses are scaled, and a model skips a step whose gradient overflows.

    Args:
        fleet: Gives the structure only; the weights are in the state.
        profile: Tasks and training settings.
        precision: "float32", "mixed_bfloat16" or "mixed_float16".
        num_micro_batches: Micro-batches of a batch; None as the profile says for a GPU.
    """
    is_scaled = precision == "mixed_float16"
    settings = profile.training
    per_step = num_micro_batches or settings.num_micro_batches(is_on_gpu=True)
    gradient_function = _gradient_function(fleet, profile)

    def step(  # noqa: PLR0917 - called positionally by one caller, compiled
        state: FleetState,
        learning_rate_M: Tensor,
        is_active_M: Tensor,
        x_BMTF: Tensor,
        y: Any,
        weight_BM: Tensor,
    ) -> FleetState:
        weights = unflattened(fleet, state.weights)

        def gradients(micro_batch: Any, constants: list[Tensor]) -> Any:
            return gradient_function(weights, state.loss_scale, micro_batch, constants)

        weight_sum_M = ops.sum(weight_BM, axis=0)
        batch = (x_BMTF, y, weight_BM)
        gradient_MP, (loss_M, constants) = _accumulated(gradients, state, batch, per_step)
        gradient_MP = gradient_MP / state.loss_scale[:, None] if is_scaled else gradient_MP
        is_active_M = ops.logical_and(is_active_M, weight_sum_M > 0)
        is_taken_M = is_active_M
        if is_scaled:
            is_taken_M = ops.logical_and(is_active_M, ops.all(ops.isfinite(gradient_MP), axis=1))
        updated = _adam(state, _clipped(gradient_MP, settings), learning_rate_M, settings.weight_decay)
        # A model that does not take the step keeps all of its numbers.
        changed = {name: _chosen(is_taken_M, new, getattr(state, name)) for name, new in updated.items()}
        if is_scaled:
            changed |= _rescaled(state, is_active_M, is_taken_M)
        return state._replace(
            constants=_chosen(is_active_M, list(constants), state.constants),
            loss_sum=state.loss_sum + ops.where(is_active_M, loss_M * weight_sum_M, 0.0),
            weight_sum=state.weight_sum + ops.where(is_active_M, weight_sum_M, 0.0),
            **changed,
        )

    return step


def _gradient_function(fleet: keras.Model, profile: Profile) -> Callable[..., Any]:
    """Return a function from weights, loss scales, micro-batch and constants to the gradient of the loss.

    A micro-batch is (x_BMTF, y, weight_BM). The result is the gradient, (M, P), scaled as the loss, and
    (loss_M, new constants).
    """
    forward: Call = partial(fleet.stateless_call, training=True)
    if profile.training.checkpoint_activations:
        forward = checkpointed(fleet)

    def gradient_function(
        weights: Sequence[Tensor], loss_scale_M: Tensor, micro_batch: Any, constants: list[Tensor]
    ) -> Any:
        x_BMTF, y, weight_BM = micro_batch
        inputs = x_BMTF
        if isinstance(fleet.input, dict):
            # With teacher forcing the fleet also gets the actual candles of the horizon; the decoder reads
            # each of them only after it has forecast that bar.
            inputs = {WINDOW: x_BMTF, ACTUAL: y[TASK_OHLC]}

        def loss_of(weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            forecast, new_constants = forward(weights, constants, inputs)
            loss_M = fleet_loss(profile.tasks, y, forecast, weight_BM)
            return ops.sum(loss_M * loss_scale_M), (loss_M, new_constants)

        gradients, losses_and_constants = gradients_of(loss_of, weights)
        return flattened(gradients), losses_and_constants

    return gradient_function


def compiled_loss(
    fleet: keras.Model, profile: Profile, trained: keras.Model, places: Sequence[int]
) -> Callable[..., Any]:
    """Compile `loss(weights_MP, tables, indices_BM) -> (loss sums, weight sums)`, dropout off, each (M,).

    Args:
        fleet: The fleet that is evaluated.
        profile: Tasks and their losses.
        trained: The fleet whose state holds the weights; with teacher forcing another one than `fleet`.
        places: Place of each trainable array of `fleet` among those of `trained`.

    Tables and indices are those of `compiled_table_step`.
    """
    constants = [ops.convert_to_numpy(constant) for constant in fleet.non_trainable_variables]

    def loss_of(weights_MP: Tensor, tables: Tables, indices_BM: Tensor) -> tuple[Tensor, Tensor]:
        batch = gathered(ops, tables, indices_BM)
        arrays = unflattened(trained, weights_MP)
        weights = [arrays[place] for place in places]
        forecast, _ = fleet.stateless_call(weights, constants, batch.x_BMTF, training=False)
        num_windows_M = ops.sum(batch.weight_BM, axis=0)
        loss_M = fleet_loss(profile.tasks, batch.y_BMHC, forecast, batch.weight_BM)
        return loss_M * num_windows_M, num_windows_M

    return _compiled(loss_of)


def _accumulated(
    gradients: Callable[[Any, list[Tensor]], Any], state: FleetState, batch: Any, num_micro_batches: int
) -> Any:
    """Compute the gradient of a batch by gradient accumulation, the mean over all of its windows.

    `gradients` maps a micro-batch and the constants to the gradient, (M, P), and (loss_M, new constants); the
    result is the same for the batch. Dropout draws continue from one micro-batch to the next.
    """
    if num_micro_batches == 1:
        return gradients(batch, state.constants)
    micro_batches = keras.tree.map_structure(
        lambda array: ops.reshape(array, (num_micro_batches, -1, *array.shape[1:])), batch
    )

    def add(number: Tensor, sums: Any) -> Any:
        gradient_MP, loss_M, constants = sums
        part = keras.tree.map_structure(lambda array: ops.take(array, number, axis=0), micro_batches)
        part_MP, (part_loss_M, constants) = gradients(part, constants)
        # The share of the batch's weight that these windows have.
        share_M = ops.sum(part[-1], axis=0) / ops.maximum(ops.sum(batch[-1], axis=0), 1.0)
        gradient_MP = gradient_MP + share_M[:, None] * part_MP
        return gradient_MP, loss_M + share_M * part_loss_M, list(constants)

    sums = (ops.zeros_like(state.weights), ops.zeros_like(state.weight_sum), list(state.constants))
    gradient_MP, loss_M, constants = ops.fori_loop(0, num_micro_batches, add, sums)
    return gradient_MP, (loss_M, constants)


def _adam(
    state: FleetState, gradient_MP: Tensor, learning_rate_M: Tensor, weight_decay: float
) -> dict[str, Any]:
    num_steps_M = state.num_steps + 1.0
    correction_M = ops.sqrt(1.0 - ops.power(BETA_2, num_steps_M)) / (1.0 - ops.power(BETA_1, num_steps_M))
    alpha_M1 = (learning_rate_M * correction_M)[:, None]
    mean_MP = state.means + (gradient_MP - state.means) * (1.0 - BETA_1)
    square_MP = state.squares + (ops.square(gradient_MP) - state.squares) * (1.0 - BETA_2)
    weights_MP = state.weights
    if weight_decay:
        weights_MP = weights_MP - weights_MP * (learning_rate_M * weight_decay)[:, None]
    weights_MP = weights_MP - mean_MP * alpha_M1 / (ops.sqrt(square_MP) + EPSILON)
    return {"weights": weights_MP, "means": mean_MP, "squares": square_MP, "num_steps": num_steps_M}


def _clipped(gradient_MP: Tensor, settings: TrainingSettings) -> Tensor:
    """Clip each model's gradient as its profile says: by its norm, or by value."""
    clip_norm = settings.clip_norm
    if clip_norm is None:
        return gradient_MP
    if settings.gradient_clip == "value":
        return ops.clip(gradient_MP, -clip_norm, clip_norm)
    norm_M1 = ops.sqrt(ops.sum(ops.square(gradient_MP), axis=1, keepdims=True))
    return gradient_MP * (clip_norm / ops.maximum(norm_M1, clip_norm))


def _chosen(is_new_M: Tensor, new: Any, old: Any) -> Any:
    """Return the new arrays of some models, and the old ones of all others."""

    def chosen(new_array: Tensor, old_array: Tensor) -> Tensor:
        is_new = ops.reshape(is_new_M, (-1, *(1,) * (len(new_array.shape) - 1)))
        return ops.where(is_new, new_array, old_array)

    return keras.tree.map_structure(chosen, new, old)


def _rescaled(state: FleetState, is_active_M: Tensor, is_taken_M: Tensor) -> dict[str, Tensor]:
    """Halve each model's loss scale after an overflow, double it after `GOOD_STEPS_TO_DOUBLE` good steps."""
    num_good_M = ops.where(is_taken_M, state.num_good_steps + 1, 0)
    is_due_M = num_good_M >= GOOD_STEPS_TO_DOUBLE
    grown_M = ops.where(is_due_M, state.loss_scale * 2.0, state.loss_scale)
    scale_M = ops.where(is_taken_M, grown_M, state.loss_scale / 2.0)
    return {
        "loss_scale": ops.where(is_active_M, scale_M, state.loss_scale),
        "num_good_steps": ops.where(is_active_M, ops.where(is_due_M, 0, num_good_M), state.num_good_steps),
    }


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of arrays by XLA."""
    if backend_name() == "jax":
        return backend().jit(function)
    if has_gpu():  # `_Compiled` was tested on CPUs only
        return backend().function(function, autograph=False, jit_compile=True)
    return _Compiled(function)


class _Compiled:
    """A function of many arrays, compiled by TensorFlow and XLA, with little overhead per call.

    A `tf.function` examines the type of every array in each call, which takes as long as a small step. Here
    the arrays of the first argument, the state, always have the same shapes, so only the other arguments are
    examined.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._traced: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        key = tuple(np.shape(array) for array in keras.tree.flatten(arguments[1:]))
        arrays = [backend().convert_to_tensor(array) for array in keras.tree.flatten(arguments)]
        if key not in self._traced:
            self._traced[key] = self._trace(arguments, arrays)
        traced, result = self._traced[key]
        dtypes = [tensor.dtype for tensor in traced.outputs]
        outputs = backend().raw_ops.StatefulPartitionedCall(args=arrays, Tout=dtypes, f=traced)
        return keras.tree.pack_sequence_as(result, outputs)

    def _trace(self, arguments: Any, arrays: Sequence[Tensor]) -> tuple[Any, Any]:
        """Return the traced function of flat arrays and a structure like its result."""
        function = backend().function
        results = list[Any]()
        # The traced function stays in memory, and it must not keep the arrays of this call, whole tables.
        structure = keras.tree.map_structure(lambda array: 0, arguments)

        def flat(*arrays: Tensor) -> list[Tensor]:
            results.append(self._function(*keras.tree.pack_sequence_as(structure, arrays)))
            return list(keras.tree.flatten(results[-1]))

        compiled = function(flat, autograph=False, jit_compile=True)

        def call_compiled(*arrays: Tensor) -> Any:
            """Call the compiled function: run directly by the operation, it would not be compiled by XLA."""
            return compiled(*arrays)

        specs = [backend().TensorSpec.from_tensor(array) for array in arrays]
        traced = function(call_compiled, autograph=False).get_concrete_function(*specs)
        return traced, keras.tree.map_structure(lambda tensor: 0, results.pop())


def fleet_loss(
    tasks: Mapping[str, TaskSettings],
    actual: Mapping[str, Any],
    forecast: Mapping[str, Any],
    weight_BM: Any,
) -> Any:
    """Return each model's loss, (M,), float32, unitless: the weighted sum over tasks of means over windows.

    Args:
        tasks: Loss and weight per task.
        actual: Scaled targets per task, shape (B, M, H, C).
        forecast: Scaled outputs per task, same shapes.
        weight_BM: Weight of each window; 0 leaves it out, even if it holds NaN. The mean is that of Keras'
            reduction "mean_with_sample_weight".

    Raises:
        ValueError: If actual values and its forecast differ in shape. Subtracting (N, 1, 4) from (N, 4)
            would broadcast, and the optimum would be the mean of the batch.
    """
    total_M = ops.zeros_like(weight_BM[0])
    weight_sum_M = ops.sum(weight_BM, axis=0)
    divisor_M = ops.where(weight_sum_M > 0, weight_sum_M, 1.0)
    for task, settings in tasks.items():
        if tuple(actual[task].shape) != tuple(forecast[task].shape):
            raise ValueError(
                f"{task}: actual values and forecast need one shape; "
                f"got {tuple(actual[task].shape)} and {tuple(forecast[task].shape)}"
            )
        residual = ops.cast(actual[task], "float32") - ops.cast(forecast[task], "float32")
        # If the error was masked instead, NaN in padding would reach the gradient, as 0 * NaN.
        residual = ops.where(weight_BM[:, :, None, None] > 0, residual, 0.0)
        error_BM = ops.mean(_elementwise(settings.loss, residual), axis=(2, 3))
        total_M = total_M + settings.weight * ops.sum(error_BM * weight_BM, axis=0) / divisor_M
    return total_M


def _elementwise(loss: str, residual: Any) -> Any:
    if loss == "mse":
        return ops.square(residual)
    size = ops.abs(residual)
    if loss == "mae":
        return size
    linear = HUBER_TURN * (size - 0.5 * HUBER_TURN)
    return ops.where(size <= HUBER_TURN, 0.5 * ops.square(residual), linear)


def gradients_of(
    loss_of: Callable[[Sequence[Tensor]], tuple[Tensor, Any]], arrays: Sequence[Tensor]
) -> tuple[list[Tensor], Any]:
    """Differentiate a scalar loss by floating arrays.

    Args:
        loss_of: Maps the arrays to the loss and anything else.
        arrays: The arrays.

    Returns:
        One gradient for each array, zeros where the loss does not depend on it; and the second result of
        `loss_of`.
    """
    if backend_name() == "jax":
        return backend().grad(loss_of, has_aux=True)(list(arrays))
    tensorflow = backend()
    with tensorflow.GradientTape() as tape:
        tape.watch(arrays)
        loss, extra = loss_of(arrays)
    return tape.gradient(loss, arrays, unconnected_gradients=tensorflow.UnconnectedGradients.ZERO), extra


Node: TypeAlias = Any
"""One call of a layer or operation as Keras records it, with `input_tensors` and `output_tensors`."""
Call: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor], Any], tuple[Any, Sequence[Tensor]]]
"""Maps trainable arrays, other arrays and inputs to outputs and other arrays, as `stateless_call` does."""
WITHOUT_GRADIENT: Final = frozenset({"Greater", "OnesLike", "StopGradient", "ZerosLike"})
"""Operations of `keras.ops` that pass no gradient to their inputs."""


@dataclass(frozen=True)
class _Segment:
    """A part of a network as a function of arrays."""

    nodes: Sequence[Node]  # its calls, in order
    inputs: Sequence[Tensor]  # tensors of other segments that it reads
    outputs: Sequence[Tensor]  # its tensors that are read outside; those with a gradient come first
    num_differentiable: int  # how many of the outputs have a gradient
    weights: Sequence[keras.Variable]  # its trainable variables
    constants: Sequence[keras.Variable]  # its other variables

    def call(
        self, weights: Sequence[Tensor], constants: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Compute outputs and new constants in training, from arrays for the variables and input tensors."""
        variables = [*self.weights, *self.constants]
        values = zip(variables, [*weights, *constants], strict=True)
        with keras.StatelessScope(state_mapping=list(values)) as scope:
            arrays = _by_id(self.inputs, inputs)
            for node in self.nodes:
                args, kwargs = node.arguments.fill_in(arrays)
                if "training" in inspect.signature(node.operation.call).parameters:
                    kwargs["training"] = True
                results = node.operation(*args, **kwargs)
                arrays |= _by_id(node.output_tensors, keras.tree.flatten(results))
        new_constants = [scope.get_current_value(variable) for variable in self.constants]
        return [arrays[id(tensor)] for tensor in self.outputs], new_constants


def checkpointed(network: keras.Model) -> Call:
    """Return what equals `stateless_call` in training, but needs less memory for its gradient."""
    segments = [
        (segment, _recomputed(segment.call, segment.num_differentiable)) for segment in _segments(network)
    ]

    def call(weights: Sequence[Tensor], constants: Sequence[Tensor], inputs: Any) -> Any:
        arrays = _by_id(network.inputs, keras.tree.flatten(inputs))
        arrays |= _by_id(network.trainable_variables, weights)
        arrays |= _by_id(network.non_trainable_variables, constants)
        for segment, recomputed in segments:
            outputs, new_constants = recomputed(
                [arrays[id(variable)] for variable in segment.weights],
                [arrays[id(variable)] for variable in segment.constants],
                [arrays[id(tensor)] for tensor in segment.inputs],
            )
            arrays |= _by_id(segment.outputs, outputs)
            arrays |= _by_id(segment.constants, new_constants)
        results = [arrays[id(tensor)] for tensor in network.outputs]
        new_constants = [arrays[id(variable)] for variable in network.non_trainable_variables]
        return keras.tree.pack_sequence_as(network.output, results), new_constants

    return call


def _segments(network: keras.Model) -> list[_Segment]:
    """Cut the calls of a network into about as many segments as there are calls in each.

    No gradient passes through a bool tensor, so it does not become an output: the call that makes it is
    repeated in each segment that reads it.
    """
    by_depth = network._nodes_by_depth  # in the order in which Keras runs the calls
    nodes = [
        node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input
    ]
    bool_makers = {
        id(tensor): node for node in nodes for tensor in node.output_tensors if tensor.dtype == "bool"
    }
    read_later = {id(tensor) for tensor in network.outputs}
    differentiable = _differentiable(nodes, read_later)
    segments = []
    size = math.isqrt(len(nodes))
    for start in reversed(range(0, len(nodes), size)):
        calls = nodes[start : start + size]
        makers = [bool_makers.get(id(tensor)) for node in calls for tensor in node.input_tensors]
        repeated = dict.fromkeys(node for node in makers if node and node not in calls)
        calls = [*repeated, *calls]
        own_tensors = {id(tensor): tensor for node in calls for tensor in node.output_tensors}
        inputs = {
            id(tensor): tensor
            for node in calls
            for tensor in node.input_tensors
            if id(tensor) not in own_tensors
        }
        output_ids = [key for key in own_tensors if key in read_later]
        output_ids.sort(key=lambda key: key not in differentiable)
        own = {id(variable) for node in calls for variable in getattr(node.operation, "variables", ())}
        segments.append(
            _Segment(
                nodes=calls,
                inputs=list(inputs.values()),
                outputs=[own_tensors[key] for key in output_ids],
                num_differentiable=len(differentiable.intersection(output_ids)),
                weights=[variable for variable in network.trainable_variables if id(variable) in own],
                constants=[variable for variable in network.non_trainable_variables if id(variable) in own],
            )
        )
        read_later |= set(inputs)
    return segments[::-1]


def _differentiable(nodes: Sequence[Node], outputs: set[int]) -> set[int]:
    """Return the ids of the tensors through which the gradient of the outputs passes."""
    differentiable = set(outputs)
    for node in reversed(nodes):
        has_gradient = any(id(tensor) in differentiable for tensor in node.output_tensors)
        if has_gradient and type(node.operation).__name__ not in WITHOUT_GRADIENT:
            differentiable |= {id(tensor) for tensor in node.input_tensors}
    return differentiable


def _by_id(tensors: Sequence[Tensor], arrays: Sequence[Tensor]) -> dict[int, Tensor]:
    return {id(tensor): array for tensor, array in zip(tensors, arrays, strict=True)}


def _recomputed(call: Call, num_differentiable: int) -> Call:
    """Return a function that in the backward pass computes itself again from its inputs.

    If the second computation read the same arrays as the first, XLA would merge the two and keep all
    intermediate arrays. (On a CPU it ignores the barrier that `jax.checkpoint` puts against that.) So the
    second one reads inputs that are known only in the backward pass: the inputs plus zeros that are computed
    from the gradient of later segments.
    """
    if not num_differentiable:
        return call

    def outer(weights: Sequence[Tensor], constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> Any:
        num_weights = len(weights)
        num_constants = len(constants)

        def inner(*arrays: Tensor) -> Any:
            constants = arrays[:num_constants]
            floats = arrays[num_constants:]

            def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor | None, ...]:
                # JAX passes the gradients of the results as one structure, TensorFlow as arguments.
                upstream_gradients = keras.tree.flatten(args if upstream is None else upstream)
                upstream_gradients = upstream_gradients[:num_differentiable]

                def loss_of(floats: Sequence[Tensor]) -> tuple[Tensor, None]:
                    outputs, _ = call(floats[:num_weights], constants, floats[num_weights:])
                    # Its gradient is the vector-Jacobian product of the outputs with the upstream gradients.
                    products = [
                        output * upstream_gradient
                        for output, upstream_gradient in zip(outputs, upstream_gradients, strict=False)
                    ]
                    return sum(ops.sum(ops.cast(product, "float32")) for product in products), None

                # Zero whatever the gradient is, also where it is infinite or not a number.
                first = ops.reshape(upstream_gradients[0], (-1,))[0]
                zero = ops.where(ops.isfinite(first), first * 0, 0)
                inputs = [array + ops.cast(zero, array.dtype) for array in floats[num_weights:]]
                gradients, _ = gradients_of(loss_of, [*floats[:num_weights], *inputs])
                return (None,) * num_constants + tuple(gradients)

            return call(floats[:num_weights], constants, floats[num_weights:]), gradient

        differentiated = cast(Callable[..., Any], ops.custom_gradient(inner))
        return differentiated(*constants, *weights, *inputs)

    return outer
