"""The part of the run report about one series: errors by horizon, direction, training, candles, time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from v8.columns import TASK_COLUMNS
from v8.evaluation.baselines import BASELINES
from v8.evaluation.judgement import MODEL, Judgement
from v8.evaluation.metrics import StepDirection, is_price_task
from v8.reports.charts import Line, line_chart, share_bar
from v8.reports.markup import Html, element, facts, join, table
from v8.reports.results import History, SeriesResult
from v8.reports.wording import ABSENT, TASK_TITLES, count, duration, number, percent, price

_LEGEND_ORDER: Final = (*BASELINES, MODEL)
"""Drawn in this order, so that the model lies on top."""

_SPAN_KEYS: Final = ("first_open", "last_open", "rows", "num_windows")
"""What the table of spans shows of each, in the order of its columns."""


def series_section(result: SeriesResult, history: History) -> Html:
    """Return the folded section of one series.

    Args:
        result: The finished series.
        history: Its epochs; may be empty.
    """
    judgement = result.judgement
    verdicts = ", ".join(f"{TASK_TITLES[task]} {judgement.verdict(task)}" for task in judgement.errors)
    return element(
        "details",
        element("summary", result.series, element("span", verdicts)),
        element("h3", "Error by step ahead"),
        _legend(),
        element("div", *(_error_figure(judgement, task) for task in judgement.errors), class_="charts"),
        *(_error_table(judgement, task) for task in judgement.errors),
        element("h3", "Direction of the close"),
        _direction_table(judgement.direction),
        element("h3", "Training"),
        _training(result, history),
        element("h3", "Spans"),
        _split_table(result.split),
        element("h3", f"Candles, from {result.source}"),
        facts(_found(result.candle_report)),
        element("h3", "Time per stage"),
        _time_table(result),
    )


def _legend() -> Html:
    return element(
        "p", *(join([_swatch(name), name.replace("_", " ")]) for name in _LEGEND_ORDER), class_="legend"
    )


def _swatch(style: str) -> Html:
    line = element("g", element("path", d="M0 5 L22 5"), class_=style)
    return element("svg", line, width=22, height=10, viewBox="0 0 22 10", aria_hidden="true")


def _error_figure(judgement: Judgement, task: str) -> Html:
    unit = "% of the last close" if is_price_task(task) else "its own unit, in %"
    label = f"{TASK_TITLES[task]}: mean absolute error, {unit}"
    lines = [_error_line(judgement, task, name) for name in _LEGEND_ORDER if name in judgement.errors[task]]
    chart = line_chart(lines, label=label, x_label="steps ahead")
    return element("figure", element("figcaption", label), chart)


def _error_line(judgement: Judgement, task: str, forecaster: str) -> Line:
    errors = judgement.error(task, forecaster).by_step
    points = [(float(step), error * 100) for step, error in enumerate(errors, start=1)]
    return Line(forecaster.replace("_", " "), forecaster, points)


def _error_table(judgement: Judgement, task: str) -> Html:
    relative, absolute = ("of last close", "price") if is_price_task(task) else ("in %", "as is")
    head = ["", f"MAE {relative}", f"RMSE {relative}", f"MAE {absolute}", f"RMSE {absolute}"]
    head += ["model's skill, MAE", "model's skill, RMSE"]
    names = [MODEL, *(name for name in judgement.errors[task] if name != MODEL)]
    rows = [_error_cells(judgement, task, name) for name in names]
    return table(head, rows, caption=f"{TASK_TITLES[task]}, over all steps and {_columns(task)}")


def _error_cells(judgement: Judgement, task: str, forecaster: str) -> list[str]:
    errors = judgement.errors[task][forecaster]
    cells = [forecaster.replace("_", " ")]
    cells += [percent(grid.overall, 4) for grid in (errors.mae_return, errors.rmse_return)]
    cells += [price(grid.overall) for grid in (errors.mae_price, errors.rmse_price)]
    if forecaster == MODEL:
        return [*cells, ABSENT, ABSENT]
    return [*cells, *(number(judgement.skill(task, kind, forecaster)) for kind in ("mae", "rmse"))]


def _direction_table(steps: Iterable[StepDirection]) -> Html:
    head = [
        "step",
        "hit rate",
        "95 %, optimistic",
        "always up",
        "windows counted",
        "truth flat",
        "forecast flat",
    ]
    return table(head, (_direction_cells(step) for step in steps))


def _direction_cells(step: StepDirection) -> list[str]:
    always_up = step.num_rises / step.num_counted if step.num_counted else None
    interval = ABSENT if step.interval is None else " to ".join(percent(end) for end in step.interval)
    counts = (step.num_counted, step.num_flat_truth, step.num_flat_forecast)
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
    return join([element("p", kept), _learning_curve(result, history)])


def _learning_curve(result: SeriesResult, history: History) -> Html:
    if not history:
        return Html()
    lines = [_loss_line(history, "train_loss", "train"), _loss_line(history, "validation_loss", MODEL)]
    label = "Loss per epoch, scaled units: validation (bold), train, and the epoch kept (dashed)"
    mark = (float(result.best_epoch), f"best epoch {result.best_epoch}")
    chart = line_chart(lines, label=label, x_label="epoch", is_from_zero=False, marked_x=mark)
    return element("figure", element("figcaption", label), chart)


def _loss_line(history: History, column: str, style: str) -> Line:
    points = [(float(epoch["epoch"]), float(epoch[column])) for epoch in history]
    return Line(column.replace("_", " "), style, points)


def _split_table(split: Mapping[str, Any]) -> Html:
    spans = [(name, span) for name, span in split.items() if isinstance(span, Mapping)]
    rows = [[name, *(_shown(span.get(key)) for key in _SPAN_KEYS)] for name, span in spans]
    others = ((name, _shown(value)) for name, value in split.items() if not isinstance(value, Mapping))
    return join([table(["span", *(_spaced(key) for key in _SPAN_KEYS)], rows), facts(_pairs(others))])


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


def _columns(task: str) -> str:
    return ", ".join(_spaced(column) for column in TASK_COLUMNS[task])
