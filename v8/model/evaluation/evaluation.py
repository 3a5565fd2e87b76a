"""The evaluation of one series: errors of the model's forecasts and quantiles, and of every baseline's.

Of the model and of every installed baseline an evaluation keeps the errors of each step and column, and for
each task what the significance tests of the model against a baseline start from
(`v8.model.evaluation.significance`). Means, skill scores and p-values are computed from them when they are
needed, so the report, the metadata and the model card cannot disagree.

The verdict compares the model with two baselines, naive and the best one (named beforehand, in
`configs/references.yaml`), and is stored when all series of the run are evaluated
(`v8.model.evaluation.leaderboard`).

`detect_decay` compares a model's losses since it was trained with those of its test span.

Legend: N windows, H steps of the horizon, Q levels, C columns of a task.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np

from v8.base.arrays import AnyFloatArray
from v8.base.errors import ArtifactError, SeriesError, listed
from v8.base.records import Count, Number, Word, adapter, check_format, checked
from v8.base.wording import chance, number, plural
from v8.data.scaling import Scaling
from v8.data.span import Span
from v8.data.windows import SeriesData
from v8.model.baselines.baselines import BASELINES, NAIVE, FittedBaseline, reference_baseline
from v8.model.evaluation import metrics
from v8.model.evaluation.bootstrap import confidence_set, confidence_set_p_values, sampled_means
from v8.model.evaluation.metrics import (
    CalibrationLine,
    ErrorGrid,
    QuantileErrors,
    Share,
    StepDirection,
    TaskErrors,
    mincer_zarnowitz,
)
from v8.model.evaluation.significance import (
    ALPHA,
    BaselineComparison,
    Losses,
    Significance,
    best_of,
    corrected_p_values,
    degrees_of_freedom,
    error_ratio,
    is_equal,
    min_windows,
)
from v8.profile.columns import TASK_OHLC, interval_names, intervals
from v8.profile.tasks import TASKS

MODEL: Final = "model"
"""Name of the evaluated model among the names of forecasters; the others are names of baselines."""

ErrorKind = Literal["mae", "rmse"]

_FIX: Final = "Train this series again, or read it with the version of v8 that wrote it"


class JsonRecord:
    """A record that is written as JSON, and whose parts are checked against each other when it is read."""

    kind: ClassVar[str]  # name of the record in error messages
    format: ClassVar[int]  # version of its keys

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain JSON values, without NaN and infinity."""
        content = adapter(type(self)).dump_python(self, mode="json", by_alias=True)
        return {"format": self.format, **content}

    @classmethod
    def from_json(cls, content: Any, *, where: str = "the evaluation") -> Self:
        """Read what `to_json` wrote.

        Raises `ArtifactError`, whose message begins with `where`, if the content is damaged.
        """
        rule = f"must be an {cls.kind} of format {cls.format}"
        check_format(content, cls.format, kind=cls.kind, where=where, fix=_FIX)
        record = checked(cls, content, where=where, fix=_FIX, rule=rule)
        faults = [*record.faults()]
        if faults:
            raise ArtifactError(where=where, rule=rule, got=listed(faults), fix=_FIX)
        return record

    def faults(self) -> Iterator[str]:
        """Describe contradictions between fields, each of which is in its range."""
        raise NotImplementedError


@dataclass(frozen=True)
class EvaluatedTask:
    """Errors on one task."""

    columns: tuple[str, ...]  # columns that are forecast
    errors: Mapping[Word, TaskErrors]  # per forecaster (`MODEL` or a key of `BASELINES`), in both units
    significance: Mapping[Word, Significance]  # per baseline: test of mean absolute errors in returns
    confidence_set: Mapping[Word, Share] = field(default_factory=dict)
    """Per forecaster the p-value of its place in the model confidence set, the worst one first; empty if
    unknown."""
    lines: tuple[tuple[CalibrationLine | None, ...], ...] = ()
    """The line of actual values on the model's forecasts, per step and column; empty for tasks of prices."""

    @property
    def best_forecasters(self) -> list[str]:
        """Forecasters that cannot be told apart from the best one, which is the last of them."""
        return confidence_set(self.confidence_set)


