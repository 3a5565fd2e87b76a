"""A baseline that forecasts the ranges of the coming bars, then lets prices walk that far.

The formula is that of `v8.data.range_paths`. The profile `range_paths` publishes it as a Keras file; here it
is fitted beside every model, and computed in double precision.

Legend: N windows, H steps of the horizon, C open, high, low, close, P paths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from v8.data import range_paths
from v8.data.range_paths import path_closes, path_medians
from v8.data.scaling import Scaling
from v8.data.span import Floats, Span
from v8.evaluation.baseline import Baseline, Forecast, TaskForecasts
from v8.tasks import TASKS
from v8.tasks.task import Task

WINDOWS_AT_ONCE: Final = 32
"""Windows whose paths are in memory at the same time."""


Summary: TypeAlias = Callable[[Sequence[Task], Floats, Floats], TaskForecasts]
"""Maps tasks, known closes (N, 20) and the moves of paths (N, P, H, C) to what is said of them."""


def fit_range_paths(train: Span, scaling: Scaling) -> Forecast:
    """Fit the regressions to the train span and keep what followed its windows."""
    return _fitted(train, _medians)


def fit_range_path_quantiles(train: Span, scaling: Scaling, levels: Sequence[float]) -> Forecast:
    """Do the same; the forecast is quantiles over the paths, shape (N, H, Q, C)."""
    return _fitted(train, partial(_quantiles, levels))


def _fitted(train: Span, summed_up: Summary) -> Forecast:
    fitted = range_paths.fit_range_paths(train)

    def forecast(span: Span) -> TaskForecasts:
        ranges_NH, starts = fitted.ranges(span), range(0, len(span), WINDOWS_AT_ONCE)
        parts = [slice(start, start + WINDOWS_AT_ONCE) for start in starts]
        moves = (ranges_NH[part, None, :, None] * fitted.lent_PHC for part in parts)
        tasks = [TASKS[name] for name in span.profile.tasks]
        made = [
            summed_up(tasks, span.history_close[part], moved)
            for part, moved in zip(parts, moves, strict=True)
        ]
        return {task: np.concatenate([part[task] for part in made]) for task in span.profile.tasks}

    return forecast


def _medians(tasks: Sequence[Task], history_close: Floats, moved_NPHC: Floats) -> TaskForecasts:
    return path_medians(np, tasks, history_close, moved_NPHC)


def _quantiles(
    levels: Sequence[float], tasks: Sequence[Task], history_close: Floats, moved_NPHC: Floats
) -> TaskForecasts:
    paths, last_N111 = path_closes(np, history_close, moved_NPHC), history_close[:, -1, None, None, None]
    made = {}
    for task in tasks:
        values = task.implied(np, paths) if task.has_window else paths.candles
        found = np.moveaxis(np.quantile(values, levels, axis=1), 0, 2)
        # Candles in logarithms, as their medians.
        made[task.name] = task.size(last_N111, found if task.has_window else np.exp(found))
    return made


RANGE_PATHS: Final = Baseline(
    "range_paths",
    "Medians of 512 paths of past bars, each bar scaled to the range that a regression forecasts for it.",
    "filtered historical simulation: Barone-Adesi, Giannopoulos & Vosper (1999), J. Futures Markets 19",
    fit_range_paths,
    fit_quantiles=fit_range_path_quantiles,
)
