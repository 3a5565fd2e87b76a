"""Strict readers of candle files: separated values, Parquet, Feather and JSON, compressed or not.

Separated values, with or without a header:

- The separator is the one of comma, semicolon, tab and vertical bar that makes a header or a row of candles;
  a first line `sep=;` decides it. Lines end in LF, CR LF or CR. A line before the header with a single field
  (the address of a web site) is skipped. `v8.data.market.column_names` lists the names of columns.
- A header of two levels, prices and tickers, ends with a line that names the times only, as pandas writes it.
- Each row is one line, and no longer than the header. A quote that is not closed on its line would join all
  lines up to the next quote: rows would be lost, and values would get wrong times.
- Rows without a header are open time, open, high, low, close and volume, optionally followed by the number of
  trades or the quote volume, or the twelve columns of the exchange archive in its order.

Of Arrow tables (Parquet and Feather) only the needed columns are read, and only if they hold numbers, times
or text; metadata that pandas adds (indices, categories, types of its own) is ignored. A file of kilobytes can
hold millions of rows, and claim any size: what its footer says is added up before anything is decompressed.

The kind of a file is recognised by the ending of its name; `FILE_KINDS` lists all endings.
"""

import csv
import gzip
import io
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
import pyarrow.compute as pc
import pyarrow.parquet as pq
from flatbuffers.table import Table
from pyarrow import types

from v8.base.errors import DataError, listed, shown
from v8.base.records import parse_json
from v8.data.market import frames
from v8.data.market.column_names import (
    ARCHIVE_COLUMNS,
    CLOSE_TIME_NAMES,
    OPEN_TIME_RULE,
    TIME_NAMES,
    UNNAMED_COLUMNS,
    plain_name,
    wanted_columns,
)
from v8.data.market.series import Series
from v8.profile.columns import OHLC, OHLCV, OPEN_TIME

_READ_OPTIONS: Final[dict[str, Any]] = {
    **{"header": None, "index_col": False, "low_memory": False},
    **({} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}),
}
"""Options of `pandas.read_csv`. Before 3.1 its default number parser was wrong in the last bit, which changes
digests; from 3.1 on it is exact and the argument is deprecated."""

SEPARATORS: Final[str] = ",;\t|"
_MOST_LINES_TO_HEADER: Final = 5  # `sep=`, an address, an empty line, the header; or its levels and times
_MAX_LINE: Final = 65_536
_LINE: Final = re.compile(rb"[^\r\n]+")
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}")
_FEWEST_UNNAMED: Final = 6  # values of a row without a header; fewer could be anything
_EVEN: Final = "be a CSV with as many values in each row as columns"
_LEVELS: Final = (
    "price",
    "ticker",
    "attributes",
    "symbols",
    "",
)  # first fields of the lines of a header with levels
_LONGEST_TICKER: Final = 2  # a name of the time that is also a ticker is not longer: T

MAX_UNPACKED_BYTES: Final = 2**31  # of a Feather file: sum of the buffers of all columns
_MAX_TEXT: Final = 64  # longest number or time that is written as text, in bytes
_INDEX_NAMES: Final = {"__index_level_0__": OPEN_TIME}  # how pandas writes an index without a name
_FEATHER_TAIL: Final = struct.Struct("<i6s")  # length of the footer, "ARROW1"
_BATCH_PLACE: Final = struct.Struct("<qi4xq")  # where a batch starts, length of its header, of its body
_MEMBER_2: Final = 8  # positions of the third and fourth member in the vtable of a flatbuffer
_MEMBER_3: Final = 10
MAX_FILE_BYTES: Final = 2**30  # ten years of minutes have 600 MB as the archive writes them
MAX_CHECKSUM_BYTES: Final = 4_096
_CHECKSUM: Final = re.compile(r"([0-9a-fA-F]{64})\s+\*?(\S+)\s*")
MAX_JSON_BYTES: Final = 2**28  # in memory a row of JSON takes five times as much as in the file
TableReader: TypeAlias = Callable[[bytes, Series, str], pd.DataFrame]
"""Reads the content of a file into the columns that `check_candles` needs; the text names the file in
errors."""

