"""Renews the models of a run: trains a new generation of stale models, and lets the better one serve.

A generation is a run folder of its own (`v8.runs.serving`), planned and trained as any run. When it
is done, each of its models, the challenger, is compared with the one that serves, the champion
(`v8.annexes.live.promotion`), on candles that neither was made from. Each decision is saved
before the next series is looked at; until then the champion serves, whatever happens. A generation that an
interrupted call left behind is finished before another begins.

Which models are stale, by `StalenessRule`:

* `age`: more new candles have come than its test span holds, or than in a stated number of days. Age is
  counted in candles because a day means 96 of them to one series and 24 to another, and by the test span
  because then all candles that a challenger is evaluated on are newer than any that the champion was made or
  evaluated with.
* `decay`: on the candles since, it is significantly worse than on its test span, or than the baseline that
  was best there. The losses come from the live record if it holds enough forecasts of this model, because
  nobody can have tuned those; else from a back-test on the candles since.
* `always`: there are new candles.

A model that was challenged and stayed is not stale by the same evidence again: its age, and the candles
that show decay, begin after the newest candle of the challenger. Without new candles nothing is stale,
because the same candles and seed would give the same model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from v8.annexes.live.ledger import Ledger
from v8.annexes.live.promotion import (
    Decision,
    Promotions,
    change_table,
    decide_promotion,
    free_generation,
    list_generations,
    open_decision,
    read_promotions,
)
from v8.annexes.live.record import live_losses
from v8.base.errors import ArtifactError, ProfileError, listed
from v8.base.process import quiet_start, set_exit_message
from v8.base.registry import other_plugins
from v8.base.storage import FolderLock, sweep
from v8.base.terminal import print_all_lines, print_error, print_lines, print_reasons, print_table
from v8.base.wording import ABSENT, Table, number
from v8.cli import shared as cli
from v8.data.market.candles import Candles
from v8.data.market.companions import Companions
from v8.data.market.series import Series, iso, series_advice
from v8.data.market.sources import CandleSource, PrefetchesCandles
from v8.data.windows import whole_span
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import ONNX_FILE, Metadata, not_evaluated, read_metadata
from v8.forecaster.shared_models import has_onnx_packages
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.model.evaluation.evaluation import MODEL, detect_decay, too_few_windows
from v8.model.evaluation.leaderboard import references
from v8.model.evaluation.metrics import measure_errors
from v8.model.evaluation.significance import Losses
from v8.profile.formulas import DAY_S
from v8.profile.profile import network_outputs, recorded_profile
from v8.publish.report.outputs import ReportWriter, RunOutputs
from v8.runs.events import (
    Event,
    Note,
    ObserverGroup,
    RunContext,
    RunObserver,
    RunSummary,
    SeriesOutcome,
    run_isolated,
)
from v8.runs.execution import run_plan
from v8.runs.plan import Engine, Plan, Recipe
from v8.runs.run_folder import RUN_FILE, now_iso, read_run
from v8.runs.serving import SERVING_FILE, artifact_folder, generation_folder

STALENESS_RULES: Final = ("age", "decay", "always")  # values of `StalenessRule.when`, see above
STARTS: Final = ("anew", "champion")  # what the training of a challenger begins from
CONTINUED = "an earlier call began to train it again"
"""Reason recorded for a challenger whose training an earlier call began; only that call knew the true one."""


@dataclass(frozen=True)
class StalenessRule:
    """The rule by which models are stale."""

    when: str = "age"  # one of `STALENESS_RULES`
    max_age_days: float | None = None  # for `age`: largest age in days; None for the length of the test span


@dataclass(frozen=True)
class Staleness:
    """Whether the model that serves a series is stale."""

    series: Series
    generation: str  # that serves
    until: str  # open time of its newest candle, ISO 8601
    is_stale: bool  # whether it should be challenged
    reason: str  # the reason either way, a clause
    live: str = ABSENT  # its error in the live record, relative to naive, and of how many forecasts


def back_tested_losses(
    forecaster: Forecaster, opponents: Mapping[str, str], candles: Candles, start_s: int
) -> Losses:
    """Return the losses of a model on candles since its training, with those of naive and of an opponent.

    Baselines are fitted to the candles before `start_s`. There are no losses if nothing lies before it that
    baselines could be fitted to.

    Args:
        forecaster: The model.
        opponents: Name of one baseline per task.
        candles: The newest candles.
        start_s: Only forecasts issued from then on, seconds since the epoch, UTC.
    """
    profile = forecaster.about.trained_profile
    before, since = whole_span(candles, profile).split_at(start_s)
    if not len(before) or not len(since):
        return Losses({}, np.zeros(0, np.int64), since.horizon_bars)
    by_task = {}
    for task, values in forecaster.forecast(since.raw_windows()).items():
        forecasts = {MODEL: values.astype(np.float64), NAIVE: since.naive[task]}
        opponent = opponents[task]
        if opponent not in forecasts and BASELINES[opponent].is_installed():
            fitted = BASELINES[opponent].fitted(before, forecaster.about.scaling)
            forecasts[opponent] = fitted(since)[task]
        by_task[task] = {
            name: measure_errors(since, task, forecast)[1] for name, forecast in forecasts.items()
        }
    return Losses(by_task, since.bar_numbers, since.horizon_bars, "of a back-test")


def assess_staleness(
    series: Series, candles: Candles, serving: Promotions, rule: StalenessRule, ledger: Ledger | None
) -> Staleness:
    """Say whether the model that serves a series is stale.

    Args:
        series: The series.
        candles: The newest candles; for `decay` as many as training takes.
        serving: What serves in the run.
        rule: The rule by which models are stale.
        ledger: Holds the live record; None without one.

    Raises:
        ArtifactError: If the model cannot be used.
        DataError: If there are too few candles for a back-test.
    """
    name = str(series)
    folder = serving.folder(name)
    metadata = read_metadata(folder, series=name)
    challenged_s = _last_challenged_s(metadata, serving, name)
    is_stale, reason = _has_new_candles(metadata, series.bar_s, challenged_s, rule, candles)
    if is_stale and rule.when == "decay":
        evaluation = metadata.evaluation
        opponents = references(metadata.verdicts)
        start_s = challenged_s + series.bar_s
        losses = live_losses(ledger, serving.run, series, metadata.model_sha256, start_s)
        if not losses or too_few_windows(len(losses), losses.horizon_bars):
            losses = back_tested_losses(Forecaster.load(folder), opponents, candles, start_s)
        is_stale, decay = detect_decay(evaluation, losses, opponents)
        reason = f"{reason}: {decay}"
    return Staleness(
        series=series,
        generation=serving.generation_of(name),
        until=iso(metadata.candles.last_open_s),
        is_stale=is_stale,
        reason=reason,
        live=_live_error(live_losses(ledger, serving.run, series, metadata.model_sha256, 0)),
    )


def _last_challenged_s(metadata: Metadata, serving: Promotions, name: str) -> int:
    """Return the open time of a model's newest candle, or of the newest challenger that it has beaten."""
    newest_s = metadata.candles.last_open_s
    for decision in serving.decisions_about(name):
        trained_until = decision.challenger.trained_until
        if decision.champion.generation == serving.generation_of(name) and trained_until:
            newest_s = max(newest_s, int(datetime.fromisoformat(trained_until).timestamp()))
    return newest_s


