"""CandleStore: the candles of every series that were ever fetched, one Parquet file for each series.

    <V8_HOME>/candles/<market>/BTCUSDT-15m.parquet            open times, OHLCV, whether they are final
    <V8_HOME>/candles/<market>/BTCUSDT-15m.revised.parquet    both versions of candles that were revised

A market is named by the addresses that its candles come from, so that two markets never mix. A file carries
the sha256 of its rows. A file that fails this check is renamed to `BTCUSDT-15m.damaged-1.parquet`, with a
line in the log, and the series is fetched again. Files are replaced by one atomic rename, under a lock that
is never held during a download: of two processes each adds its candles to those that the other has written. A
folder that cannot be written costs one line in the log and time, never a candle.

The candles of a series (`StoredCandles`) are merged from pieces that the archive and the API delivered. Where
two pieces contain the same bar, all five values are compared to a relative difference of 1e-9 (archive and
API print the same decimals); different values are a *revision*. Both versions are listed. Which of them is
served:

* The archive's version rather than the API's: it has a published sha256 and is final.
* Of two versions from the API, the first one: forecasts were issued and scored with it, runs are tied to it
  by a digest, and a response that nobody can verify must not change the past. Exceptions: a version that does
  not fit its neighbours while the later one does, and a newest candle that was read before its bar was over.
* Where these rules do not decide, and a price jumps from one version to the other, the whole piece is
  refused: its newest candles cannot be trusted either. A candle opens where the one before closed, so a
  distance of 5 % or more, and of 12 times the median distance of the series, is a jump.
* The later of two versions from the API where the user accepts revisions.
* A candle that only the later piece has is added, and one that only the earlier piece has is kept; both are
  revisions.

Shapes: N candles, R revisions.
"""

import io
import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from v8.base import storage
from v8.base.errors import DataError, StorageError, listed, shown
from v8.base.process import command
from v8.base.records import parse_json, read_given
from v8.base.wording import plural
from v8.data.market.candles import Candles, Mask, Times, Values, rows_at
from v8.data.market.series import Series, iso
from v8.profile.columns import CLOSE, OHLC, OHLCV, OPEN_TIME

SAME_SHARE: Final = 1e-9  # of the larger value: a smaller difference is one number printed twice
LEAST_JUMP: Final = 0.05  # log distance, unitless; Bitcoin moves so far in 15 minutes a few times a year
NUM_TYPICAL: Final = 12.0  # a jump is at least so many times the median log distance of the candles
_NUM_RECENT: Final = 100  # newest candles from which the median distance is taken
ARCHIVE = "archive"
API = "API"
NOBODY = "nobody"

SERVED = tuple(f"served_{name}" for name in OHLCV)
OTHER = tuple(f"other_{name}" for name in OHLCV)
REVISION_COLUMNS: Final = ("open_time_s", "seen_s", *SERVED, "served_from", *OTHER, "other_from")
"""A revision: open time and time of detection, seconds since the epoch; both versions, and their origins."""

LAYOUT: Final = 1
MOST_LOCKED_S: Final = 10.0  # longest wait for the lock; reading and writing a file takes much less than 1 s
_KEY: Final = "v8_candles"
_MAX_BYTES: Final = 1 << 32
_TEXTS: Final = ("served_from", "other_from")
_BROKEN: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class StoredCandles:
    """All candles of one series from `first_s` on: a bar without a candle had none when it was requested."""

    series: Series
    first_s: int  # open time of the first bar that was requested, seconds since the epoch, UTC
    open_time_s: Times  # open times, seconds since the epoch, ascending, shape (N,), int64
    values: Values  # columns of `OHLCV`, shape (N, 5), float64
    is_final: Mask  # whether a candle is from the archive, shape (N,), bool; else it is from the API
    has_oldest: bool = False  # whether the exchange has no older candles

    def __len__(self) -> int:
        return len(self.open_time_s)

    @property
    def last_s(self) -> int:
        """Open time of the newest candle; later bars have not been requested."""
        return int(self.open_time_s[-1])

    @property
    def num_missing(self) -> int:
        """Bars without a candle between the first and the last."""
        return (self.last_s - int(self.open_time_s[0])) // self.series.bar_s + 1 - len(self)

    def first_hole_s(self, since_s: int) -> int | None:
        """Return the open time of the first missing bar from a time on, after the candles of the archive."""
        final_s = self.open_time_s[self.is_final]
        begin_s = max(since_s - self.series.bar_s, int(final_s[-1]) if len(final_s) else 0)
        times_s = self.open_time_s[self.open_time_s >= begin_s]
        before_holes_s = times_s[:-1][np.diff(times_s) > self.series.bar_s]
        return int(before_holes_s[0]) + self.series.bar_s if len(before_holes_s) else None

    @property
    def has_suspect_end(self) -> bool:
        """Whether the newest candle jumps from the one before it and only the API has confirmed it."""
        return not self.is_final[-1] and bool(are_suspect(self.values[-_NUM_RECENT:])[-1])

    def num_until(self, last_s: int) -> int:
        """Count the candles that open at or before a time."""
        return int(np.searchsorted(self.open_time_s, last_s, side="right"))

    def frame(self, num_bars: int, last_s: int) -> pd.DataFrame:
        """Return the newest candles up to a time, columns `open_time` (seconds) and `OHLCV`."""
        stop = self.num_until(last_s)
        rows = slice(max(0, stop - num_bars), stop)
        frame = pd.DataFrame(self.values[rows], columns=list(OHLCV))
        frame[OPEN_TIME] = self.open_time_s[rows]
        return frame

    def touches(self, other: "StoredCandles") -> bool:
        """Return whether no unrequested bar lies between two pieces."""
        bar_s = self.series.bar_s
        return self.first_s <= other.last_s + bar_s and other.first_s <= self.last_s + bar_s


