"""Renews the models of a run: trains a new generation of what is stale, and lets the better one serve.

A generation is a run folder of its own (`v8.artifacts.nested_runs`), planned and carried out as any run. When
it is done, each of its models is ruled on against the one that serves, by `v8.promotion.champion_test` on candles
that neither was made from, and the decision is saved before the next one is looked at. Until then, whatever
happens, the old model serves. A generation that a killed call left behind is finished before another begins.

Which models are stale, and why:

* `age`: more candles have come than its test span holds, or than a stated number of days. Counted in candles
  because a day means 96 of them to one series and 24 to another; by the test span because then all candles
  that a challenger is evaluated on are newer than any that the champion was made or evaluated with.
* `decay`: on the candles that came since, it is worse than its test span promised, or than the baseline that
  was best there, by more than chance. The live record tells, where it holds enough forecasts of this model:
  nobody can have tuned those. Else the model forecasts the candles since once more, a back-test.
* `always`: there are new candles.

A model that was challenged and stayed is not stale by the same evidence again: its age, and the candles
that show decay, begin behind the newest candle of the challenger. Without new candles nothing is stale: the
same candles and seed would give the same model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from v8.artifacts import nested_runs
from v8.artifacts.forecaster import Forecaster
from v8.artifacts.metadata import Metadata, not_evaluated, read_metadata
from v8.artifacts.nested_runs import Contender, Decision, QuantileQuality, Serving
from v8.artifacts.run_folder import RUN_FILE, now_iso, read_run
from v8.artifacts.shared_models import SharedModels
from v8.baselines.baselines import BASELINES, NAIVE, called
from v8.errors import ArtifactError, listed, shown
from v8.evaluation.evaluation import MODEL
from v8.evaluation.metrics import measure_errors, measure_quantiles
from v8.evaluation.significance import Losses
from v8.features.formulas import DAY_S
from v8.features.store import FeatureStore
from v8.ledger.database import Ledger
from v8.machine.starting import quiet_start
from v8.market.candles import Candles
from v8.market.companions import Companions
from v8.market.series import Series, iso, series_advice
from v8.market.sources.source import CandleSource, PrefetchesCandles
from v8.plugins import other_plugins
from v8.profile import Profile, network_outputs, recorded_profile
from v8.promotion.champion_test import Contest, compare_models, decay_of, too_few
from v8.quantile_levels import interval_names
from v8.runs.events import Event, Note, RunSummary, SeriesOutcome, isolated
from v8.runs.execution import run
from v8.runs.jobs import Engine
from v8.runs.observers import ObserverGroup, RunContext, RunObserver
from v8.runs.plan import Plan, make_plan
from v8.storage import sweep
from v8.windows.dataset import prepare_series, table_columns, whole_span
from v8.windows.span import Span
from v8.wording import ABSENT, number

RULES: Final = ("age", "decay", "always")  # by which a model is stale, see above
STARTS: Final = ("anew", "champion")  # what the training of a challenger begins from
_MOST_WORDS = 300  # letters of a reason in `serving.json`
CONTINUED = "an earlier call began to train it anew"
"""Why a model is challenged whose generation was left behind by a call that knew."""
NOT_TRAINED = "the challenger could not be trained"


def recorded_losses(
    ledger: Ledger | None, place: Path | str, series: Series, model_sha256: str, start_s: int
) -> Losses | None:
    """Return those of the live record that one model issued in time; None where it issued none.

    Forecasts count that were issued for closes from `start_s` on, seconds since the epoch, UTC.
    """
    scored_by = ledger.scored(place, str(series)) if ledger else []
    found = [one for one in scored_by if one.issuer.model_sha256 == model_sha256]
    if not found:
        return None
    scored = max(found, key=lambda one: len(one.issued_for_s)).in_time(start_s)
    issuer = scored.issuer
    by_task = {task: {name: scored.of(task, name) for name in issuer.forecasters} for task in issuer.tasks}
    # The newest candle closed when the forecast was issued for.
    bars = scored.issued_for_s // issuer.bar_s - 1
    return Losses(by_task, bars, issuer.horizon_bars, "of the live record")


def back_tested_losses(
    forecaster: Forecaster, opponents: Mapping[str, str], candles: Candles, start_s: int
) -> Losses:
    """Let a model forecast the candles since, beside naive and one baseline a task, by `opponents`.

    Those are fitted to what lies before `start_s`, seconds since the epoch, UTC; forecasts count that are
    issued from then on. There are none where nothing lies before it that baselines could be fitted to.
    """
    profile = forecaster.about.trained_profile
    before, since = whole_span(candles, profile).split_at(start_s)
    if not len(before) or not len(since):
        return Losses({}, np.zeros(0, np.int64), since.horizon_bars)
    by_task = {}
    for task, values in forecaster.forecast(since.raw_windows()).items():
        made = {MODEL: values.astype(np.float64), NAIVE: since.naive[task]}
        name = opponents[task]
        if name not in made and BASELINES[name].is_installed():
            made[name] = BASELINES[name].fitted(before, forecaster.about.scaling)(since)[task]
        by_task[task] = {who: measure_errors(since, task, what)[1] for who, what in made.items()}
    return Losses(by_task, since.bar_numbers, since.horizon_bars, "of a back-test")


@dataclass(frozen=True)
class Rule:
    """By which rule a model is stale."""

    when: str = "age"  # one of `RULES`
    max_age_days: float | None = None  # from which on it is by `age`; None for the length of its test span


@dataclass(frozen=True)
class Standing:
    """How the model that serves a series stands."""

    series: Series
    generation: str  # that serves
    until: str  # its newest candle, in words
    is_stale: bool  # whether it should be challenged
    why: str  # the reason either way, a clause
    live: str = ABSENT  # its error in the live record, as a multiple of naive's, and of how many forecasts


def standing_of(
    series: Series, candles: Candles, serving: Serving, rule: Rule, ledger: Ledger | None = None
) -> Standing:
    """Say how the model that serves a series stands.

    The candles are the newest that there are; for `decay` as many as training takes, or `DataError`.
    """
    name = str(series)
    generation = serving.generation_of(str(series))
    try:
        folder = serving.folder(name)
        about = read_metadata(folder, series=name)
        recorded = partial(recorded_losses, ledger, serving.run, series, about.model_sha256)
        trained_s = about.candles.last_open_s
        decisions = serving.decisions_about(name)
        ends = [one.challenger.trained_until for one in decisions if one.champion.generation == generation]
        # Its newest candle, or the newest of a challenger that it has seen off.
        tried_s = max([trained_s, *(int(datetime.fromisoformat(end).timestamp()) for end in ends if end)])
        is_stale, why = _staleness(about, series.bar_s, tried_s, rule, candles)
        if is_stale and rule.when == "decay":
            evaluated = about.evaluation
            start_s = tried_s + series.bar_s
            losses = recorded(start_s)
            if not losses or too_few(len(losses), losses.horizon_bars):
                best = {task: evaluated.best_baseline(task) for task in evaluated.tasks}
                losses = back_tested_losses(Forecaster.load(folder), best, candles, start_s)
            is_stale, found = decay_of(evaluated, losses)
            why = f"{why}: {found}"
        return Standing(series, generation, iso(trained_s), is_stale, why, _in_live_record(recorded(0)))
    except ArtifactError:
        return Standing(series, generation, ABSENT, True, "the model that serves cannot be used")


def _staleness(about: Metadata, bar_s: int, tried_s: int, rule: Rule, candles: Candles) -> tuple[bool, str]:
    """Say whether a model is stale by the candles since, which may yet have to show decay, and why."""
    num_new = max(0, (int(candles.open_time_s[-1]) - tried_s) // bar_s)
    said = f"{num_new:,} new {'candle' if num_new == 1 else 'candles'} since {iso(tried_s)}"
    said += "".join(f", {count:,} bars lack {name}" for name, count in candles.report.lacking.items())
    if not num_new or rule.when != "age":
        return num_new > 0, said
    first, end = about.split.test.rows
    allowed = end - first if rule.max_age_days is None else int(rule.max_age_days * DAY_S / bar_s)
    return num_new > allowed, f"{said}, {'' if num_new > allowed else 'not '}more than {allowed:,}"


def _in_live_record(losses: Losses | None) -> str:
    """Tell the error of a model in the live record."""
    if not losses or not len(losses):
        return ABSENT
    errors = {task: (losses.mean(task, MODEL), losses.mean(task, NAIVE)) for task in losses.by_task}
    told = (f"{task} {number(ours / naive if naive else None)}" for task, (ours, naive) in errors.items())
    return f"{', '.join(told)} of {len(losses):,}"


class RememberedCandles:
    """Hands out the newest candles that a source gave first, so that all stages see the same present."""

    def __init__(self, source: CandleSource) -> None:
        self._source = source
        self.name = source.name
        self.is_publishable = source.is_publishable
        self._newest: dict[tuple[Series, int], Candles] = {}

    def prefetch(self, series: Sequence[Series], num_bars: int) -> None:
        """Bring many series up to date at once, where the source can; see `PrefetchesCandles`."""
        if isinstance(self._source, PrefetchesCandles):
            self._source.prefetch(series, num_bars)

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return candles; see `CandleSource`."""
        newest = self._newest.get((series, num_bars))
        if newest is None and end_s is None:
            newest = self._newest[series, num_bars] = self._source.candles(series, num_bars)
        if newest is not None and end_s in (None, int(newest.open_time_s[-1])):
            return newest
        return self._source.candles(series, num_bars, end_s)


