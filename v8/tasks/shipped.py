"""What is forecast: the coming candles, their Bollinger bands and their volatility."""

from typing import Any, Final

from v8.columns import (
    BAND_WIDTH_STDS,
    BB_LOWER,
    BB_UPPER,
    OHLC,
    TASK_BANDS,
    TASK_OHLC,
    TASK_VOLATILITY,
    VOLATILITY,
)
from v8.tasks.closes import Closes
from v8.tasks.task import PRICE_FLOOR_SHARE, QUOTE_CURRENCY, UNITLESS, Task


def _true_candles(xp: Any, values: Any, last: Any, least: Any) -> Any:
    """Low at most open and close, high at least; nothing below a share of the last close."""
    values = xp.maximum(values, PRICE_FLOOR_SHARE * last)
    opened, closed = xp.take(values, [0], axis=-1), xp.take(values, [3], axis=-1)
    high = xp.max(xp.take(values, [0, 1, 3], axis=-1), axis=-1, keepdims=True)
    low = xp.min(xp.take(values, [0, 2, 3], axis=-1), axis=-1, keepdims=True)
    return xp.concatenate([opened, high, low, closed], axis=-1)


OHLC_TASK: Final = Task(
    name=TASK_OHLC,
    title="Candles",
    sentence="Open, high, low and close of the coming candles.",
    source="the exchange's candles",
    columns=OHLC,
    unit=QUOTE_CURRENCY,
    colour="blue",
    default_weight=1.0,
    sides=(0.0, 1.0, -1.0, 0.0),
    deviations=None,
    implied=lambda xp, closes: xp.repeat(xp.expand_dims(closes.unit * closes.close, -1), len(OHLC), axis=-1),
    coherent=_true_candles,
    # In logarithms, in which up and down are alike.
    on_paths=lambda xp, task, closes, summed_up: xp.exp(summed_up(closes.candles)),
)


def _bands(xp: Any, closes: Closes) -> Any:
    middle, reach = closes.unit * closes.middle, closes.unit * (BAND_WIDTH_STDS * closes.deviation)
    return xp.stack([middle + reach, middle - reach], axis=-1)


BANDS_TASK: Final = Task(
    name=TASK_BANDS,
    title="Bollinger bands",
    sentence="Upper and lower band: mean of twenty closes, two sample deviations either way.",
    source="Bollinger, Bollinger on Bollinger Bands (2001)",
    columns=(BB_UPPER, BB_LOWER),
    unit=QUOTE_CURRENCY,
    colour="purple",
    default_weight=0.8,
    sides=(1.0, -1.0),
    deviations=BAND_WIDTH_STDS,
    implied=_bands,
    # The upper band is the larger of the two.
    coherent=lambda xp, values, last, least: xp.flip(xp.sort(values, axis=-1), axis=-1),
)


VOLATILITY_TASK: Final = Task(
    name=TASK_VOLATILITY,
    title="Volatility",
    sentence="Sample deviation of twenty closes over their mean.",
    source="the definition of this project's ancestors",
    columns=(VOLATILITY,),
    unit=UNITLESS,
    colour="orange",
    default_weight=0.3,
    sides=(1.0,),
    deviations=1.0,
    implied=lambda xp, closes: xp.expand_dims(closes.deviation / closes.middle, -1),
    coherent=lambda xp, values, last, least: xp.maximum(values, least),  # above zero
)
