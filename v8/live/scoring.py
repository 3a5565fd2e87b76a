"""Scoring: a forecast meets the candles that came.

The loss of a forecast is what the leaderboard averages: its mean absolute error in returns over all steps
and columns of a task; that of a quantile is twice its pinball loss. It is taken once, when the last forecast
bar has closed, from the columns that the judgement takes its truth from, computed from a fixed number of
candles: the same whenever it is done.

Legend: K forecasters, V values of one forecaster, T tasks, H steps, C columns of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.columns import CLOSE
from v8.features.indicators import warmup_bars
from v8.features.table import FeatureTable, compute_table
from v8.live.baselines import DAY_S
from v8.live.entries import Entry, Score, level_of
from v8.losses.metrics import in_returns
from v8.market.candles import Candles
from v8.quantile_levels import MEDIAN, pinball

GIVEN_UP_S: Final = 2 * DAY_S
"""A candle that has not come so long after the last forecast bar closed never will: there is no score."""


def truth_bars(entry: Entry) -> int:
    """Return how many candles up to the last forecast bar a score is computed from."""
    return warmup_bars(_columns(entry)) + 1 + entry.issuer.horizon_bars


def score(entry: Entry, candles: Candles, now_s: int) -> Score | None:
    """Compare a forecast with what came.

    Args:
        entry: The forecast; its last bar has closed.
        candles: Of its series, closed; at least `truth_bars` up to its last bar where there are as many.
        now_s: The present, seconds since the epoch, UTC.

    Returns:
        Its score; one without losses where a candle never came; None where it may still come.
    """
    bar_s, num_bars = entry.issuer.bar_s, truth_bars(entry)
    needed = np.arange(entry.due_s - num_bars * bar_s, entry.due_s, bar_s)
    is_needed = (candles.open_time_s >= needed[0]) & (candles.open_time_s <= needed[-1])
    if int(is_needed.sum()) < num_bars:
        return Score(now_s, None, None, None) if now_s >= entry.due_s + GIVEN_UP_S else None
    known = candles.newest(num_bars, int(needed[-1]))
    table = compute_table(known, _columns(entry))
    truth = _truth(entry, table)
    last_close = float(table.column(CLOSE)[-1 - entry.issuer.horizon_bars])
    return Score(now_s, known.digest, entry.issuer.joined(truth), _losses(entry, truth, last_close))


def _columns(entry: Entry) -> tuple[str, ...]:
    wanted = (name for columns in entry.issuer.tasks.values() for name in columns)
    return tuple(dict.fromkeys((*wanted, CLOSE)))


def _truth(entry: Entry, table: FeatureTable) -> dict[str, NDArray[np.float32]]:
    """Return what happened, per task, shape (H, C), float32."""
    ahead = slice(-entry.issuer.horizon_bars, None)
    return {task: table.select(columns)[ahead] for task, columns in entry.issuer.tasks.items()}


def _losses(entry: Entry, truth: Mapping[str, NDArray[np.float32]], last_close: float) -> NDArray[np.float64]:
    """Return mean absolute errors in returns, of quantiles twice their pinball losses, shape (K, T)."""
    closes = np.full(len(entry.values), last_close)
    forecasts = entry.issuer.split(entry.values.astype(np.float64))
    # A point forecast is the median, of which twice the pinball loss is the absolute error itself.
    levels = np.array([level_of(name) or MEDIAN for name in entry.issuer.forecasters])[:, None, None]
    losses = []
    for task in entry.issuer.tasks:
        beyond = in_returns(task, truth[task] - forecasts[task], closes)
        losses.append(2.0 * pinball(np, beyond, levels).mean(axis=(1, 2)))
    return np.stack(losses, axis=1)
