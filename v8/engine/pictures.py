"""Draws the pictures of a run from its files; apart from the outputs because it needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from v8.artifacts.run_folder import read_run
from v8.artifacts.series_artifact import HISTORY_FILE
from v8.engine.outputs import finished_metadata, read_samples
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
    results = read_results(finished_metadata(run, record))
    names = [result.series for result in results]
    histories = {name: read_history(run / name / HISTORY_FILE) for name in names}
    title = record.profile_name
    if not record.is_publishable:
        title = f"{DEMO_WARNING}\n{title}"
    return write_pictures(run / PICTURES_FOLDER, title, results, histories, read_samples(run, names))
