"""Significance: closed forms, other implementations, and where there is no test."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import asdict

import numpy as np
import pytest
import scipy.fft
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from v8.model.evaluation.significance import (
    Significance,
    choose_lag,
    corrected_p_values,
    diebold_mariano,
    long_run_variance,
    min_windows,
    num_effective,
    slow_variance,
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


def test_statistic_and_p_value_are_those_of_student_s_t() -> None:
    # Mean over standard error 2.0; two-sided, of 4 degrees of freedom: the closed form is
    # 1 - (3 / 2 x - x^3 / 2) with x = t / sqrt(4 + t^2) = 2 / sqrt(8).
    test = Significance(0.5, 0.25, 200, 4)
    ratio = 2 / math.sqrt(8)
    assert test.statistic == 2.0
    assert test.p_value == pytest.approx(1 - 1.5 * ratio + 0.5 * ratio**3)
    assert test.p_value == pytest.approx(2 * scipy.stats.t.sf(2.0, 4))


def test_the_slow_variance_of_four_values_is_the_one_worked_out_by_hand() -> None:
    # Deviations 1, 1, -1, -1 at 1/8, 3/8, 5/8, 7/8 of the span. The first wave is cos(pi x): its sum is
    # 2 (cos 22.5 + cos 67.5 degrees), squared 4 (1 + sin 45) = 4 + 2 sqrt(2); times 2 / 4.
    first = (4 + 2 * math.sqrt(2)) / 2
    deviations = np.array([1.0, 1.0, -1.0, -1.0])
    assert slow_variance(deviations, 1) == pytest.approx(first)
    # The second is cos(2 pi x): cos 45, cos 135, cos 225, cos 315 degrees, which these cancel.
    assert slow_variance(deviations, 2) == pytest.approx(first / 2)


def test_of_all_waves_the_variance_is_that_of_independent_values() -> None:
    deviations = np.random.default_rng(3).normal(size=50)
    deviations -= deviations.mean()
    # The N - 1 waves are an orthonormal basis of all that has the mean zero.
    assert slow_variance(deviations, 49) == pytest.approx(np.sum(deviations**2) / 49)


def test_the_slow_variance_of_many_windows_takes_a_part_of_the_memory_of_its_waves() -> None:
    deviations = np.random.default_rng(5).normal(size=200_000)
    num_waves = 60
    tracemalloc.start()
    variance = slow_variance(deviations, num_waves)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < num_waves * deviations.nbytes / 3
    waves = scipy.fft.dct(deviations, type=2, norm="ortho")[1 : num_waves + 1]
    assert variance == pytest.approx(np.mean(waves**2), rel=1e-9)


@given(seed=st.integers(0, 1_000), num_windows=st.integers(200, 1_300), horizon_bars=st.integers(1, 25))
@settings(max_examples=25, deadline=None)
def test_a_test_is_the_discrete_cosine_transform_of_scipy(
    seed: int, num_windows: int, horizon_bars: int
) -> None:
    differences = np.random.default_rng(seed).normal(0.1, 1, num_windows)
    num_degrees = min(math.floor(0.3 * num_windows**0.5), math.floor(num_windows / (2 * horizon_bars)))
    waves = scipy.fft.dct(differences, type=2, norm="ortho")[1 : num_degrees + 1]
    standard_error = math.sqrt(np.mean(waves**2) / num_windows)
    test = diebold_mariano(differences, horizon_bars=horizon_bars)
    assert (test.num_windows, test.degrees_of_freedom) == (num_windows, num_degrees)
    assert test.standard_error == pytest.approx(standard_error, rel=1e-9)
    p_value = 2 * scipy.stats.t.sf(abs(differences.mean() / standard_error), num_degrees)
    assert test.p_value == pytest.approx(p_value, rel=1e-9)


@given(seed=st.integers(0, 10_000), num_windows=st.integers(2, 40), lag_bars=st.integers(0, 12))
@settings(max_examples=50, deadline=None)
def test_the_long_run_variance_is_that_of_newey_and_west_across_holes_too(
    seed: int, num_windows: int, lag_bars: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=num_windows)
    # Neighbours one bar apart as a rule, some a few bars, some beyond the lag, one a year.
    bars = np.cumsum(rng.choice([1, 1, 1, 2, 5, 40, 35_040], num_windows)) + 1_700_000
    variance = long_run_variance(values - values.mean(), lag_bars, bars)
    assert variance == pytest.approx(_slow_variance(values, lag_bars, bars), rel=1e-9, abs=1e-12)
    assert variance >= 0


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
        (np.zeros(300), "identical forecasts"),
        (np.full(300, 0.1), "one constant apart, up to rounding"),
        (np.full(300, 0.1) + 1e-15 * np.arange(300), "one constant apart, and less than rounding"),
        (np.array([0.3]), "one window"),
        (np.random.default_rng(1).normal(size=199), "fewer windows than a test needs"),
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


@pytest.mark.parametrize(("horizon_bars", "least"), [(1, 200), (10, 200), (25, 200), (26, 208), (120, 960)])
def test_one_window_more_is_enough(horizon_bars: int, least: int) -> None:
    assert min_windows(horizon_bars) == least  # the larger of 200 and eight horizons
    differences = np.random.default_rng(1).normal(size=least)
    assert diebold_mariano(differences[1:], horizon_bars=horizon_bars).p_value is None
    test = diebold_mariano(differences, horizon_bars=horizon_bars)
    assert test.p_value is not None
    assert test.degrees_of_freedom >= 4


@given(seed=st.integers(0, 1_000), exponent=st.integers(-6, 6))
@settings(max_examples=20, deadline=None)
def test_the_unit_of_the_loss_does_not_matter_and_swapping_changes_the_sign_only(
    seed: int, exponent: int
) -> None:
    differences = np.random.default_rng(seed).normal(0.2, 1, size=280)
    test = diebold_mariano(differences, horizon_bars=3)
    scaled = diebold_mariano(differences * 10.0**exponent, horizon_bars=3)
    swapped = diebold_mariano(-differences, horizon_bars=3)
    assert scaled.statistic == pytest.approx(test.statistic, rel=1e-9)
    assert (swapped.statistic, swapped.p_value) == pytest.approx((-test.statistic, test.p_value))


def test_a_true_difference_is_found() -> None:
    rng = np.random.default_rng(6)
    differences = np.convolve(rng.normal(-0.3, 1, size=1_209), np.ones(10) / 10, "valid")
    test = diebold_mariano(differences, horizon_bars=10)
    # Mean -0.3 with a standard error near 1 / sqrt(1200): about ten of them, for which Student's t of ten
    # degrees has 1.5e-6.
    assert test.p_value is not None
    assert test.p_value < 1e-4
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


@given(p_values=st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=45))
def test_corrected_p_values_are_the_smallest_levels_that_reject(p_values: list[float | None]) -> None:
    corrected = corrected_p_values(p_values)
    p_known = [value for value in p_values if value is not None]
    assert [value is None for value in corrected] == [value is None for value in p_values]
    # Benjamini & Hochberg's rule by its definition: the k-th smallest is rejected at p x number / k.
    ranked = sorted(p_known)
    levels = [min(1.0, value * len(ranked) / rank) for rank, value in enumerate(ranked, 1)]
    expected = [min(levels[ranked.index(value) :]) for value in p_known]
    np.testing.assert_allclose([value for value in corrected if value is not None], expected, rtol=1e-12)


@pytest.mark.parametrize("bad", [-0.1, 0.0, float("nan"), float("inf")])
def test_a_standard_error_out_of_range_is_no_test(bad: float) -> None:
    content = asdict(Significance(0.1, 0.2, 100, 9)) | {"standard_error": bad}
    with pytest.raises(ValueError, match="standard_error"):
        KIND.validate_python(content)
