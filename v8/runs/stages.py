"""The stages of one series, from candles to its artefact: features, windows, training, evaluating, saving.

If the profile asks for it, a trained network is calibrated before it is evaluated. Two things are fitted to
the validation span and become part of the model that is saved: with `calibration: ensemble` the shares of a
weighted mean of its forecasts and those of two formulas (`v8.model.baselines.ranges`); and, where the profile
has quantiles, how wide their intervals are.
"""

import math
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.base.errors import ArtifactError, DivergedError
from v8.base.hardware import describe_machine, peak_process_bytes, versions
from v8.base.storage import write_bytes, write_with
from v8.data.feature_store import FeatureStore
from v8.data.market.series import Series
from v8.data.span import Span
from v8.data.windows import SeriesData, prepare_series, table_columns
from v8.forecaster.metadata import MODEL_FILE, ONNX_FILE, FeatureInfo, TrainingInfo, metadata_content
from v8.forecaster.series_artifact import complete_artifact, sample_forecasts
from v8.model.baselines.paths import RangeCoverage, evaluated_windows, measure_range
from v8.model.baselines.ranges import (
    conformal_widths,
    fit_formulas,
    fit_shares,
    mix,
    network_alone,
    shares_metadata,
)
from v8.model.evaluation.evaluation import (
    Evaluation,
    QuantileEvaluation,
    evaluate_quantiles,
    evaluate_test_span,
)
from v8.model.evaluation.fold_losses import TEST_LOSSES_FILE, WindowLosses
from v8.model.evaluation.metrics import Importance, measure_importance
from v8.model.evaluation.significance import BaselineComparison, Losses
from v8.model.networks.published import Forecasts, PublishedModel
from v8.model.networks.serving import ServingModel
from v8.model.training.formula import FormulaTrainer
from v8.model.training.trainer import FleetMember, InitialWeights, Trainer, TrainingResult
from v8.profile.columns import TASK_OHLC
from v8.profile.indicators import FEATURES, ancestry, definitions
from v8.runs.events import EpochEnded, Note, RunObserver, SeriesOutcome, StageStarted, run_isolated
from v8.runs.plan import Job
from v8.runs.run_folder import now_iso

CHECKPOINT: Final = Path(".training", "checkpoint.npz")
"""Where a series keeps its epochs until it is finished, inside its folder."""
AnyTrainer = Trainer | FormulaTrainer
"""What trains a network, and what fits the profiles that have none (family `range_paths`)."""


@dataclass(frozen=True)
class _TestSpanResults:
    """What came of forecasting the test span: forecasts, and how good they were where that is evaluated."""

    forecasts: Forecasts  # of every window
    calibration: list[dict[str, Any]] | None  # mixing shares by task, as metadata holds them
    evaluation: Evaluation | None = None
    losses: Losses | None = None  # of every forecaster in each window
    quantiles: QuantileEvaluation | None = None
    price_range: RangeCoverage | None = None  # of the model's range of prices
    importance: Importance | None = None  # of each kind of inputs


@dataclass(frozen=True, eq=False)
class TrainedSeries:
    """A series that is trained, on its way to the process that finishes it (`v8.runs.workers`)."""

    job: Job
    result: TrainingResult
    fleet_size: int  # series that were trained in one program with it, itself included
    initial_weights: InitialWeights | None  # that it began from, without the arrays
    seconds: dict[str, float]  # of the stages before its training

    @property
    def series(self) -> Series:
        """Which series."""
        return self.job.series


