"""The network families: the registry of all, and those that forecast the whole horizon in one step.

Shape legend: B batch, T lookback, F features, H horizon, D channels, R one number (the forecast range), C
columns of a task.
"""

from typing import Any, Final

from v8.base.registry import Registry
from v8.profile import autoregressive
from v8.profile.columns import CLOSE, RANGE_BARS
from v8.profile.family import (
    Dropout,
    Family,
    Layers,
    NetworkSettings,
    NetworkShape,
    Units,
    dense_flop,
    recurrent_flop,
    shipped_family,
)


class Seq2SeqNetwork(NetworkSettings):
    """Sizes of encoder and decoder."""

    encoder_units: Units
    """Units of each encoder layer per direction, first to last."""
    decoder_units: Units
    """Units of each decoder layer, first to last."""
    dropout: Dropout
    """Share of channels dropped after each layer, one draw a sequence; 0 switches it off."""


def _seq2seq(network: Seq2SeqNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    units = network.encoder_units
    dropout = network.dropout
    summary_BD = layers.recurrent(window_BTF, "encoder", units, dropout, is_bidirectional=True)
    repeat = layers.keras.layers.RepeatVector(
        layers.shape.horizon_bars, dtype=layers.precision, name="repeat"
    )
    x_BHD = layers.recurrent(repeat(summary_BD), "decoder", network.decoder_units, dropout, is_sequence=True)
    return layers.heads(x_BHD, "bhd,dc->bhc")


def _seq2seq_flop(network: Seq2SeqNetwork, shape: NetworkShape) -> float:
    encoder = recurrent_flop(shape.lookback_bars, shape.num_features, network.encoder_units, num_directions=2)
    return encoder + recurrent_flop(shape.horizon_bars, 2 * network.encoder_units[-1], network.decoder_units)


BILSTM_SEQ2SEQ: Final = shipped_family("bilstm_seq2seq", Seq2SeqNetwork, _seq2seq, _seq2seq_flop)


class DenseNetwork(NetworkSettings):
    """Sizes of LSTM and dense layers."""

    encoder_units: Units
    """Units of each LSTM layer, first to last."""
    dense_units: Units
    """Units of each dense layer (ReLU), first to last."""
    dropout: Dropout
    """Share of channels dropped after each LSTM layer, one draw a sequence; 0 switches it off."""


class CloseNetwork(NetworkSettings):
    """Sizes of the LSTM layers."""

    encoder_units: Units
    """Units of each LSTM layer, first to last."""
    dropout: Dropout
    """Share of channels dropped after each layer, one draw a sequence; 0 switches it off."""


def _lstm(network: DenseNetwork | CloseNetwork, x_BTF: Any, layers: Layers) -> dict[str, Any]:
    x_BD = layers.recurrent(x_BTF, "encoder", network.encoder_units, network.dropout)
    for number, units in enumerate(getattr(network, "dense_units", ()), 1):
        x_BD = layers.dense(units, f"dense_{number}", "relu")(x_BD)
    return layers.heads(x_BD, "bd,dhc->bhc")


LSTM_DENSE: Final = shipped_family(
    "lstm_dense",
    DenseNetwork,
    _lstm,
    lambda network, shape: recurrent_flop(shape.lookback_bars, shape.num_features, network.encoder_units),
)


LSTM_CLOSE: Final = shipped_family(
    "lstm_close",
    CloseNetwork,
    lambda network, window_BTF, layers: _lstm(network, layers.columns(window_BTF, [CLOSE]), layers),
    lambda network, shape: recurrent_flop(shape.lookback_bars, 1, network.encoder_units),
)


class NewestRowNetwork(NetworkSettings):
    """Sizes of the dense layers."""

    dense_units: Units
    """Units of each dense layer (GELU), first to last."""
    dropout: Dropout
    """Share of channels dropped after each layer; 0 switches it off."""


def _dense_newest(network: NewestRowNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    keras = layers.keras
    shape = layers.shape
    row = keras.layers.Reshape((shape.num_features,), dtype=layers.precision, name="row")
    x_BD = row(layers.newest(window_BTF))
    for number, units in enumerate(network.dense_units, 1):
        dense = layers.dense(units, f"dense_{number}", "gelu", kernel="HeNormal")
        x_BD = layers.dropout(f"dense_{number}", network.dropout)(dense(x_BD))
    outputs = {}
    for task in shape.tasks:
        # One number for each bar, by which all columns of a task move away from the constant forecast.
        range_layer = keras.layers.EinsumDense(
            "bd,dhr->bhr",
            (shape.horizon_bars, 1),
            kernel_initializer="zeros",
            dtype="float32",
            name=f"range_{task.name}",
        )
        head = layers.head(task, "bhr,rc->bhc")
        outputs[task.name] = head(range_layer(x_BD))
        head.kernel.assign([task.sides])  # the direction in which each column moves
    return outputs


def _newest_flop(network: NewestRowNetwork, shape: NetworkShape) -> float:
    return dense_flop(shape.num_features, *network.dense_units, shape.horizon_bars * len(shape.tasks))


DENSE_NEWEST: Final = shipped_family(
    "dense_newest", NewestRowNetwork, _dense_newest, _newest_flop, reads_newest_row_only=True
)


class RangePathsFormula(NetworkSettings):
    """It has no settings: all of its numbers are fitted."""


RANGE_PATHS: Final = shipped_family(
    "range_paths", RangePathsFormula, None, lambda network, shape: 0.0, bars=max(RANGE_BARS)
)

FAMILIES: Final[Registry[Family]] = Registry(
    "network family",
    [
        BILSTM_SEQ2SEQ,
        LSTM_DENSE,
        DENSE_NEWEST,
        autoregressive.TRANSFORMER,
        autoregressive.GRU_ATTENTION,
        autoregressive.LSTM_ATTENTION,
        LSTM_CLOSE,
        RANGE_PATHS,
    ],
)
"""Every network family, in the order of lists for users."""
