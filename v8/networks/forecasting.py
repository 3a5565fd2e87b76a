"""Runs a published model over windows, always in batches of one size.

Shape legend: N windows, B batch, T lookback, F features, H horizon, Q levels, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.quantile_levels import quantile_output
from v8.tasks import TASKS

FORECAST_BATCH = 64
"""Windows a batch, always: one window alone costs little more than it must (0.2 s with the aligned
profile on one core), and every row of a batch is rounded alike. With 8 or 32 rows the matrix products
of TensorFlow 2.21 on a CPU treat some rows differently in the last bit; with 16, 24, 48 and 64 none."""


def forecast_windows(model: Any, windows_NTF: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Run a serving model over raw windows, (N, T, F) to (N, H, C) per task.

    The last batch is filled up with its last window: a batch of another size would round otherwise, and
    make TensorFlow trace the whole network anew, which costs a second.
    """
    num_windows = len(windows_NTF)
    batches = [windows_NTF[start : start + FORECAST_BATCH] for start in range(0, num_windows, FORECAST_BATCH)]
    num_missing = FORECAST_BATCH - len(batches[-1])
    batches[-1] = np.concatenate([batches[-1], np.repeat(windows_NTF[-1:], num_missing, axis=0)])
    # Not `predict`: it sets up a data pipeline each time, which costs more than a batch or two.
    parts = [model.predict_on_batch(batch_BTF) for batch_BTF in batches]
    return {task: np.concatenate([part[task] for part in parts])[:num_windows] for task in parts[0]}


@dataclass(frozen=True, eq=False)
class Forecasts:
    """What a model says about windows, in the units of its tasks.

    Args:
        points: Per task, shape (N, H, C), float32; the medians where there are quantiles.
        quantiles: Per task, shape (N, H, Q, C), float32, levels ascending; empty without.
    """

    points: dict[str, NDArray[np.float32]]
    quantiles: dict[str, NDArray[np.float32]] = field(default_factory=dict)


def split_outputs(outputs: Mapping[str, NDArray[np.float32]]) -> Forecasts:
    """Part the outputs of a model by what they are."""
    points = {name: values for name, values in outputs.items() if name in TASKS}
    names = {task: quantile_output(task) for task in points}
    return Forecasts(points, {task: outputs[name] for task, name in names.items() if name in outputs})
