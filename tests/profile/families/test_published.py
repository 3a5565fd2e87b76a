"""The V4 family and V3: trained in a fleet of two, taught, saved, and run by plain Keras without v8."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from float32_steps import assert_same_forecasts
from keras_3_10 import unknown_keys
from run_doubles import demo_jobs
from tiny_profiles import tiny_profile

from v8.forecaster.forecaster import Forecaster
from v8.forecaster.model_file import check_keras_file
from v8.forecaster.shared_models import SharedModels
from v8.profile.columns import OHLC
from v8.profile.profile import Profile
from v8.runs.events import RunObserver
from v8.runs.local import InProcessEngine

pytestmark = [pytest.mark.nightly, pytest.mark.tf, pytest.mark.process]

FAMILIES = ("transformer", "gru_attention", "lstm_attention", "lstm_close")
NAMES = ("BTCUSDT-15m", "ETHUSDT-15m")
PLAIN_KERAS = """
import sys, pathlib, keras, numpy as np
windows = np.load("windows.npy")
for file in pathlib.Path().glob("*/*/model.keras"):
    model = keras.saving.load_model(file, safe_mode=True)
    assert len(model.inputs) == 1
    np.save(file.parent / "plain.npy", model.predict(windows, verbose=0)["ohlc"])
assert not any(name == "v8" or name.startswith("v8.") for name in sys.modules)
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a family with two models each, and what plain Keras says to windows of prices."""
    home = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("V8_HOME", str(home / "home"))
        for family in FAMILIES:
            train(shrunken(family), home / family)
    draws = np.random.default_rng(1).normal(0, 1e-3, (3, 6, 4)).cumsum(axis=1)
    np.save(home / "windows.npy", (100 * np.exp(draws)).astype(np.float32))
    subprocess.run([sys.executable, "-I", "-c", PLAIN_KERAS], cwd=home, check=True)
    return home


def shrunken(family: str) -> Profile:
    """Return the shape of a V4 profile, small: candles alone in, candles out, half of them taught."""
    return tiny_profile(
        family,
        teacher_forcing=0.5,
        features=OHLC,
        tasks={"ohlc": {"weight": 1.0, "loss": "mse"}},
        lookback_bars=6,
        horizon_bars=2,
        newest_bars=400,
        training={"epochs": 1, "batch_size": 64, "clip_norm": 1.0},
    )


def train(profile: Profile, folder: Path) -> None:
    outcomes = list(InProcessEngine(fleet_size=2).train(demo_jobs(profile, NAMES, folder), RunObserver()))
    assert [outcome.reason for outcome in outcomes] == [None, None]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_taught_fleet_of_two_is_saved_loaded_by_plain_keras_and_predicts(
    family: str, published: Path
) -> None:
    windows = np.load(published / "windows.npy")
    models = SharedModels()
    for name in NAMES:
        folder = published / family / name
        check_keras_file(folder / "model.keras")
        assert unknown_keys(folder / "model.keras") == []
        prices = Forecaster.load(folder, models=models).forecast(windows)["ohlc"]
        assert prices.shape == (3, 2, 4)
        assert (np.abs(prices / windows[:, -1:, 3:] - 1) < 0.2).all()
        assert_same_forecasts({"ohlc": prices}, {"ohlc": np.load(folder / "plain.npy")}, windows[:, -1, 3])
