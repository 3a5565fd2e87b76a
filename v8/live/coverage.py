"""How often the truth lay in the central intervals of issued forecasts, which a loss does not tell.

Late forecasts count no more here than in the errors. Forecasts lie packed in the ledger and each has to be
unpacked, so only the newest of a series are looked at (`MOST_FORECASTS`).

Legend: N forecasts, K forecasters, V values of one forecaster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final

import numpy as np

from v8.live.database import Ledger
from v8.live.entries import Issuer, Known, level_of, quantile_forecaster
from v8.quantile_levels import MEDIAN, intervals, nominal, percent_of

MOST_FORECASTS: Final = 1_000
"""Newest scored forecasts of a series: ten days of 15m bars, six weeks of hours."""


@dataclass(frozen=True)
class Coverage:
    """How many truths of one task lay in each interval.

    Args:
        num_held: By name of the interval, "90 %", the widest first.
        num_truths: Steps and columns of all forecasts.
    """

    num_held: Mapping[str, int]
    num_truths: int

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the truths by interval, 0 to 1."""
        return {name: held / self.num_truths for name, held in self.num_held.items()}


Covered = Sequence[tuple[Issuer, Mapping[str, Coverage]]]
"""Per issuer with intervals what they held, per task."""


def coverage_by_issuer(ledger: Ledger, place: Path | str, series: str) -> Covered:
    """Count what the intervals of each issuer of a series held, per task; only of those that have some."""
    found = ledger.newest_truths(place, series, MOST_FORECASTS)
    return [(one.issuer, _by_task(one)) for one in found if _pairs(one.issuer)]


def together(coverages: Iterable[Coverage | None]) -> Coverage | None:
    """Add up coverages, by the intervals that all of them have; None where there is none."""
    found = [one for one in coverages if one]
    return reduce(_added, found) if found else None


def _added(one: Coverage, other: Coverage) -> Coverage:
    shared = [name for name in one.num_held if name in other.num_held]
    num_held = {name: one.num_held[name] + other.num_held[name] for name in shared}
    return Coverage(num_held, one.num_truths + other.num_truths)


def _pairs(issuer: Issuer) -> Sequence[tuple[float, float]]:
    levels = [level for level in map(level_of, issuer.forecasters) if level is not None]
    return intervals(sorted([*levels, MEDIAN]))


def _by_task(known: Known) -> dict[str, Coverage]:
    issuer, num_held = known.issuer, dict[str, dict[str, int]]()
    for pair in _pairs(issuer):
        low_NV, high_NV = (known.of(quantile_forecaster(level)) for level in pair)
        held_NV = (low_NV <= known.truth) & (known.truth <= high_NV)
        for task, held in issuer.split(held_NV.astype(np.float32)).items():
            num_held.setdefault(task, {})[f"{percent_of(nominal(pair))} %"] = int(held.sum())
    sizes = {task: len(known.truth) * issuer.horizon_bars * len(one) for task, one in issuer.tasks.items()}
    return {task: Coverage(held, sizes[task]) for task, held in num_held.items()}
