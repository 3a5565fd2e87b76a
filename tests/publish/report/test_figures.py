"""Figures: valid by Plotly's own schema, through the points that the numbers give."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.forecaster.series_artifact import ForecastSample, SampledForecast
from v8.model.baselines.baselines import BASELINES
from v8.model.evaluation.evaluation import MODEL, EvaluatedQuantiles, Evaluation, QuantileEvaluation
from v8.model.evaluation.metrics import QuantileErrors
from v8.publish.report.charts import Chart, line_style, notebook_figure, plotly
from v8.publish.report.figures import (
    Dot,
    coverage_figure,
    error_figure,
    issued_figure,
    issued_on_the_way,
    learning_figure,
    pit_figure,
    spread_figure,
)
from v8.publish.report.markup import NAMED, STYLE

HISTORY = [{"epoch": 1.0, "train_loss": 0.5, "validation_loss": 0.6}]

# Four hourly candles; a forecast of two bars was issued after the second.
SAMPLE = ForecastSample(
    series="BTCUSDT-1h",
    bar_s=3_600,
    open_time_s=(0, 3_600, 7_200, 10_800),
    actual={
        "ohlc": (
            (9.0, 12.0, 8.0, 10.0),
            (10.0, 13.0, 9.0, 11.0),
            (11.0, 14.0, 10.0, 12.0),
            (12.0, 15.0, 11.0, 13.0),
        ),
        "bands": ((20.0, 1.0), (21.0, 2.0), (22.0, 3.0), (23.0, 4.0)),
        "volatility": ((0.1,), (0.2,), (0.3,), (0.4,)),
    },
    issued=(
        SampledForecast(
            1,
            {
                "ohlc": ((11.5, 16.0, 7.0, 11.6), (11.7, 17.0, 6.0, 11.8)),
                "bands": ((21.5, 2.5), (21.6, 2.6)),
                "volatility": ((0.25,), (0.26,)),
            },
        ),
    ),
)


def plain(figure: Chart) -> dict[str, Any]:
    """Return what a page holds of a valid figure, whose every colour is one of the page's own."""
    assert len(notebook_figure(figure).data) == len(figure.traces)  # Plotly refuses what it does not know
    content = json.loads(json.dumps(plotly(figure, NAMED), allow_nan=False))
    text = json.dumps(content)
    for name in {part.partition('"')[0] for part in text.split('"$')[1:]}:
        assert f"--{name}:" in STYLE  # otherwise the browser would draw in black
    assert not re.search(r'"#[0-9a-f]{6}"|"rgba\((?!0,0,0,0)', text)  # a colour that no page could darken
    return content


def trace(figure: Chart, name: str, at: int = 0) -> dict[str, Any]:
    return [one for one in plain(figure)["data"] if one["name"] == name][at]


def test_a_fan_opens_at_the_last_known_close_and_spans_low_to_high() -> None:
    fan = trace(issued_on_the_way(SAMPLE), "forecast low to high (no interval)")
    # From the close of the second candle along the highs, back along the lows.
    assert fan["x"] == [-2, -1, 0, 0, -1, -2, None]
    assert fan["y"] == [11.0, 16.0, 17.0, 6.0, 7.0, 11.0, None]


def issued(*columns: str) -> Chart:
    """Draw a forecast of two bars, with further columns of 1.5 and 1.6, after a hundred candles."""
    times = pd.date_range("2024-01-01", periods=102, freq="h", tz="UTC", name="open_time")
    closes = pd.Series([100.0 + place % 3 for place in range(102)], times)
    prices = pd.DataFrame({"open": closes, "high": closes + 1, "low": closes - 1, "close": closes})
    known = prices.head(100).assign(volume=1.0).reset_index()
    forecast = prices.tail(2).assign(**{name: [1.5, 1.6] for name in columns})
    return issued_figure(check_candles(known, Series("BTCUSDT", "1h"), source="files"), forecast)


