"""Computing feature columns of candles, from the start or going on, and the FeatureTable that holds them.

A table holds named float32 columns of one Series, past-only. A gap in the candles ends a piece. Indicators
start anew in every piece, the warm-up of every piece is dropped, and a piece that is all warm-up vanishes.
Columns are picked by name, never by number (G4).

Going on gives the same bits as computing all. A row of a windowed column depends on the bars of its window
alone. Exponential averages never forget: where they stood after the newest known row is kept, in full
precision, and they go on from there with the very operations of a computation from the start. A column of
which neither is known, such as a formula of one's own, is computed from the start of its piece.

Shapes: N candles, K of them known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from v8.columns import OHLCV, OPEN_TIME, beside, is_covariate, is_given, parted
from v8.errors import DataError, listed
from v8.features.feature import Past
from v8.features.formulas import Average, Floats
from v8.features.indicators import (
    FEATURES,
    check_columns,
    definition_digest,
    formula_of,
    is_of_package,
    needed_beside,
    reading_volume,
    warmup_bars,
)
from v8.features.ta_features import with_filling
from v8.invocation import command
from v8.market.candles import Candles
from v8.market.series import Series
from v8.storage import digest_bytes, digest_json

Column = NDArray[np.float32]

Runs = tuple[Column, ...]
"""A column in pieces that follow one another, each of shape (rows of its own,)."""

Number = TypeVar("Number", np.float32, np.int32, np.int64)


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Feature columns of one Series; every array is read-only.

    Args:
        open_time_s: Shape (N,), int64, UTC seconds since the epoch, ascending.
        runs: Each column by its name, in pieces of N rows together, float32, finite. What a store has read
            and the rows it has computed are used where they lie: a copy would cost more than both.
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
        """Return one column, shape (N,), float32, read-only; joined when first asked for."""
        runs = self._runs(name)
        if len(runs) > 1 and name not in self._joined:
            self._joined[name] = _read_only(np.concatenate(runs))
        return self._joined[name] if len(runs) > 1 else runs[0]

    def select(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Copy columns, each once, in the order of their names: (N, len(names)), float32, rows contiguous."""
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
    """Compute a FeatureTable without any store, as a Forecaster does: `FeatureStore.table`'s to the bit."""
    names = check_columns(columns)
    rows = valid_rows(candles, names)
    computed = compute_columns(candles, names)
    return assemble(candles, rows, {name: (column,) for name, column in computed.columns.items()})


