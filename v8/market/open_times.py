"""Open times in every unit that real candle files use, read row by row into one.

A file may mix units within a column, so the unit of a number is decided per row by its magnitude:
between 2001-09 and 2128 a time in seconds, milliseconds, microseconds and nanoseconds falls into four
ranges a factor of 200 apart, and a number outside all four is no time. Text is ISO 8601 or the form
`2020-10-26 11-PM` of public candle files; anything whose day and month could be swapped is refused.
A time without a zone is UTC.
"""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from numbers import Real

import numpy as np
import pandas as pd
from numpy.typing import NDArray

US_PER_S = 1_000_000

_NUMBER_UNITS = (("seconds", 1e9), ("milliseconds", 1e12), ("microseconds", 1e15), ("nanoseconds", 1e18))
"""Name and smallest number of each unit; the largest is five times that (2128)."""

_RANGE = 5.0

_FIRST, _END = np.datetime64("1970-01-01"), np.datetime64("2262-01-01")
"""Dates outside are no open times; the end is that of 64 bits of nanoseconds."""

_WRITTEN_TIMES = (str, Real, Decimal, date, np.datetime64, pd.Period)
_MAX_TEXT = 64  # letters of an open time; the longest form has 35


@dataclass(frozen=True, eq=False)
class OpenTimes:
    """A column of open times in one unit."""

    open_us: NDArray[np.int64]  # microseconds since the epoch, UTC, shape (N,), int64; 0 where unreadable
    is_readable: NDArray[np.bool_]  # which rows held a time, shape (N,), bool
    units: dict[str, int]  # how many rows were written in which unit, unitless counts


def read_open_times(column: pd.Series) -> OpenTimes:
    """Read a column of numbers, dates or text, each row in its own unit.

    Args:
        column: Raw open times, shape (N,): integers, floats, datetimes, or text of either.
    """
    if isinstance(column.dtype, pd.DatetimeTZDtype) or np.issubdtype(np.asarray(column).dtype, np.datetime64):
        return _from_dates(pd.to_datetime(column, utc=True), "datetimes")
    if is_real(column):
        return _from_numbers(column)
    return _from_text(pd.Series([_time_text(item) for item in column.astype(object)], dtype="string"))


def is_real(column: pd.Series) -> bool:
    """Tell whether a column holds real numbers: true and false are none, nor are complex ones."""
    kind = column.dtype
    return (
        pd.api.types.is_numeric_dtype(kind)
        and not pd.api.types.is_bool_dtype(kind)
        and not pd.api.types.is_complex_dtype(kind)
    )


def _time_text(item: object) -> str:
    """Write what may be a time as text; everything else is empty, and so is none."""
    text = str(item).strip() if isinstance(item, _WRITTEN_TIMES) else ""
    return text if len(text) <= _MAX_TEXT and text.isascii() else ""


def iso(open_s: int | float) -> str:
    """Write seconds since the epoch as UTC text.

    >>> iso(1_518_048_000)
    '2018-02-08T00:00:00Z'
    >>> iso(1_518_168_496.812)
    '2018-02-09T09:28:16.812Z'
    """
    moment = pd.Timestamp(round(open_s * US_PER_S), unit="us")
    return f"{moment.isoformat(timespec='auto' if moment.microsecond == 0 else 'milliseconds')}Z"


def _from_numbers(column: pd.Series) -> OpenTimes:
    if pd.api.types.is_integer_dtype(column) and not column.hasnans:
        numbers = column.to_numpy(dtype=np.int64)
    else:
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    open_us = np.zeros(len(numbers), dtype=np.int64)
    is_readable = np.zeros(len(numbers), dtype=np.bool_)
    units = {}
    for name, smallest in _NUMBER_UNITS:
        is_unit = (numbers >= smallest) & (numbers < smallest * _RANGE)
        if is_unit.any():
            chosen = numbers[is_unit]
            # Integers stay integers where float64 cannot hold them: in nanoseconds.
            is_fine = smallest > 1e15
            open_us[is_unit] = chosen // 1_000 if is_fine else np.rint(chosen * round(1e15 / smallest))
            is_readable |= is_unit
            units[name] = int(is_unit.sum())
    return OpenTimes(open_us, is_readable, units)


def _from_text(column: pd.Series) -> OpenTimes:
    numbers = _from_numbers(pd.to_numeric(column, errors="coerce").astype("Float64"))
    dates = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
    is_open = dates.isna()
    dates[is_open] = pd.to_datetime(column[is_open], format="%Y-%m-%d %I-%p", utc=True, errors="coerce")
    # Digits are numbers, never compact dates: 1518048000 is also a date to a lenient reader.
    is_number = pd.to_numeric(column, errors="coerce").notna().to_numpy(dtype=np.bool_)
    read = _from_dates(dates.where(~is_number), "date text")
    return OpenTimes(
        np.where(is_number, numbers.open_us, read.open_us),
        np.where(is_number, numbers.is_readable, read.is_readable),
        numbers.units | read.units,
    )


def _from_dates(dates: pd.Series, unit: str) -> OpenTimes:
    stamps = dates.dt.tz_localize(None).to_numpy()
    is_readable = (stamps >= _FIRST) & (stamps < _END)
    open_us = np.where(is_readable, stamps, _FIRST).astype("datetime64[us]").astype(np.int64)
    counted = int(is_readable.sum())
    return OpenTimes(open_us, is_readable, {unit: counted} if counted else {})
