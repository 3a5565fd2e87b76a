"""Charts as PNG files, for READMEs and chats where a page cannot go: those of a run, and one forecast.

They are the charts of `v8.views.figures`, drawn with Matplotlib: lines, dots, fans, candles, rules. Drawings
are made without pyplot, so nothing global changes and no display is needed.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from v8.artifacts.series_artifact import ForecastSample
from v8.errors import ArtifactError
from v8.losses.leaderboard import History, SeriesResult, rank_results, summarise
from v8.market.candles import Candles
from v8.storage import write_bytes
from v8.tasks import TASKS
from v8.views import charts, figures
from v8.views.charts import LIGHT, SHARES, Axis, Chart

MOST_ROWS: Final = 100
"""Series of a leaderboard in one picture; that of a thousand would be 33,000 pixels high."""

_DPI: Final = 150

_SOFTWARE: Final = "v8"
"""What each picture says of its origin; only such a one is ever replaced."""

_FAN_OPACITY: Final = 0.18

_POINTS: Final = 0.75
"""Points of a pixel, the unit of widths and sizes of charts."""

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
    """Write the PNG files of a run, each atomically, and return them; none without finished series.

    Args:
        folder: Where to; made when missing.
        title: What run this is; stands on every picture, which travels alone.
        histories: Per series, its epochs.
        samples: Per series, some of its forecasts; the best series that has some is shown.
    """
    rows = rank_results(results)
    best = next((samples[row.series] for row in rows if row.series in samples), None)
    pictures: dict[str, tuple[str, list[Chart], tuple[float, float]]] = {}
    if rows:
        best_rows = rows[:MOST_ROWS]
        skill = [
            figures.multiples_figure(best_rows, x_title=f"error ÷ {other}", is_against_best=is_best)
            for other, is_best in (("naive error", False), ("error of the best baseline", True))
        ]
        said = "below 1 is less; filled: differs from 1 by more than chance"
        if len(rows) > MOST_ROWS:
            said += f"; the best {MOST_ROWS} of {len(rows):,} series"
        pictures["skill.png"] = said, skill, (12.0, 1.6 + 0.22 * len(best_rows))
        errors = []
        for task in summarise(rows):
            judged = [one.judgement for one in results if task in one.judgement.errors]
            errors.append(replace(figures.error_figure(judged, task), title=TASKS[task].title, y=Axis()))
        said = f"mean absolute error ÷ naive's by step, median over {len(results)} series"
        pictures["errors_by_step.png"] = said, errors, (8.0 if len(errors) == 1 else 4.0 * len(errors), 4.0)
    if any(histories.values()):
        losses = figures.relative_losses_figure(histories.values())
        pictures["learning_curves.png"] = "validation loss ÷ that of the first epoch", [losses], (8.0, 4.0)
    if best:
        said = f"{best.series}, end of the test span"
        pictures["forecasts.png"] = said, [figures.issued_on_the_way(best)], (10.0, 4.0)
    for name, (said, drawn, inches) in pictures.items():
        _write_png(folder / name, f"{title}: {said}", drawn, inches=inches)
    return [folder / name for name in pictures]


def draw_forecast(candles: Candles, forecast: pd.DataFrame, file: Path, *, notes: Sequence[str] = ()) -> None:
    """Draw a forecast, H rows of `Forecaster.predict`, after the N candles before it, as PNG, atomically.

    Notes are sentences under the picture.

    Raises:
        ArtifactError: If the file cannot be written.
    """
    chart = figures.issued_figure(candles, forecast)
    title = f"{candles.series}: forecast issued at {forecast.index[0]:%Y-%m-%d %H:%M} UTC"
    try:
        _write_png(file, title, [chart], inches=(10.0, 6.4 if chart.below else 5.0), notes=notes)
    except OSError as error:
        raise ArtifactError(
            where=str(file),
            rule="must be a file that can be written",
            got=error.strerror or "an output error",
            fix="Choose another place for param:plot",
        ) from error


def is_own_picture(file: Path) -> bool:
    """Tell whether a file is a picture that v8 drew."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return f"tEXtSoftware\0{_SOFTWARE}".encode() in stream.read(1_024)


def _write_png(
    file: Path, title: str, drawn: Sequence[Chart], *, inches: tuple[float, float], notes: Sequence[str] = ()
) -> None:
    """Draw charts side by side, with notes below, atomically; the first one's legend is for all."""
    sheet = Figure(figsize=inches, layout="constrained")
    sheet.suptitle(title, fontsize=11)
    said = "\n".join(notes)
    sheet.supxlabel(said, x=0.01, ha="left", fontsize=7.5, color=LIGHT["soft"], parse_math=False)
    heights = [3, 1] if any(one.below for one in drawn) else [1]
    panels = sheet.subplots(len(heights), len(drawn), squeeze=False, sharex="col", height_ratios=heights)
    for column, chart in zip(panels.T, drawn, strict=True):
        _draw(list(column), chart)
    if drawn[0].has_legend:
        _add_legend(sheet, panels[:, 0])
    stream = io.BytesIO()
    sheet.savefig(stream, dpi=_DPI, format="png", metadata={"Software": _SOFTWARE})
    write_bytes(file, stream.getvalue())


