"""Kinds of candle files by how their names end, and the packings around them: a line each.

A kind of one's own calls `FILE_KINDS.register`. Of the tables that Arrow keeps (Parquet and Feather) only the
columns that are needed are read, and only if they hold numbers, times or text: what pandas wrote beside them
(indices, categories, types of its own) decides nothing. A small file can claim any size, so what it says of
itself is added up before anything is unpacked.
"""

import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from v8.columns import OPEN_TIME
from v8.errors import DataError, listed
from v8.market.frames import MAX_ROWS, candle_table, wanted_columns
from v8.market.series import Series
from v8.market.sources.tables import read_csv_table, unlike_a_table, unreadable
from v8.registry import Registry

MAX_UNPACKED_BYTES: Final = 2**31  # of a Feather file: the buffers of all its columns
_MAX_TEXT: Final = 64  # bytes of a number or a time that is written as text
_INDEX_NAMES: Final = {"__index_level_0__": OPEN_TIME}  # how pandas writes an index without a name
_FAULTS: Final = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, struct.error)
"""What the library raises for a file that is damaged or claims sizes that cannot be."""

_PLAIN: Final = (
    *(types.is_integer, types.is_floating, types.is_decimal, types.is_timestamp, types.is_date),
    *(types.is_string, types.is_large_string, types.is_null),
)
_FEATHER_START: Final = b"ARROW1\0\0"
_BATCH: Final = "record batch"
MAX_FILE_BYTES: Final = 2**30  # ten years of minutes have 600 MB as the archive writes them
MAX_JSON_BYTES: Final = 2**28  # in memory a row of JSON takes five times what it takes in the file
TableReader: TypeAlias = Callable[[bytes, Series, str], pd.DataFrame]
"""Turns a whole file into the columns that `check_candles` wants; the text names the file in errors."""

_PACKING_FAULTS: Final = (
    *(zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, ValueError, NotImplementedError),
    RuntimeError,  # what zipfile raises for an encrypted member
)


