"""The charts of reports, each specified once for the page, PNG files and notebooks. Times are UTC."""

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from v8.base.wording import say, term
from v8.data.features import compute_columns
from v8.data.market.candles import Candles
from v8.forecaster.series_artifact import ForecastSample, Rows
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.model.evaluation.evaluation import MODEL, Evaluation, QuantileEvaluation
from v8.model.evaluation.leaderboard import LeaderboardRow, TrainingHistory, compared, median
from v8.model.evaluation.significance import is_equal
from v8.profile.columns import (
    BB_LOWER,
    BB_UPPER,
    CLOSE,
    HIGH,
    LOW,
    OHLC,
    TASK_OHLC,
    intervals,
    levels_of,
    nominal,
    percent_of,
    quantile_column,
)
from v8.profile.tasks import TASKS, Task
from v8.publish.report import charts
from v8.publish.report.charts import Chart, Json, axis, rule

Points = tuple[list[Any], list[Any]]
"""x and y of a line; None in both breaks it."""

FAR_MULTIPLE: Final = 1.5
"""A baseline whose MAE relative to naive is larger is hidden at first: it would flatten the
others."""

FAR_PCT: Final = 50.0
"""A dot of a larger difference than so many per cent is drawn at the edge, unless the median of a row is."""

SHOWN_BARS: Final = 60
"""Known candles in the chart of one forecast; more become too thin to see."""

_NAMED_ROWS: Final[Json] = {"type": "category", "dtick": 1, "tickfont": {"size": 12}}
"""An axis of named rows, the first on top, without space for a row that does not exist."""

_NUM_TICKS: Final = 7
_PRICES: Final = ",.6~g"  # format of the ticks of an axis of prices
_ROW_HEIGHT: Final = 44  # pixels


def error_figure(evaluation: Evaluation, task: str) -> Chart:
    """Draw the mean absolute error by step of the model and of every baseline, relative to naive's.

    The tooltip shows the error itself, in per cent: it grows with the step for every forecast. Baselines with
    far larger errors are hidden until their name in the legend is clicked.
    """
    styles = {name: charts.line_style(place) for place, name in enumerate(BASELINES)}
    styles[MODEL] = {"color": "$blue", "width": 3.5}
    errors = evaluation.errors[task]
    lines = [_error_line(evaluation, task, name, style) for name, style in styles.items() if name in errors]
    x = axis(say("steps ahead"), nticks=11)
    y = axis(say("error ÷ naive"))
    return Chart(lines, 330, x, y, tells_all_at_x=True, has_legend_below=True)


def _error_line(evaluation: Evaluation, task: str, name: str, style: Json) -> Json:
    errors = evaluation.error(task, name).by_step
    naive_errors = evaluation.error(task, NAIVE).by_step
    ratios = [error / naive if naive else None for error, naive in zip(errors, naive_errors, strict=True)]
    is_far = name != MODEL and any(ratio is not None and ratio > FAR_MULTIPLE for ratio in ratios)
    steps = range(1, len(ratios) + 1)
    has_markers = name == MODEL or len(ratios) == 1
    title = term(name.replace("_", " "))
    rounded_ratios = [ratio and _rounded(ratio) for ratio in ratios]
    errors_pct = [_rounded(100 * error) for error in errors]
    return charts.line(
        title,
        steps,
        rounded_ratios,
        style,
        connectgaps=True,
        visible="legendonly" if is_far else True,
        mode="lines+markers" if has_markers else "lines",
        customdata=errors_pct,
        hovertemplate="%{y:.3f} (%{customdata:.4f} %)",
    )


def _rounded(value: float) -> float:
    """Round to six significant digits, which keeps pages small."""
    return float(f"{value:.6g}")


