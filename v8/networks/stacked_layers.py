"""Stacked twins: stock Keras layers with a model axis, so that many models run as one.

A twin does for each model what the stock layer does for one. Every weight has the stock shape with the
model axis in front, in the order of the stock layer's `weights`, so that stacking and unstacking are
one `np.stack` and one index. Twins only run inside a fleet; they are never saved. A class made from the stock
layer, marked with `twin_of`, is all that another twin takes.

Shape legend: B batch, M model, T time, F features, D channels, U units, G gates times units, a dot for any
further axes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import keras
import numpy as np
from keras import ops

from v8.networks.recurrence import GRU, GRU_GATES, LSTM, LSTM_GATES, Cell, recurrent

Layer: TypeAlias = Any
Tensor: TypeAlias = Any
Shape: TypeAlias = tuple[int | None, ...]
Make = TypeVar("Make", bound=Callable[..., Layer])
NUM_ROWS_OF_ONES = 16
"""Enough for XLA to multiply by them as a matrix."""
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

    def __init__(self, stock: Layer, *, num_models: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require(stock, self.needed)
        for name in self.taken:
            setattr(self, name, getattr(stock, name))
        self.num_models = num_models
        # Variables that hold the stock layer's `weights`, in its order.
        self.stock_weights = [
            self.add_weight(name=weight.name, shape=(num_models, *weight.shape), initializer="zeros")
            for weight in stock.weights
        ]

    def num_kept_inside(self, inputs: Sequence[Tensor]) -> int:
        """Return the numbers that one call keeps for its gradient beside inputs and results, for a window."""
        return 0

    def load(self, originals: Sequence[Layer]) -> None:
        """Copy the weights of one stock layer a model."""
        for number, variable in enumerate(self.stock_weights):
            variable.assign(
                np.stack([ops.convert_to_numpy(original.weights[number]) for original in originals])
            )


@twin_of(keras.layers.Dense)
class StackedDense(StackedLayer):
    """Twin of keras.layers.Dense: (B, M, ., D) to (B, M, ., units)."""

    taken = ("activation",)

    def call(self, x: Tensor) -> Tensor:
        """Multiply by each model's kernel, add its bias, activate."""
        axes = "acefghijklnopqrstvwxyz"[: len(x.shape) - 3]
        return self.activation(_multiplied(f"bm{axes}d,mdu->bm{axes}u", x, *self.stock_weights))


@twin_of(keras.layers.EinsumDense)
class StackedEinsumDense(StackedLayer):
    """Twin of keras.layers.EinsumDense; its equation gains the model letter in all three places."""

    taken = ("activation", "equation")

    def call(self, x: Tensor) -> Tensor:
        """Evaluate the equation for every model."""
        return self.activation(_multiplied(stacked_equation(self.equation), x, *self.stock_weights))


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
        x_32, weights = ops.cast(x, "float32"), iter(self.stock_weights)
        mean, variance = ops.moments(x_32, axes=-1, keepdims=True)
        y = (x_32 - mean) * ops.rsqrt(variance + self.epsilon)
        if self.scale:
            y = _weighted(y, ops.cast(next(weights), "float32"))
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
        self.seeds = self.add_weight(name="seeds", **counter)
        self.draws = self.add_weight(name="draws", **counter)

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


@twin_of(keras.layers.RepeatVector)
class StackedRepeatVector(StackedLayer):
    """Twin of keras.layers.RepeatVector: (B, M, D) to (B, M, n, D)."""

    taken = ("n",)

    def call(self, x_BMD: Tensor) -> Tensor:
        """Repeat along a new time axis."""
        return ops.repeat(x_BMD[:, :, None], self.n, axis=2)


@twin_of(keras.layers.Cropping1D)
class StackedCropping1D(StackedLayer):
    """Twin of keras.layers.Cropping1D: (B, M, T, .) to (B, M, fewer, .)."""

    taken = ("cropping",)

    def call(self, x: Tensor) -> Tensor:
        """Leave steps out at the start and at the end."""
        first, last = self.cropping
        return x[:, :, first : x.shape[2] - last]


