"""Attention with several heads, in parts, so that a decoder makes keys and values once and keeps them.

The arithmetic and the weights are those of keras.layers.MultiHeadAttention (Vaswani et al. 2017,
arXiv:1706.03762); a test compares the two.

Shape legend: B batch, T queries, S keys, D channels, N heads, K channels of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from v8.families.family import Layers

MASKED: Final = -1e9
"""Added to a score, leaves nothing of it after the softmax."""


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
    """The layers of one attention, made by `make`."""

    layers: Layers
    query: Any
    key: Any
    value: Any
    output: Any

    @classmethod
    def make(
        cls, layers: Layers, width: int, num_heads: int, name: str, *, num_queries: int, num_keys: int
    ) -> Attention:
        """Make the layers.

        Args:
            layers: What makes them.
            width: Channels in and out, a multiple of `num_heads`.
            num_heads: Heads of `width / num_heads` channels each.
            name: What the names of the layers begin with.
            num_queries: Steps that attend in one `read`.
            num_keys: Steps of one `memory`.
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
        """Attend from x to a memory, (B, T, D).

        Args:
            x_BTD: What asks.
            memory: What is asked.
            mask_TS: Added to the scores.
        """
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
