"""Stacked twins: stock Keras layers with a model axis, so that many models run as one.

A twin does for each model what the stock layer does for one. Every weight has the stock shape with the
model axis in front, in the order of the stock layer's `weights`, so that stacking and unstacking are
one `np.stack` and one index. Twins only run inside a fleet; they are never saved. A class made from the stock
layer, marked with `twin_of`, is all that another twin takes.

Shape legend: B batch, M model, T time, D channels, a dot for any further axes.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import keras
import numpy as np
from keras import ops

Layer: TypeAlias = Any
Tensor: TypeAlias = Any
Shape: TypeAlias = tuple[int | None, ...]
Make = TypeVar("Make", bound=Callable[..., Layer])

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
    """Base of all twins.

    Args:
        num_models: Length of the model axis, which follows the batch axis.
    """

    def __init__(self, *, num_models: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_models = num_models

    @property
    def stock_weights(self) -> list[Any]:
        """Variables that hold the stock layer's `weights`, in its order."""
        return list(self.weights)

    def load(self, originals: Sequence[Layer]) -> None:
        """Copy the weights of one stock layer a model."""
        for number, variable in enumerate(self.stock_weights):
            variable.assign(
                np.stack([ops.convert_to_numpy(original.weights[number]) for original in originals])
            )

    def add_stacked(self, name: str, shape: Shape) -> Any:
        """Add a trainable variable of the stock `shape` for each model, zero until it is stacked."""
        if None in shape:
            raise ValueError(
                f"{self.name}: needs a known channel axis; got {shape} for {name}. Give the Input its shape."
            )
        return self.add_weight(name=name, shape=(self.num_models, *shape), initializer="zeros")


@twin_of(keras.layers.Dense)
class StackedDense(StackedLayer):
    """Twin of keras.layers.Dense: (B, M, ., D) to (B, M, ., units)."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        self.units, self.use_bias, self.activation = stock.units, stock.use_bias, stock.activation

    def build(self, input_shape: Shape) -> None:
        """Add kernel (M, D, units) and bias (M, units)."""
        self.kernel = self.add_stacked("kernel", (input_shape[-1], self.units))
        self.bias = self.add_stacked("bias", (self.units,)) if self.use_bias else None

    def call(self, x: Tensor) -> Tensor:
        """Multiply by each model's kernel, add its bias, activate."""
        axes = _letters(len(x.shape) - 3, taken="bmdu")
        y = ops.einsum(f"bm{axes}d,mdu->bm{axes}u", x, self.kernel)
        return self.activation(y if self.bias is None else y + _aligned(self.bias, y))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Replace the last axis."""
        return (*input_shape[:-1], self.units)


@twin_of(keras.layers.EinsumDense)
class StackedEinsumDense(StackedLayer):
    """Twin of keras.layers.EinsumDense; its equation gains the model letter in all three places."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        self.equation, self.activation = stacked_equation(stock.equation), stock.activation
        self.kernel_shape = tuple(stock.kernel.shape)
        self.bias_shape = None if stock.bias is None else tuple(stock.bias.shape)

    def build(self, input_shape: Shape) -> None:
        """Add kernel and bias."""
        self.kernel = self.add_stacked("kernel", self.kernel_shape)
        self.bias = None if self.bias_shape is None else self.add_stacked("bias", self.bias_shape)

    def call(self, x: Tensor) -> Tensor:
        """Evaluate the equation for every model."""
        y = ops.einsum(self.equation, x, self.kernel)
        return self.activation(y if self.bias is None else y + _aligned(self.bias, y))


