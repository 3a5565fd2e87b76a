"""Family `bilstm_seq2seq`: an encoder reads the window, a decoder writes the horizon."""

from __future__ import annotations

from typing import Any, Final

from v8.families.family import Dropout, Family, Layers, NetworkSettings, NetworkShape, Units, recurrent_flop


class Seq2SeqNetwork(NetworkSettings):
    """Sizes of encoder and decoder."""

    encoder_units: Units
    """Units of each encoder layer per direction, first to last."""
    decoder_units: Units
    """Units of each decoder layer, first to last."""
    dropout: Dropout
    """Share of channels dropped after each layer, one draw a sequence; 0 switches it off."""


def _outputs(network: Seq2SeqNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    summary_BD = layers.recurrent(
        window_BTF, "encoder", network.encoder_units, network.dropout, is_bidirectional=True
    )
    repeat = layers.keras.layers.RepeatVector(
        layers.shape.horizon_bars, dtype=layers.precision, name="repeat"
    )
    x_BHD = layers.recurrent(
        repeat(summary_BD), "decoder", network.decoder_units, network.dropout, is_sequence=True
    )
    return layers.heads(x_BHD, "bhd,dc->bhc")


def _forward_flop(network: Seq2SeqNetwork, shape: NetworkShape) -> float:
    encoder = recurrent_flop(shape.lookback_bars, shape.num_features, network.encoder_units, num_directions=2)
    return encoder + recurrent_flop(shape.horizon_bars, 2 * network.encoder_units[-1], network.decoder_units)


BILSTM_SEQ2SEQ: Final = Family(
    name="bilstm_seq2seq",
    sentence="Bidirectional LSTM encoder; its summary is repeated over the horizon and decoded by LSTMs.",
    source="Sutskever et al. 2014, arXiv:1409.3215",
    settings=Seq2SeqNetwork,
    outputs=_outputs,
    forward_flop=_forward_flop,
)
