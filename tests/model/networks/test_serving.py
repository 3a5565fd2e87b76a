"""The published model: prices in, prices out, coherent, plain Keras."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
from float32_steps import assert_same_forecasts
from numpy_batches import span_batches
from scaled_units import restore_targets
from tiny_profiles import demo_data, tiny_profile, tiny_ranged_profile

from v8.data.span import Span
from v8.data.windows import FleetWindows, SeriesData
from v8.model.baselines.ranges import fit_formulas
from v8.model.networks.networks import build_network
from v8.model.networks.serving import ServingGraph, ServingModel, build_serving, load_scaling
from v8.profile.profile import Profile

pytestmark = pytest.mark.tf

WAYS = ["anchored", "standard", "minmax"]


def wild_network(profile: Profile) -> keras.Model:
    """A network whose heads say anything: kernels drawn at random instead of zero."""
    network = build_network(profile, seed=5)
    rng = np.random.default_rng(5)
    for weight in network.trainable_variables:
        weight.assign(rng.normal(0, 0.7, weight.shape))
    return network


def first_windows(data: SeriesData, num_windows: int) -> Span:
    """The first windows of the test span."""
    return Span(data.table, data.profile, data.anchors["test"][:num_windows])


@pytest.mark.parametrize("family", ["bilstm_seq2seq", "lstm_dense", "dense_newest"])
@pytest.mark.parametrize("way", WAYS)
def test_prices_equal_the_scaled_network_s_restored_by_hand(family: str, way: str) -> None:
    data = demo_data(tiny_profile(family, scaling=way))
    network = wild_network(data.profile)
    span = first_windows(data, 32)
    served = build_serving(data.profile, data.scaling, network)[0](span.raw_windows())
    scaled = network(next(span_batches(FleetWindows([data]), "test", 32)).x_BMTF[:, 0])
    restored = restore_targets(
        data.scaling, span, {task: np.asarray(scaled[task])[: len(span)] for task in data.profile.tasks}
    )
    ohlc = restored["ohlc"]
    ohlc = np.maximum(ohlc, 0.01 * span.naive["ohlc"])
    ohlc[..., 1] = ohlc[..., [0, 1, 3]].max(axis=-1)
    ohlc[..., 2] = ohlc[..., [0, 2, 3]].min(axis=-1)
    bands = np.sort(restored["bands"], axis=-1)[..., ::-1]
    volatility = np.maximum(restored["volatility"], 1e-3 * data.scaling.volatility_floor)
    expected = {"ohlc": ohlc, "bands": bands, "volatility": volatility}
    assert_same_forecasts(served, expected, span.last_close)


def test_ranged_prices_are_the_naive_ones_moved_by_recent_ranges() -> None:
    data = demo_data(tiny_ranged_profile())
    network = wild_network(data.profile)
    span = first_windows(data, 32)
    windows = span.raw_windows()
    served = build_serving(data.profile, data.scaling, network)[0](windows)
    scaled = network(next(span_batches(FleetWindows([data]), "test", 32)).x_BMTF[:, 0])
    reference = span.naive
    last = windows[:, -1, 3].astype(np.float64)
    range_W = windows[:, -1, data.profile.features.index("recent_range")].astype(np.float64)
    assert (range_W > data.scaling.range_floor).all()
    moved = {
        task: np.asarray(scaled[task], np.float64) * data.scaling.task(task).scale[0] * range_W[:, None, None]
        for task in data.profile.tasks
    }
    ohlc = reference["ohlc"] + moved["ohlc"] * last[:, None, None]
    ohlc[..., 1] = ohlc[..., [0, 1, 3]].max(axis=-1)
    ohlc[..., 2] = ohlc[..., [0, 2, 3]].min(axis=-1)
    bands = np.sort(reference["bands"] + moved["bands"] * last[:, None, None], axis=-1)[..., ::-1]
    volatility = np.maximum(
        reference["volatility"] + moved["volatility"], 1e-3 * data.scaling.volatility_floor
    )
    assert_same_forecasts(served, {"ohlc": ohlc, "bands": bands, "volatility": volatility}, last)


@pytest.mark.parametrize(("family", "scales_all"), [("lstm_dense", True), ("dense_newest", False)])
def test_a_published_model_scales_the_rows_that_its_network_reads(family: str, scales_all: bool) -> None:
    data = demo_data(tiny_profile(family))
    model = build_serving(data.profile, data.scaling, wild_network(data.profile))[0]
    divided = [each.output.shape for each in model.operations if type(each).__name__ == "TrueDivide"]
    num_rows = [shape[1] for shape in divided if len(shape) == 3]
    assert (data.profile.lookback_bars in num_rows) is scales_all


@pytest.mark.parametrize("way", [*WAYS, "ranged"])
def test_the_hour_says_nothing_to_a_network_whose_train_span_holds_too_few_days(way: str) -> None:
    """940 bars of 1m, 239 of which warm up, are half a day; of 15m they are seven."""
    data = demo_data(tiny_ranged_profile(scaling=way), series="BTCUSDT-1m")
    place = data.profile.features.index("day_sin_1")
    assert (np.float32(0.001) + data.inputs_NF[:, place] == np.float32(0.001)).all()
    assert (np.delete(data.inputs_NF, place, axis=1).std(axis=0) > 0.01).all()
    serving = build_serving(data.profile, data.scaling, wild_network(data.profile))[0]
    windows = first_windows(data, 32).raw_windows()
    served = serving(windows)
    windows[:, :, place] = np.random.default_rng(1).uniform(-1, 1, windows.shape[:2])
    for task, values in serving(windows).items():
        np.testing.assert_array_equal(np.asarray(values), np.asarray(served[task]))
    held = demo_data(tiny_ranged_profile(scaling=way))
    assert held.inputs_NF[:, place].std() > 0.3


def test_an_untrained_ranged_model_moves_the_naive_prices_by_a_constant_number_of_recent_ranges() -> None:
    data = demo_data(tiny_ranged_profile())
    start = {task.task: task.start for task in data.scaling.tasks}
    serving = build_serving(data.profile, data.scaling, build_network(data.profile, seed=1, start=start))[0]
    span = data.spans["test"]
    place = data.profile.features.index("recent_range")
    windows = span.raw_windows()
    windows[0, -1, place] = 0.0  # a dead market: its range is raised to the floor
    range_W = np.maximum(windows[:, -1, place].astype(np.float64), data.scaling.range_floor)
    assert range_W[0] == data.scaling.range_floor
    reference = span.naive
    last = windows[:, -1, 3]
    expected = {}
    for task in data.profile.tasks:
        constants = data.scaling.task(task)
        unit_W = range_W if task == "volatility" else range_W * last
        moved = np.array(constants.start) * constants.scale[0] * unit_W[:, None, None]
        expected[task] = reference[task] + moved
    assert_same_forecasts(serving(windows), expected, last)


@pytest.mark.parametrize("way", [*WAYS, "ranged"])
def test_forecasts_are_coherent_whatever_the_network_says(way: str) -> None:
    data = demo_data(tiny_ranged_profile() if way == "ranged" else tiny_profile(scaling=way))
    serving = build_serving(data.profile, data.scaling, wild_network(data.profile))[0]
    served = {task: np.asarray(values) for task, values in serving(data.spans["test"].raw_windows()).items()}
    opens, highs, lows, closes = np.moveaxis(served["ohlc"], -1, 0)
    assert (lows <= np.minimum(opens, closes)).all()
    assert (highs >= np.maximum(opens, closes)).all()
    assert (lows > 0).all()
    assert (served["bands"][..., 1] <= served["bands"][..., 0]).all()
    assert (served["volatility"] > 0).all()


def test_an_untrained_model_forecasts_the_typical_offset() -> None:
    """The naive forecast times the train span's median ratio: the `offset` baseline."""
    data = demo_data(tiny_profile())
    start = {task.task: task.start for task in data.scaling.tasks}
    serving = build_serving(data.profile, data.scaling, build_network(data.profile, seed=1, start=start))[0]
    span = data.spans["test"]
    offsets = {task.task: np.exp(np.array(task.offset)) for task in data.scaling.tasks}
    expected = {task: span.naive[task] * offset for task, offset in offsets.items()}
    assert_same_forecasts(serving(span.raw_windows()), expected, span.last_close)


