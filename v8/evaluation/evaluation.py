"""The evaluation of one series: errors of forecasts and quantiles beside every baseline's, and what follows.

An evaluation keeps errors per step and column, counts, and what its tests start from. Means, skills, verdicts
and p-values are computed from them whenever they are asked for, and stand in no file: so the report, the
metadata and the card cannot disagree. What is said of two errors follows the one rule of
`v8.evaluation.significance`.

Every model stands beside two baselines: the naive forecast, and the best one of its task. The best one is
chosen once for all series that are shown together, so that luck does not choose it anew for each of them.

Legend: N windows, H steps of the horizon, Q levels, C columns of a task.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np

from v8.baselines.baselines import BASELINES, NAIVE
from v8.columns import TASK_OHLC
from v8.errors import ArtifactError, SeriesError, listed
from v8.evaluation import metrics
from v8.evaluation.metrics import ErrorGrid, Floats, QuantileErrors, Share, StepDirection, TaskErrors
from v8.evaluation.significance import LOSES, Against, Losses, Significance, best_of, is_equal, multiple_of
from v8.quantile_levels import interval_names, intervals
from v8.records import Count, Word, adapter, check_format, checked
from v8.tasks import TASKS
from v8.windows.dataset import SeriesData
from v8.windows.scaling import Scaling
from v8.windows.span import Span

MODEL: Final = "model"
"""Name of the evaluated forecaster beside the names of the baselines."""

ErrorKind = Literal["mae", "rmse"]

_FIX: Final = "Train this series again, or read it with the version of v8 that wrote it"


class Written:
    """What is written as JSON, and read again where it fits together."""

    what: ClassVar[str]  # what errors call it
    formats: ClassVar[tuple[int, ...]]  # versions of its keys that are read; the last one is written

    def to_json(self) -> dict[str, Any]:
        """Return cells, counts and test inputs as plain JSON values; no NaN, no infinity."""
        content = adapter(type(self)).dump_python(self, mode="json", by_alias=True)
        return {"format": self.formats[-1], **content}

    @classmethod
    def from_json(cls, content: Any, *, where: str = "the evaluation") -> Self:
        """Read what `to_json` wrote, also before its format was raised; `where` is named by errors."""
        rule = f"must be a {cls.what} of format {cls.formats[-1]}"
        check_format(content, cls.formats, what=cls.what, where=where, fix=_FIX)
        evaluation = checked(cls, content, where=where, fix=_FIX, rule=rule)
        faults = [*evaluation.faults()]
        if faults:
            raise ArtifactError(where=where, rule=rule, got=listed(faults), fix=_FIX)
        return evaluation

    def faults(self) -> Iterator[str]:
        """Say what does not fit together, though every number is in its range."""
        raise NotImplementedError


@dataclass(frozen=True)
class EvaluatedTask:
    """How a model did on one task."""

    columns: tuple[str, ...]  # what is forecast
    errors: Mapping[Word, TaskErrors]  # per forecaster (`MODEL` or a key of `BASELINES`), in both units
    significance: Mapping[Word, Significance]  # per baseline: of mean absolute errors in returns


@dataclass(frozen=True)
class Evaluation(Written):
    """How a model did on the test span of one series, beside every baseline."""

    what = "evaluation"
    formats = (2, 3)  # format 2 held what follows from the keys, too, which is passed over
    num_windows: Count  # windows of the test span
    horizon_bars: Count  # steps ahead
    tasks: Mapping[str, EvaluatedTask]  # what was evaluated
    direction: tuple[StepDirection, ...]  # hit rates of the close, one entry per step

    @property
    def errors(self) -> dict[str, Mapping[str, TaskErrors]]:
        """Errors per task and forecaster."""
        return {task: evaluated.errors for task, evaluated in self.tasks.items()}

    def error(self, task: str, forecaster: str = MODEL, kind: ErrorKind = "mae") -> ErrorGrid:
        """Return errors in returns, the unit that compares across coins."""
        grid: ErrorGrid = getattr(self.tasks[task].errors[forecaster], f"{kind}_return")
        return grid

    def multiple(
        self, task: str, error: ErrorKind = "mae", baseline: str = NAIVE, forecaster: str = MODEL
    ) -> float | None:
        """Return an error in returns, over all steps and columns, as a multiple of a baseline's.

        Below 1, unitless, is better than the baseline; None if the baseline made no error.
        """
        return multiple_of(*(self.error(task, name, error).overall for name in (forecaster, baseline)))

    def against(self, task: str, baseline: str = NAIVE) -> Against:
        """Put the mean absolute error beside a baseline's, with the chance that both are as good.

        The p-value is not corrected for evaluating many series; None where nothing can be said, and where the
        errors are equal.
        """
        ours, theirs = (self.error(task, name).overall for name in (MODEL, baseline))
        chance = None if is_equal(ours, theirs) else self.tasks[task].significance[baseline].p_value
        return Against(baseline, ours, theirs, chance, chance)

    def best_baseline(self, task: str) -> str:
        """Return the baseline that errs least on a task of this series alone; see `best_baseline`."""
        return best_baseline([self], task)

    @property
    def loses(self) -> list[str]:
        """Tasks on which the naive forecast is better by more than chance, in the order of the tasks."""
        return [task for task in self.tasks if self.against(task).outcome == LOSES]

    @property
    def beaten_by(self) -> dict[str, str]:
        """Per task on which the best baseline of this series, not naive, is better: its name."""
        best = {task: self.best_baseline(task) for task in self.tasks}
        lost = {task: name for task, name in best.items() if self.against(task, name).outcome == LOSES}
        return {task: name for task, name in lost.items() if name != NAIVE}

    def faults(self) -> Iterator[str]:
        """Say what does not fit together."""
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
    """How the quantiles of one task did."""

    errors: Mapping[Word, QuantileErrors]  # per forecaster, `MODEL` or a baseline with quantiles
    significance: Mapping[Word, Significance]  # per baseline: of the CRPS

    def multiple(self, baseline: str) -> float | None:
        """Return the model's CRPS as a multiple of a baseline's; None if that made no error."""
        return multiple_of(*(self.errors[name].crps for name in (MODEL, baseline)))


@dataclass(frozen=True)
class QuantileEvaluation(Written):
    """How a model's quantiles did on the test span of one series, beside the baselines that have some."""

    what = "evaluation of quantiles"
    formats = (1,)
    levels: tuple[Share, ...]  # all of them, ascending
    num_windows: Count  # windows of the test span
    tasks: Mapping[str, EvaluatedQuantiles]  # what was evaluated

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return per task the CRPS, in returns and as multiples of baselines', and coverage by interval."""
        return {
            task: {
                "crps": evaluated.errors[MODEL].crps,
                "crps_multiples": {name: evaluated.multiple(name) for name in evaluated.significance},
                "coverage": {
                    name: evaluated.errors[MODEL].mean_coverage(place)
                    for place, name in enumerate(interval_names(self.levels))
                },
            }
            for task, evaluated in self.tasks.items()
        }

    def faults(self) -> Iterator[str]:
        """Say what does not fit together."""
        num_intervals = len(intervals(self.levels))
        for task, evaluated in self.tasks.items():
            if task not in TASKS or MODEL not in evaluated.errors:
                yield f"the task {task}"
                continue
            first = _shape_of(evaluated.errors[MODEL].pinball)
            shapes = [len(self.levels), num_intervals, num_intervals]
            for errors in evaluated.errors.values():
                found = [_shape_of(one) for one in (errors.pinball, errors.coverage, errors.width)]
                if not first or found != [(number, *first[1:]) if number else (0,) for number in shapes]:
                    yield f"{task} with losses of another shape than its levels"


