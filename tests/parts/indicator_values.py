"""Indicators of one contiguous piece of candles, NaN where they are not valid yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from v8.base.arrays import FloatArray
from v8.profile.indicators import computed_rows, warmup_bars


def compute(columns: Iterable[str], candles: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Compute float64 columns of the shape of the candles', NaN in each one's own warm-up."""
    computed = {name: values.copy() for name, values in computed_rows(columns, candles).items()}
    for name, values in computed.items():
        values[: warmup_bars([name])] = np.nan
    return computed
