"""Charts as PNG files, for READMEs and chats where a page cannot go: those of a run, and one forecast.

They show the same numbers as the page. Whatever `v8.views.figures` uses of Plotly is drawn here, and
nothing else: lines, dots, fans, candles, upright and level lines. Drawings are made without pyplot, so
nothing global changes and no display is needed.

Shape legend: N known candles, H forecast bars.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from v8.artifacts.forecast_sample import ForecastSample, IssuedForecast, Rows
from v8.columns import CLOSE, OHLC, TASK_OHLC
from v8.errors import ArtifactError
from v8.features.table import compute_columns
from v8.losses.leaderboard import History, SeriesResult, rank_results, summarise
from v8.market.candles import Candles
from v8.quantile_levels import MEDIAN, levels_of, quantile_column
from v8.storage import write_bytes
from v8.tasks import TASKS
from v8.tasks.task import Task
from v8.views.figures import error_figure, multiples_figure, relative_losses_figure, upright
from v8.views.forecast_figure import PANEL_FORMAT, forecast_figure
from v8.views.palette import LIGHT

SHOWN_BARS: Final = 60
"""Known candles in the picture of one forecast; more become too thin to see."""

MOST_ROWS: Final = 100
"""Series of a leaderboard in one picture; that of a thousand would be 33,000 pixels high."""

_NUM_TICKS: Final = 7
_DPI: Final = 150

_SOFTWARE: Final = "v8"
"""What each picture says of its origin; only such a one is ever replaced."""
_FAN_OPACITY: Final = 0.18

_POINTS: Final = 0.75
"""Points of a pixel, Plotly's unit of widths and sizes."""

_BODY_BARS: Final = 0.66
"""Width of a candle's body, in bars."""

_DASHES: Final[dict[str | None, Any]] = {
    None: "-",
    "solid": "-",
    "dot": ":",
    "dash": "--",
    "dashdot": "-.",
    "longdash": (0, (7, 2)),
    "longdashdot": (0, (7, 2, 1, 2)),
}


def write_pictures(
    folder: Path,
    title: str,
    results: Sequence[SeriesResult],
    histories: Mapping[str, History],
    samples: Mapping[str, ForecastSample],
) -> list[Path]:
    """Write the PNG files of a run, each atomically.

    Args:
        folder: Where to; made when missing.
        title: What run this is; stands on every picture, which travels alone.
        results: Finished series; without any, nothing is written.
        histories: Per series, its epochs.
        samples: Per series, some of its forecasts; the best series that has some is shown.

    Returns:
        The files written.
    """
    rows = rank_results(results)
    best = next((samples[row.series] for row in rows if row.series in samples), None)
    pictures: dict[str, tuple[str, list[go.Figure], tuple[float, float]]] = {}
    if rows:
        best_rows = rows[:MOST_ROWS]
        skill = [
            multiples_figure(best_rows, x_title=f"error ÷ {other}", is_against_best=is_best)
            for other, is_best in (("naive error", False), ("error of the best baseline", True))
        ]
        size = 12.0, 1.6 + 0.22 * len(best_rows)
        said = "below 1 is less; filled: differs from 1 by more than chance"
        if len(rows) > MOST_ROWS:
            said += f"; the best {MOST_ROWS} of {len(rows):,} series"
        pictures["skill.png"] = said, skill, size
        errors = []
        for task in summarise(rows):
            drawn = error_figure([one.judgement for one in results if task in one.judgement.errors], task)
            errors.append(drawn.update_layout(title=TASKS[task].title, yaxis={"title": ""}))
        said = f"mean absolute error ÷ naive's by step, median over {len(results)} series"
        pictures["errors_by_step.png"] = said, errors, (8.0 if len(errors) == 1 else 4.0 * len(errors), 4.0)
    if any(histories.values()):
        losses = relative_losses_figure(histories.values())
        pictures["learning_curves.png"] = "validation loss ÷ that of the first epoch", [losses], (8.0, 4.0)
    if best:
        pictures["forecasts.png"] = (
            f"{best.series}, end of the test span",
            [_issued_on_the_way(best)],
            (10.0, 4.0),
        )
    for name, (said, figures, inches) in pictures.items():
        _write_png(folder / name, f"{title}: {said}", figures, inches=inches)
    return [folder / name for name in pictures]


