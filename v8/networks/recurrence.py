"""LSTM and GRU over whole sequences, with hand-derived gradients, for one model or many.

The loop over time holds one matmul a step and the elementwise work, backward the slopes of the gates, too:
where XLA makes one kernel of a loop (`v8.machine.choices`) they cost less there than arrays of them. The
input projection and the weight gradients happen outside it as single large products. Gate order, formulas and
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

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import keras
from keras import ops

Tensor: TypeAlias = Any
Step: TypeAlias = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], tuple[Any, Any]]
LSTM_GATES = 4
"""Input, forget, candidate, output: the order of Keras."""
GRU_GATES = 3
"""Update, reset, candidate: the order of Keras."""


class Cell(NamedTuple):
    """One kind of layer: how its states come about, and how their gradient goes back."""

    forward: Callable[..., tuple[Tensor, ...]]
    """Maps inputs (T, ., F), kernel, recurrent kernel, bias, the direction and the first states, (., U) each,
    to what `backward` needs; the states, (T, ., U), come last, before them an LSTM's last cell, (., U)."""
    backward: Callable[..., tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]]
    """Maps that, the states' gradient, the recurrent kernel, the direction, the first states and, for an
    LSTM, the gradient of its last cell, (., U), to the gradients of the projected input and of the recurrent
    part, both (T, ., G), of the bias and of the first states."""


def recurrent(
    cell: Cell,
    x_BMTF: Tensor,
    kernel_MFG: Tensor,
    recurrent_kernel_MUG: Tensor,
    bias: Tensor,
    *,
    go_backwards: bool,
    return_sequences: bool,
    return_cell: bool = False,
    first: Sequence[Tensor] = (),
) -> Tensor:
    """Run one layer of each model over its sequences.

    Args:
        cell: `LSTM`, or `GRU`, which resets after the matmul.
        x_BMTF: Inputs, floating; its dtype is the dtype of all the arithmetic.
        bias: Shape (M, G); a GRU's input bias and recurrent bias, (M, 2, G).
        go_backwards: Read time from its end. Outputs keep the order of the inputs.
        first: The state that it begins with, shape (B, M, U), and an LSTM's cell; zeros when there is none.

    Returns:
        Every step's state, (B, M, T, U), or that of the last step read, (B, M, U), dtype of `x_BMTF`; with
        `return_cell` a pair of that and an LSTM's last cell, (B, M, U).
    """
    is_single = x_BMTF.shape[1] == 1
    x_TF = ops.transpose(x_BMTF[:, 0], (1, 0, 2)) if is_single else ops.transpose(x_BMTF, (2, 1, 0, 3))
    weights = (kernel_MFG, recurrent_kernel_MUG, bias)
    weights = tuple(ops.cast(ops.convert_to_tensor(weight), x_TF.dtype) for weight in weights)
    begun = [ops.cast(one[:, 0] if is_single else ops.swapaxes(one, 0, 1), x_TF.dtype) for one in first]
    states = _states(cell, go_backwards, return_cell)
    found = states(x_TF, *(weight[0] if is_single else weight for weight in weights), *begun)
    h_TU, *last = found if return_cell else (found,)

    def batch_major(h: Tensor) -> Tensor:
        """Turn ([T,] [M,] B, U) into (B, M, [T,] U)."""
        if is_single:
            return (ops.transpose(h, (1, 0, 2)) if len(h.shape) == 3 else h)[:, None]
        return ops.transpose(h, (2, 1, 0, 3) if len(h.shape) == 4 else (1, 0, 2))

    h = batch_major(h_TU if return_sequences else h_TU[0 if go_backwards else -1])
    return (h, batch_major(last[0])) if return_cell else h


