"""Family `gru_attention`: GRUs read the window, GRU cells write the horizon and look back at the window."""

from __future__ import annotations

from typing import Any, Final

from v8.columns import OHLC
from v8.families.attention import attention_flop
from v8.families.decoding import decoded
from v8.families.family import (
    Dropout,
    Family,
    Layers,
    NetworkShape,
    TaughtSettings,
    Units,
    dense_flop,
    recurrent_flop,
)
from v8.families.recurrent_decoding import RecurrentDecoder, encoded

NUM_GATES: Final = 3


class GruAttentionNetwork(TaughtSettings):
    """Sizes of encoder and decoder, which are alike."""

    recurrent_units: Units
    """Units of each GRU layer of the encoder, first to last, and of the decoder's cells."""
    dropout: Dropout
    """Share of channels dropped between the layers, one draw a sequence; 0 switches it off."""


def _outputs(network: GruAttentionNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    width = network.recurrent_units[-1]
    window_BTU, states = encoded(window_BTF, layers, "GRU", network.recurrent_units, network.dropout)
    query, key = layers.dense(width, "query"), layers.dense(width, "key", use_bias=False)
    attend, key_BTU = _attention(layers, width), key(window_BTU)

    def look(x_BHU: Any) -> Any:
        return x_BHU + attend([query(x_BHU), window_BTU, key_BTU])

    decoder = RecurrentDecoder.make(layers, "GRU", states, network.dropout, look)
    return decoded(network, window_BTF, layers, decoder)


def _attention(layers: Layers, width: int) -> Any:
    keras, shape = layers.keras, layers.shape
    attend = keras.layers.AdditiveAttention(dtype=layers.precision, name="attention")
    attend.build(
        [(None, bars, width) for bars in (shape.horizon_bars, shape.lookback_bars, shape.lookback_bars)]
    )
    # Keras draws it without a seed.
    attend.scale.assign(keras.initializers.GlorotUniform(seed=next(layers.seeds))((width,)))
    return attend


def _forward_flop(network: GruAttentionNetwork, shape: NetworkShape) -> float:
    bars, coming, units = shape.lookback_bars, shape.horizon_bars, network.recurrent_units
    encoder = recurrent_flop(bars, shape.num_features, units, num_gates=NUM_GATES)
    decoder = recurrent_flop(coming, len(OHLC), units, num_gates=NUM_GATES)
    dense = (bars + coming) * dense_flop(units[-1], units[-1])
    return encoder + decoder + dense + attention_flop(coming, bars, units[-1])


GRU_ATTENTION: Final = Family(
    name="gru_attention",
    sentence="GRUs with additive attention over the window's states; forecasts bar after bar.",
    source="Bahdanau et al. 2015, arXiv:1409.0473",
    settings=GruAttentionNetwork,
    outputs=_outputs,
    forward_flop=_forward_flop,
)
