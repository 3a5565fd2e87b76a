"""Trains one series after another with one compiled program.

Neither time nor memory is lost on building the same network forty times: the program takes weights,
constants and batches as arguments, and only these change from series to series.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from v8.data.dataset import SeriesData
from v8.data.windows import Batch, num_batches, span_batches, training_batches
from v8.errors import DivergedError
from v8.models.networks import build_network
from v8.models.serving import build_serving
from v8.profile import Profile
from v8.training.checkpoint import Checkpoint
from v8.training.patience import Patience
from v8.training.step import State, compiled_loss, compiled_step, initial_state

VALIDATION_BATCH = 64
"""Windows a batch when no gradient is needed; the mean over windows does not depend on it."""


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch did.

    Args:
        epoch: From 1.
        train_loss: Mean over the epoch's windows, scaled units, dropout on.
        validation_loss: Mean over the validation windows, scaled units, dropout off.
        learning_rate: Step size of this epoch, unitless.
        seconds: Training and validating.
        windows_per_s: Train windows over training time.
        is_best: Whether these weights are the best so far.
    """

    epoch: int
    train_loss: float
    validation_loss: float
    learning_rate: float
    seconds: float
    windows_per_s: float
    is_best: bool


@dataclass(frozen=True)
class TrainingResult:
    """A finished training.

    Args:
        history: One record an epoch, those before a resume included.
        untrained_loss: Validation loss of the constant forecast the network starts as.
        best_epoch: Epoch whose weights are kept; 0 means that training never beat the constant.
        best_validation_loss: Its loss.
        stopped_by: "epochs" or "early stopping".
        weights: Best trainable arrays in the network's order, float32.
        resumed_from_epoch: Epochs that an earlier process had finished; 0 for none.
        seconds: Time of this process per stage: compile, train, validate.
    """

    history: tuple[EpochRecord, ...]
    untrained_loss: float
    best_epoch: int
    best_validation_loss: float
    stopped_by: str
    weights: list[NDArray[np.float32]]
    resumed_from_epoch: int
    seconds: dict[str, float]


class Trainer:
    """One compiled program for every series of a profile.

    Args:
        profile: What is trained.
        precision: Keras dtype policy, see `choose_precision`.
    """

    def __init__(self, profile: Profile, *, precision: str = "float32") -> None:
        self.profile = profile
        self.precision = precision
        self._network = build_network(profile, seed=0, precision=precision)
        self._step = compiled_step(self._network, profile, precision)
        self._loss = compiled_loss(self._network, profile)

    @property
    def num_parameters(self) -> int:
        """Trainable numbers of the network."""
        return sum(math.prod(weight.shape) for weight in self._network.trainable_variables)

    def fit(
        self,
        data: SeriesData,
        *,
        seed: int,
        checkpoint: Path | None = None,
        on_epoch: Callable[[EpochRecord], None] = lambda record: None,
    ) -> TrainingResult:
        """Train one series, or go on where its checkpoint stands.

        Args:
            data: The series.
            seed: Seed of weights, order and dropout.
            checkpoint: File to continue from and to write after each epoch; None keeps nothing.
            on_epoch: Called after each epoch.

        Raises:
            DivergedError: If a loss is no number.
            ArtifactError: If the checkpoint is damaged or belongs to something else.
        """
        return _Fit(self, data, seed, checkpoint, on_epoch).run()

    def serving_model(self, data: SeriesData, weights: list[NDArray[np.float32]]) -> keras.Model:
        """Return the published model: raw window in, price units out, always float32."""
        network = build_network(self.profile, seed=0)
        for variable, weight in zip(network.trainable_variables, weights, strict=True):
            variable.assign(weight)
        return build_serving(self.profile, data.scaling, network)

    def first_state(self, data: SeriesData, seed: int) -> State:
        """Return the untrained state of a series: weights by its seed, heads at its constants."""
        start = {task.task: task.start for task in data.scaling.tasks}
        return initial_state(
            build_network(self.profile, seed=seed, start=start, precision=self.precision), self.precision
        )

    def train_batch(self, state: State, learning_rate: float, batch: Batch) -> State:
        """Take one optimiser step."""
        return self._step(state, np.float32(learning_rate), batch.x_BTF, batch.y_BHC, batch.weight_B)

    def validation_loss(self, data: SeriesData, state: State) -> float:
        """Return the mean loss over the validation windows, dropout off."""
        sums = [
            self._loss(state["weights"], state["constants"], batch.x_BTF, batch.y_BHC, batch.weight_B)
            for batch in span_batches(data, "validation", VALIDATION_BATCH)
        ]
        total, count = np.sum([[float(loss), float(windows)] for loss, windows in sums], axis=0)
        return float(total / count)


