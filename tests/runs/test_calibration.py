"""Calibration: fitted on the validation span alone, and folded into the very model that is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from float32_steps import assert_same_forecasts
from tiny_profiles import demo_data, table_with, tiny_profile

from v8.base.arrays import MAX_STEPS, float32_step
from v8.base.errors import ArtifactError
from v8.data.features import compute_table
from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource
from v8.data.span import Span
from v8.data.windows import SeriesData, prepare_series, table_columns
from v8.model.baselines.ranges import MEMBERS, fit_formulas
from v8.model.networks.networks import build_network
from v8.model.networks.published import forecast_windows
from v8.model.networks.serving import ServingGraph, ServingModel, build_serving
from v8.profile.columns import TASK_OHLC
from v8.profile.tasks import TASKS
from v8.runs.stages import calibrate

pytestmark = pytest.mark.tf


def opinionated_network(data: SeriesData) -> keras.Model:
    """A network that own_entries from its constant start, as a trained one does."""
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


@pytest.fixture
def data() -> SeriesData:
    return demo_data(tiny_profile(calibration="ensemble", newest_bars=1_000))


def test_the_test_span_is_not_read(data: SeriesData) -> None:
    first_test_row = data.split["test"][0]
    columns = {name: data.table.column(name).copy() for name in data.table.columns}
    for values in columns.values():
        values[first_test_row:] *= 1.1
    other = prepare_series(table_with(data.table, **columns), data.profile)
    factors = [calibrate(serving_model(one, opinionated_network(one)), one) for one in (data, other)]
    assert factors[0] == factors[1]


def test_without_calibration_the_model_has_no_such_layer_and_stays_as_it_is() -> None:
    data = demo_data(tiny_profile(calibration="none"))
    graph = ServingGraph(data.profile, data.scaling, opinionated_network(data))
    weights = [np.asarray(weight) for weight in graph.network.trainable_variables]
    model = ServingModel(graph, data.scaling, weights)
    windows = data.spans["test"].raw_windows()
    before = model.forecast_all(windows).points
    assert calibrate(model, data) is None
    assert not [layer.name for layer in graph.model.layers if layer.name.startswith("ensemble_")]
    for task, values in model.forecast_all(windows).points.items():
        np.testing.assert_array_equal(values, before[task])


def test_before_it_is_calibrated_a_model_says_what_its_network_says() -> None:
    served = []
    for kind in ("ensemble", "none"):
        data = demo_data(tiny_profile(calibration=kind))
        model = build_serving(data.profile, data.scaling, opinionated_network(data))[0]
        served.append(model(Span(data.table, data.profile, data.anchors["test"][:16]).raw_windows()))
    for task, values in served[0].items():
        np.testing.assert_array_equal(np.asarray(values), np.asarray(served[1][task]))


def test_a_calibrated_window_is_forecast_alone_as_among_many(data: SeriesData) -> None:
    model = serving_model(data, opinionated_network(data))
    calibrate(model, data)
    windows = data.spans["test"].raw_windows()
    together = model.forecast_all(windows).points
    for place in (0, 17, 63, len(windows) - 1):
        for task, values in model.forecast_all(windows[place : place + 1]).points.items():
            np.testing.assert_array_equal(values[0], together[task][place])


def test_the_next_series_does_not_inherit_an_ensemble(data: SeriesData) -> None:
    graph = ServingGraph(data.profile, data.scaling, opinionated_network(data))
    weights = [np.asarray(weight) for weight in graph.network.trainable_variables]
    model = ServingModel(graph, data.scaling, weights)
    windows = data.spans["test"].raw_windows()
    before = model.forecast_all(windows).points
    calibrate(model, data)
    assert any((values != before[task]).any() for task, values in model.forecast_all(windows).points.items())
    following = ServingModel(graph, data.scaling, weights)
    for task, values in following.forecast_all(windows).points.items():
        np.testing.assert_array_equal(values, before[task])


@pytest.mark.parametrize("scaling", ["anchored", "standard"])
@pytest.mark.parametrize("member", ["regression", "paths"])
def test_the_published_model_computes_the_formulas_of_an_ensemble(
    tmp_path: Path, scaling: str, member: str
) -> None:
    data = demo_data(tiny_profile("dense_newest", scaling=scaling, calibration="ensemble"))
    model = serving_model(data, opinionated_network(data))
    span = data.spans["test"]
    ensemble = fit_formulas(data.spans["train"])
    shares = np.zeros((len(MEMBERS), data.profile.horizon_bars))
    shares[MEMBERS.index(member)] = 1.0
    model.add_calibration(ensemble, dict.fromkeys(data.profile.tasks, shares), {})
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    outputs = forecast_windows(loaded, span.raw_windows())
    expected = ensemble.member_forecasts(span, {})[0][member]
    for name, values in expected.items():
        if name == TASK_OHLC and member == "regression":
            values[..., 1] = values[..., [0, 1, 3]].max(axis=-1)
            values[..., 2] = values[..., [0, 2, 3]].min(axis=-1)
        unit = span.last_close[:, None, None] if TASKS[name].is_price else np.abs(values)
        assert np.max(np.abs(outputs[name] - values) / unit) < 3e-5


def test_an_ensemble_is_folded_in_with_the_shares_that_are_told() -> None:
    data = demo_data(tiny_profile("dense_newest", calibration="ensemble"))
    model = serving_model(data, opinionated_network(data))
    before = model.forecast_all(data.spans["test"].raw_windows()).points
    shrinkage = calibrate(model, data)
    after = model.forecast_all(data.spans["test"].raw_windows()).points
    assert shrinkage is not None
    assert {one["anchor"] for one in shrinkage} == {"ensemble"}
    assert all(0.0 <= factor <= 0.5 for one in shrinkage for factor in one["factors"])
    assert any(not np.array_equal(after[task], before[task]) for task in before)
    ensemble = fit_formulas(data.spans["train"])
    span = data.spans["test"]
    (_, regressed, simulated) = ensemble.member_forecasts(span, {})[0].values()
    for task in before:
        # Between the lowest and the highest of the three, but for single precision.
        three = [before[task], regressed[task], simulated[task]]
        tolerance = MAX_STEPS * float32_step(TASKS[task].magnitude(span.last_close[:, None, None], three[0]))
        assert (after[task] >= np.min(three, axis=0) - tolerance).all()
        assert (after[task] <= np.max(three, axis=0) + tolerance).all()


@pytest.mark.parametrize("levels", [(), (0.1, 0.5, 0.9)])
def test_what_is_evaluated_is_what_the_published_model_says(levels: tuple[float, ...]) -> None:
    """Numpy walks the paths of a span; the graph that is published walks those of every window again."""
    data = demo_data(tiny_profile("dense_newest", calibration="ensemble", quantiles=levels))
    model = serving_model(data, opinionated_network(data))
    span = data.spans["test"]
    alone = model.forecast_span(span).points
    _ = calibrate(model, data)
    evaluated = model.forecast_span(span)
    published = model.forecast_all(span.raw_windows())
    assert (
        set(evaluated.quantiles) == set(published.quantiles) == (set(data.profile.tasks) if levels else set())
    )
    for ours, theirs in ((evaluated.points, published.points), (evaluated.quantiles, published.quantiles)):
        assert all(values.dtype == np.float32 for values in ours.values())
        assert_same_forecasts(ours, theirs, span.last_close)
    assert any((values != alone[task]).any() for task, values in evaluated.points.items())


@pytest.mark.parametrize("tick", [1e-4, 1e-5, 1e-6])
def test_a_stable_coin_has_a_model(tick: float) -> None:
    """Its volatility is about a tick, and a step of float32 at its price of 1 is 1e-7."""
    profile = tiny_profile("dense_newest", calibration="ensemble", quantiles=(0.1, 0.5, 0.9), newest_bars=900)
    random = np.random.default_rng(1)
    ticks = random.integers(-1, 2, (profile.newest_bars, 3)) * (random.random((profile.newest_bars, 3)) < 0.3)
    opened_and_closed = ticks[:, :2]
    highs = opened_and_closed.max(axis=1) + (ticks[:, 2] > 0)
    lows = opened_and_closed.min(axis=1) - (ticks[:, 2] < 0)
    prices = 1.0 + tick * np.stack([ticks[:, 0], highs, lows, ticks[:, 1]], axis=1)
    candles = replace(
        DemoSource().candles(Series("USDCUSDT", "15m"), profile.newest_bars),
        values=np.column_stack([prices, np.full(profile.newest_bars, 5.0)]),
    )
    data = prepare_series(compute_table(candles, table_columns(profile)), profile)
    model = serving_model(data, opinionated_network(data))
    span = data.spans["test"]
    calibrate(model, data)
    published = model.forecast_all(span.raw_windows()).points
    assert_same_forecasts(model.forecast_span(span).points, published, span.last_close)
    assert 0 < published["volatility"].max() < 10 * tick


def test_a_published_model_that_says_something_else_is_not_evaluated(data: SeriesData) -> None:
    network = opinionated_network(data)
    model = serving_model(data, network)
    calibrate(model, data)
    resampled = next(layer for layer in model.keras_model.layers if layer.name == "ensemble_paths")
    resampled.set_weights([3.0 * np.asarray(weight) for weight in resampled.weights])
    with pytest.raises(ArtifactError) as refused:
        model.forecast_span(data.spans["test"])
    assert refused.value.where.startswith(str(data.table.series))
    assert refused.value.got.startswith("ohlc that is")
