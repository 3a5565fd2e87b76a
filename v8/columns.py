"""The name of every column, what it means and what kind of number it holds.

Columns are only ever picked by these names. The kind decides how `anchored` scaling treats a
column; see `v8/data/scaling.py`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

OPEN_TIME: Final = "open_time"
OPEN: Final = "open"
HIGH: Final = "high"
LOW: Final = "low"
CLOSE: Final = "close"
VOLUME: Final = "volume"

RSI: Final = "rsi"
MACD: Final = "macd"
MACD_SIGNAL: Final = "macd_signal"
ROC: Final = "roc"
BB_UPPER: Final = "bb_upper"
BB_LOWER: Final = "bb_lower"
BB_WIDTH: Final = "bb_width"
BB_POSITION: Final = "bb_position"
VOLATILITY: Final = "volatility"
ATR: Final = "atr"
VOLUME_NORM: Final = "volume_norm"

OHLC: Final = (OPEN, HIGH, LOW, CLOSE)
OHLCV: Final = (*OHLC, VOLUME)


class Kind(Enum):
    """What kind of number a column holds."""

    PRICE = "a price level, in quote currency"
    PRICE_CHANGE = "a difference of prices, in quote currency"
    POSITIVE = "a skewed positive number, unitless"
    CENTRED = "a bounded or roughly symmetric number, unitless or percent"


KINDS: Final[dict[str, Kind]] = {
    OPEN: Kind.PRICE,
    HIGH: Kind.PRICE,
    LOW: Kind.PRICE,
    CLOSE: Kind.PRICE,
    BB_UPPER: Kind.PRICE,
    BB_LOWER: Kind.PRICE,
    MACD: Kind.PRICE_CHANGE,
    MACD_SIGNAL: Kind.PRICE_CHANGE,
    ATR: Kind.PRICE_CHANGE,
    BB_WIDTH: Kind.POSITIVE,
    VOLATILITY: Kind.POSITIVE,
    VOLUME_NORM: Kind.POSITIVE,
    RSI: Kind.CENTRED,
    ROC: Kind.CENTRED,
    BB_POSITION: Kind.CENTRED,
}
"""Every column a profile may name as a feature."""

TASK_OHLC: Final = "ohlc"
TASK_BANDS: Final = "bands"
TASK_VOLATILITY: Final = "volatility"

TASK_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    TASK_OHLC: OHLC,
    TASK_BANDS: (BB_UPPER, BB_LOWER),
    TASK_VOLATILITY: (VOLATILITY,),
}
"""The columns each task forecasts, in the order of its output's last axis."""

BAND_PERIOD_BARS: Final = 20
"""Rows of the Bollinger average and deviation, and of `volatility`."""

BAND_WIDTH_STDS: Final = 2.0
"""Sample standard deviations from the average to a band."""
