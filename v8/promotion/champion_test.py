"""Two models of one series on the same windows: which of them serves.

The rule. The challenger serves when its error is lower: the mean over the tasks of its mean absolute error as
a multiple of the naive forecast's; and when on no task it is worse than the champion by more than chance
(Diebold-Mariano, as everywhere). A tie stays with the champion, and so does everything while the windows are
too few for that test to say anything.

Two models that are equally good win half of such contests each. That costs nothing: of two equals the one
that knows the newer candles is as good a choice. What the rule keeps out is a challenger that is worse where
it counts, however good it is elsewhere.

Also whether a model has become worse (`decay_of`): its losses since, beside what its test span promised.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean
from typing import Final

from v8.baselines.baselines import NAIVE, TaskForecasts, called
from v8.evaluation.evaluation import MODEL, Evaluation, evaluate_span
from v8.evaluation.metrics import measure_errors
from v8.evaluation.significance import (
    ALPHA,
    MIN_WINDOWS_PER_LAG,
    Losses,
    Significance,
    choose_lag,
    corrected_p_values,
)
from v8.windows.scaling import Scaling
from v8.windows.span import Span
from v8.wording import chance, number, plural

_CHAMPION: Final = "champion"

_SAME: Final = 1e-9
"""Errors that differ by a smaller share are equal: sums round."""


@dataclass(frozen=True)
class Contest:
    """How a challenger and a champion did on the same windows."""

    evaluated: Evaluation  # the challenger's evaluation on them, beside every baseline
    champion: Mapping[str, float]  # per task the champion's mean absolute error in returns, unitless
    tests: Mapping[str, Significance]  # per task; a mean difference below 0: the challenger is better

    @property
    def challenger_multiples(self) -> dict[str, float]:
        """Per task the challenger's error as a multiple of naive's, but where naive never errs."""
        return self._multiples({task: self.evaluated.error(task).overall for task in self.evaluated.tasks})

    @property
    def champion_multiples(self) -> dict[str, float]:
        """Likewise the champion's."""
        return self._multiples(self.champion)

    @property
    def best_baselines(self) -> dict[str, tuple[str, float]]:
        """Per task the best baseline of these windows and its error as a multiple of naive's."""
        best = {task: self.evaluated.best_baseline(task) for task in self.evaluated.tasks}
        found = self._multiples(
            {task: self.evaluated.error(task, name).overall for task, name in best.items()}
        )
        return {task: (best[task], multiple) for task, multiple in found.items()}

    @property
    def is_won(self) -> bool:
        """Whether the challenger serves, by the rule at the top of this module."""
        return not self._too_few and self._is_lower and not self.worse

    @property
    def worse(self) -> list[str]:
        """Tasks on which the challenger is worse by more than chance."""
        return [task for task, test in self.tests.items() if _is_worse(test, test.p_value)]

    @property
    def why(self) -> str:
        """The reason, a clause about the challenger in plain words."""
        if self._too_few:
            return self._too_few
        numbers = f"{number(self._overall[0])} times naive's, the champion's {number(self._overall[1])}"
        if not self._is_lower:
            return f"its error is not lower: {numbers}"
        worse = ", ".join(f"{task} ({chance(self.tests[task].p_value)})" for task in self.worse)
        but = f", but worse by more than chance on {worse}" if worse else ""
        return f"its error is lower: {numbers}{but}"

    @property
    def _too_few(self) -> str | None:
        return too_few(self.evaluated.num_windows, self.evaluated.horizon_bars)

    @property
    def _overall(self) -> tuple[float, float]:
        """Mean multiple over the tasks of challenger and champion; 0 where naive never errs."""
        challenger = self.challenger_multiples
        champion = self.champion_multiples
        return (mean(challenger.values()), mean(champion.values())) if challenger else (0.0, 0.0)

    @property
    def _is_lower(self) -> bool:
        challenger, champion = self._overall
        return challenger < champion * (1 - _SAME)

    def _multiples(self, errors: Mapping[str, float]) -> dict[str, float]:
        naive = {task: self.evaluated.error(task, NAIVE).overall for task in errors}
        return {task: error / naive[task] for task, error in errors.items() if naive[task] > 0}


