"""Charts as PNG files, for READMEs and chats where a page cannot go: those of a run, and one forecast.

They are the charts of `v8.reports.figures`, drawn with Matplotlib from the JSON that Plotly draws. Drawings
are made without pyplot, so nothing global changes and no display is needed.
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

from v8.artifacts.series_artifact import ForecastSample
from v8.errors import ArtifactError
from v8.evaluation.leaderboard import LeaderboardRow
from v8.market.candles import Candles
from v8.own_files import PICTURE_SOFTWARE
from v8.reports import figures
from v8.reports.charts import LIGHT, SHARES, Chart, Json, plotly
from v8.storage import write_bytes

LEADERBOARD_PICTURE: Final = "skill.png"

_DPI: Final = 150

_NOTE_INCHES: Final = 0.15
"""Height of a line of notes."""

_NOTE_LETTERS: Final = 160
"""Length of a line of notes, for a picture ten inches wide."""

_FAN_OPACITY: Final = 0.18

_POINTS: Final = 0.75
"""Points of a pixel, the unit of widths and sizes of charts."""

_BODY_BARS: Final = 0.66
"""Width of a candle's body, in bars."""

_DASHES: Final = {"solid": "-", "dot": ":", "dash": "--"}


def write_pictures(
    folder: Path, title: str, rows: Sequence[LeaderboardRow], sample: ForecastSample | None
) -> list[Path]:
    """Write the PNG files of a run, each atomically, and return them; none without finished series.

    The title stands on every picture, which travels alone. The sample is of the best series that has one.
    """
    files = [folder / LEADERBOARD_PICTURE] if rows else []
    for file in files:
        draw_leaderboard(file, title, rows)
    if sample:
        files.append(folder / "forecasts.png")
        said = f"{title}: {sample.series}, end of the test span"
        _write_png(files[-1], _drawn(said, [figures.issued_on_the_way(sample)], inches=(10.0, 4.0)))
    return files


def draw_leaderboard(file: Path, title: str, rows: Sequence[LeaderboardRow]) -> None:
    """Draw the errors of a leaderboard beside naive's and the best baseline's as PNG, atomically."""
    said = f"{title}: errors of {len(rows):,} series; left of 0 is smaller, filled is more than chance"
    _write_png(file, _drawn(said, figures.verdict_figures(rows), inches=(12.0, 4.0)))


def draw_forecast(candles: Candles, forecast: pd.DataFrame, file: Path, *, notes: Sequence[str] = ()) -> None:
    """Draw a forecast, H rows of `Forecaster.predict`, after the N candles before it, as PNG, atomically.

    Notes are sentences under the picture. Raises `ArtifactError` if the file cannot be written.
    """
    chart = figures.issued_figure(candles, forecast)
    title = f"{candles.series}: forecast issued at {forecast.index[0]:%Y-%m-%d %H:%M} UTC"
    try:
        _write_png(file, _drawn(title, [chart], inches=(10.0, 6.4 if chart.below else 5.0), notes=notes))
    except OSError as error:
        rule = "must be a file that can be written"
        got = error.strerror or "an output error"
        fix = "Choose another place for param:plot"
        raise ArtifactError(where=str(file), rule=rule, got=got, fix=fix) from error


def _write_png(file: Path, sheet: Figure) -> None:
    """Write a sheet, atomically."""
    drawing = io.BytesIO()
    picture = io.BytesIO()
    about = PngInfo()
    sheet.savefig(drawing, dpi=_DPI, format="png")
    about.add_text("Software", PICTURE_SOFTWARE)
    # With 256 colours it looks the same and takes a third of the room.
    Image.open(drawing).convert("RGB").quantize().save(picture, "PNG", optimize=True, pnginfo=about)
    write_bytes(file, picture.getvalue())


def _drawn(
    title: str, drawn: Sequence[Chart], *, inches: tuple[float, float], notes: Sequence[str] = ()
) -> Figure:
    """Draw charts side by side, with notes below; the first one's legend is for all."""
    sheet = Figure(figsize=inches, layout="constrained")
    # In a place of their own: a legend outside of panels would cover what else stands below them.
    lines = [line for note in notes for line in textwrap.wrap(note, _NOTE_LETTERS)]
    room = _NOTE_INCHES * len(lines) / inches[1]
    ((above,), (below,)) = sheet.subfigures(2, 1, squeeze=False, height_ratios=[1 - room, room or 1e-3])
    style: dict[str, Any] = {"va": "top", "fontsize": 7.5, "color": LIGHT["soft"], "parse_math": False}
    below.text(0.01, 0.97, "\n".join(lines), **style)
    above.suptitle(title, fontsize=11)
    heights = [3, 1] if any(one.below for one in drawn) else [1]
    panels = above.subplots(len(heights), len(drawn), squeeze=False, sharex="col", height_ratios=heights)
    for column, chart in zip(panels.T, drawn, strict=True):
        _draw(list(column), chart)
    if drawn[0].has_legend:
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
    time = layout["xaxis"]
    last = panels[-1]
    last.set_xlabel(_title(time))
    if "range" in time:
        last.set_xlim(*time["range"])
    if "tickvals" in time:
        labels = [text.replace("<br>", "\n") for text in time["ticktext"]]
        last.set_xticks(time["tickvals"], labels, fontsize=8)


