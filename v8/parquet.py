"""Parquet that somebody else wrote: measured by its footer, then read as plain columns.

A file of kilobytes can hold millions of rows, and says so only in its footer. What pandas wrote beside the
columns (indices, categories, types of its own) decides nothing, so it may be anything.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from v8.errors import listed

FAULTS: Final = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
"""What the library raises for a file that is damaged or claims sizes that cannot be."""

_PLAIN: Final = (
    *(types.is_integer, types.is_floating, types.is_decimal, types.is_timestamp, types.is_date),
    *(types.is_string, types.is_large_string, types.is_null),
)


class OddParquetError(ValueError):
    """A table that is not what it must be; the text says what it has, as a clause: `60 rows`."""


class ParquetContent:
    """The content of a Parquet file, of which only the footer has been read.

    Raises one of `FAULTS` if it is none.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        file = pq.ParquetFile(pa.BufferReader(content))
        self.schema: pa.Schema = file.schema_arrow
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        # The footer says it twice, and a reader believes the groups.
        self.num_rows: int = max(file.metadata.num_rows, sum(group.num_rows for group in groups))
        self.num_bytes: int = sum(group.total_byte_size for group in groups)
        """What all columns have unpacked, in bytes, by the footer."""

    def read(self, names: Sequence[str]) -> pa.Table:
        """Read columns, which must be plain ones (`is_plain`), by their names.

        Texts are dictionaries until their lengths are known: a small file can repeat a long text for ever.
        Raises one of `FAULTS` if they are damaged.
        """
        texts = [name for name in names if types.is_string(self.schema.field(name).type)]
        file = pq.ParquetFile(pa.BufferReader(self._content), read_dictionary=texts)
        return file.read(columns=[*names], use_pandas_metadata=False)


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether a column holds numbers, times or text, or a dictionary of them."""
    stored = kind.value_type if types.is_dictionary(kind) else kind
    return any(is_kind(stored) for is_kind in _PLAIN)


def longest_text(texts: Iterable[Any]) -> int:
    """Return the bytes of the longest text of Arrow arrays; 0 without any."""
    return max((pc.max(pc.binary_length(array)).as_py() or 0 for array in texts), default=0)


def read_as(
    content: bytes, schema: pa.Schema, *, most_rows: int, most_bytes: int, most_text: int
) -> pa.Table:
    """Read a table that has the columns of a schema, in any order, and no others.

    Args:
        schema: Of plain columns. What is stored otherwise is converted where nothing of it is lost.
        most_rows: The most rows that are read, unitless; so many are refused by the footer alone.
        most_bytes: The most bytes that the columns may unpack to, by the footer.
        most_text: The most bytes of one text.

    Returns:
        The columns in the order of the schema.

    Raises:
        OddParquetError: If it is no Parquet file, or not such a table.
    """
    try:
        file = ParquetContent(content)
        _require_bounded(file, schema, most_rows, most_bytes)
        table = file.read(schema.names)
        columns = [_column(table[name], schema.field(name), most_text) for name in schema.names]
    except OddParquetError:
        raise
    except FAULTS as error:
        raise OddParquetError("a file without rows") from error
    return pa.Table.from_arrays(columns, schema=schema)


def _require_bounded(file: ParquetContent, schema: pa.Schema, most_rows: int, most_bytes: int) -> None:
    others = sorted({*file.schema.names} ^ {*schema.names})
    if others:
        raise OddParquetError(f"other columns: {listed(others)}")
    if len(file.schema.names) > len(schema.names):
        raise OddParquetError("a column twice")
    odd = [f"{field.type} in {field.name}" for field in file.schema if not is_plain(field.type)]
    if odd:
        raise OddParquetError(listed(odd))
    if file.num_rows > most_rows:
        raise OddParquetError(f"{file.num_rows:,} rows where at most {most_rows:,} are read")
    if file.num_bytes > most_bytes:
        raise OddParquetError(f"columns that unpack to {file.num_bytes:,} bytes")


def _column(column: pa.ChunkedArray, field: pa.Field, most_text: int) -> pa.ChunkedArray:
    """Convert a column to the type of a field."""
    is_dictionary = types.is_dictionary(column.type)
    kind = column.type.value_type if is_dictionary else column.type
    if types.is_string(kind) or types.is_large_string(kind):
        length = longest_text(chunk.dictionary if is_dictionary else chunk for chunk in column.chunks)
        if length > most_text:
            raise OddParquetError(f"a text of {length:,} bytes in {field.name}")
    return column.cast(kind).cast(field.type)
