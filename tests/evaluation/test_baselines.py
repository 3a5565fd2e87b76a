"""Baselines: against rolling windows of pandas over known closes and repeated last closes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.evaluation.baselines import BASELINES, NAIVE, forecast_baseline


def _rolled_by_pandas(closes: np.ndarray, horizon_bars: int) -> dict[str, np.ndarray]:
    """Append the last close `horizon_bars` times and let pandas roll: slow, and written independently."""
    bands, volatility = [], []
    for window in closes:
        path = pd.Series(np.concatenate([window, np.full(horizon_bars, window[-1])]))
        mean = path.rolling(20).mean().to_numpy()[-horizon_bars:]
        std = path.rolling(20).std().to_numpy()[-horizon_bars:]
        bands.append(np.stack([mean + 2 * std, mean - 2 * std], axis=1))
        volatility.append((std / mean)[:, None])
    return {"bands": np.array(bands), "volatility": np.array(volatility)}


@given(seed=st.integers(0, 10_000), horizon_bars=st.integers(1, 18), price=st.sampled_from([1e-5, 1.0, 6e4]))
@settings(max_examples=25, deadline=None)
def test_roll_forward_is_what_pandas_rolls_over_repeated_last_closes(
    make_span, seed: int, horizon_bars: int, price: float
) -> None:
    span = make_span(num_windows=3, horizon_bars=horizon_bars, seed=seed, price=price)
    made = forecast_baseline("roll_forward", span)
    expected = _rolled_by_pandas(span.history_close, horizon_bars)
    np.testing.assert_allclose(made["bands"], expected["bands"], rtol=1e-9)
    np.testing.assert_allclose(made["volatility"], expected["volatility"], rtol=1e-7)
    last = span.history_close[:, -1]
    assert made["ohlc"].shape == (3, horizon_bars, 4)
    assert (made["ohlc"] == last[:, None, None]).all()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_last_close_keeps_bands_and_volatility_at_the_value_pandas_gives_the_anchor(
    make_span, seed: int
) -> None:
    span = make_span(num_windows=3, horizon_bars=4, seed=seed)
    made = forecast_baseline("last_close", span)
    mean, std = (pd.DataFrame(span.history_close.T).agg(how).to_numpy() for how in ("mean", "std"))
    for step in range(4):
        np.testing.assert_allclose(made["bands"][:, step, 0], mean + 2 * std, rtol=1e-12)
        np.testing.assert_allclose(made["bands"][:, step, 1], mean - 2 * std, rtol=1e-12)
        np.testing.assert_allclose(made["volatility"][:, step, 0], std / mean, rtol=1e-12)
    np.testing.assert_array_equal(made["ohlc"], forecast_baseline(NAIVE, span)["ohlc"])


def test_last_close_has_the_bands_worked_out_by_hand(make_span) -> None:
    # Ten closes of 99 and ten of 101: mean 100, squared deviations 20 x 1, sample variance 20 / 19.
    closes = np.tile([99.0] * 10 + [101.0] * 10, (7, 1))
    made = forecast_baseline("last_close", replace(make_span(), history_close=closes))
    std = (20 / 19) ** 0.5  # 1.02598
    np.testing.assert_allclose(made["bands"][0, 0], [100 + 2 * std, 100 - 2 * std], rtol=1e-14)
    assert made["volatility"][0, 0, 0] == pytest.approx(0.01025978352085154, rel=1e-12)


def test_offset_is_roll_forward_times_one_constant_per_step_and_column(make_span) -> None:
    span = make_span(tasks=("ohlc",), horizon_bars=2)
    # log 1.01 on the high of step 2 and nothing elsewhere: that cell alone is 1 % above the last close.
    shift = np.zeros((2, 4))
    shift[1, 1] = np.log(1.01)
    made = forecast_baseline("offset", replace(span, offsets={"ohlc": shift}))["ohlc"]
    expected = np.repeat(span.history_close[:, -1:], 8, axis=1).reshape(-1, 2, 4)
    expected[:, 1, 1] *= 1.01
    np.testing.assert_allclose(made, expected, rtol=1e-14)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_reads_neither_truth_nor_model(make_span, name: str) -> None:
    span = make_span()
    other = replace(
        span,
        truth={task: values * 2 for task, values in span.truth.items()},
        model={task: values * 3 for task, values in span.model.items()},
    )
    for task, values in forecast_baseline(name, span).items():
        np.testing.assert_array_equal(values, forecast_baseline(name, other)[task])


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_forecasts_the_tasks_of_the_span_only_and_names_its_source(make_span, name: str) -> None:
    assert set(forecast_baseline(name, make_span(tasks=("ohlc",)))) == {"ohlc"}
    assert BASELINES[name].sentence.endswith(".")
    assert BASELINES[name].source


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_of_float32_closes_computes_in_float64(make_span, name: str) -> None:
    span = make_span()
    narrow = replace(span, history_close=span.history_close.astype(np.float32))
    assert {values.dtype for values in forecast_baseline(name, narrow).values()} == {np.dtype(np.float64)}