PARQUET_FAULTS: Final = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
"""Raised by the library for a file that is damaged or claims impossible sizes."""

_PLAIN_TYPES: Final = (
    *(types.is_integer, types.is_floating, types.is_decimal, types.is_timestamp, types.is_date),
    *(types.is_string, types.is_large_string, types.is_string_view, types.is_null),
)

PACKING_FAULTS: Final = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, OverflowError),
    *(ValueError, RuntimeError),
)
"""Raised for damaged files; ValueError for an offset before the start, RuntimeError for a password."""


def require_even(text: str, separator: str, num_columns: int, location: str) -> None:
    """Refuse a line with an unclosed quote, or with more values than columns except empty ones at its end."""
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if '"' in line:
            try:
                next(csv.reader([line], delimiter=separator, strict=True))
            except csv.Error as error:
                raise DataError(
                    where=location,
                    rule="must be a CSV in which a quote closes on its own line, around a whole value",
                    got=f"{error} in line {number:,}",
                    fix="Close or remove the quote: rows after it are lost",
                ) from error
        if line.count(separator) >= num_columns:
            values = next(csv.reader([line.rstrip(f"{separator} \n")], delimiter=separator))
            if len(values) > num_columns:
                first = listed([shown(value, 20) for value in values])
                raise DataError(
                    where=location,
                    rule=f"must {_EVEN}",
                    got=f"{len(values)} values in line {number:,}, and {num_columns} columns: {first}",
                    fix="Correct the file; numbers with commas need another separator, and a decimal point",
                )


def read_csv_table(content: bytes, series: Series, location: str) -> pd.DataFrame:
    """Read a CSV, UTF-8 with or without a byte order mark, into the columns that `check_candles` needs.

    The volume may be missing; the rows are in the order of the file.
    """
    text = decoded(content, location)
    stream, separator, names = _open_table(text, series, location)
    columns = wanted_columns(names, series, location)
    require_even(text, separator, len(names), location)
    frame = read_rows(stream, separator, len(names), columns, location)
    return frames.settled(frame, series, location)


def decoded(content: bytes, location: str) -> str:
    """Decode UTF-8 text, with or without a byte order mark."""
    with _read_as("be UTF-8 text", location, (UnicodeDecodeError,)):
        return content.decode("utf-8-sig")


def read_rows(
    rows: io.StringIO,
    separator: str,
    num_columns: int,
    columns: Mapping[int, str],
    location: str,
    **read_options: Any,
) -> pd.DataFrame:
    """Read the rows after a header.

    Args:
        rows: Stream that is positioned after the header.
        separator: Between two values.
        num_columns: Number of columns in the file.
        columns: Our names by the number of each column that is read.
        location: Name of the file for messages.
        **read_options: Further options of `pandas.read_csv`.
    """
    options = {**_READ_OPTIONS, "sep": separator, "names": range(num_columns), "usecols": list(columns)}
    options.update(read_options)
    with _read_as(_EVEN, location, (ValueError, OverflowError)):  # errors of pandas are ValueErrors
        frame = pd.read_csv(rows, **options)
        return frame.rename(columns=columns)[list(columns.values())]


def _open_table(text: str, series: Series, location: str) -> tuple[io.StringIO, str, list[str]]:
    """Find the first row of a CSV; return a stream positioned there, the separator and the column names."""
    stream = io.StringIO(text, newline=None)
    separators = SEPARATORS
    best: list[str] = []
    above: list[list[str]] = []
    for _ in range(_MOST_LINES_TO_HEADER):
        start = stream.tell()
        line = stream.readline(_MAX_LINE)
        if len(line) == _MAX_LINE or "\0" in line:
            raise unlike_a_table(location, f"a line of {_MAX_LINE:,} characters or more, or with a NUL")
        declaration = re.fullmatch(r'"?sep=([,;|\t])"?\s*', line, re.IGNORECASE)
        if declaration:
            separators = declaration[1]
            continue
        for separator in separators:
            names = next(csv.reader([line], delimiter=separator), [])
            if _is_time_only(names):
                return stream, separator, _joined_levels(names, above, series, location)
            if _is_header(names):
                return stream, separator, names
            if _is_row(names):
                stream.seek(start)
                return stream, separator, list(UNNAMED_COLUMNS[len(names)])
            best = max(best, names, key=len)
            if names and plain_name(names[0]) in _LEVELS:
                above.append(names)
        if len(best) > 1 and not above:
            break
    raise _no_header(best, location)


