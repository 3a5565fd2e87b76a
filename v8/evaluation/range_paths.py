"""A baseline that forecasts the ranges of the coming bars, then lets prices walk that far.

The formula is that of `v8.data.range_paths`. The profile `range_paths` publishes it as a Keras file; here it
is fitted beside every model, and computed in double precision.

Legend: N windows, H steps of the horizon, C open, high, low, close, P paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from v8.data import range_paths
from v8.data.range_paths import Summary, path_closes, path_medians, walk_windows
from v8.data.scaling import Scaling
from v8.data.span import Floats, Span
from v8.evaluation.baseline import Baseline, Forecast, TaskForecasts
from v8.tasks.task import Task


def fit_range_paths(train: Span, scaling: Scaling) -> Forecast:
    """Fit the regressions to the train span and keep what followed its windows."""
    return _fitted(train, partial(path_medians, np))


def fit_range_path_quantiles(train: Span, scaling: Scaling, levels: Sequence[float]) -> Forecast:
    """Do the same; the forecast is quantiles over the paths, shape (N, H, Q, C)."""
    return _fitted(train, partial(_quantiles, levels))


def _fitted(train: Span, summed_up: Summary) -> Forecast:
    fitted = range_paths.fit_range_paths(train)

    def forecast(span: Span) -> TaskForecasts:
        return walk_windows(span, fitted.ranges(span), fitted.lent_PHC, summed_up)

    return forecast


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
