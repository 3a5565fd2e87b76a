"""Computing feature columns of candles, from the start or going on, and the FeatureTable that holds them.

A table holds named float32 columns of one Series, past-only. A gap in the candles ends a piece. Indicators
start anew in every piece, the warm-up of every piece is dropped, and a piece that is all warm-up vanishes.
Columns are picked by name, never by number (G4).

Going on gives the same bits as computing all. A row of a windowed column depends on the bars of its window
alone. Exponential averages never forget: like a formula of one's own that does not say that it is windowed,
they are computed from the start of their piece, and only their new rows are taken.

Shapes: N candles, K of them known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from v8.arrays import FloatArray
from v8.columns import OHLCV, OPEN_TIME, beside, is_covariate, parted
from v8.errors import DataError, listed
from v8.features import indicators
from v8.features.indicators import FEATURES, ancestry, check_columns, computed_rows, warmup_bars
from v8.features.ta_features import with_filling
from v8.invocation import command
from v8.market.candles import Candles
from v8.market.series import Series
from v8.storage import digest_bytes, digest_json

Column = NDArray[np.float32]

Runs = tuple[Column, ...]  # a column in pieces that follow one another, each of shape (rows of its own,)


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Feature columns of one Series; every array is read-only.

    Columns are finite. What a store has read and the rows it has computed are used where they lie, as runs: a
    copy would cost more than both.
    """

    series: Series
    open_time_s: NDArray[np.int64]  # shape (N,), UTC seconds since the epoch, ascending
    runs: dict[str, Runs]  # each column by its name, in pieces of N rows together
    segment: NDArray[np.int32]  # shape (N,); 0, then one more after every hole
    digest: str  # identity of what it follows from: candles, columns and what these mean; 64 hex digits

    def __post_init__(self) -> None:
        check_columns(self.columns)
        arrays = {**self.runs, "segment": (self.segment,)}
        shapes = {name: (sum(map(len, runs)), *runs[0].shape[1:]) for name, runs in arrays.items()}
        expected = self.open_time_s.shape
        wrong = [name for name, shape in shapes.items() if shape != expected]
        if wrong:
            where = f"features of {self.series}"
            got = f"{shapes[wrong[0]]} in {listed(wrong)}"
            rule = f"every array has the shape of the open times, {expected}"
            raise DataError(where=where, rule=rule, got=got, fix="Give one value per open time and column")
        runs = {name: (*map(_read_only, runs),) for name, runs in self.runs.items()}
        object.__setattr__(self, "runs", runs)
        for name in ("open_time_s", "segment"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.open_time_s)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, each once, in the order they were asked for."""
        return tuple(self.runs)

    def column(self, name: str) -> Column:
        """Return one column, shape (N,), float32, read-only; joined when first asked for."""
        runs = self._runs(name)
        if len(runs) > 1:
            runs = self.runs[name] = (_read_only(np.concatenate(runs)),)
        return runs[0]

    def select(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Copy columns, each once, in the order of their names: (N, len(names)), float32, rows contiguous."""
        runs = [self._runs(name) for name in check_columns(names)]
        chosen = np.empty((len(self), len(runs)), runs[0][0].dtype)
        for place, column in enumerate(runs):
            np.concatenate(column, out=chosen[:, place])
        return chosen

    def first(self, num_rows: int) -> "FeatureTable":
        """Return the table of the oldest rows alone, at least one; no column is copied."""
        if num_rows >= len(self):
            return self
        runs = {name: tuple(_cut(runs, [slice(0, num_rows)])) for name, runs in self.runs.items()}
        digest = digest_bytes(self.digest.encode("ascii"), str(num_rows).encode("ascii"))
        return FeatureTable(self.series, self.open_time_s[:num_rows], runs, self.segment[:num_rows], digest)

    def _runs(self, name: str) -> Runs:
        check_columns([name])
        if name not in self.runs:
            where = f"features of {self.series}, column {name}"
            got = repr(name)
            fix = "Name it when asking the feature store for the table"
            raise DataError(where=where, rule=f"this table holds {', '.join(self.columns)}", got=got, fix=fix)
        return self.runs[name]


def _read_only(array: Any) -> Any:
    view = array.view()
    view.setflags(write=False)
    return view


def compute_table(candles: Candles, columns: Sequence[str]) -> FeatureTable:
    """Compute a FeatureTable without any store, as a Forecaster does: `FeatureStore.table`'s to the bit."""
    rows = valid_rows(candles, names := check_columns(columns))
    return assemble(candles, rows, compute_columns(candles, names))


def valid_rows(candles: Candles, columns: Sequence[str]) -> list[slice]:
    """List what the warm-up leaves of every contiguous piece: at least one slice, none empty, in order.

    A DataError tells that no piece is longer than the warm-up, or that candles lack what a column needs.
    """
    warmup = warmup_bars(columns)
    found = pieces(candles.segment)
    rows = [slice(piece.start + warmup, piece.stop) for piece in found if piece.stop - piece.start > warmup]
    reading = [] if candles.has_volume else indicators.reading_volume(columns)
    lacking = [name for name in indicators.needed_beside(columns) if name not in candles.beside]
    if reading:
        rule = f"{listed(reading)} is computed from the volume"
        got = f"candles without a volume from {candles.source}"
        fix = f"Take {listed(reading)} out of the profile's key features, or give candles with a volume"
    elif lacking:
        needing = [name for name in columns if is_covariate(name)]
        rule = f"{listed(needing)} need {listed(lacking)} beside the candles"
        origins = listed(list(dict.fromkeys(parted(name)[0] for name in lacking)))
        got = f"candles without anything of {origins} beside them"
        fix = 'Give them, too: covariates={"BTCUSDT": candles, "funding.csv": table} in Python'
    elif not rows:
        longest = max((piece.stop - piece.start for piece in found), default=0)
        rule = f"needs at least {warmup + 1} candles without a gap ({warmup} warm-up + 1)"
        got = f"{len(candles)} candles, at most {longest} of them without a gap"
        got += "".join(f"; {count:,} bars lack {name}" for name, count in candles.report.lacking.items())
        fix = "Fetch a longer history with param:bars"
    else:
        return rows
    raise DataError(where=f"features of {candles.series}", rule=rule, got=got, fix=fix)


