"""Foundation models as baselines: what they are asked, what becomes of the answer, what is refused.

A stand-in has the interface of the packages' pipelines, because their weights and PyTorch are not here. The
classes themselves were tried with random weights (docs/en/how-to/foundation-models.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import foundation
import numpy as np
import pytest
from foundation import BATCH_WINDOWS, ChronosModel, TimesFmModel, contexts, forecast_span, medians_of
from made_series import MadeSeries

from v8.base.errors import ProfileError, SeriesError
from v8.base.registry import load_plugins
from v8.model.baselines.baselines import BASELINES, Baseline
from v8.model.evaluation.evaluation import evaluate_windows
from v8.profile.columns import OHLC, TASK_OHLC

PLUGIN = Path(foundation.__file__)


class LastValue:
    """Forecasts that the newest value stays, with the interface of a pipeline of `chronos`."""

    def __init__(self, *, is_list: bool = False) -> None:
        self.is_list = is_list
        self.sizes: list[int] = []

    def predict_quantiles(
        self, inputs: list[Any], prediction_length: int, quantile_levels: list[float]
    ) -> tuple[Any, Any]:
        assert quantile_levels == [0.5]
        self.sizes.append(len(inputs))
        newest = np.array([values[-1] for values in inputs])
        medians = np.repeat(newest[:, None, None], prediction_length, axis=1)
        return (list(medians[:, None]) if self.is_list else medians), None


class LastValueOfTimesFm:
    """The same, with the interface of `timesfm`."""

    def forecast(self, horizon: int, inputs: list[Any]) -> tuple[Any, Any]:
        newest = np.array([values[-1] for values in inputs])
        return np.repeat(newest[:, None], horizon, axis=1), None


@pytest.fixture
def series(make_market_span: Callable[..., MadeSeries]) -> MadeSeries:
    return make_market_span()


@pytest.fixture
def chronos() -> ChronosModel:
    return ChronosModel(LastValue(), np.asarray)


def test_a_model_that_keeps_the_last_values_gives_the_range_of_the_last_bar(
    series: MadeSeries, chronos: ChronosModel
) -> None:
    span = series.test
    forecasts = forecast_span(chronos, span, "chronos")
    opened, high, low, close = (forecasts[TASK_OHLC][:, :, OHLC.index(name)] for name in OHLC)
    np.testing.assert_allclose(close, np.repeat(span.last_close[:, None], 3, axis=1), rtol=1e-6)
    np.testing.assert_allclose(opened, close, rtol=1e-6)
    last = span.table.select(("high", "low"))[span.anchors].astype(np.float64)
    np.testing.assert_allclose(high / low, np.repeat((last[:, 0] / last[:, 1])[:, None], 3, 1), rtol=1e-6)
    np.testing.assert_allclose(high * low, close**2, rtol=1e-6)  # around open and close, which are equal
    upper, lower = np.moveaxis(forecasts["bands"], -1, 0)
    naive_upper, naive_lower = np.moveaxis(span.naive["bands"], -1, 0)
    assert (upper >= naive_upper).all()
    assert (lower <= naive_lower).all()
    assert forecasts["volatility"].shape == span.target_shape("volatility")
    assert (forecasts["volatility"] >= span.naive["volatility"]).all()


def test_it_is_evaluated_beside_the_other_baselines(series: MadeSeries, chronos: ChronosModel) -> None:
    fit = foundation.fit_foundation(lambda horizon_bars: chronos, "chronos")
    BASELINES.register(Baseline("chronos", "A stand-in of this test.", "this test", fit))
    try:
        evaluation, _, *_ = evaluate_windows(
            series.test, series.model, train=series.train, scaling=series.scaling
        )
    finally:
        BASELINES.pop("chronos")
    for task in ("ohlc", "bands", "volatility"):
        assert evaluation.relative_error(task, baseline="chronos") > 0


def test_the_shapes_of_both_pipelines_are_read_and_timesfm_answers_alike(series: MadeSeries) -> None:
    expected = forecast_span(ChronosModel(LastValue(), np.asarray), series.test, "chronos")
    for model in (ChronosModel(LastValue(is_list=True), np.asarray), TimesFmModel(LastValueOfTimesFm())):
        forecasts = forecast_span(model, series.test, "other")
        for task, values in expected.items():
            np.testing.assert_array_equal(forecasts[task], values)


def test_candles_are_coherent_whatever_a_model_says(series: MadeSeries) -> None:
    rng = np.random.default_rng(1)
    close = rng.normal(0.0, 0.02, (len(series.test), 3))
    forecasts = foundation.tasks_of(series.test, close, np.full_like(close, 0.001))
    opened, high, low, closed = np.moveaxis(forecasts[TASK_OHLC], -1, 0)
    assert (high >= np.maximum(opened, closed) * (1 - 1e-12)).all()
    assert (low <= np.minimum(opened, closed) * (1 + 1e-12)).all()


def test_every_batch_has_the_same_size() -> None:
    pipeline = LastValue()
    context = np.arange(70.0 * 4, dtype=np.float32).reshape(70, 4)
    medians = medians_of(ChronosModel(pipeline, np.asarray), context, 2)
    assert pipeline.sizes == [BATCH_WINDOWS, BATCH_WINDOWS]
    np.testing.assert_array_equal(medians, np.repeat(context[:, -1:], 2, axis=1))


def test_the_context_ends_at_the_last_known_bar_and_begins_after_a_gap(series: MadeSeries) -> None:
    span = series.test
    close, log_range = contexts(span, 512)
    assert close.shape == log_range.shape == (len(span), 512)
    assert (close[:, -1] == 0.0).all()
    first_anchor = int(span.anchors[0])
    assert np.isnan(close[0, : 512 - first_anchor - 1]).all()
    assert np.isfinite(close[0, 512 - first_anchor - 1 :]).all()
    prices = span.table.column("close").astype(np.float64)
    ratio = np.log(prices[first_anchor - 1] / prices[first_anchor])
    np.testing.assert_allclose(close[0, -2], ratio, rtol=1e-6)


def test_too_many_windows_and_wrong_numbers_are_refused(
    series: MadeSeries, chronos: ChronosModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_FOUNDATION_WINDOWS", "39")
    with pytest.raises(SeriesError, match=r"BTCUSDT-15m, baseline chronos: .*39.*got 40"):
        forecast_span(chronos, series.test, "chronos")
    monkeypatch.setenv("V8_FOUNDATION_WINDOWS", "many")
    with pytest.raises(ProfileError, match=r"V8_FOUNDATION_WINDOWS: .*got 'many'"):
        forecast_span(chronos, series.test, "chronos")
    monkeypatch.delenv("V8_FOUNDATION_WINDOWS")
    for value in (np.nan, np.inf, 30.0):
        lost = ChronosModel(LastValue(), lambda values, value=value: np.full_like(values, value))
        with pytest.raises(SeriesError, match=r"BTCUSDT-15m, baseline chronos: .*got others"):
            forecast_span(lost, series.test, "chronos")


@pytest.fixture
def _forgotten(unloaded: None) -> Iterator[None]:
    yield
    for name in ("chronos", "timesfm"):
        BASELINES.pop(name, None)


@pytest.mark.usefixtures("_forgotten")
def test_a_folder_makes_a_baseline_and_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProfileError, match="got neither"):
        load_plugins([PLUGIN])
    monkeypatch.setenv("V8_CHRONOS", str(tmp_path / "none"))
    with pytest.raises(ProfileError, match=r"V8_CHRONOS: .*names a local folder"):
        load_plugins([PLUGIN])
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("V8_CHRONOS", str(tmp_path))
    load_plugins([PLUGIN])
    assert "chronos" in BASELINES
    assert "timesfm" not in BASELINES
