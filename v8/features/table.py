"""FeatureTable: named float32 columns of one Series, past-only, warm-up rows dropped.

A gap in the candles ends a piece. Indicators start anew in every piece, the warm-up of every piece is
dropped, and a piece that is all warm-up vanishes. Columns are picked by name, never by number (G4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from v8.errors import DataError, listed
from v8.features.computing import Column, Runs, compute_columns, pieces
from v8.features.covariates import is_covariate, parted
from v8.features.indicators import (
    check_columns,
    definition_digest,
    needed_beside,
    reading_volume,
    warmup_bars,
)
from v8.market.candles import Candles
from v8.market.series import Series
from v8.storage import digest_bytes, digest_json

Number = TypeVar("Number", np.float32, np.int32, np.int64)


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Feature columns of one Series; every array is read-only.

    Args:
        series: Symbol and timeframe.
        open_time_s: Shape (N,), int64, UTC seconds since the epoch, ascending.
        runs: Each column by its name, in pieces of N rows together, float32, finite; units as `v8.columns`
            says. What a store has read and checked, and the rows it has computed, are used where they lie:
            new memory for another copy would cost more than both.
        segment: Shape (N,), int32; 0, then one more after every hole.
        digest: Identity of the content: candles, columns and what the columns mean.
    """

    series: Series
    open_time_s: NDArray[np.int64]
    runs: Mapping[str, Runs]
    segment: NDArray[np.int32]
    digest: str
    _joined: dict[str, Column] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_columns(self.columns)
        shapes = {name: _shape(runs) for name, runs in {**self.runs, "segment": (self.segment,)}.items()}
        expected = self.open_time_s.shape
        if wrong := [name for name, shape in shapes.items() if shape != expected]:
            raise DataError(
                where=f"features of {self.series}",
                rule=f"every array has the shape of the open times, {expected}",
                got=f"{shapes[wrong[0]]} in {listed(wrong)}",
                fix="Give one value per open time and column",
            )
        object.__setattr__(self, "open_time_s", _read_only(self.open_time_s))
        object.__setattr__(
            self, "runs", {name: (*map(_read_only, runs),) for name, runs in self.runs.items()}
        )
        object.__setattr__(self, "segment", _read_only(self.segment))

    def __len__(self) -> int:
        return len(self.open_time_s)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, each once, in the order they were asked for."""
        return tuple(self.runs)

    def column(self, name: str) -> Column:
        """Return one column by its name: read-only, shape (N,), float32, joined when it is first asked for.

        Raises:
            DataError: If the table has no such column.
        """
        runs = self._runs(name)
        if len(runs) > 1 and name not in self._joined:
            self._joined[name] = _read_only(np.concatenate(runs))
        return self._joined[name] if len(runs) > 1 else runs[0]

    def select(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Copy columns in the order of their names: shape (N, len(names)), float32, rows contiguous.

        Raises:
            DataError: If a name is repeated or not in the table.
        """
        runs = [self._runs(name) for name in check_columns(names)]
        chosen = np.empty((len(self), len(runs)), runs[0][0].dtype)
        for place, column in enumerate(runs):
            np.concatenate(column, out=chosen[:, place])
        return chosen

    def _runs(self, name: str) -> Runs:
        check_columns([name])
        if name not in self.runs:
            raise DataError(
                where=f"features of {self.series}, column {name}",
                rule=f"this table holds {', '.join(self.columns)}",
                got=repr(name),
                fix="Name it when asking the feature store for the table",
            )
        return self.runs[name]


def compute_table(candles: Candles, columns: Sequence[str]) -> FeatureTable:
    """Compute a FeatureTable without any store, as a Forecaster does: `FeatureStore.table`'s to the bit.

    Raises:
        DataError: If a name is unknown or repeated, or no piece outlasts the warm-up.
    """
    names = check_columns(columns)
    rows = valid_rows(candles, names)
    computed = compute_columns(candles, names)
    return assemble(candles, rows, {name: (column,) for name, column in computed.columns.items()})


