"""Candle tables as text: separated values, with a header or none, read strictly.

- Values are parted by commas, semicolons, tabs or bars, whichever make a header or a row of candles; a line
  `sep=;` in front decides. Lines end in LF, CR LF or CR. A line in front of the header that holds a single
  field (the address of a site) is skipped. `v8.market.frames` says what names of columns mean.
- A header of two levels, prices and tickers, ends in a line that names the times only, as pandas writes it.
- A row is a line, and no longer than its header. A quote that is not closed where it was opened would swallow
  line ends up to the next one: rows are lost, and what stands behind belongs to another time.
- Rows without a header are open time, open, high, low, close and volume, perhaps with the number of trades
  behind, or the twelve columns of the exchange archive in its order.
"""

import csv
import io
import math
import re
from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from v8.columns import OHLCV, OPEN_TIME
from v8.errors import DataError, listed
from v8.market.frames import TIME_NAMES, flat_names, plain_name, read_open_times, wanted_columns
from v8.market.series import Series

ARCHIVE_COLUMNS = (
    *(OPEN_TIME, *OHLCV, "close_time", "quote_volume", "count"),
    *("taker_buy_volume", "taker_buy_quote_volume", "ignore"),
)
"""Order of the exchange archive; see lineage "Sources they used" and the headers of its futures files."""

_TRADES_COLUMNS: Final = (*ARCHIVE_COLUMNS[:6], "count")
_HEADERLESS: Final = {len(names): names for names in (ARCHIVE_COLUMNS[:6], _TRADES_COLUMNS, ARCHIVE_COLUMNS)}
"""Names of the columns of rows without a header, by how many there are."""

_EXACT_NUMBERS: dict[str, Any] = (
    {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}
)
"""Before 3.1 the usual number parser of pandas was off by one in the last bit, which changes digests;
from 3.1 it is exact and the argument is deprecated."""

_SEPARATORS: Final[str] = ",;\t|"
_MOST_LINES_TO_HEADER: Final = 5
"""A `sep=` line, the address of a site, an empty line, the header; or its levels and the name of times."""

_MAX_LINE: Final = 65_536
_LEVELS: Final = ("price", "ticker", "attributes", "symbols", "")
"""What stands before the names of a level of a header."""

_LONGEST_TICKER: Final = 2  # letters of a name of the time that is also a ticker: T


def require_closed_quotes(text: str, separator: str, where: str) -> None:
    """Refuse a CSV with a quote that does not close on its line, as one around a whole value does."""
    if '"' not in text:
        return
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if '"' in line:
            _require_closed(line, separator, number, where)


def require_no_more_values(text: str, separator: str, num_columns: int, where: str) -> None:
    """Refuse a CSV with a line that has more values than there are columns; empty ones at its end are none.

    Args:
        num_columns: Columns, unitless.
    """
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if line.count(separator) >= num_columns:
            values = next(csv.reader([line.rstrip(f"{separator} \n")], delimiter=separator))
            if len(values) > num_columns:
                raise uneven(where, f"{len(values)} values in line {number:,}, and {num_columns} columns")


def uneven(where: str, got: str) -> DataError:
    """Build the error for rows that are not as long as the header."""
    rule = "must be a CSV with as many values a row as columns"
    return DataError(where=where, rule=rule, got=got, fix="Mend the file")


def _require_closed(line: str, separator: str, number: int, where: str) -> None:
    try:
        next(csv.reader([line], delimiter=separator, strict=True))
    except csv.Error as error:
        rule = "must be a CSV in which a quote closes on its own line, around a whole value"
        fix = "Close or remove the quote: the rows behind it would be lost"
        raise DataError(where=where, rule=rule, got=f"{error} in line {number:,}", fix=fix) from error


