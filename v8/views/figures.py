"""The charts of reports, each drawn once: as a Plotly figure.

A notebook shows it as it is, `v8.views.document` puts its JSON on a page, where it follows the reader's
light or dark setting, and `v8.views.pictures` draws it into a file. Colours are the light ones of
`v8.views.palette`. Plotly reads a little markup in labels, therefore names from files are escaped on
their way in. Times are UTC.
"""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import plotly.graph_objects as go

from v8.formulas.baselines import BASELINES, NAIVE
from v8.losses.judgement import MODEL, Judgement
from v8.losses.leaderboard import Against, History, LeaderboardRow, TaskScore, summarise
from v8.tasks import TASKS
from v8.views.palette import LIGHT, STAGES, line_style

Points = tuple[list[Any], list[Any]]
"""x and y of a line; None in both breaks it."""

FAR_MULTIPLE: Final = 1.5
"""What errs more than so many times naive is not drawn to scale, which would hide the others: a baseline
waits in the legend, a dot stands at the edge with its number."""

MOST_SKILL_PCT: Final = 10.0
"""Skills beyond this have the strongest colour of a map."""

MOST_TOLD_COLUMNS: Final = 8
"""Columns of a map whose numbers fit into its cells on a telephone."""

_ROW_HEIGHT: Final = 22
_AXIS: Final = {
    **dict.fromkeys(("gridcolor", "linecolor", "zerolinecolor"), LIGHT["rule"]),
    "automargin": True,
}
_CLEAR: Final = "rgba(0,0,0,0)"


def error_figure(judgements: Sequence[Judgement], task: str) -> go.Figure:
    """Draw the mean absolute error by step of the model and of every baseline, as multiples of naive's.

    The error itself, in per cent, stands in the tooltip: it grows with the step for everybody. Baselines
    far off are hidden until their name in the legend is clicked.

    Args:
        judgements: Errors of series that have the task; of several, the median is drawn, as far as all go.
        task: A task of theirs.
    """
    traces = [
        _error_line(judgements, task, name, line_style(place))
        for place, name in enumerate(BASELINES)
        if any(name in one.errors[task] for one in judgements)
    ]
    traces.append(_error_line(judgements, task, MODEL, {"color": LIGHT["blue"], "width": 3.5}))
    return base_figure(
        traces,
        height=330,
        hovermode="x unified",
        xaxis={"title": "steps ahead", "nticks": 11},
        yaxis={"title": "error ÷ naive"},
        legend={"y": -0.34, "yanchor": "top"},
    )


