"""The experiment on breaks: test parts begin where it says, and no rule reads them."""

from __future__ import annotations

import numpy as np
import pytest
import research_breaks as research

from v8.data.features.table import compute_table
from v8.data.market.candles import Candles
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.data.windows.dataset import SeriesData, prepare_series, table_columns
from v8.model.baselines.ranges import MEMBERS, fit_ensemble, fit_shares
from v8.profile.columns import CLOSE, OHLC
from v8.profile.profile import Profile, load_profile


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile("frontier").but(quantiles=())


@pytest.fixture(scope="module")
def candles() -> Candles:
    return DemoSource().candles(Series.parse("ETHUSDT-1h"), 4_000)


def day_of(candles: Candles, row: int) -> str:
    """Return the open time of a row, ISO 8601, without a timezone."""
    return str(np.datetime64(int(candles.open_time_s[row]), "s"))


def prepared(candles: Candles, profile: Profile) -> SeriesData:
    return prepare_series(compute_table(candles, table_columns(profile)), profile)


@pytest.mark.parametrize("row", [2_500, 3_200, 3_700])
def test_a_test_part_begins_at_the_moment_that_is_named(candles: Candles, profile: Profile, row: int) -> None:
    chosen = research.starting_at(candles, day_of(candles, row), profile)
    assert chosen is not None
    data = prepared(chosen, profile)
    first_row = data.split["test"][0]
    assert data.table.open_time_s[first_row] == candles.open_time_s[row]


def test_a_start_with_too_little_before_it_is_left_out(candles: Candles, profile: Profile) -> None:
    assert research.starting_at(candles, day_of(candles, 300), profile) is None


def test_a_crash_changes_nothing_before_its_bar(candles: Candles) -> None:
    fallen = research.crashed(candles, day_of(candles, 3_000))
    np.testing.assert_array_equal(fallen.values[:3_000], candles.values[:3_000])
    high, low = candles.values[:, 1], candles.values[:, 2]
    usual = np.median(np.log(high / low))
    close = OHLC.index(CLOSE)
    fall = np.log(fallen.values[3_000:, close] / candles.values[3_000:, close])
    np.testing.assert_allclose(fall, -20 * usual)
    assert np.log(fallen.values[3_000, 1] / fallen.values[3_000, 2]) >= 60 * usual
    assert (fallen.values[:, 2] <= fallen.values[:, [0, 3]].min(axis=1)).all()


def test_shares_fitted_to_ranges_ignore_how_wild_a_window_is(candles: Candles, profile: Profile) -> None:
    data = prepared(candles, profile)
    span = data.spans["validation"]
    formulas = fit_ensemble(data.spans["train"])
    members, _ = formulas.member_forecasts(span, span.naive)
    plain = fit_shares(span, members)
    weighed = research.weighed_shares(span, members)
    for task in profile.tasks:
        assert weighed[task].shape == (len(MEMBERS), profile.horizon_bars)
        np.testing.assert_allclose(weighed[task].sum(axis=0), 1.0)
    assert any(not np.array_equal(plain[task], weighed[task]) for task in profile.tasks)


def test_errors_are_relative_to_the_naive_forecast(candles: Candles, profile: Profile) -> None:
    span = prepared(candles, profile).spans["test"]
    halfway = {task: (span.naive[task] + span.actual[task]) / 2 for task in profile.tasks}
    errors = research.errors_of(span, {research.NAIVE: span.naive, "halfway": halfway})
    for task in profile.tasks:
        assert errors[task]["halfway"] == pytest.approx(0.5)
