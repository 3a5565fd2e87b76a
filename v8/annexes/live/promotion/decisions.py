"""Decisions about which generation serves a series, kept in `serving.json` of a run (`v8.runs.serving`).

A generation serves only the series that a decision names, so one that is not finished never serves. The file
is written once per decision. No generation is ever deleted here.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from v8.base import records
from v8.base.records import Count, Moment, Number, Plain, Word
from v8.base.storage import write_json
from v8.base.wording import ABSENT, Table, count, moment, number
from v8.data.market.series import SeriesName
from v8.forecaster.metadata import GENERATIONS_FOLDER
from v8.publish.report.card import Replacements
from v8.runs import run_folder
from v8.runs.run_folder import RUN_FILE
from v8.runs.serving import (
    LATER,
    SERVING_FILE,
    SERVING_FIX,
    SERVING_FORMAT,
    GenerationName,
    Serving,
    generation_folder,
    read_content,
)

MOST_DECISIONS: Final = 100
"""Decisions that are kept per series, enough for two years of weekly ones; older ones are removed."""

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
    """Open time of the newest candle that it was made from, ISO 8601; None if unknown."""
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
    fields = {**content, "run": run}
    where = str(run / SERVING_FILE)
    return records.checked(Promotions, fields, where=where, fix=SERVING_FIX, rule=records.AS_WRITTEN)


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
        baselines = [f"{number(best.relative_mae)} {best.name}" for best in decision.baselines.values()]
        new_errors = ", ".join(map(number, challenger.relative_mae.values()))
        old_errors = ", ".join(map(number, champion.relative_mae.values()))
        best_errors = ", ".join(baselines)
        span = ABSENT
        if decision.evaluated_until:
            span = f"{moment(decision.evaluated_from)} to {moment(decision.evaluated_until)}"
        rows.append(
            [
                decision.series,
                moment(challenger.trained_until),
                moment(champion.trained_until),
                decision.stale,
                new_errors or ABSENT,
                old_errors or ABSENT,
                best_errors or ABSENT,
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
        f"{decision.series}: model up to {new} in place of {old}. "
        f"Stale: {decision.stale}. Chosen: {decision.why}."
    )
