"""The leaderboard of a run: one row per finished series, the best forecast of candles first.

It is made from `SeriesResult`, what reports read from the `metadata.json` of a finished series.

Rule of the order: the OHLC error as a multiple of the naive forecast's, smallest first; series without
that number last; ties by name. All errors are mean absolute errors in returns over all steps and
columns of a task, on the test span.

Every score stands beside the naive forecast and the best baseline of the whole leaderboard. The p-values of
each task and baseline are corrected together over its series; verdicts follow the corrected ones.
"""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import StrictBool

from v8.columns import TASK_OHLC
from v8.errors import ArtifactError
from v8.evaluation.evaluation import Evaluation, QuantileEvaluation, best_baseline
from v8.evaluation.importance import Importance
from v8.evaluation.significance import LOSES, Against, corrected
from v8.records import MAX_SIZE, Count, Seconds, Text, at_keys, checked, read_plain
from v8.storage import write_text
from v8.tasks import TASKS
from v8.wording import Table

History = Sequence[Mapping[str, float]]
"""One record per epoch with at least `epoch`, `train_loss` and `validation_loss`."""

HISTORY_COLUMNS = ("epoch", "train_loss", "validation_loss")
_FIX: Final = "Restore the file or train the series again"


@dataclass(frozen=True)
class SeriesResult:
    """One finished series, as reports show it."""

    series: Text  # its name, "BTCUSDT-15m"
    source: Annotated[Text, at_keys("candles", "source")]  # name of the candle source
    is_demo: Annotated[StrictBool, at_keys("is_demo_market")]  # whether the market was simulated
    best_epoch: Annotated[Count, at_keys("training", "best_epoch")]  # whose weights were kept; 0 is untrained
    epochs_run: Annotated[Count, at_keys("training", "epochs_run")]  # epochs trained
    seconds: dict[str, Seconds]  # wall time per stage, in seconds
    evaluation: Evaluation  # errors beside the baselines
    split: Mapping[str, Any]  # spans of the table, as `SeriesData.describe_split` writes them
    candle_report: Annotated[Mapping[str, Any], at_keys("candles", "report")]  # see `CandleReport`
    quantiles: QuantileEvaluation | None = None  # how its quantiles did; None where it has none
    importance: Importance | None = None  # what kinds of inputs are worth; None where nobody asked

    @property
    def total_seconds(self) -> float:
        """Wall time over all stages, in seconds."""
        return math.fsum(self.seconds.values())

    @property
    def hit_rate(self) -> float | None:
        """Share of windows whose direction at step 1 was right, 0 to 1; None without any."""
        return self.evaluation.direction[0].rate

    @property
    def hit_rate_95(self) -> tuple[float, float] | None:
        """Its 95 % interval, for as many windows as are effective."""
        return self.evaluation.direction[0].interval


def read_result(content: Mapping[str, Any]) -> SeriesResult:
    """Read the metadata of a finished series, as `metadata.json` holds it."""
    where = f"metadata of {content.get('series', 'a series')}"
    evaluated = {
        key: kind.from_json(content[key], where=f"{where}, key {key}")
        for key, kind in (("evaluation", Evaluation), ("quantiles", QuantileEvaluation))
        if key in content
    }
    return checked(SeriesResult, {**content, **evaluated}, where=where, fix=_FIX)


def read_history(file: Path) -> list[dict[str, float]]:
    """Read the `history.csv` of a series, as `v8.artifacts.series_artifact` writes it.

    A record per epoch: `epoch`, and the unitless scaled losses `train_loss`, `validation_loss`.
    """

    def refused(got: str) -> ArtifactError:
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
        raise refused(f"{type(error).__name__}: {error}") from error
    values = [value for row in rows for value in row.values()]
    if not all(map(math.isfinite, values)):
        raise refused("a number that is not finite")
    if any(abs(value) > MAX_SIZE for value in values):
        raise refused(f"a number beyond {MAX_SIZE:g}")
    return rows


LEADERBOARD_FILE: Final = "leaderboard.csv"

_COLUMNS: Final = {
    "naive": {
        "relative_mae": "multiple",
        "mae_skill": "skill",
        "verdict": "verdict",
        "mae_p_value": "p_value",
        "mae_corrected_p_value": "corrected_p_value",
    },
    "best": {
        "best_baseline": "name",
        "relative_mae_to_best": "multiple",
        "mae_skill_against_best": "skill",
        "verdict_against_best": "verdict",
        "mae_p_value_against_best": "p_value",
        "mae_corrected_p_value_against_best": "corrected_p_value",
    },
}
"""Columns of every task and the fields of `Against` in them; those of the best baseline stand behind all
others, where older readers do not look."""

