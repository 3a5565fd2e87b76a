"""Examination of features that v8 did not write, of the package `ta` and of plug-ins, on a made market.

A value of a feature may depend on the candles up to its own only, and on nothing else: the values of the
first candles are the same whatever comes after them, and the same when they are computed again.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Final, TypeAlias

import numpy as np

from v8.arrays import FloatArray
from v8.columns import CLOSE, HIGH, LOW, OPEN, OPEN_TIME, VOLUME

Market: TypeAlias = Mapping[str, FloatArray]
"""Columns of candles by name, each of shape (N,)."""

Compute: TypeAlias = Callable[[Market], FloatArray]
"""Returns the values of a feature, shape (N,)."""

BAR_S: Final = 900

_WILD: Final = 1e9 / 7.0
"""What prices are multiplied with from one candle to the next, so that a look at them cannot be missed."""


def row_that_changes(
    compute: Compute, market: Market, *, first: int = 0, resolution: float = 0.0
) -> int | None:
    """Return the first row whose value is another when it is computed again; None if none is.

    Args:
        first: Rows before it are not looked at, such as those of a warm-up.
        resolution: Difference that does not count, as a share of the largest value.
    """
    return _first_difference(compute(market), compute(market), first, resolution)


def row_that_looks_ahead(
    compute: Compute,
    market: Market,
    nums_known: Iterable[int],
    *,
    first: int = 0,
    resolution: float = 0.0,
) -> int | None:
    """Return the first row whose value changes with later candles; None if none does.

    Values of so many known candles are compared with those that stand there when others follow.
    """
    for num_known in nums_known:
        known = compute({name: values[:num_known] for name, values in market.items()})
        for factor in (_WILD, 1.0 / _WILD):  # who sorts, or takes the lowest, does not see what is higher
            whole = compute(_with_another_future(market, num_known, factor))
            row = _first_difference(known, whole[:num_known], first, resolution)
            if row is not None:
                return row
    return None


def _with_another_future(market: Market, num_known: int, factor: float) -> Market:
    changed = {name: values.copy() for name, values in market.items()}
    for name, values in changed.items():
        if name != OPEN_TIME:
            values[num_known:] *= factor
        values.setflags(write=False)
    return changed


def _first_difference(values: FloatArray, others: FloatArray, first: int, resolution: float) -> int | None:
    if len(values) != len(others):
        return min(len(values), len(others))
    finite = np.abs(values[first:][np.isfinite(values[first:])])
    slack = resolution * finite.max(initial=0.0)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        is_same = np.abs(values - others) <= slack
    is_same |= (values == others) | (np.isnan(values) & np.isnan(others))
    differing = np.flatnonzero(~is_same[first:])
    return first + int(differing[0]) if len(differing) else None


@cache
def made_market(num_rows: int) -> Market:
    """Draw candles: quiet, wild and one-sided days, the same on every machine; arrays are read-only."""
    # The one generator of NumPy whose numbers are promised never to change.
    random = np.random.RandomState(20_261_122)
    num_days = num_rows // 64 + 1
    size = np.repeat(random.choice([0.001, 0.004, 0.02], num_days), 64)[:num_rows]
    drift = np.repeat(random.choice([-0.5, 0.0, 0.0, 0.5], num_days), 64)[:num_rows]
    returns = (random.standard_normal(num_rows) + drift) * size
    close = 100.0 * np.exp(np.cumsum(returns - returns.mean()))
    opened = np.concatenate([close[:1], close[:-1]])
    reach = random.uniform(0.0, 1.0, (2, num_rows)) * size
    market = {
        OPEN: opened,
        HIGH: np.maximum(opened, close) * (1.0 + reach[0]),
        LOW: np.minimum(opened, close) * (1.0 - reach[1]),
        CLOSE: close,
        VOLUME: random.gamma(2.0, 10.0, num_rows),
    }
    for values in market.values():
        values.setflags(write=False)
    return market
