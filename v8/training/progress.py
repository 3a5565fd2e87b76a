"""How far a training is, as plain values: its epochs, its patience and its learning rate; without a backend.

`EarlyStopping` and `ReduceLROnPlateau` of Keras 3 (keras/src/callbacks/) define the rules of patience; a test
compares with them epoch by epoch. One thing is ours: the untrained network competes as epoch 0.

The learning rate of every step is what a profile's schedule and warm-up make of its step size: `constant`,
`plateau`, `cosine` (Loshchilov & Hutter 2017, without restarts) or `step`, a line of `SCHEDULES` each. Rates
depend on how far the training is and on nothing else, so a resumed one has the same.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from v8.profile import Schedule, TrainingSettings


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch did, counted from 1.

    Args:
        train_loss: Mean over the epoch's windows, scaled units, dropout on.
        validation_loss: Mean over the validation windows, scaled units, dropout off.
        seconds: Training and validating; the whole fleet's time.
        windows_per_s: Train windows over training time; this member's share of the fleet's.
    """

    epoch: int
    train_loss: float
    validation_loss: float
    learning_rate: float
    seconds: float
    windows_per_s: float
    is_best: bool

    @property
    def is_finite(self) -> bool:
        """Whether both losses are numbers; if not, the training has diverged."""
        return math.isfinite(self.train_loss) and math.isfinite(self.validation_loss)


PLATEAU_MIN_DELTA = 1e-4
"""Smallest gain that interrupts a plateau, in scaled loss; the default of ReduceLROnPlateau."""


@dataclass(frozen=True)
class LossPatience:
    """How long a training still waits for its validation loss to fall, from epoch to epoch.

    Args:
        learning_rate: Step size of the coming epoch, unitless, before warm-up; other schedules than `plateau`
            leave it as it was at the start.
        best_loss: Smallest validation loss so far.
        best_epoch: Its epoch; 0 is the untrained network.
        epochs_without_gain: Since the best epoch.
        plateau_loss: Loss that the plateau rule compares with; None before the first epoch.
        epochs_on_plateau: Since that loss was beaten by `PLATEAU_MIN_DELTA`, or the last reduction.
    """

    learning_rate: float
    best_loss: float
    best_epoch: int = 0
    epochs_without_gain: int = 0
    plateau_loss: float | None = None
    epochs_on_plateau: int = 0

    def after(self, epoch: int, validation_loss: float, settings: TrainingSettings) -> Self:
        """Return the state after an epoch."""
        evaluated = replace(self, epochs_without_gain=self.epochs_without_gain + 1)
        if validation_loss < self.best_loss:
            evaluated = replace(self, best_loss=validation_loss, best_epoch=epoch, epochs_without_gain=0)
        if settings.schedule != "plateau":
            return evaluated
        if self.plateau_loss is None or validation_loss < self.plateau_loss - PLATEAU_MIN_DELTA:
            return replace(evaluated, plateau_loss=validation_loss, epochs_on_plateau=0)
        if self.epochs_on_plateau + 1 < settings.reduce_lr_patience_epochs:
            return replace(evaluated, epochs_on_plateau=self.epochs_on_plateau + 1)
        smaller = self.learning_rate * settings.reduce_lr_factor
        return replace(evaluated, learning_rate=smaller, epochs_on_plateau=0)

    def is_out(self, settings: TrainingSettings) -> bool:
        """Say whether early stopping ends the training."""
        return self.epochs_without_gain >= settings.early_stopping_patience_epochs


SCHEDULES: Final[dict[Schedule, Callable[[TrainingSettings, float], float]]] = {
    "constant": lambda settings, epochs: 1.0,
    "plateau": lambda settings, epochs: 1.0,  # what `LossPatience` has made of the rate
    "cosine": lambda settings, epochs: 0.5 + 0.5 * math.cos(math.pi * min(1.0, _share(settings, epochs))),
    "step": lambda settings, epochs: (
        settings.reduce_lr_factor ** (epochs // settings.reduce_lr_patience_epochs)
    ),
}
"""Factor of the learning rate, by the settings and the epochs since the warm-up, such as 1.5."""


def rate_at(settings: TrainingSettings, rate: float, epochs_done: float, epochs_then: float) -> float:
    """Return the learning rate of one step, from the step size at the start or what plateaus have left of it.

    Epochs before and after the step may be parts, such as 1.5 in the middle of the second one.
    """
    warmth = min(1.0, epochs_then / settings.warmup_epochs) if settings.warmup_epochs else 1.0
    factor = SCHEDULES[settings.schedule](settings, max(0.0, epochs_done - settings.warmup_epochs))
    return rate * warmth * factor


def _share(settings: TrainingSettings, epochs: float) -> float:
    """Return how much of the training after its warm-up is over."""
    whole = settings.epochs - settings.warmup_epochs
    return epochs / whole if whole > 0 else 0.0


@dataclass(frozen=True)
class Progress:
    """How far the training of one model is, from the loss of the constant forecast that it starts as."""

    untrained_loss: float
    patience: LossPatience
    history: tuple[EpochRecord, ...] = ()

    @property
    def epoch(self) -> int:
        """Last finished epoch; 0 before the first."""
        return len(self.history)

    def after(self, record: EpochRecord, settings: TrainingSettings) -> Self:
        """Return the progress after one more epoch; whether that is the best is found here."""
        patience = self.patience
        if record.is_finite:
            patience = patience.after(record.epoch, record.validation_loss, settings)
        evaluated = replace(record, is_best=patience.best_epoch == record.epoch)
        return replace(self, patience=patience, history=(*self.history, evaluated))

    def is_over(self, settings: TrainingSettings) -> bool:
        """Say whether the last epoch has been, or the last one that patience allows."""
        return self.epoch >= settings.epochs or self.patience.is_out(settings)