def _no_header(values: Sequence[str], location: str) -> DataError:
    """Return the error for a line that is neither a header nor a row of candles."""
    more_fix = ""
    if len(values) > 1 and _CLOCK.match(values[1]):
        more_fix = ", and join date and time in one column, in UTC"
    elif len(values) == 1 and len(values[0].split()) > len(OHLC):
        more_fix = ", with commas and not blanks between the values, and date and time in one column"
    got = f"{len(values)} columns that begin {listed(values)}" if values else "an empty file"
    return unlike_a_table(location, got, more_fix)


def _is_time_only(names: Sequence[str]) -> bool:
    """Return whether a line names the time column and no other: the last line of a header with levels."""
    return len(names) > 1 and not any(names[1:]) and plain_name(names[0]) in TIME_NAMES


def _joined_levels(
    time_line: Sequence[str], lines_above: Sequence[Sequence[str]], series: Series, location: str
) -> list[str]:
    """Return the column names of a header with levels: that of the time, then those of the lines above."""
    levels = [line[1:] for line in lines_above if len(line) == len(time_line)]
    if not levels:
        raise unlike_a_table(location, f"the name {time_line[0]} and no other")
    return [time_line[0], *frames.flat_names(levels, series, location)]


def _is_header(names: Sequence[str]) -> bool:
    """Return whether a line is a header of column names; a line of tickers is not.

    One with a close time alone is one, too: `wanted_columns` says what is to be done with it.
    """
    plain = [plain_name(name) for name in names]
    times = [name for name in plain if name in TIME_NAMES]
    if plain and plain[0] in _LEVELS:
        return any(len(name) > _LONGEST_TICKER for name in times)
    return bool(times) or (len(names) > 1 and any(name in CLOSE_TIME_NAMES for name in plain))


def _is_row(values: Sequence[str]) -> bool:
    if len(values) == len(ARCHIVE_COLUMNS):
        return values[0].strip().isdigit()
    if len(values) not in UNNAMED_COLUMNS or len(values) < _FEWEST_UNNAMED:
        return False
    if not np.isfinite([frames.number(value) for value in values[1:]]).all():
        return False
    return bool(frames.read_open_times(pd.Series([values[0]], dtype="object")).is_readable.all())


@contextmanager
def _read_as(kind: str, location: str, faults: tuple[type[Exception], ...]) -> Iterator[None]:
    """Convert the errors of a library for a damaged file to a DataError; a DataError passes unchanged."""
    try:
        yield
    except DataError:
        raise
    except faults as error:
        raise DataError(
            where=location,
            rule=f"must {kind}",
            got=" ".join(str(error).split()) or type(error).__name__,
            fix="Replace the file",
        ) from error


