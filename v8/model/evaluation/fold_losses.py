"""Losses of every forecaster in every window of a test span, and figures over many series and folds.

An evaluation holds means only. A test over several series or several folds needs the losses of every window,
because series that are evaluated at the same time share the same market events, and so does a comparison on
the windows that several models share. So they are saved next to each evaluated model.

A *cell* is one series in one fold of a back-test. Cells are grouped by fold and timeframe, and pooled:
all folds, calm ones, those with a break in volatility. Per forecaster a group reports the median over its
cells of the relative MAE (to the naive forecast). The best baseline of a task is its reference
(`v8.model.evaluation.evaluation.best_baseline`).

Significance: series that are evaluated at the same close are correlated. So the differences between model and
baseline, each divided by the mean naive error of its cell, are averaged over the series that share a close,
and the test (`v8.model.evaluation.significance`) gets one number per close. A window that lies in two folds
counts for the first one only.

Legend: N windows, H steps of the horizon, R rows.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import FloatArray
from v8.base.errors import ArtifactError
from v8.base.records import read_plain
from v8.base.storage import write_bytes
from v8.data.market.series import Series, iso
from v8.data.windows import SeriesData
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation import significance
from v8.model.evaluation.bootstrap import ErrorInterval, PairedLosses, error_interval
from v8.model.evaluation.evaluation import MODEL, Evaluation, QuantileEvaluation, best_baseline
from v8.model.evaluation.leaderboard import median as median_of
from v8.profile.columns import HIGH, LOW
from v8.profile.formulas import DAY_S
from v8.profile.tasks import TASKS

TEST_LOSSES_FILE: Final = "test_losses.npz"

BREAK_FACTOR: Final = 1.5
"""A fold with a shock above this is a break in volatility; see `volatility_shock`."""

WILD_DAYS: Final = 2.5
"""Expected number of later days above the quantile of the train days, if volatility had not changed."""

MAX_SHOCK: Final = 1e6
"""Upper bound of a shock: a market without any movement in training would have an infinite one."""

_FIX: Final = "Move the folder of this series away, then repeat the command that trained it"


@dataclass(frozen=True, eq=False)
class WindowLosses:
    """The losses of every forecaster on the test span of one series, window by window."""

    closes_s: NDArray[np.int64]
    """When the last known candle of each window closed, seconds since the epoch, ascending, shape (N,)."""
    by_task: Mapping[
        str, Mapping[str, NDArray[np.float32]]
    ]  # per task and forecaster, shape (N,), in returns
    shock: float  # see `volatility_shock`

    @classmethod
    def of(cls, data: SeriesData, losses: significance.Losses) -> "WindowLosses":
        """Return what is saved of the windows of an evaluated series.

        Args:
            data: The series.
            losses: Those that `evaluation.evaluate_test_span` returned for it.
        """
        high = data.table.column(HIGH).astype(np.float64)
        low = data.table.column(LOW).astype(np.float64)
        ranges = np.log(high / low)
        train_end = data.split["train"][1]
        bar_s = data.series.bar_s
        last_opens_s = data.table.open_time_s[data.spans["test"].anchors].astype(np.int64)
        by_task = {
            task: {name: values.astype(np.float32) for name, values in by_name.items()}
            for task, by_name in losses.by_task.items()
        }
        bars_per_day = max(1, DAY_S // bar_s)
        shock = volatility_shock(ranges[:train_end], ranges[train_end:], bars_per_day)
        return cls(closes_s=last_opens_s + bar_s, by_task=by_task, shock=shock)

    def mean(self, task: str, forecaster: str) -> float:
        """Return the mean loss of a forecaster, in returns."""
        return float(self.by_task[task][forecaster].mean(dtype=np.float64))

    def paired(self, series: str, task: str, baseline: str) -> PairedLosses:
        """Return the losses of the model and of a baseline on a task of the series of that name."""
        by_name = self.by_task[task]
        return PairedLosses(series, self.closes_s, model=by_name[MODEL], baseline=by_name[baseline])

    def at(self, closes_s: NDArray[np.int64]) -> "WindowLosses":
        """Keep the windows whose last known candle closed at one of these times."""
        is_kept = np.isin(self.closes_s, closes_s)
        by_task = {
            task: {name: losses[is_kept] for name, losses in by_name.items()}
            for task, by_name in self.by_task.items()
        }
        return replace(self, closes_s=self.closes_s[is_kept], by_task=by_task)

    def save(self, file: Path) -> None:
        """Write the losses as a NumPy archive, atomically."""
        arrays: dict[str, NDArray[Any]] = {
            f"{task} {name}": losses.astype(np.float32)
            for task, by_name in self.by_task.items()
            for name, losses in by_name.items()
        }
        arrays |= {"closes_s": self.closes_s, "shock": np.array(self.shock)}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # mypy takes a key for allow_pickle
        write_bytes(file, buffer.getvalue())

    @classmethod
    def load(cls, file: Path) -> "WindowLosses":
        """Read what `save` wrote. Raises `ArtifactError` if the file is missing or damaged."""
        content = read_plain(file, fix=_FIX)
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            closes_s = arrays.pop("closes_s")
            shock = float(arrays.pop("shock"))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise _damaged(file, f"{type(error).__name__}: {error}") from error
        by_task: dict[str, dict[str, NDArray[np.float32]]] = {}
        for key, values in arrays.items():
            task, _, name = key.partition(" ")
            if not name or values.shape != closes_s.shape or not np.isfinite(values).all():
                raise _damaged(file, f"{key} of shape {values.shape}")
            by_task.setdefault(task, {})[name] = values
        for task, by_name in by_task.items():
            if not {MODEL, NAIVE} <= by_name.keys():
                raise _damaged(file, f"losses on {task} of {', '.join(by_name)} alone")
        return cls(closes_s=closes_s, by_task=by_task, shock=shock)


def volatility_shock(trained: FloatArray, later: FloatArray, bars_per_day: int) -> float:
    """Compare the most volatile day after training with the volatile days of training.

    The volatility of a day is the root of the mean squared log range of its bars. The largest of n later days
    (validation and test) is divided by the 1 - `WILD_DAYS` / n quantile of the train days, which is at least
    their median. The quantile depends on n, because the maximum of more days is larger without any change.
    Above `BREAK_FACTOR` the fold is a break in volatility: at the median over series this finds 2024-04-13
    and 2024-08-05 at 15m and 2023-08-17 at 1h on the exchange's archive, and calls May and June 2024 calm.

    Args:
        trained: Log ranges of the bars of the train span, shape (R,), unitless.
        later: Log ranges of the bars after it, shape (R,), unitless.
        bars_per_day: Bars of a day; bars of an incomplete last day are ignored unless there are no others.

    Returns:
        A factor, unitless, at most `MAX_SHOCK`; 0 if the later bars do not move at all.

    >>> volatility_shock(np.full(96 * 5, 0.01), np.r_[np.full(96, 0.01), np.full(96, 0.02)], 96)
    2.0
    """
    later_days = _daily_volatility(later, bars_per_day)
    level = max(0.5, 1.0 - WILD_DAYS / len(later_days))
    usual = float(np.quantile(_daily_volatility(trained, bars_per_day), level))
    tiny = float(np.finfo(np.float32).tiny)  # keeps the division finite where training did not move
    return min(float(later_days.max()) / max(usual, tiny), MAX_SHOCK)


def _daily_volatility(ranges: FloatArray, bars_per_day: int) -> FloatArray:
    """Return the root mean squared range of every complete day."""
    num_days = max(1, len(ranges) // bars_per_day)
    days = np.array_split(np.square(ranges[: num_days * bars_per_day]), num_days)
    return np.array([np.sqrt(day.mean()) for day in days])


def _damaged(file: Path, got: str) -> ArtifactError:
    return ArtifactError(
        where=str(file), rule="must hold test losses as v8 writes them", got=got[:200], fix=_FIX
    )


POOLS: Final = {"all folds": (False, True), "calm folds": (False,), "break folds": (True,)}
"""Names of the pools, and which folds belong to each: those that are no breaks, those that are, or both."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One series in one fold."""

    fold: int  # number of the fold, from 1
    series: Series
    evaluation: Evaluation
    losses: WindowLosses
    quantiles: QuantileEvaluation | None = None  # None if the model forecasts no quantiles

    def relative_error(self, task: str, baseline: str = NAIVE, forecaster: str = MODEL) -> float | None:
        """Return a forecaster's mean loss divided by a baseline's; None if the baseline made no error."""
        return significance.error_ratio(self.losses.mean(task, forecaster), self.losses.mean(task, baseline))

    def paired(self, task: str, baseline: str) -> PairedLosses:
        """Return the losses of the model and of a baseline."""
        return self.losses.paired(str(self.series), task, baseline)

    @property
    def group_key(self) -> tuple[str, str]:
        """Name of the fold, and timeframe."""
        return f"fold {self.fold}", self.series.timeframe


