"""Exports of the models of a place: every forecast of their test spans in one table, and their ONNX files.

A run keeps only a sample of them. So its models forecast again, from candles with the digest that they were
made from, in the batches in which they were evaluated: to the same bits on the same machine. A back-test
gives the test spans of all folds, which overlap; a run or a repository that of each model that serves.

A row is one bar ahead. Its `issued_at` is the close of the newest candle that the forecast knows: it cannot
be used before, and joining it to what comes from then on shows no future. Each column, such as `close`, is
followed by its quantiles (`close_q5`); there are the actual value (`close_actual`) and the naive forecast
(`close_naive`), too.

An ONNX file is written only after its forecasts were compared with those of the Keras file, on windows of
the test span (`v8.forecaster.onnx_file`). So it needs the candles that the model was made from, too.
Models of a repository are copied into another folder, because a repository lists the digest of every file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from v8.base.errors import ArtifactError, DataError, ProfileError, V8Error, listed, shown
from v8.base.process import with_progress
from v8.base.storage import (
    FORECASTS_COLUMNS,
    FORECASTS_KEY,
    NAIVE_ENDING,
    FolderLock,
    digest_file,
    write_bytes,
    write_with,
)
from v8.base.wording import frame_csv
from v8.data.features import compute_table
from v8.data.market.candles import Candles, pin_of
from v8.data.market.companions import Companions
from v8.data.market.series import series_advice
from v8.data.market.sources import CandleSource, OpenedSource, cached_views
from v8.data.span import Span
from v8.data.windows import split_rows, table_columns, window_anchors
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import (
    HISTORY_FILE,
    METADATA_FILE,
    MODEL_FILE,
    ONNX_FILE,
    PLAN_FILE,
    read_metadata,
)
from v8.forecaster.series_artifact import README_FILE, store_onnx
from v8.profile.columns import CLOSE, TASK_OHLC
from v8.profile.tasks import TASKS
from v8.runs.backtest import read_plan
from v8.runs.run_folder import RUN_FILE, read_run

if TYPE_CHECKING:
    from v8.publish.hub.places import ModelPlace


SERIES = FORECASTS_COLUMNS[0]
FOLD = FORECASTS_COLUMNS[1]
NOT_FINISHED = "it is not trained, or is being trained again"
"""Why a series of a run that has not failed has no finished model."""

OpenSource = Callable[[str], OpenedSource]  # opens a source of candles by its name


@dataclass(frozen=True)
class Exported:
    """What was written of the forecasts of a run, a back-test or a repository."""

    num_rows: int
    missing: Mapping[str, str]  # why nothing was written of some models, by series and fold
    notes: Sequence[str]  # which windows of others were left out, a sentence a model


@dataclass(frozen=True)
class ListedModel:
    """A finished model of a place."""

    fold: int  # of a back-test, from 1; 0 for the model of any other place
    place: "ModelPlace"  # what opens it
    series: str  # which

    @property
    def name(self) -> str:
        """Name it for people: its series, and its fold where it is of one."""
        return _named(self.series, self.fold)

    def open(self, open_source: OpenSource) -> tuple[Forecaster, Candles]:
        """Open it with the candles that it was made from.

        Raises:
            ArtifactError: If it cannot be trusted.
            DataError: If the source has other candles.
        """
        forecaster = self.place.open(self.series)
        return forecaster, _candles_of(forecaster, open_source(forecaster.about.candles.source))


@dataclass(frozen=True)
class ModelList:
    """The models of a place."""

    finished: Sequence[ListedModel]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why there is no finished model of other series of the place, by series and fold."""


def write_forecasts(
    place: Path, file: Path, *, form: str, open_source: OpenSource, names: Sequence[str] = ()
) -> Exported:
    """Write every forecast of the test spans of a place into a file.

    A series that is not finished, or whose model or candles cannot be used, is missing in it and is named in
    what is returned. Windows across a leap of the candles are left out, and counted there.

    Args:
        place: A folder of a run, of a back-test, or of models that were pulled.
        file: Where to; it is replaced.
        form: `parquet` or `csv`.
        open_source: Opens the source of candles that a model names.
        names: Series that are meant; all of the place when there are none.

    Raises:
        ArtifactError: If the place has no finished model, or the first of them cannot be trusted and no other
            can be written.
        DataError: If the source has other candles than those that the first model was made from, and no
            other can be written.
    """
    models = list_models(place, names)
    opened_source = cache(open_source)
    missing = dict(models.missing)
    notes: list[str] = []
    refusals: list[ArtifactError | DataError] = []
    num_rows = 0

    def write(file: Path) -> None:
        nonlocal num_rows
        with _TablesFile(file, form) as tables_file:
            for model in _counted(models.finished):
                try:
                    table, note = forecast_test_span(*model.open(opened_source))
                except (ArtifactError, DataError) as error:
                    missing[model.name] = str(error)
                    refusals.append(error)
                    continue
                notes.extend([note] if note else [])
                table.insert(0, SERIES, model.series)
                table.insert(1, FOLD, model.fold)
                tables_file.append(table)
                num_rows += len(table)
        if not num_rows:
            raise refusals[0]

    write_with(file, write)
    return Exported(num_rows, missing, notes)


