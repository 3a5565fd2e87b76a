"""Measures one profile in this process, from its imports to saved artefacts.

    echo '{"profile": {...}, ...}' | python -m v8.engine.measuring

`v8.engine.comparison` starts one such process per profile and repeat, so that import, compilation and
peak memory are those of a process that did nothing else. It is told what to do by the first line of
standard input, and ends itself when standard input closes, because then nobody waits for it. It writes
lines of JSON: `{"ready": true}` once it could train, `{"said": ...}` on the way, and last
`{"measured": ...}` or `{"failed": ...}`.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from v8.artifacts.run_folder import CandlePin, RunFolder, RunIdentity
from v8.artifacts.series_artifact import HISTORY_FILE, read_metadata
from v8.data.dataset import table_columns
from v8.engine.comparison import Order
from v8.engine.events import EpochEnded, Event, Outcome
from v8.engine.execution import execute
from v8.engine.local import train_all
from v8.engine.plan import make_plan
from v8.errors import ProfileError, V8Error
from v8.evaluation.judgement import Judgement
from v8.features.store import FeatureStore
from v8.machine import has_gpu as backend_has_gpu
from v8.machine import process_memory
from v8.market.series import Series
from v8.market.sources.source import CandleSource, open_source
from v8.models.cost import training_flop_per_window
from v8.profile import Profile
from v8.reports.comparison_results import WARM, Measurement, ModelMeasurement
from v8.training.probe import matmul_speed


def main() -> None:
    """Serve one order."""
    has_gpu = backend_has_gpu()
    _tell(ready=True)
    order = Order(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        if order.needs_gpu and not has_gpu:
            raise _no_gpu()
        measured, failures = measure(order, has_gpu=has_gpu)
    except V8Error as error:
        _tell(failed=str(error))
    else:
        _tell(measured=measured, failures=failures)


def measure(order: Order, *, has_gpu: bool) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Train, judge and save every series of an order, and measure it.

    Args:
        order: What to do.
        has_gpu: Whether the backend computes on a GPU.

    Returns:
        A `Measurement` as JSON values, without `import_s`, or None when no series was finished; and the
        reason of each failed series.
    """
    profile = Profile.model_validate_json(json.dumps(order.profile))
    source = open_source(order.source, data_dir=Path(order.data_dir) if order.data_dir else None)
    chosen = [Series.parse(name) for name in order.pins]
    plan = make_plan(profile, chosen, Path(order.run))
    identity = RunIdentity(profile, source.name, source.is_publishable, order.command)
    fleet_size = min(order.fleet_size or (len(chosen) if has_gpu else 1), len(chosen))
    with tempfile.TemporaryDirectory() as place:
        with RunFolder(plan.path, identity) as folder:
            for series in chosen:
                folder.pin(series, CandlePin(**order.pins[str(series)]))
            train = partial(train_all, fleet_size=fleet_size, store=_store(place))
            summary = execute(plan, folder, source, train, _say)
        failures = {str(one.series): one.reason or "" for one in summary.failures}
        finished = [series for series in chosen if str(series) not in failures]
        metadata = {series: read_metadata(plan.path / str(series)) for series in finished}
        models = [
            _model(
                content,
                _epoch_s(plan.path / str(series)) / fleet_size,
                _warm_s(place, source, profile, content),
            )
            for series, content in metadata.items()
        ]
    if not models:
        return None, failures
    return _measured(order, profile, models, list(metadata.values()), fleet_size), failures


def _measured(
    order: Order,
    profile: Profile,
    models: list[ModelMeasurement],
    metadata: list[dict[str, Any]],
    fleet_size: int,
) -> dict[str, Any]:
    peak_bytes = process_memory().peak_bytes  # before the matmuls, which are not the profile's
    measured = Measurement(
        profile=profile.name,
        repeat=order.repeat,
        import_s=0.0,
        models=tuple(models),
        horizon_bars=profile.horizon_bars,
        num_parameters=metadata[0]["num_parameters"],
        flop_per_window=training_flop_per_window(profile),
        own_epochs=order.own_epochs,
        precision=metadata[0]["training"]["precision"],
        device=metadata[0]["training"]["device"],
        fleet_size=fleet_size,
        peak_process_bytes=peak_bytes,
        peak_device_bytes=max(content["training"]["peak_memory_bytes"] for content in metadata),
        matmul_gflop_per_s=matmul_speed(order.matmul_seconds).gflop_per_s,
    )
    return asdict(measured)


def _epoch_s(folder: Path) -> float:
    """Return the median seconds of the epochs in a history; those of the whole fleet."""
    with (folder / HISTORY_FILE).open(encoding="utf-8", newline="") as stream:
        return statistics.median(float(row["seconds"]) for row in csv.DictReader(stream))


def _model(metadata: Mapping[str, Any], epoch_s: float, warm_s: float) -> ModelMeasurement:
    judgement = Judgement.from_json(metadata["judgement"], where=f"metadata of {metadata['series']}")
    return ModelMeasurement(
        series=metadata["series"],
        seconds={**metadata["seconds"], WARM: round(warm_s, 6)},
        epoch_s=round(epoch_s, 6),
        windows_per_s=metadata["training"]["windows_per_s"],
        epochs_run=metadata["training"]["epochs_run"],
        best_epoch=metadata["training"]["best_epoch"],
        multiples={task: judgement.multiple(task) for task in judgement.errors},
    )


def _warm_s(place: str, source: CandleSource, profile: Profile, metadata: Mapping[str, Any]) -> float:
    """Read a series' features again, as the next run with this profile would; the median of three."""
    end_s = CandlePin(**{name: metadata["candles"][name] for name in _PIN_KEYS}).last_open_s
    candles = source.candles(Series.parse(metadata["series"]), profile.newest_bars, end_s)
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        _store(place).table(candles, table_columns(profile))
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


_PIN_KEYS = ("first_open", "last_open", "num_bars", "digest")


def _store(place: str) -> FeatureStore:
    return FeatureStore(Path(place), num_remembered=0)


def _say(event: Event) -> None:
    if isinstance(event, EpochEnded):
        _tell(said=f"{event.series}: epoch {event.record.epoch} of {event.num_epochs}")
    elif isinstance(event, Outcome):
        _tell(said=f"{event.series}: {event.reason or 'done'}")


def _tell(**content: Any) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _no_gpu() -> ProfileError:
    return ProfileError(
        where="--device gpu",
        rule="needs a GPU that the Keras backend can compute on",
        got="none visible",
        fix="Install the GPU's driver and tensorflow[and-cuda], or use --device auto",
    )


if __name__ == "__main__":
    main()
