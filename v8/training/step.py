"""One optimiser step as a pure function of state and batch, compiled for the active Keras backend.

Adam follows keras.optimizers.Adam (Kingma & Ba 2015, epsilon outside the corrected root); a test
compares them step by step. Mixed float16 scales the loss so that small gradients survive, halves the
scale and skips the step when one overflows, and doubles it after a run of good steps
(Micikevicius et al. 2018, section 3.2).

Shape legend: B batch, T lookback, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from v8.models.losses import weighted_loss
from v8.profile import Profile

BETA_1 = 0.9
BETA_2 = 0.999
EPSILON = 1e-7
"""Adam's constants: the defaults of keras.optimizers.Adam."""

FIRST_LOSS_SCALE = 2.0**15
GOOD_STEPS_TO_DOUBLE = 2_000
"""Loss scaling of mixed float16: the defaults of keras.optimizers.LossScaleOptimizer."""

State = dict[str, Any]
"""Arrays of a training in progress: `weights`, `constants` (dropout seeds), Adam's `means` and
`squares`, `num_steps`, `loss_scale`, `num_good_steps`, and the epoch's `loss_sum` and `window_sum`."""


def initial_state(network: keras.Model, precision: str) -> State:
    """Return the state of an untrained network, as NumPy arrays."""
    weights = [np.asarray(weight) for weight in network.trainable_variables]
    return {
        "weights": weights,
        "constants": [np.asarray(constant) for constant in network.non_trainable_variables],
        "means": [np.zeros_like(weight) for weight in weights],
        "squares": [np.zeros_like(weight) for weight in weights],
        "num_steps": np.float32(0),
        "loss_scale": np.float32(FIRST_LOSS_SCALE if precision == "mixed_float16" else 1),
        "num_good_steps": np.int32(0),
        "loss_sum": np.float32(0),
        "window_sum": np.float32(0),
    }


def compiled_step(network: keras.Model, profile: Profile, precision: str) -> Callable[..., State]:
    """Compile `step(state, learning_rate, x_BTF, y, weight_B) -> state`.

    The network lends its structure only; weights live in the state.
    """
    is_scaled = precision == "mixed_float16"

    def step(state: State, learning_rate: Any, x_BTF: Any, y: dict[str, Any], weight_B: Any) -> State:
        def loss_of(weights: Sequence[Any]) -> tuple[Any, tuple[Any, Any]]:
            forecast, constants = network.stateless_call(weights, state["constants"], x_BTF, training=True)
            loss = weighted_loss(profile.tasks, y, forecast, weight_B)
            return loss * state["loss_scale"], (loss, constants)

        gradients, (loss, constants) = _gradients(loss_of, state["weights"])
        gradients = [gradient / state["loss_scale"] for gradient in gradients]
        updated = _adam(state, _clipped(gradients, profile.training.clip_norm), learning_rate)
        if is_scaled:
            updated = _unless_overflown(state, updated, gradients)
        num_windows = ops.sum(weight_B)
        return {
            **updated,
            "constants": list(constants),
            "loss_sum": state["loss_sum"] + loss * num_windows,
            "window_sum": state["window_sum"] + num_windows,
        }

    return _compiled(step)


def compiled_loss(network: keras.Model, profile: Profile) -> Callable[..., Any]:
    """Compile `loss(weights, constants, x_BTF, y, weight_B) -> (loss sum, window sum)` without dropout."""

    def loss_of(
        weights: Sequence[Any], constants: Sequence[Any], x_BTF: Any, y: dict[str, Any], weight_B: Any
    ) -> tuple[Any, Any]:
        forecast, _ = network.stateless_call(weights, constants, x_BTF, training=False)
        num_windows = ops.sum(weight_B)
        return weighted_loss(profile.tasks, y, forecast, weight_B) * num_windows, num_windows

    return _compiled(loss_of)


def _adam(state: State, gradients: Sequence[Any], learning_rate: Any) -> State:
    num_steps = state["num_steps"] + 1.0
    correction = ops.sqrt(1.0 - ops.power(BETA_2, num_steps)) / (1.0 - ops.power(BETA_1, num_steps))
    weights, means, squares = [], [], []
    for weight, mean, square, gradient in zip(
        state["weights"], state["means"], state["squares"], gradients, strict=True
    ):
        means.append(mean + (gradient - mean) * (1.0 - BETA_1))
        squares.append(square + (ops.square(gradient) - square) * (1.0 - BETA_2))
        weights.append(weight - learning_rate * correction * means[-1] / (ops.sqrt(squares[-1]) + EPSILON))
    return {**state, "weights": weights, "means": means, "squares": squares, "num_steps": num_steps}


def _clipped(gradients: Sequence[Any], clip_norm: float | None) -> Sequence[Any]:
    if clip_norm is None:
        return gradients
    norm = ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in gradients))
    factor = clip_norm / ops.maximum(norm, clip_norm)
    return [gradient * factor for gradient in gradients]


def _unless_overflown(state: State, updated: State, gradients: Sequence[Any]) -> State:
    """Keep the old weights and halve the loss scale when a gradient is not finite."""
    is_finite = ops.all(ops.stack([ops.all(ops.isfinite(gradient)) for gradient in gradients]))

    def chosen(new: Any, old: Any) -> Any:
        return ops.where(is_finite, new, old)

    kept: State = {
        name: [chosen(new, old) for new, old in zip(updated[name], state[name], strict=True)]
        for name in ("weights", "means", "squares")
    }
    num_good = ops.where(is_finite, state["num_good_steps"] + 1, 0)
    is_due = num_good >= GOOD_STEPS_TO_DOUBLE
    grown = ops.where(is_due, state["loss_scale"] * 2.0, state["loss_scale"])
    return {
        **updated,
        **kept,
        "num_steps": chosen(updated["num_steps"], state["num_steps"]),
        "loss_scale": chosen(grown, state["loss_scale"] / 2.0),
        "num_good_steps": ops.where(is_due, 0, num_good),
    }


def _gradients(loss_of: Callable[[Sequence[Any]], Any], weights: Sequence[Any]) -> Any:
    if keras.backend.backend() == "jax":
        import jax  # noqa: PLC0415 - an optional extra

        gradients, extra = jax.grad(loss_of, has_aux=True)(weights)
        return gradients, extra
    import tensorflow as tf  # noqa: PLC0415 - only the active backend is imported

    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss, extra = loss_of(weights)
    return tape.gradient(loss, weights), extra


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    if keras.backend.backend() == "jax":
        import jax  # noqa: PLC0415

        return jax.jit(function)
    import tensorflow as tf  # noqa: PLC0415

    return tf.function(function, autograph=False)
