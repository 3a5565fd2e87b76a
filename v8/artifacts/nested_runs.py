"""Runs within a folder: the later generations of a run, and the folds of a back-test.

    runs/aligned/            what was trained first serves until something better does
      serving.json           per series the generation that serves, and every decision that was made about it
      generations/
        2026-11-21/          a run folder like any other, named by its newest candle; next 2026-11-21-2
    backtests/frontier/      plan.json, backtest.json, backtest.html
      fold-1/                a run folder like any other, see `v8.artifacts.run_folder`
        BTCUSDT-15m/         model.keras ... and fold_losses.npz

Whoever looks for the model of a series in a run asks `served_folder`. A generation serves only what a
decision says, so one that is half finished never serves. The pointer is written aside and renamed, once a
decision: whoever is killed leaves the old one or the new one. No generation is ever deleted here.

The plan of a back-test is written before anything is trained and never changes: where the folds end must not
move with the newest candle when it is continued. One process at a time writes the folder.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from v8 import records
from v8.artifacts import run_folder
from v8.artifacts.metadata import METADATA_FILE
from v8.artifacts.run_folder import GENERATIONS_FOLDER, RUN_FILE, SeriesName
from v8.errors import ArtifactError, listed
from v8.market.series import Series, by_series
from v8.records import Count, Moment, Number, OpenTime, Plain, Positive, Word
from v8.storage import WriterLock, write_json
from v8.wording import plural

SERVING_FORMAT: Final = 1  # version of the keys of `serving.json`
SERVING_FILE: Final = "serving.json"
FIRST: Final = "0"  # the generation that lies in the run folder itself
MOST_DECISIONS: Final = 100
"""Decisions that are kept of a series: weekly ones of two years; older ones go, to keep the file small."""

_NAME: Final = re.compile(r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})(-(?P<number>[1-9][0-9]{0,3}))?")
_SERVING_FIX: Final = "Restore the file, or remove it: then the models of the run's own folder serve"


def _no_generation(name: str) -> str | None:
    return None if name == FIRST or _NAME.fullmatch(name) else "names a generation such as 2026-11-21"


GenerationName = Annotated[str, Field(strict=True, max_length=20), records.refusing(_no_generation)]
"""`0`, or a day and a number; safe as the name of a folder."""

Share = Annotated[float, Field(strict=True, ge=0, le=1)]  # a chance, from 0 to 1


@dataclass(frozen=True)
class Sureness:
    """How good the quantiles of a model were on the evaluated candles."""

    crps: Number  # twice the mean pinball loss, as a multiple of the naive forecast's mean absolute error
    coverage: Mapping[Plain, Share]
    """Shares of the actual values that lay in its central intervals, by name, such as "90 %"."""


@dataclass(frozen=True)
class Contender:
    """A model that stood for service."""

    generation: GenerationName  # where it lies
    trained_until: Moment | None
    """Open time of the newest candle it was made from, ISO 8601; None where that is unknown."""
    multiples: Mapping[Word, Number] = field(default_factory=dict)
    """Per task its mean absolute error there as a multiple of naive's; empty where it was not evaluated."""
    quantiles: Mapping[Word, Sureness] = field(default_factory=dict)
    """Per task how good its quantiles were; empty where it has none. They decide nothing."""


@dataclass(frozen=True)
class Opponent:
    """The best baseline of a task on the evaluated candles, and its error as a multiple of naive's."""

    name: Plain
    multiple: Number


@dataclass(frozen=True)
class Decision:
    """Which of two models serves a series from now on, and why."""

    series: SeriesName  # which one
    decided_at: Moment  # when, ISO 8601
    stale: Plain  # why the champion was challenged
    champion: Contender  # the model that served until then
    challenger: Contender  # the newer one
    num_windows: Count  # windows that both were evaluated on, and neither was made from
    evaluated_from: Moment | None  # when the first forecast of them was issued, ISO 8601; None without any
    evaluated_until: Moment | None  # when the last forecast bar of them closed, ISO 8601; None without any
    baselines: Mapping[Word, Opponent]  # per task the best baseline of the same windows
    p_values: Mapping[Word, Share | None]
    """Per task the chance of so large a difference between the two if both were as good."""
    verdict: Literal["replaced", "kept"]  # `replaced`: the challenger serves. `kept`: the champion does
    why: Plain  # the reason, a clause

    @property
    def is_replaced(self) -> bool:
        """Whether the challenger serves."""
        return self.verdict == "replaced"


