"""The regression that forecasts are blended with: terms written plainly, coefficients found again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from v8.data.dataset import SeriesData, prepare_series
from v8.data.range_regression import fit_regression, regress, regression_terms
from v8.profile import Profile


@pytest.fixture
def data(make_blended_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]) -> SeriesData:
    return make_data(make_blended_profile())


def test_the_terms_are_the_deviation_that_would_follow_and_that_of_roll_forward(data: SeriesData) -> None:
    row = int(data.anchors["test"][5])
    terms = regression_terms(data, np.array([row]))
    for step in (1, 2, 3):
        # A bar adds (1 - 1/20) / 19 of its variance; two (3 - 5/20) / 19; three (6 - 14/20) / 19.
        weight = {1: 0.95, 2: 2.75, 3: 5.3}[step] / 19
        rolled = float(data.table.column(f"rolled_deviation_{step}")[row])
        assert terms[0, step - 1] == pytest.approx([np.sqrt(rolled**2 + weight), rolled], rel=1e-6)


def test_coefficients_are_found_again_where_the_truth_follows_them(data: SeriesData) -> None:
    rng = np.random.default_rng(8)
    rows = data.anchors["train"]
    wanted = {"bands": rng.normal(0, 1, (3, 2, 2)), "volatility": rng.normal(0, 1, (3, 2, 1))}
    targets = {name: values.copy() for name, values in data.targets_NHC.items()}
    for task, made in regress(data, rows, wanted).items():
        targets[task][rows] = made
    found = fit_regression(replace(data, targets_NHC=targets))
    assert set(found) == {"bands", "volatility"}
    for task, made in regress(data, rows, found).items():
        np.testing.assert_allclose(made, targets[task][rows], atol=1e-3)


def test_a_window_counts_by_its_recent_range(data: SeriesData) -> None:
    """Two kinds of window, each with its own truth: the sum of weights decides which is followed."""
    rows, other = data.anchors["train"], data.anchors["train"][::3]
    targets = {name: np.zeros_like(values) for name, values in data.targets_NHC.items()}
    right = {"volatility": np.ones((3, 2, 1))}
    targets["volatility"][rows] = regress(data, rows, right)["volatility"]
    targets["volatility"][other] = 0.0
    for weight, is_followed in ((1.0, False), (9.0, True)):
        weights = np.ones_like(data.weight_N)
        weights[other] = weight
        found = fit_regression(replace(data, targets_NHC=targets, weight_N=weights))
        size = np.abs(regress(data, other, {"volatility": found["volatility"]})["volatility"]).mean()
        assert (size < 0.05) == is_followed


def test_neither_validation_nor_test_rows_are_read(
    data: SeriesData, change_table: Callable[..., Any]
) -> None:
    columns = {name: data.table.column(name).copy() for name in data.table.columns}
    for values in columns.values():
        values[data.split.train[1] :] *= 1.3
    other = prepare_series(change_table(data.table, **columns), data.profile)
    before, after = fit_regression(data), fit_regression(other)
    for task, values in before.items():
        np.testing.assert_array_equal(values, after[task])


def test_without_coefficients_no_feature_is_asked_for(
    make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_profile())
    assert regress(data, data.anchors["test"], {}) == {}
