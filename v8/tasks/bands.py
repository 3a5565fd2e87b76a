"""The coming Bollinger bands."""

from __future__ import annotations

from typing import Any, Final

from v8.columns import BAND_WIDTH_STDS, BB_LOWER, BB_UPPER, TASK_BANDS
from v8.tasks.closes import Closes
from v8.tasks.task import QUOTE_CURRENCY, Task


def _implied(xp: Any, closes: Closes) -> Any:
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
    implied=_implied,
    # The upper band is the larger of the two.
    coherent=lambda xp, values, last, least: xp.flip(xp.sort(values, axis=-1), axis=-1),
)