_Groups = dict[tuple[str, str], list[Cell]]
"""Groups of cells, by the name of the group and the timeframe."""


@dataclass(frozen=True)
class TaskResult:
    """The figures of one task over some cells; `crps` and `coverage` are empty without quantiles."""

    num_cells: int  # cells that have the task
    relative_mae: Mapping[str, float]  # median relative MAE per forecaster, the model first
    best: str  # the best baseline
    against_best: float | None  # median of the model's error divided by that baseline's; None if that is 0
    num_better: int  # cells in which the model has the lower error
    p_naive: float | None  # corrected p-value of the difference from naive, 0 to 1; None if not tested
    p_best: float | None  # corrected p-value of the difference from the best baseline; None if not tested
    difference: float  # mean difference in the test against the best baseline, in naive errors; < 0 is better
    num_series: int = 1  # different series among the cells
    num_series_better: int = 0  # those whose median error relative to the best baseline is below 1
    interval: ErrorInterval | None = None  # of `against_best`, of pools; None with too few windows
    crps: Mapping[str, float] = field(default_factory=dict)  # median CRPS relative to each baseline's
    coverage: Mapping[str, float] = field(default_factory=dict)  # median coverage per interval, "90 %"

    @property
    def outcome(self) -> significance.ComparisonResult:
        """The result of the comparison with the best baseline."""
        return significance.outcome_of(1.0 + self.difference, 1.0, self.p_best)

    @property
    def model_relative_mae(self) -> float | None:
        """The model's median relative MAE (to the naive forecast)."""
        return self.relative_mae.get(MODEL)


