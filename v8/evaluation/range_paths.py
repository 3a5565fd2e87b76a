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

from v8.columns import CLOSE, HIGH, LOW, OHLC, RANGE_BARS, TASK_OHLC
from v8.data.scaling import Scaling
from v8.data.span import Floats, Span
from v8.evaluation.baseline import Baseline, Forecast, TaskForecasts
from v8.features.ranges import FLOOR_SHARE
from v8.tasks import TASKS
from v8.tasks.closes import Closes, window_moments

NUM_PATHS: Final = 512
"""Paths of a window, half of them mirror images of the others."""

WINDOWS_AT_ONCE: Final = 32
"""Windows whose paths are in memory at the same time."""

MAX_MULTIPLE: Final = 20.0
"""Returns of more forecast ranges count as so many: after a dead hour any move is huge."""

SEED: Final = 1999
"""Of the choice of train windows; the same candles give the same forecast."""

MIRRORED: Final = tuple(OHLC.index({HIGH: LOW, LOW: HIGH}.get(name, name)) for name in OHLC)
"""Columns of a bar turned upside down."""


def fit_range_paths(train: Span, scaling: Scaling) -> Forecast:
    """Fit the regressions to the train span and keep what followed its windows."""
    ohlc = train.truth[TASK_OHLC]
    ranges_NH = np.log(ohlc[:, :, OHLC.index(HIGH)] / ohlc[:, :, OHLC.index(LOW)])
    # The median range, or anything positive where no bar has one.
    tiny = float(np.finfo(np.float32).tiny)
    floor = FLOOR_SHARE * (float(np.median(ranges_NH)) or max(float(ranges_NH.mean()), tiny))
    terms_NT = _terms(train, floor)
    coefficients_TH = np.linalg.lstsq(terms_NT, np.log(np.maximum(ranges_NH, floor)), rcond=None)[0]
    lent_PHC = _lent(train, np.exp(terms_NT @ coefficients_TH))

    def forecast(span: Span) -> TaskForecasts:
        forecast_NH = np.exp(_terms(span, floor) @ coefficients_TH)
        starts = range(0, len(forecast_NH), WINDOWS_AT_ONCE)
        parts = [slice(start, start + WINDOWS_AT_ONCE) for start in starts]
        made = [_medians(span, part, forecast_NH[part], lent_PHC) for part in parts]
        return {task: np.concatenate([part[task] for part in made]) for task in span.profile.tasks}

    return forecast


def _terms(span: Span, floor: float) -> Floats:
    """Return a constant and the log deviations over `RANGE_BARS`, shape (N, T)."""
    deviations = [np.sqrt(span.range_variance(bars)) for bars in RANGE_BARS]
    return np.stack([np.ones(len(span)), *(np.log(np.maximum(one, floor)) for one in deviations)], axis=1)


def _lent(train: Span, forecast_NH: Floats) -> Floats:
    """Draw train windows: the bars that followed, in multiples of the ranges forecast, and their mirrors.

    Returns:
        Shape (P, H, C): log ratios to the close before, over the bar's forecast range.
    """
    ohlc = train.truth[TASK_OHLC]
    closes = ohlc[:, :, OHLC.index(CLOSE)]
    before = np.concatenate([train.last_close[:, None], closes[:, :-1]], axis=1)
    multiples_NHC = np.log(ohlc / before[:, :, None]) / forecast_NH[:, :, None]
    drawn = np.random.default_rng(SEED).integers(len(closes), size=NUM_PATHS // 2)
    lent = np.clip(multiples_NHC[drawn], -MAX_MULTIPLE, MAX_MULTIPLE)
    return np.concatenate([lent, -lent[:, :, MIRRORED]])


def _medians(span: Span, part: slice, forecast_NH: Floats, lent_PHC: Floats) -> dict[str, Floats]:
    """Walk every lent path at the ranges forecast, and take medians over them.

    Returns:
        Per task, shape (N, H, C), in its unit.
    """
    history_close, last = span.history_close[part], span.last_close[part, None, None]
    moved_NPHC = forecast_NH[:, None, :, None] * lent_PHC
    walked_NPH = np.cumsum(moved_NPHC[..., OHLC.index(CLOSE)], axis=2)
    before_NPH = walked_NPH - moved_NPHC[..., OHLC.index(CLOSE)]
    known, path_NPH = history_close / history_close[:, -1:] - 1.0, np.expm1(walked_NPH)
    mean_NPH, deviation_NPH = window_moments(np, known, path_NPH.shape[2], path_NPH)
    paths = Closes(1.0, 1.0 + path_NPH, 1.0 + mean_NPH, deviation_NPH, before_NPH[..., None] + moved_NPHC)
    tasks = {name: TASKS[name] for name in span.profile.tasks}
    return {name: task.size(last, task.path_median(task, paths)) for name, task in tasks.items()}


RANGE_PATHS: Final = Baseline(
    "range_paths",
    "Medians of 512 paths of past bars, each bar scaled to the range that a regression forecasts for it.",
    "filtered historical simulation: Barone-Adesi, Giannopoulos & Vosper (1999), J. Futures Markets 19",
    fit_range_paths,
)