def learning_figure(history: History, best_epoch: int) -> go.Figure:
    """Draw train and validation loss per epoch and mark the epoch whose weights were kept.

    Args:
        history: At least one epoch.
        best_epoch: From 1; 0 is the untrained network.
    """
    mark = upright(best_epoch, {"color": LIGHT["orange"], "dash": "dash", "width": 1.5})
    label = {"text": f"best: {best_epoch}", "font": {"color": LIGHT["orange"]}}
    mark["label"] = label | {"textangle": 0, "textposition": "end"}
    traces = []
    for name, colour, width in (("train", "other", 1.5), ("validation", "blue", 3)):
        points = [int(one["epoch"]) for one in history], [float(one[f"{name}_loss"]) for one in history]
        more = {"mode": "lines" if len(history) > 1 else "markers", "hovertemplate": "%{y:.5f}"}
        traces.append(line(name, points, {"color": LIGHT[colour], "width": width}, **more))
    return base_figure(
        traces,
        height=290,
        hovermode="x unified",
        xaxis={"title": "epoch", "dtick": max(1, -(-len(history) // 10))},
        yaxis={"title": "loss, scaled units"},
        shapes=[mark],
    )


def relative_losses_figure(histories: Iterable[History]) -> go.Figure:
    """Draw the validation losses of many series as multiples of their first epoch's.

    Args:
        histories: One per series; those without epochs are left out.
    """
    traces = []
    for history in (one for one in histories if one):
        first = history[0]["validation_loss"] or 1.0
        points = [one["epoch"] for one in history], [one["validation_loss"] / first for one in history]
        mode = "lines+markers" if len(history) < 3 else "lines"
        traces.append(line("", points, {"color": LIGHT["blue"], "width": 2}, mode=mode, opacity=0.5))
    level = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    return base_figure(
        traces,
        height=330,
        showlegend=False,
        xaxis={"title": f"epoch; one line for each of {len(traces)} series"},
        shapes=[level | {"line": {"color": LIGHT["other"], "width": 1.5}}],
    )


def dot_figure(
    names: Sequence[str],
    columns: Mapping[str, Sequence[float | None]],
    *,
    x_title: str,
    is_sure: Mapping[str, Sequence[bool]] | None = None,
) -> go.Figure:
    """Draw one dot per row and task on a common scale whose reference is 1.

    Args:
        names: Rows, from top to bottom.
        columns: Per task, a number per row; None where there is none.
        x_title: What the numbers are.
        is_sure: Per task, whether a dot is filled; hollow ones are in doubt. None fills all.
    """
    shown = [html.escape(name) for name in names]
    scale = _DotScale.of(columns)
    traces = []
    for task, values in columns.items():
        filled = is_sure[task] if is_sure else [True] * len(shown)
        colour = LIGHT[TASKS[task].colour]
        symbols = [
            scale.symbol(value) + ("" if each else "-open")
            for value, each in zip(values, filled, strict=True)
        ]
        marker = {"color": colour, "size": 10, "line": {"color": colour, "width": 2}, "symbol": symbols}
        x, texts = [scale.place(value, task) for value in values], [scale.text(value) for value in values]
        dots = go.Scatter(x=x, y=shown, text=texts, textposition="middle right", customdata=list(values))
        dots.update(mode="markers+text" if any(texts) else "markers", name=TASKS[task].title, marker=marker)
        traces.append(dots.update(hovertemplate="%{y}: %{customdata:.3f}"))
    return base_figure(
        traces,
        height=130 + _ROW_HEIGHT * len(shown),
        xaxis={"title": x_title} | scale.axis,
        yaxis=_rows_axis(len(shown)),
        shapes=[upright(1, {"color": LIGHT["soft"], "width": 1.5}), *scale.edge],
    )


@dataclass(frozen=True)
class _DotScale:
    """Where dots stand: those far off beyond an edge, as arrows with their numbers, a place for each task.

    Args:
        least: Smallest number, 1 at most.
        far: Tasks with dots far off, in order; none where no dot is, or where most are.
    """

    least: float
    far: tuple[str, ...]

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[float | None]]) -> _DotScale:
        known = {task: [one for one in values if one is not None] for task, values in columns.items()}
        every = [value for values in known.values() for value in values]
        is_usual_far = bool(every) and statistics.median(every) > FAR_MULTIPLE
        far = (
            ()
            if is_usual_far
            else tuple(task for task in known if max(known[task], default=0) > FAR_MULTIPLE)
        )
        return cls(min([1.0, *every]), far)

    def _is_far(self, value: float | None) -> bool:
        return bool(self.far) and value is not None and value > FAR_MULTIPLE

    def symbol(self, value: float | None) -> str:
        return "triangle-right" if self._is_far(value) else "circle"

    def text(self, value: float | None) -> str:
        return f"{value:,.3g}" if self._is_far(value) else ""

    def place(self, value: float | None, task: str) -> float | None:
        return self._slot(self.far.index(task) + 0.2) if self._is_far(value) else value

    @property
    def axis(self) -> dict[str, Any]:
        """Return range and ticks of the axis; nothing where it can be left to the chart."""
        if not self.far:
            return {}
        step = 0.1 if self.least > 0.7 else 0.25
        first, last = math.ceil(self.least / step), round(FAR_MULTIPLE / step)
        ticks = [round(step * number, 2) for number in range(first, last + 1)]
        start = self.least - 0.05 * (FAR_MULTIPLE - self.least)
        return {
            "range": [start, self._slot(len(self.far))],
            "tickvals": ticks,
            "ticktext": [f"{tick:g}" for tick in ticks],
        }

    @property
    def edge(self) -> list[dict[str, Any]]:
        """Return the line beyond which nothing is to scale."""
        style = {"color": LIGHT["other"], "width": 1, "dash": "dot"}
        return [upright(FAR_MULTIPLE + 0.01, style)] if self.far else []

    def _slot(self, number: float) -> float:
        return FAR_MULTIPLE + number * 0.2 * (FAR_MULTIPLE - self.least)


def multiples_figure(
    rows: Sequence[LeaderboardRow], *, x_title: str, is_against_best: bool = False
) -> go.Figure:
    """Draw each series' errors from top to bottom, as multiples of a baseline's; hollow dots may be luck.

    Args:
        rows: Of the leaderboard.
        x_title: Title of the scale.
        is_against_best: Whether the baseline is the best one of each task; else it is naive.
    """

    def against(score: TaskScore | None) -> Against | None:
        if score is None:
            return None
        return score.best if is_against_best else score.naive

    scores = {task: [against(row.tasks.get(task)) for row in rows] for task in summarise(rows)}
    multiples = {task: [one.multiple if one else None for one in those] for task, those in scores.items()}
    is_sure = {task: [bool(one and one.is_significant) for one in those] for task, those in scores.items()}
    return dot_figure([row.series for row in rows], multiples, x_title=x_title, is_sure=is_sure)


def stage_figure(seconds: Mapping[str, Mapping[str, float]]) -> go.Figure:
    """Draw the wall time of every stage as stacked bars: per row, from top to bottom, seconds per stage."""
    names = list(seconds)
    stages = list(dict.fromkeys(stage for one in seconds.values() for stage in one))
    traces = [
        go.Bar(
            orientation="h",
            name=html.escape(stage.replace("_", " ")),
            y=[html.escape(name) for name in names],
            x=[round(seconds[name].get(stage, 0.0), 4) for name in names],
            marker={"color": STAGES[place % len(STAGES)]},
            hovertemplate="%{y}: %{x:.2f} s",
        )
        for place, stage in enumerate(stages)
    ]
    return base_figure(
        traces,
        height=150 + _ROW_HEIGHT * len(names),
        barmode="stack",
        legend={"traceorder": "normal"},
        xaxis={"title": "seconds"},
        yaxis=_rows_axis(len(names)),
    )


def season_figure(
    rows: Mapping[str, Mapping[str, float | None]], columns: Mapping[str, str], notes: Mapping[str, str]
) -> go.Figure:
    """Draw skills as a map: blue where a model is better than its rival, orange where it is worse.

    Args:
        rows: Per row, from top to bottom, the skill of each column, in %; None or absent where there is none.
        columns: What stands below each column, of our own words.
        notes: What the tooltip says of each column.
    """
    names = [html.escape(name) for name in rows]
    values = [[those.get(column) for column in columns] for those in rows.values()]
    texts = [["" if value is None else f"{value:+.1f}" for value in those] for those in values]
    known = [abs(value) for those in values for value in those if value is not None]
    far = min(max([1.0, *known]), MOST_SKILL_PCT)
    heat = go.Heatmap(
        x=list(range(len(columns))),
        y=names,
        z=values,
        text=texts,
        customdata=[[notes[column] for column in columns] for _ in names],
        hovertemplate="%{y}, %{customdata}: %{z:+.2f} %<extra></extra>",
        zmin=-far,
        zmax=far,
        colorscale=[[0, LIGHT["orange"]], [0.5, LIGHT["card"]], [1, LIGHT["blue"]]],
        showscale=False,
        xgap=2,
        ygap=2,
    )
    if len(columns) <= MOST_TOLD_COLUMNS:
        heat.update(texttemplate="%{text}", textfont={"size": 11})
    ticks = {"tickvals": list(range(len(columns))), "ticktext": list(columns.values())}
    return base_figure(
        [heat],
        height=90 + _ROW_HEIGHT * len(names),
        xaxis={"title": "fold, in the order of time", "showgrid": False, "zeroline": False} | ticks,
        yaxis=_rows_axis(len(names)) | {"showgrid": False},
    )


def upright(x: float, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line from the bottom to the top of a chart."""
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": dict(line)}


def base_figure(
    traces: Sequence[Any], *, legend: Mapping[str, Any] | None = None, **layout: Any
) -> go.Figure:
    """Put traces on the common ground of all charts: nothing but the palette's colours."""
    plain = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": LIGHT["soft"]}}
    hover = {"bgcolor": LIGHT["card"], "bordercolor": LIGHT["rule"]}
    axes = {name: _AXIS | about for name, about in layout.items() if name.startswith(("xaxis", "yaxis"))}
    return go.Figure(
        traces,
        {
            "template": {},
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "paper_bgcolor": _CLEAR,
            "plot_bgcolor": _CLEAR,
            "font": {"color": LIGHT["ink"], "family": "system-ui, sans-serif", "size": 12},
            "modebar": {"bgcolor": _CLEAR, "color": LIGHT["other"], "activecolor": LIGHT["ink"]},
            "hoverlabel": hover | {"font": {"color": LIGHT["ink"]}},
            "legend": plain | dict(legend or {}),
            **layout,
            **axes,
        },
    )


def line(name: str, points: Points, style: Mapping[str, Any], **more: Any) -> go.Scatter:
    """Draw a line that breaks where its points do."""
    shown = {"mode": "lines", "connectgaps": False} | more
    return go.Scatter(shown, name=name, legendgroup=name, x=points[0], y=points[1], line=dict(style))


def _rows_axis(num_rows: int) -> dict[str, Any]:
    """Return the axis of named rows, the first on top, without room for a row that is not there."""
    return {"type": "category", "range": [num_rows - 0.5, -0.5], "dtick": 1, "tickfont": {"size": 12}}


def _error_line(
    judgements: Iterable[Judgement], task: str, name: str, style: Mapping[str, Any]
) -> go.Scatter:
    judged = [one for one in judgements if name in one.errors[task]]
    errors, naive = ([one.error(task, each).by_step for one in judged] for each in (name, NAIVE))
    rows = [
        [ours / theirs if theirs else None for ours, theirs in zip(*pair, strict=True)]
        for pair in zip(errors, naive, strict=True)
    ]
    ratios, sizes = _medians(rows), _medians(errors)
    is_dotted = name == MODEL or len(ratios) == 1
    is_far = name != MODEL and any(ratio is not None and ratio > FAR_MULTIPLE for ratio in ratios)
    return line(
        html.escape(name.replace("_", " ")),
        (list(range(1, len(ratios) + 1)), [ratio and float(f"{ratio:.6g}") for ratio in ratios]),
        style,
        connectgaps=True,
        visible="legendonly" if is_far else True,
        mode="lines+markers" if is_dotted else "lines",
        customdata=[size and float(f"{100 * size:.6g}") for size in sizes],
        hovertemplate="%{y:.3f} (%{customdata:.4f} %)",
    )


def _medians(rows: Iterable[Sequence[float | None]]) -> list[float | None]:
    """Return the median of every step that all rows have, over those with a number there."""
    steps = ([value for value in step if value is not None] for step in zip(*rows, strict=False))
    return [statistics.median(step) if step else None for step in steps]
