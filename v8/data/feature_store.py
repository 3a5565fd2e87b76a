"""FeatureStore: a cache of feature columns on disk, addressed by content and checked on every read.

One Parquet file holds the columns of one set of candles: `<folder>/<series>/<candles digest>.parquet`, with
`open_time` and one float32 column per feature, NaN in the warm-up. Any Parquet reader opens it. A column is
used only if the digest of its definition is the present one, so after a change of a formula or parameter it
is computed again, and profiles with the same column share it. Missing columns are added, and the file is
replaced by one atomic rename. If two processes add different columns at the same time, the later one wins;
the columns of the other are computed again when they are needed.

The same candles with some more bars have another digest and another file. If that file is missing, the newest
files of the series are searched: if the candles of one are the first of the present candles, its columns are
reused and only the new rows are computed (`v8.data.features` explains why this is exact). For this
comparison a file also holds a checksum of its candles, because the digest of 35,000 candles would cost more
than computing the 96 new rows. A short extension is not written: computing it again costs a twentieth of
writing all columns. If the candles have another first row, everything is computed.

Columns are written uncompressed, with plain encoding, without missing values, and one page for each row
group: so the last bytes of each column chunk are the floats. The file is memory-mapped and these bytes are
the arrays of the table, shared by all processes, because copying costs more than checking. This requires that
files never change: the store only renames new ones into place. Deleting these files is safe; a program that
writes into one while a table is in use corrupts that table.

A file that is damaged, truncated or of other candles is never used: its columns are computed again, the file
is replaced, and `stats.damaged_files` and the log report it. A folder that cannot be written or read costs
time and one line in the log, never a table.
"""

import io
import json
import logging
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from v8.base import storage
from v8.base.records import open_given, read_given
from v8.data.features import Chunks, FeatureTable, assemble, compute_columns, valid_rows
from v8.data.market.candles import Candles
from v8.profile.columns import OPEN_TIME
from v8.profile.indicators import FEATURES, FeatureSet, ancestry, is_of_package

FORMAT: Final = 4  # version of the index below; a file with another version is replaced

GROUP_ROWS: Final = 16_384
"""Rows of one Parquet row group; below the 20,000 at which pyarrow starts another page."""

MAX_LOOKED_AT: Final = 8
"""Number of newest files of a series that are searched for columns of the first candles."""

LONGEST_TAIL_SHARE: Final = 1 / 16  # of the rows of a file: a longer extension by new rows is written

_FORMAT_KEY = "v8_features_format"
_INDEX_START = f'{{"{_FORMAT_KEY}":'.encode("ascii")
_BEFORE_CHECKSUM = b'"checksum": "'
_NO_CHECKSUM = "0" * 8
_MAX_BYTES = 1 << 34
_FLOAT = np.dtype("<f4")

Columns = dict[str, Chunks]  # by name

_BROKEN: Final = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
"""Raised by a file whose index is not as it was written; it is read before its checksum is checked."""

_log = logging.getLogger(__name__)


@dataclass
class StoreStats:
    """Counts of the work since the store was opened, in columns of one series."""

    computed_columns: int = 0
    reused_columns: int = 0  # read from the folder
    continued_columns: int = 0  # read for the first candles, computed for the others
    damaged_files: list[Path] = field(default_factory=list)  # failed their check and were replaced