@dataclass(frozen=True)
class Ruling:
    """Which of two models serves."""

    is_replaced: bool  # whether the challenger serves
    why: str  # the reason, a clause
    contest: Contest | None = None  # the evaluation of both; None where there was none
    evaluated_from: str | None = (
        None  # when the first evaluated forecast was issued, ISO 8601; None without any
    )
    evaluated_until: str | None = None  # when the last forecast bar closed, ISO 8601; None without any
    quantiles: tuple[Mapping[str, QuantileQuality], Mapping[str, QuantileQuality]] = (
        {},
        {},
    )  # per task, champion's first


def rule_on(champion: Path, challenger: Path, candles: Candles, profile: Profile) -> Ruling:
    """Let two models of a series forecast what neither has seen, and say which of them serves.

    That is the challenger's test span, as far as it lies an embargo behind what the champion was fitted and
    stopped on. The baselines are fitted to the challenger's train span.

    Raises `SeriesError` if a model does not forecast what the profile says.
    """
    models = SharedModels()
    try:
        new = Forecaster.load(challenger, models=models)
    except ArtifactError:
        return Ruling(False, "the files of the challenger are damaged")
    if candles.digest != new.about.candles.digest:
        return Ruling(False, "the candles that the challenger was made from are no longer the same")
    try:
        old = Forecaster.load(champion, models=models)
    except ArtifactError:
        return Ruling(True, "the files of the champion are damaged")
    abouts = ("series", "features", "lookback_bars", "horizon_bars", "quantiles")
    is_same = all(getattr(old, about) == getattr(new, about) for about in abouts)
    if not is_same or old.about.tasks.keys() != new.about.tasks.keys():
        return Ruling(True, "the champion forecasts something else than the profile says")
    data = prepare_series(FeatureStore().table(candles, table_columns(profile)), profile)
    span = _unseen(data.spans["test"], old.trained_until_s)
    lacks = too_few(len(span), span.horizon_bars)
    if lacks:
        return Ruling(False, lacks)
    made = [each.forecast_all(span.raw_windows()) for each in (old, new)]
    theirs, ours = ({task: one.astype(np.float64) for task, one in each.points.items()} for each in made)
    contest = compare_models(span, ours, theirs, train=data.spans["train"], scaling=data.scaling)
    closed_s = span.table.open_time_s + span.table.series.bar_s
    ends_s = closed_s[[span.anchors[0], span.anchors[-1] + span.horizon_bars]].tolist()
    begin, end = (datetime.fromtimestamp(end_s, UTC).isoformat() for end_s in ends_s)
    sure_old, sure_new = (_sureness(each.quantiles, contest, span) for each in made)
    return Ruling(contest.is_won, contest.why, contest, begin, end, (sure_old, sure_new))


