"""Significance: published values, a slow independent implementation, and what chance alone does."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from v8.evaluation.significance import (
    Significance,
    choose_lag,
    corrected_p_values,
    diebold_mariano,
    long_run_variance,
    num_effective,
    small_sample_factor,
)

KIND = TypeAdapter(Significance)


def _slow_variance(values: np.ndarray, lag_bars: int, bars: np.ndarray) -> float:
    """Newey and West as they wrote it: every pair of windows, weighted by the bars between them."""
    deviations = values - values.mean()
    total = 0.0
    for first, first_bar in zip(deviations, bars, strict=True):
        for second, second_bar in zip(deviations, bars, strict=True):
            total += max(0.0, 1 - abs(int(first_bar) - int(second_bar)) / (lag_bars + 1)) * first * second
    return total / len(values)


def _test(values: list[float], lag_bars: int) -> Significance:
    """Test with a lag of one's own."""
    differences = np.array(values)
    variance = long_run_variance(differences - differences.mean(), lag_bars)
    error = math.sqrt(variance / len(values))
    return Significance(differences.mean(), error, len(values), lag_bars)


def test_statistic_and_p_value_are_the_published_ones() -> None:
    # The package dieboldmariano on PyPI, checked by its authors against forecast::dm.test of R: actual values
    # 0, forecasts 0..5 and (0, 2, 3, 3, 5, 6), squared losses, h = 1: -2.4905 and 0.05513.
    first, second = np.array([0, 1, 2, 3, 4, 5]) ** 2, np.array([0, 2, 3, 3, 5, 6]) ** 2
    test = _test([float(value) for value in first - second], lag_bars=0)
    assert test.statistic == pytest.approx(-2.4905, abs=5e-5)
    assert test.p_value == pytest.approx(0.05513, abs=5e-6)


def test_a_test_of_four_windows_is_the_one_worked_out_by_hand() -> None:
    # Mean 2; deviations 1, 1, -1, -1: variance 1, covariance of neighbours (1 - 1 + 1) / 4. With lag 1 its
    # weight is 1/2, twice: 1 + 2 x 1/2 x 1/4 = 1.25, over 4 windows: standard error sqrt(0.3125).
    test = _test([3.0, 3.0, 1.0, 1.0], lag_bars=1)
    assert test.standard_error == pytest.approx(0.3125**0.5)
    # Correction with h = 2: (4 + 1 - 4 + 2 / 4) / 4 = 0.375. Student's t of 3 degrees by its closed form.
    statistic = 2 / 0.3125**0.5 * 0.375**0.5
    assert test.statistic == pytest.approx(statistic)
    angle = math.atan(statistic / math.sqrt(3))
    assert test.p_value == pytest.approx(1 - 2 / math.pi * (angle + math.sin(angle) * math.cos(angle)))


@given(seed=st.integers(0, 10_000), num_windows=st.integers(2, 40), lag_bars=st.integers(0, 12))
@settings(max_examples=50, deadline=None)
def test_the_long_run_variance_is_that_of_newey_and_west_across_holes_too(
    seed: int, num_windows: int, lag_bars: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=num_windows)
    # Neighbours one bar apart as a rule, some a few bars, some beyond the lag, one a year.
    bars = np.cumsum(rng.choice([1, 1, 1, 2, 5, 40, 35_040], num_windows)) + 1_700_000
    found = long_run_variance(values - values.mean(), lag_bars, bars)
    assert found == pytest.approx(_slow_variance(values, lag_bars, bars), rel=1e-9, abs=1e-12)
    assert found >= 0


@given(seed=st.integers(0, 1_000))
@settings(max_examples=10, deadline=None)
def test_windows_one_bar_apart_need_no_bar_numbers(seed: int) -> None:
    differences = np.random.default_rng(seed).normal(size=60)
    bars = np.arange(60) + 1_900_000
    assert diebold_mariano(differences, horizon_bars=10) == diebold_mariano(
        differences, horizon_bars=10, bar_numbers=bars
    )


