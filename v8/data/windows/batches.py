"""Batches: the window indices of each training step, for one or many series, and the gathering of windows.

The order of an epoch depends only on the seed and the number of the epoch, so a resumed run, a fleet and a
single fit see the same batches. All batches have the same shape, so that one compiled program processes them:
the last batch of an epoch is padded with windows of weight zero, and a series with fewer windows than the
others of a fleet gets windows of weight zero until the longest series is complete.

An index is the anchor of a window, its last known row, int32; padding has the index -1 - anchor, below zero.
The indices of an epoch take kilobytes. The tables that they refer to are copied to the device once, and
`gathered` cuts windows out of them there, within the compiled step (`v8.model.training.step`).

Shape legend: N rows, S batches, B batch, M model, T lookback, F features, H horizon, C columns of a task.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from v8.data.windows.dataset import SeriesData
from v8.profile.columns import CLOSE, split_origin, with_origin

Rows = NDArray[np.int64]
Indices = NDArray[np.int32]

FEWEST_TABLE_ROWS: Final = 1_024
LARGEST_DOUBLING: Final = 65_536
"""Tables are padded to a power of two rows, above this number of rows to a multiple of it."""


class Tables(NamedTuple):
    """The scaled rows of every series, from which windows are cut, and the geometry of a window.

    The rows of a fleet are stacked and padded with zeros that no anchor refers to. NumPy arrays or tensors of
    the device. A named tuple, because both backends compile functions of tuples.

    Args:
        inputs_MNF: Scaled features, float32, unitless.
        targets_MNHC: Scaled targets by task and anchor, float32, unitless.
        weights_MN: Weight in losses of the window anchored at each row, float32.
        steps_T: Rows of a window relative to its anchor, int32: 1 - lookback to 0.
        close_F: Column of the close that each feature is measured from, int32.
        is_anchored_F: 1 where the last close of a window is subtracted from the feature, else 0; float32.
    """

    inputs_MNF: Any
    targets_MNHC: dict[str, Any]
    weights_MN: Any
    steps_T: Any
    close_F: Any
    is_anchored_F: Any


@dataclass(frozen=True)
class Batch:
    """The windows of one optimiser step, float32."""

    x_BMTF: Any  # scaled input windows
    y_BMHC: dict[str, Any]  # scaled targets per task
    weight_BM: Any  # weight of each window, 0 for padding


def gathered(xp: Any, tables: Tables, indices_BM: Any) -> Batch:
    """Cut the windows of a batch out of the tables, each relative to its own last close.

    Args:
        xp: `numpy`, `keras.ops`, or `tensorflow.experimental.numpy`, whose tensors the tables are.
        tables: Of M series.
        indices_BM: One index for each window (see the module), int32.
    """
    num_models, num_rows, num_features = tables.inputs_MNF.shape
    is_real_BM = indices_BM >= 0
    anchors_BM = xp.where(is_real_BM, indices_BM, -1 - indices_BM)
    # The rows of all series in one axis: compilers fuse a single look-up with the operations that follow.
    flat_BM = anchors_BM + np.arange(num_models, dtype=np.int32) * num_rows
    rows_BMT = flat_BM[:, :, None] + tables.steps_T
    x_BMTF = xp.take(xp.reshape(tables.inputs_MNF, (-1, num_features)), rows_BMT, axis=0)
    closes_BMF = xp.take(x_BMTF[:, :, -1], tables.close_F, axis=2)
    # A product with 0 or 1 is exact, so the result does not depend on whether a compiler fuses it with the
    # sum.
    x_BMTF = x_BMTF - (closes_BMF * tables.is_anchored_F)[:, :, None]
    y_BMHC = {}
    for task, table in tables.targets_MNHC.items():
        rows = xp.reshape(table, (-1, *table.shape[2:]))
        y_BMHC[task] = xp.take(rows, flat_BM, axis=0)
    weight_BM = xp.take(xp.reshape(tables.weights_MN, (-1,)), flat_BM, axis=0)
    return Batch(x_BMTF, y_BMHC, xp.where(is_real_BM, weight_BM, xp.zeros_like(weight_BM)))


def epoch_order(anchors: Rows, seed: int, epoch: int) -> Rows:
    """Shuffle the anchors of a series, shape (W,), for one epoch, numbered from 1."""
    return np.random.default_rng([seed, epoch]).permutation(anchors)


def num_batches(num_windows: int, batch_size: int) -> int:
    """Return the number of optimiser steps of an epoch, including the padded last one."""
    return -(-num_windows // batch_size)


def batched_indices(orders: Sequence[Rows], batch_size: int) -> Indices:
    """Divide the anchors of each model, at least one, into full batches: indices (S, B, M), int32.

    The longest order determines S; the others are padded.
    """
    num_places = batch_size * max(num_batches(len(order), batch_size) for order in orders)
    columns = []
    for order in orders:
        column = np.resize(order, num_places).astype(np.int32)
        column[len(order) :] = -1 - column[len(order) :]
        columns.append(column)
    return np.stack(columns, axis=1).reshape(-1, batch_size, len(orders))


def padded_rows(num_rows: int) -> int:
    """Return the number of rows to which a table is padded.

    The number of rows is part of a compiled program: series of similar lengths share a program this way.

    >>> padded_rows(300), padded_rows(7_700), padded_rows(8_193), padded_rows(100_000)
    (1024, 8192, 16384, 131072)
    """
    if num_rows > LARGEST_DOUBLING:
        return -(-num_rows // LARGEST_DOUBLING) * LARGEST_DOUBLING
    return max(FEWEST_TABLE_ROWS, 1 << (num_rows - 1).bit_length())


class EpochOrders:
    """The shuffled train windows of a fleet, epoch after epoch; it holds anchors but no tables.

    Args:
        series_data: One or many series of one profile.
        seeds: Seed of the order of each series.
        first_epochs: The number of each series' next epoch, from 1; they differ after a resume.
    """

    def __init__(
        self, series_data: Sequence[SeriesData], seeds: Sequence[int], first_epochs: Sequence[int]
    ) -> None:
        self._anchors = [data.anchors["train"] for data in series_data]
        self._seeds = list(seeds)
        self._batch_size = series_data[0].profile.training.windows_per_step
        self._later = [first - min(first_epochs) for first in first_epochs]
        self.start = min(first_epochs)
        """Number of the next epoch of the series with the fewest epochs; `indices` counts from it."""
        longest = max(len(anchors) for anchors in self._anchors)
        self.shape = (num_batches(longest, self._batch_size), self._batch_size, len(self._anchors))
        """Shape of the indices of one epoch: (S, B, M)."""

    def indices(self, epoch: int) -> Indices:
        """Return the indices (S, B, M), int32, of one epoch, numbered from `start`."""
        orders = [
            epoch_order(anchors, seed, epoch + later)
            for anchors, seed, later in zip(self._anchors, self._seeds, self._later, strict=True)
        ]
        return batched_indices(orders, self._batch_size)

    def __iter__(self) -> Iterator[Indices]:
        """Yield the indices of one epoch after another, without end."""
        return map(self.indices, count(self.start))


class FleetWindows:
    """The windows of one or many series of one profile."""

    def __init__(self, series_data: Sequence[SeriesData]) -> None:
        self._series_data = list(series_data)
        self.num_rows = padded_rows(max(len(data.inputs_NF) for data in series_data))
        """Rows of the tables."""

    def tables(self, to_device: Callable[[NDArray[Any]], Any] = np.asarray) -> Tables:
        """Stack the tables of the series, again in each call: they may take gigabytes.

        Each is passed to `to_device`, which may copy it to a device, before the next one is created.
        """
        first = self._series_data[0]
        close_F, is_anchored_F = _anchoring(first)
        inputs_MNF = to_device(self._stacked([data.inputs_NF for data in self._series_data]))
        targets_MNHC = {}
        for task in first.targets_NHC:
            targets_MNHC[task] = to_device(
                self._stacked([data.targets_NHC[task] for data in self._series_data])
            )
        weights_MN = to_device(self._stacked([data.weight_N for data in self._series_data]))
        return Tables(
            inputs_MNF=inputs_MNF,
            targets_MNHC=targets_MNHC,
            weights_MN=weights_MN,
            steps_T=to_device(np.arange(1 - first.profile.lookback_bars, 1, dtype=np.int32)),
            close_F=to_device(close_F),
            is_anchored_F=to_device(is_anchored_F),
        )

    def epochs(self, seeds: Sequence[int], first_epochs: Sequence[int]) -> EpochOrders:
        """Return the orders of the coming epochs."""
        return EpochOrders(self._series_data, seeds, first_epochs)

    def span_indices(self, span: str, batch_size: int) -> Indices:
        """Return the indices (S, B, M), int32, of one pass over a span of every series, in time order."""
        return batched_indices([data.anchors[span] for data in self._series_data], batch_size)

    def _stacked(self, arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Stack arrays of different lengths, padded with zeros: shape (M, N, ...)."""
        stacked = np.zeros((len(arrays), self.num_rows, *arrays[0].shape[1:]), np.float32)
        for number, array in enumerate(arrays):
            stacked[number, : len(array)] = array
        return stacked


def _anchoring(data: SeriesData) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the column of the close from which each feature is measured, and 1 for features that are."""
    features = data.profile.features
    origins = [split_origin(name)[0] for name in features]
    is_anchored_F = np.zeros(len(features), np.float32)
    for origin in dict.fromkeys(origins):
        is_anchored_F += data.scaling.anchored_mask(origin)
    closes = [
        features.index(with_origin(origin if is_anchored else "", CLOSE))
        for origin, is_anchored in zip(origins, is_anchored_F, strict=True)
    ]
    return np.array(closes, np.int32), is_anchored_F
