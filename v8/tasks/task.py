"""What a task is: one thing forecast, with all that distinguishes it from the others.

Everything that differs from task to task is a field of `Task`, and its arithmetic is written once over an
array namespace, `numpy` or `keras.ops`. A task of one's own is one file that calls `TASKS.register`.

Legend: N windows, H steps of the horizon, C columns of the task, P paths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from v8.columns import BAND_PERIOD_BARS, MAX_ROLLED_STEPS
from v8.tasks.closes import Closes, standing_closes

QUOTE_CURRENCY: Final = "quote currency"
UNITLESS: Final = "unitless"

PRICE_FLOOR_SHARE: Final = 0.01
"""Prices below this share of the window's price level are raised to it: a lower band can fall to zero."""


@dataclass(frozen=True, eq=False)
class Task:
    """One thing forecast.

    Args:
        name: Its key in profiles and files.
        title: What readers call it.
        sentence: What it is, for people.
        source: Where its definition comes from.
        columns: What it forecasts, in the order of its output's last axis.
        unit: `QUOTE_CURRENCY` or `UNITLESS`; prices are judged as shares of the last close too.
        colour: Its name in the palette.
        default_weight: Factor of its loss that the shipped profiles use, unitless.
        sides: Where a wider range moves each column: up, down, or, with 0, not at all.
        deviations: By how many deviations of the twenty closes a column lies off their middle, per unit of
            its side; None for what follows the walk of the closes itself.
        implied: Maps namespace and closes to what the task would be, shape (N, H, C).
        coherent: Maps namespace, values (N, H, C), last close (N, 1, 1) and the smallest value of a
            unitless task to values that can all be true at once.
        on_paths: Maps namespace, the task, closes along P paths and what sums up (N, P, H, C) over the paths
            to what that says of the task, in units of the last close.
    """

    name: str
    title: str
    sentence: str
    source: str
    columns: tuple[str, ...]
    unit: str
    colour: str
    default_weight: float
    sides: tuple[float, ...]
    deviations: float | None
    implied: Callable[[Any, Closes], Any]
    coherent: Callable[[Any, Any, Any, Any], Any]
    on_paths: Callable[[Any, Task, Closes, Callable[[Any], Any]], Any] = lambda xp, task, closes, summed_up: (
        summed_up(task.implied(xp, closes))
    )

    @property
    def is_price(self) -> bool:
        """Whether it forecasts price levels, so that its errors have two units."""
        return self.unit == QUOTE_CURRENCY

    @property
    def has_window(self) -> bool:
        """Whether it follows from the twenty closes of a band's window, not from the last close alone."""
        return self.deviations is not None

    @property
    def min_lookback_bars(self) -> int:
        """Rows its roll-forward forecast looks at."""
        return BAND_PERIOD_BARS if self.has_window else 1

    @property
    def max_horizon_bars(self) -> int | None:
        """Steps ahead up to which its roll-forward forecast knows at least two closes; None without end."""
        return MAX_ROLLED_STEPS if self.has_window else None

    @property
    def is_moved(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """1 for the columns that a range moves, shape (C,)."""
        return np.abs(np.sign(np.array(self.sides)))

    @property
    def column_deviations(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """By how many deviations of the twenty closes each column lies off their middle, shape (C,)."""
        return np.array(self.sides) * (self.deviations or 0.0)

    def size(self, last_close: Any, share: Any = 1.0) -> Any:
        """Return what a share of the last close is in the task's unit; unitless tasks keep the share."""
        return last_close * share if self.is_price else share

    def floored(self, xp: Any, values: Any, reference: Any, floor: Any) -> Any:
        """Raise values, (N, H, C), to the smallest that has a logarithm worth learning.

        The first column of the reference, the roll-forward forecast, stands for the price level; `floor` is
        the smallest value of a unitless task.
        """
        level = PRICE_FLOOR_SHARE * xp.take(reference, [0], axis=-1)
        return xp.maximum(values, level if self.is_price else floor)


def roll_forward(xp: Any, tasks: Sequence[Task], history_close: Any, horizon_bars: int) -> dict[str, Any]:
    """Forecast tasks as if the close stayed at the last close: per task, shape (N, H, C), in its unit.

    The history is as for `standing_closes`.
    """
    has_window = any(task.has_window for task in tasks)
    closes = standing_closes(xp, history_close, horizon_bars, has_window=has_window)
    return {task.name: task.implied(xp, closes) for task in tasks}
