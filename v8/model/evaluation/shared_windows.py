"""Several models on the windows that all of them share: what they can be compared on.

A profile that looks further back has a shorter test span, so it is evaluated on fewer windows, and means over
other windows are means of another market. So of each series and fold only the windows remain that every model
was evaluated on, known by the close of their last known candle. A series or fold that one model lacks is left
out for all.

Each model brings baselines that were fitted to its own train span. Where the models look equally far ahead,
one fit of each baseline remains for all: the one with the lowest error on the shared windows. So models are
compared with the same forecasts, and nobody gains by windows of which a baseline can learn little.

Legend: N windows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.base.errors import ArtifactError
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.fold_losses import Cell

SAME_SHARE: Final = 1e-3
"""Share by which errors of naive on the same windows may differ: candles of other files differ by more."""


@dataclass(frozen=True)
class SharedWindows:
    """The cells of several models, restricted to the windows that all of them share."""

    cells: Mapping[str, Sequence[Cell]]  # by the name of the model, each with the same folds and series
    num_own: Mapping[str, int]  # windows of all cells that each model was evaluated on, the shared included

    @property
    def num_shared(self) -> int:
        """Windows that all models share, over all series and folds."""
        first = next(iter(self.cells.values()))
        return sum(len(cell.losses.closes_s) for cell in first)


def share_windows(cells_by_model: Mapping[str, Sequence[Cell]]) -> SharedWindows:
    """Restrict the cells of several models, at least one, to the windows that all of them share.

    A fold of one model is compared with the fold of the same number of another one.

    Raises:
        ArtifactError: If the naive forecast has other errors on the same windows: the candles differ.
    """
    by_key = {
        name: {(cell.fold, cell.series): cell for cell in cells} for name, cells in cells_by_model.items()
    }
    first = next(iter(by_key.values()))
    shared: dict[str, list[Cell]] = {name: [] for name in by_key}
    for key in first:
        if all(key in cells for cells in by_key.values()):
            of_models = {name: cells[key] for name, cells in by_key.items()}
            for name, cell in _shared_cells(of_models).items():
                shared[name].append(cell)
    num_own = {
        name: sum(len(cell.losses.closes_s) for cell in cells) for name, cells in cells_by_model.items()
    }
    return SharedWindows(shared, num_own)


def _shared_cells(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Restrict the cells of one fold and series; the result is empty if the models share no window."""
    closes_s: NDArray[np.int64] = reduce(np.intersect1d, [cell.losses.closes_s for cell in cells.values()])
    if not len(closes_s):
        return {}
    restricted = {}
    for name, cell in cells.items():
        # Quantiles are known as means over the windows of their own model alone.
        restricted[name] = replace(cell, losses=cell.losses.at(closes_s), quantiles=None)
    if len({cell.evaluation.horizon_bars for cell in cells.values()}) > 1:
        return restricted
    _require_same_candles(restricted)
    return _with_common_baselines(restricted)


def _require_same_candles(cells: Mapping[str, Cell]) -> None:
    """Refuse models whose candles in the same windows differ."""
    errors: dict[str, tuple[str, float]] = {}  # by task the first model that has it, and naive's error
    for name, cell in cells.items():
        for task in cell.losses.by_task:
            error = cell.losses.mean(task, NAIVE)
            first_name, first_error = errors.setdefault(task, (name, error))
            if abs(error - first_error) > SAME_SHARE * max(error, first_error):
                rule = "models are compared on the same candles, on which naive has the same error"
                got = f"{error:.4g} for {name} and {first_error:.4g} for {first_name} in {task}"
                fix = "Compare models that were trained on candles of one source"
                raise ArtifactError(where=str(cell.series), rule=rule, got=got, fix=fix)


def _with_common_baselines(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Give all models the same baselines, each as it was fitted with the lowest error on these windows.

    Where a task has no reference, validation spans decide which baseline is the best; those of the first
    model count for all.
    """
    best_fits: dict[str, dict[str, NDArray[np.float32]]] = {}  # losses by task and baseline, shape (N,)
    for cell in cells.values():
        for task, by_name in cell.losses.by_task.items():
            fits = best_fits.setdefault(task, {})
            for name, losses_N in by_name.items():
                is_baseline = name != MODEL
                if is_baseline and (name not in fits or losses_N.mean() < fits[name].mean()):
                    fits[name] = losses_N
    validation_mae = next(iter(cells.values())).evaluation.validation_mae
    common = {}
    for name, cell in cells.items():
        by_task = {
            task: {MODEL: by_name[MODEL], **best_fits[task]} for task, by_name in cell.losses.by_task.items()
        }
        common[name] = replace(
            cell,
            losses=replace(cell.losses, by_task=by_task),
            evaluation=replace(cell.evaluation, validation_mae=validation_mae),
        )
    return common
