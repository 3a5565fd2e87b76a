"""Networks: a profile's layers, from scaled windows to scaled targets.

Shape legend: B batch, T lookback, F features, H horizon, C columns of a task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count

import keras

from v8.families.family import HEAD_PREFIX, Layers
from v8.profile import Profile

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
    family, layers = profile.family, Layers(keras, profile.shape, precision, count(seed * SEEDS_A_NETWORK))
    window = keras.Input((profile.lookback_bars, profile.num_features), name="window")
    network = keras.Model(window, family.outputs(profile.network, window, layers), name=profile.name)
    for task, constants in (start or {}).items():
        network.get_layer(HEAD_PREFIX + task).bias.assign(constants)
    return network


def num_parameters(network: keras.Model) -> int:
    """Count the trainable numbers of a network."""
    return sum(math.prod(weight.shape) for weight in network.trainable_variables)