@pytest.mark.parametrize("way", [*WAYS, "ranged"])
def test_a_model_with_another_series_constants_is_the_one_built_for_it(way: str) -> None:
    profile = tiny_ranged_profile() if way == "ranged" else tiny_profile(scaling=way)
    first, second = (demo_data(profile, series=name) for name in ("BTCUSDT-15m", "PEPEUSDT-15m"))
    network = wild_network(profile)
    model = build_serving(profile, first.scaling, network)[0]
    windows = first_windows(second, 16).raw_windows()
    theirs = model(windows)
    load_scaling(model, second.scaling)
    for task, values in build_serving(profile, second.scaling, network)[0](windows).items():
        np.testing.assert_array_equal(np.asarray(model(windows)[task]), np.asarray(values))
        assert not np.array_equal(np.asarray(theirs[task]), np.asarray(values))


def drawn_weights(network: keras.Model, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 0.5, weight.shape).astype(np.float32) for weight in network.trainable_variables]


def test_a_serving_model_forecasts_what_the_graph_built_for_its_series_does() -> None:
    profile = tiny_profile()
    first, second = (demo_data(profile, series=name) for name in ("BTCUSDT-15m", "PEPEUSDT-15m"))
    graph = ServingGraph(profile, first.scaling, build_network(profile, seed=0))
    weights = drawn_weights(graph.network, 1)
    windows = first_windows(second, 16).raw_windows()
    forecasts = ServingModel(graph, second.scaling, weights).forecast_all(windows).points
    network = build_network(profile, seed=7)
    for variable, weight in zip(network.trainable_variables, weights, strict=True):
        variable.assign(weight)
    expected = build_serving(profile, second.scaling, network)[0](windows)
    assert {values.shape[:2] for values in forecasts.values()} == {(16, 3)}
    assert_same_forecasts(forecasts, expected, first_windows(second, 16).last_close)


