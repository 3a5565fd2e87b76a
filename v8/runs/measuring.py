"""The process that measures; `v8.machine.processes` starts it and tells it what.

    echo '{"profile": {...}, "measurements": [{"measure": "matmul", "seconds": 2}]}' \
        | python -m v8.runs.measuring

Speeds are those of `v8.training.probe`; `training` carries out a whole run, whose folder tells what it cost.
"""

import statistics
import tempfile
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from v8.artifacts.comparison_results import WARM
from v8.artifacts.run_folder import read_run
from v8.comparison.measurement import measurement_of
from v8.features.store import FeatureStore
from v8.hardware import has_gpu
from v8.machine.processes import MeasurementRequest, handle_request, send_message
from v8.machine.starting import light_start
from v8.market.companions import Companions
from v8.market.series import Series
from v8.market.sources.source import open_source
from v8.profile import Profile
from v8.runs.engines import choose_device
from v8.runs.events import EpochEnded, Event, SeriesOutcome
from v8.runs.execution import run as carry_out
from v8.runs.observers import EventCallback, ObserverGroup
from v8.runs.outputs import ReportWriter
from v8.runs.plan import make_plan
from v8.windows.dataset import table_columns

with light_start():  # they start TensorFlow
    from v8.runs.local import InProcessEngine
    from v8.training.probe import describe_backend, format_speeds, matmul_speed, step_speed


def measure(request: MeasurementRequest) -> Iterator[Any]:
    """Take the measurements of a request one after another."""
    for measurement in request.measurements:
        options = {name: value for name, value in measurement.items() if name != "measure"}
        yield MEASURES[measurement["measure"]](profile=request.profile, **options)


def measure_training(
    profile: Profile,
    *,
    run: str,
    source: str,
    data_dir: str | None,
    device: str,
    fleet_size: int | None,
) -> dict[str, Any] | None:
    """Carry out a run with features that nobody has computed yet, and measure what its folder does not tell.

    Features of finished series are read three times more, for the median, and matrices are multiplied right
    after training.

    Args:
        run: Run folder that pins every series to its candles.
        fleet_size: Models of one program; None: all on a GPU, one on a CPU.

    Returns:
        What `v8.comparison.measurement.measurement_of` makes of it; None where no series is finished.

    Raises:
        ProfileError: If a GPU is wanted and there is none.
    """
    choose_device(device)
    candles = open_source(source, data_dir=Path(data_dir) if data_dir else None)
    begun = read_run(Path(run))
    companions = Companions.of(profile)
    plan = make_plan(profile, [Series.parse(name) for name in begun.series], Path(run))
    size = min(fleet_size or (len(plan.series) if has_gpu() else 1), len(plan.series))
    with tempfile.TemporaryDirectory() as place:
        store = FeatureStore(Path(place))
        observer = ObserverGroup([EventCallback(_say), ReportWriter()])
        carry_out(plan, candles, InProcessEngine(size, store=store), observer, command=begun.command)
        done = read_run(plan.path).done
        if not done:
            return None
        found = measurement_of(plan.path, done)
        for model in found["models"]:
            pin = begun.series[model["series"]].candles
            end_s = pin.last_open_s if pin else None
            rows = companions.candles(candles, Series.parse(model["series"]), profile.newest_bars, end_s)
            again = partial(store.table, rows, table_columns(profile))  # as the profile's next run would
            model["seconds"][WARM] = round(statistics.median(timeit.repeat(again, number=1, repeat=3)), 6)
    return {**found, "matmul_gflop_per_s": matmul_speed(seconds=1.0)["gflop_per_s"]}


MEASURES: dict[str, Callable[..., Any]] = {
    "backend": lambda profile: describe_backend(),
    "matmul": lambda profile, **options: matmul_speed(**options),
    "stock": partial(step_speed, "stock"),
    "ours": partial(step_speed, "ours"),
    "formats": format_speeds,
    "training": measure_training,
}
"""What can be asked for, by name; each takes the profile and its options."""


def _say(event: Event) -> None:
    if isinstance(event, EpochEnded):
        send_message(f"{event.series}: epoch {event.record.epoch} of {event.num_epochs}")
    elif isinstance(event, SeriesOutcome):
        send_message(f"{event.series}: {event.reason or 'done'}")


if __name__ == "__main__":
    has_gpu()  # looking for GPUs belongs to the start
    handle_request(MeasurementRequest, measure)