def _draw(panels: Sequence[Axes], chart: Chart) -> None:
    for axes, about in zip(panels, (chart.y, chart.below), strict=False):
        if about:
            _decorate(axes, about, chart)
    for mark in chart.marks:
        _DRAWN[type(mark)](panels[1] if isinstance(mark, charts.Line) and mark.is_below else panels[0], mark)
    _clip_far_lines(panels[0], chart)
    if chart.below and chart.below.is_from_zero:
        panels[1].set_ylim(bottom=0)
    panels[0].set_title(chart.title, fontsize=10)
    panels[-1].set_xlabel(chart.x.title)
    if chart.x.ends:
        panels[-1].set_xlim(*chart.x.ends)
    if chart.x.ticks:
        labels = [text.replace("<br>", "\n") for text in chart.x.ticks.values()]
        panels[-1].set_xticks(list(chart.x.ticks), labels, fontsize=8)


def _decorate(axes: Axes, about: Axis, chart: Chart) -> None:
    if chart.x.has_grid:
        axes.grid(color=LIGHT["rule"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel(about.title)
    if about.form == SHARES:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if about.ends:
        axes.set_ylim(*about.ends)
    for rule in chart.rules:
        colour = LIGHT[rule.colour]
        if rule.until is not None:
            axes.axvspan(rule.at, rule.until, color=colour, alpha=0.04, linewidth=0)
            continue
        draw = axes.axhline if rule.is_level else axes.axvline
        draw(rule.at, color=colour, linewidth=rule.width * _POINTS, linestyle=_DASHES[rule.dash])


def _clip_far_lines(axes: Axes, chart: Chart) -> None:
    """End the axis above what the page shows at once; a line far off leaves it, with its number there."""
    lines = [mark for mark in chart.marks if isinstance(mark, charts.Line)]
    far = [line for line in lines if line.is_far]
    near = [y for line in lines if line.is_far is False for y in line.y if y is not None]
    if not far or not near:
        return
    margin = 0.06 * ((max(near) - min(near)) or 1.0)
    axes.set_ylim(min(near) - margin, max(near) + margin * (1 + 2 * len(far)))
    for place, line in enumerate(far):
        said = f"{line.name} ↑ up to {max(y for y in line.y if y is not None):,.3g}"
        style: dict[str, Any] = {"color": LIGHT[line.colour], "fontsize": 7.5, "ha": "right", "va": "top"}
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


def _draw_line(axes: Axes, line: charts.Line) -> None:
    axes.plot(
        _floats(line.x),
        _floats(line.y),
        color=LIGHT[line.colour],
        linewidth=line.width * _POINTS,
        linestyle=_DASHES[line.dash],
        alpha=line.opacity,
        marker="o" if line.mode == "lines+markers" else None,
        markersize=(line.size or 5) * _POINTS,
        label=line.name if line.is_named else None,
    )


def _draw_fan(axes: Axes, fan: charts.Fan) -> None:
    label = fan.name if fan.is_named else None
    style: dict[str, Any] = {"color": LIGHT["blue"], "alpha": _FAN_OPACITY, "linewidth": 0}
    axes.fill(_floats(fan.x), _floats(fan.y), **style, label=label)


def _draw_dots(axes: Axes, dots: charts.Dots) -> None:
    """Draw dots, filled or hollow, and arrows with their numbers."""
    x, colour = _floats(dots.x), LIGHT[dots.colour]
    # All rows in their order, before some are drawn.
    axes.yaxis.update_units(dots.rows)  # type: ignore[no-untyped-call]
    for is_far, shape, label in ((False, "o", dots.name), (True, ">", None)):
        chosen = [row for row, far in enumerate(dots.is_far) if far == is_far]
        fills = [colour if dots.is_sure[row] else "none" for row in chosen]
        places = [x[row] for row in chosen], [dots.rows[row] for row in chosen]
        axes.scatter(*places, marker=shape, facecolors=fills, edgecolors=colour, label=label)
    for at, row, text in zip(x, dots.rows, dots.texts(), strict=True):
        if text:
            axes.annotate(text, (at, row), (5, 0), textcoords="offset points", va="center", fontsize=7)


def _draw_candles(axes: Axes, candles: charts.Candles) -> None:
    opened, high, low, close = np.array(candles.rows, np.float64).T
    rising, falling = candles.styles()
    styles = [rising if rises else falling for rises in close >= opened]
    edges, fills = ([LIGHT[style[part]] for style in styles] for part in (0, 1))
    axes.vlines(candles.x, low, high, colors=edges, linewidth=0.8)
    # A body without height would be invisible; a thousandth of the range is a line.
    least = 1e-3 * float(high.max() - low.min())
    heights, bottoms = np.maximum(np.abs(close - opened), least), np.minimum(opened, close)
    style: dict[str, Any] = {"color": fills, "edgecolor": edges, "linewidth": 0.8, "zorder": 3}
    axes.bar(candles.x, heights, _BODY_BARS, bottoms, **style, label=candles.name)


_DRAWN: Final[Mapping[type, Callable[[Axes, Any], None]]] = {
    charts.Line: _draw_line,
    charts.Fan: _draw_fan,
    charts.Dots: _draw_dots,
    charts.Candles: _draw_candles,
}


def _floats(values: Iterable[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]
