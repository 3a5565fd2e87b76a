"""One optimiser step of a whole fleet as a pure function of state and batch, compiled by XLA.

Every array of the state has the model axis first. The models share nothing: each has its own learning rate,
step count, gradient norm, loss scale and windows, and a model that is not active keeps all of its state, its
dropout draws included. A model that diverges fills its own weights with NaN and no others.

Adam is that of keras.optimizers.Adam (Kingma & Ba 2015, epsilon outside the corrected root), and AdamW that
of keras.optimizers.AdamW (Loshchilov & Hutter 2019): weights shrink by rate x decay before Adam's step. With
gradient accumulation a batch is computed in micro-batches, one after another; its gradient is the mean over
all of its windows.

Shape legend: B batch, M model, P parameters of one model, T lookback, F features, H horizon, C columns of a
task.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.base.hardware import backend, backend_name, has_gpu
from v8.data.windows.batches import Tables, gathered
from v8.model.networks.gradients import Call, Tensor, checkpointed, gradients_of
from v8.model.networks.networks import ACTUAL, WINDOW
from v8.profile.columns import TASK_OHLC
from v8.profile.profile import Profile
from v8.profile.settings import HUBER_TURN, TaskSettings, TrainingSettings

BETA_1 = 0.9
BETA_2 = 0.999
EPSILON = 1e-7
"""Adam's constants: the defaults of keras.optimizers.Adam."""
FIRST_LOSS_SCALE = 2.0**15
GOOD_STEPS_TO_DOUBLE = 2_000
"""Loss scaling of mixed float16: the defaults of keras.optimizers.LossScaleOptimizer."""


class FleetState(NamedTuple):
    """Everything a step changes; a tuple, because both backends compile functions of tuples.

    The weights of a model are one row of an array, in the order of `flattened`, and so are Adam's moments:
    each array more costs time in every call, and Adam computes the same for all numbers.

    Args:
        weights: Trainable numbers, shape (M, P).
        constants: Dropout seeds and draws.
        means: First moments of the gradient, shape (M, P).
        squares: Second moments of the gradient, shape (M, P).
        num_steps: Steps taken, shape (M,), float32.
        loss_scale: Factor of each model's loss under float16, shape (M,).
        num_good_steps: Steps without overflow since the scale last changed, shape (M,), int32.
        loss_sum: Weighted sum of the losses of the epoch's windows, scaled units, shape (M,).
        weight_sum: Sum of the weights of the epoch's windows, shape (M,).
    """

    weights: Tensor
    constants: list[Tensor]
    means: Tensor
    squares: Tensor
    num_steps: Tensor
    loss_scale: Tensor
    num_good_steps: Tensor
    loss_sum: Tensor
    weight_sum: Tensor

    @property
    def num_models(self) -> int:
        """Models of the program, M."""
        return len(self.weight_sum)

    def on_host(self) -> "FleetState":
        """Return the state as NumPy arrays, copied from the device in one transfer."""
        return keras.tree.map_structure(np.asarray, self)

    def take(self, slots: int | Sequence[int]) -> "FleetState":
        """Copy the state of one model, without the model axis, or of several as a smaller fleet; NumPy."""
        return keras.tree.map_structure(lambda array: np.asarray(array)[slots].copy(), self)

    def put(self, slot: int, part: "FleetState") -> "FleetState":
        """Return the state with that of one model replaced; NumPy."""

        def replaced(array: Tensor, own: Tensor) -> NDArray[Any]:
            return np.concatenate([array[:slot], own[None], array[slot + 1 :]])

        return keras.tree.map_structure(replaced, self, part)

    def with_empty_sums(self) -> "FleetState":
        """Return the state at the start of an epoch."""
        zeros_M = np.zeros(self.num_models, np.float32)
        return self._replace(loss_sum=zeros_M, weight_sum=zeros_M)


def initial_state(fleet: keras.Model, precision: str) -> FleetState:
    """Return the state of an untrained fleet, as NumPy arrays; under `mixed_float16` losses are scaled."""
    weights_MP = ops.convert_to_numpy(flattened(fleet.trainable_variables))
    zeros_MP = np.zeros_like(weights_MP)
    zeros_M = np.zeros(len(weights_MP), np.float32)
    return FleetState(
        weights=weights_MP,
        constants=[ops.convert_to_numpy(constant) for constant in fleet.non_trainable_variables],
        means=zeros_MP,
        squares=zeros_MP,
        num_steps=zeros_M,
        loss_scale=np.full_like(zeros_M, FIRST_LOSS_SCALE if precision == "mixed_float16" else 1),
        num_good_steps=np.zeros_like(zeros_M, np.int32),
        loss_sum=zeros_M,
        weight_sum=zeros_M,
    )


def flattened(arrays: Sequence[Tensor]) -> Tensor:
    """Concatenate arrays with the model axis first, (M, ...), to (M, P)."""
    return ops.concatenate([ops.reshape(array, (array.shape[0], -1)) for array in arrays], axis=1)


def unflattened(fleet: keras.Model, weights_MP: Tensor) -> list[Tensor]:
    """Split weights (M, P), as `flattened` returns them, into the shapes and order of the fleet's own."""
    arrays = []
    first = 0
    for weight in fleet.trainable_variables:
        shape = tuple(weight.shape[1:])
        last = first + math.prod(shape)
        arrays.append(ops.reshape(weights_MP[:, first:last], (-1, *shape)))
        first = last
    return arrays


def compiled_table_step(
    fleet: keras.Model, profile: Profile, precision: str, num_micro_batches: int | None = None
) -> Callable[..., FleetState]:
    """Compile `step(state, learning_rate_M, is_active_M, tables, indices_BM) -> state`.

    It cuts its windows out of the tables of the fleet, which stay on the device (`v8.data.windows.batches`),
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
