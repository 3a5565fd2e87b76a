"""What a back-test found, and the figures that follow from it.

A *cell* is one series in one fold. Cells are shown together by fold and timeframe, and pooled: all folds, the
calm ones, those with a break. What is shown of cells together:

* Per forecaster the median over cells of its error as a multiple of naive's.
* The best baseline of a task is the one with the smallest such median, chosen for these cells.
* Whether the model differs from it by more than chance: series share their closes, so the differences of a
  close, each as a share of its series' naive error, are averaged over series first, and the test
  (`v8.losses.significance`) sees one number a close. A window that two folds judge counts for the first.

p-values are corrected together for everything of a kind that stands in one table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python

from v8.artifacts.metadata import read_metadata
from v8.artifacts.nested_runs import BacktestPlan, Fold
from v8.artifacts.run_folder import RUN_FILE, read_run
from v8.formulas.baselines import NAIVE
from v8.losses.judgement import MODEL, Judgement, Outcome, best_baseline, is_equal, outcome_of, verdict_of
from v8.losses.leaderboard import median as median_of
from v8.losses.quantile_judgement import QuantileJudgement
from v8.losses.season import BREAK_FACTOR, SEASON_FILE, Season
from v8.losses.significance import corrected_p_values, diebold_mariano
from v8.market.series import Series, iso
from v8.tasks import TASKS

RESULTS_FORMAT: Final = 1
"""Version of the keys of `backtest.json`."""

NONE_REFUSED: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType({})

POOLS: Final[Mapping[str, Callable[[Stretch], bool]]] = {
    "all folds": lambda stretch: True,
    "calm folds": lambda stretch: not stretch.is_break,
    "break folds": lambda stretch: stretch.is_break,
}
"""What folds are pooled to, for people; by timeframe."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One series in one fold."""

    fold: int
    series: Series
    judgement: Judgement
    season: Season
    quantiles: QuantileJudgement | None = None

    def multiple(self, task: str, forecaster: str) -> float | None:
        """Return an error as a multiple of naive's; None where naive makes none."""
        naive = self.judgement.error(task, NAIVE).overall
        return self.judgement.error(task, forecaster).overall / naive if naive > 0 else None


@dataclass(frozen=True)
class TaskResult:
    """How the model did on a task over some cells; `crps` and `coverage` are empty without quantiles."""

    num_cells: int  # cells that have it
    multiples: Mapping[str, float]  # per forecaster, median error as a multiple of naive's, the model first
    best: str  # the baseline with the smallest median
    against_best: float | None  # median error as a multiple of that baseline's; None where it makes none
    num_better: int  # cells in which the model's error is the smaller one
    p_naive: float | None  # chance of a difference from naive this large if both were as good, corrected
    p_best: float | None  # the same of the best baseline
    difference: float  # mean of what that test compares, as a share of naive's error, below 0 is better
    crps: Mapping[str, float] = field(default_factory=dict)  # over that of each baseline with some, median
    coverage: Mapping[str, float] = field(default_factory=dict)  # per interval, "90 %", median share within

    @property
    def outcome(self) -> Outcome:
        """What the test beside the best baseline comes to."""
        return outcome_of(1.0 + self.difference, 1.0, self.p_best)

    @property
    def verdict(self) -> str:
        """The outcome in words: "beats har"."""
        return verdict_of(self.outcome, self.best)

    @property
    def ours(self) -> float | None:
        """The model's median multiple of naive's error."""
        return self.multiples.get(MODEL)


@dataclass(frozen=True)
class Stretch:
    """Cells of one timeframe that are shown together: those of a fold, or of several."""

    name: str  # "fold 1", or a key of `POOLS`
    timeframe: str  # of its series
    num_series: int  # different series
    first_close: str  # close of the first window judged, ISO 8601
    last_close: str  # close of the last one
    shock: float  # median over cells of `v8.losses.season.shock_of`
    is_break: bool  # whether that is above `BREAK_FACTOR`; of a pool, whether it holds breaks alone
    held: tuple[float, float]  # share of true closes between low and high, one and all steps ahead, medians
    tasks: Mapping[str, TaskResult]  # what was judged


