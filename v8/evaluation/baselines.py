"""Forecasts that need no network, by name: what a model has to beat before it may call itself one.

A baseline is fitted to the train span alone and then forecasts any windows from what is known at them, so
it can neither see the test span nor be tuned on it. The simple ones need nothing but closes. Register a
new one by adding it to `BASELINES`; it may leave out tasks it says nothing about.

Legend: N windows, H steps of the horizon, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.columns import BAND_PERIOD_BARS, BAND_WIDTH_STDS, CLOSE, OHLC, TASK_BANDS, TASK_OHLC, TASK_VOLATILITY
from v8.errors import SeriesError
from v8.evaluation import boosting
from v8.evaluation.forecasts import Forecasts
from v8.evaluation.past import Forecast, Known, Lesson, TaskForecasts
from v8.evaluation.range_baselines import fit_ewma, fit_har, fit_scaled
from v8.evaluation.range_paths import fit_range_paths


@dataclass(frozen=True)
class Baseline:
    """A forecast that needs no network.

    Args:
        sentence: What it assumes about the future, for people.
        source: Who described it, or where its numbers come from.
        fit: Maps what there is to learn from to a function of what is known at N windows. That function
            returns arrays of shape (N, H, C) per task of `v8.columns.TASK_COLUMNS`, float64; quote
            currency, volatility unitless. It may leave tasks out.
        needs_past: Whether it learns from the windows of the train span, or looks at more bars than the
            last twenty closes.
        is_installed: Whether the optional package it needs is there; always when it needs none.
    """

    sentence: str
    source: str
    fit: Callable[[Lesson], Forecast]
    needs_past: bool
    is_installed: Callable[[], bool] = lambda: True


def forecast_baseline(name: str, forecasts: Forecasts) -> dict[str, NDArray[np.float64]]:
    """Forecast a span with a named baseline.

    Args:
        name: One of `usable_baselines`.
        forecasts: The span; its truth and model are not read.

    Returns:
        Per task of the span that the baseline forecasts, shape (N, H, C), float64; quote currency,
        volatility unitless.

    Raises:
        SeriesError: If the baseline is fitted to a past and the span has none.
    """
    baseline, past = BASELINES[name], forecasts.past
    closes = forecasts.history_close.astype(np.float64)
    if past is not None:
        learned = baseline.fit(Lesson(forecasts.offsets, past.train, past.train_truth))
        made = learned(Known(closes, forecasts.horizon_bars, past.rows, past.train.bars))
    elif not baseline.needs_past:
        nothing = Known(closes[:0], forecasts.horizon_bars)
        made = baseline.fit(Lesson(forecasts.offsets, nothing, {}))(Known(closes, forecasts.horizon_bars))
    else:
        raise SeriesError(
            where=f"{forecasts.series}, baseline {name}",
            rule="is fitted to the train span",
            got="a span without a past",
            fix="Pass the past of the span with its forecasts",
        )
    return {task: made[task] for task in forecasts.truth if task in made}


def usable_baselines(forecasts: Forecasts) -> list[str]:
    """List the baselines that can forecast a span here.

    Without a past these are those that need none; those of a package that is not installed are left out.
    """
    return [
        name
        for name, one in BASELINES.items()
        if (forecasts.past is not None or not one.needs_past) and one.is_installed()
    ]


def _last_close(known: Known) -> TaskForecasts:
    middle = known.history_close.mean(axis=1)
    deviation = known.history_close.std(axis=1, ddof=1)
    reach = BAND_WIDTH_STDS * deviation
    anchors = {
        TASK_OHLC: np.repeat(known.history_close[:, -1:], 4, axis=1),
        TASK_BANDS: np.stack([middle + reach, middle - reach], axis=-1),
        TASK_VOLATILITY: (deviation / middle)[:, None],
    }
    return {
        task: np.repeat(values[:, None, :], known.horizon_bars, axis=1) for task, values in anchors.items()
    }


def _roll_forward(known: Known) -> TaskForecasts:
    return known.rolled


def _fit_offset(lesson: Lesson) -> Forecast:
    def forecast(known: Known) -> TaskForecasts:
        with np.errstate(over="ignore"):  # infinity is refused where errors are measured
            return {
                task: known.rolled[task] * np.exp(shift.astype(np.float64))
                for task, shift in lesson.offsets.items()
            }

    return forecast


def _fit_drift(lesson: Lesson) -> Forecast:
    close = OHLC.index(CLOSE)
    first_move = np.log(lesson.truth[TASK_OHLC][:, 0, close] / lesson.known.last_close)
    drift = float(first_move.mean())

    def forecast(known: Known) -> TaskForecasts:
        steps = np.arange(1, known.horizon_bars + 1)
        return _indicators(known.history_close, known.last_close[:, None] * np.exp(drift * steps))

    return forecast


def _indicators(history_close: NDArray[np.float64], path: NDArray[np.float64]) -> TaskForecasts:
    """Return what every task would be if the closes went along a path of shape (N, H)."""
    closes = np.concatenate([history_close, path], axis=1)
    windows = [closes[:, step : step + BAND_PERIOD_BARS] for step in range(1, path.shape[1] + 1)]
    middle = np.stack([window.mean(axis=1) for window in windows], axis=1)
    deviation = np.stack([window.std(axis=1, ddof=1) for window in windows], axis=1)
    reach = BAND_WIDTH_STDS * deviation
    return {
        TASK_OHLC: np.repeat(path[:, :, None], len(OHLC), axis=2),
        TASK_BANDS: np.stack([middle + reach, middle - reach], axis=-1),
        TASK_VOLATILITY: (deviation / middle)[:, :, None],
    }


NAIVE: Final = "roll_forward"
"""The baseline every skill, multiple and verdict is measured against, for every task."""

BASELINES: Final[dict[str, Baseline]] = {
    "last_close": Baseline(
        "Nothing moves: candles stay at the last close, bands and volatility at their last value.",
        "random walk without drift; Hyndman & Athanasopoulos, Forecasting: Principles and Practice, 5.2",
        lambda _: _last_close,
        needs_past=False,
    ),
    NAIVE: Baseline(
        "The close stays at the last close; bands and volatility are recomputed as known closes leave "
        "their window.",
        "random walk without drift, carried through the lineage's indicator definitions",
        lambda _: _roll_forward,
        needs_past=False,
    ),
    "offset": Baseline(
        "Roll-forward times one constant per task, step and column: its usual distance from the truth.",
        "medians of the train span of the same series",
        _fit_offset,
        needs_past=False,
    ),
    "drift": Baseline(
        "The close goes on by the train span's mean return per bar; bands and volatility follow it.",
        "random walk with drift; Hyndman & Athanasopoulos, Forecasting: Principles and Practice, 5.2",
        _fit_drift,
        needs_past=True,
    ),
    "scaled": Baseline(
        "Roll-forward moved by one constant per step and column times the mean range of the newest 20 bars.",
        "range as a measure of variance: Feller (1951); weighted medians of the train span",
        fit_scaled,
        needs_past=True,
    ),
    "ewma": Baseline(
        "Likewise, with an exponentially weighted mean of squared returns (decay 0.94) for the range.",
        "RiskMetrics Technical Document (J.P. Morgan, 1996), section 5",
        fit_ewma,
        needs_past=True,
    ),
    "har": Baseline(
        "Roll-forward moved by a regression, per step and column, on ranges over 1, 5, 20, 60 and 240 bars.",
        "heterogeneous autoregression: Corsi (2009), doi:10.1093/jjfinec/nbp001; least absolute errors",
        fit_har,
        needs_past=True,
    ),
    "range_paths": Baseline(
        "Medians of 512 paths of past bars, each bar scaled to the range that a regression forecasts for it.",
        "filtered historical simulation: Barone-Adesi, Giannopoulos & Vosper (1999), J. Futures Markets 19",
        fit_range_paths,
        needs_past=True,
    ),
    "lightgbm": Baseline(
        "Roll-forward moved by boosted trees on the same ranges, on the step and on roll-forward's bands.",
        "gradient boosting of least absolute errors: Friedman (2001), doi:10.1214/aos/1013203451; LightGBM",
        lambda lesson: boosting.fit_boosted([lesson]),
        needs_past=True,
        is_installed=boosting.is_installed,
    ),
}
"""Every baseline a forecast is shown beside, in the order of the reports; one of a package that is not
installed is not there to be beaten, and reports leave it out."""
