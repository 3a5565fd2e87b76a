"""Measures of the field: equal to independent packages to 1e-10, on random and on degenerate input.

The packages are extras of the tests: `pip install scoringrules statsmodels`. What needs `arch`, an extra of
v8, is skipped without it.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from v8.model.evaluation.bootstrap import confidence_set, confidence_set_p_values, sampled_means
from v8.model.evaluation.metrics import interval_scores, mincer_zarnowitz, qlike, wilson_interval
from v8.profile.columns import pinball

EXACT = {"rtol": 1e-10, "atol": 1e-10}
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def _random(num_windows: int = 500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return actual values and quantiles of them, (N,) and (N, Q)."""
    random = np.random.default_rng(seed)
    centre = random.normal(size=num_windows)
    quantiles = centre[:, None] + np.array([-1.6, -0.7, 0.0, 0.7, 1.6])
    return centre + random.normal(size=num_windows), quantiles


@pytest.mark.parametrize("num_windows", [1, 500])
def test_qlike_is_half_the_gamma_deviance(num_windows: int) -> None:
    statsmodels = import_module("statsmodels.api")
    random = np.random.default_rng(1)
    actual = random.gamma(2.0, 1e-4, num_windows)
    forecast = random.gamma(2.0, 1e-4, num_windows)
    deviance = statsmodels.families.Gamma().deviance(actual, forecast)
    np.testing.assert_allclose(qlike(actual, forecast).sum(), deviance / 2, rtol=1e-10)


def test_qlike_of_windows_without_a_move_is_not_defined_and_of_a_forecast_of_none_infinite() -> None:
    losses = qlike(np.array([0.0, 1.0, 1.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0]))
    np.testing.assert_array_equal(losses, [np.nan, np.inf, 0.0, np.nan])


@pytest.mark.parametrize("width", [0.0, 1.0])
def test_interval_scores_are_those_of_scoringrules(width: float) -> None:
    scoringrules = import_module("scoringrules")
    actual, quantiles = _random()
    low = quantiles[:, 2] - width
    high = quantiles[:, 2] + width
    actual[:3] = low[0], high[1], low[2]  # on a border there is no miss
    expected = scoringrules.interval_score(actual, low, high, 0.1)
    np.testing.assert_allclose(interval_scores(actual, low, high, 0.9), expected, **EXACT)


def test_twice_the_mean_pinball_loss_is_that_of_scoringrules() -> None:
    scoringrules = import_module("scoringrules")
    actual, quantiles = _random()
    for level, quantile in zip(LEVELS, quantiles.T, strict=True):
        expected = scoringrules.quantile_score(actual, quantile, level)
        np.testing.assert_allclose(pinball(np, actual - quantile, level), expected, **EXACT)


@pytest.mark.parametrize(("num_hits", "num_windows"), [(0, 1), (1, 1), (0, 40), (40, 40), (33, 40)])
def test_the_band_of_a_coverage_is_that_of_statsmodels(num_hits: int, num_windows: int) -> None:
    proportion = import_module("statsmodels.stats.proportion")
    expected = proportion.proportion_confint(num_hits, num_windows, alpha=0.05, method="wilson")
    np.testing.assert_allclose(wilson_interval(num_hits, num_windows), expected, **EXACT)


@pytest.mark.parametrize("case", ["random", "ties", "equal", "small"])
def test_the_calibration_line_is_that_of_statsmodels(case: str) -> None:
    statsmodels = import_module("statsmodels.api")
    random = np.random.default_rng(2)
    forecast = random.gamma(2.0, size=300)
    actual = 0.2 + 0.7 * forecast + random.normal(size=300)
    if case == "ties":
        forecast = forecast.round()
        actual = actual.round()
    if case == "equal":
        actual = forecast
    if case == "small":
        forecast = forecast[:2]
        actual = actual[:2]
    expected = statsmodels.OLS(actual, statsmodels.add_constant(forecast)).fit()
    line = mincer_zarnowitz(actual, forecast)
    assert line is not None
    np.testing.assert_allclose([line.intercept, line.slope], expected.params, **EXACT)
    np.testing.assert_allclose(line.r_squared, expected.rsquared, **EXACT)


@pytest.mark.parametrize("num_windows", [1, 100])
def test_a_forecast_that_never_changes_has_no_calibration_line(num_windows: int) -> None:
    actual = np.random.default_rng(3).normal(size=num_windows)
    assert mincer_zarnowitz(actual, np.full(num_windows, 0.1)) is None


