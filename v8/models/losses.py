"""Losses over a batch of windows, with the shapes checked before anything is subtracted.

Shape legend: B batch, H horizon, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from v8.profile import TaskSettings

HUBER_TURN = 1.0
"""Residual, in scaled units, at which Huber goes from squared to absolute."""


def weighted_loss(
    tasks: Mapping[str, TaskSettings], truth: Mapping[str, Any], forecast: Mapping[str, Any], weight_B: Any
) -> Any:
    """Add the tasks' mean losses, each times its weight.

    Args:
        tasks: Loss and weight per task.
        truth: Scaled targets per task, shape (B, H, C), float32.
        forecast: Scaled outputs per task, same shapes.
        weight_B: Weight of each window; 0 leaves it out of the mean.

    Returns:
        Scalar, float32, unitless.

    Raises:
        ValueError: If a truth and its forecast differ in shape. Subtracting (N, 1, 4) from (N, 4)
            would broadcast, and the optimum would be the mean of the batch.
    """
    total = 0.0
    for task, settings in tasks.items():
        if tuple(truth[task].shape) != tuple(forecast[task].shape):
            raise ValueError(
                f"{task}: truth and forecast need one shape; "
                f"got {tuple(truth[task].shape)} and {tuple(forecast[task].shape)}"
            )
        error_B = ops.mean(_elementwise(settings.loss, truth[task] - forecast[task]), axis=(1, 2))
        total += settings.weight * ops.sum(error_B * weight_B) / ops.maximum(ops.sum(weight_B), 1.0)
    return total


def _elementwise(loss: str, residual_BHC: Any) -> Any:
    if loss == "mse":
        return ops.square(residual_BHC)
    size_BHC = ops.abs(residual_BHC)
    if loss == "mae":
        return size_BHC
    turned_BHC = HUBER_TURN * (size_BHC - 0.5 * HUBER_TURN)
    return ops.where(size_BHC <= HUBER_TURN, 0.5 * ops.square(residual_BHC), turned_BHC)
