"""Trains one series by itself."""

from __future__ import annotations

from typing import Any

from v8.base.errors import DivergedError
from v8.data.windows import SeriesData
from v8.model.training.trainer import FleetMember, Trainer, TrainingResult


def fit(trainer: Trainer, data: SeriesData, **about: Any) -> TrainingResult:
    """Train it as a fleet of one, whose `FleetMember` it is told about; a divergence is raised."""
    ((_, result),) = trainer.fit_fleet([FleetMember(data, **about)])
    if isinstance(result, DivergedError):
        raise result
    return result
