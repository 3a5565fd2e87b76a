"""Calibration: fitted on the validation span alone, and folded into the very model that is published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from v8.artifacts.forecaster import forecast_windows
from v8.data.dataset import SeriesData, prepare_series
from v8.data.range_regression import fit_regression, regress
from v8.data.shrinkage import fit_shrinkage
from v8.data.targets import roll_forward
from v8.data.windows import FleetWindows
from v8.engine.calibration import calibrate
from v8.models.networks import build_network
from v8.models.serving import build_serving, load_scaling
from v8.profile import Profile


def opinionated_network(data: SeriesData) -> keras.Model:
    """A network that strays from its constant start, as a trained one does."""
    start = {task.task: task.start for task in data.scaling.tasks}
    network = build_network(data.profile, seed=3, start=start)
    rng = np.random.default_rng(3)
    for task in data.profile.tasks:
        kernel = network.get_layer(f"head_{task}").kernel
        kernel.assign(rng.normal(0, 0.3, kernel.shape))
    return network


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
    shrinkage = calibrate(build_serving(data.profile, data.scaling, network), data)
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
    model = build_serving(data.profile, data.scaling, network)
    shrinkage = calibrate(model, data)
    assert shrinkage is not None
    model.save(tmp_path / "model.keras")
    anchors = data.anchors["test"]
    published = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    served = forecast_windows(published, data.raw_windows(anchors))
    shrunk = shrinkage.shrink(scaled_forecasts(data, network, "test"), data.scaling)
    reference = roll_forward(data.history_close(anchors), 3)
    volatility = data.scaling.restore_target("volatility", shrunk["volatility"], reference["volatility"])
    np.testing.assert_allclose(served["volatility"], volatility, rtol=5e-3, atol=1e-7)
    opens = data.scaling.restore_target("ohlc", shrunk["ohlc"], reference["ohlc"])[..., 0]
    np.testing.assert_allclose(served["ohlc"][..., 0], opens, rtol=2e-4)
    bands = np.sort(data.scaling.restore_target("bands", shrunk["bands"], reference["bands"]), axis=-1)
    np.testing.assert_allclose(served["bands"], bands[..., ::-1], rtol=2e-4)


def test_validation_errors_never_grow(data: SeriesData) -> None:
    network = opinionated_network(data)
    anchors = data.anchors["validation"]
    scaled = scaled_forecasts(data, network, "validation")
    shrinkage = calibrate(build_serving(data.profile, data.scaling, network), data)
    assert shrinkage is not None
    shrunk = shrinkage.shrink(scaled, data.scaling)
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
    factors = [
        calibrate(build_serving(one.profile, one.scaling, opinionated_network(one)), one)
        for one in (data, other)
    ]
    assert factors[0] == factors[1]


def test_an_untrained_network_is_left_the_constant_it_is(data: SeriesData) -> None:
    start = {task.task: task.start for task in data.scaling.tasks}
    network = build_network(data.profile, seed=1, start=start)
    model = build_serving(data.profile, data.scaling, network)
    windows = data.raw_windows(data.anchors["test"])
    before = forecast_windows(model, windows)
    shrinkage = calibrate(model, data)
    assert {factor for one in shrinkage.tasks for factor in one.factors} == {0.0}
    for task, values in forecast_windows(model, windows).items():
        np.testing.assert_allclose(values, before[task], rtol=1e-6)


def test_without_calibration_the_model_has_no_such_layer_and_stays_as_it_is(
    make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    data = make_data(make_profile(calibration="none"))
    model = build_serving(data.profile, data.scaling, opinionated_network(data))
    assert calibrate(model, data) is None
    assert not [layer.name for layer in model.layers if layer.name.startswith("shrink_")]


def test_before_it_is_calibrated_a_model_says_what_its_network_says(
    make_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]
) -> None:
    served = []
    for kind in ("shrink", "none"):
        data = make_data(make_profile(calibration=kind))
        model = build_serving(data.profile, data.scaling, opinionated_network(data))
        served.append(model(data.raw_windows(data.anchors["test"][:16])))
    for task, values in served[0].items():
        np.testing.assert_array_equal(np.asarray(values), np.asarray(served[1][task]))


@pytest.fixture
def blended(make_blended_profile: Callable[..., Profile], make_data: Callable[..., SeriesData]) -> SeriesData:
    return make_data(make_blended_profile())


def test_a_blended_model_s_file_says_what_the_regression_and_the_network_say_by_their_shares(
    blended: SeriesData, tmp_path: Path
) -> None:
    network = opinionated_network(blended)
    model = build_serving(blended.profile, blended.scaling, network)
    shrinkage = calibrate(model, blended)
    assert shrinkage is not None
    for one in shrinkage.tasks:
        assert one.anchor == "regression"
        assert all(0.25 <= factor <= 0.75 for factor in one.factors)
    model.save(tmp_path / "model.keras")
    published = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    anchors = blended.anchors["test"]
    served = forecast_windows(published, blended.raw_windows(anchors))
    rivals = regress(blended, anchors, fit_regression(blended))
    mixed = shrinkage.shrink(scaled_forecasts(blended, network, "test"), blended.scaling, rivals)
    reference = roll_forward(blended.history_close(anchors), 3)
    range_W = blended.scaling.floored_range(blended.table.column("recent_range")[anchors].astype(np.float64))
    volatility = blended.scaling.restore_target(
        "volatility", mixed["volatility"], reference["volatility"], range_W
    )
    least = 1e-3 * blended.scaling.volatility_floor
    np.testing.assert_allclose(served["volatility"], np.maximum(volatility, least), rtol=1e-3, atol=1e-7)
    unit_W = range_W * blended.history_close(anchors)[:, -1]
    bands = blended.scaling.restore_target("bands", mixed["bands"], reference["bands"], unit_W)
    np.testing.assert_allclose(served["bands"], np.sort(bands, axis=-1)[..., ::-1], rtol=1e-5)
    candles = blended.scaling.restore_target("ohlc", mixed["ohlc"], reference["ohlc"], unit_W)
    np.testing.assert_allclose(served["ohlc"][..., [0, 3]], candles[..., [0, 3]], rtol=1e-5)
    np.testing.assert_allclose(served["ohlc"][..., 1], candles[..., [0, 1, 3]].max(axis=-1), rtol=1e-5)


def test_before_it_is_calibrated_a_blended_model_says_what_its_network_says(blended: SeriesData) -> None:
    plain = blended.profile.model_copy(update={"calibration": "none"})
    windows = blended.raw_windows(blended.anchors["test"][:16])
    one, other = (
        build_serving(profile, blended.scaling, opinionated_network(blended))(windows)
        for profile in (blended.profile, plain)
    )
    for task, values in one.items():
        np.testing.assert_array_equal(np.asarray(values), np.asarray(other[task]))


def test_a_blended_window_is_forecast_alone_as_among_many(blended: SeriesData) -> None:
    model = build_serving(blended.profile, blended.scaling, opinionated_network(blended))
    calibrate(model, blended)
    windows = blended.raw_windows(blended.anchors["test"])
    together = forecast_windows(model, windows)
    for place in (0, 17, 63, len(windows) - 1):
        for task, values in forecast_windows(model, windows[place : place + 1]).items():
            np.testing.assert_array_equal(values[0], together[task][place])


def test_the_next_series_does_not_inherit_a_blend(blended: SeriesData) -> None:
    model = build_serving(blended.profile, blended.scaling, opinionated_network(blended))
    windows = blended.raw_windows(blended.anchors["test"])
    before = forecast_windows(model, windows)
    calibrate(model, blended)
    assert any((values != before[task]).any() for task, values in forecast_windows(model, windows).items())
    load_scaling(model, blended.scaling)
    for task, values in forecast_windows(model, windows).items():
        np.testing.assert_array_equal(values, before[task])
