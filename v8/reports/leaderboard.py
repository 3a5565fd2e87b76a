"""The leaderboard of a run: one row per finished series, the best forecast of candles first.

Rule of the order: the OHLC error as a multiple of the naive forecast's, smallest first; series without
that number last; ties by name. All errors are mean absolute errors in returns over all steps and
columns of a task, on the test span.

P-values are those of the Diebold-Mariano test against the naive forecast. Many series are judged at
once, so each task's p-values are corrected together over the series of the leaderboard (Benjamini and
Hochberg); "significant" always means the corrected ones. See `v8.evaluation.significance`.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from v8.columns import TASK_OHLC
from v8.evaluation.judgement import BEATS, LOSES
from v8.evaluation.significance import ALPHA, corrected_p_values
from v8.reports.results import SeriesResult
from v8.storage import write_text
from v8.tasks import TASKS

LEADERBOARD_FILE: Final = "leaderboard.csv"

_SCORE_COLUMNS: Final = {
    "mae_multiple_of_naive": "multiple",
    "mae_skill": "skill",
    "verdict": "verdict",
    "mae_p_value": "p_value",
    "mae_corrected_p_value": "corrected_p_value",
}
"""Columns of every task and the fields of `TaskScore` in them."""

_LAST_COLUMNS: Final = (
    "direction_hit_rate_step_1",
    "direction_low_95",
    "direction_high_95",
    "best_epoch",
    "epochs_run",
    "seconds",
)


@dataclass(frozen=True)
class TaskScore:
    """One task of one series.

    Args:
        multiple: Model error over naive error, unitless, below 1 is better; None if naive made none.
        skill: 1 - multiple, or None.
        verdict: `beats naive`, `equals naive` or `loses to naive`.
        p_value: Chance of a difference to naive this large if there were none, 0 to 1, two-sided; None
            when the span is too short to say, or the forecasts are the same.
        corrected_p_value: The same, corrected over all series of the leaderboard; None likewise.
    """

    multiple: float | None
    skill: float | None
    verdict: str
    p_value: float | None = None
    corrected_p_value: float | None = None

    @property
    def is_significant(self) -> bool:
        """Whether it differs from naive, in the direction of the verdict, by more than chance."""
        return self.corrected_p_value is not None and self.corrected_p_value < ALPHA


@dataclass(frozen=True)
class LeaderboardRow:
    """One finished series.

    Args:
        series: Its name, "BTCUSDT-15m".
        source: Name of the candle source; "demo" is a simulated market.
        tasks: Score of each task of the profile, in the order of `v8.tasks.TASKS`.
        hit_rate: Share of windows whose direction at step 1 was right, 0 to 1; None without any.
        hit_rate_95: Its 95 % interval, for as many windows as are effective; None without any.
        best_epoch: Epoch whose weights were kept; 0 is the untrained network.
        epochs_run: Epochs trained.
        seconds: Wall time over all stages, in seconds.
    """

    series: str
    source: str
    tasks: Mapping[str, TaskScore]
    hit_rate: float | None
    hit_rate_95: tuple[float, float] | None
    best_epoch: int
    epochs_run: int
    seconds: float


@dataclass(frozen=True)
class TaskSummary:
    """One task over all series that have it.

    Args:
        num_series: Series with this task.
        num_beating: Series among them that beat naive.
        num_significantly_beating: Series among those whose difference is significant.
        num_significantly_losing: Series that lose to naive by a significant difference.
        median_multiple: Median over the series with such a number, unitless; None without any.
        median_skill: Likewise for the skill.
    """

    num_series: int
    num_beating: int
    num_significantly_beating: int
    num_significantly_losing: int
    median_multiple: float | None
    median_skill: float | None


def rank_results(results: Iterable[SeriesResult]) -> list[LeaderboardRow]:
    """Rank the finished series of a run, in the order stated at the top of this module."""
    judged = list(results)
    corrected: dict[tuple[str, str], float | None] = {}
    for task in TASKS:
        having = [result for result in judged if task in result.judgement.errors]
        p_values = corrected_p_values([result.judgement.p_value(task) for result in having])
        corrected |= {(result.series, task): p for result, p in zip(having, p_values, strict=True)}
    return sorted((_row(result, corrected) for result in judged), key=_rank)


def summarise(rows: Sequence[LeaderboardRow]) -> dict[str, TaskSummary]:
    """Summarise every task that any series has, in the order of the tasks."""
    scores = {task: [row.tasks[task] for row in rows if task in row.tasks] for task in TASKS}
    return {task: _summarise_task(those) for task, those in scores.items() if those}


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the numbers that there are; None without any."""
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def write_leaderboard_csv(path: Path, rows: Sequence[LeaderboardRow]) -> None:
    """Write rows as CSV in the order given, atomically; the columns are the same for every profile.

    Tasks that a profile lacks and numbers that do not exist are empty cells.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    task_columns = [f"{task}_{column}" for task in TASKS for column in _SCORE_COLUMNS]
    writer.writerow(["series", "source", *task_columns, *_LAST_COLUMNS])
    writer.writerows(_cells(row) for row in rows)
    write_text(path, stream.getvalue())


def _row(result: SeriesResult, corrected: Mapping[tuple[str, str], float | None]) -> LeaderboardRow:
    judgement, first_step = result.judgement, result.judgement.direction[0]
    return LeaderboardRow(
        series=result.series,
        source=result.source,
        tasks={
            task: TaskScore(
                multiple=judgement.multiple(task),
                skill=judgement.skill(task),
                verdict=judgement.verdict(task),
                p_value=judgement.p_value(task),
                corrected_p_value=corrected[result.series, task],
            )
            for task in TASKS
            if task in judgement.errors
        },
        hit_rate=first_step.rate,
        hit_rate_95=first_step.interval,
        best_epoch=result.best_epoch,
        epochs_run=result.epochs_run,
        seconds=result.total_seconds,
    )


def _rank(row: LeaderboardRow) -> tuple[float, str]:
    multiple = row.tasks[TASK_OHLC].multiple
    return (math.inf if multiple is None else multiple, row.series)


def _summarise_task(scores: Sequence[TaskScore]) -> TaskSummary:
    return TaskSummary(
        num_series=len(scores),
        num_beating=sum(score.verdict == BEATS for score in scores),
        num_significantly_beating=sum(score.is_significant and score.verdict == BEATS for score in scores),
        num_significantly_losing=sum(score.is_significant and score.verdict == LOSES for score in scores),
        median_multiple=median(score.multiple for score in scores),
        median_skill=median(score.skill for score in scores),
    )


def _cells(row: LeaderboardRow) -> list[object]:
    scores = [row.tasks.get(task) for task in TASKS]
    task_cells = [getattr(score, name, None) for score in scores for name in _SCORE_COLUMNS.values()]
    ends = row.hit_rate_95 or (None, None)
    last = [row.hit_rate, *ends, row.best_epoch, row.epochs_run, round(row.seconds, 3)]
    return [row.series, row.source, *task_cells, *last]
