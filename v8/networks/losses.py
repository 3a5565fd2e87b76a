"""Losses over a batch of windows, with the shapes checked before anything is subtracted.

Shape legend: B batch, M model, H horizon, C columns of a task, L levels of quantiles but the median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from v8.profile import HUBER_TURN, TaskSettings
from v8.quantile_levels import pinball, quantile_output, signed_sums


def fleet_loss(
    tasks: Mapping[str, TaskSettings],
    truth: Mapping[str, Any],
    forecast: Mapping[str, Any],
    weight_BM: Any,
    outer_levels: Sequence[float] = (),
) -> Any:
    """Return each model's loss: the tasks' means over its weighted windows, times the task weights.

    Args:
        tasks: Loss and weight per task.
        truth: Scaled targets per task, shape (B, M, H, C); and the units of `quantile_output`, same shapes.
        forecast: Scaled outputs per task, same shapes; and those of `quantile_output`, (B, M, H, L, C).
        weight_BM: Weight of each window; 0 leaves it out, whatever it holds.
        outer_levels: Levels of quantiles other than the median, ascending. To a task's error is added twice
            the mean of their pinball losses, which at the median would be that very error.

    Returns:
        Shape (M,), float32, unitless; equal to Keras' reduction "mean_with_sample_weight".

    Raises:
        ValueError: If a truth and its forecast differ in shape. Subtracting (N, 1, 4) from (N, 4)
            would broadcast, and the optimum would be the mean of the batch.
    """
    total_M = ops.zeros_like(weight_BM[0])
    window_sum_M = ops.sum(weight_BM, axis=0)
    divisor_M = ops.where(window_sum_M > 0, window_sum_M, 1.0)
    for task, settings in tasks.items():
        if tuple(truth[task].shape) != tuple(forecast[task].shape):
            raise ValueError(
                f"{task}: truth and forecast need one shape; "
                f"got {tuple(truth[task].shape)} and {tuple(forecast[task].shape)}"
            )
        residual = ops.cast(truth[task], "float32") - ops.cast(forecast[task], "float32")
        # Masking the error instead would let NaN in filling reach the gradient, as 0 * NaN.
        residual = ops.where(weight_BM[:, :, None, None] > 0, residual, 0.0)
        error_BM = ops.mean(_elementwise(settings.loss, residual), axis=(2, 3))
        if outer_levels:
            name = quantile_output(task)
            steps = forecast[name] * ops.expand_dims(truth[name], 3)
            error_BM = error_BM + 2.0 * _mean_pinball(residual, steps, outer_levels)
        total_M = total_M + settings.weight * ops.sum(error_BM * weight_BM, axis=0) / divisor_M
    return total_M


def _mean_pinball(residual: Any, steps: Any, outer_levels: Sequence[float]) -> Any:
    """Return the mean loss of quantiles that lie by sums of steps off the median, shape (B, M)."""
    distance = ops.einsum("bmhlc,lk->bmhkc", ops.cast(steps, "float32"), signed_sums(outer_levels))
    levels_L1 = np.array(outer_levels, np.float32)[:, None]
    return ops.mean(pinball(ops, ops.expand_dims(residual, 3) - distance, levels_L1), axis=(2, 3, 4))


def _elementwise(loss: str, residual: Any) -> Any:
    if loss == "mse":
        return ops.square(residual)
    size = ops.abs(residual)
    if loss == "mae":
        return size
    turned = HUBER_TURN * (size - 0.5 * HUBER_TURN)
    return ops.where(size <= HUBER_TURN, 0.5 * ops.square(residual), turned)
