"""The naive forecast of several tasks at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from v8.profile.tasks import Task, naive_closes


def naive(xp: Any, tasks: Sequence[Task], history_close: Any, horizon_bars: int) -> dict[str, Any]:
    """Forecast tasks as if the close stayed at the last close: per task, shape (N, H, C), in its unit.

    The history is as for `naive_closes`; every bar has a range of 1 %.
    """
    has_window = any(task.has_window for task in tasks)
    closes = naive_closes(xp, history_close, horizon_bars, has_window=has_window)
    if any(task.is_size for task in tasks):
        closes = replace(closes, bar_range=0.01 * xp.ones_like(history_close[:, :1]))
    return {task.name: task.implied(xp, closes) for task in tasks}
