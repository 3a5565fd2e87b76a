"""How fast a run goes: which series are at work, and about how long the rest of it takes.

The estimate comes from the clock. A series takes as long as from the end of the one before it to its own end,
evaluating, saving and drawing the report included, and as many run side by side as have been at work
together. The first series of each process also imports and compiles what the later ones find ready, which may
take longer than all else. So there is no estimate until a later one has ended, unless the first ones took so
long that compiling is little of it.

What a run took is saved (`RunCost`), and estimates later runs of its profile before they begin.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Final

from pydantic import Field

from v8.base.records import Count, Number
from v8.data.market.series import Series
from v8.model.baselines.baselines import BASELINES
from v8.profile.profile import Profile
from v8.runs.events import Event, RunObserver, SeriesOutcome, SeriesStarted
from v8.runs.machine import read_measurement, write_measurement

_NUM_RECENT: Final = 12
"""Series whose times are averaged: those of long ago had the machine under another load."""
_LONG_S: Final = 300.0
"""Seconds that a process's first series must take for its time to be used for the others."""
_OVERDUE_SHARE: Final = 0.25
"""Of a series that already took longer than usual, this share of the usual time is taken to be left."""


@dataclass(frozen=True)
class RunCost:
    """What a call took from the first series' start to the end of the last."""

    num_series: Annotated[Count, Field(gt=0)]  # series it trained, evaluated and saved
    seconds: Number  # wall time
    series_s: Number  # wall time of one series
    num_side_by_side: Annotated[Count, Field(gt=0)]  # series at work at the same time
    own_s: Number | None = None
    """Seconds of the stages of one series without compiling, or of its whole fleet if it trained in one; None
    if they were not measured."""
    fleet_size: Annotated[Count, Field(gt=0)] = 1  # most series that trained in one program

    @property
    def was_one_round(self) -> bool:
        """Whether all series were at work at the same time: none started after another had ended."""
        return self.num_series == self.num_side_by_side

    def estimated_s(self, num_series: int) -> float | None:
        """Return about how long so many series take, seconds; None where that cannot be estimated.

        Every further round of series takes as long as a series took; where all were at work together, as
        long as the own stages of one. A fleet of fewer series takes as much less of its own stages.

        >>> RunCost(4, 50.0, 20.0, 2).estimated_s(40)  # four: two rounds, and 10 s before; forty: twenty
        410.0
        >>> RunCost(2, 30.0, 30.0, 2, own_s=8.0).estimated_s(40)  # one round, 22 s of it once; nineteen more
        182.0
        >>> RunCost(2, 30.0, 30.0, 2).estimated_s(40)  # what is done once is not known apart
        >>> RunCost(40, 360.0, 360.0, 40, 320.0, 20).estimated_s(2)  # two fleets; 40 s once, a 20th of 320 s
        56.0
        """
        least_rounds = 1 / self.fleet_size if self.was_one_round and self.own_s else 1.0
        rounds = max(least_rounds, num_series / self.num_side_by_side)
        known_rounds = max(1.0, self.num_series / self.num_side_by_side)
        if rounds == known_rounds:
            return self.seconds
        round_s = self.own_s if self.was_one_round else self.series_s
        if round_s is None:
            return None
        return max(0.0, self.seconds + round_s * (rounds - known_rounds))


@dataclass(frozen=True)
class SeriesAtWork:
    """A series that has started and not ended."""

    started_s: float  # on the clock
    is_first: bool  # whether it is the first one of its process


