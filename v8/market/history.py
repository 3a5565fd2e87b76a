"""History: what is known of one series, put together from pieces that the archive and the API gave.

Where two pieces have the same bar they are compared, all five values, and what differs is a revision. Equal
means equal to a billionth of the value: archive and API print the same decimals, and a price that was
corrected by 0.001 % was corrected. Which of two versions serves:

* The archive's word over the API's: it has a published sha256 and is final.
* Of the API's two, what was seen first: forecasts were issued and scored with it, runs are pinned to it by
  digest, and an answer that nobody can check a second time must not change the past. But not what contradicts
  its neighbours as well as the later answer, and not a newest candle that was told before it was over.
* A price that jumps from one version to the other (`v8.market.jumps`), where none of this decides, refuses
  the piece: who says so tells something else now, and what is newest in it cannot be trusted either.
* The later of the API's two where the user accepts that.
* A candle that only the later piece has is taken, one that only the earlier has stays; both are revisions.

So nothing is lost and nothing changes in silence: both versions go into the list of revisions.

Shapes: N candles, R revisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.columns import OHLCV, OPEN_TIME
from v8.errors import DataError
from v8.invocation import command
from v8.market.candles import Candles
from v8.market.jumps import LEAST_JUMP, are_doubted, distances, jump_of
from v8.market.open_times import iso
from v8.market.series import Series
from v8.wording import plural

SAME_SHARE: Final = 1e-9
"""Two values that differ by less, as a share of the larger, are the same number printed twice."""

_NUM_BESIDE: Final = 100
"""Newest candles that say how far a price of theirs may be from the close before."""

ARCHIVE, API, NOBODY = "archive", "API", "nobody"

SERVED = tuple(f"served_{name}" for name in OHLCV)
OTHER = tuple(f"other_{name}" for name in OHLCV)
REVISION_COLUMNS: Final = ("open_time_s", "seen_s", *SERVED, "served_from", *OTHER, "other_from")
"""Of a revision: open time and when it was seen, seconds since the epoch; both versions, and who said so."""


@dataclass(frozen=True, eq=False)
class History:
    """Candles of one series without unknown bars: a bar without a candle is one that had none when asked for.

    Args:
        series: Which symbol and timeframe.
        first_s: Open time of the first bar that was asked for, seconds since the epoch, UTC.
        open_time_s: Open times, seconds since the epoch, ascending, shape (N,), int64.
        values: Columns of `OHLCV`, shape (N, 5), float64.
        is_final: Whether the archive said so, shape (N,), bool; else it was the API.
        is_whole: Whether the exchange has nothing older.
    """

    series: Series
    first_s: int
    open_time_s: NDArray[np.int64]
    values: NDArray[np.float64]
    is_final: NDArray[np.bool_]
    is_whole: bool = False

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

    def touches(self, other: History) -> bool:
        """Tell whether no bar between two histories is unknown."""
        bar_s = self.series.bar_s
        return self.first_s <= other.last_s + bar_s and other.first_s <= self.last_s + bar_s


def from_candles(candles: Candles, *, is_final: bool, is_whole: bool) -> History:
    """Take checked candles: what the archive has of a series, which is final, or the API."""
    are_final, first_s = np.full(len(candles), is_final), int(candles.open_time_s[0])
    return History(candles.series, first_s, candles.open_time_s, candles.values, are_final, is_whole)


def from_api(series: Series, first_s: int, rows: pd.DataFrame) -> History:
    """Take the rows of the API from a bar on: `open_time` in milliseconds and `OHLCV`, at least one."""
    open_time_s = rows[OPEN_TIME].to_numpy(np.int64) // 1_000
    is_final = np.zeros(len(rows), dtype=np.bool_)
    return History(series, first_s, open_time_s, rows[list(OHLCV)].to_numpy(np.float64), is_final)


def joined(known: History, piece: History, *, accepts: bool = False) -> tuple[History, pd.DataFrame]:
    """Join what is known with a later answer that touches it.

    Args:
        known: What is known.
        piece: The later answer.
        accepts: Whether the API's later word serves, where both are the API's.

    Returns:
        Both together, and the revisions: columns of `REVISION_COLUMNS` without `seen_s`, R rows.

    Raises:
        DataError: If a price jumps from one to the other and nothing tells which is true.
    """
    times_s = np.union1d(known.open_time_s, piece.open_time_s)
    at_known, has_known = _places(times_s, known)
    at_piece, has_piece = _places(times_s, piece)
    theirs, ours = piece.values[at_piece], known.values[at_known]
    differs = ~_same(ours, theirs) & has_known & has_piece
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
    known_said = (*_version(known, at_known, has_known, chosen),)
    piece_said = (*_version(piece, at_piece, has_piece, chosen),)
    return whole, _revisions(times_s[chosen], known_said, piece_said, is_taken[chosen])


def _is_unfinished(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], is_newest: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Tell whether the newest candle grew since it was told, shape (N,): then it was told too early."""
    opened, high, low, _, volume = ours.T
    grew = (theirs[:, 1] >= high) & (theirs[:, 2] <= low) & (theirs[:, 4] > volume) & (theirs[:, 0] == opened)
    return np.asarray(grew & is_newest)