def decision_of(series: Series, serving: Serving, generation: str, stale: str, ruling: Ruling) -> Decision:
    """Write down a ruling."""
    contest = ruling.contest
    name = str(series)
    serves = serving.generation_of(str(series))
    multiples = (contest.champion_multiples, contest.challenger_multiples) if contest else ({}, {})

    def contender(place: int, generation: str) -> Contender:
        try:
            folder = nested_runs.artifact_folder(serving.run, generation, name)
            until: str | None = read_metadata(folder, series=name).candles.last_open
        except ArtifactError:  # it is damaged, or was never made
            until = None
        return Contender(generation, until, multiples[place], ruling.quantiles[place])

    best = contest.best_baselines if contest else {}
    return Decision(
        series=name,
        decided_at=now_iso(),
        stale=shown(stale, _MOST_WORDS),
        champion=contender(0, serves),
        challenger=contender(1, generation),
        num_windows=contest.evaluated.num_windows if contest else 0,
        evaluated_from=ruling.evaluated_from,
        evaluated_until=ruling.evaluated_until,
        baselines={task: nested_runs.Opponent(called(name), one) for task, (name, one) in best.items()},
        p_values={task: test.p_value for task, test in contest.tests.items()} if contest else {},
        verdict="replaced" if ruling.is_replaced else "kept",
        why=shown(ruling.why, _MOST_WORDS),
    )