@contextmanager
def _read_as(kind: str, where: str, faults: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn what a library raises for a damaged file into one error; ours go through."""
    try:
        yield
    except DataError:
        raise
    except faults as error:
        raise unreadable(where, kind, error) from error


def read_parquet_table(content: bytes, series: Series, where: str) -> pd.DataFrame:
    """Read a Parquet file, whose open times may also be the index that pandas wrote; see `read_csv_table`."""
    with _read_as("a Parquet file", where, _FAULTS):
        file = pq.ParquetFile(pa.BufferReader(content))
        schema = file.schema_arrow
        wanted = wanted_columns([_INDEX_NAMES.get(name, name) for name in schema.names], series, where)
        fields = {name: schema.field(number) for number, name in wanted.items()}
        _require_plain(fields.values(), file.metadata.num_rows, where)
        # Text stays a dictionary until its length is known: a small file can repeat a long text for ever.
        texts = [field.name for field in fields.values() if pa.types.is_string(field.type)]
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts)
        table = file.read(columns=[field.name for field in fields.values()])
        return pd.DataFrame({name: _column(table[field.name], where) for name, field in fields.items()})


def read_feather_table(content: bytes, series: Series, where: str) -> pd.DataFrame:
    """Read a Feather (Arrow) file of numbers and times; see `read_csv_table`."""
    with _read_as("a Feather file (of version 2)", where, _FAULTS):
        num_rows = _claimed_rows(content, where)
        schema = pa.ipc.open_file(pa.BufferReader(content)).schema
        wanted = wanted_columns([_INDEX_NAMES.get(name, name) for name in schema.names], series, where)
        _require_plain([schema.field(number) for number in wanted], num_rows, where)
        options = pa.ipc.IpcReadOptions(included_fields=sorted(wanted), use_threads=False)
        table = pa.ipc.open_file(pa.BufferReader(content), options=options).read_all()
        table.validate(full=True)  # a text of a damaged file may lie outside its memory
        places = {number: at for at, number in enumerate(sorted(wanted))}
        return pd.DataFrame(
            {name: _column(table.column(places[number]), where) for number, name in wanted.items()}
        )


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
    header, body = batch.metadata.to_pybytes(), memoryview(batch.body)
    record = _followed(header, _member(header, _followed(header, 0), 2))
    is_packed = _member(header, record, 3) is not None
    place = _member(header, record, 2)
    buffers = _followed(header, place)
    (num_buffers,) = struct.unpack_from("<i", header, buffers)
    for number in range(num_buffers):
        start, length = struct.unpack_from("<qq", header, buffers + 4 + 16 * number)
        claimed = struct.unpack_from("<q", body, start)[0] if is_packed and length else length
        yield length if claimed < 0 else claimed  # -1 stands before what is not packed


def _followed(header: bytes, place: int | None) -> int:
    if place is None:
        raise ValueError("its header lacks a part")
    return int(place + struct.unpack_from("<I", header, place)[0])


def _member(header: bytes, table: int, number: int) -> int | None:
    """Find where a table of a flatbuffer keeps one of its members; None where it is left out."""
    names = table - struct.unpack_from("<i", header, table)[0]
    (size,) = struct.unpack_from("<H", header, names)
    entry = 4 + 2 * number
    offset = struct.unpack_from("<H", header, names + entry)[0] if entry < size else 0
    return table + offset if offset else None


def _require_plain(fields: Iterable[pa.Field], num_rows: int, where: str) -> None:
    """Refuse what a small Parquet file can ask for: rows without end, and columns of lists or bytes."""
    got = [f"{num_rows:,} rows"] if num_rows > MAX_ROWS else []
    got += [f"{field.type} in {field.name}" for field in fields if not _is_plain(field.type)]
    if got:
        rule = f"holds at most {MAX_ROWS:,} rows of numbers, times or text"
        fix = "Write the columns as plain numbers, in several files if there are that many"
        raise DataError(where=where, rule=rule, got=listed(got), fix=fix)


def _is_plain(kind: pa.DataType) -> bool:
    stored = kind.value_type if types.is_dictionary(kind) else kind
    return any(is_kind(stored) for is_kind in _PLAIN)


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
        raise unlike_a_table(where, f"a text of {longest:,} bytes where a number or a time belongs")


def read_json_table(content: bytes, series: Series, where: str) -> pd.DataFrame:
    """Read JSON: a list of rows as ccxt and freqtrade write them, of objects, or columns by name."""
    if len(content) > MAX_JSON_BYTES:
        raise _too_long(where, f"JSON of {len(content):,} bytes", MAX_JSON_BYTES)
    with _read_as("JSON", where, (ValueError, RecursionError)):
        rows = json.loads(content)
    return candle_table(rows, series, where)


@dataclass(frozen=True)
class FileKind:
    """A kind of candle file."""

    name: str  # how names of such files end, in small letters, the dot included
    sentence: str
    source: str
    read: TableReader


FILE_KINDS: Final[Registry[FileKind]] = Registry(
    "kind of candle file",
    [
        FileKind(".csv", "separated values with a header or as the archive", "everybody", read_csv_table),
        FileKind(".tsv", "the same with tabs", "everybody", read_csv_table),
        FileKind(".parquet", "an Apache Parquet table", "pandas, freqtrade", read_parquet_table),
        FileKind(".feather", "an Arrow file", "freqtrade, pandas", read_feather_table),
        FileKind(".json", "rows, objects or columns", "ccxt, freqtrade", read_json_table),
    ],
)
"""Every kind of file that the source `files` reads, by its ending."""


def _unpack_gzip(content: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
        return stream.read(MAX_FILE_BYTES + 1)


def _unpack_zip(content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [name for name in archive.namelist() if not name.startswith("__MACOSX/")]
        if len(members) != 1:
            raise ValueError(f"it holds {len(members)} files, where one is read")
        with archive.open(members[0]) as stream:
            return stream.read(MAX_FILE_BYTES + 1)


_PACKINGS: Final[dict[str, Callable[[bytes], bytes]]] = {".gz": _unpack_gzip, ".zip": _unpack_zip}
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
    """Read a file of any kind, packed or not.

    Args:
        ending: As `split_ending` told it.
    """
    kind = next(kind for kind in FILE_KINDS if ending.startswith(kind))
    if packing := ending.removeprefix(kind):
        with _read_as(f"one file packed as {packing[1:]}", where, _PACKING_FAULTS):
            content = _PACKINGS[packing](content)
        if len(content) > MAX_FILE_BYTES:
            raise _too_long(where, "more", MAX_FILE_BYTES)
    return FILE_KINDS[kind].read(content, series, where)


def _too_long(where: str, got: str, most_bytes: int) -> DataError:
    fix = "Split it into several files, or write it as Parquet"
    return DataError(where=where, rule=f"unpacks to at most {most_bytes:,} bytes", got=got, fix=fix)
