"""The source `rest`: the exchange's public API, the newest closed candles first.

What is closed is decided by the exchange's own time, which is asked for once and then counted by this
machine's monotonic clock; so the clock of this machine may be wrong, and the running candle is never asked
for. But a proxy may answer with an old time: where the two clocks are more than `MOST_APART_S` apart, the
newest candle of the exchange must not contradict its time, or nothing is served.
"""

import threading
import time
from collections.abc import Callable
from copy import copy
from typing import ClassVar, Final

import pandas as pd

from v8.errors import DataError
from v8.market.candles import Candles, require_num_bars
from v8.market.checks import check_candles
from v8.market.series import Series, iso
from v8.market.sources.klines_api import MOST_ROWS, KlinesApi, Span
from v8.market.sources.source import require_listed

MOST_AGE_S: Final = 600.0
"""After so many seconds the exchange is asked again; a clock of quartz errs by less than 0.1 s until then."""

REFUSED_S: Final = 30.0
"""An exchange that did not tell is not asked again so soon: forty series would wait for it one by one."""

MOST_DRIFT_S: Final = 2.0
"""A machine that slept, or whose clock was set, is one whose two clocks disagree by more than this."""

MOST_APART_S: Final = 60.0
"""The exchange's time and this machine's may differ by so much; beyond it a candle is asked."""

_FAR_S: Final = 20 * 365 * 86_400
"""Both clocks may be behind: up to so long after them the newest candle is looked for."""