@twin_of(keras.layers.Reshape)
class StackedReshape(StackedLayer):
    """Twin of keras.layers.Reshape; the target shape has neither batch nor model."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(stock, **common)
        self.target_shape = tuple(stock.output.shape[1:])

    def call(self, x: Tensor) -> Tensor:
        """Reshape each window of each model."""
        return ops.reshape(x, (-1, self.num_models, *self.target_shape))


@twin_of(keras.layers.GlobalAveragePooling1D)
class StackedGlobalAveragePooling1D(StackedLayer):
    """Twin of keras.layers.GlobalAveragePooling1D: (B, M, T, D) to (B, M, D)."""

    needed: ClassVar = {"keepdims": False}

    def call(self, x_BMTD: Tensor) -> Tensor:
        """Average over time."""
        return ops.mean(x_BMTD, axis=2)


@twin_of(keras.layers.AdditiveAttention)
class StackedAdditiveAttention(StackedLayer):
    """Twin of keras.layers.AdditiveAttention without masks and dropout (Bahdanau et al. 2015)."""

    needed: ClassVar = {"dropout": 0}

    def call(self, inputs: list[Tensor]) -> Tensor:
        """Weigh the values (B, M, S, D) by query (B, M, T, D) and key (B, M, S, D)."""
        query, value = inputs[0], inputs[1]
        key = inputs[2] if len(inputs) > 2 else value
        terms = ops.tanh(query[:, :, :, None] + key[:, :, None])
        for scale_MD in self.stock_weights:  # none without `use_scale`
            terms = terms * _aligned(scale_MD, terms)
        return ops.matmul(ops.softmax(ops.sum(terms, axis=-1), axis=-1), value)

    def num_kept_inside(self, inputs: Sequence[Tensor]) -> int:
        """Count the terms, of every query and every key."""
        return math.prod(inputs[0].shape[1:]) * inputs[1].shape[2]


@twin_of(keras.layers.MultiHeadAttention)
class StackedMultiHeadAttention(StackedLayer):
    """Twin of keras.layers.MultiHeadAttention without masks and dropout (Vaswani et al. 2017)."""

    taken = ("key_dim", "use_bias")
    needed: ClassVar = {"dropout": 0}

    def call(self, query: Tensor, value: Tensor, key: Tensor | None = None) -> Tensor:
        """Attend from query (B, M, T, D) to key and value (B, M, S, D)."""
        num, to_heads = 2 if self.use_bias else 1, "bmtd,mdhk->bmthk"
        q_s, k_s, v_s, out_s = (self.stock_weights[first : first + num] for first in range(0, 4 * num, num))
        q = _multiplied(to_heads, query, *q_s) / float(np.sqrt(self.key_dim))
        k = _multiplied(to_heads, value if key is None else key, *k_s)
        v = _multiplied(to_heads, value, *v_s)
        weights = ops.softmax(ops.einsum("bmthk,bmshk->bmhts", q, k), axis=-1)
        return _multiplied("bmthk,mhkd->bmtd", ops.einsum("bmhts,bmshk->bmthk", weights, v), *out_s)


CELL_NEEDS: Mapping[str, object] = {
    **{"activation": "tanh", "recurrent_activation": "sigmoid", "use_bias": True},
    **dict.fromkeys(["dropout", "recurrent_dropout"], 0),
}
"""Options that cells and recurrent layers must have."""


class _StackedRecurrent(StackedLayer):
    """What the recurrent twins share; time read from its end comes out in reading order, as in Keras."""

    cell: Cell = LSTM
    taken: ClassVar[tuple[str, ...]] = ("units", "return_sequences", "return_state", "go_backwards")
    needed: ClassVar = {**CELL_NEEDS, "stateful": False}
    return_state = False

    def call(self, x_BMTF: Tensor, initial_state: Sequence[Tensor] = ()) -> Any:
        """Run every model over its windows, from zero or from states (B, M, U)."""
        if self.return_state:
            return self._run_to_states(x_BMTF, initial_state)
        y = self._run(x_BMTF, self.stock_weights, go_backwards=self.go_backwards, first=initial_state)
        return ops.flip(y, axis=2) if self.go_backwards and self.return_sequences else y

    def num_kept_inside(self, inputs: Sequence[Tensor]) -> int:
        """Count gates and cells, which are kept for every step."""
        return 5 * self.num_models * inputs[0].shape[2] * self.units

    def compute_output_shape(self, input_shape: Shape) -> Any:
        """Drop features, and time unless sequences are returned; states follow."""
        y = (*input_shape[: 3 if self.return_sequences else 2], self.units)
        state = (*input_shape[:2], self.units)
        return [y, state, state][: 2 + (self.cell is LSTM)] if self.return_state else y

    def _run_to_states(self, x_BMTF: Tensor, first: Sequence[Tensor]) -> list[Tensor]:
        """Return what Keras does: sequence or last state, then the last state, then an LSTM's last cell."""
        options = {"go_backwards": self.go_backwards, "return_sequences": True, "first": first}
        is_lstm = self.cell is LSTM
        found = recurrent(self.cell, x_BMTF, *self.stock_weights, **options, return_cell=is_lstm)
        h_BMTU, *cell = found if is_lstm else (found,)
        last_BMU = h_BMTU[:, :, 0 if self.go_backwards else -1]
        h_BMTU = ops.flip(h_BMTU, axis=2) if self.go_backwards else h_BMTU
        return [h_BMTU if self.return_sequences else last_BMU, last_BMU, *cell]

    def _run(
        self,
        x_BMTF: Tensor,
        weights: Sequence[Tensor],
        *,
        go_backwards: bool,
        first: Sequence[Tensor] = (),
    ) -> Tensor:
        options = {"return_sequences": self.return_sequences, "first": first}
        return recurrent(self.cell, x_BMTF, *weights, go_backwards=go_backwards, **options)


