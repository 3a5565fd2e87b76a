"""The turns of contenders on Keras: products of matrices, stock `fit`, the trainer of v8, fleets.

Shape legend: N windows, B batch, M model, T lookback, F features, H horizon, C columns of a task.
"""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import chain, count
from typing import Any

import keras
import numpy as np
from keras import ops

from training_bench.turn import Stopwatch, Stretch, Turn, arrays_of, demo_series, load_sized_profile
from v8.base.hardware import device_of, has_gpu, peak_bytes_of
from v8.data.windows import FleetWindows, Indices, SeriesData, Tables
from v8.model.training.probe import CPU_MATMUL_SIZE, GPU_MATMUL_SIZE, keras_network, median_rate
from v8.model.training.progress import EpochRecord
from v8.model.training.state import FleetState, epoch_iterator, on_device
from v8.model.training.trainer import FleetMember, Trainer

ENDLESS = 100_000
"""Epochs that no turn comes to the end of."""


def matmul_turn(spec: dict[str, Any]) -> Turn:
    """Multiply large square matrices as the backend does by default; the rate is GFLOP/s."""
    size = GPU_MATMUL_SIZE if has_gpu() else CPU_MATMUL_SIZE
    draws = np.random.default_rng(0)
    axis = draws.standard_normal((size, 1), np.float32)
    axis /= np.linalg.norm(axis)
    # A reflection is orthogonal: it neither grows nor shrinks what it is applied to, however often.
    reflection = ops.convert_to_tensor(np.eye(size, dtype=np.float32) - 2 * axis * axis.T)
    reflection = ops.cast(reflection, spec["format"])
    product = ops.cast(ops.convert_to_tensor(draws.standard_normal((size, size), np.float32)), spec["format"])

    def work(num_repetitions: int) -> None:
        nonlocal product
        for _ in range(num_repetitions):
            product = ops.matmul(product, reflection)
        ops.convert_to_numpy(ops.cast(product[0, 0], "float32"))  # waits for the device

    def turn(seconds: float) -> dict[str, Any]:
        rate = median_rate(work, seconds)
        return {"rate": rate * 2 * size**3 / 1e9, "device": device_of(product)}

    turn(0.2)
    return turn


class Clock(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Takes the time of epochs, and ends `fit` after so many seconds."""

    def __init__(self, num_windows: int, seconds: float) -> None:
        super().__init__()
        self.num_windows = num_windows
        self.stretches = list[Stretch]()
        self.end = time.perf_counter() + seconds

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Take the time."""
        self.watch = Stopwatch()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch, and end after the last."""
        self.stretches.append(self.watch.after(self.num_windows))
        self.model.stop_training = time.perf_counter() > self.end


def stock_turn(spec: dict[str, Any]) -> Turn:
    """Let stock Keras `fit` the profile's network on arrays."""
    profile = load_sized_profile(spec)
    (data,) = demo_series(profile, spec["bars"], 1)
    x_NTF, y = arrays_of(data)
    network = keras_network(profile, "float32")

    def turn(seconds: float) -> dict[str, Any]:
        clock = Clock(len(x_NTF), seconds)
        size = profile.training.batch_size
        network.fit(x_NTF, y, batch_size=size, epochs=ENDLESS, verbose=0, callbacks=[clock])
        return Stretch.summary(clock.stretches) | {"num_epochs": len(clock.stretches)}

    turn(0.0)
    return turn


class EnoughError(Exception):
    """Ends a training whose time is over."""


class ClockedTrainer(Trainer):
    """The product's, which takes the time of the training part of each epoch."""

    watch: Stopwatch | None = None

    def train_batch(
        self, state: FleetState, learning_rates: Any, is_active: Any, tables: Tables, indices_BM: Indices
    ) -> FleetState:
        """Start the watch with the first step of an epoch."""
        self.watch = self.watch or Stopwatch()
        return super().train_batch(state, learning_rates, is_active, tables, indices_BM)

    def validation_losses(self, state: FleetState, tables: Tables, indices_SBM: Indices) -> Any:
        """Stop the watch: the trainer has waited for the sums of the epoch. An untrained state has none."""
        num_windows = float(np.asarray(state.weight_sum).sum())
        if self.watch and num_windows:
            self.stretches.append(self.watch.after(num_windows))
        self.watch = None
        return super().validation_losses(state, tables, indices_SBM)

    def fit_for(self, data: SeriesData, seconds: float) -> list[Stretch]:
        """Train for so many seconds and return the epochs."""
        self.stretches = list[Stretch]()
        self.watch = None
        end = time.perf_counter() + seconds

        def on_epoch(record: EpochRecord) -> None:
            self.loss = record.train_loss
            if time.perf_counter() > end:
                raise EnoughError

        with suppress(EnoughError):
            next(self.fit_fleet([FleetMember(data, 1, on_epoch=on_epoch)]))
        return self.stretches


def product_turn(spec: dict[str, Any]) -> Turn:
    """Let our Trainer fit one series, in the number format of `spec`."""
    profile = load_sized_profile(spec).with_budget(epochs=ENDLESS)
    (data,) = demo_series(profile, spec["bars"], 1)
    trainer = ClockedTrainer(profile, precision=spec["format"])

    def turn(seconds: float) -> dict[str, Any]:
        stretches = trainer.fit_for(data, seconds)
        return Stretch.summary(stretches) | {"num_epochs": len(stretches), "train_loss": trainer.loss}

    turn(0.0)
    return turn


def fleet_turn(spec: dict[str, Any]) -> Turn:
    """Train `num_models` series as one program, step after step, in the number format of `spec`."""
    num_models = spec["num_models"]
    profile = load_sized_profile(spec)
    series = demo_series(profile, spec["bars"], num_models)
    members = [FleetMember(data, seed) for seed, data in enumerate(series)]
    trainer = Trainer(profile, precision=spec["format"])
    state = trainer.first_state(members)
    rates = np.full(num_models, profile.training.learning_rate, np.float32)
    active = np.ones(num_models, bool)
    windows = FleetWindows(series)
    tables = on_device(windows)
    epochs = epoch_iterator(windows.epochs([member.seed for member in members], [1] * num_models))
    endless = chain.from_iterable(epochs)

    def turn(seconds: float) -> dict[str, Any]:
        nonlocal state
        state = state.with_empty_sums()
        started = time.perf_counter()
        watch = Stopwatch()
        due = 1
        for number in count(1):
            state = trainer.train_batch(state, rates, active, tables, next(endless))
            if number < due:
                continue
            num_windows = float(np.asarray(state.weight_sum).sum())  # waits; every step would stall a GPU
            elapsed = time.perf_counter() - started
            if elapsed > seconds:
                break
            due = number + max(1, int(number * min(1.0, seconds / 8 / elapsed)))
        device = device_of(state.weights)
        facts = {"num_steps": number, "device": device, "peak_memory_bytes": peak_bytes_of(device)}
        return Stretch.summary([watch.after(num_windows)]) | facts

    turn(0.0)
    return turn