def from_candles(candles: Candles, *, is_final: bool, has_oldest: bool) -> StoredCandles:
    """Convert checked candles; they are final if they come from the archive."""
    return StoredCandles(
        series=candles.series,
        first_s=int(candles.open_time_s[0]),
        open_time_s=candles.open_time_s,
        values=candles.values,
        is_final=np.full(len(candles), is_final),
        has_oldest=has_oldest,
    )


def from_api(series: Series, first_s: int, rows: pd.DataFrame) -> StoredCandles:
    """Convert rows of the API, at least one: `open_time` in milliseconds and `OHLCV`."""
    return StoredCandles(
        series=series,
        first_s=first_s,
        open_time_s=rows[OPEN_TIME].to_numpy(np.int64) // 1_000,
        values=rows[list(OHLCV)].to_numpy(np.float64),
        is_final=np.zeros(len(rows), dtype=np.bool_),
    )


def merge_pieces(
    stored: StoredCandles, piece: StoredCandles, now_s: int, *, accept_revisions: bool
) -> tuple[StoredCandles, pd.DataFrame]:
    """Merge stored candles with a later piece that touches them, by the rules at the top of this file.

    Args:
        stored: The earlier candles.
        piece: The later ones.
        now_s: The present, seconds since the epoch.
        accept_revisions: Whether the later version of the API is served.

    Returns:
        The merged candles, and the new revisions: columns of `REVISION_COLUMNS`, R rows.

    Raises:
        DataError: If a price jumps from one version to the other.
    """
    times_s = np.union1d(stored.open_time_s, piece.open_time_s)
    stored_rows, has_stored = rows_at(times_s, stored.open_time_s)
    piece_rows, has_piece = rows_at(times_s, piece.open_time_s)
    old_values = stored.values[stored_rows]
    new_values = piece.values[piece_rows]
    differs = _differs(old_values, new_values) & has_stored & has_piece
    is_open = ~stored.is_final[stored_rows]
    is_replaced = has_piece & (~has_stored | (is_open & piece.is_final[piece_rows]))
    if (is_open & differs & ~is_replaced).any():
        is_better = (
            accept_revisions
            | _is_unfinished(old_values, new_values, times_s == stored.last_s)
            | _is_corrected(old_values, new_values, differs, has_stored)
        )
        is_replaced |= is_open & differs & is_better
    _require_no_jump(stored.series, times_s, old_values, new_values, differs & ~is_replaced)
    merged = StoredCandles(
        series=stored.series,
        first_s=min(stored.first_s, piece.first_s),
        open_time_s=times_s,
        values=np.where(is_replaced[:, None], new_values, old_values),
        is_final=np.where(is_replaced, piece.is_final[piece_rows], stored.is_final[stored_rows]),
        has_oldest=stored.has_oldest or piece.has_oldest,
    )
    first_common_s = max(stored.first_s, piece.first_s)
    last_common_s = min(stored.last_s, piece.last_s)
    is_common = (times_s >= first_common_s) & (times_s <= last_common_s)
    is_revised = is_common & ((has_stored != has_piece) | differs)
    revisions = _revisions(stored, piece, times_s[is_revised], is_replaced[is_revised], now_s)
    return merged, revisions


