"""Candle tables in files: separated values, Parquet, Feather and JSON, packed or not, read strictly.

Of separated values, with a header or none:

- Values are parted by commas, semicolons, tabs or bars, whichever make a header or a row of candles; a line
  `sep=;` in front decides. Lines end in LF, CR LF or CR. A line in front of the header that holds a single
  field (the address of a site) is skipped. `v8.market.frames` says what names of columns mean.
- A header of two levels, prices and tickers, ends in a line that names the times only, as pandas writes it.
- A row is a line, and no longer than its header. A quote that is not closed where it was opened would swallow
  line ends up to the next one: rows are lost, and what stands behind belongs to another time.
- Rows without a header are open time, open, high, low, close and volume, perhaps with the number of trades
  behind, or the twelve columns of the exchange archive in its order.

Of the tables that Arrow keeps (Parquet and Feather) only the columns that are needed are read, and only if
they hold numbers, times or text: what pandas wrote beside them (indices, categories, types of its own)
decides nothing. A small file can claim any size, so what it says of itself is added up before anything is
unpacked.

Kinds of files are told by how their names end, a line each in `FILE_KINDS`.
"""

import csv
import gzip
import io
import json
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from flatbuffers.table import Table
from pyarrow import types

from v8.columns import OHLC, OHLCV, OPEN_TIME
from v8.errors import DataError, listed
from v8.market import frames
from v8.market.series import Series
from v8.parquet import FAULTS, ParquetContent, is_plain, longest_text

ARCHIVE_COLUMNS = (
    *(OPEN_TIME, *OHLCV, "close_time", "quote_volume", "count"),
    *("taker_buy_volume", "taker_buy_quote_volume", "ignore"),
)
"""Order of the exchange archive; see lineage "Sources they used" and the headers of its futures files."""

_TRADES_COLUMNS: Final = (*ARCHIVE_COLUMNS[:6], "count")
_HEADERLESS: Final = {len(names): names for names in (ARCHIVE_COLUMNS[:6], _TRADES_COLUMNS, ARCHIVE_COLUMNS)}
"""Names of the columns of rows without a header, by how many there are."""

_PLAINLY: Final[dict[str, Any]] = {
    **{"header": None, "index_col": False, "low_memory": False},
    **({} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}),
}
"""How pandas reads them. Before 3.1 its usual number parser was off by one in the last bit, which changes
digests; from 3.1 it is exact and the argument is deprecated."""

SEPARATORS: Final[str] = ",;\t|"
_MOST_LINES_TO_HEADER: Final = 5  # `sep=`, an address, an empty line, the header; or its levels and times
_MAX_LINE: Final = 65_536
_EVEN: Final = "be a CSV with as many values a row as columns"
_LEVELS: Final = ("price", "ticker", "attributes", "symbols", "")  # what stands before a header's names
_LONGEST_TICKER: Final = 2  # letters of a name of the time that is also a ticker: T

MAX_UNPACKED_BYTES: Final = 2**31  # of a Feather file: the buffers of all its columns
_MAX_TEXT: Final = 64  # bytes of a number or a time that is written as text
_INDEX_NAMES: Final = {"__index_level_0__": OPEN_TIME}  # how pandas writes an index without a name
_FAULTS: Final = (*FAULTS, struct.error)
_FEATHER_START: Final = b"ARROW1\0\0"
_BATCH: Final = "record batch"
_MEMBER_2 = 8  # where a flatbuffer says which bytes are a table's third and fourth member
_MEMBER_3 = 10
MAX_FILE_BYTES: Final = 2**30  # ten years of minutes have 600 MB as the archive writes them
MAX_JSON_BYTES: Final = 2**28  # in memory a row of JSON takes five times what it takes in the file
TableReader: TypeAlias = Callable[[bytes, Series, str], pd.DataFrame]
"""Turns a whole file into the columns that `check_candles` wants; the text names the file in errors."""

PACKING_FAULTS: Final = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, OverflowError),
    *(ValueError, RuntimeError),
)
"""What is raised for damage; ValueError for a place before the begin, RuntimeError for a password."""


