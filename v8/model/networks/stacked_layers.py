"""Stacked twins: layers that do for many models, along a model axis, what a stock Keras layer does for one.

Every weight of a twin has the shape of the stock layer's weight with the model axis in front, in the order of
the stock layer's `weights`, so that stacking and unstacking are one `np.stack` and one index. Twins run only
inside a fleet; they are never saved. A twin for another layer is a class that is built from the stock layer
and marked with `twin_of`.

Shape legend: B batch, M model, T time, F features, D channels, U units, G gates times units, a dot for any
further axes.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import keras
import numpy as np
from keras import ops

from v8.base.errors import SeriesError
from v8.model.networks.products import FLOAT32, Products
from v8.model.networks.recurrence import GRU, GRU_GATES, LSTM, LSTM_GATES, Cell, recurrent

Layer: TypeAlias = Any
Tensor: TypeAlias = Any
Shape: TypeAlias = tuple[int | None, ...]
Make = TypeVar("Make", bound=Callable[..., Layer])
NUM_ROWS_OF_ONES = 16  # enough for XLA to multiply by them as a matrix
TWINS: dict[type[Layer], Callable[..., Layer]] = {}
"""By the class of a stock layer: what builds its twin."""


def twin_of(kind: type[Layer]) -> Callable[[Make], Make]:
    """Register a class or function as the twin of a kind of stock layer.

    It is called with the stock layer and the keyword arguments of `StackedLayer`, and raises ValueError if an
    option of the layer is not supported.
    """

    def register(make: Make) -> Make:
        TWINS[kind] = make
        return make

    return register


class StackedLayer(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types
    """Base of all twins: it holds the weights of a built stock layer for each model, zero until `load`."""

    copied_attributes: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that are copied from the stock layer."""
    required_options: ClassVar[Mapping[str, object]] = {}
    """Options that the stock layer must have, with their values."""
    products: Products = FLOAT32
    """Which of its products have factors in 16 bits; `v8.model.networks.networks.stack` sets it for a
    fleet."""

    def __init__(self, stock: Layer, *, num_models: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require_options(stock, self.required_options)
        for name in self.copied_attributes:
            setattr(self, name, getattr(stock, name))
        self.num_models = num_models
        # In the order of the stock layer's `weights`, each with the model axis in front.
        self.stacked_weights = [
            self.add_weight(name=weight.name, shape=(num_models, *weight.shape), initializer="zeros")
            for weight in getattr(stock, "weights", ())  # an operation has none
        ]

    def load(self, originals: Sequence[Layer]) -> None:
        """Copy the weights of the stock layers, one for each model."""
        weights_by_model = [getattr(original, "weights", ()) for original in originals]
        for place, variable in enumerate(self.stacked_weights):
            arrays = [ops.convert_to_numpy(weights[place]) for weights in weights_by_model]
            variable.assign(np.stack(arrays))


class SingleModelLayer(StackedLayer):
    """The twin of any layer or operation of Keras in a fleet of one model; a fleet of several needs its own.

    It calls the layer without the model axis.
    """

    def __init__(self, stock: Layer, **common: Any) -> None:
        if getattr(stock, "non_trainable_weights", ()):
            raise SeriesError(
                where=f"layer {stock.name}",
                rule="the layers of a network may have trainable weights only",
                got=f"a {type(stock).__name__}, which has others, such as moving averages",
                fix="Use another layer, such as LayerNormalization, in the family",
            )
        super().__init__(stock, **common)
        self._states = [
            self.add_weight(
                name=f"state_{place}",
                shape=(1, *state.shape),
                dtype=state.dtype,
                initializer="zeros",
                trainable=False,
            )
            for place, state in enumerate(_states_of(stock))
        ]
        # Keras would track a layer that is an attribute as a part of this one; a partial hides it.
        self._call_stock = partial(_call_stock, stock)
        self._takes_training = "training" in inspect.signature(stock.call).parameters
        self._rebuilders: list[Callable[[Sequence[Tensor]], Any]] = []

    def load(self, originals: Sequence[Layer]) -> None:
        """Copy the weights and the states, such as those of random draws."""
        super().load(originals)
        for variable, state in zip(self._states, _states_of(originals[0]), strict=True):
            variable.assign(ops.convert_to_numpy(state)[None])

    def connected(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """Call it in the graph as the layer is called, with positional and named arguments.

        Keras passes `call` tensors only, so the structure of each call's arguments is remembered, and tensors
        are put back into it by `call`.
        """
        leaves = keras.tree.flatten(arguments)
        tensor_places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, keras.KerasTensor)]

        def rebuilt(tensors: Sequence[Tensor]) -> Any:
            filled = list(leaves)
            for place, tensor in zip(tensor_places, tensors, strict=True):
                filled[place] = tensor
            return keras.tree.pack_sequence_as(arguments, filled)

        self._rebuilders.append(rebuilt)
        tensors = [leaves[place] for place in tensor_places]
        return self(tensors, call_number=len(self._rebuilders) - 1)

    def call(self, tensors: Sequence[Tensor], call_number: int = 0, training: bool = False) -> Any:
        """Compute for the one model what the layer computes."""
        unstacked = [ops.squeeze(tensor, axis=1) for tensor in tensors]
        positional, named = self._rebuilders[call_number](unstacked)
        weights = [ops.squeeze(weight, axis=0) for weight in self.stacked_weights]
        states = [ops.squeeze(state, axis=0) for state in self._states]
        if self._takes_training:
            named = {**named, "training": training}
        outputs, new_states = self._call_stock(weights, states, positional, named)
        for variable, state in zip(self._states, new_states, strict=True):
            variable.assign(ops.expand_dims(state, axis=0))
        return keras.tree.map_structure(lambda output: ops.expand_dims(output, axis=1), outputs)


