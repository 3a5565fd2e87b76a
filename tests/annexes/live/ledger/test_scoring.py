"""Forecasts are scored as the evaluation scores them, and their baselines are those of the evaluation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ledger_entries import ISSUER, said
from tiny_profiles import tiny_profile

from v8.annexes.live.entries import Entry
from v8.annexes.live.issuing import (
    VOID_AFTER_S,
    FittedBaselines,
    baseline_bars,
    fit_baselines,
    fitted_until_s,
    score,
    scoring_bars,
)
from v8.base.errors import DataError
from v8.data.features import compute_table
from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.data.scaling import fit_scaling
from v8.data.span import Span
from v8.data.windows import table_columns, window_anchors
from v8.model.baselines.baselines import BASELINES
from v8.model.evaluation.metrics import measure_errors
from v8.profile.profile import Profile
from v8.profile.tasks import TASKS

BAR_S = 900


@pytest.fixture(scope="module")
def profile() -> Profile:
    return tiny_profile()


@pytest.fixture(scope="module")
def candles() -> Candles:
    return open_source("demo").candles(Series.parse("BTCUSDT-15m"), 1_500)


@pytest.fixture(scope="module")
def until_s(candles: Candles) -> int:
    return fitted_until_s(int(candles.open_time_s[-100]))


@pytest.fixture(scope="module")
def fitted(candles: Candles, profile: Profile, until_s: int) -> FittedBaselines:
    past = candles.newest(profile.newest_bars, until_s - BAR_S)
    return fit_baselines(profile, past, until_s)


@pytest.fixture
def entry(candles: Candles, profile: Profile, fitted: FittedBaselines) -> Entry:
    """What the baselines say of the bars after the candle that is twenty from the end."""
    newest = candles.newest(baseline_bars(profile), int(candles.open_time_s[-21]))
    forecast = {"model": fitted.forecast(newest)["har"], **fitted.forecast(newest)}
    issuer = replace(
        ISSUER,
        horizon_bars=profile.horizon_bars,
        tasks={task: TASKS[task].columns for task in profile.tasks},
        forecasters=tuple(forecast),
    )
    values = issuer.concatenate(
        {task: np.stack([one[task] for one in forecast.values()]) for task in issuer.tasks}
    )
    issued_for_s = int(candles.open_time_s[-20])
    return Entry(issuer, issued_for_s, issued_for_s + 5, newest.digest, values)


def cut(candles: Candles, *opens_s: int) -> Candles:
    """The same candles without some of them."""
    frame = candles.to_frame()
    gone = [np.datetime64(at, "s") for at in opens_s]
    kept = frame[~frame.index.tz_localize(None).isin(gone)]
    return check_candles(kept.reset_index(), candles.series, source="files")


def test_losses_are_those_of_the_evaluation_to_rounding(
    entry: Entry, candles: Candles, profile: Profile
) -> None:
    scored = score(entry, candles, entry.due_s)
    assert scored is not None and scored.losses is not None and scored.actual is not None
    table = compute_table(candles, table_columns(profile))
    anchor = int(np.searchsorted(table.open_time_s, entry.issued_for_s)) - 1
    span = Span(table, profile, np.array([anchor]))
    for column, task in enumerate(entry.issuer.tasks):
        actual = entry.issuer.split(scored.actual)[task]
        np.testing.assert_allclose(actual, span.actual[task][0], rtol=1e-5)
        for row, name in enumerate(entry.issuer.forecasters):
            _, losses = measure_errors(span, task, said(entry, name)[task][None])
            assert scored.losses[row, column] == pytest.approx(losses[0], rel=1e-3), (task, name)


def test_a_score_is_the_same_whatever_other_candles_are_known(entry: Entry, candles: Candles) -> None:
    """A process that was killed scores later, from more candles, and must write the same numbers."""
    few = score(entry, candles.newest(scoring_bars(entry), entry.due_s - BAR_S), entry.due_s)
    many = score(entry, candles, entry.due_s)
    assert few is not None and many is not None
    assert few.actual_digest == many.actual_digest
    np.testing.assert_array_equal(few.losses, many.losses)
    np.testing.assert_array_equal(few.actual, many.actual)


def test_a_forecast_waits_for_a_candle_and_is_given_up_when_it_never_comes(
    entry: Entry, candles: Candles
) -> None:
    holed = cut(candles, entry.issued_for_s + BAR_S)
    assert score(entry, holed, entry.due_s + VOID_AFTER_S - 1) is None
    given_up = score(entry, holed, entry.due_s + VOID_AFTER_S)
    assert given_up is not None
    assert (given_up.losses, given_up.actual, given_up.actual_digest) == (None, None, None)
    assert score(entry, candles.newest(500, entry.due_s - 2 * BAR_S), entry.due_s) is None


def test_baselines_are_those_of_the_evaluation(
    candles: Candles, profile: Profile, fitted: FittedBaselines, until_s: int
) -> None:
    past = compute_table(candles.newest(profile.newest_bars, until_s - BAR_S), table_columns(profile))
    rows = (0, len(past))
    train = Span(
        past, profile, window_anchors(past.segment, rows, profile.lookback_bars, profile.horizon_bars)
    )
    scaling = fit_scaling(train, rows, table_columns(profile))
    table = compute_table(candles, table_columns(profile))
    newest = Span(table, profile, np.array([len(table) - 1]))
    forecast = fitted.forecast(candles.newest(baseline_bars(profile)))
    assert {"naive", "last_close", "offset", "har", "range_paths"} <= forecast.keys()
    for name, tasks in forecast.items():
        expected = BASELINES[name].fit(train, scaling)(newest)
        for task, values in tasks.items():
            # Averages began 800 bars earlier in one of the two.
            np.testing.assert_allclose(values, expected[task][0], rtol=1e-5, err_msg=f"{name} {task}")


def test_the_future_changes_no_baseline(candles: Candles, profile: Profile, fitted: FittedBaselines) -> None:
    frame = candles.to_frame()
    frame.iloc[-20:, :4] *= 1.5
    other = check_candles(frame.reset_index(), candles.series, source="files")
    end_s = int(candles.open_time_s[-21])
    mine, theirs = (fitted.forecast(one.newest(baseline_bars(profile), end_s)) for one in (candles, other))
    for name, tasks in mine.items():
        for task, values in tasks.items():
            np.testing.assert_array_equal(values, theirs[name][task])


def test_too_short_a_past_and_a_hole_before_the_forecast_are_refused(
    candles: Candles, profile: Profile, fitted: FittedBaselines
) -> None:
    with pytest.raises(DataError) as refused:
        fit_baselines(profile, candles.newest(220), int(candles.open_time_s[-1]) + BAR_S)
    assert refused.value.where == "BTCUSDT-15m"
    assert refused.value.got == "11 that ended by 2025-01-01T00:00:00Z"
    holed = cut(candles, int(candles.open_time_s[-45]))
    with pytest.raises(DataError) as refused:
        fitted.forecast(holed.newest(baseline_bars(profile)))
    assert refused.value.where == "BTCUSDT-15m"
    assert refused.value.got == "476 that end at 2024-12-31T12:30:00Z"
