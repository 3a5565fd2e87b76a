"""Charts as values: Plotly's JSON, which pages and notebooks draw with Plotly and pictures with Matplotlib.

A chart names its colours by the one palette, which has each on light paper and on dark: `$blue` is `--blue`
of a page's style sheet, so that it follows the reader's setting. What v8 draws is made by the functions here,
in Plotly's words; `v8.views.pictures` reads from the same JSON what a run and a forecast need. Plotly reads a
little markup in labels, therefore names from files are escaped here.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURS: Final = {
    "paper": ("#fbfbf9", "#14171a"),
    "card": ("#ffffff", "#1c2024"),
    "ink": ("#1c2024", "#e6e9ec"),
    "soft": ("#5f6873", "#9aa4af"),
    "rule": ("#e1e4e8", "#31373d"),
    "blue": ("#1769aa", "#63b3ed"),
    "orange": ("#c2571a", "#f0955a"),
    "other": ("#8a94a0", "#7d8793"),
    "purple": ("#7a5bb5", "#b79cf0"),
    "loud": ("#8f1d1d", "#b02a2a"),
    "gain": ("#2f9e83", "#4cc3a5"),
    "loss": ("#cf5468", "#ef7f8f"),
    "fan": ("rgba(23, 105, 170, .16)", "rgba(99, 179, 237, .22)"),
    "pale": ("#b9c2cc", "#55606b"),
    "teal": ("#7fb7be", "#5f9ea0"),
    "deep": ("#4f8a8b", "#8fd0c6"),
    "sand": ("#e0b252", "#e3bd6d"),
}
"""By name: the colour on light paper and the one on dark."""

LIGHT: Final = {name: light for name, (light, _) in COLOURS.items()}
DARK: Final = {name: dark for name, (_, dark) in COLOURS.items()}
NAMED: Final = {name: f"${name}" for name in COLOURS}
"""Colours as a page writes them, which puts in its own."""

STAGES: Final = ("$pale", "$teal", "$deep", "$sand", "$orange", "$blue", "$purple", "$soft", "$loss", "$gain")
"""Colours of stages, in the order in which they happen."""

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
    kinds = {trace["type"] for trace in chart.traces}
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
        "legend": legend | ({"traceorder": "normal"} if "bar" in kinds else {}),
        "height": chart.height,
        "hovermode": "x unified" if chart.tells_all_at_x else None,
        "barmode": "stack" if "bar" in kinds else None,
        "showlegend": None if chart.has_legend else False,
        "shapes": list(chart.rules) or None,
        "xaxis": chart.x,
        "yaxis": chart.y,
    }
    if "candlestick" in kinds:
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


def notebook_figure(chart: Chart) -> go.Figure:
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


def row_axis(num_rows: int, **more: Any) -> Json:
    """Return an axis of named rows, the first on top, without room for a row that is not there."""
    ends = (num_rows - 0.5, -0.5)
    return axis(ends=ends, dtick=1, type="category", tickfont={"size": 12}, **more)


def rule(
    at: float, colour: str, width: float = 1.5, dash: str | None = None, *, is_level: bool = False
) -> Json:
    """Return a line across a chart, upright unless it is level."""
    across, along = ("y", "x") if is_level else ("x", "y")
    ends = {f"{across}0": at, f"{across}1": at, f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1}
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


def candles(name: str, x: Sequence[Any], rows: Sequence[Sequence[float]], colour: str | None = None) -> Json:
    """Return open, high, low, close, filled with the colour of their direction or, in a colour, hollow."""
    rising, falling = (
        {"line": {"color": colour or own, "width": 1}, "fillcolor": "$card" if colour else own}
        for own in ("$gain", "$loss")
    )
    columns = zip(("open", "high", "low", "close"), map(list, zip(*rows, strict=True)), strict=True)
    about = {"type": "candlestick", "name": name, "x": list(x), **dict(columns)}
    return about | {"increasing": rising, "decreasing": falling}


def dots(
    name: str,
    rows: Sequence[str],
    colour: str,
    values: Sequence[float | None],
    *,
    is_sure: Sequence[bool],
    slots: Sequence[float | None],
) -> Json:
    """Return a dot per row, hollow where in doubt; an arrow in its slot, with its number, where it has one.

    A pointer reads the values, wherever a dot stands; None is no dot.
    """
    texts = ["" if slot is None else f"{value:,.3g}" for value, slot in zip(values, slots, strict=True)]
    symbols = [
        ("circle" if slot is None else "triangle-right") + ("" if sure else "-open")
        for slot, sure in zip(slots, is_sure, strict=True)
    ]
    line = {"color": colour, "width": 2}
    return {
        "type": "scatter",
        "x": [value if slot is None else slot for value, slot in zip(values, slots, strict=True)],
        "y": [html.escape(name) for name in rows],
        "text": texts,
        "textposition": "middle right",
        "customdata": list(values),
        "mode": "markers+text" if any(texts) else "markers",
        "name": name,
        "marker": {"color": colour, "size": 10, "line": line, "symbol": symbols},
        "hovertemplate": "%{y}: %{customdata:.3f}",
    }