def require_even(text: str, separator: str, num_columns: int, where: str) -> None:
    """Refuse a line of more values than columns, but for empty ones at its end, or with an open quote."""
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if '"' in line:
            try:
                next(csv.reader([line], delimiter=separator, strict=True))
            except csv.Error as error:
                rule = "must be a CSV in which a quote closes on its own line, around a whole value"
                got = f"{error} in line {number:,}"
                fix = "Close or remove the quote: rows behind it are lost"
                raise DataError(where=where, rule=rule, got=got, fix=fix) from error
        if line.count(separator) >= num_columns:
            values = next(csv.reader([line.rstrip(f"{separator} \n")], delimiter=separator))
            if len(values) > num_columns:
                got = f"{len(values)} values in line {number:,}, and {num_columns} columns"
                raise DataError(where=where, rule=f"must {_EVEN}", got=got, fix="Mend the file")


def read_csv_table(content: bytes, series: Series, where: str) -> pd.DataFrame:
    """Read a CSV, UTF-8 with or without a byte order mark, into the columns that `check_candles` wants.

    The volume may be missing; rows are as they stand in the file.
    """
    text = decoded(content, where)
    stream, separator, names = _open_table(text, series, where)
    wanted = frames.wanted_columns(names, series, where)
    require_even(text, separator, len(names), where)
    return read_rows(stream, separator, len(names), wanted, where)


def decoded(content: bytes, where: str) -> str:
    """Read UTF-8 text, with a byte order mark or without."""
    with _read_as("be UTF-8 text", where, (UnicodeDecodeError,)):
        return content.decode("utf-8-sig")


def read_rows(
    rows: io.StringIO, separator: str, num_columns: int, wanted: Mapping[int, str], where: str, **how: Any
) -> pd.DataFrame:
    """Read columns by their number, under our names, of the rows behind a header."""
    options = _PLAINLY | {"sep": separator, "names": range(num_columns), "usecols": list(wanted)} | how
    with _read_as(_EVEN, where, (ValueError, OverflowError)):  # pandas' own are ValueErrors
        return pd.read_csv(rows, **options).rename(columns=wanted)[list(wanted.values())]


def _open_table(text: str, series: Series, where: str) -> tuple[io.StringIO, str, list[str]]:
    """Find the first row of a CSV: a stream that stands before it, the separator, and the column names."""
    stream = io.StringIO(text, newline=None)
    separators = SEPARATORS
    best: list[str] = []
    above: list[list[str]] = []
    for _ in range(_MOST_LINES_TO_HEADER):
        start = stream.tell()
        line = stream.readline(_MAX_LINE)
        if len(line) == _MAX_LINE or "\0" in line:
            raise unlike_a_table(where, f"a line of {_MAX_LINE:,} characters or more, or with a NUL")
        told = re.fullmatch(r'"?sep=([,;|\t])"?\s*', line, re.IGNORECASE)
        if told:
            separators = told[1]
            continue
        for separator in separators:
            names = next(csv.reader([line], delimiter=separator), [])
            if len(names) > 1 and frames.plain_name(names[0]) in frames.TIME_NAMES and not any(names[1:]):
                levels = [level[1:] for level in above if len(level) == len(names)]
                if not levels:
                    raise unlike_a_table(where, f"the name {names[0]} and no other")
                return stream, separator, [names[0], *frames.flat_names(levels, series, where)]
            if _is_header(names):
                return stream, separator, names
            if _is_row(names):
                stream.seek(start)
                return stream, separator, list(_HEADERLESS[len(names)])
            best = max(best, names, key=len)
            above += [names] if names and frames.plain_name(names[0]) in _LEVELS else []
        if len(best) > 1 and not above:
            break
    raise unlike_a_table(where, f"{len(best)} columns that begin {listed(best)}")


def _is_header(names: Sequence[str]) -> bool:
    """Tell whether a line names the columns; a line of tickers does not."""
    times = [frames.plain_name(name) for name in names if frames.plain_name(name) in frames.TIME_NAMES]
    is_level = bool(names) and frames.plain_name(names[0]) in _LEVELS
    return any(len(name) > _LONGEST_TICKER for name in times) if is_level else bool(times)


def _is_row(values: Sequence[str]) -> bool:
    """Tell whether a line is a row of candles and no header."""
    if len(values) == len(ARCHIVE_COLUMNS):
        return values[0].strip().isdigit()
    if len(values) not in _HEADERLESS or not np.isfinite([*map(frames.number, values[1:])]).all():
        return False
    return bool(frames.read_open_times(pd.Series([values[0]], dtype="object")).is_readable.all())


