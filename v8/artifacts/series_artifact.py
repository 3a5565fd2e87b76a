"""The artefact of one series, in one folder: its model, how it was trained, what it forecast, how to use it.

    BTCUSDT-15m/    model.keras, history.csv, forecasts.json, README.md, metadata.json

`forecasts.json` holds the newest candles of the test span and forecasts that were issued one horizon apart:
together they cover most of those candles once. Judgements are made on the whole span; this sample only shows
what a forecast looks like.

The README is for whoever has only this folder: what goes in, in which order and unit, what comes out, how
good it was, and what it has seen. A test runs its code in an environment without v8.

Shape legend: N shown rows, W test windows, H horizon, Q levels, C columns of a task.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from pydantic import Field

from v8.artifacts.metadata import HISTORY_FILE, METADATA_FILE, MODEL_FILE, Metadata, checked_metadata
from v8.artifacts.run_folder import ERROR_FILE
from v8.baselines.baselines import called
from v8.columns import TASK_OHLC, neighbours
from v8.errors import ArtifactError, listed
from v8.evaluation.significance import ALPHA
from v8.quantile_levels import fault_of, percent_of, quantile_output
from v8.records import Count, Number, OpenTime, Text, adapter, checked, read_json_object
from v8.safe_text import as_code
from v8.storage import digest_file, packaged, write_json, write_text
from v8.tasks import TASKS
from v8.training.progress import EpochRecord
from v8.windows.dataset import SeriesData
from v8.wording import Table, number, plural

README_FILE: Final = "README.md"
FORECASTS_FILE = "forecasts.json"

SAMPLE_FORMAT: Final = 1  # version of the keys of `forecasts.json`
SHOWN_BARS: Final = 80  # candles of a sample; more become too thin to see on a telephone
LEAD_IN_BARS: Final = 20
"""Candles at the start of a sample that no forecast covers, to show where the market came from."""

Rows = tuple[tuple[Number, ...], ...]
"""One tuple of a task's columns per row; quote currency, volatility unitless."""


@dataclass(frozen=True)
class IssuedForecast:
    """One forecast of the bars after a known one."""

    last_known: Count  # number of the row it was issued after, within the sample
    values: Mapping[str, Rows]  # per task, H rows of its columns for the rows after `last_known`
    quantiles: Mapping[str, tuple[Rows, ...]] = field(default_factory=dict)
    """Per task, such rows for each level of the sample; empty without."""


@dataclass(frozen=True)
class ForecastSample:
    """The end of a test span and forecasts of it."""

    series: Text  # its name, "BTCUSDT-15m"
    bar_s: Count  # length of a bar in seconds
    open_time_s: tuple[OpenTime, ...]  # open time of each of N rows, UTC seconds since the epoch, ascending
    actual: Mapping[str, Rows]  # per task, N rows of its columns
    issued: Annotated[tuple[IssuedForecast, ...], Field(alias="forecasts")]  # forecasts, oldest first
    levels: tuple[Number, ...] = ()  # of their quantiles, ascending; none where they have none

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        # Defaults, which are no quantiles, are left out: a sample without them is as it was before they came.
        write = adapter(ForecastSample).dump_python
        content = write(self, mode="json", by_alias=True, exclude_defaults=True)
        return {"format": SAMPLE_FORMAT, "columns": _columns(self.actual), **content}


def sample_forecasts(
    data: SeriesData,
    model: Mapping[str, NDArray[np.floating[Any]]],
    quantiles: Mapping[str, NDArray[np.floating[Any]]] = MappingProxyType({}),
) -> ForecastSample:
    """Cut a sample out of the forecasts of every test window: per task (W, H, C), quantiles (W, H, Q, C)."""
    anchors = data.anchors["test"]
    horizon = data.profile.horizon_bars
    end = int(anchors[-1]) + horizon + 1
    first = max(0, end - SHOWN_BARS)
    first_anchor = first + min(LEAD_IN_BARS, data.profile.lookback_bars) - 1
    windows = [len(anchors) - 1]  # one horizon apart, backwards from the newest
    for window in range(len(anchors) - 2, -1, -1):
        if anchors[window] >= first_anchor and anchors[windows[-1]] - anchors[window] >= horizon:
            windows.append(window)
    issued = tuple(
        IssuedForecast(
            int(anchors[window]) - first,
            {task: _rows(values[window]) for task, values in model.items()},
            {task: tuple(map(_rows, values[window].swapaxes(0, 1))) for task, values in quantiles.items()},
        )
        for window in reversed(windows)
    )
    return ForecastSample(
        series=str(data.series),
        bar_s=data.series.bar_s,
        open_time_s=tuple(data.table.open_time_s[first:end].tolist()),
        actual={task: _rows(data.table.select(TASKS[task].columns)[first:end]) for task in model},
        issued=issued,
        levels=data.profile.quantiles if quantiles else (),
    )