def _differs(old_values: Values, new_values: Values) -> Mask:
    """Return in which rows two versions differ by more than `SAME_SHARE`, shape (N,)."""
    tolerance = SAME_SHARE * np.maximum(np.abs(old_values), np.abs(new_values))
    return np.asarray(~(np.abs(old_values - new_values) <= tolerance).all(axis=1))


def _revisions(
    stored: StoredCandles, piece: StoredCandles, times_s: Times, is_replaced: Mask, now_s: int
) -> pd.DataFrame:
    """List both versions of some bars, the served one and the other: columns of `REVISION_COLUMNS`."""
    revisions = pd.DataFrame({"open_time_s": times_s, "seen_s": now_s})
    old_values, old_origins = _version_of(stored, times_s)
    new_values, new_origins = _version_of(piece, times_s)
    for names, origin, is_new in ((SERVED, "served_from", is_replaced), (OTHER, "other_from", ~is_replaced)):
        revisions[list(names)] = np.where(is_new[:, None], new_values, old_values)
        revisions[origin] = np.where(is_new, new_origins, old_origins)
    return revisions


def _is_unfinished(old_values: Values, new_values: Values, is_newest: Mask) -> Mask:
    """Return whether the newest candle grew since it was read, shape (N,): its bar was not over then."""
    opened, high, low, _, volume = old_values.T
    has_wider_range = (new_values[:, 1] >= high) & (new_values[:, 2] <= low)
    has_more_volume = new_values[:, 4] > volume
    is_grown = has_wider_range & has_more_volume & (new_values[:, 0] == opened)
    return np.asarray(is_grown & is_newest)


def _is_corrected(old_values: Values, new_values: Values, differs: Mask, has_stored: Mask) -> Mask:
    """Return where the old version jumps from the nearest undisputed candle and the new one does not."""
    undisputed = np.where(has_stored[:, None], old_values, new_values)
    rows = np.arange(len(differs))
    before = np.maximum.accumulate(np.where(differs, -1, rows))
    after = np.minimum.accumulate(np.where(differs, len(rows), rows)[::-1])[::-1]
    # A row of nan behind the last one: without any undisputed candle nothing is a jump.
    padded = np.vstack([undisputed, np.full((1, len(OHLCV)), np.nan)])
    reference = np.where(before >= 0, padded[before, 3], padded[after, 0])
    jump = jump_threshold(old_values[has_stored])
    is_old_jump = log_distances(old_values, reference) > jump
    is_new_close = log_distances(new_values, reference) <= jump
    return np.asarray(is_old_jump & is_new_close)


def _require_no_jump(
    series: Series, times_s: Times, old_values: Values, new_values: Values, is_disputed: Mask
) -> None:
    """Refuse prices that differ by a jump from the stored ones."""
    price_ratios = new_values[is_disputed, :4] / old_values[is_disputed, :4]
    distances = np.abs(np.log(price_ratios)).max(axis=1)
    num_jumps = int((distances > LEAST_JUMP).sum())
    if num_jumps:
        row = np.flatnonzero(is_disputed)[np.argmax(distances)]
        versions = (
            f"a close of {new_values[row, 3]:g} at {iso(int(times_s[row]))} that was {old_values[row, 3]:g}"
        )
        accept = command("data", "update", "--series", str(series), "--accept-revision")
        raise DataError(
            where=str(series),
            rule="a price stays the same, or one of its two versions does not fit its neighbours",
            got=f"{versions} before ({plural(num_jumps, 'such candle')})",
            fix=f"Try again later; if the new prices are right, accept them with `{accept}`",
        )


def _version_of(candles: StoredCandles, times_s: Times) -> tuple[Values, NDArray[np.object_]]:
    """Return values and origin of some bars: (R, 5), nan where there is no candle, and (R,)."""
    rows, has_candle = rows_at(times_s, candles.open_time_s)
    values = np.where(has_candle[:, None], candles.values[rows], np.nan)
    origins = np.where(has_candle, np.where(candles.is_final[rows], ARCHIVE, API), NOBODY)
    return values, origins.astype(object)