def test_a_hole_parts_windows_that_lie_side_by_side_in_the_array() -> None:
    # Each half stays on one side of the mean; with the hole only pairs within a half count.
    values = np.array([1.0] * 30 + [-1.0] * 30)
    parted = np.arange(60) + np.repeat([0, 1_000], 30)
    assert long_run_variance(values, 9, parted) > long_run_variance(values, 9) * 1.05


@pytest.mark.parametrize(("num_windows", "horizon_bars", "lag_bars"), [(1, 10, 0), (2, 10, 9), (100, 1, 13)])
def test_the_lag_covers_horizon_less_one_and_grows_with_the_root(
    num_windows: int, horizon_bars: int, lag_bars: int
) -> None:
    assert choose_lag(num_windows, horizon_bars) == lag_bars  # 1.3 x 10 = 13


@pytest.mark.parametrize(
    ("differences", "reason"),
    [
        (np.zeros(100), "identical forecasts"),
        (np.full(100, 0.1), "one constant apart, up to rounding"),
        (np.array([0.3]), "one window"),
        (np.random.default_rng(1).normal(size=29), "fewer than three stretches of ten bars"),
    ],
)
def test_where_nothing_can_be_said_there_is_no_number_and_no_nan(
    differences: np.ndarray, reason: str
) -> None:
    test = diebold_mariano(differences, horizon_bars=10)
    assert (test.standard_error, test.statistic, test.p_value) == (None, None, None), reason
    assert test.mean_difference == pytest.approx(differences.mean())
    written = json.dumps(KIND.dump_python(test), allow_nan=False)
    assert KIND.validate_python(json.loads(written)) == test


def test_one_window_more_is_enough() -> None:
    differences = np.random.default_rng(1).normal(size=30)
    assert diebold_mariano(differences, horizon_bars=10).p_value is not None


@given(seed=st.integers(0, 1_000), exponent=st.integers(-6, 6))
@settings(max_examples=20, deadline=None)
def test_the_unit_of_the_loss_does_not_matter_and_swapping_changes_the_sign_only(
    seed: int, exponent: int
) -> None:
    differences = np.random.default_rng(seed).normal(0.2, 1, size=80)
    test = diebold_mariano(differences, horizon_bars=3)
    scaled = diebold_mariano(differences * 10.0**exponent, horizon_bars=3)
    swapped = diebold_mariano(-differences, horizon_bars=3)
    assert scaled.statistic == pytest.approx(test.statistic, rel=1e-9)
    assert (swapped.statistic, swapped.p_value) == pytest.approx((-test.statistic, test.p_value))


def test_a_long_difference_is_tested_with_student_s_t_of_one_degree_less() -> None:
    test = Significance(0.5, 0.2, 25, 2)
    factor = math.sqrt((25 + 1 - 6 + 6 / 25) / 25)  # h = 3
    assert small_sample_factor(25, 3) == pytest.approx(factor)
    assert test.p_value == pytest.approx(2 * scipy.stats.t.sf(2.5 * factor, 24))


def test_chance_alone_is_called_significant_about_as_rarely_as_promised() -> None:
    # Ten-step losses of independent bars: neighbours share nine of ten. A test that takes them for
    # independent finds "p < 0.05" in every second span, one with lag 9 alone in every eighth.
    rng = np.random.default_rng(5)
    trials = np.array([np.convolve(rng.normal(size=609), np.ones(10), "valid") for _ in range(400)])
    p_values = np.array([diebold_mariano(trial, horizon_bars=10).p_value for trial in trials])
    naive = trials.mean(axis=1) / trials.std(axis=1) * math.sqrt(600)
    assert np.mean(np.abs(naive) > 1.96) > 0.4
    # 5 % of 400 is 20 with a deviation of 4.4; the test is known to be a little generous.
    assert 0.02 < np.mean(p_values < 0.05) < 0.10


