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
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.annexes.live.promotion.decisions import QuantileQuality
from v8.base.errors import ArtifactError
from v8.base.wording import chance, number
from v8.data.feature_store import FeatureStore
from v8.data.market.candles import Candles
from v8.data.windows.dataset import prepare_series, table_columns
from v8.data.windows.scaling import Scaling
from v8.data.windows.span import Span
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.shared_models import SharedModels
from v8.model.baselines.baselines import NAIVE, TaskForecasts
from v8.model.evaluation.evaluation import MODEL, Evaluation, evaluate_windows, is_worse, too_few_windows
from v8.model.evaluation.leaderboard import references
from v8.model.evaluation.metrics import measure_errors, measure_quantiles
from v8.model.evaluation.significance import Significance
from v8.profile.columns import interval_names
from v8.profile.profile import Profile

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
    evaluation, losses = evaluate_windows(span, challenger, train=train, scaling=scaling)
    champion_errors = {}
    tests = {}
    for task in evaluation.tasks:
        errors, champion_losses = measure_errors(span, task, champion[task])
        paired_losses = {MODEL: losses.by_task[task][MODEL], _CHAMPION: champion_losses}
        champion_errors[task] = errors.mae_return.overall
        tests[task] = replace(losses, by_task={task: paired_losses}).test(task, MODEL, _CHAMPION)
    return ChampionTest(evaluation, champion_errors, tests, references)


@dataclass(frozen=True)
class PromotionDecision:
    """Which of two models serves."""

    is_promoted: bool  # whether the challenger serves
    reason: str  # a clause about the challenger
    champion_test: ChampionTest | None = None  # errors of both; None if they were not compared
    evaluated_from: str | None = None  # when the first evaluated forecast was issued, ISO 8601
    evaluated_until: str | None = None  # when the last forecast bar closed, ISO 8601
    champion_quantiles: Mapping[str, QuantileQuality] = field(default_factory=dict)  # per task
    challenger_quantiles: Mapping[str, QuantileQuality] = field(default_factory=dict)  # per task


def decide_promotion(
    champion: Path, challenger: Path, candles: Candles, profile: Profile
) -> PromotionDecision:
    """Compare two models of a series on candles that neither was made from, and decide which of them serves.

    These are the windows of the challenger's test span that lie an embargo behind the candles that the
    champion was fitted and stopped on. Baselines are fitted to the challenger's train span.

    Args:
        champion: Folder of the model that serves.
        challenger: Folder of the new model.
        candles: The candles that the challenger was made from.
        profile: Profile of the run.

    Raises:
        SeriesError: If a model does not forecast what the profile says.
    """
    models = SharedModels()
    try:
        new = Forecaster.load(challenger, models=models)
    except ArtifactError:
        return PromotionDecision(False, "the files of the challenger are damaged")
    if candles.digest != new.about.candles.digest:
        reason = "the candles that the challenger was made from are no longer the same"
        return PromotionDecision(False, reason)
    try:
        old = Forecaster.load(champion, models=models)
    except ArtifactError:
        return PromotionDecision(True, "the files of the champion are damaged")
    if not _forecast_the_same(old, new):
        return PromotionDecision(True, "the champion forecasts something else than the profile says")
    data = prepare_series(FeatureStore().table(candles, table_columns(profile)), profile)
    span = _unseen_windows(data.spans["test"], old.trained_until_s)
    too_few = too_few_windows(len(span), span.horizon_bars)
    if too_few:
        return PromotionDecision(False, too_few)
    old_forecasts = old.forecast_all(span.raw_windows())
    new_forecasts = new.forecast_all(span.raw_windows())
    champion_test = compare_models(
        span,
        challenger={task: values.astype(np.float64) for task, values in new_forecasts.points.items()},
        champion={task: values.astype(np.float64) for task, values in old_forecasts.points.items()},
        train=data.spans["train"],
        scaling=data.scaling,
        references=references(old.about.verdicts) if old.about.is_evaluated else {},
    )
    closed_s = span.table.open_time_s + span.table.series.bar_s
    first_issued_s = int(closed_s[span.anchors[0]])
    last_closed_s = int(closed_s[span.anchors[-1] + span.horizon_bars])
    return PromotionDecision(
        is_promoted=champion_test.challenger_wins,
        reason=champion_test.reason,
        champion_test=champion_test,
        evaluated_from=datetime.fromtimestamp(first_issued_s, UTC).isoformat(),
        evaluated_until=datetime.fromtimestamp(last_closed_s, UTC).isoformat(),
        champion_quantiles=_quantile_quality(old_forecasts.quantiles, champion_test, span),
        challenger_quantiles=_quantile_quality(new_forecasts.quantiles, champion_test, span),
    )


def _forecast_the_same(old: Forecaster, new: Forecaster) -> bool:
    """Return whether two models have the same inputs and outputs."""
    names = ("series", "features", "lookback_bars", "horizon_bars", "quantiles")
    has_same_shape = all(getattr(old, name) == getattr(new, name) for name in names)
    return has_same_shape and old.about.tasks.keys() == new.about.tasks.keys()


def _unseen_windows(span: Span, trained_until_s: int) -> Span:
    """Return the windows of a span that begin an embargo behind the candles of another model.

    Args:
        span: The windows.
        trained_until_s: When the last candle closed that the other model was fitted or stopped on, seconds
            since the epoch, UTC.
    """
    first_rows = span.anchors - span.profile.lookback_bars + 1
    begin_s = trained_until_s + span.profile.embargo_bars * span.table.series.bar_s
    return Span(span.table, span.profile, span.anchors[span.table.open_time_s[first_rows] >= begin_s])


def _quantile_quality(
    quantiles: Mapping[str, NDArray[np.float32]], champion_test: ChampionTest, span: Span
) -> dict[str, QuantileQuality]:
    """Measure CRPS and coverage of quantiles per task; without tasks where naive's error is 0."""
    levels = span.profile.quantiles
    quality = {}
    for task, forecast in quantiles.items():
        errors, _ = measure_quantiles(span, task, forecast.astype(np.float64), levels)
        naive_error = champion_test.evaluation.error(task, NAIVE).overall
        if naive_error > 0:
            names = interval_names(levels)
            coverage = {name: errors.mean_coverage(position) for position, name in enumerate(names)}
            quality[task] = QuantileQuality(errors.crps / naive_error, coverage)
    return quality
