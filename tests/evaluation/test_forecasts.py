"""Forecasts: shapes, tasks and numbers are checked before anything is compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from v8.errors import SeriesError
from v8.evaluation.forecasts import Forecasts


def test_g6_a_truth_with_a_step_axis_is_not_broadcast_against_forecasts_without(make_span) -> None:
    span = make_span(horizon_bars=1, tasks=("ohlc",))
    without_steps = span.model["ohlc"][:, 0, :]
    # What NumPy would do without a word: every window against every other one.
    assert (span.truth["ohlc"] - without_steps).shape == (7, 7, 4)
    with pytest.raises(
        SeriesError, match=r"BTCUSDT-15m, model of ohlc: .*\(7, 1, 4\).*got the shape \(7, 4\)"
    ):
        replace(span, model={"ohlc": without_steps})


@pytest.mark.parametrize("name", ["truth", "model"])
@pytest.mark.parametrize("shape", [(7, 3), (7, 3, 1), (7, 1, 4), (1, 3, 4), (6, 3, 4), (7, 3, 4, 1), (4,)])
def test_g6_every_other_shape_of_candles_is_refused(make_span, name: str, shape: tuple[int, ...]) -> None:
    span = make_span(tasks=("ohlc",))
    # Another horizon in the truth is noticed at the arrays that keep the old one.
    with pytest.raises(SeriesError, match=r"of ohlc: has the shape .*got the shape"):
        replace(span, **{name: {"ohlc": np.ones(shape)}})


def test_g6_offsets_without_a_step_axis_are_refused(make_span) -> None:
    span = make_span(tasks=("ohlc",))
    with pytest.raises(SeriesError, match=r"offsets of ohlc: has the shape \(3, 4\).*got the shape \(4,\)"):
        replace(span, offsets={"ohlc": np.zeros(4)})


@pytest.mark.parametrize("shape", [(7, 19), (7,), (0, 20), (7, 20, 1)])
def test_history_of_another_shape_is_refused(make_span, shape: tuple[int, ...]) -> None:
    with pytest.raises(SeriesError, match=r"history_close: has the shape \(windows, 20\)"):
        replace(make_span(), history_close=np.ones(shape))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("task", ["ohlc", "bands", "volatility"])
def test_g6_a_forecast_that_is_not_finite_is_refused(make_span, task: str, bad: float) -> None:
    span = make_span()
    model = {name: values.copy() for name, values in span.model.items()}
    model[task][2, 1, 0] = bad
    with pytest.raises(SeriesError, match=rf"model of {task}: holds finite numbers; got \S+ at \(2, 1, 0\)"):
        replace(span, model=model)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_a_close_that_is_no_positive_price_is_refused(make_span, bad: float) -> None:
    closes = make_span().history_close.copy()
    closes[3, 19] = bad
    with pytest.raises(SeriesError, match=r"holds positive prices; got \S+ at \(3, 19\) \(1 such"):
        replace(make_span(), history_close=closes)


@pytest.mark.parametrize(
    "bars", [[0, 1, 2, 3, 4, 5], [0, 1, 2, 2, 3, 4, 5], [6, 5, 4, 3, 2, 1, 0], [[0, 1, 2, 3, 4, 5, 6]]]
)
def test_windows_out_of_the_order_of_time_are_refused(make_span, bars: list[int]) -> None:
    with pytest.raises(SeriesError, match=r"bar_numbers: holds one bar for each of 7 windows, strictly asc"):
        replace(make_span(), bar_numbers=np.array(bars))


def test_a_task_that_only_one_side_has_is_refused(make_span) -> None:
    span = make_span()
    with pytest.raises(SeriesError, match=r"model: holds the tasks of the truth .*got ohlc\."):
        replace(span, model={"ohlc": span.model["ohlc"]})


def test_candles_must_be_among_the_tasks(make_span) -> None:
    span = make_span()
    bands = {"bands": span.truth["bands"]}
    with pytest.raises(SeriesError, match=r"truth: holds ohlc .*got bands\."):
        Forecasts(bands, bands, span.history_close, {"bands": span.offsets["bands"]})


def test_an_unknown_task_is_refused(make_span) -> None:
    span = make_span(tasks=("ohlc",))
    with pytest.raises(SeriesError, match=r"no task but ohlc, bands, volatility; got ohlc, volume"):
        replace(span, truth={**span.truth, "volume": np.ones((7, 3, 1))})
