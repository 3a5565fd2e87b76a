"""Family `range_paths`: no network. A regression of the coming ranges, and paths of past bars."""

from __future__ import annotations

from typing import Final

from v8.columns import RANGE_BARS
from v8.families.family import Family, NetworkSettings


class RangePathsFormula(NetworkSettings):
    """Nothing to choose: every number of it is fitted."""


RANGE_PATHS_FAMILY: Final = Family(
    name="range_paths",
    sentence="No network: medians of paths of past bars, scaled to the ranges that a regression forecasts.",
    source="filtered historical simulation: Barone-Adesi, Giannopoulos & Vosper (1999)",
    settings=RangePathsFormula,
    outputs=None,
    forward_flop=lambda network, shape: 0.0,
    min_lookback_bars=max(RANGE_BARS),
)