def draw_forecast(candles: Candles, forecast: pd.DataFrame, file: Path, *, notes: Sequence[str] = ()) -> None:
    """Draw a forecast beside the candles before it and write it as PNG, atomically.

    Args:
        candles: Checked candles up to the newest known one, N rows.
        forecast: What `Forecaster.predict` returned for them, H rows.
        file: Where to.
        notes: Sentences under the picture.

    Raises:
        ArtifactError: If the file cannot be written.
    """
    figure = issued_figure(candles, forecast)
    title = f"{candles.series}: forecast issued at {forecast.index[0]:%Y-%m-%d %H:%M} UTC"
    height = 6.4 if "yaxis2" in figure.layout else 5.0
    try:
        _write_png(file, title, [figure], inches=(10.0, height), notes=notes)
    except OSError as error:
        raise ArtifactError(
            where=str(file),
            rule="must be a file that can be written",
            got=error.strerror or "an output error",
            fix="Choose another place for --plot",
        ) from error


def is_own_picture(file: Path) -> bool:
    """Tell whether a file is a picture that v8 drew."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return f"tEXtSoftware\0{_SOFTWARE}".encode() in stream.read(1_024)


def _write_png(
    file: Path,
    title: str,
    figures: Sequence[go.Figure],
    *,
    inches: tuple[float, float],
    notes: Sequence[str] = (),
) -> None:
    """Draw figures side by side, with notes below, atomically; the first one's legend is for all."""
    sheet = Figure(figsize=inches, layout="constrained")
    sheet.suptitle(title, fontsize=11)
    said = "\n".join(notes)
    sheet.supxlabel(said, x=0.01, ha="left", fontsize=7.5, color=LIGHT["soft"], parse_math=False)
    heights = [3, 1] if any("yaxis2" in one.layout for one in figures) else [1]
    panels = sheet.subplots(len(heights), len(figures), squeeze=False, sharex="col", height_ratios=heights)
    for column, figure in zip(panels.T, figures, strict=True):
        _draw(list(column), figure)
    if figures[0].layout.showlegend is not False:
        _add_legend(sheet, panels[:, 0])
    stream = io.BytesIO()
    sheet.savefig(stream, dpi=_DPI, format="png", metadata={"Software": _SOFTWARE})
    write_bytes(file, stream.getvalue())


def _issued_on_the_way(sample: ForecastSample) -> go.Figure:
    """Draw candles and the forecasts issued on the way; bars are numbered, the last one is 0."""
    candles = replace(
        sample,
        truth={TASK_OHLC: sample.truth[TASK_OHLC]},
        issued=tuple(replace(one, values={TASK_OHLC: one.values[TASK_OHLC]}) for one in sample.issued),
    )
    figure = forecast_figure(candles, places=range(1 - len(sample.open_time_s), 1))
    times = [datetime.fromtimestamp(time_s, UTC) for time_s in sample.open_time_s]
    _date_axis(figure, times, 1 - len(times))
    return figure.update_layout(xaxis={"title": f"open times in UTC, bars of {sample.bar_s // 60} minutes"})


def issued_figure(candles: Candles, forecast: pd.DataFrame) -> go.Figure:
    """Draw a forecast, H rows of `Forecaster.predict`, beside the N candles before it.

    Bars are numbered, the newest known one 0; the ticks below tell their times.
    """
    shown = candles.newest(SHOWN_BARS)
    num_known, num_coming = len(shown), len(forecast)
    sample = _sample(candles, shown, forecast)
    figure = forecast_figure(sample, places=range(1 - num_known, num_coming + 1), has_candles=True)
    figure.data[0].name = "known"
    times = [*shown.to_frame().index, *forecast.index]
    _date_axis(figure, times, 1 - num_known)
    figure.update_xaxes(range=[-num_known, num_coming + 1], showgrid=False)
    figure.update_layout(yaxis={"title": "price, quote currency"})
    figure.update_yaxes(rangemode="tozero", selector={"tickformat": PANEL_FORMAT})
    figure.add_shape(upright(0.5, {"color": LIGHT["soft"], "dash": "dot", "width": 1}))
    shade = upright(0.5, {"width": 0}) | {"type": "rect", "x1": num_coming + 1}
    return figure.add_shape(shade, fillcolor=LIGHT["blue"], opacity=0.04)


