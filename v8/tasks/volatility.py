"""The coming volatility."""

from __future__ import annotations

from typing import Final

from v8.columns import TASK_VOLATILITY, VOLATILITY
from v8.tasks.task import UNITLESS, Task

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