@dataclass(frozen=True)
class Evaluation(JsonRecord):
    """Errors of a model and of every baseline on the test span of one series."""

    kind = "evaluation"
    format = 7
    num_windows: Count  # windows of the test span
    horizon_bars: Count  # steps ahead
    tasks: Mapping[str, EvaluatedTask]  # by the name of the task
    direction: tuple[StepDirection, ...]  # hit rates of the close, one entry per step
    validation_mae: Mapping[Word, Mapping[Word, Number]] = field(default_factory=dict)
    """Per task without a reference the mean absolute error of each baseline on the validation span, in
    returns; empty if unknown."""

    @property
    def errors(self) -> dict[str, Mapping[str, TaskErrors]]:
        """Errors per task and forecaster."""
        return {task: evaluated.errors for task, evaluated in self.tasks.items()}

    def error(self, task: str, forecaster: str = MODEL, kind: ErrorKind = "mae") -> ErrorGrid:
        """Return errors in returns, the unit in which coins can be compared."""
        grid: ErrorGrid = getattr(self.tasks[task].errors[forecaster], f"{kind}_return")
        return grid

    def relative_error(
        self, task: str, error: ErrorKind = "mae", baseline: str = NAIVE, forecaster: str = MODEL
    ) -> float | None:
        """Return a forecaster's error divided by a baseline's, both in returns over all steps and columns.

        The ratio is unitless; below 1 the forecaster is better. None if the baseline made no error.
        """
        forecaster_error = self.error(task, forecaster, error).overall
        baseline_error = self.error(task, baseline, error).overall
        return error_ratio(forecaster_error, baseline_error)

    def against(self, task: str, baseline: str = NAIVE) -> BaselineComparison:
        """Compare the model's mean absolute error with a baseline's.

        The p-value is not corrected for evaluating many series. It is None where there are too few windows
        for a test, and where the two errors are equal.
        """
        model_error = self.error(task, MODEL).overall
        baseline_error = self.error(task, baseline).overall
        p_value = self.tasks[task].significance[baseline].p_value
        if is_equal(model_error, baseline_error):
            p_value = None
        return BaselineComparison(
            baseline=baseline,
            model_error=model_error,
            baseline_error=baseline_error,
            p_value=p_value,
            corrected_p_value=p_value,
        )

    def best_baseline(self, task: str) -> str:
        """Return the best baseline of a task as far as this series alone decides it, see `best_baseline`."""
        return best_baseline([self], task)

    def faults(self) -> Iterator[str]:
        """Describe contradictions between the fields."""
        if TASK_OHLC not in self.tasks:
            yield f"no task {TASK_OHLC}"
        if [step.step for step in self.direction] != [*range(1, self.horizon_bars + 1)]:
            yield f"other steps than 1 to {self.horizon_bars} in direction"
        for step in self.direction:
            if not step.adds_up(self.num_windows):
                yield f"counts of step {step.step} that are not those of {self.num_windows} windows"
        for task, evaluated in self.tasks.items():
            fault = _fault(self, task, evaluated)
            if fault is not None:
                yield f"{task} with {fault}"


@dataclass(frozen=True)
class EvaluatedQuantiles:
    """Errors of the quantiles of one task."""

    errors: Mapping[Word, QuantileErrors]  # per forecaster, `MODEL` or a baseline with quantiles
    significance: Mapping[Word, Significance]  # per baseline: of the CRPS

    def relative_error(self, baseline: str) -> float | None:
        """Return the model's CRPS divided by a baseline's; None if the baseline's is zero."""
        return error_ratio(self.errors[MODEL].crps, self.errors[baseline].crps)


