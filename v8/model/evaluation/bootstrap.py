"""How sure the error of a model is, relative to a baseline's: an interval by a block bootstrap.

Series rise and fall together, and the losses of neighbouring windows belong together, so neither series nor
windows are independent draws. What is drawn again is therefore blocks of time, each for all series at once,
and series, each with all its blocks and folds (a block bootstrap: Künsch 1989, doi:10.1214/aos/1176347265).
In each draw the figure is computed as it is on the pages: of each series and fold the mean error of the model
over that of the baseline, and the median of these.

* There are as many blocks as the significance test has degrees of freedom, and one (`degrees_of_freedom`):
  so a block is longer than what volatility remembers, and interval and test see the same noise.
* So few blocks vary less among themselves than the market does. The interval is stretched by the root of
  B / (B - 1), and by Student's t over the normal quantile, B blocks.
* With too few windows for a test (`min_windows`) there is no interval.
* Series are drawn only where there are several: the interval of one series is about this series.

tests/model/evaluation/test_bootstrap.py simulates how often the interval holds the true figure.

Legend: B blocks, C cells (a series in a fold), S series, R draws, N windows of a cell.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.model.evaluation.significance import degrees_of_freedom, min_windows

NUM_DRAWS: Final = 1_000
CONFIDENCE: Final = 0.95
_SEED: Final = 42  # the same losses have the same interval


@dataclass(frozen=True)
class ErrorInterval:
    """The 95 % interval of a model's error relative to a baseline's, unitless; below 1 is better."""

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class PairedLosses:
    """The losses of a model and of a baseline in the same windows of a series."""

    series: str  # its name; the same series in several folds is drawn together
    closes_s: NDArray[np.int64]  # when the last known candle of each window closed, ascending, shape (N,)
    model: NDArray[np.floating[Any]]  # loss of each window, in returns, shape (N,)
    baseline: NDArray[np.floating[Any]]  # likewise


def error_interval(pairs: Sequence[PairedLosses], horizon_bars: int) -> ErrorInterval | None:
    """Return the interval of the median over cells of the model's error divided by the baseline's.

    Args:
        pairs: The losses of each cell, at least one.
        horizon_bars: Steps that are forecast.

    Returns:
        The interval; None where there are too few windows, or the baseline makes no error.
    """
    closes_s = np.unique(np.concatenate([pair.closes_s for pair in pairs]))
    if len(closes_s) < min_windows(horizon_bars):
        return None
    num_blocks = degrees_of_freedom(len(closes_s), horizon_bars) + 1
    models = []
    baselines = []
    for pair in pairs:
        blocks_N = np.searchsorted(closes_s, pair.closes_s) * num_blocks // len(closes_s)
        models.append(np.bincount(blocks_N, weights=pair.model, minlength=num_blocks))
        baselines.append(np.bincount(blocks_N, weights=pair.baseline, minlength=num_blocks))
    model_CB = np.stack(models)
    baseline_CB = np.stack(baselines)
    if not (baseline_CB.sum(axis=1) > 0).all():
        return None
    random = np.random.default_rng(_SEED)
    draws_RB = random.multinomial(num_blocks, np.full(num_blocks, 1.0 / num_blocks), size=NUM_DRAWS)
    errors_RC = draws_RB @ baseline_CB.T
    ratios_RC = np.full(errors_RC.shape, np.nan)  # a draw may hold no block of a cell
    np.divide(draws_RB @ model_CB.T, errors_RC, out=ratios_RC, where=errors_RC > 0)
    medians_R = _medians_of_drawn_series(ratios_RC, [pair.series for pair in pairs], random)
    figure = float(np.median(model_CB.sum(axis=1) / baseline_CB.sum(axis=1)))
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(medians_R, [tail, 1.0 - tail]).tolist()
    stretch = _stretch(num_blocks)
    return ErrorInterval(
        low=max(0.0, figure + stretch * (low - figure)), high=figure + stretch * (high - figure)
    )


def _medians_of_drawn_series(
    ratios_RC: NDArray[np.float64], series: Sequence[str], random: np.random.Generator
) -> NDArray[np.float64]:
    """Draw series, each with all its cells, and return the median ratio of each draw, shape (R,).

    `series` has the name of each cell's.
    """
    names = list(dict.fromkeys(series))
    numbers_C = [names.index(name) for name in series]
    drawn_RS = random.multinomial(len(names), np.full(len(names), 1.0 / len(names)), size=len(ratios_RC))
    weights_RC = np.where(np.isnan(ratios_RC), 0, drawn_RS[:, numbers_C])
    order_RC = np.argsort(ratios_RC, axis=1)  # cells without a ratio come last
    sorted_RC = np.take_along_axis(ratios_RC, order_RC, axis=1)
    cumulative_RC = np.cumsum(np.take_along_axis(weights_RC, order_RC, axis=1), axis=1)
    half_R1 = cumulative_RC[:, -1:] / 2.0
    # The mean of the two middle values, which are one where their number is odd.
    lower_R1 = np.argmax(cumulative_RC >= half_R1, axis=1)[:, None]
    upper_R1 = np.argmax(cumulative_RC > half_R1, axis=1)[:, None]
    middle_R2 = np.take_along_axis(sorted_RC, np.concatenate([lower_R1, upper_R1], axis=1), axis=1)
    return np.nanmean(middle_R2, axis=1)


def _stretch(num_blocks: int) -> float:
    """Return by what an interval is wider than the percentiles of draws of so few blocks, at least 1."""
    from scipy.special import ndtri, stdtrit  # noqa: PLC0415 - as in `v8.model.evaluation.significance`

    upper = 1.0 - (1.0 - CONFIDENCE) / 2.0
    of_few = float(stdtrit(num_blocks - 1, upper)) / float(ndtri(upper))
    return of_few * math.sqrt(num_blocks / (num_blocks - 1))
