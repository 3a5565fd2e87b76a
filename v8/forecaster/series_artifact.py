"""The artefact of one series, in one folder: model, history of the training, example forecasts, README.

    BTCUSDT-15m/    model.keras, history.csv, forecasts.json, README.md, metadata.json

`forecasts.json` holds the newest candles of the test span and forecasts that were issued one horizon apart,
so that together they cover most of those candles once. Models are evaluated on the complete span; this sample
only shows what a forecast looks like.

The README is for readers who have only this folder: inputs, their order and units, outputs, errors, and the
candles of the training. A test runs its code in an environment without v8.

Shape legend: N rows of the sample, W test windows, H horizon, Q levels, C columns of a task.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from v8.base.errors import ArtifactError, listed
from v8.base.records import Count, Number, OpenTime, Text, adapter, check_format, checked, read_json_object
from v8.base.storage import digest_file, packaged, write_json, write_text
from v8.base.wording import Table, as_code, number, plural
from v8.data.windows import SeriesData
from v8.forecaster.metadata import (
    ERROR_FILE,
    HISTORY_FILE,
    METADATA_FILE,
    MODEL_FILE,
    ONNX_FILE,
    Metadata,
    SpanInfo,
    checked_metadata,
    read_metadata,
)
from v8.forecaster.standalone import obstacle
from v8.model.baselines.baselines import NAIVE
from v8.model.evaluation.leaderboard import Verdict, Verdicts
from v8.model.evaluation.significance import ALPHA, LOSES, min_windows
from v8.model.training.progress import EpochRecord
from v8.profile.columns import TASK_OHLC, fault_of_levels, neighbours, percent_of, quantile_output
from v8.profile.tasks import TASKS

README_FILE: Final = "README.md"
FORECASTS_FILE = "forecasts.json"

SAMPLE_FORMAT: Final = 2  # version of the keys of `forecasts.json`
SAMPLE_BARS: Final = 80  # candles of a sample; more would be too thin on a telephone's screen
LEAD_IN_BARS: Final = 20
"""Candles at the start of a sample that no forecast covers: they show the market before the forecasts."""

_DEMO_NOTE: Final = (
    "**Demo market: this model was trained on simulated candles and says nothing about a real one.**"
)
_QUALITY_NOTE: Final = (
    "Relative MAE on the {num_windows:,} windows of the test span, which was not used in training: the mean "
    "absolute error divided by that of the naive forecast, in which the close stays where it is, bands and "
    "volatility follow from that, and a bar has the mean range of the newest 20. Below 1 the model has the "
    "lower error. The best baseline is the forecast without a network that had the lowest error on the "
    "exchange's archive. The model beats a baseline or loses to it where the "
    "difference is statistically significant (Diebold-Mariano test, p below {alpha:g}); otherwise it is "
    "not significant. A test needs {min_windows} windows."
)

_STANDALONE_NOTE: Final = (
    " The run and the published repository hold `features.py`, which computes it with numpy and pandas: "
    "`features.compute(candles)`."
)

_FEATURE_NOTES: Final = {
    "sample ": "A sample deviation has the divisor n - 1.",
    "^macd": (
        "An exponential average over n bars starts at the first close and gives the newest value the weight "
        "2 / (n + 1): `ewm(span=n, adjust=False).mean()` in pandas."
    ),
    "^rsi:": (
        "Wilder's averages over n bars start at the first change and give the newest value the weight 1 / n: "
        "`ewm(alpha=1 / n, adjust=False).mean()`; the first bar counts as no change. The index is 100 times "
        "the average gain over the sum of average gain and average loss, and 50 where nothing moved."
    ),
    "^atr:": "The true range of a bar is max(high, previous close) - min(low, previous close).",
    "^volume_norm:": "A window of bars without any volume gives volume_norm 1.",
    "multiples of recent_range": (
        "Logarithms are natural. Where recent_range is 0, because the price has not moved for 240 bars, "
        "ranges and realised deviations are 1, moves and rolled columns 0."
    ),
    "of the candles of ": (
        "What is of {others} is computed from those candles alone: whatever its definition names, "
        "recent_range too, is theirs."
    ),
}
"""What the definitions of features leave open, by a pattern that the definitions match."""

Rows = tuple[tuple[Number, ...], ...]
"""One tuple of a task's columns per row; quote currency, volatility unitless."""


