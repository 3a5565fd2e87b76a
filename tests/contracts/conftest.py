"""Takes a toy through training, evaluation, report and saving in this process, as the engine does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from float32_steps import assert_same_forecasts
from keras_3_10 import unknown_keys
from outputs import write_outputs
from run_doubles import train_series
from tiny_profiles import tiny_profile, tiny_ranged_profile

from v8.data.market.candles import Candles
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.forecaster.forecaster import Forecaster
from v8.model.baselines.baselines import BASELINES, reference_baseline
from v8.profile.profile import Profile

SERIES = Series.parse("BTCUSDT-15m")


@dataclass(frozen=True)
class ToyRun:
    """What came out.

    Args:
        path: The run folder.
        evaluation: As its metadata tells it.
        leaderboard: Text of `leaderboard.csv`.
        page: Text of `report.html`.
        plain: Forecasts of plain Keras, per task, shape (1, H, C).
    """

    path: Path
    evaluation: dict[str, Any]
    leaderboard: str
    page: str
    plain: dict[str, np.ndarray]


def _run_toy(profile: Profile, home: Path, candles: Candles | None = None) -> ToyRun:
    """Train one series, demo's when none is given, evaluate, save and report it, load it in plain Keras."""
    candles = candles or DemoSource().candles(SERIES, profile.newest_bars)
    path = home / "runs" / profile.name
    train_series(home, profile, candles, is_publishable=False)
    artifact = path / str(candles.series)
    write_outputs(path)
    assert unknown_keys(artifact / "model.keras") == []
    model = keras.saving.load_model(artifact / "model.keras", safe_mode=True)
    window = np.ones((1, profile.lookback_bars, len(profile.features)), np.float32)
    plain = {task: np.asarray(values) for task, values in model(window).items()}
    forecasts = Forecaster.load(artifact).forecast(window)
    assert_same_forecasts(forecasts, {task: plain[task] for task in forecasts}, 1.0)
    metadata = json.loads((artifact / "metadata.json").read_text())
    texts = [(path / name).read_text() for name in ("leaderboard.csv", "report.html")]
    return ToyRun(path, metadata["evaluation"], *texts, plain)


@pytest.fixture(scope="session")
def run_toy() -> Callable[..., ToyRun]:
    return _run_toy


@pytest.fixture
def run_task(tmp_path: Path) -> Callable[..., ToyRun]:
    """Train a task next to the candles, in one of both ways to scale; every baseline is evaluated on it."""

    def run(task: str, way: str) -> ToyRun:
        make = tiny_ranged_profile if way == "ranged" else tiny_profile
        tasks = {name: {"weight": 1.0, "loss": "mae"} for name in ("ohlc", task)}
        profile = make("dense_newest", tasks=tasks, calibration="ensemble", training={"epochs": 1})
        finished = _run_toy(profile, tmp_path)
        installed = {name for name, one in BASELINES.items() if one.is_installed()}
        assert set(finished.evaluation["tasks"][task]["errors"]) == {"model", *installed}
        # Where it has no reference, its best baseline is chosen on the validation span.
        chosen_from = {name: {*errors} for name, errors in finished.evaluation["validation_mae"].items()}
        assert chosen_from == ({} if reference_baseline(task) else {task: installed})
        return finished

    return run