def _date_axis(figure: go.Figure, times: Sequence[datetime], first: int) -> None:
    """Tell times below an axis of numbered bars, the first of which has the number `first`."""
    ticks = np.unique(np.linspace(0, len(times) - 1, _NUM_TICKS).round().astype(int)).tolist()
    figure.update_xaxes(
        tickvals=[tick + first for tick in ticks],
        ticktext=[f"{times[tick]:%d %b %Y<br>%H:%M}" for tick in ticks],
    )


def _sample(candles: Candles, shown: Candles, forecast: pd.DataFrame) -> ForecastSample:
    """Put what is known and one forecast after it side by side; nan where too little came before."""
    tasks = [task for task in TASKS.values() if set(task.columns) <= set(forecast.columns)]
    others = [column for task in tasks if task.name != TASK_OHLC for column in task.columns]
    known = shown.to_frame()
    for name, values in compute_columns(candles, others).columns.items():
        known[name] = values[-len(shown) :]
    truth, coming = (
        {
            task.name: tuple(map(tuple, frame[list(task.columns)].to_numpy(np.float64).tolist()))
            for task in tasks
        }
        for frame in (known, forecast)
    )
    levels = levels_of(forecast.columns, CLOSE)
    quantiles = {
        task.name: tuple(_quantile_rows(forecast, task, level) for level in levels)
        for task in (tasks if levels else ())
    }
    return ForecastSample(
        series=str(candles.series),
        bar_s=candles.series.bar_s,
        open_time_s=tuple(shown.open_time_s.tolist()),
        truth=truth,
        issued=(IssuedForecast(len(shown) - 1, coming, quantiles),),
        levels=levels,
    )


def _quantile_rows(forecast: pd.DataFrame, task: Task, level: float) -> Rows:
    names = [name if level == MEDIAN else quantile_column(name, level) for name in task.columns]
    return tuple(map(tuple, forecast[names].to_numpy(np.float64).tolist()))


def _draw(panels: list[Axes], figure: go.Figure) -> None:
    layout = figure.layout
    _decorate(panels[0], layout.yaxis, layout)
    if "yaxis2" in layout:
        _decorate(panels[1], layout.yaxis2, layout)
    for trace in figure.data:
        axes = panels[1] if trace.yaxis == "y2" else panels[0]
        _draw_candles(axes, trace) if trace.type == "candlestick" else _draw_points(axes, trace)
    _clip_far_lines(panels[0], figure)
    if "yaxis2" in layout and layout.yaxis2.rangemode == "tozero":
        panels[1].set_ylim(bottom=0)
    panels[0].set_title(layout.title.text or "", fontsize=10)
    panels[-1].set_xlabel(layout.xaxis.title.text or "")
    if layout.xaxis.range:
        panels[-1].set_xlim(*layout.xaxis.range)
    if layout.xaxis.tickvals:
        labels = [text.replace("<br>", "\n") for text in layout.xaxis.ticktext]
        panels[-1].set_xticks(layout.xaxis.tickvals, labels, fontsize=8)


def _clip_far_lines(axes: Axes, figure: go.Figure) -> None:
    """End the axis above what the page shows at once; a line far off leaves it, with its number there."""
    far = [trace for trace in figure.data if trace.visible == "legendonly"]
    near = [y for trace in figure.data if trace.visible is True for y in trace.y if y is not None]
    if not far or not near:
        return
    margin = 0.06 * ((max(near) - min(near)) or 1.0)
    axes.set_ylim(min(near) - margin, max(near) + margin * (1 + 2 * len(far)))
    for place, trace in enumerate(far):
        most = max(y for y in trace.y if y is not None)
        said = f"{html.unescape(trace.name)} ↑ up to {most:,.3g}"
        style: dict[str, Any] = {"color": trace.line.color, "fontsize": 7.5, "ha": "right", "va": "top"}
        axes.text(0.99, 0.99 - 0.06 * place, said, transform=axes.transAxes, **style)


