"""A regression that forecasts how far the coming bars will range, on a profile's own features.

First the path: for each step the log range of that bar, by least squares on the log ranges behind and,
where the profile has them and the train span holds them often enough (`v8.windows.span.unheld_waves`), on the
waves of the day and of the week. Then what follows, per task:

* Candles: a random walk with these steps reaches as far, in proportion, as the root of their summed squares,
  and the bar itself as far as its own step. Open and close stay where they are.
* Bands and volatility: the variance of the twenty closes is that of roll-forward plus what each coming bar
  adds (`variance_weights`).

Each step and column gets two coefficients, fitted to the smallest absolute error: for bands and volatility
one of the deviation that follows and one of roll-forward's own, for candles one of the walk and one of the
bar. It is the autoregression of Corsi (2009, doi:10.1093/jjfinec/nbp001) in logarithms, with a clock.

Everything is in recent ranges, as targets are under `scaling: ranged`, and read from the newest row of the
window, so that a published model can compute it too (`v8.networks.serving`).

Legend: W windows, H steps of the horizon, L terms of a log range, R terms of a task, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from v8.columns import (
    HIGH,
    LOW,
    OHLC,
    RECENT_RANGE,
    REGRESSED_RANGES,
    TASK_OHLC,
    WAVE_COLUMNS,
    deviation_columns,
)
from v8.features.formulas import FLOOR_SHARE
from v8.profile import Profile
from v8.tasks import TASKS
from v8.tasks.closes import RANGE_TO_VARIANCE, variance_weights
from v8.windows.dataset import SeriesData
from v8.windows.regression import fit_without, least_absolute_errors, least_squares
from v8.windows.span import Floats, Span, unheld_waves

MAX_LOG_RANGE: Final = 5.0
"""Log ranges ahead beyond this, either way, count as this: exp(5) is 150 recent ranges."""


@dataclass(frozen=True, eq=False)
class RangeRegression:
    """The fitted regression.

    Args:
        path_LH: Coefficients of the log range of each coming bar, shape (L, H).
        tasks: Per task, coefficients of its terms, shape (H, R, C), scaled targets per unit of a term.
    """

    path_LH: Floats
    tasks: Mapping[str, Floats]


def wave_features(profile: Profile) -> tuple[str, ...]:
    """List the profile's features that tell the time."""
    return tuple(name for name in WAVE_COLUMNS if name in profile.features)


def fit_regression(data: SeriesData) -> RangeRegression:
    """Fit path and tasks on the train span alone.

    The sum of absolute errors is that in returns: each window counts by its recent range.

    Args:
        data: The prepared series, of a profile with `calibration: blend`.
    """
    train = data.spans["train"]
    ohlc_WHC = train.truth[TASK_OHLC]
    ahead_WH = np.log(ohlc_WHC[..., OHLC.index(HIGH)] / ohlc_WHC[..., OHLC.index(LOW)])
    recent_W = data.scaling.floored_range(train.known((RECENT_RANGE,))[:, 0])
    in_recent_WH = np.sqrt(RANGE_TO_VARIANCE) * ahead_WH / recent_W[:, None]
    floor = FLOOR_SHARE * (float(np.median(in_recent_WH)) or 1.0)
    logs_WH = np.log(np.maximum(in_recent_WH, floor))
    first = 1 + len(REGRESSED_RANGES)
    unheld = [first + place for place in unheld_waves(train, wave_features(data.profile))]
    path_LH = fit_without(unheld, lambda held_WK: least_squares(held_WK, logs_WH), _log_terms(train))
    weight_W1 = data.weight_N[train.anchors].astype(np.float64)[:, None]
    tasks = {}
    for task, terms_WHR in regression_terms(train, path_LH).items():
        target_WHC = data.targets_NHC[task][train.anchors].astype(np.float64)
        fitted = [
            least_absolute_errors(weight_W1 * terms_WHR[:, step], weight_W1 * target_WHC[:, step])
            for step in range(data.profile.horizon_bars)
        ]
        tasks[task] = np.stack(fitted) * TASKS[task].is_moved
    return RangeRegression(path_LH, tasks)


def regress(span: Span, regression: RangeRegression) -> dict[str, Floats]:
    """Forecast windows, per task, shape (W, H, C), scaled as targets are."""
    terms = regression_terms(span, regression.path_LH)
    return {
        task: np.einsum("whr,hrc->whc", terms[task], coefficients_HRC)
        for task, coefficients_HRC in regression.tasks.items()
    }


def regression_terms(span: Span, path_LH: Floats) -> dict[str, Floats]:
    """Compute the terms of some windows.

    Args:
        span: The windows, of a profile with `REGRESSED_RANGES` and `deviation_columns`.
        path_LH: Coefficients of the log ranges.

    Returns:
        Per task of the profile, shape (W, H, R), in recent ranges.
    """
    horizon = span.horizon_bars
    range_WH = forecast_ranges(span, path_LH)
    rolled_WH = span.known(deviation_columns(horizon))
    added_WH = np.square(range_WH) @ variance_weights(horizon).T
    walk = np.stack([np.sqrt(np.cumsum(np.square(range_WH), axis=1)), range_WH], axis=2)
    widened = np.stack([np.sqrt(np.square(rolled_WH) + added_WH), rolled_WH], axis=2)
    return {task: widened if TASKS[task].has_window else walk for task in span.profile.tasks}


def forecast_ranges(span: Span, path_LH: Floats) -> Floats:
    """Return the range forecast for each coming bar, shape (W, H), in recent ranges."""
    forecast: Floats = np.exp(np.clip(_log_terms(span) @ path_LH, -MAX_LOG_RANGE, MAX_LOG_RANGE))
    return forecast


def _log_terms(span: Span) -> Floats:
    """Return a constant, the log ranges and the waves, shape (W, L)."""
    waves = wave_features(span.profile)
    logs_WL = np.log(np.maximum(span.known(REGRESSED_RANGES), FLOOR_SHARE))
    waves_WL = span.known(waves) if waves else np.empty((len(span), 0))
    return np.concatenate([np.ones((len(span), 1)), logs_WL, waves_WL], axis=1)
