"""By how much each forecast can be wrong, in recent ranges, as far as arithmetic knows it.

Say each coming bar ranges so far, either way, by itself. Then

* open, high, low and close are as uncertain as a random walk with these steps has come far;
* the middle of the bands moves with every close that the walk moves, and their deviation faster the further
  the last close lies from the middle: to first order (the delta method) a column of theirs moves by
  |1/20 - D m / (19 d)| of the sum of all moved closes, m and d being middle and deviation of the roll-forward
  twenty, seen from the last close, and D by how many deviations the column lies off the middle;
* beside that, the deviation grows by what the walk adds to its square.

What quantiles are multiples of, a unit for each window, step and column, is the root of the sum of the last
two squares. Upper and lower band differ by the side on which the last close lies, which no symmetric feature
says.

Functions take their array namespace first, `numpy` or `keras.ops`.

Legend: N windows, H steps of the horizon, C columns of a task.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from v8.columns import BAND_PERIOD_BARS
from v8.tasks import TASKS
from v8.tasks.closes import Closes, moved_closes, variance_weights
from v8.tasks.task import Task
from v8.windows.span import Floats, Span


def spread_units(
    xp: Any, tasks: Sequence[Task], standing: Closes, recent: Any, squares: Any
) -> dict[str, Any]:
    """Return the unit of every task's quantiles, (N or 1, H, C or 1), in recent ranges, above 0.

    The closes are those that come if the close stays where it is; recent ranges, (N, 1), are unitless and
    above 0, squared ranges of coming bars, (N, H) or (1, H), in recent ranges and above 0.
    """
    walked = xp.expand_dims(xp.sqrt(xp.cumsum(squares, axis=1)), -1)
    if not any(task.has_window for task in tasks):
        return {task.name: walked for task in tasks}
    middle, deviation = (standing.middle - 1.0) / recent, standing.deviation / recent
    horizon = squares.shape[1]
    moved = xp.sqrt(xp.matmul(squares, _transposed(np.square(moved_closes(horizon)))))
    widened = xp.sqrt(xp.square(deviation) + xp.matmul(squares, _transposed(variance_weights(horizon))))
    slope = middle / ((BAND_PERIOD_BARS - 1) * widened)
    parts = [xp.expand_dims(part, -1) for part in (moved, slope, widened - deviation)]
    return {task.name: _windowed(xp, task, *parts) if task.has_window else walked for task in tasks}


def flat_units(span: Span, floored_range: Floats) -> dict[str, Floats]:
    """Return the units if every coming bar ranges as the recent ones did, per task, shape (N, H, C)."""
    tasks = [TASKS[name] for name in span.profile.tasks]
    squares = np.ones((1, span.horizon_bars))
    units = spread_units(np, tasks, span.standing, floored_range[:, None], squares)
    return {task: np.broadcast_to(unit, span.truth[task].shape) for task, unit in units.items()}


def _windowed(xp: Any, task: Task, moved: Any, slope: Any, added: Any) -> Any:
    off = task.column_deviations.astype(np.float32)
    moves_middle = 1.0 / BAND_PERIOD_BARS if task.is_price else 0.0
    return xp.sqrt(xp.square((moves_middle - slope * off) * moved) + xp.square(added * off))


def _transposed(weights: Any) -> Any:
    return weights.T.astype(np.float32)
