"""Runs a published model over windows, always in batches of one size.

Shape legend: N windows, B batch, T lookback, F features, H horizon, C columns of a task.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    num_missing = -num_windows % FORECAST_BATCH
    filled_NTF = np.concatenate([windows_NTF, np.repeat(windows_NTF[-1:], num_missing, axis=0)])
    batches = np.split(filled_NTF, len(filled_NTF) // FORECAST_BATCH)
    # Not `predict`: it sets up a data pipeline each time, which costs more than a batch or two.
    parts = [model.predict_on_batch(batch_BTF) for batch_BTF in batches]
    return {task: np.concatenate([part[task] for part in parts])[:num_windows] for task in parts[0]}