def _states_of(stock: Layer) -> Sequence[Any]:
    """Return the variables that a call of a layer changes, such as the states of its random draws."""
    return getattr(stock, "non_trainable_variables", ())


def _call_stock(
    stock: Layer,
    weights: Sequence[Tensor],
    states: Sequence[Tensor],
    positional: Sequence[Any],
    named: Mapping[str, Any],
) -> tuple[Any, Sequence[Tensor]]:
    """Call a layer or operation with these weights and states; return its outputs and its new states."""
    if isinstance(stock, keras.layers.Layer):
        result: tuple[Any, Sequence[Tensor]] = stock.stateless_call(weights, states, *positional, **named)
        return result
    return stock(*positional, **named), ()


def _dense(stock: Layer, weights: Sequence[Tensor], x: Tensor, products: Products) -> Tensor:
    axes = "acefghijklnopqrstvwxyz"[: len(x.shape) - 3]
    kernel, bias = _kernel_and_bias(weights)
    return stock.activation(_multiplied(products, f"bm{axes}d,mdu->bm{axes}u", x, kernel, bias))


def _einsum_dense(stock: Layer, weights: Sequence[Tensor], x: Tensor, products: Products) -> Tensor:
    kernel, bias = _kernel_and_bias(weights)
    return stock.activation(_multiplied(products, stacked_equation(stock.equation), x, kernel, bias))