def read_sample(file: Path) -> ForecastSample | None:
    """Read `forecasts.json`; None when there is none, as beside models of an older v8."""
    if not file.exists():
        return None
    content = read_json_object(file, fix="Restore the file or train the series again")
    rule = f"must be a sample of forecasts of format {SAMPLE_FORMAT}"
    fix = "Restore the file, or delete it to have the report without this chart"
    sample = checked(ForecastSample, content, where=str(file), fix=fix, rule=rule)
    if not _is_whole(sample) or _columns(sample.actual) != content.get("columns"):
        got = "rows and forecasts that do not fit together"
        raise ArtifactError(where=str(file), rule=rule, got=got, fix=fix)
    return sample


def _rows(values: NDArray[np.floating[Any]]) -> Rows:
    """Write float32 numbers with the digits that count."""
    return tuple(tuple(float(f"{value:.7g}") for value in row) for row in values)


def _columns(actual: Mapping[str, Rows]) -> dict[str, list[str]]:
    return {task: list(TASKS[task].columns) for task in actual if task in TASKS}


def _is_whole(sample: ForecastSample) -> bool:
    """Say whether rows, columns and horizons fit together, and quantiles are there for each level or none."""
    columns = _columns(sample.actual)
    levels = sample.levels
    num_rows = len(sample.open_time_s)
    horizons = {len(rows) for one in sample.issued for rows in one.values.values()}
    if TASK_OHLC not in columns or len(horizons) != 1 or (levels and fault_of(levels)):
        return False

    def are(told: Mapping[str, Any], *shape: int) -> bool:
        wanted = {task: (*shape, len(names)) for task, names in columns.items()}
        return {task: np.shape(rows) for task, rows in told.items()} == wanted

    (horizon,) = horizons
    try:
        return are(sample.actual, num_rows) and all(
            one.last_known < num_rows - horizon
            and are(one.values, horizon)
            and (are(one.quantiles, len(levels), horizon) if levels else not one.quantiles)
            for one in sample.issued
        )
    except ValueError:  # rows of unequal lengths have no shape
        return False


def save_description(
    folder: Path, metadata: Mapping[str, Any], history: Sequence[EpochRecord], sample: ForecastSample
) -> None:
    """Complete an artefact whose model file is written: history, sample, README, then metadata.

    Of the metadata all is given but the digest of that file. An error file of an earlier attempt goes,
    because it is no longer true.
    """
    columns = [field.name for field in fields(EpochRecord)]
    epochs = pd.DataFrame([asdict(record) for record in history], columns=columns)
    write_text(folder / HISTORY_FILE, epochs.to_csv(index=False, lineterminator="\n"))
    write_json(folder / FORECASTS_FILE, sample.to_json(), is_compact=True)
    whole = {**metadata, "model_sha256": digest_file(folder / MODEL_FILE)}
    write_text(folder / README_FILE, artifact_readme(checked_metadata(whole)))
    write_json(folder / METADATA_FILE, whole)
    (folder / ERROR_FILE).unlink(missing_ok=True)


def artifact_readme(metadata: Metadata) -> str:
    """Write the README of an artefact, in Markdown, from the content of its `metadata.json`."""
    symbol, _, timeframe = metadata.series.partition("-")
    demo = "**Demo market: this model was trained on simulated candles and says nothing about a real one.**"
    note = covariate_note(metadata)
    return packaged("v8.artifacts", "readme.md").format(
        metadata=metadata,
        symbol=symbol,
        horizon=plural(metadata.horizon_bars, f"{timeframe} candle"),
        lookback=plural(metadata.lookback_bars, f"{timeframe} candle"),
        demo=f"\n\n{demo}" if metadata.is_demo_market else "",
        quality=_quality(metadata)
        if metadata.is_evaluated
        else "It was not evaluated: nobody knows its errors.",
        spans=_spans(metadata),
        beside=f"\n{note}\n" if note else "",
        num_features=len(metadata.features),
        outputs=_outputs(metadata),
        features=_features(metadata),
        warmup=metadata.needed_bars - metadata.lookback_bars,
        notes="".join(f"\n- {note}" for note in _notes(metadata)),
    )