@dataclass(frozen=True)
class Serving:
    """Which generation serves each series of a run; all but the run is the content of `serving.json`."""

    run: Path  # the run folder
    generations: Annotated[
        Mapping[str, GenerationName], BeforeValidator(by_series), Field(alias="serving")
    ]  # per series that a later generation serves: which
    decisions: tuple[Decision, ...]
    """What was decided, oldest first; the newest `MOST_DECISIONS` of each series."""

    def generation_of(self, series: str) -> str:
        """Return the generation that serves a series."""
        return self.generations.get(series, FIRST)

    def place(self, series: str) -> Path:
        """Return where the model that serves a series lies, behind no links; it need not exist."""
        return artifact_folder(self.run, self.generation_of(series), series)

    def folder(self, series: str) -> Path:
        """Return the folder of the model that serves a series; that of the run itself need not exist.

        Raises `ArtifactError` if the generation that serves is not there, or holds links.
        """
        folder = self.place(series)
        if self.generation_of(series) != FIRST and not (folder / METADATA_FILE).is_file():
            rule = f"{self.run / SERVING_FILE} says that this generation serves {series}"
            fix = _SERVING_FIX.replace("the file", "the folder").replace("it:", f"{SERVING_FILE}:")
            raise ArtifactError(where=str(folder), rule=rule, got="no finished model there", fix=fix)
        return folder

    def decisions_about(self, series: str) -> tuple[Decision, ...]:
        """Return the decisions about a series, oldest first."""
        return tuple(one for one in self.decisions if one.series == series)

    def renewal_of(self, series: str) -> Decision | None:
        """Return the decision that made a later generation serve a series; None where the first does."""
        name = self.generations.get(series)
        made = (one for one in reversed(self.decisions_about(series)) if one.is_replaced)
        return next((one for one in made if one.challenger.generation == name), None)

    def with_decision(self, decision: Decision) -> "Serving":
        """Return what serves after a decision."""
        series = decision.series
        generations = dict(self.generations)
        if decision.is_replaced:
            generations[series] = decision.challenger.generation
        gone = self.decisions_about(series)[: 1 - MOST_DECISIONS]
        kept = (one for one in self.decisions if one not in gone)
        return replace(self, generations=generations, decisions=(*kept, decision))

    def save(self) -> None:
        """Write `serving.json`, whole or not at all."""
        content = {"serving": self.generations, "decisions": [asdict(one) for one in self.decisions]}
        # What is written must be what reading accepts.
        records.adapter(Serving).validate_python({"run": self.run, **content})
        write_json(self.run / SERVING_FILE, {"format": SERVING_FORMAT, **content})


def read_serving(run: Path) -> Serving:
    """Read and check which generations serve the series of a run; without a file its own models do.

    Raises `ArtifactError` if the file is damaged, of an unknown format, or names what no run holds.
    """
    file = run / SERVING_FILE
    if not file.exists() and not file.is_symlink():
        return Serving(run, {}, ())
    run_folder.require_own_files(run)
    content = {**records.read_json_object(file, fix=_SERVING_FIX), "run": run}
    records.check_format(content, (SERVING_FORMAT,), what="serving", where=str(file))
    return records.checked(Serving, content, where=str(file), fix=_SERVING_FIX, rule=records.AS_WRITTEN)


def served_folder(run: Path, series: str) -> Path:
    """Return the folder of the model that serves a series of a run, see `read_serving`, `Serving.folder`."""
    return read_serving(run).folder(series)


def stop_serving(run: Path, series: Series) -> None:
    """Let no later generation serve a series that leaves a run; the generations and decisions stay.

    Raises `ArtifactError` if `serving.json` is damaged.
    """
    serving = read_serving(run)
    if str(series) in serving.generations:
        others = {name: one for name, one in serving.generations.items() if name != str(series)}
        replace(serving, generations=others).save()


def artifact_folder(run: Path, generation: str, series: str) -> Path:
    """Return where the model of a series lies in a generation, behind no links; it need not exist."""
    folder = generation_folder(run, generation)
    for place in (folder.parent, folder, folder / series) if generation != FIRST else ():
        run_folder.require_own_files(place)
    return folder / series


def generation_folder(run: Path, generation: str) -> Path:
    """Return the run folder of a generation; it need not exist."""
    return run if generation == FIRST else run / GENERATIONS_FOLDER / generation


def list_generations(run: Path) -> list[str]:
    """List the generations that are begun beside a run's own, oldest first; links are refused."""
    run_folder.require_own_files(run)
    run_folder.require_own_files(run / GENERATIONS_FOLDER)
    found = (_NAME.fullmatch(path.parent.name) for path in (run / GENERATIONS_FOLDER).glob(f"*/{RUN_FILE}"))
    aged = sorted((name["day"], int(name["number"] or 1), name[0]) for name in found if name)
    return [name for _, _, name in aged]


def free_generation(run: Path, day: str) -> str:
    """Name a generation that has yet to begin, by the day of its newest candle, such as "2026-11-21".

    One that was killed before it knew its series has yet to begin.
    """
    for number in count(1):
        name = day if number == 1 else f"{day}-{number}"
        folder = generation_folder(run, name)
        if not (folder / RUN_FILE).exists() or not run_folder.read_run(folder).series:
            break
    return name


BACKTEST_FORMAT: Final = 1  # version of the keys of `plan.json`
PLAN_FILE: Final = "plan.json"
_PLAN_FIX: Final = "Restore the file, or start another back-test with param:out"