@dataclass(frozen=True, eq=False)
class StoredSeries:
    """The stored candles of a series, and all their revisions in the order of detection."""

    candles: StoredCandles
    revisions: pd.DataFrame = field(default_factory=partial(pd.DataFrame, columns=REVISION_COLUMNS))

    def merged(self, later: "StoredSeries", now_s: int, *, accept_revisions: bool) -> "StoredSeries":
        """Add later candles that touch these. Each version of a bar is listed once among the revisions."""
        candles, new_revisions = merge_pieces(
            self.candles, later.candles, now_s, accept_revisions=accept_revisions
        )
        tables = [table for table in (self.revisions, new_revisions, later.revisions) if len(table)]
        if not tables:
            tables = [new_revisions]
        revisions = pd.concat(tables, ignore_index=True).drop_duplicates(["open_time_s", *OTHER])
        return StoredSeries(candles, revisions)


class CandleStore:
    """A folder of candles of one market, shared by all processes of a user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def require_writable(self) -> None:
        """Refuse a folder in which nothing can be kept, by `StorageError`; it is made when missing."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise StorageError.of(self.folder, error) from error

    def path(self, series: Series, kind: str = "") -> Path:
        """Return the file of a series, or that of its `.revised` candles; it need not exist."""
        return self.folder / f"{series}{kind}.parquet"

    def read(self, series: Series, *, is_locked: bool = False) -> StoredSeries | None:
        """Read a series; None if nothing is stored, or nothing that passes its check.

        A damaged file is renamed only while this process holds the lock (`is_locked`).
        """
        table = self._read(self.path(series), series, is_locked=is_locked)
        if table is None:
            return None
        frame, header = table
        candles = StoredCandles(
            series=series,
            first_s=int(header["first_s"]),
            open_time_s=frame["open_time_s"].to_numpy(np.int64),
            values=frame[list(OHLCV)].to_numpy(np.float64),
            is_final=frame["is_final"].to_numpy(np.bool_),
            has_oldest=bool(header["is_whole"]),
        )
        revised = self._read(self.path(series, ".revised"), series, is_locked=is_locked)
        if revised is None:
            return StoredSeries(candles)
        return StoredSeries(candles, revised[0])

    def merge(
        self,
        series: Series,
        stored: StoredSeries | None,
        pieces: Sequence[StoredCandles],
        now_s: int,
        *,
        has_oldest: bool = False,
        accept_revisions: bool = False,
    ) -> StoredSeries:
        """Merge new pieces with a series as it was read, then with what other processes wrote meanwhile.

        Args:
            series: The series.
            stored: Result of `read`. Without it there is at least one piece; each piece touches what comes
                before it.
            pieces: New candles, in the order in which they are merged.
            now_s: The present, seconds since the epoch.
            has_oldest: Whether the exchange is now known to have no older candles.
            accept_revisions: Whether the later version of the API is served.
        """
        parts = [StoredSeries(piece) for piece in pieces]
        if stored:
            parts.insert(0, stored)
        own = parts[0]
        for part in parts[1:]:
            if own.candles.touches(part.candles):
                own = own.merged(part, now_s, accept_revisions=accept_revisions)
        if has_oldest:
            own = replace(own, candles=replace(own.candles, has_oldest=True))
        with storage.waited_lock(self.folder / f".{series}.lock", MOST_LOCKED_S) as is_locked:
            on_disk = self.read(series, is_locked=is_locked)
            merged = own
            before = stored
            if on_disk and on_disk.candles.touches(own.candles):
                merged = on_disk.merged(own, now_s, accept_revisions=accept_revisions)
                before = on_disk
            num_listed = len(before.revisions) if before else 0
            new_revisions = merged.revisions.iloc[num_listed:]
            # Candles that do not touch those on disk are served, but not written.
            if is_locked and (on_disk is None or before is on_disk):
                self._write(series, merged, is_revised=len(new_revisions) > 0)
        _log_revisions(series, new_revisions)
        return merged

    def _write(self, series: Series, stored: StoredSeries, *, is_revised: bool) -> None:
        if is_revised:  # written first: a replaced version must be on record before its replacement
            content = _encoded(stored.revisions, {"series": str(series)})
            storage.write_cache(self.path(series, ".revised"), content)
        candles = stored.candles
        frame = pd.DataFrame(candles.values, columns=list(OHLCV))
        frame = frame.assign(open_time_s=candles.open_time_s, is_final=candles.is_final)
        header = {"series": str(series), "first_s": candles.first_s, "is_whole": candles.has_oldest}
        storage.write_cache(self.path(series), _encoded(frame, header))

    def _read(
        self, path: Path, series: Series, *, is_locked: bool
    ) -> tuple[pd.DataFrame, dict[str, Any]] | None:
        try:
            return _decoded(read_given(path, _MAX_BYTES), series)
        except (FileNotFoundError, NotADirectoryError):  # where no folder can be, writing reports it
            return None
        except _BROKEN as damage:
            if isinstance(damage, PermissionError) and not os.access(self.folder, os.W_OK | os.X_OK):
                return None  # the folder is another user's; writing it will report that, too
            if is_locked:  # else another process may have replaced the file meanwhile
                _set_aside(path, shown(damage, 60))
            return None