@dataclass(frozen=True)
class CellGroup:
    """Cells of one timeframe: those of one fold, or of a pool of folds."""

    name: str  # "fold 1", or a key of `POOLS`
    timeframe: str  # of its series
    num_series: int  # number of different series
    first_close: str  # close of the first evaluated window, ISO 8601
    last_close: str  # close of the last evaluated window, ISO 8601
    shock: float  # median over cells of `volatility_shock`
    is_break: bool  # whether `shock` is above `BREAK_FACTOR`
    tasks: Mapping[str, TaskResult]  # by the name of the task


@dataclass(frozen=True, kw_only=True)
class FoldSummary:
    """The figures over all cells of a back-test."""

    folds: tuple[CellGroup, ...]  # by fold and timeframe
    pools: tuple[CellGroup, ...]
    """One per timeframe and key of `POOLS`; empty pools, and calm or break pools that hold every cell, are
    left out."""
    series: Mapping[str, Mapping[str, TaskResult]]  # per series and task, over all its folds
    cells: tuple[tuple[int, str], ...]  # fold and series of every cell


def summarize_cells(cells: Sequence[Cell]) -> FoldSummary:
    """Compute the figures of some cells; the cells of a series must be in the order of the folds."""
    timeframes = [*dict.fromkeys(cell.series.timeframe for cell in cells)]
    by_fold: _Groups = {}
    by_pool: _Groups = {}
    by_series: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: timeframes.index(cell.series.timeframe)):
        by_fold.setdefault(cell.group_key, []).append(cell)
        by_series.setdefault(str(cell.series), []).append(cell)
    best = best_baselines(cells)
    folds = _cell_groups(by_fold, best)
    for timeframe in timeframes:
        of_timeframe = [cell for cell in cells if cell.series.timeframe == timeframe]
        for name, is_break_values in POOLS.items():
            pooled = [cell for cell in of_timeframe if folds[cell.group_key].is_break in is_break_values]
            is_of_all_folds = len(is_break_values) > 1
            # A pool of calm or break folds that holds every cell would repeat the one of all folds.
            if pooled and (is_of_all_folds or len(pooled) < len(of_timeframe)):
                by_pool[name, timeframe] = pooled
    pools = _cell_groups(by_pool, best)
    series_results = _task_results([*by_series.values()], best)
    return FoldSummary(
        folds=tuple(folds.values()),
        pools=tuple(_with_intervals(group, by_pool[key]) for key, group in pools.items()),
        series=dict(zip(by_series, series_results, strict=True)),
        cells=tuple((cell.fold, str(cell.series)) for cell in cells),
    )


