"""Comparisons of what two programs computed in float32: in steps, so that no test depends on the processor.

A processor with wider registers adds in another order. A step is the distance between neighbouring float32
numbers at the size of what was computed with, for instance the price of which a volatility is a small share
(`v8.base.arrays`). Numbers that are computed in double precision need none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from v8.base.arrays import MAX_STEPS, steps_apart
from v8.model.networks.published import forecasts_apart


def assert_within_steps(
    actual: Any, expected: Any, *, steps: float, magnitude: ArrayLike | None = None
) -> None:
    """Fail if two arrays of one shape differ by more than some steps.

    Args:
        actual: What one program computed.
        expected: What the other did.
        steps: Most steps of float32.
        magnitude: Size of what both compute with; None: the largest expected number, which is the size of
            the terms of sums that give the others.
    """
    actual = np.asarray(actual)
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    size = np.abs(expected).max() if magnitude is None else magnitude
    apart = steps_apart(actual, expected, size)
    assert apart <= steps, f"{apart:.3g} steps of float32 apart, more than {steps}"


def assert_same_forecasts(
    values: Mapping[str, Any], expected: Mapping[str, Any], last_close: ArrayLike, steps: float = MAX_STEPS
) -> None:
    """Fail if forecasts of the same windows differ by more than what two programs may.

    Args:
        values: Forecasts of one program by output, prices or unitless, (N, ...).
        expected: Those of the other, of the same outputs.
        last_close: Last known close of each window, (N,), or one for all.
        steps: Most steps of float32 at `Task.magnitude`.
    """
    actual_arrays = {name: np.asarray(array) for name, array in values.items()}
    expected_arrays = {name: np.asarray(array) for name, array in expected.items()}
    assert {name: array.shape for name, array in actual_arrays.items()} == {
        name: array.shape for name, array in expected_arrays.items()
    }
    apart = forecasts_apart(actual_arrays, expected_arrays, np.asarray(last_close, np.float64))
    assert apart.keys() == expected.keys()
    too_far = {name: round(number, 1) for name, number in apart.items() if not number <= steps}
    assert not too_far, f"steps of float32 apart, more than {steps}: {too_far}"


def assert_same_frames(frame: pd.DataFrame, expected: pd.DataFrame, steps: float = MAX_STEPS) -> None:
    """Fail if two frames of forecasts differ by more than what two programs may, or in rows or columns."""
    assert list(frame.columns) == list(expected.columns)
    assert list(frame.index) == list(expected.index)
    price = expected["close"].to_numpy(float)
    for name in expected:
        size = 1.0 if str(name).startswith("volatility") else price
        assert_within_steps(frame[name], expected[name], steps=steps, magnitude=size)
