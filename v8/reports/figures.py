"""The charts of reports, each specified once: for the page, PNG files and a notebook. Times are UTC."""

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pandas as pd

from v8.artifacts.series_artifact import ForecastSample, Rows
from v8.baselines.baselines import BASELINES, NAIVE
from v8.columns import BB_LOWER, BB_UPPER, CLOSE, HIGH, LOW, OHLC, TASK_OHLC
from v8.evaluation.evaluation import MODEL, Evaluation
from v8.evaluation.leaderboard import LeaderboardRow, TrainingHistory, compared, median
from v8.evaluation.significance import is_equal
from v8.features.table import compute_columns
from v8.language import say, term
from v8.market.candles import Candles
from v8.quantile_levels import intervals, levels_of, nominal, percent_of, quantile_column
from v8.reports import charts
from v8.reports.charts import Chart, Json, axis, rule
from v8.tasks import TASKS, Task

Points = tuple[list[Any], list[Any]]
"""x and y of a line; None in both breaks it."""

FAR_MULTIPLE: Final = 1.5
"""A baseline that errs more than so many times naive waits in the legend: it would hide the others."""

FAR_PCT: Final = 50.0
"""A dot of a larger difference than so many per cent stands at the edge, unless most of its row do."""

SHOWN_BARS: Final = 60
"""Known candles in the chart of one forecast; more become too thin to see."""

_NAMED_ROWS: Final[Json] = {"type": "category", "dtick": 1, "tickfont": {"size": 12}}
"""An axis of rows, the first on top, without room for a row that is not there."""

_NUM_TICKS: Final = 7
_ROW_HEIGHT: Final = 44


def error_figure(evaluation: Evaluation, task: str) -> Chart:
    """Draw the mean absolute error by step of the model and of every baseline, as multiples of naive's.

    The error itself, in per cent, stands in the tooltip: it grows with the step for everybody. Baselines
    far off are hidden until their name in the legend is clicked.
    """
    styles = {name: charts.line_style(place) for place, name in enumerate(BASELINES)}
    styles[MODEL] = {"color": "$blue", "width": 3.5}
    shown = {name: style for name, style in styles.items() if name in evaluation.errors[task]}
    lines = [_error_line(evaluation, task, name, style) for name, style in shown.items()]
    x = axis(say("steps ahead"), nticks=11)
    y = axis(say("error ÷ naive"))
    return Chart(lines, 330, x, y, tells_all_at_x=True, has_legend_below=True)


def _error_line(evaluation: Evaluation, task: str, name: str, style: Json) -> Json:
    errors, naive = (evaluation.error(task, each).by_step for each in (name, NAIVE))
    ratios = [ours / theirs if theirs else None for ours, theirs in zip(errors, naive, strict=True)]
    is_far = name != MODEL and any(ratio is not None and ratio > FAR_MULTIPLE for ratio in ratios)
    return charts.line(
        term(name.replace("_", " ")),
        range(1, len(ratios) + 1),
        [ratio and float(f"{ratio:.6g}") for ratio in ratios],
        style,
        connectgaps=True,
        visible="legendonly" if is_far else True,
        mode="lines+markers" if name == MODEL or len(ratios) == 1 else "lines",
        customdata=[float(f"{100 * error:.6g}") for error in errors],
        hovertemplate="%{y:.3f} (%{customdata:.4f} %)",
    )


