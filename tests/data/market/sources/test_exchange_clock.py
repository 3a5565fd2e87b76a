import pytest

from v8.base.errors import DataError
from v8.data.market.sources.rest import ExchangeClock


class Clocks:
    """Three clocks: the exchange's, one of seconds that pass, and this machine's."""

    def __init__(self) -> None:
        self.exchange_s = 1_725_451_620.9
        self.passed_s = 50.0
        self.wall_s = 1e9
        self.num_asked = 0

    def pass_on(self, seconds: float, *, slept_s: float = 0.0) -> None:
        self.exchange_s += seconds + slept_s
        self.wall_s += seconds + slept_s
        self.passed_s += seconds  # a machine that sleeps does not count

    def ask(self) -> float:
        self.num_asked += 1
        return self.exchange_s


def kept(clocks: Clocks, **options: float) -> ExchangeClock:
    return ExchangeClock(clocks.ask, monotonic=lambda: clocks.passed_s, wall=lambda: clocks.wall_s, **options)


def test_the_exchange_is_asked_once_and_its_seconds_are_counted() -> None:
    clocks = Clocks()
    clock = kept(clocks)
    assert (clock.now_s(), round(clock.ahead_s)) == (1_725_451_620, round(1e9 - 1_725_451_620.9))
    clocks.pass_on(59.1)
    assert (clock.now_s(), clocks.num_asked) == (1_725_451_680, 1)


def test_it_is_asked_again_after_minutes_a_sleep_and_a_set_clock() -> None:
    clocks = Clocks()
    clock = kept(clocks)
    clock.now_s()
    clocks.pass_on(601)
    assert (clock.now_s(), clocks.num_asked) == (int(clocks.exchange_s), 2)
    clocks.pass_on(1, slept_s=3_600)
    assert (clock.now_s(), clocks.num_asked) == (int(clocks.exchange_s), 3)
    clocks.wall_s -= 86_400
    assert (clock.now_s(), clocks.num_asked) == (int(clocks.exchange_s), 4)


def test_who_did_not_tell_is_not_asked_again_for_half_a_minute() -> None:
    clocks = Clocks()
    refused: list[int] = []

    def ask() -> float:
        refused.append(clocks.ask())
        if len(refused) < 3:
            raise DataError(where="the time", rule="must be told", got="nothing", fix="Wait")
        return clocks.exchange_s

    clock = ExchangeClock(ask, monotonic=lambda: clocks.passed_s, wall=lambda: clocks.wall_s)
    for seconds in (0, 29, 2):
        clocks.pass_on(seconds)
        with pytest.raises(DataError, match=r"the time: must be told; got nothing\. Wait\."):
            clock.now_s()
    assert clocks.num_asked == 2
    clocks.pass_on(31)
    assert clock.now_s() == int(clocks.exchange_s)


def test_a_clock_that_keeps_nothing_asks_each_time() -> None:
    clocks = Clocks()
    clock = kept(clocks, most_age_s=0)
    assert [clock.now_s(), clock.now_s()] == [int(clocks.exchange_s)] * 2
    assert clocks.num_asked == 2
