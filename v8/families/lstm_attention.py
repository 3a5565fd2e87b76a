"""Family `lstm_attention`: LSTMs read the window, LSTM cells write the horizon and attend to the window."""

from __future__ import annotations

from typing import Any, Final, Self

from pydantic import model_validator

from v8.columns import OHLC
from v8.families.attention import Attention, attention_flop
from v8.families.decoding import decoded
from v8.families.family import (
    Dropout,
    Family,
    Layers,
    NetworkShape,
    Size,
    TaughtSettings,
    Units,
    dense_flop,
    recurrent_flop,
)
from v8.families.recurrent_decoding import RecurrentDecoder, encoded


class LstmAttentionNetwork(TaughtSettings):
    """Sizes of encoder, decoder, attention and output."""

    recurrent_units: Units
    """Units of each LSTM layer of the encoder, first to last, and of the decoder's cells; the last number is
    a multiple of `num_heads`."""
    num_heads: Size
    """Heads of the attention."""
    dense_units: Units
    """Units of each dense layer (ReLU) over the decoder's state and what it attended to, first to last."""
    dropout: Dropout
    """Share of channels dropped between the layers, one draw a sequence; 0 switches it off."""

    @model_validator(mode="after")
    def _heads_share_the_units(self) -> Self:
        if self.recurrent_units[-1] % self.num_heads:
            raise ValueError(
                f"recurrent_units must end in a multiple of num_heads; got {self.recurrent_units[-1]}"
            )
        return self


def _outputs(network: LstmAttentionNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    ops, shape, width = layers.keras.ops, layers.shape, network.recurrent_units[-1]
    window_BTU, states = encoded(window_BTF, layers, "LSTM", network.recurrent_units, network.dropout)
    num_bars = 1 if layers.truth_BHC is None else shape.horizon_bars
    steps = {"num_queries": num_bars, "num_keys": shape.lookback_bars}
    attention = Attention.make(layers, width, network.num_heads, "attention", **steps)
    memory = attention.memory(window_BTU)
    dense = [
        (layers.dense(units, f"dense_{number}", "relu"), layers.dropout(f"dense_{number}", network.dropout))
        for number, units in enumerate(network.dense_units, 1)
    ]

    def look(x_BHU: Any) -> Any:
        x_BHD = ops.concatenate([x_BHU, attention.read(x_BHU, memory)], axis=-1)
        for layer, drop in dense:
            x_BHD = drop(layer(x_BHD))
        return x_BHD

    decoder = RecurrentDecoder.make(layers, "LSTM", states, network.dropout, look)
    return decoded(network, window_BTF, layers, decoder)


def _forward_flop(network: LstmAttentionNetwork, shape: NetworkShape) -> float:
    bars, coming, units = shape.lookback_bars, shape.horizon_bars, network.recurrent_units
    width = units[-1]
    cells = recurrent_flop(bars, shape.num_features, units) + recurrent_flop(coming, len(OHLC), units)
    # Keys and values of the window, queries and outputs of the horizon.
    attention = 2 * (bars + coming) * dense_flop(width, width) + attention_flop(coming, bars, width)
    return cells + attention + coming * dense_flop(2 * width, *network.dense_units)


LSTM_ATTENTION: Final = Family(
    name="lstm_attention",
    sentence="LSTMs with attention of several heads to the window's states; forecasts bar after bar.",
    source="Sutskever et al. 2014, arXiv:1409.3215; attention of Vaswani et al. 2017, arXiv:1706.03762",
    settings=LstmAttentionNetwork,
    outputs=_outputs,
    forward_flop=_forward_flop,
)
