"""Sections of `metadata.json` as v8 writes them, for models that nobody trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from v8.forecaster.metadata import FeatureInfo, TrainingInfo
from v8.profile.indicators import FEATURES, ancestry, definitions

TRAINING = TrainingInfo(
    precision="float32",
    batch_size=16,
    gradient_accumulation=1,
    epochs_run=2,
    best_epoch=2,
    best_validation_loss=0.5,
    untrained_validation_loss=0.6,
    stopped_by="epochs",
    resumed_from_epoch=0,
    device="CPU:0",
    peak_memory_bytes=1 << 30,
    peak_process_bytes=1 << 30,
    fleet_size=1,
    windows_per_s=100.0,
)
MACHINE = {"cpu": "a processor", "num_cores": 2, "memory_bytes": 8 << 30}


def described_features(names: Iterable[str]) -> list[dict[str, Any]]:
    """Describe features that lay between 0 and 1 in training."""
    return [
        asdict(
            FeatureInfo(
                name=name,
                kind=FEATURES[name].kind.value,
                definition=definition,
                digest=ancestry(name).digest,
                value_range=(0.0, 1.0),
            )
        )
        for name, definition in definitions(names).items()
    ]


def described_training(**changes: Any) -> dict[str, Any]:
    """Describe a training of two epochs."""
    return replace(TRAINING, **changes).to_json()