def test_a_true_difference_is_found() -> None:
    rng = np.random.default_rng(6)
    differences = np.convolve(rng.normal(-0.3, 1, size=1_209), np.ones(10) / 10, "valid")
    test = diebold_mariano(differences, horizon_bars=10)
    # Mean -0.3 with a standard error near 1 / sqrt(1200): about ten of them.
    assert test.p_value is not None
    assert test.p_value < 1e-6
    assert test.mean_difference < 0


def test_overlapping_values_tell_as_much_as_the_windows_that_do_not_overlap() -> None:
    rng = np.random.default_rng(7)
    walks = np.convolve(rng.normal(size=20_009), np.ones(10), "valid")
    # Sums of ten: the long-run variance is ten times the variance, so a tenth of the windows counts.
    assert num_effective(walks, 10, None) == pytest.approx(2_000, rel=0.15)
    independent = rng.normal(size=20_000)
    assert num_effective(independent, 1, None) == pytest.approx(20_000, rel=0.15)


@given(seed=st.integers(0, 1_000), num_values=st.integers(1, 300), step=st.integers(1, 10))
@settings(max_examples=50, deadline=None)
def test_effective_windows_are_between_one_and_all(seed: int, num_values: int, step: int) -> None:
    hits = np.random.default_rng(seed).integers(0, 2, num_values).astype(float)
    assert 1.0 <= num_effective(hits, step, None) <= num_values


def test_hits_that_never_change_count_as_windows_that_do_not_overlap() -> None:
    assert num_effective(np.ones(1_000), 10, None) == 100.0


@pytest.mark.parametrize("num_values", [2, 3, 40, 1_000])
def test_corrected_p_values_are_those_of_scipy_to_the_bit(num_values: int) -> None:
    p_values = np.random.default_rng(num_values).random(num_values) ** 4
    p_values[-1] = p_values[0]
    assert corrected_p_values(p_values.tolist()) == scipy.stats.false_discovery_control(p_values).tolist()


def test_corrected_p_values_lead_to_the_published_discoveries() -> None:
    # Benjamini & Hochberg (1995), section 4.1: 15 comparisons of treatments for myocardial infarction.
    # At 0.05 the procedure rejects the first four, Bonferroni's the first three.
    p_values = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1.0000,
    ]
    corrected = corrected_p_values(p_values)
    assert [value < 0.05 for value in corrected] == [True] * 4 + [False] * 11
    # The fourth: 0.0095 x 15 / 4.
    assert corrected[3] == pytest.approx(0.035625)


@given(p_values=st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=45))
def test_corrected_p_values_are_the_smallest_levels_that_reject(p_values: list[float | None]) -> None:
    corrected = corrected_p_values(p_values)
    known = [value for value in p_values if value is not None]
    assert [value is None for value in corrected] == [value is None for value in p_values]
    # Benjamini & Hochberg's rule by its definition: the k-th smallest is rejected at p x number / k.
    ranked = sorted(known)
    levels = [min(1.0, value * len(ranked) / rank) for rank, value in enumerate(ranked, 1)]
    expected = [min(levels[ranked.index(value) :]) for value in known]
    np.testing.assert_allclose([value for value in corrected if value is not None], expected, rtol=1e-12)


def test_the_correction_does_not_depend_on_the_order() -> None:
    assert corrected_p_values([0.5, 0.001, 0.03]) == pytest.approx([0.5, 0.003, 0.045])
    assert corrected_p_values([]) == []


@pytest.mark.parametrize("bad", [-0.1, 0.0, float("nan"), float("inf")])
def test_a_standard_error_out_of_range_is_no_test(bad: float) -> None:
    content = asdict(Significance(0.1, 0.2, 100, 9)) | {"standard_error": bad}
    with pytest.raises(ValueError, match="standard_error"):
        KIND.validate_python(content)
