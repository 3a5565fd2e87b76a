"""What a run shows of its finished series: leaderboard, report and timing, rewritten after each (G13)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from v8.artifacts.forecast_sample import FORECASTS_FILE, ForecastSample, read_sample
from v8.artifacts.run_folder import RunRecord, read_run
from v8.artifacts.series_artifact import HISTORY_FILE, read_metadata
from v8.reports.leaderboard import LeaderboardRow, leaderboard, write_leaderboard_csv
from v8.reports.page import write_run_report
from v8.reports.results import read_history
from v8.storage import write_json

LEADERBOARD_FILE = "leaderboard.csv"
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
    record = read_run(run)
    metadata = finished_metadata(run, record)
    rows = leaderboard(metadata)
    names = [str(content["series"]) for content in metadata]
    histories = {name: read_history(run / name / HISTORY_FILE) for name in names}
    write_leaderboard_csv(run / LEADERBOARD_FILE, rows)
    write_run_report(run / REPORT_FILE, asdict(record), metadata, histories, read_samples(run, names))
    write_json(run / TIMING_FILE, _timing(record, metadata))
    return rows


def read_samples(run: Path, names: Iterable[str]) -> dict[str, ForecastSample]:
    """Read the forecasts to show of every series that has some."""
    found = {name: read_sample(run / name / FORECASTS_FILE) for name in names}
    return {name: sample for name, sample in found.items() if sample}


def finished_metadata(run: Path, record: RunRecord) -> list[dict[str, Any]]:
    """Read the metadata of every finished series, in the order of the run."""
    return [read_metadata(run / name) for name, state in record.series.items() if state.status == "done"]


def _timing(record: RunRecord, metadata: list[dict[str, Any]]) -> dict[str, Any]:
    per_series = {content["series"]: content["seconds"] for content in metadata}
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
