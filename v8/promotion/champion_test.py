"""Compares two models of one series on the same windows, to decide which of them serves.

The rule. The challenger serves if its error is lower, and if on no task it is significantly worse than the
champion (Diebold-Mariano test). The error is the mean over the tasks of the mean absolute error as a multiple
of the naive forecast's. A tie is decided for the champion, and so is every comparison with too few windows
for that test.

Of two models that are equally good each wins half of such comparisons. That costs nothing: of two equals the
one that was trained on newer candles is as good a choice. The rule keeps out a challenger that is worse on
one task, however good it is on others.
<<<<<<< HEAD
=======

`detect_decay` decides whether a model has become worse: its losses since it was trained are compared with
those of its test span.
>>>>>>> work/clean
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

from v8.baselines.baselines import NAIVE, TaskForecasts
from v8.evaluation.decay import is_worse, too_few_windows
from v8.evaluation.evaluation import MODEL, Evaluation, evaluate_span
from v8.evaluation.metrics import measure_errors
from v8.evaluation.significance import (
    Significance,
)
from v8.windows.scaling import Scaling
from v8.windows.span import Span
from v8.wording import chance, number

_CHAMPION: Final = "champion"

_SAME: Final = 1e-9
"""Errors that differ by a smaller share are equal: sums round."""


@dataclass(frozen=True)
class ChampionTest:
    """The errors of a challenger and of a champion on the same windows."""

    evaluation: Evaluation  # of the challenger, compared with every baseline
    champion_errors: Mapping[str, float]  # per task: mean absolute error in returns, unitless
    tests: Mapping[str, Significance]  # per task; a mean difference below 0: the challenger is better

    @property
    def challenger_multiples(self) -> dict[str, float]:
        """Per task the challenger's MAE relative to naive; not where naive's error is 0."""
        return self._multiples({task: self.evaluation.error(task).overall for task in self.evaluation.tasks})

    @property
    def champion_multiples(self) -> dict[str, float]:
        """Likewise the champion's."""
        return self._multiples(self.champion_errors)

    @property
    def best_baselines(self) -> dict[str, tuple[str, float]]:
        """Per task the best baseline of these windows and its MAE relative to naive."""
        best = {task: self.evaluation.best_baseline(task) for task in self.evaluation.tasks}
        errors = {task: self.evaluation.error(task, name).overall for task, name in best.items()}
        return {task: (best[task], multiple) for task, multiple in self._multiples(errors).items()}

    @property
    def challenger_wins(self) -> bool:
        """Whether the challenger serves, by the rule at the top of this module."""
        return not self._too_few_windows and self._is_lower and not self.worse_tasks

    @property
    def worse_tasks(self) -> list[str]:
        """Tasks on which the challenger is significantly worse."""
        return [task for task, test in self.tests.items() if is_worse(test, test.p_value)]

    @property
    def reason(self) -> str:
        """The reason of the decision, a clause about the challenger."""
        if self._too_few_windows:
            return self._too_few_windows
        challenger, champion = self._overall
        numbers = f"{number(challenger)} relative to naive, the champion's {number(champion)}"
        if not self._is_lower:
            return f"its error is not lower: {numbers}"
        worse = ", ".join(f"{task} ({chance(self.tests[task].p_value)})" for task in self.worse_tasks)
        if worse:
            return f"its error is lower: {numbers}, but significantly worse on {worse}"
        return f"its error is lower: {numbers}"

    @property
    def _too_few_windows(self) -> str | None:
        return too_few_windows(self.evaluation.num_windows, self.evaluation.horizon_bars)

    @property
    def _overall(self) -> tuple[float, float]:
        """Mean multiple over the tasks of challenger and champion; 0 if naive's error is 0 on all tasks."""
        challenger = self.challenger_multiples
        champion = self.champion_multiples
        if not challenger:
            return 0.0, 0.0
        return mean(challenger.values()), mean(champion.values())

    @property
    def _is_lower(self) -> bool:
        challenger, champion = self._overall
        return challenger < champion * (1 - _SAME)

    def _multiples(self, errors: Mapping[str, float]) -> dict[str, float]:
        naive = {task: self.evaluation.error(task, NAIVE).overall for task in errors}
        return {task: error / naive[task] for task, error in errors.items() if naive[task] > 0}


