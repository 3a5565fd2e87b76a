"""Tasks: one arithmetic under NumPy and Keras, forecasts that can be true, floors, sizes, weights.

The twenty closes of a band's window are compared with plain recomputations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from float32_steps import assert_same_forecasts, assert_within_steps
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from keras import ops
from rolled import naive

from v8.base.errors import ProfileError
from v8.profile.tasks import TASKS, Closes, Task, future_weights, naive_closes, suffix_sums, window_moments

EVERY = list(TASKS.values())
LAST = np.array([100.0, 2.0, 5e-6])[:, None, None]
LEAST = 1e-6


def named(task: Task) -> str:
    return task.name


def values_of(task: Task) -> st.SearchStrategy[np.ndarray]:
    """Anything a network may say of two steps of three windows, price levels or not."""
    return arrays(
        np.float64, (3, 2, len(task.columns)), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
    )


def tensor(values: Any) -> Any:
    return ops.convert_to_tensor(np.asarray(values, np.float32))


def test_the_tasks_stand_in_the_order_of_the_reports() -> None:
    assert list(TASKS) == ["range", "ohlc", "bands", "volatility"]
    assert {name: task.columns for name, task in TASKS.items()} == {
        "ohlc": ("open", "high", "low", "close"),
        "bands": ("bb_upper", "bb_lower"),
        "volatility": ("volatility",),
        "range": ("bar_range", "total_range"),
    }
    with pytest.raises(ProfileError, match=r"task band: .*got 'band'.*bands"):
        TASKS.find("band")


@pytest.mark.parametrize("task", EVERY, ids=named)
def test_a_task_says_what_it_is_and_has_a_side_for_every_column(task: Task) -> None:
    assert TASKS[task.name] is task
    assert task.sentence.endswith(".")
    assert task.title
    assert task.source
    assert len(task.sides) == len(task.columns)


def test_a_share_of_the_last_close_has_the_task_s_unit() -> None:
    assert {task.name: task.size(200.0, 0.01) for task in EVERY} == {
        "ohlc": 2.0,
        "bands": 2.0,
        "volatility": 0.01,
        "range": 0.01,
    }
    assert {task.name: task.size(200.0) for task in EVERY} == {
        "ohlc": 200.0,
        "bands": 200.0,
        "volatility": 1.0,
        "range": 1.0,
    }
    assert {task.name for task in EVERY if task.is_price} == {"ohlc", "bands"}


def test_a_price_is_raised_to_a_share_of_its_level_and_a_unitless_number_to_the_floor() -> None:
    # 1 % of the naive forecast's first column; a lower band can fall to zero, and below.
    upper_lower = np.array([[[110.0, -5.0]]])
    assert TASKS["bands"].floored(np, upper_lower, np.array([[[120.0, 80.0]]]), 7.0).tolist() == [
        [[110, 1.2]]
    ]
    assert TASKS["ohlc"].floored(np, np.zeros((1, 1, 4)), np.full((1, 1, 4), 50.0), 7.0).tolist() == [
        [[0.5] * 4]
    ]
    volatility = np.array([[[0.0], [0.03]]])
    assert TASKS["volatility"].floored(np, volatility, volatility, 0.001).tolist() == [[[0.001], [0.03]]]


@pytest.mark.tf
@given(seed=st.integers(0, 1_000), horizon_bars=st.integers(1, 18), price=st.sampled_from([1e-5, 1.0, 6e4]))
@settings(max_examples=15, deadline=None)
def test_what_follows_if_nothing_moves_is_the_same_under_numpy_and_keras(
    seed: int, horizon_bars: int, price: float
) -> None:
    walk = np.cumsum(np.random.default_rng(seed).normal(0, 0.01, (4, 20)), axis=1)
    closes = (price * np.exp(walk)).astype(np.float32)
    by_numpy = naive(np, EVERY, closes.astype(np.float64), horizon_bars)
    by_keras = naive(ops, EVERY, ops.convert_to_tensor(closes), horizon_bars)
    assert list(by_numpy) == list(by_keras) == list(TASKS)
    for task, values in by_numpy.items():
        assert values.shape == (4, horizon_bars, len(TASKS[task].columns))
    assert_same_forecasts(by_keras, by_numpy, closes[:, -1], steps=8)


@pytest.mark.tf
@pytest.mark.parametrize("task", EVERY, ids=named)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_floors_and_coherence_are_the_same_under_numpy_and_keras(task: Task, data: st.DataObject) -> None:
    values = data.draw(values_of(task))
    reference = np.broadcast_to(LAST, values.shape)
    coherent = task.coherent(np, values, LAST, LEAST)
    by_keras = task.coherent(ops, tensor(values), tensor(LAST), LEAST)
    assert_within_steps(by_keras, coherent, magnitude=coherent, steps=2)
    floored = task.floored(np, values, reference, LEAST)
    by_keras = task.floored(ops, tensor(values), tensor(reference), LEAST)
    assert_within_steps(by_keras, floored, magnitude=floored, steps=2)
    size = task.size(LAST, 0.01)
    assert_within_steps(task.size(tensor(LAST), tensor(0.01)), size, magnitude=size, steps=2)


@pytest.mark.parametrize("task", EVERY, ids=named)
@given(data=st.data())
def test_what_is_coherent_is_left_as_it_is(task: Task, data: st.DataObject) -> None:
    once = task.coherent(np, data.draw(values_of(task)), LAST, LEAST)
    np.testing.assert_array_equal(task.coherent(np, once, LAST, LEAST), once)


@given(values=values_of(TASKS["ohlc"]))
def test_candles_have_their_low_below_and_their_high_above_and_keep_open_and_close(
    values: np.ndarray,
) -> None:
    coherent = TASKS["ohlc"].coherent(np, values, LAST, LEAST)
    opens, highs, lows, closes = np.moveaxis(coherent, -1, 0)
    assert (lows <= np.minimum(opens, closes)).all()
    assert (highs >= np.maximum(opens, closes)).all()
    assert (coherent >= 0.01 * LAST).all()
    assert (coherent > 0).all()
    raised = np.maximum(values, 0.01 * LAST)
    np.testing.assert_array_equal(coherent[..., [0, 3]], raised[..., [0, 3]])
    # The column named high that is too low gives way, not the candle.
    np.testing.assert_array_equal(highs, raised[..., [0, 1, 3]].max(axis=-1))
    np.testing.assert_array_equal(lows, raised[..., [0, 2, 3]].min(axis=-1))


@given(values=values_of(TASKS["bands"]))
def test_the_upper_band_is_the_larger_of_the_two(values: np.ndarray) -> None:
    coherent = TASKS["bands"].coherent(np, values, LAST, LEAST)
    np.testing.assert_array_equal(coherent[..., 0], values.max(axis=-1))
    np.testing.assert_array_equal(coherent[..., 1], values.min(axis=-1))


@given(values=values_of(TASKS["volatility"]))
def test_volatility_is_above_zero(values: np.ndarray) -> None:
    coherent = TASKS["volatility"].coherent(np, values, LAST, LEAST)
    assert (coherent >= LEAST).all()
    np.testing.assert_array_equal(coherent[values > LEAST], values[values > LEAST])


def medians(values: np.ndarray) -> Any:
    return np.median(values, axis=-1)


def test_the_median_of_paths_is_that_of_what_would_be_on_each() -> None:
    # Three paths of one step, in multiples of the last close.
    closes = Closes(
        unit=1.0,
        close=np.array([[[1.0, 1.1, 0.8]]]),
        middle=np.array([[[1.0, 1.2, 1.1]]]),
        deviation=np.array([[[0.3, 0.1, 0.2]]]),
        candles=np.log(np.array([1.0, 4.0, 0.5, 2.0])[:, None] * np.array([1.0, 0.5, 3.0]))[None, None],
    )
    # Uppers 1.6, 1.4 and 1.5; lowers 0.4, 1.0 and 0.7; volatilities 0.3, 0.0833 and 0.1818.
    bands = TASKS["bands"].on_paths(np, TASKS["bands"], closes, medians)
    assert bands.shape == (1, 1, 2)
    assert bands[0, 0].tolist() == pytest.approx([1.5, 0.7])
    volatility = TASKS["volatility"].on_paths(np, TASKS["volatility"], closes, medians)
    assert volatility[0, 0].tolist() == pytest.approx([0.2 / 1.1])
    candles = TASKS["ohlc"].on_paths(np, TASKS["ohlc"], closes, medians)
    assert candles.shape == (1, 1, 4)
    assert candles[0, 0].tolist() == pytest.approx([1.0, 4.0, 0.5, 2.0])


def test_the_median_of_an_even_number_of_candles_lies_half_way_in_logarithms() -> None:
    # Up and down alike: once doubled, once halved is where it was.
    candles = np.log(np.array([[[[2.0, 0.5]] * 4]]))
    closes = Closes(1.0, np.ones((1, 1, 2)), np.ones((1, 1, 2)), np.ones((1, 1, 2)), candles)
    median = TASKS["ohlc"].on_paths(np, TASKS["ohlc"], closes, medians)
    assert median[0, 0].tolist() == pytest.approx([1.0] * 4)


@given(seed=st.integers(0, 2**32 - 1), horizon=st.integers(1, 25))
def test_moments_along_paths_are_those_of_the_closes_on_them(seed: int, horizon: int) -> None:
    rng = np.random.default_rng(seed)
    known = rng.normal(0, 0.05, (2, 20))
    paths = np.cumsum(rng.normal(0, 0.05, (2, 3, horizon)), axis=2)
    both = window_moments(np, known, horizon, paths.swapaxes(1, 2))
    assert both[0].shape == both[1].shape == (2, horizon, 3)
    mean, deviation = (each.swapaxes(1, 2) for each in both)
    for window, path in np.ndindex(2, 3):
        closes = np.concatenate([known[window], paths[window, path]])
        windows = np.stack([closes[step : step + 20] for step in range(1, min(horizon, 20) + 1)])
        # Beyond twenty steps the path itself would leave the window, which no horizon does.
        np.testing.assert_allclose(mean[window, path, :20], windows.mean(axis=1), atol=1e-12)
        np.testing.assert_allclose(deviation[window, path, :20], windows.std(axis=1, ddof=1), atol=1e-9)


def test_candles_alone_need_no_window_of_twenty() -> None:
    closes = naive_closes(np, np.array([[3.0, 4.0]]), 2, has_window=False)
    assert (closes.unit.tolist(), closes.close.tolist()) == ([[4.0]], [[1.0, 1.0]])
    assert closes.middle is closes.deviation is closes.candles is None
    rolled = naive(np, [TASKS["ohlc"]], np.array([[3.0, 4.0]]), 2)
    assert {task: values.tolist() for task, values in rolled.items()} == {"ohlc": [[[4.0] * 4] * 2]}


@pytest.mark.tf
@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_what_is_left_when_the_oldest_have_gone_is_summed_in_either_namespace(num_steps: int) -> None:
    values = np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]], np.float32)
    left = [[6.0, 4.0, 0.0, 0.0, 0.0], [48.0, 32.0, 0.0, 0.0, 0.0]]
    expected = [row[:num_steps] for row in left]
    assert suffix_sums(np, values, num_steps).tolist() == expected
    assert np.asarray(suffix_sums(ops, ops.convert_to_tensor(values), num_steps)).tolist() == expected


@pytest.mark.parametrize("horizon_bars", [1, 10, 18])
def test_coming_bars_add_the_trace_of_their_covariances_to_a_window_s_variance(horizon_bars: int) -> None:
    centred = np.eye(20) - np.full((20, 20), 1 / 20)
    for step, weight in enumerate(future_weights(horizon_bars), start=1):
        covariance = np.zeros((20, 20))
        covariance[:step, :step] = np.minimum.outer(np.arange(1, step + 1), np.arange(1, step + 1))
        assert weight == pytest.approx(np.trace(centred @ covariance) / 19)
