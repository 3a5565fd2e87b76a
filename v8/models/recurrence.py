"""LSTM and GRU over whole sequences, with hand-derived gradients, for one model or many.

The loop over time holds one matmul a step and the elementwise work that needs the state. Everything
else happens outside it as single large operations: the input projection, the factors of the backward
pass that do not depend on the incoming gradient, and the weight gradients. Gate order, formulas and
results are those of keras.layers.LSTM and keras.layers.GRU(reset_after=True) with default
activations; gradients follow Hochreiter & Schmidhuber 1997 and Cho et al. 2014.

Callers pass batch-major arrays with a model axis. Inside, arrays are time-major, so that one step is
one contiguous slice; with a single model its axis is dropped and every matmul is a plain one, which
XLA runs about twice as fast on a CPU as a batched one.

Outputs are in the order of the inputs' time, whichever way the layer reads them.

Shape legend: B batch, M model, T time, F features, U units, G gates times units (4U LSTM, 3U GRU).
A dot stands for `M, B` or, with one model, `B`: z_T.G has shape (T, M, B, G) or (T, B, G).
In names the dot is left out: z_TG.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import keras
from keras import ops

Tensor: TypeAlias = Any
Step: TypeAlias = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], tuple[Any, Any]]

LSTM_GATES = 4
"""Input, forget, candidate, output: the order of Keras."""
GRU_GATES = 3
"""Update, reset, candidate: the order of Keras."""


def lstm(
    x_BMTF: Tensor,
    kernel_MFG: Tensor,
    recurrent_kernel_MUG: Tensor,
    bias_MG: Tensor,
    *,
    go_backwards: bool = False,
    return_sequences: bool = False,
) -> Tensor:
    """Run one LSTM layer of each model over its sequences, from a zero state.

    Args:
        x_BMTF: Inputs, shape (B, M, T, F), floating; its dtype is the dtype of all the arithmetic.
        kernel_MFG: Shape (M, F, 4U).
        recurrent_kernel_MUG: Shape (M, U, 4U).
        bias_MG: Shape (M, 4U).
        go_backwards: Read time from its end. Outputs keep the order of the inputs.
        return_sequences: Return every step's state, else that of the last step read.

    Returns:
        Shape (B, M, T, U) with `return_sequences`, else (B, M, U), dtype of `x_BMTF`.
    """
    weights = (kernel_MFG, recurrent_kernel_MUG, bias_MG)
    return _recurrent(_lstm_states, x_BMTF, weights, go_backwards, return_sequences)


def gru(
    x_BMTF: Tensor,
    kernel_MFG: Tensor,
    recurrent_kernel_MUG: Tensor,
    bias_M2G: Tensor,
    *,
    go_backwards: bool = False,
    return_sequences: bool = False,
) -> Tensor:
    """Run one GRU layer (reset after the matmul) of each model over its sequences, from a zero state.

    Args:
        x_BMTF: Inputs, shape (B, M, T, F), floating; its dtype is the dtype of all the arithmetic.
        kernel_MFG: Shape (M, F, 3U).
        recurrent_kernel_MUG: Shape (M, U, 3U).
        bias_M2G: Input bias and recurrent bias, shape (M, 2, 3U).
        go_backwards: Read time from its end. Outputs keep the order of the inputs.
        return_sequences: Return every step's state, else that of the last step read.

    Returns:
        Shape (B, M, T, U) with `return_sequences`, else (B, M, U), dtype of `x_BMTF`.
    """
    weights = (kernel_MFG, recurrent_kernel_MUG, bias_M2G)
    return _recurrent(_gru_states, x_BMTF, weights, go_backwards, return_sequences)


def _recurrent(
    run: Callable[..., Tensor],
    x_BMTF: Tensor,
    weights: tuple[Tensor, ...],
    go_backwards: bool,
    return_sequences: bool,
) -> Tensor:
    is_single = x_BMTF.shape[1] == 1
    x_TF = ops.transpose(x_BMTF[:, 0], (1, 0, 2)) if is_single else ops.transpose(x_BMTF, (2, 1, 0, 3))
    weights = tuple(ops.cast(ops.convert_to_tensor(weight), x_TF.dtype) for weight in weights)
    h_TU = run(x_TF, *(weight[0] if is_single else weight for weight in weights), go_backwards=go_backwards)
    if not return_sequences:
        h_U = h_TU[0 if go_backwards else -1]
        return h_U[:, None] if is_single else ops.transpose(h_U, (1, 0, 2))
    return ops.transpose(h_TU, (1, 0, 2))[:, None] if is_single else ops.transpose(h_TU, (2, 1, 0, 3))


# LSTM


def _lstm_states(
    x_TF: Tensor, kernel: Tensor, recurrent: Tensor, bias: Tensor, *, go_backwards: bool
) -> Tensor:
    def states(x_TF: Tensor, kernel: Tensor, recurrent: Tensor, bias: Tensor) -> tuple[Tensor, Any]:
        gates_TG, c_TU, h_TU = _lstm_forward(_projected(x_TF, kernel, bias), recurrent, go_backwards)

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
            dh_TU = args[0] if upstream is None else upstream
            dz_TG = _lstm_backward(gates_TG, c_TU, dh_TU, recurrent, go_backwards)
            return (
                _input_gradient(dz_TG, kernel),
                _weight_gradient(x_TF, dz_TG),
                _recurrent_gradient(h_TU, dz_TG, go_backwards),
                _bias_gradient(dz_TG),
            )

        return h_TU, gradient

    return ops.custom_gradient(states)(x_TF, kernel, recurrent, bias)


def _lstm_forward(z_TG: Tensor, recurrent: Tensor, go_backwards: bool) -> tuple[Tensor, Tensor, Tensor]:
    zero_U = ops.zeros_like(z_TG[0, ..., : recurrent.shape[-2]])

    def step(carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Any, Any]:
        (h_U, c_U), (z_G,) = carry, inputs
        i_U, f_U, g_U, o_U = ops.split(z_G + ops.matmul(h_U, recurrent), LSTM_GATES, axis=-1)
        i_U, f_U, g_U, o_U = ops.sigmoid(i_U), ops.sigmoid(f_U), ops.tanh(g_U), ops.sigmoid(o_U)
        c_U = f_U * c_U + i_U * g_U
        h_U = o_U * ops.tanh(c_U)
        return (h_U, c_U), (ops.concatenate([i_U, f_U, g_U, o_U], axis=-1), c_U, h_U)

    gates_TG, c_TU, h_TU = _scan(step, (zero_U, zero_U), (z_TG,), (z_TG[0], zero_U, zero_U), go_backwards)
    return gates_TG, c_TU, h_TU


def _lstm_backward(
    gates_TG: Tensor, c_TU: Tensor, dh_TU: Tensor, recurrent: Tensor, go_backwards: bool
) -> Tensor:
    """Return the gradient of the gates before their activations, shape (T, ., 4U)."""
    i_TU, f_TU, g_TU, o_TU = ops.split(gates_TG, LSTM_GATES, axis=-1)
    tanh_TU = ops.tanh(c_TU)
    # A gate's gradient is its slope times dc, or dh for the output gate.
    slopes = (
        g_TU * i_TU * (1 - i_TU),
        _previous(c_TU, go_backwards) * f_TU * (1 - f_TU),
        i_TU * (1 - g_TU * g_TU),
        tanh_TU * o_TU * (1 - o_TU),
    )
    leak_TU = o_TU * (1 - tanh_TU * tanh_TU)
    recurrent_T = ops.swapaxes(recurrent, -1, -2)
    zero_U = ops.zeros_like(dh_TU[0])

    def step(carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Any, Any]:
        (dh_U, dc_U), (di_U, df_U, dg_U, do_U, leak_U, f_U, upstream_U) = carry, inputs
        dh_U = dh_U + upstream_U
        dc_U = dc_U + dh_U * leak_U
        dz_G = ops.concatenate([di_U * dc_U, df_U * dc_U, dg_U * dc_U, do_U * dh_U], axis=-1)
        return (ops.matmul(dz_G, recurrent_T), dc_U * f_U), (dz_G,)

    inputs = (*slopes, leak_TU, f_TU, dh_TU)
    (dz_TG,) = _scan(step, (zero_U, zero_U), inputs, (gates_TG[0],), not go_backwards)
    return dz_TG


# GRU


def _gru_states(
    x_TF: Tensor, kernel: Tensor, recurrent: Tensor, bias: Tensor, *, go_backwards: bool
) -> Tensor:
    def states(x_TF: Tensor, kernel: Tensor, recurrent: Tensor, bias: Tensor) -> tuple[Tensor, Any]:
        z_TG = _projected(x_TF, kernel, bias[..., 0, :])
        saved = _gru_forward(z_TG, recurrent, bias[..., 1, :], go_backwards)
        h_TU = saved[-1]

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
            dh_TU = args[0] if upstream is None else upstream
            dz_TG, dr_TG = _gru_backward(saved, dh_TU, recurrent, go_backwards)
            return (
                _input_gradient(dz_TG, kernel),
                _weight_gradient(x_TF, dz_TG),
                _recurrent_gradient(h_TU, dr_TG, go_backwards),
                ops.stack([_bias_gradient(dz_TG), _bias_gradient(dr_TG)], axis=-2),
            )

        return h_TU, gradient

    return ops.custom_gradient(states)(x_TF, kernel, recurrent, bias)


def _gru_forward(
    z_TG: Tensor, recurrent: Tensor, recurrent_bias: Tensor, go_backwards: bool
) -> tuple[Tensor, ...]:
    """Return update, reset, candidate, the candidate's recurrent part, and states, each (T, ., U)."""
    zero_U = ops.zeros_like(z_TG[0, ..., : recurrent.shape[-2]])
    bias_G = _over_batch(recurrent_bias)

    def step(carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Any, Any]:
        (h_U,), (z_G,) = carry, inputs
        update_U, reset_U, own_U = ops.split(z_G, GRU_GATES, axis=-1)
        r_G = ops.matmul(h_U, recurrent) + bias_G
        update_r_U, reset_r_U, own_r_U = ops.split(r_G, GRU_GATES, axis=-1)
        update_U, reset_U = ops.sigmoid(update_U + update_r_U), ops.sigmoid(reset_U + reset_r_U)
        own_U = ops.tanh(own_U + reset_U * own_r_U)
        h_U = update_U * h_U + (1 - update_U) * own_U
        return (h_U,), (update_U, reset_U, own_U, own_r_U, h_U)

    return _scan(step, (zero_U,), (z_TG,), (zero_U,) * 5, go_backwards)


