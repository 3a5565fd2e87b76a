"""How fast a run goes: which series are at work, and about how long the rest of it takes.

It comes from the clock and from what ended: a series takes as long as from the end of the one before it to
its own, evaluating, saving and drawing the report included, and as many run side by side as were seen to. The
first one of each process also imports and compiles what the others find ready, which may take longer than all
else; so nothing is told until one of the others has ended, unless the first ones took so long that this is
little of it.
"""

import time
from collections import deque
from collections.abc import Callable
from statistics import fmean
from typing import Final

from v8.market.series import Series
from v8.runs.events import Event, Outcome, SeriesStarted
from v8.runs.plan import RunCost

_NUM_RECENT: Final = 12
"""Series whose times are averaged: those of long ago would tell of another load than there is now."""
_LONG_S: Final = 300.0  # what a first series takes at least, in seconds, to tell how long others take
_OVERDUE_SHARE: Final = 0.25
"""What is taken to be left, as a share of what a series usually takes, of one that has had its time."""


class Pace:
    """Which of `num_series` series are at work, how many have ended, and how long the others may take."""

    def __init__(self, num_series: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_series = num_series
        self.num_ended = 0
        self._clock = clock
        self._begun_s = clock()
        self._num_side_by_side = 1
        self.at_work: dict[Series, tuple[float, bool]] = {}
        """When each was begun, and whether it is the first one of its process."""
        self._freed_s: deque[float] = deque()  # when those ended in whose place nothing is begun yet
        self._ends_s: list[float] = []  # of those that have ended since one was begun
        self._first_s, self._later_s = (deque[float](maxlen=_NUM_RECENT) for _ in range(2))
        self._own_s = deque[float](maxlen=_NUM_RECENT)  # of a series or its fleet, without compiling

    def __call__(self, event: Event) -> None:
        """Take note of a series that is begun, maybe for a second time, or has ended."""
        if isinstance(event, SeriesStarted):
            # From the end of the one before: what is done in between delays the run as well.
            is_first = not self._freed_s
            self.at_work[event.series] = self._clock() if is_first else self._freed_s.popleft(), is_first
            self._num_side_by_side = max(self._num_side_by_side, len(self.at_work))
            self._ends_s.clear()
        elif isinstance(event, Outcome):
            self.num_ended += 1
            if event.series in self.at_work:
                begun_s, is_first = self.at_work.pop(event.series)
                self._ends_s.append(self._clock())
                self._freed_s.append(self._ends_s[-1])
                if event.reason is None:  # only a finished one tells how long series take
                    times = self._first_s if is_first else self._later_s
                    times.append(self._ends_s[-1] - begun_s)
                    if event.seconds:
                        # A fleet is at work as long as the shares of its series add up to.
                        self._own_s.append((event.seconds - event.once_s) * event.fleet_size)

    @property
    def left_s(self) -> float | None:
        """About how long the rest takes, seconds; None while nothing is known, and when nothing is left."""
        # Copies: a display asks from a thread of its own.
        at_work = [*self.at_work.values()]
        ends_s = [*self._ends_s]
        times = [*self._later_s] or [each_s for each_s in self._first_s if each_s >= _LONG_S]
        num_left = self.num_series - self.num_ended
        num_waiting = num_left - len(at_work)
        if num_left and not num_waiting and len(ends_s) > 1:  # those of one program end one after another
            return (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1) * num_left
        if not times or not num_left:
            return None
        each_s = fmean(times)
        ages_s = [self._clock() - begun_s for begun_s, _ in at_work]
        rests_s = [max(each_s * _OVERDUE_SHARE, each_s - age_s) for age_s in ages_s]
        total_s = sum(rests_s) + each_s * num_waiting
        return max(total_s / min(self._num_side_by_side, num_left), *rests_s, 0.0)

    def cost(self, num_trained: int) -> RunCost:
        """Return what the run cost until now, of which so many series were finished, at least one."""
        took_s = self._clock() - self._begun_s
        series_s = fmean(self._later_s or self._first_s or [took_s])
        own_s = round(fmean(self._own_s), 3) if self._own_s else None
        return RunCost(num_trained, round(took_s, 3), round(series_s, 3), self._num_side_by_side, own_s)
