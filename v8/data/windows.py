"""Batches of windows, gathered from one resident table by tf.data, in an order fixed by the seed.

The order of an epoch depends on nothing but the seed and the number of the epoch, so a resumed run,
a fleet and a single fit all see the same batches. The last batch of an epoch is filled up with
windows of weight zero: every batch has one shape and one program serves them all.

Shape legend: N rows, B batch, T lookback, F features, H horizon, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from v8.data.dataset import SeriesData

if TYPE_CHECKING:
    import tensorflow as tf

PREFETCHED_BATCHES = 4


@dataclass(frozen=True)
class Batch:
    """One optimiser step's worth of windows.

    Args:
        x_BTF: Scaled input windows, float32.
        y_BHC: Scaled targets per task, float32.
        weight_B: 1 for a window, 0 for filling, float32.
    """

    x_BTF: Any
    y_BHC: dict[str, Any]
    weight_B: Any


def epoch_order(anchors: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """Shuffle the anchors for one epoch.

    Args:
        anchors: Rows to visit, shape (W,).
        seed: Seed of the series.
        epoch: Number of the epoch, from 1.

    Returns:
        The same rows in another order, shape (W,), int64.
    """
    return np.random.default_rng([seed, epoch]).permutation(anchors)


def batched_rows(order: NDArray[np.int64], batch_size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Cut an order into full batches, the last one filled up with weight zero.

    Args:
        order: Anchor rows, shape (W,), W at least 1.
        batch_size: Windows a batch.

    Returns:
        Rows (number of batches, B), int64, and weights of the same shape, float32.
    """
    num_filling = -len(order) % batch_size
    rows = np.concatenate([order, np.full(num_filling, order[0])])
    weights = np.concatenate([np.ones(len(order), np.float32), np.zeros(num_filling, np.float32)])
    return rows.reshape(-1, batch_size), weights.reshape(-1, batch_size)


def num_batches(num_windows: int, batch_size: int) -> int:
    """Return the optimiser steps of an epoch, the filled-up last one included."""
    return -(-num_windows // batch_size)


def training_batches(data: SeriesData, *, seed: int, first_epoch: int, last_epoch: int) -> Iterator[Batch]:
    """Yield the batches of the epochs from `first_epoch` to `last_epoch`, shuffled epoch by epoch.

    Each epoch holds `num_batches(data.num_windows("train"), batch_size)` batches.
    """
    orders = (epoch_order(data.anchors["train"], seed, epoch) for epoch in range(first_epoch, last_epoch + 1))
    return _through_tf_data(data, orders, data.profile.training.batch_size)


def span_batches(data: SeriesData, span: str, batch_size: int) -> Iterator[Batch]:
    """Yield one pass over a span in time order."""
    return _through_tf_data(data, iter([data.anchors[span]]), batch_size)


def _through_tf_data(data: SeriesData, orders: Iterator[NDArray[np.int64]], size: int) -> Iterator[Batch]:
    import tensorflow as tf  # noqa: PLC0415 - the floors below start without it

    def batches() -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        for order in orders:
            yield from zip(*batched_rows(order, size), strict=True)

    signature = (tf.TensorSpec((size,), tf.int64), tf.TensorSpec((size,), tf.float32))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 1
    dataset = dataset.map(_gather_from(data)).prefetch(PREFETCHED_BATCHES).with_options(options)
    for x_BTF, y_BHC, weight_B in dataset:
        yield Batch(x_BTF, y_BHC, weight_B)


def _gather_from(data: SeriesData) -> Any:
    import tensorflow as tf  # noqa: PLC0415

    inputs_NF = tf.constant(data.inputs_NF)
    targets_NHC = {task: tf.constant(target) for task, target in data.targets_NHC.items()}
    mask_F = tf.constant(data.scaling.anchored_mask())
    close = data.profile.features.index("close")
    steps_T = tf.range(1 - data.profile.lookback_bars, 1, dtype=tf.int64)

    def gather(rows_B: tf.Tensor, weight_B: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor]:
        x_BTF = tf.gather(inputs_NF, rows_B[:, None] + steps_T)
        x_BTF -= x_BTF[:, -1:, close : close + 1] * mask_F
        y_BHC = {task: tf.gather(target, rows_B) for task, target in targets_NHC.items()}
        return x_BTF, y_BHC, weight_B

    return gather