def _unseen(span: Span, trained_until_s: int) -> Span:
    """Return the windows of a span that begin an embargo behind what another model has seen.

    That is when the last candle closed that it was fitted or stopped on, seconds since the epoch, UTC.
    """
    first_rows = span.anchors - span.profile.lookback_bars + 1
    begin_s = trained_until_s + span.profile.embargo_bars * span.table.series.bar_s
    return Span(span.table, span.profile, span.anchors[span.table.open_time_s[first_rows] >= begin_s])


def _sureness(
    quantiles: Mapping[str, NDArray[np.float32]], contest: Contest, span: Span
) -> dict[str, QuantileQuality]:
    """Say how good quantiles were, per task, but where naive never errs."""
    levels = span.profile.quantiles
    found = {}
    for task, forecast in quantiles.items():
        errors, _ = measure_quantiles(span, task, forecast.astype(np.float64), levels)
        naive = contest.evaluated.error(task, NAIVE).overall
        if naive > 0:
            coverage = {name: errors.mean_coverage(at) for at, name in enumerate(interval_names(levels))}
            found[task] = QuantileQuality(errors.crps / naive, coverage)
    return found


@dataclass(frozen=True)
class Renewed:
    """What came of finishing one generation."""

    generation: str  # its name
    decisions: tuple[Decision, ...]  # one per series
    failures: tuple[SeriesOutcome, ...]  # one per challenger that could not be made


@dataclass(frozen=True)
class Looked:
    """Which models are stale."""

    standings: tuple[Standing, ...]  # one per series that could be looked at
    failures: tuple[SeriesOutcome, ...]  # one per series that could not
    decisions: ClassVar[tuple[Decision, ...]] = ()

    @property
    def stale(self) -> dict[Series, str]:
        """Per stale series: why."""
        return {one.series: one.why for one in self.standings if one.is_stale}


