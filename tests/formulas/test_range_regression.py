"""The regression that forecasts are blended with: terms written plainly, coefficients found again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from v8.formulas.range_regression import (
    RangeRegression,
    fit_regression,
    regress,
    regression_terms,
    variance_weights,
    wave_features,
)
from v8.profile import Profile
from v8.tasks.closes import future_weights
from v8.windows.dataset import SeriesData, prepare_series
from v8.windows.span import Span

RANGES = ("range_1", "range_5", "range_20", "range_60")


@pytest.fixture
def data(make_blended_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]) -> SeriesData:
    return make_data(make_blended_profile())


def _path(rng: np.random.Generator) -> np.ndarray:
    """Coefficients of a constant, four log ranges and one wave, for three steps."""
    return rng.normal(0, 0.2, (6, 3))


def test_a_bar_adds_to_the_bands_variance_what_moving_the_newest_closes_alike_does() -> None:
    weights = variance_weights(18)
    for step in (1, 2, 9, 18):
        for bar in (1, step):
            moved = np.zeros(20)
            moved[20 - (step - bar + 1) :] = 1.0
            assert weights[step - 1, bar - 1] == pytest.approx(moved.var(ddof=1))
    assert (np.triu(weights, 1) == 0).all()  # a later bar is not there yet
    np.testing.assert_allclose(weights.sum(axis=1), future_weights(18))


def test_the_terms_are_what_follows_from_the_path_of_ranges(data: SeriesData) -> None:
    row, path = int(data.anchors["test"][5]), _path(np.random.default_rng(1))
    assert wave_features(data.profile) == ("day_sin_1",)
    known = [np.log(float(data.table.column(name)[row])) for name in RANGES]
    terms = np.array([1.0, *known, float(data.table.column("day_sin_1")[row])])
    sizes = [float(np.exp(terms @ path[:, step])) for step in range(3)]
    made = regression_terms(Span(data.table, data.profile, np.array([row])), path)
    # A bar moves one close of twenty at first, then two, then three: n (1 - n / 20) / 19 of its variance.
    added = [0.95 / 19, 1.8 / 19, 2.55 / 19]
    for step in range(3):
        rolled = float(data.table.column(f"rolled_deviation_{step + 1}")[row])
        grown = sum(added[step - bar] * sizes[bar] ** 2 for bar in range(step + 1))
        assert made["bands"][0, step] == pytest.approx([np.sqrt(rolled**2 + grown), rolled], rel=1e-6)
        walk = np.sqrt(sum(size**2 for size in sizes[: step + 1]))
        assert made["ohlc"][0, step] == pytest.approx([walk, sizes[step]], rel=1e-6)
    np.testing.assert_array_equal(made["volatility"], made["bands"])


def test_the_path_finds_ranges_that_follow_those_before(data: SeriesData) -> None:
    wanted = _path(np.random.default_rng(2))
    rows = data.anchors["train"]
    known = [np.log(np.maximum(data.table.column(name)[rows].astype(np.float64), 0.02)) for name in RANGES]
    terms = np.stack([np.ones(len(rows)), *known, data.table.column("day_sin_1")[rows]], axis=1)
    recent = data.table.column("recent_range")[rows].astype(np.float64)
    ranges = np.exp(terms @ wanted) * recent[:, None] / np.sqrt(np.pi / 8)

    reach = np.exp(ranges / 2)
    ohlc = np.stack([np.ones_like(reach), reach, 1 / reach, np.ones_like(reach)], axis=2)
    train = Span(data.table, data.profile, rows)
    vars(train).update(truth={"ohlc": ohlc})  # a series whose coming bars have these ranges
    told = replace(data, spans={**data.spans, "train": train})
    np.testing.assert_allclose(fit_regression(told).path_LH, wanted, atol=0.01)


def test_coefficients_are_found_again_where_the_truth_follows_them(data: SeriesData) -> None:
    rng = np.random.default_rng(8)
    train, path = data.spans["train"], fit_regression(data).path_LH
    wanted = {"bands": rng.normal(0, 1, (3, 2, 2)), "volatility": rng.normal(0, 1, (3, 2, 1))}
    targets = {name: values.copy() for name, values in data.targets_NHC.items()}
    for task, made in regress(train, RangeRegression(path, wanted)).items():
        targets[task][train.anchors] = made
    found = fit_regression(replace(data, targets_NHC=targets))
    made = regress(train, found)
    assert set(made) == {"ohlc", "bands", "volatility"}
    for task in wanted:
        np.testing.assert_allclose(made[task], targets[task][train.anchors], atol=1e-3)


def test_open_and_close_stay_where_they_are(data: SeriesData) -> None:
    made = regress(data.spans["test"], fit_regression(data))["ohlc"]
    assert (made[:, :, [0, 3]] == 0).all()
    assert (made[:, :, 1] > 0).mean() > 0.95
    assert (made[:, :, 2] < 0).mean() > 0.95


def test_a_window_counts_by_its_recent_range(data: SeriesData) -> None:
    """Two kinds of window, each with its own truth: the sum of weights decides which is followed."""
    train, path = data.spans["train"], fit_regression(data).path_LH
    other = Span(data.table, data.profile, train.anchors[::3])
    targets = {name: np.zeros_like(values) for name, values in data.targets_NHC.items()}
    right = RangeRegression(path, {"volatility": np.ones((3, 2, 1))})
    targets["volatility"][train.anchors] = regress(train, right)["volatility"]
    targets["volatility"][other.anchors] = 0.0
    for weight, is_followed in ((1.0, False), (9.0, True)):
        weights = np.ones_like(data.weight_N)
        weights[other.anchors] = weight
        found = fit_regression(replace(data, targets_NHC=targets, weight_N=weights))
        size = np.abs(regress(other, found)["volatility"]).mean()
        assert (size < 0.05) == is_followed


def test_neither_validation_nor_test_rows_are_read(
    data: SeriesData, change_table: Callable[..., Any]
) -> None:
    columns = {name: data.table.column(name).copy() for name in data.table.columns}
    for values in columns.values():
        values[data.split.train[1] :] *= 1.3
    other = prepare_series(change_table(data.table, **columns), data.profile)
    before, after = fit_regression(data), fit_regression(other)
    np.testing.assert_array_equal(before.path_LH, after.path_LH)
    for task, values in before.tasks.items():
        np.testing.assert_array_equal(values, after.tasks[task])


def test_no_term_can_be_had_from_the_others(data: SeriesData) -> None:
    """Else coefficients would be millions that cancel, and single precision would not cancel them."""
    assert np.abs(fit_regression(data).path_LH).max() < 10
