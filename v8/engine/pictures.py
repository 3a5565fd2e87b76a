"""Draws the pictures of a run from its files; apart from the outputs because it needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from v8.artifacts.forecast_sample import FORECASTS_FILE, read_sample
from v8.artifacts.run_folder import read_run
from v8.artifacts.series_artifact import HISTORY_FILE, read_metadata
from v8.reports.page import DEMO_WARNING
from v8.reports.pictures import write_pictures
from v8.reports.results import read_history, read_results

PICTURES_FOLDER = "report"


def draw_pictures(run: Path) -> list[Path]:
    """Write the PNG files of a run into its folder `report`.

    Args:
        run: A run folder.

    Returns:
        The files written; none while nothing is finished.

    Raises:
        ArtifactError: If the run or a finished artefact is damaged.
    """
    record = read_run(run)
    names = [name for name, state in record.series.items() if state.status == "done"]
    results = read_results(read_metadata(run / name, series=name) for name in names)
    histories = {name: read_history(run / name / HISTORY_FILE) for name in names}
    samples = {name: sample for name in names if (sample := read_sample(run / name / FORECASTS_FILE))}
    title = record.profile_name if record.is_publishable else f"{DEMO_WARNING}\n{record.profile_name}"
    return write_pictures(run / PICTURES_FOLDER, title, results, histories, samples)
