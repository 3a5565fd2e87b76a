"""How many windows a series keeps of those that as many candles without a hole would give.

A window contains no hole, and after each hole the indicators need their warm-up again. So a bar that is
missing takes lookback + horizon + warm-up windows, and short runs between holes have no window at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.base.errors import DataError
from v8.base.wording import percent
from v8.data.windows.dataset import (
    SPANS,
    split_rows,
    table_columns,
    window_anchors,
    windows_without_holes,
)
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile

FEWEST_KEPT: Final = (
    0.5  # a smaller share of the windows of a span is said before training, and in the report
)


@dataclass(frozen=True)
class WindowCounts:
    """The windows of a series by span: `train`, `validation` and `test`."""

    kept: Mapping[str, int]  # that holes and the warm-up after each leave
    without_holes: Mapping[str, int]  # of as many candles if none were missing between them

    @property
    def share(self) -> float:
        """Share of the windows that is kept, 0 to 1."""
        return sum(self.kept.values()) / sum(self.without_holes.values())

    @property
    def are_few(self) -> bool:
        """Whether a span keeps less than `FEWEST_KEPT` of its windows."""
        return any(self.kept[name] < FEWEST_KEPT * num for name, num in self.without_holes.items())

    def __str__(self) -> str:
        num_kept = sum(self.kept.values())
        num = sum(self.without_holes.values())
        train, validation, test = (f"{self.kept[name]:,}" for name in SPANS)
        shares = f"{num_kept:,} of {num:,} windows ({percent(self.share, 0)})"
        return f"{shares}: {train} to train on, {validation} to validate, {test} to test"


def count_kept(segment: NDArray[np.int32], profile: Profile) -> WindowCounts | None:
    """Count the windows of candles; None if they would be too few without a hole, too.

    `segment` is that of `Candles`, shape (N,).
    """
    try:
        without_holes = windows_without_holes(len(segment), profile)
    except DataError:
        return None
    num_rows = np.bincount(segment) - warmup_bars(table_columns(profile))
    num_rows = num_rows[num_rows > 0]
    segment_of_row = np.repeat(np.arange(len(num_rows), dtype=np.int32), num_rows)
    try:
        split = split_rows(len(segment_of_row), profile, location="candles")
    except DataError:
        return WindowCounts(dict.fromkeys(SPANS, 0), without_holes)
    kept = {}
    for name, rows in split.items():
        kept[name] = len(window_anchors(segment_of_row, rows, profile.lookback_bars, profile.horizon_bars))
    return WindowCounts(kept, without_holes)