@pytest.mark.parametrize("columns", [(), ("bb_upper", "bb_lower"), ("bb_upper", "bb_lower", "volatility")])
def test_a_forecast_of_any_tasks_is_a_valid_figure(columns: tuple[str, ...]) -> None:
    content = plain(issued(*columns))
    assert ("yaxis2" in content["layout"]) == ("volatility" in columns)
    assert any(one["name"] == "Bollinger bands" for one in content["data"]) == ("bb_upper" in columns)


def test_a_forecast_is_hollow_candles_after_the_last_known_one() -> None:
    candles = trace(issued(), "forecast")
    assert (candles["x"], candles["close"]) == ([1, 2], [101.0, 102.0])
    assert candles["increasing"]["fillcolor"] == "$card"


def test_lines_and_bands_of_a_forecast_start_at_what_was_known() -> None:
    figure = issued("bb_upper", "bb_lower", "volatility")
    upper, lower = (trace(figure, "Bollinger bands", place)["y"][-1] for place in (0, 1))
    assert trace(figure, "Bollinger bands, forecast")["y"] == [upper, 1.5, 1.6, None]
    assert trace(figure, "Bollinger bands, forecast", 1)["y"] == [lower, 1.5, 1.6, None]
    # From the newest bands along the upper ones, back along the lower ones.
    assert trace(figure, "forecast band to band")["y"] == [upper, 1.5, 1.6, 1.6, 1.5, lower, None]
    volatility = trace(figure, "Volatility, forecast")
    newest = trace(figure, "Volatility, actual values")["y"][-1]
    assert (volatility["y"], volatility["yaxis"]) == ([newest, 1.5, 1.6, None], "y2")


def test_errors_are_multiples_of_naive_with_the_error_itself_beside_them(make_metadata) -> None:
    # Each error is (1 - 0.25) times the naive one, at every step.
    evaluation = Evaluation.from_json(make_metadata(share=0.25)["evaluation"])
    figure = error_figure(evaluation, "ohlc")
    assert trace(figure, "naive")["y"] == [1.0, 1.0, 1.0]
    model = plain(figure)["data"][-1]
    assert (model["name"], model["y"]) == ("model", pytest.approx([0.75] * 3))
    errors = evaluation.error("ohlc").by_step
    assert model["customdata"] == pytest.approx([100 * error for error in errors], rel=1e-5)


def test_a_naive_forecast_without_error_gives_no_multiple(make_metadata) -> None:
    content = make_metadata(share=0.25)["evaluation"]
    evaluation = Evaluation.from_json(content)
    grid = evaluation.errors["ohlc"]["naive"].mae_return
    zeros = tuple((0.0,) * 4 for _ in grid.cells)
    object.__setattr__(grid, "cells", zeros)
    assert plain(error_figure(evaluation, "ohlc"))["data"][-1]["y"] == [None] * 3


def test_a_baseline_far_off_waits_in_the_legend(make_metadata) -> None:
    evaluation = Evaluation.from_json(make_metadata(share=0.25)["evaluation"])
    errors = evaluation.errors["bands"]
    naive = errors["naive"].mae_return
    for name, times in (("last_close", 1.51), ("offset", 1.49)):
        cells = tuple(tuple(cell * times for cell in row) for row in naive.cells)
        object.__setattr__(errors[name].mae_return, "cells", cells)
    figure = error_figure(evaluation, "bands")
    assert trace(figure, "last close")["visible"] == "legendonly"
    assert trace(figure, "offset")["visible"] is True


def test_every_baseline_has_a_line_of_its_own_however_many_there_are(make_metadata) -> None:
    evaluation = Evaluation.from_json(make_metadata()["evaluation"])
    evaluated = evaluation.tasks["ohlc"]
    errors = dict.fromkeys((*BASELINES, MODEL), evaluated.errors[MODEL])
    every = replace(evaluation, tasks={"ohlc": replace(evaluated, errors=errors)})
    lines = plain(error_figure(every, "ohlc"))["data"]
    assert [one["name"] for one in lines] == [*(name.replace("_", " ") for name in BASELINES), "model"]
    assert len({json.dumps(one["line"]) for one in lines}) == len(BASELINES) + 1
    assert len({json.dumps(line_style(place)) for place in range(200)}) == 200
    assert all(line_style(place)["color"] != "$blue" for place in range(200))  # the model's


