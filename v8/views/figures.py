"""The charts of reports, each specified once: for the page, PNG files and a notebook. Times are UTC."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pandas as pd

from v8.artifacts.series_artifact import ForecastSample, IssuedForecast, Rows
from v8.columns import BB_LOWER, BB_UPPER, CLOSE, HIGH, LOW, OHLC, TASK_BANDS, TASK_OHLC
from v8.features.table import compute_columns
from v8.formulas.baselines import BASELINES, NAIVE
from v8.losses.judgement import MODEL, Judgement
from v8.losses.leaderboard import History, LeaderboardRow, summarise
from v8.losses.table import Against
from v8.market.candles import Candles
from v8.quantile_levels import MEDIAN, intervals, levels_of, nominal, percent_of, quantile_column
from v8.tasks import TASKS, Task
from v8.views import charts
from v8.views.charts import Axis, Chart, Fan, Line, Mark, Rule

Points = tuple[list[Any], list[Any]]
"""x and y of a line; None in both breaks it."""

FAR_MULTIPLE: Final = 1.5
"""What errs more than so many times naive is not drawn to scale, which would hide the others: a baseline
waits in the legend, a dot stands at the edge with its number."""

MOST_SKILL_PCT: Final = 10.0
"""Skills beyond this have the strongest colour of a map."""

MOST_TOLD_COLUMNS: Final = 8
"""Columns of a map whose numbers fit into its cells on a telephone."""

SHOWN_BARS: Final = 60
"""Known candles in the chart of one forecast; more become too thin to see."""

_NUM_TICKS: Final = 7
_ROW_HEIGHT: Final = 22


def error_figure(judgements: Sequence[Judgement], task: str) -> Chart:
    """Draw the mean absolute error by step of the model and of every baseline, as multiples of naive's.

    The error itself, in per cent, stands in the tooltip: it grows with the step for everybody. Baselines
    far off are hidden until their name in the legend is clicked. Of several series, all of which have the
    task, the median is drawn, as far as all go.
    """
    lines = [
        _error_line(judgements, task, name, charts.line_style(place))
        for place, name in enumerate(BASELINES)
        if any(name in one.errors[task] for one in judgements)
    ]
    lines.append(_error_line(judgements, task, MODEL, {"colour": "blue", "width": 3.5}))
    x, y = Axis("steps ahead", most_ticks=11), Axis("error ÷ naive")
    return Chart(lines, 330, x, y, tells_all_at_x=True, has_legend_below=True)


def _error_line(judgements: Iterable[Judgement], task: str, name: str, style: Mapping[str, Any]) -> Line:
    judged = [one for one in judgements if name in one.errors[task]]
    errors, naive = ([one.error(task, each).by_step for one in judged] for each in (name, NAIVE))
    rows = [
        [ours / theirs if theirs else None for ours, theirs in zip(*pair, strict=True)]
        for pair in zip(errors, naive, strict=True)
    ]
    ratios, sizes = _medians(rows), _medians(errors)
    return Line(
        name.replace("_", " "),
        list(range(1, len(ratios) + 1)),
        [ratio and float(f"{ratio:.6g}") for ratio in ratios],
        **style,
        joins_gaps=True,
        is_far=name != MODEL and any(ratio is not None and ratio > FAR_MULTIPLE for ratio in ratios),
        mode="lines+markers" if name == MODEL or len(ratios) == 1 else "lines",
        notes=[size and float(f"{100 * size:.6g}") for size in sizes],
        told="%{y:.3f} (%{customdata:.4f} %)",
    )


def _medians(rows: Iterable[Sequence[float | None]]) -> list[float | None]:
    """Return the median of every step that all rows have, over those with a number there."""
    steps = ([value for value in step if value is not None] for step in zip(*rows, strict=False))
    return [statistics.median(step) if step else None for step in steps]


def learning_figure(history: History, best_epoch: int) -> Chart:
    """Draw train and validation loss of at least one epoch; mark the one kept, 0 is the untrained network."""
    epochs, mode = [int(one["epoch"]) for one in history], "lines" if len(history) > 1 else "markers"
    lines = [
        Line(
            name, epochs, [one[f"{name}_loss"] for one in history], colour, width, mode=mode, told="%{y:.5f}"
        )
        for name, colour, width in (("train", "other", 1.5), ("validation", "blue", 3))
    ]
    x, y = Axis("epoch", step=max(1, -(-len(history) // 10))), Axis("loss, scaled units")
    mark = Rule(best_epoch, "orange", dash="dash", label=f"best: {best_epoch}")
    return Chart(lines, 290, x, y, rules=[mark], tells_all_at_x=True)


def relative_losses_figure(histories: Iterable[History]) -> Chart:
    """Draw validation losses as multiples of their first epoch's; series without any are left out."""
    lines = []
    for history in (one for one in histories if one):
        first = history[0]["validation_loss"] or 1.0
        points = [one["epoch"] for one in history], [one["validation_loss"] / first for one in history]
        mode = "lines+markers" if len(history) < 3 else "lines"
        lines.append(Line("", *points, "blue", mode=mode, opacity=0.5))
    x = Axis(f"epoch; one line for each of {len(lines)} series")
    return Chart(lines, 330, x, rules=[Rule(1, "other", is_level=True)], has_legend=False)