@dataclass(frozen=True)
class QuantileEvaluation(JsonRecord):
    """Errors of the quantiles of a model and of baselines on the test span of one series."""

    kind = "evaluation of quantiles"
    format = 5
    levels: tuple[Share, ...]  # all quantile levels, ascending
    num_windows: Count  # windows of the test span
    tasks: Mapping[str, EvaluatedQuantiles]  # by the name of the task

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return per task the CRPS, in returns and relative to each baseline's, and coverage by interval."""
        summary: dict[str, dict[str, Any]] = {}
        for task, evaluated in self.tasks.items():
            model = evaluated.errors[MODEL]
            names = interval_names(self.levels)
            summary[task] = {
                "crps": model.crps,
                "relative_crps": {name: evaluated.relative_error(name) for name in evaluated.significance},
                "coverage": {name: model.mean_coverage(number) for number, name in enumerate(names)},
            }
        return summary

    def faults(self) -> Iterator[str]:
        """Describe contradictions between the fields."""
        num_intervals = len(intervals(self.levels))
        for task, evaluated in self.tasks.items():
            if task not in TASKS or MODEL not in evaluated.errors:
                yield f"the task {task}"
                continue
            first = _shape_of(evaluated.errors[MODEL].pinball)
            lengths = [len(self.levels), num_intervals, num_intervals]
            expected = [(length, *first[1:]) if length else (0,) for length in lengths]
            expected += [(len(self.levels),), (len(self.levels),), (num_intervals,)]
            for errors in evaluated.errors.values():
                grids = (errors.pinball, errors.coverage, errors.width)
                rows = (errors.below, errors.below_margin, errors.score)
                shapes = [*map(_shape_of, grids), *((len(row),) for row in rows)]
                if not first or shapes != expected:
                    yield f"{task} with losses of another shape than its levels"


def best_baseline(evaluations: Sequence[Evaluation], task: str) -> str:
    """Return the best baseline of a task: its reference, which `configs/references.yaml` names.

    A task without one, that of a plug-in, has the best baseline of these series by the rule of `best_of`. The
    errors on the validation span decide. Where they are not known of all series, those on the evaluated span
    do.
    """
    reference = reference_baseline(task)
    if all(reference in evaluation.tasks[task].significance for evaluation in evaluations):
        return str(reference)
    errors: list[Mapping[str, float]] = [
        evaluation.validation_mae.get(task, {}) for evaluation in evaluations
    ]
    if not all(errors):
        errors = [
            {name: evaluation.error(task, name).overall for name in evaluation.tasks[task].significance}
            for evaluation in evaluations
        ]
    return best_of(errors)


def evaluate_test_span(
    data: SeriesData, model_forecasts: Mapping[str, AnyFloatArray]
) -> tuple[Evaluation, Losses]:
    """Evaluate a model and every baseline on the test span.

    A task's reference is the baseline of `configs/references.yaml`. Where none is named or it is not
    installed, the best baseline is chosen later, by errors on the validation span that are noted here, never
    by those on the test span. Each baseline is fitted once for both spans.
    """
    train = data.spans["train"]
    fitted = _fitted_baselines(train, data.scaling)
    train.forget_many()  # frees its large caches
    evaluation, losses = _evaluate(data.spans["test"], model_forecasts, fitted)
    tasks_without_reference = [task for task in evaluation.tasks if reference_baseline(task) not in fitted]
    validation_errors = _baseline_errors(data.spans["validation"], tasks_without_reference, fitted)
    return replace(evaluation, validation_mae=validation_errors), losses


def _baseline_errors(
    span: Span, tasks: Sequence[str], fitted: Mapping[str, FittedBaseline]
) -> dict[str, dict[str, float]]:
    """Return per task and fitted baseline its mean absolute error on a span, in returns."""
    if not tasks:
        return {}
    errors: dict[str, dict[str, float]] = {task: {} for task in tasks}
    for name, forecast in fitted.items():
        forecasts = forecast(span)
        for task, by_name in errors.items():
            if task in forecasts:
                task_errors, _ = metrics.measure_errors(span, task, forecasts[task])
                by_name[name] = task_errors.mae_return.overall
    return errors


def _fitted_baselines(train: Span, scaling: Scaling) -> dict[str, FittedBaseline]:
    """Fit every installed baseline."""
    return {
        name: baseline.fitted(train, scaling)
        for name, baseline in BASELINES.items()
        if baseline.is_installed()
    }