def _add_legend(sheet: Figure, panels: Iterable[Axes]) -> None:
    """Put one legend below the panels, where it covers nothing."""
    named = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = min(len(named), max(1, int(sheet.get_figwidth() / 2)))
    sheet.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=columns, fontsize=8, handlelength=3
    )


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
        if shape.type == "rect":
            axes.axvspan(shape.x0, shape.x1, color=shape.fillcolor, alpha=shape.opacity, linewidth=0)
            continue
        draw, at = (axes.axvline, shape.x0) if shape.x0 == shape.x1 else (axes.axhline, shape.y0)
        style = _DASHES[shape.line.dash]
        draw(at, color=shape.line.color, linewidth=shape.line.width * _POINTS, linestyle=style)


def _draw_points(axes: Axes, trace: go.Scatter) -> None:
    """Draw a line, an area or dots."""
    x, y, line = _known(trace.x), _known(trace.y), trace.line
    label = html.unescape(trace.name or "") if trace.showlegend is not False else None
    if trace.fill == "toself":
        axes.fill(x, y, color=line.color, alpha=_FAN_OPACITY, linewidth=0, label=label)
    elif "lines" in trace.mode:
        style = {"color": line.color, "linewidth": line.width * _POINTS, "linestyle": _DASHES[line.dash]}
        size, marker = (trace.marker.size or 5) * _POINTS, "o" if trace.mode == "lines+markers" else None
        axes.plot(x, y, **style, alpha=trace.opacity, marker=marker, markersize=size, label=label)
    else:
        _draw_dots(axes, trace, label)


def _draw_dots(axes: Axes, trace: go.Scatter, label: str | None) -> None:
    """Draw dots, filled or hollow, and arrows with their numbers."""
    x, y, symbols = _known(trace.x), _known(trace.y), np.array(trace.marker.symbol)
    colour, rows = trace.marker.color, range(len(symbols))
    # All rows in their order, before some are drawn.
    axes.yaxis.update_units(y)  # type: ignore[no-untyped-call]
    for kind, shape in (("circle", "o"), ("triangle-right", ">")):
        chosen = [row for row in rows if symbols[row].startswith(kind)]
        fills = ["none" if symbols[row].endswith("-open") else colour for row in chosen]
        places = [x[row] for row in chosen], [y[row] for row in chosen]
        axes.scatter(
            *places, marker=shape, facecolors=fills, edgecolors=colour, label=label if shape == "o" else None
        )
    for row in (row for row in rows if trace.text[row]):
        axes.annotate(
            trace.text[row], (x[row], y[row]), (5, 0), textcoords="offset points", va="center", fontsize=7
        )


def _draw_candles(axes: Axes, trace: go.Candlestick) -> None:
    opened, high, low, close = (np.array(trace[name], np.float64) for name in OHLC)
    styles = [trace.increasing if rises else trace.decreasing for rises in close >= opened]
    edges, fills = [one.line.color for one in styles], [one.fillcolor for one in styles]
    axes.vlines(trace.x, low, high, colors=edges, linewidth=0.8)
    # A body without height would be invisible; a thousandth of the range is a line.
    least = 1e-3 * float(high.max() - low.min())
    heights, bottoms = np.maximum(np.abs(close - opened), least), np.minimum(opened, close)
    style: dict[str, Any] = {"color": fills, "edgecolor": edges, "linewidth": 0.8, "zorder": 3}
    axes.bar(trace.x, heights, _BODY_BARS, bottoms, **style, label=trace.name)


def _known(values: Iterable[Any]) -> list[Any]:
    """Return numbers, with nan for what is missing, or the names of rows as they were before escaping."""
    return [
        np.nan if each is None else html.unescape(each) if isinstance(each, str) else each for each in values
    ]
