"""Charts as values, and in pages: Plotly's JSON, and candles that a reader can touch.

Pages and notebooks draw the JSON with Plotly, `v8.publish.report.pictures` with Matplotlib. A chart names its
colours by the palette, which has one for a light and one for a dark background: `$blue` is `--blue` of a
page's style sheet, so that it follows the reader's setting. The functions here return traces and axes in
Plotly's terms. Plotly interprets some markup in labels, therefore names from files are escaped here.

`candles.js` draws the chart of candles and forecasts, with the library `lightweight-charts`
(`v8/base/vendor`), which a page holds once. The same forecasts are drawn for pictures by
`v8.publish.report.figures.issued_on_the_way`.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from v8.base.wording import moment, say, term
from v8.data.market.candles import price_decimals, simulated_price_decimals
from v8.data.market.series import iso
from v8.forecaster.series_artifact import ForecastSample, SampledForecast
from v8.profile.columns import CLOSE, OHLC, TASK_OHLC, interval_names, intervals
from v8.profile.tasks import TASKS, Task
from v8.publish.report.markup import LIGHT, NAMED, Html, element, join, script_json

if TYPE_CHECKING:
    import plotly.graph_objects as go


LINES: Final = ("$other", "$purple", "$loss", "$gain", "$orange", "$soft", "$sand")
"""Colours of all lines but the model's, which alone is blue."""

DASHES: Final = ("dot", "solid", "dash", "dashdot", "longdash", "longdashdot")
"""Dash patterns of lines, by Plotly's names."""

SHARES: Final = ".2%"
"""Format of the ticks of an axis of shares."""

_TRANSPARENT: Final = "rgba(0,0,0,0)"

_PLACE_CLASS: Final = "touch"
"""Class of the element in which `candles.js` draws a chart."""


def line_style(place: int) -> dict[str, Any]:
    """Return colour, dash and width of the line at a place, 0 or above: no two places look the same.

    >>> line_style(0), line_style(43)
    ({'color': '$other', 'width': 2, 'dash': 'dot'}, {'color': '$purple', 'width': 3, 'dash': 'solid'})
    """
    # Seven colours and six dashes have no common divisor, so all 42 pairs come before the first is repeated.
    width = 2 + place // (len(LINES) * len(DASHES))
    return {"color": LINES[place % len(LINES)], "width": width, "dash": DASHES[place % len(DASHES)]}


Json = dict[str, Any]
"""A trace, an axis or a shape in Plotly's terms; a key whose value is None is left out."""


@dataclass(frozen=True)
class Chart:
    """A chart of one panel, or of two above each other."""

    traces: Sequence[Json]  # lines, marks and candles
    height: int  # pixels, on a page
    x: Json  # the axis below
    y: Json  # the axis at the side
    below: Json | None = None  # the axis at the side of the lower panel; None without one
    rules: Sequence[Json] = ()  # lines and areas across the chart
    title: str = ""  # on pictures
    has_legend: bool = True
    has_legend_below: bool = False
    tells_all_at_x: bool = False  # whether one tooltip shows the values of all lines at a place


def plotly(chart: Chart, colours: Mapping[str, str] = LIGHT) -> Json:
    """Write a chart as Plotly's JSON, `data` and `layout`; `colours` are what its names of colours become."""
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": "$soft"}}
    legend |= {"y": -0.34, "yanchor": "top"} if chart.has_legend_below else {}
    label = {"bgcolor": "$card", "bordercolor": "$rule", "font": {"color": "$ink"}}
    layout: Json = {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": _TRANSPARENT,
        "plot_bgcolor": _TRANSPARENT,
        "font": {"color": "$ink", "family": "system-ui, sans-serif", "size": 12},
        "modebar": {"bgcolor": _TRANSPARENT, "color": "$other", "activecolor": "$ink"},
        "hoverlabel": label,
        "legend": legend,
        "height": chart.height,
        "hovermode": "x unified" if chart.tells_all_at_x else None,
        "showlegend": None if chart.has_legend else False,
        "shapes": list(chart.rules) or None,
        "xaxis": chart.x,
        "yaxis": chart.y,
    }
    if any(trace["type"] == "candlestick" for trace in chart.traces):
        anchor, bottom = ("y2", 0.3) if chart.below else ("y", 0.0)
        layout["xaxis"] = chart.x | {"rangeslider": {"visible": False}, "anchor": anchor}
        layout["yaxis"] = chart.y | {"domain": [bottom, 1.0]}
    if chart.below:
        layout["yaxis2"] = chart.below | {"domain": [0.0, 0.22]}
    painted: Json = _painted({"data": list(chart.traces), "layout": layout}, colours)
    return painted


