"""Stacked twins of the recurrent layers, over the core in `recurrence`.

Shape legend: B batch, M model, T time, F features, U units, G gates times units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import keras
from keras import ops

from v8.models.recurrence import GRU_GATES, LSTM_GATES, gru, lstm
from v8.models.stacked_layers import Layer, Shape, StackedLayer, Tensor, require, twin_of

Weights: TypeAlias = tuple[Any, Any, Any]


class _StackedRecurrent(StackedLayer):
    """What LSTM and GRU share; time read from its end comes out in reading order, as in Keras."""

    num_gates: int
    num_biases: int
    run: ClassVar[Callable[..., Tensor]]
    """Runs the cell over time; outputs in the order of the inputs."""

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        _require_defaults(stock)
        self.units, self.return_sequences = stock.units, stock.return_sequences
        self.go_backwards = stock.go_backwards

    def build(self, input_shape: Shape) -> None:
        """Add kernel (M, F, G), recurrent kernel (M, U, G) and bias."""
        self.cell = _add_cell(self, type(self), "", input_shape)

    def call(self, x_BMTF: Tensor) -> Tensor:
        """Run every model over its windows."""
        y = self.run(
            x_BMTF, *self.cell, go_backwards=self.go_backwards, return_sequences=self.return_sequences
        )
        return ops.flip(y, axis=2) if self.go_backwards and self.return_sequences else y

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Drop features, and time unless sequences are returned."""
        return (*input_shape[: 3 if self.return_sequences else 2], self.units)


@twin_of(keras.layers.LSTM)
class StackedLSTM(_StackedRecurrent):
    """Twin of keras.layers.LSTM with default activations."""

    num_gates, num_biases, run = LSTM_GATES, 1, staticmethod(lstm)


@twin_of(keras.layers.GRU)
class StackedGRU(_StackedRecurrent):
    """Twin of keras.layers.GRU with `reset_after` and default activations."""

    num_gates, num_biases, run = GRU_GATES, 2, staticmethod(gru)


@twin_of(keras.layers.Bidirectional)
class StackedBidirectional(StackedLayer):
    """Twin of keras.layers.Bidirectional with `merge_mode="concat"`.

    `are_directions_merged` runs both directions as 2M models in one loop. It halves the number of launches
    on a GPU; it is slower on a CPU, where two kernels do not fit the cache of a core.
    """

    def __init__(self, stock: Layer, **common: Any) -> None:
        super().__init__(**common)
        require(stock, merge_mode="concat")
        forward, backward = stock.forward_layer, stock.backward_layer
        _require_defaults(forward)
        _require_defaults(backward)
        self.units, self.return_sequences = forward.units, forward.return_sequences
        if (backward.units, backward.return_sequences) != (self.units, self.return_sequences):
            raise ValueError(
                f"{stock.name}: both directions need the same units; got two. Give both layers one size."
            )
        self.kind = StackedLSTM if isinstance(forward, keras.layers.LSTM) else StackedGRU
        self.are_directions_merged = False

    def build(self, input_shape: Shape) -> None:
        """Add the weights of the forward layer, then of the backward layer."""
        self.forward_cell = _add_cell(self, self.kind, "forward_", input_shape)
        self.backward_cell = _add_cell(self, self.kind, "backward_", input_shape)

    def call(self, x_BMTF: Tensor) -> Tensor:
        """Run both directions; (B, M, T, 2U) or (B, M, 2U)."""
        run = self._merged if self.are_directions_merged else self._one_by_one
        return ops.concatenate(run(x_BMTF), axis=-1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Drop features, and time unless sequences are returned."""
        return (*input_shape[: 3 if self.return_sequences else 2], 2 * self.units)

    def _one_by_one(self, x_BMTF: Tensor) -> list[Tensor]:
        cells = ((self.forward_cell, False), (self.backward_cell, True))
        return [
            self.kind.run(x_BMTF, *cell, go_backwards=backwards, return_sequences=self.return_sequences)
            for cell, backwards in cells
        ]

    def _merged(self, x_BMTF: Tensor) -> list[Tensor]:
        both = ops.concatenate([x_BMTF, ops.flip(x_BMTF, axis=2)], axis=1)
        pairs = zip(self.forward_cell, self.backward_cell, strict=True)
        cell = tuple(ops.concatenate([one, other], axis=0) for one, other in pairs)
        y = self.kind.run(both, *cell, go_backwards=False, return_sequences=self.return_sequences)
        forward, backward = ops.split(y, 2, axis=1)
        return [forward, ops.flip(backward, axis=2) if self.return_sequences else backward]


def _require_defaults(stock: Layer) -> None:
    require(stock, activation="tanh", recurrent_activation="sigmoid", dropout=0, recurrent_dropout=0)
    require(stock, return_state=False, stateful=False, use_bias=True)
    if isinstance(stock, keras.layers.GRU):
        require(stock, reset_after=True)


def _add_cell(
    layer: _StackedRecurrent | StackedBidirectional,
    kind: type[_StackedRecurrent],
    prefix: str,
    input_shape: Shape,
) -> Weights:
    num_columns = kind.num_gates * layer.units
    bias = (num_columns,) if kind.num_biases == 1 else (kind.num_biases, num_columns)
    return (
        layer.add_stacked(f"{prefix}kernel", (input_shape[-1], num_columns)),
        layer.add_stacked(f"{prefix}recurrent_kernel", (layer.units, num_columns)),
        layer.add_stacked(f"{prefix}bias", bias),
    )
