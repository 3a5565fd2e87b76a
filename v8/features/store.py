"""FeatureStore: feature columns kept on disk, found by content, checked on every read.

One Parquet file holds the columns of one set of candles: `<folder>/<series>/<candles digest>.parquet`
with `open_time` and one float32 column per feature, NaN in the warm-up. Any Parquet reader opens it.
A column is used only if its definition digest is today's, so a changed formula or parameter is computed
anew, and profiles that name the same column share it. Missing columns are added and the file replaced
in one rename. Of two processes that add different columns to the same file at the same moment the later
wins; what the other added is computed again when next asked for, never mixed up.

Candles with some more bars have another digest and another file. When theirs is missing, the newest files of
the series are looked at: one whose candles are the first of these gives its columns, and the new rows alone
are computed (`v8.features.table` says how that is exact). The file tells its candles by sums too, because
hashing 35,000 candles once more would cost more than the 96 new rows. A short tail is not written: computing
it again costs a twentieth of what writing all columns does. One longer than a sixteenth of the file is.
Candles that begin later, such as the newest 8,000, are computed from their start.

Why a table keeps its columns in runs, those of the file and those computed: joining 15 columns of 35,000 rows
takes 2 MB of new memory, which the system has to find and clear. Whoever reads the table gathers columns
into an array of its own, straight from the runs, so that nothing is copied twice.

Why the file carries its own index: opening it with pyarrow and reading its columns takes about 0.8 ms,
more than twice all of a warm call. The columns are written uncompressed, plain and required, so the bytes
of each lie in one run per row group. The writer notes in the footer where each run begins and a checksum
of them.

Why the checksum adds first: the CRC-32 of 15 columns of 10,000 rows takes 0.17 ms, half of a warm call
(sha256: 0.4 ms); adding their words twice, by block and by place in the block, takes 0.05 ms, and sha256
of the sums next to nothing. A change within one word or one block always changes a sum, so do blocks in
another order; what cancels out in the sums by block shows in those by place.

Why the file is mapped: copying it to new memory costs more than checking it, because the system has to
find and clear every page. The checked bytes themselves are the arrays of the table, shared by all
processes. This rests on files that never change once they are there: the store only renames new ones
into place, and a table keeps the file it came from. Removing these files is safe; a program that writes
into one or cuts it short while a table is in use breaks that table.

A file that is damaged, cut off or belongs to other candles is never used: its columns are computed again,
the file is replaced, and `stats.damaged_files` and the log say so. A folder that cannot be written or read
costs time and one line in the log, never a table.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from v8 import storage
from v8.columns import OPEN_TIME
from v8.features.indicators import FEATURES, check_columns, definition_digest, is_of_package
from v8.features.table import (
    Column,
    Computed,
    FeatureTable,
    Runs,
    assemble,
    compute_columns,
    continue_columns,
    table_digest,
    valid_rows,
)
from v8.market.candles import Candles
from v8.storage import digest_bytes
from v8.user_files import open_given, read_given

FORMAT: Final = 2
"""Version of the index below; a file with another one is written anew."""

GROUP_ROWS: Final = 16_384
"""Rows of one Parquet row group; below the 20,000 at which pyarrow begins another page."""

MAX_LOOKED_AT: Final = 8
"""Files of a series, the newest, in which columns of the first of some candles are looked for."""

LONGEST_TAIL_SHARE: Final = 1 / 16
"""Of the rows of a file: a longer tail of new rows is written with them."""

_INDEX_KEY = "v8_features"
_FORMAT_KEY = "v8_features_format"
_INDEX_START = f'{{"{_FORMAT_KEY}":'.encode("ascii")
_MAX_BYTES = 1 << 34
_BLOCK_BYTES = 8192
_BLOCK_WORDS = _BLOCK_BYTES // 8
_FLOAT = np.dtype("<f4")

_log = logging.getLogger(__name__)


class _DamagedError(Exception):
    """A file of the store that cannot be trusted, with the reason."""


@dataclass
class StoreStats:
    """What a store did since it was opened, in columns of one series each.

    Args:
        computed_columns: Columns computed because no valid copy was kept.
        reused_columns: Columns read from the folder.
        continued_columns: Columns read from the file of the first candles, and computed for the others.
        remembered_tables: Whole tables answered from memory.
        damaged_files: Files that failed their check and were replaced.
    """

    computed_columns: int = 0
    reused_columns: int = 0
    continued_columns: int = 0
    remembered_tables: int = 0
    damaged_files: list[Path] = field(default_factory=list)


class FeatureStore:
    """A folder of feature columns, shared by all profiles and processes of one user.

    Args:
        folder: Where the files lie; `features` in `v8.storage.home()` when None. Made when missing.
        num_remembered: Tables of the latest calls kept in memory as well, at least 0. The default holds
            the 40 series of the universe once, about 0.6 MB each at 10,000 rows and 15 columns. A table
            that came from the folder keeps its file open.
    """

    def __init__(self, folder: Path | None = None, *, num_remembered: int = 40) -> None:
        self.folder = storage.home() / "features" if folder is None else folder
        self.stats = StoreStats()
        self._num_remembered = num_remembered
        self._remembered: OrderedDict[str, FeatureTable] = OrderedDict()

    def table(self, candles: Candles, columns: Sequence[str]) -> FeatureTable:
        """Return a FeatureTable, computing only the columns the store does not hold.

        Args:
            candles: Checked candles of one Series.
            columns: Keys of `FEATURES` in the wanted order, each once.

        Returns:
            Float32 columns with the warm-up of every contiguous piece dropped.

        Raises:
            DataError: If a name is unknown or repeated, or if no piece outlasts the warm-up.
        """
        names = check_columns(columns)
        digest = table_digest(candles, names)
        table = self._remembered.pop(digest, None)
        if table is None:
            table = self._from_folder(candles, names)
        else:
            self.stats.remembered_tables += 1
        self._remembered[digest] = table
        if len(self._remembered) > self._num_remembered:
            self._remembered.popitem(last=False)
        return table

    def path(self, candles: Candles) -> Path:
        """Return where the columns of these candles lie; the file need not exist."""
        return self.folder / str(candles.series) / f"{candles.digest}.parquet"

    def _from_folder(self, candles: Candles, names: tuple[str, ...]) -> FeatureTable:
        rows = valid_rows(candles, names)
        kept = self._kept(candles, names)
        missing = [name for name in names if name not in kept.runs]
        self.stats.reused_columns += len(names) - len(missing)
        if missing:
            kept |= self._made(candles, missing, kept)
        return assemble(candles, rows, {name: kept.runs[name] for name in names})

    def _kept(self, candles: Candles, names: Sequence[str]) -> _Known:
        path = self.path(candles)
        try:
            return _read(_mapped(path), candles, names)
        except OSError:  # not there yet, or not to be read: writing it will tell
            return _Known()
        except _DamagedError as damage:
            _log.warning("%s: %s; its columns are computed again and the file is replaced", path, damage)
            self.stats.damaged_files.append(path)
            return _Known()

    def _made(self, candles: Candles, names: Sequence[str], kept: _Known) -> _Known:
        """Make columns that no file holds for these candles, and keep them where that saves time."""
        num_known, begun = self._begun(candles, names)
        anew = [name for name in names if name not in begun.runs]
        made = _Known().with_rows(compute_columns(candles, anew)) if anew else _Known()
        if begun.runs:
            made |= begun.with_rows(continue_columns(candles, [*begun.runs], begun.stood, num_known))
        self.stats.continued_columns += len(begun.runs)
        self.stats.computed_columns += len(anew)
        if anew or kept.runs or len(candles) - num_known > LONGEST_TAIL_SHARE * num_known:
            storage.write_cache(self.path(candles), _parquet(candles, kept | made))
        return made

    def _begun(self, candles: Candles, names: Sequence[str]) -> tuple[int, _Known]:
        """Return the first rows of columns, and how many; no columns if no file holds any."""
        for path in _newest_files(self.path(candles)):
            try:
                content = _mapped(path)
                found = _found_index(content)
                if num_bars := _num_extended(found.content, candles):
                    known = _known(content, _checked(content, found), num_bars, names)
                    wanted = {name: known.runs[name] for name in names if name in known.runs}
                    return num_bars, _Known(wanted, known.stood)
            except OSError:  # it was removed meanwhile, or is not to be read
                continue
            except _DamagedError as damage:
                _log.warning("%s: %s; it is not used", path, damage)
                self.stats.damaged_files.append(path)
        return 0, _Known()


@dataclass(frozen=True)
class _Known:
    """What `Computed` tells, with the columns in the pieces in which they were found."""

    runs: dict[str, Runs] = field(default_factory=dict)
    stood: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __or__(self, other: _Known) -> _Known:
        return _Known(self.runs | other.runs, self.stood | other.stood)

    def with_rows(self, computed: Computed) -> _Known:
        """Return what is computed as the rows that follow those known."""
        runs = {name: (*self.runs.get(name, ()), column) for name, column in computed.columns.items()}
        return _Known(runs, computed.stood)


def _parquet(candles: Candles, known: _Known) -> bytes:
    """Encode Parquet whose footer says where the bytes of every column begin."""
    values = {name: np.concatenate(runs, dtype=_FLOAT) for name, runs in known.runs.items()}
    schema = pa.schema(
        [pa.field(name, pa.float32(), nullable=False) for name in values]
        + [pa.field(OPEN_TIME, pa.timestamp("ms", tz="UTC"), nullable=False)]
    )
    open_time = pa.array(candles.open_time_s * 1000, schema.field(OPEN_TIME).type)
    table = pa.table([*map(pa.array, values.values()), open_time], schema=schema)
    sink = io.BytesIO()
    # NaN marks the warm-up, so no value is missing; without missing values, statistics, dictionaries
    # and compression a page is the bytes of its floats. One page holds all rows of a group.
    with pq.ParquetWriter(
        sink,
        schema,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
        data_page_size=2 * GROUP_ROWS * _FLOAT.itemsize,
    ) as writer:
        writer.write_table(table, row_group_size=GROUP_ROWS)
        writer.add_key_value_metadata({_INDEX_KEY: _index(sink.getvalue(), candles, values, known.stood)})
    return sink.getvalue()


def _index(
    pages: bytes, candles: Candles, columns: Mapping[str, Column], stood: Mapping[str, Sequence[float]]
) -> str:
    """Say where each column's bytes begin in every row group, after a checksum of them and of this."""
    starts: dict[str, list[int]] = {name: [] for name in columns}
    found = 0
    for rows in _groups(len(candles)):
        for name, column in columns.items():
            run = column[rows].tobytes()
            found = pages.index(run, found)
            starts[name].append(found)
            found += len(run)
    index = json.dumps(
        {
            _FORMAT_KEY: FORMAT,
            "candles": candles.digest,
            "bars": _bars(candles, len(candles)),
            "sums": _sums(candles, len(candles)),
            "stood": stood,
            "definitions": {name: definition_digest(name) for name in columns},
            "starts": starts,
            "num_bytes": found,
        }
    )
    return _checksum(pages[:found], index.encode("ascii")) + index