def valid_rows(candles: Candles, columns: Sequence[str]) -> list[slice]:
    """List what the warm-up leaves of every contiguous piece: at least one slice, none empty, in order.

    Raises:
        DataError: If no contiguous piece is longer than the warm-up, or a column needs a volume that the
            candles lack.
    """
    _require_volume(candles, columns)
    _require_beside(candles, columns)
    warmup = warmup_bars(columns)
    found = pieces(candles.segment)
    rows = [slice(piece.start + warmup, piece.stop) for piece in found if piece.stop - piece.start > warmup]
    if not rows:
        longest = max((piece.stop - piece.start for piece in found), default=0)
        raise DataError(
            where=f"features of {candles.series}",
            rule=f"needs at least {warmup + 1} candles without a gap ({warmup} warm-up + 1)",
            got=f"{len(candles)} candles, at most {longest} of them without a gap"
            + "".join(f"; {count:,} bars lack {name}" for name, count in candles.report.lacking.items()),
            fix="Fetch a longer history with --bars",
        )
    return rows


def _require_volume(candles: Candles, columns: Sequence[str]) -> None:
    needing = [] if candles.has_volume else reading_volume(columns)
    if needing:
        raise DataError(
            where=f"features of {candles.series}",
            rule=f"{listed(needing)} is computed from the volume",
            got=f"candles without a volume from {candles.source}",
            fix=f"Take {listed(needing)} out of the profile's key features, or give candles with a volume",
        )


def _require_beside(candles: Candles, columns: Sequence[str]) -> None:
    lacking = [name for name in needed_beside(columns) if name not in candles.beside]
    if lacking:
        origins = listed(list(dict.fromkeys(parted(name)[0] for name in lacking)))
        raise DataError(
            where=f"features of {candles.series}",
            rule=f"{listed([name for name in columns if is_covariate(name)])} need {listed(lacking)} "
            "beside the candles",
            got=f"candles without anything of {origins} beside them",
            fix='Give them, too: covariates={"BTCUSDT": candles, "funding.csv": table} in Python',
        )


def assemble(candles: Candles, rows: Sequence[slice], columns: Mapping[str, Runs]) -> FeatureTable:
    """Leave what `valid_rows` chose of columns of all candles; no column is copied."""
    cuts = {lengths: _cuts(lengths, rows) for lengths in {_lengths(runs) for runs in columns.values()}}
    return FeatureTable(
        candles.series,
        _joined(candles.open_time_s, rows),
        {name: tuple(runs[n][part] for n, part in cuts[_lengths(runs)]) for name, runs in columns.items()},
        np.repeat(np.arange(len(rows), dtype=np.int32), [each.stop - each.start for each in rows]),
        table_digest(candles, tuple(columns)),
    )


def table_digest(candles: Candles, columns: tuple[str, ...]) -> str:
    """Identify a table by what it follows from, its candles, its columns and their meaning: 64 hex digits."""
    return digest_bytes(candles.digest.encode("ascii"), _meaning(columns))


def _lengths(runs: Runs) -> tuple[int, ...]:
    return tuple(map(len, runs))


def _cuts(lengths: Sequence[int], rows: Sequence[slice]) -> list[tuple[int, slice]]:
    """Say what of which run lies in the chosen rows, in their order.

    >>> _cuts([4, 2], [slice(1, 3), slice(3, 6)])
    [(0, slice(1, 3, None)), (0, slice(3, 4, None)), (1, slice(0, 2, None))]
    """
    spans = [(stop - length, stop) for length, stop in zip(lengths, accumulate(lengths), strict=True)]
    return [
        (number, slice(max(each.start, start) - start, min(each.stop, stop) - start))
        for each in rows
        for number, (start, stop) in enumerate(spans)
        if max(each.start, start) < min(each.stop, stop)
    ]


def _joined(array: NDArray[np.int64], rows: Sequence[slice]) -> NDArray[np.int64]:
    return array[rows[0]] if len(rows) == 1 else np.concatenate([array[each] for each in rows])


def _shape(runs: Sequence[NDArray[Any]]) -> tuple[int, ...]:
    return runs[0].shape if len(runs) == 1 else (sum(map(len, runs)), *runs[0].shape[1:])


@cache
def _meaning(columns: tuple[str, ...]) -> bytes:
    return digest_json([[name, definition_digest(name)] for name in columns]).encode("ascii")


def _read_only(array: NDArray[Number]) -> NDArray[Number]:
    if array.flags.writeable:
        array = array.view()
        array.setflags(write=False)
    return array
