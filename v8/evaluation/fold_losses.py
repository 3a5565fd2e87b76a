"""Seasons: how everybody erred on the test span of one series, window by window, and of many put together.

An evaluation holds means; a test over several series or several spans needs the windows, because series that
are evaluated at the same close share what happened then. A back-test keeps the losses of each window beside each of its models.

A *cell* is one series in one fold of a back-test. Cells are shown together by fold and timeframe, and pooled:
all folds, the calm ones, those with a break. Per forecaster the median over cells of its error as a multiple
of naive's is told; the best baseline of a task is the one with the smallest such median of these cells.

Whether the model differs from it by more than chance: series share their closes, so the differences of a
close, each as a share of its series' naive error, are averaged over series first, and the test
(`v8.evaluation.significance`) sees one number a close. A window that two folds evaluate counts for the first.

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

from v8.baselines.baselines import NAIVE
from v8.columns import HIGH, LOW
from v8.errors import ArtifactError
from v8.evaluation import significance
from v8.evaluation.evaluation import MODEL, Evaluation, QuantileEvaluation, best_baseline
from v8.evaluation.leaderboard import median as median_of
from v8.features.formulas import DAY_S
from v8.market.series import Series, iso
from v8.records import read_plain
from v8.storage import write_bytes
from v8.tasks import TASKS
from v8.windows.dataset import SeriesData
from v8.windows.span import Floats

FOLD_LOSSES_FILE: Final = "fold_losses.npz"

BREAK_FACTOR: Final = 1.5
"""A fold is a break where its wildest day exceeds the wild days of training by more; see `shock_of`."""

WILD_DAYS: Final = 2.5
"""Later days that would be wilder than the train day they are compared with, had nothing changed."""

MAX_SHOCK: Final = 1e6
"""Shocks beyond this, of markets that stood still in training, count as this."""

_FIX: Final = "Move the folder of this series in its fold away, then repeat the command of the back-test"


@dataclass(frozen=True, eq=False)
class FoldLosses:
    """The test span of one series."""

    closes_s: NDArray[np.int64]  # when each window's last known candle closed, ascending, shape (N,)
    losses: Mapping[str, Mapping[str, NDArray[np.float32]]]  # as in the table of losses
    shock: float  # see `shock_of`

    def save(self, file: Path) -> None:
        """Write it."""
        arrays: dict[str, NDArray[Any]] = {
            f"{task} {name}": losses.astype(np.float32)
            for task, by_name in self.losses.items()
            for name, losses in by_name.items()
        }
        arrays |= {"closes_s": self.closes_s, "shock": np.array(self.shock)}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # one is `allow_pickle`, in its eyes
        write_bytes(file, buffer.getvalue())

    @classmethod
    def load(cls, file: Path) -> "FoldLosses":
        """Read what `save` wrote. Raises `ArtifactError` if the file is missing or damaged."""
        content = read_plain(file, fix=_FIX)
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            arrays.pop("held", None)  # of folds from before: closes within forecast low and high
            fold_losses = cls(arrays.pop("closes_s"), {}, float(arrays.pop("shock")))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise _damaged(file, f"{type(error).__name__}: {error}") from error
        losses: dict[str, dict[str, NDArray[np.float32]]] = {}
        for key, values in arrays.items():
            task, _, name = key.partition(" ")
            if values.shape != fold_losses.closes_s.shape or not np.isfinite(values).all():
                raise _damaged(file, f"{key} of shape {values.shape}")
            losses.setdefault(task, {})[name] = values
        return cls(fold_losses.closes_s, losses, fold_losses.shock)


def fold_losses_of(data: SeriesData, losses: significance.Losses) -> FoldLosses:
    """Describe the test span of an evaluated series by its losses, those of `evaluation.evaluate_windows`."""
    high, low = (data.table.column(name).astype(np.float64) for name in (HIGH, LOW))
    ranges = np.log(high / low)
    fitted = data.split["train"][1]
    bar_s = data.series.bar_s
    return FoldLosses(
        closes_s=data.table.open_time_s[data.spans["test"].anchors].astype(np.int64) + bar_s,
        losses={
            task: {name: values.astype(np.float32) for name, values in by_name.items()}
            for task, by_name in losses.by_task.items()
        },
        shock=shock_of(ranges[:fitted], ranges[fitted:], bars_a_day=max(1, DAY_S // bar_s)),
    )


def shock_of(trained: Floats, later: Floats, bars_a_day: int) -> float:
    """Say how much wilder the wildest day after training was than the wild days of training.

    The wildness of a day is the root of the mean squared log range of its bars. What is compared is the
    wildest of n later days (validation and test) with the 1 - `WILD_DAYS` / n quantile of the train days, at
    least their median: the more days, the wilder the wildest of them is without any change. Above
    `BREAK_FACTOR` the fold is a break in volatility: at the median over series this finds 2024-04-13 and
    2024-08-05 at 15m and 2023-08-17 at 1h on the exchange's archive, and calls May and June 2024 calm.

    Both are log ranges of bars, shape (R,); what is left of the last day counts for nothing unless it is all
    there is. Returns a factor, at most `MAX_SHOCK`; 0 where nothing moves any more.

    >>> shock_of(np.full(96 * 5, 0.01), np.r_[np.full(96, 0.01), np.full(96, 0.02)], 96)
    2.0
    """
    days = _wildness(later, bars_a_day)
    usual = float(np.quantile(_wildness(trained, bars_a_day), max(0.5, 1.0 - WILD_DAYS / len(days))))
    return min(float(days.max()) / max(usual, float(np.finfo(np.float32).tiny)), MAX_SHOCK)


def _wildness(ranges: Floats, bars_a_day: int) -> Floats:
    """Return the root mean square of every whole day."""
    num_days = max(1, len(ranges) // bars_a_day)
    days = np.array_split(np.square(ranges[: num_days * bars_a_day]), num_days)
    return np.array([np.sqrt(day.mean()) for day in days])


def _damaged(file: Path, got: str) -> ArtifactError:
    return ArtifactError(where=str(file), rule="must be a fold as v8 writes it", got=got[:200], fix=_FIX)


POOLS: Final = {"all folds": (False, True), "calm folds": (False,), "break folds": (True,)}
"""What folds are pooled to, for people, by whether they are breaks; by timeframe."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One series in one fold."""

    fold: int
    series: Series
    evaluation: Evaluation
    fold_losses: FoldLosses
    quantiles: QuantileEvaluation | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Name of the fold and timeframe."""
        return f"fold {self.fold}", self.series.timeframe


_Groups = dict[tuple[str, str], list[Cell]]
"""Cells that are shown together, by the name of them all and by timeframe."""


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
    def outcome(self) -> significance.Outcome:
        """What the test beside the best baseline comes to."""
        return significance.outcome_of(1.0 + self.difference, 1.0, self.p_best)

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
    first_close: str  # close of the first window evaluated, ISO 8601
    last_close: str  # close of the last one
    shock: float  # median over cells of `shock_of`
    is_break: bool  # whether that is above `BREAK_FACTOR`; of a pool, whether it holds breaks alone
    tasks: Mapping[str, TaskResult]  # what was evaluated


@dataclass(frozen=True, kw_only=True)
class FoldSummary:
    """What many cells come to."""

    folds: tuple[Stretch, ...]  # by fold and timeframe
    pools: tuple[Stretch, ...]  # by timeframe and key of `POOLS`, but those without a cell, or with every one
    series: Mapping[str, Mapping[str, TaskResult]]  # by series, over all its folds
    cells: tuple[tuple[int, str], ...]  # fold and series of every one


def summarize_folds(cells: Sequence[Cell]) -> FoldSummary:
    """Work out the figures of some cells, those of one series in the order of folds."""
    timeframes = [*dict.fromkeys(cell.series.timeframe for cell in cells)]
    by_fold: _Groups = {}
    by_pool: _Groups = {}
    by_series: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: timeframes.index(cell.series.timeframe)):
        by_fold.setdefault(cell.place, []).append(cell)
        by_series.setdefault(str(cell.series), []).append(cell)
    folds = _stretches(by_fold)
    for timeframe in timeframes:
        those = [cell for cell in cells if cell.series.timeframe == timeframe]
        for name, kinds in POOLS.items():
            pooled = [cell for cell in those if folds[cell.place].is_break in kinds]
            if pooled and (len(kinds) > 1 or len(pooled) < len(those)):
                by_pool[name, timeframe] = pooled
    return FoldSummary(
        folds=tuple(folds.values()),
        pools=tuple(_stretches(by_pool).values()),
        series=dict(zip(by_series, _tasks([*by_series.values()]), strict=True)),
        cells=tuple((cell.fold, str(cell.series)) for cell in cells),
    )


def _stretches(groups: _Groups) -> dict[tuple[str, str], Stretch]:
    """Put cells together that are told in one table."""
    found = {}
    for ((name, timeframe), cells), tasks in zip(groups.items(), _tasks([*groups.values()]), strict=True):
        folds = [cell.fold_losses for cell in cells]
        shock = median(fold_losses.shock for fold_losses in folds)
        found[name, timeframe] = Stretch(
            name=name,
            timeframe=timeframe,
            num_series=len({cell.series for cell in cells}),
            first_close=iso(min(int(fold_losses.closes_s[0]) for fold_losses in folds)),
            last_close=iso(max(int(fold_losses.closes_s[-1]) for fold_losses in folds)),
            shock=shock,
            is_break=shock > BREAK_FACTOR,
            tasks=tasks,
        )
    return found


def _tasks(groups: Sequence[Sequence[Cell]]) -> list[dict[str, TaskResult]]:
    """Return the tasks of each group, their p-values corrected for how many stand in the table.

    Those of naive and of the best baselines are corrected apart.
    """
    tables = []
    for cells in groups:
        having = {task: [cell for cell in cells if task in cell.evaluation.tasks] for task in TASKS}
        tables.append({task: _task(those, task) for task, those in having.items() if those})
    results = [result for tasks in tables for result in tasks.values()]
    naive = significance.corrected_p_values([result.p_naive for result in results])
    best = significance.corrected_p_values([result.p_best for result in results])
    paired = zip(results, naive, best, strict=True)
    fixed = (replace(each, p_naive=one, p_best=other) for each, one, other in paired)
    return [{task: next(fixed) for task in tasks} for tasks in tables]


def _task(cells: Sequence[Cell], task: str) -> TaskResult:
    evaluated = [cell.evaluation for cell in cells]
    multiples = {
        name: median_of(one.multiple(task, forecaster=name) for one in evaluated if name in one.errors[task])
        for name in (MODEL, *evaluated[0].tasks[task].significance)
    }
    best = best_baseline(evaluated, task)
    ratios = [one.multiple(task, baseline=best) for one in evaluated]
    is_less = [ratio is not None and ratio < 1.0 and not significance.is_equal(ratio, 1.0) for ratio in ratios]
    p_naive, _ = _tested(cells, task, NAIVE)
    p_best, difference = _tested(cells, task, best)
    return TaskResult(
        num_cells=len(cells),
        multiples={name: middle for name, middle in multiples.items() if middle is not None},
        best=best,
        against_best=median_of(ratios),
        num_better=sum(is_less),
        p_naive=p_naive,
        p_best=p_best,
        difference=difference,
        **_interval_medians([cell.quantiles for cell in cells if cell.quantiles], task),
    )


def _interval_medians(evaluated: Sequence[QuantileEvaluation], task: str) -> dict[str, dict[str, float]]:
    """Return medians over cells of CRPS beside the baselines' and of coverage; nothing without quantiles."""
    found = [summary[task] for one in evaluated if task in (summary := one.summary())]
    return {
        name: {
            each: middle
            for each in dict.fromkeys(each for one in found for each in one[kind])
            if (middle := median_of(one[kind].get(each) for one in found)) is not None
        }
        for name, kind in (("crps", "crps_multiples"), ("coverage", "coverage"))
    }


