"""Every forecast of test spans in one table: what was forecast, when it could be used first, and what came.

A run keeps a sample of them only. So its models forecast anew, from candles with the digest that they were
made from, in the batches in which they were evaluated: to the same bits on the same machine. A back-test gives
the test spans of all folds, which overlap, any other place the test span of each model that serves.

A row is one bar ahead. Its `issued_at` is the close of the newest candle that the forecast knows: nobody can
use it before, and whoever joins it to what comes from then on sees no future. Beside each column, such as
`close`, stand its quantiles (`close_q5`), what came (`close_actual`) and the naive forecast (`close_naive`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.nested_runs import PLAN_FILE, read_plan
from v8.artifacts.run_folder import RUN_FILE, pin_of, read_run
from v8.errors import ArtifactError, DataError, listed
from v8.features.table import compute_table
from v8.hub.opening import ModelPlace, open_place
from v8.market.candles import Candles
from v8.market.companions import Companions
from v8.market.sources.source import CandleSource, KeptCandles
from v8.net import counted
from v8.own_files import FORECASTS_COLUMNS, FORECASTS_KEY, NAIVE_ENDING
from v8.storage import write_with
from v8.tasks import TASKS
from v8.windows.dataset import split_rows, table_columns, window_anchors
from v8.windows.span import Span
from v8.wording import frame_csv

SERIES, FOLD, *_ = FORECASTS_COLUMNS
NOT_FINISHED = "it is not trained, or is being trained again"
"""Why a series of a run that has not failed has no finished model."""

OpenSource = Callable[[str], CandleSource]  # opens a source of candles by its name


@dataclass(frozen=True)
class Exported:
    """What was written of the forecasts of a place."""

    num_rows: int
    missing: Mapping[str, str]  # why nothing was written of some models, by series and fold
    notes: Sequence[str]  # which windows of others were left out, a sentence a model


@dataclass(frozen=True)
class ListedModel:
    """A finished model of a place."""

    fold: int  # of a back-test, from 1; 0 for the model of any other place
    place: ModelPlace  # what opens it
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
        open_source: Opens the source of candles that a model tells by name.
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
    notes = list[str]()
    refusals: list[ArtifactError | DataError] = []
    num_rows = 0

    def write(aside: Path) -> None:
        nonlocal num_rows
        writer: Any = None
        with ExitStack() as resources:
            for model in _counted(models.finished):
                try:
                    forecaster, candles = model.open(opened_source)
                    frame, note = forecast_test_span(forecaster, candles)
                except (ArtifactError, DataError) as error:
                    missing[model.name] = str(error)
                    refusals.append(error)
                    continue
                notes.extend([note] if note else [])
                frame.insert(0, SERIES, model.series)
                frame.insert(1, FOLD, model.fold)
                if form == "csv":
                    with aside.open("a", encoding="utf-8", newline="") as stream:
                        stream.write(frame_csv(frame, has_header=not num_rows))
                else:
                    table = pa.Table.from_pandas(frame, preserve_index=False)
                    table = table.replace_schema_metadata({**table.schema.metadata, FORECASTS_KEY: "1"})
                    writer = writer or resources.enter_context(parquet.ParquetWriter(aside, table.schema))
                    writer.write_table(table)
                num_rows += len(frame)
        if not num_rows:
            raise refusals[0]

    write_with(file, write)
    return Exported(num_rows, missing, notes)


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
    return counted(models, "Forecasting test spans")


def list_models(place: Path, names: Sequence[str] = ()) -> ModelList:
    """List the models of a place, or of some series of it: those that are finished, and those that are not.

    Raises:
        ArtifactError: If none of them is finished, the place does not know a series that is named, or the
            record of a run is damaged.
    """
    if (place / PLAN_FILE).exists():
        folds = [(fold.number, place / fold.folder, list(fold.newest_s)) for fold in read_plan(place).folds]
    else:
        folds = [(0, place, [])]
    finished: list[ListedModel] = []
    missing: dict[tuple[int, str], str] = {}
    for number, folder, planned in folds:
        series: tuple[str, ...] = ()
        try:
            models = open_place(folder)
            series = models.series
        except ArtifactError:
            if not planned:  # a fold may be without a finished model; another place must have one
                raise
        finished += [ListedModel(number, models, name) for name in series]
        missing |= {(number, name): why for name, why in _unfinished(folder, planned, series).items()}
    known = {model.series for model in finished}
    unknown = {*names} - known - {name for _, name in missing}
    wanted = [model for model in finished if not names or model.series in names]
    if unknown or not wanted:
        rule = "must have a finished model of every series that is named"
        fix = "Train it first"
        got = f"none of {listed(sorted(unknown or names))}" if names else "none at all"
        raise ArtifactError(where=str(place), rule=rule, got=got, fix=fix)
    reasons = {_named(name, fold): why for (fold, name), why in missing.items() if not names or name in names}
    return ModelList(wanted, reasons)


def _unfinished(folder: Path, planned: Sequence[str], finished: Sequence[str]) -> dict[str, str]:
    """Return why series of a run, those of its record and those that a back-test planned, have no model."""
    states = read_run(folder).series if (folder / RUN_FILE).exists() else {}
    every = dict.fromkeys([*planned, *states])
    reasons = {name: state.reason for name, state in states.items() if state.status == "failed"}
    return {name: reasons.get(name) or NOT_FINISHED for name in every if name not in finished}


def _named(series: str, fold: int) -> str:
    return f"{series}, fold {fold}" if fold else series


def _candles_of(forecaster: Forecaster, source: CandleSource) -> Candles:
    """Return the candles that a model was made from: of those on this machine if they are there."""
    about = forecaster.about
    with suppress(DataError):
        kept = _read_candles(forecaster, KeptCandles(source))
        if kept.digest == about.candles.digest:
            return kept
    candles = _read_candles(forecaster, source)
    if candles.digest != about.candles.digest:
        where = str(forecaster.series)
        rule = f"its model was made from {about.candles}"
        fix = "Name where these are: param:source, param:data_dir, param:tables"
        raise DataError(where=where, rule=rule, got=str(pin_of(candles)), fix=fix)
    return candles


def _read_candles(forecaster: Forecaster, source: CandleSource) -> Candles:
    profile = forecaster.about.trained_profile
    last_s = forecaster.about.candles.last_open_s
    return Companions.of(profile).candles(source, forecaster.series, profile.newest_bars, last_s)


def forecast_test_span(forecaster: Forecaster, candles: Candles) -> tuple[pd.DataFrame, str]:
    """Return what a model forecasts of its test span, as the module says, without series and fold.

    The second is a sentence about windows that were left out, empty without any. Raises `DataError` if none
    is left.
    """
    about, profile = forecaster.about, forecaster.about.trained_profile
    table = compute_table(candles, table_columns(profile))
    rows = split_rows(len(table), profile, where=about.series)["test"]
    anchors = window_anchors(table.segment, rows, profile.lookback_bars, profile.horizon_bars)
    usable = forecaster.forecast_usable(table, anchors)
    frame = usable.required(candles.source)
    span = Span(table, profile, usable.anchors)
    for kind, values in {"_actual": span.actual, NAIVE_ENDING: span.naive}.items():
        for task in profile.tasks:
            for at, name in enumerate(TASKS[task].columns):
                frame[f"{name}{kind}"] = values[task][..., at].ravel()
    return frame.reset_index(), usable.sentence(table) if len(usable.left_out) else ""
