"""The published model: prices in, prices out, coherent, plain Keras."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from v8.data.dataset import SeriesData
from v8.data.targets import roll_forward
from v8.data.windows import FleetWindows
from v8.models.networks import build_network
from v8.models.serving import build_serving, load_scaling
from v8.profile import Profile

WAYS = ["anchored", "standard", "minmax"]


def wild_network(profile: Profile) -> keras.Model:
    """A network whose heads say anything: kernels drawn at random instead of zero."""
    network = build_network(profile, seed=5)
    rng = np.random.default_rng(5)
    for weight in network.trainable_variables:
        weight.assign(rng.normal(0, 0.7, weight.shape))
    return network


@pytest.mark.parametrize("family", ["bilstm_seq2seq", "lstm_dense"])
@pytest.mark.parametrize("way", WAYS)
def test_prices_equal_the_scaled_network_s_restored_by_hand(
    family: str, way: str, make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_profile(family, scaling=way))
    network = wild_network(data.profile)
    anchors = data.anchors["test"][:32]
    served = build_serving(data.profile, data.scaling, network)(data.raw_windows(anchors))
    scaled = network(next(FleetWindows([data]).span_batches("test", 32)).x_BMTF[:, 0])
    reference = roll_forward(data.history_close(anchors), 3)
    restored = {
        task: data.scaling.restore_target(task, np.asarray(scaled[task])[: len(anchors)], reference[task])
        for task in data.profile.tasks
    }
    ohlc = restored["ohlc"]
    ohlc = np.maximum(ohlc, 0.01 * reference["ohlc"])
    ohlc[..., 1] = ohlc[..., [0, 1, 3]].max(axis=-1)
    ohlc[..., 2] = ohlc[..., [0, 2, 3]].min(axis=-1)
    np.testing.assert_allclose(np.asarray(served["ohlc"]), ohlc, rtol=2e-4)
    bands = np.sort(restored["bands"], axis=-1)[..., ::-1]
    np.testing.assert_allclose(np.asarray(served["bands"]), bands, rtol=2e-4)
    volatility = np.maximum(restored["volatility"], 1e-3 * data.scaling.volatility_floor)
    np.testing.assert_allclose(np.asarray(served["volatility"]), volatility, rtol=5e-3, atol=1e-7)


def test_ranged_prices_are_the_roll_forward_ones_moved_by_recent_ranges(
    make_ranged_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_ranged_profile())
    network = wild_network(data.profile)
    anchors = data.anchors["test"][:32]
    windows = data.raw_windows(anchors)
    served = build_serving(data.profile, data.scaling, network)(windows)
    scaled = network(next(FleetWindows([data]).span_batches("test", 32)).x_BMTF[:, 0])
    reference, last = roll_forward(data.history_close(anchors), 3), windows[:, -1, 3].astype(np.float64)
    range_W = windows[:, -1, data.profile.features.index("recent_range")].astype(np.float64)
    assert (range_W > data.scaling.range_floor).all()
    moved = {
        task: np.asarray(scaled[task], np.float64) * data.scaling.task(task).scale[0] * range_W[:, None, None]
        for task in data.profile.tasks
    }
    ohlc = reference["ohlc"] + moved["ohlc"] * last[:, None, None]
    ohlc[..., 1] = ohlc[..., [0, 1, 3]].max(axis=-1)
    ohlc[..., 2] = ohlc[..., [0, 2, 3]].min(axis=-1)
    np.testing.assert_allclose(np.asarray(served["ohlc"]), ohlc, rtol=1e-5)
    bands = np.sort(reference["bands"] + moved["bands"] * last[:, None, None], axis=-1)[..., ::-1]
    np.testing.assert_allclose(np.asarray(served["bands"]), bands, rtol=1e-5)
    volatility = np.maximum(
        reference["volatility"] + moved["volatility"], 1e-3 * data.scaling.volatility_floor
    )
    np.testing.assert_allclose(np.asarray(served["volatility"]), volatility, rtol=1e-3, atol=1e-7)


def test_an_untrained_ranged_model_moves_the_roll_forward_prices_by_a_constant_number_of_recent_ranges(
    make_ranged_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_ranged_profile())
    start = {task.task: task.start for task in data.scaling.tasks}
    serving = build_serving(data.profile, data.scaling, build_network(data.profile, seed=1, start=start))
    anchors, place = data.anchors["test"], data.profile.features.index("recent_range")
    windows = data.raw_windows(anchors)
    windows[0, -1, place] = 0.0  # a dead market: its range is raised to the floor
    range_W = np.maximum(windows[:, -1, place].astype(np.float64), data.scaling.range_floor)
    assert range_W[0] == data.scaling.range_floor
    reference, last = roll_forward(data.history_close(anchors), 3), windows[:, -1, 3]
    for task, values in serving(windows).items():
        constants = data.scaling.task(task)
        unit_W = range_W if task == "volatility" else range_W * last
        expected = reference[task] + np.array(constants.start) * constants.scale[0] * unit_W[:, None, None]
        np.testing.assert_allclose(np.asarray(values), expected, rtol=2e-3 if task == "volatility" else 1e-5)


@pytest.mark.parametrize("way", [*WAYS, "ranged"])
def test_forecasts_are_coherent_whatever_the_network_says(
    way: str,
    make_profile: Callable[..., Profile],
    make_ranged_profile: Callable[..., Profile],
    make_data: Callable[..., SeriesData],
) -> None:
    data = make_data(make_ranged_profile() if way == "ranged" else make_profile(scaling=way))
    serving = build_serving(data.profile, data.scaling, wild_network(data.profile))
    served = {
        task: np.asarray(values) for task, values in serving(data.raw_windows(data.anchors["test"])).items()
    }
    opens, highs, lows, closes = np.moveaxis(served["ohlc"], -1, 0)
    assert (lows <= np.minimum(opens, closes)).all()
    assert (highs >= np.maximum(opens, closes)).all()
    assert (lows > 0).all()
    assert (served["bands"][..., 1] <= served["bands"][..., 0]).all()
    assert (served["volatility"] > 0).all()


def test_an_untrained_model_forecasts_the_typical_offset(
    make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    """Roll-forward times the train span's median ratio: the `offset` baseline."""
    data = make_data(make_profile())
    start = {task.task: task.start for task in data.scaling.tasks}
    serving = build_serving(data.profile, data.scaling, build_network(data.profile, seed=1, start=start))
    anchors = data.anchors["test"]
    reference = roll_forward(data.history_close(anchors), 3)
    for task, values in serving(data.raw_windows(anchors)).items():
        expected = reference[task] * np.exp(np.array(data.scaling.task(task).offset))
        np.testing.assert_allclose(np.asarray(values), expected, rtol=2e-3)