@dataclass(frozen=True)
class SampledForecast:
    """One forecast of the sample."""

    last_known: Count  # number of the sample's row after which it was issued
    values: Mapping[str, Rows]  # per task H rows of its columns, for the rows after `last_known`
    quantiles: Mapping[str, tuple[Rows, ...]] = field(default_factory=dict)
    """Per task H rows for each level of the sample; empty without quantiles."""


@dataclass(frozen=True)
class ForecastSample:
    """The end of a test span, and forecasts of it."""

    series: Text  # its name, "BTCUSDT-15m"
    bar_s: Count  # length of a bar in seconds
    open_time_s: tuple[OpenTime, ...]  # open time of each of N rows, UTC seconds since the epoch, ascending
    actual: Mapping[str, Rows]  # per task, N rows of its columns
    issued: Annotated[tuple[SampledForecast, ...], Field(alias="forecasts")]  # oldest first
    levels: tuple[Number, ...] = ()  # levels of the quantiles, ascending; empty without quantiles

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain JSON values."""
        content = adapter(ForecastSample).dump_python(self, mode="json", by_alias=True, exclude_defaults=True)
        return {"format": SAMPLE_FORMAT, "columns": _columns(self.actual), **content}


def sample_forecasts(
    data: SeriesData,
    model: Mapping[str, NDArray[np.floating[Any]]],
    quantiles: Mapping[str, NDArray[np.floating[Any]]] = MappingProxyType({}),
) -> ForecastSample:
    """Select a sample from the forecasts of all test windows.

    Args:
        data: The series.
        model: The model's forecasts per task, shape (W, H, C), in the task's unit.
        quantiles: Its quantiles per task, shape (W, H, Q, C), in the task's unit.
    """
    anchors = data.anchors["test"]
    horizon = data.profile.horizon_bars
    end = int(anchors[-1]) + horizon + 1
    first = max(0, end - SAMPLE_BARS)
    first_anchor = first + min(LEAD_IN_BARS, data.profile.lookback_bars) - 1
    windows = [len(anchors) - 1]  # one horizon apart, backwards from the newest
    for window in range(len(anchors) - 2, -1, -1):
        if anchors[window] >= first_anchor and anchors[windows[-1]] - anchors[window] >= horizon:
            windows.append(window)
    # Known bars have no actual values of the other tasks, from which a line could go on.
    drawn = [task for task in model if TASKS[task].is_of_bars]
    issued = []
    for window in reversed(windows):
        quantile_rows = {}
        for task in drawn if quantiles else ():
            by_level_QHC = quantiles[task][window].swapaxes(0, 1)
            quantile_rows[task] = tuple(_rows(level_HC) for level_HC in by_level_QHC)
        forecast = SampledForecast(
            last_known=int(anchors[window]) - first,
            values={task: _rows(model[task][window]) for task in drawn},
            quantiles=quantile_rows,
        )
        issued.append(forecast)
    open_time_s = data.table.open_time_s[first:end].tolist()
    return ForecastSample(
        series=str(data.series),
        bar_s=data.series.bar_s,
        open_time_s=tuple(open_time_s),
        actual={task: _rows(data.table.select(TASKS[task].columns)[first:end]) for task in drawn},
        issued=tuple(issued),
        levels=data.profile.quantiles if quantiles else (),
    )


def read_sample(file: Path) -> ForecastSample | None:
    """Read `forecasts.json`; None if there is none, as for models of older versions.

    Raises:
        ArtifactError: If the file is damaged.
    """
    if not file.exists():
        return None
    content = read_json_object(file, fix="Restore the file or train the series again")
    rule = f"must be a sample of forecasts of format {SAMPLE_FORMAT}"
    fix = "Restore the file, or delete it to have the report without this chart"
    check_format(content, SAMPLE_FORMAT, kind="sample", where=str(file), fix=fix)
    sample = checked(ForecastSample, content, where=str(file), fix=fix, rule=rule)
    if not _is_consistent(sample) or _columns(sample.actual) != content.get("columns"):
        raise ArtifactError(
            where=str(file), rule=rule, got="rows and forecasts that do not fit together", fix=fix
        )
    return sample


def _rows(values: NDArray[np.floating[Any]]) -> Rows:
    """Round float32 numbers to their seven significant digits."""
    return tuple(tuple(float(f"{value:.7g}") for value in row) for row in values)


def _columns(actual: Mapping[str, Rows]) -> dict[str, list[str]]:
    return {task: list(TASKS[task].columns) for task in actual if task in TASKS}


def _is_consistent(sample: ForecastSample) -> bool:
    """Return whether rows, columns, horizons and the number of quantiles match."""
    columns = _columns(sample.actual)
    levels = sample.levels
    num_rows = len(sample.open_time_s)
    horizons = {len(rows) for forecast in sample.issued for rows in forecast.values.values()}
    if TASK_OHLC not in columns or len(horizons) != 1 or (levels and fault_of_levels(levels)):
        return False
    (horizon,) = horizons

    def have_shape(values: Mapping[str, Any], *shape: int) -> bool:
        expected = {task: (*shape, len(names)) for task, names in columns.items()}
        return {task: np.shape(rows) for task, rows in values.items()} == expected

    def is_consistent(forecast: SampledForecast) -> bool:
        if forecast.last_known >= num_rows - horizon or not have_shape(forecast.values, horizon):
            return False
        if not levels:
            return not forecast.quantiles
        return have_shape(forecast.quantiles, len(levels), horizon)

    try:
        return have_shape(sample.actual, num_rows) and all(map(is_consistent, sample.issued))
    except ValueError:  # rows of unequal lengths have no shape
        return False


def complete_artifact(
    folder: Path, metadata: Mapping[str, Any], history: Sequence[EpochRecord], sample: ForecastSample
) -> None:
    """Complete an artefact whose model file is already written: history, sample, README, then metadata.

    The error file of an earlier attempt is removed.

    Args:
        folder: The folder of the artefact.
        metadata: The content of `metadata.json` without the digest of the model file.
        history: One record per epoch.
        sample: The sample of forecasts.
    """
    columns = [field.name for field in fields(EpochRecord)]
    epochs = pd.DataFrame([asdict(record) for record in history], columns=columns)
    write_text(folder / HISTORY_FILE, epochs.to_csv(index=False, lineterminator="\n"))
    write_json(folder / FORECASTS_FILE, sample.to_json(), is_compact=True)
    content = {**metadata, "model_sha256": digest_file(folder / MODEL_FILE)}
    if (folder / ONNX_FILE).exists():
        content["onnx_sha256"] = digest_file(folder / ONNX_FILE)
    write_text(folder / README_FILE, artifact_readme(checked_metadata(content)))
    write_json(folder / METADATA_FILE, content)
    (folder / ERROR_FILE).unlink(missing_ok=True)


def store_onnx(folder: Path) -> None:
    """Write the digest of the ONNX file of a finished artefact into its metadata.

    Raises:
        ArtifactError: If the metadata is damaged.
    """
    content = read_metadata(folder).content
    write_json(folder / METADATA_FILE, {**content, "onnx_sha256": digest_file(folder / ONNX_FILE)})


def store_verdicts(folder: Path, verdicts: Verdicts) -> bool:
    """Write the verdicts of a run into the metadata and the README of an artefact.

    Returns whether they were new. Raises `ArtifactError` if the metadata is damaged, and `StorageError` if
    a file cannot be written.
    """
    metadata = read_metadata(folder)
    written = adapter(dict[str, Verdict]).dump_python(dict(verdicts), mode="json")
    if metadata.content.get("verdict") == written:
        return False
    content = {**metadata.content, "verdict": written}
    write_text(folder / README_FILE, artifact_readme(checked_metadata(content)))
    write_json(folder / METADATA_FILE, content)
    return True


def artifact_readme(metadata: Metadata) -> str:
    """Return the README of an artefact, in Markdown, from its metadata."""
    symbol, _, timeframe = metadata.series.partition("-")
    note = covariate_note(metadata)
    feature_notes = "".join(f"\n- {feature_note}" for feature_note in _feature_notes(metadata))
    return packaged("v8.forecaster", "readme.md").format(
        metadata=metadata,
        symbol=symbol,
        horizon=plural(metadata.horizon_bars, f"{timeframe} candle"),
        lookback=plural(metadata.lookback_bars, f"{timeframe} candle"),
        demo=f"\n\n{_DEMO_NOTE}" if metadata.is_demo_market else "",
        quality=_quality(metadata)
        if metadata.is_evaluated
        else "It was not evaluated: its errors are unknown.",
        spans=_spans(metadata),
        beside=f"\n{note}\n" if note else "",
        num_features=len(metadata.features),
        outputs=_outputs(metadata),
        standalone="" if obstacle(metadata.names) else _STANDALONE_NOTE,
        features=_features(metadata),
        warmup=metadata.needed_bars - metadata.lookback_bars,
        notes=feature_notes,
    )


def _quality(metadata: Metadata) -> str:
    evaluation = metadata.evaluation
    header = ("task", "relative MAE to naive", "verdict", "best baseline", "relative MAE to it", "verdict")
    rows = [
        (
            task,
            number(quality["relative_mae"]),
            quality["verdict"],
            quality["best_baseline"],
            number(quality["relative_mae_to_best"]),
            quality["verdict_against_best"],
        )
        for task, quality in metadata.quality.items()
    ]
    explanation = _QUALITY_NOTE.format(
        num_windows=evaluation.num_windows, alpha=ALPHA, min_windows=min_windows(evaluation.horizon_bars)
    )
    lines = [explanation, Table(header, rows).markdown()]
    verdicts = metadata.verdicts
    lost = [task for task, verdict in verdicts.items() if verdict.naive.outcome == LOSES]
    if lost:
        lines.append(f"**It loses to the naive forecast at: {', '.join(lost)}. Use the naive one there.**")
    beaten = [
        f"{task} ({verdict.best.name})"
        for task, verdict in verdicts.items()
        if verdict.best.baseline != NAIVE and verdict.best.outcome == LOSES
    ]
    if beaten:
        lines.append(f"**A forecast without a network does better at: {', '.join(beaten)}.**")
    return "\n\n".join(lines)


def _spans(metadata: Metadata) -> str:
    spans: dict[str, SpanInfo] = vars(metadata.split)
    rows = [(name, span.first_open, span.last_open, f"{span.num_windows:,}") for name, span in spans.items()]
    return Table(("span", "first open", "last open", "windows"), rows).markdown()


def covariate_note(metadata: Metadata) -> str:
    """Describe the covariates of a model, in Markdown; the empty text for most models, which have none."""
    others = neighbours(metadata.names)
    tables = metadata.tables
    if not others and not tables:
        return ""
    _, _, timeframe = metadata.series.rpartition("-")
    lines = [f"- `{symbol}`: its {timeframe} candles up to the same one" for symbol in others]
    for table in tables:
        columns = ", ".join(f"`{name}`" for name in table.columns)
        time = as_code(table.time)
        whose = "a table of your own, not published"
        place = ". On the command line `--tables FOLDER` names its folder"
        if table.is_of_source:
            whose = f"a table that the source {metadata.candles.source} has of the series"
            place = ""
        lines.append(
            f"- `{table.file}`, {whose}: times in {time}, {columns}. A "
            f"row counts from its time plus {table.available_after_s:,} s until a newer one does, at most "
            f"until its time plus {table.max_age_s:,} s{place}"
        )
    names = [*others, *(table.file for table in tables)]
    arguments = ", ".join(f'"{name}": ...' for name in names)
    description = "It also reads, and refuses to forecast without:\n\n" + "\n".join(lines)
    example = f"```\nforecast = forecaster.predict(candles, covariates={{{arguments}}})\n```"
    return f"{description}\n\n{example}"


def _outputs(metadata: Metadata) -> str:
    horizon = metadata.horizon_bars
    levels = metadata.profile.quantiles
    percentages = ", ".join(f"{percent_of(level)} %" for level in levels)
    rows = []
    for name, task in metadata.tasks.items():
        shape = f"(N, {horizon}, {len(task.columns)})"
        rows.append((f'`forecast["{name}"]`', shape, ", ".join(task.columns), task.unit))
    if levels:
        for name, task in metadata.tasks.items():
            shape = f"(N, {horizon}, {len(levels)}, {len(task.columns)})"
            columns = f"quantiles {percentages} of {', '.join(task.columns)}"
            rows.append((f'`forecast["{quantile_output(name)}"]`', shape, columns, task.unit))
    return Table(("output", "shape", "columns", "unit"), rows).markdown()


def _features(metadata: Metadata) -> str:
    rows = [
        (str(place), f"`{feature.name}`", feature.definition.partition(": ")[2])
        for place, feature in enumerate(metadata.features)
    ]
    return Table(("place", "name", "definition"), rows).markdown()


def _feature_notes(metadata: Metadata) -> list[str]:
    definitions = "\n".join(feature.definition for feature in metadata.features)
    others = listed(neighbours(metadata.names))
    return [
        note.format(others=others)
        for pattern, note in _FEATURE_NOTES.items()
        if re.search(pattern, definitions, re.MULTILINE)
    ]
