"""Writes `model.onnx` for models of before: of a run, of a back-test, or of a repository.

A file is written only after its forecasts were compared with those of the Keras file, on windows of the test
span (`v8.artifacts.onnx_file`). So it needs the candles that the model was made from, as every export does.
Models of a repository are copied into another folder, because a repository lists the digest of every file.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from v8.artifacts.metadata import HISTORY_FILE, METADATA_FILE, MODEL_FILE, ONNX_FILE
from v8.artifacts.onnx_file import save_onnx_model
from v8.artifacts.run_folder import RUN_FILE
from v8.artifacts.series_artifact import README_FILE, store_onnx
from v8.errors import ArtifactError, DataError, ProfileError, V8Error
from v8.features.table import compute_table
from v8.forecasts.export import ListedModel, OpenSource, list_models
from v8.hub.layout import MANIFEST_FILE
from v8.net import with_progress
from v8.storage import FolderLock
from v8.windows.dataset import split_rows, table_columns, window_anchors
from v8.windows.span import Span

COPIED: Final = (MODEL_FILE, METADATA_FILE, HISTORY_FILE, README_FILE)
"""Files of a model that are copied with it; the history and the README may be missing."""


@dataclass(frozen=True)
class OnnxExport:
    """What was written."""

    steps: Mapping[str, float]  # steps of float32 from the Keras file at most, by series and fold
    missing: Mapping[str, str] = field(default_factory=dict)  # why others have no file, by series and fold


def write_onnx_models(
    place: Path, *, open_source: OpenSource, names: Sequence[str] = (), out: Path | None = None
) -> OnnxExport:
    """Write the ONNX files of the models of a place.

    A model that cannot be converted, or whose candles are not available, is left out and named in the result.

    Args:
        place: A folder of a run, of a back-test, or of models that were pulled.
        open_source: Opens the source of candles that a model names.
        names: Series that are meant; all of the place when there are none.
        out: Folder that copies of the models are written into; None writes the files beside the models.

    Raises:
        ProfileError: If models of a repository would be changed.
        ArtifactError: If the place has no finished model, another process writes the run, or no file could
            be written.
        DataError: If no file could be written.
    """
    if out is None and (place / MANIFEST_FILE).exists():
        rule = "a repository lists the digest of every file, so its models are copied"
        fix = "Name a new folder for the copies with param:out"
        raise ProfileError(where=str(place), rule=rule, got="no param:out", fix=fix)
    models = list_models(place, names)
    sources = cache(open_source)
    steps: dict[str, float] = {}
    missing = dict(models.missing)
    refusals: list[V8Error] = []
    with ExitStack() as locks:
        if out is None and (place / RUN_FILE).exists():
            locks.enter_context(FolderLock(place))
        for model in with_progress(models.finished, "Writing ONNX files"):
            try:
                steps[model.name] = _write(model, sources, out)
            except (ArtifactError, DataError) as error:
                missing[model.name] = str(error)
                refusals.append(error)
    if not steps:
        raise refusals[0]
    return OnnxExport(steps, missing)


def _write(model: ListedModel, open_source: OpenSource, out: Path | None) -> float:
    """Write the file of a model, and return by how many steps it differs from the Keras file at most."""
    forecaster, candles = model.open(open_source)
    profile = forecaster.about.trained_profile
    table = compute_table(candles, table_columns(profile))
    rows = split_rows(len(table), profile, location=str(forecaster.series))["test"]
    anchors = window_anchors(table.segment, rows, profile.lookback_bars, profile.horizon_bars)
    folder, _ = model.place.locate(model.series)
    if out is not None:
        folder = _copied(folder, out / model.name)
    span = Span(table, profile, anchors)
    steps = save_onnx_model(forecaster.model.keras_model(), folder / ONNX_FILE, str(forecaster.series), span)
    store_onnx(folder)
    return steps


def _copied(folder: Path, copy: Path) -> Path:
    """Copy the files of a model into a folder of its own, and return that."""
    copy.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (folder / name).exists():
            shutil.copyfile(folder / name, copy / name)
    return copy
