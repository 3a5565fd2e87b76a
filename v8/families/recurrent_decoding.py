"""Recurrent layers that read the window, and cells that go on from where those ended, bar after bar.

While a network is taught every candle is known before the first step, so layers with the weights of the cells
read them all: a loop that compiles in a third of the time of steps that are written out.

Shape legend: B batch, T lookback, H horizon, U units, D channels, C columns of a candle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from v8.families.family import Layers

Kind = Literal["GRU", "LSTM"]
States = list[list[Any]]
"""The states of each layer, (B, U); an LSTM has two."""


def encoded(
    window_BTF: Any, layers: Layers, kind: Kind, units: Sequence[int], dropout: float
) -> tuple[Any, States]:
    """Read the window with layers of which some channels are dropped in between.

    Returns:
        Every state of the last layer, (B, T, U), and the last states of each.
    """
    x, states = window_BTF, States()
    for number, each in enumerate(units, 1):
        x = layers.dropped(x, f"encoder_{number}", dropout if number > 1 else 0.0, is_sequence=True)
        layer = _made(layers, kind, each, f"encoder_{number}", return_sequences=True, return_state=True)
        x, *last = layer(x)
        states.append(last)
    return x, states


@dataclass
class RecurrentDecoder:
    """Cells that begin with the encoder's states; see `v8.families.decoding.Decoder`.

    Args:
        layers: Makes operations.
        cells: First to last; layers while the network is taught.
        drops: What drops channels before each.
        states: Of each cell, for the next bar.
        look: Maps states of the last cell, (B, 1 or H, U), to channels, (B, 1 or H, D).
    """

    layers: Layers
    cells: list[Any]
    drops: list[Callable[[Any], Any]]
    states: States
    look: Callable[[Any], Any]

    @classmethod
    def make(
        cls, layers: Layers, kind: Kind, states: States, dropout: float, look: Callable[[Any], Any]
    ) -> RecurrentDecoder:
        """Make cells as large as the encoder's layers."""
        names = [f"decoder_{number}" for number in range(1, len(states) + 1)]
        sizes = [one[0].shape[-1] for one in states]
        made, options = f"{kind}Cell", dict[str, bool]()
        if layers.truth_BHC is not None:
            made, options = kind, {"return_sequences": True}
        cells = [_made(layers, made, size, name, **options) for size, name in zip(sizes, names, strict=True)]
        drops = [layers.dropout(name, dropout if place else 0.0) for place, name in enumerate(names)]
        return cls(layers, cells, drops, states, look)

    def following(self, candle_B1C: Any) -> Any:
        """Take one step, and look at the window."""
        x_B1U, self.states = self._step(candle_B1C, self.states)
        return self.look(x_B1U)

    def whole(self, candles_BHC: Any) -> Any:
        """Take all steps, and look at the window once."""
        x = candles_BHC
        for layer, drop, own in zip(self.cells, self.drops, self.states, strict=True):
            x = layer(drop(x), initial_state=own)
        return self.look(x)

    def _step(self, candle_B1C: Any, states: States) -> tuple[Any, States]:
        ops, following = self.layers.keras.ops, States()
        x = ops.squeeze(candle_B1C, axis=-2)
        for cell, drop, own in zip(self.cells, self.drops, states, strict=True):
            x, next_own = cell(drop(x), own)
            following.append(next_own)
        return ops.expand_dims(x, axis=-2), following


def _made(layers: Layers, kind: str, units: int, name: str, **options: bool) -> Any:
    kernel = layers.keras.initializers.GlorotUniform(seed=next(layers.seeds))
    recurrent = layers.keras.initializers.Orthogonal(seed=next(layers.seeds))
    initializers = {"kernel_initializer": kernel, "recurrent_initializer": recurrent}
    return getattr(layers.keras.layers, kind)(
        units, **initializers, **options, dtype=layers.precision, name=name
    )