def _log_revisions(series: Series, revisions: pd.DataFrame) -> None:
    is_in_one = revisions["other_from"] == NOBODY
    for changed, what in (
        (revisions[~is_in_one], "different before ({}); both versions are kept"),
        (revisions[is_in_one], "in one of two answers only ({}), and kept"),
    ):
        if len(changed):
            candles = "1 candle was" if len(changed) == 1 else f"{len(changed)} candles were"
            times = listed([iso(open_s) for open_s in changed["open_time_s"]])
            _log.warning("%s: %s %s", series, candles, what.format(times))


def _encoded(frame: pd.DataFrame, header: Mapping[str, Any]) -> bytes:
    """Encode rows as Parquet with a header, and the sha256 of both, in its metadata."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    content = dict(header) | {"layout": LAYOUT, "sha256": _digest(frame, header)}
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({_KEY: json.dumps(content)}), sink)
    return sink.getvalue()


def _decoded(content: bytes, series: Series) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read rows and header; raises one of `_BROKEN` if they were not written for this series."""
    table = pq.read_table(io.BytesIO(content))
    header = parse_json(table.schema.metadata[_KEY.encode()])
    layout = header.pop("layout")
    digest = header.pop("sha256")
    frame = table.replace_schema_metadata().to_pandas()
    if layout != LAYOUT or digest != _digest(frame, header) or header["series"] != str(series):
        raise ValueError("its rows are not those that were written")
    return frame, header


def _digest(frame: pd.DataFrame, header: Mapping[str, Any]) -> str:
    """Digest the columns, by name and value, and the header: 64 hex digits."""
    parts = [json.dumps(header, sort_keys=True).encode()]
    for name in sorted(frame.columns):
        column = frame[name]
        content = "\n".join(column).encode() if name in _TEXTS else column.to_numpy().tobytes()
        parts += [name.encode(), content]
    return storage.digest_bytes(*parts)


def _set_aside(path: Path, damage: str) -> None:
    """Rename a damaged file; nothing is deleted."""
    try:
        for number in count(1):
            new_path = path.with_name(f"{path.stem}.damaged-{number}.parquet")
            if not new_path.exists():
                break
        path.rename(new_path)
    except OSError as error:
        _log.warning("%s is damaged (%s) and cannot be moved: %s", shown(path), damage, shown(error.strerror))
    else:
        _log.warning(
            "%s was damaged (%s) and is fetched again; it was renamed to %s", path, damage, new_path.name
        )


def log_distances(values: Values, reference: Any) -> Values:
    """Return the largest absolute log ratio of the four prices of each candle to a price, (N,), unitless.

    The reference has the shape (N,); where it is nan, so is the distance.
    """
    log_ratios: Values = np.abs(np.log(values[:, : len(OHLC)] / np.reshape(reference, (-1, 1))))
    return log_ratios.max(axis=1)


def jump_threshold(values: Values) -> float:
    """Return the log distance from the close before above which a price is suspect, unitless.

    >>> jump_threshold(np.full((3, 5), 100.0))
    0.05
    """
    distances = _from_close_before(values)
    if not len(distances):
        return LEAST_JUMP
    return max(LEAST_JUMP, NUM_TYPICAL * float(np.median(distances)))


def are_suspect(values: Values) -> Mask:
    """Return which candles jump, or lie before one that does, shape (N,): either of the two may be wrong.

    >>> are_suspect(np.full((4, 5), [[1.0], [1.0], [9.0], [9.0]])).tolist()
    [False, True, True, False]
    >>> are_suspect(np.empty((0, 5))).tolist()
    []
    """
    is_jump = _from_close_before(values) > jump_threshold(values)
    is_before_jump = np.append(is_jump, False)
    is_after_jump = np.insert(is_jump, 0, False)
    return np.asarray(is_before_jump | is_after_jump)[: len(values)]


def _from_close_before(values: Values) -> Values:
    return log_distances(values[1:], values[:-1, OHLC.index(CLOSE)])