class _DecisionMaker(RunObserver):
    """Decides, when a generation is trained and its folder still held, which models serve."""

    def __init__(self, renewal: "Renewal", generation: str, stale: Mapping[Series, str]) -> None:
        self.decisions: list[Decision] = []
        self._renewal = renewal
        self._generation = generation
        self._stale = stale

    def on_begin(self, context: RunContext) -> None:
        """Keep what notes are sent by."""
        self._notify = context.notify

    def on_finished(self, summary: RunSummary) -> None:
        """Decide about each series, one after another."""
        failed = {failure.series for failure in summary.failures}
        for series, why in self._stale.items():
            ruling = Ruling(False, NOT_TRAINED)
            if series not in failed:
                ruling = self._renewal.rule_on_series(series, self._generation, self._notify)
            self.decisions.append(self._renewal.decide(series, self._generation, why, ruling))


@dataclass
class Renewal:
    """The renewal of one run, whose folder the caller holds."""

    run: Path  # the run folder
    source: CandleSource  # where new candles come from
    rule: Rule  # by which rule its models are stale
    words: str  # the command line, to be recorded and shown
    ledger: Ledger | None = None  # where its forecasts are recorded; None without one
    start: str = "anew"  # what training begins from, one of `STARTS`

    def __post_init__(self) -> None:
        self.record = read_run(self.run)
        if not self.record.is_evaluated:
            raise not_evaluated(str(self.run))
        fix = "Name the same with param:plugin"
        other = other_plugins(self.record.plugins, where=str(self.run), fix=fix)
        if other:
            raise other
        where = f"{self.run / RUN_FILE}, key profile"
        self.profile = recorded_profile(self.record.profile, where=where)
        if self.start == "champion":
            network_outputs(self.profile)  # or there are no weights
        self._candles, self._companions = RememberedCandles(self.source), Companions.of(self.profile)

    def chosen(self, asked: Sequence[Series] | None) -> tuple[Series, ...]:
        """Return the series that are meant: finished ones of the run.

        Raises `ArtifactError` if one is not finished in it, or none is.
        """
        done = self.record.done
        wanted = [str(one) for one in asked] if asked else done
        strange = [name for name in wanted if name not in done]
        fix = "Finish the run first"
        if strange and done:
            fix = series_advice(strange[0], done, f"The run has {listed(done)}")
        if strange or not wanted:
            rule = "what is updated is a finished series of the run"
            got = listed(strange) if wanted else "a run without any"
            raise ArtifactError(where=str(self.run), rule=rule, got=got, fix=fix)
        return tuple(map(Series.parse, wanted))

    def unfinished(self, chosen: Sequence[Series]) -> Iterator[tuple[str, tuple[Series, ...]]]:
        """List generations that earlier calls left behind, oldest first, with their undecided series.

        Raises `ArtifactError` if one cannot be read, or was begun with another source.
        """
        serving = nested_runs.read_serving(self.run)
        for name in nested_runs.list_generations(self.run):
            folder = nested_runs.generation_folder(self.run, name)
            try:
                begun = read_run(folder)
            except ArtifactError as error:
                fix = f"Restore it, or remove this generation, if {nested_runs.SERVING_FILE} does not name it"
                raise ArtifactError(where=error.where, rule=error.rule, got=error.got, fix=fix) from error
            decided = {one.series for one in serving.decisions if one.challenger.generation == name}
            left = tuple(one for one in chosen if str(one) in begun.series.keys() - decided)
            if left and begun.source != self.source.name:
                where = str(folder)
                rule = f"was begun with param:source {begun.source} and is finished with it"
                fix = "Use the same source, or remove this folder, which serves nothing yet"
                raise ArtifactError(where=where, rule=rule, got=f"param:source {self.source.name}", fix=fix)
            if left:
                yield name, left

    def look(self, chosen: Sequence[Series]) -> Looked:
        """Find out which models are stale; a series whose candles cannot be had fails by itself."""
        serving = nested_runs.read_serving(self.run)
        self._candles.prefetch(self._companions.with_neighbours(chosen), self.profile.newest_bars)

        def standing(series: Series) -> Standing:
            with quiet_start():
                return standing_of(series, self._newest(series), serving, self.rule, self.ledger)

        found = [isolated(series, partial(standing, series)) for series in chosen]
        failures = tuple(outcome for _, outcome in found if outcome.reason)
        return Looked(tuple(standing for standing, _ in found if standing), failures)

    def next_generation(self, chosen: Iterable[Series]) -> str:
        """Name the generation of some stale series, by the day of their newest candle."""
        newest_s = max(int(self._newest(one).open_time_s[-1]) for one in chosen)
        day = datetime.fromtimestamp(newest_s, UTC).date().isoformat()
        return nested_runs.free_generation(self.run, day)

    def plan(self, generation: str, chosen: Sequence[Series]) -> Plan:
        """Plan the training of a generation."""
        plan = make_plan(self.profile, chosen, nested_runs.generation_folder(self.run, generation))
        serving = nested_runs.read_serving(self.run)
        champions = {one: serving.place(str(one)).absolute() for one in chosen}
        return replace(plan, champions=champions if self.start == "champion" else {})

    def renew(
        self, chosen: Sequence[Series], engine: Engine, observer: RunObserver
    ) -> Iterator[Looked | Renewed]:
        """Finish what was begun, look at the others, and train what of them is stale.

        The observer follows the training of each generation. Raises `StorageError` if a file of the run
        cannot be written. Interrupted, the same call goes on.
        """
        sweep(self.run)
        decided: set[Series] = set()
        for generation, left in [*self.unfinished(chosen)]:
            yield self._finish(generation, dict.fromkeys(left, CONTINUED), engine, observer)
            decided.update(left)
        looked = self.look([one for one in chosen if one not in decided])
        if looked.standings or looked.failures:
            yield looked
        if looked.stale:
            yield self._finish(self.next_generation(looked.stale), looked.stale, engine, observer)

    def _finish(
        self, generation: str, stale: Mapping[Series, str], engine: Engine, observer: RunObserver
    ) -> Renewed:
        """Train what is not trained of a generation, then decide what serves; `stale` tells why."""
        maker = _DecisionMaker(self, generation, stale)
        observers = ObserverGroup([maker, observer])  # decisions before the report is drawn
        plan = self.plan(generation, [*stale])
        summary = run(plan, self._candles, engine, observers, command=self.words, lists_all_series=True)
        return Renewed(generation, tuple(maker.decisions), summary.failures)

    def decide(self, series: Series, generation: str, why: str, ruling: Ruling) -> Decision:
        """Save which model of a series serves from now on, and return the decision."""
        serving = nested_runs.read_serving(self.run)
        decision = decision_of(series, serving, generation, why, ruling)
        serving.with_decision(decision).save()
        return decision

    def _newest(self, series: Series, end_s: int | None = None) -> Candles:
        return self._companions.candles(self._candles, series, self.profile.newest_bars, end_s)

    def rule_on_series(self, series: Series, generation: str, notify: Callable[[Event], None]) -> Ruling:
        """Compare the model of a generation with the one that serves; where that fails, a note says why."""

        def rule() -> Ruling:
            champion = nested_runs.read_serving(self.run).place(str(series))
            challenger = nested_runs.artifact_folder(self.run, generation, str(series))
            record = read_run(nested_runs.generation_folder(self.run, generation))
            pin = record.series[str(series)].candles
            candles = self._newest(series, pin.last_open_s if pin else None)
            with quiet_start():
                return rule_on(champion, challenger, candles, self.profile)

        ruling, outcome = isolated(series, rule)
        if ruling is None:
            notify(Note(f"{outcome.reason} The champion stays."))
        return ruling or Ruling(False, "the two could not be compared")