def _quality(metadata: Metadata) -> str:
    evaluation = metadata.evaluation
    header = ("task", "multiple of naive", "verdict", "best baseline", "multiple of it", "verdict")
    rows = (
        (task, *(cell if isinstance(cell, str) else number(cell) for cell in told.values()))
        for task, told in metadata.quality.items()
    )
    how = packaged("v8.artifacts", "quality.md").format(num_windows=evaluation.num_windows, alpha=ALPHA)
    lines = [how.strip(), Table(header, rows).markdown()]
    if evaluation.loses:
        tasks = ", ".join(evaluation.loses)
        lines.append(f"**It loses to the naive forecast at: {tasks}. Use the naive one there.**")
    if evaluation.beaten_by:
        found = ", ".join(f"{task} ({called(name)})" for task, name in evaluation.beaten_by.items())
        lines.append(f"**A forecast without a network does better at: {found}.**")
    return "\n\n".join(lines)


def _spans(metadata: Metadata) -> str:
    spans = vars(metadata.split).items()
    rows = [(name, one.first_open, one.last_open, f"{one.num_windows:,}") for name, one in spans]
    return Table(("span", "first open", "last open", "windows"), rows).markdown()


def covariate_note(metadata: Metadata) -> str:
    """Say in Markdown what a model reads beside the candles of its series; nothing for most models."""
    others = neighbours(metadata.names)
    tables = metadata.tables
    if not others and not tables:
        return ""
    _, _, timeframe = metadata.series.rpartition("-")
    lines = [f"- `{symbol}`: its {timeframe} candles up to the same one" for symbol in others]
    for table in tables:
        columns = ", ".join(f"`{name}`" for name in table.columns)
        time = as_code(table.time)
        lines.append(
            f"- `{table.file}`, a table of your own, not published: times in {time}, {columns}. A "
            f"row counts from its time plus {table.available_after_s:,} s until a newer one does, at most "
            f"until its time plus {table.max_age_s:,} s. On the command line `--tables FOLDER` names its "
            "folder"
        )
    given = ", ".join(f'"{name}": ...' for name in (*others, *(table.file for table in tables)))
    told = "It also reads, and refuses to forecast without:\n\n" + "\n".join(lines)
    return f"{told}\n\n```\nforecast = forecaster.predict(candles, covariates={{{given}}})\n```"


def _outputs(metadata: Metadata) -> str:
    horizon = metadata.horizon_bars
    levels = metadata.profile.quantiles
    told = ", ".join(f"{percent_of(level)} %" for level in levels)
    rows = []
    for task, one in metadata.tasks.items():
        shape = f"(N, {horizon}, {len(one.columns)})"
        columns = ", ".join(one.columns)
        rows.append((f'`forecast["{task}"]`', shape, columns, one.unit))
    for task, one in metadata.tasks.items() if levels else ():
        shape = f"(N, {horizon}, {len(levels)}, {len(one.columns)})"
        columns = f"quantiles {told} of {', '.join(one.columns)}"
        rows.append((f'`forecast["{quantile_output(task)}"]`', shape, columns, one.unit))
    return Table(("output", "shape", "columns", "unit"), rows).markdown()


def _features(metadata: Metadata) -> str:
    rows = [
        (str(place), f"`{feature.name}`", feature.definition.partition(": ")[2])
        for place, feature in enumerate(metadata.features)
    ]
    return Table(("place", "name", "definition"), rows).markdown()


def _notes(metadata: Metadata) -> list[str]:
    """Say what the sentences of the definitions leave open."""
    definitions = "\n".join(feature.definition for feature in metadata.features)
    others = listed(neighbours(metadata.names))
    told = yaml.safe_load(packaged("v8.artifacts", "notes.yaml"))
    return [one["note"].format(others=others) for one in told if re.search(one["where"], definitions, re.M)]
