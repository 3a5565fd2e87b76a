"""Baselines: against rolling windows of pandas over known closes and repeated last closes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from v8.errors import SeriesError
from v8.evaluation.baselines import BASELINES, NAIVE, forecast_baseline, usable_baselines
from v8.evaluation.past import Bars, Known, Past

EVERY = [
    pytest.param(name, marks=pytest.mark.skipif(not one.is_installed(), reason=f"{name} is not installed"))
    for name, one in BASELINES.items()
]
"""All baselines; one of a package that is not installed is skipped."""


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


@pytest.mark.parametrize("name", EVERY)
def test_a_baseline_reads_neither_truth_nor_model(make_market_span, name: str) -> None:
    span = make_market_span()
    other = replace(
        span,
        truth={task: values * 2 for task, values in span.truth.items()},
        model={task: values * 3 for task, values in span.model.items()},
    )
    for task, values in forecast_baseline(name, span).items():
        np.testing.assert_array_equal(values, forecast_baseline(name, other)[task])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("window", [0, 7, 39])
def test_a_baseline_knows_nothing_of_later_bars(make_market_span, name: str, window: int) -> None:
    """Change every bar after a window's last known one: the forecast stays bit-identical."""
    span = make_market_span()
    past = span.past
    changed = past.train.bars.ohlc.copy()
    changed[past.rows[window] + 1 :] *= 3.0
    bars = Bars(changed, past.train.bars.segment)
    known = Known(past.train.history_close, 3, past.train.rows, bars)
    other = replace(span, past=Past(known, past.train_truth, past.rows))
    for task, values in forecast_baseline(name, span).items():
        np.testing.assert_array_equal(values[window], forecast_baseline(name, other)[task][window])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("tasks", [("ohlc",), ("ohlc", "volatility"), ("ohlc", "bands")])
def test_a_baseline_forecasts_the_tasks_of_the_span_only_and_names_its_source(
    make_market_span, name: str, tasks: tuple[str, ...]
) -> None:
    span = make_market_span(tasks=tasks)
    made = forecast_baseline(name, span)
    assert set(made) == set(tasks)
    for task, values in made.items():
        # Of a task's own train windows only: the others change nothing.
        np.testing.assert_array_equal(values, forecast_baseline(name, make_market_span())[task])
    assert BASELINES[name].sentence.endswith(".")
    assert BASELINES[name].source


@pytest.mark.parametrize("name", EVERY)
def test_a_baseline_of_float32_closes_computes_in_float64(make_market_span, name: str) -> None:
    span = make_market_span()
    narrow = replace(span, history_close=span.history_close.astype(np.float32))
    assert {values.dtype for values in forecast_baseline(name, narrow).values()} == {np.dtype(np.float64)}


@pytest.mark.parametrize("name", EVERY)
def test_prices_a_thousand_times_higher_give_forecasts_a_thousand_times_higher(
    make_market_span, name: str
) -> None:
    span = make_market_span()
    past = span.past
    bars = Bars(past.train.bars.ohlc * 1000, past.train.bars.segment)
    dearer = replace(
        span,
        history_close=span.history_close * 1000,
        past=Past(
            Known(past.train.history_close * 1000, 3, past.train.rows, bars),
            {task: values * _dearer(task) for task, values in past.train_truth.items()},
            past.rows,
        ),
    )
    for task, values in forecast_baseline(name, span).items():
        np.testing.assert_allclose(forecast_baseline(name, dearer)[task], values * _dearer(task), rtol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_a_market_that_stands_still_is_expected_to_stand_still(make_market_span, name: str) -> None:
    span = make_market_span()
    past = span.past
    bars = Bars(np.full_like(past.train.bars.ohlc, 50.0), past.train.bars.segment)
    closes = np.full_like(past.train.history_close, 50.0)
    still = replace(
        span,
        history_close=np.full_like(span.history_close, 50.0),
        offsets={task: np.zeros_like(values) for task, values in span.offsets.items()},
        past=Past(Known(closes, 3, past.train.rows, bars), _still(past.train_truth), past.rows),
    )
    for task, values in forecast_baseline(name, still).items():
        np.testing.assert_array_equal(values, 0.0 if task == "volatility" else 50.0)


def test_without_a_past_only_baselines_of_closes_are_left_and_the_others_say_why(make_span) -> None:
    assert usable_baselines(make_span()) == ["last_close", "roll_forward", "offset"]
    with pytest.raises(SeriesError, match=r"baseline har: is fitted to the train span; got a span without a"):
        forecast_baseline("har", make_span())


def test_with_a_past_every_baseline_that_is_installed_is_usable(make_market_span) -> None:
    installed = [name for name, one in BASELINES.items() if one.is_installed()]
    assert usable_baselines(make_market_span()) == installed
    assert installed[:7] == ["last_close", "roll_forward", "offset", "drift", "scaled", "ewma", "har"]
    assert installed[7] == "range_paths"


def test_drift_goes_on_as_the_train_span_went(make_market_span) -> None:
    span = make_market_span()
    closes = span.past.train.history_close[:, -1]
    drift = np.mean(np.log(span.past.train_truth["ohlc"][:, 0, 3] / closes))
    made = forecast_baseline("drift", span)
    path = span.history_close[:, -1:] * np.exp(drift * np.array([1, 2, 3]))
    np.testing.assert_allclose(made["ohlc"], np.repeat(path[:, :, None], 4, axis=2), rtol=1e-12)
    rolled = pd.Series(np.concatenate([span.history_close[5], path[5]])).rolling(20)
    mean, std = rolled.mean().to_numpy()[-3:], rolled.std().to_numpy()[-3:]
    np.testing.assert_allclose(made["bands"][5], np.stack([mean + 2 * std, mean - 2 * std], axis=1))
    np.testing.assert_allclose(made["volatility"][5, :, 0], std / mean)


@pytest.mark.parametrize("name", EVERY[4:])
def test_what_knows_the_range_errs_less_than_naive_on_a_random_walk(make_market_span, name: str) -> None:
    span = make_market_span(num_train=3_000, num_windows=1_500, horizon_bars=10, seed=3)
    naive, made = forecast_baseline(NAIVE, span), forecast_baseline(name, span)
    # Real coins give 0.97, 0.88 and 0.86 (median of 40 series).
    for task, limit in (("ohlc", 0.99), ("bands", 0.9), ("volatility", 0.88)):
        error, of_naive = (np.abs(each[task] - span.truth[task]).mean() for each in (made, naive))
        assert error < limit * of_naive


def _dearer(task: str) -> float:
    return 1.0 if task == "volatility" else 1000.0


def _still(truth: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        task: np.full_like(values, 0.0 if task == "volatility" else 50.0) for task, values in truth.items()
    }
