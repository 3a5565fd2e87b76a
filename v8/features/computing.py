"""Computing feature columns of candles piece by piece, or going on from columns of the first of them.

Both give the same bits. A row of a windowed column depends on the bars of its window alone, so a new row is
computed from those before it. Exponential averages never forget: where they stood after the newest known row
is kept, in full precision, and they go on from there with the very operations of a computation from the
start. A column of which neither is known, such as a formula of one's own, is computed from the start of its
piece.

Shapes: N candles, K of them known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from v8.columns import OHLCV, OPEN_TIME
from v8.errors import DataError, listed
from v8.features.covariates import beside, is_given, parted
from v8.features.feature import Past
from v8.features.formulas import Average, Floats
from v8.features.indicators import FEATURES, formula_of, is_of_package, warmup_bars
from v8.features.ta_package.features import with_filling
from v8.invocation import command
from v8.market.candles import Candles

Column = NDArray[np.float32]

Runs = tuple[Column, ...]
"""A column in pieces that follow one another, each of shape (rows of its own,)."""


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
    """Compute columns of N candles piece by piece.

    Raises:
        DataError: If a value is beyond single precision.
    """
    results = {name: np.full(len(candles), np.nan, dtype=np.float32) for name in columns}
    return Computed(results, _filled(candles, results, 0, pieces(candles.segment)))


def continue_columns(
    candles: Candles, columns: Sequence[str], stood: Mapping[str, Sequence[float]], num_known: int
) -> Computed:
    """Compute what comes after known rows of columns.

    Args:
        candles: N candles.
        columns: Keys of `FEATURES`.
        stood: Where exponential averages stood after row K, as `Computed` tells it.
        num_known: K, at least 1 and below N.

    Returns:
        The columns of rows K to N, shape (N - K,), read-only, and where averages stand after them.

    Raises:
        DataError: If a value is beyond single precision.
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

    Args:
        columns: Keys of `FEATURES`.
        candles: Open time (seconds), open, high, low, close and volume, each of shape (N,).
        averages: Told where the exponential averages of each column and stage stand in the end.

    Returns:
        Per column, shape (N,), float64, with NaN in the rows of its own warm-up.
    """
    computed = {name: values.copy() for name, values in compute_rows(columns, candles, averages).items()}
    for name, values in computed.items():
        values[: warmup_bars([name])] = np.nan
    return computed


def compute_rows(
    columns: Iterable[str], candles: Mapping[str, Floats], averages: defaultdict[str, Average] | None = None
) -> dict[str, Floats]:
    """Compute indicators as `compute` does, for candles that may begin within a piece.

    Args:
        columns: Keys of `FEATURES`.
        candles: As for `compute`.
        averages: How the exponential averages of each column and stage go on; they begin when None.

    Returns:
        Per column, shape (N,), float64, shared with other columns; what stands in the first rows, of its
        warm-up or up to where its averages stood, means nothing.
    """
    known = dict(candles)
    averages = defaultdict(Average) if averages is None else averages
    return {name: _resolved(name, known, averages) for name in columns}


def can_go_on(name: str, stood: Mapping[str, object]) -> bool:
    """Tell whether new rows of a column or stage need no more than `reach_bars` and where averages stood.

    Args:
        name: The column or stage.
        stood: Of which columns and stages it is known.
    """
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
