"""The verdicts on the series of a run, and its leaderboard: one row per series, the best forecast first.

A verdict says how a model's error on one task of one series compares with two baselines'. Verdicts are
computed once, for all series that were trained together, and stored in the metadata of each
(`v8.forecaster.series_artifact.store_verdicts`). Tables, sentences, pages and programs read them from there.

The two baselines are the naive forecast and the *best baseline* of the task, its reference: chosen once, on
validation spans of the archive, and shipped (`reference_baseline`). Chosen on the test span, the
model would be compared with a baseline that was lucky there; chosen for each run, a number would mean
something else in a run of other series. A task of a plug-in has no reference: there the smallest median error
on the validation spans of the run decides, for all series of a timeframe.

The p-values of a task are corrected together over the series, separately for the two baselines.

Each row of the leaderboard is made from a `SeriesResult`, which is read from the `metadata.json` of a
finished series.

Order: by the relative MAE of OHLC (to the naive forecast), smallest first; series without that number last;
ties by name. All errors are mean absolute errors in returns over all steps and columns of a task, on the test
span.
"""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from pydantic import StrictBool

from v8.base.errors import ArtifactError
from v8.base.records import MAX_SIZE, Count, Seconds, Text, Word, at_keys, checked, read_plain
from v8.base.storage import write_text
from v8.base.wording import Table
from v8.model.baselines.baselines import NAIVE
from v8.model.baselines.paths import RangeCoverage
from v8.model.evaluation.evaluation import Evaluation, JsonRecord, QuantileEvaluation, best_baseline
from v8.model.evaluation.metrics import Importance
from v8.model.evaluation.significance import BEATS, LOSES, UNKNOWN, BaselineComparison, corrected
from v8.profile.columns import TASK_OHLC
from v8.profile.tasks import TASKS


@dataclass(frozen=True)
class Verdict:
    """One task of one series, compared with the naive forecast and with the best baseline of the task."""

    naive: BaselineComparison
    best: BaselineComparison

    @property
    def comparisons(self) -> tuple[BaselineComparison, ...]:
        """Both comparisons, or the one with naive alone where naive is the best baseline."""
        return (self.naive,) if self.best.name == self.naive.name else (self.naive, self.best)

    @property
    def beats_both(self) -> bool:
        """Whether the model is significantly better than both baselines."""
        return all(comparison.outcome == BEATS for comparison in self.comparisons)

    @property
    def lost_to(self) -> list[str]:
        """Names of those of the two baselines that are significantly better than the model."""
        return [comparison.name for comparison in self.comparisons if comparison.outcome == LOSES]


Verdicts = Mapping[Word, Verdict]
"""The verdicts on one series, by the name of the task."""
AnyVerdict = TypeVar("AnyVerdict", bound=Verdict)


def references(verdicts: Verdicts) -> dict[str, str]:
    """Return the best baseline of each task that the verdicts on a series name."""
    return {task: verdict.best.baseline for task, verdict in verdicts.items()}


def verdicts_of(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, Verdict]]:
    """Compute the verdicts on series that were evaluated together, by series and task.

    `evaluations` are by the name of the series, "BTCUSDT-15m".
    """
    by_series: dict[str, dict[str, Verdict]] = {series: {} for series in evaluations}
    for task in TASKS:
        with_task = {series: each for series, each in evaluations.items() if task in each.tasks}
        best = _best_by_timeframe(with_task, task)
        verdicts = [
            Verdict(evaluation.against(task), evaluation.against(task, best[timeframe_of(series)]))
            for series, evaluation in with_task.items()
        ]
        for series, verdict in zip(with_task, with_corrected(verdicts), strict=True):
            by_series[series][task] = verdict
    return by_series


def _best_by_timeframe(evaluations: Mapping[str, Evaluation], task: str) -> dict[str, str]:
    groups: dict[str, list[Evaluation]] = {}
    for series, evaluation in evaluations.items():
        groups.setdefault(timeframe_of(series), []).append(evaluation)
    return {timeframe: best_baseline(group, task) for timeframe, group in groups.items()}


def timeframe_of(series: str) -> str:
    """Return the timeframe in the name of a series.

    >>> timeframe_of("BTC-PERP-15m")
    '15m'
    """
    return series.rpartition("-")[2]


def with_corrected(verdicts: Sequence[AnyVerdict]) -> list[AnyVerdict]:
    """Fill in the corrected p-values of one table of verdicts.

    The tests against the naive forecast and those against the best baselines are corrected separately.
    """
    naive = corrected([verdict.naive for verdict in verdicts])
    best = corrected([verdict.best for verdict in verdicts])
    return [
        replace(verdict, naive=with_naive, best=with_best)
        for verdict, with_naive, with_best in zip(verdicts, naive, best, strict=True)
    ]


def are_of_one_table(verdicts: Mapping[str, Verdicts]) -> bool:
    """Return whether stored verdicts, by series, have one best baseline for each task and timeframe."""
    names: dict[tuple[str, str], str] = {}
    for series, by_task in verdicts.items():
        for task, verdict in by_task.items():
            best = verdict.best.baseline
            if names.setdefault((timeframe_of(series), task), best) != best:
                return False
    return True


