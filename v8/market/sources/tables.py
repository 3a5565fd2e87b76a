"""Candle tables as people publish them: CSV or Parquet, header or none, many names for one column.

Columns are found by name, without regard to case, spaces or underscores:

- The open time is the first of `open_time`, `timestamp`, `unix`, `time`, `datetime`, `date` that is
  there. Names that usually hold numbers come first, because text loses the time zone.
- The volume is `volume`, or `volume_` and the base asset of the symbol ("Volume BTC" for BTCUSDT); a
  quote volume ("Volume USDT") is never taken for it.
- A CSV without a header must have the twelve columns of the exchange archive, in its order. A line in
  front of the header that holds a single field (the address of a site) is skipped.
- Values are parted by commas, semicolons, tabs or bars, whichever make such a header or such a row; a line
  `sep=;` in front decides. Lines end in LF, CR LF or CR.
- Of a Parquet file only the columns that are needed are read, and only if they hold numbers, times or text:
  what pandas wrote beside them (indices, categories, types of its own) decides nothing.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

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

MAX_ROWS: Final = 20_000_000
"""A candle a minute for 38 years."""

_SEPARATORS: Final[str] = ",;\t|"
_MOST_LINES_TO_HEADER: Final = 4
"""A `sep=` line, the address of a site, an empty line, the header."""
_MAX_LINE: Final = 65_536
_MAX_TEXT: Final = 64
"""Bytes of a number or a time that is written as text."""

_INDEX_NAMES: Final = {"__index_level_0__": OPEN_TIME}
"""How pandas writes an index without a name."""

_PARQUET_FAULTS: Final = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
"""What the library raises for a file that is damaged or claims sizes that cannot be."""

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
    stream, separator, names = _open_table(text, where)
    wanted = _wanted(names, series, where)
    try:
        frame = pd.read_csv(
            stream,
            sep=separator,
            header=None,
            names=names,
            usecols=list(wanted),
            index_col=False,
            low_memory=False,
            **_EXACT_NUMBERS,
        )
    except (ValueError, OverflowError) as error:  # ParserError and EmptyDataError are ValueErrors
        raise _unreadable(where, "a CSV with as many values a row as columns", error) from error
    return frame.rename(columns=wanted)[list(wanted.values())]


def read_parquet_table(content: bytes, series: Series, where: str) -> pd.DataFrame:
    """Do the same with a Parquet file, whose open times may also be the index that pandas wrote.

    Raises:
        DataError: If it is no Parquet, or a column cannot be found by name or holds something else.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        names = [_INDEX_NAMES.get(name, name) for name in file.schema_arrow.names]
        wanted = _wanted(names, series, where)
        fields = {name: file.schema_arrow.field(names.index(name)) for name in wanted}
        _require_plain(fields.values(), file.metadata.num_rows, where)
        # Text stays a dictionary until its length is known: a small file can repeat a long text for ever.
        texts = [field.name for field in fields.values() if pa.types.is_string(field.type)]
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts)
        table = file.read(columns=[field.name for field in fields.values()])
        columns = {wanted[name]: _column(table[field.name], where) for name, field in fields.items()}
    except _PARQUET_FAULTS as error:
        raise _unreadable(where, "a Parquet file", error) from error
    return pd.DataFrame(columns)


def _open_table(text: str, where: str) -> tuple[io.StringIO, str, list[str]]:
    """Find the first row of a CSV: a stream that stands before it, the separator, and the column names."""
    stream, separators = io.StringIO(text, newline=None), _SEPARATORS
    best: list[str] = []
    for _ in range(_MOST_LINES_TO_HEADER):
        start, line = stream.tell(), stream.readline(_MAX_LINE)
        if len(line) == _MAX_LINE or "\0" in line:
            raise _unlike_a_table(where, f"a line of {_MAX_LINE:,} characters or more, or with a NUL")
        if told := re.fullmatch(r'"?sep=([,;|\t])"?\s*', line, re.IGNORECASE):
            separators = told[1]
            continue
        for separator in separators:
            names = next(csv.reader([line], delimiter=separator), [])
            if any(_plain(name) in TIME_NAMES for name in names):
                return stream, separator, names
            if len(names) == len(ARCHIVE_COLUMNS) and names[0].strip().isdigit():
                stream.seek(start)
                return stream, separator, list(ARCHIVE_COLUMNS)
            best = max(best, names, key=len)
        if len(best) > 1:
            break
    raise _unlike_a_table(where, f"{len(best)} columns that begin {listed(best)}")


def _unlike_a_table(where: str, got: str) -> DataError:
    return DataError(
        where=where,
        rule=f"needs a header with {' or '.join(TIME_NAMES)}, or the {len(ARCHIVE_COLUMNS)} columns "
        "of the exchange archive",
        got=got,
        fix="Add a header line that names the columns",
    )


def _require_plain(fields: Iterable[pa.Field], num_rows: int, where: str) -> None:
    """Refuse what a small Parquet file can ask for: rows without end, and columns of lists or bytes."""
    got = [f"{num_rows:,} rows"] if num_rows > MAX_ROWS else []
    got += [f"{field.type} in {field.name}" for field in fields if not _is_plain(field.type)]
    if got:
        raise DataError(
            where=where,
            rule=f"holds at most {MAX_ROWS:,} rows of numbers, times or text",
            got=listed(got),
            fix="Write the columns as plain numbers, in several files if there are that many",
        )


def _is_plain(kind: pa.DataType) -> bool:
    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_timestamp, types.is_date)
    return any(
        test(_stored(kind)) for test in (*tests, types.is_string, types.is_large_string, types.is_null)
    )


def _stored(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if types.is_dictionary(kind) else kind


def _column(column: pa.ChunkedArray, where: str) -> pd.Series:
    """Turn a plain column into numbers, times of its own unit without a zone (UTC), or short text."""
    if types.is_dictionary(column.type):
        _require_short((chunk.dictionary for chunk in column.chunks), where)
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        _require_short([column], where)
    elif types.is_date(kind) or types.is_timestamp(kind):
        unit = "s" if types.is_date(kind) else kind.unit
        numbers = column.cast(pa.timestamp(unit)).cast(pa.int64()).fill_null(np.iinfo(np.int64).min)
        return pd.Series(numbers.to_numpy().view(f"datetime64[{unit}]"))
    return column.to_pandas()


def _require_short(texts: Iterable[Any], where: str) -> None:
    longest = max((pc.max(pc.binary_length(text)).as_py() or 0 for text in texts), default=0)
    if longest > _MAX_TEXT:
        raise _unlike_a_table(where, f"a text of {longest:,} bytes where a number or a time belongs")


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