class ParquetContent:
    """The content of a Parquet file, of which only the footer has been read.

    The constructor raises one of `PARQUET_FAULTS` if the content is not a Parquet file.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        file = pq.ParquetFile(pa.BufferReader(content))
        self.schema: pa.Schema = file.schema_arrow
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        # The footer states the number twice, and readers use that of the groups.
        self.num_rows: int = max(file.metadata.num_rows, sum(group.num_rows for group in groups))
        self.num_bytes: int = sum(group.total_byte_size for group in groups)
        """Size of all columns after decompression, in bytes, as the footer states it."""

    def read(self, names: Sequence[str]) -> pa.Table:
        """Read columns by their names; they must be plain ones (`is_plain`).

        Texts are read as dictionaries, in which each text is stored once: a small file can repeat a long text
        millions of times. Raises one of `PARQUET_FAULTS` if the columns are damaged.
        """
        texts = [name for name in names if types.is_string(self.schema.field(name).type)]
        file = pq.ParquetFile(pa.BufferReader(self._content), read_dictionary=texts)
        return file.read(columns=[*names], use_pandas_metadata=False)


def is_plain(kind: pa.DataType) -> bool:
    """Return whether a column type is numbers, times or text, or a dictionary of these."""
    stored = kind.value_type if types.is_dictionary(kind) else kind
    return any(is_kind(stored) for is_kind in _PLAIN_TYPES)


def longest_text(texts: Iterable[Any]) -> int:
    """Return the length of the longest text of Arrow arrays, in bytes; 0 without any."""
    return max((pc.max(pc.binary_length(array)).as_py() or 0 for array in texts), default=0)


def read_parquet_table(content: bytes, series: Series, location: str) -> pd.DataFrame:
    """Read a Parquet file; its open times may also be the index of a data frame. See `read_csv_table`."""
    with _read_as("be a Parquet file", location, PARQUET_FAULTS):
        file = ParquetContent(content)
        columns = _plain_columns(file.schema, file.num_rows, series, location)
        return frames.settled(_frame(file.read(list(columns)), columns, location), series, location)


def read_feather_table(content: bytes, series: Series, location: str) -> pd.DataFrame:
    """Read a Feather (Arrow) file of numbers and times; see `read_csv_table`."""
    with _read_as("be a Feather file (of version 2)", location, (*PARQUET_FAULTS, struct.error)):
        schema = pa.ipc.open_file(pa.BufferReader(content)).schema
        num_rows = _claimed_rows(content, location)
        columns = _plain_columns(schema, num_rows, series, location)
        field_numbers = sorted(schema.get_field_index(name) for name in columns)
        options = pa.ipc.IpcReadOptions(included_fields=field_numbers, use_threads=False)
        table = pa.ipc.open_file(pa.BufferReader(content), options=options).read_all()
        table.validate(full=True)  # in a damaged file a text may point outside of its buffer
        return frames.settled(_frame(table, columns, location), series, location)


def _claimed_rows(content: bytes, location: str) -> int:
    """Return the number of rows of a Feather file; refuse a file whose columns claim too much memory."""
    num_rows = num_bytes = 0
    for message in _batches(content):
        # Read without columns, a batch consists of its number of rows only.
        num_rows += pa.ipc.read_record_batch(message, pa.schema([])).num_rows
        num_bytes += sum(_unpacked_sizes(message))
    if num_bytes > MAX_UNPACKED_BYTES:
        raise unlike_a_table(location, f"columns that unpack to {num_bytes:,} bytes")
    return num_rows


def _batches(content: bytes) -> Iterator[pa.Message]:
    """Yield the batches of rows that the footer of a Feather file lists: readers find them there only.

    The footer is a flatbuffer before the last ten bytes, which hold its length; see File.fbs of the Arrow
    format. What precedes the first batch differs: Polars writes no length before the schema.
    """
    stop = len(content) - _FEATHER_TAIL.size
    footer = bytearray(content[stop - _FEATHER_TAIL.unpack_from(content, stop)[0] : stop])
    table = Table(footer, struct.unpack_from("<I", footer)[0])
    batches = table.Offset(_MEMBER_3)
    for number in range(table.VectorLen(batches) if batches else 0):
        position = table.Vector(batches) + _BATCH_PLACE.size * number
        start, header_bytes, body_bytes = _BATCH_PLACE.unpack_from(footer, position)
        if min(start, header_bytes, body_bytes) < 0 or start + header_bytes + body_bytes > stop:
            raise ValueError("its footer lists rows outside of the file")
        yield pa.ipc.read_message(content[start : start + header_bytes + body_bytes])


def _unpacked_sizes(batch: pa.Message) -> Iterator[int]:
    """Yield the decompressed size of each buffer of a batch, in bytes; a compressed buffer starts with it.

    The positions of the buffers are in the header, a flatbuffer: see Message.fbs of the Arrow format.
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
        yield length if claimed < 0 else claimed  # -1 marks a buffer that is not compressed


