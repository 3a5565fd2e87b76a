"""Candles that are drawn by a seed: a walk with quiet, wild and dead stretches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from v8.data.features import FeatureTable
from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series

START_S = 1_700_000_100
BAR_S = 900
STRETCH_BARS = 20
PRICES = (1e-5, 1.0, 1e5)


def walked_market(
    seed: int, num_rows: int, *, price: float | None = None, sizes: Sequence[float] = (0.0, 1e-4, 0.03)
) -> pd.DataFrame:
    """Draw candles of 15m; each stretch has one of the sizes of moves, and 0 is one without any trade.

    Without a price it is drawn, too. Open times are seconds since the epoch.
    """
    rng = np.random.default_rng(seed)
    size = np.repeat(rng.choice(sizes, num_rows // STRETCH_BARS + 1), STRETCH_BARS)[:num_rows]
    first = rng.choice(PRICES) if price is None else price
    close = first * np.exp(np.cumsum(rng.normal(0, 1, num_rows) * size))
    opened = np.concatenate([close[:1], close[:-1]])
    reach = rng.uniform(0, 0.01, (2, num_rows)) * (size > 0)
    return pd.DataFrame(
        {
            "open_time": START_S + BAR_S * np.arange(num_rows),
            "open": opened,
            "high": np.maximum(opened, close) * (1 + reach[0]),
            "low": np.minimum(opened, close) * (1 - reach[1]),
            "close": close,
            "volume": rng.gamma(2.0, 10.0, num_rows) * (size > 0),
        }
    )


def checked(frame: pd.DataFrame, symbol: str = "BTCUSDT") -> Candles:
    """Return the candles of a frame."""
    return check_candles(frame, Series(symbol, "15m"), source="demo")


def rows_by_time(table: FeatureTable) -> Mapping[int, bytes]:
    """Return the bits of each row of a table, by its open time."""
    rows = table.select(table.columns)
    return {int(time): row.tobytes() for time, row in zip(table.open_time_s, rows, strict=True)}
