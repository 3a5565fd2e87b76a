"""Candle files of one hourly series: read by the source `files`, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from v8.base.errors import DataError
from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.data.market.sources.files import FilesSource

HOURLY = Series("BTCUSDT", "1h")
COLUMNS = ["open_time", "open", "high", "low", "close", "volume"]
NOW_S = 1_735_689_600
"""2025-01-01T00:00:00Z, after every generated candle."""


def digest_of(frame: pd.DataFrame) -> str:
    return check_candles(frame[COLUMNS], HOURLY, source="files").digest


def read(folder: Path, series: Series = HOURLY, num_bars: int = 1_000, **more: Any) -> Candles:
    return FilesSource(folder, now=lambda: NOW_S).candles(series, num_bars, **more)


def refusal(folder: Path, series: Series = HOURLY) -> DataError:
    """Read files that cannot be used, and return what refuses them."""
    with pytest.raises(DataError) as caught:
        read(folder, series)
    assert str(series) in str(caught.value) and str(caught.value).isprintable()
    return caught.value
