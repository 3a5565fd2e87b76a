"""A source that is asked for the newest candles of a series once, however many stages need them."""

from __future__ import annotations

from collections.abc import Sequence

from v8.market.candles import Candles
from v8.market.series import Series
from v8.market.sources.source import BringsMany, CandleSource


class RememberedCandles:
    """Hands out the newest candles that a source gave first, so that all stages see the same present.

    Args:
        source: Where they come from.
    """

    def __init__(self, source: CandleSource) -> None:
        self._source = source
        self._newest: dict[tuple[Series, int], Candles] = {}

    @property
    def name(self) -> str:
        """The name of the source."""
        return self._source.name

    @property
    def is_publishable(self) -> bool:
        """Whether the source is a real market."""
        return self._source.is_publishable

    def bring(self, series: Sequence[Series], num_bars: int) -> None:
        """Bring many series up to date at once, where the source can; see `BringsMany`."""
        if isinstance(self._source, BringsMany):
            self._source.bring(series, num_bars)

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return candles; see `CandleSource`.

        Raises:
            DataError: If the source has none, or they cannot be trusted.
        """
        newest = self._newest.get((series, num_bars))
        if newest is None and end_s is None:
            newest = self._newest[series, num_bars] = self._source.candles(series, num_bars)
        if newest is not None and end_s in (None, int(newest.open_time_s[-1])):
            return newest
        return self._source.candles(series, num_bars, end_s)
