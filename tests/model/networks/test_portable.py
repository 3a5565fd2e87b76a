"""A file that v8 writes loads in older Keras: what that would not know is not in it, and nothing is lost.

tests/contracts/test_profiles_train.py looks at the file of every shipped profile; older Keras itself loads
such files in `tests/floors`.
"""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from keras_3_10 import unknown_keys

from v8.model.networks.published import ABOUT_MEMBER, NO_DATE, save_portable

pytestmark = pytest.mark.tf


def config_of(file: Path) -> str:
    with zipfile.ZipFile(file) as archive:
        return archive.read("config.json").decode()


def test_the_table_of_keras_3_10_finds_what_plain_keras_writes(tmp_path: Path) -> None:
    inputs = keras.Input((3,))
    keras.Model(inputs, keras.ops.sum(keras.layers.Dense(2)(inputs), axis=-1)).save(tmp_path / "model.keras")
    assert {"Sum name", "GlorotUniform seed", "Dense kernel_initializer", "object Dense build_config"} < set(
        unknown_keys(tmp_path / "model.keras")
    )


def test_the_file_of_a_network_and_its_weights_is_the_same_whenever_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = keras.Input((3,), name="x")
    model = keras.Model(inputs, keras.layers.Dense(2, name="y")(inputs))
    save_portable(model, tmp_path / "first.keras")
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 86_400)
    monkeypatch.setattr(time, "localtime", lambda *_: time.gmtime(now_s + 86_400))
    save_portable(model, tmp_path / "second.keras")
    first, second = ((tmp_path / f"{name}.keras").read_bytes() for name in ("first", "second"))
    assert first == second
    with zipfile.ZipFile(tmp_path / "first.keras") as archive:
        assert json.loads(archive.read(ABOUT_MEMBER))["date_saved"] == NO_DATE


def test_later_weights_of_a_model_are_written_as_keras_itself_writes_them(tmp_path: Path) -> None:
    """Keras describes a model once; what it was described with must not be what is saved."""
    inputs = keras.Input((4, 3), name="x")
    outputs = keras.layers.Bidirectional(keras.layers.GRU(2))(keras.layers.Dense(3)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.BatchNormalization()(outputs)))
    random = np.random.default_rng(5)
    for name in ("first", "second"):
        weights = [random.random(weight.shape, np.float32) for weight in model.get_weights()]
        model.set_weights(weights)
        save_portable(model, tmp_path / f"{name}.keras")
        for mine, its in zip(weights, model.get_weights(), strict=True):  # the model is as it was
            np.testing.assert_array_equal(mine, its)
        model.save(tmp_path / "plain.keras")
        ours, its = (
            zipfile.ZipFile(tmp_path / f"{each}.keras").read("model.weights.h5") for each in (name, "plain")
        )
        assert ours == its


def test_what_is_not_the_default_stays(tmp_path: Path) -> None:
    inputs = keras.Input((4, 3), name="x")
    outputs = keras.layers.Conv1D(
        2, 3, padding="causal", use_bias=False, kernel_regularizer="l2", trainable=False, name="conv"
    )(inputs)
    outputs = keras.layers.BatchNormalization(momentum=0.5, scale=False, name="norm")(outputs)
    outputs = keras.layers.Activation("gelu", name="bend")(outputs)
    model = keras.Model(inputs, keras.ops.clip(outputs, -1.0, 1.0))
    save_portable(model, tmp_path / "model.keras")
    layers = json.loads(config_of(tmp_path / "model.keras"))["config"]["layers"]
    told = [{**layer["config"], "name": None, "dtype": None} for layer in layers]
    nothing = {"name": None, "dtype": None}
    assert told == [
        {**nothing, "batch_shape": [None, 4, 3], "sparse": False, "ragged": False},
        {
            **nothing,
            "trainable": False,
            "filters": 2,
            "kernel_size": [3],
            "strides": [1],
            "padding": "causal",
            "data_format": "channels_last",
            "dilation_rate": [1],
            "activation": "linear",
            "use_bias": False,
        },
        {**nothing, "momentum": 0.5, "scale": False},
        {**nothing, "activation": "gelu"},
        {**nothing, "x_min": -1.0, "x_max": 1.0},
    ]
    window = np.random.default_rng(1).normal(size=(2, 4, 3)).astype(np.float32)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(window), model(window))
    assert not loaded.get_layer("conv").trainable
