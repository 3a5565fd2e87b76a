"""Writes `model.onnx` for models of before: of a run, of a back-test, or of a repository.

A file is written only after its forecasts were compared with those of the Keras file, on windows of the test
span (`v8.forecaster.onnx_file`). So it needs the candles that the model was made from, as every export does.
Models of a repository are copied into another folder, because a repository lists the digest of every file.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from v8.api.export import ListedModel, OpenSource, list_models
from v8.base.errors import ArtifactError, DataError, ProfileError, V8Error, shown
from v8.base.process import with_progress
from v8.base.storage import FolderLock, digest_file, write_bytes
from v8.data.features import compute_table
from v8.data.windows.dataset import split_rows, table_columns, window_anchors
from v8.data.windows.span import Span
from v8.forecaster.metadata import HISTORY_FILE, METADATA_FILE, MODEL_FILE, ONNX_FILE, read_metadata
from v8.forecaster.onnx_file import converted_onnx
from v8.forecaster.series_artifact import README_FILE, store_onnx
from v8.publish.hub.layout import MANIFEST_FILE
from v8.runs.run_folder import RUN_FILE

COPIED: Final = (MODEL_FILE, HISTORY_FILE, README_FILE, METADATA_FILE)
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
        ProfileError: If models of a repository would be changed, or other files than copies of these models.
        ArtifactError: If the place has no finished model, another process writes the run, or no file could
            be written.
        DataError: If no file could be written.
    """
    if out is None and (place / MANIFEST_FILE).exists():
        rule = "a repository lists the digest of every file, so its models are copied"
        fix = "Name a new folder for the copies with param:out"
        raise ProfileError(where=str(place), rule=rule, got="no param:out", fix=fix)
    models = list_models(place, names)
    if out is not None:
        for model in models.finished:
            _require_new_or_own(model.place.locate(model.series)[0], out / model.name)
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
    span = Span(table, profile, anchors)
    series = str(forecaster.series)
    target = folder if out is None else out / model.name
    content, steps = converted_onnx(forecaster.model.keras_model(), target / ONNX_FILE, series, span)
    if out is not None:
        _copy(folder, target)
    write_bytes(target / ONNX_FILE, content)
    store_onnx(target)
    return steps


def _copy(folder: Path, copy: Path) -> None:
    """Copy the files of a model into a folder of its own, metadata last."""
    for name in COPIED:
        if (folder / name).exists():
            write_bytes(copy / name, (folder / name).read_bytes())


def _require_new_or_own(folder: Path, copy: Path) -> None:
    """Refuse a folder for the copy of a model, unless it is new, empty, or an earlier copy of that model.

    Raises:
        ProfileError: If it holds anything else, such as another run's model, files of the user, or links.
    """
    fault = _fault_of_copy(folder, copy)
    if fault is not None:
        rule = "each model is copied into a new folder, or over an earlier copy of the same model"
        fix = "Choose another param:out, or move that folder away"
        raise ProfileError(where="param:out", rule=rule, got=f"{fault} at {copy}", fix=fix)


def _fault_of_copy(folder: Path, copy: Path) -> str | None:
    """Describe what is in a folder that is no earlier copy of a model; None if there is nothing."""
    if not (copy.is_symlink() or copy.exists()):
        return None
    if copy.is_symlink() or not copy.is_dir():
        return "a link or a file"
    for entry in copy.iterdir():
        if entry.name not in (*COPIED, ONNX_FILE) or entry.is_symlink() or not entry.is_file():
            return f"{shown(entry.name, 40)}, which is of no copy,"
    for name in COPIED:
        source, copied = folder / name, copy / name
        if name != METADATA_FILE and copied.exists() and not _is_equal(source, copied):
            return f"another {name}"
    is_of_other = (copy / METADATA_FILE).exists() and _content_of(copy) != _content_of(folder)
    return f"another {METADATA_FILE}" if is_of_other else None


def _content_of(folder: Path) -> Mapping[str, Any]:
    """Return the metadata of a model without its ONNX file."""
    return {key: value for key, value in read_metadata(folder).content.items() if key != "onnx_sha256"}


def _is_equal(source: Path, copied: Path) -> bool:
    return source.exists() and digest_file(source) == digest_file(copied)