def learning_figure(history: TrainingHistory, best_epoch: int) -> Chart:
    """Draw train and validation loss of at least one epoch; mark the one kept, 0 is the untrained network."""
    epochs = [int(one["epoch"]) for one in history]
    mode = "lines" if len(history) > 1 else "markers"
    lines = []
    for name, colour, width in (("train", "$other", 1.5), ("validation", "$blue", 3)):
        losses = [one[f"{name}_loss"] for one in history]
        style = {"color": colour, "width": width}
        lines.append(charts.line(term(name), epochs, losses, style, mode=mode, hovertemplate="%{y:.5f}"))
    x = axis(say("training epoch"), dtick=max(1, -(-len(history) // 10)))
    y = axis(say("loss, scaled units"))
    label: Json = {"text": say("best: {epoch}", epoch=best_epoch), "font": {"color": "$orange"}}
    label |= {"textangle": 0, "textposition": "end", "yanchor": "top"}
    label["xanchor"] = "left" if 2 * best_epoch <= len(history) else "right"
    mark = rule(best_epoch, "$orange", dash="dash") | {"label": label}
    return Chart(lines, 290, x, y, rules=[mark], tells_all_at_x=True)


class Dot(NamedTuple):
    """The model's error on a series, beside another forecast's."""

    name: str  # of the series
    change_pct: float  # by how many per cent it is larger
    is_sure: bool = True  # whether that is more than chance


def spread_figure(rows: Mapping[str, Sequence[Dot]], colours: Mapping[str, str], title: str = "") -> Chart:
    """Draw how much larger errors are than others', in %: rows from top to bottom, a dot a series.

    What may be luck is hollow. A diamond is the median of its row. Colours are names of the palette, by row.
    """
    middles = {row: median(dot.change_pct for dot in dots) or 0.0 for row, dots in rows.items() if dots}
    edge = max([FAR_PCT, *middles.values()])
    traces = []
    for row, dots in rows.items():
        shapes = ["circle" if dot.change_pct <= edge else "triangle-right" for dot in dots]
        symbols = [shape if dot.is_sure else f"{shape}-open" for shape, dot in zip(shapes, dots, strict=True)]
        texts = ["" if dot.change_pct <= edge else f"{dot.change_pct:+,.0f} %" for dot in dots]
        tips = [f"{html.escape(dot.name)}: {dot.change_pct:+,.2f} %" for dot in dots]
        tip = {"customdata": tips, "hovertemplate": "%{customdata}<extra></extra>", "hoverinfo": None}
        places = [min(dot.change_pct, edge) for dot in dots]
        traces.append(charts.marks(places, [row] * len(dots), texts, f"${colours[row]}", symbols, **tip))
    texts = [f"{round(middle, 1) + 0.0:+.1f} %" for middle in middles.values()]  # no minus before a zero
    diamonds = ["diamond-open"] * len(middles)
    traces.append(charts.marks([*middles.values()], [*middles], texts, "$ink", diamonds))
    x = axis(say("difference of errors, in %"), zeroline=False)
    y = axis(**_NAMED_ROWS, ends=(len(rows) - 0.5, -0.5))
    height = 110 + _ROW_HEIGHT * len(rows)
    rules = [rule(0, "$soft")]
    return Chart(traces, height, x, y, rules=rules, has_legend=False, title=title)


def verdict_figures(rows: Sequence[LeaderboardRow]) -> list[Chart]:
    """Draw a leaderboard: the errors of each task beside naive's, and beside the best formula's."""
    naive = {
        task: median(one.relative_mae for one in those.values()) or math.inf
        for (task, name), those in compared(rows).items()
        if name == "naive"
    }
    tasks = {term(TASKS[task].title): task for task in sorted(naive, key=naive.__getitem__)}
    colours = {title: TASKS[task].colour for title, task in tasks.items()}
    titles = {"naive": say("Error beside that of no change"), "best": say("Error beside the best formula's")}
    return [
        spread_figure({title: _dots(rows, task, kind) for title, task in tasks.items()}, colours, above)
        for kind, above in titles.items()
    ]


def _dots(rows: Iterable[LeaderboardRow], task: str, kind: str) -> list[Dot]:
    those = [(row.series, getattr(row.tasks[task], kind)) for row in rows if task in row.tasks]
    known = ((name, one) for name, one in those if one.relative_mae is not None)
    return [Dot(name, change_pct(one.relative_mae), one.is_significant) for name, one in known]


def change_pct(multiple: float) -> float:
    """Return by how many per cent an error is larger than another, of which it is a multiple.

    >>> change_pct(1.25), change_pct(1.0000000002)
    (25.0, 0.0)
    """
    return 0.0 if is_equal(multiple, 1.0) else 100.0 * (multiple - 1.0)


@dataclass(frozen=True)
class Forecasts:
    """Forecasts with what they followed on and, where it is known, the actual values; columns are by name."""

    x: Sequence[Any]  # where rows stand, also those only forecast
    known: Mapping[str, Sequence[float]]  # of the first N rows
    issued: Sequence[tuple[int, Mapping[str, Sequence[float]]]]  # the row each was issued after, and the next

    @classmethod
    def of(cls, sample: ForecastSample, x: Sequence[Any] | None = None) -> Self:
        """Take them from a sample; rows stand at their open times unless told otherwise."""
        times = (datetime.fromtimestamp(time_s, UTC) for time_s in sample.open_time_s)
        issued = []
        for one in sample.issued:
            columns = _columns(one.values)
            for task, quantiles in one.quantiles.items():
                for level, rows in zip(sample.levels, quantiles, strict=True):
                    named = _columns({task: rows}).items()
                    columns |= {quantile_column(name, level): values for name, values in named}
            issued.append((one.last_known, columns))
        return cls(x or [f"{time:%Y-%m-%d %H:%M}" for time in times], _columns(sample.actual), issued)

    def paths(self, column: str, start: str | None = None) -> list[Points]:
        """Return a column of every forecast, led off from the last known value of itself, or of `start`."""
        known = self.known[start or column]
        return [
            (list(self.x[last:][: 1 + len(rows[column])]), [known[last], *rows[column]])
            for last, rows in self.issued
        ]


def _columns(rows_by_task: Mapping[str, Rows]) -> dict[str, Sequence[float]]:
    named = ((TASKS[task].columns, zip(*rows, strict=True)) for task, rows in rows_by_task.items())
    return {column: values for names, each in named for column, values in zip(names, each, strict=True)}


def forecast_figure(shown: Forecasts, time: Json, *, has_candles: bool = False, known: str = "") -> Chart:
    """Draw candles, with forecasts beside what they followed on and, where it is known, the actual values.

    Other tasks are drawn where the model has them, unitless ones in a panel below. Forecasts are hollow
    candles, or else closes within fans from low to high. `known` names the candles that are no forecast,
    `time` is the axis below.
    """
    others = [task for task in TASKS.values() if task.name != TASK_OHLC and {*task.columns} <= {*shown.known}]
    below = [task for task in others if not task.is_price]
    traces = [charts.candles(known or say("actual"), shown.x, shown.known)]
    traces += [each for task in others if task.is_price for each in _task_lines(shown, task)]
    levels = levels_of(shown.issued[0][1], CLOSE)
    for pair in intervals(levels):  # the widest first
        low, high = (shown.paths(quantile_column(CLOSE, level), CLOSE) for level in pair)
        named = say("close, {share} interval", share=f"{percent_of(nominal(pair))} %")
        traces.append(_fan(named, high, low))
    if not levels and not has_candles:  # nobody said how often the actual values would stay within
        ends = (shown.paths(column, CLOSE) for column in (HIGH, LOW))
        traces.append(_fan(say("forecast low to high (no interval)"), *ends))
    if has_candles:
        traces += _hollow(shown)
    else:
        points = _broken(shown.paths(CLOSE))
        style = {"color": "$blue", "width": 2.5}
        close = say("forecast, close")
        marker = {"size": 3}
        traces.append(charts.line(close, *points, style, mode="lines+markers", marker=marker))
    for each in (each for task in below for each in _task_lines(shown, task)):
        traces.append(each | {"showlegend": False, "yaxis": "y2"})
    titled = ", ".join(term(task.title) for task in below)
    panel = axis(titled, nticks=4, tickformat=charts.SHARES) if below else None
    price = axis(say("price"), tickformat=",.6~g")
    return Chart(traces, 460 if below else 360, time, price, panel, tells_all_at_x=True)


def sample_figure(sample: ForecastSample) -> Chart:
    """Draw the forecasts of a sample below their dates."""
    time = axis(type="date", tickformat="%m-%d<br>%H:%M", hoverformat="%Y-%m-%d %H:%M")
    return forecast_figure(Forecasts.of(sample), time)


def _hollow(shown: Forecasts) -> Iterator[Json]:
    """Draw forecasts as candles of their own, within the bands forecast."""
    for last, rows in shown.issued:
        yield charts.candles("forecast", shown.x[last + 1 :], rows, "$blue")
    if BB_UPPER in shown.known:
        ends = (shown.paths(column) for column in (BB_UPPER, BB_LOWER))
        yield _fan("forecast band to band", *ends, showlegend=False)


def _fan(name: str, uppers: Iterable[Points], lowers: Iterable[Points], **more: Any) -> Json:
    """Fill the room between an upper and a lower path of every forecast."""
    edges = [
        ([*times, *reversed(times)], [*upper, *reversed(lower)])
        for (times, upper), (_, lower) in zip(uppers, lowers, strict=True)
    ]
    line = charts.line(name, *_broken(edges), {"color": "$blue", "width": 0}, **more)
    return line | {"fill": "toself", "fillcolor": "$fan", "hoverinfo": "skip"}


def _task_lines(shown: Forecasts, task: Task) -> Iterator[Json]:
    """Draw actual values and forecasts of each column of a task; a lone point is joined to what was known."""
    thin, thick, dash = (1.0, 2.0, "dash") if task.is_price else (1.5, 2.5, None)
    title = term(task.title)
    for column in task.columns:
        more: Json = {} if column == task.columns[0] else {"showlegend": False}
        name = title if task.is_price else say("{task}, actual values", task=title)
        points = shown.x[: len(shown.known[column])], shown.known[column]
        yield charts.line(name, *points, {"color": "$other", "width": thin}, connectgaps=True, **more)
        style = {"color": f"${task.colour}", "width": thick, "dash": dash}
        named = say("{task}, forecast", task=title)
        yield charts.line(named, *_broken(shown.paths(column)), style, **more)


def _broken(paths: Iterable[Points]) -> Points:
    """Put paths into one line with a break after each."""
    found = list(paths)
    x, y = ([value for path in found for value in (*path[part], None)] for part in (0, 1))
    return x, y


def issued_on_the_way(sample: ForecastSample) -> Chart:
    """Draw candles and the forecasts issued on the way; bars are numbered, the last one is 0."""
    times = [datetime.fromtimestamp(time_s, UTC) for time_s in sample.open_time_s]
    shown = Forecasts.of(sample, range(1 - len(times), 1))
    candles = replace(shown, known={name: shown.known[name] for name in OHLC})
    title = f"open times in UTC, bars of {sample.bar_s // 60} minutes"
    return forecast_figure(candles, axis(title, ticks=_date_ticks(times, 1 - len(times))))


def issued_figure(candles: Candles, forecast: pd.DataFrame) -> Chart:
    """Draw a forecast, H rows of `Forecaster.predict`, beside the newest of the N candles before it.

    Bars are numbered, the newest known one 0; the ticks below tell their times.
    """
    newest = candles.newest(SHOWN_BARS).to_frame()
    first = 1 - len(newest)
    end = len(forecast) + 1
    every = [name for task in TASKS.values() for name in task.columns if name in forecast]
    for name, (values,) in compute_columns(candles, [name for name in every if name not in OHLC]).items():
        newest[name] = values[-len(newest) :]  # nan where too little came before
    shown = Forecasts(range(first, end), _by_name(newest), [(len(newest) - 1, _by_name(forecast))])
    ticks = _date_ticks([*newest.index, *forecast.index], first)
    time = axis(ends=(first - 1, end), ticks=ticks, showgrid=False)
    chart = forecast_figure(shown, time, has_candles=True, known="known")
    shade = {"type": "rect", "x0": 0.5, "x1": end, "yref": "paper", "y0": 0, "y1": 1}
    shade |= {"line": {"width": 0}, "fillcolor": "$blue", "opacity": 0.04}
    return replace(
        chart,
        y=chart.y | {"title": {"text": "price, quote currency"}},
        below=chart.below | {"rangemode": "tozero"} if chart.below else None,
        rules=[rule(0.5, "$soft", 1, "dot"), shade],
    )


def _by_name(frame: pd.DataFrame) -> dict[str, Sequence[float]]:
    return {str(name): values.astype(np.float64).tolist() for name, values in frame.items()}


def _date_ticks(times: Sequence[datetime], first: int) -> dict[float, str]:
    """Tell times below an axis of numbered bars, the first of which has the number `first`."""
    ticks = np.unique(np.linspace(0, len(times) - 1, _NUM_TICKS).round().astype(int)).tolist()
    return {tick + first: f"{times[tick]:%d %b %Y<br>%H:%M}" for tick in ticks}
