"""The part of a published model that adds the formulas of `calibration: ensemble`, in stock Keras operations.

The formulas read the window's raw candles, as `v8.formulas.range_ensemble` does in numpy. What was fitted are
weights, so models of one profile differ in weights alone. To begin with the network has every share, and the
formulas, whose numbers are zeros then, have none.

Legend: B batch, T lookback, F features, H horizon, C columns of a task, M members, R terms,
P paths, L a log range's terms or, with C, levels but the median.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import keras
import numpy as np
from keras import ops

from v8.columns import HIGH, LOW, OHLC, RECENT_RANGE, range_column
from v8.formulas.range_ensemble import MEMBERS, RangeEnsemble, known_ranges, move_terms
from v8.formulas.range_paths import NUM_PATHS, path_medians, path_quantiles
from v8.networks.formula import candle_deviations
from v8.networks.raw_window import columns_of
from v8.profile import Profile
from v8.quantile_levels import apart
from v8.tasks.closes import standing_closes
from v8.windows.span import Floats

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
    """Mix a network's points with those of the formulas.

    Args:
        profile: Of `calibration: ensemble`.
        window_BTF: Raw features.
        closes_BK: The newest known closes, twenty where a task has their window.
        points: The network's, per task, (B, H, C), in the task's unit.

    Returns:
        The same of all; and how far the outer quantiles lie off them by the paths, per task, (B, H, L, C), in
        the task's unit, nothing where the profile has none.
    """
    ranges_BH = _forecast_ranges(profile, window_BTF)
    tasks = profile.shape.tasks
    has_window = any(task.has_window for task in tasks)
    standing = standing_closes(ops, closes_BK, profile.horizon_bars, has_window=has_window)
    terms = move_terms(ops, standing, ranges_BH)
    paths = _untrained("bh,phc->bphc", (NUM_PATHS, profile.horizon_bars, len(OHLC)), PATHS)
    walked, beside = _walked(profile, closes_BK, paths(ranges_BH))
    last_B11 = ops.expand_dims(ops.take(closes_BK, [closes_BK.shape[1] - 1], axis=1), -1)
    mixed = {}
    for task in tasks:
        shape = (profile.horizon_bars, len(task.columns))
        moved_BHC = _untrained("bhr,hrc->bhc", shape, MOVES_PREFIX + task.name)(terms[task.has_window])
        regressed_BHC = task.implied(ops, standing) + task.size(last_B11, moved_BHC)
        members_BMHC = ops.stack([points[task.name], regressed_BHC, walked[task.name]], axis=1)
        mixed[task.name] = _untrained("bmhc,mh->bhc", shape, SHARES_PREFIX + task.name)(members_BMHC)
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
        beside[task] = _untrained("bhlc,hlc->bhlc", shape, WIDTHS_PREFIX + task)(distance_BHLC)
    return medians, beside


def fold_widths(model: keras.Model, factors: Mapping[str, Floats]) -> None:
    """Make a published model's outer quantiles lie so many times as far off: per task, shape (H, L, C)."""
    for task, factor_HLC in factors.items():
        model.get_layer(WIDTHS_PREFIX + task).set_weights([factor_HLC])


def fold_ensemble(model: keras.Model, ensemble: RangeEnsemble, shares: Mapping[str, Floats]) -> None:
    """Put fitted formulas and everybody's shares, per task, shape (M, H), into a published model."""
    limits = [[ensemble.floor, np.log(ensemble.floor), ensemble.most]]
    model.get_layer(LIMITS).set_weights([np.array(limits)])
    model.get_layer(RANGES).set_weights([ensemble.path_LH[1:], ensemble.path_LH[0]])
    model.get_layer(PATHS).set_weights([ensemble.lent_PHC])
    for task, moves_HRC in ensemble.moves.items():
        model.get_layer(MOVES_PREFIX + task).set_weights([moves_HRC])
        model.get_layer(SHARES_PREFIX + task).set_weights([shares[task]])


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


def _forecast_ranges(profile: Profile, window_BTF: Any) -> Any:
    """Forecast the range of each coming bar, (B, H), as `RangeEnsemble.ranges` does."""
    floor_B1, log_floor_B1, most_B1 = _limits(window_BTF)
    known, newest_BF = known_ranges(profile), ops.take(window_BTF, profile.lookback_bars - 1, axis=1)
    logs_BX = ops.log(ops.maximum(_deviations(profile, window_BTF, newest_BF), floor_B1))
    if known.waves:
        logs_BX = ops.concatenate([logs_BX, columns_of(newest_BF, profile, known.waves)], axis=-1)
    ahead = keras.layers.Dense(
        profile.horizon_bars, kernel_initializer="zeros", trainable=False, dtype="float32", name=RANGES
    )
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


def _limits(window_BTF: Any) -> list[Any]:
    """Let every window look up row 0, whatever it holds; each of shape (B, 1)."""
    table = keras.layers.Embedding(
        1, 3, embeddings_initializer="zeros", trainable=False, dtype="float32", name=LIMITS
    )
    row_B3 = table(ops.zeros_like(ops.take(ops.take(window_BTF, 0, axis=2), 0, axis=1), dtype="int32"))
    return [ops.take(row_B3, [place], axis=1) for place in range(3)]


def _untrained(equation: str, shape: tuple[int, ...], name: str) -> keras.layers.Layer:
    return keras.layers.EinsumDense(
        equation, output_shape=shape, kernel_initializer="zeros", trainable=False, dtype="float32", name=name
    )
