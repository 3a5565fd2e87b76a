"""What one epoch did; apart from the trainer, so that those who only show it start without a backend."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch did.

    Args:
        epoch: From 1.
        train_loss: Mean over the epoch's windows, scaled units, dropout on.
        validation_loss: Mean over the validation windows, scaled units, dropout off.
        learning_rate: Step size of this epoch, unitless.
        seconds: Training and validating; the whole fleet's time.
        windows_per_s: Train windows over training time; this member's share of the fleet's.
        is_best: Whether these weights are the best so far.
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
