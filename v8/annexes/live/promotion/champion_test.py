"""Compares two models of one series on the same windows, to decide which of them serves.

The rule. The challenger serves if its error is lower, and if on no task it is significantly worse than the
champion (Diebold-Mariano test). The error is the mean over the tasks of the mean absolute error as a multiple
of the naive forecast's. A tie is decided for the champion, and so is every comparison with too few windows
for that test.

Of two models that are equally good each wins half of such comparisons. That costs nothing: of two equals the
one that was trained on newer candles is as good a choice. The rule keeps out a challenger that is worse on
one task, however good it is on others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import mean
from types import MappingProxyType
from typing import Final

from v8.base.wording import chance, number
from v8.data.windows.scaling import Scaling
from v8.data.windows.span import Span
from v8.model.baselines.baselines import NAIVE, TaskForecasts
from v8.model.evaluation.decay import is_worse, too_few_windows
from v8.model.evaluation.evaluation import MODEL, Evaluation, evaluate_span
from v8.model.evaluation.metrics import measure_errors
from v8.model.evaluation.significance import (
    Significance,
)

_CHAMPION: Final = "champion"

_SAME: Final = 1e-9
"""Errors that differ by a smaller share are equal: sums round."""


@dataclass(frozen=True)
class ChampionTest:
    """The errors of a challenger and of a champion on the same windows."""

    evaluation: Evaluation  # of the challenger, compared with every baseline
    champion_errors: Mapping[str, float]  # per task: mean absolute error in returns, unitless
    tests: Mapping[str, Significance]  # per task; a mean difference below 0: the challenger is better
    references: Mapping[str, str] = field(default_factory=dict)
    """Per task the best baseline that the verdicts on the champion name."""

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
        """Per task the best baseline and its MAE relative to naive on these windows.

        It is the one that the verdicts on the champion name; where it is not installed here, that of these
        windows.
        """
        best = {}
        for task, evaluated in self.evaluation.tasks.items():
            name = self.references.get(task)
            if name is None or name not in evaluated.errors:
                name = self.evaluation.best_baseline(task)
            best[task] = name
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
    span: Span,
    challenger: TaskForecasts,
    champion: TaskForecasts,
    *,
    train: Span,
    scaling: Scaling,
    references: Mapping[str, str] = MappingProxyType({}),
) -> ChampionTest:
    """Compare two models on the same windows, at least one, that neither was made from.

    Args:
        span: The windows.
        challenger: Its forecasts per task, shape (N, H, C), in the task's unit.
        champion: Likewise the champion's.
        train: The span that baselines are fitted to.
        scaling: Scaling of the challenger.
        references: Per task the best baseline that the verdicts on the champion name.
    """
    evaluation, losses = evaluate_span(span, challenger, train=train, scaling=scaling)
    champion_errors = {}
    tests = {}
    for task in evaluation.tasks:
        errors, champion_losses = measure_errors(span, task, champion[task])
        paired_losses = {MODEL: losses.by_task[task][MODEL], _CHAMPION: champion_losses}
        champion_errors[task] = errors.mae_return.overall
        tests[task] = replace(losses, by_task={task: paired_losses}).test(task, MODEL, _CHAMPION)
    return ChampionTest(evaluation, champion_errors, tests, references)
