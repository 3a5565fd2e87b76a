"""Layers that families have in common, in stock Keras.

Shape legend: B batch, T time, D channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from v8.families.family import NetworkShape
from v8.tasks.task import Task

HEAD_PREFIX = "head_"


@dataclass(frozen=True)
class Layers:
    """Makes the layers of one network.

    Args:
        shape: What goes in and comes out.
        precision: Keras dtype policy of all layers but the heads.
        seeds: Every draw takes the next one.
    """

    shape: NetworkShape
    precision: str
    seeds: Iterator[int]

    def recurrent(
        self,
        x_BTD: Any,
        name: str,
        units: Sequence[int],
        dropout: float,
        *,
        is_bidirectional: bool = False,
        is_sequence: bool = False,
    ) -> Any:
        """Apply layers of LSTMs, each normalised over channels of which some are dropped.

        Args:
            x_BTD: Keras tensor.
            name: What the names of the layers begin with.
            units: Units of each layer per direction.
            dropout: Share of channels dropped.
            is_bidirectional: Read in both directions.
            is_sequence: Return every step, not only the last.
        """
        for number, each in enumerate(units, 1):
            layer, has_steps = f"{name}_{number}", is_sequence or number < len(units)
            make = self._bilstm if is_bidirectional else self._lstm
            x_BTD = make(each, layer, is_sequence=has_steps)(x_BTD)
            x_BTD = keras.layers.LayerNormalization(dtype=self.precision, name=f"{layer}_norm")(x_BTD)
            x_BTD = self.dropped(x_BTD, layer, dropout, is_sequence=has_steps)
        return x_BTD

    def dropped(self, x: Any, name: str, dropout: float, *, is_sequence: bool = False) -> Any:
        """Drop some channels: one draw a sequence is a third cheaper than one a step, and what is meant."""
        if not dropout:
            return x
        noise_shape = (None, 1, None) if is_sequence else None
        return keras.layers.Dropout(
            dropout, noise_shape=noise_shape, seed=next(self.seeds), dtype=self.precision, name=f"{name}_drop"
        )(x)

    def head(self, task: Task, equation: str) -> Any:
        """Make a task's last layer by an equation of keras.layers.EinsumDense that ends in `bhc`.

        Its kernel is zero, and `build_network` sets its bias to the constant start.
        """
        return keras.layers.EinsumDense(
            equation,
            output_shape=(self.shape.horizon_bars, len(task.columns)),
            bias_axes="hc",
            kernel_initializer="zeros",
            dtype="float32",  # 16 bits cannot tell neighbouring prices apart
            name=HEAD_PREFIX + task.name,
        )

    def heads(self, x: Any, equation: str) -> dict[str, Any]:
        """Apply every task's head, all by one equation."""
        return {task.name: self.head(task, equation)(x) for task in self.shape.tasks}

    def _bilstm(self, units: int, name: str, *, is_sequence: bool) -> Any:
        return keras.layers.Bidirectional(
            self._lstm(units, f"{name}_forward", is_sequence=is_sequence),
            backward_layer=self._lstm(units, f"{name}_backward", is_sequence=is_sequence, go_backwards=True),
            dtype=self.precision,
            name=name,
        )

    def _lstm(self, units: int, name: str, *, is_sequence: bool, go_backwards: bool = False) -> Any:
        return keras.layers.LSTM(
            units,
            return_sequences=is_sequence,
            go_backwards=go_backwards,
            kernel_initializer=keras.initializers.GlorotUniform(seed=next(self.seeds)),
            recurrent_initializer=keras.initializers.Orthogonal(seed=next(self.seeds)),
            dtype=self.precision,
            name=name,
        )