class _TablesFile:
    """A file of `parquet` or `csv` for tables of the same columns, which is complete when the block ends."""

    def __init__(self, file: Path, form: str) -> None:
        self._file = file
        self._form = form
        self._parquet: Any = None  # the writer, from the first table on
        self._has_header = False  # of CSV

    def __enter__(self) -> "_TablesFile":
        return self

    def __exit__(self, *_: object) -> None:
        if self._parquet is not None:
            self._parquet.close()

    def append(self, table: pd.DataFrame) -> None:
        """Append a table."""
        if self._form == "csv":
            with self._file.open("a", encoding="utf-8", newline="") as stream:
                stream.write(frame_csv(table, has_header=not self._has_header))
            self._has_header = self._has_header or len(table) > 0
            return
        content = pa.Table.from_pandas(table, preserve_index=False)
        content = content.replace_schema_metadata({**content.schema.metadata, FORECASTS_KEY: "1"})
        if self._parquet is None:
            self._parquet = parquet.ParquetWriter(self._file, content.schema)
        self._parquet.write_table(content)


def opened_models(
    place: Path, open_source: OpenSource, names: Sequence[str] = ()
) -> Iterator[tuple[int, Forecaster, Candles]]:
    """Open the finished models of a place, or of some series of it, with the candles they were made from.

    The folds of a back-test count from 1, any other place is 0; `open_source` opens a source by its name.

    Raises:
        ArtifactError: If a model is not there or cannot be trusted.
        DataError: If the source has other candles than those that a model was made from.
    """
    opened_source = cache(open_source)
    for model in _counted(list_models(place, names).finished):
        forecaster, candles = model.open(opened_source)
        yield model.fold, forecaster, candles


def _counted(models: Sequence[ListedModel]) -> Iterator[ListedModel]:
    return with_progress(models, "Forecasting test spans")


def list_models(place: Path, names: Sequence[str] = ()) -> ModelList:
    """List the models of a place, or of some series of it: those that are finished, and those that are not.

    Raises:
        ArtifactError: If none of them is finished, the place does not know a series that is named, or the
            record of a run is damaged.
    """
    finished: list[ListedModel] = []
    missing: dict[tuple[int, str], str] = {}
    for number, folder, planned in folds_of(place):
        models = _open_fold(folder, planned)
        series = models.series if models else ()
        if models:
            finished += [ListedModel(number, models, name) for name in series]
        for name, reason in _unfinished(folder, planned, series).items():
            missing[number, name] = reason
    all_names = {model.series for model in finished} | {name for _, name in missing}
    unknown = set(names) - all_names
    wanted = [model for model in finished if not names or model.series in names]
    if unknown or not wanted:
        rule = "must have a finished model of every series that is named"
        got = f"none of {listed(sorted(unknown or names))}" if names else "none at all"
        fix = "Train it first"
        if finished and unknown:
            others = sorted({model.series for model in finished})
            fix = series_advice(min(unknown), others, f"Train it first, or choose among {listed(others)}")
        raise ArtifactError(where=str(place), rule=rule, got=got, fix=fix)
    reasons = {}
    for (number, name), reason in missing.items():
        if not names or name in names:
            reasons[_named(name, number)] = reason
    return ModelList(wanted, reasons)


def folds_of(place: Path) -> Iterator[tuple[int, Path, Sequence[str]]]:
    """Yield the folders of models of a place: the folds of a back-test, or itself.

    Each comes with its number, from 1, and the series that the back-test planned for it; with 0 and none
    where it is no fold.
    """
    if not (place / PLAN_FILE).exists():
        yield 0, place, ()
        return
    for fold in read_plan(place).folds:
        yield fold.number, place / fold.folder, tuple(fold.newest_s)


def _open_fold(folder: Path, planned: Sequence[str]) -> "ModelPlace | None":
    """Open the models of a folder; None where a fold has none, which any other place must have."""
    from v8.publish.hub.places import open_place  # noqa: PLC0415 - it reads the Hub's address

    try:
        return open_place(folder)
    except ArtifactError:
        if planned:
            return None
        raise


