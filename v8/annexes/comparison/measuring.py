"""What a run of a comparison costs, measured in a process of its own, or read from the folder of a run."""

import statistics
import tempfile
import timeit
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from v8.annexes.comparison.results import WARM
from v8.base.child import report_ready, send_message
from v8.base.hardware import has_gpu
from v8.base.starting import light_start
from v8.data.features.store import FeatureStore
from v8.data.market.candles import Candles
from v8.data.market.companions import Companions
from v8.data.market.series import Series
from v8.data.market.sources.source import open_source
from v8.data.windows.dataset import table_columns
from v8.forecaster.metadata import HISTORY_FILE, Metadata, read_metadata
from v8.model.networks.cost import training_flop_per_window
from v8.profile.profile import Profile, recorded_profile
from v8.publish.report.outputs import ReportWriter
from v8.runs.engines import choose_device
from v8.runs.events import EpochEnded, Event, SeriesOutcome
from v8.runs.execution import run as carry_out_run
from v8.runs.observers import EventCallback, ObserverGroup
from v8.runs.plan import make_plan
from v8.runs.run_folder import read_run
from v8.runs.serving import served_folder


@dataclass(frozen=True)
class TrainingOptions:
    """Where the profiles of a comparison are trained, and on what."""

    source: str  # name of the source of candles
    data_dir: Path | None  # folder of a source of files
    tables: Path | None  # folder of the user's tables; that of `V8_TABLES` when None
    device: str  # "auto", "cpu" or "gpu"
    fleet_size: int | None  # models of one program; None: all on a GPU, one on a CPU


@dataclass(frozen=True)
class TrainingRequest:
    """One run of a comparison."""

    profile: Profile
    run: Path  # the run folder, which pins every series to its candles
    options: TrainingOptions


def measure_training(request: TrainingRequest) -> dict[str, Any] | None:
    """Carry out a run with an empty feature store, and measure what its folder does not hold.

    Features of finished series are read three times again, for the median, and matrices are multiplied right
    after training.

    Returns:
        The result of `measurement_of`; None if no series is finished.

    Raises:
        ProfileError: If a GPU is wanted and there is none.
    """
    with light_start():
        # Not at the top: the process that compares does not start TensorFlow.
        from v8.model.training.probe import matmul_speed  # noqa: PLC0415
        from v8.runs.local import InProcessEngine  # noqa: PLC0415
    has_gpu()  # looking for GPUs counts as part of the start of the process
    report_ready()
    profile = request.profile
    options = request.options
    choose_device(options.device)
    candle_source = open_source(options.source, data_dir=options.data_dir)
    record = read_run(request.run)
    plan = make_plan(profile, [Series.parse(name) for name in record.series], request.run)
    plan = replace(plan, tables=options.tables)
    fleet_size = options.fleet_size or (len(plan.series) if has_gpu() else 1)
    with tempfile.TemporaryDirectory() as folder:
        store = FeatureStore(Path(folder))
        engine = InProcessEngine(min(fleet_size, len(plan.series)), store=store)
        observer = ObserverGroup([EventCallback(_report), ReportWriter()])
        carry_out_run(plan, candle_source, engine, observer, command=record.command)
        finished = read_run(plan.path).done
        if not finished:
            return None
        measurement = measurement_of(plan.path, finished)
        for model in measurement["models"]:
            companions = Companions.of(profile, folder=options.tables)
            pin = record.series[model["series"]].candles
            candles = companions.candles(
                candle_source,
                Series.parse(model["series"]),
                profile.newest_bars,
                pin.last_open_s if pin else None,
            )
            seconds = _warm_feature_seconds(profile, candles, store)
            model["seconds"][WARM] = seconds
    return {**measurement, "matmul_gflop_per_s": matmul_speed(seconds=1.0)["gflop_per_s"]}


def _warm_feature_seconds(profile: Profile, candles: Candles, store: FeatureStore) -> float:
    """Measure how long it takes to read features of a series that the store holds, as a second run would."""
    read_features = partial(store.table, candles, table_columns(profile))
    return round(statistics.median(timeit.repeat(read_features, number=1, repeat=3)), 6)


def _report(event: Event) -> None:
    if isinstance(event, EpochEnded):
        send_message(f"{event.series}: epoch {event.record.epoch} of {event.num_epochs}")
    elif isinstance(event, SeriesOutcome):
        send_message(f"{event.series}: {event.reason or 'done'}")


def measurement_of(run: Path, series: Iterable[str]) -> dict[str, Any]:
    """Read the costs of finished series, at least one, from a run folder, as JSON values.

    The folder holds neither `import_s`, the seconds from the start of the process until it could train, nor
    the matmul rate of that process right after training.
    """
    profile = recorded_profile(read_run(run).profile, where=f"profile of {run}")
    folders = [served_folder(run, name) for name in series]
    all_metadata = [read_metadata(folder) for folder in folders]
    models = [_model(folder, metadata) for folder, metadata in zip(folders, all_metadata, strict=True)]
    first = all_metadata[0]
    trainings = [metadata.training for metadata in all_metadata]
    return {
        "profile": profile.name,
        "run": str(run),
        "repeat": 1,
        "import_s": None,
        "models": models,
        "horizon_bars": first.horizon_bars,
        "num_parameters": first.num_parameters,
        "flop_per_window": training_flop_per_window(profile),
        "own_epochs": profile.training.epochs,  # most epochs of the profile, without the comparison's budget
        "precision": first.training.precision,
        "device": first.training.device,
        "fleet_size": max(training.fleet_size or 1 for training in trainings),  # models of one program
        "peak_process_bytes": max(training.peak_process_bytes or 0 for training in trainings) or None,
        "peak_device_bytes": max(training.peak_memory_bytes or 0 for training in trainings),
        "matmul_gflop_per_s": None,
    }


def _model(folder: Path, metadata: Metadata) -> dict[str, Any]:
    """Return the measurements of one model; times and speeds of a model in a fleet are its share."""
    training = metadata.training
    epochs_s = pd.read_csv(folder / HISTORY_FILE)["seconds"]
    fleet_epoch_s = float(epochs_s.median()) if len(epochs_s) else 0.0  # a formula has no epochs
    return {
        "series": metadata.series,
        "seconds": {**metadata.seconds},
        "epoch_s": round(fleet_epoch_s / (training.fleet_size or 1), 6),
        "windows_per_s": training.windows_per_s,
        "epochs_run": training.epochs_run,
        "best_epoch": training.best_epoch,
        "num_windows": metadata.evaluation.num_windows,  # of its own test span
    }
