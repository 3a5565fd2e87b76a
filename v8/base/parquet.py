"""Reading untrusted Parquet files: the footer is checked first, then plain columns are read.

A file of kilobytes can hold millions of rows, and only its footer says so. Metadata that pandas adds to the
columns (indices, categories, types of its own) is ignored, so its content does not matter.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from v8.base.errors import listed

FAULTS: Final = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
"""Raised by the library for a file that is damaged or claims impossible sizes."""

_PLAIN: Final = (
    *(types.is_integer, types.is_floating, types.is_decimal, types.is_timestamp, types.is_date),
    *(types.is_string, types.is_large_string, types.is_string_view, types.is_null),
)


class OddParquetError(ValueError):
    """A table with unexpected content; the text describes it as a clause, for example `60 rows`."""


class ParquetContent:
    """The content of a Parquet file, of which only the footer has been read.

    The constructor raises one of `FAULTS` if the content is not a Parquet file.
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
        millions of times. Raises one of `FAULTS` if the columns are damaged.
        """
        texts = [name for name in names if types.is_string(self.schema.field(name).type)]
        file = pq.ParquetFile(pa.BufferReader(self._content), read_dictionary=texts)
        return file.read(columns=[*names], use_pandas_metadata=False)


def is_plain(kind: pa.DataType) -> bool:
    """Return whether a column type is numbers, times or text, or a dictionary of these."""
    stored = kind.value_type if types.is_dictionary(kind) else kind
    return any(is_kind(stored) for is_kind in _PLAIN)


def longest_text(texts: Iterable[Any]) -> int:
    """Return the length of the longest text of Arrow arrays, in bytes; 0 without any."""
    return max((pc.max(pc.binary_length(array)).as_py() or 0 for array in texts), default=0)


def read_as(
    content: bytes, schema: pa.Schema, *, most_rows: int, most_bytes: int, most_text: int
) -> pa.Table:
    """Read a table that has exactly the columns of a schema, in any order.

    Args:
        content: The Parquet file.
        schema: Plain columns. A column of another type is converted if no information is lost.
        most_rows: Largest number of rows; a larger table is refused by its footer alone.
        most_bytes: Largest size of the columns after decompression, in bytes, as the footer states it.
        most_text: Largest length of one text, in bytes.

    Returns:
        The columns in the order of the schema.

    Raises:
        OddParquetError: If the content is not a Parquet file, or not such a table.
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
    is_dictionary = types.is_dictionary(column.type)
    kind = column.type.value_type if is_dictionary else column.type
    if types.is_string(kind) or types.is_large_string(kind):
        length = longest_text(chunk.dictionary if is_dictionary else chunk for chunk in column.chunks)
        if length > most_text:
            raise OddParquetError(f"a text of {length:,} bytes in {field.name}")
    return column.cast(kind).cast(field.type)