def evaluate_windows(
    span: Span, model_forecasts: Mapping[str, AnyFloatArray], *, train: Span, scaling: Scaling
) -> tuple[Evaluation, Losses]:
    """Evaluate a model and every installed baseline on some windows.

    Args:
        span: The windows.
        model_forecasts: The model's forecasts per task, shape (N, H, C), in the task's unit.
        train: The windows that the baselines are fitted to.
        scaling: The scaling that was fitted to `train`.

    Returns:
        The evaluation, and the losses of every forecaster in each window.

    Raises:
        SeriesError: If a task is missing, forecasts have another shape than the actual values, or an error is
            not a number or too large.
    """
    return _evaluate(span, model_forecasts, _fitted_baselines(train, scaling))


def _evaluate(
    span: Span, model_forecasts: Mapping[str, AnyFloatArray], fitted: Mapping[str, FittedBaseline]
) -> tuple[Evaluation, Losses]:
    """Evaluate a model and fitted baselines on some windows.

    Forecasts are by task, of shape (N, H, C), in the task's unit (prices, or shares of a price); those of the
    model are at hand, and a fitted baseline is a function that returns its own for a span.
    """
    if set(model_forecasts) != set(span.profile.tasks):
        raise SeriesError(
            where=f"{span.table.series}, model",
            rule=f"forecasts the tasks of its profile ({', '.join(sorted(span.profile.tasks))})",
            got=listed(sorted(model_forecasts)) or "no task",
            fix="Pass one array for each task of the profile",
        )
    # A generator: the forecasts of one baseline are measured before those of the next one take memory.
    of_baselines = ((name, forecast(span)) for name, forecast in fitted.items())
    forecasts = chain([(MODEL, model_forecasts)], of_baselines)
    # By task and forecaster: mean absolute and squared errors in prices and in returns, and the loss of each
    # window, from which the tests are made.
    errors, losses = _measure(span, forecasts, metrics.measure_errors)
    confidence_sets = _confidence_sets(losses)
    tasks = {
        task: EvaluatedTask(
            columns=TASKS[task].columns,
            errors=by_name,
            significance=losses.tests(task, MODEL),  # of the model against each baseline
            confidence_set=confidence_sets[task],  # which forecasters may be the best: a p-value for each
            # Actual values on forecasts: with a slope below 1, forecasts move too much.
            lines=_regression_lines(span, task, model_forecasts[task]),
        )
        for task, by_name in errors.items()
    }
    # How often the forecast and the actual close moved in the same direction.
    direction = metrics.measure_direction(span, model_forecasts[TASK_OHLC])
    evaluation = Evaluation(
        num_windows=len(span), horizon_bars=span.horizon_bars, tasks=tasks, direction=direction
    )
    return evaluation, losses


def _confidence_sets(losses: Losses) -> dict[str, dict[str, float]]:
    """Return the p-values of the model confidence set of each task, by forecaster."""
    by_both = {
        (task, name): each for task, by_name in losses.by_task.items() for name, each in by_name.items()
    }
    sampled = sampled_means(by_both, losses.horizon_bars)
    return {
        task: confidence_set_p_values(by_name, {name: sampled[task, name] for name in by_name})
        for task, by_name in losses.by_task.items()
    }


def _regression_lines(
    span: Span, task: str, forecast_NHC: AnyFloatArray
) -> tuple[tuple[CalibrationLine | None, ...], ...]:
    """Regress actual values on forecasts at each step and column; prices are left out.

    Prices move so little within a horizon that every line through them has a slope of 1.
    """
    if TASKS[task].is_price:
        return ()
    actual_NHC = span.actual[task]
    steps = []
    for step in range(span.horizon_bars):
        lines = [
            mincer_zarnowitz(actual_NHC[:, step, place], forecast_NHC[:, step, place].astype(np.float64))
            for place in range(actual_NHC.shape[-1])
        ]
        steps.append(tuple(lines))
    return tuple(steps)


