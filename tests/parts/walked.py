"""Candles of a random walk, such as features are computed from."""

from __future__ import annotations

import numpy as np
import pandas as pd

from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series


def walk_candles(num_rows: int = 300, *, seed: int = 0, missing: slice = slice(0, 0)) -> Candles:
    """Return a random walk on the 15-minute grid, less the rows `missing`."""
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.005, num_rows)))
    opened = np.concatenate([close[:1], close[:-1]])
    frame = pd.DataFrame(
        {
            "open_time": (1_700_000_100 + 900 * np.arange(num_rows)) * 1000,
            "open": opened,
            "high": np.maximum(opened, close) * 1.001,
            "low": np.minimum(opened, close) * 0.999,
            "close": close,
            "volume": rng.gamma(2.0, 10.0, num_rows),
        }
    )
    return check_candles(frame.drop(frame.index[missing]), Series("BTCUSDT", "15m"), source="demo")