class ExchangeClock:
    """Keeps the exchange's time, never ahead of it: what it said, and what has passed since it was heard.

    Args:
        ask: Asks the exchange, seconds since the epoch.
        most_age_s: Seconds after which it is asked again; 0 asks each time.
        monotonic: Counts seconds that pass.
        wall: This machine's clock, seconds since the epoch.
    """

    def __init__(
        self,
        ask: Callable[[], float],
        *,
        most_age_s: float = MOST_AGE_S,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ask, self._most_age_s, self._monotonic, self._wall = ask, most_age_s, monotonic, wall
        self._told_s = self._heard_s = self._wall_s = 0.0
        self._is_set = False
        self._refusal: DataError | None = None
        self._refused_s = 0.0
        self._asking = threading.Lock()

    def now_s(self) -> int:
        """Return the exchange's time, whole seconds since the epoch."""
        with self._asking:
            if not self._is_fresh():
                self._told_s = self._asked()
                self._heard_s, self._wall_s, self._is_set = self._monotonic(), self._wall(), True
            return int(self._told_s + self._monotonic() - self._heard_s)

    @property
    def ahead_s(self) -> float:
        """Seconds by which this machine's clock was ahead when the exchange was asked; 0 before."""
        return self._wall_s - self._told_s

    def _asked(self) -> float:
        """Ask, unless that was refused a moment ago: then the reason is the same."""
        if self._refusal and self._monotonic() - self._refused_s < min(REFUSED_S, self._most_age_s):
            raise copy(self._refusal)
        try:
            return self._ask()
        except DataError as error:
            self._refusal, self._refused_s = copy(error), self._monotonic()
            raise

    def _is_fresh(self) -> bool:
        age_s = self._monotonic() - self._heard_s
        passed_s = self._wall() - self._wall_s
        return self._is_set and age_s < self._most_age_s and abs(passed_s - age_s) <= MOST_DRIFT_S


class RestSource:
    """Candles from the exchange's API.

    Args:
        api: What asks; it is that of `V8_REST_URL` when None.
        clock: Keeps the exchange's time; asks `api` when None.
    """

    name: ClassVar = "rest"
    is_publishable: ClassVar = True

    def __init__(self, api: KlinesApi | None = None, clock: ExchangeClock | None = None) -> None:
        self.api = api or KlinesApi()
        self.clock = clock or ExchangeClock(self.api.time_s)
        self._confirmed_ahead_s: float | None = None

    def now_s(self) -> int:
        """Return the exchange's time; see `KeepsTime`."""
        return self.clock.now_s()

    def confirmed_now_s(self, series: Series) -> int:
        """Return the exchange's time, which its newest candle does not contradict.

        The candle is asked for once for each answer of the exchange's clock, and only where this machine's
        differs: one that opens later proves the answer old. One that is over proves nothing by itself, for
        the symbol may no longer be traded, but against a time that this machine's has not reached either.
        """
        now_s, ahead_s = self.now_s(), self.clock.ahead_s
        if abs(ahead_s) <= MOST_APART_S or ahead_s == self._confirmed_ahead_s:
            return now_s
        machine_s = int(now_s + ahead_s)
        latest_s = series.last_closed_s(max(now_s, machine_s) + _FAR_S)
        newest_s = self.api.edge_open_s(series, latest_s, is_newest=True)
        if newest_s is not None:
            is_behind = now_s + MOST_APART_S < newest_s
            is_ahead = now_s - MOST_APART_S > newest_s + series.bar_s and machine_s < now_s
            if is_behind or is_ahead:
                raise DataError(
                    where=f"{series} from the exchange's API",
                    rule=f"the exchange's time is within {MOST_APART_S:.0f} s of this machine's, "
                    "or its newest candle bears it out",
                    got=f"{iso(now_s)} from the exchange, {iso(machine_s)} here, "
                    f"and a newest candle that opens at {iso(newest_s)}",
                    fix="Name an address in V8_REST_URL whose answers no proxy keeps, "
                    "or set this machine's clock",
                )
        self._confirmed_ahead_s = ahead_s
        return now_s

    def require(self, series: Series) -> None:
        """Refuse a series of which the exchange has no candle; see `ChecksSeries`."""
        require_listed(series, self.name)
        self._begin_s(series, series.last_closed_s(self.now_s()))

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest closed candles of the exchange; see `CandleSource`."""
        require_num_bars(num_bars, series)
        require_listed(series, self.name)
        now_s = self.confirmed_now_s(series)
        newest_s, last_s = series.last_closed_s(now_s), series.last_wanted_s(now_s, end_s)
        found = self._collected(series, num_bars, last_s, now_s).newest(num_bars, last_s)
        return found.noting(num_newer=(newest_s - last_s) // series.bar_s)

    def _collected(self, series: Series, num_bars: int, last_s: int, now_s: int) -> Candles:
        """Fetch pages, newest first, until they hold enough candles or there are no more."""
        begin_s = self._begin_s(series, last_s) if num_bars > MOST_ROWS else None
        tables: list[pd.DataFrame] = []
        stop_s, num_missing = last_s, num_bars
        while True:
            first_s = max(stop_s - (num_missing - 1) * series.bar_s, begin_s or 0)
            spans = Span(series, first_s, stop_s).pages()
            tables += self.api.downloader.map(self.api.klines, spans)
            frame = pd.concat(reversed(tables), ignore_index=True)
            begin_s = self._begin_s(series, last_s) if begin_s is None and len(frame) < num_bars else begin_s
            stop_s = spans[-1].first_s - series.bar_s
            is_all = begin_s is None or stop_s < begin_s
            if len(frame) or is_all:
                found = check_candles(frame, series, source=self.name, now_s=now_s)
                num_missing = num_bars - len(found)
                if num_missing <= 0 or is_all or found.report.relisted_at:
                    return found

    def _begin_s(self, series: Series, last_s: int) -> int:
        begin_s = self.api.edge_open_s(series, last_s)
        if begin_s is None:
            where = f"{series} from {self.name}"
            rule = f"needs a candle that opens at or before {iso(last_s)}"
            fix = "Check the symbol and the timeframe, or ask for a later time"
            raise DataError(where=where, rule=rule, got="none that the exchange knows", fix=fix)
        return begin_s