USES: dict[str, Callable[[ServingModel, SeriesData, Path], object]] = {
    "forecast": lambda model, data, folder: model.forecast_all(first_windows(data, 2).raw_windows()).points,
    "fold": lambda model, data, folder: model.add_calibration(
        fit_formulas(data.spans["train"]), dict.fromkeys(data.profile.tasks, np.full((3, 3), 1 / 3)), {}
    ),
    "save": lambda model, data, folder: model.save(folder / "model.keras"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_serving_model_is_the_same_after_its_graph_held_another_series(
    use: Callable[..., object], tmp_path: Path
) -> None:
    profile = tiny_profile("lstm_dense", calibration="ensemble")
    first, second = (demo_data(profile, series=name) for name in ("BTCUSDT-15m", "PEPEUSDT-15m"))
    graph = ServingGraph(profile, first.scaling, build_network(profile, seed=0))
    older = ServingModel(graph, first.scaling, drawn_weights(graph.network, 1))
    use(older, first, tmp_path)
    held = graph.model.get_weights()
    newer = ServingModel(graph, second.scaling, drawn_weights(graph.network, 2))
    use(newer, second, tmp_path)
    assert any((one != other).any() for one, other in zip(graph.model.get_weights(), held, strict=True))
    use(older, first, tmp_path)
    for one, other in zip(graph.model.get_weights(), held, strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_models_of_one_series_are_two_models() -> None:
    data = demo_data(tiny_profile("lstm_dense"))
    graph = ServingGraph(data.profile, data.scaling, build_network(data.profile, seed=0))
    weights = drawn_weights(graph.network, 1)
    zeros = [np.zeros_like(weight) for weight in weights]
    older = ServingModel(graph, data.scaling, weights)
    newer = ServingModel(graph, data.scaling, zeros)
    windows = first_windows(data, 2).raw_windows()
    points = [model.forecast_all(windows).points["ohlc"] for model in (older, newer, older)]
    assert (points[0] != points[1]).any()
    np.testing.assert_array_equal(points[0], points[2])


def test_constants_are_the_same_for_every_window_even_one_without_a_number_in_it() -> None:
    data = demo_data(tiny_profile())
    model = build_serving(data.profile, data.scaling, wild_network(data.profile))[0]
    layer = model.get_layer("constants")
    windows = first_windows(data, 3).raw_windows()
    windows[0] = np.nan
    windows[1] = np.inf
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


@pytest.mark.process
def test_g15_plain_keras_gives_the_same_prices_without_v8(tmp_path: Path) -> None:
    data = demo_data(tiny_profile(dropout=0.3))
    serving = build_serving(data.profile, data.scaling, wild_network(data.profile))[0]
    windows = first_windows(data, 8).raw_windows()
    serving.save(tmp_path / "model.keras")
    np.save(tmp_path / "windows.npy", windows)
    arguments = [str(tmp_path / name) for name in ("model.keras", "windows.npy", "out.npz")]
    # -I leaves out the current folder and PYTHONPATH; from an empty folder v8 is found only if installed,
    # and the program makes sure that it was not imported.
    subprocess.run([sys.executable, "-I", "-c", PLAIN_KERAS, *arguments], cwd=tmp_path, check=True)
    with np.load(tmp_path / "out.npz") as plain:
        for task, values in serving(windows).items():
            np.testing.assert_array_equal(plain[task], np.asarray(values))