def evaluate_quantiles(data: SeriesData, model: Mapping[str, AnyFloatArray]) -> QuantileEvaluation:
    """Evaluate a model's quantiles on the test span, and those of every baseline that forecasts some.

    Args:
        data: The series; the baselines are fitted to its train span.
        model: The model's quantiles per task, shape (N, H, Q, C), in the task's unit, at the levels of the
            profile.
    """
    span = data.spans["test"]
    train = data.spans["train"]
    levels = span.profile.quantiles
    with_quantiles = {name: baseline for name, baseline in BASELINES.items() if baseline.fit_quantiles}
    of_baselines = (
        (name, baseline.fitted(train, data.scaling, levels)(span))
        for name, baseline in with_quantiles.items()
    )
    forecasts = chain([(MODEL, model)], of_baselines)
    errors, losses = _measure(span, forecasts, partial(metrics.measure_quantiles, levels=levels))
    tasks = {
        task: EvaluatedQuantiles(errors=by_name, significance=losses.tests(task, MODEL))
        for task, by_name in errors.items()
    }
    return QuantileEvaluation(levels=levels, num_windows=len(span), tasks=tasks)


def _measure(
    span: Span,
    forecasts: Iterable[tuple[str, Mapping[str, AnyFloatArray]]],
    measure: Callable[..., tuple[Any, Any]],
) -> tuple[dict[str, dict[str, Any]], Losses]:
    """Measure every forecaster, one after another.

    Args:
        span: The windows.
        forecasts: Name of each forecaster and its forecasts per task.
        measure: Takes the span, a task and forecasts of it; returns errors, and the loss of each window.

    Returns:
        Errors per task and forecaster, and all losses.
    """
    errors: dict[str, dict[str, Any]] = {task: {} for task in TASKS if task in span.profile.tasks}
    losses: dict[str, dict[str, Any]] = {task: {} for task in errors}
    for name, by_task in forecasts:
        for task, forecast in by_task.items():
            if task in errors:
                errors[task][name], losses[task][name] = measure(span, task, forecast)
    return errors, Losses(losses, span.bar_numbers, span.horizon_bars)


def _fault(evaluation: Evaluation, task: str, evaluated: EvaluatedTask) -> str | None:
    """Describe a contradiction within one task of an evaluation; None if there is none."""
    names = evaluated.errors.keys()
    tested = evaluated.significance.keys()
    if task not in TASKS or evaluated.columns != TASKS[task].columns:
        return f"the columns {listed(evaluated.columns)}"
    grids = [getattr(errors, each.name) for errors in evaluated.errors.values() for each in fields(errors)]
    cells = [grid.cells for grid in grids if grid is not None]
    if evaluated.lines:
        cells.append(evaluated.lines)
    shape = [len(evaluated.columns)] * evaluation.horizon_bars
    if any([len(row) for row in rows] != shape for rows in cells):
        num_columns = len(evaluated.columns)
        return f"errors of another shape than {evaluation.horizon_bars} steps of {num_columns} columns"
    of_set = evaluated.confidence_set.keys() or names
    if NAIVE not in tested or names != {MODEL, *tested} or of_set != names:
        return (
            f"errors of {listed([*names])}, tests against {listed([*tested])}, a set of {listed([*of_set])}"
        )
    inconsistent = [
        name for name in tested if not _fits(evaluated.significance[name], evaluation, task, name)
    ]
    if inconsistent:
        return f"tests that do not follow from the errors: {listed(inconsistent)}"
    return None


def _fits(test: Significance, evaluation: Evaluation, task: str, baseline: str) -> bool:
    """Return whether a test belongs to these errors: its mean is their difference, up to rounding."""
    model_error = evaluation.error(task).overall
    baseline_error = evaluation.error(task, baseline).overall
    deviation = abs(test.mean_difference - (model_error - baseline_error))
    is_same = deviation <= 1e-9 * max(model_error, baseline_error)
    is_possible = test.degrees_of_freedom == degrees_of_freedom(test.num_windows, evaluation.horizon_bars)
    return is_same and is_possible and test.num_windows == evaluation.num_windows


