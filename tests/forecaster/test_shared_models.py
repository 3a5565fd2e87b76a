"""Models of one description share a graph, and none ever speaks with the weights of another."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from v8.base.errors import ArtifactError
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.model_file import load_keras_model
from v8.forecaster.shared_models import SharedModels
from v8.model.networks.published import FORECAST_BATCH, forecast_windows, save_portable

pytestmark = pytest.mark.tf


def small_network(seed: int, units: int = 5) -> keras.Model:
    keras.utils.set_random_seed(seed)
    window = keras.Input((4, 2), name="window")
    hidden = keras.layers.Dropout(0.2, name="dropout")(keras.layers.LSTM(units, name="lstm")(window))
    return keras.Model(window, {"ohlc": keras.layers.Dense(3, name="dense")(hidden)}, name="small")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three files of one description, of three series, and one of another."""
    folder = tmp_path_factory.mktemp("models")
    for number in range(3):
        save_portable(small_network(number), folder / f"{number}.keras", f"BTCUSDT-{number + 1}h")
    save_portable(small_network(3, units=6), folder / "3.keras")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    return np.random.default_rng(0).random((FORECAST_BATCH, 4, 2)).astype(np.float32)


def test_shared_models_say_to_the_bit_what_each_alone_says(files: list[Path], windows: np.ndarray) -> None:
    models = SharedModels()
    shared = [models.load(file) for file in files]
    alone = [forecast_windows(load_keras_model(file), windows)["ohlc"] for file in files]
    assert len({values.tobytes() for values in alone}) == 4
    assert shared[0].inputs[0] is shared[2].inputs[0] is not shared[3].inputs[0]
    for number in (3, 0, 2, 1, 1, 0, 3, 2):
        said = forecast_windows(shared[number], windows)["ohlc"]
        np.testing.assert_array_equal(said, alone[number], strict=True)


def test_threads_that_use_one_graph_do_not_mix(files: list[Path], windows: np.ndarray) -> None:
    models = SharedModels()
    shared = [models.load(file) for file in files[:3]]
    expected = [forecast_windows(model, windows)["ohlc"].tobytes() for model in shared]
    numbers = [number % 3 for number in range(60)]
    with ThreadPoolExecutor(6) as pool:
        said = pool.map(lambda number: forecast_windows(shared[number], windows)["ohlc"].tobytes(), numbers)
        assert [*said] == [expected[number] for number in numbers]


def test_files_are_read_without_keras_once_it_has_shown_how(
    files: list[Path], windows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = SharedModels()
    models.load(files[0])
    models.load(files[1])
    expected = forecast_windows(load_keras_model(files[2]), windows)["ohlc"]
    with monkeypatch.context() as patch:
        patch.setattr(keras.Model, "load_weights", None)
        third = models.load(files[2])
    np.testing.assert_array_equal(forecast_windows(third, windows)["ohlc"], expected, strict=True)


def test_weights_that_are_written_otherwise_are_read_by_keras(
    files: list[Path], windows: np.ndarray, tmp_path: Path
) -> None:
    """A file with an array more than the first one is one that Keras may still read: it says so itself."""
    models = SharedModels()
    models.load(files[0])
    models.load(files[1])
    more = changed(files[2], tmp_path / "m.keras", lambda weights: weights.create_dataset("more", data=[1.0]))
    expected = forecast_windows(load_keras_model(more), windows)["ohlc"]
    np.testing.assert_array_equal(forecast_windows(models.load(more), windows)["ohlc"], expected, strict=True)


def changed(file: Path, target: Path, change: Callable[[h5py.File], None]) -> Path:
    with zipfile.ZipFile(file) as archive:
        archive.extractall(target.with_suffix(""))
    with h5py.File(target.with_suffix("") / "model.weights.h5", "a") as weights:
        change(weights)
    with zipfile.ZipFile(target, "w") as archive:
        for member in sorted(target.with_suffix("").iterdir()):
            archive.write(member, member.name)
    return target


def reshaped(weights: h5py.File) -> None:
    del weights["layers/dense/vars/0"]
    weights["layers/dense/vars/0"] = np.zeros((6, 3), np.float32)


@pytest.mark.parametrize("num_before", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights.__delitem__("layers/dense"),
        lambda weights: weights.__delitem__("layers/dense/vars/1"),
        reshaped,
    ],
)
def test_weights_that_do_not_fit_are_refused_and_leave_the_others_as_they_were(
    change: Callable[[h5py.File], None],
    num_before: int,
    files: list[Path],
    windows: np.ndarray,
    tmp_path: Path,
) -> None:
    models = SharedModels()
    good = [models.load(file) for file in files[:num_before]]
    expected = forecast_windows(good[-1], windows)["ohlc"]
    with pytest.raises(ArtifactError, match="layers and weights"):
        models.load(changed(files[1], tmp_path / "other.keras", change))
    np.testing.assert_array_equal(forecast_windows(good[-1], windows)["ohlc"], expected, strict=True)


def test_a_file_with_fewer_numbers_than_the_network_has_is_refused(files: list[Path], tmp_path: Path) -> None:
    models = SharedModels()
    models.load(files[0])
    shutil.copy(files[1], tmp_path / "m.keras")
    with zipfile.ZipFile(files[1]) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content[:400] if name.endswith(".h5") else content)
    with pytest.raises(ArtifactError, match=r"1\d\d numbers .* 100"):
        models.load(tmp_path / "m.keras")


def test_forecasters_that_share_forecast_what_they_do_alone(trained_run: Any) -> None:
    models = SharedModels()
    alone = Forecaster.load(trained_run.folder).predict(trained_run.candles)
    shared = [Forecaster.load(trained_run.folder, models=models) for _ in range(2)]
    for each in shared:
        np.testing.assert_array_equal(each.predict(trained_run.candles), alone)
