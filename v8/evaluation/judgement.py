"""The judgement of one series: its errors beside every baseline's, and what follows from them.

A judgement keeps errors per step and column only. Means, skills and verdicts are computed from them,
so the report, the metadata and the card cannot disagree; reading a file recomputes all of them and
refuses it when one is not what the cells say.

Skill is 1 - error / baseline error: 1 is perfect, 0 is the baseline, below 0 is worse than it. Where the
baseline makes no error there is no skill to speak of: None, null in files, never infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from v8.columns import TASK_COLUMNS, TASK_OHLC
from v8.errors import ArtifactError
from v8.evaluation.baselines import NAIVE, forecast_baseline, usable_baselines
from v8.evaluation.forecasts import Forecasts
from v8.evaluation.metrics import (
    MAX_ERROR,
    ErrorGrid,
    StepDirection,
    TaskErrors,
    measure_direction,
    measure_errors,
    window_losses,
)
from v8.evaluation.significance import Significance, diebold_mariano

JUDGEMENT_FORMAT: Final = 2
"""Version of the keys `to_json` writes."""

MODEL: Final = "model"
"""Name of the judged forecaster beside the names of the baselines."""

BEATS: Final = "beats naive"
EQUALS: Final = "equals naive"
LOSES: Final = "loses to naive"

ErrorKind = Literal["mae", "rmse"]
_KINDS: Final[tuple[ErrorKind, ...]] = ("mae", "rmse")
_GRIDS: Final = tuple(field.name for field in fields(TaskErrors))
_POWERS: Final[dict[str, Literal[1, 2]]] = {"mae": 1, "rmse": 2}


@dataclass(frozen=True)
class Judgement:
    """How a model did on the test span of one series, beside every baseline.

    Args:
        num_windows: Windows of the test span.
        horizon_bars: Steps ahead.
        errors: Per task, per forecaster (`MODEL` or a key of `BASELINES`): errors in both units.
        direction: Hit rates of the close, one entry per step.
        significance: Per task, per baseline: whether the model's mean absolute error in returns differs
            from the baseline's by more than chance.
    """

    num_windows: int
    horizon_bars: int
    errors: Mapping[str, Mapping[str, TaskErrors]]
    direction: tuple[StepDirection, ...]
    significance: Mapping[str, Mapping[str, Significance]]

    def error(self, task: str, forecaster: str = MODEL, kind: ErrorKind = "mae") -> ErrorGrid:
        """Return errors in returns, the unit that compares across coins."""
        grid: ErrorGrid = getattr(self.errors[task][forecaster], f"{kind}_return")
        return grid

    def multiple(self, task: str, error: ErrorKind = "mae", baseline: str = NAIVE) -> float | None:
        """Return the model's error over all steps and columns as a multiple of a baseline's.

        Args:
            task: A task of this judgement.
            error: "mae" or "rmse", in returns.
            baseline: A key of `BASELINES`.

        Returns:
            0 or above, unitless; below 1 is better than the baseline; None if it made no error.
        """
        ours = self.error(task, kind=error).overall
        return _ratio(ours, self.error(task, baseline, error).overall)

    def skill(self, task: str, error: ErrorKind = "mae", baseline: str = NAIVE) -> float | None:
        """Return 1 - `multiple`: 1 is perfect, 0 the baseline, negative worse; None without an error."""
        return _skill(self.multiple(task, error, baseline))

    def skill_by_step(
        self, task: str, error: ErrorKind = "mae", baseline: str = NAIVE
    ) -> tuple[float | None, ...]:
        """Return the skill of each step over all columns, first step first."""
        ours = self.error(task, kind=error).by_step
        theirs = self.error(task, baseline, error).by_step
        return tuple(_skill(_ratio(*pair)) for pair in zip(ours, theirs, strict=True))

    def p_value(self, task: str, baseline: str = NAIVE) -> float | None:
        """Return the chance of a mean absolute error this far from a baseline's if both were as good.

        Args:
            task: A task of this judgement.
            baseline: A key of `BASELINES`.

        Returns:
            0 to 1, two-sided, not corrected for judging many series; None where nothing can be said.
        """
        return self.significance[task][baseline].p_value

    def verdict(self, task: str) -> str:
        """Say in three words how the mean absolute error compares with the naive forecast's.

        No significance is implied; `p_value` has it.
        """
        ours, naive = self.error(task).overall, self.error(task, NAIVE).overall
        if ours == naive:
            return EQUALS
        return BEATS if ours < naive else LOSES

    @property
    def beats_baseline(self) -> dict[str, bool]:
        """Per task: whether the mean absolute error is below the naive forecast's."""
        return {task: self.verdict(task) == BEATS for task in self.errors}

    @property
    def loses(self) -> list[str]:
        """Tasks on which the naive forecast is better, in the order of the tasks."""
        return [task for task in self.errors if self.verdict(task) == LOSES]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values; no NaN, no infinity."""
        return {
            "format": JUDGEMENT_FORMAT,
            "num_windows": self.num_windows,
            "horizon_bars": self.horizon_bars,
            "naive": NAIVE,
            "loses": self.loses,
            "tasks": {task: self._task_json(task) for task in self.errors},
            "direction": [step.to_json() for step in self.direction],
        }

    @classmethod
    def from_json(cls, content: Any, *, where: str = "the judgement") -> Judgement:
        """Read what `to_json` wrote.

        Args:
            content: The value, as `json` loads it.
            where: The file and key, for error messages.

        Raises:
            ArtifactError: If a key is missing, or a mean, skill or verdict is not what its cells say.
        """
        try:
            judgement = cls(
                num_windows=content["num_windows"],
                horizon_bars=content["horizon_bars"],
                errors={task: _read_task(task, section) for task, section in content["tasks"].items()},
                direction=tuple(_read_step(step) for step in content["direction"]),
                significance={
                    task: _read_significance(section) for task, section in content["tasks"].items()
                },
            )
            is_faithful = _is_whole(judgement) and _agrees(content, judgement.to_json())
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise _damaged(where, f"{type(error).__name__} at {error}") from error
        if not is_faithful:
            raise _damaged(where, "values that do not follow from the errors beside them")
        return judgement

    def _task_json(self, task: str) -> dict[str, Any]:
        baselines = [name for name in self.errors[task] if name != MODEL]
        return {
            "columns": list(TASK_COLUMNS[task]),
            "verdict": self.verdict(task),
            "multiple_of_naive": {kind: self.multiple(task, kind) for kind in _KINDS},
            "skill": {name: self._skill_json(task, name) for name in baselines},
            "significance": {name: self.significance[task][name].to_json() for name in baselines},
            "errors": {
                forecaster: {grid: getattr(errors, grid).to_json() for grid in _GRIDS}
                for forecaster, errors in self.errors[task].items()
            },
        }

    def _skill_json(self, task: str, baseline: str) -> dict[str, Any]:
        content: dict[str, Any] = {kind: self.skill(task, kind, baseline) for kind in _KINDS}
        for kind in _KINDS:
            content[f"{kind}_by_step"] = list(self.skill_by_step(task, kind, baseline))
        return content


def judge(forecasts: Forecasts) -> Judgement:
    """Measure a model and every baseline on one test span.

    Args:
        forecasts: The span; its arrays were checked when it was made.

    Returns:
        The judgement, tasks in the order of `v8.columns.TASK_COLUMNS`.

    Raises:
        SeriesError: If an error is too large to be a number.
    """
    tasks = [task for task in TASK_COLUMNS if task in forecasts.truth]
    errors = {task: {MODEL: measure_errors(forecasts, task, forecasts.model[task])} for task in tasks}
    losses = {task: window_losses(forecasts, task, forecasts.model[task]) for task in tasks}
    significance: dict[str, dict[str, Significance]] = {task: {} for task in tasks}
    for name in usable_baselines(forecasts):
        for task, made in forecast_baseline(name, forecasts).items():
            errors[task][name] = measure_errors(forecasts, task, made)
            differences = losses[task] - window_losses(forecasts, task, made)
            significance[task][name] = diebold_mariano(
                differences, horizon_bars=forecasts.horizon_bars, bar_numbers=forecasts.bar_numbers
            )
    return Judgement(
        num_windows=forecasts.num_windows,
        horizon_bars=forecasts.horizon_bars,
        errors=errors,
        direction=measure_direction(forecasts),
        significance=significance,
    )


def _ratio(error: float, baseline: float) -> float | None:
    ratio = error / baseline if baseline > 0 else math.inf
    return ratio if math.isfinite(ratio) else None


def _skill(multiple: float | None) -> float | None:
    return None if multiple is None else 1.0 - multiple


def _is_whole(judgement: Judgement) -> bool:
    grids = [
        (task, getattr(errors, name))
        for task, forecasters in judgement.errors.items()
        for errors in forecasters.values()
        for name in _GRIDS
    ]
    is_tested = all(
        _is_of(judgement, task, name, test)
        for task, tests in judgement.significance.items()
        for name, test in tests.items()
    )
    has_axes = all(_has_axes(grid, judgement.horizon_bars, len(TASK_COLUMNS[task])) for task, grid in grids)
    steps = [step.step for step in judgement.direction]
    return (
        is_tested
        and has_axes
        and TASK_OHLC in judgement.errors
        and steps == [*range(1, judgement.horizon_bars + 1)]
    )


def _is_of(judgement: Judgement, task: str, baseline: str, test: Significance) -> bool:
    """Say whether a test is about this judgement's errors: its mean is their difference, up to rounding."""
    ours, theirs = judgement.error(task).overall, judgement.error(task, baseline).overall
    is_same = abs(test.mean_difference - (ours - theirs)) <= 1e-9 * max(ours, theirs)
    return is_same and test.num_windows == judgement.num_windows


