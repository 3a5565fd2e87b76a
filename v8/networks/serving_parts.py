"""Parts of a published model in stock Keras operations: quantiles, and formulas beside the network.

**Quantiles.** A network says by which steps, never negative, a quantile lies beyond its neighbour; sums of
them, by a linear layer, lie about the median, which is the point forecast. Under `calibration: ensemble` the
distances are those of simulated paths instead. They never cross and are coherent for any weights: each level
is made coherent by itself, as the point forecast is; then each quantile is moved out to its inner neighbour
where it would lie within. Smaller and larger of two coherent candles are coherent again, because low is a
minimum and high a maximum.

**Formulas** of `calibration: ensemble` read the window's raw candles, as `v8.formulas.ranges` does in
numpy. To begin with the network has every share, and the formulas, whose numbers are zeros then, have none.

What was fitted are weights, so models of one profile differ in weights alone.

Shape legend: B batch, T lookback, F features, H horizon, C columns of a task, L levels but the median, Q all
levels, M members, R terms or ranges behind, P paths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import keras
import numpy as np
from keras import ops

from v8.columns import HIGH, LOW, OHLC, RECENT_RANGE, range_column
from v8.formulas.ranges import MEMBERS, NUM_PATHS, known_ranges, move_terms, path_medians, path_quantiles
from v8.profile import Profile
from v8.quantile_levels import MEDIAN, apart, outer, quantile_output, signed_sums
from v8.tasks import RANGE_TO_VARIANCE, TASKS, standing_closes
from v8.windows.span import spread_units


def columns_of(rows: Any, profile: Profile, names: Sequence[str]) -> Any:
    """Take features out of raw rows, shape (..., F), in the order of the names."""
    return ops.take(rows, [profile.features.index(name) for name in names], axis=-1)


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
    """Return how far the outer quantiles lie off the point forecast, by the network's `quantile_output`.

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
    """Put coherent quantiles, by `quantile_output`, (B, H, Q, C), about coherent points, (B, H, C).

    The outer ones lie `distances` off, (B, H, L, C); all are in the task's unit.
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
    shape = _shape(profile, task)
    layer = untrained("bhkc,kl->bhlc", shape, SUMMING_PREFIX + task, bias_axes="hlc")
    distance_BHLC = layer(steps_BHLC)
    layer.set_weights([signed_sums(profile.shape.outer_levels), np.zeros(shape)])
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


LIMITS: Final = "ensemble_limits"
"""Name of the layer that holds the smallest deviation, its logarithm and the largest log range."""
RANGES: Final = "ensemble_ranges"
"""Name of the layer that forecasts the log range of each coming bar."""
PATHS: Final = "ensemble_paths"
"""Name of the layer that holds the bars which past windows lent."""
MOVES_PREFIX: Final = "ensemble_moves_"
SHARES_PREFIX: Final = "ensemble_shares_"
WIDTHS_PREFIX: Final = "ensemble_widths_"
"""Of the layers that widen or narrow the quantiles of the paths."""
UNFITTED_FLOOR: Final = 1e-9


def add_formulas(
    profile: Profile, window_BTF: Any, closes_BK: Any, points: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Mix a network's points, per task, (B, H, C), in the task's unit, with those of the formulas.

    The newest known closes are twenty where a task has their window. Returns the mixed points, and how far
    the outer quantiles lie off them by the paths, per task, (B, H, L, C), likewise, nothing where the profile
    has none.
    """
    ranges_BH = _forecast_ranges(profile, window_BTF)
    tasks = profile.shape.tasks
    has_window = any(task.has_window for task in tasks)
    standing = standing_closes(ops, closes_BK, profile.horizon_bars, has_window=has_window)
    terms = move_terms(ops, standing, ranges_BH)
    paths = untrained("bh,phc->bphc", (NUM_PATHS, profile.horizon_bars, len(OHLC)), PATHS)
    walked, beside = _walked(profile, closes_BK, paths(ranges_BH))
    last_B11 = ops.expand_dims(ops.take(closes_BK, [closes_BK.shape[1] - 1], axis=1), -1)
    mixed = {}
    for task in tasks:
        shape = (profile.horizon_bars, len(task.columns))
        moved_BHC = untrained("bhr,hrc->bhc", shape, MOVES_PREFIX + task.name)(terms[task.has_window])
        regressed_BHC = task.implied(ops, standing) + task.size(last_B11, moved_BHC)
        members_BMHC = ops.stack([points[task.name], regressed_BHC, walked[task.name]], axis=1)
        mixed[task.name] = untrained("bmhc,mh->bhc", shape, SHARES_PREFIX + task.name)(members_BMHC)
    return mixed, beside


