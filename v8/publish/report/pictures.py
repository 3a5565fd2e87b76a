"""Charts as PNG files, for READMEs and chats, which show no page: those of a run, and of one forecast.

They are the charts of `v8.publish.report.figures`, drawn with Matplotlib from the JSON that Plotly draws.
Drawing does without pyplot, so it changes no global state and needs no display.
"""

import html
import io
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import PercentFormatter
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from v8.base.errors import ArtifactError
from v8.base.storage import PICTURE_SOFTWARE, write_bytes
from v8.data.market.candles import Candles
from v8.forecaster.series_artifact import ForecastSample
from v8.model.evaluation.leaderboard import LeaderboardRow
from v8.publish.report import figures
from v8.publish.report.charts import SHARES, Chart, Json, plotly
from v8.publish.report.markup import LIGHT

LEADERBOARD_PICTURE: Final = "skill.png"

_DPI: Final = 150

_NOTE_INCHES: Final = 0.15
"""Height of a line of notes."""

_NOTE_LETTERS: Final = 160
"""Length of a line of notes, for a picture ten inches wide."""

_POINTS: Final = 0.75
"""Points per pixel: charts state widths and sizes in pixels, Matplotlib in points."""

_BODY_BARS: Final = 0.66
"""Width of a candle's body, in bars."""

_ALIGNMENTS: Final = {"left": "right", "center": "center", "right": "left", "top": "bottom", "bottom": "top"}
"""How a text is aligned with its mark, by each word of Plotly's position of it."""

_DASHES: Final = {"solid": "-", "dot": ":", "dash": "--"}


def write_pictures(
    folder: Path, title: str, rows: Sequence[LeaderboardRow], sample: ForecastSample | None
) -> list[Path]:
    """Write the PNG files of a run, each atomically, and return them; none without finished series.

    Every picture has the title, because it may be shown without its page. The sample is of the best series
    that has one.
    """
    files = []
    if rows:
        file = folder / LEADERBOARD_PICTURE
        draw_leaderboard(file, title, rows)
        files.append(file)
    if sample:
        file = folder / "forecasts.png"
        draw_sample(file, title, sample)
        files.append(file)
    return files


def draw_sample(file: Path, title: str, sample: ForecastSample) -> None:
    """Draw forecasts of the end of a test span, and the candles that came, as PNG, atomically."""
    picture_title = f"{title}: {sample.series}, end of the test span"
    _write_png(file, _drawn(picture_title, [figures.issued_on_the_way(sample)], inches=(10.0, 4.0)))


def draw_leaderboard(file: Path, title: str, rows: Sequence[LeaderboardRow]) -> None:
    """Draw the errors of a leaderboard relative to naive's and the best baseline's as PNG, atomically."""
    picture_title = f"{title}: errors of {len(rows):,} series; left of 0 is lower, filled is significant"
    _write_png(file, _drawn(picture_title, figures.verdict_figures(rows), inches=(12.0, 4.0)))


def draw_forecast(candles: Candles, forecast: pd.DataFrame, file: Path, *, notes: Sequence[str] = ()) -> None:
    """Draw a forecast, H rows of `Forecaster.predict`, after the N candles before it, as PNG, atomically.

    Notes are sentences below the picture. Raises `ArtifactError` if the file cannot be written.
    """
    chart = figures.issued_figure(candles, forecast)
    title = f"{candles.series}: forecast from {forecast.index[0]:%Y-%m-%d %H:%M} UTC on"
    height = 6.4 if chart.below else 5.0
    try:
        _write_png(file, _drawn(title, [chart], inches=(10.0, height), notes=notes))
    except OSError as error:
        raise ArtifactError(
            where=str(file),
            rule="must be a file that can be written",
            got=error.strerror or "an output error",
            fix="Choose another place for param:plot",
        ) from error


def _write_png(file: Path, sheet: Figure) -> None:
    drawing = io.BytesIO()
    picture = io.BytesIO()
    info = PngInfo()
    sheet.savefig(drawing, dpi=_DPI, format="png")
    info.add_text("Software", PICTURE_SOFTWARE)
    # With 256 colours it looks the same and takes a third of the bytes.
    Image.open(drawing).convert("RGB").quantize().save(picture, "PNG", optimize=True, pnginfo=info)
    write_bytes(file, picture.getvalue())


