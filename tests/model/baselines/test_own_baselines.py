"""Baselines of a plug-in: what they are handed, and what of theirs is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from made_series import MadeSeries

from v8.base.errors import SeriesError
from v8.data.scaling import Scaling
from v8.data.span import PastSpan, Span
from v8.model.baselines.baselines import BASELINES, Baseline, FittedBaseline
from v8.model.evaluation.evaluation import evaluate_windows
from v8.profile.columns import CLOSE, TASK_OHLC

Forecasts = dict[str, np.ndarray]


@pytest.fixture
def series(make_market_span: Callable[..., MadeSeries]) -> MadeSeries:
    return make_market_span()


@pytest.fixture
def register() -> Iterator[Callable[[Callable[[Span], Callable[[PastSpan], Any]]], None]]:
    """Return what registers a baseline that is made of a function of the train span."""

    def enter(fit: Callable[[Span], Callable[[PastSpan], Any]]) -> None:
        def fitted(train: Span, scaling: Scaling) -> FittedBaseline:
            return fit(train)

        BASELINES.register(Baseline("mine", "A toy of this test.", "this test", fitted))

    yield enter
    BASELINES.pop("mine")


def evaluated(series: MadeSeries) -> Any:
    return evaluate_windows(series.test, series.model, train=series.train, scaling=series.scaling)[0]


def halfway(span: PastSpan) -> Forecasts:
    middle = (span.last_close + span.history_close.mean(axis=1)) / 2
    return {TASK_OHLC: np.broadcast_to(middle[:, None, None], span.target_shape(TASK_OHLC))}


def with_actual(span: PastSpan) -> Forecasts:
    return dict(span.actual)


def with_moves(span: PastSpan) -> Forecasts:
    return dict(span.moves())


def with_changed_actual(span: PastSpan) -> Forecasts:
    span.actual[TASK_OHLC][:] = 1.0
    return halfway(span)


def with_later_rows(span: PastSpan) -> Forecasts:
    rows = np.minimum(span.anchors + 1, len(span.table) - 1)
    closes = span.table.column(CLOSE)[rows].astype(np.float64)
    return {TASK_OHLC: np.broadcast_to(closes[:, None, None], span.target_shape(TASK_OHLC))}


def with_other_windows(span: PastSpan) -> Forecasts:
    return {TASK_OHLC: np.full(span.target_shape(TASK_OHLC), span.last_close.mean())}


def by_chance(span: PastSpan) -> Forecasts:
    noise = np.random.default_rng().normal(1.0, 0.01, span.target_shape(TASK_OHLC))
    return {TASK_OHLC: span.last_close[:, None, None] * noise}


def with_changed_naive(span: PastSpan) -> Forecasts:
    span.naive[TASK_OHLC][:] = 1.0
    return halfway(span)


def with_changed_closes(span: PastSpan) -> Forecasts:
    span.history_close[:] = 1.0
    return halfway(span)


def test_one_that_reads_what_is_known_is_evaluated_beside_ours(series: MadeSeries, register: Any) -> None:
    register(lambda train: halfway)
    assert list(evaluated(series).tasks[TASK_OHLC].errors)[-1] == "mine"


@pytest.mark.parametrize("forecast", [with_actual, with_moves, with_changed_actual])
def test_the_actual_values_of_the_test_part_are_not_handed_out(
    forecast: Any, series: MadeSeries, register: Any
) -> None:
    register(lambda train: forecast)
    with pytest.raises(SeriesError, match=r"span\.actual: .*got a read of"):
        evaluated(series)


@pytest.mark.parametrize("forecast", [with_later_rows, with_other_windows, by_chance])
def test_a_forecast_that_is_another_without_later_candles_is_refused(
    forecast: Any, series: MadeSeries, register: Any
) -> None:
    register(lambda train: forecast)
    words = r"BTCUSDT-15m, baseline mine, forecast of ohlc at 1970-.*: .*made alone"
    with pytest.raises(SeriesError, match=words):
        evaluated(series)


@pytest.mark.parametrize(
    ("forecast", "got"),
    [
        (lambda span: halfway(span)[TASK_OHLC], "a ndarray"),
        (lambda span: {"ohcl": halfway(span)[TASK_OHLC]}, "forecasts of ohcl"),
        (lambda span: {TASK_OHLC: span.last_close}, "the shape ("),
        (lambda span: {TASK_OHLC: np.nan * halfway(span)[TASK_OHLC]}, "NaN or infinity in ohlc"),
    ],
)
def test_what_is_no_array_of_a_task_is_refused_by_the_name_of_the_baseline(
    forecast: Any, got: str, series: MadeSeries, register: Any
) -> None:
    register(lambda train: forecast)
    with pytest.raises(SeriesError) as refused:
        evaluated(series)
    assert refused.value.where == "BTCUSDT-15m, baseline mine"
    assert refused.value.got.startswith(got)


@pytest.mark.parametrize("forecast", [with_changed_naive, with_changed_closes])
def test_arrays_are_read_only(forecast: Any, series: MadeSeries, register: Any) -> None:
    before = evaluated(series)
    register(lambda train: forecast)
    with pytest.raises(ValueError, match="read-only"):
        evaluated(series)
    BASELINES["mine"] = Baseline("mine", "A toy.", "this test", lambda train, scaling: halfway)
    assert evaluated(series).error(TASK_OHLC, "naive") == before.error(TASK_OHLC, "naive")


def test_what_comes_after_the_train_span_is_not_handed_out(series: MadeSeries, register: Any) -> None:
    seen: list[Span] = []

    def fit(train: Span) -> Callable[[PastSpan], Any]:
        with pytest.raises(ValueError, match="read-only"):
            train.actual[TASK_OHLC][:] = 1.0
        seen.append(train)
        return halfway

    register(fit)
    evaluated(series)
    assert len(seen[0].table) == series.train.anchors[-1] + series.train.horizon_bars + 1
    assert len(seen[0].table) <= series.test.anchors[0] + 1
    np.testing.assert_array_equal(seen[0].actual[TASK_OHLC], series.train.actual[TASK_OHLC])


@pytest.mark.parametrize("name", BASELINES)
def test_ours_do_the_same_without_the_actual_values(name: str, series: MadeSeries) -> None:
    if not BASELINES[name].is_installed():
        pytest.skip(f"{name} is not installed")
    forecast = BASELINES[name].fit(series.train, series.scaling)
    known = forecast(series.test.past_only)
    whole = forecast(series.test)
    assert isinstance(series.test.past_only, PastSpan)
    for task, values in whole.items():
        np.testing.assert_array_equal(known[task], values)
        assert values.shape == series.test.target_shape(task)
