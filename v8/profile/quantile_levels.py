"""Quantile levels: valid sets of levels, names of outputs and columns, and central intervals.

The actual values are below the quantile of level 0.05 in 5 of 100 cases. The median is the point forecast, so
every set of levels contains 0.5. The other levels are called outer levels.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

MEDIAN: Final = 0.5

MAX_LEVELS: Final = 19  # 0.05, 0.10 ... 0.95
LEAST_LEVEL: Final = 0.005  # a validation span of 1,000 windows has five actual values beyond this quantile
_TOLERANCE: Final = 1e-9  # levels that differ by less are equal: 1 - 0.95 is not exactly 0.05


def fault_of(levels: Sequence[float]) -> str | None:
    """Describe what is wrong with a set of levels; None if it is valid.

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
    return "must ascend" if min(gaps) <= _TOLERANCE else None


def pinball(xp: Any, beyond: Any, levels: Any) -> Any:
    """Return the pinball losses of quantiles (Koenker and Bassett 1978, doi:10.2307/1913643).

    Twice that of the median is the absolute error. `beyond` is actual values less quantile, `xp` is `numpy`
    or `keras.ops`.

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
    """Split quantiles into the median and the distances of the outer quantiles from it.

    Args:
        xp: `numpy` or `keras.ops`.
        levels: The Q levels.
        quantiles: Shape (N, H, Q, C).

    Returns:
        The median, shape (N, H, C), and the distances, shape (N, H, L, C), L outer levels.

    >>> import numpy as np
    >>> median, distances = apart(np, [0.1, 0.5, 0.9], np.array([[[[2.0], [5.0], [9.0]]]]))
    >>> median.tolist(), distances[0, 0, :, 0].tolist()
    ([[[5.0]]], [-3.0, 4.0])
    """
    places = [place for place, level in enumerate(levels) if level != MEDIAN]
    median = xp.take(quantiles, [list(levels).index(MEDIAN)], axis=2)
    return xp.squeeze(median, axis=2), xp.take(quantiles, places, axis=2) - median


def quantile_output(task: str) -> str:
    """Return the name of the output of a network, or of a published model, for the quantiles of a task."""
    return f"{task}_quantiles"


def quantile_column(column: str, level: float) -> str:
    """Return the name of a quantile of a column, with its level in per cent.

    >>> quantile_column("close", 0.05), quantile_column("low", 0.975)
    ('close_q5', 'low_q97.5')
    """
    return f"{column}_q{percent_of(level)}"


def interval_names(levels: Sequence[float]) -> list[str]:
    """Return the names of the central intervals among levels, the widest first.

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
    """Return the quantile levels of a column, from the names of all columns; empty if it has no quantiles.

    >>> levels_of(["close", "close_q95", "close_q5"], "close")
    (0.05, 0.5, 0.95)
    """
    start = quantile_column(column, 0)[:-1]
    outer_levels = [float(name.removeprefix(start)) / 100 for name in names if name.startswith(start)]
    return tuple(sorted([*outer_levels, MEDIAN])) if outer_levels else ()


def intervals(levels: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return the central intervals among levels, the widest first.

    >>> intervals([0.05, 0.25, 0.5, 0.75, 0.95])
    ((0.05, 0.95), (0.25, 0.75))
    """
    lows = [level for level in levels if level < MEDIAN]
    return tuple((low, high) for low in lows for high in levels if abs(low + high - 1) <= _TOLERANCE)


def nominal(interval: tuple[float, float]) -> float:
    """Return the nominal coverage of a central interval.

    >>> nominal((0.25, 0.75))
    0.5
    """
    return round(interval[1] - interval[0], 9)
