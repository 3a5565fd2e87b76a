"""CandleStore: the candles of every series that were ever fetched, one Parquet file each.

    <V8_HOME>/candles/<market>/BTCUSDT-15m.parquet            open times, OHLCV, whether the archive said so
    <V8_HOME>/candles/<market>/BTCUSDT-15m.revised.parquet    both versions of what was told twice differently

A market is named by the addresses that it comes from, so that two never mix. A file carries the sha256 of
its rows; one that fails it is set aside as `BTCUSDT-15m.damaged-1.parquet`, with a line in the log, and begun
anew. Files are replaced in one rename, under a lock that is held while a file is read and written and never
while anything is downloaded: of two processes each adds what it has to what the other has written. A place
that cannot be written costs one line and time, never a candle. `v8.market.history` decides what serves.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from v8 import storage
from v8.columns import OHLCV
from v8.lock import waited_lock
from v8.market.history import (
    OTHER,
    REVISION_COLUMNS,
    SERVED,
    History,
    joined,
    without_known,
)
from v8.market.open_times import iso
from v8.market.series import Series
from v8.redaction import shown
from v8.user_files import read_given

LAYOUT: Final = 1
MOST_LOCKED_S: Final = 10.0
"""Whoever reads and writes a file needs far less than a second."""

_KEY: Final = "v8_candles"
_MAX_BYTES: Final = 1 << 32
_TEXTS: Final = ("served_from", "other_from")
_BROKEN: Final = (OSError, ValueError, KeyError, TypeError, pa.ArrowException)

_log = logging.getLogger(__name__)


class _DamagedError(Exception):
    """A file of the store that cannot be trusted, with the reason."""


@dataclass(frozen=True, eq=False)
class Merged:
    """What became of a piece that was added to the store.

    Args:
        history: All that is known now.
        revisions: All revisions of the series, new and old; columns of `REVISION_COLUMNS`.
        num_added: Candles that were not known before, unitless.
        num_revised: Revisions that were not known before, unitless.
    """

    history: History
    revisions: pd.DataFrame
    num_added: int = 0
    num_revised: int = 0

    def after(self, before: Merged) -> Merged:
        """Count what an earlier step of the same update did, too."""
        num_added, num_revised = before.num_added, before.num_revised
        return replace(self, num_added=self.num_added + num_added, num_revised=self.num_revised + num_revised)


class CandleStore:
    """A folder of candles of one market, shared by all processes of a user.

    Args:
        folder: Where the files lie; made when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, series: Series) -> Path:
        """Return where the candles of a series lie; the file need not exist."""
        return self.folder / f"{series}.parquet"

    def read(self, series: Series, *, is_held: bool = False) -> Merged | None:
        """Return what is kept of a series; None for nothing, or nothing that can be trusted.

        Args:
            series: Whose candles.
            is_held: Whether this process holds the lock; only then what is damaged is set aside.
        """
        table = self._read(self.path(series), series, is_held=is_held)
        revised = self._read(self._revised_path(series), series, is_held=is_held) if table else None
        if table is None:
            return None
        return Merged(_history(series, *table), _no_revisions() if revised is None else revised[0])

    def merge(
        self,
        series: Series,
        known: Merged | None,
        pieces: Sequence[History],
        now_s: int,
        *,
        is_whole: bool,
        accepts: bool = False,
    ) -> Merged:
        """Add pieces to what is known, and that to what is kept by now.

        Args:
            series: Whose they are.
            known: What `read` gave; the pieces were fetched to follow it.
            pieces: At least one if nothing is known; each touches what is known by then.
            now_s: The present, seconds since the epoch.
            is_whole: Whether it is known by now that the exchange has nothing older.
            accepts: Whether the API's later word serves.

        Raises:
            DataError: If a piece cannot be joined; see `v8.market.history`.
        """
        own = _added(known, pieces, now_s, is_whole=is_whole, accepts=accepts)
        with waited_lock(self.folder / f".{series}.lock", MOST_LOCKED_S) as is_free:
            kept = self.read(series, is_held=is_free)
            merged = own if kept is None else _with_kept(kept, own, now_s, accepts=accepts)
            if merged and is_free:
                self._write(series, merged, kept)
        merged = merged or own
        if merged.num_revised:
            _tell(series, merged)
        return merged

    def _write(self, series: Series, merged: Merged, kept: Merged | None) -> None:
        if merged.num_revised:  # first: what is set aside is set aside before anything takes its place
            content = _file(merged.revisions, {"series": str(series)})
            storage.write_cache(self._revised_path(series), content)
        if kept is None or _extent(merged.history) != _extent(kept.history) or merged.num_revised:
            storage.write_cache(self.path(series), _candle_file(merged.history))

    def _revised_path(self, series: Series) -> Path:
        return self.folder / f"{series}.revised.parquet"

    def _read(
        self, path: Path, series: Series, *, is_held: bool
    ) -> tuple[pd.DataFrame, dict[str, Any]] | None:
        try:
            return _read(read_given(path, _MAX_BYTES), series)
        except (FileNotFoundError, NotADirectoryError):  # writing it will tell where no folder can be
            return None
        except (OSError, _DamagedError) as damage:
            if is_held:  # else another process may have put a sound one there meanwhile
                _set_aside(path, shown(damage, 60))
            return None