def _painted(part: Any, colours: Mapping[str, str]) -> Any:
    """Replace names of colours by colours, and leave out the keys whose value is None."""
    if isinstance(part, dict):
        return {key: _painted(value, colours) for key, value in part.items() if value is not None}
    if isinstance(part, list):
        return [_painted(value, colours) for value in part]
    return colours.get(part[1:], part) if isinstance(part, str) and part[:1] == "$" else part


def plot(chart: Chart, label: str) -> Html:
    """Return a chart with its caption, unit included; the page draws it when it becomes visible."""
    return element(
        "figure",
        element("figcaption", label),
        element("script", script_json(plotly(chart, NAMED)), type="application/json"),
        element("div", class_="plot", role="img", aria_label=label, style=f"min-height:{chart.height}px"),
    )


def notebook_figure(chart: Chart) -> "go.Figure":
    """Return a chart as Plotly's figure, which a notebook shows."""
    import plotly.graph_objects as go  # noqa: PLC0415 - slow to import, and pages do without

    content = plotly(chart)
    return go.Figure(content["data"], {"template": {}, **content["layout"]})


def axis(
    title: str = "",
    *,
    ends: tuple[float, float] | None = None,
    ticks: Mapping[float, str] | Mapping[str, str] | None = None,
    **options: Any,
) -> Json:
    """Return an axis.

    Args:
        title: Its title, unit included.
        ends: Where it starts and ends; by default where the values do.
        ticks: Texts by their places; `<br>` separates lines.
        options: Plotly's options.
    """
    content: Json = {
        "gridcolor": "$rule",
        "linecolor": "$rule",
        "zerolinecolor": "$rule",
        "automargin": True,
    }
    if title:
        content["title"] = {"text": title}
    if ends:
        content["range"] = list(ends)
    if ticks:
        content["tickvals"] = list(ticks)
        content["ticktext"] = list(ticks.values())
    return content | options


