"""The coming candles: open, high, low and close."""

from __future__ import annotations

from typing import Any, Final

from v8.columns import OHLC, TASK_OHLC
from v8.tasks.task import PRICE_FLOOR_SHARE, QUOTE_CURRENCY, Task


def _coherent(xp: Any, values: Any, last: Any, least: Any) -> Any:
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
    coherent=_coherent,
    # In logarithms, in which up and down are alike.
    on_paths=lambda xp, task, closes, summed_up: xp.exp(summed_up(closes.candles)),
)