@dataclass(frozen=True)
class Fold:
    """One fold."""

    number: Positive  # from 1, in the order of time
    newest_s: Mapping[SeriesName, OpenTime]  # latest open time of the candles of each that takes part

    @property
    def folder(self) -> str:
        """Name of its run folder."""
        return f"fold-{self.number}"

    @property
    def ends(self) -> list[tuple[str, int]]:
        """Timeframe and latest open time of each series that takes part."""
        return [(Series.parse(name).timeframe, end_s) for name, end_s in self.newest_s.items()]


@dataclass(frozen=True)
class BacktestPlan(run_folder.Begun):
    """The content of `plan.json`."""

    series: tuple[SeriesName, ...]  # which were asked for
    num_folds: Positive  # how many were asked for
    history_bars: Positive | None
    """Newest candles of each series that the folds lie in; None for all there are."""
    folds: tuple[Fold, ...] = ()  # in the order of time
    missing: Mapping[SeriesName, str] | None = None  # why series have no candles

    def contradiction(self) -> tuple[str, str] | None:
        """Return a key that no back-test has as it is, and how it is; None if there is none."""
        if len(set(self.series)) < len(self.series):
            return "series", "a series listed twice"
        if [fold.number for fold in self.folds] != [*range(1, self.num_folds + 1)]:
            told = listed([fold.number for fold in self.folds]) or "none"
            return "folds", f"{plural(self.num_folds, 'fold')} asked for, and in the plan {told}"
        ends_s: dict[str, int] = {}
        for fold in self.folds:
            strange = [name for name in fold.newest_s if name not in self.series]
            if strange:
                return "folds", f"{listed(strange)} in {fold.folder}, which the back-test was not asked for"
            if len(set(fold.ends)) > len(dict(fold.ends)):
                return "folds", f"series of one timeframe that end {fold.folder} at different times"
            late = [name for name, end_s in fold.ends if end_s <= ends_s.get(name, -1)]
            if late:
                return "folds", f"{fold.folder} of {late[0]}, which does not end after the one before"
            ends_s |= dict(fold.ends)
        return None


def hold_backtest(path: Path) -> WriterLock:
    """Hold the folder of a back-test for this process; it is made when missing."""
    rule = "one back-test at a time writes its folder"
    fix = "Wait until it ends, or choose another param:out"
    return WriterLock(path / PLAN_FILE, rule=rule, fix=fix)


def read_plan(path: Path) -> BacktestPlan:
    """Read and check the plan of a back-test.

    Raises `ArtifactError` if there is none, it is damaged or of an unknown format, its profile is not
    that of its digest, or its folds are not those of one back-test, each once and in the order of time.
    """
    run_folder.require_own_files(path)
    file = path / PLAN_FILE
    where = str(path / PLAN_FILE)
    content = records.read_json_object(file, fix=_PLAN_FIX)
    records.check_format(content, (BACKTEST_FORMAT,), what="back-test", where=where, fix=_PLAN_FIX)
    plan = records.checked(BacktestPlan, content, where=where, fix=_PLAN_FIX, rule=records.AS_WRITTEN)
    run_folder.require_own_profile(file, fix=_PLAN_FIX)
    found = plan.contradiction()
    if found:
        where = records.under_key(where, found[0])
        raise ArtifactError(where=where, rule=records.AS_WRITTEN, got=found[1], fix=_PLAN_FIX)
    return plan


def begin_plan(path: Path, plan: BacktestPlan) -> None:
    """Write the plan of a back-test that begins; `ArtifactError` if something lies in its folder."""
    run_folder.require_empty(
        path,
        rule=f"a back-test begins in a folder of its own; {PLAN_FILE} would tell whose these are",
        fix=f"Restore {PLAN_FILE} to continue, or choose another param:out",
    )
    write_json(path / PLAN_FILE, asdict(plan))


@dataclass(frozen=True)
class RecordedFolders:
    """Folders that a run read; None where it read none, or its record does not say."""

    data_dir: Path | None = None
    tables: Path | None = None


def recorded_folders(place: Path) -> RecordedFolders:
    """Return the folders that a run, or the first begun fold of a back-test, read.

    None of them for any other place of models. Raises `ArtifactError` if the record of the run is damaged.
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


def require_same(path: Path, begun: BacktestPlan, asked: BacktestPlan) -> None:
    """Refuse to continue a back-test with other wishes than it was begun with, by `ArtifactError`."""
    told = [
        f"{name.removesuffix('_digest')} {_told(getattr(begun, name))} -> {_told(getattr(asked, name))}"
        for name in ("profile_digest", "source", "series", "num_folds", "history_bars")
        if getattr(begun, name) != getattr(asked, name)
    ]
    if told:
        rule = "a back-test is continued with what it was begun with"
        fix = "Undo the change, or start another with param:out"
        raise ArtifactError(where=str(path), rule=rule, got=f"other values: {listed(told)}", fix=fix)


def _told(value: Any) -> str:
    return f"{len(value)} series" if isinstance(value, tuple) else str(value)[:12]
