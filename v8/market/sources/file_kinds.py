"""Kinds of candle files by how their names end, and the packings around them: a line each.

A kind of one's own calls `FILE_KINDS.register`.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import pandas as pd

from v8.errors import DataError
from v8.market.frames import candle_table
from v8.market.series import Series
from v8.market.sources.arrow_tables import read_feather_table, read_parquet_table
from v8.market.sources.tables import read_csv_table, unreadable
from v8.registry import Registry

MAX_FILE_BYTES: Final = 2**30
"""Ten years of minutes have 600 MB as the archive writes them."""

MAX_JSON_BYTES: Final = 2**28
"""In memory a row of JSON takes five times what it takes in the file."""

TableReader: TypeAlias = Callable[[bytes, Series, str], pd.DataFrame]
"""Turns a whole file into the columns that `check_candles` wants; the text names the file in errors."""


def read_json_table(content: bytes, series: Series, where: str) -> pd.DataFrame:
    """Read JSON: a list of rows as ccxt and freqtrade write them, of objects, or columns by name.

    Raises:
        DataError: If it is none, too long, or holds something else.
    """
    if len(content) > MAX_JSON_BYTES:
        raise _too_long(where, f"JSON of {len(content):,} bytes", MAX_JSON_BYTES)
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise unreadable(where, "JSON", error) from error
    return candle_table(rows, series, where)


@dataclass(frozen=True)
class FileKind:
    """A kind of candle file.

    Args:
        name: How names of such files end, in small letters, the dot included.
        sentence: What it holds, for people.
        source: Who writes it.
        read: Reads a whole file.
    """

    name: str
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

_PACKING_FAULTS: Final = (
    *(zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, ValueError, NotImplementedError),
    RuntimeError,  # what zipfile raises for an encrypted member
)


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
        content: The whole file.
        ending: As `split_ending` told it.
        series: Whose candles these are.
        where: Name of the file, for errors.

    Raises:
        DataError: If it is not what its ending says, unpacks to too much, or is no table of candles.
    """
    kind = next(kind for kind in FILE_KINDS if ending.startswith(kind))
    if packing := ending.removeprefix(kind):
        content = _unpacked(content, packing, where)
    return FILE_KINDS[kind].read(content, series, where)


def _unpacked(content: bytes, packing: str, where: str) -> bytes:
    try:
        content = _PACKINGS[packing](content)
    except _PACKING_FAULTS as error:
        raise unreadable(where, f"one file packed as {packing[1:]}", error) from error
    if len(content) > MAX_FILE_BYTES:
        raise _too_long(where, "more", MAX_FILE_BYTES)
    return content


def _too_long(where: str, got: str, most_bytes: int) -> DataError:
    return DataError(
        where=where,
        rule=f"unpacks to at most {most_bytes:,} bytes",
        got=got,
        fix="Split it into several files, or write it as Parquet",
    )
