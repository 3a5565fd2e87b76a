"""Windows that holes leave are counted as the split does, without computing a feature."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from v8.base.errors import DataError
from v8.data.features import MANY_HOLES, compute_table
from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.data.windows import SPANS, count_kept, prepare_series, table_columns
from v8.profile.profile import load_profile

START_S = 1_704_067_200


def holed(num_bars: int, every: int) -> Candles:
    """Minutes of a random walk, of which one bar in so many is missing."""
    rng = np.random.default_rng(3)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 1e-3, num_bars)))
    opened = np.append(100.0, close[:-1])
    rows = {
        "open_time": START_S + 60 * np.arange(num_bars),
        "open": opened,
        "high": np.maximum(opened, close) * 1.0005,
        "low": np.minimum(opened, close) * 0.9995,
        "close": close,
        "volume": rng.exponential(5, num_bars),
    }
    frame = pd.DataFrame(rows)
    return check_candles(frame[np.arange(num_bars) % every != 0], Series("BTCUSDT", "1m"), source="files")


@pytest.mark.parametrize("name", ["frontier", "v3"])
def test_windows_are_counted_as_the_split_does(name: str) -> None:
    profile = load_profile(name)
    candles = holed(3_300, every=300)
    counts = count_kept(candles.segment, profile)
    data = prepare_series(compute_table(candles, table_columns(profile)), profile)
    assert counts is not None
    assert counts.kept == {span: data.num_windows(span) for span in SPANS}
    described = data.describe_split(len(candles))
    assert counts.without_holes == {span: described[span]["num_windows_without_holes"] for span in SPANS}


def test_minutes_with_a_hole_every_300_leave_a_warm_up_of_240_few_windows_and_one_of_19_most() -> None:
    segment = holed(3_300, every=300).segment
    frontier = count_kept(segment, load_profile("frontier"))
    short = count_kept(segment, load_profile("v3"))
    assert frontier is not None
    assert short is not None
    # Each of eleven runs of 299 bars has 59 rows after its warm-up, and 59 - 29 = 30 windows of 30 bars: 330
    # in all, of which each of the two embargoes of 30 rows takes 30.
    assert frontier.kept == {"train": 209, "validation": 30, "test": 31}
    assert frontier.are_few
    assert not short.are_few


def test_a_hole_a_day_leaves_no_window_behind_a_long_warm_up_and_none_without_holes_is_no_loss() -> None:
    counts = count_kept(holed(2_526, every=96).segment, load_profile("frontier"))
    assert counts is not None
    assert sum(counts.kept.values()) == 0
    assert count_kept(np.zeros(300, np.int32), load_profile("frontier")) is None


def test_where_holes_return_no_longer_history_is_advised() -> None:
    frontier = table_columns(load_profile("frontier"))
    with pytest.raises(DataError) as caught:
        compute_table(holed(2_526, every=96), frontier)
    assert "param:bars" not in caught.value.fix
    assert "26 holes" in caught.value.fix
    with pytest.raises(DataError) as caught:
        compute_table(holed(96 * (MANY_HOLES - 1), every=96), frontier)
    assert "param:bars" in caught.value.fix
    profile = load_profile("range_paths")
    table = compute_table(holed(3_300, every=300), table_columns(profile))
    with pytest.raises(DataError) as caught:
        prepare_series(table, profile)
    assert "param:bars" not in caught.value.fix
