"""CandleStore: the candles of every series that were ever fetched, one Parquet file each.

    <V8_HOME>/candles/<market>/BTCUSDT-15m.parquet            open times, OHLCV, whether the archive said so
    <V8_HOME>/candles/<market>/BTCUSDT-15m.revised.parquet    both versions of what was told twice differently

A market is named by the addresses that it comes from, so that two never mix. A file carries the sha256 of
its rows; one that fails it is set aside as `BTCUSDT-15m.damaged-1.parquet`, with a line in the log, and begun
anew. Files are replaced in one rename, under a lock that is never held while anything is downloaded: of two
processes each adds what it has to what the other has written. A place that cannot be written costs one line
and time, never a candle.

What is known of a series is a `History`, put together from pieces that the archive and the API gave. Where
two pieces have the same bar they are compared, all five values to a billionth, and what differs is a
revision: archive and API print the same decimals. Both versions are listed; which of them serves:

* The archive's word over the API's: it has a published sha256 and is final.
* Of the API's two, what was seen first: forecasts were issued and scored with it, runs are pinned to it by
  digest, and an answer that nobody can check a second time must not change the past. But not what contradicts
  its neighbours as well as the later answer, and not a newest candle that was told before it was over.
* A price that jumps from one version to the other, where none of this decides, refuses the piece: who says so
  tells something else now, and what is newest in it cannot be trusted either. A coin opens where it closed:
  5 % away, and 12 times as far as prices of that series usually are, is a jump.
* The later of the API's two where the user accepts that.
* A candle that only the later piece has is taken, one that only the earlier has stays; both are revisions.

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

from v8 import storage
from v8.columns import CLOSE, OHLC, OHLCV, OPEN_TIME
from v8.errors import DataError, StorageError, listed, shown
from v8.invocation import command
from v8.market.candles import Candles, Mask, Times, Values, places
from v8.market.series import Series, iso
from v8.wording import plural

SAME_SHARE: Final = 1e-9  # of the larger: two values that differ by less are one number printed twice
LEAST_JUMP: Final = 0.05  # a log distance below is none; Bitcoin goes so far in 15 minutes a few times a year
NUM_TYPICAL: Final = 12.0  # a jump goes so many times as far as the median candle does
_NUM_BESIDE: Final = 100  # newest candles that say how far a price of theirs may be from the close before
ARCHIVE = "archive"
API = "API"
NOBODY = "nobody"

SERVED = tuple(f"served_{name}" for name in OHLCV)
OTHER = tuple(f"other_{name}" for name in OHLCV)
REVISION_COLUMNS: Final = ("open_time_s", "seen_s", *SERVED, "served_from", *OTHER, "other_from")
"""Of a revision: open time and when it was seen, seconds since the epoch; both versions, and who said so."""

LAYOUT: Final = 1
MOST_LOCKED_S: Final = 10.0  # whoever reads and writes a file needs far less than a second
_KEY: Final = "v8_candles"
_MAX_BYTES: Final = 1 << 32
_TEXTS: Final = ("served_from", "other_from")
_BROKEN: Final = (OSError, ValueError, KeyError, TypeError, pa.ArrowException)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class History:
    """Candles of one series without unknown bars: a bar without a candle had none when asked for."""

    series: Series
    first_s: int  # open time of the first bar that was asked for, seconds since the epoch, UTC
    open_time_s: Times  # open times, seconds since the epoch, ascending, shape (N,), int64
    values: Values  # columns of `OHLCV`, shape (N, 5), float64
    is_final: Mask  # whether the archive said so, shape (N,), bool; else it was the API
    is_whole: bool = False  # whether the exchange has nothing older

    def __len__(self) -> int:
        return len(self.open_time_s)

    @property
    def last_s(self) -> int:
        """Open time of the newest candle; what lies after it is not known."""
        return int(self.open_time_s[-1])

    @property
    def num_missing(self) -> int:
        """Bars without a candle between the first and the last."""
        return (self.last_s - int(self.open_time_s[0])) // self.series.bar_s + 1 - len(self)

    @property
    def is_doubted(self) -> bool:
        """Whether the newest candle jumps from the one before it, as only the API says."""
        return not self.is_final[-1] and bool(are_doubted(self.values[-_NUM_BESIDE:])[-1])

    def num_until(self, last_s: int) -> int:
        """Count the candles that open at or before a time."""
        return int(np.searchsorted(self.open_time_s, last_s, side="right"))

    def frame(self, num_bars: int, last_s: int) -> pd.DataFrame:
        """Return the newest candles until a time, columns `open_time` (seconds) and `OHLCV`."""
        stop = self.num_until(last_s)
        span = slice(max(0, stop - num_bars), stop)
        frame = pd.DataFrame(self.values[span], columns=list(OHLCV))
        return frame.assign(**{OPEN_TIME: self.open_time_s[span]})

    def touches(self, other: "History") -> bool:
        """Tell whether no bar between two histories is unknown."""
        bar_s = self.series.bar_s
        return self.first_s <= other.last_s + bar_s and other.first_s <= self.last_s + bar_s


def from_candles(candles: Candles, *, is_final: bool, is_whole: bool) -> History:
    """Take checked candles: what the archive has of a series, which is final, or the API."""
    are_final = np.full(len(candles), is_final)
    first_s = int(candles.open_time_s[0])
    return History(candles.series, first_s, candles.open_time_s, candles.values, are_final, is_whole)


def from_api(series: Series, first_s: int, rows: pd.DataFrame) -> History:
    """Take the rows of the API from a bar on: `open_time` in milliseconds and `OHLCV`, at least one."""
    open_time_s = rows[OPEN_TIME].to_numpy(np.int64) // 1_000
    is_final = np.zeros(len(rows), dtype=np.bool_)
    return History(series, first_s, open_time_s, rows[list(OHLCV)].to_numpy(np.float64), is_final)


def joined(known: History, piece: History, now_s: int, *, accepts: bool) -> tuple[History, pd.DataFrame]:
    """Join what is known with a later answer that touches it; `accepts` lets the API's later word serve.

    Returns both together, and the revisions, seen now: columns of `REVISION_COLUMNS`, R rows.
    """
    times_s = np.union1d(known.open_time_s, piece.open_time_s)
    at_known, has_known = places(times_s, known.open_time_s)
    at_piece, has_piece = places(times_s, piece.open_time_s)
    theirs = piece.values[at_piece]
    ours = known.values[at_known]
    is_same = np.abs(ours - theirs) <= SAME_SHARE * np.maximum(np.abs(ours), np.abs(theirs))
    differs = ~is_same.all(axis=1) & has_known & has_piece
    is_open = ~known.is_final[at_known]
    is_taken = has_piece & (~has_known | (is_open & piece.is_final[at_piece]))
    if (is_open & differs & ~is_taken).any():
        later = accepts | _is_unfinished(ours, theirs, times_s == known.last_s)
        is_taken |= is_open & differs & (later | _is_mended(ours, theirs, differs, has_known))
    _require_no_jump(known.series, times_s, ours, theirs, differs & ~is_taken)
    values = np.where(is_taken[:, None], theirs, ours)
    is_final = np.where(is_taken, piece.is_final[at_piece], known.is_final[at_known])
    is_whole = known.is_whole or piece.is_whole
    whole = History(known.series, min(known.first_s, piece.first_s), times_s, values, is_final, is_whole)
    is_common = (times_s >= max(known.first_s, piece.first_s)) & (times_s <= min(known.last_s, piece.last_s))
    chosen = is_common & ((has_known != has_piece) | differs)
    taken = is_taken[chosen]
    revisions = pd.DataFrame({"open_time_s": times_s[chosen], "seen_s": now_s})
    former, later_said = (_said(each, times_s[chosen]) for each in (known, piece))
    for names, origin, is_later in ((SERVED, "served_from", taken), (OTHER, "other_from", ~taken)):
        revisions[list(names)] = np.where(is_later[:, None], later_said[0], former[0])
        revisions[origin] = np.where(is_later, later_said[1], former[1])
    return whole, revisions


def _is_unfinished(ours: Values, theirs: Values, is_newest: Mask) -> Mask:
    """Tell whether the newest candle grew since it was told, shape (N,): then it was told too early."""
    opened, high, low, _, volume = ours.T
    grew = (theirs[:, 1] >= high) & (theirs[:, 2] <= low) & (theirs[:, 4] > volume) & (theirs[:, 0] == opened)
    return np.asarray(grew & is_newest)


def _is_mended(ours: Values, theirs: Values, differs: Mask, has_known: Mask) -> Mask:
    """Tell where what is known jumps from the last candle nobody disputes and the later answer does not."""
    agreed = np.where(has_known[:, None], ours, theirs)
    rows = np.arange(len(differs))
    before = np.maximum.accumulate(np.where(differs, -1, rows))
    after = np.minimum.accumulate(np.where(differs, len(rows), rows)[::-1])[::-1]
    padded = np.vstack([agreed, np.full((1, len(OHLCV)), np.nan)])
    reference = np.where(before >= 0, padded[before, 3], padded[after, 0])
    jump = jump_of(ours[has_known])
    return np.asarray((distances(ours, reference) > jump) & (distances(theirs, reference) <= jump))


def _require_no_jump(series: Series, times_s: Times, ours: Values, theirs: Values, is_disputed: Mask) -> None:
    away = np.abs(np.log(theirs[is_disputed, :4] / ours[is_disputed, :4])).max(axis=1)
    num_far = int((away > LEAST_JUMP).sum())
    if num_far:
        row = np.flatnonzero(is_disputed)[np.argmax(away)]
        told = f"a close of {theirs[row, 3]:g} at {iso(int(times_s[row]))} that was {ours[row, 3]:g} before"
        rule = "a price is told again as before, or one of the two versions does not fit its neighbours"
        take = command("data", "update", "--series", str(series), "--accept-revision")
        fix = f"Try again later; where what is told now is true, take it with `{take}`"
        got = f"{told} ({plural(num_far, 'such candle')})"
        raise DataError(where=str(series), rule=rule, got=got, fix=fix)


def _said(history: History, times_s: Times) -> tuple[Values, NDArray[np.object_]]:
    """Return what a history says of some bars, shape (R, 5), nan where it has none, and who says so."""
    at, has = places(times_s, history.open_time_s)
    origin = np.where(history.is_final[at], ARCHIVE, API)
    return np.where(has[:, None], history.values[at], np.nan), np.where(has, origin, NOBODY).astype(object)


@dataclass(frozen=True, eq=False)
class Merged:
    """What is known of a series, and all its revisions in the order in which they were seen."""

    history: History
    revisions: pd.DataFrame = field(default_factory=partial(pd.DataFrame, columns=REVISION_COLUMNS))

    def joined(self, later: "Merged", now_s: int, *, accepts: bool) -> "Merged":
        """Add what touches it; a revision is told once: of another bar, or another version of it."""
        history, found = joined(self.history, later.history, now_s, accepts=accepts)
        told = [each for each in (self.revisions, found, later.revisions) if len(each)] or [found]
        revisions = pd.concat(told, ignore_index=True).drop_duplicates(["open_time_s", *OTHER])
        return Merged(history, revisions)


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
        """Return where the candles of a series lie, or its `.revised` ones; the file need not exist."""
        return self.folder / f"{series}{kind}.parquet"

    def read(self, series: Series, *, is_held: bool = False) -> Merged | None:
        """Return what is kept of a series; None for nothing, or nothing that can be trusted.

        What is damaged is set aside only while this process holds the lock.
        """
        table = self._read(self.path(series), series, is_held=is_held)
        if table is None:
            return None
        revised = self._read(self.path(series, ".revised"), series, is_held=is_held)
        frame, told = table
        times_s = frame["open_time_s"].to_numpy(np.int64)
        is_final = frame["is_final"].to_numpy(np.bool_)
        values = frame[list(OHLCV)].to_numpy(np.float64)
        is_whole = bool(told["is_whole"])
        history = History(series, int(told["first_s"]), times_s, values, is_final, is_whole)
        return Merged(history) if revised is None else Merged(history, revised[0])

    def merge(
        self,
        series: Series,
        known: Merged | None,
        pieces: Sequence[History],
        now_s: int,
        *,
        is_whole: bool = False,
        accepts: bool = False,
    ) -> Merged:
        """Add pieces to what is known, and that to what another process may have kept by now.

        Args:
            known: What `read` gave; each piece touches what is known by then, and without any there is one.
            is_whole: Whether it is known by now that the exchange has nothing older.
            accepts: Whether the API's later word serves.
        """
        own, *later = [*([known] if known else []), *map(Merged, pieces)]
        for each in later:
            if own.history.touches(each.history):
                own = own.joined(each, now_s, accepts=accepts)
        own = replace(own, history=replace(own.history, is_whole=own.history.is_whole or is_whole))
        with storage.waited_lock(self.folder / f".{series}.lock", MOST_LOCKED_S) as is_free:
            kept = self.read(series, is_held=is_free)
            is_near = kept is None or kept.history.touches(own.history)
            merged = kept.joined(own, now_s, accepts=accepts) if kept and is_near else own
            before = kept if kept and is_near else known
            revised = merged.revisions.iloc[len(before.revisions) if before else 0 :]
            if is_near and is_free:
                self._write(series, merged, is_revised=len(revised) > 0)
        num = len(revised)
        if num:
            told = f"{num} {'candle was' if num == 1 else 'candles were'}"
            opens = listed([iso(open_s) for open_s in revised["open_time_s"]])
            _log.warning("%s: %s told differently before (%s); both versions are kept", series, told, opens)
        return merged

    def _write(self, series: Series, merged: Merged, *, is_revised: bool) -> None:
        if is_revised:  # first: what is set aside is set aside before anything takes its place
            content = _file(merged.revisions, {"series": str(series)})
            storage.write_cache(self.path(series, ".revised"), content)
        history = merged.history
        frame = pd.DataFrame(history.values, columns=list(OHLCV))
        frame = frame.assign(open_time_s=history.open_time_s, is_final=history.is_final)
        told = {"series": str(series), "first_s": history.first_s, "is_whole": history.is_whole}
        storage.write_cache(self.path(series), _file(frame, told))

    def _read(
        self, path: Path, series: Series, *, is_held: bool
    ) -> tuple[pd.DataFrame, dict[str, Any]] | None:
        try:
            return _read(storage.read_given(path, _MAX_BYTES), series)
        except (FileNotFoundError, NotADirectoryError):  # writing it will tell where no folder can be
            return None
        except _BROKEN as damage:
            if isinstance(damage, PermissionError) and not os.access(self.folder, os.W_OK | os.X_OK):
                return None  # the folder is another user's; writing it will tell that, too
            if is_held:  # else another process may have put a sound one there meanwhile
                _set_aside(path, shown(damage, 60))
            return None


def _file(frame: pd.DataFrame, told: Mapping[str, Any]) -> bytes:
    """Write rows as Parquet that carries what is told of them, and the sha256 of both."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    content = dict(told) | {"layout": LAYOUT, "sha256": _digest(frame, told)}
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({_KEY: json.dumps(content)}), sink)
    return sink.getvalue()


