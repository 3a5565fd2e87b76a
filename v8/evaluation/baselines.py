"""Forecasts that need no training, by name: what a model has to beat before it may call itself one.

A baseline is a pure function of the closes a window knows and of the offsets of the train span, so it
can neither see the test span nor be tuned on it. Register a new one by adding it to `BASELINES`.

Legend: N windows, H steps of the horizon, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.columns import BAND_WIDTH_STDS, TASK_BANDS, TASK_OHLC, TASK_VOLATILITY
from v8.data.targets import roll_forward
from v8.evaluation.forecasts import Floats, Forecasts

TaskForecasts = dict[str, NDArray[np.float64]]
BaselineFunction = Callable[[NDArray[np.float64], int, Mapping[str, Floats]], TaskForecasts]


@dataclass(frozen=True)
class Baseline:
    """A forecast that needs no training.

    Args:
        sentence: What it assumes about the future, for people.
        source: Who described it, or where its numbers come from.
        forecast: Maps closes of shape (N, 20), oldest first, quote currency, the horizon in bars and
            the offsets per task of shape (H, C), unitless, to arrays of shape (N, H, C) per task of
            `v8.columns.TASK_COLUMNS`, float64; quote currency, volatility unitless.
    """

    sentence: str
    source: str
    forecast: BaselineFunction


def forecast_baseline(name: str, forecasts: Forecasts) -> TaskForecasts:
    """Forecast a test span with a named baseline.

    Args:
        name: A key of `BASELINES`.
        forecasts: The test span; its truth and model are not read.

    Returns:
        Per task of the span, shape (N, H, C), float64; quote currency, volatility unitless.
    """
    closes = forecasts.history_close.astype(np.float64)
    made = BASELINES[name].forecast(closes, forecasts.horizon_bars, forecasts.offsets)
    return {task: made[task] for task in forecasts.truth}


def _last_close(
    history_close: NDArray[np.float64], horizon_bars: int, _offsets: Mapping[str, Floats]
) -> TaskForecasts:
    middle = history_close.mean(axis=1)
    deviation = history_close.std(axis=1, ddof=1)
    reach = BAND_WIDTH_STDS * deviation
    anchors = {
        TASK_OHLC: np.repeat(history_close[:, -1:], 4, axis=1),
        TASK_BANDS: np.stack([middle + reach, middle - reach], axis=-1),
        TASK_VOLATILITY: (deviation / middle)[:, None],
    }
    return {task: np.repeat(values[:, None, :], horizon_bars, axis=1) for task, values in anchors.items()}


def _roll_forward(
    history_close: NDArray[np.float64], horizon_bars: int, _offsets: Mapping[str, Floats]
) -> TaskForecasts:
    return roll_forward(history_close, horizon_bars)


def _offset(
    history_close: NDArray[np.float64], horizon_bars: int, offsets: Mapping[str, Floats]
) -> TaskForecasts:
    rolled = roll_forward(history_close, horizon_bars)
    with np.errstate(over="ignore"):  # infinity is refused where errors are measured
        return {task: rolled[task] * np.exp(shift.astype(np.float64)) for task, shift in offsets.items()}


NAIVE: Final = "roll_forward"
"""The baseline every skill, multiple and verdict is measured against, for every task."""

BASELINES: Final[dict[str, Baseline]] = {
    "last_close": Baseline(
        "Nothing moves: candles stay at the last close, bands and volatility at their last value.",
        "random walk without drift; Hyndman & Athanasopoulos, Forecasting: Principles and Practice, 5.2",
        _last_close,
    ),
    NAIVE: Baseline(
        "The close stays at the last close; bands and volatility are recomputed as known closes leave "
        "their window.",
        "random walk without drift, carried through the lineage's indicator definitions",
        _roll_forward,
    ),
    "offset": Baseline(
        "Roll-forward times one constant per task, step and column: its usual distance from the truth.",
        "medians of the train span of the same series",
        _offset,
    ),
}
"""Every baseline a forecast is shown beside, in the order of the reports."""
