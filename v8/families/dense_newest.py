"""Family `dense_newest`: the newest row tells by how much the coming range differs from the usual one."""

from __future__ import annotations

from typing import Any, Final

from v8.families.family import Dropout, Family, Layers, NetworkSettings, Units, dense_flop

EQUATION: Final = "bhr,rc->bhc"


class NewestRowNetwork(NetworkSettings):
    """Sizes of the dense layers."""

    dense_units: Units
    """Units of each dense layer (GELU), first to last."""
    dropout: Dropout
    """Share of channels dropped after each layer; 0 switches it off."""


def _outputs(network: NewestRowNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    keras, shape, dtype, outputs = layers.keras, layers.shape, layers.precision, {}
    newest = keras.layers.Cropping1D((shape.lookback_bars - 1, 0), dtype=dtype, name="newest")(window_BTF)
    x_BD = keras.layers.Reshape((shape.num_features,), dtype=dtype, name="row")(newest)
    for number, units in enumerate(network.dense_units, 1):
        name, kernel = f"dense_{number}", keras.initializers.HeNormal(seed=next(layers.seeds))
        dense = keras.layers.Dense(units, "gelu", kernel_initializer=kernel, dtype=dtype, name=name)
        x_BD = layers.dropped(dense(x_BD), name, network.dropout)

    def range_of(name: str) -> Any:
        """One number a step, zero to begin with."""
        return keras.layers.EinsumDense(
            "bd,dhr->bhr",
            output_shape=(shape.horizon_bars, 1),
            kernel_initializer="zeros",
            dtype="float32",
            name=f"range_{name}",
        )(x_BD)

    for task in shape.tasks:
        head = layers.head(task, EQUATION)
        outputs[task.name] = head(range_of(task.name))
        head.kernel.assign([task.sides])  # it moves each column to its side
    if shape.outer_levels:
        outputs |= layers.quantile_heads(range_of("quantiles"), EQUATION, kernel="ones")
    return outputs


DENSE_NEWEST: Final = Family(
    name="dense_newest",
    sentence="Dense layers over the newest row; one number a task and step widens or narrows its range.",
    source="v8, measured in scripts/FRONTIER.md",
    settings=NewestRowNetwork,
    outputs=_outputs,
    forward_flop=lambda network, shape: dense_flop(
        shape.num_features, *network.dense_units, shape.horizon_bars * len(shape.tasks)
    ),
)
