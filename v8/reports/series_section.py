"""The part of the run report about one series: forecasts, errors by horizon, training, candles, time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from v8.artifacts.forecast_sample import ForecastSample
from v8.evaluation.judgement import MODEL, ErrorKind, Judgement
from v8.evaluation.metrics import StepDirection
from v8.reports.charts import share_bar, split_bar
from v8.reports.document import plot
from v8.reports.figures import error_figure, learning_figure
from v8.reports.forecast_figure import forecast_figure
from v8.reports.markup import Html, element, facts, join, table
from v8.reports.results import History, SeriesResult
from v8.tasks import TASKS
from v8.wording import ABSENT, count, duration, number, p_value, percent, price

_KINDS: Final[tuple[ErrorKind, ErrorKind]] = ("mae", "rmse")

_SPAN_KEYS: Final = ("first_open", "last_open", "rows", "num_windows")
"""What the table of spans shows of each, in the order of its columns."""


def series_section(result: SeriesResult, history: History, sample: ForecastSample | None) -> Html:
    """Return the folded section of one series.

    Args:
        result: The finished series.
        history: Its epochs; may be empty.
        sample: Some of its forecasts; None beside models that were saved without.
    """
    judgement = result.judgement
    charts = (
        plot(error_figure([judgement], task), f"{TASKS[task].title}: mean absolute error ÷ naive's")
        for task in judgement.tasks
    )
    verdicts = ", ".join(f"{TASKS[task].title} {judgement.verdict(task)}" for task in judgement.errors)
    return element(
        "details",
        element("summary", result.series, element("span", verdicts)),
        element("h3", "Forecasts of the test span's end"),
        _forecasts(sample),
        element("h3", "Error by step ahead"),
        element("p", "A click on a name shows or hides its line.", class_="soft"),
        element("div", *charts, class_="charts"),
        *(_error_table(judgement, task) for task in judgement.errors),
        element("h3", "Direction of the close"),
        _direction_table(judgement.direction),
        element("h3", "Training"),
        _training(result, history),
        element("h3", "Spans"),
        _split(result.split),
        element("h3", f"Candles, from {result.source}"),
        facts(_found(result.candle_report)),
        element("h3", "Time per stage"),
        _time_table(result),
        id=result.series,
    )


def _forecasts(sample: ForecastSample | None) -> Html:
    if sample is None:
        return element("p", "The v8 that saved this model kept no forecasts to show.")
    num_steps = len(next(iter(sample.issued[0].values.values())))
    every = "every bar" if num_steps == 1 else f"every {num_steps} bars"
    note = (
        f"Newest {len(sample.open_time_s)} candles of the test span, times in UTC. A forecast was issued "
        f"{every}; each fan opens at the close it knew last and spans its low to high."
    )
    return plot(forecast_figure(sample), note)


def _error_table(judgement: Judgement, task: str) -> Html:
    relative, absolute = ("of last close", "price") if TASKS[task].is_price else ("in %", "as is")
    head = ["", f"MAE {relative}", f"RMSE {relative}", f"MAE {absolute}", f"RMSE {absolute}"]
    head += ["model's skill, MAE", "p of it", "model's skill, RMSE"]
    names = [MODEL, *(name for name in judgement.errors[task] if name != MODEL)]
    rows = [_error_cells(judgement, task, name) for name in names]
    columns = ", ".join(_spaced(column) for column in TASKS[task].columns)
    return table(head, rows, caption=f"{TASKS[task].title}, over all steps and {columns}")


def _error_cells(judgement: Judgement, task: str, forecaster: str) -> list[str]:
    errors = judgement.errors[task][forecaster]
    cells = [forecaster.replace("_", " ")]
    cells += [percent(grid.overall, 4) for grid in (errors.mae_return, errors.rmse_return)]
    cells += [price(grid.overall) for grid in (errors.mae_price, errors.rmse_price)]
    if forecaster == MODEL:
        return [*cells, ABSENT, ABSENT, ABSENT]
    absolute, squared = (number(judgement.skill(task, kind, forecaster)) for kind in _KINDS)
    return [*cells, absolute, p_value(judgement.p_value(task, forecaster)), squared]


def _direction_table(steps: Iterable[StepDirection]) -> Html:
    head = [
        "step",
        "hit rate",
        "95 %",
        "always up",
        "windows counted",
        "worth, independent",
        "truth flat",
        "forecast flat",
    ]
    return table(head, (_direction_cells(step) for step in steps))


def _direction_cells(step: StepDirection) -> list[str]:
    always_up = step.num_rises / step.num_counted if step.num_counted else None
    interval = ABSENT if step.interval is None else " to ".join(percent(end) for end in step.interval)
    counts = (step.num_counted, round(step.num_effective), step.num_flat_truth, step.num_flat_forecast)
    return [
        str(step.step),
        percent(step.rate),
        interval,
        percent(always_up),
        *(count(value) for value in counts),
    ]


def _training(result: SeriesResult, history: History) -> Html:
    kept = f"Weights of epoch {result.best_epoch} of {result.epochs_run} were kept."
    if result.best_epoch == 0:
        kept = f"None of {result.epochs_run} epochs beat the untrained network, which was kept."
    if not history:
        return element("p", kept)
    curve = learning_figure(history, result.best_epoch)
    return join([element("p", kept), plot(curve, "Loss per epoch and the epoch kept (dashed)")])


def _split(split: Mapping[str, Any]) -> Html:
    spans = [(name, span) for name, span in split.items() if isinstance(span, Mapping)]
    rows = [
        [join([_swatch(f"split{at}"), name]), *(_shown(span.get(key)) for key in _SPAN_KEYS)]
        for at, (name, span) in enumerate(spans)
    ]
    others = ((name, _shown(value)) for name, value in split.items() if not isinstance(value, Mapping))
    ranges = {name: span["rows"] for name, span in spans if _is_range(span.get("rows"))}
    note = "Row by row in time order; red: the embargo, which no window may touch from both sides."
    return join(
        [
            element("figure", element("figcaption", note), split_bar(ranges), class_="wide"),
            table(["span", *(_spaced(key) for key in _SPAN_KEYS)], rows),
            facts(_pairs(others)),
        ]
    )


def _is_range(rows: object) -> bool:
    return isinstance(rows, list) and len(rows) == 2 and all(isinstance(row, int) for row in rows)


def _swatch(style: str) -> Html:
    return element(
        "svg", element("rect", width=12, height=12, class_=style), width=12, height=12, class_="bar"
    )


def _found(report: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Leave out what did not occur: zeros, empty lists and None."""
    return _pairs((name, _shown(value)) for name, value in report.items() if value)


def _time_table(result: SeriesResult) -> Html:
    total_s = result.total_seconds
    rows = [
        [_spaced(stage), join([share_bar(stage_s / total_s if total_s else 0.0), duration(stage_s)])]
        for stage, stage_s in result.seconds.items()
    ]
    return table(["stage", "wall time"], [*rows, ["all", duration(total_s)]])


def _pairs(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return ((_spaced(name), value) for name, value in pairs)


def _shown(value: object) -> str:
    """Write a JSON value for people, nested ones on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{_spaced(str(name))} {_shown(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_shown(item) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return count(value) if isinstance(value, int) else f"{value:.4g}"
    return ABSENT if value is None else str(value)


def _spaced(name: str) -> str:
    return name.removeprefix("num_").replace("_", " ")
