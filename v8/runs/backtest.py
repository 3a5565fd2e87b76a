"""Back-tests: a profile is fitted again for each fold, and evaluated on what came after.

    backtests/frontier/      plan.json, backtest.json, backtest.html
      fold-1/                a run folder like any other, see `v8.runs.run_folder`
        BTCUSDT-15m/         model.keras ...

The folds are laid once, over the candles that there are. The plan is written before anything is trained and
never changes: when a back-test is continued, the ends of its folds must not move with the newest candle. Then
each fold is a run like every other (`v8.runs.execution`), on a source that shows nothing later than its end.
So a back-test resumes, isolates failures and locks as a run does, and its folder is read by whatever reads
runs.

`v8.model.evaluation.fold_losses` computes the figures; `v8.publish.report.backtest` shows them. With
`--seeds` a back-test is repeated with other seeds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median_high, median_low
from typing import Any, Final

from pydantic_core import to_jsonable_python

from v8.base import records
from v8.base.child import resource_scope
from v8.base.errors import ArtifactError, DataError, listed
from v8.base.records import OpenTime, Positive, read_json_object
from v8.base.storage import WriterLock, write_json
from v8.base.wording import plural
from v8.data.market.companions import Companions
from v8.data.market.series import Series, SeriesName, iso
from v8.data.market.sources import CandleSource, CutOffSource, dataset_of
from v8.data.windows import fewest_bars, split_rows, table_columns
from v8.forecaster.metadata import PLAN_FILE, read_metadata
from v8.model.evaluation.fold_losses import (
    BREAK_FACTOR,
    TEST_LOSSES_FILE,
    Cell,
    FoldSummary,
    SeedSpread,
    WindowLosses,
    summarize_cells,
)
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile
from v8.profile.tasks import TASKS
from v8.runs import run_folder
from v8.runs.events import Note, RunObserver, RunSummary, observed
from v8.runs.execution import run_plan
from v8.runs.options import MAX_BARS
from v8.runs.plan import Engine, Plan, Recipe
from v8.runs.reading import read_candles
from v8.runs.run_folder import RUN_FILE, read_run, start_fields

BACKTEST_FORMAT: Final = 1  # version of the keys of `plan.json`
RESULTS_FORMAT: Final = 3  # version of the keys of `backtest.json`
RESULTS_FILE: Final = "backtest.json"
SEEDS_FILE: Final = "seeds.json"
SEEDS_FORMAT: Final = 1  # version of the keys of `seeds.json`
SEED_STEP: Final = 1_000
"""Distance of two seeds: the series of a run are seeded one after another, and none is to be seeded twice."""
_STARTS_ANOTHER: Final = "param:out"
_PLAN_FIX: Final = f"Restore the file, or start another back-test with {_STARTS_ANOTHER}"


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

    @property
    def left_out(self) -> dict[str, str]:
        """Series that take part in no fold, and why: they have no candles, or too few."""
        included = {name for fold in self.folds for name in fold.newest_s}
        reasons = self.missing or {}
        return {
            name: reasons.get(name, "too few candles for a fold")
            for name in self.series
            if name not in included
        }

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


@dataclass(frozen=True)
class Backtest:
    """What a back-test is to do."""

    profile: Profile  # what is trained in each fold
    series: Sequence[Series]  # which, without repetition
    num_folds: int  # at least 1
    history_bars: int | None  # newest candles of each series that the folds lie in; None for all there are
    command: str  # the command line
    like: BacktestPlan | None = None  # whose folds are used; None lays new ones
    tables: Path | None = None  # folder of the user's tables; that of `V8_TABLES` when None

    def plan(self, source: CandleSource) -> BacktestPlan:
        """Return the plan as far as it is known before candles are read."""
        start = start_fields(self.profile, source.name, source.is_publishable, self.command, BACKTEST_FORMAT)
        return BacktestPlan(
            **start,
            series=tuple(str(series) for series in self.series),
            num_folds=self.num_folds,
            history_bars=self.history_bars,
        )

    def plan_run(self, path: Path, series: Sequence[Series], source: CandleSource) -> Plan:
        """Return the plan of a run in a folder: of one fold, or of all series."""
        recipe = Recipe(self.profile, is_publishable=source.is_publishable, dataset=dataset_of(source))
        return Plan(
            recipe=recipe,
            path=path,
            series=dict.fromkeys(series, "pending"),
            command=self.command,
            tables=self.tables,
            starts_another=_STARTS_ANOTHER,
        )


@dataclass(frozen=True)
class FinishedFolds:
    """What came of carrying out a back-test, as far as this call could."""

    plan: BacktestPlan
    failures: Mapping[str, Mapping[str, str]]  # by folder of a fold: why series failed in this call, by name


def run_folds(
    path: Path, options: Backtest, source: CandleSource, engine: Engine, observer: RunObserver
) -> FinishedFolds:
    """Finish what can be finished of a back-test whose folder this process holds.

    Nothing later than a fold's end is read for it. The observer follows the reading of all candles, and then
    each fold as a run of its own.
    """
    whole_plan = options.plan_run(path, options.series, source)
    with observed(observer, whole_plan, source.name) as follower:
        plan = begin_or_continue(path, options, source, follower)
    failures = {}
    with resource_scope():  # all folds use the same processes and programs
        for fold in plan.folds:
            text = f"Fold {fold.number} of {len(plan.folds)}: {len(fold.newest_s)} series."
            observer.on_event(Note(text))
            summary = run_fold(path, options, fold, source, engine, observer=observer)
            failures[fold.folder] = {str(failure.series): str(failure.reason) for failure in summary.failures}
    return FinishedFolds(plan, failures)


def run_fold(
    path: Path,
    options: Backtest,
    fold: Fold,
    source: CandleSource,
    engine: Engine,
    *,
    observer: RunObserver,
) -> RunSummary:
    """Finish every series of a fold that can be finished; arguments as for `run_folds`."""
    series = [Series.parse(name) for name in fold.newest_s]
    plan = options.plan_run(path / fold.folder, series, source)
    return run_plan(plan, CutOffSource(source, fold.newest_s), engine, observer)


def begin_or_continue(
    path: Path, options: Backtest, source: CandleSource, observer: RunObserver
) -> BacktestPlan:
    """Return the plan that a back-test, whose folder this process holds, was started with, or start it.

    To lay folds the whole history is read, once; the observer learns which series is. Folds of another plan
    need none of it.

    Raises:
        ArtifactError: If it was started with other options, or other files lie in the folder.
        DataError: If no series has candles, or a history is too short.
    """
    plan = options.plan(source)
    if (path / PLAN_FILE).exists():
        first_plan = read_plan(path)
        require_same(path, first_plan, plan)
        return first_plan
    if options.like:
        plan = replace(plan, folds=options.like.folds, missing=options.like.missing)
    else:
        histories = _read_histories(options, source, observer)
        reasons = list(histories.missing.values())
        if not histories.spans:
            raise DataError(
                where=str(path),
                rule="a back-test needs the candles of one series at least",
                got=f"none of {len(reasons)}; {reasons[0]}",
                fix="Mend that first",
            )
        for reason in reasons:
            observer.on_event(Note(f"left out: {reason}"))
        folds = lay_folds(histories.spans, options.profile, options.num_folds)
        plan = replace(plan, folds=folds, missing=histories.missing)
    begin_plan(path, plan)
    return plan


@dataclass(frozen=True)
class CandleSpan:
    """The candles that a source has of a series: open times of the first and the newest, seconds, UTC."""

    first_s: int
    newest_s: int


@dataclass
class _Histories:
    spans: dict[Series, CandleSpan] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # by name: why a series has no candles


def _read_histories(options: Backtest, source: CandleSource, observer: RunObserver) -> _Histories:
    """Read which candles there are of each series."""
    histories = _Histories()
    num_bars = options.history_bars or MAX_BARS
    companions = Companions.of(options.profile, folder=options.tables)
    for series in options.series:
        candles, outcome = read_candles(
            series,
            observer,
            lambda series=series: companions.candles(source, series, num_bars),  # type: ignore[misc]
        )
        if candles is None:
            histories.missing[str(series)] = str(outcome.reason)
        else:
            first_s, newest_s = (int(open_s) for open_s in candles.open_time_s[[0, -1]])
            histories.spans[series] = CandleSpan(first_s, newest_s)
    return histories


def lay_folds(spans: Mapping[Series, CandleSpan], profile: Profile, num_folds: int) -> tuple[Fold, ...]:
    """Choose where the folds, at least one, end and which series take part in each.

    A series takes part in a fold when it has candles enough for a window in every span, and still trades.

    Raises:
        DataError: If a timeframe's history is too short for folds of which each evaluates mostly new candles.
    """
    timeframes = dict.fromkeys(series.timeframe for series in spans)
    ends_s = {timeframe: _fold_ends(timeframe, spans, profile, num_folds) for timeframe in timeframes}
    folds = []
    for index in range(num_folds):
        newest_s = {}
        for series, span in spans.items():
            end_s = ends_s[series.timeframe][index]
            if _takes_part(series, span, end_s, profile):
                newest_s[str(series)] = end_s
        folds.append(Fold(index + 1, newest_s))
    return tuple(folds)


def fewest_step_bars(profile: Profile) -> int:
    """Return the bars between two folds at least: half a test span, so that most of it is new."""
    num_rows = profile.newest_bars - warmup_bars(table_columns(profile))
    first, end = split_rows(num_rows, profile, location=f"folds of {profile.newest_bars:,} candles")["test"]
    return -(-(end - first) // 2)  # rounded up


def _fold_ends(
    timeframe: str, spans: Mapping[Series, CandleSpan], profile: Profile, num_folds: int
) -> list[int]:
    """Return the open time of the newest candle of each fold of one timeframe, seconds, UTC."""
    series = [name for name in spans if name.timeframe == timeframe]
    bar_s = series[0].bar_s
    fold_bars = profile.newest_bars
    # Half of the series have candles from here on, and half of them up to there.
    start_s = median_low(spans[name].first_s for name in series)
    newest_s = median_high(spans[name].newest_s for name in series)
    num_bars = (newest_s - start_s) // bar_s + 1
    needed = fold_bars + (num_folds - 1) * fewest_step_bars(profile)
    if num_bars < needed and num_folds > 1:
        raise DataError(
            where=f"{num_folds} folds of {timeframe}",
            rule=f"need {needed:,} bars, holes included, of half of the series: {fold_bars:,} of the first "
            f"fold, and {fewest_step_bars(profile):,} more for each other one",
            got=f"{num_bars:,}, {iso(start_s)} to {iso(newest_s)}",
            fix="Lower param:folds or param:bars, raise param:history if it is given, or take a source with "
            "a longer history",
        )
    step_bars = (num_bars - fold_bars) // max(1, num_folds - 1)
    return [newest_s - steps * step_bars * bar_s for steps in reversed(range(num_folds))]


def _takes_part(series: Series, span: CandleSpan, end_s: int, profile: Profile) -> bool:
    """Say whether a series has candles enough up to the end of a fold, and still trades then."""
    has_enough = end_s - span.first_s >= (fewest_bars(profile) - 1) * series.bar_s
    still_trades = span.newest_s >= end_s - profile.horizon_bars * series.bar_s
    return has_enough and still_trades


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
    content = read_json_object(file, fix=_PLAN_FIX)
    records.check_format(content, BACKTEST_FORMAT, kind="back-test", where=str(file), fix=_PLAN_FIX)
    plan = records.checked(BacktestPlan, content, where=str(file), fix=_PLAN_FIX, rule=records.AS_WRITTEN)
    run_folder.require_own_profile(file, fix=_PLAN_FIX)
    contradiction = plan.contradiction()
    if contradiction:
        key, got = contradiction
        raise ArtifactError(
            where=records.under_key(str(file), key), rule=records.AS_WRITTEN, got=got, fix=_PLAN_FIX
        )
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
            record = read_run(folder)
            return RecordedFolders(
                data_dir=Path(record.data_dir) if record.data_dir else None,
                tables=Path(record.tables) if record.tables else None,
            )
    return RecordedFolders()


_SAME: Final = {
    "source": "param:source",
    "num_folds": "param:folds",
    "history_bars": "param:history",
}
"""Keys of a plan that stay the same when it is continued, beside profile and series, and what messages call
them."""


def require_same(path: Path, recorded: BacktestPlan, requested: BacktestPlan) -> None:
    """Check that a back-test is continued with what it was started with.

    Raises:
        ArtifactError: If profile, source, series, or the number or length of the folds differ.
    """
    changes: list[str] = []
    if recorded.profile_digest != requested.profile_digest:
        changes = run_folder.changed_keys(recorded.profile, requested.profile) or [
            "a profile of another format"
        ]
    for key, name in _SAME.items():
        old = getattr(recorded, key)
        new = getattr(requested, key)
        if old != new:
            changes.append(f"{name} {old or 'none'} -> {new or 'none'}")
    changes += [f"without {name}" for name in recorded.series if name not in requested.series]
    changes += [f"with {name}" for name in requested.series if name not in recorded.series]
    if not changes and recorded.series != requested.series:
        changes.append("the series in another order")
    if changes:
        raise ArtifactError(
            where=str(path),
            rule="a back-test is continued with what it was started with",
            got=f"other values: {listed(changes)}",
            fix="Undo the change, or start another with param:out",
        )


@dataclass(frozen=True, kw_only=True)
class BacktestResults(FoldSummary):
    """The results of a back-test so far."""

    plan: BacktestPlan  # what was to be trained and evaluated
    failures: Mapping[str, Mapping[str, str]]  # by a fold's folder and by series: why it is not finished

    @property
    def evaluated(self) -> dict[int, tuple[int, int]]:
        """By the number of a fold: how many models are evaluated, and how many take part."""
        num_evaluated = Counter(fold for fold, _ in self.cells)
        return {fold.number: (num_evaluated[fold.number], len(fold.newest_s)) for fold in self.plan.folds}

    def is_complete(self, named: Sequence[str]) -> bool:
        """Whether every series of every fold is finished, and all of some named ones are in a fold.

        Where none is named, all of a source take part, of which some may have no candles yet.
        """
        return not self.failures and not (named and self.plan.left_out)

    @property
    def tasks(self) -> list[str]:
        """Tasks of the profile, in their usual order."""
        return [task for task in TASKS if task in self.plan.profile["tasks"]]

    def to_json(self) -> Any:
        """Return everything as plain JSON values, the content of `backtest.json`."""
        plan = {name: value for name, value in vars(self.plan).items() if name != "format"}
        results = {name: value for name, value in vars(self).items() if name != "plan"}
        content = {"format": RESULTS_FORMAT, **plan, "break_factor": BREAK_FACTOR, "results": results}
        return to_jsonable_python(content)


def read_results(
    path: Path, plan: BacktestPlan, refused: Mapping[str, Mapping[str, str]] | None = None
) -> BacktestResults:
    """Read the finished cells of a back-test and compute its figures; arguments as for `read_cells`."""
    cells, failures = read_cells(path, plan, refused)
    return results_of(plan, cells, failures)


def read_cells(
    path: Path, plan: BacktestPlan, refused: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[list[Cell], dict[str, dict[str, str]]]:
    """Read the finished cells of the folds of a plan, and per fold why others are not finished.

    Args:
        path: Folder of the back-test.
        plan: Its folds and their series.
        refused: By the folder of a fold and the name of a series: why it failed in this call. The cell that
            an earlier call evaluated is left out: it used other candles, or its files were changed since.

    Returns:
        The cells in the order of folds; by the folder of every fold, the reasons by series.

    Raises:
        ArtifactError: If a file of a finished series is missing or damaged.
    """
    cells = []
    failures = {}
    for fold in plan.folds:
        run = path / fold.folder
        states = read_run(run, _STARTS_ANOTHER).series if (run / RUN_FILE).exists() else {}
        reasons = {
            name: state.reason or "not finished"
            for name, state in states.items()
            if state.status != "done" and name in fold.newest_s
        }
        reasons |= {name: "not finished" for name in fold.newest_s if name not in states}
        reasons |= (refused or {}).get(fold.folder, {})
        failures[fold.folder] = reasons
        for name in states:
            if name in fold.newest_s and name not in reasons:
                cells.append(read_cell(run / name, fold.number))
    return cells, failures


def read_cell(folder: Path, fold: int = 0) -> Cell:
    """Read what is known of the test span of a finished series.

    Args:
        folder: The folder of the series, named after it.
        fold: The number of its fold; 0 for a run that is none.

    Raises:
        ArtifactError: If one of its files is missing or damaged, or it was not evaluated.
    """
    name = folder.name
    metadata = read_metadata(folder, series=name)
    losses = WindowLosses.load(folder / TEST_LOSSES_FILE)
    return Cell(fold, Series.parse(name), metadata.evaluation, losses, metadata.quantiles)


def results_of(
    plan: BacktestPlan, cells: Sequence[Cell], failures: Mapping[str, Mapping[str, str]]
) -> BacktestResults:
    """Compute the figures of cells, and keep the plan and the folds with failures with them."""
    failed_folds = {fold: reasons for fold, reasons in failures.items() if reasons}
    return BacktestResults(**vars(summarize_cells(cells)), plan=plan, failures=failed_folds)


def other_seeds(backtest: Backtest, path: Path, num_seeds: int, plan: BacktestPlan) -> dict[Path, Backtest]:
    """Return the back-tests with other seeds, by their folders.

    Args:
        backtest: The one with the profile's own seed.
        path: Its folder.
        num_seeds: Number of seeds, the profile's own included.
        plan: Its plan, whose folds the others use.
    """
    profile = backtest.profile
    others = {}
    for number in range(1, num_seeds):
        seed = profile.seed + SEED_STEP * number
        seeded = profile.but(seed=seed, name=profile.name)
        others[path / f"seed-{seed}"] = replace(backtest, profile=seeded, like=plan)
    return others


def read_seeds(path: Path) -> list[dict[str, Any]]:
    """Read the figures of `seeds.json` in the folder of a back-test.

    Raises:
        ArtifactError: If there is none, or it is damaged.
    """
    content = read_json_object(path / SEEDS_FILE, fix="Call the back-test again, with its seeds")
    return list(content["figures"])


def write_seeds(path: Path, spreads: list[SeedSpread]) -> Path:
    """Write `seeds.json` into the folder of a back-test, atomically; return the file."""
    rows = [
        {**asdict(spread), "low": spread.low, "median": spread.middle, "high": spread.high}
        for spread in spreads
    ]
    file = path / SEEDS_FILE
    write_json(file, {"format": SEEDS_FORMAT, "figures": rows})
    return file