@dataclass(frozen=True)
class SeedSpread:
    """A headline number of a back-test by seed, all of one pool, timeframe and task."""

    pool: str  # a key of `POOLS`
    timeframe: str
    task: str
    figure: str  # "relative_mae" (to naive) or "against_best", medians over series and folds, unitless
    by_seed: Mapping[int, float]

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.by_seed.values())

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.by_seed.values())

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.by_seed.values())


def spread_over_seeds(results: Mapping[int, FoldSummary]) -> list[SeedSpread]:
    """Return the headline numbers by seed, of those that every back-test has; at least one, by its seed."""
    by_key: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for seed, of_seed in results.items():
        for pool in of_seed.pools:
            for task, result in pool.tasks.items():
                figures = {"relative_mae": result.model_relative_mae, "against_best": result.against_best}
                for figure, value in figures.items():
                    if value is not None:
                        by_key.setdefault((pool.name, pool.timeframe, task, figure), {})[seed] = value
    return [SeedSpread(*key, by_seed) for key, by_seed in by_key.items() if len(by_seed) == len(results)]


def best_baselines(cells: Sequence[Cell]) -> dict[str, dict[str, str]]:
    """Return by timeframe and task the best baseline over all folds and series of some cells.

    Each fold, series and pool is compared with it, so that a task has one reference in a back-test.
    """
    evaluations: dict[str, dict[str, list[Evaluation]]] = {}
    for cell in cells:
        by_task = evaluations.setdefault(cell.series.timeframe, {})
        for task in cell.evaluation.tasks:
            by_task.setdefault(task, []).append(cell.evaluation)
    return {
        timeframe: {task: best_baseline(by_task[task], task) for task in TASKS if task in by_task}
        for timeframe, by_task in evaluations.items()
    }


_Best = Mapping[str, Mapping[str, str]]
"""Best baselines by timeframe and task."""


def _cell_groups(groups: _Groups, best: _Best) -> dict[tuple[str, str], CellGroup]:
    """Compute the figures of the groups of one table."""
    summaries = {}
    results = _task_results([*groups.values()], best)
    for (key, cells), tasks in zip(groups.items(), results, strict=True):
        name, timeframe = key
        shock = median(cell.losses.shock for cell in cells)
        first_close_s = min(int(cell.losses.closes_s[0]) for cell in cells)
        last_close_s = max(int(cell.losses.closes_s[-1]) for cell in cells)
        summaries[key] = CellGroup(
            name=name,
            timeframe=timeframe,
            num_series=len({cell.series for cell in cells}),
            first_close=iso(first_close_s),
            last_close=iso(last_close_s),
            shock=shock,
            is_break=shock > BREAK_FACTOR,
            tasks=tasks,
        )
    return summaries


def _with_intervals(group: CellGroup, cells: Sequence[Cell]) -> CellGroup:
    """Add the intervals of the errors relative to the best baselines to the figures of some cells."""
    tasks = {}
    for task, result in group.tasks.items():
        pairs = [cell.paired(task, result.best) for cell in cells if task in cell.losses.by_task]
        interval = error_interval(pairs, cells[0].evaluation.horizon_bars)
        tasks[task] = replace(result, interval=interval)
    return replace(group, tasks=tasks)


def _task_results(groups: Sequence[Sequence[Cell]], best: _Best) -> list[dict[str, TaskResult]]:
    """Return the results of each group by task, with p-values that are corrected for the whole table.

    The tests against the naive forecast and those against the best baselines are corrected separately.
    """
    tables: list[dict[str, TaskResult]] = []
    for cells in groups:
        results_by_task = {}
        for task in TASKS:
            with_task = [cell for cell in cells if task in cell.evaluation.tasks]
            if with_task:
                name = best[with_task[0].series.timeframe][task]
                results_by_task[task] = _task_result(with_task, task, name)
        tables.append(results_by_task)
    results = [result for by_task in tables for result in by_task.values()]
    p_naive = iter(significance.corrected_p_values([result.p_naive for result in results]))
    p_best = iter(significance.corrected_p_values([result.p_best for result in results]))
    return [
        {
            task: replace(result, p_naive=next(p_naive), p_best=next(p_best))
            for task, result in by_task.items()
        }
        for by_task in tables
    ]


