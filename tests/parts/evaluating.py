"""Judges arrays that no series stands behind, for tests of what is made of evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from rolled import naive

from v8.data.span import Span
from v8.data.windows import SeriesData
from v8.model.baselines.baselines import BASELINES
from v8.model.evaluation.evaluation import (
    MODEL,
    EvaluatedTask,
    Evaluation,
    evaluate_test_span,
    evaluate_windows,
)
from v8.model.evaluation.metrics import measure_direction, measure_errors
from v8.model.evaluation.significance import diebold_mariano
from v8.profile.columns import TASK_OHLC
from v8.profile.profile import load_profile
from v8.profile.tasks import TASKS

OF_CLOSES = ("last_close", "naive", "offset")
"""Baselines that need nothing but the closes known at a window."""

Arrays = Mapping[str, np.ndarray]


def rolled(history_close: np.ndarray, horizon_bars: int) -> dict[str, np.ndarray]:
    """The naive forecast of every task that follows from closes."""
    tasks = [task for task in TASKS.values() if not task.is_size]
    return naive(np, tasks, history_close, horizon_bars)


def evaluate_arrays(actual: Arrays, model: Arrays, history_close: np.ndarray, offsets: Arrays) -> Evaluation:
    """Judge forecasts of shape (N, H, C) of windows that follow one another, beside `OF_CLOSES`."""
    tasks = [task for task in TASKS if task in actual]
    content = load_profile("aligned").model_dump()
    content |= {"horizon_bars": actual[TASK_OHLC].shape[1]}
    content["tasks"] = {task: content["tasks"][task] for task in tasks}
    table: Any = SimpleNamespace(series="the test span")
    span = Span(table, type(load_profile("aligned")).model_validate(content), np.arange(len(history_close)))
    vars(span).update(actual=dict(actual), history_close=history_close, bar_numbers=span.anchors)
    scaling: Any = SimpleNamespace(
        tasks=[SimpleNamespace(task=task, offset=values) for task, values in offsets.items()]
    )
    made = {name: BASELINES[name].fit(span, scaling)(span) for name in OF_CLOSES}
    evaluated = {}
    for task in tasks:
        ours, losses = measure_errors(span, task, model[task])
        theirs = {name: measure_errors(span, task, made[name][task]) for name in OF_CLOSES}
        tests = {
            name: diebold_mariano(losses - other, horizon_bars=span.horizon_bars)
            for name, (_, other) in theirs.items()
        }
        errors = {MODEL: ours, **{name: each for name, (each, _) in theirs.items()}}
        evaluated[task] = EvaluatedTask(TASKS[task].columns, errors, tests)
    return Evaluation(len(span), span.horizon_bars, evaluated, measure_direction(span, model[TASK_OHLC]))


def let_baselines_err(metadata: dict[str, Any], multiples: Mapping[str, float]) -> None:
    """Let baselines err so many times as much as naive at every step and column, and their tests fit."""
    for section in metadata["evaluation"]["tasks"].values():
        errors = section["errors"]
        for name in section["significance"].keys() & multiples.keys():
            for kind, grid in errors[name].items():
                if grid is None:
                    continue  # a measure that the task does not have
                naive = errors["naive"][kind]["by_step_and_column"]
                grid["by_step_and_column"] = [[multiples[name] * cell for cell in row] for row in naive]
            model, theirs = (
                np.mean(errors[each]["mae_return"]["by_step_and_column"]) for each in ("model", name)
            )
            section["significance"][name]["mean_difference"] = float(model - theirs)


def evaluate(data: SeriesData, model: Arrays) -> Evaluation:
    """Judge forecasts of the test span of a series, without the losses of each window."""
    spans = data.spans
    if "validation" in spans:
        return evaluate_test_span(data, model)[0]
    return evaluate_windows(spans["test"], model, train=spans["train"], scaling=data.scaling)[0]