@twin_of(keras.layers.LayerNormalization)
class StackedLayerNormalization(StackedLayer):
    """Twin of keras.layers.LayerNormalization over the last axis."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        if stock.axis not in (-1, [-1], [len(stock.get_build_config()["input_shape"]) - 1]):
            raise ValueError(
                f"{stock.name}: a stacked LayerNormalization needs the last axis; got {stock.axis}. "
                "Set axis=-1."
            )
        self.epsilon, self.center, self.scale = stock.epsilon, stock.center, stock.scale

    def build(self, input_shape: Shape) -> None:
        """Add gamma and beta, each (M, D)."""
        num_channels = input_shape[-1]
        self.gamma = self.add_stacked("gamma", (num_channels,)) if self.scale else None
        self.beta = self.add_stacked("beta", (num_channels,)) if self.center else None

    def call(self, x: Tensor) -> Tensor:
        """Normalise in float32, as the stock layer does, and return the layer's dtype."""
        x_32 = ops.cast(x, "float32")
        mean, variance = ops.moments(x_32, axes=-1, keepdims=True)
        y = (x_32 - mean) * ops.rsqrt(variance + self.epsilon)
        if self.gamma is not None:
            y = y * _aligned(ops.cast(self.gamma, "float32"), y)
        if self.beta is not None:
            y = y + _aligned(ops.cast(self.beta, "float32"), y)
        return ops.cast(y, self.compute_dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Keep the shape."""
        return input_shape


@twin_of(keras.layers.Dropout)
class StackedDropout(StackedLayer):
    """Twin of keras.layers.Dropout whose masks depend on nothing but a model's own seed and draws.

    Neither the other models of the fleet nor a model's place in it changes what it drops, and both
    backends drop the same. The stock layer's masks differ: Keras draws them from its own generators.
    """

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        self.rate, self.noise_shape = stock.rate, stock.noise_shape

    @property
    def stock_weights(self) -> list[Any]:
        """None: the stock layer has no weights."""
        return []

    def load(self, originals: Sequence[Layer]) -> None:
        """Take over the seed of one stock layer a model, and begin to draw."""
        self.seeds.assign([int(original.seed or 0) % 2**31 for original in originals])
        self.draws.assign([0] * self.num_models)

    def build(self, input_shape: Shape) -> None:
        """Add each model's seed and its count of draws, both (M,), int32."""
        counter = {"shape": (self.num_models,), "dtype": "int32", "initializer": "zeros", "trainable": False}
        self.seeds = self.add_weight(name="seeds", **counter)
        self.draws = self.add_weight(name="draws", **counter)

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """Drop in training, pass through otherwise."""
        if not training or not self.rate:
            return x
        share_BM = uniform_by_model(self.seeds, self.draws, self._mask_shape(x))
        self.draws.assign(self.draws + 1)
        factor = ops.where(share_BM >= self.rate, 1.0 / (1.0 - self.rate), 0.0)
        return x * ops.cast(factor, x.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Keep the shape."""
        return input_shape

    def _mask_shape(self, x: Tensor) -> tuple[int, ...]:
        batch, _, *rest = ops.shape(x)
        if self.noise_shape is None:
            return (batch, *rest)
        return tuple(
            size if wanted is None else wanted
            for size, wanted in zip((batch, *rest), self.noise_shape, strict=True)
        )


@twin_of(keras.layers.RepeatVector)
class StackedRepeatVector(StackedLayer):
    """Twin of keras.layers.RepeatVector: (B, M, D) to (B, M, n, D)."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        self.n = stock.n

    def call(self, x_BMD: Tensor) -> Tensor:
        """Repeat along a new time axis."""
        return ops.repeat(x_BMD[:, :, None], self.n, axis=2)


@twin_of(keras.layers.Cropping1D)
class StackedCropping1D(StackedLayer):
    """Twin of keras.layers.Cropping1D: (B, M, T, .) to (B, M, fewer, .)."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        self.cropping = tuple(stock.cropping)

    def call(self, x: Tensor) -> Tensor:
        """Leave steps out at the start and at the end."""
        first, last = self.cropping
        return x[:, :, first : x.shape[2] - last]


@twin_of(keras.layers.Reshape)
class StackedReshape(StackedLayer):
    """Twin of keras.layers.Reshape; the target shape has neither batch nor model."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        self.target_shape = tuple(stock.output.shape[1:])

    def call(self, x: Tensor) -> Tensor:
        """Reshape each window of each model."""
        return ops.reshape(x, (-1, self.num_models, *self.target_shape))


@twin_of(keras.layers.GlobalAveragePooling1D)
class StackedGlobalAveragePooling1D(StackedLayer):
    """Twin of keras.layers.GlobalAveragePooling1D: (B, M, T, D) to (B, M, D)."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        require(stock, keepdims=False)

    def call(self, x_BMTD: Tensor) -> Tensor:
        """Average over time."""
        return ops.mean(x_BMTD, axis=2)


@twin_of(keras.layers.AdditiveAttention)
class StackedAdditiveAttention(StackedLayer):
    """Twin of keras.layers.AdditiveAttention without masks and dropout (Bahdanau et al. 2015)."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        require(stock, dropout=0)
        self.use_scale = stock.use_scale

    def build(self, input_shape: list[Shape]) -> None:
        """Add the scale, (M, D)."""
        num_channels = input_shape[0][-1]
        self.scale = self.add_stacked("scale", (num_channels,)) if self.use_scale else None

    def call(self, inputs: list[Tensor]) -> Tensor:
        """Weigh the values (B, M, S, D) by query (B, M, T, D) and key (B, M, S, D)."""
        query, value = inputs[0], inputs[1]
        key = inputs[2] if len(inputs) > 2 else value
        terms = ops.tanh(query[:, :, :, None] + key[:, :, None])
        if self.scale is not None:
            terms = terms * _aligned(self.scale, terms)
        return ops.matmul(ops.softmax(ops.sum(terms, axis=-1), axis=-1), value)


@twin_of(keras.layers.MultiHeadAttention)
class StackedMultiHeadAttention(StackedLayer):
    """Twin of keras.layers.MultiHeadAttention without masks and dropout (Vaswani et al. 2017)."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        require(stock, dropout=0)
        self.num_heads, self.key_dim, self.value_dim = stock.num_heads, stock.key_dim, stock.value_dim
        self.use_bias = stock.use_bias

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        """Add kernel and bias of query, key, value and output, in the stock order."""
        channels = {"query": query_shape, "key": key_shape or value_shape, "value": value_shape}
        self.projections: dict[str, tuple[Any, Any]] = {}
        for name, shape in channels.items():
            heads = (self.num_heads, self.value_dim if name == "value" else self.key_dim)
            self.projections[name] = self._projection(name, (shape[-1], *heads), heads)
        out = query_shape[-1]
        self.projections["out"] = self._projection("out", (self.num_heads, self.value_dim, out), (out,))

    def call(self, query: Tensor, value: Tensor, key: Tensor | None = None) -> Tensor:
        """Attend from query (B, M, T, D) to key and value (B, M, S, D)."""
        q = self._projected("query", "bmtd,mdhk->bmthk", query) / float(np.sqrt(self.key_dim))
        k = self._projected("key", "bmtd,mdhk->bmthk", value if key is None else key)
        v = self._projected("value", "bmtd,mdhk->bmthk", value)
        weights = ops.softmax(ops.einsum("bmthk,bmshk->bmhts", q, k), axis=-1)
        return self._projected("out", "bmthk,mhkd->bmtd", ops.einsum("bmhts,bmshk->bmthk", weights, v))

    def _projection(self, name: str, kernel: Shape, bias: Shape) -> tuple[Any, Any]:
        return (
            self.add_stacked(f"{name}_kernel", kernel),
            self.add_stacked(f"{name}_bias", bias) if self.use_bias else None,
        )

    def _projected(self, name: str, equation: str, x: Tensor) -> Tensor:
        kernel, bias = self.projections[name]
        y = ops.einsum(equation, x, kernel)
        return y if bias is None else y + _aligned(bias, y)


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


def require(stock: Layer, **options: Any) -> None:
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
    """Draw numbers that depend only on a model's seed, its count of draws and the position.

    The hash is Chris Wellons' lowbias32 (hash-prospector, public domain), applied twice over a key.

    Args:
        seeds_M: One seed a model, shape (M,), int32.
        draws_M: Draws so far, shape (M,), int32.
        shape: Shape per model, batch first.

    Returns:
        Uniform in [0, 1), shape (shape[0], M, *shape[1:]), float32.
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


def _aligned(weight: Tensor, like: Tensor) -> Tensor:
    """Give a weight (M, ., D) the rank that broadcasts against (B, M, ., ., D)."""
    weight = ops.convert_to_tensor(weight)
    num_missing = len(like.shape) - 1 - len(weight.shape)
    return ops.reshape(weight, (1, weight.shape[0], *(1,) * num_missing, *weight.shape[1:]))


def _letters(count: int, *, taken: str) -> str:
    return "".join([letter for letter in string.ascii_lowercase if letter not in taken][:count])
