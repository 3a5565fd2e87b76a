"""Families that forecast bar after bar, each from their own forecast before, and attend to the window.

Shape legend: B batch, T lookback or time, H horizon, D channels, U units, C columns of a candle.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from v8.columns import OHLC
from v8.families.decoding import (
    Attention,
    Memory,
    RecurrentDecoder,
    attention_flop,
    causal_mask,
    decoded,
    encoded,
)
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


class GruAttentionNetwork(TaughtSettings):
    """Sizes of encoder and decoder, which are alike."""

    recurrent_units: Units
    """Units of each GRU layer of the encoder, first to last, and of the decoder's cells."""
    dropout: Dropout
    """Share of channels dropped between the layers, one draw a sequence; 0 switches it off."""


def _gru_attention(network: GruAttentionNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    width = network.recurrent_units[-1]
    window_BTU, states = encoded(window_BTF, layers, "GRU", network.recurrent_units, network.dropout)
    query, key = layers.dense(width, "query"), layers.dense(width, "key", use_bias=False)
    attend, key_BTU = _attention(layers, width), key(window_BTU)

    def look(x_BHU: Any) -> Any:
        return x_BHU + attend([query(x_BHU), window_BTU, key_BTU])

    decoder = RecurrentDecoder(layers, "GRU", states, network.dropout, look)
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


def _gru_flop(network: GruAttentionNetwork, shape: NetworkShape) -> float:
    bars, coming, units = shape.lookback_bars, shape.horizon_bars, network.recurrent_units
    encoder = recurrent_flop(bars, shape.num_features, units, num_gates=3)
    decoder = recurrent_flop(coming, len(OHLC), units, num_gates=3)
    dense = (bars + coming) * dense_flop(units[-1], units[-1])
    return encoder + decoder + dense + attention_flop(coming, bars, units[-1])


GRU_ATTENTION: Final = Family(
    name="gru_attention",
    sentence="GRUs with additive attention over the window's states; forecasts bar after bar.",
    source="Bahdanau et al. 2015, arXiv:1409.0473",
    settings=GruAttentionNetwork,
    outputs=_gru_attention,
    forward_flop=_gru_flop,
)


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


def _lstm_attention(network: LstmAttentionNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
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

    decoder = RecurrentDecoder(layers, "LSTM", states, network.dropout, look)
    return decoded(network, window_BTF, layers, decoder)


def _lstm_flop(network: LstmAttentionNetwork, shape: NetworkShape) -> float:
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
    outputs=_lstm_attention,
    forward_flop=_lstm_flop,
)
LONGEST_WAVE: Final = 10_000.0
"""Ratio of the longest wave of the positions to the shortest (Vaswani et al. 2017)."""


class TransformerNetwork(TaughtSettings):
    """Sizes of encoder and decoder."""

    width: Size
    """Channels of every bar, even and a multiple of `num_heads`."""
    num_heads: Size
    """Heads of each attention."""
    encoder_units: Units
    """Units of the feed-forward part (GELU) of each encoder layer, first to last."""
    decoder_units: Units
    """Units of the feed-forward part (GELU) of each decoder layer, first to last."""
    dropout: Dropout
    """Share of channels dropped after each part of a layer, one draw a sequence; 0 switches it off."""

    @property
    def first_units(self) -> int:
        """Width of most products."""
        return self.width

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.width % self.num_heads or self.width % 2:
            raise ValueError(f"width must be even and a multiple of num_heads; got {self.width}")
        return self


def positions(num_bars: int, width: int) -> NDArray[np.float32]:
    """Return sines and cosines by bar, (num_bars, width), unitless (Vaswani et al. 2017, section 3.5)."""
    angle = np.arange(num_bars)[:, None] * LONGEST_WAVE ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(num_bars, width).astype(np.float32)


@dataclass
class _Layer:
    """One layer of encoder or decoder; each part's result is added to what it read, and normalised."""

    network: TransformerNetwork
    layers: Layers
    name: str
    units: int
    num_bars: int

    def __post_init__(self) -> None:
        self.own = self.attention("own", self.num_bars)
        self.widen = self.layers.dense(self.units, f"{self.name}_widen", "gelu")
        self.narrow = self.layers.dense(self.network.width, f"{self.name}_narrow")
        self.add_own, self.add_dense = self.added("own"), self.added("dense")

    def attention(self, part: str, num_keys: int) -> Attention:
        sizes, name = (self.network.width, self.network.num_heads), f"{self.name}_{part}"
        return Attention.make(self.layers, *sizes, name, num_queries=self.num_bars, num_keys=num_keys)

    def added(self, part: str) -> Callable[[Any, Any], Any]:
        keras, name = self.layers.keras, f"{self.name}_{part}"
        drop = self.layers.dropout(name, self.network.dropout, is_sequence=True)
        norm = keras.layers.LayerNormalization(dtype=self.layers.precision, name=f"{name}_norm")
        return lambda x, y: norm(x + drop(y))

    def dense(self, x_BTD: Any) -> Any:
        return self.add_dense(x_BTD, self.narrow(self.widen(x_BTD)))

    def encoded(self, x_BTD: Any) -> Any:
        """Attend from every bar to all."""
        return self.dense(self.add_own(x_BTD, self.own.read(x_BTD, self.own.memory(x_BTD))))


@dataclass
class _DecoderLayer(_Layer):
    """A layer that attends to bars up to its own, then to the window, whose keys serve all bars."""

    window_BTD: Any
    past: Memory | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.other, self.add_other = self.attention("other", self.window_BTD.shape[-2]), self.added("other")
        self.window = self.other.memory(self.window_BTD)

    def following(self, x_B1D: Any) -> Any:
        """Attend to the bars so far, which are kept; later ones do not exist yet."""
        new = self.own.memory(x_B1D)
        self.past = self.past.with_more(new, self.layers) if self.past else new
        return self.watched(x_B1D, self.own.read(x_B1D, self.past))

    def whole(self, x_BHD: Any) -> Any:
        """Attend from every bar to itself and those before it."""
        memory, mask_HH = self.own.memory(x_BHD), causal_mask(self.num_bars)
        return self.watched(x_BHD, self.own.read(x_BHD, memory, mask_HH))

    def watched(self, x_BTD: Any, read_BTD: Any) -> Any:
        x_BTD = self.add_own(x_BTD, read_BTD)
        return self.dense(self.add_other(x_BTD, self.other.read(x_BTD, self.window)))


@dataclass
class _Decoder:
    """The layers over embedded candles; see `v8.families.decoding.Decoder`."""

    stack: list[_DecoderLayer]
    embed: Callable[[Any, NDArray[np.float32]], Any]
    places_HD: NDArray[np.float32]
    num_read: int = 0

    def following(self, candle_B1C: Any) -> Any:
        x_B1D = self.embed(candle_B1C, self.places_HD[[self.num_read]])
        self.num_read += 1
        for layer in self.stack:
            x_B1D = layer.following(x_B1D)
        return x_B1D

    def whole(self, candles_BHC: Any) -> Any:
        x_BHD = self.embed(candles_BHC, self.places_HD)
        for layer in self.stack:
            x_BHD = layer.whole(x_BHD)
        return x_BHD


def _transformer(network: TransformerNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    shape, embed = layers.shape, layers.dense(network.width, "embedding")
    # Candles of window and forecast are one kind of thing, so one layer reads both where they are alone.
    embed_candle = embed if shape.features == OHLC else layers.dense(network.width, "candle_embedding")
    drop = layers.dropout("embedding", network.dropout, is_sequence=True)
    x_BTD = drop(embed(window_BTF) + positions(shape.lookback_bars, network.width))
    for number, units in enumerate(network.encoder_units, 1):
        x_BTD = _Layer(network, layers, f"encoder_{number}", units, shape.lookback_bars).encoded(x_BTD)
    num_bars = 1 if layers.truth_BHC is None else shape.horizon_bars
    stack = [
        _DecoderLayer(network, layers, f"decoder_{number}", units, num_bars, x_BTD)
        for number, units in enumerate(network.decoder_units, 1)
    ]
    places_HD = positions(shape.horizon_bars, network.width)
    decoder = _Decoder(stack, lambda candles, places: drop(embed_candle(candles) + places), places_HD)
    return decoded(network, window_BTF, layers, decoder)


def _transformer_flop(network: TransformerNetwork, shape: NetworkShape) -> float:
    bars, coming, width = shape.lookback_bars, shape.horizon_bars, network.width
    square, candle = dense_flop(width, width), dense_flop(len(OHLC), width)
    encoder = sum(
        bars * (4 * square + dense_flop(width, units, width)) + attention_flop(bars, bars, width)
        for units in network.encoder_units
    )
    # Of a decoder's eight products of attention two read the window; a bar attends to those up to its own.
    past = sum(attention_flop(1, bar + bars, width) for bar in range(1, coming + 1))
    decoder = sum(
        coming * (6 * square + dense_flop(width, units, width)) + 2 * bars * square + past
        for units in network.decoder_units
    )
    return bars * dense_flop(shape.num_features, width) + coming * candle + encoder + decoder


TRANSFORMER: Final = Family(
    name="transformer",
    sentence="Attention over the window, and a causal decoder that forecasts bar after bar.",
    source="Vaswani et al. 2017, arXiv:1706.03762",
    settings=TransformerNetwork,
    outputs=_transformer,
    forward_flop=_transformer_flop,
)
