"""Networks: a Profile's layers in stock Keras, from scaled windows to scaled targets.

Shape legend: B batch, T lookback, F features, H horizon, D channels, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import keras

from v8.columns import TASK_BANDS, TASK_COLUMNS, TASK_OHLC, TASK_VOLATILITY
from v8.profile import DenseNetwork, NewestRowNetwork, Profile, Seq2SeqNetwork

HEAD_PREFIX = "head_"
RANGE_SIDES = {
    TASK_OHLC: (0.0, 1.0, -1.0, 0.0),
    TASK_BANDS: (1.0, -1.0),
    TASK_VOLATILITY: (1.0,),
}
"""Where a wider range moves each column to begin with: high and low apart, open and close not at all."""

SEEDS_A_NETWORK = 1_000
"""Room for the draws of one network, so that neighbouring seeds share none."""


def build_network(
    profile: Profile,
    *,
    seed: int,
    start: Mapping[str, Sequence[Sequence[float]]] | None = None,
    precision: str = "float32",
) -> keras.Model:
    """Build the network of a profile.

    The input is named `window`, shape (B, T, F), float32, scaled; the output is a dict, task to
    (B, H, C), float32, scaled. Head biases start at `start` and head kernels (in
    `dense_newest`, what they multiply) at zero, so that the untrained network is a constant forecast.

    Args:
        profile: Gives family, sizes, tasks, lookback and horizon.
        seed: Seed of every initial weight and every dropout draw.
        start: Constant forecast per task, shape (H, C), scaled; zeros when None.
        precision: Keras dtype policy of all layers but the heads, which stay float32.
    """
    parts = _Parts(profile, precision, count(seed * SEEDS_A_NETWORK))
    window = keras.Input((profile.lookback_bars, profile.num_features), name="window")
    outputs = _outputs(window, profile, parts)
    network = keras.Model(window, outputs, name=profile.name)
    for task, constants in (start or {}).items():
        network.get_layer(HEAD_PREFIX + task).bias.assign(constants)
    if isinstance(profile.network, NewestRowNetwork):
        for task in profile.tasks:
            network.get_layer(HEAD_PREFIX + task).kernel.assign([RANGE_SIDES[task]])
    return network


def _outputs(window: Any, profile: Profile, parts: _Parts) -> dict[str, Any]:
    settings = profile.network
    if isinstance(settings, NewestRowNetwork):
        x_BD = _dense_newest(window, settings, parts)
        return {task: parts.head(task, "bhr,rc->bhc")(parts.range_of(task)(x_BD)) for task in profile.tasks}
    if isinstance(settings, Seq2SeqNetwork):
        summary, equation = _bilstm_seq2seq(window, settings, parts), "bhd,dc->bhc"
    else:
        summary, equation = _lstm_dense(window, settings, parts), "bd,dhc->bhc"
    return {task: parts.head(task, equation)(summary) for task in profile.tasks}


def num_parameters(profile: Profile) -> int:
    """Count the trainable numbers of a profile's network by formula, without building it."""
    settings = profile.network
    if isinstance(settings, Seq2SeqNetwork):
        return _num_seq2seq(settings, profile)
    if isinstance(settings, NewestRowNetwork):
        return _num_newest(settings, profile)
    return _num_dense(settings, profile)


@dataclass(frozen=True)
class _Parts:
    """Layers of one network; every draw takes the next seed."""

    profile: Profile
    precision: str
    seeds: Iterator[int]

    def lstm(self, units: int, name: str, *, is_sequence: bool, go_backwards: bool = False) -> Any:
        return keras.layers.LSTM(
            units,
            return_sequences=is_sequence,
            go_backwards=go_backwards,
            kernel_initializer=keras.initializers.GlorotUniform(seed=next(self.seeds)),
            recurrent_initializer=keras.initializers.Orthogonal(seed=next(self.seeds)),
            dtype=self.precision,
            name=name,
        )

    def bilstm(self, units: int, name: str, *, is_sequence: bool) -> Any:
        return keras.layers.Bidirectional(
            self.lstm(units, f"{name}_forward", is_sequence=is_sequence),
            backward_layer=self.lstm(units, f"{name}_backward", is_sequence=is_sequence, go_backwards=True),
            dtype=self.precision,
            name=name,
        )

    def normalised(self, x: Any, name: str, *, is_sequence: bool) -> Any:
        """Normalise over channels, then drop some of them."""
        x = keras.layers.LayerNormalization(dtype=self.precision, name=f"{name}_norm")(x)
        return self.dropped(x, name, is_sequence=is_sequence)

    def dense(self, units: int, name: str) -> Any:
        kernel = keras.initializers.GlorotUniform(seed=next(self.seeds))
        return keras.layers.Dense(units, "relu", kernel_initializer=kernel, dtype=self.precision, name=name)

    def dropped(self, x: Any, name: str, *, is_sequence: bool) -> Any:
        """Drop some channels: one draw a sequence is a third cheaper than one a step, and what is meant."""
        dropout = self.profile.network.dropout
        if not dropout:
            return x
        noise_shape = (None, 1, None) if is_sequence else None
        return keras.layers.Dropout(
            dropout, noise_shape=noise_shape, seed=next(self.seeds), dtype=self.precision, name=f"{name}_drop"
        )(x)

    def range_of(self, task: str) -> Any:
        """One number a step, zero to begin with: by how much the range differs from the usual one."""
        return keras.layers.EinsumDense(
            "bd,dhr->bhr",
            output_shape=(self.profile.horizon_bars, 1),
            kernel_initializer="zeros",
            dtype="float32",
            name=f"range_{task}",
        )

    def head(self, task: str, equation: str) -> Any:
        return keras.layers.EinsumDense(
            equation,
            output_shape=(self.profile.horizon_bars, len(TASK_COLUMNS[task])),
            bias_axes="hc",
            kernel_initializer="zeros",
            dtype="float32",  # 16 bits cannot tell neighbouring prices apart
            name=HEAD_PREFIX + task,
        )


