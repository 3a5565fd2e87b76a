"""How long the rest of a run takes: told from the clock, and never wrong by a factor once it is told."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from v8.data.market.series import Series
from v8.runs.estimate import ProgressEstimate, RunCost
from v8.runs.events import SeriesOutcome, SeriesStarted


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def names(num: int) -> list[Series]:
    return [Series(f"COIN{number}USDT", "1h") for number in range(num)]


def workers(
    num_series: int, num_workers: int, series_s: float, *, once_s: float, spread: float
) -> Iterator[tuple[float, float | None]]:
    """Let workers make series one after another; yield how long was told to be left, and how long it was.

    The first of each worker takes `once_s` longer.
    """
    chance = random.Random(7)
    clock = Clock()
    pace = ProgressEstimate(num_series, clock)
    waiting = names(num_series)
    ends = []
    messages = []

    def begin(is_first: bool) -> None:
        series = waiting.pop(0)
        pace.on_event(SeriesStarted(series))
        takes_s = series_s * chance.uniform(1 - spread, 1 + spread) + (once_s if is_first else 0.0)
        ends.append((clock.now_s + takes_s, series))

    for _ in range(num_workers):
        begin(is_first=True)
    while ends:
        ends.sort()
        end_s, series = ends.pop(0)
        for share in (0.5, 1.0):  # also between two ends, when a terminal is drawn
            clock.now_s += (end_s - clock.now_s) * share
            messages.append((clock.now_s, pace.left_s))
        pace.on_event(SeriesOutcome(series))
        if waiting:
            begin(is_first=False)
        messages.append((clock.now_s, pace.left_s))
    for moment_s, left_s in messages:
        yield clock.now_s - moment_s, left_s


@pytest.mark.parametrize("num_workers", [1, 2, 8])
@pytest.mark.parametrize("once_s", [0.0, 30.0])
def test_what_is_told_is_right_within_a_factor_of_two(num_workers: int, once_s: float) -> None:
    told = 0
    for true_s, left_s in workers(40, num_workers, 10.0, once_s=once_s, spread=0.3):
        if left_s is not None and true_s > 10.0:
            assert 0.5 < left_s / true_s < 2.0, (true_s, left_s)
            told += 1
    assert told > 60 / num_workers


def test_nothing_is_told_before_a_series_is_finished_and_when_nothing_is_left() -> None:
    clock = Clock()
    pace = ProgressEstimate(2, clock)
    one, two = names(2)
    pace.on_event(SeriesStarted(one))
    clock.now_s += 5.0
    assert pace.left_s is None
    pace.on_event(SeriesOutcome(one, reason="lost."))
    pace.on_event(SeriesStarted(two))
    assert pace.left_s is None  # a failure tells nothing about time
    pace.on_event(SeriesOutcome(two))
    assert pace.left_s is None
    assert (pace.num_ended, pace.at_work) == (2, {})


def test_time_goes_on_between_two_ends() -> None:
    clock = Clock()
    pace = ProgressEstimate(4, clock)
    (none, one, two) = names(3)
    for series in (none, one):
        pace.on_event(SeriesStarted(series))
        clock.now_s += 40.0
        pace.on_event(SeriesOutcome(series))
    pace.on_event(SeriesStarted(two))
    assert pace.left_s == 80.0
    clock.now_s += 10.0
    assert pace.left_s == 70.0
    clock.now_s += (
        90.0  # it had its time long ago: a quarter of 40 s is taken to be left of it, and 40 s after
    )
    assert pace.left_s == 50.0


def test_series_that_all_ran_at_once_tell_what_others_will_by_their_own_stages() -> None:
    clock = Clock()
    pace = ProgressEstimate(2, clock)
    both = names(2)
    for series in both:
        pace.on_event(SeriesStarted(series))
    clock.now_s += 30.0  # 12 s until a process has started, 10 s of compiling, and 8 s
    for series in both:
        pace.on_event(SeriesOutcome(series, seconds=18.0, compile_s=10.0))
    assert pace.cost(2) == RunCost(2, 30.0, 30.0, 2, own_s=8.0)
    # 40 series are 20 rounds, 19 of them more: 30 s and 19 times 8 s.
    assert pace.cost(2).estimated_s(40) == 182.0
    assert pace.cost(2).estimated_s(1) == 30.0


def test_a_fleet_that_ran_at_once_tells_what_others_will() -> None:
    clock = Clock()
    pace = ProgressEstimate(4, clock)
    fleet = names(4)
    for series in fleet:
        pace.on_event(SeriesStarted(series))
    clock.now_s += 60.0  # 20 s of compiling for all, and 10 s for each
    for series in fleet:
        pace.on_event(SeriesOutcome(series, seconds=15.0, compile_s=5.0, fleet_size=4))
    # 40 series are ten fleets: 60 s, and 40 s for each of nine more.
    assert pace.cost(4).estimated_s(40) == 420.0
    # Fewer are a smaller fleet: 20 s once, and 10 s for each.
    assert [pace.cost(4).estimated_s(number) for number in (4, 3, 2, 1)] == [60.0, 50.0, 40.0, 30.0]


def test_what_a_run_cost_tells_what_others_will() -> None:
    clock = Clock()
    pace = ProgressEstimate(4, clock)
    waiting = names(4)
    at_work = []
    at_work += [waiting.pop(), waiting.pop()]
    for series in at_work:
        pace.on_event(SeriesStarted(series))
    clock.now_s += 30.0  # 20 s and 10 s of compiling
    for series in at_work:
        pace.on_event(SeriesOutcome(series))
    assert pace.cost(2) == RunCost(2, 30.0, 30.0, 2)
    assert [pace.cost(2).estimated_s(number) for number in (1, 2, 3)] == [30.0, 30.0, None]
    for series in waiting:
        pace.on_event(SeriesStarted(series))
    clock.now_s += 20.0
    for series in waiting:
        pace.on_event(SeriesOutcome(series))
    cost = pace.cost(4)
    assert cost == RunCost(4, 50.0, 20.0, 2)
    assert [cost.estimated_s(number) for number in (1, 2, 4, 40)] == [30.0, 30.0, 50.0, 410.0]
