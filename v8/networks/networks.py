"""Networks: a profile's layers, from scaled windows to scaled targets.

Shape legend: B batch, T lookback, F features, H horizon, C columns of a task.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

import keras

from v8.columns import OHLC
from v8.families.family import HEAD_PREFIX, Layers, TaughtSettings
from v8.profile import Profile, network_outputs

SEEDS_A_NETWORK = 1_000
"""Room for the draws of one network, so that neighbouring seeds share none."""
WINDOW: Final = "window"
TRUTH: Final = "truth"
"""Names of inputs; a taught network alone has the second."""


def build_network(
    profile: Profile,
    *,
    seed: int,
    start: Mapping[str, Sequence[Sequence[float]]] | None = None,
    precision: str = "float32",
    is_taught: bool = False,
) -> keras.Model:
    """Build the network of a profile.

    The input is named `window`, shape (B, T, F), float32, scaled; the output is a dict, task to (B, H, C),
    float32, scaled. Head biases start at `start`, per task, (H, C), scaled, and head kernels (in
    `dense_newest`, what they multiply) at zero, so that the untrained network is a constant forecast. Heads
    are float32 whatever the policy of the other layers, `precision`. Every first weight and every dropout
    draw follows from the seed.

    A network of `TaughtSettings` reads its own forecasts. With `is_taught` it is built as it is trained: the
    same layers, a second input `truth`, the scaled candles to come, (B, H, 4), and one layer more that draws
    when to read those. Its inputs are a dict then.

    Raises:
        ProfileError: If the profile is a formula, which has no network.
    """
    window = keras.Input((profile.lookback_bars, profile.num_features), name=WINDOW)
    seeds, inputs, truth = count(seed * SEEDS_A_NETWORK), window, None
    if is_taught and has_teacher(profile):
        truth = keras.Input((profile.horizon_bars, len(OHLC)), name=TRUTH)
        inputs = {WINDOW: window, TRUTH: truth}
    layers = Layers(keras, profile.shape, precision, seeds, truth)
    outputs = network_outputs(profile)(profile.network, window, layers)
    network = keras.Model(inputs, outputs, name=profile.name)
    for task, constants in (start or {}).items():
        network.get_layer(HEAD_PREFIX + task).bias.assign(constants)
    return network


def has_teacher(profile: Profile) -> bool:
    """Say whether the network is shown the truth of earlier bars while it is trained."""
    network = profile.network
    is_taught = isinstance(network, TaughtSettings) and network.teacher_forcing > 0
    return is_taught and profile.horizon_bars > 1  # before the first bar everything is known


def num_parameters(network: keras.Model) -> int:
    """Count the trainable numbers of a network."""
    return sum(math.prod(weight.shape) for weight in network.trainable_variables)


def counterparts(network: keras.Model, taught: keras.Model) -> list[int]:
    """List where each trainable weight of a network stands among those of it as it is taught.

    Layers are matched by name: the second input moves them in the order that Keras keeps. Fleets of the two
    match in the same way.
    """
    places = {id(weight): place for place, weight in enumerate(taught.trainable_variables)}
    found = {
        id(own): places.get(id(other), -1)
        for layer in network.layers
        for own, other in zip(layer.weights, taught.get_layer(layer.name).weights, strict=True)
    }
    return [found[id(weight)] for weight in network.trainable_variables]
