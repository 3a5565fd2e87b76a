"""Figures of `v8.reports.figures` as PNG files, for READMEs and chats where a page cannot go.

Whatever those figures use of Plotly is drawn here, and nothing else: lines, dots, fans, candles, upright and
level lines. Drawings are made without pyplot, so nothing global changes and no display is needed.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from v8.columns import OHLC
from v8.reports.palette import LIGHT
from v8.storage import write_bytes

_DPI: Final = 150

_POINTS: Final = 0.75
"""Points of a pixel, Plotly's unit of widths and sizes."""

_DASHES: Final[dict[str | None, Any]] = {
    None: "-",
    "solid": "-",
    "dot": ":",
    "dash": "--",
    "dashdot": "-.",
    "longdash": (0, (7, 2)),
    "longdashdot": (0, (7, 2, 1, 2)),
}

_FAN_OPACITY: Final = 0.18

_BODY_BARS: Final = 0.66
"""Width of a candle's body, in bars."""


def write_png(
    file: Path,
    title: str,
    figures: Sequence[go.Figure],
    *,
    inches: tuple[float, float] = (8.0, 4.0),
    notes: Sequence[str] = (),
) -> None:
    """Draw figures side by side and write them as one PNG file, atomically.

    Args:
        file: Where to.
        title: Stands above all of them.
        figures: Charts of `v8.reports.figures`; the first one's legend is for all.
        inches: Width and height.
        notes: Sentences below.

    Raises:
        OSError: If the file cannot be written.
    """
    sheet = Figure(figsize=inches, layout="constrained")
    sheet.suptitle(title, fontsize=11)
    said = "\n".join(notes)
    sheet.supxlabel(said, x=0.01, ha="left", fontsize=7.5, color=LIGHT["soft"], parse_math=False)
    heights = [3, 1] if any("yaxis2" in one.layout for one in figures) else [1]
    panels = sheet.subplots(len(heights), len(figures), squeeze=False, sharex="col", height_ratios=heights)
    for column, figure in zip(panels.T, figures, strict=True):
        _draw(list(column), figure)
    if figures[0].layout.showlegend is not False:
        panels[0, 0].legend(fontsize=8, handlelength=3)
    stream = io.BytesIO()
    sheet.savefig(stream, dpi=_DPI, format="png")
    write_bytes(file, stream.getvalue())


def _draw(panels: list[Axes], figure: go.Figure) -> None:
    layout = figure.layout
    _decorate(panels[0], layout.yaxis, layout)
    if "yaxis2" in layout:
        _decorate(panels[1], layout.yaxis2, layout)
    for trace in figure.data:
        axes = panels[1] if trace.yaxis == "y2" else panels[0]
        _draw_candles(axes, trace) if trace.type == "candlestick" else _draw_points(axes, trace)
    if "yaxis2" in layout and layout.yaxis2.rangemode == "tozero":
        panels[1].set_ylim(bottom=0)
    panels[0].set_title(layout.title.text or "", fontsize=10)
    panels[-1].set_xlabel(layout.xaxis.title.text or "")
    if layout.xaxis.range:
        panels[-1].set_xlim(*layout.xaxis.range)
    if layout.xaxis.tickvals:
        labels = [text.replace("<br>", "\n") for text in layout.xaxis.ticktext]
        panels[-1].set_xticks(layout.xaxis.tickvals, labels, fontsize=8)


def _decorate(axes: Axes, about: go.layout.YAxis, layout: go.Layout) -> None:
    if layout.xaxis.showgrid is not False:
        axes.grid(color=LIGHT["rule"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel(about.title.text or "")
    if about.tickformat == ".2%":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if about.range:
        axes.set_ylim(*about.range)
    for shape in layout.shapes:
        _draw_shape(axes, shape)


def _draw_shape(axes: Axes, shape: go.layout.Shape) -> None:
    """Draw a line from edge to edge, or shade everything between two places of the horizontal axis."""
    if shape.type == "rect":
        axes.axvspan(shape.x0, shape.x1, color=shape.fillcolor, alpha=shape.opacity, linewidth=0)
        return
    draw, at = (axes.axvline, shape.x0) if shape.x0 == shape.x1 else (axes.axhline, shape.y0)
    line = shape.line
    draw(at, color=line.color, linewidth=line.width * _POINTS, linestyle=_DASHES[line.dash])


def _draw_points(axes: Axes, trace: go.Scatter) -> None:
    """Draw a line, an area or dots."""
    x, y, line = _known(trace.x), _known(trace.y), trace.line
    label = html.unescape(trace.name or "") if trace.showlegend is not False else None
    if trace.fill == "toself":
        axes.fill(x, y, color=line.color, alpha=_FAN_OPACITY, linewidth=0, label=label)
    elif "lines" in trace.mode:
        axes.plot(
            x,
            y,
            color=line.color,
            alpha=trace.opacity,
            linewidth=line.width * _POINTS,
            linestyle=_DASHES[line.dash],
            marker="o" if trace.mode == "lines+markers" else None,
            markersize=(trace.marker.size or 5) * _POINTS,
            label=label,
        )
    else:
        colour = trace.marker.color
        fills = [colour if symbol == "circle" else "none" for symbol in trace.marker.symbol]
        axes.scatter(x, y, facecolors=fills, edgecolors=colour, label=label)


def _draw_candles(axes: Axes, trace: go.Candlestick) -> None:
    opened, high, low, close = (np.array(trace[name], np.float64) for name in OHLC)
    styles = [trace.increasing if rises else trace.decreasing for rises in close >= opened]
    edges, fills = [one.line.color for one in styles], [one.fillcolor for one in styles]
    axes.vlines(trace.x, low, high, colors=edges, linewidth=0.8)
    # A body without height would be invisible; a thousandth of the range is a line.
    least = 1e-3 * float(high.max() - low.min())
    heights, bottoms = np.maximum(np.abs(close - opened), least), np.minimum(opened, close)
    axes.bar(
        trace.x,
        heights,
        0.66,
        bottoms,
        color=fills,
        edgecolor=edges,
        linewidth=0.8,
        zorder=3,
        label=trace.name,
    )


def _known(values: Iterable[Any]) -> list[Any]:
    """Return numbers, with nan for what is missing, or the names of rows as they were before escaping."""
    return [
        np.nan if each is None else html.unescape(each) if isinstance(each, str) else each for each in values
    ]
