"""Reading candle tables of many origins into our columns: written times and numbers, tables in memory.

Columns are found by the names that `v8.data.market.column_names` lists; what their values decide is decided
here (`settled`), once for each table:

- The open time is the first of `TIME_NAMES` in the table. Names that usually hold numbers come first, because
  text often has no time zone. In a data frame the index is used if no column holds the open time. A close
  time is not accepted as an open time.
- Of several volumes `base_volume` selects the one in base currency. Without one the candles have no volume.
- A column with symbol, timeframe or series (`SERIES_COLUMNS`) must agree with the requested series in every
  row that has a value, and one with the kind of prices (`PRICE_TYPE_NAMES`) must name traded ones.
- Columns that tell which bars are closed become one, `is_closed`; `v8.data.market.checks` drops the other
rows.
- Of columns named by price and ticker, as `yfinance.download` returns them, those of the series' symbol are
  selected.
- A text with a comma or a mark between thousands refuses the table: its rows would be read in part only.

A file may mix units of time within a column, so the unit of a number is decided per row by its magnitude:
between 2001-09 and 2128 times in seconds, milliseconds, microseconds and nanoseconds fall into four ranges
that are a factor of 200 apart, and a number outside of all four is not a time. Text is ISO 8601 or the form
`2020-10-26 11-PM` of public candle files; a text whose day and month could be swapped is refused. A time
without a zone is UTC.

Rows without names are read in the orders of `UNNAMED_COLUMNS`, and rows of other lengths refused.
`v8.data.market.checks` tests the order by the prices.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from numbers import Real
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.base.errors import DataError, listed, shown
from v8.data.market.column_names import (
    AMOUNTS,
    CLOSE_TIME_NAMES,
    CLOSED_NAMES,
    IS_CLOSED,
    OPEN_NAMES,
    OTHER_KINDS,
    PRICE_TYPE_NAMES,
    QUOTE_VOLUMES,
    SERIES_COLUMNS,
    STATE_NAMES,
    TIME_NAMES,
    TRADED_KINDS,
    UNNAMED_COLUMNS,
    VAGUE_TYPE_NAMES,
    VOLUMES,
    base_volume,
    plain_name,
    wanted_columns,
)
from v8.data.market.series import UNIT_S, US_PER_S, Series
from v8.profile.columns import CLOSE, HIGH, LOW, OHLC, OPEN_TIME, VOLUME, plain_symbol

RawCandles: TypeAlias = pd.DataFrame | Mapping[str, Any] | Sequence[Any] | np.ndarray[Any, Any]
"""A data frame; columns by name; or rows, each a list of values or a mapping from names to values."""

MAX_ROWS: Final = 20_000_000  # a candle a minute for 38 years

_UNITS: Final = "s|sec|seconds?|m|mins?|minutes?|t|h|hr|hours?|d|days?|w|wk|weeks?"
_SPAN: Final = re.compile(rf"(?P<number>\d{{1,9}})(?:\.0)? ?(?P<unit>{_UNITS}|)", re.IGNORECASE)
_UNIT_S: Final = {"s": 1, "t": 60, **UNIT_S}  # by the first letter
_BARE_UNITS_S: Final = (1.0, 60.0, 0.001)  # of a number without a unit: seconds, minutes, ms
_FEWEST_QUOTE_LETTERS: Final = 3
_MOST_LEVELS: Final = 2
_COARSE_BYTES: Final = 2

_NUMBER_UNITS = (("seconds", 1e9), ("milliseconds", 1e12), ("microseconds", 1e15), ("nanoseconds", 1e18))
"""Name and smallest number of each unit (2001-09); the largest is five times as large (2128)."""

_RANGE = 5.0

_TRUE_WORDS: Final = ("1", "1.0", "true", "t", "yes", "y")
_FALSE_WORDS: Final = ("0", "0.0", "false", "f", "no", "n")
_CLOSED_STATES: Final = ("closed", "final", "complete", "completed", "confirmed", "finished")
_OPEN_STATES: Final = ("open", "partial", "running", "incomplete", "unconfirmed", "forming", "live")
_MARKS: Final = ",' \u2019\u00a0\u202f"  # comma, apostrophes and blanks
_MARKED_NUMBER: Final = re.compile(
    rf"[-+]?\d+(?:[.{_MARKS}]\d+)*[{_MARKS}]\d+(?:\.\d+)*(?:[eE][-+]?\d+)?|[-+]?\d+(?:\.\d{{3}}){{2,}}"
)
"""Digits with such marks between them, and perhaps points; or with several points."""

_NUMBER_WITH_UNIT: Final = re.compile(
    r"[-+]?[$\u20ac\u00a3\u00a5\u20bf] ?\d[\d.,]*|[-+]?\d[\d.,]* ?[KMBTkmbt%$\u20ac\u00a3\u00a5\u20bf]"
)
"""Numbers with the sign of a currency, in thousands, millions or billions, or in percent."""

_DECIMAL_COMMA: Final = re.compile(r"[^,]*,(\d{1,2}|\d{4,})([eE].*)?|.*\..*,\d*")
_THOUSANDS_COMMA: Final = re.compile(r".*,.*[,.].*")

_FIRST = np.datetime64("1970-01-01")
_END = np.datetime64("2262-01-01")
"""Limits of open times that are dates; the end is that of 64-bit nanoseconds."""

_WRITTEN_TIMES = (str, Real, Decimal, date, np.datetime64, pd.Period)
_MAX_TEXT = 64  # letters of an open time; the longest form has 35


def candle_table(table: Any, series: Series, location: str) -> pd.DataFrame:
    """Select and rename the columns of a table in memory, one of the kinds of `RawCandles`.

    Args:
        table: The table.
        series: The series that the candles must be of.
        location: Name of the table for messages.

    Returns:
        Columns `open_time` and `OHLCV`, without the volume if there is none, `is_closed` if the table tells
        it, and those of `SERIES_COLUMNS` in the table; the rows are unchanged.

    Raises:
        DataError: If columns are missing, repeated or of unknown meaning, or if a column or the `attrs` of a
            data frame name another series.

    >>> rows = [[1704067200000, 1, 2, 0.5, 1.5, 10]]
    >>> candle_table(rows, Series("BTCUSDT", "1h"), "a list").columns.tolist()
    ['open_time', 'open', 'high', 'low', 'close', 'volume']
    """
    frame = table if isinstance(table, pd.DataFrame) else _as_frame(table, location)
    num_levels = frame.columns.nlevels
    levels = [[str(name) for name in frame.columns.get_level_values(level)] for level in range(num_levels)]
    names = flat_names(levels, series, location)
    for name in SERIES_COLUMNS.keys() & frame.attrs.keys():
        _require_series(name, [frame.attrs[name]], series)
    index_name = _index_name(frame.index, names)
    if index_name:
        names = [*names, index_name]
        frame = pd.concat([frame, frame.index.to_series()], axis=1)
    columns = wanted_columns(names, series, location)
    if len(columns) < len(names) or set(columns.values()) != set(frame.columns):
        frame = frame.iloc[:, list(columns)].set_axis(list(columns.values()), axis=1).reset_index(drop=True)
    return settled(frame, series, location)


def settled(frame: pd.DataFrame, series: Series, location: str) -> pd.DataFrame:
    """Decide by their values what the columns of `wanted_columns` mean; see `candle_table`.

    What is decided is not decided again: of a table that this returns all columns stay.
    """
    for name in SERIES_COLUMNS:
        if name in frame:
            _require_series(name, frame[name].dropna(), series)
    for name in (*PRICE_TYPE_NAMES, *VAGUE_TYPE_NAMES):
        if name in frame:
            _require_traded(name, frame[name], location)
            frame = frame.drop(columns=name)
    volumes = [name for name in (*VOLUMES, *AMOUNTS, *QUOTE_VOLUMES) if name in frame]
    for name in (*OHLC, *volumes):
        _require_plain_numbers(name, frame[name], location)
    if volumes not in ([], [VOLUME]):
        values = {name: numbers(frame[name]) for name in volumes}
        own = base_volume(values, numbers(frame[LOW]), numbers(frame[HIGH]), location)
        frame = frame.drop(columns=[name for name in volumes if name != own]).rename(columns={own: VOLUME})
    flags = [
        _read_flags(name, frame[name], location) for name in (*CLOSED_NAMES, *OPEN_NAMES) if name in frame
    ]
    flags += [_read_states(frame[name]) for name in STATE_NAMES if name in frame]
    if flags:
        names = [name for name in (*CLOSED_NAMES, *OPEN_NAMES, *STATE_NAMES) if name in frame]
        frame = frame.drop(columns=names).assign(**{IS_CLOSED: np.logical_and.reduce(flags)})
    return frame


def _require_traded(name: str, values: pd.Series, location: str) -> None:
    """Refuse rows of other prices than traded ones, and of kinds that are not known."""
    words = dict.fromkeys(str(value).strip().lower() for value in values.dropna())
    is_vague = name in VAGUE_TYPE_NAMES
    others = [
        shown(word, 40) for word in words if (word in OTHER_KINDS if is_vague else word not in TRADED_KINDS)
    ]
    if others:
        meanings = [OTHER_KINDS[word] for word in words if word in OTHER_KINDS]
        meaning = f": {listed(list(dict.fromkeys(meanings)))}" if meanings else ""
        raise DataError(
            where=location,
            rule="candles are of traded prices",
            got=f"{name} {listed(others)}{meaning}",
            fix=f"Keep the rows of traded prices, or remove the column {name} if all are",
        )


def _read_flags(name: str, values: pd.Series, location: str) -> NDArray[np.bool_]:
    """Read which rows are closed bars, shape (N,), from a column that tells it.

    Raises:
        DataError: If a value is neither true nor false.
    """
    texts = _small_words(values)
    is_true = texts.isin(_TRUE_WORDS).to_numpy(dtype=np.bool_)
    is_read = is_true | texts.isin(_FALSE_WORDS).to_numpy(dtype=np.bool_)
    if not is_read.all():
        others = [shown(repr(value), 40) for value in values[~is_read].astype(object).unique()]
        raise DataError(
            where=location,
            rule=f"{name} says whether a bar is closed, by 1 or 0, true or false",
            got=listed(others),
            fix="Write true or false in each row, or remove the column if all bars are closed",
        )
    return is_true if name in CLOSED_NAMES else ~is_true


def _read_states(values: pd.Series) -> NDArray[np.bool_]:
    """Read which rows are closed bars, shape (N,), if all words say that; else every row is one."""
    words = _small_words(values)
    is_closed = words.isin(_CLOSED_STATES).to_numpy(dtype=np.bool_)
    is_open = words.isin(_OPEN_STATES).to_numpy(dtype=np.bool_)
    return is_closed | ~(is_closed | is_open).all()


def _small_words(values: pd.Series) -> pd.Series:
    return values.astype(object).map(lambda value: str(value).strip().lower())


def _require_plain_numbers(name: str, values: pd.Series, location: str) -> None:
    """Refuse texts with decimal commas or marks between thousands: some rows would be read, others not."""
    if is_real(values):
        return
    texts = [value.strip() for value in values.astype(object) if isinstance(value, str)]
    odd = [text for text in texts if len(text) <= _MAX_TEXT and _is_decorated(text)]
    if odd:
        raise DataError(
            where=location,
            rule="a number has a decimal point, no marks between thousands and no unit",
            got=f"{odd[0]} in {name}: {_cause(odd)}",
            fix="Write plain numbers, such as 64628.01",
        )


def _is_decorated(text: str) -> bool:
    return _MARKED_NUMBER.fullmatch(text) is not None or _NUMBER_WITH_UNIT.fullmatch(text) is not None


def _cause(texts: Sequence[str]) -> str:
    """Name what is wrong with numbers that have commas, blanks, apostrophes or units in them.

    >>> _cause(["64628,01"]), _cause(["1.234,567"]), _cause(["64,628.01"]), _cause(["64 628"])
    ('decimal comma', 'decimal comma', 'thousands comma', 'blank between thousands')
    >>> _cause(["64,628"]), _cause(["64'628"]), _cause(["1.2K"])
    ('decimal or thousands comma', 'mark between thousands', 'unit')
    """
    if any(_NUMBER_WITH_UNIT.fullmatch(text) for text in texts):
        return "unit"
    if any(_DECIMAL_COMMA.fullmatch(text) for text in texts):
        return "decimal comma"
    if any(_THOUSANDS_COMMA.fullmatch(text) for text in texts):
        return "thousands comma"
    if any("," in text for text in texts):
        return "decimal or thousands comma"
    return "blank between thousands" if any(" " in text for text in texts) else "mark between thousands"


def flat_names(levels: Sequence[Sequence[str]], series: Series, location: str) -> list[str]:
    """Turn one or two levels of column names into one name per column, empty for those of other tickers.

    With two levels, one names prices and the other tickers; a column without a ticker is always selected.

    Raises:
        DataError: If there are more levels, or no column of the series' symbol.
    """
    if len(levels) == 1:
        return list(levels[0])
    if len(levels) > _MOST_LEVELS:
        raise _not_a_table(location, f"column names of {len(levels)} levels")
    # The level that names a close comes first: these are the prices.
    prices, tickers = sorted(levels, key=lambda level: CLOSE not in map(plain_name, level))
    pairs = list(zip(prices, tickers, strict=True))
    names = [name if plain_symbol(ticker) in ("", series.symbol) else "" for name, ticker in pairs]
    if CLOSE not in map(plain_name, names):
        unique = dict.fromkeys(shown(ticker, 30) for ticker in tickers if ticker)
        raise of_another_series(series, f"the tickers {listed(list(unique))}")
    return names


def of_another_series(series: Series, got: str) -> DataError:
    """Return the error for candles of another series."""
    return DataError(
        where=str(series),
        rule="a model reads candles of its own series",
        got=got,
        fix="Name the series that these candles are of, or give candles of this one",
    )


def _as_frame(table: Any, location: str) -> pd.DataFrame:
    """Convert columns by name, or rows, to a data frame; the columns of rows without names get our names."""
    if isinstance(table, Mapping) or (isinstance(table, np.ndarray) and table.dtype.names):
        return _new_frame(table, location)
    if isinstance(table, np.ndarray):
        if table.dtype == np.float16:
            raise too_coarse(location, "the array")
        table = table.tolist()
    if not isinstance(table, list | tuple):
        kind = type(table).__name__
        raise _not_a_table(location, f"{kind} {shown(repr(table), 60)}" if isinstance(table, str) else kind)
    if not 0 < len(table) <= MAX_ROWS:
        raise _not_a_table(location, f"{len(table):,} rows")
    if all(isinstance(row, Mapping) for row in table):
        return _new_frame(table, location)
    return _unnamed_rows(table, location)


def _unnamed_rows(rows: Sequence[Any], location: str) -> pd.DataFrame:
    """Convert rows of values, in one of the orders of `UNNAMED_COLUMNS`, to a data frame with our names."""
    lengths = {len(row) if isinstance(row, list | tuple) else 0 for row in rows}
    num_values = min(lengths)
    if len(lengths) > 1 or num_values < min(UNNAMED_COLUMNS):
        raise _not_a_table(location, f"rows of {listed(sorted(lengths))} values")
    if num_values not in UNNAMED_COLUMNS:
        raise unnamed_columns(location, rows[0])
    if any(isinstance(value, np.float16) for row in rows for value in row):
        raise too_coarse(location, "its rows")
    return _new_frame(rows, location).set_axis(list(UNNAMED_COLUMNS[num_values]), axis=1)


def unnamed_columns(location: str, row: Sequence[object]) -> DataError:
    """Return the error for rows without names of which several orders are in use."""
    return DataError(
        where=location,
        rule="rows of more than six values without names cannot be told apart: the sixth may be an "
        "average price",
        got=f"{len(row)} values, first {listed([shown(value, 20) for value in row])}",
        fix="Name the columns, or keep time, open, high, low, close and volume of each row, in this order",
    )


def _new_frame(table: Any, location: str) -> pd.DataFrame:
    try:
        return pd.DataFrame(table)
    except (ValueError, TypeError, OverflowError) as error:  # columns of unequal length, numbers beyond int64
        raise _not_a_table(location, str(error)) from error


def _not_a_table(location: str, got: str) -> DataError:
    rows = f"rows of open time, {', '.join(OHLC)} and volume"
    return DataError(
        where=location,
        rule=f"is a table of candles: a frame, columns by name, or {rows}",
        got=got,
        fix="Give one row for each candle",
    )


def _index_name(index: pd.Index, names: Sequence[str]) -> str:
    """Return the column name for the index of a data frame if it holds times; else an empty text.

    Dates are open times, and so is an index with such a name, unless the name says that they are close times.
    The index is not needed if there is a column `open_time`.
    """
    name = plain_name(str(index.name))
    if index.nlevels > 1 or OPEN_TIME in [plain_name(column) for column in names]:
        return ""
    if name in CLOSE_TIME_NAMES:
        return name
    return OPEN_TIME if isinstance(index, pd.DatetimeIndex) or name in TIME_NAMES else ""


def _require_series(name: str, values: Iterable[object], series: Series) -> None:
    """Refuse values of a column that name another series."""
    texts = dict.fromkeys(str(value) for value in values)
    others = [shown(text) for text in texts if not matches_series(SERIES_COLUMNS[name], text, series)]
    if others:
        raise of_another_series(series, f"{name} {listed(others)}")


def matches_series(part: str, text: str, series: Series) -> bool:
    """Return whether a text names a part of the series, in any usual way to write it.

    >>> series = Series("BTCUSDT", "15m")
    >>> texts = ("15m", "15min", "900", "15", "1h", "15M", "")
    >>> [matches_series("timeframe", text, series) for text in texts]
    [True, True, True, True, False, False, False]
    """
    if part == "series":
        return text == str(series)
    if part == "symbol":
        symbol = plain_symbol(text.strip())
        # The coin alone, such as BTC of BTCUSDT; BTCUSD is another pair.
        is_base = len(series.symbol) - len(symbol) >= _FEWEST_QUOTE_LETTERS
        return symbol == series.symbol or (bool(symbol) and is_base and series.symbol.startswith(symbol))
    timeframe = _SPAN.fullmatch(text.strip())
    if not timeframe or timeframe["unit"] == "M":  # a month
        return False
    units_s = (_UNIT_S[timeframe["unit"][0].lower()],) if timeframe["unit"] else _BARE_UNITS_S
    return any(int(timeframe["number"]) * unit_s == series.bar_s for unit_s in units_s)


def numbers(column: pd.Series) -> NDArray[np.float64]:
    """Read a column of any type as numbers; nan where a row has none (dates and booleans are not numbers)."""
    if is_real(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.array([number(item) for item in column.astype(object)], dtype=np.float64)


def number(item: Any) -> float:
    """Read a number, or a text that is one; nan for anything else, such as dates and booleans."""
    if isinstance(item, bool) or not isinstance(item, str | Real | Decimal):
        return np.nan
    if isinstance(item, str) and "_" in item:  # Python reads 1_000 as a number, which no candle file means
        return np.nan
    try:
        return float(item)
    except (ValueError, OverflowError):  # a text that is not a number, a number beyond float64
        return np.nan


def is_coarse(column: pd.Series) -> bool:
    """Return whether a column has numbers of 16 bits."""
    if column.dtype == object:
        return any(isinstance(item, np.float16) for item in column)
    return pd.api.types.is_float_dtype(column.dtype) and getattr(column.dtype, "itemsize", 0) == _COARSE_BYTES


def too_coarse(location: str, name: str) -> DataError:
    """Return the error for numbers of 16 bits."""
    return DataError(
        where=location,
        rule="prices and volumes have more than the three digits of 16 bits",
        got=f"float16 in {name}",
        fix="Read them again as float64; converting does not restore lost digits",
    )


@dataclass(frozen=True, eq=False)
class OpenTimes:
    """A column of open times in one unit."""

    open_us: NDArray[np.int64]  # microseconds since the epoch, UTC, shape (N,), int64; 0 where unreadable
    is_readable: NDArray[np.bool_]  # which rows hold a time, shape (N,), bool
    units: dict[str, int]  # number of rows by the unit of their times

    @property
    def steps_s(self) -> NDArray[np.float64]:
        """Seconds from each distinct time to the next."""
        moments_us = np.unique(self.open_us[self.is_readable])
        return (moments_us[1:] - moments_us[:-1]) / US_PER_S


def read_open_times(column: pd.Series) -> OpenTimes:
    """Read a column of numbers, dates or text of either, shape (N,), each row in its own unit."""
    if isinstance(column.dtype, pd.DatetimeTZDtype) or np.issubdtype(np.asarray(column).dtype, np.datetime64):
        return _from_dates(pd.to_datetime(column, utc=True), "datetimes")
    if is_real(column):
        return _from_numbers(column)
    texts = [str(item).strip() if isinstance(item, _WRITTEN_TIMES) else "" for item in column.astype(object)]
    plain = [text if len(text) <= _MAX_TEXT and text.isascii() else "" for text in texts]
    return _from_text(pd.Series(plain, dtype="string"))


def is_real(column: pd.Series) -> bool:
    """Return whether a column holds real numbers; booleans and complex numbers are not."""
    types = pd.api.types
    kind = column.dtype
    is_other = types.is_bool_dtype(kind) or types.is_complex_dtype(kind)
    return types.is_numeric_dtype(kind) and not is_other


def _from_numbers(column: pd.Series) -> OpenTimes:
    if pd.api.types.is_integer_dtype(column) and not column.hasnans:
        numbers = column.to_numpy(dtype=np.int64)
    else:
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    open_us = np.zeros(len(numbers), dtype=np.int64)
    units = {}
    for name, smallest in _NUMBER_UNITS:
        is_unit = (numbers >= smallest) & (numbers < smallest * _RANGE)
        if is_unit.any():
            unit_numbers = numbers[is_unit]
            if smallest > 1e15:  # nanoseconds: float64 could not hold them, so they stay integers
                open_us[is_unit] = unit_numbers // 1_000
            else:
                open_us[is_unit] = np.rint(unit_numbers * round(1e15 / smallest))
            units[name] = int(is_unit.sum())
    return OpenTimes(open_us, open_us > 0, units)


def _from_text(column: pd.Series) -> OpenTimes:
    # Digits are numbers, never compact dates: a lenient parser would read 1518048000 as a date.
    values = pd.to_numeric(column, errors="coerce")
    is_number = values.notna().to_numpy(dtype=np.bool_)
    numbers = _from_numbers(values.astype("Float64"))
    dates = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
    is_open = dates.isna()
    dates[is_open] = pd.to_datetime(column[is_open], format="%Y-%m-%d %I-%p", utc=True, errors="coerce")
    read = _from_dates(dates.where(~is_number), "date text")
    open_us = np.where(is_number, numbers.open_us, read.open_us)
    is_readable = np.where(is_number, numbers.is_readable, read.is_readable)
    return OpenTimes(open_us, is_readable, numbers.units | read.units)


def _from_dates(dates: pd.Series, unit: str) -> OpenTimes:
    stamps = dates.dt.tz_localize(None).to_numpy()
    is_readable = (stamps >= _FIRST) & (stamps < _END)
    open_us = np.where(is_readable, stamps, _FIRST).astype("datetime64[us]").astype(np.int64)
    num_readable = int(is_readable.sum())
    return OpenTimes(open_us, is_readable, {unit: num_readable} if num_readable else {})