def _checksum(runs: bytes | memoryview, index: bytes) -> str:
    """Digest the index and the sums of the runs: 64 hex digits; the module's docstring says why."""
    end = len(runs) // _BLOCK_BYTES * _BLOCK_BYTES
    words = np.frombuffer(runs[:end], dtype="<u8").reshape(-1, _BLOCK_WORDS)
    return digest_bytes(index, bytes(runs[end:]), words.sum(axis=0).tobytes(), words.sum(axis=1).tobytes())


def _mapped(path: Path) -> mmap | bytes:
    if os.name == "nt":  # Windows lets nobody replace a file that is mapped
        return read_given(path, _MAX_BYTES)
    with open_given(path) as file:
        try:
            return mmap(file.fileno(), 0, access=ACCESS_READ)
        except ValueError as error:
            raise _DamagedError("it is empty") from error


def _bars(candles: Candles, num_bars: int) -> list[int]:
    """Tell the first candles in short: how many, and when the oldest and the newest opened, in seconds."""
    return [num_bars, *candles.open_time_s[[0, num_bars - 1]].tolist()]


def _sums(candles: Candles, num_bars: int) -> str:
    """Tell the first candles, and what lies beside them, by the sums of their words by place: 64 hex digits.

    Only files mix up blocks.
    """
    opens, values = candles.open_time_s[:num_bars], candles.values[:num_bars]
    others = [(each[:num_bars], "<f8") for _, each in sorted(candles.beside.items())]
    arrays = [(opens, "<i8"), (values, "<f8"), *others]
    words = [each.astype(kind, copy=False).reshape(-1) for each, kind in arrays]
    return digest_bytes(
        *(part for each in words for part in _by_place(each.view("<u8"))),
        *(name.encode("ascii") for name in sorted(candles.beside)),
    )


