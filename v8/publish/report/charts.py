"""Charts as values: Plotly's JSON, which pages and notebooks draw with Plotly and pictures with Matplotlib.

A chart names its colours by the palette, which has one for a light and one for a dark background: `$blue` is
`--blue` of a page's style sheet, so that it follows the reader's setting. The functions here return traces
and axes in Plotly's terms; `v8.publish.report.pictures` reads what it needs from the same JSON. Plotly
interprets some markup in labels, therefore names from files are escaped here.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from v8.base.storage import packaged_yaml
from v8.profile.columns import CLOSE, OHLC

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURS: Final[dict[str, tuple[str, str]]] = packaged_yaml("v8.publish.report", "palette.yaml")
"""By name: the colour on a light and on a dark background."""

LIGHT: Final = {name: light for name, (light, _) in COLOURS.items()}
DARK: Final = {name: dark for name, (_, dark) in COLOURS.items()}
NAMED: Final = {name: f"${name}" for name in COLOURS}
"""Names as a page writes them; its script replaces them by the colours of its style sheet."""

LINES: Final = ("$other", "$purple", "$loss", "$gain", "$orange", "$soft", "$sand")
"""Colours of all lines but the model's, which alone is blue."""

DASHES: Final = ("dot", "solid", "dash", "dashdot", "longdash", "longdashdot")
"""Dash patterns of lines, by Plotly's names."""

SHARES: Final = ".2%"
"""Format of the ticks of an axis of shares."""

_TRANSPARENT: Final = "rgba(0,0,0,0)"


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
