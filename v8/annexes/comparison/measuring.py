"""The process that carries out and measures runs of a comparison; `v8.runs.machine.processes` starts it.

It also takes the measurements of `v8.runs.measuring`. The folder of the run holds its costs.
"""

import statistics
import tempfile
import timeit
from functools import partial
from pathlib import Path
from typing import Any

from v8.annexes.comparison.measurement import measurement_of
from v8.annexes.comparison.results import WARM
from v8.base.hardware import has_gpu
from v8.base.starting import light_start
from v8.data.features.store import FeatureStore
from v8.data.market.companions import Companions
from v8.data.market.series import Series
from v8.data.market.sources.source import CandleSource, open_source
from v8.data.windows.dataset import table_columns
from v8.profile.profile import Profile
from v8.publish.report.outputs import ReportWriter
from v8.runs.engines import choose_device
from v8.runs.events import EpochEnded, Event, SeriesOutcome
from v8.runs.execution import run as carry_out_run
from v8.runs.machine.processes import MeasurementRequest, handle_request, send_message
from v8.runs.measuring import MEASURES, measure
from v8.runs.observers import EventCallback, ObserverGroup
from v8.runs.plan import make_plan
from v8.runs.run_folder import RunRecord, read_run

with light_start():  # they start TensorFlow
    from v8.model.training.probe import matmul_speed
    from v8.runs.local import InProcessEngine


def measure_training(
    profile: Profile,
    *,
    run: str,
    source: str,
    data_dir: str | None,
    device: str,
    fleet_size: int | None,
) -> dict[str, Any] | None:
    """Carry out a run with an empty feature store, and measure what its folder does not hold.

    Features of finished series are read three times again, for the median, and matrices are multiplied right
    after training.

    Args:
        profile: The profile.
        run: Run folder that pins every series to its candles.
        source: Name of the source of candles.
        data_dir: Folder of a source of files.
        device: "auto", "cpu" or "gpu".
        fleet_size: Models of one program; None: all on a GPU, one on a CPU.

    Returns:
        The result of `v8.annexes.comparison.measurement.measurement_of`; None if no series is finished.

    Raises:
        ProfileError: If a GPU is wanted and there is none.
    """
    choose_device(device)
    candle_source = open_source(source, data_dir=Path(data_dir) if data_dir else None)
    record = read_run(Path(run))
    plan = make_plan(profile, [Series.parse(name) for name in record.series], Path(run))
    if fleet_size is None:
        fleet_size = len(plan.series) if has_gpu() else 1
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
            seconds = _warm_feature_seconds(profile, record, model["series"], candle_source, store)
            model["seconds"][WARM] = seconds
    return {**measurement, "matmul_gflop_per_s": matmul_speed(seconds=1.0)["gflop_per_s"]}


def _warm_feature_seconds(
    profile: Profile, record: RunRecord, name: str, source: CandleSource, store: FeatureStore
) -> float:
    """Measure how long it takes to read features of a series that the store holds, as a second run would."""
    pin = record.series[name].candles
    end_s = pin.last_open_s if pin else None
    candles = Companions.of(profile).candles(source, Series.parse(name), profile.newest_bars, end_s)
    read_features = partial(store.table, candles, table_columns(profile))
    return round(statistics.median(timeit.repeat(read_features, number=1, repeat=3)), 6)


def _report(event: Event) -> None:
    if isinstance(event, EpochEnded):
        send_message(f"{event.series}: epoch {event.record.epoch} of {event.num_epochs}")
    elif isinstance(event, SeriesOutcome):
        send_message(f"{event.series}: {event.reason or 'done'}")


if __name__ == "__main__":
    has_gpu()  # looking for GPUs counts as part of the start of the process
    handle_request(MeasurementRequest, partial(measure, measures={**MEASURES, "training": measure_training}))
