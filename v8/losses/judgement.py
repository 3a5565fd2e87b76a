"""The judgement of one series: its errors beside every baseline's, and what follows from them.

A judgement keeps errors per step and column, counts, and what its tests start from. Means, skills, verdicts
and p-values are computed from them whenever they are asked for, and stand in no file: so the report, the
metadata and the card cannot disagree.

One rule decides what is said of two errors, everywhere (`outcome_of`): the smaller one *beats* the other, the
larger one *loses to* it, where a test finds that they differ by more than chance. Where it does not, there is
*no real difference*, however the numbers lie; while the windows are too few for a test, nothing is known.

Skill is 1 - error / baseline error: 1 is perfect, 0 is the baseline, below 0 is worse than it. Where the
baseline makes no error there is no skill to speak of: None, never infinity.

Every model stands beside two baselines: the naive forecast, and the best one of its task. The best one is
chosen once for all series that are shown together, so that luck does not choose it anew for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from v8.columns import TASK_OHLC
from v8.errors import ArtifactError, SeriesError, listed
from v8.formulas.baselines import BASELINES, NAIVE, called
from v8.losses.metrics import (
    ErrorGrid,
    Floats,
    StepDirection,
    TaskErrors,
    measure_direction,
    measure_errors,
)
from v8.losses.significance import ALPHA, Significance
from v8.losses.table import Losses, best_of
from v8.records import Count, Word, check_format, checked
from v8.tasks import TASKS
from v8.windows.dataset import SeriesData
from v8.windows.scaling import Scaling
from v8.windows.span import Span

JUDGEMENT_FORMAT: Final = 3
"""Version of the keys `to_json` writes; format 2 held what follows from them too, which is passed over."""

MODEL: Final = "model"
"""Name of the judged forecaster beside the names of the baselines."""

Outcome = Literal["beats", "equals", "no real difference from", "not yet known", "loses to"]
"""How a model's mean absolute error compares with a baseline's, by the rule of `outcome_of`."""

BEATS: Final = "beats"
EQUALS: Final = "equals"
NO_DIFFERENCE: Final = "no real difference from"
UNKNOWN: Final = "not yet known"
LOSES: Final = "loses to"

ROUNDING_SHARE: Final = 1e-6
"""Errors that differ by a smaller share are equal: published models compute in single precision."""

ErrorKind = Literal["mae", "rmse"]

_RULE: Final = f"must be a judgement of format {JUDGEMENT_FORMAT}"
_FIX: Final = "Train this series again, or read it with the version of v8 that wrote it"


@dataclass(frozen=True)
class JudgedTask:
    """How a model did on one task."""

    columns: tuple[str, ...]  # what is forecast
    errors: Mapping[Word, TaskErrors]  # per forecaster (`MODEL` or a key of `BASELINES`), in both units
    significance: Mapping[Word, Significance]  # per baseline: of mean absolute errors in returns


@dataclass(frozen=True)
class Judgement:
    """How a model did on the test span of one series, beside every baseline."""

    num_windows: Count  # windows of the test span
    horizon_bars: Count  # steps ahead
    tasks: Mapping[str, JudgedTask]  # what was judged
    direction: tuple[StepDirection, ...]  # hit rates of the close, one entry per step

    @property
    def errors(self) -> dict[str, Mapping[str, TaskErrors]]:
        """Errors per task and forecaster."""
        return {task: judged.errors for task, judged in self.tasks.items()}

    def error(self, task: str, forecaster: str = MODEL, kind: ErrorKind = "mae") -> ErrorGrid:
        """Return errors in returns, the unit that compares across coins."""
        grid: ErrorGrid = getattr(self.tasks[task].errors[forecaster], f"{kind}_return")
        return grid

    def multiple(self, task: str, error: ErrorKind = "mae", baseline: str = NAIVE) -> float | None:
        """Return the model's error in returns, over all steps and columns, as a multiple of a baseline's.

        Below 1, unitless, is better than the baseline; None if the baseline made no error.
        """
        ours, theirs = (self.error(task, name, error).overall for name in (MODEL, baseline))
        multiple = ours / theirs if theirs > 0 else math.inf
        return multiple if math.isfinite(multiple) else None

    def skill(self, task: str, error: ErrorKind = "mae", baseline: str = NAIVE) -> float | None:
        """Return 1 - `multiple`: 1 is perfect, 0 the baseline, negative worse; None without an error."""
        multiple = self.multiple(task, error, baseline)
        return None if multiple is None else 1.0 - multiple

    def p_value(self, task: str, baseline: str = NAIVE) -> float | None:
        """Return the chance of a mean absolute error this far from a baseline's if both were as good.

        0 to 1, two-sided, not corrected for judging many series; None where nothing can be said, and where
        the errors are equal.
        """
        if self.is_equal(task, baseline):
            return None
        return self.tasks[task].significance[baseline].p_value

    def is_equal(self, task: str, baseline: str = NAIVE) -> bool:
        """Tell whether the mean absolute error is that of a baseline."""
        return is_equal(*self._errors(task, baseline))

    def outcome(self, task: str, baseline: str = NAIVE) -> Outcome:
        """Compare the mean absolute error with a baseline's by the one rule: see `outcome_of`."""
        return outcome_of(*self._errors(task, baseline), self.p_value(task, baseline))

    def verdict(self, task: str, baseline: str = NAIVE) -> str:
        """Say in words how the mean absolute error compares with a baseline's: "beats naive"."""
        return verdict_of(self.outcome(task, baseline), baseline)

    def best_baseline(self, task: str) -> str:
        """Return the baseline that errs least on a task of this series alone; see `best_baseline`."""
        return best_baseline([self], task)

    @property
    def loses(self) -> list[str]:
        """Tasks on which the naive forecast is better by more than chance, in the order of the tasks."""
        return [task for task in self.tasks if self.outcome(task) == LOSES]

    @property
    def beaten_by(self) -> dict[str, str]:
        """Per task on which the best baseline of this series, not naive, is better: its name."""
        best = {task: self.best_baseline(task) for task in self.tasks}
        lost = {task: name for task, name in best.items() if self.outcome(task, name) == LOSES}
        return {task: name for task, name in lost.items() if name != NAIVE}

    def _errors(self, task: str, baseline: str) -> tuple[float, float]:
        """Return the mean absolute errors, in returns, of the model and of a baseline."""
        return self.error(task).overall, self.error(task, baseline).overall

    def to_json(self) -> dict[str, Any]:
        """Return cells, counts and test inputs as plain JSON values; no NaN, no infinity."""
        content: dict[str, Any] = _JUDGEMENT.dump_python(self, mode="json", by_alias=True)
        return {"format": JUDGEMENT_FORMAT, **content}

    @classmethod
    def from_json(cls, content: Any, *, where: str = "the judgement") -> Judgement:
        """Read what `to_json` wrote, also before its format was raised; `where` is named by errors."""
        check_format(content, (2, JUDGEMENT_FORMAT), what="judgement", where=where, fix=_FIX)
        judgement = checked(_JUDGEMENT, content, where=where, fix=_FIX, rule=_RULE)
        if faults := [*_faults(judgement)]:
            raise ArtifactError(where=where, rule=_RULE, got=listed(faults), fix=_FIX)
        return judgement


