"""FeatureStore: feature columns kept on disk, found by content, checked on every read.

One Parquet file holds the columns of one set of candles: `<folder>/<series>/<candles digest>.parquet`, with
`open_time` and one float32 column per feature, NaN in the warm-up. Any Parquet reader opens it. A column is
used only if its definition digest is today's, so a changed formula or parameter is computed anew, and
profiles that name the same column share it. Missing columns are added and the file replaced in one rename. Of
two processes that add different columns at the same moment the later wins; what the other added is computed
again when next asked for.

Candles with some more bars have another digest and another file. When theirs is missing, the newest files of
the series are looked at: one whose candles are the first of these gives its columns, and the new rows alone
are computed (`v8.features.table` says how that is exact). The file tells its candles by a checksum too,
because a digest of 35,000 candles would cost more than the 96 new rows. A short tail is not written:
computing it again costs a twentieth of what writing all columns does. Candles that begin later are computed
from their start.

Columns are written uncompressed, plain and required, a page a row group: the last bytes of each chunk that
the footer tells of are the floats. The file is mapped and these bytes are the arrays of the table, shared by
all processes, because copying costs more than checking them. This rests on files that never change once they
are there: the store only renames new ones into place. Removing these files is safe; a program that writes
into one while a table is in use breaks that table.

A file that is damaged, cut off or belongs to other candles is never used: its columns are computed again, the
file is replaced, and `stats.damaged_files` and the log say so. A folder that cannot be written or read costs
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

from v8 import storage
from v8.columns import OPEN_TIME
from v8.features.indicators import FEATURES, ancestry, check_columns, is_of_package
from v8.features.table import FeatureTable, Runs, assemble, compute_columns, valid_rows
from v8.market.candles import Candles

FORMAT: Final = 4  # version of the index below; a file with another one is written anew

GROUP_ROWS: Final = 16_384
"""Rows of one Parquet row group; below the 20,000 at which pyarrow begins another page."""

MAX_LOOKED_AT: Final = 8
"""Files of a series, the newest, in which columns of the first of some candles are looked for."""

LONGEST_TAIL_SHARE: Final = 1 / 16  # of the rows of a file: a longer tail of new rows is written with them

_FORMAT_KEY = "v8_features_format"
_INDEX_START = f'{{"{_FORMAT_KEY}":'.encode("ascii")
_BEFORE_CHECKSUM = b'"checksum": "'
_NO_CHECKSUM = "0" * 8
_MAX_BYTES = 1 << 34
_FLOAT = np.dtype("<f4")

Columns = dict[str, Runs]  # by name

_log = logging.getLogger(__name__)


@dataclass
class StoreStats:
    """What a store did since it was opened, in columns of one series each."""

    computed_columns: int = 0
    reused_columns: int = 0  # read from the folder
    continued_columns: int = 0  # read from the file of the first candles, and computed for the others
    damaged_files: list[Path] = field(default_factory=list)  # failed their check and were replaced


class FeatureStore:
    """A folder of feature columns, shared by all profiles and processes of one user.

    The folder is `features` in `v8.storage.home()` when None, made when missing. A table that came from the
    folder keeps its file open.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = storage.home() / "features" if folder is None else folder
        self.stats = StoreStats()

    def table(self, candles: Candles, columns: Sequence[str]) -> FeatureTable:
        """Return a FeatureTable as `compute_table` does, computing only the columns that are not held."""
        rows = valid_rows(candles, names := check_columns(columns))
        kept = self._held(self.path(candles), candles, names)[1]
        missing = [name for name in names if name not in kept]
        self.stats.reused_columns += len(names) - len(missing)
        if missing:
            kept |= self._made(candles, missing, kept)
        return assemble(candles, rows, {name: kept[name] for name in names})

    def path(self, candles: Candles) -> Path:
        """Return where the columns of these candles lie; the file need not exist."""
        return self.folder / str(candles.series) / f"{candles.digest}.parquet"

    def _made(self, candles: Candles, names: Sequence[str], kept: Columns) -> Columns:
        """Make columns that no file holds for these candles, and keep them where that saves time."""
        of_files = (self._held(path, candles, names) for path in _newest_files(self.path(candles)))
        num_known, held = next((found for found in of_files if found[0]), (0, {}))
        begun = [name for name in names if name in held]
        anew = [name for name in names if name not in held]
        made = compute_columns(candles, anew)
        new = compute_columns(candles, begun, num_known)
        made |= {name: (*held[name], *new[name]) for name in begun}
        self.stats.continued_columns += len(begun)
        self.stats.computed_columns += len(anew)
        if anew or kept or len(candles) - num_known > LONGEST_TAIL_SHARE * num_known:
            storage.write_cache(self.path(candles), _parquet(candles, kept | made))
        return made

    def _held(self, path: Path, candles: Candles, names: Sequence[str]) -> tuple[int, Columns]:
        """Return of how many candles, of all or of the first ones, a file holds columns, and these.

        Of none if it is not there or not to be read, of other candles or damaged.
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
        except OSError:  # writing it will tell
            return 0, {}
        except ValueError as damage:
            anew = "its columns are computed again and the file is replaced"
            _log.warning("%s is damaged (%s); %s", path, damage, anew if is_of_all else "it is not used")
            self.stats.damaged_files.append(path)
            return 0, {}


class _File:
    """A mapped file of the store.

    An OSError tells that it cannot be read or is of another version, a ValueError that it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._content = _mapped(path)
        start = self._content.rfind(_INDEX_START)
        if start < 0 or self._content[-4:] != b"PAR1":
            raise ValueError("it is cut off or was not written by this store")
        found = json.JSONDecoder().raw_decode(self._content[start:].decode("latin-1"))[0]
        if found[_FORMAT_KEY] != FORMAT:
            raise OSError
        self.index: dict[str, Any] = found
        self._checksum_at = self._content.find(_BEFORE_CHECKSUM, start) + len(_BEFORE_CHECKSUM)

    def check(self) -> None:
        """Refuse the file unless all of its bytes are those that were written."""
        content = memoryview(self._content)
        at = self._checksum_at
        found = bytes(content[at : at + len(_NO_CHECKSUM)]).decode("latin-1")
        if found != _checksum(content[:at], content[at + len(_NO_CHECKSUM) :]):
            raise ValueError("it does not match its checksum")

    def num_extended(self, candles: Candles) -> int:
        """Return how many candles it is of if they are the first of these, but not all; else 0."""
        num_bars: int = self.index["first"][0]
        is_first = 0 < num_bars < len(candles) and self.index["first"] == _first(candles, num_bars)
        return num_bars if is_first else 0

    def columns(self, names: Sequence[str]) -> Columns:
        """Return its columns that mean what they mean today, each in as many runs as it has groups.

        Those of the package `ta` are returned if they are among some names: to know what others mean, they
        would have to be examined. A file that is replaced loses them.
        """
        footer = pq.read_metadata(pa.BufferReader(pa.py_buffer(self._content)))
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        return {
            name: tuple(self._floats(group.column(place), group.num_rows) for group in groups)
            for place, (name, definition) in enumerate(self.index["definitions"].items())
            if name in names or not is_of_package(name)
            if name in FEATURES and definition == ancestry(name).digest
        }

    def _floats(self, chunk: Any, num_rows: int) -> Any:
        # A page's header has any length, so a column may begin at any byte; NumPy is no slower for it.
        stop = chunk.data_page_offset + chunk.total_compressed_size
        return np.frombuffer(self._content, _FLOAT, num_rows, stop - num_rows * _FLOAT.itemsize)


