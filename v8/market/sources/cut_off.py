"""Candles as they were at a moment of the past: a source that shows nothing later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from v8.market.candles import Candles
from v8.market.series import Series
from v8.market.sources.source import CandleSource


@dataclass(frozen=True)
class CutOffSource:
    """A source of which nothing after a moment is seen.

    Args:
        source: What has the candles.
        newest_s: Per series, the latest open time shown, seconds since the epoch, UTC. Series of a timeframe
            share it, so those that lie beside them are shown as far.
    """

    source: CandleSource
    newest_s: Mapping[str, int]

    @property
    def name(self) -> str:
        """The name of the source behind it."""
        return self.source.name

    @property
    def is_publishable(self) -> bool:
        """Whether models of the source behind it may be published."""
        return self.source.is_publishable

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest candles up to the moment; see `CandleSource`.

        Raises:
            DataError: If there are none, or they cannot be trusted.
        """
        last_s = self.newest_s.get(str(series)) or self._of_timeframe(series)
        found = self.source.candles(series, num_bars, last_s if end_s is None else min(end_s, last_s))
        # Later candles are known to exist; that they do is no news in a back-test.
        return replace(found, report=replace(found.report, num_newer=0))

    def _of_timeframe(self, series: Series) -> int:
        ends = {Series.parse(name).timeframe: end_s for name, end_s in self.newest_s.items()}
        return ends[series.timeframe]