@contextmanager
def _read_as(kind: str, where: str, faults: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn what a library raises for a damaged file into one error; ours go through."""
    try:
        yield
    except DataError:
        raise
    except faults as error:
        got = " ".join(str(error).split()) or type(error).__name__
        raise DataError(where=where, rule=f"must {kind}", got=got, fix="Replace the file") from error


def read_parquet_table(content: bytes, series: Series, where: str) -> pd.DataFrame:
    """Read a Parquet file, whose open times may also be the index that pandas wrote; see `read_csv_table`."""
    with _read_as("be a Parquet file", where, _FAULTS):
        file = ParquetContent(content)
        wanted = _plain_columns(file.schema, file.num_rows, series, where)
        return _frame(file.read([*wanted]), wanted, where)


def read_feather_table(content: bytes, series: Series, where: str) -> pd.DataFrame:
    """Read a Feather (Arrow) file of numbers and times; see `read_csv_table`."""
    with _read_as("be a Feather file (of version 2)", where, _FAULTS):
        num_rows = _claimed_rows(content, where)
        schema = pa.ipc.open_file(pa.BufferReader(content)).schema
        wanted = _plain_columns(schema, num_rows, series, where)
        places = sorted(map(schema.get_field_index, wanted))
        options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        table = pa.ipc.open_file(pa.BufferReader(content), options=options).read_all()
        table.validate(full=True)  # a text of a damaged file may lie outside its memory
        return _frame(table, wanted, where)


def _claimed_rows(content: bytes, where: str) -> int:
    """Add up the rows of a Feather file; refuse one whose columns claim too much room."""
    if not content.startswith(_FEATHER_START):
        raise ValueError("it does not begin as one")
    num_rows = num_bytes = 0
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(content[len(_FEATHER_START) :])):
        if message.type == _BATCH:
            # With no columns to read, what is left of a batch is its number of rows.
            num_rows += pa.ipc.read_record_batch(message, pa.schema([])).num_rows
            num_bytes += sum(_unpacked_sizes(message))
    if num_bytes > MAX_UNPACKED_BYTES:
        raise unlike_a_table(where, f"columns that unpack to {num_bytes:,} bytes")
    return num_rows


def _unpacked_sizes(batch: pa.Message) -> Iterator[int]:
    """Tell how large each buffer of a batch is unpacked: a packed one begins with that.

    The places of the buffers are in the header, a flatbuffer: see Message.fbs of the Arrow format.
    """
    header = bytearray(batch.metadata.to_pybytes())
    body = memoryview(batch.body)
    message = Table(header, struct.unpack_from("<I", header)[0])
    record = Table(header, message.Indirect(message.Pos + message.Offset(_MEMBER_2)))
    buffers = record.Offset(_MEMBER_2)
    is_packed = record.Offset(_MEMBER_3) > 0
    if not buffers:
        raise ValueError("its header lacks a part")
    for number in range(record.VectorLen(buffers)):
        start, length = struct.unpack_from("<qq", header, record.Vector(buffers) + 16 * number)
        claimed = struct.unpack_from("<q", body, start)[0] if is_packed and length else length
        yield length if claimed < 0 else claimed  # -1 stands before what is not packed


def _plain_columns(schema: pa.Schema, num_rows: int, series: Series, where: str) -> dict[str, str]:
    """Find our name by that of each column that is needed.

    What a small file can ask for is refused: rows without end, and columns of lists or bytes.
    """
    names = [_INDEX_NAMES.get(name, name) for name in schema.names]
    wanted = frames.wanted_columns(names, series, where)
    got = [f"{num_rows:,} rows"] if num_rows > frames.MAX_ROWS else []
    for field in map(schema.field, wanted):
        if not is_plain(field.type):
            got.append(f"{field.type} in {field.name}")
    if got:
        rule = f"holds at most {frames.MAX_ROWS:,} rows of numbers, times or text"
        fix = "Write the columns as plain numbers, in several files if there are that many"
        raise DataError(where=where, rule=rule, got=listed(got), fix=fix)
    return {schema.names[number]: name for number, name in wanted.items()}


def _frame(table: pa.Table, wanted: dict[str, str], where: str) -> pd.DataFrame:
    return pd.DataFrame({ours: _column(table[theirs], where) for theirs, ours in wanted.items()})


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
    longest = longest_text(texts)
    if longest > _MAX_TEXT:
        raise unlike_a_table(where, f"a text of {longest:,} bytes where a number or a time belongs")


def read_json_table(content: bytes, series: Series, where: str) -> pd.DataFrame:
    """Read JSON: a list of rows as ccxt and freqtrade write them, of objects, or columns by name."""
    if len(content) > MAX_JSON_BYTES:
        raise _too_long(where, f"JSON of {len(content):,} bytes", MAX_JSON_BYTES)
    with _read_as("be JSON", where, (ValueError, RecursionError)):
        rows = json.loads(content)
    return frames.candle_table(rows, series, where)


FILE_KINDS: Final[dict[str, TableReader]] = {
    **dict.fromkeys((".csv", ".tsv"), read_csv_table),
    ".parquet": read_parquet_table,  # as pandas and freqtrade write it
    ".feather": read_feather_table,  # freqtrade's, an Arrow file
    ".json": read_json_table,  # ccxt's rows, freqtrade's, objects or columns
}
"""What reads every kind of file that the source `files` takes, by its ending in small letters."""


def unzipped(content: bytes, most_bytes: int) -> tuple[list[str], bytes]:
    """Return the names of what a zip holds, and what a single file does, at most a byte more than allowed.

    It is read by that limit, not by the size in the header: a bomb lies there.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [name for name in archive.namelist() if not name.startswith("__MACOSX/")]
        if len(names) != 1:
            return names, b""
        with archive.open(names[0]) as stream:
            return names, stream.read(most_bytes + 1)


def _unpack_zip(content: bytes) -> bytes:
    names, text = unzipped(content, MAX_FILE_BYTES)
    if len(names) != 1:
        raise ValueError(f"it holds {len(names)} files, where one is read")
    return text


_PACKINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    ".gz": lambda content: gzip.GzipFile(fileobj=io.BytesIO(content)).read(MAX_FILE_BYTES + 1),
    ".zip": _unpack_zip,
}
"""What unpacks a file whose name has this behind its ending."""