def _unfinished(folder: Path, planned: Sequence[str], finished: Sequence[str]) -> dict[str, str]:
    """Return why series of a run, those of its record and those that a back-test planned, have no model."""
    states = read_run(folder).series if (folder / RUN_FILE).exists() else {}
    reasons: dict[str, str] = {}
    for name in dict.fromkeys([*planned, *states]):
        if name in finished:
            continue
        state = states.get(name)
        reason = state.reason if state and state.status == "failed" else None
        reasons[name] = reason or NOT_FINISHED
    return reasons


def _named(series: str, fold: int) -> str:
    return f"{series}, fold {fold}" if fold else series


def _candles_of(forecaster: Forecaster, opened: OpenedSource) -> Candles:
    """Return the candles that a model was made from, those on this machine first."""
    pin = forecaster.about.candles
    for view in cached_views(opened.source):  # the digest decides, so it does not matter where they came from
        with suppress(DataError):
            local_candles = _read_candles(forecaster, view, opened.tables)
            if local_candles.digest == pin.digest:
                return local_candles
    candles = _read_candles(forecaster, opened.source, opened.tables)
    if candles.digest != pin.digest:
        raise DataError(
            where=str(forecaster.series),
            rule=f"its model was made from {pin}",
            got=str(pin_of(candles)),
            fix="Name where these are: param:source, param:data_dir, param:tables",
        )
    return candles


def _read_candles(forecaster: Forecaster, source: CandleSource, tables: Path | None) -> Candles:
    profile = forecaster.about.trained_profile
    last_s = forecaster.about.candles.last_open_s
    companions = Companions.of(profile, folder=tables)
    return companions.candles(source, forecaster.series, profile.newest_bars, last_s)


def forecast_test_span(forecaster: Forecaster, candles: Candles) -> tuple[pd.DataFrame, str]:
    """Return what a model forecasts of its test span, as the module says, without series and fold.

    The second is a sentence about windows that were left out, empty without any.

    Raises:
        DataError: If no window is left.
    """
    profile = forecaster.about.trained_profile
    table = compute_table(candles, table_columns(profile))
    rows = split_rows(len(table), profile, location=str(forecaster.series))["test"]
    anchors = window_anchors(table.segment, rows, profile.lookback_bars, profile.horizon_bars)
    usable = forecaster.forecast_usable(table, anchors)
    frame = usable.required(candles.source)
    span = Span(table, profile, usable.anchors)
    bars = table.open_time_s[usable.anchors[:, None] + np.arange(profile.horizon_bars + 1)]
    rows_of_candles = np.searchsorted(candles.open_time_s, bars)
    for ending, values in (("_actual", span.actual), (NAIVE_ENDING, span.naive)):
        for task in profile.tasks:
            for index, name in enumerate(TASKS[task].columns):
                column = values[task][..., index]
                # A table holds float32; the prices of candles have the digits that the exchange wrote.
                if task == TASK_OHLC and ending == NAIVE_ENDING:
                    column = np.broadcast_to(candles.column(CLOSE)[rows_of_candles[:, :1]], column.shape)
                elif task == TASK_OHLC:
                    column = candles.column(name)[rows_of_candles[:, 1:]]
                frame[f"{name}{ending}"] = column.ravel()
    note = usable.sentence(table) if len(usable.left_out) else ""
    return frame.reset_index(), note


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
    from v8.publish.hub.places import MANIFEST_FILE  # noqa: PLC0415 - it reads the Hub's address

    if out is None and (place / MANIFEST_FILE).exists():
        raise ProfileError(
            where=str(place),
            rule="a repository lists the digest of every file, so its models are copied",
            got="no param:out",
            fix="Name a new folder for the copies with param:out",
        )
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
    from v8.forecaster.onnx_file import converted_onnx  # noqa: PLC0415 - tables do without onnxruntime

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
        raise ProfileError(
            where="param:out",
            rule="each model is copied into a new folder, or over an earlier copy of the same model",
            got=f"{fault} at {copy}",
            fix="Choose another param:out, or move that folder away",
        )


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
        copied = copy / name
        if name != METADATA_FILE and copied.exists() and not _is_equal(folder / name, copied):
            return f"another {name}"
    is_of_other = (copy / METADATA_FILE).exists() and _content_of(copy) != _content_of(folder)
    return f"another {METADATA_FILE}" if is_of_other else None


def _content_of(folder: Path) -> Mapping[str, Any]:
    """Return the metadata of a model without its ONNX file."""
    return {key: value for key, value in read_metadata(folder).content.items() if key != "onnx_sha256"}


def _is_equal(source: Path, copied: Path) -> bool:
    return source.exists() and digest_file(source) == digest_file(copied)
