"""Baselines: against rolling windows of pandas over known closes and repeated last closes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from evaluating import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.model.baselines.baselines import BASELINES, NAIVE

UNITLESS = ("volatility", "range")
EVERY = [
    pytest.param(name, marks=pytest.mark.skipif(not one.is_installed(), reason=f"{name} is not installed"))
    for name, one in BASELINES.items()
]
"""All baselines; one of a package that is not installed is skipped."""


def _rolled_by_pandas(closes: np.ndarray, horizon_bars: int) -> dict[str, np.ndarray]:
    """Append the last close `horizon_bars` times and let pandas roll: slow, and written independently."""
    bands = []
    volatility = []
    for window in closes:
        path = pd.Series(np.concatenate([window, np.full(horizon_bars, window[-1])]))
        mean = path.rolling(20).mean().to_numpy()[-horizon_bars:]
        std = path.rolling(20).std().to_numpy()[-horizon_bars:]
        bands.append(np.stack([mean + 2 * std, mean - 2 * std], axis=1))
        volatility.append((std / mean)[:, None])
    return {"bands": np.array(bands), "volatility": np.array(volatility)}


@given(seed=st.integers(0, 10_000), horizon_bars=st.integers(1, 18), price=st.sampled_from([1e-5, 1.0, 6e4]))
@settings(max_examples=25, deadline=None)
def test_naive_is_what_pandas_rolls_over_repeated_last_closes(
    make_span, seed: int, horizon_bars: int, price: float
) -> None:
    series = make_span(num_windows=3, horizon_bars=horizon_bars, seed=seed, price=price)
    forecast = series.forecast("naive")
    expected = _rolled_by_pandas(series.test.history_close, horizon_bars)
    np.testing.assert_allclose(forecast["bands"], expected["bands"], rtol=1e-9)
    np.testing.assert_allclose(forecast["volatility"], expected["volatility"], rtol=1e-7)
    last = series.test.history_close[:, -1]
    assert forecast["ohlc"].shape == (3, horizon_bars, 4)
    assert (forecast["ohlc"] == last[:, None, None]).all()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_last_close_keeps_bands_and_volatility_at_the_value_pandas_gives_the_anchor(
    make_span, seed: int
) -> None:
    series = make_span(num_windows=3, horizon_bars=4, seed=seed)
    forecast = series.forecast("last_close")
    mean, std = (pd.DataFrame(series.test.history_close.T).agg(how).to_numpy() for how in ("mean", "std"))
    for step in range(4):
        np.testing.assert_allclose(forecast["bands"][:, step, 0], mean + 2 * std, rtol=1e-12)
        np.testing.assert_allclose(forecast["bands"][:, step, 1], mean - 2 * std, rtol=1e-12)
        np.testing.assert_allclose(forecast["volatility"][:, step, 0], std / mean, rtol=1e-12)
    np.testing.assert_array_equal(forecast["ohlc"], series.forecast(NAIVE)["ohlc"])


def test_last_close_has_the_bands_worked_out_by_hand(make_span) -> None:
    # Ten closes of 99 and ten of 101: mean 100, squared deviations 20 x 1, sample variance 20 / 19.
    closes = np.tile([99.0] * 10 + [101.0] * 10, (7, 1))
    span = make_span().told(history_close=closes).forecast("last_close")
    std = (20 / 19) ** 0.5  # 1.02598
    np.testing.assert_allclose(span["bands"][0, 0], [100 + 2 * std, 100 - 2 * std], rtol=1e-14)
    assert span["volatility"][0, 0, 0] == pytest.approx(0.01025978352085154, rel=1e-12)


def test_offset_is_naive_times_one_constant_per_step_and_column(make_span, offset_scaling) -> None:
    series = make_span(tasks=("ohlc",), horizon_bars=2)
    # log 1.01 on the high of step 2 and nothing elsewhere: that cell alone is 1 % above the last close.
    shift = np.zeros((2, 4))
    shift[1, 1] = np.log(1.01)
    forecast = replace(series, scaling=offset_scaling({"ohlc": shift})).forecast("offset")["ohlc"]
    expected = np.repeat(series.test.history_close[:, -1:], 8, axis=1).reshape(-1, 2, 4)
    expected[:, 1, 1] *= 1.01
    np.testing.assert_allclose(forecast, expected, rtol=1e-14)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("window", [0, 7, 39])
def test_a_baseline_knows_nothing_of_later_bars(make_market_span, name: str, window: int) -> None:
    """Change every bar after a window's last known one: the forecast stays bit-identical."""
    series = make_market_span()
    first = series.test.anchors[window] + 1

    def tripled(column: str, values: np.ndarray) -> np.ndarray:
        values[first:] *= 3.0
        return values

    other = series.recut(tripled)
    for task, values in series.forecast(name).items():
        np.testing.assert_array_equal(values[window], other.forecast(name)[task][window])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("tasks", [("ohlc",), ("ohlc", "volatility"), ("ohlc", "bands")])
