"""A baseline that forecasts the ranges of the coming bars, then lets prices walk that far.

One linear regression a step forecasts the log range of that bar from the log ranges behind. Windows of the
train span then lend the bars that followed them: open, high, low and close as log ratios to the close
before, each in multiples of the range forecast for its bar (filtered historical simulation: Barone-Adesi,
Giannopoulos & Vosper 1999). Fat tails, and how calm and wild bars follow each other, come as they were.
Scaled by the ranges forecast now they make paths; candles, bands and volatility are worked out on each
path, and their medians are the forecast. Every path goes up once and down once, for nothing is known about
which way.

Legend: N windows, H steps of the horizon, C open, high, low, close, T terms, P paths.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.columns import (
    BAND_PERIOD_BARS,
    BAND_WIDTH_STDS,
    CLOSE,
    HIGH,
    LOW,
    OHLC,
    TASK_BANDS,
    TASK_OHLC,
    TASK_VOLATILITY,
)
from v8.data.targets import suffix_sums
from v8.evaluation.past import Forecast, Known, Lesson, TaskForecasts
from v8.evaluation.range_baselines import HAR_BARS

NUM_PATHS: Final = 512
"""Paths of a window, half of them mirror images of the others."""

WINDOWS_AT_ONCE: Final = 32
"""Windows whose paths are in memory at the same time."""

FLOOR_SHARE: Final = 0.02
"""Ranges below this share of the typical one are raised to it: a dead bar has no logarithm."""

MAX_MULTIPLE: Final = 20.0
"""Returns of more forecast ranges count as so many: after a dead hour any move is huge."""

SEED: Final = 1999
"""Of the choice of train windows; the same candles give the same forecast."""

MIRRORED: Final = tuple(OHLC.index({HIGH: LOW, LOW: HIGH}.get(name, name)) for name in OHLC)
"""Columns of a bar turned upside down."""

Floats = NDArray[np.float64]


def fit_range_paths(lesson: Lesson) -> Forecast:
    """Fit the regressions to the train span and keep what followed its windows.

    Args:
        lesson: With bars and with the truth of OHLC.

    Returns:
        A forecast of the lesson's tasks.
    """
    ohlc = lesson.truth[TASK_OHLC]
    ranges_NH = np.log(ohlc[:, :, OHLC.index(HIGH)] / ohlc[:, :, OHLC.index(LOW)])
    floor = FLOOR_SHARE * _typical(ranges_NH)
    terms_NT = _terms(lesson.known, floor)
    coefficients_TH = np.linalg.lstsq(terms_NT, np.log(np.maximum(ranges_NH, floor)), rcond=None)[0]
    lent_PHC = _lent(lesson, np.exp(terms_NT @ coefficients_TH))

    def forecast(known: Known) -> TaskForecasts:
        forecast_NH = np.exp(_terms(known, floor) @ coefficients_TH)
        starts = range(0, len(forecast_NH), WINDOWS_AT_ONCE)
        parts = [slice(start, start + WINDOWS_AT_ONCE) for start in starts]
        made = [_medians(known.history_close[part], forecast_NH[part], lent_PHC) for part in parts]
        return {task: np.concatenate([part[task] for part in made]) for task in lesson.truth}

    return forecast


def _typical(ranges_NH: Floats) -> float:
    """Return the median range, or anything positive where no bar has one."""
    median = float(np.median(ranges_NH))
    return median if median > 0 else max(float(ranges_NH.mean()), float(np.finfo(np.float32).tiny))


def _terms(known: Known, floor: float) -> Floats:
    """Return a constant and the log deviations over `HAR_BARS`, shape (N, T)."""
    deviations = [np.sqrt(known.bars.range_variance(bars)[known.rows]) for bars in HAR_BARS]
    return np.stack(
        [np.ones(len(known.rows)), *(np.log(np.maximum(one, floor)) for one in deviations)], axis=1
    )


def _lent(lesson: Lesson, forecast_NH: Floats) -> Floats:
    """Draw train windows: the bars that followed, in multiples of the ranges forecast, and their mirrors.

    Returns:
        Shape (P, H, C): log ratios to the close before, over the bar's forecast range.
    """
    ohlc = lesson.truth[TASK_OHLC]
    closes = ohlc[:, :, OHLC.index(CLOSE)]
    before = np.concatenate([lesson.known.last_close[:, None], closes[:, :-1]], axis=1)
    multiples_NHC = np.log(ohlc / before[:, :, None]) / forecast_NH[:, :, None]
    drawn = np.random.default_rng(SEED).integers(len(closes), size=NUM_PATHS // 2)
    lent = np.clip(multiples_NHC[drawn], -MAX_MULTIPLE, MAX_MULTIPLE)
    return np.concatenate([lent, -lent[:, :, MIRRORED]])


def _medians(history_close: Floats, forecast_NH: Floats, lent_PHC: Floats) -> dict[str, Floats]:
    """Return the medians over all paths, per task, shape (N, H, C); quote currency, volatility unitless."""
    moved_NPHC = forecast_NH[:, None, :, None] * lent_PHC
    walked_NPH = np.cumsum(moved_NPHC[..., OHLC.index(CLOSE)], axis=2)
    before_NPH = walked_NPH - moved_NPHC[..., OHLC.index(CLOSE)]
    last_N11 = history_close[:, -1, None, None]
    mean_NPH, deviation_NPH = _moments(history_close / history_close[:, -1:] - 1.0, np.expm1(walked_NPH))
    reach_NPH = BAND_WIDTH_STDS * deviation_NPH
    bands = [np.median(1.0 + mean_NPH + side * reach_NPH, axis=1) for side in (1, -1)]
    return {
        TASK_OHLC: last_N11 * np.exp(np.median(before_NPH[..., None] + moved_NPHC, axis=1)),
        TASK_BANDS: last_N11 * np.stack(bands, axis=-1),
        TASK_VOLATILITY: np.median(deviation_NPH / (1.0 + mean_NPH), axis=1)[:, :, None],
    }


def _moments(known_N20: Floats, path_NPH: Floats) -> tuple[Floats, Floats]:
    """Mean and sample deviation of the twenty closes at each step, as ratios to the last close less one.

    k steps ahead the window holds the newest 20 - k known closes and the first k of the path.
    """
    num_steps = path_NPH.shape[2]
    mean_NPH = (suffix_sums(known_N20, num_steps)[:, None] + np.cumsum(path_NPH, axis=2)) / BAND_PERIOD_BARS
    squares_NPH = suffix_sums(known_N20**2, num_steps)[:, None] + np.cumsum(path_NPH**2, axis=2)
    variance_NPH = (squares_NPH - BAND_PERIOD_BARS * mean_NPH**2) / (BAND_PERIOD_BARS - 1)
    return mean_NPH, np.sqrt(np.maximum(variance_NPH, 0.0))