def _gru_backward(
    saved: tuple[Tensor, ...], dh_TU: Tensor, recurrent: Tensor, go_backwards: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the projected input and of the recurrent part, each (T, ., 3U)."""
    update_TU, reset_TU, own_TU, own_r_TU, h_TU = saved
    # Every gradient of a step is the state's gradient times a factor known before the loop.
    own_slope_TU = (1 - update_TU) * (1 - own_TU * own_TU)
    update_slope_TU = (_previous(h_TU, go_backwards) - own_TU) * update_TU * (1 - update_TU)
    reset_slope_TU = own_slope_TU * own_r_TU * reset_TU * (1 - reset_TU)
    slope_TG = ops.concatenate([update_slope_TU, reset_slope_TU, own_slope_TU * reset_TU], axis=-1)
    recurrent_T = ops.swapaxes(recurrent, -1, -2)

    def step(carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Any, Any]:
        (dh_U,), (slope_G, update_U, upstream_U) = carry, inputs
        dh_U = dh_U + upstream_U
        dr_G = slope_G * ops.concatenate([dh_U, dh_U, dh_U], axis=-1)
        return (dh_U * update_U + ops.matmul(dr_G, recurrent_T),), (dr_G, dh_U)

    zero_U = ops.zeros_like(dh_TU[0])
    inputs = (slope_TG, update_TU, dh_TU)
    dr_TG, total_TU = _scan(step, (zero_U,), inputs, (slope_TG[0], zero_U), not go_backwards)
    num_gate_units = 2 * update_TU.shape[-1]
    dz_TG = ops.concatenate([dr_TG[..., :num_gate_units], total_TU * own_slope_TU], axis=-1)
    return dz_TG, dr_TG


# What both share


def _projected(x_TF: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Return x @ kernel + bias for all steps at once, shape (T, ., G)."""
    if len(kernel.shape) == 2:
        flat = ops.matmul(ops.reshape(x_TF, (-1, x_TF.shape[-1])), kernel) + bias
        return ops.reshape(flat, (x_TF.shape[0], -1, kernel.shape[-1]))
    return ops.einsum("tmbf,mfg->tmbg", x_TF, kernel) + _over_batch(bias)


def _input_gradient(dz_TG: Tensor, kernel: Tensor) -> Tensor:
    if len(kernel.shape) == 2:
        flat = ops.matmul(ops.reshape(dz_TG, (-1, dz_TG.shape[-1])), ops.transpose(kernel))
        return ops.reshape(flat, (dz_TG.shape[0], -1, kernel.shape[0]))
    return ops.einsum("tmbg,mfg->tmbf", dz_TG, kernel)


def _weight_gradient(x_TF: Tensor, dz_TG: Tensor) -> Tensor:
    if len(x_TF.shape) == 3:
        x_NF = ops.reshape(x_TF, (-1, x_TF.shape[-1]))
        return ops.matmul(ops.transpose(x_NF), ops.reshape(dz_TG, (-1, dz_TG.shape[-1])))
    return ops.einsum("tmbf,tmbg->mfg", x_TF, dz_TG)


def _recurrent_gradient(h_TU: Tensor, dz_TG: Tensor, go_backwards: bool) -> Tensor:
    """Pair each step's gradient with the state before it; the first step read had the zero state."""
    if go_backwards:
        return _weight_gradient(h_TU[1:], dz_TG[:-1])
    return _weight_gradient(h_TU[:-1], dz_TG[1:])


def _bias_gradient(dz_TG: Tensor) -> Tensor:
    return ops.sum(dz_TG, axis=(0, -2))


def _over_batch(bias: Tensor) -> Tensor:
    """Make a bias (G,) or (M, G) broadcast against (., G)."""
    return ops.expand_dims(bias, axis=-2)


def _previous(state_TU: Tensor, go_backwards: bool) -> Tensor:
    """Return the state before each step, zero before the first one read."""
    if go_backwards:
        return ops.concatenate([state_TU[1:], ops.zeros_like(state_TU[:1])], axis=0)
    return ops.concatenate([ops.zeros_like(state_TU[:1]), state_TU[:-1]], axis=0)


def _scan(
    step: Step,
    carry: tuple[Tensor, ...],
    inputs: tuple[Tensor, ...],
    outputs_like: tuple[Tensor, ...],
    is_reversed: bool,
) -> tuple[Tensor, ...]:
    """Run `step(carry, inputs at t) -> (carry, outputs at t)` over the first axis.

    Args:
        step: One step; its carry keeps shape and dtype.
        carry: First carry.
        inputs: Arrays with time first.
        outputs_like: One array per output with the shape and dtype of one step's output.
        is_reversed: Go from the last step to the first.

    Returns:
        The outputs, time first, each at the index of its inputs.
    """
    if keras.backend.backend() == "tensorflow":
        return _scan_tensorflow(step, carry, inputs, outputs_like, is_reversed)
    _, outputs = ops.scan(step, carry, inputs, reverse=is_reversed)
    return tuple(outputs)


def _scan_tensorflow(
    step: Step,
    carry: tuple[Tensor, ...],
    inputs: tuple[Tensor, ...],
    outputs_like: tuple[Tensor, ...],
    is_reversed: bool,
) -> tuple[Tensor, ...]:
    # keras.ops.scan on TensorFlow wants outputs shaped like the carry, and ours are not.
    import tensorflow as tf  # noqa: PLC0415 - only the active backend is imported

    num_steps = inputs[0].shape[0]
    arrays = tuple(tf.TensorArray(like.dtype, num_steps, element_shape=like.shape) for like in outputs_like)

    def body(count: Tensor, carry: tuple[Tensor, ...], arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        t = num_steps - 1 - count if is_reversed else count
        carry, outputs = step(carry, tuple(array[t] for array in inputs))
        return count + 1, carry, tuple(a.write(t, output) for a, output in zip(arrays, outputs, strict=True))

    start = (tf.constant(0), carry, arrays)
    *_, arrays = tf.while_loop(lambda count, *_: count < num_steps, body, start, maximum_iterations=num_steps)
    return tuple(array.stack() for array in arrays)
