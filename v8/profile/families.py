"""The network families: the registry of all, and those that forecast one bar after another, with attention.

Each bar is forecast from the forecast of the bar before.

Validation and every published model decode in this way, in one graph: the loop over the horizon is unrolled,
and plain Keras runs it. Only training uses teacher forcing, shifted by one bar: the decoder reads all bars of
the horizon in one call, with the actual candle of the previous bar in place of its forecast. Windows that are
drawn to be without teacher forcing read the forecasts of a first pass, in which every bar reads the newest
known candle. This is one step of Jacobi iteration towards the result of the loop (Song et al. 2021,
arXiv:2002.03629). So a training step costs two passes and no loop, which would take four times as long to
compile. A first pass over the actual candles (Mihaylova and Martins 2019, arXiv:1906.07651) was tried, see
docs/research/training.md.

Shape legend: B batch, T lookback or queries, S keys, F features, H horizon, D channels, U units, N heads,
K channels of a head, C columns of a candle.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from v8.base.registry import Registry
from v8.profile.columns import OHLC, TASK_OHLC
from v8.profile.family import (
    BILSTM_SEQ2SEQ,
    DENSE_NEWEST,
    LSTM_CLOSE,
    LSTM_DENSE,
    RANGE_PATHS,
    Dropout,
    Family,
    Layers,
    NetworkShape,
    Size,
    TeacherForcingSettings,
    Units,
    dense_flop,
    recurrent_flop,
    shipped_family,
)

TEACHER: Final = "teacher"  # name of the layer that draws for which windows teacher forcing is used
HEAD_EQUATION: Final = "bhd,dc->bhc"
MASKED: Final = -1e9  # added to a score, it makes the weight 0 after the softmax
LONGEST_WAVE: Final = 10_000.0
"""Ratio of the longest wavelength of the positions to the shortest (Vaswani et al. 2017)."""
States = list[list[Any]]
"""The states of each recurrent layer, (B, U) each; an LSTM has two."""


class Decoder(Protocol):
    """Maps the scaled candle before a bar to channels of that bar."""

    def next_bar(self, candle_B1C: Any) -> Any:
        """Return the channels of the next bar, (B, 1, D); called once for each bar, in order."""

    def all_bars(self, candles_BHC: Any) -> Any:
        """Return the channels of all bars, (B, H, D); a bar depends on the candles before it only."""


def decoded(
    network: TeacherForcingSettings, window_BTF: Any, layers: Layers, decoder: Decoder
) -> dict[str, Any]:
    """Decode the horizon from the newest candle on and apply the heads.

    With teacher forcing (`layers.actual_BHC`) all bars are decoded in one call, otherwise one after another.
    """
    ops = layers.keras.ops
    num_bars = layers.shape.horizon_bars
    heads = {task.name: layers.head(task, HEAD_EQUATION) for task in layers.shape.tasks}
    newest_B1C = layers.columns(layers.newest(window_BTF), OHLC)
    if layers.actual_BHC is None:
        bars = [decoder.next_bar(newest_B1C)]
        for bar in range(num_bars - 1):
            # The head has a bias of its own for each bar, so its input must have all bars of the horizon.
            repeated_BHD = ops.concatenate([bars[-1]] * num_bars, axis=-2)
            candle_B1C = ops.take(heads[TASK_OHLC](repeated_BHD), [bar], axis=-2)
            bars.append(decoder.next_bar(candle_B1C))
        x_BHD = ops.concatenate(bars, axis=-2)
    else:
        earlier_bars = list(range(num_bars - 1))
        # The first pass: forecasts of all bars, each from the newest known candle.
        first_BHC = heads[TASK_OHLC](decoder.all_bars(ops.concatenate([newest_B1C] * num_bars, axis=-2)))
        forecast_BHC = ops.stop_gradient(ops.take(first_BHC, earlier_bars, axis=-2))
        actual = ops.take(layers.actual_BHC, earlier_bars, axis=-2)
        # Dropout of ones is a draw for each window: where it is 0, the window has teacher forcing.
        draw = layers.keras.layers.Dropout(
            network.teacher_forcing, seed=next(layers.seeds), dtype="float32", name=TEACHER
        )
        is_forecast = draw(ops.ones_like(ops.take(newest_B1C, [0], axis=-1))) > 0
        read_BHC = ops.where(is_forecast, forecast_BHC, actual)
        x_BHD = decoder.all_bars(ops.concatenate([newest_B1C, read_BHC], axis=-2))
    return {name: head(x_BHD) for name, head in heads.items()}


def _encoded(
    window_BTF: Any, layers: Layers, kind: str, units: Sequence[int], dropout: float
) -> tuple[Any, States]:
    """Read the window with recurrent layers, "GRU" or "LSTM", with dropout between them.

    Returns all states of the last layer, (B, T, U), and the last states of each layer.
    """
    x = window_BTF
    states = States()
    for number, num_units in enumerate(units, 1):
        name = f"encoder_{number}"
        x = layers.dropout(name, dropout if number > 1 else 0.0, is_sequence=True)(x)
        x, *last_states = layers.loop(kind, num_units, name, return_sequences=True, return_state=True)(x)
        states.append(last_states)
    return x, states


class _RecurrentDecoder:
    """Cells, "GRU" or "LSTM", of the encoder layers' sizes, which start from the encoder's last states.

    With teacher forcing all candles are known before the first step, so recurrent layers with the weights of
    the cells read them: a loop, which compiles in a third of the time of unrolled steps. `attend` maps states
    of the last cell, (B, 1 or H, U), to channels, (B, 1 or H, D).
    """

    def __init__(
        self, layers: Layers, kind: str, states: States, dropout: float, attend: Callable[[Any], Any]
    ) -> None:
        self._ops = layers.keras.ops
        self._states = states
        self._attend = attend
        layer_kind = f"{kind}Cell"
        options = dict[str, bool]()
        if layers.actual_BHC is not None:
            layer_kind = kind
            options = {"return_sequences": True}
        units_by_name = {f"decoder_{number}": own[0].shape[-1] for number, own in enumerate(states, 1)}
        self._cells = [
            layers.loop(layer_kind, units, name, **options) for name, units in units_by_name.items()
        ]
        self._drops = [
            layers.dropout(name, dropout if place else 0.0) for place, name in enumerate(units_by_name)
        ]

    def next_bar(self, candle_B1C: Any) -> Any:
        """Compute one step, and attend to the window."""
        x = self._ops.squeeze(candle_B1C, axis=-2)
        new_states = States()
        for cell, drop, own in zip(self._cells, self._drops, self._states, strict=True):
            x, new_own = cell(drop(x), own)
            new_states.append(new_own)
        self._states = new_states
        return self._attend(self._ops.expand_dims(x, axis=-2))

    def all_bars(self, candles_BHC: Any) -> Any:
        """Compute all steps, and attend to the window for all of them together."""
        x = candles_BHC
        for layer, drop, own in zip(self._cells, self._drops, self._states, strict=True):
            x = layer(drop(x), initial_state=own)
        return self._attend(x)


class Memory(NamedTuple):
    """Keys, (B, N, K, S), and values, (B, N, S, K), of an attention."""

    keys_BNKS: Any
    values_BNSK: Any


class Attention:
    """Multi-head attention in two parts, so that a decoder computes keys and values once and keeps them.

    Arithmetic and weights are those of keras.layers.MultiHeadAttention (Vaswani et al. 2017,
    arXiv:1706.03762); a test compares the two.

    Args:
        layers: Makes the layers.
        width: Channels of inputs and outputs, a multiple of `num_heads`.
        num_heads: Heads.
        name: Prefix of the layers' names.
        num_queries: Steps that attend in one call of `read`.
        num_keys: Keys of one call of `memory`.
    """

    def __init__(
        self, layers: Layers, width: int, num_heads: int, name: str, *, num_queries: int, num_keys: int
    ) -> None:
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

        self._ops = layers.keras.ops
        size = width // num_heads
        self._query = part("query", "btd,dnk->bntk", (num_heads, num_queries, size), "nk")
        self._key = part("key", "bsd,dnk->bnks", (num_heads, size, num_keys), "nk")
        self._value = part("value", "bsd,dnk->bnsk", (num_heads, num_keys, size), "nk")
        self._output = part("output", "bntk,nkd->btd", (num_queries, width), "d")

    def memory(self, x_BSD: Any, past: Memory | None = None) -> Memory:
        """Compute keys and values, and append them to those of the past."""
        new = Memory(self._key(x_BSD), self._value(x_BSD))
        if past is None:
            return new
        keys, values = zip(past, new, strict=True)
        return Memory(self._ops.concatenate(keys, axis=-1), self._ops.concatenate(values, axis=-2))

    def read(self, x_BTD: Any, memory: Memory, mask_TS: NDArray[np.float32] | None = None) -> Any:
        """Attend from x to a memory, (B, T, D); the mask is added to the scores."""
        ops = self._ops
        query_BNTK = self._query(x_BTD)
        scores_BNTS = ops.matmul(query_BNTK * query_BNTK.shape[-1] ** -0.5, memory.keys_BNKS)
        if mask_TS is not None:
            scores_BNTS = scores_BNTS + mask_TS
        # Keras warns of a softmax over a single score.
        is_single = scores_BNTS.shape[-1] == 1
        weights_BNTS = ops.ones_like(scores_BNTS) if is_single else ops.softmax(scores_BNTS, axis=-1)
        return self._output(ops.matmul(weights_BNTS, memory.values_BNSK))


def attention_flop(num_queries: int, num_keys: int, width: int) -> float:
    """Count the operations of scores and weighted sums; the dense layers of an attention are `dense_flop`."""
    return 4.0 * num_queries * num_keys * width


class GruAttentionNetwork(TeacherForcingSettings):
    """Sizes of encoder and decoder, which have the same layers."""

    recurrent_units: Units
    """Units of each GRU layer of the encoder, first to last, and of the decoder's cells."""
    dropout: Dropout
    """Share of channels dropped between the layers, one draw a sequence; 0 switches it off."""


