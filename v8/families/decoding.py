"""Decoders that forecast bar after bar, each from their own forecast of the bar before, and their parts.

Validation and every published file decode so, in one graph: the loop over the horizon is written out, and
plain Keras runs it. In training, and nowhere else, a decoder is taught ("teacher forcing", shifted by one):
it reads the horizon at once, the truth of the bar before in the place of the forecast of it. Windows that are
not taught read forecasts of a first pass over the newest candle, repeated: one step of Jacobi's iteration
towards what the loop would give (Song et al. 2021, arXiv:2002.03629). So a training step costs two passes and
no loop, which would take four times as long to compile. A first pass over the truth (Mihaylova and Martins
2019, arXiv:1906.07651) was tried, see scripts/RESULTS.md.

Shape legend: B batch, T lookback or queries, S keys, F features, H horizon, D channels, U units, N heads,
K channels of a head, C columns of a candle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from v8.columns import OHLC, TASK_OHLC
from v8.families.family import Layers, TaughtSettings

TEACHER: Final = "teacher"
"""Name of the layer that draws whose candle is read."""
HEAD_EQUATION: Final = "bhd,dc->bhc"
MASKED: Final = -1e9
"""Added to a score, leaves nothing of it after the softmax."""
States = list[list[Any]]
"""The states of each recurrent layer, (B, U); an LSTM has two."""


class Decoder(Protocol):
    """Turns the scaled candle before a bar into channels of that bar."""

    def following(self, candle_B1C: Any) -> Any:
        """Return the next bar, (B, 1, D); called once a bar, in order, it keeps what earlier bars left."""

    def whole(self, candles_BHC: Any) -> Any:
        """Return all bars, (B, H, D), none of which depends on a later candle than the one before it."""


def decoded(network: TaughtSettings, window_BTF: Any, layers: Layers, decoder: Decoder) -> dict[str, Any]:
    """Decode the horizon from the newest candle on, taught where `layers` have a truth; apply the heads."""
    heads = {task.name: layers.head(task, HEAD_EQUATION) for task in layers.shape.tasks}
    newest_B1C = layers.columns(layers.newest(window_BTF), OHLC)
    if layers.truth_BHC is None:
        x_BHD = _free(newest_B1C, layers, decoder, heads[TASK_OHLC])
    else:
        x_BHD = _taught(network.teacher_forcing, newest_B1C, layers, decoder, heads[TASK_OHLC])
    medians = {name: head(x_BHD) for name, head in heads.items()}
    return medians | layers.quantile_heads(x_BHD, HEAD_EQUATION)


def _free(newest_B1C: Any, layers: Layers, decoder: Decoder, head: Any) -> Any:
    ops, num_bars = layers.keras.ops, layers.shape.horizon_bars
    bars = [decoder.following(newest_B1C)]
    for bar in range(num_bars - 1):
        # The head has a bias of its own for each bar, so it is shown the whole horizon.
        repeated_BHD = ops.concatenate([bars[-1]] * num_bars, axis=-2)
        bars.append(decoder.following(ops.take(head(repeated_BHD), [bar], axis=-2)))
    return ops.concatenate(bars, axis=-2)


def _taught(share: float, newest_B1C: Any, layers: Layers, decoder: Decoder, head: Any) -> Any:
    ops, earlier = layers.keras.ops, list(range(layers.shape.horizon_bars - 1))
    first_BHC = head(decoder.whole(ops.concatenate([newest_B1C] * layers.shape.horizon_bars, axis=-2)))
    own = ops.stop_gradient(ops.take(first_BHC, earlier, axis=-2))
    truth = ops.take(layers.truth_BHC, earlier, axis=-2)
    drop = layers.keras.layers.Dropout(share, seed=next(layers.seeds), dtype="float32", name=TEACHER)
    is_own = drop(ops.ones_like(ops.take(newest_B1C, [0], axis=-1))) > 0
    return decoder.whole(ops.concatenate([newest_B1C, ops.where(is_own, own, truth)], axis=-2))


def encoded(
    window_BTF: Any, layers: Layers, kind: str, units: Sequence[int], dropout: float
) -> tuple[Any, States]:
    """Read the window with layers, "GRU" or "LSTM", of which some channels are dropped in between.

    Returns every state of the last layer, (B, T, U), and the last states of each.
    """
    x, states = window_BTF, States()
    for number, each in enumerate(units, 1):
        name = f"encoder_{number}"
        x = layers.dropout(name, dropout if number > 1 else 0.0, is_sequence=True)(x)
        x, *last = layers.loop(kind, each, name, return_sequences=True, return_state=True)(x)
        states.append(last)
    return x, states


class RecurrentDecoder:
    """Cells, "GRU" or "LSTM", as large as the encoder's layers, which go on from where those ended.

    While a network is taught every candle is known before the first step, so layers with the weights of the
    cells read them all: a loop that compiles in a third of the time of steps that are written out. `look`
    maps states of the last cell, (B, 1 or H, U), to channels, (B, 1 or H, D).
    """

    def __init__(
        self, layers: Layers, kind: str, states: States, dropout: float, look: Callable[[Any], Any]
    ) -> None:
        names = [f"decoder_{number}" for number in range(1, len(states) + 1)]
        made, options = f"{kind}Cell", dict[str, bool]()
        if layers.truth_BHC is not None:
            made, options = kind, {"return_sequences": True}
        self._ops, self._states, self._look = layers.keras.ops, states, look
        self._cells = [
            layers.loop(made, one[0].shape[-1], name, **options)
            for one, name in zip(states, names, strict=True)
        ]
        self._drops = [layers.dropout(name, dropout if place else 0.0) for place, name in enumerate(names)]

    def following(self, candle_B1C: Any) -> Any:
        """Take one step, and look at the window."""
        x, following = self._ops.squeeze(candle_B1C, axis=-2), States()
        for cell, drop, own in zip(self._cells, self._drops, self._states, strict=True):
            x, next_own = cell(drop(x), own)
            following.append(next_own)
        self._states = following
        return self._look(self._ops.expand_dims(x, axis=-2))

    def whole(self, candles_BHC: Any) -> Any:
        """Take all steps, and look at the window once."""
        x = candles_BHC
        for layer, drop, own in zip(self._cells, self._drops, self._states, strict=True):
            x = layer(drop(x), initial_state=own)
        return self._look(x)


class Memory(NamedTuple):
    """What can be attended to: keys (B, N, K, S) and values (B, N, S, K)."""

    keys_BNKS: Any
    values_BNSK: Any

    def with_more(self, more: Memory, layers: Layers) -> Memory:
        """Return both, the newer ones last."""
        join = layers.keras.ops.concatenate
        keys = join([self.keys_BNKS, more.keys_BNKS], axis=-1)
        return Memory(keys, join([self.values_BNSK, more.values_BNSK], axis=-2))


@dataclass(frozen=True)
class Attention:
    """Attention with several heads, in parts, so that a decoder makes keys and values once and keeps them.

    Arithmetic and weights are those of keras.layers.MultiHeadAttention (Vaswani et al. 2017,
    arXiv:1706.03762); a test compares the two.
    """

    layers: Layers
    query: Any
    key: Any
    value: Any
    output: Any

    @classmethod
    def make(
        cls, layers: Layers, width: int, num_heads: int, name: str, *, num_queries: int, num_keys: int
    ) -> Attention:
        """Make the layers for so many steps that attend in one `read` and so many keys of one `memory`.

        `width` channels go in and out, a multiple of `num_heads`.
        """

        def part(role: str, equation: str, output_shape: tuple[int, ...], bias_axes: str) -> Any:
            kernel = layers.keras.initializers.GlorotUniform(seed=next(layers.seeds))
            return layers.keras.layers.EinsumDense(
                equation,
                output_shape=output_shape,
                bias_axes=bias_axes,
                kernel_initializer=kernel,
                dtype=layers.precision,
                name=f"{name}_{role}",
            )

        size = width // num_heads
        return cls(
            layers,
            part("query", "btd,dnk->bntk", (num_heads, num_queries, size), "nk"),
            part("key", "bsd,dnk->bnks", (num_heads, size, num_keys), "nk"),
            part("value", "bsd,dnk->bnsk", (num_heads, num_keys, size), "nk"),
            part("output", "bntk,nkd->btd", (num_queries, width), "d"),
        )

    def memory(self, x_BSD: Any) -> Memory:
        """Make keys and values."""
        return Memory(self.key(x_BSD), self.value(x_BSD))

    def read(self, x_BTD: Any, memory: Memory, mask_TS: NDArray[np.float32] | None = None) -> Any:
        """Attend from x to a memory, (B, T, D); the mask is added to the scores."""
        ops, query_BNTK = self.layers.keras.ops, self.query(x_BTD)
        scores_BNTS = ops.matmul(query_BNTK * query_BNTK.shape[-1] ** -0.5, memory.keys_BNKS)
        if mask_TS is not None:
            scores_BNTS = scores_BNTS + mask_TS
        is_alone = scores_BNTS.shape[-1] == 1  # Keras warns of a softmax over one
        weights_BNTS = ops.ones_like(scores_BNTS) if is_alone else ops.softmax(scores_BNTS, axis=-1)
        return self.output(ops.matmul(weights_BNTS, memory.values_BNSK))


def causal_mask(num_bars: int) -> NDArray[np.float32]:
    """Return what keeps every bar from attending to later ones, shape (T, T), added to scores."""
    return np.triu(np.full((num_bars, num_bars), MASKED, np.float32), 1)


def attention_flop(num_queries: int, num_keys: int, width: int) -> float:
    """Count scores and weighted sums of an attention; its dense layers are `dense_flop`."""
    return 4.0 * num_queries * num_keys * width
