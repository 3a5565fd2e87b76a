"""Learning rates by step: Keras' own schedules where it has them, and nothing but progress decides."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from float32_steps import assert_within_steps

from v8.model.training.progress import SCHEDULES, LossPatience, rate_at
from v8.profile.profile import load_profile
from v8.profile.settings import TrainingSettings

STEPS = 7
RATE = 0.01


def settings(**changes: object) -> TrainingSettings:
    return load_profile("aligned").training.model_copy(update={"epochs": 10, **changes})


def rates(chosen: TrainingSettings, num_epochs: int = 10) -> np.ndarray:
    steps = np.arange(num_epochs * STEPS)
    return np.array([rate_at(chosen, RATE, step / STEPS, (step + 1) / STEPS) for step in steps])


@pytest.mark.tf
def test_cosine_is_that_of_keras() -> None:
    stock = keras.optimizers.schedules.CosineDecay(RATE, decay_steps=10 * STEPS)
    expected = [float(stock(step)) for step in range(10 * STEPS)]
    assert_within_steps(rates(settings(schedule="cosine")), expected, steps=4)


def test_a_step_comes_every_so_many_epochs() -> None:
    chosen = settings(schedule="step", reduce_lr_patience_epochs=3, reduce_lr_factor=0.5)
    expected = np.repeat(RATE * 0.5 ** (np.arange(10) // 3), STEPS)
    np.testing.assert_allclose(rates(chosen), expected, rtol=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warm_up_rises_step_by_step_to_the_whole_rate_and_the_schedule_begins_behind_it(
    schedule: str,
) -> None:
    found = rates(settings(schedule=schedule, warmup_epochs=2))
    np.testing.assert_allclose(found[: 2 * STEPS], RATE * np.arange(1, 2 * STEPS + 1) / (2 * STEPS))
    assert found[2 * STEPS] == pytest.approx(RATE)
    assert (np.diff(found[2 * STEPS :]) <= 0).all()


def test_a_warm_up_longer_than_the_training_never_divides_by_nothing() -> None:
    assert rates(settings(schedule="cosine", warmup_epochs=10)).max() == pytest.approx(RATE)
    assert np.isfinite(rates(settings(schedule="cosine", epochs=1, warmup_epochs=5), 1)).all()


@pytest.mark.parametrize("schedule", sorted(set(SCHEDULES) - {"plateau"}))
def test_only_the_schedule_plateau_looks_at_losses(schedule: str) -> None:
    patience = LossPatience(RATE, best_loss=1.0)
    for epoch in range(1, 30):
        patience = patience.after(epoch, 1.0, settings(schedule=schedule, reduce_lr_patience_epochs=2))
    assert patience.learning_rate == RATE
