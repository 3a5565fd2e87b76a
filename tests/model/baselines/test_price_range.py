"""Ranges of prices: how often all bars ahead stayed within them is counted, window by window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from v8.model.baselines.paths import (
    PriceRange,
    RangeCoverage,
    evaluated_windows,
    measure_range,
    pooled,
    range_json,
    range_of,
)
from v8.profile.columns import HIGH, LOW, OHLC, TASK_OHLC

LEVELS = (0.05, 0.5, 0.95)


def test_a_range_is_made_of_the_lowest_low_and_the_highest_high_of_each_path() -> None:
    # 101 paths of two bars; their lowest lows are 0, 1, ..., 100, their highest highs 200, 201, ..., 300.
    paths_PHC = np.full((101, 2, 4), 150.0)
    number = np.arange(101)
    paths_PHC[:, 0, OHLC.index(LOW)] = number
    paths_PHC[:, 1, OHLC.index(HIGH)] = 200 + number
    ahead = range_of(paths_PHC)
    assert (ahead.low, ahead.high) == pytest.approx((5.0, 295.0))
    assert range_json(PriceRange(5.0, 295.0)) == {"range": {"share": 0.9, "low": 5.0, "high": 295.0}}
    assert range_json(None) == {}


def test_a_window_is_inside_only_if_none_of_its_bars_leaves_the_range(make_span: Callable[..., Any]) -> None:
    span = make_span().spans["test"]
    actual = span.actual[TASK_OHLC]
    num_windows, num_steps, _ = actual.shape
    # Each path stands at the last close; its quantiles are what the actual bars were, and a bit more.
    last_close = span.last_close[:, None, None, None]
    distance = np.array([-1.0, 0.0, 1.0])[:, None] * 1.01 * np.abs(actual - last_close[..., 0]).max()
    quantiles = np.broadcast_to(last_close + distance, (num_windows, num_steps, 3, 4)).copy()
    path_bars = np.broadcast_to(np.linspace(-0.01, 0.01, 512), (num_windows, num_steps, 4, 512))
    wide = measure_range(span, LEVELS, quantiles, path_bars)
    assert wide == RangeCoverage(num_windows, num_windows)
    narrow = last_close + (quantiles - last_close) * 1e-6
    assert measure_range(span, LEVELS, narrow, path_bars) == RangeCoverage(num_windows, 0)


def test_windows_are_a_horizon_apart_and_few(make_span: Callable[..., Any]) -> None:
    span = make_span().spans["test"]
    numbers = evaluated_windows(span)
    assert (np.diff(numbers) == span.horizon_bars).all() and numbers[0] == 0
    assert len(evaluated_windows(span, most=2)) <= 2


def test_windows_of_several_series_are_added_up() -> None:
    assert pooled([]) is None
    assert pooled([None, RangeCoverage(10, 9), RangeCoverage(30, 26)]) == RangeCoverage(40, 35)
    assert RangeCoverage(40, 35).share == 0.875
    with pytest.raises(ValueError, match="as many windows inside"):
        RangeCoverage(3, 4)
