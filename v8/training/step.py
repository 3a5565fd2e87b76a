"""One optimiser step of a whole fleet as a pure function of state and batch, compiled by XLA.

Every array of the state has the model axis first. The models share nothing: each has its own learning
rate, step count, gradient norm, loss scale and windows, and a model that is not active keeps all of its
state, its dropout draws included. A model that diverges fills its own weights with NaN and no others.

Adam is that of keras.optimizers.Adam (Kingma & Ba 2015, epsilon outside the corrected root), and AdamW that
of keras.optimizers.AdamW (Loshchilov & Hutter 2019): weights shrink by rate x decay before Adam's step.
A batch may be gathered in parts, one after another: gradients, losses and draws are those of its windows.

Shape legend: B batch, M model, T lookback, F features, H horizon, C columns of a task.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from v8.columns import TASK_OHLC
from v8.hardware import backend, backend_name, has_gpu
from v8.networks.gradients import Call, Tensor, checkpointed, gradients_of
from v8.networks.networks import ACTUAL, WINDOW
from v8.profile import HUBER_TURN, Profile, TaskSettings, TrainingSettings
from v8.windows.batches import Tables, gathered

BETA_1 = 0.9
BETA_2 = 0.999
EPSILON = 1e-7
"""Adam's constants: the defaults of keras.optimizers.Adam."""
FIRST_LOSS_SCALE = 2.0**15
GOOD_STEPS_TO_DOUBLE = 2_000
"""Loss scaling of mixed float16: the defaults of keras.optimizers.LossScaleOptimizer."""


class FleetState(NamedTuple):
    """Everything a step changes; a tuple, because both backends compile functions of tuples.

    The weights stand in one array, (M, P), as `flattened` lays them, and so do Adam's moments: a call hands
    every array in and out, which costs as much as much arithmetic, and one loop over all is what Adam is. All
    others but the constants have shape (M,).

    Args:
        constants: Dropout seeds and draws.
        loss_scale: Factor of each model's loss under float16.
        num_good_steps: Since the scale last changed.
        loss_sum: Of the epoch's windows, scaled units.
        window_sum: Weight of the epoch's windows.
    """

    weights: Tensor
    constants: list[Tensor]
    means: Tensor
    squares: Tensor
    num_steps: Tensor
    loss_scale: Tensor
    num_good_steps: Tensor
    loss_sum: Tensor
    window_sum: Tensor

    def on_host(self) -> "FleetState":
        """Return the state as NumPy arrays, which a device hands over at once."""
        return keras.tree.map_structure(np.asarray, self)

    def take(self, places: int | Sequence[int]) -> "FleetState":
        """Copy the part of one model, without the model axis, or of several as a smaller fleet; NumPy."""
        return keras.tree.map_structure(lambda array: np.asarray(array)[places].copy(), self)

    def put(self, place: int, part: "FleetState") -> "FleetState":
        """Return the state with the part of one model replaced; NumPy."""

        def replaced(array: Tensor, own: Tensor) -> NDArray[Any]:
            return np.concatenate([array[:place], own[None], array[place + 1 :]])

        return keras.tree.map_structure(replaced, self, part)

    def with_empty_sums(self) -> "FleetState":
        """Return the state at the start of an epoch."""
        zeros_M = np.zeros(len(self.window_sum), np.float32)
        return self._replace(loss_sum=zeros_M, window_sum=zeros_M)


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
        window_sum=zeros_M,
    )


def flattened(arrays: Sequence[Tensor]) -> Tensor:
    """Lay arrays with the model axis first, (M, ...), one after another: (M, P)."""
    return ops.concatenate([ops.reshape(array, (array.shape[0], -1)) for array in arrays], axis=1)


def unflattened(fleet: keras.Model, weights_MP: Tensor) -> list[Tensor]:
    """Take weights (M, P) that `flattened` laid apart, in the shapes and order of `fleet`'s own."""
    arrays = []
    first = 0
    for weight in fleet.trainable_variables:
        shape = tuple(weight.shape[1:])
        last = first + math.prod(shape)
        arrays.append(ops.reshape(weights_MP[:, first:last], (-1, *shape)))
        first = last
    return arrays


def compiled_table_step(
    fleet: keras.Model, profile: Profile, precision: str, num_parts: int | None = None
) -> Callable[..., FleetState]:
    """Compile `step(state, learning_rate_M, is_active_M, tables, indices_BM) -> state`.

    It cuts its windows out of the tables of the fleet, which stay on the device (`v8.windows.batches`), and
    does with them what `compiled_step` does. Indices are int32.
    """
    step = optimiser_step(fleet, profile, precision, num_parts)

    def table_step(
        state: FleetState, learning_rate_M: Tensor, is_active_M: Tensor, tables: Tables, indices_BM: Tensor
    ) -> FleetState:
        batch = gathered(ops, tables, indices_BM)
        return step(state, learning_rate_M, is_active_M, batch.x_BMTF, batch.y_BMHC, batch.weight_BM)

    return _compiled(table_step)