def _title(about: Json) -> str:
    return str(about.get("title", {}).get("text", ""))


def _decorate(axes: Axes, about: Json, layout: Json) -> None:
    if layout["xaxis"].get("showgrid", True):
        axes.grid(color=LIGHT["rule"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel(_title(about))
    if about.get("tickformat") == SHARES:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if "range" in about:
        axes.set_ylim(*about["range"])
    for shape in layout.get("shapes", ()):
        if shape["type"] == "rect":
            style = {"color": shape["fillcolor"], "alpha": shape["opacity"]}
            axes.axvspan(shape["x0"], shape["x1"], **style, linewidth=0)
        else:
            axes.axvline(shape["x0"], **_stroke(shape["line"]))


def _stroke(about: Json) -> dict[str, Any]:
    dash = _DASHES[about.get("dash", "solid")]
    return {"color": about["color"], "linewidth": about["width"] * _POINTS, "linestyle": dash}


def _add_legend(sheet: Figure | SubFigure, panels: Iterable[Axes]) -> None:
    """Put one legend below the panels, where it covers nothing."""
    named = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = min(len(named), max(1, int(sheet.bbox.width / sheet.dpi / 2)))
    style: dict[str, Any] = {"ncols": columns, "fontsize": 8, "handlelength": 3}
    sheet.legend(named.values(), named.keys(), loc="outside lower center", **style)


def _draw_trace(axes: Axes, trace: Json) -> None:
    marker = trace.get("marker", {})
    if trace["type"] == "candlestick":
        _draw_candles(axes, trace)
    elif "symbol" in marker:
        _draw_dots(axes, trace)
    else:
        # None becomes nan, which breaks a line.
        points = np.array([trace["x"], trace["y"]], np.float64)
        label = html.unescape(trace["name"])
        shown: dict[str, Any] = {"label": label if trace.get("showlegend", True) else None}
        if "fill" in trace:
            axes.fill(*points, color=trace["line"]["color"], alpha=_FAN_OPACITY, linewidth=0, **shown)
        else:
            shown |= {"marker": "o" if trace["mode"] == "lines+markers" else None}
            shown |= {"markersize": marker.get("size", 5) * _POINTS}
            axes.plot(*points, **_stroke(trace["line"]), **shown)


def _draw_dots(axes: Axes, trace: Json) -> None:
    """Draw dots, filled or hollow, and arrows with their numbers."""
    x = np.array(trace["x"], np.float64)
    rows = [html.unescape(row) for row in trace["y"]]
    colour = trace["marker"]["color"]
    symbols = trace["marker"]["symbol"]
    # All rows in their order, before some are drawn.
    axes.yaxis.update_units(rows)  # type: ignore[no-untyped-call]
    for kind, shape in (("circle", "o"), ("triangle", ">"), ("diamond", "D")):
        chosen = [row for row, symbol in enumerate(symbols) if symbol.startswith(kind)]
        fills = ["none" if symbols[row].endswith("-open") else colour for row in chosen]
        places = [x[row] for row in chosen], [rows[row] for row in chosen]
        axes.scatter(*places, marker=shape, facecolors=fills, edgecolors=colour)
    for at, row, text in zip(x, rows, trace["text"], strict=True):
        if text:
            axes.annotate(text, (at, row), (0, 7), textcoords="offset points", ha="center", fontsize=7)


def _draw_candles(axes: Axes, trace: Json) -> None:
    opened, high, low, close = (np.array(trace[name]) for name in ("open", "high", "low", "close"))
    styles = [trace["increasing" if rises else "decreasing"] for rises in close >= opened]
    edges = [style["line"]["color"] for style in styles]
    fills = [style["fillcolor"] for style in styles]
    axes.vlines(trace["x"], low, high, colors=edges, linewidth=0.8)
    # A body without height would be invisible; a thousandth of the range is a line.
    least = 1e-3 * float(high.max() - low.min())
    heights = np.maximum(np.abs(close - opened), least)
    bottoms = np.minimum(opened, close)
    style: dict[str, Any] = {"color": fills, "edgecolor": edges, "linewidth": 0.8, "zorder": 3}
    axes.bar(trace["x"], heights, _BODY_BARS, bottoms, **style, label=trace["name"])