def _plain_columns(schema: pa.Schema, num_rows: int, series: Series, location: str) -> dict[str, str]:
    """Return our name of each needed column by its name in the file.

    Refuse tables with too many rows, and columns of other types than numbers, times and text.
    """
    names = [_INDEX_NAMES.get(name, name) for name in schema.names]
    columns = wanted_columns(names, series, location)
    faults = [f"{num_rows:,} rows"] if num_rows > frames.MAX_ROWS else []
    for number in columns:
        field = schema.field(number)
        is_flag = types.is_boolean(field.type) and columns[number] not in (OPEN_TIME, *OHLCV)
        if not is_plain(field.type) and not is_flag:
            faults.append(f"{field.type} in {field.name}")
    if faults:
        raise DataError(
            where=location,
            rule=f"holds at most {frames.MAX_ROWS:,} rows of numbers, times or text",
            got=listed(faults),
            fix="Write the columns as plain numbers, in several files if there are that many",
        )
    return {schema.names[number]: name for number, name in columns.items()}


def _frame(table: pa.Table, columns: dict[str, str], location: str) -> pd.DataFrame:
    """Convert a table to a data frame with our names."""
    return pd.DataFrame(
        {our_name: _column(table[file_name], location) for file_name, our_name in columns.items()}
    )


def _column(column: pa.ChunkedArray, location: str) -> pd.Series:
    """Convert a plain column to numbers, times in its own unit without a zone (UTC), or short texts."""
    if types.is_dictionary(column.type):
        _require_short((chunk.dictionary for chunk in column.chunks), location)
        column = column.cast(column.type.value_type)
    if types.is_string_view(column.type):  # how Polars writes texts
        column = column.cast(pa.large_string())
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        _require_short([column], location)
    elif types.is_date(kind) or types.is_timestamp(kind):
        unit = "s" if types.is_date(kind) else kind.unit
        numbers = column.cast(pa.timestamp(unit)).cast(pa.int64()).fill_null(np.iinfo(np.int64).min)
        return pd.Series(numbers.to_numpy().view(f"datetime64[{unit}]"))
    return column.to_pandas()


def _require_short(texts: Iterable[Any], location: str) -> None:
    longest = longest_text(texts)
    if longest > _MAX_TEXT:
        raise unlike_a_table(location, f"a text of {longest:,} bytes where a number or a time belongs")


def read_json_table(content: bytes, series: Series, location: str) -> pd.DataFrame:
    """Read JSON: a list of rows as ccxt and freqtrade write them, of objects, or columns by name.

    It may also be JSON Lines, a row a line.
    """
    if len(content) > MAX_JSON_BYTES:
        raise _too_long(location, f"JSON of {len(content):,} bytes", MAX_JSON_BYTES)
    with _read_as("be JSON, or JSON Lines", location, (ValueError,)):
        rows = _json_rows(content)
    return frames.candle_table(rows, series, location)


def _json_rows(content: bytes) -> Any:
    """Parse JSON, or JSON Lines, whose first line is complete.

    Raises:
        ValueError: If it is neither.
    """
    stripped = content.strip()
    first_line = _LINE.match(stripped)
    if first_line is None or first_line.end() == len(stripped):
        return parse_json(content)
    try:
        parse_json(first_line[0])
    except ValueError:  # such as an opening bracket
        return parse_json(content)
    rows = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                rows.append(parse_json(line))
            except ValueError as error:
                raise ValueError(f"in line {number:,}: {error}") from error
    return rows


FILE_KINDS: Final[dict[str, TableReader]] = {
    **dict.fromkeys((".csv", ".tsv"), read_csv_table),
    ".parquet": read_parquet_table,  # as pandas and freqtrade write it
    ".feather": read_feather_table,  # freqtrade's, an Arrow file
    **dict.fromkeys((".jsonl", ".ndjson"), read_json_table),  # before .json, which .jsonl begins with
    ".json": read_json_table,  # ccxt's rows, freqtrade's, objects or columns
}
"""Readers of the kinds of files that the source `files` accepts, by their endings in small letters."""


def checksum_of(content: bytes, name: str) -> str | None:
    """Read the sha256 of a file in its .CHECKSUM, 64 small hex digits; None if it is not one of that file."""
    match = _CHECKSUM.fullmatch(content.decode("utf-8", "replace"))
    return match[1].lower() if match and match[2] == name else None


