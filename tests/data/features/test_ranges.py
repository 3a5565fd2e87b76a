"""Ranges, moves and times in markets simple enough to work out by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from indicator_values import compute

TIMES = {
    # Monday midnight: both periods begin. Thursday noon: half of a day and (3 + 1/2) / 7 = half of a week.
    datetime(2024, 1, 1, tzinfo=UTC): ([0, 1, 0, 1, 0, 1], [0, 1, 0, 1]),
    datetime(2026, 11, 19, 12, tzinfo=UTC): ([0, -1, 0, 1, 0, -1], [0, -1, 0, 1]),
    # Tuesday 18:00: three quarters of a day and (1 + 3/4) / 7 = a quarter of a week.
    datetime(1970, 1, 6, 18, tzinfo=UTC): ([-1, 0, 0, -1, 1, 0], [1, 0, 0, -1]),
    # Thursday midnight 1970, where the epoch begins: 3 / 7 of a week.
    datetime(1970, 1, 1, tzinfo=UTC): (
        [0, 1, 0, 1, 0, 1],
        [0.4338837391, -0.9009688679, -0.7818314825, 0.6234898019],
    ),
}


@pytest.mark.parametrize("time", TIMES, ids=lambda time: f"{time:%A %H:%M %Y}")
def test_waves_tell_the_time_of_the_day_and_of_the_week(time: datetime) -> None:
    day = [f"day_{wave}_{waves}" for waves in (1, 2, 3) for wave in ("sin", "cos")]
    week = [f"week_{wave}_{waves}" for waves in (1, 2) for wave in ("sin", "cos")]
    values = compute([*day, *week], {"open_time": np.array([time.timestamp()])})
    for names, expected in zip((day, week), TIMES[time], strict=True):
        assert [float(values[name][0]) for name in names] == pytest.approx(expected, abs=1e-9)


def test_fast_waves_tell_the_quarter_of_the_hour() -> None:
    monday = datetime(2024, 1, 1, 18, tzinfo=UTC).timestamp()
    names = ["day_sin_24", "day_cos_24", "day_sin_48", "day_cos_48"]
    values = compute(names, {"open_time": monday + 900.0 * np.arange(4)})
    # An hour is one of 24 waves, and two of 48: its quarters are a half of the faster wave each.
    expected = [[0, 1, 0, -1], [1, 0, -1, 0], [0, 0, 0, 0], [1, -1, 1, -1]]
    assert [values[name].tolist() for name in names] == expected


@pytest.mark.parametrize(("bar_hours", "name"), [(4, "day_sin_3"), (12, "day_sin_1"), (24, "day_sin_2")])
def test_a_wave_that_every_bar_meets_at_zero_is_exactly_zero(bar_hours: int, name: str) -> None:
    """Rounding errors of 1e-16 would become the whole column when it is brought to unit size."""
    times = 1_700_006_400.0 + 3600 * bar_hours * np.arange(100)  # 2023-11-15 00:00
    assert compute([name], {"open_time": times})[name].tolist() == [0.0] * 100