def _gru_attention(network: GruAttentionNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    width = network.recurrent_units[-1]
    window_BTU, states = _encoded(window_BTF, layers, "GRU", network.recurrent_units, network.dropout)
    query = layers.dense(width, "query")
    key = layers.dense(width, "key", use_bias=False)
    attention = layers.keras.layers.AdditiveAttention(dtype=layers.precision, name="attention")
    bars = layers.shape.lookback_bars
    attention.build([(None, num_steps, width) for num_steps in (layers.shape.horizon_bars, bars, bars)])
    # Keras draws the scale without a seed, so it is drawn again here.
    attention.scale.assign(layers.keras.initializers.GlorotUniform(seed=next(layers.seeds))((width,)))
    key_BTU = key(window_BTU)

    def attend(x_BHU: Any) -> Any:
        return x_BHU + attention([query(x_BHU), window_BTU, key_BTU])

    decoder = _RecurrentDecoder(layers, "GRU", states, network.dropout, attend)
    return decoded(network, window_BTF, layers, decoder)


def _gru_flop(network: GruAttentionNetwork, shape: NetworkShape) -> float:
    bars = shape.lookback_bars
    ahead = shape.horizon_bars
    units = network.recurrent_units
    encoder = recurrent_flop(bars, shape.num_features, units, num_gates=3)
    decoder = recurrent_flop(ahead, len(OHLC), units, num_gates=3)
    dense = (bars + ahead) * dense_flop(units[-1], units[-1])
    return encoder + decoder + dense + attention_flop(ahead, bars, units[-1])


GRU_ATTENTION: Final = shipped_family("gru_attention", GruAttentionNetwork, _gru_attention, _gru_flop)


class LstmAttentionNetwork(TeacherForcingSettings):
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

    def faults(self) -> Iterator[str]:
        """Yield a sentence if the units are not a multiple of the heads."""
        if self.recurrent_units[-1] % self.num_heads:
            yield f"recurrent_units must end in a multiple of num_heads; got {self.recurrent_units[-1]}"


def _lstm_attention(network: LstmAttentionNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    ops = layers.keras.ops
    width = network.recurrent_units[-1]
    window_BTU, states = _encoded(window_BTF, layers, "LSTM", network.recurrent_units, network.dropout)
    attention = Attention(
        layers,
        width,
        network.num_heads,
        "attention",
        num_queries=layers.bars_per_call,
        num_keys=layers.shape.lookback_bars,
    )
    memory = attention.memory(window_BTU)
    dense = [
        (layers.dense(units, f"dense_{number}", "relu"), layers.dropout(f"dense_{number}", network.dropout))
        for number, units in enumerate(network.dense_units, 1)
    ]

    def attend(x_BHU: Any) -> Any:
        x_BHD = ops.concatenate([x_BHU, attention.read(x_BHU, memory)], axis=-1)
        for layer, drop in dense:
            x_BHD = drop(layer(x_BHD))
        return x_BHD

    decoder = _RecurrentDecoder(layers, "LSTM", states, network.dropout, attend)
    return decoded(network, window_BTF, layers, decoder)


def _lstm_flop(network: LstmAttentionNetwork, shape: NetworkShape) -> float:
    bars = shape.lookback_bars
    ahead = shape.horizon_bars
    units = network.recurrent_units
    width = units[-1]
    cells = recurrent_flop(bars, shape.num_features, units) + recurrent_flop(ahead, len(OHLC), units)
    # Keys and values of the window, queries and outputs of the horizon.
    attention = 2 * (bars + ahead) * dense_flop(width, width) + attention_flop(ahead, bars, width)
    return cells + attention + ahead * dense_flop(2 * width, *network.dense_units)


LSTM_ATTENTION: Final = shipped_family("lstm_attention", LstmAttentionNetwork, _lstm_attention, _lstm_flop)


class TransformerNetwork(TeacherForcingSettings):
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
        """Width of most matrix products."""
        return self.width

    def faults(self) -> Iterator[str]:
        """Yield a sentence if the width is not even or not a multiple of the heads."""
        if self.width % self.num_heads or self.width % 2:
            yield f"width must be even and a multiple of num_heads; got {self.width}"


def positions(num_bars: int, width: int) -> NDArray[np.float32]:
    """Return sines and cosines by bar, (num_bars, width), unitless (Vaswani et al. 2017, section 3.5)."""
    angle = np.arange(num_bars)[:, None] * LONGEST_WAVE ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(num_bars, width).astype(np.float32)


class _Layer:
    """One layer of encoder or decoder; the result of each part is added to its input and normalised.

    A layer of the decoder attends to the bars up to its own, then to the window, whose keys are computed
    once.
    """

    def __init__(
        self, network: TransformerNetwork, layers: Layers, name: str, units: int, window_BTD: Any = None
    ) -> None:
        num_bars = layers.shape.lookback_bars if window_BTD is None else layers.bars_per_call

        def attention(part: str, num_keys: int) -> Attention:
            return Attention(
                layers,
                network.width,
                network.num_heads,
                f"{name}_{part}",
                num_queries=num_bars,
                num_keys=num_keys,
            )

        def added(part: str) -> Callable[[Any, Any], Any]:
            drop = layers.dropout(f"{name}_{part}", network.dropout, is_sequence=True)
            norm = layers.keras.layers.LayerNormalization(dtype=layers.precision, name=f"{name}_{part}_norm")
            return lambda x, y: norm(x + drop(y))

        self._num_bars = num_bars
        self._past: Memory | None = None
        self._own = attention("own", num_bars)
        self._widen = layers.dense(units, f"{name}_widen", "gelu")
        self._narrow = layers.dense(network.width, f"{name}_narrow")
        self._add_own = added("own")
        self._add_dense = added("dense")
        self._window: Memory | None = None
        if window_BTD is not None:
            self._other = attention("other", window_BTD.shape[-2])
            self._add_other = added("other")
            self._window = self._other.memory(window_BTD)

    def encoded(self, x_BTD: Any) -> Any:
        """Attend from every bar of the window to all."""
        return self._rest(x_BTD, self._own.read(x_BTD, self._own.memory(x_BTD)))

    def next_bar(self, x_B1D: Any) -> Any:
        """Attend to the bars so far, whose keys and values are kept."""
        self._past = self._own.memory(x_B1D, self._past)
        return self._rest(x_B1D, self._own.read(x_B1D, self._past))

    def all_bars(self, x_BHD: Any) -> Any:
        """Attend from every bar to itself and those before it."""
        mask_HH = np.triu(np.full((self._num_bars, self._num_bars), MASKED, np.float32), 1)
        return self._rest(x_BHD, self._own.read(x_BHD, self._own.memory(x_BHD), mask_HH))

    def _rest(self, x_BTD: Any, read_BTD: Any) -> Any:
        """Compute what follows the attention of the layer to its own bars."""
        x_BTD = self._add_own(x_BTD, read_BTD)
        if self._window is not None:
            x_BTD = self._add_other(x_BTD, self._other.read(x_BTD, self._window))
        return self._add_dense(x_BTD, self._narrow(self._widen(x_BTD)))


class _TransformerDecoder:
    """The decoder's layers; `embed` maps candles and the numbers of their bars to channels. See `Decoder`."""

    def __init__(self, stack: list[_Layer], embed: Callable[[Any, Any], Any]) -> None:
        self._stack = stack
        self._embed = embed
        self._num_read = 0

    def next_bar(self, candle_B1C: Any) -> Any:
        x_B1D = self._embed(candle_B1C, [self._num_read])
        self._num_read += 1
        for layer in self._stack:
            x_B1D = layer.next_bar(x_B1D)
        return x_B1D

    def all_bars(self, candles_BHC: Any) -> Any:
        x_BHD = self._embed(candles_BHC, slice(None))
        for layer in self._stack:
            x_BHD = layer.all_bars(x_BHD)
        return x_BHD


def _transformer(network: TransformerNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    shape = layers.shape
    embed = layers.dense(network.width, "embedding")
    # Where the window holds candles alone, it is embedded by the same layer as forecast candles.
    embed_candle = embed if shape.features == OHLC else layers.dense(network.width, "candle_embedding")
    drop = layers.dropout("embedding", network.dropout, is_sequence=True)
    x_BTD = drop(embed(window_BTF) + positions(shape.lookback_bars, network.width))
    for number, units in enumerate(network.encoder_units, 1):
        x_BTD = _Layer(network, layers, f"encoder_{number}", units).encoded(x_BTD)
    stack = [
        _Layer(network, layers, f"decoder_{number}", units, x_BTD)
        for number, units in enumerate(network.decoder_units, 1)
    ]
    places_HD = positions(shape.horizon_bars, network.width)
    decoder = _TransformerDecoder(stack, lambda candles, bars: drop(embed_candle(candles) + places_HD[bars]))
    return decoded(network, window_BTF, layers, decoder)


def _transformer_flop(network: TransformerNetwork, shape: NetworkShape) -> float:
    bars = shape.lookback_bars
    ahead = shape.horizon_bars
    width = network.width
    square = dense_flop(width, width)
    candle = dense_flop(len(OHLC), width)
    encoder = sum(
        bars * (4 * square + dense_flop(width, units, width)) + attention_flop(bars, bars, width)
        for units in network.encoder_units
    )
    # Of the eight products of a decoder layer's two attentions, two read the window; a bar attends to those
    # up to its own.
    past = sum(attention_flop(1, bar + bars, width) for bar in range(1, ahead + 1))
    decoder = sum(
        ahead * (6 * square + dense_flop(width, units, width)) + 2 * bars * square + past
        for units in network.decoder_units
    )
    return bars * dense_flop(shape.num_features, width) + ahead * candle + encoder + decoder


TRANSFORMER: Final = shipped_family("transformer", TransformerNetwork, _transformer, _transformer_flop)


FAMILIES: Final[Registry[Family]] = Registry(
    "network family",
    [
        BILSTM_SEQ2SEQ,
        LSTM_DENSE,
        DENSE_NEWEST,
        TRANSFORMER,
        GRU_ATTENTION,
        LSTM_ATTENTION,
        LSTM_CLOSE,
        RANGE_PATHS,
    ],
)
"""Every network family, in the order of lists for users."""
