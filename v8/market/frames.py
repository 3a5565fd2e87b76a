"""Candles as people have them, brought to our columns: names of columns, written times, tables in memory.

Columns are found by name, without regard to case, blanks, underscores and brackets:

- The open time is the first of `TIME_NAMES` that is there. Names that usually hold numbers come first,
  because text loses the time zone. In a frame the index holds it where no column does.
- The volume is `volume`, or `volume_` and the base asset of the symbol ("Volume BTC" for BTCUSDT); a quote
  volume ("Volume USDT") is never taken for it. Without one the candles have no volume.
- A column that tells symbol, timeframe or series (`TELLING_NAMES`) must tell those of the candles, in every
  row that has a value.
- A time at which bars close is none at which they open.
- Of columns that name a ticker beside the price, as `yfinance.download` returns them, those of the series'
  symbol are taken.

A file may mix units of time within a column, so the unit of a number is decided per row by its magnitude:
between 2001-09 and 2128 a time in seconds, milliseconds, microseconds and nanoseconds falls into four ranges
a factor of 200 apart, and a number outside all four is no time. Text is ISO 8601 or the form
`2020-10-26 11-PM` of public candle files; anything whose day and month could be swapped is refused. A time
without a zone is UTC.

Rows without names are those of exchange libraries: open time, open, high, low, close, then the volume if
there is a sixth value. Their prices tell whether they come in that order (`v8.market.checks`).
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

from v8.columns import CLOSE, HIGH, LOW, OHLC, OHLCV, OPEN, OPEN_TIME, VOLUME, plain_symbol
from v8.errors import DataError, listed, shown
from v8.market.series import UNIT_S, US_PER_S, Series

GivenCandles: TypeAlias = pd.DataFrame | Mapping[str, Any] | Sequence[Any] | np.ndarray[Any, Any]
"""A frame; columns by name; or rows, each a list of values or a mapping of names to values."""

MAX_ROWS: Final = 20_000_000  # a candle a minute for 38 years
MOST_ROW_VALUES: Final = 64
_LEAST_ROW_VALUES: Final = len((OPEN_TIME, *OHLC))

TIME_NAMES: Final = (
    *(OPEN_TIME, "opentime", "open_timestamp", "time_open", "timeopen", "timestamp"),
    *("unix", "unix_timestamp", "unix_time", "ts", "t", "time", "datetime", "date"),
)
"""What tables call the open time, in plain form; what usually holds numbers comes first."""

CLOSE_TIME_NAMES: Final = (
    *("close_time", "closetime", "close_timestamp", "time_close", "timeclose"),
    *("end_time", "endtime", "close_date", "closedate"),
)
"""What tables call the time at which a bar closes, in plain form."""

TELLING_NAMES: Final = {
    **dict.fromkeys(("symbol", "ticker", "pair", "instrument"), "symbol"),
    **dict.fromkeys(("timeframe", "time_frame", "interval", "granularity", "resolution"), "timeframe"),
    "series": "series",
}
"""Which part of a series a column tells, by its plain name."""

_UNITS: Final = "s|sec|seconds?|m|mins?|minutes?|t|h|hr|hours?|d|days?|w|wk|weeks?"
_SPAN: Final = re.compile(rf"(?P<number>\d{{1,9}})(?:\.0)? ?(?P<unit>{_UNITS}|)", re.IGNORECASE)
_UNIT_S: Final = {"s": 1, "t": 60, **UNIT_S}  # by the first letter
_BARE_UNITS_S: Final = (1.0, 60.0, 0.001)  # of a number without a unit: seconds, minutes, ms
_FEWEST_QUOTE_LETTERS: Final = 3
_MOST_LEVELS: Final = 2
_VARIED: Final = str.maketrans("_()[]", "     ")
_COARSE_BYTES: Final = 2

_NAMES: Final = {
    OPEN_TIME: TIME_NAMES,
    OPEN: (OPEN, "open_price", "o"),
    HIGH: (HIGH, "high_price", "h"),
    LOW: (LOW, "low_price", "l"),
    CLOSE: (CLOSE, "close_price", "c"),
    VOLUME: (VOLUME, "base_volume", "basevolume", "volumefrom", "vol", "v"),
}

_NUMBER_UNITS = (("seconds", 1e9), ("milliseconds", 1e12), ("microseconds", 1e15), ("nanoseconds", 1e18))
"""Name and smallest number of each unit; the largest is five times that (2128)."""

_RANGE = 5.0

_FIRST = np.datetime64("1970-01-01")
_END = np.datetime64("2262-01-01")
"""Dates outside are no open times; the end is that of 64 bits of nanoseconds."""

_WRITTEN_TIMES = (str, Real, Decimal, date, np.datetime64, pd.Period)
_MAX_TEXT = 64  # letters of an open time; the longest form has 35


def candle_table(given: Any, series: Series, where: str) -> pd.DataFrame:
    """Bring a table in memory, of the kinds of `GivenCandles`, to the columns that `check_candles` wants.

    These are `open_time` and `OHLCV`, without the volume where there is none, and those of `TELLING_NAMES`;
    rows as they were given. What tells another series there, or in a frame's `attrs`, refuses the table.

    >>> rows = [[1704067200000, 1, 2, 0.5, 1.5, 10]]
    >>> candle_table(rows, Series("BTCUSDT", "1h"), "a list").columns.tolist()
    ['open_time', 'open', 'high', 'low', 'close', 'volume']
    """
    frame = given if isinstance(given, pd.DataFrame) else _as_frame(given, where)
    num_levels = frame.columns.nlevels
    levels = [[str(name) for name in frame.columns.get_level_values(level)] for level in range(num_levels)]
    names = flat_names(levels, series, where)
    for name in TELLING_NAMES.keys() & frame.attrs.keys():
        _require_told(name, [frame.attrs[name]], series)
    name = _index_name(frame.index, names)
    if name:
        names = [*names, name]
        frame = pd.concat([frame, frame.index.to_series()], axis=1)
    wanted = wanted_columns(names, series, where)
    if len(wanted) < len(names) or set(wanted.values()) != set(frame.columns):
        frame = frame.iloc[:, list(wanted)].set_axis(list(wanted.values()), axis=1).reset_index(drop=True)
    for name in [each for each in TELLING_NAMES if each in frame]:
        _require_told(name, frame[name].dropna(), series)
    return frame


def wanted_columns(names: Sequence[str], series: Series, where: str) -> dict[int, str]:
    """Find our name by the number of each column that is needed among the names that a table gives them.

    The volume may be missing. What tells a part of the series has its plain name.
    """
    plain = [plain_name(name) for name in names]
    symbol = series.symbol.lower()
    assets = {f"{VOLUME}_{symbol[:stop]}" for stop in range(1, len(symbol))}
    volumes = tuple(name for name in plain if name in assets)
    if not set(TIME_NAMES) & set(plain) and (closes := [name for name in CLOSE_TIME_NAMES if name in plain]):
        rule = "a candle is placed by when it opens"
        till = "what it lies before the next full minute"
        got = f"{closes[0]}, which is when it closes, and no open time"
        fix = f"Add a column open_time: the close time, less a bar and {till}"
        raise DataError(where=where, rule=rule, got=got, fix=fix)
    wanted: dict[int, str] = {}
    told = {name: (name,) for name in TELLING_NAMES if name in plain}
    for column, known in {**_NAMES, VOLUME: (*_NAMES[VOLUME], *volumes), **told}.items():
        found = next((name for name in known if name in plain), "")
        if not found and column == VOLUME:
            continue
        num_found = plain.count(found) if found else 0
        if num_found != 1:
            others = f" (or {', '.join(known[1:])})" if column == OPEN_TIME else ""
            got = f"{num_found or 'none'} among {', '.join(names)}"
            fix = "Rename the columns; prices without open, high, low and close are no candles"
            raise DataError(where=where, rule=f"needs one column {column}{others}", got=got, fix=fix)
        wanted[plain.index(found)] = column
    return wanted


def plain_name(name: str) -> str:
    """Write the name of a column without what people vary in it.

    >>> plain_name(" Open Time"), plain_name("Volume_(BTC)")
    ('open_time', 'volume_btc')
    """
    return "_".join(name.lower().translate(_VARIED).split())


def flat_names(levels: Sequence[Sequence[str]], series: Series, where: str) -> list[str]:
    """Turn the levels of column names into one name a column, empty for those of other tickers.

    One level names prices, and another may name tickers; a column without a ticker is always taken.
    """
    if len(levels) == 1:
        return list(levels[0])
    if len(levels) > _MOST_LEVELS:
        raise _no_table(where, f"column names of {len(levels)} levels")
    prices, tickers = sorted(levels, key=lambda level: CLOSE not in map(plain_name, level))
    pairs = list(zip(prices, tickers, strict=True))
    names = [name if plain_symbol(ticker) in ("", series.symbol) else "" for name, ticker in pairs]
    if CLOSE not in map(plain_name, names):
        told = dict.fromkeys(shown(ticker, 30) for ticker in tickers if ticker)
        raise of_another_series(series, f"the tickers {listed(list(told))}")
    return names


def of_another_series(series: Series, got: str) -> DataError:
    """Build the error for candles that are said to be of something else."""
    fix = "Name the series that these candles are of, or give candles of this one"
    return DataError(where=str(series), rule="a model reads candles of its own series", got=got, fix=fix)


def _as_frame(given: Any, where: str) -> pd.DataFrame:
    """Turn columns by name, or rows, into a frame; rows without names get ours."""
    if isinstance(given, Mapping) or (isinstance(given, np.ndarray) and given.dtype.names):
        return _frame_of(given, where)
    if isinstance(given, np.ndarray):
        if given.dtype == np.float16:
            raise too_coarse(where, "the array")
        given = given.tolist()
    if not isinstance(given, list | tuple) or not 0 < len(given) <= MAX_ROWS:
        kind = f"{len(given):,} rows" if isinstance(given, list | tuple) else type(given).__name__
        raise _no_table(where, f"{kind} {shown(repr(given), 60)}" if isinstance(given, str) else kind)
    if all(isinstance(row, Mapping) for row in given):
        return _frame_of(given, where)
    lengths = {len(row) if isinstance(row, list | tuple) else 0 for row in given}
    if len(lengths) > 1 or not _LEAST_ROW_VALUES <= min(lengths) <= MOST_ROW_VALUES:
        raise _no_table(where, f"rows of {listed(sorted(lengths))} values")
    if any(isinstance(value, np.float16) for row in given for value in row):
        raise too_coarse(where, "its rows")
    names = (OPEN_TIME, *OHLCV)[: min(lengths)]
    return _frame_of([row[: len(names)] for row in given], where).set_axis(list(names), axis=1)


def _frame_of(given: Any, where: str) -> pd.DataFrame:
    try:
        return pd.DataFrame(given)
    except (ValueError, TypeError, OverflowError) as error:  # columns of unequal length, numbers beyond int64
        raise _no_table(where, str(error)) from error


def _no_table(where: str, got: str) -> DataError:
    rows = f"rows of open time, {', '.join(OHLC)} and volume"
    rule = f"is a table of candles: a frame, columns by name, or {rows}"
    return DataError(where=where, rule=rule, got=got, fix="Give one row a candle")


def _index_name(index: pd.Index, names: Sequence[str]) -> str:
    """Name the index of a frame as a column, if it holds times and no column those at which bars open.

    Dates are the open times, and so is what is named so, unless the name says that bars close then.
    """
    plain = [plain_name(each) for each in names]
    name = plain_name(str(index.name))
    if index.nlevels > 1 or OPEN_TIME in plain:
        return ""
    if name in CLOSE_TIME_NAMES:
        return name
    return OPEN_TIME if isinstance(index, pd.DatetimeIndex) or name in TIME_NAMES else ""


def _require_told(name: str, values: Iterable[object], series: Series) -> None:
    told = dict.fromkeys(map(str, values))
    others = [shown(value) for value in told if not _tells(TELLING_NAMES[name], value, series)]
    if others:
        raise of_another_series(series, f"{name} {listed(others)}")


def _tells(part: str, text: str, series: Series) -> bool:
    """Tell whether a text means a part of the series, in any usual way to write it.

    >>> series = Series("BTCUSDT", "15m")
    >>> [_tells("timeframe", text, series) for text in ("15m", "15min", "900", "15", "1h", "15M", "")]
    [True, True, True, True, False, False, False]
    """
    if part == "series":
        return text == str(series)
    if part == "symbol":
        symbol = plain_symbol(text.strip())
        # The coin alone, such as BTC of BTCUSDT; BTCUSD is another pair.
        is_base = len(series.symbol) - len(symbol) >= _FEWEST_QUOTE_LETTERS
        return symbol == series.symbol or (bool(symbol) and is_base and series.symbol.startswith(symbol))
    found = _SPAN.fullmatch(text.strip())
    if not found or found["unit"] == "M":  # a month
        return False
    units_s = (_UNIT_S[found["unit"][0].lower()],) if found["unit"] else _BARE_UNITS_S
    return any(int(found["number"]) * unit_s == series.bar_s for unit_s in units_s)


def number(item: Any) -> float:
    """Read a number, or the text of one; nan where it is none, as a date and true are."""
    if isinstance(item, bool) or not isinstance(item, str | Real | Decimal):
        return np.nan
    try:  # Python reads 1_000 as a number, which no candle file means
        return np.nan if isinstance(item, str) and "_" in item else float(item)
    except (ValueError, OverflowError):  # a text that is no number, a number beyond float64
        return np.nan


def is_coarse(column: pd.Series) -> bool:
    """Tell whether a column has numbers of 16 bits."""
    if column.dtype == object:
        return any(isinstance(item, np.float16) for item in column)
    return pd.api.types.is_float_dtype(column.dtype) and getattr(column.dtype, "itemsize", 0) == _COARSE_BYTES


def too_coarse(where: str, name: str) -> DataError:
    """Build the error for numbers of 16 bits."""
    rule = "prices and volumes have more than the three digits of 16 bits"
    fix = "Read them again as float64; what was rounded does not come back by converting"
    return DataError(where=where, rule=rule, got=f"float16 in {name}", fix=fix)


@dataclass(frozen=True, eq=False)
class OpenTimes:
    """A column of open times in one unit."""

    open_us: NDArray[np.int64]  # microseconds since the epoch, UTC, shape (N,), int64; 0 where unreadable
    is_readable: NDArray[np.bool_]  # which rows held a time, shape (N,), bool
    units: dict[str, int]  # how many rows were written in which unit, unitless counts

    @property
    def steps_s(self) -> NDArray[np.float64]:
        """Seconds from one moment to the next."""
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
    """Tell whether a column holds real numbers: true and false are none, nor are complex ones."""
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
            chosen = numbers[is_unit]
            # Integers stay integers where float64 cannot hold them: in nanoseconds.
            is_fine = smallest > 1e15
            open_us[is_unit] = chosen // 1_000 if is_fine else np.rint(chosen * round(1e15 / smallest))
            units[name] = int(is_unit.sum())
    return OpenTimes(open_us, open_us > 0, units)


def _from_text(column: pd.Series) -> OpenTimes:
    # Digits are numbers, never compact dates: 1518048000 is also a date to a lenient reader.
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
    counted = int(is_readable.sum())
    return OpenTimes(open_us, is_readable, {unit: counted} if counted else {})