class FeatureStore:
    """A folder of feature columns, shared by all profiles and processes of one user.

    Args:
        folder: The folder, created when needed; `features` in `v8.base.storage.home()` when None. A table
        that was
            read from it keeps its file open.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = storage.home() / "features" if folder is None else folder
        self.stats = StoreStats()

    def table(self, candles: Candles, columns: Sequence[str]) -> FeatureTable:
        """Return a FeatureTable as `compute_table` does, but compute only the columns that are not stored."""
        features = FeatureSet.of(columns)
        names = features.names
        rows = valid_rows(candles, features)
        _, stored = self._read(self.path(candles), candles, names)
        missing = [name for name in names if name not in stored]
        self.stats.reused_columns += len(names) - len(missing)
        available = dict(stored)
        if missing:
            available |= self._compute(candles, missing, stored)
        return assemble(candles, features, rows, available)

    def path(self, candles: Candles) -> Path:
        """Return the file for the columns of these candles; it need not exist."""
        return self.folder / str(candles.series) / f"{candles.digest}.parquet"

    def _compute(self, candles: Candles, names: Sequence[str], stored: Columns) -> Columns:
        """Compute columns that are not stored for these candles, and write them where that saves time.

        Columns that are stored for the first candles are only extended by the new rows.
        """
        num_known, first_columns = self._read_first_candles(candles, names)
        extended = [name for name in names if name in first_columns]
        computed = [name for name in names if name not in first_columns]
        columns = compute_columns(candles, computed)
        new_rows = compute_columns(candles, extended, num_known)
        for name in extended:
            columns[name] = first_columns[name] + new_rows[name]
        self.stats.continued_columns += len(extended)
        self.stats.computed_columns += len(computed)
        is_long_extension = len(candles) - num_known > LONGEST_TAIL_SHARE * num_known
        if computed or stored or is_long_extension:
            storage.write_cache(self.path(candles), _parquet(candles, stored | columns))
        return columns

    def _read_first_candles(self, candles: Candles, names: Sequence[str]) -> tuple[int, Columns]:
        """Return the columns of the newest file whose candles are the first of these, and their number."""
        for path in _newest_files(self.path(candles)):
            num_bars, columns = self._read(path, candles, names)
            if num_bars:
                return num_bars, columns
        return 0, {}

    def _read(self, path: Path, candles: Candles, names: Sequence[str]) -> tuple[int, Columns]:
        """Read the columns of a file that is of these candles, or of the first of them, and their number.

        The number is 0 if the file does not exist, cannot be read, is damaged or of other candles.
        """
        is_of_all = path == self.path(candles)
        try:
            file = _File(path)
            num_bars = len(candles) if is_of_all else file.num_extended(candles)
            if num_bars:
                file.check()
            if is_of_all and file.index["candles"] != candles.digest:
                raise ValueError("it holds columns of other candles")
            return num_bars, file.columns(names) if num_bars else {}
        except OSError:  # writing it will report the error
            return 0, {}
        except _BROKEN as damage:
            consequence = "it is not used"
            if is_of_all:
                consequence = "its columns are computed again and the file is replaced"
            _log.warning("%s is damaged (%s); %s", path, damage, consequence)
            self.stats.damaged_files.append(path)
            return 0, {}


class _File:
    """A memory-mapped file of the store.

    Raises:
        OSError: If it cannot be read, or is of another version.
        ValueError: If it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._content = _mapped(path)
        start = self._content.rfind(_INDEX_START)
        if start < 0 or self._content[-4:] != b"PAR1":
            raise ValueError("it is truncated or was not written by this store")
        index = json.JSONDecoder().raw_decode(self._content[start:].decode("latin-1"))[0]
        if index[_FORMAT_KEY] != FORMAT:
            raise OSError
        self.index: dict[str, Any] = index
        self._checksum_start = self._content.find(_BEFORE_CHECKSUM, start) + len(_BEFORE_CHECKSUM)

    def check(self) -> None:
        """Raise a ValueError unless the checksum of the file is correct."""
        content = memoryview(self._content)
        start = self._checksum_start
        stop = start + len(_NO_CHECKSUM)
        checksum = bytes(content[start:stop]).decode("latin-1")
        if checksum != _checksum(content[:start], content[stop:]):
            raise ValueError("it does not match its checksum")

    def num_extended(self, candles: Candles) -> int:
        """Return the number of candles of the file if they are the first of these, but not all; else 0."""
        num_bars: int = self.index["first"][0]
        is_first = 0 < num_bars < len(candles) and self.index["first"] == _first(candles, num_bars)
        return num_bars if is_first else 0

    def columns(self, names: Sequence[str]) -> Columns:
        """Return the columns whose definition is unchanged, each in one run per row group.

        Columns of the package `ta` are returned only if `names` has them: to check the definitions of others,
        they would have to be examined. When the file is replaced, the others are lost.
        """
        footer = pq.read_metadata(pa.BufferReader(pa.py_buffer(self._content)))
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        columns = {}
        for number, (name, definition) in enumerate(self.index["definitions"].items()):
            if name not in names and is_of_package(name):
                continue
            if name in FEATURES and definition == ancestry(name).digest:
                columns[name] = tuple(self._floats(group.column(number), group.num_rows) for group in groups)
        return columns

    def _floats(self, chunk: Any, num_rows: int) -> Any:
        """Return the floats of a column chunk, without copying them."""
        # The header of a page has any length, so the floats may be unaligned; NumPy is not slower then.
        stop = chunk.data_page_offset + chunk.total_compressed_size
        return np.frombuffer(self._content, _FLOAT, num_rows, stop - num_rows * _FLOAT.itemsize)


