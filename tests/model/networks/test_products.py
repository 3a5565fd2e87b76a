"""Mixed precision rounds the factors of products, and nothing else."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from float32_steps import assert_within_steps
from keras import ops
from tiny_profiles import tiny_profile

from v8.model.networks.networks import build_network, stack
from v8.model.networks.products import ALL_KINDS, FLOAT32, Products, products_of
from v8.model.training.step import _compiled, gradients_of

pytestmark = pytest.mark.tf

EVERYTHING = Products("bfloat16", ALL_KINDS, are_batches_included=True)
ON_A_CPU = Products("bfloat16", frozenset({"forward", "input_gradient"}))
EQUATIONS = {
    "nf,fg->ng": ((6, 5), (5, 4)),
    "ng,fg->nf": ((6, 4), (5, 4)),
    "nf,ng->fg": ((6, 5), (6, 4)),
    "bmad,mdu->bmau": ((3, 2, 6, 5), (2, 5, 4)),
    "bmd,mdhr->bmhr": ((3, 2, 5), (2, 5, 4, 1)),
    "bmthk,bmshk->bmhts": ((3, 2, 6, 2, 5), (3, 2, 7, 2, 5)),
    "bmts,bmsd->bmtd": ((3, 2, 6, 7), (3, 2, 7, 5)),
}


def rounded(array: np.ndarray) -> np.ndarray:
    """Round to bfloat16, to the nearest even one, and back."""
    return np.asarray(ops.convert_to_numpy(ops.cast(ops.cast(array, "bfloat16"), "float32")))


def pair_of(equation: str) -> list[np.ndarray]:
    draws = np.random.default_rng(5)
    return [draws.standard_normal(shape).astype(np.float32) for shape in EQUATIONS[equation]]


@pytest.mark.parametrize(
    ("precision", "is_on_gpu", "flags", "expected"),
    [
        ("float32", True, "", FLOAT32),
        ("mixed_bfloat16", True, "", EVERYTHING),
        ("mixed_float16", True, "avx512_bf16", Products("float16", ALL_KINDS, are_batches_included=True)),
        ("mixed_bfloat16", False, "avx512f avx512_bf16", Products("bfloat16", frozenset({"input_gradient"}))),
        ("mixed_bfloat16", False, "avx512_bf16 amx_bf16", ON_A_CPU),
        ("mixed_bfloat16", False, "avx2 avx512f", FLOAT32),
        ("mixed_float16", False, "avx512_bf16 avx512_fp16", FLOAT32),
    ],
)
def test_a_processor_rounds_only_the_products_that_gain_there(
    precision: str, is_on_gpu: bool, flags: str, expected: Products
) -> None:
    assert products_of(precision, is_on_gpu=is_on_gpu, processor_flags=flags) == expected


@pytest.mark.parametrize("equation", EQUATIONS)
def test_factors_are_rounded_and_sums_are_not(equation: str) -> None:
    left, right = pair_of(equation)
    multiply = _compiled(lambda left, right: EVERYTHING.einsum(equation, left, right, "forward"))
    product = multiply(left, right)
    assert keras.backend.standardize_dtype(product.dtype) == "float32"
    expected = np.einsum(equation, rounded(left).astype(float), rounded(right).astype(float))
    # 12 bits more than bfloat16 holds: sums in 16 bits would miss this by a factor of a thousand.
    assert_within_steps(ops.convert_to_numpy(product), expected, steps=8)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_a_gradient_is_a_product_of_rounded_factors_too(equation: str) -> None:
    left, right = pair_of(equation)
    output = np.einsum(equation, left, right)
    slope = np.random.default_rng(6).standard_normal(output.shape).astype(np.float32)

    def loss_of(arrays: Any) -> tuple[Any, Any]:
        return ops.sum(EVERYTHING.differentiable(equation, *arrays) * slope), None

    d_left, d_right = _compiled(lambda left, right: gradients_of(loss_of, [left, right])[0])(left, right)
    letters, result = equation.split("->")
    left_letters, right_letters = letters.split(",")
    of_left = np.einsum(f"{result},{right_letters}->{left_letters}", rounded(slope), rounded(right))
    of_right = np.einsum(f"{left_letters},{result}->{right_letters}", rounded(left), rounded(slope))
    assert_within_steps(ops.convert_to_numpy(d_left), of_left, steps=8)
    assert_within_steps(ops.convert_to_numpy(d_right), of_right, steps=8)


def test_products_of_many_pairs_stay_in_float32_on_a_cpu() -> None:
    for equation, is_rounded in {"bmts,bmsd->bmtd": False, "nf,fg->ng": True}.items():
        left, right = pair_of(equation)

        def multiply(left: Any, right: Any, equation: str = equation) -> Any:
            return ON_A_CPU.einsum(equation, left, right, "forward")

        exact = ops.convert_to_numpy(ops.einsum(equation, left, right))
        product = ops.convert_to_numpy(_compiled(multiply)(left, right))
        assert np.allclose(product, exact, rtol=1e-5, atol=1e-5) != is_rounded


def test_a_kind_that_does_not_gain_stays_in_float32() -> None:
    left, right = pair_of("nf,fg->ng")
    products = Products("bfloat16", frozenset({"input_gradient"}))
    exact = ops.convert_to_numpy(ops.einsum("nf,fg->ng", left, right))
    forward = products.einsum("nf,fg->ng", left, right, "forward")
    np.testing.assert_array_equal(ops.convert_to_numpy(forward), exact)
    multiply = _compiled(lambda left, right: products.einsum("nf,fg->ng", left, right, "input_gradient"))
    assert not np.array_equal(ops.convert_to_numpy(multiply(left, right)), exact)


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["bilstm_seq2seq", "transformer", "gru_attention"])
def test_gradients_in_mixed_precision_are_near_those_in_float32(family: str) -> None:
    profile = tiny_profile(family)
    network = build_network(profile, seed=1, precision="mixed_bfloat16")
    draws = np.random.default_rng(7)
    x_BMTF = draws.standard_normal((4, 1, 20, 12)).astype(np.float32)
    gradients = {}
    for name, products in {"float32": FLOAT32, "mixed": ON_A_CPU}.items():
        fleet = stack(network, 1, products=products)
        assert {weight.dtype for weight in fleet.trainable_variables} == {"float32"}
        # Heads begin at zero, which would hide everything before them.
        start = np.random.default_rng(8)
        weights = [0.3 * start.standard_normal(w.shape).astype(np.float32) for w in fleet.trainable_variables]
        constants = [ops.convert_to_numpy(constant) for constant in fleet.non_trainable_variables]

        def loss_of(
            weights: Any, fleet: keras.Model = fleet, constants: Any = tuple(constants)
        ) -> tuple[Any, Any]:
            forecast, _ = fleet.stateless_call(weights, list(constants), x_BMTF, training=True)
            assert {keras.backend.standardize_dtype(task.dtype) for task in forecast.values()} == {"float32"}
            return sum(ops.sum(ops.square(task)) for task in forecast.values()), None

        found = _compiled(lambda *weights, loss_of=loss_of: gradients_of(loss_of, weights)[0])(*weights)
        gradients[name] = np.concatenate([ops.convert_to_numpy(array).ravel() for array in found])
    size = np.linalg.norm(gradients["float32"])
    difference = np.linalg.norm(gradients["mixed"] - gradients["float32"])
    assert 0 < difference < 0.05 * size  # 8 bits of mantissa, averaged over products and steps