def split_ending(name: str) -> tuple[str, str] | None:
    """Part a file's name into what stands before its ending, and the ending; None for one that is not read.

    >>> split_ending("BTC_USDT-1h.CSV.gz"), split_ending("BRK.B-1d.json"), split_ending("notes.txt")
    (('BTC_USDT-1h', '.csv.gz'), ('BRK.B-1d', '.json'), None)
    """
    small = name.lower()
    for kind in FILE_KINDS:
        for packing in ("", *_PACKINGS):
            if small.endswith(kind + packing):
                return name[: len(name) - len(kind + packing)], kind + packing
    return None


def read_table(content: bytes, ending: str, series: Series, where: str) -> pd.DataFrame:
    """Read a file of any kind, packed or not, by its ending as `split_ending` told it."""
    kind = next(kind for kind in FILE_KINDS if ending.startswith(kind))
    packing = ending.removeprefix(kind)
    if packing:
        with _read_as(f"be one file packed as {packing[1:]}", where, PACKING_FAULTS):
            content = _PACKINGS[packing](content)
        if len(content) > MAX_FILE_BYTES:
            raise _too_long(where, "more", MAX_FILE_BYTES)
    return FILE_KINDS[kind](content, series, where)


def _too_long(where: str, got: str, most_bytes: int) -> DataError:
    fix = "Split it into several files, or write it as Parquet"
    return DataError(where=where, rule=f"unpacks to at most {most_bytes:,} bytes", got=got, fix=fix)


def unlike_a_table(where: str, got: str) -> DataError:
    """Build the error for a file that is no table of candles."""
    names = f"open time (or timestamp, time, date), {', '.join(OHLC)} and volume"
    rows = f"rows of these six values or of the {len(ARCHIVE_COLUMNS)} of the exchange archive"
    rule = f"needs a header that names {names}, or {rows}"
    fix = "Add a header line that names the columns"
    return DataError(where=where, rule=rule, got=got, fix=fix)