def assemble(candles: Candles, rows: Sequence[slice], columns: Mapping[str, Runs]) -> FeatureTable:
    """Leave what `valid_rows` chose of columns of all candles; no column is copied."""
    return FeatureTable(
        candles.series,
        np.concatenate([candles.open_time_s[each] for each in rows]),
        {name: tuple(_cut(runs, rows)) for name, runs in columns.items()},
        np.repeat(np.arange(len(rows), dtype=np.int32), [each.stop - each.start for each in rows]),
        digest_bytes(candles.digest.encode("ascii"), _meaning(tuple(columns))),
    )


def _cut(runs: Runs, rows: Sequence[slice]) -> Iterator[Column]:
    """Yield what of each run lies in the chosen rows, in their order.

    >>> [each.tolist() for each in _cut((np.arange(4), np.arange(4, 6)), [slice(1, 3), slice(3, 6)])]
    [[1, 2], [3], [4, 5]]
    """
    starts = [0, *accumulate(map(len, runs))]
    for each in rows:
        for start, run in zip(starts, runs, strict=False):
            part = run[max(each.start - start, 0) : max(each.stop - start, 0)]
            if len(part):
                yield part


@cache
def _meaning(columns: tuple[str, ...]) -> bytes:
    return digest_json([[name, ancestry(name).digest] for name in columns]).encode("ascii")


def compute_columns(candles: Candles, columns: Sequence[str], num_known: int = 0) -> dict[str, Runs]:
    """Compute columns of N candles, or what comes after K known rows of them, piece by piece.

    Returns rows K to N by name, each a run of shape (N - K,), float32, read-only, NaN in the warm-up of every
    piece and finite after it; a DataError if a value is beyond single precision.
    """
    block = np.full((len(columns), len(candles) - num_known), np.nan, dtype=np.float32)
    results = dict(zip(columns, block, strict=True))
    for piece in pieces(candles.segment):
        if piece.stop > num_known:
            _fill(results, candles, piece, num_known)
    return {name: (_read_only(column),) for name, column in results.items()}


def pieces(segment: NDArray[np.int32]) -> list[slice]:
    """List the contiguous pieces as slices, in order, that cover all rows.

    >>> pieces(np.array([0, 0, 1], dtype=np.int32))
    [slice(0, 2, None), slice(2, 3, None)]
    """
    if not len(segment):
        return []
    numbers = np.arange(segment[0], segment[-1] + 2, dtype=segment.dtype)
    return [slice(start, stop) for start, stop in pairwise(np.searchsorted(segment, numbers).tolist())]


def _fill(results: Mapping[str, Column], candles: Candles, piece: slice, num_known: int) -> None:
    """Compute a piece into results that begin at row `num_known`."""
    lasting = [name for name in results if warmup_bars([name]) < piece.stop - piece.start]
    reaches = {name: reach for name in lasting if (reach := ancestry(name).reach_bars) is not None}
    start = max(piece.start, num_known - max(reaches.values(), default=0))
    others = [name for name in lasting if name not in reaches]
    new = {}
    for names, rows in ((reaches, slice(start, piece.stop)), (others, piece)):
        computed = computed_rows(names, _raw(candles, rows)) if names else {}
        for name, values in computed.items():
            first = max(num_known, piece.start + warmup_bars([name]))
            new[name] = results[name][first - num_known : piece.stop - num_known]
            new[name][:] = values[first - piece.stop :]
    _require_finite(candles, new)


def _raw(candles: Candles, rows: slice) -> dict[str, FloatArray]:
    values = np.ascontiguousarray(candles.values[rows].T)
    others = {name: values[rows] for name, values in candles.beside.items()}
    opens = {OPEN_TIME: candles.open_time_s[rows].astype(np.float64)}
    return dict(zip(OHLCV, values, strict=True)) | opens | others


def _require_finite(candles: Candles, columns: Mapping[str, Column]) -> None:
    if not columns or np.isfinite(np.concatenate([*columns.values()])).all():
        return
    others = [name for name, values in columns.items() if not np.isfinite(values).all()]
    rule = "every value is a finite number in single precision (up to 3.4e38)"
    fix = f"Check the prices and volumes of these candles with `{command('data')}`"
    if indicators.is_of_package(others[0]):
        origin, plain = parted(others[0])
        filled = beside(origin, with_filling(plain))
        stands = f"Name {filled}, which lets its last value stand, or leave it out"
        fix = stands if filled in FEATURES else "Leave it out: the market is flat there"
    got = f"others in {listed(others)}"
    raise DataError(where=f"features of {candles.series}", rule=rule, got=got, fix=fix)