def coverage_figure(evaluated: QuantileEvaluation) -> Chart:
    """Draw by level how many more actual values than stated lie at or below the model's quantile.

    Bars across a mark are the 95 % interval, which holds 0 where the quantile is calibrated.
    """
    names = [say("{level} %", level=percent_of(level)) for level in evaluated.levels]
    lines = []
    for task, quantiles in evaluated.tasks.items():
        errors = quantiles.errors[MODEL]
        excess = [
            _rounded(100.0 * (share - level))
            for level, share in zip(evaluated.levels, errors.below, strict=True)
        ]
        margins = [_rounded(100.0 * (margin or 0.0)) for margin in errors.below_margin]
        colour = f"${TASKS[task].colour}"
        line = charts.line(
            term(TASKS[task].title),
            names,
            excess,
            {"color": colour, "width": 2},
            mode="lines+markers",
            error_y={"type": "data", "array": margins, "thickness": 1.2, "width": 4},
            hovertemplate="%{y:+.2f}",
        )
        lines.append(line)
    x = axis(say("quantile"), type="category")
    y = axis(say("percentage points"), zerolinecolor="$soft")
    return Chart(lines, 300, x, y, tells_all_at_x=True, has_legend_below=True)


def pit_figure(evaluated: QuantileEvaluation) -> Chart:
    """Draw the histogram of the probability integral transform: actual values between the model's quantiles.

    A bar is the share of actual values between two neighbouring quantiles, divided by the stated one.
    """
    borders = [0.0, *evaluated.levels, 1.0]
    names = [
        say("{low} to {high} %", low=percent_of(low), high=percent_of(high))
        for low, high in pairwise(borders)
    ]
    stated = np.diff(borders)
    traces = []
    for task, quantiles in evaluated.tasks.items():
        densities = [_rounded(density) for density in quantiles.errors[MODEL].between / stated]
        colour = f"${TASKS[task].colour}"
        title = term(TASKS[task].title)
        traces.append(charts.bars(title, names, densities, colour, hovertemplate="%{y:.3f}"))
    level: Json = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    level |= {"line": {"color": "$soft", "width": 1.5, "dash": "dash"}}
    x = axis(type="category")
    y = axis(say("share ÷ stated share"), rangemode="tozero")
    return Chart(traces, 300, x, y, rules=[level], tells_all_at_x=True, has_legend_below=True)


def learning_figure(history: TrainingHistory, best_epoch: int) -> Chart:
    """Draw train and validation loss by epoch, at least one; mark the epoch kept, 0 if untrained."""
    epochs = [int(row["epoch"]) for row in history]
    mode = "lines" if len(history) > 1 else "markers"
    lines = []
    for name, colour, width in (("train", "$other", 1.5), ("validation", "$blue", 3)):
        losses = [row[f"{name}_loss"] for row in history]
        style = {"color": colour, "width": width}
        lines.append(charts.line(term(name), epochs, losses, style, mode=mode, hovertemplate="%{y:.5f}"))
    x = axis(say("training epoch"), dtick=max(1, math.ceil(len(history) / 10)))
    y = axis(say("loss, scaled units"))
    label: Json = {
        "text": say("best: {epoch}", epoch=best_epoch),
        "font": {"color": "$orange"},
        "textangle": 0,
        "textposition": "end",
        "yanchor": "top",
        "xanchor": "left" if 2 * best_epoch <= len(history) else "right",
    }
    mark = rule(best_epoch, "$orange", dash="dash") | {"label": label}
    return Chart(lines, 290, x, y, rules=[mark], tells_all_at_x=True)


class Dot(NamedTuple):
    """The model's error on a series, relative to another forecast's."""

    name: str  # of the series
    change_pct: float  # by how many per cent it is larger
    is_sure: bool = True  # whether the difference is significant


def is_of_most(are_significant: Sequence[bool]) -> bool:
    """Return whether more than half of the series differ significantly: the rule for figures and diamonds.

    >>> is_of_most([True, True, False]), is_of_most([True, False])
    (True, False)
    """
    return 2 * sum(are_significant) > len(are_significant)