@twin_of(keras.layers.LSTM)
class StackedLSTM(_StackedRecurrent):
    """Twin of keras.layers.LSTM with default activations."""


@twin_of(keras.layers.GRU)
class StackedGRU(_StackedRecurrent):
    """Twin of keras.layers.GRU with `reset_after` and default activations."""

    cell = GRU
    needed: ClassVar = {**_StackedRecurrent.needed, "reset_after": True}


@twin_of(keras.layers.Bidirectional)
class StackedBidirectional(_StackedRecurrent):
    """Twin of keras.layers.Bidirectional with `merge_mode="concat"`: (B, M, T, 2U) or (B, M, 2U).

    `are_directions_merged` runs both directions as 2M models in one loop. It halves the number of launches
    on a GPU; it is slower on a CPU, where two kernels do not fit the cache of a core.
    """

    taken = ("return_sequences",)
    needed: ClassVar = {"merge_mode": "concat"}

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(stock, **common)
        forward, backward = stock.forward_layer, stock.backward_layer
        kind = StackedLSTM if isinstance(forward, keras.layers.LSTM) else StackedGRU
        for direction in (forward, backward):
            require(direction, {**kind.needed, "return_state": False})
        if backward.units != forward.units:
            raise ValueError(
                f"{stock.name}: both directions need the same units; got {forward.units} and "
                f"{backward.units}. Give both layers one size."
            )
        self.cell, self.units = kind.cell, 2 * forward.units
        self.are_directions_merged = False

    def call(self, x_BMTF: Tensor) -> Tensor:  # type: ignore[override]  # it begins with zeros only
        """Run both directions."""
        cells = self.stock_weights[:3], self.stock_weights[3:]
        if not self.are_directions_merged:
            runs = zip(cells, (False, True), strict=True)
            y = [self._run(x_BMTF, cell, go_backwards=backwards) for cell, backwards in runs]
            return ops.concatenate(y, axis=-1)
        both = ops.concatenate([x_BMTF, ops.flip(x_BMTF, axis=2)], axis=1)
        merged = [ops.concatenate(pair, axis=0) for pair in zip(*cells, strict=True)]
        forward, backward = ops.split(self._run(both, merged, go_backwards=False), 2, axis=1)
        backward = ops.flip(backward, axis=2) if self.return_sequences else backward
        return ops.concatenate([forward, backward], axis=-1)


