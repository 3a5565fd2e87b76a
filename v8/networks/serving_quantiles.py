"""The part of a published model that forecasts quantiles, in stock Keras operations.

A network says by which steps, never negative, a quantile lies beyond its neighbour; sums of them lie about
the median, which is the point forecast. A linear layer sums them up. Under `calibration: ensemble` the
distances are those of simulated paths instead (`v8.networks.serving_ensemble`).

They never cross and are coherent for any weights. Each level is made coherent by itself, as the point
forecast is; then each quantile is moved out to its inner neighbour where it would lie within. Smaller and
larger of two coherent candles are coherent again, because low is a minimum and high a maximum.

Shape legend: B batch, H horizon, L levels but the median, Q all levels, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import keras
import numpy as np
from keras import ops

from v8.profile import Profile
from v8.quantile_levels import MEDIAN, outer, quantile_output, signed_sums
from v8.tasks import TASKS
from v8.tasks.closes import standing_closes
from v8.windows.spread import spread_units

SUMMING_PREFIX: Final = "quantiles_"


@dataclass(frozen=True, eq=False)
class Market:
    """What a published model reads of a window to say how uncertain it is.

    Args:
        closes_BP: The last 20 known closes, quote currency.
        last_B11: The last of them.
        range_B11: Recent range, above 0, unitless.
        scales: Per task, what a scaled target of one is in recent ranges, shape (B, 1, C).
    """

    closes_BP: Any
    last_B11: Any
    range_B11: Any
    scales: Mapping[str, Any]


def network_distances(profile: Profile, market: Market, network: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far a published model's outer quantiles lie off its point forecast, by its network.

    Args:
        profile: Its profile.
        market: What it reads.
        network: The network's outputs, of which those of `quantile_output` are read, (B, H, L, C).

    Returns:
        Per task, (B, H, L, C), in the task's unit.
    """
    made = {}
    for name, distance_BHLC in _distances(profile, market, network).items():
        size_B1C = TASKS[name].size(market.last_B11, market.range_B11) * market.scales[name]
        made[name] = distance_BHLC * ops.expand_dims(size_B1C, 2)
    return made


def about_points(
    profile: Profile, points: Mapping[str, Any], distances: Mapping[str, Any], last_B11: Any, least_B11: Any
) -> dict[str, Any]:
    """Put coherent quantiles about coherent points.

    Args:
        profile: It has the levels.
        points: Per task, the point forecast, (B, H, C), in the task's unit.
        distances: Per task, how far the outer quantiles lie off it, (B, H, L, C), likewise.
        last_B11: The last known close.
        least_B11: The smallest volatility that is forecast.

    Returns:
        By `quantile_output`, (B, H, Q, C), in the task's unit.
    """
    last_B111, least_B111 = (ops.expand_dims(each, 1) for each in (last_B11, least_B11))
    made = {}
    for name, distance_BHLC in distances.items():
        beside_BHLC = ops.expand_dims(points[name], 2) + distance_BHLC
        beside_BHLC = TASKS[name].coherent(ops, beside_BHLC, last_B111, least_B111)
        made[quantile_output(name)] = _ordered(profile, points[name], beside_BHLC)
    return made


def _distances(profile: Profile, market: Market, network: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far the outer quantiles lie off the median, per task, (B, H, L, C), in scaled units."""
    tasks = [TASKS[name] for name in profile.tasks]
    has_window = any(task.has_window for task in tasks)
    standing = standing_closes(ops, market.closes_BP, profile.horizon_bars, has_window=has_window)
    recent_B1 = ops.squeeze(market.range_B11, axis=-1)
    flat_1H = np.ones((1, profile.horizon_bars), np.float32)
    units = spread_units(ops, tasks, standing, recent_B1, flat_1H)
    return {
        name: _summed(profile, name, network[quantile_output(name)]) * ops.expand_dims(unit, 2)
        for name, unit in units.items()
    }


def _summed(profile: Profile, task: str, steps_BHLC: Any) -> Any:
    """Turn a network's steps into distances from the median, in units."""
    layer = keras.layers.EinsumDense(
        "bhkc,kl->bhlc",
        output_shape=_shape(profile, task),
        bias_axes="hlc",
        trainable=False,
        dtype="float32",
        name=SUMMING_PREFIX + task,
    )
    distance_BHLC = layer(steps_BHLC)
    layer.set_weights([signed_sums(profile.shape.outer_levels), np.zeros(_shape(profile, task))])
    return distance_BHLC


def _ordered(profile: Profile, median_BHC: Any, beside_BHLC: Any) -> Any:
    """Put coherent quantiles about the point forecast so that none crosses its neighbour, (B, H, Q, C)."""
    levels, median = outer(profile.quantiles), ops.expand_dims(median_BHC, 2)
    num_below = sum(level < MEDIAN for level in levels)
    one = [ops.take(beside_BHLC, [place], axis=2) for place in range(len(levels))]
    below, above = [median], [median]
    for each in reversed(one[:num_below]):
        below.append(ops.minimum(below[-1], each))
    for each in one[num_below:]:
        above.append(ops.maximum(above[-1], each))
    return ops.concatenate([*reversed(below), *above[1:]], axis=2)


def _shape(profile: Profile, task: str) -> tuple[int, int, int]:
    return profile.horizon_bars, len(profile.shape.outer_levels), len(TASKS[task].columns)
