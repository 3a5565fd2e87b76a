"""Renews the models of a run: trains a new generation of what is stale, and lets the better one serve.

A generation is a run folder of its own (`v8.artifacts.generations`), planned and carried out as any run. When
it is done, each of its models is ruled on against the one that serves, and the decision is saved before the
next one is looked at. Until then, whatever happens, the old model serves. A generation that a killed call
left behind is finished before another one is begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar

from v8.artifacts.generations import (
    SERVING_FILE,
    Decision,
    Serving,
    artifact_folder,
    free_generation,
    generation_folder,
    list_generations,
    read_serving,
)
from v8.artifacts.run_folder import RUN_FILE, RunFolder, RunRecord, read_run
from v8.errors import ArtifactError, listed
from v8.live.database import Ledger
from v8.live.remembered import RememberedCandles
from v8.live.ruling import Ruling, decision_of, rule
from v8.live.staleness import Rule, Staleness, Standing
from v8.machine.quiet import quiet_start
from v8.market.candles import Candles
from v8.market.companions import Companions
from v8.market.series import Series, series_advice
from v8.market.sources.source import CandleSource
from v8.profile import Profile, recorded_profile
from v8.runs.events import Listener, Note, Outcome, isolated
from v8.runs.execution import TrainAll, execute
from v8.runs.plan import Plan, make_plan
from v8.storage import sweep

CONTINUED = "an earlier call began to train it anew"
"""Why a model is challenged whose generation was left behind by a call that knew."""

NOT_TRAINED = "the challenger could not be trained"


@dataclass(frozen=True)
class Renewed:
    """What came of finishing one generation.

    Args:
        generation: Its name.
        decisions: One per series.
        failures: One per challenger that could not be made.
    """

    generation: str
    decisions: tuple[Decision, ...]
    failures: tuple[Outcome, ...]

    @property
    def has_changes(self) -> bool:
        """Whether another model serves than before."""
        return any(one.is_replaced for one in self.decisions)


@dataclass(frozen=True)
class Looked:
    """Which models are stale.

    Args:
        standings: One per series that could be looked at.
        failures: One per series that could not.
    """

    standings: tuple[Standing, ...]
    failures: tuple[Outcome, ...]
    has_changes: ClassVar = False

    @property
    def stale(self) -> dict[Series, str]:
        """Per stale series: why."""
        return {one.series: one.why for one in self.standings if one.is_stale}


Show = Callable[[Plan], AbstractContextManager[Listener]]
"""Opens a display of a plan until a block ends."""


@dataclass
class Renewal:
    """The renewal of one run, whose folder the caller holds.

    Args:
        run: The run folder.
        source: Where new candles come from.
        rule: By which rule its models are stale.
        words: The command line, to be recorded and shown.
        ledger: Where its forecasts are recorded; None without one.
    """

    run: Path
    source: CandleSource
    rule: Rule
    words: str
    ledger: Ledger | None = None
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

        Raises:
            ArtifactError: If one is not finished in it, or none is.
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

        Raises:
            ArtifactError: If one cannot be read, or was begun with another source.
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

        Args:
            chosen: What `chosen` returned.
            train_all: Who trains.
            show: Opens a display of a plan.

        Yields:
            What was found and done, as it is.

        Raises:
            StorageError: If a file of the run cannot be written.
            KeyboardInterrupt: When interrupted; the same call goes on from there.
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
        """Train what is not trained of a generation, then decide series by series what serves.

        Args:
            generation: Its name.
            stale: Per series why it is challenged.
            train_all: Who trains.
            show: Opens a display of a plan.
        """
        plan = self.plan(generation, [*stale])
        begun = RunRecord.begin(self.profile, self.source.name, self.source.is_publishable, self.words)
        with RunFolder(plan.path, begun) as folder, show(plan) as listen:
            folder.expect(stale)
            summary = execute(plan, folder, self._candles, train_all, listen)
            failures = {failure.series: failure for failure in summary.failures}
            decisions = []
            for series, why in stale.items():
                ruling = self._ruled(series, generation, failures, listen)
                decisions.append(self._decide(series, generation, why, ruling))
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
                rule=f"was begun with --source {begun.source} and is finished with it",
                got=f"--source {self.source.name}",
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
            return rule(champion, challenger, candles, self.profile)

    def _decide(self, series: Series, generation: str, stale: str, ruling: Ruling) -> Decision:
        """Save what serves a series from now on."""
        serving = read_serving(self.run)
        decision = decision_of(series, serving, generation, stale, ruling)
        serving.with_decision(decision).save()
        return decision
