"""Quantile levels: what a profile may ask for, how their outputs are called, and which make an interval.

A quantile of level 0.05 is what the actual values stay below in 5 of 100 cases. The median is the point forecast, so
every set of levels holds 0.5; the others are called its outer levels here.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

MEDIAN: Final = 0.5

MAX_LEVELS: Final = 19  # every twentieth; what is asked for is trained, published, evaluated and drawn
LEAST_LEVEL: Final = 0.005  # a validation span of 1,000 windows has five beyond it
_SAME: Final = 1e-9  # levels that differ by less are equal: 1 - 0.95 is not 0.05 to the last bit


def fault_of(levels: Sequence[float]) -> str | None:
    """Say what is wrong with a set of levels; None where nothing is.

    >>> fault_of([0.1, 0.9])
    'must hold 0.5, the median'
    """
    if MEDIAN not in levels:
        return f"must hold {MEDIAN}, the median"
    if not 3 <= len(levels) <= MAX_LEVELS:
        return f"must hold 3 to {MAX_LEVELS} levels"
    if min(levels) < LEAST_LEVEL or max(levels) > 1 - LEAST_LEVEL:
        return f"must lie between {LEAST_LEVEL} and {1 - LEAST_LEVEL}"
    gaps = [high - low for low, high in pairwise(levels)]
    return "must ascend" if min(gaps) <= _SAME else None


def pinball(xp: Any, beyond: Any, levels: Any) -> Any:
    """Return the pinball losses of quantiles (Koenker and Bassett 1978, doi:10.2307/1913643).

    Twice that of the median is the absolute error. `beyond` is actual values less quantile, `xp` is `numpy` or
    `keras.ops`.

    >>> import numpy as np
    >>> pinball(np, np.array([2.0, -2.0]), 0.25).tolist()
    [0.5, 1.5]
    """
    return xp.maximum(levels * beyond, (levels - 1.0) * beyond)


def outer(levels: Sequence[float]) -> tuple[float, ...]:
    """Return all levels but the median, ascending.

    >>> outer([0.25, 0.5, 0.75])
    (0.25, 0.75)
    """
    return tuple(level for level in levels if level != MEDIAN)


def apart(xp: Any, levels: Sequence[float], quantiles: Any) -> tuple[Any, Any]:
    """Part quantiles, (N, H, Q, C), into their median, (N, H, C), and how far the outer ones lie off it.

    Distances have the shape (N, H, L, C), L levels but the median; `xp` is `numpy` or `keras.ops`.

    >>> import numpy as np
    >>> median, distances = apart(np, [0.1, 0.5, 0.9], np.array([[[[2.0], [5.0], [9.0]]]]))
    >>> median.tolist(), distances[0, 0, :, 0].tolist()
    ([[[5.0]]], [-3.0, 4.0])
    """
    places = [place for place, level in enumerate(levels) if level != MEDIAN]
    median = xp.take(quantiles, [list(levels).index(MEDIAN)], axis=2)
    return xp.squeeze(median, axis=2), xp.take(quantiles, places, axis=2) - median


def quantile_output(task: str) -> str:
    """Name the output of a network and of a published model that holds a task's quantiles."""
    return f"{task}_quantiles"


def quantile_column(column: str, level: float) -> str:
    """Name a quantile of a column, by its level in per cent.

    >>> quantile_column("close", 0.05), quantile_column("low", 0.975)
    ('close_q5', 'low_q97.5')
    """
    return f"{column}_q{percent_of(level)}"


def interval_names(levels: Sequence[float]) -> list[str]:
    """Name the central intervals among levels, the widest first.

    >>> interval_names([0.05, 0.25, 0.5, 0.75, 0.95])
    ['90 %', '50 %']
    """
    return [f"{percent_of(nominal(pair))} %" for pair in intervals(levels)]


def percent_of(level: float) -> str:
    """Write a level in per cent.

    >>> percent_of(0.29), percent_of(0.025)
    ('29', '2.5')
    """
    return f"{100 * level:.10g}"


def levels_of(names: Iterable[str], column: str) -> tuple[float, ...]:
    """Return the levels that names of columns say a column is forecast at, with its median; none without.

    >>> levels_of(["close", "close_q95", "close_q5"], "close")
    (0.05, 0.5, 0.95)
    """
    start = quantile_column(column, 0)[:-1]
    found = [float(name.removeprefix(start)) / 100 for name in names if name.startswith(start)]
    return tuple(sorted([*found, MEDIAN])) if found else ()


def intervals(levels: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return the central intervals among levels, the widest first.

    >>> intervals([0.05, 0.25, 0.5, 0.75, 0.95])
    ((0.05, 0.95), (0.25, 0.75))
    """
    lows = [level for level in levels if level < MEDIAN]
    return tuple((low, high) for low in lows for high in levels if abs(low + high - 1) <= _SAME)


def nominal(interval: tuple[float, float]) -> float:
    """Return the share of actual values that a central interval promises to hold.

    >>> nominal((0.25, 0.75))
    0.5
    """
    return round(interval[1] - interval[0], 9)