def dot_figure(
    names: Sequence[str],
    columns: Mapping[str, Sequence[float | None]],
    *,
    x_title: str,
    is_sure: Mapping[str, Sequence[bool]] | None = None,
) -> Chart:
    """Draw one dot per row, from top to bottom, and task on a common scale whose reference is 1.

    A row without a number has None. Those far off stand beyond an edge, a place for each task, unless most
    are. Dots that are not sure are hollow; None fills all.
    """
    known = {task: [one for one in values if one is not None] for task, values in columns.items()}
    every = [value for values in known.values() for value in values]
    is_usual_far = bool(every) and statistics.median(every) > FAR_MULTIPLE
    far = [task for task in known if max(known[task], default=0) > FAR_MULTIPLE and not is_usual_far]
    least = min([1.0, *every])
    dots = []
    for task, values in columns.items():
        is_far = [task in far and value is not None and value > FAR_MULTIPLE for value in values]
        slot = _slot(least, far.index(task) + 0.2) if task in far else None
        x = [slot if beyond else value for value, beyond in zip(values, is_far, strict=True)]
        filled = is_sure[task] if is_sure else [True] * len(names)
        about = TASKS[task]
        dots.append(charts.Dots(about.title, x, list(names), about.colour, values, filled, is_far))
    edge = [Rule(FAR_MULTIPLE + 0.01, "other", 1, "dot")] if far else []
    return Chart(
        dots,
        130 + _ROW_HEIGHT * len(names),
        _dot_axis(x_title, least, len(far)),
        Axis.of_rows(len(names)),
        rules=[Rule(1, "soft"), *edge],
    )


def _dot_axis(title: str, least: float, num_far: int) -> Axis:
    """Return an axis that has room for the tasks with dots far off."""
    if not num_far:
        return Axis(title)
    step = 0.1 if least > 0.7 else 0.25
    first, last = math.ceil(least / step), round(FAR_MULTIPLE / step)
    ticks = [round(step * number, 2) for number in range(first, last + 1)]
    start = least - 0.05 * (FAR_MULTIPLE - least)
    return Axis(title, (start, _slot(least, num_far)), {tick: f"{tick:g}" for tick in ticks})


def _slot(least: float, number: float) -> float:
    """Return a place beyond the edge."""
    return FAR_MULTIPLE + number * 0.2 * (FAR_MULTIPLE - least)


def multiples_figure(rows: Sequence[LeaderboardRow], *, x_title: str, is_against_best: bool = False) -> Chart:
    """Draw series' errors as multiples of naive's or of the best baseline's; hollow dots may be luck."""
    kind, tasks = "best" if is_against_best else "naive", summarise(rows)
    scores: dict[str, list[Against | None]] = {
        task: [getattr(row.tasks.get(task), kind, None) for row in rows] for task in tasks
    }
    multiples = {task: [one.multiple if one else None for one in those] for task, those in scores.items()}
    is_sure = {task: [bool(one and one.is_significant) for one in those] for task, those in scores.items()}
    return dot_figure([row.series for row in rows], multiples, x_title=x_title, is_sure=is_sure)


def stage_figure(seconds: Mapping[str, Mapping[str, float]]) -> Chart:
    """Draw the wall time of every stage as stacked bars: per row, from top to bottom, seconds per stage."""
    names = list(seconds)
    bars = [
        charts.Bars(
            stage.replace("_", " "),
            [round(seconds[name].get(stage, 0.0), 4) for name in names],
            names,
            charts.STAGES[place % len(charts.STAGES)],
            told="%{y}: %{x:.2f} s",
        )
        for place, stage in enumerate(dict.fromkeys(stage for one in seconds.values() for stage in one))
    ]
    return Chart(bars, 150 + _ROW_HEIGHT * len(names), Axis("seconds"), Axis.of_rows(len(names)))


