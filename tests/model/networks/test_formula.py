"""The file of a formula: the baseline's forecast from raw candles alone, in stock Keras."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from float32_steps import assert_same_forecasts
from keras_3_10 import unknown_keys
from tiny_profiles import demo_data

from v8.data.windows import SeriesData
from v8.forecaster.model_file import check_keras_file
from v8.model.baselines.baselines import BASELINES
from v8.model.networks.published import forecast_windows
from v8.model.training.formula import FormulaModel, FormulaTrainer
from v8.model.training.trainer import FleetMember
from v8.profile.profile import Profile, load_profile

pytestmark = pytest.mark.tf

NUM_BARS = 2_400


def short(horizon_bars: int = 3) -> Profile:
    content = load_profile("range_paths").model_dump() | {"horizon_bars": horizon_bars}
    return Profile.model_validate(content)


@pytest.fixture(scope="module")
def series() -> list[SeriesData]:
    return [demo_data(short(), num_bars=NUM_BARS), demo_data(short(), num_bars=NUM_BARS + 100)]


@pytest.fixture(scope="module")
def fitted(series: list[SeriesData]) -> list[FormulaModel]:
    trainer = FormulaTrainer(short())
    results = dict(trainer.fit_fleet([FleetMember(data, seed=1) for data in series]))
    return [trainer.serving_model(data, results[place].weights) for place, data in enumerate(series)]


def test_it_forecasts_what_the_baseline_does(series: list[SeriesData], fitted: list[FormulaModel]) -> None:
    for data, model in zip(series, fitted, strict=True):  # the second after the first, in one shared graph
        test = data.spans["test"]
        forecasts = model.forecast_all(test.raw_windows()).points
        wanted = BASELINES["range_paths"].fit(data.spans["train"], data.scaling)(test)
        assert_same_forecasts(forecasts, wanted, test.last_close)


def test_plain_keras_loads_its_file_and_finds_nothing_but_stock_parts(
    series: list[SeriesData], fitted: list[FormulaModel], tmp_path: Path
) -> None:
    windows = series[0].spans["test"].raw_windows()
    file = tmp_path / "model.keras"
    wanted = fitted[0].forecast_all(windows).points
    fitted[1].forecast_all(windows)
    fitted[0].save(file)
    check_keras_file(file)
    assert unknown_keys(file) == []
    loaded = keras.saving.load_model(file, safe_mode=True)
    for task, values in forecast_windows(loaded, windows).items():
        np.testing.assert_array_equal(values, wanted[task])


def test_its_numbers_are_counted_without_mirror_images() -> None:
    # A step has a constant and five ranges, and four columns of 256 lent bars; and there is a floor.
    assert FormulaTrainer(short(3)).num_parameters == 3 * (6 + 4 * 256) + 1


def test_it_forecasts_a_market_that_stands_still(fitted: list[FormulaModel]) -> None:
    forecasts = fitted[0].forecast_all(np.full((1, 240, 4), 7.0, np.float32)).points
    assert all(np.isfinite(values).all() for values in forecasts.values())
    assert (forecasts["volatility"] > 0).all()
    np.testing.assert_allclose(forecasts["ohlc"], 7.0, rtol=0.01)
