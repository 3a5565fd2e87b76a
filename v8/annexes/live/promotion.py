"""Decisions about which generation serves a series, kept in `serving.json` of a run (`v8.runs.serving`).

A generation serves only the series that a decision names, so one that is not finished never serves. The file
is written once per decision. No generation is ever deleted here.

The rule. Two models of a series are compared on the same windows. The challenger serves if its error is
lower, and if on no task it is significantly worse than the champion (Diebold-Mariano test). The error is the
mean over the tasks of the mean absolute error as a multiple of the naive forecast's. A tie is decided for the
champion, and so is every comparison with too few windows for that test.

Of two models that are equally good each wins half of such comparisons. That costs nothing: of two equals the
one that was trained on newer candles is as good a choice. The rule keeps out a challenger that is worse on
one task, however good it is on others.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from v8.base import records
from v8.base.errors import ArtifactError, shown
from v8.base.records import Count, Moment, Number, Plain, Word
from v8.base.storage import write_json
from v8.base.wording import ABSENT, Table, chance, count, moment, number
from v8.data.feature_store import FeatureStore
from v8.data.market.candles import Candles
from v8.data.market.series import Series, SeriesName
from v8.data.scaling import Scaling
from v8.data.span import Span
from v8.data.windows import prepare_series, table_columns
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import GENERATIONS_FOLDER, read_metadata
from v8.forecaster.shared_models import SharedModels
from v8.model.baselines.baselines import NAIVE, TaskForecasts
from v8.model.evaluation.evaluation import MODEL, Evaluation, evaluate_windows, is_worse, too_few_windows
from v8.model.evaluation.leaderboard import references
from v8.model.evaluation.metrics import measure_errors, measure_quantiles
from v8.model.evaluation.significance import Significance
from v8.profile.columns import interval_names
from v8.profile.profile import Profile
from v8.publish.report.card import Replacements
from v8.runs import run_folder
from v8.runs.run_folder import RUN_FILE, now_iso
from v8.runs.serving import (
    LATER,
    SERVING_FILE,
    SERVING_FIX,
    SERVING_FORMAT,
    GenerationName,
    Serving,
    artifact_folder,
    generation_folder,
    read_content,
)

MOST_DECISIONS: Final = 100
"""Decisions that are kept per series, enough for two years of weekly ones; older ones are removed."""
_CHAMPION: Final = "champion"
_SAME: Final = 1e-9
"""Errors that differ by a smaller share are equal: sums round."""
NOT_TRAINED: Final = "the challenger could not be trained"
_MAX_REASON_LENGTH: Final = 300  # letters of a reason in `serving.json`

Share = Annotated[float, Field(strict=True, ge=0, le=1)]  # a probability, from 0 to 1


@dataclass(frozen=True)
class QuantileQuality:
    """Quality of the quantiles of a model on the evaluated candles."""

    crps: Number  # CRPS divided by the mean absolute error of the naive forecast, unitless
    coverage: Mapping[Plain, Share]
    """Shares of the actual values in the central intervals, by the name of the interval, such as "90 %"."""


@dataclass(frozen=True)
class Contender:
    """One of the two models that a decision compares."""

    generation: GenerationName  # the generation that it belongs to
    trained_until: Moment | None
    """Open time of the newest candle of its data, the test part included, ISO 8601; None if unknown.
    Forecasts name another moment so: the close of the newest candle that training used, which is earlier."""
    relative_mae: Mapping[Word, Number] = field(default_factory=dict)
    """Relative MAE (to the naive forecast) per task on the test candles; empty if it was not evaluated."""
    quantiles: Mapping[Word, QuantileQuality] = field(default_factory=dict)
    """Quality of its quantiles per task; empty if it has none. It does not influence the decision."""


@dataclass(frozen=True)
class Opponent:
    """The best baseline of a task on the evaluated candles."""

    name: Plain
    relative_mae: Number  # its relative MAE (to the naive forecast)


@dataclass(frozen=True)
class Decision:
    """Which of two models serves a series from now on, and why."""

    series: SeriesName
    decided_at: Moment  # ISO 8601
    stale: Plain  # why a challenger was trained
    champion: Contender  # the model that served until then
    challenger: Contender  # the newer model
    num_windows: Count  # windows that both were evaluated on, and neither was trained on
    evaluated_from: Moment | None  # when the first forecast was issued, ISO 8601; None if there is none
    evaluated_until: Moment | None  # when the last forecast bar closed, ISO 8601; None if there is none
    baselines: Mapping[Word, Opponent]  # best baseline per task on the same windows
    p_values: Mapping[Word, Share | None]
    """Per task the p-value of the difference between the two models; None if it was not tested."""
    verdict: Literal["replaced", "kept"]  # `replaced`: the challenger serves. `kept`: the champion serves
    why: Plain  # the reason, a clause

    @property
    def is_replaced(self) -> bool:
        """Whether the challenger serves."""
        return self.verdict == "replaced"


@dataclass(frozen=True)
class Promotions(Serving):
    """Which generation serves each series of a run, and why: the content of `serving.json`."""

    decisions: tuple[Decision, ...]
    """The newest `MOST_DECISIONS` decisions about each series, oldest first."""

    def decisions_about(self, series: str) -> tuple[Decision, ...]:
        """Return the decisions about a series, oldest first."""
        return tuple(decision for decision in self.decisions if decision.series == series)

    def renewal_of(self, series: str) -> Decision | None:
        """Return the decision that made a later generation serve a series; None if the first one serves."""
        generation = self.generations.get(series)
        for decision in reversed(self.decisions_about(series)):
            if decision.is_replaced and decision.challenger.generation == generation:
                return decision
        return None

    def with_decision(self, decision: Decision) -> "Promotions":
        """Return a copy with one more decision, in which the model serves that it names."""
        series = decision.series
        generations = dict(self.generations)
        if decision.is_replaced:
            generations[series] = decision.challenger.generation
        oldest = self.decisions_about(series)[: 1 - MOST_DECISIONS]
        newer = (earlier for earlier in self.decisions if earlier not in oldest)
        return replace(self, generations=generations, decisions=(*newer, decision))

    def save(self) -> None:
        """Write `serving.json` atomically."""
        content = {
            "serving": self.generations,
            "decisions": [asdict(decision) for decision in self.decisions],
        }
        # Check the content as reading does, so that no file is written that cannot be read.
        records.adapter(Promotions).validate_python({"run": self.run, **content})
        write_json(self.run / SERVING_FILE, {"format": SERVING_FORMAT, **content})


def read_promotions(run: Path) -> Promotions:
    """Read and check the decisions about a run; without a file there are none.

    Raises:
        ArtifactError: If the file is damaged, has an unknown format, or an impossible name.
    """
    content = read_content(run)
    if content is None:
        return Promotions(run, {}, ())
    return records.checked(
        Promotions,
        {**content, "run": run},
        where=str(run / SERVING_FILE),
        fix=SERVING_FIX,
        rule=records.AS_WRITTEN,
    )


def list_generations(run: Path) -> list[str]:
    """List the later generations of a run that were started, oldest first; links are refused."""
    run_folder.require_own_files(run)
    run_folder.require_own_files(run / GENERATIONS_FOLDER)
    generations = []
    for path in (run / GENERATIONS_FOLDER).glob(f"*/{RUN_FILE}"):
        match = LATER.fullmatch(path.parent.name)
        if match:
            generations.append((match["day"], int(match["number"] or 1), match[0]))
    return [name for _, _, name in sorted(generations)]


def free_generation(run: Path, day: str) -> str:
    """Return a free name for a new generation, made from the day of its newest candle, such as "2026-11-21".

    The name of a generation that was killed before it listed any series is free, too.
    """
    number = 1
    while True:
        name = day if number == 1 else f"{day}-{number}"
        folder = generation_folder(run, name)
        if not (folder / RUN_FILE).exists() or not run_folder.read_run(folder).series:
            return name
        number += 1


def replacements(run: Path, series: Collection[str]) -> Replacements | None:
    """Describe the models of some series that took the place of older ones; None without any."""
    promotions = read_promotions(run)
    renewals = {name: promotions.renewal_of(name) for name in series}
    decisions = [decision for decision in renewals.values() if decision]
    if not decisions:
        return None
    return Replacements(change_table(decisions), {each.series: change_line(each) for each in decisions})


def change_table(decisions: Iterable[Decision], title: str = "") -> Table:
    """Compare newly trained models with those that served, and with the best baseline, by relative error."""
    rows = []
    for decision in sorted(decisions, key=lambda decision: decision.series):
        challenger = decision.challenger
        champion = decision.champion
        best = [
            f"{number(opponent.relative_mae)} {opponent.name}" for opponent in decision.baselines.values()
        ]
        span = ABSENT
        if decision.evaluated_until:
            span = f"{moment(decision.evaluated_from)} to {moment(decision.evaluated_until)}"
        rows.append(
            [
                decision.series,
                moment(challenger.trained_until),
                moment(champion.trained_until),
                decision.stale,
                ", ".join(map(number, challenger.relative_mae.values())) or ABSENT,
                ", ".join(map(number, champion.relative_mae.values())) or ABSENT,
                ", ".join(best) or ABSENT,
                count(decision.num_windows),
                span,
            ]
        )
    header = (
        "series",
        "newest candle",
        "before",
        "why",
        "new",
        "old",
        "best baseline",
        "windows",
        "evaluated",
    )
    return Table(header, rows, title)


def change_line(decision: Decision) -> str:
    """Write the line of a commit's description that says which model of a series was replaced, and why."""
    new = moment(decision.challenger.trained_until)
    old = moment(decision.champion.trained_until)
    return (
        f"{decision.series}: model from candles up to {new}, its test part included, in place of {old}. "
        f"Stale: {decision.stale}. Chosen: {decision.why}."
    )


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