def unzipped(content: bytes, most_bytes: int) -> tuple[list[str], bytes]:
    """Return the names of the files in a zip, and the content of a single file.

    Of the content at most `most_bytes` + 1 bytes are read.
    The size in the header is not used, because it may be wrong (a decompression bomb).
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [name for name in archive.namelist() if not name.startswith("__MACOSX/")]
        if len(names) != 1:
            return names, b""
        with archive.open(names[0]) as stream:
            return names, stream.read(most_bytes + 1)


def _unpack_single(content: bytes) -> tuple[str, bytes]:
    """Return the name and the content of the only file in a zip."""
    names, text = unzipped(content, MAX_FILE_BYTES)
    if len(names) != 1:
        raise ValueError(f"it holds {len(names)} files, where one is read")
    return names[0], text


_PACKINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    ".gz": lambda content: gzip.GzipFile(fileobj=io.BytesIO(content)).read(MAX_FILE_BYTES + 1),
    ".zip": lambda content: _unpack_single(content)[1],
}
"""Decompressors by the suffix that follows the ending of a file's name."""
ZIP: Final = ".zip"
"""Ending of a zip whose name does not tell the kind of the file in it, as in the exchange archive."""


def split_ending(name: str) -> tuple[str, str] | None:
    """Split a file's name into stem and ending; None if files with such an ending are not read.

    >>> split_ending("BTC_USDT-1h.CSV.gz"), split_ending("BRK.B-1d.json"), split_ending("notes.txt")
    (('BTC_USDT-1h', '.csv.gz'), ('BRK.B-1d', '.json'), None)
    >>> split_ending("BTCUSDT-1h-2024-08.zip")
    ('BTCUSDT-1h-2024-08', '.zip')
    """
    small = name.lower()
    endings = [kind + packing for kind in FILE_KINDS for packing in ("", *_PACKINGS)]
    for ending in (*endings, ZIP):
        if small.endswith(ending):
            return name[: len(name) - len(ending)], ending
    return None


def read_table(content: bytes, ending: str, series: Series, location: str) -> pd.DataFrame:
    """Read a file of any kind, compressed or not, by its ending as `split_ending` returns it."""
    if ending == ZIP:
        with _read_as("be one file compressed as zip", location, PACKING_FAULTS):
            name, content = _unpack_single(content)
        kind = _kind(name)
        if kind is None:
            raise DataError(
                where=location,
                rule=f"holds a file with one of the endings {', '.join(FILE_KINDS)}",
                got=shown(name, 60),
                fix="Unpack it, and save what it holds as one of these",
            )
    else:
        kind = next(kind for kind in FILE_KINDS if ending.startswith(kind))
        packing = ending.removeprefix(kind)
        if packing:
            with _read_as(f"be one file compressed as {packing[1:]}", location, PACKING_FAULTS):
                content = _PACKINGS[packing](content)
    if len(content) > MAX_FILE_BYTES:
        raise _too_long(location, "more", MAX_FILE_BYTES)
    return FILE_KINDS[kind](content, series, location)


def _kind(name: str) -> str | None:
    """Return the key of `FILE_KINDS` with which the name of a file ends."""
    return next((kind for kind in FILE_KINDS if name.lower().endswith(kind)), None)


def _too_long(location: str, got: str, most_bytes: int) -> DataError:
    return DataError(
        where=location,
        rule=f"unpacks to at most {most_bytes:,} bytes",
        got=got,
        fix="Split it into several files, or write it as Parquet",
    )


def unlike_a_table(location: str, got: str, more_fix: str = "") -> DataError:
    """Return the error for a file that is not a table of candles, with what else is to be done."""
    names = f"open time (or timestamp, time, date), {', '.join(OHLC)} and volume"
    rows = f"rows of these six values or of the {len(ARCHIVE_COLUMNS)} of the exchange archive"
    return DataError(
        where=location,
        rule=f"needs a header that names {names}, or {rows}",
        got=got,
        fix=f"Write these names in the first line{more_fix}; {OPEN_TIME_RULE}",
    )