def season_figure(
    rows: Mapping[str, Mapping[str, float | None]], columns: Mapping[str, str], notes: Mapping[str, str]
) -> Chart:
    """Draw skills, in %, as a map: blue where a model is better than its rival, orange where it is worse.

    Rows, from top to bottom, lack columns or hold None where there is no skill. Of each column there are the
    words below it and those of its tooltip.
    """
    cells = [[those.get(column) for column in columns] for those in rows.values()]
    known = [abs(value) for those in cells for value in those if value is not None]
    heat = charts.Heat(
        list(rows),
        cells,
        far=min(max([1.0, *known]), MOST_SKILL_PCT),
        notes=[notes[column] for column in columns],
        told="%{y}, %{customdata}: %{z:+.2f} %<extra></extra>",
        has_numbers=len(columns) <= MOST_TOLD_COLUMNS,
    )
    ticks = {float(place): text for place, text in enumerate(columns.values())}
    x = Axis("fold, in the order of time", ticks=ticks, has_grid=False, has_zero=False)
    return Chart([heat], 90 + _ROW_HEIGHT * len(rows), x, Axis.of_rows(len(rows), has_grid=False))


def forecast_figure(
    sample: ForecastSample,
    *,
    places: Sequence[Any] | None = None,
    has_candles: bool = False,
    known: str = "truth",
) -> Chart:
    """Draw candles, with forecasts beside what they followed on and, where it is known, the truth.

    Other tasks are drawn where the model has them, unitless ones in a panel below. `places` are where rows
    stand on the axis, also those only forecast; None is their open time. Forecasts are hollow candles, or
    else closes within fans from low to high. `known` names the candles that are no forecast.
    """
    times = (datetime.fromtimestamp(time_s, UTC) for time_s in sample.open_time_s)
    x = [f"{time:%Y-%m-%d %H:%M}" for time in times] if places is None else list(places)
    others = [task for name, task in TASKS.items() if name in sample.truth and name != TASK_OHLC]
    below = [task for task in others if not task.is_price]
    marks: list[Mark] = [charts.Candles(known, x[: len(sample.open_time_s)], sample.truth[TASK_OHLC])]
    marks += [each for task in others if task.is_price for each in _task_lines(sample, task, x)]
    marks += (_hollow if has_candles else _closes)(sample, x)
    for each in (each for task in below for each in _task_lines(sample, task, x)):
        marks.append(replace(each, is_below=True, is_named=False))
    titled = ", ".join(task.name for task in below)
    panel = Axis(titled, form=charts.SHARES, most_ticks=4) if below else None
    price, time = Axis("price", form=",.6~g"), Axis(kind="date" if places is None else None)
    return Chart(marks, 460 if below else 360, time, price, panel, tells_all_at_x=True)


def _closes(sample: ForecastSample, x: Sequence[Any]) -> Iterator[Mark]:
    """Draw a fan per forecast, opening at the last known close, and the close in it.

    The fan is the intervals of the close, or low to high where the model has none.
    """
    if intervals(sample.levels):
        yield from _interval_fans(sample, x)
    else:  # nobody said how often the truth would stay within
        yield _fan(sample, x, "forecast low to high (no interval)", (HIGH, LOW), start=CLOSE)
    points = _broken(_paths(sample, x, CLOSE))
    yield Line("forecast, close", *points, "blue", 2.5, mode="lines+markers", size=3)


def _hollow(sample: ForecastSample, x: Sequence[Any]) -> Iterator[Mark]:
    """Draw forecasts as candles of their own, within the bands forecast and the intervals of the close."""
    yield from _interval_fans(sample, x)
    for one in sample.issued:
        rows = one.values[TASK_OHLC]
        yield charts.Candles("forecast", x[one.last_known + 1 :][: len(rows)], rows, "blue")
    if TASK_BANDS in sample.truth:
        yield replace(_fan(sample, x, "forecast band to band", (BB_UPPER, BB_LOWER)), is_named=False)


def _fan(
    sample: ForecastSample, x: Sequence[Any], name: str, columns: tuple[str, str], start: str | None = None
) -> Fan:
    """Fill the room between an upper and a lower column of every forecast, from what was known on."""
    uppers, lowers = (_paths(sample, x, column, start) for column in columns)
    edges = [
        ([*times, *reversed(times)], [*upper, *reversed(lower)])
        for (times, upper), (_, lower) in zip(uppers, lowers, strict=True)
    ]
    return Fan(name, *_broken(edges))


def _interval_fans(sample: ForecastSample, x: Sequence[Any]) -> Iterator[Fan]:
    """Fill each central interval of the close, the widest first, from the last known close on."""
    close, known = OHLC.index(CLOSE), _column(sample.truth, CLOSE)
    for pair in intervals(sample.levels):
        edges = []
        for one in sample.issued:
            rows = one.quantiles[TASK_OHLC]
            low, high = ([row[close] for row in rows[sample.levels.index(level)]] for level in pair)
            times = list(x[one.last_known :][: len(low) + 1])
            start = known[one.last_known]
            edges.append(([*times, *reversed(times)], [start, *high, *reversed(low), start]))
        yield Fan(f"close, {percent_of(nominal(pair))} % interval", *_broken(edges))


