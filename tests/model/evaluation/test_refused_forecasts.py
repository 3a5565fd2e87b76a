"""Forecasts that are refused: tasks, shapes and numbers are checked before anything is compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from evaluating import evaluate

from v8.base.errors import SeriesError


def test_g6_an_actual_values_with_a_step_axis_is_not_broadcast_against_forecasts_without(make_span) -> None:
    span = make_span(horizon_bars=1, tasks=("ohlc",))
    without_steps = span.model["ohlc"][:, 0, :]
    # What NumPy would do without a word: every window against every other one.
    assert (span.test.actual["ohlc"] - without_steps).shape == (7, 7, 4)
    with pytest.raises(
        SeriesError, match=r"BTCUSDT-15m, forecast of ohlc: .*\(7, 1, 4\).*got the shape \(7, 4\)"
    ):
        evaluate(span, {"ohlc": without_steps})


@pytest.mark.parametrize("shape", [(7, 3), (7, 3, 1), (7, 1, 4), (1, 3, 4), (6, 3, 4), (7, 3, 4, 1), (4,)])
def test_g6_every_other_shape_of_candles_is_refused(make_span, shape: tuple[int, ...]) -> None:
    span = make_span(tasks=("ohlc",))
    with pytest.raises(SeriesError, match=r"of ohlc: .*\(7, 3, 4\).*got the shape"):
        evaluate(span, {"ohlc": np.ones(shape)})


@pytest.mark.parametrize("task", ["bands", "volatility"])
def test_g6_another_shape_of_any_task_is_refused(make_span, task: str) -> None:
    span = make_span()
    with pytest.raises(SeriesError, match=rf"forecast of {task}: .*, \(7, 3, \d\)"):
        evaluate(span, {**span.model, task: span.model[task][:, :1]})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("task", ["ohlc", "bands", "volatility"])
def test_g6_a_forecast_that_is_not_finite_is_refused(make_span, task: str, bad: float) -> None:
    span = make_span()
    model = {name: values.copy() for name, values in span.model.items()}
    model[task][2, 1, 0] = bad
    with pytest.raises(
        SeriesError,
        match=rf"forecast of {task}: has errors below .*; got \S+ from {bad} at \(2, 1, 0\) \(1 such numbers",
    ):
        evaluate(span, model)


def test_a_baseline_that_leaves_all_numbers_behind_is_refused(make_span, offset_scaling: Any) -> None:
    span = make_span(tasks=("ohlc",))
    endless = replace(span, scaling=offset_scaling({"ohlc": np.full((3, 4), 1e3)}))  # exp(1000)
    with pytest.raises(SeriesError, match=r"forecast of ohlc: .*got inf from inf"):
        evaluate(endless, span.model)


@pytest.mark.parametrize(
    ("tasks", "got"),
    [
        (("ohlc",), "ohlc"),
        (("bands", "volatility"), "bands, volatility"),
        (("ohlc", "bands", "volatility", "volume"), "bands, ohlc, volatility, volume"),
        ((), "no task"),
    ],
)
def test_other_tasks_than_those_of_the_profile_are_refused(
    make_span, tasks: tuple[str, ...], got: str
) -> None:
    span = make_span()
    model = {task: span.model.get(task, np.ones((7, 3, 1))) for task in tasks}
    with pytest.raises(SeriesError, match=rf"model: .* \(bands, ohlc, .*got {got}\."):
        evaluate(span, model)
