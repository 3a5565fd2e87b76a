"""Every shipped profile builds, trains a step, forecasts prices in its stated shape, and is saved whole."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from keras_3_10 import unknown_keys
from tiny_profiles import demo_table, network_profiles

from v8.data.span import Span
from v8.data.windows import FleetWindows, prepare_series
from v8.forecaster.model_file import check_keras_file
from v8.model.training.state import on_device
from v8.model.training.trainer import FleetMember, Trainer
from v8.profile.profile import load_profile
from v8.profile.tasks import TASKS

pytestmark = [pytest.mark.tf, pytest.mark.nightly]


@pytest.mark.parametrize("name", network_profiles())
def test_g19_a_shipped_profile_takes_its_first_step(name: str, tmp_path: Path) -> None:
    profile = load_profile(name)
    data = prepare_series(demo_table(profile, num_bars=1_500), profile)
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
    serving = trainer.serving_model(data, weights)
    prices = serving.forecast_all(windows).points
    for task in profile.tasks:
        assert prices[task].shape == (2, profile.horizon_bars, len(TASKS[task].columns))
    # The file holds what Keras 3.10 knows, and every weight.
    file = tmp_path / "model.keras"
    serving.save(file)
    assert unknown_keys(file) == []
    check_keras_file(file)
    loaded = keras.saving.load_model(file)
    for mine, its in zip(weights, loaded.trainable_variables, strict=True):  # and nothing else is trained
        np.testing.assert_array_equal(mine, its.numpy())
    for mine, its in zip(serving.keras_model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
    for task, forecast in serving.keras_model(windows).items():
        np.testing.assert_array_equal(loaded(windows)[task], forecast)
