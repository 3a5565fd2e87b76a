"""Draws the pictures of a run from its files; apart from the outputs because it needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from v8.artifacts.generations import served_folder
from v8.artifacts.run_folder import read_run
from v8.runs.outputs import FinishedSeries, Tell, read_finished
from v8.errors import ArtifactError
from v8.views.page import DEMO_WARNING
from v8.views.pictures import write_pictures

PICTURES_FOLDER = "report"


def draw_pictures(run: Path, tell: Tell) -> list[Path]:
    """Write the PNG files of a run into its folder `report`.

    Args:
        run: A run folder.
        tell: Told which series is damaged and left out.

    Returns:
        The files written; none while nothing is finished.

    Raises:
        ArtifactError: If the run's own record is damaged.
        StorageError: If a picture cannot be written.
    """
    record = read_run(run)
    finished: dict[str, FinishedSeries] = {}
    for name in (name for name, state in record.series.items() if state.status == "done"):
        try:
            finished[name] = read_finished(served_folder(run, name))
        except ArtifactError as error:
            tell(error)
    results = [one.result for one in finished.values()]
    histories = {name: one.history for name, one in finished.items()}
    samples = {name: one.sample for name, one in finished.items() if one.sample}
    title = record.profile_name if record.is_publishable else f"{DEMO_WARNING}\n{record.profile_name}"
    return write_pictures(run / PICTURES_FOLDER, title, results, histories, samples)