def _bilstm_seq2seq(x_BTF: Any, settings: Seq2SeqNetwork, parts: _Parts) -> Any:
    for number, units in enumerate(settings.encoder_units, 1):
        is_sequence = number < len(settings.encoder_units)
        name = f"encoder_{number}"
        x_BTF = parts.bilstm(units, name, is_sequence=is_sequence)(x_BTF)
        x_BTF = parts.normalised(x_BTF, name, is_sequence=is_sequence)
    repeat = keras.layers.RepeatVector(parts.profile.horizon_bars, dtype=parts.precision, name="repeat")
    x_BHD = repeat(x_BTF)
    for number, units in enumerate(settings.decoder_units, 1):
        name = f"decoder_{number}"
        x_BHD = parts.lstm(units, name, is_sequence=True)(x_BHD)
        x_BHD = parts.normalised(x_BHD, name, is_sequence=True)
    return x_BHD


def _lstm_dense(x_BTF: Any, settings: DenseNetwork, parts: _Parts) -> Any:
    for number, units in enumerate(settings.encoder_units, 1):
        is_sequence = number < len(settings.encoder_units)
        name = f"encoder_{number}"
        x_BTF = parts.lstm(units, name, is_sequence=is_sequence)(x_BTF)
        x_BTF = parts.normalised(x_BTF, name, is_sequence=is_sequence)
    x_BD = x_BTF
    for number, units in enumerate(settings.dense_units, 1):
        x_BD = parts.dense(units, f"dense_{number}")(x_BD)
    return x_BD


def _dense_newest(x_BTF: Any, settings: NewestRowNetwork, parts: _Parts) -> Any:
    profile, layers = parts.profile, keras.layers
    newest = layers.Cropping1D((profile.lookback_bars - 1, 0), dtype=parts.precision, name="newest")(x_BTF)
    x_BD = layers.Reshape((profile.num_features,), dtype=parts.precision, name="row")(newest)
    for number, units in enumerate(settings.dense_units, 1):
        name = f"dense_{number}"
        kernel = keras.initializers.HeNormal(seed=next(parts.seeds))
        dense = layers.Dense(units, "gelu", kernel_initializer=kernel, dtype=parts.precision, name=name)
        x_BD = parts.dropped(dense(x_BD), name, is_sequence=False)
    return x_BD


def _num_seq2seq(settings: Seq2SeqNetwork, profile: Profile) -> int:
    total, width = 0, profile.num_features
    for units in settings.encoder_units:
        total += 2 * _num_lstm(width, units) + 4 * units
        width = 2 * units
    for units in settings.decoder_units:
        total += _num_lstm(width, units) + 2 * units
        width = units
    return total + sum((width + profile.horizon_bars) * len(TASK_COLUMNS[task]) for task in profile.tasks)


def _num_newest(settings: NewestRowNetwork, profile: Profile) -> int:
    total, width, horizon = 0, profile.num_features, profile.horizon_bars
    for units in settings.dense_units:
        total += (width + 1) * units
        width = units
    heads = sum((1 + horizon) * len(TASK_COLUMNS[task]) for task in profile.tasks)
    return total + len(profile.tasks) * width * horizon + heads


def _num_dense(settings: DenseNetwork, profile: Profile) -> int:
    total, width = 0, profile.num_features
    for units in settings.encoder_units:
        total += _num_lstm(width, units) + 2 * units
        width = units
    for units in settings.dense_units:
        total += (width + 1) * units
        width = units
    heads = sum(len(TASK_COLUMNS[task]) for task in profile.tasks)
    return total + (width + 1) * profile.horizon_bars * heads


def _num_lstm(width: int, units: int) -> int:
    return 4 * units * (width + units + 1)
