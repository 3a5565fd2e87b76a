"""What is computed by a block bootstrap: how sure a relative error is, and which forecasters are the best.

A block bootstrap (Künsch 1989, doi:10.1214/aos/1176347265) draws blocks of windows again, because windows
that overlap move together. `error_interval` is about the error of a model relative to a baseline's;
`confidence_set_p_values` gives the model confidence set (Hansen, Lunde & Nason 2011, doi:10.3982/ECTA5771):
the forecasters that cannot be told apart from the best. For the interval:

Series rise and fall together, and the losses of neighbouring windows belong together, so neither series nor
windows are independent draws. What is drawn again is therefore blocks of time, each for all series at once,
and series, each with all its blocks and folds.
In each draw the figure is computed as it is on the pages: of each series and fold the mean error of the model
over that of the baseline, and the median of these.

* There are as many blocks as the significance test has degrees of freedom, and one (`degrees_of_freedom`):
  so a block is longer than what volatility remembers, and interval and test see the same noise.
* So few blocks vary less among themselves than the market does. The interval is stretched by the root of
  B / (B - 1), and by Student's t over the normal quantile, B blocks.
* With too few windows for a test (`min_windows`) there is no interval.
* Series are drawn only where there are several: the interval of one series is about this series.

tests/model/evaluation/test_bootstrap.py simulates how often the interval holds the true figure.

Legend: B blocks, C cells (a series in a fold), S series, R draws, N windows of a cell; of the confidence
set N windows, M forecasters, B samples.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import FloatArray
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


NUM_SAMPLES: Final = 1_000
"""Bootstrap samples of a model confidence set."""

SAMPLES_AT_ONCE: Final = 100  # bootstrap samples that are in memory together, fewer where windows are many
COUNTS_AT_ONCE: Final = 1 << 20  # windows of all these samples: 8 MB for each of the arrays that they take

SET_SEED: Final = 2011  # the same losses give the same set

ROUNDING_SHARE: Final = 1e-13
"""Share of the largest loss up to which differences of losses are rounding errors."""

SET_ALPHA: Final = 0.10
"""Forecasters whose p-value is below this are left out of the model confidence set, as in Hansen et al."""


Key = TypeVar("Key", bound=Hashable)


def sampled_means(
    losses: Mapping[Key, FloatArray], block_windows: int, num_samples: int = NUM_SAMPLES
) -> dict[Key, FloatArray]:
    """Return the mean of each loss in every sample of a circular block bootstrap, (B,), by the same keys.

    Windows that overlap move together, so whole blocks are drawn; take at least the horizon. All losses have
    the same samples.

    Args:
        losses: The loss of each window, (N,).
        block_windows: Windows of a block.
        num_samples: Number of samples.
    """
    losses_NM = np.stack(list(losses.values()), axis=1)
    num_windows = len(losses_NM)
    num_blocks = -(-num_windows // block_windows)
    random = np.random.default_rng(SET_SEED)
    starts_BK1 = random.integers(num_windows, size=(num_samples, num_blocks, 1))
    num_at_once = min(SAMPLES_AT_ONCE, max(1, COUNTS_AT_ONCE // num_windows))
    means = []
    for first in range(0, num_samples, num_at_once):
        blocks = starts_BK1[first : first + num_at_once] + np.arange(block_windows)
        samples_BN = (blocks % num_windows).reshape(len(blocks), -1)[:, :num_windows]
        # A product with counts takes a tenth of the time of looking up every window of every sample.
        means.append(_counts(samples_BN) @ losses_NM / num_windows)
    return dict(zip(losses, np.concatenate(means).T, strict=True))


def _counts(samples_BN: NDArray[np.int64]) -> FloatArray:
    """Return how often each sample holds each window, shape (B, N)."""
    num_samples, num_windows = samples_BN.shape
    first_of_sample = np.arange(num_samples)[:, None] * num_windows
    counts = np.bincount((samples_BN + first_of_sample).ravel(), minlength=samples_BN.size)
    return counts.reshape(samples_BN.shape).astype(np.float64)


def confidence_set_p_values(
    losses: Mapping[str, FloatArray], sampled: Mapping[str, FloatArray]
) -> dict[str, float]:
    """Return the p-value of each forecaster's place in the model confidence set, the worst one first.

    The range statistic decides: the largest standardised difference of two mean losses. The forecaster with
    it is eliminated, then the rest is tested again. Those whose p-value is at least `SET_ALPHA` are in the
    set. Forecasters with the same loss in every window cannot be told apart; where two losses differ by one
    constant in every window, the worse forecaster is certainly worse.

    Args:
        losses: The loss of each window, (N,), by forecaster.
        sampled: Its mean in each bootstrap sample, (B,), by forecaster, see `sampled_means`.
    """
    names = list(losses)
    losses_NM = np.stack([losses[name] for name in names], axis=1)
    means_M = losses_NM.mean(axis=0)
    sampled_BM = np.stack([sampled[name] for name in names], axis=1)
    rounding = ROUNDING_SHARE * float(np.abs(losses_NM).max())
    difference_MM = _without_rounding(means_M[:, None] - means_M, rounding)
    sampled_BMM = sampled_BM[:, :, None] - sampled_BM[:, None, :] - difference_MM
    sampled_BMM = _without_rounding(sampled_BMM, rounding)
    deviation_MM = np.sqrt(np.square(sampled_BMM).mean(axis=0))
    statistic_MM = _standardised(difference_MM, deviation_MM)
    sampled_BMM = _standardised(sampled_BMM, deviation_MM)
    left = [*range(len(names))]
    p_values = {}
    p_value = 0.0
    while len(left) > 1:
        among = np.ix_(left, left)
        largest = statistic_MM[among].max()
        of_samples_B = sampled_BMM[:, left][:, :, left].max(axis=(1, 2))
        p_value = max(p_value, float((of_samples_B > largest).mean())) if largest > 0 else 1.0
        worst = left[int(statistic_MM[among].max(axis=1).argmax())]
        p_values[names[worst]] = p_value
        left.remove(worst)
    return {**p_values, names[left[0]]: 1.0}


def _without_rounding(differences: FloatArray, rounding: float) -> FloatArray:
    """Replace differences that are only rounding errors by zero."""
    return np.where(np.abs(differences) <= rounding, 0.0, differences)


def _standardised(differences: FloatArray, deviation_MM: FloatArray) -> FloatArray:
    """Divide by the deviation; without one, 0 stays 0 and every other difference becomes infinite."""
    limits = np.where(differences == 0.0, 0.0, np.copysign(np.inf, differences))
    return np.asarray(np.divide(differences, deviation_MM, out=limits, where=deviation_MM > 0))


def confidence_set(p_values: Mapping[str, float]) -> list[str]:
    """Return the forecasters that cannot be told apart from the best, by `confidence_set_p_values`."""
    return [name for name, p_value in p_values.items() if p_value >= SET_ALPHA]
