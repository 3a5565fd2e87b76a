"""Train, validation and test spans of a FeatureTable, in time order, with an embargo between them.

An anchor is the last known row of a window: its lookback rows end there and its horizon rows follow.
A window counts only when all its rows lie in one span and in one unbroken segment, so none looks
across a hole in the candles, and none shares a row with another span.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from v8.errors import DataError
from v8.profile import Profile

SPANS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """First and past-the-end row of the three spans, and the rows left out between neighbours."""

    train: tuple[int, int]
    validation: tuple[int, int]
    test: tuple[int, int]
    embargo_bars: int

    def span(self, name: str) -> tuple[int, int]:
        """Return first and past-the-end row of `train`, `validation` or `test`."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]


def split_rows(num_rows: int, profile: Profile, *, where: str) -> Split:
    """Divide the rows by the profile's shares, after setting two embargoes aside.

    A DataError tells that a span of the series `where` would not hold a single window.
    """
    window_bars = profile.lookback_bars + profile.horizon_bars
    usable = num_rows - 2 * profile.embargo_bars
    num_train = round(usable * profile.split.train)
    num_validation = round(usable * profile.split.validation)
    smallest = min(num_train, num_validation, usable - num_train - num_validation)
    if smallest < window_bars:
        raise DataError(
            where=where,
            rule=f"needs at least {rows_needed(profile)} rows after the indicators' warm-up, so that train, "
            f"validation and test each hold one window of {window_bars} bars",
            got=str(num_rows),
            fix="Fetch a longer history with param:bars, or lower lookback_bars in the profile",
        )
    validation_start = num_train + profile.embargo_bars
    test_start = validation_start + num_validation + profile.embargo_bars
    return Split(
        train=(0, num_train),
        validation=(validation_start, validation_start + num_validation),
        test=(test_start, num_rows),
        embargo_bars=profile.embargo_bars,
    )


def rows_needed(profile: Profile) -> int:
    """Return the fewest unbroken rows with which every span holds a window."""
    window_bars = profile.lookback_bars + profile.horizon_bars
    smallest_share = min(profile.split.train, profile.split.validation, profile.split.test)
    # One row more than the exact quotient absorbs the rounding of the shares.
    return int(np.ceil((window_bars + 1) / smallest_share)) + 2 * profile.embargo_bars


def window_anchors(
    segment: NDArray[np.int32], span: tuple[int, int], lookback_bars: int, horizon_bars: int
) -> NDArray[np.int64]:
    """List the last known row of every complete window of a span, ascending, int64; empty when nothing fits.

    Args:
        segment: Number of the unbroken piece each row belongs to, shape (N,), ascending.
        span: First and past-the-end row.
        lookback_bars: Rows a window looks at, the anchor included.
    """
    first, end = span
    anchors = np.arange(first + lookback_bars - 1, end - horizon_bars, dtype=np.int64)
    unbroken = segment[anchors - lookback_bars + 1] == segment[anchors + horizon_bars]
    return anchors[unbroken]