class SeriesInProgress:
    """One series with its features and windows, on its way to an artefact; each stage is timed.

    The constructor raises an error, such as `DataError`, if its features or windows cannot be made.
    `initial_weights` are those of the job's `initial_model`, which the caller has read.
    """

    def __init__(
        self, job: Job, store: FeatureStore, observer: RunObserver, initial_weights: InitialWeights | None
    ) -> None:
        self.series = job.series
        self._job = job
        self._recipe = job.recipe
        self._observer = observer
        self._initial_weights = initial_weights
        self._checkpoint = job.folder / CHECKPOINT
        self._seconds = {"candles": job.candle_seconds}
        self._onnx_fault: str | None = None
        with self._stage("features"):
            table = store.table(job.candles, table_columns(job.recipe.profile))
        with self._stage("windows"):
            self._data = prepare_series(table, job.recipe.profile)

    def fleet_member(self) -> FleetMember:
        """Return what the trainer needs of this series."""
        self._observer.on_event(StageStarted(self.series, "train"))
        num_epochs = self._recipe.profile.training.epochs
        return FleetMember(
            data=self._data,
            seed=self._job.seed,
            checkpoint=self._checkpoint,
            on_epoch=lambda record: self._observer.on_event(EpochEnded(self.series, record, num_epochs)),
            warn=lambda sentence: self._observer.on_event(Note(sentence)),
            initial_weights=self._initial_weights,
        )

    def hand_over(self, result: TrainingResult, *, fleet_size: int) -> TrainedSeries:
        """Return what another process needs to finish this series."""
        begun_from = None
        if self._initial_weights:
            begun_from = InitialWeights(self._initial_weights.model_sha256, weights=())
        return TrainedSeries(self._job, result, fleet_size, begun_from, self._seconds)

    def take_over(self, seconds: Mapping[str, float], observer: RunObserver) -> None:
        """Go on with a series that another process has trained: with its times, telling an observer."""
        self._seconds = dict(seconds)
        self._observer = observer

    def finish(
        self, trainer: AnyTrainer, result: TrainingResult | DivergedError, *, fleet_size: int
    ) -> SeriesOutcome:
        """Evaluate and save what was trained in a fleet of so many; an error becomes the outcome."""
        comparison, outcome = run_isolated(
            self.series, lambda: self._make_artifact(trainer, result, fleet_size)
        )
        own_times_s = (seconds for stage, seconds in self._seconds.items() if stage != "candles")
        return replace(
            outcome,
            seconds=math.fsum(own_times_s),
            compile_s=self._seconds.get("compile", 0.0),
            fleet_size=fleet_size,
            comparisons=(comparison,) if comparison else (),
            onnx_fault=self._onnx_fault,
        )

    def _make_artifact(
        self, trainer: AnyTrainer, result: TrainingResult | DivergedError, fleet_size: int
    ) -> BaselineComparison | None:
        """Make the artefact, and remove the checkpoint.

        Returns how its forecasts of candles compare with naive ones, for the outcome; None if that is not
        evaluated.
        """
        if isinstance(result, DivergedError):
            raise result  # one of a fleet diverged; `finish` makes an outcome of it, as of every error here
        self._seconds.update(result.seconds)
        self._data.forget_targets()  # only training needs them; actual values are in the spans
        with self._stage("evaluate"):
            # The weights are those of the epoch with the smallest loss on the validation span.
            model = trainer.serving_model(self._data, result.weights)
            test_results = self._calibrate_and_evaluate(model)
        with self._stage("save"):
            write_with(self._job.folder / MODEL_FILE, lambda file: model.save(file, series=str(self.series)))
            self._onnx_fault = self._save_onnx(model)
            if test_results.losses is not None:
                losses = WindowLosses.of(self._data, test_results.losses)
                losses.save(self._job.folder / TEST_LOSSES_FILE)
        # The metadata hold the seconds of every stage, of "save" too, so they are written after it; written
        # last, they make the artefact complete. A few forecasts are kept, to be drawn in the report.
        forecasts = test_results.forecasts
        sample = sample_forecasts(self._data, forecasts.points, forecasts.quantiles)
        metadata = self._metadata(trainer, result, fleet_size, test_results)
        complete_artifact(self._job.folder, metadata, result.history, sample)
        shutil.rmtree(self._checkpoint.parent, ignore_errors=True)  # the folder `.training`
        evaluation = test_results.evaluation
        if evaluation is None:
            return None
        return evaluation.against(TASK_OHLC)

    def _calibrate_and_evaluate(self, model: PublishedModel) -> _TestSpanResults:
        """Calibrate a model, let it forecast the test span, and evaluate it there if that is wanted."""
        # As far as the profile asks for it, fits to the validation span the share of the network beside
        # formulas, and how wide intervals are. This changes the model, and returns the shares for the
        # metadata. A model without a network was fitted whole, its quantiles too.
        shares = calibrate(model, self._data) if isinstance(model, ServingModel) else None
        test_span = self._data.spans["test"]
        forecasts = model.forecast_span(test_span)  # in any case, for a sample of them is saved
        results = _TestSpanResults(forecasts, calibration=shares)
        if self._recipe.is_evaluated:
            evaluation, losses = evaluate_test_span(self._data, forecasts.points)
            results = replace(results, evaluation=evaluation, losses=losses)
            if self._recipe.profile.quantiles:
                quantiles = evaluate_quantiles(self._data, forecasts.quantiles)
                # In how many test windows all prices ahead stayed within the range that is stated for them.
                coverage = self._range_coverage(model, forecasts.quantiles)
                results = replace(results, quantiles=quantiles, price_range=coverage)
        if self._recipe.has_importance:
            # How much larger are errors if inputs are shuffled? `forecast_all` takes unscaled windows in an
            # array, not a span.
            importance = measure_importance(test_span, model.forecast_all)
            results = replace(results, importance=importance)
        return results

    def _save_onnx(self, model: PublishedModel) -> str | None:
        """Write `model.onnx`, if that is wanted; where it cannot be written, note why, and return that."""
        (self._job.folder / ONNX_FILE).unlink(missing_ok=True)  # of an earlier attempt
        if not self._recipe.has_onnx:
            return None
        from v8.forecaster.onnx_file import converted_onnx  # noqa: PLC0415 - needs the extra `onnx`

        span = self._data.spans["test"]
        file = self._job.folder / ONNX_FILE
        try:
            content, _ = converted_onnx(model.keras_model, file, str(self.series), span)
            write_bytes(file, content)
        except ArtifactError as error:
            self._observer.on_event(Note(str(error)))
            return str(error)
        return None

    def _range_coverage(
        self, model: PublishedModel, quantiles: Mapping[str, NDArray[np.float32]]
    ) -> RangeCoverage | None:
        """Evaluate the range of prices on some windows of the test span; None for a model without paths."""
        test_span = self._data.spans["test"]
        chosen = evaluated_windows(test_span)
        span = Span(test_span.table, test_span.profile, test_span.anchors[chosen])
        path_bars = model.path_bars(span)
        if path_bars is None:
            return None
        levels = self._data.profile.quantiles
        return measure_range(span, levels, quantiles[TASK_OHLC][chosen], path_bars)

    def _metadata(
        self,
        trainer: AnyTrainer,
        result: TrainingResult,
        fleet_size: int,
        test_results: _TestSpanResults,
    ) -> dict[str, Any]:
        """Describe the model: what went in, how it was trained in a fleet of so many, how good it is."""
        return metadata_content(
            created_at=now_iso(),
            candles=self._job.candles,
            is_publishable=self._recipe.is_publishable,
            dataset=self._recipe.dataset,
            profile=self._data.profile,
            features=self._features(),
            table_digest=self._data.table.digest,
            split=self._data.describe_split(len(self._job.candles)),
            scaling=self._data.scaling,
            calibration=test_results.calibration,
            seed=self._job.seed,
            num_parameters=trainer.num_parameters,
            training=self._training(trainer, result, fleet_size),
            evaluation=test_results.evaluation,
            quantiles=test_results.quantiles,
            price_range=test_results.price_range,
            importance=test_results.importance,
            seconds=self._seconds,
            versions=versions(),
            machine=describe_machine(),
        )

    def _features(self) -> tuple[FeatureInfo, ...]:
        """Describe the inputs, with the least and the largest value of each in the training windows."""
        names = self._data.profile.features
        train_values = self._data.table.select(names)[self._data.anchors["train"]]
        least_and_largest = np.sort(train_values, axis=0)[[0, -1]].T.tolist()
        return tuple(
            FeatureInfo(
                name=name,
                kind=FEATURES[name].kind.value,
                definition=definition,
                digest=ancestry(name).digest,
                value_range=ends,
            )
            for (name, definition), ends in zip(definitions(names).items(), least_and_largest, strict=True)
        )

    def _training(self, trainer: AnyTrainer, result: TrainingResult, fleet_size: int) -> TrainingInfo:
        """Describe how the model was trained."""
        return TrainingInfo(
            precision=trainer.precision,
            batch_size=self._data.profile.training.windows_per_step // trainer.num_micro_batches,
            gradient_accumulation=trainer.num_micro_batches,
            epochs_run=len(result.history),
            best_epoch=result.best_epoch,
            best_validation_loss=result.best_validation_loss,
            untrained_validation_loss=result.untrained_loss,
            stopped_by=result.stopped_by,
            resumed_from_epoch=result.resumed_from_epoch,
            started_from=self._initial_weights.model_sha256 if self._initial_weights else None,
            device=result.device,
            peak_memory_bytes=result.peak_memory_bytes,
            peak_process_bytes=peak_process_bytes(),
            fleet_size=fleet_size,
            windows_per_s=result.windows_per_s,
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._observer.on_event(StageStarted(self.series, name))
        started = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - started


def finish_trained(
    trained: TrainedSeries, trainer: AnyTrainer, store: FeatureStore, observer: RunObserver
) -> SeriesOutcome:
    """Evaluate and save a series that another process has trained; an error becomes the outcome."""

    def prepare() -> SeriesInProgress:  # the observer was told of these stages when they ran there
        return SeriesInProgress(trained.job, store, RunObserver(), trained.initial_weights)

    in_progress, outcome = run_isolated(trained.series, prepare)
    if in_progress is None:
        return outcome
    in_progress.take_over(trained.seconds, observer)
    return in_progress.finish(trainer, trained.result, fleet_size=trained.fleet_size)


def calibrate(model: ServingModel, data: SeriesData) -> list[dict[str, Any]] | None:
    """Fit shares and widths on the validation span; they become part of the model.

    With `calibration: ensemble` the forecast is a weighted mean of three members: the network, a regression
    of ranges, and the median of simulated paths (`v8.model.baselines.ranges`). The weights are the shares;
    without an ensemble the network's is 1. The paths have quantiles, too: their distances from the paths'
    median are put around the mean, each multiplied by a factor, its width, with which about as many actual
    values of the validation span lie within as the level says.

    Returns the network's share by task, as metadata holds it; None where nothing is mixed.
    """
    span = data.spans["validation"]
    profile = data.profile
    if not profile.uses_simulated_paths:  # neither mixed nor with quantiles: the network alone forecasts
        return None
    formulas = fit_formulas(data.spans["train"])  # the members of the ensemble beside the network
    # Coherent: no low above open or close, no high below them, bands around their middle, as it is published.
    network_points = model.coherent(span, model.network_points(span))
    # By member (network, regression, paths) and task its forecasts (N, H, C), and by task how far the outer
    # quantiles of the simulated paths are from their median.
    members, quantile_distances = formulas.member_forecasts(span, network_points)
    is_mixed = profile.calibration == "ensemble"
    if is_mixed:
        shares = fit_shares(span, members)
    else:
        shares = dict.fromkeys(profile.tasks, network_alone(profile.horizon_bars))
    points = mix(shares, members)
    levels = profile.quantiles
    widths = conformal_widths(levels, span.actual, points, quantile_distances) if levels else {}
    model.add_calibration(formulas, shares, widths)
    return shares_metadata(shares) if is_mixed else None
