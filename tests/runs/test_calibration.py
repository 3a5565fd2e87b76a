"""Calibration: fitted on the validation span alone, and folded into the very model that is published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from scaled_units import restore_targets, shrink

from v8.columns import TASK_OHLC
from v8.formulas.range_ensemble import MEMBERS, fit_ensemble
from v8.formulas.range_regression import fit_regression, regress
from v8.formulas.shrinkage import fit_shrinkage
from v8.networks.forecasting import forecast_windows
from v8.networks.networks import build_network
from v8.networks.serving import ServingGraph, ServingModel, build_serving
from v8.profile import Profile
from v8.runs.calibration import calibrate
from v8.tasks import TASKS
from v8.windows.batches import FleetWindows
from v8.windows.dataset import SeriesData, prepare_series
from v8.windows.span import Span


def opinionated_network(data: SeriesData) -> keras.Model:
    """A network that strays from its constant start, as a trained one does."""
    start = {task.task: task.start for task in data.scaling.tasks}
    network = build_network(data.profile, seed=3, start=start)
    rng = np.random.default_rng(3)
    for task in data.profile.tasks:
        kernel = network.get_layer(f"head_{task}").kernel
        kernel.assign(rng.normal(0, 0.3, kernel.shape))
    return network


def serving_model(data: SeriesData, network: keras.Model) -> ServingModel:
    """The published model of a network."""
    weights = [np.asarray(weight) for weight in network.trainable_variables]
    return ServingModel(ServingGraph(data.profile, data.scaling, network), data.scaling, weights)


def scaled_forecasts(data: SeriesData, network: keras.Model, span: str) -> dict[str, np.ndarray]:
    """What the network itself says, in scaled units."""
    num_windows = data.num_windows(span)
    (batch,) = FleetWindows([data]).span_batches(span, num_windows)
    return {task: np.asarray(values) for task, values in network(batch.x_BMTF[:, 0]).items()}


@pytest.fixture
def data(make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]) -> SeriesData:
    return make_data(make_profile())


def test_factors_are_fitted_to_what_the_network_says_of_the_validation_span(data: SeriesData) -> None:
    network = opinionated_network(data)
    shrinkage = calibrate(serving_model(data, network), data)
    truth = {task: values[data.anchors["validation"]] for task, values in data.targets_NHC.items()}
    scaled = scaled_forecasts(data, network, "validation")
    expected = fit_shrinkage(data.profile, data.scaling, truth, scaled)
    assert shrinkage is not None
    for one, other in zip(shrinkage.tasks, expected.tasks, strict=True):
        assert one.task == other.task
        # Prices are coherent (high at least the close, upper band above lower), which moves ratios where a
        # network is as wild as this one; volatility has nothing to agree with.
        assert one.factors == pytest.approx(other.factors, abs=1e-3 if one.task == "volatility" else 0.1)
    kept = [factor for one in shrinkage.tasks for factor in one.factors]
    assert any(0 < factor < 1 for factor in kept)  # neither left alone nor silenced


def test_the_saved_model_is_start_plus_factor_times_the_network_s_way_from_it(
    data: SeriesData, tmp_path: Path
) -> None:
    network = opinionated_network(data)
    model = serving_model(data, network)
    shrinkage = calibrate(model, data)
    assert shrinkage is not None
    model.save(tmp_path / "model.keras")
    span = data.spans["test"]
    published = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    served = forecast_windows(published, span.raw_windows())
    shrunk = shrink(shrinkage, scaled_forecasts(data, network, "test"), data.scaling)
    restored = restore_targets(data.scaling, span, shrunk)
    np.testing.assert_allclose(served["volatility"], restored["volatility"], rtol=5e-3, atol=1e-7)
    np.testing.assert_allclose(served["ohlc"][..., 0], restored["ohlc"][..., 0], rtol=2e-4)
    bands = np.sort(restored["bands"], axis=-1)
    np.testing.assert_allclose(served["bands"], bands[..., ::-1], rtol=2e-4)


def test_validation_errors_never_grow(data: SeriesData) -> None:
    network = opinionated_network(data)
    anchors = data.anchors["validation"]
    scaled = scaled_forecasts(data, network, "validation")
    shrinkage = calibrate(serving_model(data, network), data)
    assert shrinkage is not None
    shrunk = shrink(shrinkage, scaled, data.scaling)
    for task, truth in data.targets_NHC.items():
        start = np.array(data.scaling.task(task).start)
        errors = [np.abs(values - truth[anchors]).mean() for values in (shrunk[task], scaled[task], start)]
        assert errors[0] <= min(errors) * 1.001


def test_the_test_span_is_not_read(
    data: SeriesData, make_profile: Callable[..., Profile], change_table: Callable[..., Any]
) -> None:
    first_test_row = data.split.test[0]
    columns = {name: data.table.column(name).copy() for name in data.table.columns}
    for values in columns.values():
        values[first_test_row:] *= 1.1
    other = prepare_series(change_table(data.table, **columns), data.profile)
    factors = [calibrate(serving_model(one, opinionated_network(one)), one) for one in (data, other)]
    assert factors[0] == factors[1]


def test_an_untrained_network_is_left_the_constant_it_is(data: SeriesData) -> None:
    start = {task.task: task.start for task in data.scaling.tasks}
    network = build_network(data.profile, seed=1, start=start)
    model = serving_model(data, network)
    windows = data.spans["test"].raw_windows()
    before = model.forecast(windows)
    shrinkage = calibrate(model, data)
    assert {factor for one in shrinkage.tasks for factor in one.factors} == {0.0}
    for task, values in model.forecast(windows).items():
        np.testing.assert_allclose(values, before[task], rtol=1e-6)


def test_without_calibration_the_model_has_no_such_layer_and_stays_as_it_is(
    make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_profile(calibration="none"))
    graph = ServingGraph(data.profile, data.scaling, opinionated_network(data))
    weights = [np.asarray(weight) for weight in graph.network.trainable_variables]
    model, windows = ServingModel(graph, data.scaling, weights), data.spans["test"].raw_windows()
    before = model.forecast(windows)
    assert calibrate(model, data) is None
    assert not [layer.name for layer in graph.model.layers if layer.name.startswith("shrink_")]
    for task, values in model.forecast(windows).items():
        np.testing.assert_array_equal(values, before[task])


def test_before_it_is_calibrated_a_model_says_what_its_network_says(
    make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    served = []
    for kind in ("shrink", "none"):
        data = make_data(make_profile(calibration=kind))
        model = build_serving(data.profile, data.scaling, opinionated_network(data))
        served.append(model(Span(data.table, data.profile, data.anchors["test"][:16]).raw_windows()))
    for task, values in served[0].items():
        np.testing.assert_array_equal(np.asarray(values), np.asarray(served[1][task]))


@pytest.fixture
def blended(make_blended_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]) -> SeriesData:
    return make_data(make_blended_profile())


def test_a_blended_model_s_file_says_what_the_regression_and_the_network_say_by_their_shares(
    blended: SeriesData, tmp_path: Path
) -> None:
    network = opinionated_network(blended)
    model = serving_model(blended, network)
    shrinkage = calibrate(model, blended)
    assert shrinkage is not None
    for one in shrinkage.tasks:
        assert one.anchor == "regression"
        assert all(0.25 <= factor <= 0.75 for factor in one.factors)
    model.save(tmp_path / "model.keras")
    published = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    span = blended.spans["test"]
    served = forecast_windows(published, span.raw_windows())
    rivals = regress(span, fit_regression(blended))
    mixed = shrink(shrinkage, scaled_forecasts(blended, network, "test"), blended.scaling, rivals)
    restored = restore_targets(blended.scaling, span, mixed)
    least = 1e-3 * blended.scaling.volatility_floor
    np.testing.assert_allclose(
        served["volatility"], np.maximum(restored["volatility"], least), rtol=1e-3, atol=1e-7
    )
    np.testing.assert_allclose(served["bands"], np.sort(restored["bands"], axis=-1)[..., ::-1], rtol=1e-5)
    candles = restored["ohlc"]
    np.testing.assert_allclose(served["ohlc"][..., [0, 3]], candles[..., [0, 3]], rtol=1e-5)
    np.testing.assert_allclose(served["ohlc"][..., 1], candles[..., [0, 1, 3]].max(axis=-1), rtol=1e-5)


def test_before_it_is_calibrated_a_blended_model_says_what_its_network_says(blended: SeriesData) -> None:
    plain = blended.profile.model_copy(update={"calibration": "none"})
    windows = Span(blended.table, blended.profile, blended.anchors["test"][:16]).raw_windows()
    one, other = (
        build_serving(profile, blended.scaling, opinionated_network(blended))(windows)
        for profile in (blended.profile, plain)
    )
    for task, values in one.items():
        np.testing.assert_array_equal(np.asarray(values), np.asarray(other[task]))


def test_a_blended_window_is_forecast_alone_as_among_many(blended: SeriesData) -> None:
    model = serving_model(blended, opinionated_network(blended))
    calibrate(model, blended)
    windows = blended.spans["test"].raw_windows()
    together = model.forecast(windows)
    for place in (0, 17, 63, len(windows) - 1):
        for task, values in model.forecast(windows[place : place + 1]).items():
            np.testing.assert_array_equal(values[0], together[task][place])


def test_the_next_series_does_not_inherit_a_blend(blended: SeriesData) -> None:
    graph = ServingGraph(blended.profile, blended.scaling, opinionated_network(blended))
    weights = [np.asarray(weight) for weight in graph.network.trainable_variables]
    model = ServingModel(graph, blended.scaling, weights)
    windows = blended.spans["test"].raw_windows()
    before = model.forecast(windows)
    calibrate(model, blended)
    assert any((values != before[task]).any() for task, values in model.forecast(windows).items())
    following = ServingModel(graph, blended.scaling, weights)
    for task, values in following.forecast(windows).items():
        np.testing.assert_array_equal(values, before[task])


@pytest.mark.parametrize("scaling", ["anchored", "standard"])
@pytest.mark.parametrize("member", ["regression", "paths"])
def test_the_published_model_computes_the_formulas_of_an_ensemble(
    make_profile: Callable[..., Profile],
    make_data: Callable[..., SeriesData],
    tmp_path: Path,
    scaling: str,
    member: str,
) -> None:
    data = make_data(make_profile("dense_newest", scaling=scaling, calibration="ensemble"))
    model, span = serving_model(data, opinionated_network(data)), data.spans["test"]
    ensemble = fit_ensemble(data.spans["train"])
    shares = np.zeros((len(MEMBERS), data.profile.horizon_bars))
    shares[MEMBERS.index(member)] = 1.0
    model.fold_ensemble(ensemble, dict.fromkeys(data.profile.tasks, shares))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    made = forecast_windows(loaded, span.raw_windows())
    expected = ensemble.regress(span) if member == "regression" else ensemble.walk(span)
    for name, values in expected.items():
        if name == TASK_OHLC and member == "regression":
            values[..., 1] = values[..., [0, 1, 3]].max(axis=-1)
            values[..., 2] = values[..., [0, 2, 3]].min(axis=-1)
        unit = span.last_close[:, None, None] if TASKS[name].is_price else np.abs(values)
        assert np.max(np.abs(made[name] - values) / unit) < 3e-5


def test_an_ensemble_is_folded_in_with_the_shares_that_are_told(
    make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_profile("dense_newest", calibration="ensemble"))
    model = serving_model(data, opinionated_network(data))
    before = model.forecast(data.spans["test"].raw_windows())
    shrinkage = calibrate(model, data)
    after = model.forecast(data.spans["test"].raw_windows())
    assert shrinkage is not None
    assert {one.anchor for one in shrinkage.tasks} == {"ensemble"}
    assert all(0.0 <= factor <= 0.5 for one in shrinkage.tasks for factor in one.factors)
    assert any(not np.array_equal(after[task], before[task]) for task in before)
    ensemble, span = fit_ensemble(data.spans["train"]), data.spans["test"]
    regressed, walked = ensemble.regress(span), ensemble.walk(span)
    for task in before:
        # Between the lowest and the highest of the three, but for single precision.
        three = [before[task], regressed[task], walked[task]]
        tolerance = 1e-4 * np.abs(three[0])
        assert (after[task] >= np.min(three, axis=0) - tolerance).all()
        assert (after[task] <= np.max(three, axis=0) + tolerance).all()
