#!/usr/bin/env python
"""Measure the processor time of a training step of each profile on one core.

    python scripts/bench_profiles.py [--profile v4_gru --profile aligned] [--seconds 2]

Other programs hardly disturb processor time. Candles are the demo market's, which take as long as real ones.
One thread, float32, one model, the whole step (forward, backward, optimiser). `compile` is processor time,
too: of building, tracing and XLA.
"""

# ruff: noqa: E402 - the package is next to this folder
from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from v8.base.starting import quiet_start

with quiet_start():
    import tensorflow as tf

import numpy as np

from v8.data.features.table import compute_table
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.data.windows.batches import FleetWindows
from v8.data.windows.dataset import prepare_series, table_columns
from v8.model.networks.cost import training_flop_per_window
from v8.model.training.pipeline import on_device
from v8.model.training.trainer import FleetMember, Trainer
from v8.profile.profile import load_profile, profile_names

NUM_BARS = 1_500
STEPS_A_TURN = 5


def main() -> None:
    """Measure profile after profile and print a row each."""
    arguments = _arguments()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    print(f"{'profile':16}{'parameters':>12}{'MFLOP':>9}{'compile':>10}{'ms a window':>13}{'windows/s':>11}")
    trained = [name for name in profile_names() if not load_profile(name).family.is_formula]
    for name in arguments.profile or trained:
        print(_row(name, arguments.seconds), flush=True)


def _row(name: str, seconds: float) -> str:
    started = time.process_time()
    profile = load_profile(name)
    table = compute_table(DemoSource().candles(Series.parse("BTCUSDT-15m"), NUM_BARS), table_columns(profile))
    data = prepare_series(table, profile)
    trainer = Trainer(profile)
    state = trainer.first_state([FleetMember(data, seed=1)])
    windows = FleetWindows([data])
    tables = on_device(windows)
    indices_BM = windows.epochs([1], [1]).indices(1)[0]
    rates = np.array([profile.training.learning_rate], np.float32)
    is_active = np.array([True])
    state = trainer.train_batch(state, rates, is_active, tables, indices_BM)
    num_steps = 0
    np.asarray(state.weight_sum)
    ready = time.process_time()
    while time.process_time() - ready < seconds:
        for _ in range(STEPS_A_TURN):
            state = trainer.train_batch(state, rates, is_active, tables, indices_BM)
        np.asarray(state.weight_sum)  # the steps are through
        num_steps += STEPS_A_TURN
    step_s = (time.process_time() - ready) / num_steps / profile.training.windows_per_step
    flop = training_flop_per_window(profile) / 1e6
    costs = f"{flop:9,.2f}{ready - started:9.1f}s{1e3 * step_s:13.3f}{1 / step_s:11,.0f}"
    return f"{name:16}{trainer.num_parameters:12,}{costs}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", action="append", help="a profile; repeat for more")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="processor time of each, without compiling"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
