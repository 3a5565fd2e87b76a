"""What a measuring process measures; `v8.machine.measurements` tells it what.

Speeds are those of `v8.training.probe`; `training` makes whole artefacts the way a run does, from reading
the candles to saving, and measures every stage.
"""

import statistics
import tempfile
import timeit
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from v8.artifacts.metadata import HISTORY_FILE, Metadata, read_metadata
from v8.artifacts.run_folder import CandlePin, RunFolder, RunRecord
from v8.errors import ProfileError
from v8.features.store import FeatureStore
from v8.hardware import has_gpu, process_memory
from v8.machine.measurements import Order, say, serve
from v8.market.companions import Companions
from v8.market.series import Series
from v8.market.sources.source import open_source
from v8.networks.cost import training_flop_per_window
from v8.profile import Profile
from v8.runs.events import EpochEnded, Event, Outcome
from v8.runs.execution import execute
from v8.runs.local import train_all
from v8.runs.plan import make_plan
from v8.training.probe import describe_backend, format_speeds, matmul_speed, step_speed
from v8.views.comparison_results import WARM, ModelMeasurement
from v8.windows.dataset import table_columns


def measure(order: Order) -> Iterator[Any]:
    """Take the measurements of an order one after another."""
    for wanted in order.measurements:
        options = {name: value for name, value in wanted.items() if name != "measure"}
        yield MEASURES[wanted["measure"]](profile=order.profile, **options)


def measure_training(
    profile: Profile,
    *,
    pins: Mapping[str, Mapping[str, Any]],
    source: str,
    data_dir: str | None,
    run: str,
    command: str,
    fleet_size: int | None,
    needs_gpu: bool,
) -> dict[str, Any]:
    """Train, judge and save series, and measure it.

    Args:
        profile: The profile with its budget.
        pins: Per series, the `CandlePin` it must be trained on.
        source: Name of the candle source.
        data_dir: Its folder, or None.
        run: Run folder to make.
        command: The command line, for the run's record.
        fleet_size: Models of one program; None: all on a GPU, one on a CPU.
        needs_gpu: Whether to refuse to run without a GPU.

    Returns:
        The reason of each failed series as `failures`; as `measurement` what this process can know of a
        `Measurement`, None when no series was finished.

    Raises:
        ProfileError: If a GPU is needed and there is none.
    """
    if needs_gpu and not has_gpu():
        raise ProfileError(
            where="param:device gpu",
            rule="needs a GPU that the Keras backend can compute on",
            got="none visible",
            fix="Install the GPU's driver and tensorflow[and-cuda], or use param:device auto",
        )
    candles = open_source(source, data_dir=Path(data_dir) if data_dir else None)
    chosen = {Series.parse(name): CandlePin(**pin) for name, pin in pins.items()}
    plan = make_plan(profile, list(chosen), Path(run))
    fleet_size = min(fleet_size or (len(chosen) if has_gpu() else 1), len(chosen))
    with tempfile.TemporaryDirectory() as place:
        store = FeatureStore(Path(place), num_remembered=0)
        with RunFolder(
            plan.path, RunRecord.begin(profile, candles.name, candles.is_publishable, command)
        ) as folder:
            for series, pin in chosen.items():
                folder.pin(series, pin)
            train = partial(train_all, fleet_size=fleet_size, store=store)
            summary = execute(plan, folder, candles, train, _say)
        failures = {str(one.series): one.reason or "" for one in summary.failures}
        warm_s = {}
        for series, pin in chosen.items():
            if str(series) not in failures:
                rows = Companions.of(profile).candles(candles, series, profile.newest_bars, pin.last_open_s)
                # As the next run with this profile would; the median of three.
                again = partial(store.table, rows, table_columns(profile))
                warm_s[plan.path / str(series)] = statistics.median(timeit.repeat(again, number=1, repeat=3))
    return {
        "failures": failures,
        "measurement": _measurement(profile, warm_s, fleet_size) if warm_s else None,
    }


MEASURES: dict[str, Callable[..., Any]] = {
    "backend": lambda profile: describe_backend(),
    "matmul": lambda profile, **options: matmul_speed(**options),
    "stock": partial(step_speed, "stock"),
    "ours": partial(step_speed, "ours"),
    "formats": format_speeds,
    "training": measure_training,
}
"""What can be asked for, by name; each takes the profile and its options."""


def _measurement(profile: Profile, warm_s: Mapping[Path, float], fleet_size: int) -> dict[str, Any]:
    """Describe what was trained; `warm_s` has, per artefact, the seconds of reading its features again."""
    peak_bytes = process_memory().peak_bytes  # before the matmuls, which are not the profile's
    metadata = {folder: read_metadata(folder) for folder in warm_s}
    first = next(iter(metadata.values()))
    return {
        "models": [_model(folder, found, warm_s[folder], fleet_size) for folder, found in metadata.items()],
        "num_parameters": first.num_parameters,
        "flop_per_window": training_flop_per_window(profile),
        **{name: getattr(first.training, name) for name in ("precision", "device")},
        "fleet_size": fleet_size,
        "peak_process_bytes": peak_bytes,
        "peak_device_bytes": max(found.training.peak_memory_bytes or 0 for found in metadata.values()),
        "matmul_gflop_per_s": matmul_speed(seconds=1.0).gflop_per_s,
    }


def _model(folder: Path, about: Metadata, warm_s: float, fleet_size: int) -> ModelMeasurement:
    judgement, training = about.judgement, about.training
    epochs_s = pd.read_csv(folder / HISTORY_FILE)["seconds"]
    fleet_epoch_s = float(epochs_s.median()) if len(epochs_s) else 0.0  # a formula has no epochs
    return ModelMeasurement(
        series=about.series,
        seconds={**about.seconds, WARM: round(warm_s, 6)},
        epoch_s=round(fleet_epoch_s / fleet_size, 6),
        **{name: getattr(training, name) for name in ("windows_per_s", "epochs_run", "best_epoch")},
        multiples={task: judgement.multiple(task) for task in judgement.tasks},
        multiples_of_best={
            task: judgement.multiple(task, baseline=judgement.best_baseline(task)) for task in judgement.tasks
        },
    )


def _say(event: Event) -> None:
    if isinstance(event, EpochEnded):
        say(f"{event.series}: epoch {event.record.epoch} of {event.num_epochs}")
    elif isinstance(event, Outcome):
        say(f"{event.series}: {event.reason or 'done'}")


def main() -> None:
    """Carry out the order that comes through the pipe."""
    has_gpu()  # looking for GPUs belongs to the start
    serve(Order, measure)