def _by_place(words: NDArray[np.uint64]) -> tuple[bytes, bytes]:
    end = len(words) // _BLOCK_WORDS * _BLOCK_WORDS
    return words[:end].reshape(-1, _BLOCK_WORDS).sum(axis=0).tobytes(), words[end:].tobytes()


def _num_extended(index: Mapping[str, Any], candles: Candles) -> int:
    """Return how many candles a file is of if they are the first of these, but not all; else 0."""
    try:
        num_bars = index["bars"][0] if index[_FORMAT_KEY] == FORMAT else 0
        is_first = 0 < num_bars < len(candles) and index["bars"] == _bars(candles, num_bars)
        return num_bars if is_first and index["sums"] == _sums(candles, num_bars) else 0
    except (KeyError, IndexError, TypeError) as error:
        raise _DamagedError("its index cannot be read") from error


def _newest_files(path: Path) -> list[Path]:
    """List the newest neighbours of a file that is not there, but for those that are being written."""
    found = []
    with suppress(OSError), os.scandir(path.parent) as entries:  # there may be no folder
        for entry in entries:
            if (
                not entry.name.startswith(".")
                and entry.name.endswith(path.suffix)
                and entry.name != path.name
            ):
                found.append((-entry.stat().st_mtime_ns, entry.name))
    return [path.with_name(name) for _, name in sorted(found)[:MAX_LOOKED_AT]]


