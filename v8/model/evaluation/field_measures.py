"""Measures of the field: what other studies of volatility and of probability forecasts report.

Mean absolute errors and CRPS are in `v8.model.evaluation.metrics`. Here are the measures with which results
are compared across studies. All functions take arrays, so they measure any forecast of any task.

* QLIKE, the loss of a variance forecast (Patton 2011, doi:10.1016/j.jeconom.2010.03.034). It is zero for the
  actual variance, and the best forecast is the mean variance even where the actual one is a noisy proxy.
* The interval score (Winkler 1972, doi:10.1080/01621459.1972.10481224): one number for an interval's width
  and its misses.
* The regression of actual values on forecasts (Mincer & Zarnowitz 1969): its intercept is 0 and its slope 1
  for a forecast without bias.
* The model confidence set (Hansen, Lunde & Nason 2011, doi:10.3982/ECTA5771): the forecasters that cannot be
  told apart from the best.

Legend: N windows, M forecasters, B bootstrap samples.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import FloatArray
from v8.base.records import Number

NUM_SAMPLES: Final = 1_000
"""Bootstrap samples of a model confidence set."""

SAMPLES_AT_ONCE: Final = 100  # bootstrap samples that are in memory together, fewer where windows are many
COUNTS_AT_ONCE: Final = 1 << 20  # windows of all these samples: 8 MB for each of the arrays that they take

SEED: Final = 2011  # of the bootstrap: the same losses give the same set

ROUNDING_SHARE: Final = 1e-13
"""Share of the largest loss up to which differences of losses are rounding errors."""

SET_ALPHA: Final = 0.10
"""Forecasters whose p-value is below this are left out of the model confidence set, as in Hansen et al."""


def qlike(actual_N: FloatArray, forecast_N: FloatArray) -> FloatArray:
    """Return the QLIKE loss of variance forecasts: a / f - log(a / f) - 1, unitless, 0 or above.

    It is not defined for an actual variance of zero, a window in which nothing moved; its loss is NaN. Leave
    such windows out with `numpy.nanmean`. A forecast of zero has an infinite loss.

    Args:
        actual_N: Actual variances, or an unbiased proxy such as squared returns; any shape, 0 or above.
        forecast_N: Forecast variances, same shape and unit, 0 or above.
    """
    is_defined = actual_N > 0
    losses = np.full(np.shape(actual_N), np.nan)
    with np.errstate(divide="ignore"):
        ratio = np.divide(actual_N, forecast_N, out=np.ones_like(losses), where=is_defined)
    is_finite = is_defined & np.isfinite(ratio)
    losses[is_defined] = np.inf
    losses[is_finite] = ratio[is_finite] - 1.0 - np.log(ratio[is_finite])
    return losses


def interval_scores(actual_N: FloatArray, low_N: FloatArray, high_N: FloatArray, share: float) -> FloatArray:
    """Return the interval score of each window, in the unit of the values: its width plus weighted misses.

    Args:
        actual_N: Actual values, any shape.
        low_N: Lower ends, same shape.
        high_N: Upper ends, same shape.
        share: Nominal coverage of the interval, above 0 and below 1.
    """
    misses = np.maximum(low_N - actual_N, 0.0) + np.maximum(actual_N - high_N, 0.0)
    return np.asarray(high_N - low_N + 2.0 / (1.0 - share) * misses)


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class CalibrationLine:
    """The least-squares line actual value = intercept + slope x forecast."""

    intercept: Number  # in the unit of the values; 0 without bias
    slope: Number  # unitless; 1 without bias, below 1 where the forecast moves too much
    r_squared: Number  # share of the variance of the actual values that the line explains, 0 to 1


def mincer_zarnowitz(actual_N: FloatArray, forecast_N: FloatArray) -> CalibrationLine | None:
    """Regress actual values on forecasts; None if the forecast is the same in every window."""
    forecast_mean = math.fsum(forecast_N) / len(forecast_N)
    actual_mean = math.fsum(actual_N) / len(actual_N)
    forecast_moves = forecast_N - forecast_mean
    actual_moves = actual_N - actual_mean
    spread = float(forecast_moves @ forecast_moves)
    if np.ptp(forecast_N) == 0.0 or spread == 0.0:
        return None
    slope = float(forecast_moves @ actual_moves) / spread
    total = float(actual_moves @ actual_moves)
    explained = slope**2 * spread / total if total else 1.0
    return CalibrationLine(
        intercept=actual_mean - slope * forecast_mean, slope=slope, r_squared=min(explained, 1.0)
    )


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
    random = np.random.default_rng(SEED)
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