def test_a_baseline_forecasts_the_tasks_of_the_span_only_and_names_its_source(
    make_market_span, name: str, tasks: tuple[str, ...]
) -> None:
    span = make_market_span(tasks=tasks).forecast(name)
    assert set(span) == set(tasks)
    for task, values in span.items():
        # Of a task's own train windows only: the others change nothing.
        np.testing.assert_array_equal(values, make_market_span().forecast(name)[task])
    assert BASELINES[name].name == name
    assert BASELINES[name].sentence.endswith(".")
    assert BASELINES[name].source


@pytest.mark.parametrize("name", EVERY)
def test_a_baseline_of_float32_closes_computes_in_float64(make_market_span, name: str) -> None:
    narrow = make_market_span(dtype=np.float32)
    assert narrow.test.table.column("close").dtype == np.float32
    assert {values.dtype for values in narrow.forecast(name).values()} == {np.dtype(np.float64)}


@pytest.mark.parametrize("name", EVERY)
def test_prices_a_thousand_times_higher_give_forecasts_a_thousand_times_higher(
    make_market_span, name: str
) -> None:
    series = make_market_span()
    dearer = series.recut(lambda column, values: values * _dearer(column))
    for task, values in series.forecast(name).items():
        np.testing.assert_allclose(dearer.forecast(name)[task], values * _dearer(task), rtol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_a_market_that_stands_still_is_expected_to_stand_still(
    make_market_span, offset_scaling, name: str
) -> None:
    series = make_market_span()
    offsets = {task: np.zeros(values.shape[1:]) for task, values in series.model.items()}
    still = series.recut(lambda column, values: np.full_like(values, 0.0 if column in UNITLESS else 50.0))
    for task, values in replace(still, scaling=offset_scaling(offsets)).forecast(name).items():
        np.testing.assert_array_equal(values, 0.0 if task in UNITLESS else 50.0)


def test_every_baseline_that_is_installed_is_evaluated_in_the_order_of_the_reports(make_market_span) -> None:
    installed = [name for name, one in BASELINES.items() if one.is_installed()]
    series = make_market_span()
    assert list(evaluate(series, series.model).errors["ohlc"]) == ["model", *installed]
    assert installed[:7] == ["last_close", "naive", "offset", "drift", "scaled", "ewma", "har"]
    assert installed[7] == "range_paths"


def test_drift_goes_on_as_the_train_span_went(make_market_span) -> None:
    series = make_market_span()
    closes = series.train.history_close[:, -1]
    drift = np.mean(np.log(series.train.actual["ohlc"][:, 0, 3] / closes))
    forecast = series.forecast("drift")
    path = series.test.history_close[:, -1:] * np.exp(drift * np.array([1, 2, 3]))
    np.testing.assert_allclose(forecast["ohlc"], np.repeat(path[:, :, None], 4, axis=2), rtol=1e-12)
    rolled = pd.Series(np.concatenate([series.test.history_close[5], path[5]])).rolling(20)
    mean = rolled.mean().to_numpy()[-3:]
    std = rolled.std().to_numpy()[-3:]
    np.testing.assert_allclose(forecast["bands"][5], np.stack([mean + 2 * std, mean - 2 * std], axis=1))
    np.testing.assert_allclose(forecast["volatility"][5, :, 0], std / mean)


@pytest.mark.parametrize("name", EVERY[4:])
def test_what_knows_the_range_errs_less_than_naive_on_a_random_walk(make_market_span, name: str) -> None:
    series = make_market_span(num_train=3_000, num_windows=1_500, horizon_bars=10, seed=3)
    naive = series.forecast(NAIVE)
    forecast = series.forecast(name)
    actual = series.test.actual
    # Real coins give 0.97, 0.88 and 0.86 (median of 40 series).
    for task, limit in (("ohlc", 0.99), ("bands", 0.9), ("volatility", 0.88)):
        error, of_naive = (np.abs(each[task] - actual[task]).mean() for each in (forecast, naive))
        assert error < limit * of_naive


def _dearer(name: str) -> float:
    return 1.0 if name in UNITLESS else 1000.0
