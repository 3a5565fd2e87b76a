"""The exchange's time, kept: asked for once, then counted by this machine's monotonic clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from copy import copy
from typing import Final

from v8.errors import DataError

MOST_AGE_S: Final = 600.0
"""After so many seconds the exchange is asked again; a clock of quartz errs by less than 0.1 s until then."""

REFUSED_S: Final = 30.0
"""An exchange that did not tell is not asked again so soon: forty series would wait for it one by one."""

MOST_DRIFT_S: Final = 2.0
"""A machine that slept, or whose clock was set, is one whose two clocks disagree by more than this."""


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
        """Return the exchange's time, whole seconds since the epoch.

        Raises:
            DataError: If the exchange does not tell.
        """
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
