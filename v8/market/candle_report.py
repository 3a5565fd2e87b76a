"""What was found in the candles of one series, what was repaired and what was dropped, in counts.

Every row that was read is counted once: `num_read` is `num_kept` plus all the counts of `dropped`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

NUM_GAPS_LISTED = 10


@dataclass(frozen=True)
class Gap:
    """A hole between two neighbouring candles.

    Args:
        after: Open time of the candle before the hole, ISO 8601, UTC.
        num_missing: Bars that are not there.
    """

    after: str
    num_missing: int


@dataclass(frozen=True)
class LostRow:
    """The newest row of all, where it was dropped: the candle before it is not the newest that there is.

    Args:
        open_s: When its bar opens, seconds since the epoch, UTC.
        told: Its number, counted from 1, what is wrong with it, and what it holds.
    """

    open_s: int
    told: str


@dataclass(frozen=True)
class CandleReport:
    """Counts of rows, unitless, except where a line says otherwise.

    Args:
        num_read: Rows the source delivered.
        num_kept: Rows that became candles.
        first_open: Open time of the oldest candle kept, ISO 8601, UTC.
        last_open: Open time of the newest candle kept, ISO 8601, UTC.
        time_units: Rows per unit their open time was written in.
        num_unsorted: Rows that stood after a newer one; all rows are sorted.
        num_identical: Rows dropped because another says exactly the same.
        num_rounded: Rows dropped because another says the same to 0.01 % with more decimals.
        num_conflicting: Rows dropped because another of the same open time says something else; all
            rows of such a bar are dropped and it becomes a gap.
        num_off_grid: Rows dropped because they open between two bars.
        num_unclosed: Rows dropped because their bar was still running.
        num_unreadable: Rows dropped because a value is missing or no number.
        num_non_positive: Rows dropped because a price is not above zero or a volume is below zero.
        num_inconsistent: Rows dropped because low <= open, close <= high is broken.
        num_older_life: Rows dropped because the symbol was listed anew after them.
        num_outside: Good rows outside the span that was asked for.
        num_alone: Candles dropped because something that a feature needs beside them is not there.
        lacking: How many candles of all that were read lack what, by series or table, where any do.
        num_newer: Candles that the source has after the time until which was asked for.
        relisted_at: First open of the newest life, ISO 8601, UTC; None without a re-listing.
        num_flat: Candles kept whose four prices are equal and whose volume is zero: the exchange
            fills short outages and quiet markets with them, and a file cannot tell which.
        longest_flat_bars: Longest run of such candles, in bars.
        num_gaps: Holes between candles kept.
        num_missing: Bars in all these holes.
        gaps: The longest holes, longest first, at most `NUM_GAPS_LISTED`.
        largest_log_return: Largest |log(close / close before)| within a segment, unitless.
        has_volume: Whether the source told a volume.
        num_revised: Candles kept of which the exchange told another version, too.
        newest_lost: The newest row, if its bar has closed and it was dropped because it could not be true.
        priced_as: What was priced, where that is not what the series names: BTC-USD is not BTCUSDT.
    """

    num_read: int
    num_kept: int = 0
    first_open: str = ""
    last_open: str = ""
    time_units: dict[str, int] = field(default_factory=dict)
    num_unsorted: int = 0
    num_identical: int = 0
    num_rounded: int = 0
    num_conflicting: int = 0
    num_off_grid: int = 0
    num_unclosed: int = 0
    num_unreadable: int = 0
    num_non_positive: int = 0
    num_inconsistent: int = 0
    num_older_life: int = 0
    num_outside: int = 0
    num_alone: int = 0
    lacking: dict[str, int] = field(default_factory=dict)
    num_newer: int = 0
    relisted_at: str | None = None
    num_flat: int = 0
    longest_flat_bars: int = 0
    num_gaps: int = 0
    num_missing: int = 0
    gaps: tuple[Gap, ...] = ()
    largest_log_return: float = 0.0
    has_volume: bool = True
    num_revised: int = 0
    newest_lost: LostRow | None = None
    priced_as: str = ""

    @property
    def num_unusable(self) -> int:
        """Rows that were lost because they could not be true, not because they were not needed."""
        impossible = self.num_unreadable + self.num_non_positive + self.num_inconsistent
        return impossible + self.num_off_grid + self.num_conflicting

    def dropped(self) -> dict[str, int]:
        """Return how many rows were read and not kept, by reason, in plain words."""
        return {
            "identical duplicates": self.num_identical,
            "rounded duplicates": self.num_rounded,
            "rows of contradictory duplicates": self.num_conflicting,
            "off the grid": self.num_off_grid,
            "unclosed": self.num_unclosed,
            "with unreadable values": self.num_unreadable,
            "with non-positive prices or negative volume": self.num_non_positive,
            "with inconsistent prices": self.num_inconsistent,
            "from before the re-listing": self.num_older_life,
            "outside the span asked for": self.num_outside,
            "without a covariate": self.num_alone,
        }

    def summary(self) -> str:
        """Say everything that is not zero in one line."""
        parts = [f"{self.num_kept} of {self.num_read} rows kept, {self.first_open} to {self.last_open}"]
        parts += [f"{count} {reason}" for reason, count in self.dropped().items() if count]
        if self.relisted_at:
            parts.append(f"listed anew at {self.relisted_at}")
        if self.num_unsorted:
            parts.append(f"sorted ({self.num_unsorted} rows out of order)")
        if len(self.time_units) > 1:
            units = " and ".join(f"{unit} ({count})" for unit, count in self.time_units.items())
            parts.append(f"times in {units}")
        if self.num_gaps:
            longest = self.gaps[0]
            parts.append(
                f"{self.num_gaps} gaps of {self.num_missing} bars, "
                f"the longest {longest.num_missing} after {longest.after}"
            )
        parts += [f"{count} bars lack {name}" for name, count in self.lacking.items()]
        if not self.has_volume:
            parts.append("no volume")
        if self.newest_lost:
            parts.append(f"the newest dropped: {self.newest_lost.told}")
        if self.priced_as:
            parts.append(f"prices of {self.priced_as}")
        if self.num_revised:
            parts.append(f"{self.num_revised} told in two versions")
        if self.num_flat:
            run = f"longest run {self.longest_flat_bars}"
            parts.append(f"{self.num_flat} flat candles without volume kept ({run})")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return every count under its own name, ready for JSON."""
        return asdict(self)
