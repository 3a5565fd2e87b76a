"""What grows with the number of series is written at once while it is small, and now and then later."""

from __future__ import annotations

from v8.base.storage import Pace


class Clock:
    """Time goes on only where a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_of_forty_series_everything_is_written_at_once_and_of_more_a_twentieth_of_the_time() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.is_due(1_000)
    with pace.timed():
        clock.now_s += 0.5
    assert pace.is_due(40)
    assert not pace.is_due(41)
    clock.now_s += 9.9  # 0.5 s of writing is a twentieth of 10 s
    assert not pace.is_due(41)
    clock.now_s += 0.1
    assert pace.is_due(41)


def test_a_file_that_may_be_a_few_seconds_old_is_written_that_often_however_few_series_there_are() -> None:
    clock = Clock()
    pace = Pace(clock, least_s=5.0)
    assert pace.is_due(1)
    with pace.timed():
        clock.now_s += 0.1
    clock.now_s += 4.9
    assert not pace.is_due(1)
    clock.now_s += 0.1
    assert pace.is_due(1)
    assert pace.is_due(41)