def _is_mended(
    ours: NDArray[np.float64],
    theirs: NDArray[np.float64],
    differs: NDArray[np.bool_],
    has_known: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Tell where what is known jumps from the last candle nobody disputes and the later answer does not."""
    agreed = np.where(has_known[:, None], ours, theirs)
    rows = np.arange(len(differs))
    before = np.maximum.accumulate(np.where(differs, -1, rows))
    after = np.minimum.accumulate(np.where(differs, len(rows), rows)[::-1])[::-1]
    padded = np.vstack([agreed, np.full((1, len(OHLCV)), np.nan)])
    reference = np.where(before >= 0, padded[before, 3], padded[after, 0])
    jump = jump_of(ours[has_known])
    return np.asarray((distances(ours, reference) > jump) & (distances(theirs, reference) <= jump))


def _require_no_jump(
    series: Series,
    times_s: NDArray[np.int64],
    ours: NDArray[np.float64],
    theirs: NDArray[np.float64],
    is_disputed: NDArray[np.bool_],
) -> None:
    away = np.abs(np.log(theirs[is_disputed, :4] / ours[is_disputed, :4])).max(axis=1)
    is_far = away > LEAST_JUMP
    if is_far.any():
        row = np.flatnonzero(is_disputed)[np.argmax(away)]
        raise DataError(
            where=str(series),
            rule="a price is told again as before, or one of the two versions does not fit its neighbours",
            got=f"a close of {theirs[row, 3]:g} at {iso(int(times_s[row]))} that was {ours[row, 3]:g} before "
            f"({plural(int(is_far.sum()), 'such candle')})",
            fix="Try again later; where what is told now is true, take it with "
            f"`{command('data', 'update', '--series', str(series), '--accept-revision')}`",
        )


def _places(times_s: NDArray[np.int64], history: History) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Find the row of each time, and whether there is one; rows of those that have none mean nothing."""
    at = np.minimum(np.searchsorted(history.open_time_s, times_s), len(history) - 1)
    return at, history.open_time_s[at] == times_s


def _same(these: NDArray[np.float64], those: NDArray[np.float64]) -> NDArray[np.bool_]:
    largest = np.maximum(np.abs(these), np.abs(those))
    return np.asarray((np.abs(these - those) <= SAME_SHARE * largest).all(axis=1))


def _version(
    history: History, at: NDArray[np.intp], has: NDArray[np.bool_], chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.object_]]:
    """Return what a history says of some bars, shape (R, 5), nan where it has none, and who says so."""
    values = np.where(has[:, None], history.values[at], np.nan)[chosen]
    origin = np.where(history.is_final[at], ARCHIVE, API)
    return values, np.where(has, origin, NOBODY)[chosen].astype(object)


def _revisions(
    times_s: NDArray[np.int64],
    known: tuple[NDArray[np.float64], NDArray[np.object_]],
    piece: tuple[NDArray[np.float64], NDArray[np.object_]],
    is_taken: NDArray[np.bool_],
) -> pd.DataFrame:
    served = np.where(is_taken[:, None], piece[0], known[0])
    other = np.where(is_taken[:, None], known[0], piece[0])
    frame = pd.DataFrame({"open_time_s": times_s})
    frame[list(SERVED)], frame["served_from"] = served, np.where(is_taken, piece[1], known[1])
    frame[list(OTHER)], frame["other_from"] = other, np.where(is_taken, known[1], piece[1])
    return frame


def without_known(found: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Return the revisions that were not seen before: another bar, or another version of it."""
    said = ["open_time_s", *OTHER]
    seen = set(map(tuple, known[said].fillna(-1.0).to_numpy(np.float64).tolist()))
    rows = map(tuple, found[said].fillna(-1.0).to_numpy(np.float64).tolist())
    return found[np.array([row not in seen for row in rows], dtype=np.bool_)]