def _parquet(candles: Candles, known: Columns) -> bytes:
    """Encode Parquet with an index that tells candles and meanings, and a checksum of all other bytes."""
    values = {name: np.concatenate(runs, dtype=_FLOAT) for name, runs in known.items()}
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
        table = pa.table([*map(pa.array, values.values()), open_time], schema=schema)
        writer.write_table(table, row_group_size=GROUP_ROWS)
        writer.add_key_value_metadata({"v8_features": json.dumps(index)})
    content = sink.getvalue()
    at = content.index(_NO_CHECKSUM.encode("ascii"), content.rfind(_INDEX_START))
    before = content[:at]
    after = content[at + len(_NO_CHECKSUM) :]
    return before + _checksum(before, after).encode("ascii") + after


def _checksum(before: bytes | memoryview, after: bytes | memoryview) -> str:
    return f"{zlib.crc32(after, zlib.crc32(before)):08x}"


def _mapped(path: Path) -> mmap | bytes:
    if os.name == "nt":  # Windows lets nobody replace a file that is mapped
        return storage.read_given(path, _MAX_BYTES)
    with storage.open_given(path) as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ)


def _first(candles: Candles, num_bars: int) -> list[Any]:
    """Tell the first candles: how many, open times of oldest and newest, a checksum, what lies beside."""
    beside = sorted(candles.beside.items())
    checksum = 0
    for values in (candles.open_time_s, candles.values, *(each for _, each in beside)):
        checksum = zlib.crc32(np.ascontiguousarray(values[:num_bars]).data, checksum)
    opens = candles.open_time_s[[0, num_bars - 1]].tolist()
    return [num_bars, *opens, checksum, *(name for name, _ in beside)]


def _newest_files(path: Path) -> list[Path]:
    """List the newest neighbours of a file that is not there, but for those that are being written."""
    with suppress(OSError), os.scandir(path.parent) as entries:  # there may be no folder
        names = [entry for entry in entries if entry.name.endswith(path.suffix) and entry.name != path.name]
        found = sorted((-entry.stat().st_mtime_ns, entry.name) for entry in names if entry.name[0] != ".")
        return [path.with_name(name) for _, name in found[:MAX_LOOKED_AT]]
    return []
