"""Batches of windows of one or many series, gathered from resident tables by NumPy.

The order of an epoch depends on nothing but the seed and the number of the epoch, so a resumed run,
a fleet and a single fit all see the same batches. Every batch has one shape, so that one program
serves them all: a series' last batch of an epoch is filled up with windows of weight zero, and a series
with fewer windows than its neighbours in a fleet has weight zero until the longest is through.

Shape legend: N rows, S batches, B batch, M model, T lookback, F features, H horizon, C columns of a task.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.columns import CLOSE, beside, neighbours
from v8.windows.dataset import SeriesData

Rows = NDArray[np.int64]
Weights = NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """One optimiser step's worth of windows, float32."""

    x_BMTF: Any  # scaled input windows
    y_BMHC: dict[str, Any]  # scaled targets per task
    weight_BM: Any  # weight of each window, 0 for filling


def epoch_order(anchors: Rows, seed: int, epoch: int) -> Rows:
    """Shuffle the anchors of a series, shape (W,), for one epoch, numbered from 1."""
    return np.random.default_rng([seed, epoch]).permutation(anchors)


def num_batches(num_windows: int, batch_size: int) -> int:
    """Return the optimiser steps of an epoch, the filled-up last one included."""
    return -(-num_windows // batch_size)


def batched_rows(orders: Sequence[Rows], batch_size: int) -> tuple[Rows, Weights]:
    """Cut one order a model, each of a window or more, into full batches side by side.

    They are filled up with weight zero. Returns rows (S, B, M), int64, and weights of that shape, float32; S
    is set by the longest order.
    """
    num_slots = batch_size * max(num_batches(len(order), batch_size) for order in orders)
    rows = np.stack([np.resize(order, num_slots) for order in orders], axis=1)
    weights = np.stack([np.arange(num_slots) < len(order) for order in orders], axis=1)
    shape = (-1, batch_size, len(orders))
    return rows.reshape(shape), weights.astype(np.float32).reshape(shape)


class FleetWindows:
    """The windows of one or many series of one profile.

    The tables of a fleet lie side by side, the shorter ones filled up with zeros no anchor points to.
    """

    def __init__(self, fleet: Sequence[SeriesData]) -> None:
        self._fleet = list(fleet)
        first = fleet[0]
        self.inputs_MNF = _side_by_side([data.inputs_NF for data in fleet])
        self.targets_MNHC = {
            task: _side_by_side([data.targets_NHC[task] for data in fleet]) for task in first.targets_NHC
        }
        self.weights_MN = _side_by_side([data.weight_N for data in fleet])
        features, scaling = first.profile.features, first.scaling
        self.anchors = [
            (features.index(beside(origin, CLOSE)), mask_F)
            for origin in ("", *neighbours(features))
            if (mask_F := scaling.anchored_mask(origin)).any() or not origin
        ]
        """Column of the close, and which columns are measured from it, of each series that has prices."""
        self.steps_T = np.arange(1 - first.profile.lookback_bars, 1)

    def training_batches(
        self, seeds: Sequence[int], *, first_epochs: Sequence[int], num_epochs: int
    ) -> Generator[Batch]:
        """Yield the batches of `num_epochs` epochs, shuffled epoch by epoch and model by model.

        Each epoch holds as many batches as the series with the most train windows needs. The first epochs'
        numbers may differ by series after a resume.
        """
        size = self._fleet[0].profile.training.windows_per_step
        for number in range(num_epochs):
            orders = [
                epoch_order(data.anchors["train"], seed, first + number)
                for data, seed, first in zip(self._fleet, seeds, first_epochs, strict=True)
            ]
            yield from map(self.gather, *batched_rows(orders, size))

    def span_batches(self, span: str, batch_size: int) -> Iterator[Batch]:
        """Yield one pass over a span of every series, in time order."""
        return map(self.gather, *batched_rows([data.anchors[span] for data in self._fleet], batch_size))

    def gather(self, rows_BM: Rows, weight_BM: Weights) -> Batch:
        """Make one batch of rows (B, M) and their weights."""
        models = np.arange(rows_BM.shape[1])[:, None]
        x_BMTF = self.inputs_MNF[models, rows_BM[:, :, None] + self.steps_T]
        for close, mask_F in self.anchors:
            x_BMTF -= x_BMTF[:, :, -1:, close, None] * mask_F
        y_BMHC = {task: target[models[:, 0], rows_BM] for task, target in self.targets_MNHC.items()}
        return Batch(x_BMTF, y_BMHC, weight_BM * self.weights_MN[models[:, 0], rows_BM])


def _side_by_side(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    if len(arrays) == 1:
        return arrays[0][None]  # a view: nothing of a long series is copied
    longest = max(len(array) for array in arrays)
    joined = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), np.float32)
    for place, array in zip(joined, arrays, strict=True):
        place[: len(array)] = array
    return joined