def _task_result(cells: Sequence[Cell], task: str, best: str) -> TaskResult:
    """Compute the figures of one task over cells that have it; the p-values are not corrected yet."""
    medians = {
        name: median_of(
            cell.relative_error(task, forecaster=name) for cell in cells if name in cell.losses.by_task[task]
        )
        for name in cells[0].losses.by_task[task]
    }
    ratios = [cell.relative_error(task, best) for cell in cells]
    ratios_by_series: dict[Series, list[float | None]] = {}
    for cell, ratio in zip(cells, ratios, strict=True):
        ratios_by_series.setdefault(cell.series, []).append(ratio)
    quantiles = [cell.quantiles for cell in cells if cell.quantiles]
    p_naive, _ = _tested(cells, task, NAIVE)
    p_best, difference = _tested(cells, task, best)
    return TaskResult(
        num_cells=len(cells),
        relative_mae={name: value for name, value in medians.items() if value is not None},
        best=best,
        against_best=median_of(ratios),
        num_better=sum(map(significance.is_lower, ratios)),
        p_naive=p_naive,
        p_best=p_best,
        difference=difference,
        num_series=len(ratios_by_series),
        num_series_better=sum(significance.is_lower(median_of(each)) for each in ratios_by_series.values()),
        crps=_quantile_medians(quantiles, task, "relative_crps"),
        coverage=_quantile_medians(quantiles, task, "coverage"),
    )


def _quantile_medians(evaluations: Sequence[QuantileEvaluation], task: str, key: str) -> dict[str, float]:
    """Return medians over cells of the figures that stand under a key of `QuantileEvaluation.summary`."""
    summaries = [evaluation.summary() for evaluation in evaluations]
    figures = [summary[task][key] for summary in summaries if task in summary]
    medians = {}
    for name in dict.fromkeys(name for by_name in figures for name in by_name):
        value = median_of(by_name.get(name) for by_name in figures)
        if value is not None:
            medians[name] = value
    return medians


def _tested(cells: Sequence[Cell], task: str, baseline: str) -> tuple[float | None, float]:
    """Test the model against a baseline as `tested` does, unless they differ by rounding alone."""
    pairs = [(cell.losses.mean(task, MODEL), cell.losses.mean(task, baseline)) for cell in cells]
    if all(significance.is_equal(model_error, baseline_error) for model_error, baseline_error in pairs):
        return None, 0.0
    return tested(cells, task, baseline)


def tested(cells: Sequence[Cell], task: str, other: str) -> tuple[float | None, float]:
    """Test the model against another forecaster over cells of one timeframe.

    Returns:
        The p-value, None where there are too few windows for a test; and the mean difference as a share of
        the naive error, below 0 where the model is better.
    """
    _, differences = shared_differences(cells, task, other)
    horizon = cells[0].evaluation.horizon_bars
    test = significance.diebold_mariano(differences, horizon_bars=horizon)
    return test.p_value, test.mean_difference


def shared_differences(
    cells: Sequence[Cell], task: str, baseline: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Average the differences between model and baseline over the series that share a close.

    Args:
        cells: The cells of each series in the order of the folds.
        task: The name of the task.
        baseline: The name of the baseline.

    Returns:
        As `differences_by_close`.
    """
    pairs = [cell.paired(task, baseline) for cell in cells]
    return differences_by_close(pairs, [cell.losses.mean(task, NAIVE) for cell in cells])


def differences_by_close(
    pairs: Sequence[PairedLosses], naive_errors: Sequence[float]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Average the differences between two forecasters over the series that share a close.

    Args:
        pairs: The losses of both; those of a series in the order of time.
        naive_errors: The mean error of naive of each pair, in returns.

    Returns:
        Closes, ascending, seconds since the epoch, shape (N,); and mean differences, each a share of the
        naive error of its pair, unitless, shape (N,).
    """
    times = []
    values = []
    last_s: dict[str, int] = {}
    for pair, naive_error in zip(pairs, naive_errors, strict=True):
        is_new = pair.closes_s > last_s.get(pair.series, -1)
        difference = pair.model.astype(np.float64) - pair.baseline
        times.append(pair.closes_s[is_new])
        values.append(difference[is_new] / (naive_error or 1.0))
        last_s[pair.series] = int(pair.closes_s[-1])
    shared_closes_s, positions = np.unique(np.concatenate(times), return_inverse=True)
    sums = np.bincount(positions, weights=np.concatenate(values))
    return shared_closes_s, sums / np.bincount(positions)