def rule(at: float, colour: str, width: float = 1.5, dash: str | None = None) -> Json:
    """Return a vertical line across a chart."""
    ends = {"x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1}
    return {"type": "line", **ends, "line": {"color": colour, "width": width, "dash": dash}}


def line(name: str, x: Sequence[Any], y: Sequence[Any], style: Json, **options: Any) -> Json:
    """Return a line, which breaks where x and y are None; options are Plotly's."""
    trace = {
        "type": "scatter",
        "mode": "lines",
        "connectgaps": False,
        "name": html.escape(name),
        "legendgroup": html.escape(name),
        "x": list(x),
        "y": list(y),
        "line": style,
    }
    return trace | options


def candles(
    name: str, x: Sequence[Any], columns: Mapping[str, Sequence[float]], colour: str | None = None
) -> Json:
    """Return candles filled with the colour of their direction or, where a colour is named, hollow ones."""
    prices = {column: list(columns[column]) for column in OHLC}
    return {
        "type": "candlestick",
        "name": name,
        "x": list(x[: len(prices[CLOSE])]),
        **prices,
        "increasing": _candle_style(colour, "$gain"),
        "decreasing": _candle_style(colour, "$loss"),
    }


def _candle_style(colour: str | None, direction_colour: str) -> Json:
    line = {"color": colour or direction_colour, "width": 1}
    return {"line": line, "fillcolor": "$card" if colour else direction_colour}


def bars(name: str, x: Sequence[Any], y: Sequence[float], colour: str, **options: Any) -> Json:
    """Return bars, those of several traces beside each other; options are Plotly's."""
    trace = {"type": "bar", "name": html.escape(name), "x": list(x), "y": list(y)}
    return trace | {"marker": {"color": colour}} | options


def marks(
    x: Sequence[float],
    y: Sequence[Any],
    texts: Sequence[str],
    colour: str,
    symbols: Sequence[str],
    **options: Any,
) -> Json:
    """Return marks with texts above them; an empty text writes nothing. Options are Plotly's."""
    marker = {"color": colour, "size": 10, "line": {"color": colour, "width": 1.5}, "symbol": list(symbols)}
    trace = {
        "type": "scatter",
        "mode": "markers+text",
        "name": "",
        "textposition": "top center",
        "x": list(x),
        "y": [html.escape(place) if isinstance(place, str) else place for place in y],
        "text": [html.escape(text) for text in texts],
        "hoverinfo": "skip",
        "cliponaxis": False,
        "marker": marker,
    }
    return trace | options


def candle_chart(
    sample: ForecastSample, label: str, others: Sequence[str] = (), *, is_demo: bool = False
) -> Html:
    """Return the chart of a sample with its caption; the page draws it when it becomes visible.

    Args:
        sample: The candles, and the forecasts that were issued among them.
        label: The caption.
        others: Names of series whose charts can be chosen instead, each with a section on the same page, that
            of the sample among them; empty without a choice.
        is_demo: Whether the prices are simulated, which decides how many decimals they are written with.
    """
    choice: str = ""
    if len(others) > 1:
        options = [
            element("option", name, value=name, selected="" if name == sample.series else None)
            for name in others
        ]
        choice = element("select", join(options), aria_label=say("Series"))
    return element(
        "figure",
        choice or element("b", sample.series),
        element("script", script_json(chart_content(sample, is_demo=is_demo)), type="application/json"),
        element("div", class_=_PLACE_CLASS),
        element("figcaption", label),
        class_="candles",
    )


def sample_note(sample: ForecastSample) -> str:
    """Say what the chart of a sample shows."""
    num_steps = len(next(iter(sample.issued[0].values.values())))
    every = say("every bar") if num_steps == 1 else say("every {num} bars", num=num_steps)
    note = say(
        "Newest {num} candles of the test span, {first} to {last} UTC. A forecast was issued {every}. "
        "A flat line is an honest forecast of a close, which moves almost at random.",
        num=len(sample.open_time_s),
        first=moment(iso(sample.open_time_s[0])),
        last=moment(iso(sample.open_time_s[-1])),
        every=every,
    )
    names = interval_names(sample.levels)
    if not names:
        return note
    intervals = say(
        "The shaded areas are the {names} interval of the close: that share of the actual closes should lie "
        "within it.",
        names=say(" and ").join(names),
    )
    return f"{note} {intervals}"


def has_candle_chart(markup: str) -> bool:
    """Return whether some markup has the chart of candles."""
    return f'class="{_PLACE_CLASS}"' in markup


def chart_content(sample: ForecastSample, *, is_demo: bool) -> dict[str, Any]:
    """Return a sample as the script reads it: JSON values, times in seconds since the epoch."""
    tasks = [task for task in TASKS.values() if task.name in sample.actual and task.name != TASK_OHLC]
    names = interval_names(sample.levels)
    candles = np.asarray(sample.actual[TASK_OHLC])
    if is_demo:
        decimals = simulated_price_decimals(float(candles[-1, OHLC.index(CLOSE)]))
    else:
        decimals = price_decimals(candles)
    return {
        "time": sample.open_time_s,
        "candles": sample.actual[TASK_OHLC],
        "decimals": decimals,
        "intervals": [say("close, {share} interval", share=name) for name in names],
        "tasks": [_task_content(sample, task, place) for place, task in enumerate(tasks)],
        "issued": [_issued_content(sample, issued, tasks) for issued in sample.issued],
        "words": _words(),
    }


def _words() -> dict[str, str]:
    return {
        "actual": say("actual candle"),
        "forecast": say("forecast candle"),
        "four": say("open, high, low, close"),
        "more": say("More lines"),
        "hide": say("Show or hide"),
        "larger": say("Zoom in"),
        "smaller": say("Zoom out"),
        "all": say("Show all"),
        "help": say("Chart of candles and forecasts. Arrow keys move from bar to bar, + and - zoom."),
    }


def _task_content(sample: ForecastSample, task: Task, place: int) -> dict[str, Any]:
    title = term(task.title)
    names = interval_names(sample.levels) if len(task.columns) == 1 else []
    return {
        "place": place,
        "colour": task.colour,
        "format": "price" if task.is_price else "share",
        "actual": say("{task}, actual values", task=title),
        "forecast": say("{task}, forecast", task=title),
        "intervals": [say("{task}, {share} interval", task=title, share=name) for name in names],
        "known": list(zip(*sample.actual[task.name], strict=True)),
    }


def _issued_content(sample: ForecastSample, issued: SampledForecast, tasks: Sequence[Task]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "last": issued.last_known,
        "candles": issued.values[TASK_OHLC],
        "intervals": _intervals(sample, issued, TASK_OHLC, OHLC.index(CLOSE)),
        "tasks": [],
    }
    for task in tasks:
        # An area of each of several lines would hide the others.
        fills = _intervals(sample, issued, task.name, 0) if len(task.columns) == 1 else []
        lines = list(zip(*issued.values[task.name], strict=True))
        content["tasks"].append({"lines": lines, "fills": fills})
    return content


def _intervals(
    sample: ForecastSample, issued: SampledForecast, task: str, column: int
) -> list[list[tuple[float, float]]]:
    """Return the ends of each interval of a column at each step, the widest interval first."""
    if task not in issued.quantiles:
        return []
    by_level = dict(zip(sample.levels, issued.quantiles[task], strict=True))
    return [
        [(low[column], high[column]) for low, high in zip(by_level[lower], by_level[upper], strict=True)]
        for lower, upper in intervals(sample.levels)
    ]
