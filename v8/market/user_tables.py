"""Tables of the user's: columns of numbers with times, such as funding rates, read from CSV or a frame.

A row counts for a bar that closes at or after the row's time and `available_after_s`, and at most `max_age_s`
after its time, until a newer row counts; so a bar sees nothing that was not known when it closed. Nothing is
guessed: times have a zone or are numbers since the epoch, rise from row to row, and every value is a number.

Shapes: R rows, N bars.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.errors import DataError, listed
from v8.market.candles import MAX_VALUE
from v8.market.open_times import US_PER_S, read_open_times
from v8.market.separated import require_closed_quotes, uneven
from v8.profile import TABLES_PLACE, TableSettings
from v8.redaction import shown
from v8.user_files import read_given

MAX_TABLE_BYTES: Final = 2**28
"""A row a minute for ten years has 150 MB."""

_SEPARATORS: Final = ",;\t|"
_ZONED: Final = re.compile(r"(?:Z|UTC|[+-]\d\d:?\d\d)$", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d+(?:\.\d*)?")
_MEND_TIMES: Final = "Write times in UTC as 2024-01-31T16:00:00Z, or in seconds since the epoch"


@dataclass(frozen=True, eq=False)
class UserTable:
    """A checked table of the user's.

    Args:
        settings: What the profile says of it.
        time_us: Times of its rows, microseconds since the epoch, UTC, ascending, shape (R,), int64.
        columns: By name, finite, shape (R,), float64.
    """

    settings: TableSettings
    time_us: NDArray[np.int64]
    columns: Mapping[str, NDArray[np.float64]]

    def rows_known(self, close_s: NDArray[np.int64]) -> NDArray[np.intp]:
        """Find the row that counts for each bar.

        Args:
            close_s: When the bars close, seconds since the epoch, UTC, shape (N,).

        Returns:
            Numbers of rows, shape (N,); -1 where none counts.
        """
        known_us = self.time_us + self.settings.available_after_s * US_PER_S
        close_us = close_s * US_PER_S
        rows = np.searchsorted(known_us, close_us, side="right") - 1
        is_fresh = close_us - self.time_us[rows] <= self.settings.max_age_s * US_PER_S
        return np.where((rows >= 0) & is_fresh, rows, -1)

    def to_csv(self) -> str:
        """Write it as the CSV that reads back as the same numbers: times in microseconds since the epoch."""
        frame = pd.DataFrame({self.settings.time: self.time_us, **self.columns})
        return str(frame.to_csv(index=False, lineterminator="\n"))


def tables_folder() -> Path:
    """Return the folder of the user's tables."""
    return Path(os.environ.get(TABLES_PLACE) or ".").expanduser()


