"""What a run shows of its finished series: leaderboard, report and timing, rewritten after each (G13)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from v8.artifacts.forecast_sample import FORECASTS_FILE, read_sample
from v8.artifacts.run_folder import RunRecord, read_run
from v8.artifacts.series_artifact import HISTORY_FILE, read_metadata
from v8.reports.leaderboard import LEADERBOARD_FILE, LeaderboardRow, rank_results, write_leaderboard_csv
from v8.reports.markup import Html
from v8.reports.page import run_page, series_section
from v8.reports.results import SeriesResult, read_history, read_results
from v8.storage import write_json, write_text

REPORT_FILE = "report.html"
TIMING_FILE = "timing.json"

TIMING_FORMAT = 1
"""Version of the keys of `timing.json`."""


def write_outputs(run: Path) -> list[LeaderboardRow]:
    """Write `leaderboard.csv`, `report.html` and `timing.json` from what is on disk.

    Args:
        run: A run folder.

    Returns:
        The leaderboard, best first; empty while nothing is finished.

    Raises:
        ArtifactError: If the run or a finished artefact is damaged.
    """
    return RunOutputs(run).write()


class RunOutputs:
    """The outputs of a run that is under way, written again whenever a series has ended.

    A finished series is read and drawn once; forty of them anew after each cost a tenth of a short run.

    Args:
        run: A run folder; nobody else finishes series in it meanwhile.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._finished: dict[str, _Finished] = {}

    def write(self) -> list[LeaderboardRow]:
        """Write all outputs, as `write_outputs` does."""
        record = read_run(self._run)
        finished = [self._read(name) for name, state in record.series.items() if state.status == "done"]
        results = [one.result for one in finished]
        rows = rank_results(results)
        sections = {one.result.series: one.section for one in finished}
        write_leaderboard_csv(self._run / LEADERBOARD_FILE, rows)
        write_text(self._run / REPORT_FILE, run_page(record, results, sections))
        write_json(self._run / TIMING_FILE, _timing(record, results))
        return rows

    def _read(self, name: str) -> _Finished:
        if name not in self._finished:
            folder = self._run / name
            (result,) = read_results([read_metadata(folder, series=name)])
            history, sample = read_history(folder / HISTORY_FILE), read_sample(folder / FORECASTS_FILE)
            self._finished[name] = _Finished(result, series_section(result, history, sample))
        return self._finished[name]


@dataclass(frozen=True)
class _Finished:
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
