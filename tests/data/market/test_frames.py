import numpy as np
import pandas as pd
import pytest

from v8.data.market.frames import read_open_times

MIDNIGHT_US = 1_735_689_600_000_000
"""2025-01-01T00:00:00Z: 20,089 days of 86,400 s since the epoch, in microseconds."""


@pytest.mark.parametrize(
    ("written", "unit"),
    [
        (1_735_689_600, "seconds"),
        (1_735_689_600.0, "seconds"),
        (1_735_689_600_000, "milliseconds"),
        (1_735_689_600_000_000, "microseconds"),
        (1_735_689_600_000_000_000, "nanoseconds"),
        ("1735689600000", "milliseconds"),
        ("2025-01-01", "date text"),
        ("2025-01-01 00:00:00", "date text"),
        ("2025-01-01T01:00:00+01:00", "date text"),
        ("2025-01-01 12-AM", "date text"),
        (pd.Timestamp("2025-01-01"), "datetimes"),
        (pd.Timestamp("2025-01-01T08:00:00+08:00"), "datetimes"),
    ],
)
def test_every_way_to_write_one_moment_reads_the_same(written, unit):
    times = read_open_times(pd.Series([written]))
    assert times.open_us.tolist() == [MIDNIGHT_US]
    assert times.units == {unit: 1}


def test_the_unit_is_decided_row_by_row():
    times = read_open_times(pd.Series([1_735_689_600.0, 1_735_689_600_000.0, 1_735_689_600_000_000.0]))
    assert times.open_us.tolist() == [MIDNIGHT_US] * 3
    assert times.units == {"seconds": 1, "milliseconds": 1, "microseconds": 1}


def test_a_column_may_mix_numbers_and_text():
    times = read_open_times(pd.Series([1_735_689_600_000, "2025-01-01 12-PM"], dtype=object))
    assert (times.open_us - MIDNIGHT_US).tolist() == [0, 12 * 3_600 * 1_000_000]


def test_fractions_of_a_second_survive():
    assert read_open_times(pd.Series([1_518_168_496.812])).open_us.tolist() == [1_518_168_496_812_000]


@pytest.mark.parametrize("written", [0, -1, 20240101, 6_000_000_000, np.nan, "01/02/2024", "soon", "", None])
def test_what_is_no_time_is_marked_and_not_guessed(written):
    times = read_open_times(pd.Series([1_735_689_600_000, written]))
    assert times.is_readable.tolist() == [True, False]
