"""Intervals of relative errors: how often they hold the true one, and what makes them wide."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from v8.model.evaluation.bootstrap import ErrorInterval, PairedLosses, error_interval

NUM = 600
HORIZON = 10
TRUE = 0.99


def persistent(random: np.random.Generator, memory: float = 0.95) -> np.ndarray:
    """Values of variance 1 that remember the ones before, as volatility does."""
    shocks = random.normal(size=NUM) * np.sqrt(1 - memory**2)
    return lfilter([1.0], [1.0, -memory], shocks)


def market(seed: int, num_series: int, *, common: float, spread: float = 0.004) -> list[PairedLosses]:
    """Series with a share of common shocks, whose true relative errors lie around `TRUE`."""
    random = np.random.default_rng(seed)
    shared = [persistent(random), persistent(random)]
    pairs = []
    for number in range(num_series):
        own = [persistent(random), persistent(random)]
        volatility, difference = (
            common * s + np.sqrt(1 - common**2) * o for s, o in zip(shared, own, strict=True)
        )
        baseline = np.exp(0.5 * volatility) * random.uniform(0.5, 1.5, size=NUM)
        ratio = TRUE + spread * random.normal()
        model = baseline * ratio + 0.05 * np.exp(0.5 * volatility) * difference
        pairs.append(PairedLosses(f"C{number}", np.arange(NUM), np.float32(model), np.float32(baseline)))
    return pairs


def found(pairs: list[PairedLosses]) -> ErrorInterval:
    interval = error_interval(pairs, HORIZON)
    assert interval is not None
    return interval


def width(pairs: list[PairedLosses]) -> float:
    interval = found(pairs)
    return interval.high - interval.low


@pytest.mark.parametrize("common", [0.0, 0.7])
def test_nineteen_of_twenty_intervals_hold_the_true_error(common: float) -> None:
    intervals = [found(market(seed, 10, common=common)) for seed in range(60)]
    share = np.mean([each.low <= TRUE <= each.high for each in intervals])
    assert 0.88 <= share <= 1.0  # 0.95, less 2.5 standard errors of sixty draws


def test_what_all_series_share_makes_the_interval_as_wide_as_that_of_few() -> None:
    """Forty copies of a series are no surer than one."""
    one = market(1, 1, common=0.7)
    copies = [
        PairedLosses(f"C{number}", one[0].closes_s, one[0].model, one[0].baseline) for number in range(40)
    ]
    assert found(copies) == found(one)
    alike = np.mean([width(market(seed, 20, common=0.95, spread=0.0)) for seed in range(8)])
    apart = np.mean([width(market(seed, 20, common=0.0, spread=0.0)) for seed in range(8)])
    assert alike > 1.3 * apart


def test_series_that_differ_make_it_wider() -> None:
    same = np.mean([width(market(seed, 10, common=0.0, spread=0.0)) for seed in range(8)])
    different = np.mean([width(market(seed, 10, common=0.0, spread=0.05)) for seed in range(8)])
    assert different > 2.0 * same


def test_an_error_that_is_always_the_same_share_has_no_width() -> None:
    losses = np.random.default_rng(2).gamma(2.0, size=NUM)
    pair = PairedLosses("C", np.arange(NUM), 0.75 * losses, losses)
    interval = found([pair])
    assert (interval.low, interval.high) == (pytest.approx(0.75), pytest.approx(0.75))


def test_folds_of_a_series_that_lie_apart_count_together() -> None:
    first, second = market(3, 2, common=0.0)
    later = PairedLosses(first.series, second.closes_s + 10 * NUM, second.model, second.baseline)
    interval = found([first, later])
    ratios = [each.model.mean() / each.baseline.mean() for each in (first, later)]
    assert interval.low < np.median(ratios) < interval.high


def test_with_too_few_windows_or_no_error_of_the_baseline_there_is_none() -> None:
    (pair,) = market(4, 1, common=0.0)
    few = PairedLosses("C", pair.closes_s[:199], pair.model[:199], pair.baseline[:199])
    assert error_interval([few], HORIZON) is None
    assert (
        error_interval([PairedLosses("C", pair.closes_s, pair.model, 0.0 * pair.baseline)], HORIZON) is None
    )
