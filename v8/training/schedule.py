"""The learning rate of every step: what a profile's schedule and warm-up make of its step size.

`constant`, `plateau`, `cosine` (Loshchilov & Hutter 2017, without restarts) and `step`. A schedule is a line
in `SCHEDULES`. Rates depend on how far the training is and on nothing else, so a resumed one has the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from v8.profile import Schedule, TrainingSettings

SCHEDULES: Final[dict[Schedule, Callable[[TrainingSettings, float], float]]] = {
    "constant": lambda settings, epochs: 1.0,
    "plateau": lambda settings, epochs: 1.0,  # what `v8.training.patience` has made of the rate
    "cosine": lambda settings, epochs: 0.5 + 0.5 * math.cos(math.pi * min(1.0, _share(settings, epochs))),
    "step": lambda settings, epochs: (
        settings.reduce_lr_factor ** (epochs // settings.reduce_lr_patience_epochs)
    ),
}
"""Factor of the learning rate, by the settings and the epochs since the warm-up, such as 1.5."""


def rate_at(settings: TrainingSettings, rate: float, epochs_done: float, epochs_then: float) -> float:
    """Return the learning rate of one step.

    Args:
        settings: Schedule and warm-up.
        rate: Step size at the start, or what its plateaus have left of it.
        epochs_done: Epochs before the step, such as 1.5 in the middle of the second one.
        epochs_then: Epochs after it.
    """
    warmth = min(1.0, epochs_then / settings.warmup_epochs) if settings.warmup_epochs else 1.0
    factor = SCHEDULES[settings.schedule](settings, max(0.0, epochs_done - settings.warmup_epochs))
    return rate * warmth * factor


def _share(settings: TrainingSettings, epochs: float) -> float:
    """Return how much of the training after its warm-up is over."""
    whole = settings.epochs - settings.warmup_epochs
    return epochs / whole if whole > 0 else 0.0