@dataclass(frozen=True)
class SeriesFold:
    """One cell as it is shown: per task, the model's multiple of naive's error and of the fold's best."""

    fold: int
    series: str
    is_break: bool
    multiples: Mapping[str, float | None]
    against_best: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class BacktestResults:
    """What a back-test found so far."""

    plan: BacktestPlan  # what was asked for
    folds: tuple[Stretch, ...]  # by fold and timeframe
    pools: tuple[Stretch, ...]  # by timeframe and key of `POOLS`, but those without a cell, or with every one
    series: Mapping[str, Mapping[str, TaskResult]]  # by series, over all its folds
    cells: tuple[SeriesFold, ...]  # every one
    failures: Mapping[str, Mapping[str, str]]  # per fold, why series of it failed or are not finished

    @property
    def judged(self) -> dict[str, tuple[int, int]]:
        """Per fold, such as "fold 1", how many models are judged and how many take part."""
        found = Counter(cell.fold for cell in self.cells)
        return {f"fold {one.number}": (found[one.number], len(one.newest_s)) for one in self.plan.folds}

    @property
    def tasks(self) -> list[str]:
        """Tasks of the profile, in their usual order."""
        return [task for task in TASKS if task in self.plan.profile["tasks"]]

    def to_json(self) -> Any:
        """Return everything as plain JSON values."""
        plan = {name: value for name, value in vars(self.plan).items() if name != "format"}
        rest = {name: value for name, value in vars(self).items() if name != "plan"}
        rule = {"break_factor": BREAK_FACTOR}
        return to_jsonable_python({"format": RESULTS_FORMAT, **plan, **rule, "results": rest})


def read_results(
    path: Path, plan: BacktestPlan, refused: Mapping[str, Mapping[str, str]] = NONE_REFUSED
) -> BacktestResults:
    """Read what is finished of a back-test and work out its figures.

    What an earlier call judged of series that failed now, per folder of a fold in `refused`, is left out: it
    was of other candles, or its files are not as they were saved.
    """
    lacking = {fold.folder: _failures(path, fold) | dict(refused.get(fold.folder, {})) for fold in plan.folds}
    cells = [cell for fold in plan.folds for cell in _cells(path, fold, lacking[fold.folder])]
    return results_of(plan, cells, lacking)


def results_of(
    plan: BacktestPlan, cells: Sequence[Cell], failures: Mapping[str, Mapping[str, str]]
) -> BacktestResults:
    """Work out the figures of some cells."""
    by_timeframe: dict[str, list[Cell]] = {}
    for cell in cells:
        by_timeframe.setdefault(cell.series.timeframe, []).append(cell)
    folds: list[Stretch] = []
    pools: list[Stretch] = []
    series: dict[str, Mapping[str, TaskResult]] = {}
    for timeframe, chosen in by_timeframe.items():
        those = {
            number: _stretch(f"fold {number}", timeframe, [cell for cell in chosen if cell.fold == number])
            for number in dict.fromkeys(cell.fold for cell in chosen)
        }
        folds += those.values()
        for name, is_in in POOLS.items():
            pooled = [cell for cell in chosen if is_in(those[cell.fold])]
            is_other = name == next(iter(POOLS)) or len(pooled) < len(chosen)
            pools += [_stretch(name, timeframe, pooled)] if pooled and is_other else []
        for one in dict.fromkeys(cell.series for cell in chosen):
            series[str(one)] = _tasks([cell for cell in chosen if cell.series == one])
    corrected = _corrected(folds)
    return BacktestResults(
        plan=plan,
        folds=corrected,
        pools=_corrected(pools),
        series=dict(zip(series, _with_corrected([*series.values()]), strict=True)),
        cells=tuple(_shown(cell, corrected) for cell in cells),
        failures={fold: those for fold, those in failures.items() if those},
    )


def _cells(path: Path, fold: Fold, lacking: Container[str]) -> Iterable[Cell]:
    run = path / fold.folder
    if not (run / RUN_FILE).exists():
        return
    for name in read_run(run).series:
        if name in fold.newest_s and name not in lacking:
            about = read_metadata(run / name, series=name)
            season = Season.load(run / name / SEASON_FILE)
            yield Cell(fold.number, Series.parse(name), about.judgement, season, about.quantiles)


def _failures(path: Path, fold: Fold) -> dict[str, str]:
    run = path / fold.folder
    states = read_run(run).series if (run / RUN_FILE).exists() else {}
    unfinished = {name: state.reason for name, state in states.items() if state.status != "done"}
    unfinished |= {name: None for name in fold.newest_s if name not in states}
    return {name: reason or "not finished" for name, reason in unfinished.items() if name in fold.newest_s}


def _stretch(name: str, timeframe: str, cells: Sequence[Cell]) -> Stretch:
    seasons = [cell.season for cell in cells]
    shock = median(season.shock for season in seasons)
    held = [median(season.held[step] for season in seasons) for step in (0, -1)]
    return Stretch(
        name=name,
        timeframe=timeframe,
        num_series=len({cell.series for cell in cells}),
        first_close=iso(min(int(season.closes_s[0]) for season in seasons)),
        last_close=iso(max(int(season.closes_s[-1]) for season in seasons)),
        shock=shock,
        is_break=shock > BREAK_FACTOR,
        held=(float(held[0]), float(held[1])),
        tasks=_tasks(cells),
    )


def _tasks(cells: Sequence[Cell]) -> dict[str, TaskResult]:
    known = [task for task in TASKS if any(task in cell.judgement.tasks for cell in cells)]
    return {task: _task([cell for cell in cells if task in cell.judgement.tasks], task) for task in known}


