"""Runs inside a folder: the later generations of a run, and the folds of a back-test.

    runs/aligned/            the models that were trained first serve until a better one does
      serving.json           per series the generation that serves, and all decisions about it
      generations/
        2026-11-21/          a run folder like any other, named by its newest candle; next 2026-11-21-2
    backtests/frontier/      plan.json, backtest.json, backtest.html
      fold-1/                a run folder like any other, see `v8.runs.run_folder`
        BTCUSDT-15m/         model.keras ... and fold_losses.npz

`served_folder` finds the model of a series in a run. A generation serves only the series that a decision
names, so one that is not finished never serves. `serving.json` is written to a temporary name and renamed,
once per decision: a process that is killed leaves the old file or the new one. No generation is ever deleted
here.

The plan of a back-test is written before anything is trained and never changes: when a back-test is
continued, the ends of its folds must not move with the newest candle. One process at a time writes the
folder.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from v8.base import records
from v8.base.errors import ArtifactError, listed
from v8.base.former_names import with_current_names
from v8.base.records import Count, Moment, Number, OpenTime, Plain, Positive, Word
from v8.base.storage import WriterLock, write_json
from v8.base.wording import plural
from v8.data.market.series import Series, SeriesName, by_series
from v8.forecaster.metadata import GENERATIONS_FOLDER, METADATA_FILE
from v8.runs import run_folder
from v8.runs.run_folder import RUN_FILE

SERVING_FORMAT: Final = 2  # version of the keys of `serving.json`
SERVING_FILE: Final = "serving.json"
FIRST: Final = "0"  # the generation in the run folder itself
MOST_DECISIONS: Final = 100
"""Decisions that are kept per series, enough for two years of weekly ones; older ones are removed."""

_NAME: Final = re.compile(r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})(-(?P<number>[1-9][0-9]{0,3}))?")
_SERVING_FIX: Final = "Restore the file, or remove it: then the models of the run's own folder serve"


def _fault_of_generation(name: str) -> str | None:
    return None if name == FIRST or _NAME.fullmatch(name) else "names a generation such as 2026-11-21"


GenerationName = Annotated[str, Field(strict=True, max_length=20), records.refusing(_fault_of_generation)]
"""`0`, or a day and a number; safe as the name of a folder."""

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
class Serving:
    """Which generation serves each series of a run: the content of `serving.json`, and the run."""

    run: Path  # the run folder; not part of the file
    generations: Annotated[
        Mapping[str, GenerationName], BeforeValidator(by_series), Field(alias="serving")
    ]  # the generation per series; series that are not listed are served by the first one
    decisions: tuple[Decision, ...]
    """The newest `MOST_DECISIONS` decisions about each series, oldest first."""

    def generation_of(self, series: str) -> str:
        """Return the generation that serves a series."""
        return self.generations.get(series, FIRST)

    def place(self, series: str) -> Path:
        """Return where the folder of the model that serves a series belongs; it need not exist."""
        return artifact_folder(self.run, self.generation_of(series), series)

    def folder(self, series: str) -> Path:
        """Return the folder of the model that serves a series.

        A folder in the run itself need not exist.

        Raises:
            ArtifactError: If the later generation that serves has no such model, or holds links.
        """
        folder = self.place(series)
        if self.generation_of(series) != FIRST and not (folder / METADATA_FILE).is_file():
            rule = f"{self.run / SERVING_FILE} says that this generation serves {series}"
            fix = _SERVING_FIX.replace("the file", "the folder").replace("it:", f"{SERVING_FILE}:")
            raise ArtifactError(where=str(folder), rule=rule, got="no finished model there", fix=fix)
        return folder

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

    def with_decision(self, decision: Decision) -> "Serving":
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
        records.adapter(Serving).validate_python({"run": self.run, **content})
        write_json(self.run / SERVING_FILE, {"format": SERVING_FORMAT, **content})


def read_serving(run: Path) -> Serving:
    """Read and check which generations serve the series of a run; without a file the first one serves all.

    Raises:
        ArtifactError: If the file is damaged, has an unknown format, or an impossible name.
    """
    file = run / SERVING_FILE
    if not file.exists() and not file.is_symlink():
        return Serving(run, {}, ())
    run_folder.require_own_files(run)
    content = records.read_json_object(file, fix=_SERVING_FIX)
    records.check_format(content, (1, SERVING_FORMAT), kind="serving", where=str(file))
    if content["format"] != SERVING_FORMAT:
        content = with_current_names(content)
    fields = {**content, "run": run}
    return records.checked(Serving, fields, where=str(file), fix=_SERVING_FIX, rule=records.AS_WRITTEN)


def served_folder(run: Path, series: str) -> Path:
    """Return the folder of the model that serves a series of a run, see `read_serving`, `Serving.folder`."""
    return read_serving(run).folder(series)


def stop_serving(run: Path, series: Series) -> None:
    """Remove a series from `serving.json`, because it is removed from the run.

    The generations and decisions stay.

    Raises:
        ArtifactError: If `serving.json` is damaged.
    """
    serving = read_serving(run)
    if str(series) in serving.generations:
        generations = dict(serving.generations)
        del generations[str(series)]
        replace(serving, generations=generations).save()


def artifact_folder(run: Path, generation: str, series: str) -> Path:
    """Return the folder of a series in a generation; it need not exist, but must not be reached by links."""
    folder = generation_folder(run, generation)
    if generation != FIRST:
        for parent in (folder.parent, folder, folder / series):
            run_folder.require_own_files(parent)
    return folder / series


def generation_folder(run: Path, generation: str) -> Path:
    """Return the run folder of a generation; it need not exist."""
    return run if generation == FIRST else run / GENERATIONS_FOLDER / generation


def list_generations(run: Path) -> list[str]:
    """List the later generations of a run that were started, oldest first; links are refused."""
    run_folder.require_own_files(run)
    run_folder.require_own_files(run / GENERATIONS_FOLDER)
    generations = []
    for path in (run / GENERATIONS_FOLDER).glob(f"*/{RUN_FILE}"):
        match = _NAME.fullmatch(path.parent.name)
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


BACKTEST_FORMAT: Final = 1  # version of the keys of `plan.json`
PLAN_FILE: Final = "plan.json"
_PLAN_FIX: Final = "Restore the file, or start another back-test with param:out"


@dataclass(frozen=True)
class Fold:
    """One fold of a back-test."""

    number: Positive  # from 1, in the order of time
    newest_s: Mapping[SeriesName, OpenTime]  # latest open time of the candles, per series that takes part

    @property
    def folder(self) -> str:
        """Name of its run folder."""
        return f"fold-{self.number}"

    @property
    def ends(self) -> list[tuple[str, int]]:
        """Timeframe and latest open time of each series that takes part."""
        return [(Series.parse(name).timeframe, end_s) for name, end_s in self.newest_s.items()]


@dataclass(frozen=True)
class BacktestPlan(run_folder.RunStart):
    """The content of `plan.json`."""

    series: tuple[SeriesName, ...]  # the requested series
    num_folds: Positive  # the requested number of folds
    history_bars: Positive | None
    """Newest candles of each series that the folds are cut from; None for all candles."""
    folds: tuple[Fold, ...] = ()  # in the order of time
    missing: Mapping[SeriesName, str] | None = None  # per series without candles: the reason

    def contradiction(self) -> tuple[str, str] | None:
        """Return a key whose value contradicts the others, and a description of it; None if there is none."""
        if len(set(self.series)) < len(self.series):
            return "series", "a series listed twice"
        numbers = [fold.number for fold in self.folds]
        if numbers != [*range(1, self.num_folds + 1)]:
            planned = listed(numbers) or "none"
            return "folds", f"{plural(self.num_folds, 'fold')} asked for, and in the plan {planned}"
        ends_s: dict[str, int] = {}
        for fold in self.folds:
            unknown = [name for name in fold.newest_s if name not in self.series]
            if unknown:
                return "folds", f"{listed(unknown)} in {fold.folder}, which the back-test was not asked for"
            if len(set(fold.ends)) > len(dict(fold.ends)):
                return "folds", f"series of one timeframe that end {fold.folder} at different times"
            late = [name for name, end_s in fold.ends if end_s <= ends_s.get(name, -1)]
            if late:
                return "folds", f"{fold.folder} of {late[0]}, which does not end after the one before"
            ends_s |= dict(fold.ends)
        return None


def hold_backtest(path: Path) -> WriterLock:
    """Lock the folder of a back-test for this process; it is created if it does not exist."""
    rule = "one back-test at a time writes its folder"
    fix = "Wait until it ends, or choose another param:out"
    return WriterLock(path / PLAN_FILE, rule=rule, fix=fix)


def read_plan(path: Path) -> BacktestPlan:
    """Read and check the plan of a back-test.

    Raises:
        ArtifactError: If there is none, it is damaged or has an unknown format, its profile does not match
            its digest, or its folds are not in the order of time, each once.
    """
    run_folder.require_own_files(path)
    file = path / PLAN_FILE
    content = records.read_json_object(file, fix=_PLAN_FIX)
    records.check_format(content, (BACKTEST_FORMAT,), kind="back-test", where=str(file), fix=_PLAN_FIX)
    plan = records.checked(BacktestPlan, content, where=str(file), fix=_PLAN_FIX, rule=records.AS_WRITTEN)
    run_folder.require_own_profile(file, fix=_PLAN_FIX)
    contradiction = plan.contradiction()
    if contradiction:
        key, got = contradiction
        location = records.under_key(str(file), key)
        raise ArtifactError(where=location, rule=records.AS_WRITTEN, got=got, fix=_PLAN_FIX)
    return plan


def begin_plan(path: Path, plan: BacktestPlan) -> None:
    """Write the plan of a new back-test.

    Raises:
        ArtifactError: If its folder is not empty.
    """
    run_folder.require_empty(
        path,
        rule=f"a back-test starts in an empty folder; without {PLAN_FILE} these files belong to none",
        fix=f"Restore {PLAN_FILE} to continue, or choose another param:out",
    )
    write_json(path / PLAN_FILE, asdict(plan))


@dataclass(frozen=True)
class RecordedFolders:
    """Folders that a run read; None if it read none, or its record does not name them."""

    data_dir: Path | None = None
    tables: Path | None = None


def recorded_folders(place: Path) -> RecordedFolders:
    """Return the folders that a run read, or the first started fold of a back-test.

    For any other place both are None.

    Raises:
        ArtifactError: If the record of the run is damaged.
    """
    folders = [place]
    if (place / PLAN_FILE).exists():
        folders = [place / fold.folder for fold in read_plan(place).folds]
    for folder in folders:
        if (folder / RUN_FILE).exists():
            record = run_folder.read_run(folder)
            return RecordedFolders(
                data_dir=Path(record.data_dir) if record.data_dir else None,
                tables=Path(record.tables) if record.tables else None,
            )
    return RecordedFolders()


def require_same(path: Path, recorded: BacktestPlan, requested: BacktestPlan) -> None:
    """Check that a back-test is continued with what it was started with.

    Raises:
        ArtifactError: If profile, source, series, or the number or length of the folds differ.
    """
    changes = []
    for name in ("profile_digest", "source", "series", "num_folds", "history_bars"):
        old = getattr(recorded, name)
        new = getattr(requested, name)
        if old != new:
            changes.append(f"{name.removesuffix('_digest')} {_brief(old)} -> {_brief(new)}")
    if changes:
        rule = "a back-test is continued with what it was started with"
        fix = "Undo the change, or start another with param:out"
        raise ArtifactError(where=str(path), rule=rule, got=f"other values: {listed(changes)}", fix=fix)


def _brief(value: Any) -> str:
    """Write a value of a plan in at most a few characters."""
    return f"{len(value)} series" if isinstance(value, tuple) else str(value)[:12]
