"""Charts as values: specified once, drawn by Plotly on pages and in notebooks, by Matplotlib as pictures.

A chart names its colours by the one palette, which has each on light paper and on dark; a page writes those
names, `$blue` for `--blue` of its style sheet, so that it follows the reader's setting. `plotly` writes a
chart in the form of Plotly's JSON; `v8.views.pictures` draws what a run and a forecast need with Matplotlib.
Plotly reads a little markup in labels, therefore names from files are escaped on their way there.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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

STAGES: Final = ("pale", "teal", "deep", "sand", "orange", "blue", "purple", "soft", "loss", "gain")
"""Colours of stages, in the order in which they happen."""

LINES: Final = ("other", "purple", "loss", "gain", "orange", "soft", "sand")
"""Colours of lines that stand beside the model's, which alone is blue."""

DASHES: Final = ("dot", "solid", "dash", "dashdot", "longdash", "longdashdot")
"""Dashes of lines, by Plotly's names."""

SHARES: Final = ".2%"
"""How an axis of shares is written."""

_CLEAR: Final = "rgba(0,0,0,0)"


def line_style(place: int) -> dict[str, Any]:
    """Return colour, dash and width of the line at a place, 0 or above: no two places look the same.

    >>> line_style(0), line_style(43)
    ({'colour': 'other', 'dash': 'dot', 'width': 2}, {'colour': 'purple', 'dash': 'solid', 'width': 3})
    """
    # Seven colours and six dashes have no common divisor, so all 42 pairs come before the first comes again.
    pair = {"colour": LINES[place % len(LINES)], "dash": DASHES[place % len(DASHES)]}
    return pair | {"width": 2 + place // (len(LINES) * len(DASHES))}


@dataclass(frozen=True)
class Line:
    """A line that breaks where x and y are None; lengths are pixels."""

    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    colour: str
    width: float = 2
    dash: str | None = None
    mode: str = "lines"  # or "markers", "lines+markers"
    size: float | None = None  # diameter of its dots; None leaves it to the library
    opacity: float | None = None
    joins_gaps: bool = False
    is_named: bool = True  # in the legend
    is_below: bool = False  # in the panel below
    is_far: bool | None = None  # so far off that it waits in the legend; None where none ever is
    notes: Sequence[Any] | None = None  # a number beside each point, `%{customdata}` of `told`
    told: str | None = None  # what a pointer reads, in Plotly's form


@dataclass(frozen=True)
class Fan:
    """Filled outlines, each ended by None."""

    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    is_named: bool = True


@dataclass(frozen=True)
class Candles:
    """Rows of open, high, low, close, filled with the colour of their direction or, in a colour, hollow."""

    name: str
    x: Sequence[Any]
    rows: Sequence[Sequence[float]]
    colour: str | None = None

    def styles(self) -> Iterator[tuple[str, str]]:
        """Return colours of outline and body, of rising candles, then of falling ones."""
        for own in ("gain", "loss"):
            yield (self.colour, "card") if self.colour else (own, own)


@dataclass(frozen=True)
class Dots:
    """A dot per row, hollow where in doubt; an arrow with its number where far off.

    A pointer reads the values, wherever a dot stands; None is no dot.
    """

    name: str
    x: Sequence[float | None]
    rows: Sequence[str]
    colour: str
    values: Sequence[float | None]
    is_sure: Sequence[bool]
    is_far: Sequence[bool]

    def texts(self) -> list[str]:
        """Return the numbers beside arrows."""
        each = zip(self.values, self.is_far, strict=True)
        return [f"{value:,.3g}" if far else "" for value, far in each]


@dataclass(frozen=True)
class Bars:
    """A stretch of a stacked bar per row; on pages only."""

    name: str
    lengths: Sequence[float]
    rows: Sequence[str]
    colour: str
    told: str


@dataclass(frozen=True)
class Heat:
    """A map of cells by row and column, orange below 0, blue above, strongest at `far`; on pages only."""

    rows: Sequence[str]
    cells: Sequence[Sequence[float | None]]
    far: float
    notes: Sequence[str]
    told: str
    has_numbers: bool


Mark = Line | Fan | Candles | Dots | Bars | Heat


@dataclass(frozen=True)
class Rule:
    """A line across a chart, upright unless it is level; what lies up to `until` is shaded instead."""

    at: float
    colour: str
    width: float = 1.5
    dash: str | None = None
    is_level: bool = False
    label: str = ""
    until: float | None = None


@dataclass(frozen=True)
class Axis:
    """An axis; None leaves a thing to the library."""

    title: str = ""
    ends: tuple[float, float] | None = None
    ticks: Mapping[float, str] = field(default_factory=dict)  # where, and what; `<br>` between lines
    most_ticks: int | None = None
    step: float | None = None
    form: str | None = None  # how numbers are written, in the form of d3
    kind: str | None = None  # "category" for rows by their names, "date"; None is told by the values
    has_grid: bool = True
    has_zero: bool = True
    is_from_zero: bool = False

    @classmethod
    def of_rows(cls, num_rows: int, **more: Any) -> Axis:
        """Return one of named rows, the first on top, without room for a row that is not there."""
        return cls(ends=(num_rows - 0.5, -0.5), kind="category", step=1, **more)


@dataclass(frozen=True)
class Chart:
    """What is drawn, `height` pixels high on a page; `below` is the axis of the panel below, if any."""

    marks: Sequence[Mark]
    height: int
    x: Axis = Axis()
    y: Axis = Axis()
    below: Axis | None = None
    rules: Sequence[Rule] = ()
    title: str = ""
    has_legend: bool = True
    has_legend_below: bool = False
    tells_all_at_x: bool = False


def plotly(chart: Chart, colours: Mapping[str, str] = LIGHT) -> dict[str, Any]:
    """Write a chart as Plotly's JSON, `data` and `layout`, with nothing but the colours given."""
    has_candles = any(isinstance(mark, Candles) for mark in chart.marks)
    is_stacked = any(isinstance(mark, Bars) for mark in chart.marks)
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": colours["soft"]}}
    legend |= {"y": -0.34, "yanchor": "top"} if chart.has_legend_below else {}
    layout: dict[str, Any] = {
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "font": {"color": colours["ink"], "family": "system-ui, sans-serif", "size": 12},
        "modebar": {"bgcolor": _CLEAR, "color": colours["other"], "activecolor": colours["ink"]},
        "hoverlabel": {
            "bgcolor": colours["card"],
            "bordercolor": colours["rule"],
            "font": {"color": colours["ink"]},
        },
        "legend": legend | ({"traceorder": "normal"} if is_stacked else {}),
        "height": chart.height,
        "hovermode": "x unified" if chart.tells_all_at_x else None,
        "barmode": "stack" if is_stacked else None,
        "showlegend": None if chart.has_legend else False,
        "shapes": [_shape(rule, colours) for rule in chart.rules] or None,
        "xaxis": _axis(chart.x, colours),
        "yaxis": _axis(chart.y, colours),
    }
    if has_candles:
        layout["xaxis"] |= {"rangeslider": {"visible": False}, "anchor": "y2" if chart.below else "y"}
        layout["yaxis"] |= {"domain": [0.3 if chart.below else 0.0, 1.0]}
    if chart.below:
        layout["yaxis2"] = _axis(chart.below, colours) | {"domain": [0.0, 0.22]}
    data = [_known(_TRACES[type(mark)](mark, colours)) for mark in chart.marks]
    return {"data": data, "layout": _known(layout)}


def notebook_figure(chart: Chart) -> go.Figure:
    """Return a chart as a notebook shows it."""
    import plotly.graph_objects as go  # noqa: PLC0415 - slow to import, and pages do without

    content = plotly(chart)
    return go.Figure(content["data"], {"template": {}, **content["layout"]})


def _known(about: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in about.items() if value is not None}


def _axis(axis: Axis, colours: Mapping[str, str]) -> dict[str, Any]:
    about = {
        **dict.fromkeys(("gridcolor", "linecolor", "zerolinecolor"), colours["rule"]),
        "automargin": True,
        "title": {"text": axis.title} if axis.title else None,
        "range": list(axis.ends) if axis.ends else None,
        "tickvals": list(axis.ticks) or None,
        "ticktext": list(axis.ticks.values()) or None,
        "nticks": axis.most_ticks,
        "dtick": axis.step,
        "tickformat": axis.form,
        "type": axis.kind,
        "tickfont": {"size": 12} if axis.kind == "category" else None,
        "showgrid": None if axis.has_grid else False,
        "zeroline": None if axis.has_zero else False,
        "rangemode": "tozero" if axis.is_from_zero else None,
    }
    return _known(about)


def _shape(rule: Rule, colours: Mapping[str, str]) -> dict[str, Any]:
    if rule.until is not None:
        about = {"type": "rect", "x0": rule.at, "x1": rule.until, "yref": "paper", "y0": 0, "y1": 1}
        return about | {"line": {"width": 0}, "fillcolor": colours[rule.colour], "opacity": 0.04}
    across, along = ("y", "x") if rule.is_level else ("x", "y")
    about = {"type": "line", f"{across}0": rule.at, f"{across}1": rule.at, f"{along}ref": "paper"}
    line = {"color": colours[rule.colour], "width": rule.width, "dash": rule.dash}
    about |= {f"{along}0": 0, f"{along}1": 1, "line": _known(line)}
    if rule.label:
        style = {"font": {"color": colours[rule.colour]}, "textangle": 0, "textposition": "end"}
        about["label"] = {"text": rule.label, **style}
    return about


def _line(line: Line, colours: Mapping[str, str]) -> dict[str, Any]:
    name = html.escape(line.name)
    style = {"color": colours[line.colour], "width": line.width, "dash": line.dash}
    return {
        "type": "scatter",
        "mode": line.mode,
        "connectgaps": line.joins_gaps,
        "name": name,
        "legendgroup": name,
        "x": list(line.x),
        "y": list(line.y),
        "line": _known(style),
        "marker": None if line.size is None else {"size": line.size},
        "opacity": line.opacity,
        "showlegend": None if line.is_named else False,
        "yaxis": "y2" if line.is_below else None,
        "visible": {None: None, True: "legendonly", False: True}[line.is_far],
        "customdata": line.notes,
        "hovertemplate": line.told,
    }


def _fan(fan: Fan, colours: Mapping[str, str]) -> dict[str, Any]:
    line = Line(fan.name, fan.x, fan.y, "blue", 0, is_named=fan.is_named)
    return _line(line, colours) | {"fill": "toself", "fillcolor": colours["fan"], "hoverinfo": "skip"}


def _candles(candles: Candles, colours: Mapping[str, str]) -> dict[str, Any]:
    rising, falling = (
        {"line": {"color": colours[line], "width": 1}, "fillcolor": colours[body]}
        for line, body in candles.styles()
    )
    columns = zip(("open", "high", "low", "close"), map(list, zip(*candles.rows, strict=True)), strict=True)
    about = {"type": "candlestick", "name": candles.name, "x": list(candles.x), **dict(columns)}
    return about | {"increasing": rising, "decreasing": falling}


def _dots(dots: Dots, colours: Mapping[str, str]) -> dict[str, Any]:
    colour, texts = colours[dots.colour], dots.texts()
    symbols = [
        ("triangle-right" if far else "circle") + ("" if sure else "-open")
        for far, sure in zip(dots.is_far, dots.is_sure, strict=True)
    ]
    return {
        "type": "scatter",
        "x": list(dots.x),
        "y": [html.escape(name) for name in dots.rows],
        "text": texts,
        "textposition": "middle right",
        "customdata": list(dots.values),
        "mode": "markers+text" if any(texts) else "markers",
        "name": dots.name,
        "marker": {"color": colour, "size": 10, "line": {"color": colour, "width": 2}, "symbol": symbols},
        "hovertemplate": "%{y}: %{customdata:.3f}",
    }


def _bars(bars: Bars, colours: Mapping[str, str]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": html.escape(bars.name),
        "y": [html.escape(name) for name in bars.rows],
        "x": list(bars.lengths),
        "marker": {"color": colours[bars.colour]},
        "hovertemplate": bars.told,
    }


def _heat(heat: Heat, colours: Mapping[str, str]) -> dict[str, Any]:
    texts = [["" if value is None else f"{value:+.1f}" for value in row] for row in heat.cells]
    numbers = {"texttemplate": "%{text}", "textfont": {"size": 11}} if heat.has_numbers else {}
    return {
        "type": "heatmap",
        "x": list(range(len(heat.notes))),
        "y": [html.escape(name) for name in heat.rows],
        "z": [list(row) for row in heat.cells],
        "text": texts,
        "customdata": [list(heat.notes) for _ in heat.rows],
        "hovertemplate": heat.told,
        "zmin": -heat.far,
        "zmax": heat.far,
        "colorscale": [[0, colours["orange"]], [0.5, colours["card"]], [1, colours["blue"]]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        **numbers,
    }


_TRACES: Final[Mapping[type, Callable[[Any, Mapping[str, str]], dict[str, Any]]]] = {
    Line: _line,
    Fan: _fan,
    Candles: _candles,
    Dots: _dots,
    Bars: _bars,
    Heat: _heat,
}
