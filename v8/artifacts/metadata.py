"""`metadata.json`, everything about a model (G20), and the one schema by which it is read.

    BTCUSDT-15m/    model.keras, history.csv, forecasts.json, README.md, metadata.json

It says what went in, how it was fitted, what came out, and the sha256 of the model file. It is written last,
so a folder that has it is complete. It may be a stranger's: texts that are published are plain words, and the
large sections are checked when they are asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import StrictBool

from v8 import records
from v8.artifacts.run_folder import GENERATIONS_FOLDER, CandlePin, SeriesName, pin_of
from v8.baselines.baselines import NAIVE
from v8.errors import ArtifactError
from v8.evaluation.evaluation import Evaluation, QuantileEvaluation
from v8.evaluation.leaderboard import SeriesResult, read_result
from v8.features.formulas import ANCHORED_KINDS
from v8.features.indicators import FEATURES, fault_of, warmup_bars
from v8.market.candles import Candles
from v8.profile import Profile, ProfileName, TableSettings, recorded_profile, recorded_tables
from v8.records import AS_WRITTEN, ColumnName, Count, Moment, Number, Plain, Positive, Seconds, Sha256, Word
from v8.storage import digest_file
from v8.tasks import TASKS
from v8.windows.scaling import Scaling

ARTIFACT_FORMAT = 1  # version of the keys of `metadata.json`
MODEL_FILE = "model.keras"
METADATA_FILE = "metadata.json"
HISTORY_FILE = "history.csv"
_FIX: Final = "Restore the artefact's folder, download it again, or train the series again"


@dataclass(frozen=True)
class SpanAbout:
    """Train, validation or test span: rows of the table, open times in ISO 8601, windows."""

    rows: tuple[Count, Count]
    first_open: Moment
    last_open: Moment
    num_windows: Count


@dataclass(frozen=True)
class SplitAbout:
    """The three spans."""

    train: SpanAbout
    validation: SpanAbout
    test: SpanAbout


@dataclass(frozen=True)
class CandlesAbout(CandlePin):
    """Which candles the model was made from."""

    source: Word


@dataclass(frozen=True, kw_only=True)
class FeatureAbout:
    """An input and how it is computed; an older v8 did not write what is None."""

    name: ColumnName
    kind: Plain | None = None
    definition: Plain
    digest: str | None = None
    seen: tuple[Number, Number] | None = None
    """The least and the largest value that training saw, in its own unit."""


@dataclass(frozen=True)
class TaskAbout:
    """Columns of a task and their unit."""

    columns: tuple[Word, ...]
    unit: Plain


@dataclass(frozen=True)
class ProfileAbout:
    """What a profile says once more; None or nothing in those of an older v8 that had no such key."""

    name: ProfileName
    lookback_bars: Positive | None = None
    horizon_bars: Positive | None = None
    features: tuple[ColumnName, ...] | None = None
    covariates: tuple[Any, ...] = ()
    quantiles: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainingAbout:
    """How it was fitted, in the order of the file; an older v8 did not write what is None by default."""

    precision: Word
    batch_size: Count | None = None  # windows of one micro-batch
    gradient_accumulation: Count | None = None  # micro-batches of one optimiser step
    epochs_run: Count
    best_epoch: Count
    best_validation_loss: float | None = None  # None of a formula, too
    untrained_validation_loss: float | None = None  # None of a formula, too
    stopped_by: Plain | None = None
    resumed_from_epoch: Count | None = None
    started_from: str | None = None
    """Sha256 of the model file whose weights training began from; not written where they were drawn."""
    device: Plain
    peak_memory_bytes: int | None = None  # of the device
    peak_process_bytes: int | None = None
    fleet_size: int | None = None  # models that trained as one program
    windows_per_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        content = asdict(self)
        if self.started_from is None:
            del content["started_from"]
        return content


@dataclass(frozen=True)
class MachineAbout:
    """Where it was made."""

    cpu: Plain
    num_cores: Positive
    memory_bytes: Count | None = None


def _version_lacking(versions: Mapping[str, str]) -> str | None:
    missing = sorted({"v8", "keras"} - versions.keys())
    return f"names the version of {' and '.join(missing)}" if missing else None


@dataclass(frozen=True)
class Metadata:
    """The content of `metadata.json`; keys beside these stand in `content`."""

    content: Mapping[str, Any]  # all of it, as JSON values
    series: SeriesName
    created_at: Moment
    is_demo_market: StrictBool
    candles: CandlesAbout
    profile: ProfileAbout
    profile_digest: Sha256
    features: Annotated[
        tuple[FeatureAbout, ...], records.refusing(lambda those: fault_of([one.name for one in those]))
    ]
    lookback_bars: Positive
    horizon_bars: Positive
    bar_s: Positive
    tasks: Mapping[Word, TaskAbout]
    split: SplitAbout
    num_parameters: Count
    training: TrainingAbout
    seconds: Mapping[str, Seconds]
    versions: Annotated[Mapping[Word, Plain], records.refusing(_version_lacking)]
    machine: MachineAbout
    model_sha256: Sha256

    @property
    def names(self) -> list[str]:
        """Names of the features."""
        return [feature.name for feature in self.features]

    @property
    def seen(self) -> dict[str, tuple[float, float]]:
        """What training saw of each input, least and largest value, but of those in quote currency."""
        unpriced = (one for one in self.features if FEATURES[one.name].kind not in ANCHORED_KINDS)
        return {one.name: one.seen for one in unpriced if one.seen}

    @property
    def needed_bars(self) -> int:
        """Fewest unbroken candles that a forecast is made from: lookback and warm-up."""
        return self.lookback_bars + warmup_bars(self.names)

    @property
    def tables(self) -> tuple[TableSettings, ...]:
        """The user's own tables that the model reads; `ProfileError` if there can be no such."""
        return recorded_tables(self.profile.covariates, where=self._key("profile.covariates"))

    @property
    def trained_until_s(self) -> int:
        """When the last candle closed that training or early stopping has seen, seconds since the epoch."""
        return int(datetime.fromisoformat(self.split.validation.last_open).timestamp()) + self.bar_s

    @cached_property
    def trained_profile(self) -> Profile:
        """The whole profile; `ProfileError` if it is none of this v8."""
        return recorded_profile(self.content["profile"], where=f"metadata of {self.series}")

    # The large sections: `ArtifactError` if one is missing or damaged.

    @cached_property
    def scaling(self) -> Scaling:
        """How the inputs were scaled."""
        found = self.content.get("scaling")
        where = self._key("scaling")
        return records.checked(Scaling, found, where=where, fix=_FIX, rule=AS_WRITTEN)

    @property
    def is_evaluated(self) -> bool:
        """Whether it was evaluated when it was trained."""
        return "evaluation" in self.content

    @cached_property
    def evaluation(self) -> Evaluation:
        """Errors on the test span beside the baselines'."""
        if not self.is_evaluated:
            raise not_evaluated(f"metadata of {self.series}")
        return Evaluation.from_json(self.content.get("evaluation"), where=self._key("evaluation"))

    @cached_property
    def quality(self) -> dict[str, dict[str, Any]]:
        """Per task: its error beside naive's and the best baseline's, and verdicts; nothing if not evaluated."""
        told = {}
        for task in (evaluated := self.evaluation).tasks if self.is_evaluated else ():
            naive, best = (evaluated.against(task, name) for name in (NAIVE, evaluated.best_baseline(task)))
            told[task] = {
                "relative_mae": naive.multiple,
                "verdict": naive.verdict,
                "best_baseline": best.name,
                "relative_mae_to_best": best.multiple,
                "verdict_against_best": best.verdict,
            }
        return told

    @cached_property
    def quantiles(self) -> QuantileEvaluation | None:
        """How its quantiles did there; None where it has none."""
        told = self.content.get("quantiles")
        return QuantileEvaluation.from_json(told, where=self._key("quantiles")) if told is not None else None

    @cached_property
    def result(self) -> SeriesResult:
        """What reports show of it, if it was evaluated."""
        _ = self.evaluation
        return read_result(self.content)

    def verified_model(self, folder: Path) -> Path:
        """Return the model file of a folder, compared with the recorded digest, or `ArtifactError`."""
        file = folder / MODEL_FILE
        recorded = self.model_sha256
        found = digest_file(file) if file.is_file() else None
        if found != recorded:
            rule = f"must be the file whose sha256 {METADATA_FILE} records ({recorded[:12]})"
            got = "no such file" if found is None else f"a file with sha256 {found[:12]}"
            fix = "Restore the artefact's folder, or start a new run with param:fresh"
            raise ArtifactError(where=str(file), rule=rule, got=got, fix=fix)
        return file

    def _key(self, key: str) -> str:
        return f"metadata of {self.series}, key {key}"