def open_decision(series: Series, serving: Promotions, generation: str, stale: str) -> Decision:
    """Return the decision about a challenger that is not compared yet: the champion stays.

    Args:
        series: The series.
        serving: What serves now.
        generation: The challenger's.
        stale: Why the champion is challenged.
    """
    name = str(series)
    champion = serving.generation_of(name)
    return Decision(
        series=name,
        decided_at=now_iso(),
        stale=shown(stale, _MAX_REASON_LENGTH),
        champion=Contender(champion, _trained_until(serving, champion, name)),
        challenger=Contender(generation, _trained_until(serving, generation, name)),
        num_windows=0,
        evaluated_from=None,
        evaluated_until=None,
        baselines={},
        p_values={},
        verdict="kept",
        why=NOT_TRAINED,
    )


def decide_promotion(
    decision: Decision, champion: Path, challenger: Path, candles: Candles, profile: Profile
) -> Decision:
    """Compare two models of a series on candles that neither was made from, and decide which of them serves.

    These are the windows of the challenger's test span that lie an embargo behind the candles that the
    champion was fitted and stopped on. Baselines are fitted to the challenger's train span.

    Args:
        decision: What is returned with verdict and reason, and with the errors of both if they were compared.
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
        return replace(decision, why="the files of the challenger are damaged")
    if candles.digest != new.about.candles.digest:
        return replace(decision, why="the candles that the challenger was made from are no longer the same")
    try:
        old = Forecaster.load(champion, models=models)
    except ArtifactError:
        return replace(decision, verdict="replaced", why="the files of the champion are damaged")
    if not _forecast_the_same(old, new):
        return replace(
            decision,
            verdict="replaced",
            why="the champion forecasts something else than the profile says",
        )
    data = prepare_series(FeatureStore().table(candles, table_columns(profile)), profile)
    span = _unseen_windows(data.spans["test"], old.trained_until_s)
    too_few = too_few_windows(len(span), span.horizon_bars)
    if too_few:
        return replace(decision, why=too_few)
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
    return replace(
        decision,
        champion=replace(
            decision.champion,
            relative_mae=champion_test.champion_multiples,
            quantiles=_quantile_quality(old_forecasts.quantiles, champion_test, span),
        ),
        challenger=replace(
            decision.challenger,
            relative_mae=champion_test.challenger_multiples,
            quantiles=_quantile_quality(new_forecasts.quantiles, champion_test, span),
        ),
        num_windows=champion_test.evaluation.num_windows,
        evaluated_from=datetime.fromtimestamp(first_issued_s, UTC).isoformat(),
        evaluated_until=datetime.fromtimestamp(last_closed_s, UTC).isoformat(),
        baselines={
            task: Opponent(name, multiple) for task, (name, multiple) in champion_test.best_baselines.items()
        },
        p_values={task: test.p_value for task, test in champion_test.tests.items()},
        verdict="replaced" if champion_test.challenger_wins else "kept",
        why=shown(champion_test.reason, _MAX_REASON_LENGTH),
    )


def compare_models(
    span: Span,
    challenger: TaskForecasts,
    champion: TaskForecasts,
    *,
    train: Span,
    scaling: Scaling,
    references: Mapping[str, str],
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


def _trained_until(serving: Promotions, generation: str, name: str) -> str | None:
    """Return the open time of the newest candle of a model's data; None if it is damaged or missing."""
    try:
        folder = artifact_folder(serving.run, generation, name)
        return read_metadata(folder, series=name).candles.last_open
    except ArtifactError:
        return None
