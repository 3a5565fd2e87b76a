"""Markets that close are told by the hours at which they do; outages, whatever their length, are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from v8.base.errors import DataError
from v8.data.market.checks import check_candles, closed_hours
from v8.data.market.series import WEEK_S, Series

DAY_S = 86_400
HOUR_S = 3_600
MONDAY_S = 1_704_067_200
"""2024-01-01T00:00:00Z."""


def hours(num_weeks: int, bar_s: int = HOUR_S) -> NDArray[np.int64]:
    return MONDAY_S + np.arange(0, num_weeks * WEEK_S, bar_s, dtype=np.int64)


def stocks(num_days: int, bar_s: int) -> NDArray[np.int64]:
    """Open from 13:30 to 20:00 on weekdays, but not on New Year's Day."""
    days = pd.date_range("2024-01-02", periods=num_days, freq="B").as_unit("s").to_numpy().astype(np.int64)
    return np.concatenate([np.arange(day + 48_600, day + 72_000, bar_s) for day in days])


def without(times: NDArray[np.int64], first_hour: int, num_hours: int) -> NDArray[np.int64]:
    start_s = MONDAY_S + first_hour * HOUR_S
    return times[(times < start_s) | (times >= start_s + num_hours * HOUR_S)]


@pytest.mark.parametrize("bar_s", [60, 900, 1_800, 3_600])
def test_stocks_are_closed_at_night_and_at_the_weekend(bar_s: int) -> None:
    assert closed_hours(stocks(30, bar_s), bar_s) == "133 of the 168 hours of every week (6 weeks)"
    assert closed_hours(stocks(5, bar_s), bar_s) is None or bar_s < HOUR_S
    assert closed_hours(stocks(9, bar_s), bar_s) == "17 of the 24 hours of every day (7 days)"


def test_days_without_weekends_and_currencies_are_closed_too() -> None:
    weekdays = hours(8, DAY_S)[np.arange(56) % 7 < 5]
    assert closed_hours(weekdays, DAY_S) == "48 of the 168 hours of every week (7 weeks)"
    for bar_s in (300, HOUR_S, 4 * HOUR_S):
        times = hours(5, bar_s)
        within_s = (times - MONDAY_S) % WEEK_S
        closed = closed_hours(
            times[(within_s < 4 * DAY_S + 79_200) | (within_s >= 6 * DAY_S + 79_200)], bar_s
        )
        assert closed is not None and "of every week" in closed


def test_outages_are_no_closing_hours() -> None:
    times = hours(4)
    assert closed_hours(times, HOUR_S) is None
    assert closed_hours(without(times, 40, 437), HOUR_S) is None  # LUNA's, longer than a week
    assert closed_hours(without(without(times, 100, 33), 268, 33), HOUR_S) is None  # twice at the same hours
    weekly = times[(times - MONDAY_S) % WEEK_S >= 4 * HOUR_S]  # maintenance, four hours a week
    assert closed_hours(weekly, HOUR_S) is None
    assert closed_hours(without(hours(1), 20, 100), HOUR_S) is None
    quiet = times[np.random.default_rng(0).random(len(times)) > 0.4]  # a coin that often is not traded
    assert closed_hours(quiet, HOUR_S) is None
    assert closed_hours(times[:1], HOUR_S) is None
    assert closed_hours(hours(50, WEEK_S), WEEK_S) is None


def test_a_market_that_closes_is_refused_when_its_candles_are_checked(valid_frame: Any) -> None:
    times = stocks(30, HOUR_S)
    frame = valid_frame(len(times), HOUR_S).assign(open_time=times)
    with pytest.raises(DataError, match=r"AAPL-1h from files: .*got a market without.*133.*168"):
        check_candles(frame, Series("AAPL", "1h"), source="files")
