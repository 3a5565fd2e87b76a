"""A network family of one's own is one file, this one: settings, layers, cost, even a layer's twin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
from fleets import fleet_of
from float32_steps import assert_same_forecasts, assert_within_steps
from keras import ops
from keras_3_10 import unknown_keys
from pydantic import Field, ValidationError
from run_doubles import Recorder, demo_jobs
from tiny_profiles import demo_table, tiny_profile

import v8
from v8.base.errors import ProfileError
from v8.data.windows import prepare_series
from v8.model.networks.networks import build_network, counterparts
from v8.model.networks.stacked_layers import TWINS, StackedLayer, twin_of
from v8.profile.families import FAMILIES
from v8.profile.family import Family, Layers, NetworkSettings, NetworkShape, Units, dense_flop
from v8.profile.profile import Profile, config_path, load_profile
from v8.runs.events import RunObserver
from v8.runs.local import InProcessEngine, new_trainer
from v8.runs.plan import Recipe

pytestmark = pytest.mark.tf

NAMES = ("BTCUSDT-15m", "ETHUSDT-15m")
PLAIN_KERAS = """
import sys, keras, numpy as np
file, windows, forecasts = sys.argv[1:]
model = keras.saving.load_model(file, compile=False)
np.savez(forecasts, **{task: np.asarray(values) for task, values in model(np.load(windows)).items()})
assert "v8" not in sys.modules
"""


class LargestNetwork(NetworkSettings):
    """Sizes of the dense layers."""

    units: Units
    """Units of each dense layer, first to last."""
    slope: float = Field(ge=0, lt=1)
    """Slope of their activation below 0, unitless."""


def outputs(network: LargestNetwork, window_BTF: Any, layers: Layers) -> dict[str, Any]:
    x_BD = keras.layers.GlobalMaxPooling1D(dtype=layers.precision, name="largest")(window_BTF)
    for number, units in enumerate(network.units, 1):
        kernel = keras.initializers.GlorotUniform(seed=next(layers.seeds))
        x_BD = keras.layers.Dense(units, kernel_initializer=kernel, name=f"dense_{number}")(x_BD)
        x_BD = keras.layers.LeakyReLU(network.slope, name=f"bent_{number}")(x_BD)
    return layers.heads(x_BD, "bd,dhc->bhc")


def forward_flop(network: LargestNetwork, shape: NetworkShape) -> float:
    return dense_flop(shape.num_features, *network.units)


class StackedGlobalMaxPooling1D(StackedLayer):
    """Twin of a layer that has none in v8: (B, M, T, D) to (B, M, D)."""

    def call(self, x_BMTD: Any) -> Any:
        return ops.max(x_BMTD, axis=2)


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    twin_of(keras.layers.GlobalMaxPooling1D)(StackedGlobalMaxPooling1D)
    FAMILIES.register(
        Family(
            name="dense_largest",
            sentence="Dense layers over the largest value of each column.",
            source="this test",
            settings=LargestNetwork,
            outputs=outputs,
            forward_flop=forward_flop,
        )
    )
    yield
    FAMILIES.pop("dense_largest")
    del TWINS[keras.layers.GlobalMaxPooling1D]


def toy(**changes: Any) -> Profile:
    network = {"family": "dense_largest", "units": (5, 4), "slope": 0.1, **changes}
    return tiny_profile("lstm_dense", network=network, training={"epochs": 2})


def test_its_profile_is_read_checked_and_written() -> None:
    profile = toy()
    written = profile.model_dump(mode="json")["network"]
    assert written == {"family": "dense_largest", "units": [5, 4], "slope": 0.1}
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
    assert toy(slope=0.2).digest != profile.digest
    with pytest.raises(ValidationError, match=r"network\.dense_largest\.slope"):
        toy(slope=1.0)


def test_what_is_wrong_in_its_file_is_told_by_its_own_keys(tmp_path: Path) -> None:
    text = config_path("v7").read_text("utf-8")
    start = text.index("network:")
    end = text.index("tasks:")
    file = tmp_path / "mine.yaml"
    for network, sentence in (
        (
            "{family: dense_larges, units: [5]}",
            "'dense_larges' is no network family.*did you mean dense_larg",
        ),
        (
            "{family: dense_largest, units: [5]}",
            r"key network\.dense_largest\.slope: field required; got no such key",
        ),
        (
            "{family: dense_largest, units: [5], slop: 0.1}",
            r"key network\.dense_largest\.slop: .*Did you mean slope",
        ),
        (
            "{family: dense_largest, units: [5], slope: 0.1, unit: 3}",
            r"key network\.dense_largest\.unit: .*Did you mean units",
        ),
    ):
        file.write_text(f"{text[:start]}network: {network}\n{text[end:]}", "utf-8")
        with pytest.raises(ProfileError, match=sentence):
            load_profile(str(file))


def test_an_error_in_its_layout_is_one_of_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(network: Any, window: Any, layers: Layers) -> Any:
        return network.slpe

    plugin = ModuleType("toy_plugin")
    vars(plugin).update(__digest__="of its file", __file__="toy_plugin.py")
    monkeypatch.setitem(sys.modules, "toy_plugin", plugin)
    monkeypatch.setitem(FAMILIES, "dense_largest", replace(FAMILIES["dense_largest"], outputs=failing))
    with pytest.raises(AttributeError):  # of v8's own it is an error of ours, with its traceback
        build_network(toy(), seed=0)
    failing.__module__ = "toy_plugin"
    with pytest.raises(ProfileError) as refused:
        build_network(toy(), seed=0)
    assert "slpe" in refused.value.got


class OwnLayer(keras.layers.Layer):
    """A layer of a plug-in, which no model file may contain."""

    def call(self, x_BTF: Any) -> Any:
        return x_BTF[:, -1]


@pytest.mark.parametrize(
    ("layer", "got"),
    [(keras.layers.Lambda(lambda x_BTF: x_BTF[:, -1]), "Lambda"), (OwnLayer(), "OwnLayer")],
)
def test_a_layer_that_no_file_may_contain_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch, layer: Any, got: str
) -> None:
    def with_layer(network: LargestNetwork, window_BTF: Any, layers: Layers) -> Any:
        return layers.heads(layer(window_BTF), "bd,dhc->bhc")

    monkeypatch.setitem(FAMILIES, "dense_largest", replace(FAMILIES["dense_largest"], outputs=with_layer))
    with pytest.raises(ProfileError) as refused:
        new_trainer(Recipe(toy(), is_publishable=False))
    assert "key network" in refused.value.where and got in refused.value.got


def test_its_parameters_and_operations_by_hand() -> None:
    profile = toy()
    # 12 features to 5 units to 4: 13 x 5 + 6 x 4 = 89; 7 columns in 3 steps read 4 units: 5 x 21 = 105.
    assert build_network(profile, seed=1).count_params() == 194
    assert profile.training_flop_per_window == 3 * 2 * (12 * 5 + 5 * 4)


def test_a_fleet_of_it_gives_each_network_back() -> None:
    networks = [build_network(toy(), seed=seed) for seed in (1, 2)]
    fleet = fleet_of(networks)
    windows = np.random.default_rng(1).normal(size=(5, 2, 20, 12)).astype(np.float32)
    forecasts = fleet(windows)
    for number, network in enumerate(networks):
        for place, its in zip(counterparts(networks[0], fleet), network.trainable_variables, strict=True):
            np.testing.assert_array_equal(np.asarray(fleet.trainable_variables[place])[number], its)
        for task, values in network(windows[:, number]).items():
            assert_within_steps(np.asarray(forecasts[task])[:, number], values, steps=16)


@pytest.mark.nightly
@pytest.mark.process
def test_it_is_trained_as_a_fleet_saved_and_loaded_by_v8_and_by_plain_keras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    profile = toy()
    outcomes = list(
        InProcessEngine(fleet_size=2).train(demo_jobs(profile, NAMES, tmp_path / "run"), RunObserver())
    )
    assert [outcome.reason for outcome in outcomes] == [None, None]
    for name in NAMES:
        data = prepare_series(demo_table(profile, series=name), profile)
        windows = data.spans["test"].raw_windows()[:3]
        assert unknown_keys(tmp_path / "run" / name / "model.keras") == []
        said = v8.load(tmp_path / "run" / name).forecast(windows)
        assert {task: values.shape for task, values in said.items()} == {
            "ohlc": (3, 3, 4),
            "bands": (3, 3, 2),
            "volatility": (3, 3, 1),
        }
        np.save(tmp_path / "windows.npy", windows)
        files = (tmp_path / "run" / name / "model.keras", tmp_path / "windows.npy", tmp_path / "said.npz")
        subprocess.run([sys.executable, "-c", PLAIN_KERAS, *map(str, files)], check=True, cwd=tmp_path)
        with np.load(files[-1]) as plain:
            assert_same_forecasts(said, plain, data.spans["test"].last_close[:3])


@pytest.mark.nightly
def test_without_its_twin_series_are_trained_one_by_one_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    monkeypatch.delitem(TWINS, keras.layers.GlobalMaxPooling1D)
    recorder = Recorder()
    jobs = demo_jobs(toy(), NAMES, tmp_path / "run")
    outcomes = list(InProcessEngine(fleet_size=2).train(jobs, recorder))
    assert [outcome.reason for outcome in outcomes] == [None, None]
    (note,) = recorder.notes
    assert "largest (GlobalMaxPooling1D)" in note
    for name in NAMES:
        forecaster = v8.load(tmp_path / "run" / name)
        assert forecaster.about.content["training"]["fleet_size"] == 1
        data = prepare_series(demo_table(toy(), series=name), toy())
        said = forecaster.forecast(data.spans["test"].raw_windows()[:3])
        assert said["ohlc"].shape == (3, 3, 4) and np.isfinite(said["ohlc"]).all()
