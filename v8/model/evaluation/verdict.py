"""The verdict on one task of one series: how a model's error compares with two baselines'.

Verdicts are computed once, for all series that were trained together, and stored in the metadata of each
(`v8.forecaster.series_artifact.store_verdicts`). Tables, sentences, pages and programs read them from there.

The two baselines are the naive forecast and the *best baseline* of the task, its reference: chosen once, on
validation spans of the archive, and shipped (`v8.model.baselines.references`). Chosen on the test span, the
model would be compared with a baseline that was lucky there; chosen for each run, a number would mean
something else in a run of other series. A task of a plug-in has no reference: there the smallest median error
on the validation spans of the run decides, for all series of a timeframe.

The p-values of a task are corrected together over the series, separately for the two baselines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from v8.base.records import Word
from v8.model.evaluation.evaluation import Evaluation, best_baseline
from v8.model.evaluation.significance import BEATS, LOSES, BaselineComparison, corrected
from v8.profile.tasks import TASKS


@dataclass(frozen=True)
class Verdict:
    """One task of one series, compared with the naive forecast and with the best baseline of the task."""

    naive: BaselineComparison
    best: BaselineComparison

    @property
    def comparisons(self) -> tuple[BaselineComparison, ...]:
        """Both comparisons, or the one with naive alone where naive is the best baseline."""
        return (self.naive,) if self.best.name == self.naive.name else (self.naive, self.best)

    @property
    def beats_both(self) -> bool:
        """Whether the model is significantly better than both baselines."""
        return all(comparison.outcome == BEATS for comparison in self.comparisons)

    @property
    def lost_to(self) -> list[str]:
        """Names of those of the two baselines that are significantly better than the model."""
        return [comparison.name for comparison in self.comparisons if comparison.outcome == LOSES]


Verdicts = Mapping[Word, Verdict]
"""The verdicts on one series, by the name of the task."""
AnyVerdict = TypeVar("AnyVerdict", bound=Verdict)


def references(verdicts: Verdicts) -> dict[str, str]:
    """Return the best baseline of each task that the verdicts on a series name."""
    return {task: verdict.best.baseline for task, verdict in verdicts.items()}


def verdicts_of(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, Verdict]]:
    """Compute the verdicts on series that were evaluated together, by series and task.

    `evaluations` are by the name of the series, "BTCUSDT-15m".
    """
    by_series: dict[str, dict[str, Verdict]] = {series: {} for series in evaluations}
    for task in TASKS:
        with_task = {series: each for series, each in evaluations.items() if task in each.tasks}
        best = _best_by_timeframe(with_task, task)
        verdicts = [
            Verdict(evaluation.against(task), evaluation.against(task, best[timeframe_of(series)]))
            for series, evaluation in with_task.items()
        ]
        for series, verdict in zip(with_task, with_corrected(verdicts), strict=True):
            by_series[series][task] = verdict
    return by_series


def _best_by_timeframe(evaluations: Mapping[str, Evaluation], task: str) -> dict[str, str]:
    groups: dict[str, list[Evaluation]] = {}
    for series, evaluation in evaluations.items():
        groups.setdefault(timeframe_of(series), []).append(evaluation)
    return {timeframe: best_baseline(group, task) for timeframe, group in groups.items()}


def timeframe_of(series: str) -> str:
    """Return the timeframe in the name of a series.

    >>> timeframe_of("BTC-PERP-15m")
    '15m'
    """
    return series.rpartition("-")[2]


def with_corrected(verdicts: Sequence[AnyVerdict]) -> list[AnyVerdict]:
    """Fill in the corrected p-values of one table of verdicts.

    The tests against the naive forecast and those against the best baselines are corrected separately.
    """
    naive = corrected([verdict.naive for verdict in verdicts])
    best = corrected([verdict.best for verdict in verdicts])
    return [
        replace(verdict, naive=with_naive, best=with_best)
        for verdict, with_naive, with_best in zip(verdicts, naive, best, strict=True)
    ]


def are_of_one_table(verdicts: Mapping[str, Verdicts]) -> bool:
    """Return whether stored verdicts, by series, have one best baseline for each task and timeframe."""
    names: dict[tuple[str, str], str] = {}
    for series, by_task in verdicts.items():
        for task, verdict in by_task.items():
            best = verdict.best.baseline
            if names.setdefault((timeframe_of(series), task), best) != best:
                return False
    return True