def _read(content: bytes, series: Series) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read rows and what is told of them; one of `_BROKEN` where they were not written for this series."""
    table = pq.read_table(io.BytesIO(content))
    told = json.loads(table.schema.metadata[_KEY.encode()])
    layout = told.pop("layout")
    digest = told.pop("sha256")
    frame = table.replace_schema_metadata().to_pandas()
    if layout != LAYOUT or digest != _digest(frame, told) or told["series"] != str(series):
        raise ValueError("its rows are not those that were written")
    return frame, told


def _digest(frame: pd.DataFrame, told: Mapping[str, Any]) -> str:
    """Digest columns by name and value, and what is told of them, 64 hex digits."""
    parts = [json.dumps(told, sort_keys=True).encode()]
    for name in sorted(frame.columns):
        column = frame[name]
        is_text = name in _TEXTS
        parts += [name.encode(), "\n".join(column).encode() if is_text else column.to_numpy().tobytes()]
    return storage.digest_bytes(*parts)


def _set_aside(path: Path, damage: str) -> None:
    """Move a damaged file out of the way; nothing is deleted."""
    names = (path.with_name(f"{path.stem}.damaged-{number}.parquet") for number in count(1))
    try:
        aside = next(each for each in names if not each.exists())
        path.rename(aside)
    except OSError as error:
        _log.warning("%s is damaged (%s) and cannot be moved: %s", shown(path), damage, shown(error.strerror))
    else:
        _log.warning("%s was damaged (%s) and is begun anew; it lies beside as %s", path, damage, aside.name)


def distances(values: Values, reference: Any) -> Values:
    """Return how far the farthest price of each candle lies from a price, absolute logs, unitless.

    Both are of shape (N,); where the price is nan, so is the distance.
    """
    away: Values = np.abs(np.log(values[:, : len(OHLC)] / np.reshape(reference, (-1, 1))))
    return away.max(axis=1)


def jump_of(values: Values) -> float:
    """Return from which distance on a price of some candles is doubted, a log distance, unitless.

    >>> jump_of(np.full((3, 5), 100.0))
    0.05
    """
    away = _from_close_before(values)
    return max(LEAST_JUMP, NUM_TYPICAL * float(np.median(away))) if len(away) else LEAST_JUMP


def are_doubted(values: Values) -> Mask:
    """Tell which candles jump, or lie before one that does, shape (N,): either may be the wrong one.

    >>> are_doubted(np.full((4, 5), [[1.0], [1.0], [9.0], [9.0]])).tolist()
    [False, True, True, False]
    >>> are_doubted(np.empty((0, 5))).tolist()
    []
    """
    is_jump = _from_close_before(values) > jump_of(values)
    return np.asarray(np.append(is_jump, False) | np.insert(is_jump, 0, False))[: len(values)]


def _from_close_before(values: Values) -> Values:
    return distances(values[1:], values[:-1, OHLC.index(CLOSE)])
