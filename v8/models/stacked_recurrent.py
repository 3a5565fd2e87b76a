"""Stacked twins of the recurrent layers, over the core in `recurrence`.

Shape legend: B batch, M model, T time, F features, U units, G gates times units.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from keras import ops

from v8.models.recurrence import GRU_GATES, LSTM_GATES, gru, lstm
from v8.models.stacked_layers import Shape, StackedLayer, Tensor

Weights: TypeAlias = tuple[Any, Any, Any]


class _StackedRecurrent(StackedLayer):
    """What LSTM and GRU share.

    Args:
        units: Units per model.
        return_sequences: Return all states, else the last one read.
        go_backwards: Read time from its end; a sequence comes out in reading order, as in Keras.
    """

    num_gates: int
    num_biases: int

    def __init__(
        self, *, units: int, return_sequences: bool = False, go_backwards: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.units, self.return_sequences, self.go_backwards = units, return_sequences, go_backwards

    def build(self, input_shape: Shape) -> None:
        """Add kernel (M, F, G), recurrent kernel (M, U, G) and bias."""
        self.cell = _add_cell(self, "", input_shape, self.units)

    def call(self, x_BMTF: Tensor) -> Tensor:
        """Run every model over its windows."""
        y = self.run(
            x_BMTF, self.cell, go_backwards=self.go_backwards, return_sequences=self.return_sequences
        )
        return ops.flip(y, axis=2) if self.go_backwards and self.return_sequences else y

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Drop features, and time unless sequences are returned."""
        return (*input_shape[: 3 if self.return_sequences else 2], self.units)

    @staticmethod
    def run(x_BMTF: Tensor, cell: Weights, *, go_backwards: bool, return_sequences: bool) -> Tensor:
        """Run the cell over time; outputs in the order of the inputs."""
        raise NotImplementedError


class StackedLSTM(_StackedRecurrent):
    """Twin of keras.layers.LSTM with default activations."""

    num_gates, num_biases = LSTM_GATES, 1

    @staticmethod
    def run(x_BMTF: Tensor, cell: Weights, *, go_backwards: bool, return_sequences: bool) -> Tensor:
        """Run the cell over time; outputs in the order of the inputs."""
        return lstm(x_BMTF, *cell, go_backwards=go_backwards, return_sequences=return_sequences)


class StackedGRU(_StackedRecurrent):
    """Twin of keras.layers.GRU with `reset_after` and default activations."""

    num_gates, num_biases = GRU_GATES, 2

    @staticmethod
    def run(x_BMTF: Tensor, cell: Weights, *, go_backwards: bool, return_sequences: bool) -> Tensor:
        """Run the cell over time; outputs in the order of the inputs."""
        return gru(x_BMTF, *cell, go_backwards=go_backwards, return_sequences=return_sequences)


class StackedBidirectional(StackedLayer):
    """Twin of keras.layers.Bidirectional with `merge_mode="concat"`.

    Args:
        kind: Twin class of the inner layer.
        units: Units per direction.
        return_sequences: Return all states, else the last one each direction read.
        are_directions_merged: Run both directions as 2M models in one loop. Halves the number of
            launches on a GPU; slower on a CPU, where two kernels do not fit the cache of a core.
    """

    def __init__(
        self,
        *,
        kind: type[_StackedRecurrent],
        units: int,
        return_sequences: bool = False,
        are_directions_merged: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kind, self.units, self.return_sequences = kind, units, return_sequences
        self.are_directions_merged = are_directions_merged

    @property
    def num_gates(self) -> int:
        """Gates of the inner layer."""
        return self.kind.num_gates

    @property
    def num_biases(self) -> int:
        """Biases of the inner layer."""
        return self.kind.num_biases

    def build(self, input_shape: Shape) -> None:
        """Add the weights of the forward layer, then of the backward layer."""
        self.forward_cell = _add_cell(self, "forward_", input_shape, self.units)
        self.backward_cell = _add_cell(self, "backward_", input_shape, self.units)

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
            self.kind.run(x_BMTF, cell, go_backwards=backwards, return_sequences=self.return_sequences)
            for cell, backwards in cells
        ]

    def _merged(self, x_BMTF: Tensor) -> list[Tensor]:
        both = ops.concatenate([x_BMTF, ops.flip(x_BMTF, axis=2)], axis=1)
        pairs = zip(self.forward_cell, self.backward_cell, strict=True)
        cell = tuple(ops.concatenate([one, other], axis=0) for one, other in pairs)
        y = self.kind.run(both, cell, go_backwards=False, return_sequences=self.return_sequences)
        forward, backward = ops.split(y, 2, axis=1)
        return [forward, ops.flip(backward, axis=2) if self.return_sequences else backward]


def _add_cell(
    layer: _StackedRecurrent | StackedBidirectional, prefix: str, input_shape: Shape, units: int
) -> Weights:
    num_features, num_columns = input_shape[-1], layer.num_gates * units
    assert num_features is not None  # noqa: S101 - narrows the type; the core reads it from the array
    bias = (num_columns,) if layer.num_biases == 1 else (layer.num_biases, num_columns)
    return (
        layer.add_stacked(f"{prefix}kernel", (num_features, num_columns)),
        layer.add_stacked(f"{prefix}recurrent_kernel", (units, num_columns)),
        layer.add_stacked(f"{prefix}bias", bias),
    )
