"""Networks: a Profile's layers in stock Keras, from scaled windows to scaled targets.

Shape legend: B batch, T lookback, F features, H horizon, D channels, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import keras

from v8.columns import TASK_COLUMNS
from v8.profile import DenseNetwork, Profile, Seq2SeqNetwork

HEAD_PREFIX = "head_"
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
    (B, H, C), float32, scaled. Head kernels start at zero and head biases at `start`, so that the
    untrained network is a constant forecast.

    Args:
        profile: Gives family, sizes, tasks, lookback and horizon.
        seed: Seed of every initial weight and every dropout draw.
        start: Constant forecast per task, shape (H, C), scaled; zeros when None.
        precision: Keras dtype policy of all layers but the heads, which stay float32.
    """
    parts = _Parts(profile, precision, count(seed * SEEDS_A_NETWORK))
    window = keras.Input((profile.lookback_bars, profile.num_features), name="window")
    if isinstance(profile.network, Seq2SeqNetwork):
        summary = _bilstm_seq2seq(window, profile.network, parts)
        equation = "bhd,dc->bhc"
    else:
        summary = _lstm_dense(window, profile.network, parts)
        equation = "bd,dhc->bhc"
    outputs = {task: parts.head(task, equation)(summary) for task in profile.tasks}
    network = keras.Model(window, outputs, name=profile.name)
    for task, constants in (start or {}).items():
        network.get_layer(HEAD_PREFIX + task).bias.assign(constants)
    return network


def num_parameters(profile: Profile) -> int:
    """Count the trainable numbers of a profile's network by formula, without building it."""
    settings = profile.network
    if isinstance(settings, Seq2SeqNetwork):
        return _num_seq2seq(settings, profile)
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
        dropout = self.profile.network.dropout
        if not dropout:
            return x
        # One draw a sequence, as recurrent dropout is meant, and a third cheaper than one a step.
        noise_shape = (None, 1, None) if is_sequence else None
        return keras.layers.Dropout(
            dropout, noise_shape=noise_shape, seed=next(self.seeds), dtype=self.precision, name=f"{name}_drop"
        )(x)

    def dense(self, units: int, name: str) -> Any:
        kernel = keras.initializers.GlorotUniform(seed=next(self.seeds))
        return keras.layers.Dense(units, "relu", kernel_initializer=kernel, dtype=self.precision, name=name)

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


def _num_seq2seq(settings: Seq2SeqNetwork, profile: Profile) -> int:
    total, width = 0, profile.num_features
    for units in settings.encoder_units:
        total += 2 * _num_lstm(width, units) + 4 * units
        width = 2 * units
    for units in settings.decoder_units:
        total += _num_lstm(width, units) + 2 * units
        width = units
    return total + sum((width + profile.horizon_bars) * len(TASK_COLUMNS[task]) for task in profile.tasks)


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
