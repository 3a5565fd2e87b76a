"""Batches of windows of one or many series, gathered from resident tables by tf.data.

The order of an epoch depends on nothing but the seed and the number of the epoch, so a resumed run,
a fleet and a single fit all see the same batches. Every batch has one shape, so that one program
serves them all: a series' last batch of an epoch is filled up with windows of weight zero, and a series
with fewer windows than its neighbours in a fleet has weight zero until the longest is through.

Under the JAX backend without TensorFlow installed the same batches are gathered by NumPy.

Shape legend: N rows, S batches, B batch, M model, T lookback, F features, H horizon, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.columns import CLOSE
from v8.data.dataset import SeriesData

PREFETCHED_BATCHES = 4

Rows = NDArray[np.int64]
Weights = NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """One optimiser step's worth of windows.

    Args:
        x_BMTF: Scaled input windows, float32.
        y_BMHC: Scaled targets per task, float32.
        weight_BM: 1 for a window, 0 for filling, float32.
    """

    x_BMTF: Any
    y_BMHC: dict[str, Any]
    weight_BM: Any


def epoch_order(anchors: Rows, seed: int, epoch: int) -> Rows:
    """Shuffle the anchors for one epoch.

    Args:
        anchors: Rows to visit, shape (W,).
        seed: Seed of the series.
        epoch: Number of the epoch, from 1.

    Returns:
        The same rows in another order, shape (W,), int64.
    """
    return np.random.default_rng([seed, epoch]).permutation(anchors)


def num_batches(num_windows: int, batch_size: int) -> int:
    """Return the optimiser steps of an epoch, the filled-up last one included."""
    return -(-num_windows // batch_size)


def batched_rows(orders: Sequence[Rows], batch_size: int) -> tuple[Rows, Weights]:
    """Cut one order a model into full batches side by side, filled up with weight zero.

    Args:
        orders: Anchor rows per model, shape (W,), each W at least 1.
        batch_size: Windows a batch.

    Returns:
        Rows (S, B, M), int64, and weights of the same shape, float32; S is set by the longest order.
    """
    num_slots = batch_size * max(num_batches(len(order), batch_size) for order in orders)
    rows = np.stack([np.resize(order, num_slots) for order in orders], axis=1)
    weights = np.stack([np.arange(num_slots) < len(order) for order in orders], axis=1)
    shape = (-1, batch_size, len(orders))
    return rows.reshape(shape), weights.astype(np.float32).reshape(shape)


def training_batches(
    fleet: Sequence[SeriesData], seeds: Sequence[int], *, first_epochs: Sequence[int], num_epochs: int
) -> Iterator[Batch]:
    """Yield the batches of `num_epochs` epochs, shuffled epoch by epoch and model by model.

    Each epoch holds as many batches as the series with the most train windows needs.

    Args:
        fleet: One series a model, of one profile.
        seeds: Seed of each series.
        first_epochs: Number of each series' first epoch here; they may differ after a resume.
        num_epochs: Epochs to yield.
    """
    size = fleet[0].profile.training.batch_size

    def orders(number: int) -> list[Rows]:
        return [
            epoch_order(data.anchors["train"], seed, first + number)
            for data, seed, first in zip(fleet, seeds, first_epochs, strict=True)
        ]

    return _gathered(fleet, (batched_rows(orders(number), size) for number in range(num_epochs)))


def span_batches(fleet: Sequence[SeriesData], span: str, batch_size: int) -> Iterator[Batch]:
    """Yield one pass over a span of every series, in time order."""
    return _gathered(fleet, iter([batched_rows([data.anchors[span] for data in fleet], batch_size)]))


class _Resident:
    """The tables of a fleet side by side, the shorter ones filled up with zeros no anchor points to."""

    def __init__(self, fleet: Sequence[SeriesData]) -> None:
        first = fleet[0]
        self.inputs_MNF = _side_by_side([data.inputs_NF for data in fleet])
        self.targets_MNHC = {
            task: _side_by_side([data.targets_NHC[task] for data in fleet]) for task in first.targets_NHC
        }
        self.mask_F = first.scaling.anchored_mask()
        self.close = first.profile.features.index(CLOSE)
        self.steps_T = np.arange(1 - first.profile.lookback_bars, 1)


def _side_by_side(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    longest = max(len(array) for array in arrays)
    joined = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), np.float32)
    for place, array in zip(joined, arrays, strict=True):
        place[: len(array)] = array
    return joined


def _gathered(fleet: Sequence[SeriesData], epochs: Iterator[tuple[Rows, Weights]]) -> Iterator[Batch]:
    resident = _Resident(fleet)
    batches = (batch for rows, weights in epochs for batch in zip(rows, weights, strict=True))
    if find_spec("tensorflow") is None:
        return (_gather(resident, rows_BM, weight_BM) for rows_BM, weight_BM in batches)
    return _through_tf_data(resident, batches, len(fleet))


def _gather(resident: _Resident, rows_BM: Rows, weight_BM: Weights) -> Batch:
    models = np.arange(rows_BM.shape[1])[:, None]
    x_BMTF = resident.inputs_MNF[models, rows_BM[:, :, None] + resident.steps_T]
    x_BMTF = x_BMTF - x_BMTF[:, :, -1:, resident.close, None] * resident.mask_F
    y_BMHC = {task: target[models[:, 0], rows_BM] for task, target in resident.targets_MNHC.items()}
    return Batch(x_BMTF, y_BMHC, weight_BM)


def _through_tf_data(
    resident: _Resident, batches: Iterator[tuple[Rows, Weights]], num_models: int
) -> Iterator[Batch]:
    import keras  # noqa: PLC0415 - the floors below start without them
    import tensorflow as tf  # noqa: PLC0415

    inputs_MNF = tf.constant(resident.inputs_MNF)
    targets_MNHC = {task: tf.constant(target) for task, target in resident.targets_MNHC.items()}
    steps_T = tf.constant(resident.steps_T, tf.int64)
    close, mask_F = resident.close, tf.constant(resident.mask_F)

    def gather(rows_BM: Any, weight_BM: Any) -> tuple[Any, dict[str, Any], Any]:
        rows_MB = tf.transpose(rows_BM)
        x_MBTF = tf.gather(inputs_MNF, rows_MB[:, :, None] + steps_T, batch_dims=1)
        x_MBTF -= x_MBTF[:, :, -1:, close : close + 1] * mask_F
        y_BMHC = {
            task: tf.transpose(tf.gather(target, rows_MB, batch_dims=1), (1, 0, 2, 3))
            for task, target in targets_MNHC.items()
        }
        return tf.transpose(x_MBTF, (1, 0, 2, 3)), y_BMHC, weight_BM

    signature = (tf.TensorSpec((None, num_models), tf.int64), tf.TensorSpec((None, num_models), tf.float32))
    dataset = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 1
    dataset = dataset.map(gather).prefetch(PREFETCHED_BATCHES).with_options(options)
    is_tensorflow = keras.backend.backend() == "tensorflow"
    for x_BMTF, y_BMHC, weight_BM in dataset if is_tensorflow else dataset.as_numpy_iterator():
        yield Batch(x_BMTF, y_BMHC, weight_BM)