def spread_figure(
    rows: Mapping[str, Sequence[Dot]],
    colours: Mapping[str, str],
    title: str = "",
    *,
    is_tested: bool = True,
    second_lines: Mapping[str, str] | None = None,
) -> Chart:
    """Draw how much larger errors are than others', in per cent.

    Args:
        rows: From top to bottom, by the name of the row: a dot for each series; it is hollow where the
            difference is not significant. A diamond marks the median of a row; it is filled where most
            series differ significantly in its direction.
        colours: By the name of the row, a name of the palette.
        title: Title of the chart, on pictures.
        is_tested: Whether differences were tested; otherwise diamonds are filled, for a hollow one says that
            a test found nothing.
        second_lines: By the name of the row, what is written below it, which leaves a phone more room.
    """
    medians = {row: median(dot.change_pct for dot in dots) or 0.0 for row, dots in rows.items() if dots}
    edge = max([FAR_PCT, *medians.values()])
    traces = [_dot_trace(row, dots, colours[row], edge) for row, dots in rows.items()]
    texts = [difference(middle) for middle in medians.values()]
    diamonds = [
        "diamond" if not is_tested or _is_sure(rows[row], middle) else "diamond-open"
        for row, middle in medians.items()
    ]
    # Beside the line at 0, on the side of the diamond, so that it crosses no text.
    places = ["top left" if middle < 0 else "top right" for middle in medians.values()]
    traces.append(
        charts.marks(list(medians.values()), list(medians), texts, "$ink", diamonds, textposition=places)
    )
    ends = _ends_of(traces, medians.values(), text_room=0.9 if second_lines else 0.4)
    # Short, so that a phone shows all of it; the title of the chart has the unit.
    x = axis(say("← lower error | higher error →"), zeroline=False, ends=ends)
    labels = {html.escape(row): f"{html.escape(row)}<br>{line}" for row, line in (second_lines or {}).items()}
    y = axis(**_NAMED_ROWS, ends=(len(rows) - 0.5, -0.5), ticks=labels)
    height = 110 + _ROW_HEIGHT * len(rows)
    return Chart(traces, height, x, y, rules=[rule(0, "$soft")], has_legend=False, title=title)


def _is_sure(dots: Sequence[Dot], middle: float) -> bool:
    """Return whether most dots are significant, in the direction of the median, in per cent."""
    return middle != 0.0 and is_of_most([dot.is_sure and dot.change_pct * middle > 0.0 for dot in dots])


def _ends_of(
    traces: Sequence[Json], medians: Iterable[float], *, text_room: float = 0.4
) -> tuple[float, float]:
    """Return the ends of an axis that holds all marks and 0, and has room for texts beside them.

    The text of a median lies on its outer side, and takes a third of the axis on a phone, or more where names
    of rows are long: `text_room` is its share of the distance between the outermost marks.
    """
    places = [0.0, *(place for trace in traces for place in trace["x"])]
    span = max(places) - min(places) or 6.0
    low = [min(places) - 0.15 * span]
    high = [max(places) + 0.15 * span]
    for middle in medians:
        if middle < 0.0:
            low.append(middle - text_room * span)
        else:
            high.append(middle + text_room * span)
    return min(low), max(high)


def _dot_trace(row: str, dots: Sequence[Dot], colour: str, edge: float) -> Json:
    """Draw the dots of a row; those beyond the edge, in per cent, become arrows there with a text."""
    places = []
    symbols = []
    texts = []
    tooltips = []
    beyond = [dot.change_pct for dot in dots if dot.change_pct > edge]
    largest = max(beyond, default=None)
    for dot in dots:
        is_beyond = dot.change_pct > edge
        shape = "triangle-right" if is_beyond else "circle"
        symbols.append(shape if dot.is_sure else f"{shape}-open")
        places.append(min(dot.change_pct, edge))
        # All of them are drawn at the same place, so that only one of them can have a text.
        texts.append(_beyond_text(beyond) if dot.change_pct == largest else "")
        if dot.change_pct == largest:
            largest = None
        tooltips.append(html.escape(f"{dot.name}: {difference(dot.change_pct, decimals=2)}"))
    return charts.marks(
        places,
        [row] * len(dots),
        texts,
        f"${colour}",
        symbols,
        customdata=tooltips,
        hovertemplate="%{customdata}<extra></extra>",
        hoverinfo=None,
        textposition="bottom left",  # the text of the median is above the row
    )