TrainingHistory: TypeAlias = Sequence[Mapping[str, float]]
"""One record per epoch with at least `epoch`, `train_loss` and `validation_loss`."""

HISTORY_COLUMNS = ("epoch", "train_loss", "validation_loss")
_FIX: Final = "Restore the file or train the series again"


@dataclass(frozen=True)
class SeriesResult:
    """What reports need of one finished series."""

    series: Text  # its name, "BTCUSDT-15m"
    source: Annotated[Text, at_keys("candles", "source")]  # name of the candle source
    is_demo: Annotated[StrictBool, at_keys("is_demo_market")]  # whether the market was simulated
    best_epoch: Annotated[Count, at_keys("training", "best_epoch")]  # whose weights were kept; 0: untrained
    epochs_run: Annotated[Count, at_keys("training", "epochs_run")]  # number of epochs trained
    seconds: dict[str, Seconds]  # wall time per stage, in seconds
    evaluation: Evaluation  # errors of the model and of the baselines
    split: Mapping[str, Any]  # spans of the table, as `SeriesData.describe_split` writes them
    candle_report: Annotated[Mapping[str, Any], at_keys("candles", "report")]  # see `CandleReport`
    quantiles: QuantileEvaluation | None = None  # errors of its quantiles; None if it forecasts none
    importance: Importance | None = None  # permutation importance of the inputs; None if not measured
    price_range: RangeCoverage | None = None  # of its range of prices; None if that was not evaluated
    verdict: Verdicts | None = None  # stored when its run ended; None before, and in older files

    @property
    def total_seconds(self) -> float:
        """Wall time over all stages, in seconds."""
        return math.fsum(self.seconds.values())

    @property
    def hit_rate(self) -> float | None:
        """Hit rate of the direction at step 1, 0 to 1; None if no window has a direction."""
        return self.evaluation.direction[0].rate

    @property
    def hit_rate_95(self) -> tuple[float, float] | None:
        """95 % confidence interval of the hit rate, for the effective number of windows."""
        return self.evaluation.direction[0].interval


def read_result(content: Mapping[str, Any]) -> SeriesResult:
    """Read the metadata of a finished series, as `metadata.json` holds it."""
    location = f"metadata of {content.get('series', 'a series')}"
    kinds: dict[str, type[JsonRecord]] = {"evaluation": Evaluation, "quantiles": QuantileEvaluation}
    sections = {
        key: kind.from_json(content[key], where=f"{location}, key {key}")
        for key, kind in kinds.items()
        if key in content
    }
    return checked(SeriesResult, {**content, **sections}, where=location, fix=_FIX)


def read_history(file: Path) -> list[dict[str, float]]:
    """Read the `history.csv` of a series, as `v8.forecaster.series_artifact` writes it.

    Returns:
        One record per epoch: `epoch`, and the unitless scaled losses `train_loss` and `validation_loss`.

    Raises:
        ArtifactError: If the file cannot be read, or holds anything but finite numbers.
    """

    def damaged(got: str) -> ArtifactError:
        rule = f"must be CSV with the numbers {', '.join(HISTORY_COLUMNS)}"
        return ArtifactError(where=str(file), rule=rule, got=got, fix=_FIX)

    try:
        lines = io.StringIO(read_plain(file, fix=_FIX).decode("utf-8"), newline="")
        table = csv.DictReader(lines)
        missing = [name for name in HISTORY_COLUMNS if name not in (table.fieldnames or ())]
        if missing:
            raise KeyError(missing[0])
        rows = [{name: float(row[name]) for name in HISTORY_COLUMNS} for row in table]
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise damaged(f"{type(error).__name__}: {error}") from error
    values = [value for row in rows for value in row.values()]
    if not all(map(math.isfinite, values)):
        raise damaged("a number that is not finite")
    if any(abs(value) > MAX_SIZE for value in values):
        raise damaged(f"a number beyond {MAX_SIZE:g}")
    return rows


LEADERBOARD_FILE: Final = "leaderboard.csv"

_NAIVE_COLUMNS: Final = (
    "relative_mae",
    "mae_skill",
    "verdict",
    "mae_p_value",
    "mae_corrected_p_value",
)
"""Columns of the comparison with the naive forecast; the name of the task goes before each."""

_BEST_COLUMNS: Final = (
    "best_baseline",
    "relative_mae_to_best",
    "mae_skill_against_best",
    "verdict_against_best",
    "mae_p_value_against_best",
    "mae_corrected_p_value_against_best",
)
"""Columns of the comparison with the best baseline. They follow after all others: programs that know the
older columns by their position still find them."""

_SERIES_COLUMNS: Final = (
    *("direction_hit_rate_step_1", "direction_low_95", "direction_high_95"),
    *("best_epoch", "epochs_run", "seconds"),
)


@dataclass(frozen=True, kw_only=True)
class LeaderboardRow(SeriesResult):
    """One row of the leaderboard."""

    tasks: Verdicts  # one for each task of the profile, in the order of `v8.profile.tasks.TASKS`