def _tested(cells: Sequence[Cell], task: str, baseline: str) -> tuple[float | None, float]:
    """Test the model against a baseline as `tested` does, but for rounding alone."""
    beside = [cell.evaluation.against(task, baseline) for cell in cells]
    if all(significance.is_equal(one.ours, one.theirs) for one in beside):
        return None, 0.0
    return tested(cells, task, baseline)


def tested(cells: Sequence[Cell], task: str, other: str) -> tuple[float | None, float]:
    """Test the model against another forecaster over cells of one timeframe; None if nothing can be said.

    The mean difference beside the p-value is a share of naive's error.
    """
    closes_s, differences = shared_differences(cells, task, other)
    bars = closes_s // cells[0].series.bar_s
    horizon = cells[0].evaluation.horizon_bars
    test = significance.diebold_mariano(differences, horizon_bars=horizon, bar_numbers=bars)
    return test.p_value, test.mean_difference


def shared_differences(
    cells: Sequence[Cell], task: str, baseline: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Average the differences between model and baseline over the series that share a close.

    Returns closes, ascending, seconds since the epoch, shape (N,), and mean differences as shares of each
    series' naive error, shape (N,), unitless; of `cells` in the order of folds.
    """
    times = []
    values = []
    last_s: dict[Series, int] = {}
    for cell in cells:
        fold_losses, losses = cell.fold_losses, cell.fold_losses.losses[task]
        is_new = fold_losses.closes_s > last_s.get(cell.series, -1)
        naive = float(losses[NAIVE].mean(dtype=np.float64)) or 1.0
        difference = losses[MODEL].astype(np.float64) - losses[baseline]
        times.append(fold_losses.closes_s[is_new])
        values.append(difference[is_new] / naive)
        last_s[cell.series] = int(fold_losses.closes_s[-1])
    closes_s, places = np.unique(np.concatenate(times), return_inverse=True)
    sums = np.bincount(places, weights=np.concatenate(values))
    return closes_s, sums / np.bincount(places)