class ProgressEstimate(RunObserver):
    """Which of `num_series` series are at work, how many have ended, and how long the others may take."""

    def __init__(self, num_series: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_series = num_series
        self.num_ended = 0
        self.at_work: dict[Series, SeriesAtWork] = {}
        self._clock = clock
        self._created_s = clock()
        self._num_side_by_side = 1
        self._idle_since_s: deque[float] = deque()
        """When those series ended in whose place no other has started."""
        self._ends_s: list[float] = []
        """When series ended, since one was last started."""
        self._first_times_s = deque[float](maxlen=_NUM_RECENT)
        """Durations of series that were the first of their process."""
        self._later_times_s = deque[float](maxlen=_NUM_RECENT)
        self._num_later = 0
        self._all_later_s = 0.0
        """Sum of the durations of all later series of the run, not of the recent ones alone."""
        self._own_times_s = deque[float](maxlen=_NUM_RECENT)
        """Durations of a series' or its fleet's own stages, without compiling."""
        self._fleet_size = 1

    def on_event(self, event: Event) -> None:
        """Take note of a series that started, maybe for a second time, or ended."""
        if isinstance(event, SeriesStarted):
            self._start(event.series)
        elif isinstance(event, SeriesOutcome):
            self.num_ended += 1
            if event.series in self.at_work:
                self._end(event)

    def _start(self, series: Series) -> None:
        is_first = not self._idle_since_s
        # From the end of the one before: what is done in between delays the run as well.
        started_s = self._clock() if is_first else self._idle_since_s.popleft()
        self.at_work[series] = SeriesAtWork(started_s, is_first)
        self._num_side_by_side = max(self._num_side_by_side, len(self.at_work))
        self._ends_s.clear()

    def _end(self, outcome: SeriesOutcome) -> None:
        ended = self.at_work.pop(outcome.series)
        now_s = self._clock()
        self._ends_s.append(now_s)
        self._idle_since_s.append(now_s)
        if outcome.reason is not None:
            return  # only a finished series shows how long series take
        times_s = self._first_times_s if ended.is_first else self._later_times_s
        times_s.append(now_s - ended.started_s)
        if not ended.is_first:
            self._num_later += 1
            self._all_later_s += now_s - ended.started_s
        if outcome.seconds:
            # A fleet is at work as long as the shares of its series add up to.
            self._fleet_size = max(self._fleet_size, outcome.fleet_size)
            self._own_times_s.append((outcome.seconds - outcome.compile_s) * outcome.fleet_size)

    @property
    def left_s(self) -> float | None:
        """About how long the rest takes, seconds; None while nothing is known, and when nothing is left."""
        # Copies: a display asks from a thread of its own.
        at_work = list(self.at_work.values())
        ends_s = list(self._ends_s)
        later_times_s = list(self._later_times_s)
        long_first_times_s = [time_s for time_s in self._first_times_s if time_s >= _LONG_S]
        num_left = self.num_series - self.num_ended
        num_waiting = num_left - len(at_work)
        if num_left and not num_waiting and len(ends_s) > 1:  # those of one program end one after another
            return (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1) * num_left
        times_s = later_times_s or long_first_times_s
        if not times_s or not num_left:
            return None
        usual_s = fmean(times_s)
        now_s = self._clock()
        ages_s = [now_s - series.started_s for series in at_work]
        rests_s = [max(usual_s * _OVERDUE_SHARE, usual_s - age_s) for age_s in ages_s]
        total_s = sum(rests_s) + usual_s * num_waiting
        shared_s = total_s / min(self._num_side_by_side, num_left)
        return max([shared_s, 0.0, *rests_s])

    def cost(self, num_trained: int) -> RunCost:
        """Return what the run cost until now, of which so many series were finished, at least one."""
        total_s = self._clock() - self._created_s
        # Of all series: what those before the recent ones took longer is not done once in a run.
        series_s = fmean(self._first_times_s or [total_s])
        if self._num_later:
            series_s = self._all_later_s / self._num_later
        own_s = round(fmean(self._own_times_s), 3) if self._own_times_s else None
        return RunCost(
            num_series=num_trained,
            seconds=round(total_s, 3),
            series_s=round(series_s, 3),
            num_side_by_side=self._num_side_by_side,
            own_s=own_s,
            fleet_size=self._fleet_size,
        )


def known_cost(profile: Profile) -> RunCost | None:
    """Return what a run of a profile took here, with its bars, epochs and baselines; None if unknown."""
    return read_measurement(RunCost, "run", _cost_key(profile))


def save_cost(profile: Profile, cost: RunCost) -> None:
    """Save what a run took, unless the cost of a run of more series is known."""
    earlier = known_cost(profile)
    if earlier is None or earlier.num_series <= cost.num_series:
        write_measurement(RunCost, "run", _cost_key(profile), cost)


def _cost_key(profile: Profile) -> dict[str, Any]:
    return {
        "profile": profile.model_dump(mode="json", exclude={"name", "description", "seed"}),
        "baselines": [name for name, baseline in BASELINES.items() if baseline.is_installed()],
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