def _walked(profile: Profile, closes_BK: Any, moved_BPHC: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the medians over the paths, (B, H, C), and the distances of the outer quantiles from them."""
    tasks, levels = profile.shape.tasks, profile.quantiles
    if not levels:
        return path_medians(ops, tasks, closes_BK, moved_BPHC), {}
    medians, beside = {}, {}
    for task, values_BHQC in path_quantiles(ops, levels, tasks, closes_BK, moved_BPHC).items():
        medians[task], distance_BHLC = apart(ops, levels, values_BHQC)
        shape = tuple(distance_BHLC.shape[1:])
        beside[task] = untrained("bhlc,hlc->bhlc", shape, WIDTHS_PREFIX + task)(distance_BHLC)
    return medians, beside


def reset(model: keras.Model) -> None:
    """Give the network every share again."""
    for layer in model.layers:
        if layer.name == LIMITS:
            layer.set_weights([np.array([[UNFITTED_FLOOR, np.log(UNFITTED_FLOOR), 0.0]])])
        elif layer.name.startswith(SHARES_PREFIX):
            alone = np.zeros(layer.kernel.shape)
            alone[MEMBERS.index("network")] = 1.0
            layer.set_weights([alone])
        elif layer.name in (RANGES, PATHS) or layer.name.startswith((MOVES_PREFIX, WIDTHS_PREFIX)):
            layer.set_weights([np.zeros(weight.shape) for weight in layer.weights])


def untrained(
    equation: str,
    shape: tuple[int, ...],
    name: str,
    *,
    start: str = "zeros",
    bias_axes: str | None = None,
) -> keras.layers.Layer:
    """Make a linear layer that holds what was fitted."""
    return keras.layers.EinsumDense(
        equation,
        output_shape=shape,
        bias_axes=bias_axes,
        kernel_initializer=start,
        trainable=False,
        dtype="float32",
        name=name,
    )


def dense_ahead(profile: Profile, name: str) -> keras.layers.Layer:
    """Make the layer that forecasts the log range of each coming bar."""
    return keras.layers.Dense(
        profile.horizon_bars, kernel_initializer="zeros", trainable=False, dtype="float32", name=name
    )


def looked_up(like: Any, num: int, name: str) -> Any:
    """Let every window look up row 0 of a table, whatever `like` holds; shape (*like.shape, num)."""
    table = keras.layers.Embedding(
        1, num, embeddings_initializer="zeros", trainable=False, dtype="float32", name=name
    )
    return table(ops.zeros_like(like, dtype="int32"))


def limits(like_B: Any, num: int, name: str) -> list[Any]:
    """Let every window look up some numbers, each of shape (B, 1)."""
    row_BK = looked_up(like_B, num, name)
    return [ops.take(row_BK, [place], axis=1) for place in range(num)]


def candle_deviations(high_BT: Any, low_BT: Any, bars: Sequence[int]) -> Any:
    """Return the deviations of `Span.range_variance` over so many bars each, shape (B, R), unitless."""
    num_bars = low_BT.shape[1]
    # Not the logarithm of a ratio: single precision would round the small ranges of one bar.
    range_BT = ops.log1p((high_BT - low_BT) / low_BT)
    newest = [ops.take(range_BT, [*range(num_bars - one, num_bars)], axis=1) for one in bars]
    means_BR = ops.concatenate([ops.mean(one, axis=1, keepdims=True) for one in newest], axis=1)
    return means_BR * float(np.sqrt(RANGE_TO_VARIANCE))


def _forecast_ranges(profile: Profile, window_BTF: Any) -> Any:
    """Forecast the range of each coming bar, (B, H), as `RangeEnsemble.ranges` does."""
    first_B = ops.take(ops.take(window_BTF, 0, axis=2), 0, axis=1)
    floor_B1, log_floor_B1, most_B1 = limits(first_B, 3, LIMITS)
    known, newest_BF = known_ranges(profile), ops.take(window_BTF, profile.lookback_bars - 1, axis=1)
    logs_BX = ops.log(ops.maximum(_deviations(profile, window_BTF, newest_BF), floor_B1))
    if known.waves:
        logs_BX = ops.concatenate([logs_BX, columns_of(newest_BF, profile, known.waves)], axis=-1)
    ahead = dense_ahead(profile, RANGES)
    return ops.exp(ops.minimum(ops.maximum(ahead(logs_BX), log_floor_B1), most_B1))


def _deviations(profile: Profile, window_BTF: Any, newest_BF: Any) -> Any:
    """The deviations behind that a window tells of, one after another, (B, L - 1 - waves)."""
    known = known_ranges(profile)
    high_BT, low_BT = (ops.take(window_BTF, profile.features.index(name), axis=2) for name in (HIGH, LOW))
    found = [candle_deviations(high_BT, low_BT, known.from_candles)]
    if known.from_features:
        recent_B1 = columns_of(newest_BF, profile, [RECENT_RANGE])
        found.append(recent_B1 * columns_of(newest_BF, profile, [*map(range_column, known.from_features)]))
    return ops.concatenate(found, axis=-1)