def test_quantiles_are_drawn_as_excess_over_their_levels_and_as_a_histogram() -> None:
    errors = QuantileErrors(
        pinball=(((1.0,),),) * 3,
        coverage=(((0.8,),),),
        width=(((1.0,),),),
        below=(0.08, 0.5, 0.88),
        below_margin=(0.02, None, 0.04),
        score=(1.0,),
    )
    tasks = {"volatility": EvaluatedQuantiles({MODEL: errors}, {})}
    evaluated = QuantileEvaluation((0.05, 0.5, 0.95), 9, tasks)
    (line,) = plain(coverage_figure(evaluated))["data"]
    assert line["x"] == ["5 %", "50 %", "95 %"]
    assert line["y"] == pytest.approx([3.0, 0.0, -7.0])
    assert line["error_y"]["array"] == pytest.approx([2.0, 0.0, 4.0])
    (bars,) = plain(pit_figure(evaluated))["data"]
    assert bars["x"] == ["0 to 5 %", "5 to 50 %", "50 to 95 %", "95 to 100 %"]
    # Shares of .08, .42, .38 and .12 between quantiles that should hold .05, .45, .45 and .05.
    assert bars["y"] == pytest.approx([1.6, 0.42 / 0.45, 0.38 / 0.45, 2.4], rel=1e-5)


@pytest.mark.parametrize("num_epochs", [1, 3])
def test_a_learning_curve_marks_the_epoch_kept(num_epochs: int) -> None:
    figure = learning_figure(HISTORY * num_epochs, best_epoch=0)
    assert plain(figure)["layout"]["shapes"][0]["x0"] == 0
    assert trace(figure, "validation")["y"] == [0.6] * num_epochs
    assert trace(figure, "train")["mode"] == ("markers" if num_epochs == 1 else "lines")


def test_dots_in_doubt_are_hollow_and_a_diamond_is_the_median_with_its_number() -> None:
    rows = {"Candles": [Dot("A", -10.0), Dot("B", 2.0, is_sure=False), Dot("C", 3.0)], "Volatility": []}
    figure = spread_figure(rows, {"Candles": "blue", "Volatility": "purple"})
    dots, empty, medians = plain(figure)["data"]
    assert (dots["x"], dots["y"]) == ([-10.0, 2.0, 3.0], ["Candles"] * 3)
    assert dots["marker"]["symbol"] == ["circle", "circle-open", "circle"]
    assert dots["customdata"] == ["A: 10.00 % lower", "B: 2.00 % higher", "C: 3.00 % higher"]
    assert empty["x"] == []
    assert (medians["x"], medians["y"], medians["text"]) == ([2.0], ["Candles"], ["2.0 % higher"])
    assert medians["textposition"] == ["top right"]  # away from the line at 0
    assert plain(figure)["layout"]["shapes"][0]["x0"] == 0  # the forecast beside which they stand


def test_a_dot_far_off_stands_at_the_edge_with_its_number_and_squashes_nothing() -> None:
    figure = spread_figure(
        {"Candles": [Dot("A", -10.0), Dot("B", 5.0), Dot("C", 6_916.0)]}, {"Candles": "blue"}
    )
    dots, _ = plain(figure)["data"]
    assert dots["x"] == [-10.0, 5.0, 50.0]
    assert dots["text"] == ["", "", "6,916 % higher"]
    assert dots["marker"]["symbol"] == ["circle", "circle", "triangle-right"]
    assert dots["customdata"][2] == "C: 6,916.00 % higher"  # what a pointer reads is the number itself


def test_names_from_files_are_no_markup_for_the_chart_library() -> None:
    hostile = '<a href="javascript:alert(1)">x</a>'
    figure = spread_figure({hostile: [Dot(hostile, 60.0), Dot(hostile, 1.0)]}, {hostile: "blue"})
    assert "<a" not in json.dumps(plain(figure))
