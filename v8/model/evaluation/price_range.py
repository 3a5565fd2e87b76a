"""The range that prices stay within, and how often they did on the test span.

"9 of 10 times the price stays between A and B": A and B are quantiles, over simulated paths, of the lowest
low and of the highest high of all bars ahead. Quantiles of single bars are no such range: a path leaves it as
soon as one of its bars does.

Legend: N windows, H steps of the horizon, Q levels, C columns of candles, P paths.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import AnyFloatArray
from v8.base.errors import ArtifactError
from v8.base.records import Count, Positive
from v8.data.span import Span
from v8.model.baselines.paths import drawn_paths
from v8.profile.columns import HIGH, LOW, OHLC, TASK_OHLC

RANGE_SHARE: Final = 0.9
"""Probability that all bars ahead lie within a `PriceRange`."""

ENOUGH_WINDOWS: Final = 50
"""So many windows tell whether a range is true: 5 of them are expected outside, fewer vary by chance too
much."""

MOST_WINDOWS: Final = 60
"""Most windows whose range is evaluated in a run: their paths take 0.15 s of a core with `frontier`."""


@dataclass(frozen=True)
class PriceRange:
    """Two prices that all bars ahead stay between with the probability `RANGE_SHARE`."""

    low: float  # quote currency
    high: float  # quote currency


def range_json(ahead: PriceRange | None) -> dict[str, Any]:
    """Return the key `range` of a forecast as plain JSON values; no key without a range."""
    return {} if ahead is None else {"range": {"share": RANGE_SHARE, **asdict(ahead)}}


@dataclass(frozen=True)
class RangeCoverage:
    """How often all bars ahead lay within the range that was forecast, on windows of the test span."""

    num_windows: Positive  # windows evaluated
    num_inside: Count  # those in which no bar left the range

    def __post_init__(self) -> None:
        if self.num_inside > self.num_windows:
            raise ValueError("has at most as many windows inside as there are")

    @property
    def share(self) -> float:
        """Share of windows inside, 0 to 1; it should be `RANGE_SHARE`."""
        return self.num_inside / self.num_windows

    @property
    def has_enough_windows(self) -> bool:
        """Whether there are enough windows to tell whether the range is true."""
        return self.num_windows >= ENOUGH_WINDOWS

    @property
    def standard_error(self) -> float:
        """That of the stated share, by the binomial distribution: `sqrt(p (1 - p) / N)`."""
        return math.sqrt(RANGE_SHARE * (1.0 - RANGE_SHARE) / self.num_windows)

    @property
    def is_too_narrow(self) -> bool:
        """Whether it held less often than stated, beyond two standard errors, in enough windows."""
        return self.has_enough_windows and self.share < RANGE_SHARE - 2.0 * self.standard_error


def pooled(coverages: Iterable[RangeCoverage | None]) -> RangeCoverage | None:
    """Add up the windows of several series; None if none was evaluated."""
    evaluated = [coverage for coverage in coverages if coverage is not None]
    if not evaluated:
        return None
    return RangeCoverage(
        num_windows=sum(coverage.num_windows for coverage in evaluated),
        num_inside=sum(coverage.num_inside for coverage in evaluated),
    )


def range_of(paths_PHC: NDArray[np.float64]) -> PriceRange:
    """Return the range of simulated candles, (P, H, C) in the order of `OHLC`, as prices."""
    beyond = (1.0 - RANGE_SHARE) / 2.0
    low = np.quantile(paths_PHC[..., OHLC.index(LOW)].min(axis=1), beyond)
    high = np.quantile(paths_PHC[..., OHLC.index(HIGH)].max(axis=1), 1.0 - beyond)
    return PriceRange(float(low), float(high))


def evaluated_windows(span: Span, most: int = MOST_WINDOWS) -> NDArray[np.int64]:
    """Return the numbers of the windows whose range is evaluated, (N,), at equal distances.

    They are at least a horizon apart: windows that overlap share most of their bars, so that evaluating them,
    too, would take long and tell little more.
    """
    every = max(span.horizon_bars, -(-len(span) // most))
    return np.arange(0, len(span), every, dtype=np.int64)


def measure_range(
    span: Span, levels: Sequence[float], quantiles_NHQC: AnyFloatArray, path_bars_NHCP: AnyFloatArray
) -> RangeCoverage:
    """Count the windows in which all bars ahead lay within the range that was forecast.

    Args:
        span: The windows, with the actual candles.
        levels: Levels of the quantiles, ascending.
        quantiles_NHQC: The published quantiles of open, high, low and close, as prices.
        path_bars_NHCP: The bars of each path, log ratios to the close before.

    Raises:
        ArtifactError: If there are no windows.
    """
    if not len(span):
        rule = "a range is evaluated on at least one window"
        fix = "Use a longer test span"
        raise ArtifactError(where=str(span.table.series), rule=rule, got="none", fix=fix)
    actual_NHC = span.actual[TASK_OHLC]
    lowest_N = actual_NHC[..., OHLC.index(LOW)].min(axis=1)
    highest_N = actual_NHC[..., OHLC.index(HIGH)].max(axis=1)
    num_inside = 0
    for number, last_close in enumerate(span.last_close.tolist()):
        path_bars_HCP = path_bars_NHCP[number].astype(np.float64)
        quantiles_HQC = quantiles_NHQC[number].astype(np.float64)
        ahead = range_of(drawn_paths(path_bars_HCP, levels, quantiles_HQC, last_close))
        num_inside += bool(ahead.low <= lowest_N[number] and highest_N[number] <= ahead.high)
    return RangeCoverage(num_windows=len(span), num_inside=num_inside)