def test_the_calibration_line_of_values_that_never_change_is_flat() -> None:
    line = mincer_zarnowitz(np.full(50, 2.0), np.random.default_rng(4).normal(size=50))
    assert line is not None
    assert (line.intercept, line.slope, line.r_squared) == (2.0, 0.0, 1.0)


@pytest.mark.parametrize("seed", range(4))
def test_p_values_of_the_confidence_set_are_those_of_arch_for_the_same_samples(seed: int) -> None:
    bootstrap = pytest.importorskip("arch.bootstrap", reason="optional: pip install arch")
    random = np.random.default_rng(seed)
    losses = random.gamma(2.0, size=(200, 1)) + random.normal(0.05 * np.arange(6), 0.5, (200, 6))
    theirs = bootstrap.MCS(losses, size=0.1, reps=300, block_size=10, seed=seed)
    theirs.compute()
    samples = np.stack(theirs._bootstrap_indices)
    names = [str(number) for number in range(losses.shape[1])]
    by_name = dict(zip(names, losses.T, strict=True))
    sampled = {name: losses_N[samples].mean(axis=1) for name, losses_N in by_name.items()}
    ours = confidence_set_p_values(by_name, sampled)
    expected = {str(number): p_value for number, p_value in theirs.pvalues["Pvalue"].items()}
    assert list(ours) == list(expected)
    assert ours == pytest.approx(expected, rel=1e-10, abs=1e-10)
    assert confidence_set(ours) == [name for name in ours if int(name) in theirs.included]


def test_equal_forecasters_cannot_be_told_apart_and_one_that_is_always_worse_is_left_out() -> None:
    losses = np.random.default_rng(5).gamma(2.0, 1e-3, 200)
    by_name = {"first": losses, "second": losses.copy(), "worse": losses + 1e-4}
    p_values = confidence_set_p_values(by_name, sampled_means(by_name, 10))
    assert p_values == {"worse": 0.0, "first": 1.0, "second": 1.0}
    assert confidence_set(p_values) == ["first", "second"]


def test_a_confidence_set_of_one_window_or_one_forecaster_has_an_answer() -> None:
    only = {"only": np.ones(1)}
    assert confidence_set_p_values(only, sampled_means(only, 10)) == {"only": 1.0}
    two = {"better": np.ones(1), "worse": np.full(1, 2.0)}
    assert confidence_set_p_values(two, sampled_means(two, 10)) == {"worse": 0.0, "better": 1.0}


def test_samples_are_whole_blocks_of_neighbouring_windows() -> None:
    # A loss of 1 in one window alone counts how often that window is drawn.
    counted = sampled_means(dict(enumerate(np.eye(100))), 7, num_samples=250)
    counts = 100 * np.stack(list(counted.values()), axis=1)
    np.testing.assert_allclose(counts.sum(axis=1), 100.0)
    np.testing.assert_allclose(counts, counts.round(), atol=1e-9)
    # Neighbours are drawn equally often but at the ends of 15 blocks.
    num_ends = (np.diff(counts.round(), axis=1, append=counts[:, :1].round()) != 0).sum(axis=1)
    assert num_ends.max() <= 2 * 15
    np.testing.assert_array_equal(
        counts[:, 0], 100 * sampled_means({0: np.eye(100)[0]}, 7, num_samples=250)[0]
    )


def test_the_numbers_that_the_page_on_evaluation_works_out_by_hand_are_right() -> None:
    actual = np.array([1.2, 1.5, 1.5])
    forecast = np.array([1.0, 2.0, 1.5])
    losses = qlike(actual**2, forecast**2)
    np.testing.assert_allclose(losses, [0.0754, 0.1379, 0.0], atol=5e-5)
    assert losses.mean() == pytest.approx(0.0711, abs=5e-5)
    line = mincer_zarnowitz(actual, forecast)
    assert line is not None
    assert (line.slope, line.intercept) == pytest.approx((0.3, 0.95))
    scores = interval_scores(np.array([1.2, 1.5]), np.full(2, 0.8), np.full(2, 1.4), 0.9)
    np.testing.assert_allclose(scores, [0.6, 2.6])
    # Twice the mean pinball loss of three quantiles is the CRPS.
    levels = np.array([0.05, 0.5, 0.95])
    pinball_losses = pinball(np, 1.2 - np.array([0.8, 1.0, 1.4]), levels)
    np.testing.assert_allclose(pinball_losses, [0.02, 0.10, 0.01])
    assert 2 * pinball_losses.mean() == pytest.approx(0.0867, abs=5e-5)
