"""Quantiles in scaled units: what they start at, how wide they are, what validation corrects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.formulas.ranges import conformal_widths, kept_share
from v8.profile import Profile
from v8.quantile_levels import outer, signed_sums
from v8.tasks import TASKS, standing_closes
from v8.windows.dataset import SeriesData, first_steps
from v8.windows.regression import weighted_quantiles
from v8.windows.span import flat_units

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@pytest.fixture(scope="module")
def data(make_ranged_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]) -> SeriesData:
    return make_data(make_ranged_profile(quantiles=LEVELS, newest_bars=1_500))


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=40), st.sampled_from(LEVELS))
def test_no_number_has_a_smaller_pinball_loss_than_the_weighted_quantile(
    values: list[float], level: float
) -> None:
    points, weights = np.array(values), np.arange(1.0, len(values) + 1)
    found = weighted_quantiles(points, weights, [level])[0]

    def loss(guess: float) -> float:
        beyond = points - guess
        return float((weights * np.where(beyond > 0, level * beyond, (level - 1) * beyond)).sum())

    assert loss(found) <= min(map(loss, values)) + 1e-9


def test_an_untrained_network_forecasts_the_quantiles_of_the_train_span(data: SeriesData) -> None:
    train = data.spans["train"]
    for task, start in ((task, data.scaling.task(task).start) for task in data.profile.tasks):
        biases_HLC = first_steps(data)[f"{task}_quantiles"].astype(np.float64)
        steps_HLC = np.log1p(np.exp(biases_HLC))
        distances_HLC = np.einsum("hlc,lk->hkc", steps_HLC, signed_sums(outer(LEVELS)))
        unit = data.units_NHC[f"{task}_quantiles"][train.anchors]
        beyond = data.targets_NHC[task][train.anchors] - np.array(start)
        weights = data.weight_N[train.anchors][:, None, None] * unit
        below = (beyond[:, :, None] <= distances_HLC * unit[:, :, None]) * weights[:, :, None]
        shares = below.sum(axis=0) / weights.sum(axis=0)[:, None]
        # The open of the first bar is the last close but for a tick: its quantiles nearly coincide.
        np.testing.assert_allclose(
            shares[1:], np.broadcast_to(np.array(outer(LEVELS))[:, None], shares[1:].shape), atol=0.03
        )


def test_upper_and_lower_band_differ_by_the_side_on_which_the_close_lies(data: SeriesData) -> None:
    test = data.spans["test"]
    unit = flat_units(test, data.scaling.floored_range(test.recent_range))["bands"]
    is_above = (
        test.standing.middle[:, 0] < 1.0
    )  # the last close lies above the middle: it lifts the upper band
    assert (unit[is_above, 0, 0] > unit[is_above, 0, 1]).all()
    assert (unit[~is_above, 0, 0] <= unit[~is_above, 0, 1]).all()


def test_the_unit_is_how_far_the_bands_of_simulated_walks_stray() -> None:
    rng = np.random.default_rng(5)
    history = 100 * np.exp(np.cumsum(rng.normal(0, 1e-3, (1, 20)), axis=1))
    steps = rng.normal(0, 1e-3, (4_000, 3))
    standing = standing_closes(np, history, 3)
    unit = _units(standing)
    closes = history[0, -1] * (1 + np.cumsum(steps, axis=1))
    for step in range(3):
        window = np.concatenate(
            [np.repeat(history[:, step + 1 :], len(steps), axis=0), closes[:, : step + 1]], axis=1
        )
        middle, deviation = window.mean(axis=1), window.std(axis=1, ddof=1)
        for side, column in ((2, 0), (-2, 1)):
            strayed = np.std((middle + side * deviation) / history[0, -1])
            assert unit[0, step, column] * 1e-3 == pytest.approx(strayed, rel=0.25)


def _units(standing: object) -> np.ndarray:
    from v8.windows.span import spread_units

    return spread_units(np, [TASKS["bands"]], standing, np.full((1, 1), 1e-3), np.ones((1, 3)))["bands"]


def test_stretched_quantiles_hold_their_share_of_later_windows_however_far_they_lay_off() -> None:
    """Truth is Student's t about the median; the forecast believes in half of its spread."""
    rng, num = np.random.default_rng(1), 60_000
    units = rng.uniform(0.5, 2.0, (num, 1, 1))
    distances = np.array([-1.0, -0.4, 0.4, 1.0])[:, None] * units[..., None]
    points, truth = {"ohlc": np.zeros((num, 1, 1))}, {"ohlc": units * rng.standard_t(4, (num, 1, 1))}
    (widths_HLC,) = conformal_widths(LEVELS, truth, points, {"ohlc": distances}).values()
    later_units = rng.uniform(0.5, 2.0, (num, 1, 1))
    later = later_units * rng.standard_t(4, (num, 1, 1))
    kept = 1.0 + (widths_HLC[0, :, 0] - 1.0) / kept_share(num, 1)
    shares = (later <= np.array([-1.0, -0.4, 0.4, 1.0]) * kept * later_units).mean(axis=0)[0]
    np.testing.assert_allclose(shares, outer(LEVELS), atol=0.01)


def test_a_move_found_in_few_windows_is_kept_in_part() -> None:
    truth, points = {"ohlc": np.full((100, 10, 4), 2.0)}, {"ohlc": np.zeros((100, 10, 4))}
    distances = {"ohlc": np.ones((100, 10, 2, 4)) * np.array([-1.0, 1.0])[:, None]}
    (widths,) = conformal_widths((0.1, 0.5, 0.9), truth, points, distances).values()
    # Ten windows that do not overlap, and 200 in doubt: of one unit more, and of three fewer.
    np.testing.assert_allclose(widths[:, 1], 1 + 10 / 210)
    np.testing.assert_allclose(widths[:, 0], 1 - 3 * 10 / 210)


def test_a_series_without_quantiles_has_no_units(
    make_ranged_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    plain = make_data(make_ranged_profile())
    assert plain.units_NHC == {} and first_steps(plain) == {}
    assert replace(plain).learned.keys() == plain.targets_NHC.keys()