def best_baseline(evaluations: Sequence[Evaluation], task: str) -> str:
    """Return the best baseline of a task that every one of these series was evaluated beside, by `best_of`."""
    return best_of(
        [
            {name: one.error(task, name).overall for name in one.tasks[task].significance}
            for one in evaluations
        ]
    )


def evaluate_windows(data: SeriesData, model: Mapping[str, Floats]) -> tuple[Evaluation, Losses]:
    """Measure a model and every baseline on the test span, see `evaluate_span`."""
    return evaluate_span(data.spans["test"], model, train=data.spans["train"], scaling=data.scaling)


def evaluate_span(
    span: Span, model: Mapping[str, Floats], *, train: Span, scaling: Scaling
) -> tuple[Evaluation, Losses]:
    """Measure a model and every baseline that is installed, fitted to `train`, on some windows.

    Returns, beside the evaluation, how everybody erred in each window. The model's forecasts are per task,
    shape (N, H, C), in the task's unit. Raises `SeriesError` if one is missing, or of another shape than its
    actual values, or an error is too large to be a number.
    """
    if set(model) != set(span.profile.tasks):
        where = f"{span.table.series}, model"
        got = listed(sorted(model)) or "no task"
        rule = f"forecasts the tasks of its profile ({', '.join(sorted(span.profile.tasks))})"
        raise SeriesError(where=where, rule=rule, got=got, fix="Pass one array for each task of the profile")
    installed = {name: baseline for name, baseline in BASELINES.items() if baseline.is_installed()}
    made = ((name, baseline.fitted(train, scaling)(span)) for name, baseline in installed.items())
    errors, losses = _measured(span, chain([(MODEL, model)], made), metrics.measure_errors)
    evaluated = {
        task: EvaluatedTask(TASKS[task].columns, found, losses.tests(task, MODEL))
        for task, found in errors.items()
    }
    direction = metrics.measure_direction(span, model[TASK_OHLC])
    return Evaluation(len(span), span.horizon_bars, evaluated, direction), losses


