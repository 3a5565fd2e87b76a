"""What a finished series of a run left on disk, read together and checked."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from v8.base.errors import ArtifactError
from v8.forecaster.metadata import HISTORY_FILE, Metadata, read_metadata, redo_offered
from v8.forecaster.series_artifact import FORECASTS_FILE, ForecastSample, read_sample
from v8.model.evaluation.fold_losses import TEST_LOSSES_FILE, FoldLosses
from v8.model.evaluation.leaderboard import TrainingHistory, read_history
from v8.runs.serving import served_folder


@dataclass(frozen=True)
class FinishedSeries:
    """The files of a finished series but for its model."""

    metadata: Metadata
    history: TrainingHistory  # one row an epoch
    sample: ForecastSample | None  # forecasts to draw; None where an older v8 wrote none
    losses: FoldLosses | None  # of the test windows; None where it was not evaluated, or pulled from the Hub


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
            rule = f"must have a row for each of {epochs_run} epochs"
            got = str(len(history))
            raise ArtifactError(where=str(folder / HISTORY_FILE), rule=rule, got=got, fix="Restore it")
        file = folder / TEST_LOSSES_FILE
        losses = FoldLosses.load(file) if file.exists() else None
        return FinishedSeries(metadata, history, read_sample(folder / FORECASTS_FILE), losses)


def read_test_losses(run: Path, names: Iterable[str]) -> dict[str, FoldLosses]:
    """Read the losses of the test windows by series, of those of a run that have them.

    Models that were pulled from the Hub have none.

    Raises:
        ArtifactError: If a file is damaged.
    """
    files = {name: served_folder(run, name) / TEST_LOSSES_FILE for name in names}
    return {name: FoldLosses.load(file) for name, file in files.items() if file.exists()}