def _beyond_text(beyond: Sequence[float]) -> str:
    """Write the differences beyond the edge, in per cent; of several their number and the ends.

    >>> _beyond_text([6_916.0]), _beyond_text([60.0, 400.0])
    ('6,916 % higher', '2: 60 … 400 % higher')
    """
    largest = difference(max(beyond), decimals=0)
    return largest if len(beyond) == 1 else f"{len(beyond)}: {min(beyond):,.0f} … {largest}"


def verdict_figures(rows: Sequence[LeaderboardRow]) -> list[Chart]:
    """Draw a leaderboard: the errors of each task relative to naive's, and to the best baseline's."""
    tasks = {term(TASKS[task].title): task for task, name in compared(rows) if name == "naive"}
    colours = {title: TASKS[task].colour for title, task in tasks.items()}
    figures = []
    for kind, title in (
        ("naive", say("Error compared with the naive forecast's, difference in %")),
        ("best", say("Error compared with the best baseline's, difference in %")),
    ):
        dots = {name: _dots(rows, task, kind) for name, task in tasks.items()}
        figures.append(spread_figure(dots, colours, title))
    return figures


def _dots(rows: Iterable[LeaderboardRow], task: str, kind: str) -> list[Dot]:
    """Return a dot for each series that has a ratio; `kind` is an attribute of `Verdict`."""
    dots = []
    for row in rows:
        if task in row.tasks:
            comparison = getattr(row.tasks[task], kind)
            if comparison.relative_mae is not None:
                dots.append(Dot(row.series, change_pct(comparison.relative_mae), comparison.is_significant))
    return dots


def change_pct(multiple: float) -> float:
    """Return by how many per cent an error is larger than another, given their ratio.

    >>> change_pct(1.25), change_pct(1.0000000002)
    (25.0, 0.0)
    """
    return 0.0 if is_equal(multiple, 1.0) else 100.0 * (multiple - 1.0)


def amount(difference_pct: float, decimals: int = 1) -> str:
    """Write how large a difference in per cent is, without its sign, which a reader could misread.

    >>> amount(-3.21), amount(0.04), amount(1234.5, decimals=0)
    ('3.2 %', '< 0.1 %', '1,234 %')
    """
    size = round(abs(difference_pct), decimals)
    return f"{size:,.{decimals}f} %" if size else f"< {10.0**-decimals:g} %"


def difference(difference_pct: float, decimals: int = 1) -> str:
    """Write a difference of errors, in per cent of the other one, in words.

    >>> difference(-3.21), difference(1.0), difference(0.0)
    ('3.2 % lower', '1.0 % higher', 'the same error')
    """
    if is_equal(1.0 + difference_pct / 100.0, 1.0):
        return say("the same error")
    share = amount(difference_pct, decimals)
    # Translators: beside a dot of a chart: the error of the model is so many per cent lower than another's.
    lower = say("{share} lower", share=share)
    # Translators: beside a dot of a chart: the error of the model is so many per cent higher than another's.
    higher = say("{share} higher", share=share)
    return lower if difference_pct < 0.0 else higher


@dataclass(frozen=True)
class DrawnForecasts:
    """Forecasts, the candles before them and, where they are known, the actual values; columns by name."""

    x: Sequence[Any]  # where rows are drawn, also those that are only forecast
    known_columns: Mapping[str, Sequence[float]]  # of the first N rows
    issued: Sequence[tuple[int, Mapping[str, Sequence[float]]]]
    """For each forecast: the number of the last row it knew, and its columns from the next row on."""

    def paths(self, column: str, start: str | None = None) -> list[Points]:
        """Return a column of every forecast, preceded by the last known value of itself, or of `start`."""
        known_values = self.known_columns[start or column]
        paths = []
        for last, columns in self.issued:
            values = columns[column]
            x = list(self.x[last : last + 1 + len(values)])
            paths.append((x, [known_values[last], *values]))
        return paths


