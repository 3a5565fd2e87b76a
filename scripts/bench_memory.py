"""Memory that XLA allocates for a training step, with and without `checkpoint_activations`; and of many rows.

    KERAS_BACKEND=jax python scripts/bench_memory.py --profiles aligned v4_transformer --batch 256
    python scripts/bench_memory.py --rows 1000000

JAX reports it for a compiled program without running it; the extra `jax` must be installed. Weights, moments
and windows are arguments of the program and not counted: they are the same with and without.

`--rows` trains one series of so many rows of the demo market for one epoch, with windows as of `aligned` and
a tiny network, and prints before each stage the largest resident set of this process until then.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from v8.base.hardware import backend_name, peak_bytes_of
from v8.data.features.store import FeatureStore
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.model.networks.networks import build_network, stack
from v8.model.training.probe import random_batch
from v8.model.training.step import compiled_step, initial_state
from v8.profile.profile import Profile, load_profile
from v8.runs.events import Event, StageStarted
from v8.runs.jobs import Job
from v8.runs.local import InProcessEngine
from v8.runs.observers import EventCallback


def with_training(profile: Profile, **changes: Any) -> Profile:
    """Return the profile with other training keys."""
    content = profile.model_dump()
    content["training"] |= changes
    return Profile.model_validate(content)


def allocated_bytes(profile: Profile, num_models: int) -> int:
    """Compile one step of a fleet and return the memory that it works in apart from its arguments."""
    network = build_network(profile, seed=0, uses_teacher_forcing=True)
    fleet = stack(network, num_models, are_directions_merged=num_models > 1)
    x_BMTF, y = random_batch(profile, num_models)
    rates = np.zeros(num_models, np.float32)
    everyone = np.ones(num_models, bool)
    weight_BM = np.ones(x_BMTF.shape[:2], np.float32)
    step: Any = compiled_step(fleet, profile, "float32")
    lowered = step.lower(initial_state(fleet, "float32"), rates, everyone, x_BMTF, y, weight_BM)
    return int(lowered.compile().memory_analysis().temp_size_in_bytes)


def long_profile(num_bars: int) -> Profile:
    """Return `aligned` with the smallest network, one epoch and so many bars."""
    content = load_profile("aligned").model_dump()
    content["network"] = {"family": "dense_newest", "dense_units": [8], "dropout": 0.0}
    content |= {"name": "long", "calibration": "none"}
    profile = with_training(Profile.model_validate(content), batch_size=512, cpu_batch_size=None)
    return profile.with_budget(newest_bars=num_bars, epochs=1, precision="float32")


def peak_bytes() -> int:
    """Return the largest resident set of this process so far."""
    return peak_bytes_of("CPU:0")


def make_long_series(num_bars: int) -> None:
    """Make the artefact of one series of so many bars and print the peak at the beginning of each stage."""
    profile = long_profile(num_bars)
    series = Series("BTCUSDT", "1m")

    def print_peak(event: Event) -> None:
        if isinstance(event, StageStarted):
            print(f"{peak_bytes() / 1e6:6,.0f} MB at most before `{event.stage}`", flush=True)

    with tempfile.TemporaryDirectory(prefix="v8-long-") as folder:
        candles = DemoSource().candles(series, num_bars)
        store = FeatureStore(Path(folder) / "features")
        job = Job(candles, profile, 42, Path(folder) / "series", is_publishable=False, candle_seconds=0.0)
        (outcome,) = InProcessEngine(store=store).train([job], EventCallback(print_peak))
    if outcome.reason:
        raise SystemExit(outcome.reason)
    print(f"{peak_bytes() / 1e6:6,.0f} MB at most in all, {time.process_time():,.0f} s of the processor")


def main() -> None:
    """Print a line a profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--profiles", nargs="+", default=["aligned", "v4_transformer"])
    parser.add_argument("--batch", type=int, help="windows a batch; default: the profile's")
    parser.add_argument("--models", type=int, default=1, help="models of one program")
    parser.add_argument("--rows", type=int, help="make one series of so many rows instead")
    options = parser.parse_args()
    if options.rows:
        make_long_series(options.rows)
        return
    if backend_name() != "jax":
        parser.error("only JAX reports what XLA allocates: set KERAS_BACKEND=jax")
    for name in options.profiles:
        profile = load_profile(name)
        started = time.perf_counter()
        size = options.batch or profile.training.batch_size
        plain, less = (
            allocated_bytes(
                with_training(profile, batch_size=size, checkpoint_activations=on), options.models
            )
            for on in (False, True)
        )
        print(
            f"{name}, batch {size}, {options.models} models: {plain / 1e6:.1f} MB, checkpointed "
            f"{less / 1e6:.1f} MB ({less / plain:.0%}); compiled in {time.perf_counter() - started:.0f} s"
        )


if __name__ == "__main__":
    main()
