"""The task of ranges: values worked out by hand, coherence, paths and baselines."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tiny_profiles import tiny_profile

from v8.base.errors import ProfileError
from v8.data.windows import table_columns
from v8.model.baselines.paths import path_closes
from v8.profile.tasks import RANGE_TASK

TASK_NAMES = ("ohlc", "range")


def test_actual_ranges_are_those_worked_out_by_hand() -> None:
    # Bars from 100 to 110, from 105 to 108 inside it, and from 90 to 104 below.
    inputs = np.array([[[110.0, 100.0], [108.0, 105.0], [104.0, 90.0]]])
    bar, total = np.moveaxis(RANGE_TASK.realised(inputs), -1, 0)
    np.testing.assert_allclose(bar, np.log([[110 / 100, 108 / 105, 104 / 90]]), rtol=1e-14)
    np.testing.assert_allclose(total, np.log([[110 / 100, 110 / 100, 110 / 90]]), rtol=1e-14)


def test_naive_repeats_the_mean_range_of_twenty_bars_and_widens_with_the_root_of_their_number(
    make_market_span,
) -> None:
    span = make_market_span(tasks=TASK_NAMES, horizon_bars=4).test
    high, low = (span.table.column(name).astype(np.float64) for name in ("high", "low"))
    logs = np.log(high / low)
    expected = np.array([logs[anchor - 19 : anchor + 1].mean() for anchor in span.anchors])
    np.testing.assert_allclose(span.naive["range"][:, 2, 0], expected, rtol=1e-9)
    np.testing.assert_allclose(span.naive["range"][:, 3, 1], 2 * expected, rtol=1e-9)


def test_actual_ranges_of_a_span_are_those_of_its_candles(make_market_span) -> None:
    span = make_market_span(tasks=TASK_NAMES, horizon_bars=4).test
    ohlc = span.actual["ohlc"]
    highest = ohlc[:, :3, 1].max(axis=1)
    lowest = ohlc[:, :3, 2].min(axis=1)
    np.testing.assert_allclose(span.actual["range"][:, 2, 1], np.log(highest / lowest), rtol=1e-12)
    np.testing.assert_allclose(
        span.actual["range"][:, :, 0], np.log(ohlc[:, :, 1] / ohlc[:, :, 2]), rtol=1e-12
    )


def test_coherent_ranges_are_positive_and_the_total_holds_every_bar_so_far() -> None:
    values = np.random.default_rng(0).normal(size=(50, 6, 2))
    coherent = RANGE_TASK.coherent(np, values, None, 0.01)
    bar, total = np.moveaxis(coherent, -1, 0)
    assert coherent.min() == 0.01
    assert (total >= np.maximum.accumulate(bar, axis=1)).all()
    assert (np.diff(total, axis=1) >= 0).all()
    np.testing.assert_array_equal(RANGE_TASK.coherent(np, coherent, None, 0.01), coherent)


@pytest.mark.tf
def test_coherent_ranges_of_keras_are_those_of_numpy() -> None:
    from keras import ops

    for shape in ((5, 4, 2), (5, 4, 3, 2)):
        values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        coherent = ops.convert_to_numpy(RANGE_TASK.coherent(ops, values, None, np.float32(0.1)))
        np.testing.assert_array_equal(coherent, RANGE_TASK.coherent(np, values, None, np.float32(0.1)))


def test_ranges_on_a_path_are_those_of_its_candles() -> None:
    moved = np.sort(np.random.default_rng(3).normal(0, 0.01, (1, 5, 4, 1)), axis=2)[:, :, [1, 3, 0, 2]]
    paths = path_closes(np, np.full((1, 20), 50.0), moved)
    bar, total = RANGE_TASK.on_paths(np, RANGE_TASK, paths, partial(np.mean, axis=-1))[0].T
    high = paths.candles[0, :, 1, 0]
    low = paths.candles[0, :, 2, 0]
    np.testing.assert_allclose(bar, high - low, rtol=1e-14)
    np.testing.assert_allclose(total[-1], high.max() - low.min(), rtol=1e-14)


def test_a_profile_with_ranges_needs_twenty_bars_and_no_column_of_its_own() -> None:
    tasks = {name: {"weight": 1.0, "loss": "mae"} for name in TASK_NAMES}
    profile = tiny_profile(tasks=tasks)
    with pytest.raises(ProfileError) as raised:
        profile.but(lookback_bars=19)
    assert "lookback_bars must be at least 20 with range" in str(raised.value)
    assert not {"bar_range", "total_range"} & set(table_columns(profile))


@pytest.mark.parametrize("name", ["offset", "scaled", "har", "range_paths"])
def test_baselines_of_ranges_err_less_than_naive_on_a_random_walk(make_market_span, name: str) -> None:
    series = make_market_span(num_train=2_000, num_windows=1_000, horizon_bars=5, seed=3, tasks=TASK_NAMES)
    actual = series.test.actual["range"]
    error, of_naive = (np.abs(series.forecast(each)["range"] - actual).mean() for each in (name, "naive"))
    assert error < of_naive