def rank_results(
    results: Iterable[SeriesResult], verdicts: Mapping[str, Verdicts] | None = None
) -> list[LeaderboardRow]:
    """Rank finished series, in the order stated at the top of this module.

    Args:
        results: The finished series.
        verdicts: By series. None for those that are stored with the series; if some have none, or if they
            come from runs with other best baselines, all are computed anew.
    """
    finished = list(results)
    if verdicts is None:
        verdicts = {result.series: result.verdict for result in finished if result.verdict is not None}
        if len(verdicts) < len(finished) or not are_of_one_table(verdicts):
            verdicts = verdicts_of({result.series: result.evaluation for result in finished})
    rows = (LeaderboardRow(**vars(result), tasks=verdicts[result.series]) for result in finished)
    return sorted(rows, key=_rank)


def untested(rows: Iterable[LeaderboardRow]) -> list[str]:
    """List the series of which a comparison is not tested, because there are too few windows."""
    return [
        row.series
        for row in rows
        if any(UNKNOWN in (score.naive.outcome, score.best.outcome) for score in row.tasks.values())
    ]


BEST: Final = "best baseline"
"""Name of the best baselines of a task where they differ between timeframes."""


def compared(rows: Iterable[LeaderboardRow]) -> dict[tuple[str, str], dict[str, BaselineComparison]]:
    """Group the comparisons of a leaderboard: for each task those with naive, then with the best baseline.

    Returns:
        The comparisons by series, for each pair of task and name of the baseline; tasks in their usual order.
        Where the timeframes of a task have different best baselines, the name is `BEST`.
    """
    groups: dict[tuple[str, str], dict[str, BaselineComparison]] = {}
    rows = list(rows)
    for task in TASKS:
        verdicts = {row.series: row.tasks[task] for row in rows if task in row.tasks}
        if not verdicts:
            continue
        naive = {series: verdict.naive for series, verdict in verdicts.items()}
        groups[task, NAIVE] = naive
        names = {verdict.best.name for verdict in verdicts.values()}
        if names != {NAIVE}:
            name = names.pop() if len(names) == 1 else BEST
            groups[task, name] = {series: verdict.best for series, verdict in verdicts.items()}
    return groups


def best_baselines(rows: Iterable[LeaderboardRow]) -> dict[str, dict[str, str]]:
    """Return the name of the best baseline by task and timeframe."""
    names: dict[str, dict[str, str]] = {}
    for row in rows:
        for task, verdict in row.tasks.items():
            names.setdefault(task, {})[timeframe_of(row.series)] = verdict.best.name
    return names


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None; None if all are."""
    numbers = [value for value in values if value is not None]
    return float(statistics.median(numbers)) if numbers else None


def write_leaderboard_csv(path: Path, rows: Sequence[LeaderboardRow]) -> None:
    """Write rows as CSV in the order given, atomically; the columns are the same for every profile.

    Cells are empty for tasks that the profile does not have, and for numbers that do not exist.
    """
    naive_columns = [f"{task}_{column}" for task in TASKS for column in _NAIVE_COLUMNS]
    best_columns = [f"{task}_{column}" for task in TASKS for column in _BEST_COLUMNS]
    columns = ["series", "source", *naive_columns, *_SERIES_COLUMNS, *best_columns]
    write_text(path, Table(columns, map(_csv_cells, rows)).csv())


def _csv_cells(row: LeaderboardRow) -> list[object]:
    naive_cells: list[object] = []
    best_cells: list[object] = []
    for task in TASKS:
        score = row.tasks.get(task)
        if score is None:
            naive_cells += [None] * len(_NAIVE_COLUMNS)
            best_cells += [None] * len(_BEST_COLUMNS)
        else:
            naive_cells += _comparison_cells(score.naive)
            best_cells += [score.best.name, *_comparison_cells(score.best)]
    low, high = row.hit_rate_95 or (None, None)
    seconds = round(row.total_seconds, 3)
    series_cells = [row.hit_rate, low, high, row.best_epoch, row.epochs_run, seconds]
    names = [_without_formula(row.series), _without_formula(row.source)]
    return [*names, *naive_cells, *series_cells, *best_cells]


def _comparison_cells(comparison: BaselineComparison) -> list[object]:
    """Return the cells of `_NAIVE_COLUMNS`, which those of `_BEST_COLUMNS` but the name are, too."""
    return [
        comparison.relative_mae,
        comparison.skill,
        comparison.verdict,
        comparison.p_value,
        comparison.corrected_p_value,
    ]


def _rank(row: LeaderboardRow) -> tuple[float, str]:
    relative_mae = row.tasks[TASK_OHLC].naive.relative_mae
    return (math.inf if relative_mae is None else relative_mae, row.series)


def _without_formula(text: str) -> str:
    """Keep a spreadsheet from evaluating a text that somebody else wrote as a formula.

    >>> _without_formula("=1+1"), _without_formula("vision")
    ("'=1+1", 'vision')
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
