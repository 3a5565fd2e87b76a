"""What a run shows of its finished series: leaderboard, report and timing, rewritten after each (G13).

Of each series the model that serves is shown. None of it is needed to go on: a file that cannot be written,
and a series whose files are damaged, are told and left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from v8.artifacts.forecast_sample import FORECASTS_FILE, ForecastSample, read_sample
from v8.artifacts.generations import served_folder
from v8.artifacts.run_folder import RunRecord, read_run
from v8.artifacts.series_artifact import HISTORY_FILE, read_metadata, redo_offered
from v8.errors import ArtifactError, StorageError, V8Error
from v8.invocation import command
from v8.reports.leaderboard import LEADERBOARD_FILE, LeaderboardRow, rank_results, write_leaderboard_csv
from v8.reports.markup import Html
from v8.reports.page import run_page, series_section
from v8.reports.results import History, SeriesResult, read_history, read_results
from v8.storage import write_json, write_text

REPORT_FILE = "report.html"
TIMING_FILE = "timing.json"

TIMING_FORMAT = 1
"""Version of the keys of `timing.json`."""

Tell: TypeAlias = Callable[[V8Error], object]
"""Told what is left out, and why."""


@dataclass(frozen=True)
class FinishedSeries:
    """What is shown of a finished series, as its files hold it."""

    metadata: Mapping[str, Any]
    result: SeriesResult
    history: History
    sample: ForecastSample | None


def read_finished(folder: Path) -> FinishedSeries:
    """Read and check what is shown of the series that a folder is named after.

    Raises:
        ArtifactError: If one of its files is damaged; the error says how to make the series again.
    """
    with redo_offered(folder):
        metadata = read_metadata(folder, series=folder.name)
        (result,) = read_results([metadata])
        history = read_history(folder / HISTORY_FILE)
        if len(history) != result.epochs_run:
            raise ArtifactError(
                where=str(folder / HISTORY_FILE),
                rule=f"must have a row for each of {result.epochs_run} epochs",
                got=str(len(history)),
                fix="Restore it",
            )
        return FinishedSeries(metadata, result, history, read_sample(folder / FORECASTS_FILE))


def _refuse(error: V8Error) -> None:
    raise error


def write_outputs(run: Path, tell: Tell = _refuse) -> list[LeaderboardRow]:
    """Write `leaderboard.csv`, `report.html` and `timing.json` from what is on disk.

    Args:
        run: A run folder.
        tell: Told which series is damaged and which files cannot be written; unless given, that is raised.

    Returns:
        The leaderboard, best first; empty while nothing is finished.

    Raises:
        ArtifactError: If the run's own record is damaged.
    """
    return RunOutputs(run, tell).write()


class RunOutputs:
    """The outputs of a run that is under way, written again whenever a series has ended.

    A finished series is read and drawn once; forty of them anew after each cost a tenth of a short run.

    Args:
        run: A run folder; nobody else finishes series in it meanwhile.
        tell: Told which series is damaged and which files cannot be written.
    """

    def __init__(self, run: Path, tell: Tell) -> None:
        self._run, self._tell = run, tell
        self._shown: dict[str, _Shown | None] = {}

    def write(self) -> list[LeaderboardRow]:
        """Write all outputs, as `write_outputs` does."""
        record = read_run(self._run)
        done = (name for name, state in record.series.items() if state.status == "done")
        finished = [one for one in map(self._read, done) if one]
        results = [one.result for one in finished]
        rows = rank_results(results)
        sections = {one.result.series: one.section for one in finished}
        self._write(
            {
                LEADERBOARD_FILE: lambda file: write_leaderboard_csv(file, rows),
                REPORT_FILE: lambda file: write_text(file, run_page(record, results, sections)),
                TIMING_FILE: lambda file: write_json(file, _timing(record, results)),
            }
        )
        return rows

    def _read(self, name: str) -> _Shown | None:
        if name not in self._shown:
            try:
                found = read_finished(served_folder(self._run, name))
            except ArtifactError as error:
                self._tell(error)
                self._shown[name] = None
            else:
                section = series_section(found.result, found.history, found.sample)
                self._shown[name] = _Shown(found.result, section)
        return self._shown[name]

    def _write(self, writers: Mapping[str, Callable[[Path], None]]) -> None:
        got: dict[str, str] = {}
        for name, write in writers.items():
            try:
                write(self._run / name)
            except StorageError as error:
                got[name] = error.got
        if got:
            rule = f"{', '.join(got)} could not be written, and no series needs them"
            fix = f"Make room, then draw them again with `{command('report', str(self._run))}`"
            self._tell(StorageError(where=str(self._run), rule=rule, got=next(iter(got.values())), fix=fix))


@dataclass(frozen=True)
class _Shown:
    """What the outputs show of one finished series: its result, and its part of the page."""

    result: SeriesResult
    section: Html


def _timing(record: RunRecord, results: Iterable[SeriesResult]) -> dict[str, Any]:
    per_series = {result.series: dict(result.seconds) for result in results}
    stages = list(dict.fromkeys(stage for seconds in per_series.values() for stage in seconds))
    return {
        "format": TIMING_FORMAT,
        "command": record.command,
        "machine": record.machine,
        "num_series": len(per_series),
        "total_seconds": {
            stage: math.fsum(seconds.get(stage, 0.0) for seconds in per_series.values()) for stage in stages
        },
        "series": per_series,
    }