def read_user_table(settings: TableSettings) -> UserTable:
    """Read the CSV of a table from the folder of tables.

    Raises:
        DataError: If it is not there, or not what its profile says.
    """
    path = tables_folder() / settings.file
    where = f"covariates of the profile, {path}"
    try:
        text = read_given(path, MAX_TABLE_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        got = getattr(error, "strerror", None) or "a file that is no UTF-8 text"
        raise DataError(
            where=where,
            rule="must be a CSV that can be read",
            got="no such file" if isinstance(error, FileNotFoundError) else got,
            fix=f"Name the folder that holds it with --tables FOLDER or by {TABLES_PLACE}, or give "
            f'covariates={{"{settings.file}": table}} in Python',
        ) from error
    return user_table(_frame(text, settings, where), settings, where)


def user_table(given: Any, settings: TableSettings, where: str) -> UserTable:
    """Check a table in memory.

    Args:
        given: A frame, or columns by name, with the time as a column or as the index.
        settings: What the profile says of it.
        where: Name of the table, for errors.

    Raises:
        DataError: If a column is missing, or a time or value is not what it must be.
    """
    frame = _with_time(given, settings, where)
    time_us = _times(frame[settings.time], where)
    columns = {name: _numbers(frame[name], name, where) for name in settings.columns}
    return UserTable(settings, time_us, columns)


def _frame(text: str, settings: TableSettings, where: str) -> pd.DataFrame:
    """Read the columns that are needed as text; the header says what parts values."""
    wanted = [settings.time, *settings.columns]
    header = text.partition("\n")[0].strip()
    separator = max(_SEPARATORS, key=header.count)
    require_closed_quotes(text, separator, where)
    lines = io.StringIO(text, newline=None)
    try:
        names, *rows = [row for row in csv.reader(lines, delimiter=separator) if row] or [[]]
    except csv.Error as error:
        raise uneven(where, str(error)) from error
    names = [name.strip() for name in names]
    if any(names.count(name) != 1 for name in wanted):
        raise _unlike(where, wanted, [shown(name, 40) for name in names])
    if found := next((number for number, row in enumerate(rows, 1) if len(row) != len(names)), None):
        raise uneven(where, f"{len(rows[found - 1])} values in row {found}, and {len(names)} columns")
    return pd.DataFrame({name: [row[names.index(name)] for row in rows] for name in wanted}, dtype=object)


def _with_time(given: Any, settings: TableSettings, where: str) -> pd.DataFrame:
    try:
        frame = given if isinstance(given, pd.DataFrame) else pd.DataFrame(given)
    except (ValueError, TypeError) as error:
        raise _unlike(where, [settings.time, *settings.columns], [type(given).__name__]) from error
    is_indexed = settings.time not in frame.columns and (
        frame.index.name == settings.time or isinstance(frame.index, pd.DatetimeIndex)
    )
    frame = frame.reset_index(names=settings.time) if is_indexed else frame
    wanted, names = [settings.time, *settings.columns], list(map(str, frame.columns))
    if any(names.count(name) != 1 for name in wanted):
        raise _unlike(where, wanted, [shown(name, 40) for name in names])
    if not len(frame):
        raise DataError(where=where, rule="needs at least one row", got="none", fix="Add rows")
    return frame


def _unlike(where: str, wanted: list[str], got: list[str]) -> DataError:
    return DataError(
        where=where,
        rule=f"needs a table with the columns {', '.join(wanted)}, each once",
        got=listed(got) if got else "none",
        fix="Correct its header, or covariates in the profile",
    )


def _times(column: pd.Series, where: str) -> NDArray[np.int64]:
    """Return the times of the rows, refusing those that could mean another moment."""
    if naive := _first(column, _is_naive(column)):
        raise DataError(where=where, rule="a time tells its zone", got=naive, fix=_MEND_TIMES)
    times = read_open_times(column)
    if unreadable := _first(column, ~times.is_readable):
        raise DataError(
            where=where,
            rule="every row has a time: s, ms, us or ns since the epoch after 2001-09, or ISO 8601 text",
            got=unreadable,
            fix=_MEND_TIMES,
        )
    steps = np.diff(times.open_us, prepend=times.open_us[0] - 1)
    if disordered := _first(column, steps <= 0):
        raise DataError(
            where=where,
            rule="times rise from row to row, each there once",
            got=disordered,
            fix="Sort the rows by time, and leave one row of each time",
        )
    return times.open_us


def _is_naive(column: pd.Series) -> NDArray[np.bool_]:
    """Tell which times are text or dates without a zone."""
    if isinstance(column.dtype, pd.DatetimeTZDtype) or pd.api.types.is_numeric_dtype(column.dtype):
        return np.zeros(len(column), np.bool_)
    texts = column.astype(str).str.strip()
    is_told = texts.str.contains(_ZONED) | texts.str.fullmatch(_NUMBER) | (texts == "")
    return np.asarray(~is_told, np.bool_)


def _numbers(column: pd.Series, name: str, where: str) -> NDArray[np.float64]:
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    with np.errstate(invalid="ignore"):
        is_wrong = ~(np.abs(values) <= MAX_VALUE)
    if wrong := _first(column, is_wrong):
        raise DataError(
            where=f"{where}, column {name}",
            rule="every row has a number, up to 1e18",
            got=wrong,
            fix="Leave out the rows that have none; the row before them counts on until max_age_s",
        )
    return values


def _first(column: pd.Series, is_wrong: NDArray[np.bool_]) -> str:
    """Tell the first row at fault, counted from 1, and how many there are; nothing where none is."""
    rows = np.flatnonzero(is_wrong)
    if not len(rows):
        return ""
    others = f" ({len(rows)} such rows)" if len(rows) > 1 else ""
    return f"{shown(repr(column.iloc[rows[0]]), 60)} in row {rows[0] + 1}{others}"