_JUDGEMENT: Final = TypeAdapter(Judgement)


def is_equal(ours: float, theirs: float) -> bool:
    """Tell whether two errors of the same unit are one and the same, up to rounding."""
    return math.isclose(ours, theirs, rel_tol=ROUNDING_SHARE)


def outcome_of(ours: float, theirs: float, p_value: float | None) -> Outcome:
    """Say how an error compares with another: the one rule that every verdict follows.

    The p-value is corrected where several series are judged at once; None where windows are too few to test.

    >>> outcome_of(1.0, 1.0000001, None), outcome_of(1.0, 1.1, 0.01), outcome_of(1.2, 1.1, 0.01)
    ('equals', 'beats', 'loses to')
    >>> outcome_of(1.2, 1.1, 0.85), outcome_of(1.2, 1.1, None)
    ('no real difference from', 'not yet known')
    """
    if is_equal(ours, theirs):
        return EQUALS
    if p_value is None:
        return UNKNOWN
    if p_value >= ALPHA:
        return NO_DIFFERENCE
    return BEATS if ours < theirs else LOSES


def verdict_of(outcome: Outcome, baseline: str) -> str:
    """Say an outcome in words, with the name that readers know the baseline by.

    >>> verdict_of("no real difference from", "roll_forward"), verdict_of("not yet known", "har")
    ('no real difference from naive', 'not yet known')
    """
    return UNKNOWN if outcome == UNKNOWN else f"{outcome} {called(baseline)}"


def best_baseline(judgements: Sequence[Judgement], task: str) -> str:
    """Return the best baseline of a task that every one of these series was judged beside, by `best_of`."""
    return best_of(
        [{name: one.error(task, name).overall for name in one.tasks[task].significance} for one in judgements]
    )


def judge(data: SeriesData, model: Mapping[str, Floats]) -> Judgement:
    """Measure a model and every baseline on the test span, see `judge_span`."""
    return judge_windows(data, model)[0]


