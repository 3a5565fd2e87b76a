"""The formula of costs, by hand and by the products of the graph."""

from __future__ import annotations

from math import prod
from typing import Any

import keras
import pytest
from tiny_profiles import tiny_profile

from v8.model.networks.networks import build_network


def test_a_newest_row_network_costs_its_dense_layers_and_one_number_a_task_and_step() -> None:
    # Forward, two operations per entry: 12 x 6 and 6 x 4 in the layers, 4 for each of 3 tasks x 3 steps:
    # 2 x (72 + 24 + 36) = 264. Training costs three times that.
    assert tiny_profile("dense_newest").training_flop_per_window == 792


def test_a_newest_row_network_costs_the_same_whatever_it_looks_back() -> None:
    costs = {tiny_profile("dense_newest", lookback_bars=bars).training_flop_per_window for bars in (20, 60)}
    assert costs == {792}


def products_of(operation: Any, node: Any) -> int:
    """Count the multiplications of one call of a layer or operation that are part of a matrix product."""
    inputs = node.input_tensors
    output = node.outputs[0].shape
    if isinstance(operation, keras.layers.Dense):
        return prod(output[1:]) * operation.kernel.shape[0]
    if isinstance(operation, keras.layers.EinsumDense):
        kernel, left = operation.equation.split(",")[1].split("->")
        return prod(output[1:]) * prod(
            size for letter, size in zip(kernel, operation.kernel.shape, strict=True) if letter not in left
        )
    if isinstance(operation, keras.layers.GRU | keras.layers.LSTM):
        return inputs[0].shape[1] * sum(prod(one.shape) for one in (operation.weights[:2]))
    if isinstance(operation, keras.layers.GRUCell | keras.layers.LSTMCell):
        return sum(prod(one.shape) for one in operation.weights[:2])
    if isinstance(operation, keras.layers.AdditiveAttention):
        queries = inputs[0].shape
        keys = inputs[1].shape
        return 2 * queries[1] * keys[1] * keys[2]
    if type(operation).__name__ == "Matmul":
        return prod(output[1:]) * inputs[0].shape[-1]
    return 0


@pytest.mark.tf
@pytest.mark.parametrize("family", ["transformer", "gru_attention", "lstm_attention", "lstm_close"])
def test_the_formula_counts_the_products_of_the_graph_but_for_the_heads(family: str) -> None:
    profile = tiny_profile(family)
    counted = sum(
        products_of(operation, node)
        for operation in build_network(profile, seed=1).operations
        for node in operation._inbound_nodes
        if not operation.name.startswith("head_")
    )
    assert profile.training_flop_per_window == 3 * 2 * counted