@pytest.mark.parametrize("way", [*WAYS, "ranged"])
def test_a_model_with_another_series_constants_is_the_one_built_for_it(
    way: str,
    make_profile: Callable[..., Profile],
    make_ranged_profile: Callable[..., Profile],
    make_data: Callable[..., SeriesData],
) -> None:
    profile = make_ranged_profile() if way == "ranged" else make_profile(scaling=way)
    first, second = (make_data(profile, series=name) for name in ("BTCUSDT-15m", "PEPEUSDT-15m"))
    network = wild_network(profile)
    model = build_serving(profile, first.scaling, network)
    windows = second.raw_windows(second.anchors["test"][:16])
    theirs = model(windows)
    load_scaling(model, second.scaling)
    for task, values in build_serving(profile, second.scaling, network)(windows).items():
        np.testing.assert_array_equal(np.asarray(model(windows)[task]), np.asarray(values))
        assert not np.array_equal(np.asarray(theirs[task]), np.asarray(values))


def test_constants_are_the_same_for_every_window_even_one_without_a_number_in_it(
    make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_profile())
    model = build_serving(data.profile, data.scaling, wild_network(data.profile))
    layer = model.get_layer("constants")
    windows = data.raw_windows(data.anchors["test"][:3])
    windows[0], windows[1] = np.nan, np.inf
    rows_B1K = np.asarray(keras.Model(model.input, layer.output)(windows))
    (row_1K,) = layer.get_weights()
    np.testing.assert_array_equal(rows_B1K, np.stack([row_1K] * 3))
    assert data.scaling.volatility_floor == pytest.approx(row_1K[0, -3], rel=1e-6)
    assert not layer.trainable_variables


PLAIN_KERAS = """
import sys
import keras, numpy as np
model = keras.saving.load_model(sys.argv[1], safe_mode=True)
outputs = model(np.load(sys.argv[2]))
np.savez(sys.argv[3], **{task: np.asarray(values) for task, values in outputs.items()})
assert not any(name == "v8" or name.startswith("v8.") for name in sys.modules)
"""


def test_g15_plain_keras_gives_the_same_prices_without_v8(
    tmp_path: Path, make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_profile(dropout=0.3))
    serving = build_serving(data.profile, data.scaling, wild_network(data.profile))
    windows = data.raw_windows(data.anchors["test"][:8])
    serving.save(tmp_path / "model.keras")
    np.save(tmp_path / "windows.npy", windows)
    arguments = [str(tmp_path / name) for name in ("model.keras", "windows.npy", "out.npz")]
    # -I leaves out the current folder and PYTHONPATH; from an empty folder v8 is found only if installed,
    # and the program makes sure that it was not imported.
    subprocess.run([sys.executable, "-I", "-c", PLAIN_KERAS, *arguments], cwd=tmp_path, check=True)
    with np.load(tmp_path / "out.npz") as plain:
        for task, values in serving(windows).items():
            np.testing.assert_array_equal(plain[task], np.asarray(values))


def test_the_file_holds_stock_keras_only(
    tmp_path: Path, make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_profile())
    build_serving(data.profile, data.scaling, wild_network(data.profile)).save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        text = archive.read("config.json").decode("utf-8")
    modules = set()

    def walk(node: object) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("module"), str):
                modules.add(node["module"].split(".")[0])
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(json.loads(text))
    assert modules <= {"keras", "builtins"}
    assert "Lambda" not in text
