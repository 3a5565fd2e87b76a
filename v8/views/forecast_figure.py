"""The chart of candles with forecasts, drawn once: for the page, for PNG files and for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import plotly.graph_objects as go

from v8.artifacts.forecast_sample import ForecastSample, Rows
from v8.columns import BB_LOWER, BB_UPPER, CLOSE, HIGH, LOW, OHLC, TASK_BANDS, TASK_OHLC
from v8.quantile_levels import intervals, nominal, percent_of
from v8.tasks import TASKS
from v8.tasks.task import Task
from v8.views.figures import Points, base_figure, line
from v8.views.palette import LIGHT

PANEL_FORMAT: Final = ".2%"
"""How what has no unit is written beside the panel below the prices."""


def forecast_figure(
    sample: ForecastSample, *, places: Sequence[Any] | None = None, has_candles: bool = False
) -> go.Figure:
    """Draw candles, with forecasts beside what they followed on and, where it is known, the truth.

    Args:
        sample: The candles and forecasts; other tasks are drawn where the model has them, unitless ones
            in a panel below.
        places: Where each row stands on the axis, also rows that are only forecast; None is its open time.
        has_candles: Whether forecasts are hollow candles, rather than closes within fans from low to high.
    """
    times = (datetime.fromtimestamp(time_s, UTC) for time_s in sample.open_time_s)
    x = [f"{time:%Y-%m-%d %H:%M}" for time in times] if places is None else list(places)
    others = [task for name, task in TASKS.items() if name in sample.truth and name != TASK_OHLC]
    below = [task for task in others if not task.is_price]
    traces = [_candles("truth", x, sample.truth[TASK_OHLC])]
    traces += [each for task in others if task.is_price for each in _task_lines(sample, task, x)]
    traces += (_hollow if has_candles else _closes)(sample, x)
    for each in (each for task in below for each in _task_lines(sample, task, x)):
        traces.append(each.update(yaxis="y2", showlegend=False))
    axes = _price_axes(has_panel=bool(below), is_dated=places is None)
    if below:
        axes["yaxis2"]["title"] = ", ".join(task.name for task in below)
    return base_figure(traces, height=460 if below else 360, hovermode="x unified", **axes)


def _closes(sample: ForecastSample, x: Sequence[Any]) -> Iterator[go.Scatter]:
    """Draw a fan per forecast, opening at the last known close, and the close in it.

    The fan is the intervals of the close, or low to high where the model has none.
    """
    if intervals(sample.levels):
        yield from _interval_fans(sample, x)
    else:  # nobody said how often the truth would stay within
        yield _fan(sample, x, "forecast low to high (no interval)", (HIGH, LOW), start=CLOSE)
    points = _broken(_paths(sample, x, CLOSE))
    close = line("forecast, close", points, {"color": LIGHT["blue"], "width": 2.5})
    yield close.update(mode="lines+markers", marker={"size": 3})


def _hollow(sample: ForecastSample, x: Sequence[Any]) -> Iterator[go.Candlestick | go.Scatter]:
    """Draw forecasts as candles of their own, within the bands forecast and the intervals of the close."""
    yield from _interval_fans(sample, x)
    for one in sample.issued:
        yield _candles("forecast", x[one.last_known + 1 :], one.values[TASK_OHLC], LIGHT["blue"])
    if TASK_BANDS in sample.truth:
        yield _fan(sample, x, "forecast band to band", (BB_UPPER, BB_LOWER)).update(showlegend=False)


def _price_axes(*, has_panel: bool, is_dated: bool) -> dict[str, dict[str, Any]]:
    """Return one axis of time, one of prices, and one of what has no unit, below them."""
    price = {"tickformat": ",.6~g", "title": "price"}
    axes: dict[str, dict[str, Any]] = {
        "xaxis": {"rangeslider": {"visible": False}, "anchor": "y2" if has_panel else "y"},
        "yaxis": price | {"domain": [0.3 if has_panel else 0.0, 1.0]},
    }
    if is_dated:
        axes["xaxis"]["type"] = "date"
    if has_panel:
        axes["yaxis2"] = {"domain": [0.0, 0.22], "tickformat": PANEL_FORMAT, "nticks": 4}
    return axes


def _candles(name: str, x: Sequence[Any], rows: Rows, colour: str | None = None) -> go.Candlestick:
    """Draw rows of candles, filled with the colour of their direction or, in a colour, hollow."""
    up, down = (
        {"line": {"color": colour or own, "width": 1}, "fillcolor": LIGHT["card"] if colour else own}
        for own in (LIGHT["gain"], LIGHT["loss"])
    )
    columns = {name: [row[at] for row in rows] for at, name in enumerate(OHLC)}
    return go.Candlestick(name=name, x=list(x[: len(rows)]), **columns, increasing=up, decreasing=down)


def _fan(
    sample: ForecastSample, x: Sequence[Any], name: str, columns: tuple[str, str], start: str | None = None
) -> go.Scatter:
    """Fill the room between an upper and a lower column of every forecast, from what was known on."""
    uppers, lowers = (_paths(sample, x, column, start) for column in columns)
    edges = [
        ([*times, *reversed(times)], [*upper, *reversed(lower)])
        for (times, upper), (_, lower) in zip(uppers, lowers, strict=True)
    ]
    fan = line(name, _broken(edges), {"color": LIGHT["blue"], "width": 0})
    return fan.update(fill="toself", fillcolor=LIGHT["fan"], hoverinfo="skip")


def _interval_fans(sample: ForecastSample, x: Sequence[Any]) -> Iterator[go.Scatter]:
    """Fill each central interval of the close, the widest first, from the last known close on."""
    close, known = OHLC.index(CLOSE), _column(sample.truth, CLOSE)
    for pair in intervals(sample.levels):
        edges = []
        for one in sample.issued:
            rows = one.quantiles[TASK_OHLC]
            low, high = ([row[close] for row in rows[sample.levels.index(level)]] for level in pair)
            times = list(x[one.last_known :][: len(low) + 1])
            start = known[one.last_known]
            edges.append(([*times, *reversed(times)], [start, *high, *reversed(low), start]))
        name = f"close, {percent_of(nominal(pair))} % interval"
        fan = line(name, _broken(edges), {"color": LIGHT["blue"], "width": 0})
        yield fan.update(fill="toself", fillcolor=LIGHT["fan"], hoverinfo="skip")


def _task_lines(sample: ForecastSample, task: Task, x: Sequence[Any]) -> Iterator[go.Scatter]:
    """Draw truth and forecasts of each column of a task; a lone point is joined to what was known."""
    known: dict[str, Any] = {"color": LIGHT["other"], "width": 1 if task.is_price else 1.5}
    coming: dict[str, Any] = {"color": LIGHT[task.colour], "width": 2 if task.is_price else 2.5}
    if task.is_price:
        coming["dash"] = "dash"
    for column in task.columns:
        is_named = column == task.columns[0]
        name = task.name if task.is_price else f"{task.name}, truth"
        truth = list(x[: len(sample.truth[task.name])]), _column(sample.truth, column)
        yield line(name, truth, known, showlegend=is_named, connectgaps=True)
        forecasts = _broken(_paths(sample, x, column))
        yield line(f"{task.name}, forecast", forecasts, coming, showlegend=is_named)


def _paths(sample: ForecastSample, x: Sequence[Any], column: str, start: str | None = None) -> list[Points]:
    """Return a column of every forecast, led off from the last known value of itself, or of `start`."""
    known = _column(sample.truth, start or column)
    return [
        (list(x[one.last_known :][: len(values) + 1]), [known[one.last_known], *values])
        for one, values in ((one, _column(one.values, column)) for one in sample.issued)
    ]


def _broken(paths: Iterable[Points]) -> Points:
    """Put paths into one line with a break after each."""
    found = list(paths)
    x, y = ([value for path in found for value in (*path[axis], None)] for axis in (0, 1))
    return x, y


def _column(rows_by_task: Mapping[str, Rows], column: str) -> list[Any]:
    task = next(task for task in TASKS.values() if column in task.columns)
    return [row[task.columns.index(column)] for row in rows_by_task[task.name]]