def _drawn(
    title: str, charts: Sequence[Chart], *, inches: tuple[float, float], notes: Sequence[str] = ()
) -> Figure:
    """Draw charts side by side, with notes below; the first one's legend is for all."""
    sheet = Figure(figsize=inches, layout="constrained")
    # Notes have a subfigure of their own: a legend below the panels would cover them otherwise.
    lines = [line for note in notes for line in textwrap.wrap(note, _NOTE_LETTERS)]
    notes_share = _NOTE_INCHES * len(lines) / inches[1]
    height_ratios = [1 - notes_share, notes_share or 1e-3]
    ((above,), (below,)) = sheet.subfigures(2, 1, squeeze=False, height_ratios=height_ratios)
    style: dict[str, Any] = {"va": "top", "fontsize": 7.5, "color": LIGHT["soft"], "parse_math": False}
    below.text(0.01, 0.97, "\n".join(lines), **style)
    above.suptitle(title, fontsize=11)
    heights = [3, 1] if any(chart.below for chart in charts) else [1]
    panels = above.subplots(len(heights), len(charts), squeeze=False, sharex="col", height_ratios=heights)
    for column, chart in zip(panels.T, charts, strict=True):
        _draw(list(column), chart)
    if charts[0].has_legend:
        _add_legend(above, panels[:, 0])
    return sheet


def _draw(panels: Sequence[Axes], chart: Chart) -> None:
    content = plotly(chart)
    layout = content["layout"]
    for axes, name in zip(panels, ("yaxis", "yaxis2"), strict=False):
        if name in layout:
            _decorate(axes, layout[name], layout)
    for trace in content["data"]:
        _draw_trace(panels[1] if trace.get("yaxis") else panels[0], trace)
    if layout.get("yaxis2", {}).get("rangemode") == "tozero":
        panels[1].set_ylim(bottom=0)
    panels[0].set_title(chart.title, fontsize=10)
    x_axis = layout["xaxis"]
    last = panels[-1]
    last.set_xlabel(_title(x_axis))
    if "range" in x_axis:
        left, right = x_axis["range"]
        last.set_xlim(left, right)
    if "tickvals" in x_axis:
        labels = [text.replace("<br>", "\n") for text in x_axis["ticktext"]]
        last.set_xticks(x_axis["tickvals"], labels, fontsize=8)


def _title(axis: Json) -> str:
    return str(axis.get("title", {}).get("text", ""))