def valid_rows(candles: Candles, columns: Sequence[str]) -> list[slice]:
    """List what the warm-up leaves of every contiguous piece: at least one slice, none empty, in order.

    Raises:
        DataError: If no piece is longer than the warm-up, or the candles lack what a column needs.
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
            fix="Fetch a longer history with param:bars",
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


@dataclass(frozen=True)
class Computed:
    """Columns of candles, and what it takes to go on with them.

    Args:
        columns: By name, shape (N,), float32, NaN in the warm-up of every piece and finite after it.
        stood: Per column or stage that has any, where its exponential averages stand after the last row.
    """

    columns: dict[str, Column] = field(default_factory=dict)
    stood: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __or__(self, other: Computed) -> Computed:
        return Computed(self.columns | other.columns, self.stood | other.stood)


def compute_columns(candles: Candles, columns: Sequence[str]) -> Computed:
    """Compute columns of N candles piece by piece; a DataError if a value is beyond single precision."""
    results = {name: np.full(len(candles), np.nan, dtype=np.float32) for name in columns}
    return Computed(results, _filled(candles, results, 0, pieces(candles.segment)))


def continue_columns(
    candles: Candles, columns: Sequence[str], stood: Mapping[str, Sequence[float]], num_known: int
) -> Computed:
    """Compute what comes after K known rows (at least 1, below N) of columns.

    `stood` is where exponential averages stood after row K. Returns rows K to N, shape (N - K,), read-only,
    and where averages stand after them; a DataError if a value is beyond single precision.
    """
    block = np.full((len(columns), len(candles) - num_known), np.nan, dtype=np.float32)
    results = dict(zip(columns, block, strict=True))
    broken, *whole = [piece for piece in pieces(candles.segment) if piece.stop > num_known]
    if broken.start >= num_known:
        whole = [broken, *whole]
    else:
        stood = _gone_on(candles, results, stood, num_known, broken)
    if whole:
        stood = _filled(candles, results, num_known, whole)
    block.setflags(write=False)
    return Computed(
        dict(zip(columns, block, strict=True)), {name: tuple(each) for name, each in stood.items()}
    )


def compute(
    columns: Iterable[str], candles: Mapping[str, Floats], averages: defaultdict[str, Average] | None = None
) -> dict[str, Floats]:
    """Compute indicators of one contiguous piece of candles; shared stages are computed once.

    Candles are open time (seconds), open, high, low, close and volume, each of shape (N,). Returns float64 of
    the same shape, NaN in the rows of each column's own warm-up. `averages` is told where exponential
    averages stand in the end.
    """
    computed = {name: values.copy() for name, values in compute_rows(columns, candles, averages).items()}
    for name, values in computed.items():
        values[: warmup_bars([name])] = np.nan
    return computed


def compute_rows(
    columns: Iterable[str], candles: Mapping[str, Floats], averages: defaultdict[str, Average] | None = None
) -> dict[str, Floats]:
    """Compute indicators as `compute` does, for candles that may begin within a piece.

    `averages` says how exponential averages go on; they begin when None. Arrays may be shared by columns;
    what stands in the first rows, of the warm-up or up to where averages stood, means nothing.
    """
    known = dict(candles)
    averages = defaultdict(Average) if averages is None else averages
    return {name: _resolved(name, known, averages) for name in columns}


def can_go_on(name: str, stood: Mapping[str, object]) -> bool:
    """Tell whether new rows of a column need no more than `reach_bars` and the averages in `stood`."""
    averaged = _averaged_in(name)
    return averaged is not None and averaged <= stood.keys()


def reach_bars(columns: Iterable[str]) -> int:
    """Return how many bars before a row that `can_go_on` it depends on.

    >>> reach_bars(["close", "roc", "rsi"])
    12
    """
    return max(map(_reach, columns), default=0)


def pieces(segment: NDArray[np.int32]) -> list[slice]:
    """List the contiguous pieces as slices, in order, that cover all rows.

    >>> pieces(np.array([0, 0, 1], dtype=np.int32))
    [slice(0, 2, None), slice(2, 3, None)]
    """
    if not len(segment):
        return []
    numbers = np.arange(segment[0], segment[-1] + 2, dtype=segment.dtype)
    return [slice(start, stop) for start, stop in pairwise(np.searchsorted(segment, numbers).tolist())]


def _filled(
    candles: Candles, results: Mapping[str, Column], first: int, whole: Sequence[slice]
) -> dict[str, tuple[float, ...]]:
    """Compute whole pieces into results that begin at row `first`; return where the last averages stand."""
    averages: defaultdict[str, Average] = defaultdict(Average)
    for piece in whole:
        averages = defaultdict(Average)
        lasting = _lasting(results, piece)
        rows = slice(piece.start - first, piece.stop - first)
        for name, values in compute(lasting, _raw(candles, piece), averages).items():
            results[name][rows] = values
        _require_finite(candles, {name: results[name][rows][warmup_bars([name]) :] for name in lasting})
    return _standing(averages)


def _gone_on(
    candles: Candles,
    results: Mapping[str, Column],
    stood: Mapping[str, Sequence[float]],
    num_known: int,
    piece: slice,
) -> dict[str, tuple[float, ...]]:
    """Compute the rows of a piece from `num_known` on; return where its averages stand."""
    names = _lasting(results, piece)
    able = [name for name in names if can_go_on(name, stood)]
    start = max(piece.start, num_known - max(1, reach_bars(able)))
    averages = defaultdict(
        Average, {name: Average(each, num_known - start - 1) for name, each in stood.items()}
    )
    anew: defaultdict[str, Average] = defaultdict(Average)
    computed = compute_rows(able, _raw(candles, slice(start, piece.stop)), averages)
    if others := [name for name in names if name not in able]:
        computed |= compute_rows(others, _raw(candles, piece), anew)
    new = {}
    for name, values in computed.items():
        first = max(num_known, piece.start + warmup_bars([name]))
        new[name] = results[name][first - num_known : piece.stop - num_known]
        new[name][:] = values[first - piece.stop :]
    _require_finite(candles, new)
    return _standing(anew) | _standing(averages)


def _lasting(columns: Iterable[str], piece: slice) -> list[str]:
    return [name for name in columns if warmup_bars([name]) < piece.stop - piece.start]


def _standing(averages: Mapping[str, Average]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(average.newest) for name, average in averages.items() if average.newest}


def _raw(candles: Candles, rows: slice) -> dict[str, Floats]:
    values = np.ascontiguousarray(candles.values[rows].T)
    others = {name: values[rows] for name, values in candles.beside.items()}
    opens = {OPEN_TIME: candles.open_time_s[rows].astype(np.float64)}
    return dict(zip(OHLCV, values, strict=True)) | opens | others


def _resolved(name: str, known: dict[str, Floats], averages: defaultdict[str, Average]) -> Floats:
    if name not in known:
        formula = formula_of(name)
        inputs = [_resolved(source, known, averages) for source in formula.inputs]
        more = {"average": averages[name]} if formula.past is Past.AVERAGES else {}
        known[name] = formula.function(*inputs, **formula.parameters, **more)
    return known[name]


@cache
def _averaged_in(name: str) -> frozenset[str] | None:
    """Name what a column takes exponential averages for; None where it needs all of its piece."""
    if is_given(name):
        return frozenset()
    formula = formula_of(name)
    found = [_averaged_in(source) for source in formula.inputs]
    if formula.past is Past.PIECE or None in found:
        return None
    own = {name} if formula.past is Past.AVERAGES else set()
    return frozenset(own.union(*(names for names in found if names)))


@cache
def _reach(name: str) -> int:
    if is_given(name):
        return 0
    formula = formula_of(name)
    own = formula.warmup_bars if formula.past is Past.WINDOW else 1
    return own + max(map(_reach, formula.inputs))


def _require_finite(candles: Candles, columns: Mapping[str, Column]) -> None:
    if not columns or np.isfinite(np.concatenate([*columns.values()])).all():
        return
    others = [name for name, values in columns.items() if not np.isfinite(values).all()]
    fix = f"Check the prices and volumes of these candles with `{command('data')}`"
    if is_of_package(others[0]):
        origin, plain = parted(others[0])
        filled = beside(origin, with_filling(plain))
        stands = f"Name {filled}, which lets its last value stand, or leave it out"
        fix = stands if filled in FEATURES else "Leave it out: the market is flat there"
    raise DataError(
        where=f"features of {candles.series}",
        rule="every value is a finite number in single precision (up to 3.4e38)",
        got=f"others in {listed(others)}",
        fix=fix,
    )
