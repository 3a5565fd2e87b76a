"""The charts of reports as Plotly figures: plain JSON values, drawn by the page that holds them.

A colour is written `$name` and means the variable `--name` of the page's style sheet, so that a chart
follows the reader's light or dark setting. Plotly reads a little markup in labels, therefore names from
files are escaped on their way in. Times are UTC.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from v8.artifacts.forecast_sample import ForecastSample, IssuedForecast
from v8.columns import (
    CLOSE,
    HIGH,
    LOW,
    OHLC,
    TASK_BANDS,
    TASK_COLUMNS,
    TASK_OHLC,
    TASK_VOLATILITY,
)
from v8.evaluation.baselines import NAIVE
from v8.evaluation.judgement import MODEL, Judgement
from v8.reports.palette import STAGES, line_style, named
from v8.reports.results import History
from v8.tasks import TASKS

Figure = dict[str, Any]
"""A Plotly figure: `data`, a list of traces, and `layout`."""

Points = tuple[list[Any], list[Any]]
"""x and y of a line; None in both breaks it."""

FAR_MULTIPLE: Final = 1.5
"""A baseline that errs more than so many times naive waits in the legend: its scale would hide the others."""

_ROW_HEIGHT: Final = 22
_AXIS: Final = {"gridcolor": "$rule", "linecolor": "$rule", "zerolinecolor": "$rule", "automargin": True}
_PRICES: Final = {"tickformat": ",.6~g"}


def forecast_figure(sample: ForecastSample) -> Figure:
    """Draw the end of the test span as candles, with the forecasts issued on the way beside the truth.

    Args:
        sample: The candles and forecasts; bands and volatility are drawn where the model has them.
    """
    has_volatility = TASK_VOLATILITY in sample.truth
    data = [_candles(sample), *_bands(sample), *_forecast_range(sample), _forecast_close(sample)]
    if has_volatility:
        data += _volatility(sample)
    floor = 0.3 if has_volatility else 0.0
    layout = _layout(height=460 if has_volatility else 360)
    layout |= {
        "xaxis": {**_AXIS, "type": "date", "rangeslider": {"visible": False}, "anchor": "y"},
        "yaxis": {**_AXIS, **_PRICES, "domain": [floor, 1.0], "title": {"text": "price"}},
        "hovermode": "x unified",
    }
    if has_volatility:
        layout["xaxis"]["anchor"] = "y2"
        layout["yaxis2"] = {
            **_AXIS,
            "domain": [0.0, 0.22],
            "title": {"text": "volatility"},
            "tickformat": ".2%",
            "nticks": 4,
        }
    return {"data": data, "layout": layout}


def error_figure(judgement: Judgement, task: str, baselines: Iterable[str]) -> Figure:
    """Draw the mean absolute error by step of the model and of every baseline, as multiples of naive's.

    The error itself, in per cent, stands in the tooltip: it grows with the step for everybody. Baselines
    far off are hidden until their name in the legend is clicked.

    Args:
        judgement: Errors of one series.
        task: A task of it.
        baselines: Names in the order of their styles; those the judgement lacks are left out.
    """
    lines: list[tuple[str, dict[str, Any]]] = [
        (name, named(line_style(at))) for at, name in enumerate(baselines) if name in judgement.errors[task]
    ]
    lines.append((MODEL, {"color": "$blue", "width": 3.5}))
    layout = _layout(height=330)
    layout |= {
        "xaxis": {**_AXIS, "title": {"text": "steps ahead"}, "nticks": 11},
        "yaxis": {**_AXIS, "title": {"text": "error ÷ naive"}},
        "hovermode": "x unified",
        "legend": {**layout["legend"], "y": -0.34, "yanchor": "top"},
    }
    return {"data": [_error_line(judgement, task, name, style) for name, style in lines], "layout": layout}


def learning_figure(history: History, best_epoch: int) -> Figure:
    """Draw train and validation loss per epoch and mark the epoch whose weights were kept.

    Args:
        history: At least one epoch.
        best_epoch: From 1; 0 is the untrained network.
    """
    layout = _layout(height=290)
    layout |= {
        "xaxis": {**_AXIS, "title": {"text": "epoch"}, "dtick": max(1, -(-len(history) // 10))},
        "yaxis": {**_AXIS, "title": {"text": "loss, scaled units"}},
        "hovermode": "x unified",
        "shapes": [
            {
                "type": "line",
                "x0": best_epoch,
                "x1": best_epoch,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": "$orange", "dash": "dash", "width": 1.5},
                "label": {
                    "text": f"best: {best_epoch}",
                    "font": {"color": "$orange"},
                    "textangle": 0,
                    "textposition": "end",
                },
            }
        ],
    }
    return {
        "data": [
            _loss_line(history, "train_loss", {"color": "$other", "width": 1.5}),
            _loss_line(history, "validation_loss", {"color": "$blue", "width": 3}),
        ],
        "layout": layout,
    }


def dot_figure(
    names: Sequence[str],
    columns: Mapping[str, Sequence[float | None]],
    *,
    x_title: str,
    is_sure: Mapping[str, Sequence[bool]] | None = None,
) -> Figure:
    """Draw one dot per row and task on a common scale whose reference is 1.

    Args:
        names: Rows, from top to bottom.
        columns: Per task, a number per row; None where there is none.
        x_title: What the numbers are.
        is_sure: Per task, whether a dot is filled; hollow ones are in doubt. None fills all.
    """
    shown = [html.escape(name) for name in names]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": TASKS[task].title,
            "x": list(values),
            "y": shown,
            "hovertemplate": "%{y}: %{x:.3f}",
            "marker": {
                "color": f"${TASKS[task].colour}",
                "size": 10,
                "line": {"color": f"${TASKS[task].colour}", "width": 2},
                "symbol": _symbols((is_sure or {}).get(task, [True] * len(shown))),
            },
        }
        for task, values in columns.items()
    ]
    layout = _layout(height=130 + _ROW_HEIGHT * len(shown))
    layout |= {
        "xaxis": {**_AXIS, "title": {"text": x_title}},
        "yaxis": _rows_axis(len(shown)),
        "shapes": [
            {
                "type": "line",
                "x0": 1,
                "x1": 1,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": "$soft", "width": 1.5},
            }
        ],
    }
    return {"data": data, "layout": layout}


def stage_figure(seconds: Mapping[str, Mapping[str, float]], x_title: str = "seconds") -> Figure:
    """Draw the wall time of every stage as stacked bars.

    Args:
        seconds: Per row, from top to bottom: seconds per stage.
        x_title: What the length is.
    """
    names = list(seconds)
    stages = list(dict.fromkeys(stage for one in seconds.values() for stage in one))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": html.escape(stage.replace("_", " ")),
            "y": [html.escape(name) for name in names],
            "x": [round(seconds[name].get(stage, 0.0), 4) for name in names],
            "marker": {"color": named(STAGES[at % len(STAGES)])},
            "hovertemplate": "%{y}: %{x:.2f} s",
        }
        for at, stage in enumerate(stages)
    ]
    layout = _layout(height=150 + _ROW_HEIGHT * len(names))
    layout |= {
        "barmode": "stack",
        "legend": {**layout["legend"], "traceorder": "normal"},
        "xaxis": {**_AXIS, "title": {"text": x_title}},
        "yaxis": _rows_axis(len(names)),
    }
    return {"data": data, "layout": layout}


def _layout(*, height: int) -> dict[str, Any]:
    return {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "$ink", "family": "system-ui, sans-serif", "size": 12},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "$other", "activecolor": "$ink"},
        "hoverlabel": {"bgcolor": "$card", "bordercolor": "$rule", "font": {"color": "$ink"}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": "$soft"}},
    }


def _rows_axis(num_rows: int) -> dict[str, Any]:
    """Return the axis of named rows, the first on top, without room for a row that is not there."""
    ends = [num_rows - 0.5, -0.5]
    return {**_AXIS, "type": "category", "range": ends, "dtick": 1, "tickfont": {"size": 12}}


def _candles(sample: ForecastSample) -> Figure:
    columns = {name: [row[at] for row in sample.truth[TASK_OHLC]] for at, name in enumerate(OHLC)}
    return {
        "type": "candlestick",
        "name": "truth",
        "x": [_time(time_s) for time_s in sample.open_time_s],
        **columns,
        "increasing": {"line": {"color": "$gain", "width": 1}, "fillcolor": "$gain"},
        "decreasing": {"line": {"color": "$loss", "width": 1}, "fillcolor": "$loss"},
    }


def _bands(sample: ForecastSample) -> list[Figure]:
    if TASK_BANDS not in sample.truth:
        return []
    times = [_time(time_s) for time_s in sample.open_time_s]
    data = []
    for at in range(len(TASK_COLUMNS[TASK_BANDS])):
        truth = (times, [row[at] for row in sample.truth[TASK_BANDS]])
        forecast = _broken(sample, TASK_BANDS, at)
        data.append(_line("bands", truth, {"color": "$other", "width": 1}, is_named=at == 0))
        style = {"color": "$purple", "width": 2, "dash": "dash"}
        data.append(_line("bands, forecast", forecast, style, is_named=at == 0, is_gappy=True))
    return data


def _forecast_range(sample: ForecastSample) -> list[Figure]:
    """Draw low to high as one fan per forecast, opening at the last known close."""
    x: list[Any] = []
    y: list[Any] = []
    for one in sample.issued:
        start, times = _issued_times(sample, one)
        high, low = (_column(one.values[TASK_OHLC], TASK_OHLC, name) for name in (HIGH, LOW))
        x += [start, *times, *reversed(times), start, None]
        y += [_last_close(sample, one), *high, *reversed(low), _last_close(sample, one), None]
    fan = _line("forecast, range", (x, y), {"width": 0, "color": "$blue"}, is_gappy=True)
    return [fan | {"fill": "toself", "fillcolor": "$fan", "hoverinfo": "skip", "mode": "lines"}]


def _forecast_close(sample: ForecastSample) -> Figure:
    x: list[Any] = []
    y: list[Any] = []
    for one in sample.issued:
        start, times = _issued_times(sample, one)
        x += [start, *times, None]
        y += [_last_close(sample, one), *_column(one.values[TASK_OHLC], TASK_OHLC, CLOSE), None]
    line = _line("forecast, close", (x, y), {"color": "$blue", "width": 2.5}, is_gappy=True)
    return line | {"mode": "lines+markers", "marker": {"size": 3}}


def _volatility(sample: ForecastSample) -> list[Figure]:
    times = [_time(time_s) for time_s in sample.open_time_s]
    truth = (times, [row[0] for row in sample.truth[TASK_VOLATILITY]])
    lines = [
        _line("volatility, truth", truth, {"color": "$other", "width": 1.5}),
        _line(
            "volatility, forecast",
            _broken(sample, TASK_VOLATILITY, 0),
            {"color": "$orange", "width": 2.5},
            is_gappy=True,
        ),
    ]
    return [line | {"yaxis": "y2", "showlegend": False} for line in lines]


def _broken(sample: ForecastSample, task: str, at: int) -> Points:
    """Return one column of every forecast, with a break after each; a lone point is joined to the truth."""
    x: list[Any] = []
    y: list[Any] = []
    for one in sample.issued:
        start, times = _issued_times(sample, one)
        x += [start, *times, None]
        y += [sample.truth[task][one.last_known][at], *(row[at] for row in one.values[task]), None]
    return x, y


def _line(
    name: str, points: Points, style: Mapping[str, Any], *, is_named: bool = True, is_gappy: bool = False
) -> Figure:
    x, y = points
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "showlegend": is_named,
        "x": x,
        "y": y,
        "line": dict(style),
        "connectgaps": not is_gappy,
    }


def _error_line(judgement: Judgement, task: str, name: str, style: Mapping[str, Any]) -> Figure:
    errors, naive = (judgement.error(task, one).by_step for one in (name, NAIVE))
    ratios = [ours / theirs if theirs else None for ours, theirs in zip(errors, naive, strict=True)]
    points: Points = (list(range(1, len(errors) + 1)), [ratio and float(f"{ratio:.6g}") for ratio in ratios])
    line = _line(html.escape(name.replace("_", " ")), points, style)
    is_dotted = name == MODEL or len(errors) == 1
    is_far = any(ratio is not None and ratio > FAR_MULTIPLE for ratio in ratios) and name != MODEL
    return line | {
        "visible": "legendonly" if is_far else True,
        "mode": "lines+markers" if is_dotted else "lines",
        "customdata": [float(f"{100 * error:.6g}") for error in errors],
        "hovertemplate": "%{y:.3f} (%{customdata:.4f} %)",
    }


def _loss_line(history: History, column: str, style: Mapping[str, Any]) -> Figure:
    points: Points = ([int(epoch["epoch"]) for epoch in history], [float(epoch[column]) for epoch in history])
    line = _line(column.removesuffix("_loss"), points, style)
    return line | {"mode": "lines" if len(history) > 1 else "markers", "hovertemplate": "%{y:.5f}"}


def _issued_times(sample: ForecastSample, one: IssuedForecast) -> tuple[str, list[str]]:
    """Return the open time of the last known row, and those of the rows forecast."""
    num_steps = len(one.values[TASK_OHLC])
    rows = sample.open_time_s[one.last_known : one.last_known + num_steps + 1]
    start, *times = (_time(time_s) for time_s in rows)
    return start, times


def _last_close(sample: ForecastSample, one: IssuedForecast) -> float:
    return sample.truth[TASK_OHLC][one.last_known][TASK_COLUMNS[TASK_OHLC].index(CLOSE)]


def _column(rows: Sequence[Sequence[float]], task: str, name: str) -> list[float]:
    at = TASK_COLUMNS[task].index(name)
    return [row[at] for row in rows]


def _symbols(is_filled: Sequence[bool]) -> list[str]:
    return ["circle" if each else "circle-open" for each in is_filled]


def _time(time_s: int) -> str:
    """Write UTC seconds since the epoch as Plotly's axes read them.

    >>> _time(1_725_580_800)
    '2024-09-06 00:00'
    """
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M")
