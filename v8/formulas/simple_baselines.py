"""Baselines that know closes alone: nothing moves, or everything goes on as it used to.

Legend: N windows, H steps of the horizon, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from v8.columns import BAND_PERIOD_BARS, CLOSE, OHLC, TASK_OHLC
from v8.formulas.baseline import Baseline, Forecast, TaskForecasts
from v8.tasks import TASKS
from v8.tasks.closes import Closes
from v8.windows.scaling import Scaling
from v8.windows.span import Floats, Span


def _last_close(span: Span) -> TaskForecasts:
    newest = _implied(span, span.history_close[:, None], span.last_close[:, None])
    return {task: np.repeat(values, span.horizon_bars, axis=1) for task, values in newest.items()}


def _fit_offset(train: Span, scaling: Scaling) -> Forecast:
    def forecast(span: Span) -> TaskForecasts:
        with np.errstate(over="ignore"):  # infinity is refused where errors are measured
            return {
                task.task: span.rolled[task.task] * np.exp(np.array(task.offset)) for task in scaling.tasks
            }

    return forecast


def _fit_drift(train: Span, scaling: Scaling) -> Forecast:
    first_move = np.log(train.truth[TASK_OHLC][:, 0, OHLC.index(CLOSE)] / train.last_close)
    drift = float(first_move.mean())

    def forecast(span: Span) -> TaskForecasts:
        path = span.last_close[:, None] * np.exp(drift * np.arange(1, span.horizon_bars + 1))
        closes = np.concatenate([span.history_close, path], axis=1)
        windows = np.lib.stride_tricks.sliding_window_view(closes, BAND_PERIOD_BARS, axis=1)
        return _implied(span, windows[:, 1:].copy(), path)

    return forecast


def _fit_conformal(train: Span, scaling: Scaling, levels: Sequence[float]) -> Forecast:
    """Add the quantiles of past errors, in recent ranges, to the roll-forward forecast."""

    def unit(task: str, span: Span) -> Floats:
        range_N = scaling.floored_range(span.recent_range)
        return np.asarray(TASKS[task].size(span.last_close, range_N))[:, None, None]

    errors = {task: (train.truth[task] - train.rolled[task]) / unit(task, train) for task in train.truth}
    beyond_HQC = {task: np.quantile(one, levels, axis=0).swapaxes(0, 1) for task, one in errors.items()}

    def forecast(span: Span) -> TaskForecasts:
        return {
            task: span.rolled[task][:, :, None] + beyond_HQC[task] * unit(task, span)[..., None]
            for task in span.profile.tasks
        }

    return forecast


def _implied(span: Span, windows: Floats, path: Floats) -> TaskForecasts:
    """Return what every task would be with these closes (N, H) and windows of twenty (N, H, 20)."""
    closes = Closes(1.0, path, windows.mean(axis=2), windows.std(axis=2, ddof=1))
    return {task: TASKS[task].implied(np, closes) for task in span.profile.tasks}


LAST_CLOSE: Final = Baseline(
    "last_close",
    "Nothing moves: candles stay at the last close, bands and volatility at their last value.",
    "random walk without drift; Hyndman & Athanasopoulos, Forecasting: Principles and Practice, 5.2",
    lambda train, scaling: _last_close,
)

ROLL_FORWARD: Final = Baseline(
    "roll_forward",
    "The close stays at the last close; bands and volatility are recomputed as known closes leave "
    "their window.",
    "random walk without drift, carried through the lineage's indicator definitions",
    lambda train, scaling: lambda span: span.rolled,
    # Split conformal prediction: Lei et al. 2018, doi:10.1080/01621459.2017.1307116.
    fit_quantiles=_fit_conformal,
)

OFFSET: Final = Baseline(
    "offset",
    "Roll-forward times one constant per task, step and column: its usual distance from the truth.",
    "medians of the train span of the same series",
    _fit_offset,
)

DRIFT: Final = Baseline(
    "drift",
    "The close goes on by the train span's mean return per bar; bands and volatility follow it.",
    "random walk with drift; Hyndman & Athanasopoulos, Forecasting: Principles and Practice, 5.2",
    _fit_drift,
)
