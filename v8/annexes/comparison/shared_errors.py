"""Errors of compared models on the windows that all of them share, which alone can be compared.

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
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.base.errors import ArtifactError
from v8.base.wording import say
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation.bootstrap import error_interval
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.fold_losses import Cell, best_baselines
from v8.model.evaluation.significance import is_lower
from v8.profile.tasks import TASKS
from v8.runs.backtest import read_cell
from v8.runs.serving import served_folder

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


def with_errors(measurements: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Add the errors of each model to measurements, on the windows that all of their runs share.

    Args:
        measurements: As `v8.annexes.comparison.measurement.measurement_of` returns them, at least one.

    Returns:
        The measurements; each model has in addition `num_shared_windows`, and by task `relative_mae`,
        `relative_mae_to_best` and `best_baseline`. A series that not all have finished, or of which they
        share no window, has no errors. Each measurement has in addition `to_best`: by task how many series
        have a lower error than the best baseline, of how many, and the 95 % interval of the median ratio.
    """
    cells = {_name(measurement): _cells(measurement) for measurement in measurements}
    shared = share_windows(cells).cells
    finished = []
    for measurement in measurements:
        name = _name(measurement)
        restricted = {str(cell.series): cell for cell in shared[name]}
        best = best_baselines(shared[name])
        models = []
        for model, own_cell in zip(measurement["models"], cells[name], strict=True):
            cell = restricted.get(model["series"])
            errors = _errors(cell, best[cell.series.timeframe]) if cell else _no_errors(own_cell)
            models.append({**model, **errors})
        finished.append({**measurement, "models": models, "to_best": _to_best(shared[name], best)})
    return tuple(finished)


def _to_best(cells: Sequence[Cell], best: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """Sum up by task how a run compares with the best baselines, given by timeframe and task."""
    summaries = {}
    for task in TASKS:
        with_task = [cell for cell in cells if task in cell.losses.by_task]
        if with_task:
            pairs = [cell.paired(task, best[cell.series.timeframe][task]) for cell in with_task]
            interval = error_interval(pairs, with_task[0].evaluation.horizon_bars)
            ratios = [cell.relative_error(task, best[cell.series.timeframe][task]) for cell in with_task]
            summaries[task] = {
                "num_better": sum(map(is_lower, ratios)),
                "num_series": len(with_task),
                "interval": [interval.low, interval.high] if interval else None,
            }
    return summaries


def shared_windows_note(num_shared: int, num_own: Mapping[str, int]) -> str:
    """Say on how many windows profiles are compared, and of how many each has.

    Args:
        num_shared: Windows that all share, over all series and folds.
        num_own: By the name of the profile, as it is shown, the windows that it was evaluated on.
    """
    numbers = []
    for name, num_windows in num_own.items():
        # Translators: a number of windows, of a profile: "1,200 for frontier".
        numbers.append(say("{value} for {profile}", value=f"{num_windows:,}", profile=name))
    by_profile = say(", ").join(numbers)
    if num_shared == 0:
        return say(
            "The errors of these profiles are not compared: they share no window. Windows: {windows}.",
            windows=by_profile,
        )
    return say(
        "Errors are those of the {num} windows that all share. Windows: {windows}.",
        num=f"{num_shared:,}",
        windows=by_profile,
    )


def _name(measurement: Mapping[str, Any]) -> str:
    return f"{measurement['profile']} (repeat {measurement['repeat']})"


def _cells(measurement: Mapping[str, Any]) -> list[Cell]:
    run = Path(measurement["run"])
    return [read_cell(served_folder(run, model["series"])) for model in measurement["models"]]


def _errors(cell: Cell, best: Mapping[str, str]) -> dict[str, Any]:
    """Return what is added to a model; `best` are the best baselines by task."""
    return {
        "num_shared_windows": len(cell.losses.closes_s),
        "relative_mae": {task: cell.relative_error(task) for task in best},
        "relative_mae_to_best": {task: cell.relative_error(task, name) for task, name in best.items()},
        "best_baseline": dict(best),
    }


def _no_errors(cell: Cell) -> dict[str, Any]:
    """Return what is added to a model of a series without shared windows, from its own cell."""
    none: dict[str, float | None] = dict.fromkeys(cell.losses.by_task)
    return {"num_shared_windows": 0, "relative_mae": none, "relative_mae_to_best": none, "best_baseline": {}}