@dataclass(frozen=True, kw_only=True)
class MetadataDraft:
    """What `metadata.json` will say of a new model: all but the digest of the model file.

    It is written by the types that `Metadata` is read by, and whoever saves it reads it again first
    (`v8.artifacts.series_artifact.save_description`): what is written must be what reading accepts.
    """

    created_at: str  # ISO 8601 in UTC
    candles: Candles  # that the model was made from
    is_publishable: bool  # false for the demo market
    profile: Profile
    features: Sequence[FeatureAbout]
    table_digest: str  # of the feature table
    split: Mapping[str, Any]  # see `SplitAbout`; and the rows of the embargo
    scaling: Scaling
    calibration: Sequence[Mapping[str, Any]] | None
    """By task the network's share of the forecast; None where it has every share."""
    seed: int
    num_parameters: int
    training: TrainingAbout
    evaluation: Evaluation | None  # None where it was not evaluated
    quantiles: QuantileEvaluation | None  # None where it was not evaluated, or forecasts none
    importance: Mapping[str, Any] | None  # of each kind of inputs; None where it was not measured
    seconds: Mapping[str, float]  # wall time by stage
    versions: Mapping[str, str]
    machine: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the keys of the file, in its order, as JSON values."""
        profile = self.profile
        calibration: dict[str, Any] = {"kind": profile.calibration}
        if self.calibration:
            calibration["tasks"] = self.calibration
        results: dict[str, Any] = {}
        if self.evaluation is not None:
            results["evaluation"] = self.evaluation.to_json()
        if self.quantiles is not None:
            results["quantiles"] = self.quantiles.to_json()
        if self.importance is not None:
            results["importance"] = self.importance
        return {
            "format": ARTIFACT_FORMAT,
            "series": str(self.candles.series),
            "created_at": self.created_at,
            "is_demo_market": not self.is_publishable,
            "candles": {
                "source": self.candles.source,
                "is_publishable": self.is_publishable,
                **asdict(pin_of(self.candles)),
                "report": asdict(self.candles.report),
            },
            "profile": profile.model_dump(mode="json"),
            "profile_digest": profile.digest,
            "features": [asdict(feature) for feature in self.features],
            "warmup_bars": warmup_bars(profile.features),
            "lookback_bars": profile.lookback_bars,
            "horizon_bars": profile.horizon_bars,
            "bar_s": self.candles.series.bar_s,
            "tasks": {
                name: asdict(TaskAbout(columns=TASKS[name].columns, unit=TASKS[name].unit))
                for name in profile.tasks
            },
            "table_digest": self.table_digest,
            "split": self.split,
            "scaling": asdict(self.scaling),
            "calibration": calibration,
            "seed": self.seed,
            "num_parameters": self.num_parameters,
            "training": self.training.to_json(),
            **results,
            "seconds": {stage: round(seconds, 4) for stage, seconds in self.seconds.items()},
            "versions": self.versions,
            "machine": self.machine,
        }


def not_evaluated(where: str) -> ArtifactError:
    """Return the error for what is told of models that were evaluated, where one was not."""
    rule = "must have been evaluated when it was trained"
    got = "no evaluation"
    fix = "Train it in a run that evaluates, or ask Forecaster.evaluate in Python"
    return ArtifactError(where=where, rule=rule, got=got, fix=fix)


def read_metadata(folder: Path, *, series: str | None = None) -> Metadata:
    """Read `metadata.json` of an artefact, which must be of `series` unless that is None.

    Raises `ArtifactError` if it is missing, damaged, of an unknown format or of another series.
    """
    file = folder / METADATA_FILE
    content = records.read_json_object(file, fix=_FIX)
    if content.get("format") == ARTIFACT_FORMAT and series not in (None, content.get("series")):
        rule = f"must be of {series}, whose folder it lies in"
        got = repr(content.get("series"))[:80]
        fix = "Restore the artefact's folder or train the series again"
        raise ArtifactError(where=str(file), rule=rule, got=got, fix=fix)
    return checked_metadata(content, where=str(file))


def checked_metadata(content: Mapping[str, Any], *, where: str = METADATA_FILE) -> Metadata:
    """Check what `metadata.json` holds; errors begin with `where`.

    Raises `ArtifactError` if it is of an unknown format, or a key is missing, damaged or no plain word.
    """
    records.check_format(content, (ARTIFACT_FORMAT,), what="artefact", where=where)
    whole = {**content, "content": content}
    return records.checked(Metadata, whole, where=where, fix=_FIX, rule=AS_WRITTEN)


@contextmanager
def redo_offered(folder: Path) -> Iterator[None]:
    """Let what is refused of a finished series, in its folder, say how that series alone is made again."""
    try:
        yield
    except ArtifactError as error:
        series = folder.name
        fix = f"repeat the command of the run with param:redo {series} to train this series anew"
        if folder.parent.parent.name == GENERATIONS_FOLDER:
            fix = f"take {series} out of serving.json, so that its first model serves again"
        fix = f"Restore it, or {fix}"
        raise ArtifactError(where=error.where, rule=error.rule, got=error.got, fix=fix) from error
