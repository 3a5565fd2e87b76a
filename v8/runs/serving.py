"""Which folder serves each series of a run: one in the run itself, or one of a later generation.

    runs/aligned/            the models that were trained first serve until another one does
      serving.json           per series the generation that serves; who writes it may keep more in the file
      generations/
        2026-11-21/          a run folder like any other, named by its newest candle; next 2026-11-21-2

`served_folder` finds the model of a series in a run. `serving.json` is written to a temporary name and
renamed: a process that is killed leaves the old file or the new one. `read_finished` reads what a finished
series left in its folder, and checks it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from v8.base import records
from v8.base.errors import ArtifactError
from v8.base.records import read_json_object
from v8.base.storage import write_json
from v8.data.market.series import Series, by_series
from v8.forecaster.metadata import (
    GENERATIONS_FOLDER,
    HISTORY_FILE,
    METADATA_FILE,
    Metadata,
    read_metadata,
    redo_offered,
)
from v8.forecaster.series_artifact import FORECASTS_FILE, ForecastSample, read_sample
from v8.model.evaluation.fold_losses import TEST_LOSSES_FILE, WindowLosses
from v8.model.evaluation.leaderboard import TrainingHistory, read_history
from v8.runs import run_folder

SERVING_FORMAT: Final = 2  # version of the keys of `serving.json`
SERVING_FILE: Final = "serving.json"
FIRST: Final = "0"  # the generation in the run folder itself
SERVING_FIX: Final = "Restore the file, or remove it: then the models of the run's own folder serve"
LATER: Final = re.compile(r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})(-(?P<number>[1-9][0-9]{0,3}))?")
"""The name of a later generation."""


def _fault_of_generation(name: str) -> str | None:
    return None if name == FIRST or LATER.fullmatch(name) else "names a generation such as 2026-11-21"


GenerationName = Annotated[str, Field(strict=True, max_length=20), records.refusing(_fault_of_generation)]
"""`0`, or a day and a number; safe as the name of a folder."""


@dataclass(frozen=True)
class Serving:
    """Which generation serves each series of a run."""

    run: Path  # the run folder; not part of the file
    generations: Annotated[Mapping[str, GenerationName], BeforeValidator(by_series), Field(alias="serving")]
    """The generation per series; series that are not listed are served by the first one."""

    def generation_of(self, series: str) -> str:
        """Return the generation that serves a series."""
        return self.generations.get(series, FIRST)

    def place(self, series: str) -> Path:
        """Return where the folder of the model that serves a series belongs; it need not exist."""
        return artifact_folder(self.run, self.generation_of(series), series)

    def folder(self, series: str) -> Path:
        """Return the folder of the model that serves a series.

        A folder in the run itself need not exist.

        Raises:
            ArtifactError: If the later generation that serves has no such model, or holds links.
        """
        folder = self.place(series)
        if self.generation_of(series) != FIRST and not (folder / METADATA_FILE).is_file():
            raise ArtifactError(
                where=str(folder),
                rule=f"{self.run / SERVING_FILE} says that this generation serves {series}",
                got="no finished model there",
                fix=SERVING_FIX.replace("the file", "the folder").replace("it:", f"{SERVING_FILE}:"),
            )
        return folder


def read_content(run: Path) -> dict[str, Any] | None:
    """Read what `serving.json` of a run holds; None without that file.

    Raises:
        ArtifactError: If the file is damaged or has an unknown format.
    """
    file = run / SERVING_FILE
    if not file.exists() and not file.is_symlink():
        return None
    run_folder.require_own_files(run)
    content = read_json_object(file, fix=SERVING_FIX)
    records.check_format(content, SERVING_FORMAT, kind="serving", where=str(file), fix=SERVING_FIX)
    return content


def read_serving(run: Path) -> Serving:
    """Read and check which generations serve the series of a run; without a file the first one serves all.

    Raises:
        ArtifactError: If the file is damaged, has an unknown format, or an impossible name.
    """
    content = read_content(run)
    if content is None:
        return Serving(run, {})
    fields = {**content, "run": run}
    return records.checked(
        Serving, fields, where=str(run / SERVING_FILE), fix=SERVING_FIX, rule=records.AS_WRITTEN
    )


def served_folder(run: Path, series: str) -> Path:
    """Return the folder of the model that serves a series of a run, see `read_serving`, `Serving.folder`."""
    return read_serving(run).folder(series)


def stop_serving(run: Path, series: Series) -> None:
    """Remove a series from `serving.json`, because it is removed from the run; all else in it stays.

    Raises:
        ArtifactError: If `serving.json` is damaged.
    """
    generations = dict(read_serving(run).generations)
    content = read_content(run)
    if content is not None and str(series) in generations:
        del generations[str(series)]
        write_json(run / SERVING_FILE, {**content, "serving": generations})


def artifact_folder(run: Path, generation: str, series: str) -> Path:
    """Return the folder of a series in a generation; it need not exist, but must not be reached by links."""
    folder = generation_folder(run, generation)
    if generation != FIRST:
        for parent in (folder.parent, folder, folder / series):
            run_folder.require_own_files(parent)
    return folder / series


def generation_folder(run: Path, generation: str) -> Path:
    """Return the run folder of a generation; it need not exist."""
    return run if generation == FIRST else run / GENERATIONS_FOLDER / generation


@dataclass(frozen=True)
class FinishedSeries:
    """The files of a finished series but for its model."""

    metadata: Metadata
    history: TrainingHistory  # one row an epoch
    sample: ForecastSample | None  # forecasts to draw; None where an older v8 wrote none
    losses: WindowLosses | None  # of the test windows; None where not evaluated, or pulled from the Hub


def read_finished(folder: Path) -> FinishedSeries:
    """Read and check what is shown of the series that a folder is named after.

    Raises:
        ArtifactError: If one of its files is damaged; the error says how to make the series again.
    """
    with redo_offered(folder):
        metadata = read_metadata(folder, series=folder.name)
        if metadata.is_evaluated:
            _ = metadata.result  # raises where a section of it is damaged
        history = read_history(folder / HISTORY_FILE)
        epochs_run = metadata.training.epochs_run
        if len(history) != epochs_run:
            raise ArtifactError(
                where=str(folder / HISTORY_FILE),
                rule=f"must have a row for each of {epochs_run} epochs",
                got=str(len(history)),
                fix="Restore it",
            )
        file = folder / TEST_LOSSES_FILE
        losses = WindowLosses.load(file) if file.exists() else None
        return FinishedSeries(metadata, history, read_sample(folder / FORECASTS_FILE), losses)


def read_test_losses(run: Path, names: Iterable[str]) -> dict[str, WindowLosses]:
    """Read the losses of the test windows by series, of those of a run that have them.

    Models that were pulled from the Hub have none.

    Raises:
        ArtifactError: If a file is damaged.
    """
    files = {name: served_folder(run, name) / TEST_LOSSES_FILE for name in names}
    return {name: WindowLosses.load(file) for name, file in files.items() if file.exists()}
