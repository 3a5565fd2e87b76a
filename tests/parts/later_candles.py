"""Candles of the demo market that go on after its end: a past to train on and a future to forecast."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.data.market.sources.demo import END_S

BEGIN_S = END_S
"""When the future begins, seconds since the epoch: 2025-01-01T00:00:00Z."""


def with_future(name: str, num_past: int, num_later: int) -> pd.DataFrame:
    """Return candles until `BEGIN_S`, and some that follow: older ones again, from where the price is."""
    past = open_source("demo").candles(Series.parse(name), num_past).to_frame()
    later = past.iloc[:num_later].copy()
    later.iloc[:, :4] *= past["close"].iloc[-1] / later["open"].iloc[0]
    step = past.index[1] - past.index[0]
    opens = [past.index[-1] + step * number for number in range(1, num_later + 1)]
    later.index = pd.DatetimeIndex(opens, name=past.index.name)
    return pd.concat([past, later])


def write_past(folder: Path, name: str, num_past: int) -> None:
    """Write the past as a file of the user."""
    folder.mkdir(exist_ok=True)
    with_future(name, num_past, 1).iloc[:-1].to_csv(folder / f"{name}.csv")
