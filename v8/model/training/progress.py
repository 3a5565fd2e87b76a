"""The progress of a training as plain values: its epochs, its patience and its learning rate.

`EarlyStopping` and `ReduceLROnPlateau` of Keras 3 (keras/src/callbacks/) define the rules of patience; a test
compares with them epoch by epoch. One difference: the untrained network competes as epoch 0.

The learning rate of every step follows from the profile's learning rate, its warm-up and its schedule:
`constant`, `plateau`, `cosine` (Loshchilov & Hutter 2017, without restarts) or `step`, see `SCHEDULES`. It
depends on the progress alone, so a resumed training has the same rates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from v8.profile.settings import Schedule, TrainingSettings


@dataclass(frozen=True)
class EpochRecord:
    """The result of one epoch.

    Args:
        epoch: Its number, from 1.
        train_loss: Mean over the epoch's windows, scaled units, dropout on.
        validation_loss: Mean over the validation windows, scaled units, dropout off.
        learning_rate: Of its last step, unitless.
        seconds: Of training and validation; the time of the fleet.
        windows_per_s: This member's train windows per second of the fleet's training.
        is_best: Whether its validation loss is the smallest so far.
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
"""Smallest decrease that ends a plateau, in scaled loss; the default of ReduceLROnPlateau."""


@dataclass(frozen=True)
class LossPatience:
    """The state of early stopping and of the plateau rule after an epoch.

    Args:
        learning_rate: Learning rate of the next epoch, unitless, before warm-up and schedule; only the
            schedule `plateau` changes it.
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
        patience = replace(self, epochs_without_gain=self.epochs_without_gain + 1)
        if validation_loss < self.best_loss:
            patience = replace(self, best_loss=validation_loss, best_epoch=epoch, epochs_without_gain=0)
        if settings.schedule != "plateau":
            return patience
        if self.plateau_loss is None or validation_loss < self.plateau_loss - PLATEAU_MIN_DELTA:
            return replace(patience, plateau_loss=validation_loss, epochs_on_plateau=0)
        if self.epochs_on_plateau + 1 < settings.reduce_lr_patience_epochs:
            return replace(patience, epochs_on_plateau=self.epochs_on_plateau + 1)
        reduced_rate = self.learning_rate * settings.reduce_lr_factor
        return replace(patience, learning_rate=reduced_rate, epochs_on_plateau=0)

    def is_out(self, settings: TrainingSettings) -> bool:
        """Return whether early stopping ends the training."""
        return self.epochs_without_gain >= settings.early_stopping_patience_epochs


SCHEDULES: Final[dict[Schedule, Callable[[TrainingSettings, float], float]]] = {
    "constant": lambda settings, epochs: 1.0,
    "plateau": lambda settings, epochs: 1.0,  # `LossPatience` reduces the rate itself
    "cosine": lambda settings, epochs: 0.5 + 0.5 * math.cos(math.pi * min(1.0, _share(settings, epochs))),
    "step": lambda settings, epochs: (
        settings.reduce_lr_factor ** (epochs // settings.reduce_lr_patience_epochs)
    ),
}
"""Factor of the learning rate, by the settings and the epochs since the warm-up, such as 1.5."""


def rate_at(settings: TrainingSettings, rate: float, epochs_before: float, epochs_after: float) -> float:
    """Return the learning rate of one step.

    Args:
        settings: Schedule and warm-up.
        rate: `LossPatience.learning_rate`.
        epochs_before: Epochs until the step begins, such as 1.5 in the middle of the second epoch.
        epochs_after: Epochs until the step ends.
    """
    warmup = min(1.0, epochs_after / settings.warmup_epochs) if settings.warmup_epochs else 1.0
    factor = SCHEDULES[settings.schedule](settings, max(0.0, epochs_before - settings.warmup_epochs))
    return rate * warmup * factor


def _share(settings: TrainingSettings, epochs: float) -> float:
    """Return the share of the epochs after warm-up that are finished."""
    num_epochs = settings.epochs - settings.warmup_epochs
    return epochs / num_epochs if num_epochs > 0 else 0.0


@dataclass(frozen=True)
class Progress:
    """The progress of one model: its loss before the first epoch, its patience and its finished epochs."""

    untrained_loss: float
    patience: LossPatience
    history: tuple[EpochRecord, ...] = ()

    @property
    def epoch(self) -> int:
        """Last finished epoch; 0 before the first."""
        return len(self.history)

    def after(self, record: EpochRecord, settings: TrainingSettings) -> Self:
        """Return the progress after one more epoch, whose `is_best` is set here."""
        patience = self.patience
        if record.is_finite:
            patience = patience.after(record.epoch, record.validation_loss, settings)
        final_record = replace(record, is_best=patience.best_epoch == record.epoch)
        return replace(self, patience=patience, history=(*self.history, final_record))

    def is_over(self, settings: TrainingSettings) -> bool:
        """Return whether training ends: after the last epoch of the profile, or by early stopping."""
        return self.epoch >= settings.epochs or self.patience.is_out(settings)
