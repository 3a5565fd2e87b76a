"""Mixed precision: products in 16 bits with float32 sums, and everything else in float32.

This is what PyTorch's autocast does: the factors of a product are rounded; its sums, activations, gradients
and weights are not. If the result is to be in 16 bits, XLA computes such products on a CPU by widening the
factors, which is slower than float32; if it is to be in float32, XLA uses the processor's own units for the
format.

On a GPU all products are in 16 bits. On a CPU only those kinds of products are that were measured to make a
complete training step faster (docs/research/training.md), so that mixed precision is never slower than
float32 there; on a processor without units for the format no product is in 16 bits.

Shape legend: letters are those of an equation in Einstein's notation, such as "nf,fg->ng".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import keras
from keras import ops

from v8.base.hardware import backend

Tensor: TypeAlias = Any
ProductKind: TypeAlias = Literal["forward", "input_gradient", "weight_gradient", "loop"]
"""The purpose of a product; `loop` is every product within the loop of a recurrent layer, in both passes."""
ALL_KINDS: Final[frozenset[ProductKind]] = frozenset({"forward", "input_gradient", "weight_gradient", "loop"})
DTYPES: Final[Mapping[str, str]] = {"mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}
"""The format of the factors, by the name of the precision; any other precision has float32."""
KINDS_ON_CPU: Final[Mapping[str, Sequence[tuple[str, frozenset[ProductKind]]]]] = {
    "bfloat16": (
        # Intel's tiles.
        ("amx_bf16", frozenset({"forward", "input_gradient"})),
        # Zen 4 and Zen 5. In fused loops XLA generates the code of forward products in 16 bits itself, which
        # makes a step slower.
        ("avx512_bf16", frozenset({"input_gradient"})),
    ),
    "float16": (),
}
"""Kinds of products in 16 bits by a flag of the processor, the best unit first.

Weight gradients, whose left factor is transposed, become faster on no processor. They and products of many
pairs of matrices, as in attention, stay in float32 on a CPU, also because XLA refuses some of them
("Unsupported element type for DotThunk", TensorFlow 2.21).
"""


@dataclass(frozen=True)
class Products:
    """Which products have factors in 16 bits.

    Args:
        dtype: Format of the factors, "bfloat16", "float16" or "float32".
        kinds: The kinds of products with factors in this format; all others have float32.
        are_batches_included: Whether these include products of many pairs of matrices.
    """

    dtype: str = "float32"
    kinds: frozenset[ProductKind] = frozenset()
    are_batches_included: bool = False

    def einsum(self, equation: str, left: Tensor, right: Tensor, kind: ProductKind) -> Tensor:
        """Return a product of two arrays, float32, whose gradient the caller provides.

        Args:
            equation: Einstein's notation; a letter once in an operand, summed letters in both operands.
            left: First factor, float32.
            right: Second factor, float32.
            kind: Purpose of the product.
        """
        is_rounded = kind in self.kinds and (self.are_batches_included or _num_pairs(equation, left) == 1)
        if not is_rounded:
            return ops.einsum(equation, left, right)
        return _sixteen_bit_einsum(equation, ops.cast(left, self.dtype), ops.cast(right, self.dtype))

    def matmul(self, left: Tensor, right: Tensor, kind: ProductKind) -> Tensor:
        """Return `left @ right`, float32, over the last two axes; gradient and arguments as for `einsum`."""
        is_rounded = kind in self.kinds and (self.are_batches_included or len(left.shape) == 2)
        if not is_rounded:
            return ops.matmul(left, right)
        return _sixteen_bit_matmul(ops.cast(left, self.dtype), ops.cast(right, self.dtype))

    def differentiable(
        self, equation: str, left: Tensor, right: Tensor, *, is_right_weight: bool = True
    ) -> Tensor:
        """Return a product, float32, whose gradients are products of their own kinds.

        Args:
            equation: As for `einsum`.
            left: First factor, an activation, float32.
            right: Second factor, float32.
            is_right_weight: Whether `right` is a weight; an activation has the gradient of an input.
        """
        if not self.kinds:
            return ops.einsum(equation, left, right)
        letters, output = equation.split("->")
        left_letters, right_letters = letters.split(",")
        right_kind: ProductKind = "weight_gradient" if is_right_weight else "input_gradient"

        def multiply(left: Tensor, right: Tensor) -> tuple[Tensor, Any]:
            def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, Tensor]:
                # JAX passes the gradient by name, TensorFlow as an argument.
                d_output = args[0] if upstream is None else upstream
                of_left = f"{output},{right_letters}->{left_letters}"
                of_right = f"{left_letters},{output}->{right_letters}"
                d_left = self.einsum(of_left, d_output, right, "input_gradient")
                d_right = self.einsum(of_right, left, d_output, right_kind)
                return d_left, d_right

            return self.einsum(equation, left, right, "forward"), gradient

        return ops.custom_gradient(multiply)(left, right)


FLOAT32: Final = Products()


def products_of(precision: str, *, is_on_gpu: bool, processor_flags: str) -> Products:
    """Choose which products have factors in 16 bits.

    Args:
        precision: "float32", "mixed_bfloat16" or "mixed_float16".
        is_on_gpu: Whether a GPU computes.
        processor_flags: Features that the processor reports, names separated by blanks.

    >>> products_of("mixed_bfloat16", is_on_gpu=False, processor_flags="avx2 avx512_bf16").kinds
    frozenset({'input_gradient'})
    >>> products_of("mixed_bfloat16", is_on_gpu=False, processor_flags="avx2") == FLOAT32
    True
    """
    dtype = DTYPES.get(precision)
    if dtype is None:
        return FLOAT32
    if is_on_gpu:
        return Products(dtype, ALL_KINDS, are_batches_included=True)
    flags = processor_flags.split()
    for flag, kinds in KINDS_ON_CPU[dtype]:
        if flag in flags:
            return Products(dtype, kinds)
    return FLOAT32


class MixedMatmul(keras.Operation):  # type: ignore[misc]  # Keras ships no types
    """`keras.ops.matmul` of two activations, with factors in 16 bits."""

    def __init__(self, products: Products, name: str) -> None:
        super().__init__(name=name)
        self._products = products

    def call(self, left: Tensor, right: Tensor) -> Tensor:
        """Return left @ right, (..., A, C), of (..., A, B) and (..., B, C), float32."""
        axes = "abcdefghijklmnopqrstuvw"[: len(left.shape) - 2]
        equation = f"{axes}xy,{axes}yz->{axes}xz"
        return self._products.differentiable(equation, left, right, is_right_weight=False)

    def compute_output_spec(self, left: Tensor, right: Tensor) -> Any:
        """Return shape and dtype of the result."""
        return keras.KerasTensor((*left.shape[:-1], right.shape[-1]), dtype=left.dtype)


def _sixteen_bit_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, float32, of factors in 16 bits."""
    if keras.backend.backend() == "jax":
        return backend().numpy.matmul(left, right, preferred_element_type="float32")
    return backend().matmul(left, right, output_type="float32")


