"""Every baseline a forecast is shown beside, in the order of the reports."""

from __future__ import annotations

from typing import Final

from v8.formulas.baseline import Baseline
from v8.formulas.boosting import LIGHTGBM
from v8.formulas.path_baseline import RANGE_PATHS
from v8.formulas.range_baselines import EWMA, HAR, SCALED
from v8.formulas.simple_baselines import DRIFT, LAST_CLOSE, OFFSET, ROLL_FORWARD
from v8.registry import Registry

NAIVE: Final = ROLL_FORWARD.name
"""The baseline every skill, multiple and verdict is measured against first, for every task."""

BASELINES: Final[Registry[Baseline]] = Registry(
    "baseline",
    [LAST_CLOSE, ROLL_FORWARD, OFFSET, DRIFT, SCALED, EWMA, HAR, RANGE_PATHS, LIGHTGBM],
)
"""One of a package that is not installed is not there to be beaten, and reports leave it out."""


def called(baseline: str) -> str:
    """Return what readers know a baseline by: "naive", or its key.

    >>> called("roll_forward"), called("har")
    ('naive', 'har')
    """
    return "naive" if baseline == NAIVE else baseline