_SERIES_COLUMNS: Final = (
    *("direction_hit_rate_step_1", "direction_low_95", "direction_high_95"),
    *("best_epoch", "epochs_run", "seconds"),
)


@dataclass(frozen=True)
class TaskScore:
    """One task of one series, beside the naive forecast and the best baseline of the task."""

    naive: Against
    best: Against

    @property
    def shown(self) -> tuple[Against, ...]:
        """Both, or naive alone where no other baseline is better than it."""
        return (self.naive,) if self.best.name == self.naive.name else (self.naive, self.best)

    @property
    def lost(self) -> list[str]:
        """Names of those of the two that are better than the model by more than chance."""
        return [one.name for one in self.shown if one.outcome == LOSES]


Scored = TypeVar("Scored", bound=TaskScore)


@dataclass(frozen=True, kw_only=True)
class LeaderboardRow(SeriesResult):
    """One finished series beside the others."""

    tasks: Mapping[str, TaskScore]  # score of each task of the profile, in the order of `v8.tasks.TASKS`


def rank_results(results: Iterable[SeriesResult]) -> list[LeaderboardRow]:
    """Rank the finished series of a run, in the order stated at the top of this module."""
    evaluated = list(results)
    scores: dict[str, dict[str, TaskScore]] = {result.series: {} for result in evaluated}
    for task in TASKS:
        having = {one.series: one.evaluation for one in evaluated if task in one.evaluation.tasks}
        if having:
            best = best_baseline([*having.values()], task)
            those = [TaskScore(one.against(task), one.against(task, best)) for one in having.values()]
            for series, score in zip(having, with_corrected(those), strict=True):
                scores[series][task] = score
    rows = (LeaderboardRow(**vars(result), tasks=scores[result.series]) for result in evaluated)
    return sorted(rows, key=_rank)


def compared(rows: Iterable[LeaderboardRow]) -> dict[tuple[str, str], dict[str, Against]]:
    """Put series, by name, beside each baseline that is shown, by task and its name: tasks in their order."""
    found: dict[tuple[str, str], dict[str, Against]] = {}
    for row in rows:
        for task, one in ((task, one) for task, score in row.tasks.items() for one in score.shown):
            found.setdefault((task, one.name), {})[row.series] = one
    return {key: found[key] for task in TASKS for key in found if key[0] == task}


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the numbers that there are; None without any."""
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def write_leaderboard_csv(path: Path, rows: Sequence[LeaderboardRow]) -> None:
    """Write rows as CSV in the order given, atomically; the columns are the same for every profile.

    Tasks that a profile lacks and numbers that do not exist are empty cells.
    """
    of_naive, of_best = (
        [f"{task}_{column}" for task in TASKS for column in columns] for columns in _COLUMNS.values()
    )
    columns = ["series", "source", *of_naive, *_SERIES_COLUMNS, *of_best]
    write_text(path, Table(columns, map(_csv_cells, rows)).csv())


def _csv_cells(row: LeaderboardRow) -> list[object]:
    those = [row.tasks.get(task) for task in TASKS]
    of_naive, of_best = (
        [getattr(getattr(score, kind, None), name, None) for score in those for name in columns.values()]
        for kind, columns in _COLUMNS.items()
    )
    ends = row.hit_rate_95 or (None, None)
    about = [row.hit_rate, *ends, row.best_epoch, row.epochs_run, round(row.total_seconds, 3)]
    return [row.series, row.source, *of_naive, *about, *of_best]


def with_corrected(scores: Sequence[Scored]) -> list[Scored]:
    """Correct the p-values of a table for how many there are, naive's and the best baselines' apart."""
    naive, best = (corrected([getattr(one, kind) for one in scores]) for kind in _COLUMNS)
    both = zip(scores, naive, best, strict=True)
    return [replace(one, naive=for_naive, best=for_best) for one, for_naive, for_best in both]


def _rank(row: LeaderboardRow) -> tuple[float, str]:
    multiple = row.tasks[TASK_OHLC].naive.multiple
    return (math.inf if multiple is None else multiple, row.series)
