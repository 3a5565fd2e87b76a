"""Steps of single precision, and fits by absolute errors against the linear programme that they solve."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.base.arrays import (
    MAX_STEPS,
    ROWS_AT_ONCE,
    float32_step,
    least_absolute_errors,
    least_squares,
    steps_apart,
    weighted_median,
)
from v8.model.networks.published import forecasts_apart
from v8.profile.columns import TASK_BANDS, TASK_OHLC, TASK_VOLATILITY
from v8.profile.tasks import TASKS


@pytest.mark.parametrize(
    ("magnitude", "step"), [(1.0, 2**-23), (-1.9, 2**-23), (0.99, 2**-24), (3e-8, 2**-48)]
)
def test_a_step_is_the_distance_to_the_next_number_of_float32(magnitude: float, step: float) -> None:
    assert float32_step(magnitude) == step
    assert np.nextafter(np.float32(magnitude), np.float32(np.sign(magnitude) * 4)) - np.float32(
        magnitude
    ) == (np.sign(magnitude) * step)


def test_the_largest_difference_counts_each_in_its_own_size() -> None:
    values = np.array([1.0, 60_000.0])
    expected = np.array([1.0 + 3 * 2.0**-23, 60_000.0 + 2**-8])
    assert steps_apart(values, expected, magnitude=np.array([1.0, 60_000.0])) == 3.0
    assert steps_apart(values, expected, magnitude=60_000.0) == 1.0


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_never_within_any_steps(odd: float) -> None:
    for other in (odd, 1.0):
        assert steps_apart(np.array([1.0, odd]), np.array([1.0, other]), magnitude=1.0) == np.inf


def test_a_volatility_is_counted_in_steps_of_the_ratios_that_it_is_computed_from() -> None:
    """Row 9: a stable coin's is 1e-4, and two programs were 1.5e-8 apart: an eighth of a step."""
    expected = {TASK_VOLATILITY: np.full((1, 1, 1), 9.5e-5)}
    values = {TASK_VOLATILITY: expected[TASK_VOLATILITY] + 1.5e-8}
    assert forecasts_apart(values, expected, np.array([1.0]))[TASK_VOLATILITY] == pytest.approx(
        0.126, abs=0.001
    )


@pytest.mark.parametrize("task", [TASK_OHLC, TASK_BANDS])
def test_a_price_is_counted_in_steps_of_the_last_close_and_of_its_move(task: str) -> None:
    """A move is known to a share of 16 steps: here half of the price, so steps of eight more prices."""
    of_windows = TASKS[task].magnitude(2.0, np.array([[2.0, 2.0], [2.0, 3.0], [1.0, 2.0]]))
    assert of_windows.tolist() == [[2.0], [18.0], [18.0]]


def test_another_forecast_is_not_one_of_rounding() -> None:
    """A thousandth of the price of a calm coin, and a tenth of a stable coin's volatility."""
    for task, size, change in ((TASK_OHLC, 60_000.0, 60.0), (TASK_VOLATILITY, 1e-4, 1e-5)):
        expected = {task: np.full((1, 1, 1), size)}
        changed = {task: expected[task] + change}
        assert forecasts_apart(changed, expected, np.array([60_000.0]))[task] > MAX_STEPS


def test_quantiles_are_compared_as_their_task_is() -> None:
    expected = {"ohlc_quantiles": np.full((2, 1, 3, 4), 1.0), "ohlc": np.full((2, 1, 4), 1.0)}
    changed = {name: values.copy() for name, values in expected.items()}
    changed["ohlc_quantiles"][1, 0, 2, 3] = np.nan
    assert forecasts_apart(changed, expected, np.array([1.0, 1.0])) == {"ohlc": 0.0, "ohlc_quantiles": np.inf}


@given(pairs=st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0, 1e3)), min_size=1, max_size=30))
def test_no_value_has_a_smaller_weighted_sum_of_distances_than_the_weighted_median(
    pairs: list[tuple[float, float]],
) -> None:
    values, weights = np.array(pairs).T
    median = weighted_median(values, weights)
    if weights.sum() == 0:
        assert median == 0.0
        return
    sums = [(weights * np.abs(values - candidate)).sum() for candidate in values]
    assert (weights * np.abs(values - median)).sum() == pytest.approx(min(sums), rel=1e-9, abs=1e-9)


def test_the_weighted_median_works_on_every_cell_alone() -> None:
    values = np.array([[1.0, 5.0], [2.0, 6.0], [9.0, 7.0]])
    weights = np.array([[1.0, 0.0], [1.0, 0.0], [5.0, 0.0]])
    np.testing.assert_array_equal(weighted_median(values, weights), [9.0, 0.0])


@given(seed=st.integers(0, 1_000), num_terms=st.integers(1, 5))
@settings(max_examples=10, deadline=None)
def test_the_sum_of_absolute_errors_is_the_smallest_that_linear_programming_finds(
    seed: int, num_terms: int
) -> None:
    rng = np.random.default_rng(seed)
    terms = np.exp(rng.normal(0, 0.5, (300, num_terms)))
    targets = (terms @ rng.normal(size=(num_terms, 2)) + rng.standard_t(2, (300, 2))) * 1e-3
    fitted = least_absolute_errors(terms, targets)
    for column in range(2):
        best = _programme(terms, targets[:, column] * 1e3) * 1e-3
        found = np.abs(targets[:, column] - terms @ fitted[:, column]).sum()
        assert best * (1 - 1e-9) <= found <= best * 1.001


def test_terms_that_repeat_each_other_or_are_nothing_are_no_trouble() -> None:
    rng = np.random.default_rng(1)
    term = rng.normal(size=(50, 1))
    fitted = least_absolute_errors(np.concatenate([term, term, 0 * term], axis=1), 3 * term)
    assert fitted[0] + fitted[1] == pytest.approx(3.0, rel=1e-6)
    np.testing.assert_array_equal(least_absolute_errors(0 * term, 0 * term), [[0.0]])


def _programme(terms: np.ndarray, targets: np.ndarray) -> float:
    """Minimise the sum of what targets lie above and below the fit."""
    num_rows, num_terms = terms.shape
    solved = scipy.optimize.linprog(
        np.concatenate([np.zeros(num_terms), np.ones(2 * num_rows)]),
        A_eq=np.concatenate([terms, np.eye(num_rows), -np.eye(num_rows)], axis=1),
        b_eq=targets,
        bounds=[(None, None)] * num_terms + [(0, None)] * (2 * num_rows),
    )
    return float(solved.fun)


def test_medians_of_many_columns_take_the_memory_of_some_of_them() -> None:
    values = np.random.default_rng(4).normal(size=(20_000, 40))
    tracemalloc.start()
    weighted_median(values, np.broadcast_to(1.0, values.shape))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < values.nbytes / 4


@pytest.mark.parametrize("is_collinear", [False, True])
def test_least_squares_of_many_rows_are_those_of_all_together(is_collinear: bool) -> None:
    rng = np.random.default_rng(4)
    x_NP = rng.normal(size=(8 * ROWS_AT_ONCE + 7, 4))
    if is_collinear:
        x_NP[:, 3] = x_NP[:, 1] - 2.0 * x_NP[:, 2]
    y_NM = x_NP @ rng.normal(size=(4, 2)) + rng.normal(size=(len(x_NP), 2))
    expected_PM = np.linalg.lstsq(x_NP, y_NM, rcond=None)[0]
    fitted_PM = least_squares(x_NP, y_NM)
    np.testing.assert_allclose(fitted_PM, expected_PM, rtol=1e-9)
