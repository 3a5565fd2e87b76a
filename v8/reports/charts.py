"""Charts as values: Plotly's JSON, which pages and notebooks draw with Plotly and pictures with Matplotlib.

A chart names its colours by the one palette, which has each on light paper and on dark: `$blue` is `--blue`
of a page's style sheet, so that it follows the reader's setting. What v8 draws is made by the functions here,
in Plotly's words; `v8.reports.pictures` reads from the same JSON what a run and a forecast need. Plotly reads
a little markup in labels, therefore names from files are escaped here.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from v8.columns import CLOSE, OHLC
from v8.storage import packaged

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURS: Final[dict[str, tuple[str, str]]] = yaml.safe_load(packaged("v8.reports", "palette.yaml"))
"""By name: the colour on light paper and the one on dark."""

LIGHT: Final = {name: light for name, (light, _) in COLOURS.items()}
DARK: Final = {name: dark for name, (_, dark) in COLOURS.items()}
NAMED: Final = {name: f"${name}" for name in COLOURS}
"""Colours as a page writes them, which puts in its own."""

LINES: Final = ("$other", "$purple", "$loss", "$gain", "$orange", "$soft", "$sand")
"""Colours of lines that stand beside the model's, which alone is blue."""

DASHES: Final = ("dot", "solid", "dash", "dashdot", "longdash", "longdashdot")
"""Dashes of lines, by Plotly's names."""

SHARES: Final = ".2%"
"""How an axis of shares is written."""

_CLEAR: Final = "rgba(0,0,0,0)"


def line_style(place: int) -> dict[str, Any]:
    """Return colour, dash and width of the line at a place, 0 or above: no two places look the same.

    >>> line_style(0), line_style(43)
    ({'color': '$other', 'width': 2, 'dash': 'dot'}, {'color': '$purple', 'width': 3, 'dash': 'solid'})
    """
    # Seven colours and six dashes have no common divisor, so all 42 pairs come before the first comes again.
    width = 2 + place // (len(LINES) * len(DASHES))
    return {"color": LINES[place % len(LINES)], "width": width, "dash": DASHES[place % len(DASHES)]}


Json = dict[str, Any]
"""A trace, an axis or a shape as Plotly has it; keys are left out by None."""


@dataclass(frozen=True)
class Chart:
    """What is drawn, `height` pixels high on a page; `below` is the axis of the panel below, if any."""

    traces: Sequence[Json]
    height: int
    x: Json
    y: Json
    below: Json | None = None
    rules: Sequence[Json] = ()
    title: str = ""  # on pictures
    has_legend: bool = True
    has_legend_below: bool = False
    tells_all_at_x: bool = False


def plotly(chart: Chart, colours: Mapping[str, str] = LIGHT) -> Json:
    """Write a chart as Plotly's JSON, `data` and `layout`, with nothing but the colours given."""
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": "$soft"}}
    legend |= {"y": -0.34, "yanchor": "top"} if chart.has_legend_below else {}
    label = {"bgcolor": "$card", "bordercolor": "$rule", "font": {"color": "$ink"}}
    layout: Json = {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "font": {"color": "$ink", "family": "system-ui, sans-serif", "size": 12},
        "modebar": {"bgcolor": _CLEAR, "color": "$other", "activecolor": "$ink"},
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
    """Put colours in place of their names, and leave out what is None among keys."""
    if isinstance(part, dict):
        return {key: _painted(value, colours) for key, value in part.items() if value is not None}
    if isinstance(part, list):
        return [_painted(value, colours) for value in part]
    return colours.get(part[1:], part) if isinstance(part, str) and part[:1] == "$" else part


def notebook_figure(chart: Chart) -> "go.Figure":
    """Return a chart as a notebook shows it."""
    import plotly.graph_objects as go  # noqa: PLC0415 - slow to import, and pages do without

    content = plotly(chart)
    return go.Figure(content["data"], {"template": {}, **content["layout"]})


def axis(
    title: str = "",
    *,
    ends: tuple[float, float] | None = None,
    ticks: Mapping[float, str] | None = None,
    **more: Any,
) -> Json:
    """Return an axis; ticks are where and what, `<br>` between lines, and `more` is in Plotly's words."""
    return {
        **dict.fromkeys(("gridcolor", "linecolor", "zerolinecolor"), "$rule"),
        "automargin": True,
        "title": {"text": title} if title else None,
        "range": list(ends) if ends else None,
        "tickvals": list(ticks) if ticks else None,
        "ticktext": list(ticks.values()) if ticks else None,
        **more,
    }


def rule(at: float, colour: str, width: float = 1.5, dash: str | None = None) -> Json:
    """Return an upright line across a chart."""
    ends = {"x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1}
    return {"type": "line", **ends, "line": {"color": colour, "width": width, "dash": dash}}


def line(name: str, x: Sequence[Any], y: Sequence[Any], style: Json, **more: Any) -> Json:
    """Return a line, which breaks where x and y are None; `more` is in Plotly's words."""
    about = {
        "mode": "lines",
        "connectgaps": False,
        "name": html.escape(name),
        "legendgroup": html.escape(name),
    }
    return {"type": "scatter", **about, "x": list(x), "y": list(y), "line": style} | more


def candles(
    name: str, x: Sequence[Any], columns: Mapping[str, Sequence[float]], colour: str | None = None
) -> Json:
    """Return open, high, low, close, filled with the colour of their direction or, in a colour, hollow."""
    rising, falling = (
        {"line": {"color": colour or own, "width": 1}, "fillcolor": "$card" if colour else own}
        for own in ("$gain", "$loss")
    )
    values = {each: list(columns[each]) for each in OHLC}
    about = {"type": "candlestick", "name": name, "x": list(x[: len(values[CLOSE])]), **values}
    return about | {"increasing": rising, "decreasing": falling}


def marks(
    x: Sequence[float],
    y: Sequence[Any],
    texts: Sequence[str],
    colour: str,
    symbols: Sequence[str],
    **more: Any,
) -> Json:
    """Return marks with texts above them, or none where a text is empty; `more` is in Plotly's words."""
    marker = {"color": colour, "size": 10, "line": {"color": colour, "width": 1.5}, "symbol": list(symbols)}
    about = {"type": "scatter", "mode": "markers+text", "name": "", "textposition": "top center"}
    places = {"x": list(x), "y": [html.escape(one) if isinstance(one, str) else one for one in y]}
    told = {"text": [html.escape(text) for text in texts], "hoverinfo": "skip", "cliponaxis": False}
    return about | places | told | {"marker": marker} | more
