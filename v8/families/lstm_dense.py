"""Family `lstm_dense`: LSTMs read the window, dense layers what is left of it."""

from __future__ import annotations

from typing import Any, Final

from v8.families.family import Dropout, Family, Layers, NetworkSettings, Units, recurrent_flop


class DenseNetwork(NetworkSettings):
    """Sizes of LSTM and dense layers."""

    encoder_units: Units
    """Units of each LSTM layer, first to last."""
    dense_units: Units
    """Units of each dense layer (ReLU), first to last."""
    dropout: Dropout
    """Share of channels dropped after each LSTM layer, one draw a sequence; 0 switches it off."""


def _outputs(network: DenseNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    keras, dtype = layers.keras, layers.precision
    x_BD = layers.recurrent(window_BTF, "encoder", network.encoder_units, network.dropout)
    for number, units in enumerate(network.dense_units, 1):
        kernel = keras.initializers.GlorotUniform(seed=next(layers.seeds))
        dense = keras.layers.Dense(
            units, "relu", kernel_initializer=kernel, dtype=dtype, name=f"dense_{number}"
        )
        x_BD = dense(x_BD)
    return layers.heads(x_BD, "bd,dhc->bhc")


LSTM_DENSE: Final = Family(
    name="lstm_dense",
    sentence="Stacked LSTMs whose last state is read by dense layers.",
    source="Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735",
    settings=DenseNetwork,
    outputs=_outputs,
    forward_flop=lambda network, shape: recurrent_flop(
        shape.lookback_bars, shape.num_features, network.encoder_units
    ),
)
