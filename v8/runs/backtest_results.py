"""The results of a back-test: what is read from its folders, and the figures that follow.

`v8.model.evaluation.fold_losses` computes the figures; `v8.publish.report.backtest` shows them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_jsonable_python

from v8.data.market.series import Series
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
from v8.runs.nested_runs import BacktestPlan
from v8.runs.run_folder import RUN_FILE, read_run

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
