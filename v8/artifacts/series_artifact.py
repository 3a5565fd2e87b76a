"""The artefact of one series, in one folder: its model, how it was trained, what it forecast, how to use it.

    BTCUSDT-15m/    model.keras, history.csv, forecasts.json, README.md, metadata.json

`metadata.json` is the whole truth about the model (G20): what went in, how it was fitted, what came
out, and the sha256 of the model file. It is written last, so a folder that has it is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import pandas as pd
from pydantic import Field, StrictBool, TypeAdapter

from v8.artifacts.artifact_readme import README_FILE, artifact_readme
from v8.artifacts.forecast_sample import FORECASTS_FILE, ForecastSample
from v8.artifacts.run_folder import ERROR_FILE, GENERATIONS_FOLDER, now_iso, pin_of
from v8.errors import ArtifactError, DataError
from v8.features.indicators import FEATURES, check_columns, definition_digest, definitions, warmup_bars
from v8.formulas.range_ensemble import Shares
from v8.hardware import describe_machine, versions
from v8.losses.judgement import Judgement
from v8.losses.quantile_judgement import QuantileJudgement
from v8.market.candles import Candles
from v8.profile import ProfileName
from v8.records import (
    ColumnName,
    Count,
    Moment,
    Plain,
    Positive,
    Sha256,
    Word,
    check_format,
    checked,
    read_json_object,
)
from v8.storage import digest_file, write_json, write_text
from v8.tasks import TASKS
from v8.training.epoch_record import EpochRecord
from v8.windows.dataset import SeriesData

if TYPE_CHECKING:  # reading metadata must not start TensorFlow
    from v8.training.trainer import TrainingResult

ARTIFACT_FORMAT = 1
"""Version of the keys of `metadata.json`."""

MODEL_FILE = "model.keras"
METADATA_FILE = "metadata.json"
HISTORY_FILE = "history.csv"


@dataclass(frozen=True)
class Finished:
    """A trained and judged series, ready to be saved.

    Args:
        data: The prepared series.
        candles: What it was prepared from.
        is_publishable: False for the demo market.
        seed: Seed of weights, order and dropout.
        precision: Keras dtype policy it was trained in.
        num_parts: Batches that made one optimiser step.
        num_parameters: Trainable numbers of the network.
        result: Its training.
        judgement: Its errors on the test span.
        quantiles: How its quantiles did there; None where it has none.
        sample: A few of its forecasts of the test span, to look at.
        shares: What its calibration folded into the model; None without one.
        seconds: Wall time per stage.
    """

    data: SeriesData
    candles: Candles
    is_publishable: bool
    seed: int
    precision: str
    num_parts: int
    num_parameters: int
    result: TrainingResult
    judgement: Judgement
    quantiles: QuantileJudgement | None
    sample: ForecastSample
    shares: Shares | None
    seconds: dict[str, float]


def save_description(folder: Path, finished: Finished) -> None:
    """Complete an artefact whose model file is written: history, sample, README, then metadata.

    An error file of an earlier attempt goes, because it is no longer true.
    """
    columns = [field.name for field in fields(EpochRecord)]
    history = pd.DataFrame([asdict(record) for record in finished.result.history], columns=columns)
    write_text(folder / HISTORY_FILE, history.to_csv(index=False, lineterminator="\n"))
    write_json(folder / FORECASTS_FILE, finished.sample.to_json(), is_compact=True)
    metadata = _metadata(finished, digest_file(folder / MODEL_FILE))
    write_text(folder / README_FILE, artifact_readme(metadata))
    write_json(folder / METADATA_FILE, metadata)
    (folder / ERROR_FILE).unlink(missing_ok=True)


def read_metadata(folder: Path, *, series: str | None = None) -> dict[str, Any]:
    """Read `metadata.json` of an artefact.

    Args:
        folder: Where it lies.
        series: Which series it must be of; None for any.

    Raises:
        ArtifactError: If it is missing, damaged, of an unknown format or of another series.
    """
    file, fix = folder / METADATA_FILE, "Use the v8 that wrote it"
    content = read_json_object(file, fix="Restore the artefact's folder or train the series again")
    check_format(content, (ARTIFACT_FORMAT,), what="artefact", where=str(file), fix=fix)
    if series not in (None, content.get("series")):
        raise ArtifactError(
            where=str(file),
            rule=f"must be of {series}, whose folder it lies in",
            got=repr(content.get("series"))[:80],
            fix="Restore the artefact's folder or train the series again",
        )
    return content


@contextmanager
def redo_offered(folder: Path) -> Iterator[None]:
    """Let what is refused of a finished series, in its folder, say how that series alone is made again."""
    try:
        yield
    except ArtifactError as error:
        series = folder.name
        fix = f"Restore it, or repeat the command of the run with --redo {series} to train this series anew"
        if folder.parent.parent.name == GENERATIONS_FOLDER:
            fix = f"Restore it, or take {series} out of serving.json, so that its first model serves again"
        raise ArtifactError(where=error.where, rule=error.rule, got=error.got, fix=fix) from error


@dataclass(frozen=True)
class _Span:
    first_open: Moment
    last_open: Moment
    num_windows: Count


@dataclass(frozen=True)
class _Spans:
    train: _Span
    validation: _Span
    test: _Span


@dataclass(frozen=True)
class _Candles:
    source: Word
    first_open: Moment
    last_open: Moment
    num_bars: Count


@dataclass(frozen=True)
class _Feature:
    name: ColumnName
    definition: Plain


@dataclass(frozen=True)
class _Task:
    columns: tuple[Word, ...]
    unit: Plain


@dataclass(frozen=True)
class _Training:
    precision: Word
    device: Plain


@dataclass(frozen=True)
class _Profile:
    name: ProfileName


@dataclass(frozen=True)
class _Versions:
    v8: Plain
    keras: Plain


@dataclass(frozen=True)
class _Described:
    """What is published of `metadata.json` in words: in cards, READMEs and the manifest."""

    created_at: Moment
    is_demo_market: StrictBool
    candles: _Candles
    profile: _Profile
    features: Annotated[tuple[_Feature, ...], Field(min_length=1)]
    lookback_bars: Positive
    horizon_bars: Positive
    tasks: Mapping[Word, _Task]
    split: _Spans
    num_parameters: Count
    training: _Training
    versions: _Versions
    model_sha256: Sha256


_DESCRIBED: Final = TypeAdapter(_Described)


def read_described(folder: Path, *, series: str) -> dict[str, Any]:
    """Read `metadata.json` of an artefact that is to be published: all that others will read of it is there.

    Raises:
        ArtifactError: If so `read_metadata` says, or a key is missing or would be more than a plain word.
    """
    content = read_metadata(folder, series=series)
    fix = "Restore the artefact's folder or train the series again"
    checked(_DESCRIBED, content, where=str(folder / METADATA_FILE), fix=fix)
    try:
        check_columns([feature["name"] for feature in content["features"]])
    except DataError as error:
        where = f"{folder / METADATA_FILE}, key features"
        raise ArtifactError(where=where, rule=error.rule, got=error.got, fix=fix) from error
    return content


def verify_model_file(folder: Path, metadata: Mapping[str, Any]) -> Path:
    """Return the model file after comparing it with the digest its metadata records.

    Raises:
        ArtifactError: If it is missing or not the file that was recorded.
    """
    file = folder / MODEL_FILE
    recorded = metadata.get("model_sha256")
    found = digest_file(file) if file.is_file() else None
    if found is None or found != recorded:
        raise ArtifactError(
            where=str(file),
            rule=f"must be the file whose sha256 {METADATA_FILE} records ({str(recorded)[:12]})",
            got="no such file" if found is None else f"a file with sha256 {found[:12]}",
            fix="Restore the artefact's folder, or start a new run with --fresh",
        )
    return file


def _metadata(finished: Finished, model_sha256: str) -> dict[str, Any]:
    data, profile, candles, result = finished.data, finished.data.profile, finished.candles, finished.result
    factors = {} if finished.shares is None else asdict(finished.shares)
    return {
        "format": ARTIFACT_FORMAT,
        "series": str(data.series),
        "created_at": now_iso(),
        "is_demo_market": not finished.is_publishable,
        "candles": {
            "source": candles.source,
            "is_publishable": finished.is_publishable,
            **asdict(pin_of(candles)),
            "report": candles.report.to_json(),
        },
        "profile": profile.model_dump(mode="json"),
        "profile_digest": profile.digest,
        "features": [
            {
                "name": name,
                "kind": FEATURES[name].kind.value,
                "definition": text,
                "digest": definition_digest(name),
            }
            for name, text in definitions(profile.features).items()
        ],
        "warmup_bars": warmup_bars(profile.features),
        "lookback_bars": profile.lookback_bars,
        "horizon_bars": profile.horizon_bars,
        "bar_s": data.series.bar_s,
        "tasks": {
            task: {"columns": list(TASKS[task].columns), "unit": TASKS[task].unit} for task in profile.tasks
        },
        "table_digest": data.table.digest,
        "split": data.describe_split(),
        "scaling": asdict(data.scaling),
        "calibration": {"kind": profile.calibration, **factors},
        "seed": finished.seed,
        "num_parameters": finished.num_parameters,
        "training": {
            "precision": finished.precision,
            "batch_size": profile.training.windows_per_step // finished.num_parts,
            "gradient_accumulation": finished.num_parts,
            "epochs_run": len(result.history),
            "best_epoch": result.best_epoch,
            "best_validation_loss": result.best_validation_loss,
            "untrained_validation_loss": result.untrained_loss,
            "stopped_by": result.stopped_by,
            "resumed_from_epoch": result.resumed_from_epoch,
            "device": result.device,
            "peak_memory_bytes": result.peak_memory_bytes,
            "windows_per_s": result.windows_per_s,
        },
        "judgement": finished.judgement.to_json(),
        **({"quantiles": finished.quantiles.to_json()} if finished.quantiles else {}),
        "seconds": finished.seconds,
        "versions": versions(),
        "machine": describe_machine(),
        "model_sha256": model_sha256,
    }