def compare_models(
    span: Span, challenger: TaskForecasts, champion: TaskForecasts, *, train: Span, scaling: Scaling
) -> Contest:
    """Judge two models on the same windows, at least one, that neither was made from.

    Their forecasts are per task, shape (N, H, C), in the task's unit; baselines are fitted to `train`.
    """
    evaluated, losses = evaluate_span(span, challenger, train=train, scaling=scaling)
    errors = {}
    tests = {}
    for task in evaluated.tasks:
        measured, theirs = measure_errors(span, task, champion[task])
        both = {MODEL: losses.by_task[task][MODEL], _CHAMPION: theirs}
        paired = replace(losses, by_task={task: both})
        errors[task] = measured.mae_return.overall
        tests[task] = paired.test(task, MODEL, _CHAMPION)
    return Contest(evaluated, errors, tests)


def too_few(num_windows: int, horizon_bars: int) -> str | None:
    """Say, as a clause, that windows are too few for a test to say anything; None where they are not.

    >>> too_few(4, 10), too_few(30, 10)
    ('only 4 windows that neither has seen; a test needs 30', None)
    """
    needed = _fewest_windows(horizon_bars)
    told = f"only {plural(num_windows, 'window')} that neither has seen; a test needs {needed}"
    return told if num_windows < needed else None


@cache
def _fewest_windows(horizon_bars: int) -> int:
    """Return the number of windows from which on a test is never without a standard error.

    The lag is rounded up, so that 21 windows may do where 22 do not.

    >>> _fewest_windows(2), _fewest_windows(10)
    (24, 30)
    """
    per_lag = MIN_WINDOWS_PER_LAG
    bound = per_lag * horizon_bars + 100  # from there on the lag grows slower than the windows
    return 1 + max(each for each in range(1, bound) if each < per_lag * (choose_lag(each, horizon_bars) + 1))


def _is_worse(test: Significance, p_value: float | None) -> bool:
    return test.mean_difference > 0 and p_value is not None and p_value < ALPHA


def decay_of(evaluated: Evaluation, losses: Losses) -> tuple[bool, str]:
    """Tell whether a model is worse, by more than chance, than it was, or than the best baseline was.

    Its losses are tested against those of the naive forecast times the multiple of its test span, which has
    an error of its own, and against those of the baseline that was best there, so that no luck of the new
    candles chooses the opponent. All tests are corrected for one another (Benjamini-Hochberg).
    """
    if too_few(len(losses), losses.horizon_bars):
        return False, f"{plural(len(losses), 'forecast')} since then can be evaluated, too few to tell"
    tests = dict(_tests(evaluated, losses))
    chances = corrected_p_values([test.p_value for test in tests.values()])
    worse = [
        f"{said} ({chance(found)})"
        for (said, test), found in zip(tests.items(), chances, strict=True)
        if _is_worse(test, found)
    ]
    told = "; ".join(worse or [f"no decay by more than chance: {', '.join(tests)}"])
    return bool(worse), f"{told}, over {plural(len(losses), 'forecast')} {losses.origin}"


def _tests(evaluated: Evaluation, losses: Losses) -> Iterator[tuple[str, Significance]]:
    """Test per task the model against its promise, and against the best baseline of its test span."""
    for task, by_name in losses.by_task.items():
        means = {name: losses.mean(task, name) for name in by_name}
        best = evaluated.best_baseline(task)
        promised = evaluated.relative_error(task)
        if promised is not None and by_name[NAIVE].any():
            found = number(means[MODEL] / means[NAIVE])
            said = f"{task} {found} times naive, {number(promised)} on its test span"
            test = losses.test(task, MODEL, NAIVE, times=promised)
            yield said, _with_error_of_promise(test, evaluated, task, means[NAIVE])
        if best != NAIVE and best in by_name:
            said = f"{task} {number(means[MODEL] / means[best])} times {called(best)}"
            yield said, losses.test(task, MODEL, best)


def _with_error_of_promise(
    test: Significance, evaluated: Evaluation, task: str, naive_error: float
) -> Significance:
    """Widen the standard error of a test by that of the promise, which was measured on a span of its own.

    The promise is 1 + mean difference from naive over naive's error, which on the candles of the test is
    `naive_error`, in returns. Both spans are taken as independent, so the squares of their errors add up.
    """
    promised = evaluated.tasks[task].significance[NAIVE].standard_error
    if test.standard_error is None or promised is None:
        return replace(test, standard_error=None)
    scaled = promised / evaluated.error(task, NAIVE).overall * naive_error
    return replace(test, standard_error=math.hypot(test.standard_error, scaled))
