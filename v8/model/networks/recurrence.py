"""LSTM and GRU over whole sequences, with hand-derived gradients, for one model or many.

The loop over time does one matrix product a step and the elementwise work. The backward loop also computes
the derivatives of the gates: in a fused loop, which XLA compiles to one kernel (`v8.runs.machine`),
that costs less than storing them as arrays. The input projection and the weight gradients are single large
products outside the loop. Gate order, formulas and results are those of keras.layers.LSTM and
keras.layers.GRU(reset_after=True) with default activations; gradients follow Hochreiter & Schmidhuber 1997
and Cho et al. 2014.

Callers pass batch-major arrays with a model axis. Inside, arrays are time-major, so that one step is one
contiguous slice; with a single model its axis is dropped and every product is a plain one, which XLA runs
about twice as fast on a CPU as a batched one.

Outputs are in the time order of the inputs, whichever direction the layer reads them in.

On a GPU every kernel of every step costs a launch: `v8.model.networks.networks` has the same loops with fewer
kernels.

Shape legend: B batch, M model, T time, F features, U units, G gates times units (4U LSTM, 3U GRU).
A dot stands for `M, B` or, with one model, `B`: z_T.G has shape (T, M, B, G) or (T, B, G).
In names the dot is left out: z_TG.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import keras
from keras import ops

from v8.model.networks.products import FLOAT32, Products

Tensor: TypeAlias = Any
Tensors: TypeAlias = tuple[Tensor, ...]
Step: TypeAlias = Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]
Gradients: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensors]
LSTM_GATES = 4  # input, forget, candidate, output: the order of Keras
GRU_GATES = 3  # update, reset, candidate: the order of Keras


class Cell(NamedTuple):
    """One kind of recurrent layer: its step forward, and the gradients of all steps."""

    num_states: int
    """2 for an LSTM, whose second state is its cell; 1 for a GRU."""
    forward: Callable[[Tensor, Tensor, Products], Step]
    """Maps recurrent kernel, bias and the formats of products to a step. The step maps projected inputs,
    (., G), to gates after their activations, (., G), what else `backward` needs, (., U), and the state,
    (., U)."""
    backward: Callable[..., Gradients]
    """Maps the outputs of all steps, the states before each step, (T, ., U), the gradients of the states,
    (T, ., U), and of an LSTM's last cell, the recurrent kernel and the direction to gradients: of the
    projected input and of the recurrent part, both (T, ., G), of the bias and of the initial states."""
    outputs_like: Callable[[Tensor, Tensor], Tensors]
    """Maps an array like a step's gates, (., G), and one like its state, (., U), to arrays of the shapes and
    dtypes of the outputs of a step of `forward`."""
    steps_per_trip: int = 1
    """Time steps that one trip of the loop takes."""


def recurrent(
    cell: Cell,
    x_BMTF: Tensor,
    weights: Sequence[Tensor],
    *,
    go_backwards: bool,
    initial_states: Sequence[Tensor] = (),
    products: Products = FLOAT32,
) -> tuple[Tensor, list[Tensor]]:
    """Run one layer of each model over its sequences.

    Args:
        cell: `LSTM`, or `GRU`, which resets after the matmul; or one of them as `in_trips` of
            `v8.model.networks.networks` returns it.
        x_BMTF: Inputs, floating; its dtype is the dtype of all the arithmetic.
        weights: Kernel (M, F, G), recurrent kernel (M, U, G) and bias (M, G); the bias of a GRU is that of
            the input and the recurrent one, (M, 2, G).
        go_backwards: Read time from its end. Outputs keep the order of the inputs.
        initial_states: The state before the first step, shape (B, M, U), and an LSTM's cell; empty for zeros.
        products: Which products have factors in 16 bits.

    Returns:
        The state of every step, (B, M, T, U); and the state after the last step read, (B, M, U), with an
        LSTM's cell. All in the dtype of `x_BMTF`.
    """
    is_single = x_BMTF.shape[1] == 1
    x_TF = ops.transpose(x_BMTF[:, 0], (1, 0, 2)) if is_single else ops.transpose(x_BMTF, (2, 1, 0, 3))
    arrays = [ops.cast(ops.convert_to_tensor(weight), x_TF.dtype) for weight in weights]
    states = []
    for state_BMU in initial_states:
        state_U = state_BMU[:, 0] if is_single else ops.swapaxes(state_BMU, 0, 1)
        states.append(ops.cast(state_U, x_TF.dtype))
    kernel, recurrent_kernel, bias = (array[0] for array in arrays) if is_single else arrays
    run = _layer_function(cell, go_backwards, products)
    h_TU, *cells = run(x_TF, kernel, recurrent_kernel, bias, *states)
    last_states = [h_TU[0 if go_backwards else -1], *cells]
    if is_single:
        return ops.transpose(h_TU, (1, 0, 2))[:, None], [state[:, None] for state in last_states]
    return ops.transpose(h_TU, (2, 1, 0, 3)), [ops.transpose(state, (1, 0, 2)) for state in last_states]


def _layer_function(cell: Cell, go_backwards: bool, products: Products) -> Callable[..., Tensors]:
    """Return a layer as a function with a gradient of its own: `recurrent`, on time-major arrays.

    It maps inputs, kernel, recurrent kernel, bias and initial states to the states of all steps, (T, ., U),
    and an LSTM's last cell.
    """

    def run(
        x_TF: Tensor, kernel: Tensor, recurrent: Tensor, bias: Tensor, *initial_states: Tensor
    ) -> tuple[Tensors, Any]:
        z_TG = _projected(x_TF, kernel, products)
        zero_U = ops.zeros_like(z_TG[0, ..., : recurrent.shape[-2]])
        start = initial_states or (zero_U,) * cell.num_states
        like = cell.outputs_like(z_TG[0], zero_U)
        step = cell.forward(recurrent, bias, products)
        (_, *cells), saved = scan(
            step, start, (z_TG,), like, is_reversed=go_backwards, steps_per_trip=cell.steps_per_trip
        )
        h_TU = saved[-1]

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> Tensors:
            # JAX passes the gradients of all results as one structure, TensorFlow as arguments.
            after_TU = keras.tree.flatten(args if upstream is None else upstream)
            initial_1U = initial_states[0][None] if initial_states else ops.zeros_like(h_TU[:1])
            parts = [h_TU[1:], initial_1U] if go_backwards else [initial_1U, h_TU[:-1]]
            before_TU = ops.concatenate(parts, axis=0)
            dz_TG, dr_TG, dbias, dinitial = cell.backward(
                saved, before_TU, after_TU, recurrent, go_backwards, products=products
            )
            dkernel, drecurrent = _kernel_gradients(x_TF, before_TU, dz_TG, dr_TG, products)
            dx_TF = _input_gradient(dz_TG, kernel, products)
            # The zeros of a layer without initial states are no argument, so they have no gradient.
            return (dx_TF, dkernel, drecurrent, dbias, *(dinitial if initial_states else ()))

        return (h_TU, *cells), gradient

    return cast(Callable[..., Tensors], ops.custom_gradient(run))


def lstm_gates(
    h_U: Tensor, z_G: Tensor, recurrent: Tensor, bias_G: Tensor, products: Products
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gates of an LSTM in one step: input, forget, candidate, output.

    Args:
        h_U: The state before.
        z_G: Product of the inputs with the kernel.
        recurrent: Recurrent kernel.
        bias_G: Bias.
        products: How products are computed.
    """
    z_G = z_G + products.matmul(h_U, recurrent, "loop") + bias_G
    i_U, f_U, g_U, o_U = ops.split(z_G, LSTM_GATES, axis=-1)
    i_U = ops.sigmoid(i_U)
    f_U = ops.sigmoid(f_U)
    g_U = tanh(g_U)
    o_U = ops.sigmoid(o_U)
    return i_U, f_U, g_U, o_U


