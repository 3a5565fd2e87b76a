"""`metadata.json`, the complete description of a model, and the schema by which it is read.

    BTCUSDT-15m/    model.keras, history.csv, forecasts.json, README.md, metadata.json

It holds the inputs, how the model was fitted, its errors, and the sha256 of the model file. It is written
last, so a folder that has this file is complete. The file may come from anybody: published texts must be
plain words. The large sections are checked when they are first used.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import ConfigDict, StrictBool

from v8.base import records
from v8.base.errors import ArtifactError, listed
from v8.base.records import (
    AS_WRITTEN,
    ColumnName,
    Count,
    Moment,
    Number,
    Plain,
    Positive,
    Seconds,
    Sha256,
    Word,
    read_json_object,
)
from v8.base.storage import digest_file
from v8.data.market.candles import CandlePin, Candles, pin_of
from v8.data.market.series import Series, SeriesName
from v8.data.scaling import Scaling
from v8.model.baselines.baselines import reference_baseline
from v8.model.baselines.paths import RangeCoverage
from v8.model.evaluation.evaluation import Evaluation, QuantileEvaluation
from v8.model.evaluation.leaderboard import SeriesResult, Verdicts, read_result, references, verdicts_of
from v8.profile.columns import fault_of_levels, quantile_output
from v8.profile.formulas import ANCHORED_KINDS
from v8.profile.indicators import FEATURES, ancestry, definitions, fault_of, is_of_package, warmup_bars
from v8.profile.profile import Profile, ProfileName, recorded_profile, recorded_tables
from v8.profile.settings import TableSettings
from v8.profile.tasks import TASKS

ARTIFACT_FORMAT: Final = 2  # version of the keys of `metadata.json`
MODEL_FILE = "model.keras"
ONNX_FILE: Final = "model.onnx"  # the same model for onnxruntime; most models have none
METADATA_FILE = "metadata.json"
PLAN_FILE: Final = "plan.json"  # of a back-test, in the folder that holds its folds
GENERATIONS_FOLDER = "generations"  # holds the run folders of models that were trained later
ERROR_FILE = "error.txt"  # full traceback of a failed series, next to where its model would be
HISTORY_FILE = "history.csv"
_FORMAT_FIX: Final = "Train the series again, or use the v8 that wrote it"
_FIX: Final = "Restore the artefact's folder, download it again, or train the series again"


_STRICT: Final = ConfigDict(extra="forbid")
"""Refuses keys that v8 does not write: where a key may be missing, another name for it would go unnoticed."""


@dataclass(frozen=True)
class SpanInfo:
    """The train, validation or test span."""

    rows: tuple[Count, Count]  # first row of the feature table, and the row after the last one
    first_open: Moment  # open time of the first bar, ISO 8601
    last_open: Moment  # open time of the last bar, ISO 8601
    num_windows: Count


@dataclass(frozen=True)
class SplitInfo:
    """The three spans."""

    train: SpanInfo
    validation: SpanInfo
    test: SpanInfo


@dataclass(frozen=True)
class CandlesInfo(CandlePin):
    """The candles that the model was made from."""

    source: Word  # name of the candle source
    dataset: Plain | None = None
    """Dataset of the Hub that they came from, `user/name`; not written where they came from elsewhere."""


@dataclass(frozen=True, kw_only=True)
class FeatureInfo:
    """A feature and how it is computed."""

    __pydantic_config__: ClassVar = _STRICT

    name: ColumnName
    kind: Plain  # what kind of number it is, which says how it is scaled
    definition: Plain  # a sentence
    digest: str  # of the code that computes it
    value_range: tuple[Number, Number]
    """Smallest and largest value in the train part, in the unit of the feature."""


@dataclass(frozen=True)
class TaskInfo:
    """Columns of a task and their unit."""

    __pydantic_config__: ClassVar = _STRICT

    columns: tuple[Word, ...]
    unit: Plain


@dataclass(frozen=True)
class ModelShapes:
    """What a model takes and gives, for one window."""

    window: tuple[int, ...]  # bars and features
    outputs: Mapping[str, tuple[int, ...]]  # by name, those of the paths left out

    def __str__(self) -> str:
        return f"{self.window} to {dict(self.outputs)}"


@dataclass(frozen=True)
class ProfileInfo:
    """Keys of the profile; the last two are written only where they are not empty."""

    name: ProfileName
    lookback_bars: Positive
    horizon_bars: Positive
    features: tuple[ColumnName, ...]
    covariates: tuple[Any, ...] = ()
    quantiles: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainingInfo:
    """How it was fitted, in the order of the file."""

    __pydantic_config__: ClassVar = _STRICT

    precision: Word
    batch_size: Count  # windows of one micro-batch
    gradient_accumulation: Count  # micro-batches of one optimiser step
    epochs_run: Count
    best_epoch: Count
    best_validation_loss: float | None  # None of a formula
    untrained_validation_loss: float | None  # None of a formula
    stopped_by: Plain
    resumed_from_epoch: Count
    started_from: str | None = None
    """Sha256 of the model file whose weights training began from; not written where they were drawn."""
    device: Plain
    peak_memory_bytes: int  # of the device
    peak_process_bytes: int
    fleet_size: int  # models that trained as one program
    windows_per_s: float

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        content = asdict(self)
        if self.started_from is None:
            del content["started_from"]
        return content


@dataclass(frozen=True)
class MachineInfo:
    """The machine that trained the model."""

    cpu: Plain
    num_cores: Positive
    memory_bytes: Count


def _fault_of_versions(versions: Mapping[str, str]) -> str | None:
    missing = sorted({"v8", "keras"} - versions.keys())
    return f"names the version of {' and '.join(missing)}" if missing else None


def _fault_of_features(features: tuple[FeatureInfo, ...]) -> str | None:
    return fault_of([feature.name for feature in features])


@dataclass(frozen=True)
class Metadata:
    """The content of `metadata.json`. Sections that have no field are in `content`."""

    content: Mapping[str, Any]  # the complete file as JSON values
    series: SeriesName
    created_at: Moment
    is_demo_market: StrictBool
    candles: CandlesInfo
    profile: ProfileInfo
    profile_digest: Sha256
    features: Annotated[tuple[FeatureInfo, ...], records.refusing(_fault_of_features)]
    lookback_bars: Positive
    horizon_bars: Positive
    bar_s: Positive
    tasks: Mapping[Word, TaskInfo]
    split: SplitInfo
    num_parameters: Count
    training: TrainingInfo
    seconds: Mapping[str, Seconds]
    versions: Annotated[Mapping[Word, Plain], records.refusing(_fault_of_versions)]
    machine: MachineInfo
    model_sha256: Sha256
    onnx_sha256: Sha256 | None = None  # of `model.onnx`; None without that file

    @property
    def names(self) -> list[str]:
        """Names of the features."""
        return [feature.name for feature in self.features]

    @property
    def shapes(self) -> ModelShapes:
        """What its model takes and gives: windows, and forecasts with their quantiles."""
        outputs: dict[str, tuple[int, ...]] = {}
        num_levels = len(self.profile.quantiles)
        for task in self.tasks.keys() & TASKS.keys():
            num_columns = len(TASKS[task].columns)
            outputs[task] = (self.horizon_bars, num_columns)
            if num_levels:
                outputs[quantile_output(task)] = (self.horizon_bars, num_levels, num_columns)
        return ModelShapes((self.lookback_bars, len(self.features)), outputs)

    @property
    def value_ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest value of each feature in training, without those in quote currency.

        Models read features in quote currency relative to the newest close, so their values say little.
        """
        return {
            feature.name: feature.value_range
            for feature in self.features
            if FEATURES[feature.name].kind not in ANCHORED_KINDS
        }

    @property
    def needed_bars(self) -> int:
        """Fewest candles without a gap that a forecast needs: lookback and warm-up."""
        return self.lookback_bars + warmup_bars(self.names)

    @property
    def tables(self) -> tuple[TableSettings, ...]:
        """The user's own tables that the model reads; `ProfileError` if the section is invalid."""
        return recorded_tables(self.profile.covariates, where=self._location("profile.covariates"))

    @property
    def trained_until_s(self) -> int:
        """When the last candle of the validation span closed, seconds since the epoch.

        Training and early stopping used candles up to then.
        """
        return int(datetime.fromisoformat(self.split.validation.last_open).timestamp()) + self.bar_s

    @cached_property
    def trained_profile(self) -> Profile:
        """The complete profile; `ProfileError` if this version of v8 cannot read it."""
        return recorded_profile(self.content["profile"], where=f"metadata of {self.series}")

    # The large sections. They raise `ArtifactError` if one is missing or damaged.

    @cached_property
    def scaling(self) -> Scaling:
        """How the inputs are scaled."""
        section = self.content.get("scaling")
        return records.checked(Scaling, section, where=self._location("scaling"), fix=_FIX, rule=AS_WRITTEN)

    @property
    def is_evaluated(self) -> bool:
        """Whether the model was evaluated when it was trained."""
        return "evaluation" in self.content

    @cached_property
    def evaluation(self) -> Evaluation:
        """Errors of the model and of the baselines on the test span."""
        if not self.is_evaluated:
            raise not_evaluated(f"metadata of {self.series}")
        return Evaluation.from_json(self.content.get("evaluation"), where=self._location("evaluation"))

    @cached_property
    def price_range(self) -> RangeCoverage | None:
        """How often its range of prices held on the test span; None if that was not evaluated."""
        section = self.content.get("price_range")
        if section is None:
            return None
        return records.checked(
            RangeCoverage, section, where=self._location("price_range"), fix=_FIX, rule=AS_WRITTEN
        )

    @cached_property
    def quality(self) -> dict[str, dict[str, Any]]:
        """Per task the comparison with naive and with the best baseline; empty if it was not evaluated."""
        if not self.is_evaluated:
            return {}
        return {
            task: {
                "relative_mae": verdict.naive.relative_mae,
                "verdict": verdict.naive.verdict,
                "best_baseline": verdict.best.name,
                "relative_mae_to_best": verdict.best.relative_mae,
                "verdict_against_best": verdict.best.verdict,
            }
            for task, verdict in self.verdicts.items()
        }

    @property
    def has_own_baseline(self) -> bool:
        """Whether a best baseline is of this series alone: no reference, and its run stored no verdict."""
        if not self.is_evaluated or self.result.verdict is not None:
            return False
        return any(best != reference_baseline(task) for task, best in references(self.verdicts).items())

    @cached_property
    def verdicts(self) -> Verdicts:
        """Per task the verdict that its run gave; that on this series alone where none is stored.

        A run stores it when it ends.
        """
        if self.result.verdict is not None:
            return self.result.verdict
        return verdicts_of({self.series: self.evaluation})[self.series]

    @cached_property
    def quantiles(self) -> QuantileEvaluation | None:
        """Errors of the quantiles on the test span; None if the model forecasts none."""
        section = self.content.get("quantiles")
        if section is None:
            return None
        return QuantileEvaluation.from_json(section, where=self._location("quantiles"))

    @cached_property
    def result(self) -> SeriesResult:
        """What reports need of the model; `ArtifactError` if it was not evaluated."""
        _ = self.evaluation  # raises the error
        return read_result(self.content)

    def verified_model(self, folder: Path) -> Path:
        """Return the model file of a folder, after comparing it with the recorded digest.

        Raises:
            ArtifactError: If there is no such file, or its digest is another one.
        """
        return self._verified(folder / MODEL_FILE, self.model_sha256)

    def verified_onnx(self, folder: Path) -> Path:
        """Return the ONNX file of a folder as `verified_model` does; there must be a digest of one."""
        return self._verified(folder / ONNX_FILE, str(self.onnx_sha256))

    def _verified(self, file: Path, recorded: str) -> Path:
        actual = digest_file(file) if file.is_file() else None
        if actual != recorded:
            raise ArtifactError(
                where=str(file),
                rule=f"must be the file whose sha256 {METADATA_FILE} records ({recorded[:12]})",
                got="no such file" if actual is None else f"a file with sha256 {actual[:12]}",
                fix=f"Restore {file.parent}, download it again, or move it away and repeat the command that "
                "trained it",
            )
        return file

    def _location(self, key: str) -> str:
        return f"metadata of {self.series}, key {key}"


