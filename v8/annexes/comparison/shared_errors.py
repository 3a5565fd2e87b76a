"""Errors of compared runs on the windows that all of them share, as JSON values of their models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from v8.base.language import say
from v8.model.baselines.baselines import called
from v8.model.evaluation.bootstrap import error_interval
from v8.model.evaluation.fold_losses import Cell, best_baselines
from v8.model.evaluation.shared_windows import share_windows
from v8.model.evaluation.significance import is_lower
from v8.profile.tasks import TASKS
from v8.runs.backtest_results import read_cell
from v8.runs.serving import served_folder


def with_errors(measurements: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Add the errors of each model to measurements, on the windows that all of their runs share.

    Args:
        measurements: As `v8.annexes.comparison.measuring.measurement_of` returns them, at least one.

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
        "best_baseline": {task: called(name) for task, name in best.items()},
    }


def _no_errors(cell: Cell) -> dict[str, Any]:
    """Return what is added to a model of a series without shared windows, from its own cell."""
    none: dict[str, float | None] = dict.fromkeys(cell.losses.by_task)
    return {"num_shared_windows": 0, "relative_mae": none, "relative_mae_to_best": none, "best_baseline": {}}
