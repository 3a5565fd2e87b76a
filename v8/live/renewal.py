"""Renews the models of a run: trains a new generation of what is stale, and lets the better one serve.

A generation is a run folder of its own (`v8.artifacts.nested_runs`), planned and carried out as any run. When
it is done, each of its models is ruled on against the one that serves, by `v8.losses.contest` on candles that
neither was made from, and the decision is saved before the next one is looked at. Until then, whatever
happens, the old model serves. A generation that a killed call left behind is finished before another begins.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.metadata import read_metadata
from v8.artifacts.nested_runs import (
    SERVING_FILE,
    Contender,
    Decision,
    Opponent,
    Serving,
    Sureness,
    artifact_folder,
    free_generation,
    generation_folder,
    list_generations,
    read_serving,
)
from v8.artifacts.run_folder import RUN_FILE, RunRecord, now_iso, read_run
from v8.errors import ArtifactError, listed
from v8.features.store import FeatureStore
from v8.formulas.baselines import NAIVE, called
from v8.live.ledger import Ledger
from v8.live.staleness import Rule, Staleness, Standing
from v8.losses.contest import Contest, compare_models, is_enough, too_few
from v8.losses.metrics import measure_quantiles
from v8.machine.starting import quiet_start
from v8.market.candles import Candles
from v8.market.companions import Companions
from v8.market.series import Series, series_advice
from v8.market.sources.source import BringsMany, CandleSource
from v8.profile import Profile, recorded_profile
from v8.quantile_levels import interval_names
from v8.redaction import shown
from v8.runs.events import Listener, Note, Outcome, isolated
from v8.runs.execution import Show, Summary, TrainAll, run
from v8.runs.plan import Plan, make_plan
from v8.storage import sweep
from v8.windows.dataset import prepare_series, table_columns
from v8.windows.span import Span

_MOST_WORDS = 300
"""Letters of a reason in `serving.json`."""

CONTINUED = "an earlier call began to train it anew"
"""Why a model is challenged whose generation was left behind by a call that knew."""

NOT_TRAINED = "the challenger could not be trained"


class RememberedCandles:
    """Hands out the newest candles that a source gave first, so that all stages see the same present."""

    def __init__(self, source: CandleSource) -> None:
        self._source = source
        self._newest: dict[tuple[Series, int], Candles] = {}

    @property
    def name(self) -> str:
        """The name of the source."""
        return self._source.name

    @property
    def is_publishable(self) -> bool:
        """Whether the source is a real market."""
        return self._source.is_publishable

    def bring(self, series: Sequence[Series], num_bars: int) -> None:
        """Bring many series up to date at once, where the source can; see `BringsMany`."""
        if isinstance(self._source, BringsMany):
            self._source.bring(series, num_bars)

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
    contest: Contest | None = None  # the judgement of both; None where there was none
    judged_from: str | None = None  # when the first judged forecast was issued, ISO 8601; None without any
    judged_until: str | None = None  # when the last forecast bar closed, ISO 8601; None without any
    quantiles: tuple[Mapping[str, Sureness], Mapping[str, Sureness]] = ({}, {})  # per task, champion's first


def rule_on(champion: Path, challenger: Path, candles: Candles, profile: Profile) -> Ruling:
    """Let two models of a series forecast what neither has seen, and say which of them serves.

    That is the challenger's test span, as far as it lies an embargo behind what the champion was fitted and
    stopped on. The baselines are fitted to the challenger's train span.

    Raises `SeriesError` if a model does not forecast what the profile says.
    """
    try:
        new = Forecaster.load(challenger)
    except ArtifactError:
        return Ruling(False, "the files of the challenger are damaged")
    if candles.digest != new.about.candles.digest:
        return Ruling(False, "the candles that the challenger was made from are no longer the same")
    try:
        old = Forecaster.load(champion)
    except ArtifactError:
        return Ruling(True, "the files of the champion are damaged")
    abouts = ("series", "features", "lookback_bars", "horizon_bars", "quantiles")
    is_same = all(getattr(old, about) == getattr(new, about) for about in abouts)
    if not is_same or old.about.tasks.keys() != new.about.tasks.keys():
        return Ruling(True, "the champion forecasts something else than the profile says")
    data = prepare_series(FeatureStore(num_remembered=0).table(candles, table_columns(profile)), profile)
    span = unseen(data.spans["test"], old.seen_until_s)
    if not is_enough(len(span), span.horizon_bars):
        return Ruling(False, too_few(len(span), span.horizon_bars))
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
    serves = serving.generation_of(str(series))
    old, new = (contest.champion_multiples, contest.challenger_multiples) if contest else ({}, {})
    best = contest.best_baselines if contest else {}
    trained_until = partial(_trained_until, series, serving)
    return Decision(
        series=str(series),
        decided_at=now_iso(),
        stale=shown(stale, _MOST_WORDS),
        champion=Contender(serves, trained_until(serves), old, ruling.quantiles[0]),
        challenger=Contender(generation, trained_until(generation), new, ruling.quantiles[1]),
        num_windows=contest.judged.num_windows if contest else 0,
        judged_from=ruling.judged_from,
        judged_until=ruling.judged_until,
        baselines={task: Opponent(called(name), multiple) for task, (name, multiple) in best.items()},
        p_values={task: test.p_value for task, test in contest.tests.items()} if contest else {},
        verdict="replaced" if ruling.is_replaced else "kept",
        why=shown(ruling.why, _MOST_WORDS),
    )


def _trained_until(series: Series, serving: Serving, generation: str) -> str | None:
    """Say until when one of the two was trained; None of one that is damaged or was never made."""
    try:
        folder = artifact_folder(serving.run, generation, str(series))
        until = read_metadata(folder, series=str(series)).candles.last_open
    except ArtifactError:
        return None
    return until


def unseen(span: Span, seen_until_s: int) -> Span:
    """Return the windows of a span that begin an embargo behind what another model has seen.

    That is when the last candle closed that it was fitted or stopped on, seconds since the epoch, UTC.
    """
    first_rows = span.anchors - span.profile.lookback_bars + 1
    begin_s = seen_until_s + span.profile.embargo_bars * span.table.series.bar_s
    return Span(span.table, span.profile, span.anchors[span.table.open_time_s[first_rows] >= begin_s])


def _sureness(
    quantiles: Mapping[str, NDArray[np.float32]], contest: Contest, span: Span
) -> dict[str, Sureness]:
    """Say how good quantiles were, per task, but where naive never errs."""
    levels, found = span.profile.quantiles, {}
    for task, forecast in quantiles.items():
        errors, _ = measure_quantiles(span, task, forecast.astype(np.float64), levels)
        if (naive := contest.judged.error(task, NAIVE).overall) > 0:
            coverage = {name: errors.mean_coverage(at) for at, name in enumerate(interval_names(levels))}
            found[task] = Sureness(errors.crps / naive, coverage)
    return found


@dataclass(frozen=True)
class Renewed:
    """What came of finishing one generation."""

    generation: str  # its name
    decisions: tuple[Decision, ...]  # one per series
    failures: tuple[Outcome, ...]  # one per challenger that could not be made

    @property
    def has_changes(self) -> bool:
        """Whether another model serves than before."""
        return any(one.is_replaced for one in self.decisions)


@dataclass(frozen=True)
class Looked:
    """Which models are stale."""

    standings: tuple[Standing, ...]  # one per series that could be looked at
    failures: tuple[Outcome, ...]  # one per series that could not
    has_changes: ClassVar = False

    @property
    def stale(self) -> dict[Series, str]:
        """Per stale series: why."""
        return {one.series: one.why for one in self.standings if one.is_stale}


@dataclass
class Renewal:
    """The renewal of one run, whose folder the caller holds."""

    run: Path  # the run folder
    source: CandleSource  # where new candles come from
    rule: Rule  # by which rule its models are stale
    words: str  # the command line, to be recorded and shown
    ledger: Ledger | None = None  # where its forecasts are recorded; None without one
    record: RunRecord = field(init=False)
    profile: Profile = field(init=False)
    _candles: RememberedCandles = field(init=False)

    def __post_init__(self) -> None:
        self.record = read_run(self.run)
        where = f"{self.run / RUN_FILE}, key profile"
        self.profile = recorded_profile(self.record.profile, where=where)
        self._candles, self._companions = RememberedCandles(self.source), Companions.of(self.profile)

    def chosen(self, asked: Sequence[Series] | None) -> tuple[Series, ...]:
        """Return the series that are meant: finished ones of the run.

        Raises `ArtifactError` if one is not finished in it, or none is.
        """
        states = self.record.series
        done = [name for name, state in states.items() if state.status == "done"]
        wanted = [str(one) for one in asked] if asked else done
        if not wanted or (strange := [name for name in wanted if name not in done]):
            raise ArtifactError(
                where=str(self.run),
                rule="what is updated is a finished series of the run",
                got=listed(strange) if wanted else "a run without any",
                fix=series_advice(strange[0], done, f"The run has {listed(done)}")
                if wanted and done
                else "Finish the run first",
            )
        return tuple(map(Series.parse, wanted))

    def unfinished(self, chosen: Sequence[Series]) -> Iterator[tuple[str, tuple[Series, ...]]]:
        """List generations that earlier calls left behind, oldest first, with their undecided series.

        Raises `ArtifactError` if one cannot be read, or was begun with another source.
        """
        serving = read_serving(self.run)
        for name in list_generations(self.run):
            begun = self._begun(name)
            mine = [one for one in chosen if str(one) in begun.series]
            left = tuple(one for one in mine if not serving.has_decided(str(one), name))
            if left:
                self._require_source(name, begun)
                yield name, left

    def look(self, chosen: Sequence[Series]) -> Looked:
        """Find out which models are stale; a series whose candles cannot be had fails by itself."""
        serving = read_serving(self.run)
        self._candles.bring(self._companions.with_neighbours(chosen), self.profile.newest_bars)
        found = [isolated(series, partial(self._standing, series, serving)) for series in chosen]
        failures = tuple(outcome for _, outcome in found if outcome.reason)
        return Looked(tuple(standing for standing, _ in found if standing), failures)

    def next_generation(self, chosen: Iterable[Series]) -> str:
        """Name the generation of some stale series, by the day of their newest candle."""
        newest_s = max(int(self._newest(one).open_time_s[-1]) for one in chosen)
        return free_generation(self.run, datetime.fromtimestamp(newest_s, UTC).date().isoformat())

    def plan(self, generation: str, chosen: Sequence[Series]) -> Plan:
        """Plan the training of a generation."""
        return make_plan(self.profile, chosen, generation_folder(self.run, generation))

    def renew(self, chosen: Sequence[Series], train_all: TrainAll, show: Show) -> Iterator[Looked | Renewed]:
        """Finish what was begun, look at the others, and train what of them is stale.

        Raises `StorageError` if a file of the run cannot be written. Interrupted, the same call goes on.
        """
        sweep(self.run)
        decided: set[Series] = set()
        for generation, left in [*self.unfinished(chosen)]:
            yield self._finish(generation, dict.fromkeys(left, CONTINUED), train_all, show)
            decided.update(left)
        looked = self.look([one for one in chosen if one not in decided])
        if looked.standings or looked.failures:
            yield looked
        if looked.stale:
            yield self._finish(self.next_generation(looked.stale), looked.stale, train_all, show)

    def _finish(
        self, generation: str, stale: Mapping[Series, str], train_all: TrainAll, show: Show
    ) -> Renewed:
        """Train what is not trained of a generation, then decide what serves; `stale` tells why."""
        decisions: list[Decision] = []

        def decide(summary: Summary, listen: Listener) -> None:
            failures = {failure.series: failure for failure in summary.failures}
            for series, why in stale.items():
                ruling = self._ruled(series, generation, failures, listen)
                serving = read_serving(self.run)
                decisions.append(decision_of(series, serving, generation, why, ruling))
                serving.with_decision(decisions[-1]).save()

        plan, words = self.plan(generation, [*stale]), self.words
        summary = run(plan, self._candles, train_all, show, command=words, is_listed=True, then=decide)
        return Renewed(generation, tuple(decisions), summary.failures)

    def _begun(self, generation: str) -> RunRecord:
        try:
            return read_run(generation_folder(self.run, generation))
        except ArtifactError as error:
            fix = f"Restore it, or remove this generation, if {SERVING_FILE} does not name it"
            raise ArtifactError(where=error.where, rule=error.rule, got=error.got, fix=fix) from error

    def _require_source(self, generation: str, begun: RunRecord) -> None:
        if begun.source != self.source.name:
            raise ArtifactError(
                where=str(generation_folder(self.run, generation)),
                rule=f"was begun with param:source {begun.source} and is finished with it",
                got=f"param:source {self.source.name}",
                fix="Use the same source, or remove this folder, which serves nothing yet",
            )

    def _newest(self, series: Series) -> Candles:
        return self._companions.candles(self._candles, series, self.profile.newest_bars)

    def _standing(self, series: Series, serving: Serving) -> Standing:
        with quiet_start():
            return Staleness(serving, self.rule, self.ledger).standing(series, self._newest(series))

    def _ruled(
        self, series: Series, generation: str, failures: Mapping[Series, Outcome], listen: Listener
    ) -> Ruling:
        if series in failures:
            return Ruling(False, NOT_TRAINED)
        ruling, outcome = isolated(series, lambda: self._rule(series, generation))
        if ruling is None:
            listen(Note(f"{outcome.reason} The champion stays."))
        return ruling or Ruling(False, "the two could not be compared")

    def _rule(self, series: Series, generation: str) -> Ruling:
        serves = read_serving(self.run).generation_of(str(series))
        champion, challenger = (artifact_folder(self.run, each, str(series)) for each in (serves, generation))
        pin = read_run(generation_folder(self.run, generation)).series[str(series)].candles
        end_s = pin.last_open_s if pin else None
        candles = self._companions.candles(self._candles, series, self.profile.newest_bars, end_s)
        with quiet_start():
            return rule_on(champion, challenger, candles, self.profile)
