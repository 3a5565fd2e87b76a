"""A baseline that forecasts the ranges of the coming bars, then lets prices walk that far.

The formula is that of `v8.data.range_paths`. The profile `range_paths` publishes it as a Keras file; here it
is fitted beside every model, and computed in double precision.

Legend: N windows, H steps of the horizon, C open, high, low, close, P paths.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from v8.data import range_paths
from v8.data.range_paths import path_medians
from v8.data.scaling import Scaling
from v8.data.span import Floats, Span
from v8.evaluation.baseline import Baseline, Forecast, TaskForecasts
from v8.tasks import TASKS

WINDOWS_AT_ONCE: Final = 32
"""Windows whose paths are in memory at the same time."""


def fit_range_paths(train: Span, scaling: Scaling) -> Forecast:
    """Fit the regressions to the train span and keep what followed its windows."""
    fitted = range_paths.fit_range_paths(train)

    def forecast(span: Span) -> TaskForecasts:
        ranges_NH, starts = fitted.ranges(span), range(0, len(span), WINDOWS_AT_ONCE)
        parts = [slice(start, start + WINDOWS_AT_ONCE) for start in starts]
        made = [_medians(span, part, ranges_NH[part], fitted.lent_PHC) for part in parts]
        return {task: np.concatenate([part[task] for part in made]) for task in span.profile.tasks}

    return forecast


def _medians(span: Span, part: slice, ranges_NH: Floats, lent_PHC: Floats) -> TaskForecasts:
    """Walk every lent path at the ranges forecast, and take medians over them, per task (N, H, C)."""
    moved_NPHC = ranges_NH[:, None, :, None] * lent_PHC
    tasks = [TASKS[name] for name in span.profile.tasks]
    return path_medians(np, tasks, span.history_close[part], moved_NPHC)


RANGE_PATHS: Final = Baseline(
    "range_paths",
    "Medians of 512 paths of past bars, each bar scaled to the range that a regression forecasts for it.",
    "filtered historical simulation: Barone-Adesi, Giannopoulos & Vosper (1999), J. Futures Markets 19",
    fit_range_paths,
)
