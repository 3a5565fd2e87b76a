"""Quantiles of a published model: they never cross, are coherent, and are read by plain Keras."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from float32_steps import assert_same_forecasts, assert_within_steps
from hypothesis import given, settings
from hypothesis import strategies as st
from keras_3_10 import unknown_keys
from tiny_profiles import demo_data, tiny_profile, tiny_ranged_profile

from v8.base.arrays import MAX_STEPS
from v8.data.windows import SeriesData
from v8.forecaster.model_file import check_keras_file
from v8.model.baselines.ranges import fit_formulas
from v8.model.networks.networks import build_network
from v8.model.networks.published import forecast_windows, split_outputs
from v8.model.networks.serving import ServingGraph, ServingModel, build_serving
from v8.profile.tasks import TASKS
from v8.runs.stages import calibrate

pytestmark = pytest.mark.tf

LEVELS = (0.1, 0.25, 0.5, 0.9)


@pytest.fixture(scope="module")
def data() -> SeriesData:
    return demo_data(tiny_ranged_profile(quantiles=LEVELS))


@pytest.fixture(scope="module")
def graph(data: SeriesData) -> ServingGraph:
    return ServingGraph(data.profile, data.scaling, build_network(data.profile, seed=1))


def started(data: SeriesData) -> keras.Model:
    start = {task.task: task.start for task in data.scaling.tasks}
    return build_network(data.profile, seed=1, start=start)


def require_coherent(points: dict[str, np.ndarray], quantiles: dict[str, np.ndarray]) -> None:
    """Check everything that is promised of quantiles, (N, H, Q, C)."""
    for task, values in quantiles.items():
        assert (np.diff(values, axis=2) >= 0).all()
        np.testing.assert_array_equal(values[:, :, LEVELS.index(0.5)], points[task])
    opens, highs, lows, closes = np.moveaxis(quantiles["ohlc"], -1, 0)
    assert (lows <= np.minimum(opens, closes)).all()
    assert (highs >= np.maximum(opens, closes)).all()
    assert (lows > 0).all()
    assert (quantiles["bands"][..., 1] <= quantiles["bands"][..., 0]).all()
    assert (quantiles["volatility"] > 0).all()


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([0.1, 1.0, 30.0]))
def test_quantiles_never_cross_and_are_coherent_for_any_weights(
    data: SeriesData, graph: ServingGraph, seed: int, size: float
) -> None:
    rng = np.random.default_rng(seed)
    weights = [rng.normal(0, size, weight.shape) for weight in graph.network.trainable_variables]
    model = ServingModel(graph, data.scaling, weights)
    forecasts = model.forecast_all(data.spans["test"].raw_windows()[:64])
    require_coherent(forecasts.points, forecasts.quantiles)


def test_quantiles_leave_the_point_forecast_where_it_is(data: SeriesData) -> None:
    plain = demo_data(tiny_ranged_profile())
    network = started(plain)
    other = started(data)
    for weight in network.weights:
        weight.assign(next(one for one in other.weights if one.path == weight.path))
    windows = plain.spans["test"].raw_windows()[:64]
    points = []
    for one, of in ((plain, network), (data, other)):
        weights = [np.asarray(weight) for weight in of.trainable_variables]
        model = ServingModel(
            ServingGraph(one.profile, one.scaling, build_network(one.profile, seed=0)), one.scaling, weights
        )
        calibrate(model, one)
        points.append(model.forecast_all(windows).points)
    for task, values in points[0].items():
        np.testing.assert_array_equal(values, points[1][task])


@pytest.mark.parametrize("family", ["bilstm_seq2seq", "lstm_dense", "transformer", "gru_attention"])
def test_every_family_is_published_with_quantiles_that_its_network_does_not_know(family: str) -> None:
    tasks = {task: {"weight": 1.0, "loss": "mse"} for task in ("ohlc", "bands", "volatility")}
    data = demo_data(tiny_profile(family, quantiles=LEVELS, tasks=tasks))
    network = build_network(data.profile, seed=1)
    model, alone = build_serving(data.profile, data.scaling, network)
    shapes = {name: tuple(output.shape[1:]) for name, output in model.output.items()}
    assert set(network.output) == set(alone.output) == set(tasks)
    assert shapes["ohlc_quantiles"] == (3, 4, 4)
    assert shapes["volatility_quantiles"] == (3, 4, 1)


@pytest.mark.nightly
def test_beside_an_uncalibrated_network_paths_say_the_quantiles_alone(data: SeriesData) -> None:
    network = started(data)
    weights = [np.asarray(weight) for weight in network.trainable_variables]
    model = ServingModel(ServingGraph(data.profile, data.scaling, network), data.scaling, weights)
    span = data.spans["test"]
    before = model.forecast_all(data.spans["test"].raw_windows()).points
    assert calibrate(model, data) is None
    evaluated = model.forecast_span(span)
    published = model.forecast_all(span.raw_windows())
    assert_same_forecasts(evaluated.quantiles, published.quantiles, span.last_close)
    for task, points in before.items():
        np.testing.assert_array_equal(evaluated.points[task], points)
        np.testing.assert_array_equal(published.points[task], points)
        widths = np.ptp(evaluated.quantiles[task], axis=2)
        assert (widths[:, -1] > 0).all() and np.ptp(widths[:, -1]) > 0


def test_an_ensemble_has_the_quantiles_of_its_paths(tmp_path: Path) -> None:
    data = demo_data(tiny_profile("dense_newest", calibration="ensemble", quantiles=LEVELS))
    graph = ServingGraph(data.profile, data.scaling, started(data))
    weights = [np.asarray(weight) for weight in graph.network.trainable_variables]
    model = ServingModel(graph, data.scaling, weights)
    windows = data.spans["test"].raw_windows()
    calibrate(model, data)
    factors = {
        task: np.full((3, 3, len(TASKS[task].columns)), [[1.5], [1.0], [0.5]]) for task in data.profile.tasks
    }
    model.add_calibration(fit_formulas(data.spans["train"]), model._shares, factors)
    model.save(tmp_path / "model.keras")
    check_keras_file(tmp_path / "model.keras")
    assert unknown_keys(tmp_path / "model.keras") == []
    read = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    outputs = split_outputs(forecast_windows(read, windows))
    require_coherent(outputs.points, outputs.quantiles)
    distances = fit_formulas(data.spans["train"]).member_forecasts(data.spans["test"], {})[1]["bands"]
    off = outputs.quantiles["bands"] - outputs.points["bands"][:, :, None]
    np.testing.assert_array_equal(off[:, :, LEVELS.index(0.5)], 0.0)
    expected = distances * np.array([1.5, 1.0, 0.5])[:, None]
    distances_made = np.delete(off, LEVELS.index(0.5), axis=2)
    assert_within_steps(distances_made, expected, magnitude=outputs.points["bands"].max(), steps=MAX_STEPS)


def test_a_calibrated_ensemble_holds_its_shares_of_the_validation_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("v8.model.baselines.ranges.HALF_TRUST_WINDOWS", 0)
    data = demo_data(tiny_profile("dense_newest", calibration="ensemble", quantiles=LEVELS))
    graph = ServingGraph(data.profile, data.scaling, started(data))
    span = data.spans["validation"]
    weights = [np.asarray(weight) for weight in graph.network.trainable_variables]
    model = ServingModel(graph, data.scaling, weights)
    calibrate(model, data)
    forecasts = model.forecast_all(span.raw_windows())
    for task, level in (("bands", 0.1), ("volatility", 0.9)):
        below = span.actual[task] <= forecasts.quantiles[task][:, :, LEVELS.index(level)]
        # The cautious end, which the rounding of single precision moves by a window.
        rank = np.ceil((len(span) + 1) * 0.9)
        held = below if level > 0.5 else ~below
        assert (np.abs(held.sum(axis=0) - rank) <= 1).all()