def _kernel_and_bias(weights: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    return weights[0], weights[1] if len(weights) > 1 else None


COMPUTED: Final[Mapping[type[Layer], Callable[[Layer, Sequence[Tensor], Tensor, Products], Tensor]]] = {
    keras.layers.Cropping1D: lambda stock, _, x, __: x[
        :, :, stock.cropping[0] : x.shape[2] - stock.cropping[1]
    ],
    keras.layers.Dense: _dense,
    keras.layers.EinsumDense: _einsum_dense,
    keras.layers.GlobalAveragePooling1D: lambda stock, _, x, __: ops.mean(x, axis=2, keepdims=stock.keepdims),
    keras.layers.RepeatVector: lambda stock, _, x, __: ops.repeat(x[:, :, None], stock.n, axis=2),
    keras.layers.Reshape: lambda stock, _, x, __: ops.reshape(x, (-1, x.shape[1], *stock.output.shape[1:])),
}
"""Twins that need no class of their own, by the class of the stock layer. A function maps the stock layer,
the stacked weights, the input, (B, M, ...), and the formats of products to the output of the twin."""


class _ComputedLayer(StackedLayer):
    """Twin of a layer of `COMPUTED`."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(stock, **common)
        # Keras would track a layer that is an attribute as a part of this one; a partial hides it.
        self._computed = partial(COMPUTED[type(stock)], stock)

    def call(self, x: Tensor) -> Tensor:
        return self._computed(self.stacked_weights, x, self.products)


TWINS |= dict.fromkeys(COMPUTED, _ComputedLayer)


@twin_of(keras.layers.LayerNormalization)
class StackedLayerNormalization(StackedLayer):
    """Twin of keras.layers.LayerNormalization over the last axis."""

    copied_attributes = ("epsilon", "center", "scale")

    def __init__(self, stock: Layer, **common: Any) -> None:
        if stock.axis not in (-1, [-1], [len(stock.get_build_config()["input_shape"]) - 1]):
            raise ValueError(
                f"{stock.name}: a stacked LayerNormalization needs the last axis; got {stock.axis}. "
                "Set axis=-1."
            )
        super().__init__(stock, **common)

    def call(self, x: Tensor) -> Tensor:
        """Normalise in float32, as the stock layer does, and return the layer's dtype."""
        x_32 = ops.cast(x, "float32")
        weights = iter(self.stacked_weights)
        mean, variance = ops.moments(x_32, axes=-1, keepdims=True)
        y = (x_32 - mean) * ops.rsqrt(variance + self.epsilon)
        if self.scale:
            scale = ops.cast(next(weights), "float32")
            y = _on_rows(ops.multiply, lambda dy, y, scale: (dy * scale, dy * y), y, scale)
        if self.center:
            y = _shifted(y, ops.cast(next(weights), "float32"))
        return ops.cast(y, self.compute_dtype)


@twin_of(keras.layers.Dropout)
class StackedDropout(StackedLayer):
    """Twin of keras.layers.Dropout whose masks depend only on a model's own seed and number of draws.

    Neither the other models of the fleet nor a model's place in it changes its masks, and both backends have
    the same masks. The stock layer's masks differ: Keras draws them from its own generators.
    """

    copied_attributes = ("rate", "noise_shape")

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(stock, **common)
        self.seeds = self._counter("seeds")
        self.draws = self._counter("draws")

    def _counter(self, name: str) -> keras.Variable:
        return self.add_weight(
            name=name, shape=(self.num_models,), dtype="int32", initializer="zeros", trainable=False
        )

    def load(self, originals: Sequence[Layer]) -> None:
        """Copy the seeds of the stock layers, one for each model, and start from the first draw."""
        self.seeds.assign([int(original.seed or 0) % 2**31 for original in originals])
        self.draws.assign([0] * self.num_models)

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """Drop in training, pass through otherwise."""
        if not training or not self.rate:
            return x
        batch, _, *rest = ops.shape(x)
        sizes = (batch, *rest)
        noise_shape = self.noise_shape or sizes
        mask_shape = tuple(
            size if fixed is None else fixed for size, fixed in zip(sizes, noise_shape, strict=True)
        )
        share_BM = uniform_by_model(self.seeds, self.draws, mask_shape)
        self.draws.assign(self.draws + 1)
        factor = ops.where(share_BM >= self.rate, 1.0 / (1.0 - self.rate), 0.0)
        return x * ops.cast(factor, x.dtype)


@twin_of(keras.layers.AdditiveAttention)
class StackedAdditiveAttention(StackedLayer):
    """Twin of keras.layers.AdditiveAttention without masks and dropout (Bahdanau et al. 2015)."""

    required_options: ClassVar = {"dropout": 0}

    def call(self, inputs: list[Tensor]) -> Tensor:
        """Weigh the values (B, M, S, D) by query (B, M, T, D) and key (B, M, S, D)."""
        query = inputs[0]
        value = inputs[1]
        key = inputs[2] if len(inputs) > 2 else value
        terms = ops.tanh(query[:, :, :, None] + key[:, :, None])
        for scale_MD in self.stacked_weights:  # none without `use_scale`
            terms = terms * _aligned(scale_MD, terms)
        weights = ops.softmax(ops.sum(terms, axis=-1), axis=-1)
        return self.products.differentiable("bmts,bmsd->bmtd", weights, value, is_right_weight=False)


@twin_of(keras.layers.MultiHeadAttention)
class StackedMultiHeadAttention(StackedLayer):
    """Twin of keras.layers.MultiHeadAttention without masks and dropout (Vaswani et al. 2017)."""

    copied_attributes = ("key_dim", "use_bias")
    required_options: ClassVar = {"dropout": 0}

    def call(self, query: Tensor, value: Tensor, key: Tensor | None = None) -> Tensor:
        """Attend from query (B, M, T, D) to key and value (B, M, S, D)."""
        to_heads = "bmtd,mdhk->bmthk"
        # Four dense layers: of the query, the key, the value and the output.
        step = 2 if self.use_bias else 1
        (q_kernel, q_bias), (k_kernel, k_bias), (v_kernel, v_bias), (out_kernel, out_bias) = (
            _kernel_and_bias(self.stacked_weights[place : place + step]) for place in range(0, 4 * step, step)
        )
        q = _multiplied(self.products, to_heads, query, q_kernel, q_bias) / float(np.sqrt(self.key_dim))
        k = _multiplied(self.products, to_heads, value if key is None else key, k_kernel, k_bias)
        v = _multiplied(self.products, to_heads, value, v_kernel, v_bias)
        scores = self.products.differentiable("bmthk,bmshk->bmhts", q, k, is_right_weight=False)
        weights = ops.softmax(scores, axis=-1)
        y = self.products.differentiable("bmhts,bmshk->bmthk", weights, v, is_right_weight=False)
        return _multiplied(self.products, "bmthk,mhkd->bmtd", y, out_kernel, out_bias)


CELL_OPTIONS: Mapping[str, object] = {
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
    "use_bias": True,
    "dropout": 0,
    "recurrent_dropout": 0,
}
"""Options that cells and recurrent layers must have."""


@twin_of(keras.layers.LSTM)
class StackedLSTM(StackedLayer):
    """Twin of keras.layers.LSTM with default activations.

    With `go_backwards` the outputs are in the order of reading, from the end of time, as in Keras.
    """

    cell: Cell = LSTM
    copied_attributes: ClassVar[tuple[str, ...]] = (
        "units",
        "return_sequences",
        "return_state",
        "go_backwards",
    )
    required_options: ClassVar = {**CELL_OPTIONS, "stateful": False}

    def call(self, x_BMTF: Tensor, initial_state: Sequence[Tensor] = ()) -> Any:
        """Run every model over its windows, from zero or from states (B, M, U)."""
        y_BMTU, last_states = recurrent(
            self.cell,
            x_BMTF,
            self.stacked_weights,
            go_backwards=self.go_backwards,
            initial_states=initial_state,
            products=self.products,
        )
        y_BMTU = ops.flip(y_BMTU, axis=2) if self.go_backwards else y_BMTU
        y = y_BMTU if self.return_sequences else last_states[0]
        return [y, *last_states] if self.return_state else y

    def compute_output_shape(self, input_shape: Shape) -> Any:
        """Drop features, and time unless sequences are returned; states follow."""
        y = (*input_shape[: 3 if self.return_sequences else 2], self.units)
        state = (*input_shape[:2], self.units)
        return [y, *[state] * self.cell.num_states] if self.return_state else y


@twin_of(keras.layers.GRU)
class StackedGRU(StackedLSTM):
    """Twin of keras.layers.GRU with `reset_after` and default activations."""

    cell = GRU
    required_options: ClassVar = {**StackedLSTM.required_options, "reset_after": True}


@twin_of(keras.layers.Bidirectional)
class StackedBidirectional(StackedLSTM):
    """Twin of keras.layers.Bidirectional with `merge_mode="concat"`: (B, M, T, 2U) or (B, M, 2U).

    `are_directions_merged` runs both directions as 2M models in one loop. It halves the number of launches
    on a GPU; it is slower on a CPU, where two kernels do not fit the cache of a core.
    """

    copied_attributes = ("return_sequences",)
    required_options: ClassVar = {"merge_mode": "concat"}
    return_state = False

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(stock, **common)
        forward = stock.forward_layer
        backward = stock.backward_layer
        kind = StackedLSTM if isinstance(forward, keras.layers.LSTM) else StackedGRU
        for direction in (forward, backward):
            require_options(
                direction, {**kind.required_options, "return_state": False, "units": forward.units}
            )
        self.cell = kind.cell
        self.units = 2 * forward.units
        self.are_directions_merged = False

    def call(self, x_BMTF: Tensor) -> Tensor:  # type: ignore[override]  # its initial states are always zero
        """Run both directions."""
        forward_weights = self.stacked_weights[:3]
        backward_weights = self.stacked_weights[3:]

        def run(x_BMTF: Tensor, weights: Sequence[Tensor], *, go_backwards: bool = False) -> Tensor:
            y_BMTU, last_states = recurrent(
                self.cell, x_BMTF, weights, go_backwards=go_backwards, products=self.products
            )
            return y_BMTU if self.return_sequences else last_states[0]

        if not self.are_directions_merged:
            forward = run(x_BMTF, forward_weights)
            backward = run(x_BMTF, backward_weights, go_backwards=True)
            return ops.concatenate([forward, backward], axis=-1)
        # The backward direction is M more models, which read the flipped window forwards.
        both_x = ops.concatenate([x_BMTF, ops.flip(x_BMTF, axis=2)], axis=1)
        both_weights = [
            ops.concatenate(pair, axis=0) for pair in zip(forward_weights, backward_weights, strict=True)
        ]
        forward, backward = ops.split(run(both_x, both_weights), 2, axis=1)
        if self.return_sequences:
            backward = ops.flip(backward, axis=2)
        return ops.concatenate([forward, backward], axis=-1)


@twin_of(keras.layers.LSTMCell)
class StackedLSTMCell(StackedLayer):
    """Twin of keras.layers.LSTMCell: one step from (B, M, F) and the states (B, M, U)."""

    required_options = CELL_OPTIONS

    def call(self, x_BMF: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Compute the step."""
        kernel, recurrent_kernel, bias = self.stacked_weights
        h_BMU, c_BMU = states
        z_BMG = _multiplied(self.products, "bmf,mfg->bmg", x_BMF, kernel, bias)
        z_BMG = z_BMG + _multiplied(self.products, "bmu,mug->bmg", h_BMU, recurrent_kernel)
        i, f, g, o = ops.split(z_BMG, LSTM_GATES, axis=-1)
        c_BMU = ops.sigmoid(f) * c_BMU + ops.sigmoid(i) * ops.tanh(g)
        h_BMU = ops.sigmoid(o) * ops.tanh(c_BMU)
        return h_BMU, [h_BMU, c_BMU]


@twin_of(keras.layers.GRUCell)
class StackedGRUCell(StackedLayer):
    """Twin of keras.layers.GRUCell with `reset_after`: one step from (B, M, F) and the state (B, M, U)."""

    required_options: ClassVar = {**CELL_OPTIONS, "reset_after": True}

    def call(self, x_BMF: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Compute the step."""
        kernel, recurrent_kernel, bias = self.stacked_weights
        (h_BMU,) = states
        z_BMG = _multiplied(self.products, "bmf,mfg->bmg", x_BMF, kernel, bias[:, 0])
        r_BMG = _multiplied(self.products, "bmu,mug->bmg", h_BMU, recurrent_kernel, bias[:, 1])
        update, reset, own = ops.split(z_BMG, GRU_GATES, axis=-1)
        update_r, reset_r, own_r = ops.split(r_BMG, GRU_GATES, axis=-1)
        update = ops.sigmoid(update + update_r)
        own = ops.tanh(own + ops.sigmoid(reset + reset_r) * own_r)
        h_BMU = update * h_BMU + (1 - update) * own
        return h_BMU, [h_BMU]


def require_options(stock: Layer, options: Mapping[str, object]) -> None:
    """Raise ValueError if an option of a layer differs from what its twin supports."""
    for option, required in options.items():
        value = getattr(stock, option)
        value = getattr(value, "__name__", value)
        if value != required:
            raise ValueError(
                f"{stock.name}: a stacked {type(stock).__name__} needs {option} = {required!r}; "
                f"got {value!r}. Set it so, or add it to the twin."
            )


def stacked_equation(equation: str) -> str:
    """Put a model letter into an EinsumDense equation.

    >>> stacked_equation("bhd,dc->bhc")
    'bAhd,Adc->bAhc'
    """
    inputs, output = equation.replace(" ", "").split("->")
    x, kernel = inputs.split(",")
    return f"{x[0]}A{x[1:]},A{kernel}->{output[0]}A{output[1:]}"


def uniform_by_model(seeds_M: Tensor, draws_M: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Draw numbers that depend only on a model's seed, its number of draws so far, and the position.

    The hash is Chris Wellons' lowbias32 (hash-prospector, public domain), applied twice over a key.

    Args:
        seeds_M: Seeds, shape (M,), int32.
        draws_M: Draws so far, shape (M,), int32.
        shape: Shape of one model's numbers, batch first.

    Returns:
        Numbers uniform in [0, 1), float32, of that shape with M after the batch.
    """
    key_M = _mixed(ops.cast(seeds_M, "uint32") ^ _mixed(ops.cast(draws_M, "uint32") + _constant(0x9E3779B9)))
    position_N = ops.cast(ops.arange(int(np.prod(shape)), dtype="int32"), "uint32")
    bits_MN = _mixed(_mixed(position_N[None] ^ key_M[:, None]) + key_M[:, None])
    share_MN = ops.cast(ops.right_shift(bits_MN, _constant(8)), "float32") * np.float32(2.0**-24)
    return ops.swapaxes(ops.reshape(share_MN, (-1, *shape)), 0, 1)


def _mixed(bits: Tensor) -> Tensor:
    bits = (bits ^ ops.right_shift(bits, _constant(16))) * _constant(0x7FEB352D)
    bits = (bits ^ ops.right_shift(bits, _constant(15))) * _constant(0x846CA68B)
    return bits ^ ops.right_shift(bits, _constant(16))


def _constant(value: int) -> Tensor:
    return ops.convert_to_tensor(np.uint32(value))


def _multiplied(
    products: Products, equation: str, x: Tensor, kernel: Tensor, bias: Tensor | None = None
) -> Tensor:
    y = products.differentiable(equation, x, ops.convert_to_tensor(kernel))
    return y if bias is None else _shifted(y, bias)


def _shifted(y: Tensor, weight: Tensor) -> Tensor:
    """Add each model's weight (M, ., D) to every row of (B, M, ., D)."""
    return _on_rows(ops.add, lambda dy, y, weight: (dy, dy), y, weight)


def _on_rows(
    apply: Callable[[Tensor, Tensor], Tensor],
    slopes: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    y: Tensor,
    weight: Tensor,
) -> Tensor:
    """Apply a weight (M, ., D) to every row of (B, M, ., D).

    `slopes` maps the gradient of the result, the rows and the weight to the gradients of rows and weight, row
    by row. Where all rows share the weight (one model), its gradient is summed by `_sum_of_rows`.
    """
    weight = _aligned(weight, y)
    if math.prod(weight.shape[:-1]) > 1:
        return apply(y, weight)

    def applied(y: Tensor, weight: Tensor) -> tuple[Tensor, Any]:
        def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, Tensor]:
            (dy,) = args if upstream is None else (upstream,)
            drows, dweight = slopes(dy, y, weight)
            return drows, _sum_of_rows(dweight, weight)

        return apply(y, weight), gradient

    return ops.custom_gradient(applied)(y, weight)


def _sum_of_rows(y: Tensor, like: Tensor) -> Tensor:
    """Sum over all axes but the last, in the shape of `like`, as a matrix product with ones.

    XLA sums many rows on a CPU as a tree of windows, which took a twentieth of a training step. A single row
    of ones would be no better, because XLA multiplies vectors by a slower method than matrices.
    """
    y_ND = ops.reshape(y, (-1, y.shape[-1]))
    ones = ops.ones((NUM_ROWS_OF_ONES, y_ND.shape[0]), y_ND.dtype)
    return ops.reshape(ops.matmul(ones, y_ND)[0], like.shape)


def _aligned(weight: Tensor, like: Tensor) -> Tensor:
    """Give a weight (M, ., D) the rank that broadcasts against (B, M, ., ., D)."""
    weight = ops.convert_to_tensor(weight)
    num_missing = len(like.shape) - 1 - len(weight.shape)
    return ops.reshape(weight, (1, weight.shape[0], *(1,) * num_missing, *weight.shape[1:]))
