"""Stacked twins: stock Keras layers with a model axis, so that many models run as one.

A twin does for each model what the stock layer does for one. Every weight has the stock shape with the
model axis in front, in the order of the stock layer's `weights`, so that stacking and unstacking are
one `np.stack` and one index. Twins only run inside a fleet; they are never saved. A class made from the stock
layer, marked with `twin_of`, is all that another twin takes.

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

from v8.errors import SeriesError
from v8.networks.products import FLOAT32, Products
from v8.networks.recurrence import GRU, GRU_GATES, LSTM, LSTM_GATES, Cell, recurrent

Layer: TypeAlias = Any
Tensor: TypeAlias = Any
Shape: TypeAlias = tuple[int | None, ...]
Make = TypeVar("Make", bound=Callable[..., Layer])
NUM_ROWS_OF_ONES = 16  # enough for XLA to multiply by them as a matrix
TWINS: dict[type[Layer], Callable[..., Layer]] = {}
"""What makes the twin of a stock layer, by its class."""


def twin_of(kind: type[Layer]) -> Callable[[Make], Make]:
    """Mark what makes the twins of a kind of stock layer from the layer and the arguments of `StackedLayer`.

    It raises ValueError if an option of the layer is not supported.
    """

    def register(make: Make) -> Make:
        TWINS[kind] = make
        return make

    return register


class StackedLayer(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types
    """Base of all twins: the built stock layer's weights for each model, zero until `load`."""

    taken: ClassVar[tuple[str, ...]] = ()
    """Attributes that are those of the stock layer."""
    needed: ClassVar[Mapping[str, object]] = {}
    """Options by which the stock layer must have been made."""
    products: Products = FLOAT32
    """Which of its products have factors in 16 bits; `stack` says so of a whole fleet."""

    def __init__(self, stock: Layer, *, num_models: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require(stock, self.needed)
        for name in self.taken:
            setattr(self, name, getattr(stock, name))
        self.num_models = num_models
        # Variables that hold the stock layer's `weights`, in its order.
        self.stock_weights = [
            self.add_weight(name=weight.name, shape=(num_models, *weight.shape), initializer="zeros")
            for weight in getattr(stock, "weights", ())  # an operation has none
        ]

    def load(self, originals: Sequence[Layer]) -> None:
        """Copy the weights of one stock layer a model."""
        for variable, *weights in zip(
            self.stock_weights, *(getattr(each, "weights", ()) for each in originals), strict=True
        ):
            variable.assign(np.stack([ops.convert_to_numpy(weight) for weight in weights]))


class AloneLayer(StackedLayer):
    """Stands for any layer or operation of Keras in a fleet of one model; a fleet of several needs a twin.

    It calls the layer without the model axis.
    """

    def __init__(self, stock: Layer, **common: Any) -> None:
        if getattr(stock, "non_trainable_weights", ()):
            rule = "a network is of layers whose weights are all trained"
            got = f"a {type(stock).__name__}, which keeps others, such as moving averages"
            fix = "Use another layer, such as LayerNormalization, in the family"
            raise SeriesError(where=f"layer {stock.name}", rule=rule, got=got, fix=fix)
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
        self._computed = partial(_alone, stock)  # bare, it would be a layer of this one
        self._takes_training = "training" in inspect.signature(stock.call).parameters
        self._rebuilders: list[Callable[[Sequence[Tensor]], Any]] = []

    def load(self, originals: Sequence[Layer]) -> None:
        """Copy the weights and the states, such as those of random draws."""
        super().load(originals)
        for variable, state in zip(self._states, _states_of(originals[0]), strict=True):
            variable.assign(ops.convert_to_numpy(state)[None])

    def connected(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """Call it in the graph as the layer is called, with positional and named arguments."""
        leaves = keras.tree.flatten(arguments)
        is_tensor = [isinstance(leaf, keras.KerasTensor) for leaf in leaves]

        def rebuilt(tensors: Sequence[Tensor]) -> Any:
            coming = iter(tensors)
            filled = [
                next(coming) if is_one else leaf for leaf, is_one in zip(leaves, is_tensor, strict=True)
            ]
            return keras.tree.pack_sequence_as(arguments, filled)

        self._rebuilders.append(rebuilt)
        tensors = [leaf for leaf, is_one in zip(leaves, is_tensor, strict=True) if is_one]
        return self(tensors, call_number=len(self._rebuilders) - 1)

    def call(self, tensors: Sequence[Tensor], call_number: int = 0, training: bool = False) -> Any:
        """Do for the one model what the layer does for it."""
        positional, named = self._rebuilders[call_number]([ops.squeeze(one, axis=1) for one in tensors])
        weights = [ops.squeeze(one, axis=0) for one in self.stock_weights]
        states = [ops.squeeze(one, axis=0) for one in self._states]
        named = named | ({"training": training} if self._takes_training else {})
        outputs, after = self._computed(weights, states, positional, named)
        for variable, state in zip(self._states, after, strict=True):
            variable.assign(ops.expand_dims(state, axis=0))
        return keras.tree.map_structure(lambda one: ops.expand_dims(one, axis=1), outputs)


def _states_of(stock: Layer) -> Sequence[Any]:
    """Return what a layer changes when it is called, such as the states of its random draws."""
    return getattr(stock, "non_trainable_variables", ())


def _alone(
    stock: Layer,
    weights: Sequence[Tensor],
    states: Sequence[Tensor],
    positional: Sequence[Any],
    named: Mapping[str, Any],
) -> tuple[Any, Sequence[Tensor]]:
    if isinstance(stock, keras.layers.Layer):
        result: tuple[Any, Sequence[Tensor]] = stock.stateless_call(weights, states, *positional, **named)
        return result
    return stock(*positional, **named), ()


def _dense(stock: Layer, weights: Sequence[Tensor], x: Tensor, products: Products) -> Tensor:
    axes = "acefghijklnopqrstvwxyz"[: len(x.shape) - 3]
    return stock.activation(_multiplied(products, f"bm{axes}d,mdu->bm{axes}u", x, *weights))


def _einsum_dense(stock: Layer, weights: Sequence[Tensor], x: Tensor, products: Products) -> Tensor:
    return stock.activation(_multiplied(products, stacked_equation(stock.equation), x, *weights))


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
"""What makes of the stock layer, the stacked weights, the input, (B, M, ...), and the formats of products the
result of a twin."""


class _ComputedLayer(StackedLayer):
    """Twin of a layer of `COMPUTED`."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(stock, **common)
        self._computed = partial(COMPUTED[type(stock)], stock)  # bare, it would be a layer of this one

    def call(self, x: Tensor) -> Tensor:
        return self._computed(self.stock_weights, x, self.products)


TWINS |= dict.fromkeys(COMPUTED, _ComputedLayer)


@twin_of(keras.layers.LayerNormalization)
class StackedLayerNormalization(StackedLayer):
    """Twin of keras.layers.LayerNormalization over the last axis."""

    taken = ("epsilon", "center", "scale")

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
        weights = iter(self.stock_weights)
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
    """Twin of keras.layers.Dropout whose masks depend on nothing but a model's own seed and draws.

    Neither the other models of the fleet nor a model's place in it changes what it drops, and both
    backends drop the same. The stock layer's masks differ: Keras draws them from its own generators.
    """

    taken = ("rate", "noise_shape")

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(stock, **common)
        counter = {"shape": (self.num_models,), "dtype": "int32", "initializer": "zeros", "trainable": False}
        self.seeds, self.draws = (self.add_weight(name=name, **counter) for name in ("seeds", "draws"))

    def load(self, originals: Sequence[Layer]) -> None:
        """Take over the seed of one stock layer a model, and begin to draw."""
        self.seeds.assign([int(original.seed or 0) % 2**31 for original in originals])
        self.draws.assign([0] * self.num_models)

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """Drop in training, pass through otherwise."""
        if not training or not self.rate:
            return x
        batch, _, *rest = ops.shape(x)
        sizes = (batch, *rest)
        wanted = self.noise_shape or sizes
        mask = tuple(own if size is None else size for own, size in zip(sizes, wanted, strict=True))
        share_BM = uniform_by_model(self.seeds, self.draws, mask)
        self.draws.assign(self.draws + 1)
        factor = ops.where(share_BM >= self.rate, 1.0 / (1.0 - self.rate), 0.0)
        return x * ops.cast(factor, x.dtype)


@twin_of(keras.layers.AdditiveAttention)
class StackedAdditiveAttention(StackedLayer):
    """Twin of keras.layers.AdditiveAttention without masks and dropout (Bahdanau et al. 2015)."""

    needed: ClassVar = {"dropout": 0}

    def call(self, inputs: list[Tensor]) -> Tensor:
        """Weigh the values (B, M, S, D) by query (B, M, T, D) and key (B, M, S, D)."""
        query = inputs[0]
        value = inputs[1]
        key = inputs[2] if len(inputs) > 2 else value
        terms = ops.tanh(query[:, :, :, None] + key[:, :, None])
        for scale_MD in self.stock_weights:  # none without `use_scale`
            terms = terms * _aligned(scale_MD, terms)
        weights = ops.softmax(ops.sum(terms, axis=-1), axis=-1)
        return self.products.differentiable("bmts,bmsd->bmtd", weights, value, is_right_weight=False)


@twin_of(keras.layers.MultiHeadAttention)
class StackedMultiHeadAttention(StackedLayer):
    """Twin of keras.layers.MultiHeadAttention without masks and dropout (Vaswani et al. 2017)."""

    taken = ("key_dim", "use_bias")
    needed: ClassVar = {"dropout": 0}

    def call(self, query: Tensor, value: Tensor, key: Tensor | None = None) -> Tensor:
        """Attend from query (B, M, T, D) to key and value (B, M, S, D)."""
        num = 2 if self.use_bias else 1
        to_heads = "bmtd,mdhk->bmthk"
        q_s, k_s, v_s, out_s = (self.stock_weights[first : first + num] for first in range(0, 4 * num, num))
        q = _multiplied(self.products, to_heads, query, *q_s) / float(np.sqrt(self.key_dim))
        k = _multiplied(self.products, to_heads, value if key is None else key, *k_s)
        v = _multiplied(self.products, to_heads, value, *v_s)
        scores = self.products.differentiable("bmthk,bmshk->bmhts", q, k, is_right_weight=False)
        weights = ops.softmax(scores, axis=-1)
        read = self.products.differentiable("bmhts,bmshk->bmthk", weights, v, is_right_weight=False)
        return _multiplied(self.products, "bmthk,mhkd->bmtd", read, *out_s)


CELL_NEEDS: Mapping[str, object] = {
    **{"activation": "tanh", "recurrent_activation": "sigmoid", "use_bias": True},
    **dict.fromkeys(["dropout", "recurrent_dropout"], 0),
}
"""Options that cells and recurrent layers must have."""


@twin_of(keras.layers.LSTM)
class StackedLSTM(StackedLayer):
    """Twin of keras.layers.LSTM with default activations.

    What it reads from the end of time comes out in reading order, as in Keras.
    """

    cell: Cell = LSTM
    taken: ClassVar[tuple[str, ...]] = ("units", "return_sequences", "return_state", "go_backwards")
    needed: ClassVar = {**CELL_NEEDS, "stateful": False}

    def call(self, x_BMTF: Tensor, initial_state: Sequence[Tensor] = ()) -> Any:
        """Run every model over its windows, from zero or from states (B, M, U)."""
        y_BMTU, last = recurrent(
            self.cell,
            x_BMTF,
            self.stock_weights,
            go_backwards=self.go_backwards,
            first=initial_state,
            products=self.products,
        )
        y_BMTU = ops.flip(y_BMTU, axis=2) if self.go_backwards else y_BMTU
        y = y_BMTU if self.return_sequences else last[0]
        return [y, *last] if self.return_state else y

    def compute_output_shape(self, input_shape: Shape) -> Any:
        """Drop features, and time unless sequences are returned; states follow."""
        y = (*input_shape[: 3 if self.return_sequences else 2], self.units)
        state = (*input_shape[:2], self.units)
        return [y, *[state] * self.cell.num_states] if self.return_state else y


@twin_of(keras.layers.GRU)
class StackedGRU(StackedLSTM):
    """Twin of keras.layers.GRU with `reset_after` and default activations."""

    cell = GRU
    needed: ClassVar = {**StackedLSTM.needed, "reset_after": True}


@twin_of(keras.layers.Bidirectional)
class StackedBidirectional(StackedLSTM):
    """Twin of keras.layers.Bidirectional with `merge_mode="concat"`: (B, M, T, 2U) or (B, M, 2U).

    `are_directions_merged` runs both directions as 2M models in one loop. It halves the number of launches
    on a GPU; it is slower on a CPU, where two kernels do not fit the cache of a core.
    """

    taken = ("return_sequences",)
    needed: ClassVar = {"merge_mode": "concat"}
    return_state = False

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(stock, **common)
        forward = stock.forward_layer
        backward = stock.backward_layer
        kind = StackedLSTM if isinstance(forward, keras.layers.LSTM) else StackedGRU
        for direction in (forward, backward):
            require(direction, {**kind.needed, "return_state": False, "units": forward.units})
        self.cell = kind.cell
        self.units = 2 * forward.units
        self.are_directions_merged = False

    def call(self, x_BMTF: Tensor) -> Tensor:  # type: ignore[override]  # it begins with zeros only
        """Run both directions."""
        is_whole = self.return_sequences
        cells = (self.stock_weights[:3], self.stock_weights[3:])

        def run(x_BMTF: Tensor, cell: Sequence[Tensor], *, go_backwards: bool = False) -> Tensor:
            y_BMTU, last = recurrent(
                self.cell, x_BMTF, cell, go_backwards=go_backwards, products=self.products
            )
            return y_BMTU if is_whole else last[0]

        if not self.are_directions_merged:
            y = [run(x_BMTF, cells[0]), run(x_BMTF, cells[1], go_backwards=True)]
            return ops.concatenate(y, axis=-1)
        both = ops.concatenate([x_BMTF, ops.flip(x_BMTF, axis=2)], axis=1)
        merged = [ops.concatenate(pair, axis=0) for pair in zip(*cells, strict=True)]
        forward, backward = ops.split(run(both, merged), 2, axis=1)
        return ops.concatenate([forward, ops.flip(backward, axis=2) if is_whole else backward], axis=-1)


@twin_of(keras.layers.LSTMCell)
class StackedLSTMCell(StackedLayer):
    """Twin of keras.layers.LSTMCell: one step from (B, M, F) and the states (B, M, U)."""

    needed = CELL_NEEDS

    def call(self, x_BMF: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Take the step."""
        (kernel, recurrent_kernel, bias), (h_BMU, c_BMU) = self.stock_weights, states
        z_BMG = _multiplied(self.products, "bmf,mfg->bmg", x_BMF, kernel, bias)
        z_BMG = z_BMG + _multiplied(self.products, "bmu,mug->bmg", h_BMU, recurrent_kernel)
        i, f, g, o = ops.split(z_BMG, LSTM_GATES, axis=-1)
        c_BMU = ops.sigmoid(f) * c_BMU + ops.sigmoid(i) * ops.tanh(g)
        h_BMU = ops.sigmoid(o) * ops.tanh(c_BMU)
        return h_BMU, [h_BMU, c_BMU]


@twin_of(keras.layers.GRUCell)
class StackedGRUCell(StackedLayer):
    """Twin of keras.layers.GRUCell with `reset_after`: one step from (B, M, F) and the state (B, M, U)."""

    needed: ClassVar = {**CELL_NEEDS, "reset_after": True}

    def call(self, x_BMF: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Take the step."""
        (kernel, recurrent_kernel, bias), (h_BMU,) = self.stock_weights, states
        z_BMG = _multiplied(self.products, "bmf,mfg->bmg", x_BMF, kernel, bias[:, 0])
        r_BMG = _multiplied(self.products, "bmu,mug->bmg", h_BMU, recurrent_kernel, bias[:, 1])
        (update, reset, own), (update_r, reset_r, own_r) = (
            ops.split(each, GRU_GATES, axis=-1) for each in (z_BMG, r_BMG)
        )
        update = ops.sigmoid(update + update_r)
        own = ops.tanh(own + ops.sigmoid(reset + reset_r) * own_r)
        h_BMU = update * h_BMU + (1 - update) * own
        return h_BMU, [h_BMU]


def require(stock: Layer, options: Mapping[str, object]) -> None:
    """Refuse a layer whose options differ from those its twin has."""
    for option, needed in options.items():
        value = getattr(stock, option)
        value = getattr(value, "__name__", value)
        if value != needed:
            raise ValueError(
                f"{stock.name}: a stacked {type(stock).__name__} needs {option} = {needed!r}; got {value!r}. "
                f"Set it so, or add it to the twin."
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
    """Draw numbers that depend only on a model's seed, its draws so far, both (M,), int32, and the position.

    The hash is Chris Wellons' lowbias32 (hash-prospector, public domain), applied twice over a key. Uniform
    in [0, 1), float32; `shape` is that of a model, batch first, and M follows the batch.
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

    `slopes` maps the gradient of the result, rows and weight to those of rows and weight, row by row; that of
    a weight that all rows share is summed by `_sum_of_rows`.
    """
    weight = _aligned(weight, y)
    if math.prod(weight.shape[:-1]) > 1:
        return apply(y, weight)

    def applied(y: Tensor, weight: Tensor) -> tuple[Tensor, Any]:
        def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, Tensor]:
            (dy,) = args if upstream is None else (upstream,)
            of_rows, of_weight = slopes(dy, y, weight)
            return of_rows, _sum_of_rows(of_weight, weight)

        return apply(y, weight), gradient

    return ops.custom_gradient(applied)(y, weight)


def _sum_of_rows(y: Tensor, like: Tensor) -> Tensor:
    """Sum over all axes but the last, in the shape of `like`: as a product with ones.

    XLA sums many rows on a CPU as a tree of windows, which took a twentieth of a training step; a single row
    of ones would be no better, because it multiplies vectors by another way than matrices.
    """
    y_ND = ops.reshape(y, (-1, y.shape[-1]))
    ones = ops.ones((NUM_ROWS_OF_ONES, y_ND.shape[0]), y_ND.dtype)
    return ops.reshape(ops.matmul(ones, y_ND)[0], like.shape)


def _aligned(weight: Tensor, like: Tensor) -> Tensor:
    """Give a weight (M, ., D) the rank that broadcasts against (B, M, ., ., D)."""
    weight = ops.convert_to_tensor(weight)
    num_missing = len(like.shape) - 1 - len(weight.shape)
    return ops.reshape(weight, (1, weight.shape[0], *(1,) * num_missing, *weight.shape[1:]))
