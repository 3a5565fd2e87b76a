"""The model users load: raw feature window in, price units out, nothing but stock Keras inside.

Scaling and its inverse are written as `keras.ops` between the input and the network and between the
network and the outputs, with the fitted constants in the file. Plain Keras loads it in safe mode.

Under `calibration: shrink` a linear layer between network and outputs holds how much of the network's
forecast is kept; it starts as the identity, and `fold_shrinkage` sets it.

Outputs are coherent by construction: low <= open, close <= high; bb_lower <= bb_upper;
volatility > 0.

Shape legend: B batch, T lookback, F features, H horizon, C columns of a task, P the 20 band bars.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from v8.columns import (
    BAND_PERIOD_BARS,
    BAND_WIDTH_STDS,
    CLOSE,
    RECENT_RANGE,
    TASK_BANDS,
    TASK_COLUMNS,
    TASK_OHLC,
    TASK_VOLATILITY,
)
from v8.data.scaling import PRICE_FLOOR_SHARE, ColumnScaling, Scaling, TargetForm, TaskScaling, Transform
from v8.data.shrinkage import Shrinkage
from v8.profile import Profile

SHRINKING_PREFIX = "shrink_"


def build_serving(profile: Profile, scaling: Scaling, network: keras.Model) -> keras.Model:
    """Wrap a trained float32 network into the published model.

    Args:
        profile: The network's profile.
        scaling: Constants fitted with it.
        network: Scaled window (B, T, F) to dict of scaled targets (B, H, C).

    Returns:
        Model from `window` (B, T, F), raw features in the profile's order, float32, to a dict, task
        to (B, H, C), float32, quote currency (volatility unitless).
    """
    window_BTF = keras.Input((profile.lookback_bars, profile.num_features), name="window")
    close_BT1 = ops.take(window_BTF, [profile.features.index(CLOSE)], axis=-1)
    last_B11 = ops.take(close_BT1, [profile.lookback_bars - 1], axis=1)
    scaled = network(_scaled(window_BTF, close_BT1, last_B11, scaling))
    if profile.calibration == "shrink":
        scaled = {task: _shrinking(profile, task)(scaled[task]) for task in profile.tasks}
    reference = _roll_forward(profile, close_BT1, last_B11, scaling)
    unit_B11 = _range_unit(profile, window_BTF, scaling)
    restored = {
        constants.task: _restored(
            scaled[constants.task],
            reference[constants.task],
            unit_B11 if constants.task == TASK_VOLATILITY else unit_B11 * last_B11,
            constants,
        )
        for constants in scaling.tasks
    }
    outputs = {task: _COHERENT[task](values, last_B11, scaling) for task, values in restored.items()}
    return keras.Model(window_BTF, outputs, name=f"{profile.name}_forecaster")


def fold_shrinkage(model: keras.Model, scaling: Scaling, shrinkage: Shrinkage) -> None:
    """Make a published model shrink its network's forecasts.

    factor x scaled + (1 - factor) x start, which is start + factor x (scaled - start).

    Args:
        model: Made by `build_serving` for a profile with `calibration: shrink`.
        scaling: Holds the constant start of each task.
        shrinkage: Factors per task and step.
    """
    for one in shrinkage.tasks:
        layer = model.get_layer(SHRINKING_PREFIX + one.task)
        factor_H = np.array(one.factors)
        layer.kernel.assign(factor_H)
        layer.bias.assign((1.0 - factor_H)[:, None] * np.array(scaling.task(one.task).start))


def _shrinking(profile: Profile, task: str) -> keras.layers.Layer:
    return keras.layers.EinsumDense(
        "bhc,h->bhc",
        output_shape=(profile.horizon_bars, len(TASK_COLUMNS[task])),
        bias_axes="hc",
        kernel_initializer="ones",
        trainable=False,
        dtype="float32",
        name=SHRINKING_PREFIX + task,
    )


def _scaled(window_BTF: Any, close_BT1: Any, last_B11: Any, scaling: Scaling) -> Any:
    """Scale the raw window column group by column group, then restore the column order."""
    pieces, order = [], []
    for transform in Transform:
        numbers = [n for n, column in enumerate(scaling.columns) if column.transform is transform]
        if not numbers:
            continue
        columns = [scaling.columns[number] for number in numbers]
        x_BTG = ops.take(window_BTF, numbers, axis=-1)
        pieces.append(_shaped(transform, x_BTG, close_BT1, last_B11, columns))
        order.extend(numbers)
    joined = ops.concatenate(pieces, axis=-1) if len(pieces) > 1 else pieces[0]
    return ops.take(joined, [int(place) for place in np.argsort(order)], axis=-1)


def _shaped(
    transform: Transform, x_BTG: Any, close_BT1: Any, last_B11: Any, columns: list[ColumnScaling]
) -> Any:
    center, scale, floor = (
        np.array([getattr(column, constant) for column in columns], np.float32)
        for constant in ("center", "scale", "floor")
    )
    if transform is Transform.ANCHORED:
        return ops.log(x_BTG / last_B11) / scale
    if transform is Transform.RELATIVE:
        x_BTG = x_BTG / close_BT1
    elif transform is Transform.LOGGED:
        x_BTG = ops.log(ops.maximum(x_BTG, floor))
    return (x_BTG - center) / scale


def _roll_forward(profile: Profile, close_BT1: Any, last_B11: Any, scaling: Scaling) -> dict[str, Any]:
    """The forecast of `v8.data.targets.roll_forward`, floored, in stock operations."""
    horizon = profile.horizon_bars
    reference = {TASK_OHLC: ops.repeat(last_B11, horizon, axis=1)}
    if len(profile.tasks) == 1:
        return reference
    known = [profile.lookback_bars - BAND_PERIOD_BARS + bar for bar in range(BAND_PERIOD_BARS)]
    returns_BP = ops.squeeze(ops.take(close_BT1, known, axis=1) / last_B11 - 1.0, axis=-1)
    mean_BH1 = _suffix_sums(returns_BP, horizon) / BAND_PERIOD_BARS
    squares_BH1 = _suffix_sums(ops.square(returns_BP), horizon)
    variance_BH1 = (squares_BH1 - BAND_PERIOD_BARS * ops.square(mean_BH1)) / (BAND_PERIOD_BARS - 1)
    std_BH1 = ops.sqrt(ops.maximum(variance_BH1, 0.0))
    middle_BH1, reach_BH1 = last_B11 * (1.0 + mean_BH1), last_B11 * (BAND_WIDTH_STDS * std_BH1)
    upper_BH1 = middle_BH1 + reach_BH1
    lower_BH1 = ops.maximum(middle_BH1 - reach_BH1, PRICE_FLOOR_SHARE * upper_BH1)
    reference[TASK_BANDS] = ops.concatenate([upper_BH1, lower_BH1], axis=-1)
    reference[TASK_VOLATILITY] = ops.maximum(std_BH1 / (1.0 + mean_BH1), scaling.volatility_floor)
    return reference


def _suffix_sums(x_BP: Any, horizon: int) -> Any:
    """Sum what is still known 1, 2, ... steps ahead, when the oldest have left: (B, P) to (B, H, 1).

    A product with a triangular matrix would say the same, but rounds a row by how many rows there are.
    """
    sums_BP = ops.flip(ops.cumsum(ops.flip(x_BP, axis=1), axis=1), axis=1)
    return ops.expand_dims(ops.take(sums_BP, [*range(1, horizon + 1)], axis=1), -1)


def _range_unit(profile: Profile, window_BTF: Any, scaling: Scaling) -> Any:
    """The recent range at the last known bar, floored; 1 where targets are not measured by it."""
    if RECENT_RANGE not in profile.features or scaling.range_floor == 0:
        return 1.0
    range_BT1 = ops.take(window_BTF, [profile.features.index(RECENT_RANGE)], axis=-1)
    return ops.maximum(ops.take(range_BT1, [profile.lookback_bars - 1], axis=1), scaling.range_floor)


def _restored(scaled_BHC: Any, reference_BHC: Any, unit_B11: Any, constants: TaskScaling) -> Any:
    stretched_BHC = scaled_BHC * np.array(constants.scale, np.float32)
    if constants.form is TargetForm.RANGED:
        return reference_BHC + stretched_BHC * unit_B11
    if constants.form is TargetForm.ROLL_FORWARD:
        return reference_BHC * ops.exp(stretched_BHC)
    return stretched_BHC + np.array(constants.center, np.float32)


def _coherent_ohlc(values_BHC: Any, last_B11: Any, scaling: Scaling) -> Any:
    values_BHC = ops.maximum(values_BHC, PRICE_FLOOR_SHARE * last_B11)
    open_close_BHC = ops.take(values_BHC, [0, 3], axis=-1)
    high_BH1 = ops.max(ops.take(values_BHC, [0, 1, 3], axis=-1), axis=-1, keepdims=True)
    low_BH1 = ops.min(ops.take(values_BHC, [0, 2, 3], axis=-1), axis=-1, keepdims=True)
    return ops.take(ops.concatenate([open_close_BHC, high_BH1, low_BH1], axis=-1), [0, 2, 3, 1], axis=-1)


def _coherent_bands(values_BHC: Any, last_B11: Any, scaling: Scaling) -> Any:
    return ops.take(ops.sort(values_BHC, axis=-1), [1, 0], axis=-1)


def _positive_volatility(values_BHC: Any, last_B11: Any, scaling: Scaling) -> Any:
    return ops.maximum(values_BHC, 1e-3 * scaling.volatility_floor)


_COHERENT = {
    TASK_OHLC: _coherent_ohlc,
    TASK_BANDS: _coherent_bands,
    TASK_VOLATILITY: _positive_volatility,
}
