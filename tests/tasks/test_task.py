"""Tasks: one arithmetic under NumPy and Keras, forecasts that can be true, floors, sizes, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from keras import ops

from v8.errors import ProfileError
from v8.profile import load_profile
from v8.tasks import TASKS
from v8.tasks.closes import Closes
from v8.tasks.task import Task, roll_forward

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
    assert list(TASKS) == ["ohlc", "bands", "volatility"]
    assert {name: task.columns for name, task in TASKS.items()} == {
        "ohlc": ("open", "high", "low", "close"),
        "bands": ("bb_upper", "bb_lower"),
        "volatility": ("volatility",),
    }
    with pytest.raises(ProfileError, match=r"a task is one of ohlc, bands, volatility; got 'band'.*bands"):
        TASKS.find("band")


@pytest.mark.parametrize("task", EVERY, ids=named)
def test_a_task_says_what_it_is_and_has_a_side_for_every_column(task: Task) -> None:
    assert TASKS[task.name] is task
    assert task.sentence.endswith(".")
    assert task.title
    assert task.source
    assert len(task.sides) == len(task.columns)


def test_a_range_moves_highs_and_lows_bands_and_volatility() -> None:
    moved = {task.name: task.is_moved.tolist() for task in EVERY}
    assert moved == {"ohlc": [0, 1, 1, 0], "bands": [1, 1], "volatility": [1]}
    # How many deviations of the twenty closes a column lies off their middle: candles follow the walk.
    deviations = {task.name: task.column_deviations.tolist() for task in EVERY}
    assert deviations == {"ohlc": [0, 0, 0, 0], "bands": [2, -2], "volatility": [1]}
    assert {task.name: task.has_window for task in EVERY} == {
        "ohlc": False,
        "bands": True,
        "volatility": True,
    }


def test_the_weights_of_the_aligned_profile_are_those_a_task_gives_itself() -> None:
    weights = {name: settings.weight for name, settings in load_profile("aligned").tasks.items()}
    assert weights == {task.name: task.default_weight for task in EVERY}
    assert weights == {"ohlc": 1.0, "bands": 0.8, "volatility": 0.3}


def test_a_share_of_the_last_close_has_the_task_s_unit() -> None:
    assert {task.name: task.size(200.0, 0.01) for task in EVERY} == {
        "ohlc": 2.0,
        "bands": 2.0,
        "volatility": 0.01,
    }
    assert {task.name: task.size(200.0) for task in EVERY} == {
        "ohlc": 200.0,
        "bands": 200.0,
        "volatility": 1.0,
    }
    assert {task.name: task.is_price for task in EVERY} == {"ohlc": True, "bands": True, "volatility": False}


def test_a_price_is_raised_to_a_share_of_its_level_and_a_unitless_number_to_the_floor() -> None:
    # 1 % of roll-forward's first column; a lower band can fall to zero, and below.
    upper_lower = np.array([[[110.0, -5.0]]])
    assert TASKS["bands"].floored(np, upper_lower, np.array([[[120.0, 80.0]]]), 7.0).tolist() == [
        [[110, 1.2]]
    ]
    assert TASKS["ohlc"].floored(np, np.zeros((1, 1, 4)), np.full((1, 1, 4), 50.0), 7.0).tolist() == [
        [[0.5] * 4]
    ]
    volatility = np.array([[[0.0], [0.03]]])
    assert TASKS["volatility"].floored(np, volatility, volatility, 0.001).tolist() == [[[0.001], [0.03]]]


@given(seed=st.integers(0, 1_000), horizon_bars=st.integers(1, 18), price=st.sampled_from([1e-5, 1.0, 6e4]))
@settings(max_examples=15, deadline=None)
def test_what_follows_if_nothing_moves_is_the_same_under_numpy_and_keras(
    seed: int, horizon_bars: int, price: float
) -> None:
    walk = np.cumsum(np.random.default_rng(seed).normal(0, 0.01, (4, 20)), axis=1)
    closes = (price * np.exp(walk)).astype(np.float32)
    by_numpy = roll_forward(np, EVERY, closes.astype(np.float64), horizon_bars)
    by_keras = roll_forward(ops, EVERY, ops.convert_to_tensor(closes), horizon_bars)
    assert list(by_numpy) == list(by_keras) == list(TASKS)
    for task, values in by_numpy.items():
        assert tuple(by_keras[task].shape) == values.shape == (4, horizon_bars, len(TASKS[task].columns))
        rtol = 1e-3 if task == "volatility" else 2e-6  # what is left of single precision
        np.testing.assert_allclose(np.asarray(by_keras[task]), values, rtol=rtol)


@pytest.mark.parametrize("task", EVERY, ids=named)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_floors_and_coherence_are_the_same_under_numpy_and_keras(task: Task, data: st.DataObject) -> None:
    values = data.draw(values_of(task))
    reference = np.broadcast_to(LAST, values.shape)
    coherent = task.coherent(np, values, LAST, LEAST)
    np.testing.assert_allclose(
        np.asarray(task.coherent(ops, tensor(values), tensor(LAST), LEAST)), coherent, rtol=1e-6
    )
    floored = task.floored(np, values, reference, LEAST)
    np.testing.assert_allclose(
        np.asarray(task.floored(ops, tensor(values), tensor(reference), LEAST)), floored, rtol=1e-6
    )
    np.testing.assert_allclose(
        np.asarray(task.size(tensor(LAST), tensor(0.01))), task.size(LAST, 0.01), rtol=1e-6
    )


@pytest.mark.parametrize("task", EVERY, ids=named)
@given(data=st.data())
def test_what_is_coherent_is_left_as_it_is(task: Task, data: st.DataObject) -> None:
    once = task.coherent(np, data.draw(values_of(task)), LAST, LEAST)
    np.testing.assert_array_equal(task.coherent(np, once, LAST, LEAST), once)


@given(values=values_of(TASKS["ohlc"]))
def test_candles_have_their_low_below_and_their_high_above_and_keep_open_and_close(
    values: np.ndarray,
) -> None:
    made = TASKS["ohlc"].coherent(np, values, LAST, LEAST)
    opens, highs, lows, closes = np.moveaxis(made, -1, 0)
    assert (lows <= np.minimum(opens, closes)).all()
    assert (highs >= np.maximum(opens, closes)).all()
    assert (made >= 0.01 * LAST).all()
    assert (made > 0).all()
    raised = np.maximum(values, 0.01 * LAST)
    np.testing.assert_array_equal(made[..., [0, 3]], raised[..., [0, 3]])
    # The column named high that is too low gives way, not the candle.
    np.testing.assert_array_equal(highs, raised[..., [0, 1, 3]].max(axis=-1))
    np.testing.assert_array_equal(lows, raised[..., [0, 2, 3]].min(axis=-1))


@given(values=values_of(TASKS["bands"]))
def test_the_upper_band_is_the_larger_of_the_two(values: np.ndarray) -> None:
    made = TASKS["bands"].coherent(np, values, LAST, LEAST)
    np.testing.assert_array_equal(made[..., 0], values.max(axis=-1))
    np.testing.assert_array_equal(made[..., 1], values.min(axis=-1))


@given(values=values_of(TASKS["volatility"]))
def test_volatility_is_above_zero(values: np.ndarray) -> None:
    made = TASKS["volatility"].coherent(np, values, LAST, LEAST)
    assert (made >= LEAST).all()
    np.testing.assert_array_equal(made[values > LEAST], values[values > LEAST])


def medians(values: np.ndarray) -> Any:
    return np.median(values, axis=1)


def test_the_median_of_paths_is_that_of_what_would_be_on_each() -> None:
    # Three paths of one step, in multiples of the last close.
    closes = Closes(
        unit=1.0,
        close=np.array([[[1.0], [1.1], [0.8]]]),
        middle=np.array([[[1.0], [1.2], [1.1]]]),
        deviation=np.array([[[0.3], [0.1], [0.2]]]),
        candles=np.log(np.array([1.0, 4.0, 0.5, 2.0]) * np.array([1.0, 0.5, 3.0])[:, None])[None, :, None],
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
    candles = np.log(np.array([[[[2.0] * 4]], [[[0.5] * 4]]])).reshape(1, 2, 1, 4)
    closes = Closes(1.0, np.ones((1, 2, 1)), np.ones((1, 2, 1)), np.ones((1, 2, 1)), candles)
    median = TASKS["ohlc"].on_paths(np, TASKS["ohlc"], closes, medians)
    assert median[0, 0].tolist() == pytest.approx([1.0] * 4)