def issued_on_the_way(sample: ForecastSample) -> Chart:
    """Draw the candles of a sample and the closes forecast among them, within their intervals.

    Without quantiles they are within fans from the forecast low to high. Bars are numbered, the last is 0.
    """
    times = [datetime.fromtimestamp(time_s, UTC) for time_s in sample.open_time_s]
    first = 1 - len(times)
    issued = []
    for forecast in sample.issued:
        columns = _prices(forecast.values[TASK_OHLC])
        levels = sample.levels if TASK_OHLC in forecast.quantiles else ()
        for level, rows in zip(levels, forecast.quantiles.get(TASK_OHLC, ()), strict=True):
            columns |= {quantile_column(name, level): values for name, values in _prices(rows).items()}
        issued.append((forecast.last_known, columns))
    forecasts = DrawnForecasts(range(first, 1), _prices(sample.actual[TASK_OHLC]), issued)
    fans = _interval_fans(forecasts)
    if not fans:
        # A forecast low and high are no interval: nothing says how often the close stays within.
        name = say("forecast low to high (no interval)")
        fans = [_fan(name, forecasts.paths(HIGH, CLOSE), forecasts.paths(LOW, CLOSE))]
    x, y = _joined(forecasts.paths(CLOSE))
    style = {"color": "$blue", "width": 2.5}
    line = charts.line(say("forecast, close"), x, y, style, mode="lines+markers", marker={"size": 3})
    candles = charts.candles(say("actual"), forecasts.x, forecasts.known_columns)
    title = f"open times in UTC, bars of {sample.bar_s // 60} minutes"
    time = axis(title, ticks=_date_ticks(times, first))
    price = axis(say("price"), tickformat=_PRICES)
    return Chart([candles, *fans, line], 360, time, price, tells_all_at_x=True)


def _prices(rows: Rows) -> dict[str, Sequence[float]]:
    """Return the columns of candles by name."""
    return {column: tuple(row[place] for row in rows) for place, column in enumerate(OHLC)}


def issued_figure(candles: Candles, forecast: pd.DataFrame) -> Chart:
    """Draw a forecast, H rows of `Forecaster.predict`, after the newest of the N candles before it.

    It is drawn as hollow candles within the forecast bands; other tasks as lines where the model has them,
    unitless ones in a panel below. Bars are numbered, the newest known one is 0; the ticks show their times.
    """
    newest = candles.newest(SHOWN_BARS).to_frame()
    first = 1 - len(newest)
    end = len(forecast) + 1
    drawn = [task for task in TASKS.values() if task.is_of_bars]
    names = [name for task in drawn for name in task.columns if name in forecast]
    computed = compute_columns(candles, [name for name in names if name not in OHLC])
    for name, (values,) in computed.items():
        newest[name] = values[-len(newest) :]  # nan where too few candles came before
    columns = _by_name(forecast)
    forecasts = DrawnForecasts(range(first, end), _by_name(newest), [(len(newest) - 1, columns)])
    others = [task for task in drawn if task.name != TASK_OHLC and {*task.columns} <= {*newest}]
    below = [task for task in others if not task.is_price]
    traces = [charts.candles("known", forecasts.x, forecasts.known_columns)]
    for task in others:
        if task.is_price:
            traces += _task_lines(forecasts, task)
    traces += _interval_fans(forecasts)
    traces.append(charts.candles("forecast", forecasts.x[len(newest) :], columns, "$blue"))
    if BB_UPPER in newest:
        uppers = forecasts.paths(BB_UPPER)
        traces.append(_fan("forecast band to band", uppers, forecasts.paths(BB_LOWER), showlegend=False))
    for task in below:
        for line in _task_lines(forecasts, task):
            traces.append(line | {"showlegend": False, "yaxis": "y2"})
    ticks = _date_ticks([*newest.index, *forecast.index], first)
    time = axis(ends=(first - 1, end), ticks=ticks, showgrid=False)
    price = axis("price, quote currency", tickformat=_PRICES)
    panel = None
    if below:
        titles = ", ".join(term(task.title) for task in below)
        panel = axis(titles, nticks=4, tickformat=charts.SHARES, rangemode="tozero")
    shade: Json = {"type": "rect", "x0": 0.5, "x1": end, "yref": "paper", "y0": 0, "y1": 1}
    shade |= {"line": {"width": 0}, "fillcolor": "$blue", "opacity": 0.04}
    rules = [rule(0.5, "$soft", 1, "dot"), shade]
    return Chart(traces, 460 if below else 360, time, price, panel, rules, tells_all_at_x=True)