def _added(
    known: Merged | None, pieces: Sequence[History], now_s: int, *, is_whole: bool, accepts: bool
) -> Merged:
    """Join pieces to what is known, one after the other; what does not touch it is left out."""
    own = replace(known, num_added=0, num_revised=0) if known else None
    for piece in pieces:
        if own is None:
            own = Merged(piece, _no_revisions(), num_added=len(piece))
        elif own.history.touches(piece):
            own = _with_piece(own, piece, now_s, accepts=accepts)
    if own is None:
        raise ValueError("nothing is known and nothing was added")
    return replace(own, history=replace(own.history, is_whole=own.history.is_whole or is_whole))


def _with_piece(merged: Merged, piece: History, now_s: int, *, accepts: bool) -> Merged:
    history, found = joined(merged.history, piece, accepts=accepts)
    new = without_known(found, merged.revisions).assign(seen_s=now_s)[list(REVISION_COLUMNS)]
    num_added = merged.num_added + len(history) - len(merged.history)
    return Merged(history, _both(merged.revisions, new), num_added, merged.num_revised + len(new))


def _with_kept(kept: Merged, own: Merged, now_s: int, *, accepts: bool) -> Merged | None:
    """Join what another process may have kept with what this one has; None if a bar lies between."""
    if not kept.history.touches(own.history):
        return None
    whole = _with_piece(replace(kept, num_added=0, num_revised=0), own.history, now_s, accepts=accepts)
    new = without_known(own.revisions, whole.revisions)
    num_revised = whole.num_revised + len(new)
    return Merged(whole.history, _both(whole.revisions, new), own.num_added, num_revised)


def _both(these: pd.DataFrame, those: pd.DataFrame) -> pd.DataFrame:
    return (
        pd.concat([these, those], ignore_index=True)
        if len(these) and len(those)
        else (those.reset_index(drop=True) if len(those) else these)
    )


def _extent(history: History) -> tuple[object, ...]:
    """Tell what changes when a history does, but for revisions."""
    return len(history), history.first_s, history.last_s, int(history.is_final.sum()), history.is_whole


def _no_revisions() -> pd.DataFrame:
    kinds = {"open_time_s": "int64", "seen_s": "int64"} | dict.fromkeys((*SERVED, *OTHER), "float64")
    columns = {name: pd.Series(dtype=kinds.get(name, "object")) for name in REVISION_COLUMNS}
    return pd.DataFrame(columns)


def _tell(series: Series, merged: Merged) -> None:
    newest = merged.revisions.iloc[-merged.num_revised :]
    opens = [iso(open_s) for open_s in newest["open_time_s"].head(3)]
    more = " and more" if merged.num_revised > len(opens) else ""
    count = f"{merged.num_revised} {'candle was' if merged.num_revised == 1 else 'candles were'}"
    _log.warning(
        "%s: %s told differently before (%s%s); both versions are kept",
        *(series, count, ", ".join(opens), more),
    )


def _candle_file(history: History) -> bytes:
    frame = pd.DataFrame(history.values, columns=list(OHLCV))
    frame = frame.assign(open_time_s=history.open_time_s, is_final=history.is_final)
    told = {"series": str(history.series), "first_s": history.first_s, "is_whole": history.is_whole}
    return _file(frame, told)


def _file(frame: pd.DataFrame, told: Mapping[str, Any]) -> bytes:
    """Write rows as Parquet that carries what is told of them, and the sha256 of both."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    content = dict(told) | {"layout": LAYOUT, "sha256": _digest(frame, told)}
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({_KEY: json.dumps(content)}), sink)
    return sink.getvalue()


def _read(content: bytes, series: Series) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read rows and what is told of them.

    Raises:
        _DamagedError: If they are not what was written for this series.
    """
    try:
        table = pq.read_table(io.BytesIO(content))
        told = json.loads(table.schema.metadata[_KEY.encode()])
        layout, digest = told.pop("layout"), told.pop("sha256")
        frame = table.replace_schema_metadata().to_pandas()
        is_sound = layout == LAYOUT and digest == _digest(frame, told) and told["series"] == str(series)
    except _BROKEN as error:
        raise _DamagedError(type(error).__name__) from error
    if not is_sound:
        raise _DamagedError("its rows are not those that were written")
    return frame, told


def _digest(frame: pd.DataFrame, told: Mapping[str, Any]) -> str:
    """Digest columns by name and value, and what is told of them, 64 hex digits."""
    parts = [json.dumps(told, sort_keys=True).encode()]
    for name in sorted(frame.columns):
        column = frame[name]
        is_text = name in _TEXTS
        parts += [name.encode(), "\n".join(column).encode() if is_text else column.to_numpy().tobytes()]
    return storage.digest_bytes(*parts)


def _history(series: Series, frame: pd.DataFrame, told: Mapping[str, Any]) -> History:
    return History(
        series,
        int(told["first_s"]),
        frame["open_time_s"].to_numpy(np.int64),
        frame[list(OHLCV)].to_numpy(np.float64),
        frame["is_final"].to_numpy(np.bool_),
        bool(told["is_whole"]),
    )


def _set_aside(path: Path, damage: str) -> None:
    """Move a damaged file out of the way; nothing is deleted."""
    number = 1
    while (aside := path.with_name(f"{path.stem}.damaged-{number}.parquet")).exists():
        number += 1
    try:
        path.rename(aside)
    except OSError as error:
        _log.warning("%s is damaged (%s) and cannot be moved: %s", shown(path), damage, shown(error.strerror))
    else:
        _log.warning("%s was damaged (%s) and is begun anew; it lies beside as %s", path, damage, aside.name)