def _states(cell: Cell, go_backwards: bool, return_cell: bool) -> Callable[..., Tensor]:
    def states(
        x_TF: Tensor, kernel: Tensor, recurrent: Tensor, bias: Tensor, *first: Tensor
    ) -> tuple[Tensor, Any]:
        saved = cell.forward(x_TF, kernel, recurrent, bias, go_backwards, first)

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
            # JAX hands over the gradients of a pair as one pair, TensorFlow as two arguments.
            dh_TU, *dc_U = keras.tree.flatten(args if upstream is None else upstream)
            dz_TG, dr_TG, dbias, dfirst = cell.backward(saved, dh_TU, recurrent, go_backwards, first, *dc_U)
            before_TU = _previous(saved[-1], go_backwards, *first[:1])
            return (
                _input_gradient(dz_TG, kernel),
                *_kernel_gradients(x_TF, before_TU, dz_TG, dr_TG),
                dbias,
                *(dfirst if first else ()),
            )

        if not return_cell:
            return saved[-1], gradient
        return (saved[-1], saved[-2]), gradient

    return cast(Callable[..., Tensor], ops.custom_gradient(states))


# LSTM


def _lstm_forward(  # noqa: PLR0917 - see `Cell`
    x_TF: Tensor,
    kernel: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    go_backwards: bool,
    first: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """Return gates after their activations, (T, ., 4U), cells before each step, the last one, and states."""
    z_TG, bias_G = _projected(x_TF, kernel), _over_batch(bias)
    zero_U = ops.zeros_like(z_TG[0, ..., : recurrent.shape[-2]])

    def step(carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Any, Any]:
        (h_U, c_U), (z_G,) = carry, inputs
        z_G = z_G + ops.matmul(h_U, recurrent) + bias_G
        i_U, f_U, g_U, o_U = ops.split(z_G, LSTM_GATES, axis=-1)
        i_U, f_U, g_U, o_U = ops.sigmoid(i_U), ops.sigmoid(f_U), _tanh(g_U), ops.sigmoid(o_U)
        next_U = f_U * c_U + i_U * g_U
        h_U = o_U * _tanh(next_U)
        return (h_U, next_U), (ops.concatenate([i_U, f_U, g_U, o_U], axis=-1), c_U, h_U)

    outputs_like = (z_TG[0], zero_U, zero_U)
    (_, c_U), (gates_TG, c_TU, h_TU) = _scan(
        step, first or (zero_U, zero_U), (z_TG,), outputs_like, go_backwards
    )
    return gates_TG, c_TU, c_U, h_TU


def _lstm_backward(  # noqa: PLR0917 - see `Cell`
    saved: tuple[Tensor, ...],
    dh_TU: Tensor,
    recurrent: Tensor,
    go_backwards: bool,
    first: tuple[Tensor, ...],
    dc_U: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    gates_TG, c_TU, *_ = saved
    recurrent_T = ops.swapaxes(recurrent, -1, -2)
    zero_U = ops.zeros_like(dh_TU[0])

    def step(carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Any, Any]:
        (dh_U, dc_U, sum_G), (gates_G, c_U, upstream_U) = carry, inputs
        i_U, f_U, g_U, o_U = ops.split(gates_G, LSTM_GATES, axis=-1)
        tanh_U = _tanh(f_U * c_U + i_U * g_U)
        dh_U = dh_U + upstream_U
        dc_U = dc_U + dh_U * o_U * (1 - tanh_U * tanh_U)
        di_U, df_U = dc_U * g_U * i_U * (1 - i_U), dc_U * c_U * f_U * (1 - f_U)
        dg_U, do_U = dc_U * i_U * (1 - g_U * g_U), dh_U * tanh_U * o_U * (1 - o_U)
        dz_G = ops.concatenate([di_U, df_U, dg_U, do_U], axis=-1)
        return (ops.matmul(dz_G, recurrent_T), dc_U * f_U, sum_G + ops.cast(dz_G, "float32")), (dz_G,)

    # The bias' gradient, summed here: XLA would sum all steps' rows afterwards as a tree of windows.
    zero_G = ops.zeros_like(gates_TG[0], dtype="float32")
    last = (zero_U, zero_U if dc_U is None else dc_U, zero_G)
    inputs = (gates_TG, c_TU, dh_TU)
    (*dfirst, sum_G), (dz_TG,) = _scan(step, last, inputs, (gates_TG[0],), not go_backwards)
    return dz_TG, dz_TG, ops.cast(ops.sum(sum_G, axis=-2), dz_TG.dtype), tuple(dfirst)


LSTM = Cell(_lstm_forward, _lstm_backward)


# GRU


def _gru_forward(  # noqa: PLR0917 - see `Cell`
    x_TF: Tensor,
    kernel: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    go_backwards: bool,
    first: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """Return update, reset and candidate, (T, ., 3U), the candidate's recurrent part, and states."""
    z_TG = _projected(x_TF, kernel)
    input_bias_G, bias_G = (_over_batch(bias[..., place, :]) for place in (0, 1))
    zero_U = ops.zeros_like(z_TG[0, ..., : recurrent.shape[-2]])

    def step(carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Any, Any]:
        (h_U,), (z_G,) = carry, inputs
        update_U, reset_U, own_U = ops.split(z_G + input_bias_G, GRU_GATES, axis=-1)
        r_G = ops.matmul(h_U, recurrent) + bias_G
        update_r_U, reset_r_U, own_r_U = ops.split(r_G, GRU_GATES, axis=-1)
        update_U, reset_U = ops.sigmoid(update_U + update_r_U), ops.sigmoid(reset_U + reset_r_U)
        own_U = _tanh(own_U + reset_U * own_r_U)
        h_U = update_U * h_U + (1 - update_U) * own_U
        return (h_U,), (ops.concatenate([update_U, reset_U, own_U], axis=-1), own_r_U, h_U)

    return _scan(step, first or (zero_U,), (z_TG,), (z_TG[0], zero_U, zero_U), go_backwards)[1]


def _gru_backward(
    saved: tuple[Tensor, ...],
    dh_TU: Tensor,
    recurrent: Tensor,
    go_backwards: bool,
    first: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    gates_TG, own_r_TU, h_TU = saved
    recurrent_T = ops.swapaxes(recurrent, -1, -2)
    zero_U = ops.zeros_like(dh_TU[0])

    def step(carry: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Any, Any]:
        (dh_U,), (gates_G, own_r_U, before_U, upstream_U) = carry, inputs
        update_U, reset_U, own_U = ops.split(gates_G, GRU_GATES, axis=-1)
        dh_U = dh_U + upstream_U
        down_U = dh_U * (1 - update_U) * (1 - own_U * own_U)
        dupdate_U = dh_U * (before_U - own_U) * update_U * (1 - update_U)
        dreset_U = down_U * own_r_U * reset_U * (1 - reset_U)
        dr_G = ops.concatenate([dupdate_U, dreset_U, down_U * reset_U], axis=-1)
        return (dh_U * update_U + ops.matmul(dr_G, recurrent_T),), (dr_G, down_U)

    inputs = (gates_TG, own_r_TU, _previous(h_TU, go_backwards, *first), dh_TU)
    dfirst, (dr_TG, down_TU) = _scan(step, (zero_U,), inputs, (gates_TG[0], zero_U), not go_backwards)
    dz_TG = ops.concatenate([dr_TG[..., : 2 * down_TU.shape[-1]], down_TU], axis=-1)
    return dz_TG, dr_TG, ops.stack([_bias_gradient(dz_TG), _bias_gradient(dr_TG)], axis=-2), dfirst


GRU = Cell(_gru_forward, _gru_backward)


# What both share


def _tanh(x: Tensor) -> Tensor:
    """Return tanh(x); in float32 by the sigmoid, within 1.2e-7, which XLA works out faster on a CPU."""
    if keras.backend.standardize_dtype(x.dtype) != "float32":
        return ops.tanh(x)
    return 2.0 * ops.sigmoid(2.0 * x) - 1.0


def _projected(x_TF: Tensor, kernel: Tensor) -> Tensor:
    """Return x @ kernel for all steps at once, shape (T, ., G)."""
    if len(kernel.shape) == 2:
        flat = ops.matmul(ops.reshape(x_TF, (-1, x_TF.shape[-1])), kernel)
        return ops.reshape(flat, (x_TF.shape[0], -1, kernel.shape[-1]))
    return ops.einsum("tmbf,mfg->tmbg", x_TF, kernel)


def _input_gradient(dz_TG: Tensor, kernel: Tensor) -> Tensor:
    if len(kernel.shape) == 2:
        flat = ops.einsum("ng,fg->nf", ops.reshape(dz_TG, (-1, dz_TG.shape[-1])), kernel)
        return ops.reshape(flat, (dz_TG.shape[0], -1, kernel.shape[0]))
    return ops.einsum("tmbg,mfg->tmbf", dz_TG, kernel)


def _kernel_gradients(x_TF: Tensor, before_TU: Tensor, dz_TG: Tensor, dr_TG: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the kernel and of the recurrent kernel.

    Where both have one upstream gradient and inputs are few, they are one product: by itself, one of a few
    rows takes twice as long on a CPU for what it does.
    """
    num_inputs = x_TF.shape[-1]
    if dr_TG is not dz_TG or num_inputs > before_TU.shape[-1]:
        return _weight_gradient(x_TF, dz_TG), _weight_gradient(before_TU, dr_TG)
    gradient = _weight_gradient(ops.concatenate([x_TF, before_TU], axis=-1), dz_TG)
    return gradient[..., :num_inputs, :], gradient[..., num_inputs:, :]


def _weight_gradient(x_TF: Tensor, dz_TG: Tensor) -> Tensor:
    if len(x_TF.shape) == 3:
        # Written as one product: a transposed array of its own would be made, by working out `x_TF` again.
        x_NF, dz_NG = (ops.reshape(each, (-1, each.shape[-1])) for each in (x_TF, dz_TG))
        return ops.einsum("nf,ng->fg", x_NF, dz_NG)
    return ops.einsum("tmbf,tmbg->mfg", x_TF, dz_TG)


def _bias_gradient(dz_TG: Tensor) -> Tensor:
    return ops.sum(dz_TG, axis=(0, -2))


def _over_batch(bias: Tensor) -> Tensor:
    """Make a bias (G,) or (M, G) broadcast against (., G)."""
    return ops.expand_dims(bias, axis=-2)


def _previous(state_TU: Tensor, go_backwards: bool, first_U: Tensor | None = None) -> Tensor:
    """Return the state before each step; before the first one read it is zero unless given."""
    first_1U = ops.zeros_like(state_TU[:1]) if first_U is None else first_U[None]
    return ops.concatenate([state_TU[1:], first_1U] if go_backwards else [first_1U, state_TU[:-1]], axis=0)


def _scan(
    step: Step,
    carry: tuple[Tensor, ...],
    inputs: tuple[Tensor, ...],
    outputs_like: tuple[Tensor, ...],
    is_reversed: bool,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Run `step(carry, inputs at t) -> (carry, outputs at t)` over the first axis, or from its end.

    `outputs_like` has the shape and dtype of each of one step's outputs. Returns the last carry, and the
    outputs, time first, each at the index of its inputs.
    """
    if keras.backend.backend() != "tensorflow":
        carry, outputs = ops.scan(step, carry, inputs, reverse=is_reversed)
        return carry, tuple(outputs)
    # keras.ops.scan on TensorFlow wants outputs shaped like the carry, and ours are not.
    import tensorflow as tf  # noqa: PLC0415 - only the active backend is imported

    num_steps = inputs[0].shape[0]
    arrays = [tf.TensorArray(like.dtype, num_steps, element_shape=like.shape) for like in outputs_like]
    # An only input gives its memory to the output of its shape, which no step needs to begin with zeros. Of
    # several XLA would copy the whole array at every step: the next carry may be worked out after the output.
    is_overwritten = len(inputs) == 1 and inputs[0].shape[1:] == outputs_like[0].shape
    if is_overwritten:
        arrays[0] = arrays[0].unstack(inputs[0])

    def body(count: Tensor, carry: tuple[Tensor, ...], arrays: list[Any]) -> tuple[Any, ...]:
        t = num_steps - 1 - count if is_reversed else count
        here = (arrays[0].read(t),) if is_overwritten else tuple(array[t] for array in inputs)
        carry, outputs = step(carry, here)
        return count + 1, carry, [a.write(t, output) for a, output in zip(arrays, outputs, strict=True)]

    start = (tf.constant(0), carry, arrays)
    _, carry, arrays = tf.while_loop(
        lambda count, *_: count < num_steps, body, start, maximum_iterations=num_steps
    )
    return carry, tuple(array.stack() for array in arrays)