def _interval_fans(forecasts: DrawnForecasts) -> list[Json]:
    """Draw the intervals of the close; none without quantiles."""
    fans: list[Json] = []
    for pair in intervals(levels_of(forecasts.issued[0][1], CLOSE)):  # the widest first: others over it
        lower, upper = pair
        name = say("close, {share} interval", share=f"{percent_of(nominal(pair))} %")
        uppers = forecasts.paths(quantile_column(CLOSE, upper), CLOSE)
        lowers = forecasts.paths(quantile_column(CLOSE, lower), CLOSE)
        fans.append(_fan(name, uppers, lowers, colour="$fan_inner" if fans else "$fan"))
    return fans


def _fan(
    name: str,
    uppers: Iterable[Points],
    lowers: Iterable[Points],
    *,
    colour: str = "$fan",
    **options: Any,
) -> Json:
    """Fill the area between an upper and a lower path of every forecast; options are Plotly's."""
    outlines = []
    for (times, upper), (_, lower) in zip(uppers, lowers, strict=True):
        outlines.append(([*times, *reversed(times)], [*upper, *reversed(lower)]))
    x, y = _joined(outlines)
    line = charts.line(name, x, y, {"color": "$blue", "width": 0}, **options)
    return line | {"fill": "toself", "fillcolor": colour, "hoverinfo": "skip"}


def _task_lines(forecasts: DrawnForecasts, task: Task) -> Iterator[Json]:
    """Draw actual values and forecasts of each column of a task.

    A forecast of one step is a single point; the path to it begins at the last known value.
    """
    known_width = 1.0 if task.is_price else 1.5
    width = 2.0 if task.is_price else 2.5
    dash = "dash" if task.is_price else None
    title = term(task.title)
    known_name = title if task.is_price else say("{task}, actual values", task=title)
    forecast_name = say("{task}, forecast", task=title)
    for column in task.columns:
        # One entry in the legend stands for all columns.
        options: Json = {} if column == task.columns[0] else {"showlegend": False}
        known_values = forecasts.known_columns[column]
        known_style = {"color": "$other", "width": known_width}
        known_x = forecasts.x[: len(known_values)]
        yield charts.line(known_name, known_x, known_values, known_style, connectgaps=True, **options)
        x, y = _joined(forecasts.paths(column))
        style = {"color": f"${task.colour}", "width": width, "dash": dash}
        yield charts.line(forecast_name, x, y, style, **options)


def _joined(paths: Iterable[Points]) -> Points:
    """Put paths into one line with a break, a None, after each."""
    x: list[Any] = []
    y: list[Any] = []
    for path_x, path_y in paths:
        x += [*path_x, None]
        y += [*path_y, None]
    return x, y


def _by_name(frame: pd.DataFrame) -> dict[str, Sequence[float]]:
    return {str(name): values.astype(np.float64).tolist() for name, values in frame.items()}


def _date_ticks(times: Sequence[datetime], first: int) -> dict[float, str]:
    """Return the times below an axis of numbered bars, the first of which has the number `first`."""
    ticks = np.unique(np.linspace(0, len(times) - 1, _NUM_TICKS).round().astype(int)).tolist()
    return {tick + first: f"{times[tick]:%d %b %Y<br>%H:%M}" for tick in ticks}