@twin_of(keras.layers.LSTMCell)
class StackedLSTMCell(StackedLayer):
    """Twin of keras.layers.LSTMCell: one step from (B, M, F) and the states (B, M, U)."""

    needed = CELL_NEEDS

    def call(self, x_BMF: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Take the step."""
        (kernel, recurrent_kernel, bias), (h_BMU, c_BMU) = self.stock_weights, states
        z_BMG = _multiplied("bmf,mfg->bmg", x_BMF, kernel, bias)
        z_BMG = z_BMG + _multiplied("bmu,mug->bmg", h_BMU, recurrent_kernel)
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
        z_BMG = _multiplied("bmf,mfg->bmg", x_BMF, kernel, bias[:, 0])
        r_BMG = _multiplied("bmu,mug->bmg", h_BMU, recurrent_kernel, bias[:, 1])
        (update, reset, own), (update_r, reset_r, own_r) = (
            ops.split(each, GRU_GATES, axis=-1) for each in (z_BMG, r_BMG)
        )
        update = ops.sigmoid(update + update_r)
        own = ops.tanh(own + ops.sigmoid(reset + reset_r) * own_r)
        h_BMU = update * h_BMU + (1 - update) * own
        return h_BMU, [h_BMU]


@twin_of(keras.layers.TimeDistributed)
def time_distributed(stock: Layer, **common: Any) -> Layer:
    """Make the twin of the layer inside: it works on the last axis, whatever lies between."""
    inner = stock.layer
    if type(inner) not in (keras.layers.Dense, keras.layers.LayerNormalization):
        raise ValueError(
            f"{stock.name}: TimeDistributed needs Dense or LayerNormalization inside; "
            f"got {type(inner).__name__}. Use the layer itself, or add its twin."
        )
    return TWINS[type(inner)](inner, **common)


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
    key_M = _mixed(_unsigned(seeds_M) ^ _mixed(_unsigned(draws_M) + _constant(0x9E3779B9)))
    num_positions = int(np.prod(shape))
    position_N = _unsigned(ops.arange(num_positions, dtype="int32"))
    bits_MN = _mixed(_mixed(position_N[None] ^ key_M[:, None]) + key_M[:, None])
    share_MN = ops.cast(ops.right_shift(bits_MN, _constant(8)), "float32") * np.float32(2.0**-24)
    share_MB = ops.reshape(share_MN, (-1, *shape))
    return ops.swapaxes(share_MB, 0, 1)


def _mixed(bits: Tensor) -> Tensor:
    bits = (bits ^ ops.right_shift(bits, _constant(16))) * _constant(0x7FEB352D)
    bits = (bits ^ ops.right_shift(bits, _constant(15))) * _constant(0x846CA68B)
    return bits ^ ops.right_shift(bits, _constant(16))


def _constant(value: int) -> Tensor:
    return ops.convert_to_tensor(np.uint32(value))


def _unsigned(values: Tensor) -> Tensor:
    return ops.cast(values, "uint32")


def _multiplied(equation: str, x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    y = ops.einsum(equation, x, kernel)
    return y if bias is None else _shifted(y, bias)


def _weighted(y: Tensor, weight: Tensor) -> Tensor:
    """Multiply every row of (B, M, ., D) by each model's weight (M, ., D)."""
    return _on_rows(ops.multiply, lambda dy, y, weight: (dy * weight, dy * y), y, weight)


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