def _task(cells: Sequence[Cell], task: str) -> TaskResult:
    judgements = [cell.judgement for cell in cells]
    names = [MODEL, *(name for name in judgements[0].tasks[task].errors if name != MODEL)]
    multiples = {
        name: [cell.multiple(task, name) for cell in cells if name in cell.judgement.tasks[task].errors]
        for name in names
    }
    best = best_baseline(judgements, task)
    ratios = [one.multiple(task, baseline=best) for one in judgements]
    is_less = [ratio is not None and ratio < 1.0 and not is_equal(ratio, 1.0) for ratio in ratios]
    p_naive, _ = _tested(cells, task, NAIVE)
    p_best, difference = _tested(cells, task, best)
    return TaskResult(
        num_cells=len(cells),
        multiples={
            name: middle for name, values in multiples.items() if (middle := median_of(values)) is not None
        },
        best=best,
        against_best=median_of(ratios),
        num_better=sum(is_less),
        p_naive=p_naive,
        p_best=p_best,
        difference=difference,
        **_interval_medians([cell.quantiles for cell in cells if cell.quantiles], task),
    )


def _interval_medians(judged: Sequence[QuantileJudgement], task: str) -> dict[str, dict[str, float]]:
    """Return medians over cells of CRPS beside the baselines' and of coverage; nothing without quantiles."""
    found = [summary[task] for one in judged if task in (summary := one.summary())]
    return {
        name: {
            each: middle
            for each in dict.fromkeys(each for one in found for each in one[kind])
            if (middle := median_of(one[kind].get(each) for one in found)) is not None
        }
        for name, kind in (("crps", "crps_multiples"), ("coverage", "coverage"))
    }


def _tested(cells: Sequence[Cell], task: str, baseline: str) -> tuple[float | None, float]:
    """Test the model against a baseline over cells of one timeframe; None where nothing can be said.

    The mean difference beside the p-value is a share of naive's error.
    """
    if all(cell.judgement.is_equal(task, baseline) for cell in cells):
        return None, 0.0
    bar_s, horizon = cells[0].series.bar_s, cells[0].judgement.horizon_bars
    closes_s, differences = shared_differences(cells, task, baseline)
    test = diebold_mariano(differences, horizon_bars=horizon, bar_numbers=closes_s // bar_s)
    return test.p_value, test.mean_difference


def shared_differences(
    cells: Sequence[Cell], task: str, baseline: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Average the differences between model and baseline over the series that share a close.

    Returns closes, ascending, seconds since the epoch, shape (N,), and mean differences as shares of each
    series' naive error, shape (N,), unitless; of `cells` in the order of folds.
    """
    times, values = [], []
    last_s: dict[Series, int] = {}
    for cell in cells:
        season, losses = cell.season, cell.season.losses[task]
        is_new = season.closes_s > last_s.get(cell.series, -1)
        naive = float(losses[NAIVE].mean(dtype=np.float64)) or 1.0
        difference = losses[MODEL].astype(np.float64) - losses[baseline]
        times.append(season.closes_s[is_new])
        values.append(difference[is_new] / naive)
        last_s[cell.series] = int(season.closes_s[-1])
    closes_s, places = np.unique(np.concatenate(times), return_inverse=True)
    sums = np.bincount(places, weights=np.concatenate(values))
    return closes_s, sums / np.bincount(places)


def _corrected(stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
    fixed = _with_corrected([stretch.tasks for stretch in stretches])
    return tuple(replace(stretch, tasks=tasks) for stretch, tasks in zip(stretches, fixed, strict=True))


def _with_corrected(tables: Sequence[Mapping[str, TaskResult]]) -> list[dict[str, TaskResult]]:
    """Correct the p-values of a table for how many there are, naive's and the best baselines' apart."""
    results = [result for tasks in tables for result in tasks.values()]
    naive = corrected_p_values([result.p_naive for result in results])
    best = corrected_p_values([result.p_best for result in results])
    paired = zip(results, naive, best, strict=True)
    fixed = (replace(each, p_naive=one, p_best=other) for each, one, other in paired)
    return [{task: next(fixed) for task in tasks} for tasks in tables]


def _shown(cell: Cell, folds: Sequence[Stretch]) -> SeriesFold:
    """Put a cell beside the best baselines of its fold."""
    wanted = (f"fold {cell.fold}", cell.series.timeframe)
    stretch = next(one for one in folds if (one.name, one.timeframe) == wanted)
    multiple, best = cell.judgement.multiple, {task: told.best for task, told in stretch.tasks.items()}
    return SeriesFold(
        fold=cell.fold,
        series=str(cell.series),
        is_break=stretch.is_break,
        multiples={task: multiple(task) for task in cell.judgement.tasks},
        against_best={task: multiple(task, baseline=best[task]) for task in cell.judgement.tasks},
    )
