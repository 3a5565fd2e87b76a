"""A baseline that forecasts the ranges of the coming bars, then lets prices walk that far.

The formula is that of `v8.formulas.range_paths`. The profile `range_paths` publishes it as a Keras file; here
it is fitted beside every model, and computed in double precision.

Legend: N windows, H steps of the horizon, C open, high, low, close, P paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from v8.formulas import range_paths
from v8.formulas.baseline import Baseline, Forecast, TaskForecasts
from v8.formulas.range_paths import Summary, path_medians, path_quantiles, walk_windows
from v8.quantile_levels import MEDIAN
from v8.windows.scaling import Scaling
from v8.windows.span import Span


def fit_range_paths(train: Span, scaling: Scaling) -> Forecast:
    """Fit the regressions to the train span and keep what followed its windows."""
    levels = train.profile.quantiles
    if not levels:
        return _fitted(train, partial(path_medians, np))
    quantiles, middle = fit_range_path_quantiles(train, scaling, levels), levels.index(MEDIAN)
    return lambda span: {task: values[:, :, middle] for task, values in quantiles(span).items()}


def fit_range_path_quantiles(train: Span, scaling: Scaling, levels: Sequence[float]) -> Forecast:
    """Do the same; the forecast is quantiles over the paths, shape (N, H, Q, C).

    Medians and quantiles are judged one after the other: fit and walk of the same spans are done once.
    """
    known = _FITTED.setdefault(train, {})
    if tuple(levels) not in known:
        known[tuple(levels)] = _walked_once(_fitted(train, partial(path_quantiles, np, levels)))
    return known[tuple(levels)]


_FITTED: Final[WeakKeyDictionary[Span, dict[tuple[float, ...], Forecast]]] = WeakKeyDictionary()
"""Forecasts of quantiles by the train span they were fitted to, while anybody holds it."""


def _walked_once(forecast: Forecast) -> Forecast:
    walked: WeakKeyDictionary[Span, TaskForecasts] = WeakKeyDictionary()

    def remembered(span: Span) -> TaskForecasts:
        if span not in walked:
            walked[span] = forecast(span)
        return walked[span]

    return remembered


def _fitted(train: Span, summed_up: Summary) -> Forecast:
    fitted = range_paths.fit_range_paths(train)

    def forecast(span: Span) -> TaskForecasts:
        return walk_windows(span, fitted.ranges(span), fitted.lent_PHC, summed_up)

    return forecast


RANGE_PATHS: Final = Baseline(
    "range_paths",
    "Medians of 512 paths of past bars, each bar scaled to the range that a regression forecasts for it.",
    "filtered historical simulation: Barone-Adesi, Giannopoulos & Vosper (1999), J. Futures Markets 19",
    fit_range_paths,
    fit_quantiles=fit_range_path_quantiles,
)