def _read(content: mmap | bytes, candles: Candles, names: Sequence[str]) -> _Known:
    """Check a file of the store and return its columns that mean what they mean today.

    Those of the package `ta` are returned if they are among some names: to know what others mean, they would
    have to be examined. A file that is replaced loses them.
    """
    index = _checked(content, _found_index(content))
    if index[_FORMAT_KEY] != FORMAT:
        return _Known()
    if index["candles"] != candles.digest:
        raise _DamagedError("it holds columns of other candles")
    return _known(content, index, len(candles), names)


def _known(content: mmap | bytes, index: Mapping[str, Any], num_bars: int, names: Sequence[str]) -> _Known:
    stood = {name: tuple(values) for name, values in index["stood"].items()}
    return _Known(_runs(content, index, num_bars, names), stood)


def _runs(
    content: mmap | bytes, index: Mapping[str, Any], num_bars: int, names: Sequence[str]
) -> dict[str, Runs]:
    """Find the columns of a file that mean what they mean today, each in as many runs as it has groups."""
    lengths = [rows.stop - rows.start for rows in _groups(num_bars)]
    return {
        # A page's header has any length, so a column may begin at any byte; NumPy is no slower for it.
        name: tuple(
            np.frombuffer(content, _FLOAT, length, start)
            for length, start in zip(lengths, index["starts"][name], strict=True)
        )
        for name, definition in index["definitions"].items()
        if name in names or not is_of_package(name)
        if name in FEATURES and definition == definition_digest(name)
    }


@dataclass(frozen=True)
class _Index:
    """The index of a file as it stands there, where it begins, and its length in bytes."""

    content: dict[str, Any]
    start: int
    num_bytes: int


def _checked(content: mmap | bytes, found: _Index) -> dict[str, Any]:
    """Return the index of a file whose checksum is right."""
    end = found.start + found.num_bytes
    try:
        runs = memoryview(content)[: found.content["num_bytes"]]
        checksum = content[found.start - 64 : found.start].decode("latin-1")
        is_whole = checksum == _checksum(runs, content[found.start : end])
    except (KeyError, TypeError, ValueError) as error:
        raise _DamagedError("its index cannot be read") from error
    if not is_whole:
        raise _DamagedError("it does not match its checksum")
    return found.content


def _found_index(content: mmap | bytes) -> _Index:
    start = content.rfind(_INDEX_START)
    if start < 0 or content[-4:] != b"PAR1":
        raise _DamagedError("it is cut off or was not written by this store")
    try:
        index, length = json.JSONDecoder().raw_decode(content[start:].decode("latin-1"))
    except ValueError as error:
        raise _DamagedError("its index cannot be read") from error
    return _Index(index, start, length)


def _groups(num_rows: int) -> list[slice]:
    return [slice(start, min(start + GROUP_ROWS, num_rows)) for start in range(0, num_rows, GROUP_ROWS)]
