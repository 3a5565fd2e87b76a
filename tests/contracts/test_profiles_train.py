"""Every shipped profile builds, trains a step, and forecasts prices in its stated shape."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from network_profiles import network_profiles

from v8.data.features.table import FeatureTable
from v8.data.windows.batches import FleetWindows
from v8.data.windows.dataset import prepare_series
from v8.data.windows.span import Span
from v8.model.training.epoch_input import on_device
from v8.model.training.trainer import FleetMember, Trainer
from v8.profile.profile import load_profile
from v8.profile.tasks import TASKS

pytestmark = [pytest.mark.tf, pytest.mark.nightly]


@pytest.mark.parametrize("name", network_profiles())
def test_g19_a_shipped_profile_takes_its_first_step(
    name: str, make_table: Callable[..., FeatureTable]
) -> None:
    profile = load_profile(name)
    data = prepare_series(make_table(profile, num_bars=1_500), profile)
    trainer = Trainer(profile)
    state = trainer.first_state([FleetMember(data, seed=1)])
    windows = FleetWindows([data])
    tables = on_device(windows)
    indices_BM = windows.epochs([1], [1]).indices(1)[0]
    rates = np.float32([profile.training.learning_rate])
    stepped = trainer.train_batch(state, rates, np.array([True]), tables, indices_BM)
    assert np.asarray(stepped.num_steps).tolist() == [1.0]
    assert np.isfinite(np.asarray(stepped.loss_sum)).all()
    # Head kernels start at zero, so the first step reaches the heads; the rest follows from the second.
    moved = [
        not np.array_equal(a, np.asarray(b)) for a, b in zip(state.weights, stepped.weights, strict=True)
    ]
    assert any(moved)
    weights = trainer.network_weights(stepped.take(0).weights)
    windows = Span(data.table, profile, data.anchors["test"][:2]).raw_windows()
    prices = trainer.serving_model(data, weights).forecast_all(windows).points
    for task in profile.tasks:
        assert prices[task].shape == (2, profile.horizon_bars, len(TASKS[task].columns))
