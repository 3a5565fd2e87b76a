"""How many actual values of the ledger lay in each interval, by day.

Legend: N forecasts, K forecasters, V values of one forecaster.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from v8.annexes.live.ledger.entries import ActualValues, Issuer
from v8.model.evaluation.metrics import MIN_WIDTH
from v8.profile.columns import MEDIAN, interval_names, intervals
from v8.profile.formulas import DAY_S


@dataclass(frozen=True)
class Coverage:
    """How many actual values of one task lay in each interval."""

    num_inside: Mapping[str, int]  # by name of the interval, "90 %", the widest first
    num_actual_values: int  # steps and columns of all forecasts whose intervals have a width

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the actual values by interval, 0 to 1."""
        return {name: num_inside / self.num_actual_values for name, num_inside in self.num_inside.items()}


DailyCoverage = Mapping[int, Coverage]
"""Coverage by the day, UTC, on which the forecasts were issued, seconds since the epoch, ascending."""


IssuerCoverages = Sequence[tuple[Issuer, Mapping[str, DailyCoverage]]]
"""Issuers with intervals, each with its coverage per task."""


def merge_coverages(coverages: Iterable[Coverage | None]) -> Coverage | None:
    """Add up coverages, for the intervals that all of them have; None if there is none."""
    present = [coverage for coverage in coverages if coverage]
    if not present:
        return None
    num_inside = {}
    for name in present[0].num_inside:
        if all(name in coverage.num_inside for coverage in present):
            num_inside[name] = sum(coverage.num_inside[name] for coverage in present)
    return Coverage(num_inside, sum(coverage.num_actual_values for coverage in present))


def merge_daily(coverages: Iterable[DailyCoverage]) -> dict[int, Coverage]:
    """Add up the coverages of each day."""
    by_day: dict[int, list[Coverage]] = {}
    for daily in coverages:
        for day_s, coverage in daily.items():
            by_day.setdefault(day_s, []).append(coverage)
    merged = {}
    for day_s in sorted(by_day):
        coverage_of_day = merge_coverages(by_day[day_s])
        if coverage_of_day:
            merged[day_s] = coverage_of_day
    return merged


def measure_daily(actual_values: ActualValues) -> dict[str, dict[int, Coverage]]:
    """Count per task and day how many actual values lay in each interval of an issuer."""
    day_s_N = actual_values.issued_for_s // DAY_S * DAY_S
    by_task: dict[str, dict[int, Coverage]] = {}
    for day_s in np.unique(day_s_N).tolist():
        is_of_day_N = day_s_N == day_s
        values_NKV = actual_values.values[is_of_day_N]
        actual_NV = actual_values.actual[is_of_day_N]
        for task, coverage in _measure_coverage(actual_values.issuer, values_NKV, actual_NV).items():
            by_task.setdefault(task, {})[day_s] = coverage
    return by_task


def _measure_coverage(
    issuer: Issuer, values_NKV: NDArray[np.float32], actual_NV: NDArray[np.float32]
) -> dict[str, Coverage]:
    """Count per task how many actual values lay in each interval of an issuer.

    Values whose widest interval has no width are left out, as `QuantileErrors.mean_coverage` does.
    """
    positions = issuer.levels
    levels = sorted([*positions, MEDIAN])
    lowest_NV = values_NKV[:, positions[levels[0]]]
    highest_NV = values_NKV[:, positions[levels[-1]]]
    has_width_NV = highest_NV - lowest_NV >= MIN_WIDTH * np.abs(highest_NV)
    num_inside = dict[str, dict[str, int]]()
    for name, (low_level, high_level) in zip(interval_names(levels), intervals(levels), strict=True):
        low_NV = values_NKV[:, positions[low_level]]
        high_NV = values_NKV[:, positions[high_level]]
        is_inside_NV = (low_NV <= actual_NV) & (actual_NV <= high_NV) & has_width_NV
        for task, is_inside in issuer.split(is_inside_NV.astype(np.float32)).items():
            num_inside.setdefault(task, {})[name] = int(is_inside.sum())
    num_with_width = {
        task: int(has_width.sum())
        for task, has_width in issuer.split(has_width_NV.astype(np.float32)).items()
    }
    return {
        task: Coverage(counts, num_with_width[task])
        for task, counts in num_inside.items()
        if num_with_width[task]
    }