def _task_lines(sample: ForecastSample, task: Task, x: Sequence[Any]) -> Iterator[Line]:
    """Draw truth and forecasts of each column of a task; a lone point is joined to what was known."""
    widths, dash = ((1.0, 2.0), "dash") if task.is_price else ((1.5, 2.5), None)
    for column in task.columns:
        is_named = column == task.columns[0]
        name = task.name if task.is_price else f"{task.name}, truth"
        truth = list(x[: len(sample.truth[task.name])]), _column(sample.truth, column)
        yield Line(name, *truth, "other", widths[0], is_named=is_named, joins_gaps=True)
        forecasts = _broken(_paths(sample, x, column))
        yield Line(f"{task.name}, forecast", *forecasts, task.colour, widths[1], dash, is_named=is_named)


def _paths(sample: ForecastSample, x: Sequence[Any], column: str, start: str | None = None) -> list[Points]:
    """Return a column of every forecast, led off from the last known value of itself, or of `start`."""
    known = _column(sample.truth, start or column)
    return [
        (list(x[one.last_known :][: len(values) + 1]), [known[one.last_known], *values])
        for one, values in ((one, _column(one.values, column)) for one in sample.issued)
    ]


def _broken(paths: Iterable[Points]) -> Points:
    """Put paths into one line with a break after each."""
    found = list(paths)
    x, y = ([value for path in found for value in (*path[axis], None)] for axis in (0, 1))
    return x, y


def _column(rows_by_task: Mapping[str, Rows], column: str) -> list[Any]:
    task = next(task for task in TASKS.values() if column in task.columns)
    return [row[task.columns.index(column)] for row in rows_by_task[task.name]]


def issued_on_the_way(sample: ForecastSample) -> Chart:
    """Draw candles and the forecasts issued on the way; bars are numbered, the last one is 0."""
    candles = replace(
        sample,
        truth={TASK_OHLC: sample.truth[TASK_OHLC]},
        issued=tuple(replace(one, values={TASK_OHLC: one.values[TASK_OHLC]}) for one in sample.issued),
    )
    times = [datetime.fromtimestamp(time_s, UTC) for time_s in sample.open_time_s]
    title = f"open times in UTC, bars of {sample.bar_s // 60} minutes"
    x = Axis(title, ticks=_date_ticks(times, 1 - len(times)))
    return replace(forecast_figure(candles, places=range(1 - len(times), 1)), x=x)


def issued_figure(candles: Candles, forecast: pd.DataFrame) -> Chart:
    """Draw a forecast, H rows of `Forecaster.predict`, beside the newest of the N candles before it.

    Bars are numbered, the newest known one 0; the ticks below tell their times.
    """
    shown = candles.newest(SHOWN_BARS)
    num_known, num_coming = len(shown), len(forecast)
    places = range(1 - num_known, num_coming + 1)
    sample = _sample(candles, shown, forecast)
    chart = forecast_figure(sample, places=places, has_candles=True, known="known")
    times = [*shown.to_frame().index, *forecast.index]
    ticks = _date_ticks(times, 1 - num_known)
    return replace(
        chart,
        x=Axis(ends=(-num_known, num_coming + 1), ticks=ticks, has_grid=False),
        y=replace(chart.y, title="price, quote currency"),
        below=replace(chart.below, is_from_zero=True) if chart.below else None,
        rules=[Rule(0.5, "soft", 1, "dot"), Rule(0.5, "blue", until=num_coming + 1)],
    )


def _date_ticks(times: Sequence[datetime], first: int) -> dict[float, str]:
    """Tell times below an axis of numbered bars, the first of which has the number `first`."""
    ticks = np.unique(np.linspace(0, len(times) - 1, _NUM_TICKS).round().astype(int)).tolist()
    return {tick + first: f"{times[tick]:%d %b %Y<br>%H:%M}" for tick in ticks}


def _sample(candles: Candles, shown: Candles, forecast: pd.DataFrame) -> ForecastSample:
    """Put what is known and one forecast after it side by side; nan where too little came before."""
    tasks = [task for task in TASKS.values() if set(task.columns) <= set(forecast.columns)]
    others = [column for task in tasks if task.name != TASK_OHLC for column in task.columns]
    known = shown.to_frame()
    for name, (values,) in compute_columns(candles, others).runs.items():
        known[name] = values[-len(shown) :]
    truth, coming = ({task.name: _rows(frame, task.columns) for task in tasks} for frame in (known, forecast))
    levels = levels_of(forecast.columns, CLOSE)
    quantiles = {
        task.name: tuple(_rows(forecast, _quantile_columns(task, level)) for level in levels)
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


def _rows(frame: pd.DataFrame, columns: Iterable[str]) -> Rows:
    return tuple(map(tuple, frame[list(columns)].to_numpy(np.float64).tolist()))


def _quantile_columns(task: Task, level: float) -> list[str]:
    return [name if level == MEDIAN else quantile_column(name, level) for name in task.columns]