def _shape_of(cells: metrics.Cells | tuple[float, ...]) -> tuple[int, ...]:
    """Return the shape of cells; the empty shape if their rows differ in length."""
    try:
        return np.shape(cells)
    except ValueError:
        return ()


def detect_decay(
    evaluation: Evaluation, losses: Losses, best_baselines: Mapping[str, str] | None = None
) -> tuple[bool, str]:
    """Tell whether a model is significantly worse than on its test span, and the reason as a clause.

    Its losses are tested against those of the naive forecast times its multiple of naive's error on the test
    span, and against those of the best baseline of its run, so that the new candles do not choose the
    opponent. The multiple was estimated, so its standard error counts, too. The p-values of all
    tests are corrected together (Benjamini-Hochberg).

    Args:
        evaluation: Of the model on its test span.
        losses: Of the model and of baselines on newer candles.
        best_baselines: By task the best baseline that the verdicts on the model name
            (`leaderboard.references`); that of the series alone for a task without one.
    """
    if too_few_windows(len(losses), losses.horizon_bars):
        return False, f"{plural(len(losses), 'forecast')} since then can be evaluated, too few to know"
    tests = dict(_decay_tests(evaluation, losses, best_baselines or {}))
    p_values = corrected_p_values([test.p_value for test in tests.values()])
    worse = []
    for (description, test), p_value in zip(tests.items(), p_values, strict=True):
        if is_worse(test, p_value):
            worse.append(f"{description} ({chance(p_value)})")
    summary = "; ".join(worse) if worse else f"no significant decay: {', '.join(tests)}"
    return bool(worse), f"{summary}, over {plural(len(losses), 'forecast')} {losses.origin}"


def _decay_tests(
    evaluation: Evaluation, losses: Losses, best_baselines: Mapping[str, str]
) -> Iterator[tuple[str, Significance]]:
    """Yield per task the tests against the multiple of the test span and against its best baseline.

    Each comes with a description of what is compared.
    """
    for task, by_name in losses.by_task.items():
        means = {name: losses.mean(task, name) for name in by_name}
        best = best_baselines.get(task) or evaluation.best_baseline(task)
        expected = evaluation.relative_error(task)
        if expected is not None and by_name[NAIVE].any():
            multiple = number(means[MODEL] / means[NAIVE])
            description = f"{task} {multiple} times naive, {number(expected)} on its test span"
            test = losses.test(task, MODEL, NAIVE, times=expected)
            yield description, _with_error_of_multiple(test, evaluation, task, means[NAIVE])
        if best != NAIVE and best in by_name:
            description = f"{task} {number(means[MODEL] / means[best])} times {best}"
            yield description, losses.test(task, MODEL, best)


def _with_error_of_multiple(
    test: Significance, evaluation: Evaluation, task: str, naive_error: float
) -> Significance:
    """Widen the standard error of a test by that of the multiple, which was estimated on another span.

    The multiple is 1 + mean difference from naive / naive's error. On the candles of the test naive's error
    is `naive_error`, in returns. The two spans are taken as independent, so the squares of their errors add.
    """
    multiple_error = evaluation.tasks[task].significance[NAIVE].standard_error
    if test.standard_error is None or multiple_error is None:
        return replace(test, standard_error=None)
    scaled_error = multiple_error / evaluation.error(task, NAIVE).overall * naive_error
    return replace(test, standard_error=math.hypot(test.standard_error, scaled_error))


def is_worse(test: Significance, p_value: float | None) -> bool:
    """Say whether the first forecaster of a test is worse than the second by more than chance."""
    return test.mean_difference > 0 and p_value is not None and p_value < ALPHA


def too_few_windows(num_windows: int, horizon_bars: int) -> str | None:
    """Say, as a clause, that there are too few windows for a test; None if there are enough.

    >>> too_few_windows(4, 10), too_few_windows(200, 10)
    ('only 4 windows that neither was trained on; a test needs 200', None)
    """
    needed = min_windows(horizon_bars)
    if num_windows >= needed:
        return None
    return f"only {plural(num_windows, 'window')} that neither was trained on; a test needs {needed}"
