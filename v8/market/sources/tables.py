"""Candle tables as people publish them: CSV or Parquet, header or none, many names for one column.

Columns are found by name, without regard to case, spaces or underscores:

- The open time is the first of `open_time`, `timestamp`, `unix`, `time`, `datetime`, `date` that is
  there. Names that usually hold numbers come first, because text loses the time zone.
- The volume is `volume`, or `volume_` and the base asset of the symbol ("Volume BTC" for BTCUSDT); a
  quote volume ("Volume USDT") is never taken for it.
- A CSV without a header must have the twelve columns of the exchange archive, in its order. A line in
  front of the header that holds a single field (the address of a site) is skipped.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pandas as pd

from v8.columns import CLOSE, HIGH, LOW, OHLC, OPEN, OPEN_TIME, VOLUME
from v8.errors import DataError, listed
from v8.market.series import Series

ARCHIVE_COLUMNS = (
    OPEN_TIME,
    OPEN,
    HIGH,
    LOW,
    CLOSE,
    VOLUME,
    "close_time",
    "quote_volume",
    "count",
    "taker_buy_volume",
    "taker_buy_quote_volume",
    "ignore",
)
"""Order of the exchange archive; see lineage "Sources they used" and the headers of its futures files."""

_EXACT_NUMBERS: dict[str, Any] = (
    {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}
)
"""Before 3.1 the usual number parser of pandas was off by one in the last bit, which changes digests;
from 3.1 it is exact and the argument is deprecated."""

TIME_NAMES = (OPEN_TIME, "timestamp", "unix", "time", "datetime", "date")


def read_csv_table(content: bytes, series: Series, where: str) -> pd.DataFrame:
    """Read a CSV into the columns that `check_candles` wants.

    Args:
        content: The whole file, UTF-8 with or without a byte order mark.
        series: Whose candles these are; its symbol decides which volume is the base volume.
        where: Name of the file, for errors.

    Returns:
        Columns `open_time` and `OHLCV`, rows as they stand in the file.

    Raises:
        DataError: If it is no CSV, or a column cannot be found by name.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(where, "UTF-8 text", error) from error
    num_skipped, names, has_header = _header(text, where)
    wanted = _wanted(names, series, where)
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            header=None,
            names=names,
            skiprows=num_skipped + has_header,
            usecols=list(wanted),
            index_col=False,
            low_memory=False,
            **_EXACT_NUMBERS,
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        raise _unreadable(where, "a CSV with as many values a row as columns", error) from error
    return frame.rename(columns=wanted)[list(wanted.values())]


def read_parquet_table(path: Path, series: Series) -> pd.DataFrame:
    """Do the same with a Parquet file, whose open times may be a column or the index.

    Raises:
        DataError: If it is no Parquet, or a column cannot be found by name.
    """
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise _unreadable(str(path), "a Parquet file", error) from error
    if isinstance(frame.index, pd.DatetimeIndex):
        frame = frame.rename_axis(str(frame.index.name or OPEN_TIME)).reset_index()
    names = [str(name) for name in frame.columns]
    wanted = _wanted(names, series, str(path))
    frame.columns = pd.Index(names)
    return frame.rename(columns=wanted)[list(wanted.values())]


def _header(text: str, where: str) -> tuple[int, list[str], bool]:
    """Find how many lines to skip, the column names, and whether they stand in the file."""
    first_lines = [line for _, line in zip(range(2), io.StringIO(text), strict=False)]
    rows = [row for row in csv.reader(first_lines) if row]
    num_skipped = int(len(rows) > 1 and len(rows[0]) == 1 and len(rows[1]) > 1)
    names = rows[num_skipped] if rows else []
    if any(_plain(name) in TIME_NAMES for name in names):
        return num_skipped, names, True
    if len(names) != len(ARCHIVE_COLUMNS) or not names[0].strip().isdigit():
        raise DataError(
            where=where,
            rule=f"needs a header with {' or '.join(TIME_NAMES)}, or the {len(ARCHIVE_COLUMNS)} columns "
            "of the exchange archive",
            got=f"{len(names)} columns that begin {listed(names)}",
            fix="Add a header line that names the columns",
        )
    return num_skipped, list(ARCHIVE_COLUMNS), False


def _wanted(names: list[str], series: Series, where: str) -> dict[str, str]:
    """Map the name of each column we need, as the file writes it, to our name."""
    plain = [_plain(name) for name in names]
    symbol = series.symbol.lower()
    assets = [symbol[:stop] for stop in range(1, len(symbol))]
    volumes = [name for name in plain if name in {f"volume_{asset}" for asset in assets}]
    wanted = {}
    for column, known in {
        OPEN_TIME: TIME_NAMES,
        **{name: (name,) for name in OHLC},
        VOLUME: (VOLUME, *volumes),
    }.items():
        found = next((name for name in known if name in plain), None)
        if found is None or plain.count(found) > 1:
            raise DataError(
                where=where,
                rule=f"needs one column {column}"
                + (f" (or {', '.join(known)})" if known != (column,) else ""),
                got=f"{plain.count(found) if found else 'none'} among {', '.join(names)}",
                fix="Rename the columns in the header",
            )
        wanted[names[plain.index(found)]] = column
    return wanted


def _plain(name: str) -> str:
    return "_".join(name.lower().replace("_", " ").split())


def _unreadable(where: str, rule: str, error: Exception) -> DataError:
    return DataError(
        where=where,
        rule=f"must be {rule}",
        got=" ".join(str(error).split()) or type(error).__name__,
        fix="Replace the file",
    )