def _agrees(found: Any, expected: Any) -> bool:
    """Compare JSON values; numbers may differ in their last digits, where other libraries rounded."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(_agrees(found[key], expected[key]) for key in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(_agrees, found, expected))
    if isinstance(expected, float) and isinstance(found, int | float):
        return math.isclose(found, expected, rel_tol=1e-9)
    return bool(found == expected)


def _has_axes(grid: ErrorGrid, horizon_bars: int, num_columns: int) -> bool:
    is_shaped = len(grid.cells) == horizon_bars and all(len(row) == num_columns for row in grid.cells)
    return is_shaped and all(0 <= cell < MAX_ERROR for row in grid.cells for cell in row)


def _read_task(task: str, section: Any) -> dict[str, TaskErrors]:
    return {name: _read_errors(task, grids) for name, grids in section["errors"].items()}


def _read_errors(task: str, grids: Any) -> TaskErrors:
    return TaskErrors(**{name: _read_grid(task, name, grids[name]) for name in _GRIDS})


def _read_significance(section: Any) -> dict[str, Significance]:
    return {name: Significance.from_json(test) for name, test in section["significance"].items()}


def _read_grid(task: str, name: str, content: Any) -> ErrorGrid:
    cells = tuple(tuple(float(cell) for cell in row) for row in content["by_step_and_column"])
    return ErrorGrid(TASK_COLUMNS[task], cells, _POWERS[name.partition("_")[0]])


def _read_step(content: Any) -> StepDirection:
    step = StepDirection(**{field.name: content[field.name] for field in fields(StepDirection)})
    if not 0 <= step.num_effective <= max(1, step.num_counted):
        raise ValueError("num_effective out of range")
    return step


def _damaged(where: str, got: str) -> ArtifactError:
    return ArtifactError(
        where=where,
        rule=f"must be a judgement of format {JUDGEMENT_FORMAT}",
        got=got,
        fix="Train this series again, or read it with the version of v8 that wrote it",
    )
