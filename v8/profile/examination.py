"""Tests of features that are not part of v8 (package `ta`, plug-ins) for look-ahead, on synthetic candles.

The value of a feature at a candle may depend on the candles up to this one only. So the values at the first
candles must not change with later candles, nor when they are computed again.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Final, TypeAlias

import numpy as np

from v8.base.arrays import FloatArray
from v8.profile.columns import CLOSE, HIGH, LOW, OPEN, OPEN_TIME, VOLUME

Market: TypeAlias = Mapping[str, FloatArray]
"""Columns of candles by name, each of shape (N,)."""

Compute: TypeAlias = Callable[[Market], FloatArray]
"""Computes the values of a feature, shape (N,), from columns of candles."""

BAR_S: Final = 900

_WILD: Final = 1e9 / 7.0
"""Factor of the later prices and volumes: so large that its effect on earlier values is always visible."""


def first_unstable_row(
    compute: Compute, market: Market, *, first: int = 0, resolution: float = 0.0
) -> int | None:
    """Return the first row whose value differs when it is computed again; None if none does.

    Args:
        compute: The feature.
        market: Columns of candles.
        first: Rows before this one, such as a warm-up, are not compared.
        resolution: Largest difference that is ignored, as a share of the largest value.
    """
    return _first_difference(compute(market), compute(market), first, resolution)


def first_lookahead_row(
    compute: Compute,
    market: Market,
    nums_known: Iterable[int],
    *,
    first: int = 0,
    resolution: float = 0.0,
) -> int | None:
    """Return the first row whose value changes with later candles; None if none does.

    Args:
        compute: The feature.
        market: Columns of candles.
        nums_known: For each number, the values of so many first candles are compared: computed from these
            alone, and from all candles, with the later ones changed.
        first: Rows before this one, such as a warm-up, are not compared.
        resolution: Largest difference that is ignored, as a share of the largest value.
    """
    for num_known in nums_known:
        truncated = compute({name: values[:num_known] for name, values in market.items()})
        for factor in (
            _WILD,
            1.0 / _WILD,
        ):  # a minimum, for example, would not show later values that are higher
            full = compute(_with_changed_future(market, num_known, factor))
            row = _first_difference(truncated, full[:num_known], first, resolution)
            if row is not None:
                return row
    return None


def _with_changed_future(market: Market, num_known: int, factor: float) -> Market:
    """Multiply all prices and volumes after the first candles by a factor."""
    changed = {name: values.copy() for name, values in market.items()}
    for name, values in changed.items():
        if name != OPEN_TIME:
            values[num_known:] *= factor
        values.setflags(write=False)
    return changed


def _first_difference(values: FloatArray, others: FloatArray, first: int, resolution: float) -> int | None:
    """Return the first row from `first` on in which two arrays differ; None if they are equal."""
    if len(values) != len(others):
        return min(len(values), len(others))
    finite = np.abs(values[first:][np.isfinite(values[first:])])
    tolerance = resolution * finite.max(initial=0.0)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        is_same = np.abs(values - others) <= tolerance
    is_same |= (values == others) | (np.isnan(values) & np.isnan(others))
    differing = np.flatnonzero(~is_same[first:])
    return first + int(differing[0]) if len(differing) else None


@cache
def synthetic_market(num_rows: int) -> Market:
    """Draw candles with quiet, wild and trending days, equal on every machine; the arrays are read-only."""
    # RandomState is the only generator of NumPy whose numbers are guaranteed not to change.
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
