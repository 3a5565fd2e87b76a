"""Fits by absolute errors, against the linear programme they solve and against every candidate."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.base.arrays import ROWS_AT_ONCE, least_absolute_errors, least_squares, weighted_median


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