def judge_windows(data: SeriesData, model: Mapping[str, Floats]) -> tuple[Judgement, Losses]:
    """Judge as `judge` does, and return how everybody erred in each window, too."""
    return judge_span(data.spans["test"], model, train=data.spans["train"], scaling=data.scaling)


def judge_span(
    span: Span, model: Mapping[str, Floats], *, train: Span, scaling: Scaling
) -> tuple[Judgement, Losses]:
    """Measure a model and every baseline, fitted to `train`, on some windows; return the losses, too.

    The model's forecasts are per task, shape (N, H, C), in the task's unit. Raises `SeriesError` if one is
    missing, or of another shape than its truth, or an error is too large to be a number.
    """
    _check_tasks(span, model)
    tasks = [task for task in TASKS if task in span.profile.tasks]
    errors: dict[str, dict[str, TaskErrors]] = {task: {} for task in tasks}
    by_task: dict[str, dict[str, NDArray[np.float64]]] = {task: {} for task in tasks}
    for name, made in _forecasts(span, model, train, scaling):
        for task in (task for task in tasks if task in made):
            errors[task][name], by_task[task][name] = measure_errors(span, task, made[task])
    losses = Losses.of(span, by_task)
    judged = {
        task: JudgedTask(
            columns=TASKS[task].columns,
            errors=found,
            significance={name: losses.test(task, MODEL, name) for name in found if name != MODEL},
        )
        for task, found in errors.items()
    }
    direction = measure_direction(span, model[TASK_OHLC])
    return Judgement(len(span), span.horizon_bars, judged, direction), losses


def _forecasts(
    span: Span, model: Mapping[str, Floats], train: Span, scaling: Scaling
) -> Iterator[tuple[str, Mapping[str, Floats]]]:
    """Yield the forecasts of the model and of every baseline that is installed, one after the other."""
    yield MODEL, model
    for name, baseline in BASELINES.items():
        if baseline.is_installed():
            yield name, baseline.fit(train, scaling)(span)


def _check_tasks(span: Span, model: Mapping[str, Floats]) -> None:
    if set(model) != set(span.profile.tasks):
        raise SeriesError(
            where=f"{span.table.series}, model",
            rule=f"forecasts the tasks of its profile ({', '.join(sorted(span.profile.tasks))})",
            got=listed(sorted(model)) or "no task",
            fix="Pass one array for each task of the profile",
        )


def _faults(judgement: Judgement) -> Iterator[str]:
    """Say what of a judgement does not fit together, though every number is in its range."""
    if TASK_OHLC not in judgement.tasks:
        yield f"no task {TASK_OHLC}"
    if [step.step for step in judgement.direction] != [*range(1, judgement.horizon_bars + 1)]:
        yield f"other steps than 1 to {judgement.horizon_bars} in direction"
    for step in judgement.direction:
        if not step.adds_up(judgement.num_windows):
            yield f"counts of step {step.step} that are not those of {judgement.num_windows} windows"
    for task, judged in judgement.tasks.items():
        if (fault := _fault(judgement, task, judged)) is not None:
            yield f"{task} with {fault}"


def _fault(judgement: Judgement, task: str, judged: JudgedTask) -> str | None:
    names, tested = judged.errors.keys(), judged.significance.keys()
    if task not in TASKS or judged.columns != TASKS[task].columns:
        return f"the columns {listed(judged.columns)}"
    grids = [getattr(errors, field.name) for errors in judged.errors.values() for field in fields(errors)]
    shape = [len(judged.columns)] * judgement.horizon_bars
    if any([len(row) for row in grid.cells] != shape for grid in grids):
        return f"errors of another shape than {judgement.horizon_bars} steps of {len(judged.columns)} columns"
    if NAIVE not in tested or names != {MODEL, *tested}:
        return f"errors of {listed([*names])} and tests against {listed([*tested])}"
    strange = [name for name in tested if not _is_about(judged.significance[name], judgement, task, name)]
    return f"tests that do not follow from the errors beside them: {listed(strange)}" if strange else None


def _is_about(test: Significance, judgement: Judgement, task: str, baseline: str) -> bool:
    """Say whether a test is of these errors: its mean is their difference, up to rounding."""
    ours, theirs = judgement.error(task).overall, judgement.error(task, baseline).overall
    is_same = abs(test.mean_difference - (ours - theirs)) <= 1e-9 * max(ours, theirs)
    has_error = test.standard_error is None or test.lag_bars < test.num_windows
    return is_same and has_error and test.num_windows == judgement.num_windows