class _Fit:
    """One series from its first or next epoch to its last."""

    def __init__(
        self,
        trainer: Trainer,
        data: SeriesData,
        seed: int,
        checkpoint: Path | None,
        on_epoch: Callable[[EpochRecord], None],
    ) -> None:
        self._trainer, self._data, self._seed = trainer, data, seed
        self._checkpoint, self._on_epoch = checkpoint, on_epoch
        self._settings = data.profile.training
        self._seconds = {"compile": 0.0, "train": 0.0, "validate": 0.0}

    def run(self) -> TrainingResult:
        self._restore() if self._checkpoint and self._checkpoint.exists() else self._begin()
        resumed_from = self._epoch
        batches = training_batches(
            self._data, seed=self._seed, first_epoch=self._epoch + 1, last_epoch=self._settings.epochs
        )
        while self._epoch < self._settings.epochs and not self._patience.is_out(self._settings):
            self._run_epoch(batches)
        return TrainingResult(
            history=tuple(self._history),
            untrained_loss=self._untrained_loss,
            best_epoch=self._patience.best_epoch,
            best_validation_loss=self._patience.best_loss,
            stopped_by="early stopping" if self._patience.is_out(self._settings) else "epochs",
            weights=[np.asarray(weight) for weight in self._best_weights],
            resumed_from_epoch=resumed_from,
            seconds=self._seconds,
        )

    def _begin(self) -> None:
        self._epoch = 0
        self._history: list[EpochRecord] = []
        self._state = self._trainer.first_state(self._data, self._seed)
        self._compile()
        self._untrained_loss = self._validated(epoch=0)
        self._best_weights = self._state["weights"]
        self._patience = Patience(self._settings.learning_rate, best_loss=self._untrained_loss)

    def _restore(self) -> None:
        assert self._checkpoint is not None  # noqa: S101 - narrows the type; the caller has looked
        stored = Checkpoint.load(self._checkpoint, self._identity())
        self._epoch = stored.epoch
        self._state = {name: value for name, value in stored.arrays.items() if name != "best_weights"}
        self._best_weights = stored.arrays["best_weights"]
        self._history = [EpochRecord(**record) for record in stored.progress["history"]]
        self._untrained_loss = stored.progress["untrained_loss"]
        self._patience = Patience.from_json(stored.progress["patience"])
        self._compile()

    def _compile(self) -> None:
        """Run each program once and drop the result, so that later times hold no compilation."""
        started = time.perf_counter()
        batch = next(span_batches(self._data, "train", self._settings.batch_size))
        self._trainer.train_batch(self._state, self._settings.learning_rate, batch)
        self._seconds["compile"] += time.perf_counter() - started

    def _run_epoch(self, batches: Iterator[Batch]) -> None:
        started = time.perf_counter()
        rate = self._patience.learning_rate
        train_loss = self._train(batches, rate)
        trained = time.perf_counter()
        self._epoch += 1
        validation_loss = self._validated(self._epoch)
        self._patience = self._patience.after(self._epoch, validation_loss, self._settings)
        is_best = self._patience.best_epoch == self._epoch
        if is_best:
            self._best_weights = self._state["weights"]
        record = EpochRecord(
            epoch=self._epoch,
            train_loss=train_loss,
            validation_loss=validation_loss,
            learning_rate=rate,
            seconds=time.perf_counter() - started,
            windows_per_s=self._data.num_windows("train") / (trained - started),
            is_best=is_best,
        )
        self._history.append(record)
        self._save()
        self._on_epoch(record)

    def _train(self, batches: Iterator[Batch], rate: float) -> float:
        started = time.perf_counter()
        self._state = {**self._state, "loss_sum": np.float32(0), "window_sum": np.float32(0)}
        for _ in range(num_batches(self._data.num_windows("train"), self._settings.batch_size)):
            self._state = self._trainer.train_batch(self._state, rate, next(batches))
        loss = float(self._state["loss_sum"]) / float(self._state["window_sum"])
        self._seconds["train"] += time.perf_counter() - started
        return self._checked(loss, "training", self._epoch + 1)

    def _validated(self, epoch: int) -> float:
        started = time.perf_counter()
        loss = self._trainer.validation_loss(self._data, self._state)
        self._seconds["validate"] += time.perf_counter() - started
        return self._checked(loss, "validation", epoch)

    def _checked(self, loss: float, stage: str, epoch: int) -> float:
        if math.isfinite(loss):
            return loss
        raise DivergedError(
            where=str(self._data.series),
            rule=f"the {stage} loss must be a finite number",
            got=f"{loss} in epoch {epoch}",
            fix="Lower learning_rate, set clip_norm, or train with --precision float32",
        )

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        arrays = {**self._state, "best_weights": self._best_weights}
        progress = {
            "history": [asdict(record) for record in self._history],
            "untrained_loss": self._untrained_loss,
            "patience": self._patience.to_json(),
        }
        Checkpoint(self._identity(), self._epoch, arrays, progress).save(self._checkpoint)

    def _identity(self) -> dict[str, Any]:
        return {
            "profile": self._data.profile.digest,
            "data": self._data.table.digest,
            "seed": self._seed,
            "precision": self._trainer.precision,
            "backend": keras.backend.backend(),
        }
