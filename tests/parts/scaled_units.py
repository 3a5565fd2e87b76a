"""What a published model does to its network's scaled forecasts, written plainly in NumPy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from v8.data.scaling import Scaling, TargetForm, restore
from v8.data.span import Span
from v8.profile.tasks import TASKS


def restore_targets(scaling: Scaling, span: Span, scaled: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Undo `Scaling.scale_targets`, up to its floors; shape (W, H, C), in the task's unit."""
    made = {}
    for name, values in scaled.items():
        constants = scaling.task(name)
        task = TASKS[name]
        rolled = span.naive[name]
        if constants.form is TargetForm.NAIVE_RATIO:
            rolled = task.floored(np, rolled, rolled, scaling.volatility_floor)
        unit_W = task.size(span.last_close, np.maximum(span.target_unit, scaling.range_floor))
        made[name] = restore(
            np,
            constants.form,
            values.astype(np.float64) * np.array(constants.scale),
            reference=rolled,
            unit=unit_W[:, None, None],
            center=np.array(constants.center),
        )
    return made