def _decorate(axes: Axes, y_axis: Json, layout: Json) -> None:
    """Draw grid, title, ticks and the lines and areas across a panel."""
    if layout["xaxis"].get("showgrid", True):
        axes.grid(color=LIGHT["rule"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel(_title(y_axis))
    if y_axis.get("tickformat") == SHARES:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if "range" in y_axis:
        bottom, top = y_axis["range"]
        axes.set_ylim(bottom, top)
    for shape in layout.get("shapes", ()):
        if shape["type"] == "rect":
            axes.axvspan(
                shape["x0"], shape["x1"], color=shape["fillcolor"], alpha=shape["opacity"], linewidth=0
            )
        else:
            axes.axvline(shape["x0"], **_stroke(shape["line"]))


def _stroke(line: Json) -> dict[str, Any]:
    """Return Matplotlib's options for a line in Plotly's terms."""
    dash = _DASHES[line.get("dash", "solid")]
    return {"color": line["color"], "linewidth": line["width"] * _POINTS, "linestyle": dash}


def _add_legend(sheet: Figure | SubFigure, panels: Iterable[Axes]) -> None:
    """Put one legend below the panels, where it covers nothing."""
    handles_by_label: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        handles_by_label.update(zip(labels, handles, strict=True))
    width_inches = sheet.bbox.width / sheet.dpi
    num_columns = min(len(handles_by_label), max(1, int(width_inches / 2)))
    sheet.legend(
        list(handles_by_label.values()),
        list(handles_by_label),
        loc="outside lower center",
        ncols=num_columns,
        fontsize=8,
        handlelength=3,
    )


def _draw_trace(axes: Axes, trace: Json) -> None:
    if trace["type"] == "candlestick":
        _draw_candles(axes, trace)
    elif "symbol" in trace.get("marker", {}):
        _draw_dots(axes, trace)
    else:
        _draw_line(axes, trace)


def _draw_line(axes: Axes, trace: Json) -> None:
    """Draw a line, or fill the area within it."""
    # None becomes nan, which breaks a line.
    x = np.array(trace["x"], np.float64)
    y = np.array(trace["y"], np.float64)
    label = html.unescape(trace["name"]) if trace.get("showlegend", True) else None
    if "fill" in trace:
        axes.fill(x, y, color=_rgba(trace["fillcolor"]), linewidth=0, label=label)
    else:
        marker = "o" if trace["mode"] == "lines+markers" else None
        size = trace.get("marker", {}).get("size", 5) * _POINTS
        axes.plot(x, y, **_stroke(trace["line"]), label=label, marker=marker, markersize=size)


def _rgba(colour: str) -> tuple[float, ...]:
    """Convert a colour of CSS with an opacity to that of matplotlib, whose parts are from 0 to 1.

    >>> _rgba("rgba(255, 51, 0, .5)")
    (1.0, 0.2, 0.0, 0.5)
    """
    *parts, opacity = colour.removeprefix("rgba(").removesuffix(")").split(",")
    return (*(int(part) / 255 for part in parts), float(opacity))


def _draw_dots(axes: Axes, trace: Json) -> None:
    """Draw dots, filled or hollow, and arrows with their numbers."""
    x = np.array(trace["x"], np.float64)
    rows = [html.unescape(row) for row in trace["y"]]
    colour = trace["marker"]["color"]
    symbols = trace["marker"]["symbol"]
    # The axis learns all rows in their order, before dots of some rows are drawn.
    axes.yaxis.update_units(rows)  # type: ignore[no-untyped-call]
    for kind, shape in (("circle", "o"), ("triangle", ">"), ("diamond", "D")):
        chosen = [row for row, symbol in enumerate(symbols) if symbol.startswith(kind)]
        fills = ["none" if symbols[row].endswith("-open") else colour for row in chosen]
        chosen_x = [x[row] for row in chosen]
        chosen_rows = [rows[row] for row in chosen]
        axes.scatter(chosen_x, chosen_rows, marker=shape, facecolors=fills, edgecolors=colour)
    positions = trace["textposition"]
    if isinstance(positions, str):
        positions = [positions] * len(x)
    for place, row, text, position in zip(x, rows, trace["text"], positions, strict=True):
        if text:
            vertical, horizontal = position.split()
            axes.annotate(
                html.unescape(text),
                (place, row),
                (0, 5 if vertical == "top" else -5),
                textcoords="offset points",
                ha=_ALIGNMENTS[horizontal],
                va=_ALIGNMENTS[vertical],
                fontsize=7,
            )


def _draw_candles(axes: Axes, trace: Json) -> None:
    opened = np.array(trace["open"])
    high = np.array(trace["high"])
    low = np.array(trace["low"])
    close = np.array(trace["close"])
    styles = [trace["increasing" if rises else "decreasing"] for rises in close >= opened]
    edges = [style["line"]["color"] for style in styles]
    fills = [style["fillcolor"] for style in styles]
    axes.vlines(trace["x"], low, high, colors=edges, linewidth=0.8)
    # A body without height would be invisible; a thousandth of the range is a line.
    least = 1e-3 * float(high.max() - low.min())
    heights = np.maximum(np.abs(close - opened), least)
    bottoms = np.minimum(opened, close)
    axes.bar(
        trace["x"],
        heights,
        _BODY_BARS,
        bottoms,
        color=fills,
        edgecolor=edges,
        linewidth=0.8,
        zorder=3,
        label=trace["name"],
    )
