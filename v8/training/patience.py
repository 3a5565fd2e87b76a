"""When training stops and when its step shrinks: the rules of Keras' callbacks as plain values.

`EarlyStopping` and `ReduceLROnPlateau` of Keras 3 (keras/src/callbacks/) define the rules; a test
compares with them epoch by epoch. One thing is ours: the untrained network competes as epoch 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from v8.profile import TrainingSettings

PLATEAU_MIN_DELTA = 1e-4
"""Smallest gain that interrupts a plateau, in scaled loss; the default of ReduceLROnPlateau."""


@dataclass(frozen=True)
class LossPatience:
    """How long a training still waits for its validation loss to fall, from epoch to epoch.

    Args:
        learning_rate: Step size of the coming epoch, unitless, before warm-up; other schedules than `plateau`
            leave it as it was at the start (`v8.training.schedule`).
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

    def after(self, epoch: int, validation_loss: float, settings: TrainingSettings) -> LossPatience:
        """Return the state after an epoch."""
        judged = self._judged(epoch, validation_loss)
        return judged._shrunk(validation_loss, settings) if settings.schedule == "plateau" else judged

    def is_out(self, settings: TrainingSettings) -> bool:
        """Say whether early stopping ends the training."""
        return self.epochs_without_gain >= settings.early_stopping_patience_epochs

    def _judged(self, epoch: int, validation_loss: float) -> LossPatience:
        if validation_loss < self.best_loss:
            return replace(self, best_loss=validation_loss, best_epoch=epoch, epochs_without_gain=0)
        return replace(self, epochs_without_gain=self.epochs_without_gain + 1)

    def _shrunk(self, validation_loss: float, settings: TrainingSettings) -> LossPatience:
        if self.plateau_loss is None or validation_loss < self.plateau_loss - PLATEAU_MIN_DELTA:
            return replace(self, plateau_loss=validation_loss, epochs_on_plateau=0)
        if self.epochs_on_plateau + 1 < settings.reduce_lr_patience_epochs:
            return replace(self, epochs_on_plateau=self.epochs_on_plateau + 1)
        smaller = self.learning_rate * settings.reduce_lr_factor
        return replace(self, learning_rate=smaller, epochs_on_plateau=0)