def _parquet(candles: Candles, columns: Columns) -> bytes:
    """Encode columns as Parquet, with an index of candles and definitions and a checksum of the rest."""
    values = {name: np.concatenate(chunks, dtype=_FLOAT) for name, chunks in columns.items()}
    types = {**dict.fromkeys(values, pa.float32()), OPEN_TIME: pa.timestamp("ms", tz="UTC")}
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])
    open_time = pa.array(candles.open_time_s * 1000, types[OPEN_TIME])
    index = {
        _FORMAT_KEY: FORMAT,
        "checksum": _NO_CHECKSUM,
        "candles": candles.digest,
        "first": _first(candles, len(candles)),
        "definitions": {name: ancestry(name).digest for name in values},
    }
    sink = io.BytesIO()
    # NaN marks the warm-up, so no value is missing; without missing values, statistics, dictionaries
    # and compression a page is the bytes of its floats. One page holds all rows of a group.
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False, "store_schema": False}
    page_bytes = 2 * GROUP_ROWS * _FLOAT.itemsize
    with pq.ParquetWriter(sink, schema, data_page_size=page_bytes, **plain) as writer:
        arrays = [pa.array(column) for column in values.values()]
        table = pa.table([*arrays, open_time], schema=schema)
        writer.write_table(table, row_group_size=GROUP_ROWS)
        writer.add_key_value_metadata({"v8_features": json.dumps(index)})
    content = sink.getvalue()
    start = content.index(_NO_CHECKSUM.encode("ascii"), content.rfind(_INDEX_START))
    before = content[:start]
    after = content[start + len(_NO_CHECKSUM) :]
    return before + _checksum(before, after).encode("ascii") + after


def _checksum(before: bytes | memoryview, after: bytes | memoryview) -> str:
    return f"{zlib.crc32(after, zlib.crc32(before)):08x}"


def _mapped(path: Path) -> mmap | bytes:
    if os.name == "nt":  # on Windows a mapped file cannot be replaced
        return read_given(path, _MAX_BYTES)
    with open_given(path) as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ)


def _first(candles: Candles, num_bars: int) -> list[Any]:
    """Identify the first candles: number, open times of oldest and newest, checksum, names of covariates."""
    names = sorted(candles.covariates)
    checksum = 0
    for values in (candles.open_time_s, candles.values, *(candles.covariates[name] for name in names)):
        checksum = zlib.crc32(np.ascontiguousarray(values[:num_bars]).data, checksum)
    first_s = int(candles.open_time_s[0])
    last_s = int(candles.open_time_s[num_bars - 1])
    return [num_bars, first_s, last_s, checksum, *names]


def _newest_files(path: Path) -> list[Path]:
    """List the newest other files in the folder of a file, without those that are being written."""
    with suppress(OSError), os.scandir(path.parent) as entries:  # the folder may not exist
        others = [
            entry
            for entry in entries
            if entry.name.endswith(path.suffix) and entry.name != path.name and not entry.name.startswith(".")
        ]
        newest_first = sorted((-entry.stat().st_mtime_ns, entry.name) for entry in others)
        return [path.with_name(name) for _, name in newest_first[:MAX_LOOKED_AT]]
    return []