def _lstm_step(recurrent: Tensor, bias: Tensor, products: Products) -> Step:
    bias_G = ops.expand_dims(bias, axis=-2)

    def step(carry: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        h_U, c_U = carry
        (z_G,) = inputs
        i_U, f_U, g_U, o_U = lstm_gates(h_U, z_G, recurrent, bias_G, products)
        next_U = f_U * c_U + i_U * g_U
        h_U = o_U * tanh(next_U)
        return (h_U, next_U), (ops.concatenate([i_U, f_U, g_U, o_U], axis=-1), c_U, h_U)

    return step


def _lstm_backward(
    saved: Tensors,
    before_TU: Tensor,
    after_TU: Sequence[Tensor],
    recurrent: Tensor,
    go_backwards: bool,
    *,
    products: Products,
) -> Gradients:
    gates_TG, c_TU, _ = saved
    dh_TU, *dcells = after_TU
    recurrent_T = ops.swapaxes(recurrent, -1, -2)

    def step(carry: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        dh_U, dc_U, sum_G = carry
        gates_G, c_U, upstream_U = inputs
        i_U, f_U, g_U, o_U = ops.split(gates_G, LSTM_GATES, axis=-1)
        tanh_U = tanh(f_U * c_U + i_U * g_U)
        dh_U = dh_U + upstream_U
        dc_U = dc_U + dh_U * o_U * (1 - tanh_U * tanh_U)
        di_U = dc_U * g_U * i_U * (1 - i_U)
        df_U = dc_U * c_U * f_U * (1 - f_U)
        dg_U = dc_U * i_U * (1 - g_U * g_U)
        do_U = dh_U * tanh_U * o_U * (1 - o_U)
        dz_G = ops.concatenate([di_U, df_U, dg_U, do_U], axis=-1)
        before = (products.matmul(dz_G, recurrent_T, "loop"), dc_U * f_U, sum_G + ops.cast(dz_G, "float32"))
        return before, (dz_G,)

    # The gradient of the bias is summed in the loop: afterwards XLA would sum the rows of all steps as a tree
    # of windows, which is slower.
    last = (ops.zeros_like(dh_TU[0]), *dcells, ops.zeros_like(gates_TG[0], dtype="float32"))
    inputs = (gates_TG, c_TU, dh_TU)
    first, (dz_TG,) = scan(step, last, inputs, (gates_TG[0],), is_reversed=not go_backwards)
    *dinitial, sum_G = first
    dbias = ops.cast(ops.sum(sum_G, axis=-2), dz_TG.dtype)
    return dz_TG, dz_TG, dbias, tuple(dinitial)


def gru_gates(
    h_U: Tensor, z_G: Tensor, recurrent: Tensor, recurrent_bias_G: Tensor, products: Products
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gates of a GRU in one step: update, reset, candidate, and the candidate's recurrent part.

    Args:
        h_U: The state before.
        z_G: Product of the inputs with the kernel, with its bias.
        recurrent: Recurrent kernel.
        recurrent_bias_G: Bias of the product with it.
        products: How products are computed.
    """
    update_U, reset_U, own_U = ops.split(z_G, GRU_GATES, axis=-1)
    r_G = products.matmul(h_U, recurrent, "loop") + recurrent_bias_G
    update_r_U, reset_r_U, own_r_U = ops.split(r_G, GRU_GATES, axis=-1)
    update_U = ops.sigmoid(update_U + update_r_U)
    reset_U = ops.sigmoid(reset_U + reset_r_U)
    own_U = tanh(own_U + reset_U * own_r_U)
    return update_U, reset_U, own_U, own_r_U


def _gru_step(recurrent: Tensor, bias: Tensor, products: Products) -> Step:
    input_bias_G = ops.expand_dims(bias[..., 0, :], axis=-2)
    recurrent_bias_G = ops.expand_dims(bias[..., 1, :], axis=-2)

    def step(carry: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        (h_U,) = carry
        (z_G,) = inputs
        update_U, reset_U, own_U, own_r_U = gru_gates(
            h_U, z_G + input_bias_G, recurrent, recurrent_bias_G, products
        )
        h_U = update_U * h_U + (1 - update_U) * own_U
        return (h_U,), (ops.concatenate([update_U, reset_U, own_U], axis=-1), own_r_U, h_U)

    return step


def _gru_backward(
    saved: Tensors,
    before_TU: Tensor,
    after_TU: Sequence[Tensor],
    recurrent: Tensor,
    go_backwards: bool,
    *,
    products: Products,
) -> Gradients:
    gates_TG, own_r_TU, _ = saved
    (dh_TU,) = after_TU
    recurrent_T = ops.swapaxes(recurrent, -1, -2)
    zero_U = ops.zeros_like(dh_TU[0])

    def step(carry: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        (dh_U,) = carry
        gates_G, own_r_U, before_U, upstream_U = inputs
        update_U, reset_U, own_U = ops.split(gates_G, GRU_GATES, axis=-1)
        dh_U = dh_U + upstream_U
        down_U = dh_U * (1 - update_U) * (1 - own_U * own_U)
        dupdate_U = dh_U * (before_U - own_U) * update_U * (1 - update_U)
        dreset_U = down_U * own_r_U * reset_U * (1 - reset_U)
        dr_G = ops.concatenate([dupdate_U, dreset_U, down_U * reset_U], axis=-1)
        dbefore_U = dh_U * update_U + products.matmul(dr_G, recurrent_T, "loop")
        return (dbefore_U,), (dr_G, down_U)

    inputs = (gates_TG, own_r_TU, before_TU, dh_TU)
    like = (gates_TG[0], zero_U)
    dinitial, (dr_TG, down_TU) = scan(step, (zero_U,), inputs, like, is_reversed=not go_backwards)
    dz_TG = ops.concatenate([dr_TG[..., : 2 * down_TU.shape[-1]], down_TU], axis=-1)
    dbias = ops.stack([ops.sum(dz_TG, axis=(0, -2)), ops.sum(dr_TG, axis=(0, -2))], axis=-2)
    return dz_TG, dr_TG, dbias, dinitial


def _gates_and_two_states(gates_G: Tensor, state_U: Tensor) -> Tensors:
    return gates_G, state_U, state_U


LSTM = Cell(2, _lstm_step, _lstm_backward, _gates_and_two_states)
GRU = Cell(1, _gru_step, _gru_backward, _gates_and_two_states)


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent; in float32 by the sigmoid, within 1.2e-7: faster on a CPU."""
    if keras.backend.standardize_dtype(x.dtype) != "float32":
        return ops.tanh(x)
    return 2.0 * ops.sigmoid(2.0 * x) - 1.0


def _projected(x_TF: Tensor, kernel: Tensor, products: Products) -> Tensor:
    """Return x @ kernel for all steps in one product, shape (T, ., G)."""
    if len(kernel.shape) == 2:
        flat = products.matmul(ops.reshape(x_TF, (-1, x_TF.shape[-1])), kernel, "forward")
        return ops.reshape(flat, (x_TF.shape[0], -1, kernel.shape[-1]))
    return products.einsum("tmbf,mfg->tmbg", x_TF, kernel, "forward")


def _input_gradient(dz_TG: Tensor, kernel: Tensor, products: Products) -> Tensor:
    if len(kernel.shape) == 2:
        dz_NG = ops.reshape(dz_TG, (-1, dz_TG.shape[-1]))
        flat = products.einsum("ng,fg->nf", dz_NG, kernel, "input_gradient")
        return ops.reshape(flat, (dz_TG.shape[0], -1, kernel.shape[0]))
    return products.einsum("tmbg,mfg->tmbf", dz_TG, kernel, "input_gradient")


def _kernel_gradients(
    x_TF: Tensor, before_TU: Tensor, dz_TG: Tensor, dr_TG: Tensor, products: Products
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the kernel and of the recurrent kernel.

    Where both have the same upstream gradient and inputs are few, they are one product: by itself, a product
    of a few rows takes twice as long on a CPU for the work it does.
    """
    num_inputs = x_TF.shape[-1]
    if dr_TG is not dz_TG or num_inputs > before_TU.shape[-1]:
        return _weight_gradient(x_TF, dz_TG, products), _weight_gradient(before_TU, dr_TG, products)
    gradient = _weight_gradient(ops.concatenate([x_TF, before_TU], axis=-1), dz_TG, products)
    return gradient[..., :num_inputs, :], gradient[..., num_inputs:, :]


def _weight_gradient(x_TF: Tensor, dz_TG: Tensor, products: Products) -> Tensor:
    if len(x_TF.shape) == 3:
        # Written as one product: otherwise XLA stores a transposed copy, for which it computes `x_TF` again.
        x_NF = ops.reshape(x_TF, (-1, x_TF.shape[-1]))
        dz_NG = ops.reshape(dz_TG, (-1, dz_TG.shape[-1]))
        return products.einsum("nf,ng->fg", x_NF, dz_NG, "weight_gradient")
    return products.einsum("tmbf,tmbg->mfg", x_TF, dz_TG, "weight_gradient")


def scan(
    step: Step,
    carry: Tensors,
    inputs: Tensors,
    outputs_like: Tensors,
    *,
    is_reversed: bool,
    steps_per_trip: int = 1,
) -> tuple[Tensors, Tensors]:
    """Run `step(carry, inputs at t) -> (carry, outputs at t)` over the first axis, or from its end.

    Args:
        step: Takes and returns tuples.
        carry: The carry of the first step.
        inputs: Arrays with time first, (T, ...).
        outputs_like: Arrays of the shape and dtype of each of one step's outputs.
        is_reversed: Whether to begin at the end of time.
        steps_per_trip: Steps of one trip of the loop, see `_scan_in_trips`.

    Returns:
        The last carry, and the outputs, time first, each at the index of its inputs.
    """
    if steps_per_trip > 1:
        return _scan_in_trips(
            step, carry, inputs, outputs_like, is_reversed=is_reversed, steps_per_trip=steps_per_trip
        )
    if keras.backend.backend() != "tensorflow":
        carry, outputs = ops.scan(step, carry, inputs, reverse=is_reversed)
        return carry, tuple(outputs)
    # keras.ops.scan on TensorFlow requires outputs shaped like the carry, and ours are not.
    import tensorflow as tf  # noqa: PLC0415 - only the active backend is imported

    num_steps = inputs[0].shape[0]
    arrays = [tf.TensorArray(like.dtype, num_steps, element_shape=like.shape) for like in outputs_like]
    # A single input passes its memory to the output of its shape, so that no array of zeros is needed. With
    # several inputs XLA would copy the whole array at every step: the next carry may be computed after the
    # output.
    is_overwritten = len(inputs) == 1 and inputs[0].shape[1:] == outputs_like[0].shape
    if is_overwritten:
        arrays[0] = arrays[0].unstack(inputs[0])

    def body(count: Tensor, carry: Tensors, arrays: list[Any]) -> tuple[Any, ...]:
        t = num_steps - 1 - count if is_reversed else count
        inputs_t = (arrays[0].read(t),) if is_overwritten else tuple(array[t] for array in inputs)
        carry, outputs = step(carry, inputs_t)
        written = [array.write(t, output) for array, output in zip(arrays, outputs, strict=True)]
        return count + 1, carry, written

    start = (tf.constant(0), carry, arrays)
    _, carry, arrays = tf.while_loop(
        lambda count, *_: count < num_steps, body, start, maximum_iterations=num_steps
    )
    return carry, tuple(array.stack() for array in arrays)


def _scan_in_trips(
    step: Step,
    carry: Tensors,
    inputs: Tensors,
    outputs_like: Tensors,
    *,
    is_reversed: bool,
    steps_per_trip: int,
) -> tuple[Tensors, Tensors]:
    """Do what `scan` does with several steps a trip: a trip counts once, and stores its outputs together.

    Steps that do not fill a trip come first, without a loop. Where one trip would hold all steps, there is no
    loop at all.
    """

    def trip(carry: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        times = range(inputs[0].shape[0])
        outputs_by_time: dict[int, Tensors] = {}
        for t in reversed(times) if is_reversed else times:
            carry, outputs_by_time[t] = step(carry, tuple(array[t] for array in inputs))
        num_outputs = len(outputs_by_time[0])
        stacked = [ops.stack([outputs_by_time[t][place] for t in times]) for place in range(num_outputs)]
        return carry, tuple(stacked)

    num_steps = inputs[0].shape[0]
    if num_steps <= steps_per_trip:
        return trip(carry, inputs)
    num_trips, num_before = divmod(num_steps, steps_per_trip)
    begin = 0 if is_reversed else num_before
    end = begin + num_trips * steps_per_trip
    outputs_before: Tensors = ()
    if num_before:
        span = slice(end, None) if is_reversed else slice(0, begin)
        carry, outputs_before = trip(carry, tuple(array[span] for array in inputs))
    by_trip = tuple(
        ops.reshape(array[begin:end], (num_trips, steps_per_trip, *array.shape[1:])) for array in inputs
    )
    like = tuple(ops.stack([output] * steps_per_trip) for output in outputs_like)
    carry, stacked = scan(trip, carry, by_trip, like, is_reversed=is_reversed)
    outputs = tuple(ops.reshape(array, (-1, *array.shape[2:])) for array in stacked)
    if not num_before:
        return carry, outputs
    joined = []
    for output, output_before in zip(outputs, outputs_before, strict=True):
        parts = (output, output_before) if is_reversed else (output_before, output)
        joined.append(ops.concatenate(parts, axis=0))
    return carry, tuple(joined)