def evaluate_quantiles(data: SeriesData, model: Mapping[str, Floats]) -> QuantileEvaluation:
    """Measure a model's quantiles of the test span, and those of every baseline that has some.

    The model's are per task, shape (N, H, Q, C), in the task's unit; the profile gives the levels.
    """
    span = data.spans["test"]
    levels = data.spans["test"].profile.quantiles
    train = data.spans["train"]
    scaling = data.scaling
    able = {name: baseline for name, baseline in BASELINES.items() if baseline.fit_quantiles}
    made = ((name, baseline.fitted(train, scaling, levels)(span)) for name, baseline in able.items())
    measure = partial(metrics.measure_quantiles, levels=levels)
    errors, losses = _measured(span, chain([(MODEL, model)], made), measure)
    tasks = {task: EvaluatedQuantiles(found, losses.tests(task, MODEL)) for task, found in errors.items()}
    return QuantileEvaluation(levels, len(span), tasks)


def _measured(
    span: Span, made: Iterable[tuple[str, Mapping[str, Floats]]], measure: Callable[..., tuple[Any, Any]]
) -> tuple[dict[str, dict[str, Any]], Losses]:
    """Measure what everybody says, one after another: errors per task and forecaster, and the losses."""
    errors: dict[str, dict[str, Any]] = {task: {} for task in TASKS if task in span.profile.tasks}
    losses: dict[str, dict[str, Any]] = {task: {} for task in errors}
    for name, forecasts in made:
        for task in (task for task in errors if task in forecasts):
            errors[task][name], losses[task][name] = measure(span, task, forecasts[task])
    return errors, Losses(losses, span.bar_numbers, span.horizon_bars)


def _fault(evaluation: Evaluation, task: str, evaluated: EvaluatedTask) -> str | None:
    names = evaluated.errors.keys()
    tested = evaluated.significance.keys()
    if task not in TASKS or evaluated.columns != TASKS[task].columns:
        return f"the columns {listed(evaluated.columns)}"
    grids = [getattr(errors, field.name) for errors in evaluated.errors.values() for field in fields(errors)]
    shape = [len(evaluated.columns)] * evaluation.horizon_bars
    if any([len(row) for row in grid.cells] != shape for grid in grids):
        return f"errors of another shape than {evaluation.horizon_bars} steps of {len(evaluated.columns)} columns"
    if NAIVE not in tested or names != {MODEL, *tested}:
        return f"errors of {listed([*names])} and tests against {listed([*tested])}"
    strange = [name for name in tested if not _is_about(evaluated.significance[name], evaluation, task, name)]
    return f"tests that do not follow from the errors beside them: {listed(strange)}" if strange else None


def _is_about(test: Significance, evaluation: Evaluation, task: str, baseline: str) -> bool:
    """Say whether a test is of these errors: its mean is their difference, up to rounding."""
    ours = evaluation.error(task).overall
    theirs = evaluation.error(task, baseline).overall
    is_same = abs(test.mean_difference - (ours - theirs)) <= 1e-9 * max(ours, theirs)
    has_error = test.standard_error is None or test.lag_bars < test.num_windows
    return is_same and has_error and test.num_windows == evaluation.num_windows


def _shape_of(cells: metrics.Cells) -> tuple[int, ...]:
    """Return the shape of cells; that of nothing where their rows differ in length."""
    try:
        return np.shape(cells)
    except ValueError:
        return ()
