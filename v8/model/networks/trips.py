"""LSTM and GRU for a GPU: loops of `v8.model.networks.recurrence` with little more than two kernels a step.

A GPU waits 2.5 to 5 us for every kernel that is launched, hardly less than a step of a recurrent layer
computes. Written as for a CPU, a step is six to seven kernels: a product, one or two of elementwise work,
three that store outputs and one that counts. Here a trip of the loop takes several steps and stores and
counts once, and each step is

* forward, a product and one kernel, which computes the states and, for the backward loop, slopes: the factors
  by which the gradients of state and cell become those of the gates. The backward loop then only multiplies
  and adds, which XLA fuses into one kernel; it would give a hyperbolic tangent a kernel of its own.
* backward, one kernel, whose results are in one array, and a product that reads all of it. Rows of zeros in
  the recurrent kernel cancel the part that the product does not need: a slice would be one more kernel.

Gradients of biases are sums over the stored gradients, one kernel a layer.

Shape legend as in `v8.model.networks.recurrence`; S counts slopes.
"""

from collections.abc import Callable, Sequence

from keras import ops

from v8.base.hardware import backend, backend_name
from v8.model.networks.products import Products
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

    def backward_in_trips(
        saved: Tensors,
        before_TU: Tensor,
        after_TU: Sequence[Tensor],
        recurrent: Tensor,
        go_backwards: bool,
        *,
        products: Products,
    ) -> Gradients:
        return backward(
            saved,
            before_TU,
            after_TU,
            recurrent,
            go_backwards,
            products=products,
            steps_per_trip=steps_per_trip,
        )

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