def compiled_step(
    fleet: keras.Model, profile: Profile, precision: str, num_parts: int | None = None
) -> Callable[..., FleetState]:
    """Compile `optimiser_step`, which takes windows as they are: to measure it, or to try it by hand."""
    return _compiled(optimiser_step(fleet, profile, precision, num_parts))


def optimiser_step(
    fleet: keras.Model, profile: Profile, precision: str, num_parts: int | None = None
) -> Callable[..., FleetState]:
    """Return `step(state, learning_rate_M, is_active_M, x_BMTF, y, weight_BM) -> state`, not compiled.

    The fleet lends its structure only; weights live in the state. Learning rates are float32, active models
    bool; targets `y` are by task (B, M, H, C); window weights are 0 for padding, and a model without any does
    not take the step. Under `mixed_float16` losses are scaled, and a model skips a step that overflows. A
    batch is gathered in `num_parts`; None as the profile says for a GPU.
    """
    is_scaled = precision == "mixed_float16"
    settings = profile.training
    parts = num_parts or settings.num_parts(is_on_gpu=True)
    forward: Call = partial(fleet.stateless_call, training=True)
    if settings.checkpoint_activations:
        forward = checkpointed(fleet)

    def step(  # noqa: PLR0917 - called positionally by one caller, compiled
        state: FleetState,
        learning_rate_M: Tensor,
        is_active_M: Tensor,
        x_BMTF: Tensor,
        y: Any,
        weight_BM: Tensor,
    ) -> FleetState:
        def gathered(part: Any, constants: list[Tensor]) -> Any:
            x_BMTF, y, weight_BM = part
            # A taught fleet is shown the candles to come, too; it reads each after the forecast of that bar.
            inputs = {WINDOW: x_BMTF, ACTUAL: y[TASK_OHLC]} if isinstance(fleet.input, dict) else x_BMTF

            def loss_of(weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
                forecast, drawn = forward(weights, constants, inputs)
                loss_M = fleet_loss(profile.tasks, y, forecast, weight_BM)
                return ops.sum(loss_M * state.loss_scale), (loss_M, drawn)

            gradients, handed_on = gradients_of(loss_of, weights)
            return flattened(gradients), handed_on

        weights = unflattened(fleet, state.weights)
        window_sum_M = ops.sum(weight_BM, axis=0)
        gradient_MP, (loss_M, constants) = _in_parts(gathered, state, (x_BMTF, y, weight_BM), parts)
        gradient_MP = gradient_MP / state.loss_scale[:, None] if is_scaled else gradient_MP
        is_active_M = ops.logical_and(is_active_M, window_sum_M > 0)
        is_taken_M = is_active_M
        if is_scaled:
            is_taken_M = ops.logical_and(is_active_M, ops.all(ops.isfinite(gradient_MP), axis=1))
        updated = _adam(state, _clipped(gradient_MP, settings), learning_rate_M, settings.weight_decay)
        changed = {name: _chosen(is_taken_M, new, getattr(state, name)) for name, new in updated.items()}
        scale = _rescaled(state, is_active_M, is_taken_M) if is_scaled else {}
        return state._replace(
            constants=_chosen(is_active_M, list(constants), state.constants),
            loss_sum=state.loss_sum + ops.where(is_active_M, loss_M * window_sum_M, 0.0),
            window_sum=state.window_sum + ops.where(is_active_M, window_sum_M, 0.0),
            **changed,
            **scale,
        )

    return step


def compiled_loss(
    fleet: keras.Model, profile: Profile, trained: keras.Model, places: Sequence[int]
) -> Callable[..., Any]:
    """Compile `loss(weights_MP, tables, indices_BM) -> (loss sums, window sums)`, dropout off, each (M,).

    Tables and indices are those of `compiled_table_step`. The weights are of the state of `trained`; `places`
    tells where each trainable array of the evaluated fleet stands there.
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


def _in_parts(
    gathered: Callable[[Any, list[Tensor]], Any], state: FleetState, batch: Any, num_parts: int
) -> Any:
    """Gather the gradients of a batch, part after part, as means over its windows.

    `gathered` maps a part and the fleet's constants to gradients and (loss_M, constants).
    """
    if num_parts == 1:
        return gathered(batch, state.constants)
    parts = keras.tree.map_structure(
        lambda array: ops.reshape(array, (num_parts, -1, *array.shape[1:])), batch
    )

    def add(number: Tensor, sums: Any) -> Any:
        gradient_MP, loss_M, constants = sums
        part = keras.tree.map_structure(lambda array: ops.take(array, number, axis=0), parts)
        part_MP, (part_loss_M, constants) = gathered(part, constants)
        share_M = ops.sum(part[-1], axis=0) / ops.maximum(ops.sum(batch[-1], axis=0), 1.0)
        gradient_MP = gradient_MP + share_M[:, None] * part_MP
        return gradient_MP, loss_M + share_M * part_loss_M, list(constants)

    sums = (ops.zeros_like(state.weights), ops.zeros_like(state.window_sum), list(state.constants))
    gradient_MP, loss_M, constants = ops.fori_loop(0, num_parts, add, sums)
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
    """Bound each model's gradient as its profile says: its norm, or every value of it."""
    clip_norm = settings.clip_norm
    if clip_norm is None:
        return gradient_MP
    if settings.gradient_clip == "value":
        return ops.clip(gradient_MP, -clip_norm, clip_norm)
    norm_M1 = ops.sqrt(ops.sum(ops.square(gradient_MP), axis=1, keepdims=True))
    return gradient_MP * (clip_norm / ops.maximum(norm_M1, clip_norm))


def _chosen(is_new_M: Tensor, new: Any, old: Any) -> Any:
    """Take the new arrays of some models, the old ones of all others."""

    def chosen(one: Tensor, other: Tensor) -> Tensor:
        is_new = ops.reshape(is_new_M, (-1, *(1,) * (len(one.shape) - 1)))
        return ops.where(is_new, one, other)

    return keras.tree.map_structure(chosen, new, old)


def _rescaled(state: FleetState, is_active_M: Tensor, is_taken_M: Tensor) -> dict[str, Tensor]:
    """Halve the loss scale after an overflow, double it after a run of good steps, per model."""
    num_good_M = ops.where(is_taken_M, state.num_good_steps + 1, 0)
    is_due_M = num_good_M >= GOOD_STEPS_TO_DOUBLE
    grown_M = ops.where(is_due_M, state.loss_scale * 2.0, state.loss_scale)
    scale_M = ops.where(is_taken_M, grown_M, state.loss_scale / 2.0)
    return {
        "loss_scale": ops.where(is_active_M, scale_M, state.loss_scale),
        "num_good_steps": ops.where(is_active_M, ops.where(is_due_M, 0, num_good_M), state.num_good_steps),
    }


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    if backend_name() == "jax":
        return backend().jit(function)
    if has_gpu():  # where a call that is named as an operation was never tried
        return backend().function(function, autograph=False, jit_compile=True)
    return _Compiled(function)


class _Compiled:
    """A function of many arrays, compiled by TensorFlow and XLA, whose calls cost little.

    A `tf.function` looks at the type of every array anew in each call, which takes as long as a small step.
    Here the first argument always has the layout of its first call, and only the others are looked at.
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
        found = backend().raw_ops.StatefulPartitionedCall(args=arrays, Tout=dtypes, f=traced)
        return keras.tree.pack_sequence_as(result, found)

    def _trace(self, arguments: Any, arrays: Sequence[Tensor]) -> tuple[Any, Any]:
        """Return the traced function of flat arrays and a structure like its result."""
        function = backend().function
        results = list[Any]()
        # The traced function lives on, and the arrays of this call, tables of a series, must not.
        structure = keras.tree.map_structure(lambda array: 0, arguments)

        def flat(*arrays: Tensor) -> list[Tensor]:
            results.append(self._function(*keras.tree.pack_sequence_as(structure, arrays)))
            return list(keras.tree.flatten(results[-1]))

        compiled = function(flat, autograph=False, jit_compile=True)

        def calling(*arrays: Tensor) -> Any:
            """Call it: named as an operation's function itself, it would run without being compiled."""
            return compiled(*arrays)

        specs = map(backend().TensorSpec.from_tensor, arrays)
        traced = function(calling, autograph=False).get_concrete_function(*specs)
        return traced, keras.tree.map_structure(lambda tensor: 0, results.pop())


def fleet_loss(
    tasks: Mapping[str, TaskSettings],
    actual: Mapping[str, Any],
    forecast: Mapping[str, Any],
    weight_BM: Any,
) -> Any:
    """Return each model's loss, (M,), float32, unitless: weighted means over windows and tasks.

    Args:
        tasks: Loss and weight per task.
        actual: Scaled targets per task, shape (B, M, H, C).
        forecast: Scaled outputs per task, same shapes.
        weight_BM: Weight of each window; 0 leaves it out, whatever it holds. Equal to Keras' reduction
            "mean_with_sample_weight".

    Raises:
        ValueError: If actual values and its forecast differ in shape. Subtracting (N, 1, 4) from (N, 4)
            would broadcast, and the optimum would be the mean of the batch.
    """
    total_M = ops.zeros_like(weight_BM[0])
    window_sum_M = ops.sum(weight_BM, axis=0)
    divisor_M = ops.where(window_sum_M > 0, window_sum_M, 1.0)
    for task, settings in tasks.items():
        if tuple(actual[task].shape) != tuple(forecast[task].shape):
            raise ValueError(
                f"{task}: actual values and forecast need one shape; "
                f"got {tuple(actual[task].shape)} and {tuple(forecast[task].shape)}"
            )
        residual = ops.cast(actual[task], "float32") - ops.cast(forecast[task], "float32")
        # Masking the error instead would let NaN in filling reach the gradient, as 0 * NaN.
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
    turned = HUBER_TURN * (size - 0.5 * HUBER_TURN)
    return ops.where(size <= HUBER_TURN, 0.5 * ops.square(residual), turned)
