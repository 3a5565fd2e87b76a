"""Family `lstm_close`: LSTMs read nothing but the closes of the window."""

from __future__ import annotations

from typing import Any, Final

from v8.columns import CLOSE
from v8.families.family import Dropout, Family, Layers, NetworkSettings, Units, recurrent_flop


class CloseNetwork(NetworkSettings):
    """Sizes of the LSTM layers."""

    encoder_units: Units
    """Units of each LSTM layer, first to last."""
    dropout: Dropout
    """Share of channels dropped after each layer, one draw a sequence; 0 switches it off."""


def _outputs(network: CloseNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    close_BT1 = layers.columns(window_BTF, [CLOSE])
    return layers.heads(
        layers.recurrent(close_BT1, "encoder", network.encoder_units, network.dropout), "bd,dhc->bhc"
    )


LSTM_CLOSE: Final = Family(
    name="lstm_close",
    sentence="Stacked LSTMs over the closes alone.",
    source="Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735",
    settings=CloseNetwork,
    outputs=_outputs,
    forward_flop=lambda network, shape: recurrent_flop(shape.lookback_bars, 1, network.encoder_units),
)