def _has_new_candles(
    metadata: Metadata, bar_s: int, challenged_s: int, rule: StalenessRule, candles: Candles
) -> tuple[bool, str]:
    """Say whether enough new candles have come for a model to be stale, and how many.

    By the rule `decay` these candles must show decay, too.
    """
    num_new = max(0, (int(candles.open_time_s[-1]) - challenged_s) // bar_s)
    noun = "candle" if num_new == 1 else "candles"
    reason = f"{num_new:,} new {noun} since {iso(challenged_s)}"
    for name, num_lacking in candles.report.lacking.items():
        reason += f", {num_lacking:,} bars lack {name}"
    if not num_new or rule.when != "age":
        return num_new > 0, reason
    if rule.max_age_days is None:
        first, end = metadata.split.test.rows
        num_allowed = end - first
    else:
        num_allowed = int(rule.max_age_days * DAY_S / bar_s)
    if num_new > num_allowed:
        return True, f"{reason}, more than {num_allowed:,}"
    return False, f"{reason}, not more than {num_allowed:,}"


def _live_error(losses: Losses | None) -> str:
    """Write the error of a model in the live record, per task, and of how many forecasts."""
    if not losses or not len(losses):
        return ABSENT
    errors = []
    for task in losses.by_task:
        naive_error = losses.mean(task, NAIVE)
        multiple = losses.mean(task, MODEL) / naive_error if naive_error else None
        errors.append(f"{task} {number(multiple)}")
    return f"{', '.join(errors)} of {len(losses):,}"


class RememberedCandles:
    """A source that returns the newest candles of its first call again: all steps use the same ones."""

    def __init__(self, source: CandleSource) -> None:
        self._source = source
        self.name = source.name
        self.is_publishable = source.is_publishable
        self._newest: dict[tuple[Series, int], Candles] = {}

    def prefetch(self, series: Sequence[Series], num_bars: int) -> None:
        """Bring many series up to date together, if the source can; see `PrefetchesCandles`."""
        if isinstance(self._source, PrefetchesCandles):
            self._source.prefetch(series, num_bars)

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return candles; see `CandleSource`."""
        newest = self._newest.get((series, num_bars))
        if newest is None and end_s is None:
            newest = self._source.candles(series, num_bars)
            self._newest[series, num_bars] = newest
        if newest is not None and end_s in (None, int(newest.open_time_s[-1])):
            return newest
        return self._source.candles(series, num_bars, end_s)


@dataclass(frozen=True)
class GenerationResult:
    """The outcome of finishing one generation."""

    generation: str  # its name
    decisions: tuple[Decision, ...]  # one per series
    failures: tuple[SeriesOutcome, ...]  # one per challenger that could not be made
    without_onnx: tuple[
        SeriesOutcome, ...
    ] = ()  # one per challenger without the ONNX file that champions have


@dataclass(frozen=True)
class StalenessReport:
    """Which models are stale."""

    assessments: tuple[Staleness, ...]  # one per series that could be assessed
    failures: tuple[SeriesOutcome, ...]  # one per series that could not
    decisions: ClassVar[tuple[Decision, ...]] = ()
    without_onnx: ClassVar[tuple[SeriesOutcome, ...]] = ()

    @property
    def stale(self) -> dict[Series, str]:
        """The reason per stale series."""
        return {
            assessment.series: assessment.reason for assessment in self.assessments if assessment.is_stale
        }


class _DecisionMaker(RunObserver):
    """Decides which models serve when a generation is trained, while its folder is still locked."""

    def __init__(self, renewal: "Renewal", generation: str, stale: Mapping[Series, str]) -> None:
        self.decisions: list[Decision] = []
        self._renewal = renewal
        self._generation = generation
        self._stale = stale

    def on_begin(self, context: RunContext) -> None:
        """Keep the function that sends notes."""
        self._notify = context.notify

    def on_finished(self, summary: RunSummary) -> None:
        """Decide about each series, one after another, and save each decision."""
        failed = {failure.series for failure in summary.failures}
        for series, reason in self._stale.items():
            serving = read_promotions(self._renewal.run)
            decision = open_decision(series, serving, self._generation, reason)
            if series not in failed:
                decision = self._renewal.compare_with_champion(series, decision, self._notify)
            decision = replace(decision, decided_at=now_iso())
            serving.with_decision(decision).save()
            self.decisions.append(decision)


@dataclass
class Renewal:
    """The renewal of one run; the caller holds the lock of its folder."""

    run: Path  # the run folder
    source: CandleSource  # where new candles come from
    rule: StalenessRule  # by which its models are stale
    command: str  # the command line, to be recorded and shown
    ledger: Ledger | None = None  # where its forecasts are recorded; None without one
    start: str = "anew"  # what training begins from, one of `STARTS`

    def __post_init__(self) -> None:
        self.record = read_run(self.run)
        if not self.record.is_evaluated:
            raise not_evaluated(str(self.run))
        error = other_plugins(self.record.plugins, where=str(self.run), fix="Name the same with param:plugin")
        if error:
            raise error
        self.profile = recorded_profile(self.record.profile, where=f"{self.run / RUN_FILE}, key profile")
        if self.start == "champion":
            network_outputs(self.profile)  # raises for a formula, which has no weights to start from
        if self.source.is_publishable != self.record.is_publishable:
            market = "real" if self.record.is_publishable else "simulated"
            raise ProfileError(
                where=f"param:source {self.source.name}",
                rule=f"old and new models of a run know the same market: {self.run} has {market} candles",
                got="a simulated market" if self.record.is_publishable else "real candles",
                fix="Leave param:source out",
            )
        self._candles = RememberedCandles(self.source)
        self._companions = Companions.of(self.profile)

    def select_series(self, requested: Sequence[Series] | None) -> tuple[Series, ...]:
        """Return the requested series, or all finished ones of the run when None.

        Raises:
            ArtifactError: If one is not finished in the run, or none is.
        """
        finished = self.record.done
        names = [str(series) for series in requested] if requested else finished
        missing = [name for name in names if name not in finished]
        fix = "Finish the run first"
        if missing and finished:
            fix = series_advice(missing[0], finished, f"The run has {listed(finished)}")
        if missing or not names:
            raise ArtifactError(
                where=str(self.run),
                rule="what is updated is a finished series of the run",
                got=listed(missing) if names else "a run without any",
                fix=fix,
            )
        return tuple(Series.parse(name) for name in names)

    def unfinished_generations(self, series: Sequence[Series]) -> Iterator[tuple[str, tuple[Series, ...]]]:
        """Yield generations that earlier calls left behind, oldest first, with their undecided series.

        Raises:
            ArtifactError: If one cannot be read, or was begun with another source.
        """
        serving = read_promotions(self.run)
        for generation in list_generations(self.run):
            folder = generation_folder(self.run, generation)
            try:
                record = read_run(folder)
            except ArtifactError as error:
                raise ArtifactError(
                    where=error.where,
                    rule=error.rule,
                    got=error.got,
                    fix=f"Restore it, or remove this generation, if {SERVING_FILE} does not name it",
                ) from error
            decided = {
                decision.series
                for decision in serving.decisions
                if decision.challenger.generation == generation
            }
            undecided_names = record.series.keys() - decided
            undecided = tuple(one_series for one_series in series if str(one_series) in undecided_names)
            if undecided and record.source != self.source.name:
                raise ArtifactError(
                    where=str(folder),
                    rule=f"was begun with param:source {record.source} and is finished with it",
                    got=f"param:source {self.source.name}",
                    fix="Use the same source, or remove this folder, which serves nothing yet",
                )
            if undecided:
                yield generation, undecided

    def check_staleness(self, series: Sequence[Series]) -> StalenessReport:
        """Find out which models are stale; a series whose candles cannot be read fails by itself."""
        serving = read_promotions(self.run)
        self._candles.prefetch(self._companions.with_neighbours(series), self.profile.newest_bars)

        def assess(one_series: Series) -> Staleness:
            with quiet_start():
                candles = self._newest_candles(one_series)
                try:
                    return assess_staleness(one_series, candles, serving, self.rule, self.ledger)
                except ArtifactError:
                    return Staleness(
                        series=one_series,
                        generation=serving.generation_of(str(one_series)),
                        until=ABSENT,
                        is_stale=True,
                        reason="the model that serves cannot be used",
                    )

        assessments = []
        failures = []
        for one_series in series:
            assessment, outcome = run_isolated(one_series, partial(assess, one_series))
            if outcome.reason:
                failures.append(outcome)
            if assessment:
                assessments.append(assessment)
        return StalenessReport(tuple(assessments), tuple(failures))

    def next_generation(self, series: Iterable[Series]) -> str:
        """Name the generation of some stale series, by the day of their newest candle."""
        newest_s = max(int(self._newest_candles(one_series).open_time_s[-1]) for one_series in series)
        day = datetime.fromtimestamp(newest_s, UTC).date().isoformat()
        return free_generation(self.run, day)

    def plan(self, generation: str, series: Sequence[Series]) -> Plan:
        """Plan the training of a generation; it gets ONNX files if a model that serves now has one."""
        serving = read_promotions(self.run)
        champions = {one_series: serving.place(str(one_series)).absolute() for one_series in series}
        has_onnx = any((folder / ONNX_FILE).exists() for folder in champions.values())
        return Plan(
            recipe=Recipe(
                self.profile,
                is_publishable=self.source.is_publishable,
                has_onnx=has_onnx and has_onnx_packages(),
            ),
            path=generation_folder(self.run, generation),
            series=dict.fromkeys(series, "pending"),
            command=self.command,
            initial_models=champions if self.start == "champion" else {},
            lists_all_series=True,
        )

    def renew(
        self, series: Sequence[Series], engine: Engine, observer: RunObserver
    ) -> Iterator[StalenessReport | GenerationResult]:
        """Finish what an earlier call began, assess the other models, and train stale ones again.

        The observer follows the training of each generation. If it is interrupted, the same call continues.

        Raises:
            StorageError: If a file of the run cannot be written.
        """
        sweep(self.run)
        decided: set[Series] = set()
        for generation, undecided in list(self.unfinished_generations(series)):
            yield self._finish(generation, dict.fromkeys(undecided, CONTINUED), engine, observer)
            decided.update(undecided)
        report = self.check_staleness([one_series for one_series in series if one_series not in decided])
        if report.assessments or report.failures:
            yield report
        if report.stale:
            yield self._finish(self.next_generation(report.stale), report.stale, engine, observer)

    def _finish(
        self, generation: str, stale: Mapping[Series, str], engine: Engine, observer: RunObserver
    ) -> GenerationResult:
        """Train what is not trained of a generation, then decide what serves.

        Args:
            generation: Its name.
            stale: Its series, and why the champion of each is stale.
            engine: Trains the models.
            observer: Follows the training.
        """
        decision_maker = _DecisionMaker(self, generation, stale)
        summary = run_plan(
            self.plan(generation, list(stale)),
            self._candles,
            engine,
            ObserverGroup([decision_maker, observer]),  # decisions before the report is drawn
        )
        return GenerationResult(
            generation, tuple(decision_maker.decisions), summary.failures, summary.without_onnx
        )

    def _newest_candles(self, series: Series, end_s: int | None = None) -> Candles:
        return self._companions.candles(self._candles, series, self.profile.newest_bars, end_s)

    def compare_with_champion(
        self, series: Series, decision: Decision, notify: Callable[[Event], None]
    ) -> Decision:
        """Decide which model of a series serves; the champion stays if the two cannot be compared."""

        def compare() -> Decision:
            generation = decision.challenger.generation
            champion = read_promotions(self.run).place(str(series))
            challenger = artifact_folder(self.run, generation, str(series))
            record = read_run(generation_folder(self.run, generation))
            pin = record.series[str(series)].candles
            candles = self._newest_candles(series, pin.last_open_s if pin else None)
            with quiet_start():
                return decide_promotion(decision, champion, challenger, candles, self.profile)

        decided, outcome = run_isolated(series, compare)
        if decided is None:
            notify(Note(f"{outcome.reason} The champion stays."))
            return replace(decision, why="the two could not be compared")
        return decided


def renew(renewal: Renewal, chosen: Sequence[Series], engine: Engine) -> bool:
    """Renew stale models; return whether every series could be examined and trained, with all its files."""
    set_exit_message(f"interrupted: what served in {renewal.run} serves on. Go on with: {renewal.command}")
    with FolderLock(renewal.run):
        steps = []
        observer = ObserverGroup([cli.run_display(), ReportWriter()])
        for step in renewal.renew(chosen, engine, observer):
            _print_renewal(step)
            steps.append(step)
        # Also after a kill between a decision and this.
        results = RunOutputs(renewal.run, print_error).write()
    if any(decision.is_replaced for step in steps for decision in step.decisions):
        cli.print_leaderboard(results)
    return not any(step.failures or step.without_onnx for step in steps)


def preview_renewal(renewal: Renewal, chosen: Sequence[Series]) -> None:
    """Print what is stale and would be trained."""
    unfinished: set[Series] = set()
    for generation, undecided in renewal.unfinished_generations(chosen):
        print_lines(f"Generation {generation} was begun and would be finished first: {listed(undecided)}.")
        unfinished.update(undecided)
    left = [series for series in chosen if series not in unfinished]
    if left:
        report = renewal.check_staleness(left)
        _print_renewal(report)
        if report.stale:
            plan = renewal.plan(renewal.next_generation(report.stale), list(report.stale))
            cli.print_plan(plan, renewal.source)


def _print_renewal(step: StalenessReport | GenerationResult) -> None:
    """Print how old the models are, or which models serve after a new generation was trained."""
    if isinstance(step, StalenessReport):
        rows = [
            (model.series, model.generation, model.until, model.live, "yes" if model.is_stale else "no")
            for model in step.assessments
        ]
        header = ("series", "generation", "newest candle", "live record × naive", "stale")
        print_table(Table(header, rows, "What serves"))
        print_all_lines(f"{model.series}: {model.reason}." for model in step.assessments)
    else:
        print_decisions(step)
    if step.failures:
        reasons = [(str(failure.series), failure.reason or "") for failure in step.failures]
        print_reasons(f"{len(reasons)} series failed; what served serves on", reasons)
    cli.print_without_onnx(step.without_onnx)


def print_decisions(renewed: GenerationResult) -> None:
    """Print the errors of new and old models, and which of them serve."""
    measure = "MAE relative to naive on candles that neither was trained on"
    print_table(change_table(renewed.decisions, f"Generation {renewed.generation}: {measure}"))
    for decision in renewed.decisions:
        verdict = "the challenger serves" if decision.is_replaced else "the champion stays"
        print_lines(f"{decision.series}: {verdict}; of the challenger: {decision.why}.")