def compare_models(
    span: Span, challenger: TaskForecasts, champion: TaskForecasts, *, train: Span, scaling: Scaling
) -> ChampionTest:
    """Compare two models on the same windows, at least one, that neither was made from.

    Args:
        span: The windows.
        challenger: Its forecasts per task, shape (N, H, C), in the task's unit.
        champion: Likewise the champion's.
        train: The span that baselines are fitted to.
        scaling: Scaling of the challenger.
    """
    evaluation, losses = evaluate_span(span, challenger, train=train, scaling=scaling)
    champion_errors = {}
    tests = {}
    for task in evaluation.tasks:
        errors, champion_losses = measure_errors(span, task, champion[task])
        paired_losses = {MODEL: losses.by_task[task][MODEL], _CHAMPION: champion_losses}
        champion_errors[task] = errors.mae_return.overall
        tests[task] = replace(losses, by_task={task: paired_losses}).test(task, MODEL, _CHAMPION)
    return ChampionTest(evaluation, champion_errors, tests)
<<<<<<< HEAD
=======


def too_few_windows(num_windows: int, horizon_bars: int) -> str | None:
    """Say, as a clause, that there are too few windows for a test; None if there are enough.

    >>> too_few_windows(4, 10), too_few_windows(30, 10)
    ('only 4 windows that neither was trained on; a test needs 30', None)
    """
    needed = _min_windows(horizon_bars)
    if num_windows >= needed:
        return None
    return f"only {plural(num_windows, 'window')} that neither was trained on; a test needs {needed}"


@cache
def _min_windows(horizon_bars: int) -> int:
    """Return the number of windows from which on a test always has a standard error.

    The lag is rounded up, so 21 windows may be enough where 22 are not.

    >>> _min_windows(2), _min_windows(10)
    (24, 30)
    """
    upper_bound = MIN_WINDOWS_PER_LAG * horizon_bars + 100  # from there on the lag grows slower than windows
    largest_failing = 0
    for num_windows in range(1, upper_bound):
        if num_windows < MIN_WINDOWS_PER_LAG * (choose_lag(num_windows, horizon_bars) + 1):
            largest_failing = num_windows
    return largest_failing + 1


def _is_worse(test: Significance, p_value: float | None) -> bool:
    return test.mean_difference > 0 and p_value is not None and p_value < ALPHA


def detect_decay(evaluation: Evaluation, losses: Losses) -> tuple[bool, str]:
    """Return whether a model is significantly worse than on its test span, and the reason as a clause.

    Its losses are tested against those of the naive forecast times its relative MAE on the test
    span, and against those of the baseline that was best on the test span, so that the new candles do not
    choose the opponent. The multiple was estimated, so its standard error counts, too. The p-values of all
    tests are corrected together (Benjamini-Hochberg).

    Args:
        evaluation: Of the model on its test span.
        losses: Of the model and of baselines on newer candles.
    """
    if too_few_windows(len(losses), losses.horizon_bars):
        return False, f"{plural(len(losses), 'forecast')} since then can be evaluated, too few to know"
    tests = dict(_decay_tests(evaluation, losses))
    p_values = corrected_p_values([test.p_value for test in tests.values()])
    worse = []
    for (description, test), p_value in zip(tests.items(), p_values, strict=True):
        if _is_worse(test, p_value):
            worse.append(f"{description} ({chance(p_value)})")
    summary = "; ".join(worse) if worse else f"no significant decay: {', '.join(tests)}"
    return bool(worse), f"{summary}, over {plural(len(losses), 'forecast')} {losses.origin}"


def _decay_tests(evaluation: Evaluation, losses: Losses) -> Iterator[tuple[str, Significance]]:
    """Yield per task the tests against the multiple of the test span and against its best baseline.

    Each comes with a description of what is compared.
    """
    for task, by_name in losses.by_task.items():
        means = {name: losses.mean(task, name) for name in by_name}
        best = evaluation.best_baseline(task)
        expected = evaluation.relative_error(task)
        if expected is not None and by_name[NAIVE].any():
            multiple = number(means[MODEL] / means[NAIVE])
            description = f"{task} {multiple} times naive, {number(expected)} on its test span"
            test = losses.test(task, MODEL, NAIVE, times=expected)
            yield description, _with_error_of_multiple(test, evaluation, task, means[NAIVE])
        if best != NAIVE and best in by_name:
            description = f"{task} {number(means[MODEL] / means[best])} times {called(best)}"
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
>>>>>>> work/clean