def metadata_content(
    *,
    created_at: str,
    candles: Candles,
    is_publishable: bool,
    dataset: str | None,
    profile: Profile,
    features: Sequence[FeatureInfo],
    table_digest: str,
    split: Mapping[str, Any],
    scaling: Scaling,
    calibration: Sequence[Mapping[str, Any]] | None,
    seed: int,
    num_parameters: int,
    training: TrainingInfo,
    evaluation: Evaluation | None,
    quantiles: QuantileEvaluation | None,
    price_range: RangeCoverage | None,
    importance: Mapping[str, Any] | None,
    seconds: Mapping[str, float],
    versions: Mapping[str, str],
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of `metadata.json` of a new model, all but the digest of the model file, in order.

    It is written by the types that `Metadata` is read by, and whoever saves it reads it again first
    (`v8.forecaster.series_artifact.complete_artifact`): what is written must be what reading accepts.

    Args:
        created_at: Time, ISO 8601 in UTC.
        candles: Those that the model was made from.
        is_publishable: False for the demo market.
        dataset: Dataset of the Hub that the candles came from, `user/name`.
        profile: The profile.
        features: The inputs.
        table_digest: Digest of the feature table.
        split: The spans, see `SplitInfo`; and the rows of the embargo.
        scaling: How the inputs are scaled.
        calibration: By task the network's share of the forecast; None where it has every share.
        seed: Seed of the training.
        num_parameters: Number of fitted numbers.
        training: How the model was fitted.
        evaluation: None where it was not evaluated.
        quantiles: None where it was not evaluated, or forecasts none.
        price_range: None where its range of prices was not evaluated.
        importance: Of each kind of inputs; None where it was not measured.
        seconds: Wall time by stage.
        versions: Versions of packages, by name.
        machine: The machine, see `MachineInfo`.
    """
    calibrated: dict[str, Any] = {"kind": profile.calibration}
    if calibration:
        calibrated["tasks"] = calibration
    results = {
        "evaluation": evaluation.to_json() if evaluation else None,
        "quantiles": quantiles.to_json() if quantiles else None,
        "price_range": asdict(price_range) if price_range else None,
        "importance": importance,
    }
    return {
        "format": ARTIFACT_FORMAT,
        "series": str(candles.series),
        "created_at": created_at,
        "is_demo_market": not is_publishable,
        "candles": {
            "source": candles.source,
            **({"dataset": dataset} if dataset else {}),
            "is_publishable": is_publishable,
            **asdict(pin_of(candles)),
            "report": asdict(candles.report),
        },
        "profile": profile.model_dump(mode="json"),
        "profile_digest": profile.digest,
        "features": [asdict(feature) for feature in features],
        "warmup_bars": warmup_bars(profile.features),
        "lookback_bars": profile.lookback_bars,
        "horizon_bars": profile.horizon_bars,
        "bar_s": candles.series.bar_s,
        "tasks": {
            name: asdict(TaskInfo(columns=TASKS[name].columns, unit=TASKS[name].unit))
            for name in profile.tasks
        },
        "table_digest": table_digest,
        "split": split,
        "scaling": asdict(scaling),
        "calibration": calibrated,
        "seed": seed,
        "num_parameters": num_parameters,
        "training": training.to_json(),
        **{key: section for key, section in results.items() if section is not None},
        "seconds": {stage: round(stage_s, 4) for stage, stage_s in seconds.items()},
        "versions": versions,
        "machine": machine,
    }


EVALUATED_SECTIONS: Final = frozenset({"evaluation", "quantiles", "price_range", "importance"})
"""Keys of what was found on the test span of the series that the model was trained on."""

_KEYS: Final = frozenset(
    {field.name for field in fields(Metadata)} - {"content"}
    | {"format", "warmup_bars", "table_digest", "scaling", "calibration", "seed", "verdict"}
    | EVALUATED_SECTIONS
)
"""Keys that `metadata.json` may have: those of `Metadata`, and those that are read from its content."""


def not_evaluated(location: str) -> ArtifactError:
    """Return the error for a model that was not evaluated, where an evaluation is needed."""
    return ArtifactError(
        where=location,
        rule="must have been evaluated when it was trained",
        got="no evaluation",
        fix="Train it in a run that evaluates, or ask Forecaster.evaluate in Python",
    )


def read_metadata(folder: Path, *, series: str | None = None) -> Metadata:
    """Read `metadata.json` of an artefact, which must be of `series` unless that is None.

    Raises:
        ArtifactError: If it is missing or damaged, has an unknown format, or is of another series.
    """
    file = folder / METADATA_FILE
    content = read_json_object(file, fix=_FIX)
    if content.get("format") == ARTIFACT_FORMAT and series not in (None, content.get("series")):
        raise ArtifactError(
            where=str(file),
            rule=f"must be of {series}, as the name of its folder says",
            got=repr(content.get("series"))[:80],
            fix="Restore the artefact's folder or train the series again",
        )
    return checked_metadata(content, where=str(file))


def checked_metadata(content: Mapping[str, Any], *, where: str = METADATA_FILE) -> Metadata:
    """Check the content of `metadata.json`; errors begin with `where`.

    Raises:
        ArtifactError: If it has an unknown format, or a key is missing or damaged.
    """
    records.check_format(content, ARTIFACT_FORMAT, kind="artefact", where=where, fix=_FORMAT_FIX)
    unknown = content.keys() - _KEYS
    if unknown:
        raise ArtifactError(
            where=where, rule=AS_WRITTEN, got=f"the unknown keys {listed(sorted(unknown))}", fix=_FIX
        )
    _require_known_features(content.get("features"), where)
    values = {**content, "content": content}
    return records.checked(Metadata, values, where=where, fix=_FIX, rule=AS_WRITTEN)


class MissingPluginError(ArtifactError):
    """A model is whole, and reads features of a plug-in that is not loaded."""


def _require_known_features(features: Any, where: str) -> None:
    """Refuse a model with features of a plug-in that is not loaded; whatever else is wrong is found later."""
    listed_features = features if isinstance(features, list) else []
    names = [feature.get("name") for feature in listed_features if isinstance(feature, dict)]
    unknown = [name for name in names if isinstance(name, str) and name not in FEATURES]
    if unknown:
        raise MissingPluginError(
            where=records.under_key(where, "features"),
            rule="reads features that v8 or a plug-in registers",
            got=f"{listed(unknown)}, which no one has",
            fix="Name the plug-in, too: param:plugin FILE.py; in Python call v8.plugin(FILE.py) before",
        )


@contextmanager
def redo_offered(folder: Path) -> Iterator[None]:
    """Extend the advice of an `ArtifactError` about a finished series by how to train that series again."""
    try:
        yield
    except MissingPluginError:  # training again would need it, too
        raise
    except ArtifactError as error:
        series = folder.name
        fix = f"repeat the command of the run with param:redo {series} to train this series again"
        if (folder.parent.parent / PLAN_FILE).is_file():
            fix = f"move the folder {folder} away and repeat the command, which trains this series again"
        elif folder.parent.parent.name == GENERATIONS_FOLDER:
            fix = f"take {series} out of serving.json, so that its first model serves again"
        fix = f"Restore it, or {fix}"
        raise ArtifactError(where=error.where, rule=error.rule, got=error.got, fix=fix) from error


def require_same_feature(feature: FeatureInfo, location: str) -> None:
    """Raise an `ArtifactError` if a feature is computed in another way than when the model was trained."""
    name = feature.name
    if feature.digest != ancestry(name).digest:
        of_package = ", and the version of ta that it names" if is_of_package(name) else ""
        raise ArtifactError(
            where=f"{location}, feature {name}",
            rule=f"this v8 computes it as {definitions([name])[name]!r}",
            got=f"another formula, {feature.definition!r}",
            fix=f"Use the v8 that trained the model{of_package}",
        )


def contradictions_in(metadata: Metadata) -> list[str]:
    """Return the keys of the metadata that contradict others."""
    profile = metadata.profile
    is_consistent = {
        "bar_s": metadata.bar_s == Series.parse(metadata.series).bar_s,
        "profile.lookback_bars": profile.lookback_bars == metadata.lookback_bars,
        "profile.horizon_bars": profile.horizon_bars == metadata.horizon_bars,
        "profile.features": profile.features == tuple(metadata.names),
        "profile.quantiles": not profile.quantiles or fault_of_levels(profile.quantiles) is None,
    }
    for name, task in metadata.tasks.items():
        is_consistent[f"tasks.{name}"] = name in TASKS and task.columns == TASKS[name].columns
    return [key for key, is_so in is_consistent.items() if not is_so]