def _sixteen_bit_einsum(equation: str, left: Tensor, right: Tensor) -> Tensor:
    """Return a product, float32, of factors in 16 bits.

    TensorFlow's einsum has no option for the format of its sums, so on TensorFlow it becomes a product of
    matrices; XLA merges the transpositions around it into the product.
    """
    if keras.backend.backend() == "jax":
        return backend().numpy.einsum(equation, left, right, preferred_element_type="float32")
    letters, output = equation.split("->")
    left_letters, right_letters = letters.split(",")
    shared = [letter for letter in left_letters if letter in right_letters]
    batch = [letter for letter in shared if letter in output]
    summed = [letter for letter in shared if letter not in output]
    rows = [letter for letter in left_letters if letter not in shared]
    columns = [letter for letter in right_letters if letter not in shared]
    sizes = dict(zip(left_letters, left.shape, strict=True))
    sizes |= dict(zip(right_letters, right.shape, strict=True))
    # A single pair is a plain product of two matrices, without a batch axis.
    is_single_pair = math.prod(_size(sizes, letter) for letter in batch) == 1
    batch_axes = [] if is_single_pair else batch
    left = _as_matrices(left, left_letters, [batch_axes, rows, summed], sizes)
    right = _as_matrices(right, right_letters, [batch_axes, summed, columns], sizes)
    product = _sixteen_bit_matmul(left, right)
    product_letters = [*batch, *rows, *columns]
    product = ops.reshape(product, [_size(sizes, letter) for letter in product_letters])
    return ops.transpose(product, [product_letters.index(letter) for letter in output])


def _num_pairs(equation: str, left: Tensor) -> int:
    """Count the pairs of matrices of which a product consists."""
    letters, output = equation.split("->")
    left_letters, right_letters = letters.split(",")
    sizes = dict(zip(left_letters, left.shape, strict=True))
    batch = [letter for letter in left_letters if letter in right_letters and letter in output]
    # A batch of unknown length counts as more than one pair.
    return math.prod(sizes[letter] or 2 for letter in batch)


def _as_matrices(
    array: Tensor, letters: str, groups: Sequence[Sequence[str]], sizes: Mapping[str, int | None]
) -> Tensor:
    """Arrange an array as matrices: the axes of the batch, then one axis of rows and one of columns.

    `groups` are the letters of the batch, of the rows and of the columns. Axes in no group have length 1.
    """
    order = [letters.index(letter) for group in groups for letter in group]
    length_one = [place for place in range(len(letters)) if place not in order]
    array = ops.transpose(array, [*length_one, *order])
    batch, rows, columns = groups
    shape = [_size(sizes, letter) for letter in batch]
    for group in (rows, columns):
        lengths = [_size(sizes, letter) for letter in group]
        shape.append(-1 if -1 in lengths else math.prod(lengths))
    return ops.reshape(array, shape)


def _size(sizes: Mapping[str, int | None], letter: str) -> int:
    """Return the length of an axis; -1 for a batch whose length is not known yet."""
    size = sizes[letter]
    return -1 if size is None else size
