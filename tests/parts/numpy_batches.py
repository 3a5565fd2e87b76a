"""The windows of a fleet as NumPy arrays, batch by batch: what the compiled step cuts out of its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from v8.data.windows import Batch, FleetWindows, Indices, gathered


def training_batches(
    windows: FleetWindows, seeds: Sequence[int], *, first_epochs: Sequence[int], num_epochs: int
) -> Iterator[Batch]:
    """Yield the training batches of some epochs: in each as many as the longest series has."""
    for indices_SBM in islice(windows.epochs(seeds, first_epochs), num_epochs):
        yield from _batches(windows, indices_SBM)


def span_batches(windows: FleetWindows, span: str, batch_size: int) -> Iterator[Batch]:
    """Yield one pass over a span of every series, in time order."""
    yield from _batches(windows, windows.span_indices(span, batch_size))


def _batches(windows: FleetWindows, indices_SBM: Indices) -> Iterator[Batch]:
    tables = windows.tables()
    for indices_BM in indices_SBM:
        yield gathered(np, tables, indices_BM)