def read_csv_table(content: bytes, series: Series, where: str) -> pd.DataFrame:
    """Read a CSV into the columns that `check_candles` wants.

    Args:
        content: The whole file, UTF-8 with or without a byte order mark.
        series: Whose candles these are; its symbol decides which volume is the base volume.

    Returns:
        Columns `open_time` and `OHLCV`, without the volume where there is none; rows as they stand in the
        file.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise unreadable(where, "UTF-8 text", error) from error
    stream, separator, names = _open_table(text, series, where)
    wanted = wanted_columns(names, series, where)
    require_closed_quotes(text, separator, where)
    require_no_more_values(text, separator, len(names), where)
    try:
        frame = pd.read_csv(
            stream,
            sep=separator,
            header=None,
            names=range(len(names)),
            usecols=list(wanted),
            index_col=False,
            low_memory=False,
            **_EXACT_NUMBERS,
        )
    except (ValueError, OverflowError) as error:  # ParserError and EmptyDataError are ValueErrors
        raise unreadable(where, "a CSV with as many values a row as columns", error) from error
    return frame.rename(columns=wanted)[list(wanted.values())]


def _open_table(text: str, series: Series, where: str) -> tuple[io.StringIO, str, list[str]]:
    """Find the first row of a CSV: a stream that stands before it, the separator, and the column names."""
    stream, separators = io.StringIO(text, newline=None), _SEPARATORS
    best: list[str] = []
    above: list[list[str]] = []
    for _ in range(_MOST_LINES_TO_HEADER):
        start, line = stream.tell(), stream.readline(_MAX_LINE)
        if len(line) == _MAX_LINE or "\0" in line:
            raise unlike_a_table(where, f"a line of {_MAX_LINE:,} characters or more, or with a NUL")
        if told := re.fullmatch(r'"?sep=([,;|\t])"?\s*', line, re.IGNORECASE):
            separators = told[1]
            continue
        for separator in separators:
            names = next(csv.reader([line], delimiter=separator), [])
            if len(names) > 1 and plain_name(names[0]) in TIME_NAMES and not any(names[1:]):
                levels = [level for level in above if len(level) == len(names)]
                return stream, separator, _below_levels(levels, names[0], series, where)
            if _is_header(names):
                return stream, separator, names
            if _is_row(names):
                stream.seek(start)
                return stream, separator, list(_HEADERLESS[len(names)])
            best = max(best, names, key=len)
            above += [names] if names and plain_name(names[0]) in _LEVELS else []
        if len(best) > 1 and not above:
            break
    raise unlike_a_table(where, f"{len(best)} columns that begin {listed(best)}")


def _is_header(names: Sequence[str]) -> bool:
    """Tell whether a line names the columns; a line of tickers does not."""
    times = [plain_name(name) for name in names if plain_name(name) in TIME_NAMES]
    is_level = bool(names) and plain_name(names[0]) in _LEVELS
    return any(len(name) > _LONGEST_TICKER for name in times) if is_level else bool(times)


def _below_levels(levels: Sequence[list[str]], time_name: str, series: Series, where: str) -> list[str]:
    if not levels:
        raise unlike_a_table(where, f"the name {time_name} and no other")
    return [time_name, *flat_names([level[1:] for level in levels], series, where)]


def _is_row(values: Sequence[str]) -> bool:
    """Tell whether a line is a row of candles and no header."""
    if len(values) == len(ARCHIVE_COLUMNS):
        return values[0].strip().isdigit()
    if len(values) not in _HEADERLESS or not all(map(_is_number, values[1:])):
        return False
    return bool(read_open_times(pd.Series([values[0]], dtype="object")).is_readable.all())


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def unlike_a_table(where: str, got: str) -> DataError:
    """Build the error for a file that is no table of candles."""
    return DataError(
        where=where,
        rule="needs a header that names open time (or timestamp, time, date), open, high, low, close and "
        f"volume, or rows of these six values or of the {len(ARCHIVE_COLUMNS)} of the exchange archive",
        got=got,
        fix="Add a header line that names the columns",
    )


def unreadable(where: str, rule: str, error: Exception) -> DataError:
    """Build the error for a file that is not of the kind that its ending says."""
    got = " ".join(str(error).split()) or type(error).__name__
    return DataError(where=where, rule=f"must be {rule}", got=got, fix="Replace the file")
