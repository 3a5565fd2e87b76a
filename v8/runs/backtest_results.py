"""The folder of a back-test: its plan, the folders of its folds, and the results that are read from them.

    backtests/frontier/      plan.json, backtest.json, backtest.html
      fold-1/                a run folder like any other, see `v8.runs.run_folder`
        BTCUSDT-15m/         model.keras ...

The plan is written before anything is trained and never changes: when a back-test is continued, the ends of
its folds must not move with the newest candle. One process at a time writes the folder.

`v8.model.evaluation.fold_losses` computes the figures; `v8.publish.report.backtest` shows them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_jsonable_python

from v8.base import records
from v8.base.errors import ArtifactError, listed
from v8.base.reading import read_json_object
from v8.base.records import OpenTime, Positive
from v8.base.storage import WriterLock, write_json
from v8.base.wording import plural
from v8.data.market.series import Series, SeriesName
from v8.forecaster.metadata import read_metadata
from v8.model.evaluation.fold_losses import (
    BREAK_FACTOR,
    TEST_LOSSES_FILE,
    Cell,
    FoldLosses,
    FoldSummary,
    summarize_cells,
)
from v8.profile.tasks import TASKS
from v8.runs import run_folder
from v8.runs.run_folder import RUN_FILE, read_run

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
    content = read_json_object(file, fix=_PLAN_FIX)
    records.check_format(content, BACKTEST_FORMAT, kind="back-test", where=str(file), fix=_PLAN_FIX)
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


RESULTS_FORMAT: Final = 3
"""Version of the keys of `backtest.json`."""

RESULTS_FILE: Final = "backtest.json"


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
        states = read_run(run).series if (run / RUN_FILE).exists() else {}
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
    losses = FoldLosses.load(folder / TEST_LOSSES_FILE)
    return Cell(fold, Series.parse(name), metadata.evaluation, losses, metadata.quantiles)


def results_of(
    plan: BacktestPlan, cells: Sequence[Cell], failures: Mapping[str, Mapping[str, str]]
) -> BacktestResults:
    """Compute the figures of cells, and keep the plan and the folds with failures with them."""
    failed_folds = {fold: reasons for fold, reasons in failures.items() if reasons}
    return BacktestResults(**vars(summarize_cells(cells)), plan=plan, failures=failed_folds)
