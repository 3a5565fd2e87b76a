"""The FeatureTable, and the computation of its columns from candles, of all rows or of new rows only.

A table holds named float32 columns of one Series; each row depends on past candles only. A segment is a
run of candles without a gap. Indicators start again in every segment. So the longest warm-up of the columns
is dropped at the start of each segment, and a segment that is not longer is dropped entirely. Columns are
selected by name, never by number.

Computing only new rows gives the same bits as computing all rows. A row of a rolling column depends only on
the bars that it is computed from, such as the last 20. Exponential averages depend on the whole segment: like
a plug-in's formula that is not marked `is_windowed`, they are computed from the start of the segment, and
only the new rows are used.

`compute_features` computes a table in one go; the store (`v8.data.feature_store`) keeps columns on disk and
computes only the rows that are new.

Shapes here: N candles, K of them whose rows are stored already; R rows, the candles after the warm-up.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import FloatArray, read_only
from v8.base.errors import DataError, listed
from v8.base.process import command
from v8.base.storage import digest_bytes
from v8.data.market.candles import Candles
from v8.data.market.series import Series
from v8.profile.columns import OHLCV, OPEN_TIME, is_covariate, split_origin, with_origin
from v8.profile.indicators import (
    FEATURES,
    Ancestry,
    FeatureSet,
    ancestry,
    check_columns,
    computed_rows,
    is_of_package,
)
from v8.profile.ta_features import with_filling

MANY_HOLES: Final = 3  # holes in candles that are too few; so many will be in older candles, too

Column = NDArray[np.float32]

Chunks = tuple[Column, ...]  # a column as consecutive arrays, together of shape (N,)


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Feature columns of one Series; every array is read-only.

    Columns are finite. Rows that a store has read and rows that it has computed stay separate arrays
    (chunks), because joining them would cost more than both.
    """

    series: Series
    open_time_s: NDArray[np.int64]  # shape (R,), UTC seconds since the epoch, ascending
    chunks: dict[str, Chunks]  # columns by name, each as chunks of all rows (after the warm-up) together
    segment: NDArray[np.int32]  # number of the segment of each row, from 0, shape (R,)
    digest: str  # identifies candles, columns and their definitions; 64 hex digits

    def __post_init__(self) -> None:
        check_columns(self.columns)
        chunks = {name: tuple(read_only(chunk) for chunk in chunks) for name, chunks in self.chunks.items()}
        object.__setattr__(self, "chunks", chunks)
        for name in ("open_time_s", "segment"):
            object.__setattr__(self, name, read_only(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.open_time_s)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, each once, in the requested order."""
        return tuple(self.chunks)

    @property
    def num_holes(self) -> int:
        """Holes in the candles, between the first row and the last."""
        return int(self.segment[-1])

    def column(self, name: str) -> Column:
        """Return one column, shape (R,), float32, read-only; its chunks are joined at the first call."""
        chunks = self._chunks(name)
        if len(chunks) > 1:
            chunks = (read_only(np.concatenate(chunks)),)
            self.chunks[name] = chunks
        return chunks[0]

    def select(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Copy columns, each once, in the order of their names: (R, len(names)), float32, rows contiguous."""
        columns = [self._chunks(name) for name in check_columns(names)]
        selected = np.empty((len(self), len(columns)), columns[0][0].dtype)
        for number, chunks in enumerate(columns):
            np.concatenate(chunks, out=selected[:, number])
        return selected

    def first(self, num_rows: int) -> "FeatureTable":
        """Return a table of the oldest rows only, at least one; no column is copied."""
        if num_rows >= len(self):
            return self
        chunks = {name: tuple(_cut(chunks, [slice(0, num_rows)])) for name, chunks in self.chunks.items()}
        digest = digest_bytes(self.digest.encode("ascii"), str(num_rows).encode("ascii"))
        return FeatureTable(self.series, self.open_time_s[:num_rows], chunks, self.segment[:num_rows], digest)

    def _chunks(self, name: str) -> Chunks:
        check_columns([name])
        if name not in self.chunks:
            raise DataError(
                where=f"features of {self.series}, column {name}",
                rule=f"this table holds {', '.join(self.columns)}",
                got=repr(name),
                fix="Name it in the request to the feature store",
            )
        return self.chunks[name]


def compute_table(candles: Candles, columns: Sequence[str]) -> FeatureTable:
    """Compute a FeatureTable without a store; it is bit-identical to that of `FeatureStore.table`.

    Raises:
        DataError: If columns are unknown or repeated, or the candles are too few or lack an input.
    """
    return compute_features(candles, FeatureSet.of(columns))


def compute_features(candles: Candles, features: FeatureSet) -> FeatureTable:
    """Compute the table of columns that were checked before, as `compute_table` does."""
    rows = valid_rows(candles, features)
    return assemble(candles, features, rows, _compute(candles, features.ancestry, num_stored=0))


def valid_rows(candles: Candles, features: FeatureSet) -> list[slice]:
    """List the rows of every contiguous segment after its warm-up: at least one slice, none empty, in order.

    Raises:
        DataError: If no segment is longer than the warm-up, or the candles lack an input of a column.
    """
    _require_inputs(candles, features)
    warmup = features.warmup_bars
    all_segments = segment_rows(candles.segment)
    rows = [
        slice(segment.start + warmup, segment.stop)
        for segment in all_segments
        if segment.stop - segment.start > warmup
    ]
    if not rows:
        longest = max((segment.stop - segment.start for segment in all_segments), default=0)
        got = f"{len(candles)} candles, at most {longest} of them without a gap"
        got += "".join(f"; {count:,} bars lack {name}" for name, count in candles.report.lacking.items())
        raise DataError(
            where=f"features of {candles.series}",
            rule=f"needs at least {warmup + 1} candles without a gap ({warmup} warm-up + 1)",
            got=got,
            fix=fix_for_holes(len(all_segments) - 1, "Fetch a longer history with param:bars"),
        )
    return rows


def fix_for_holes(num_holes: int, fix: str) -> str:
    """Return how to mend that candles are too few: by `fix`, unless a longer history has such holes, too."""
    if num_holes < MANY_HOLES:
        return fix
    holes = f"{num_holes:,} holes are in the way, and would be in a longer history"
    return f"Repair the candles, or take a profile with a shorter warm-up and lookback: {holes}"


def _require_inputs(candles: Candles, features: FeatureSet) -> None:
    """Refuse candles without a volume or covariates from which columns are computed."""
    location = f"features of {candles.series}"
    if features.reading_volume and not candles.has_volume:
        reading_volume = listed(features.reading_volume)
        raise DataError(
            where=location,
            rule=f"{reading_volume} is computed from the volume",
            got=f"candles without a volume from {candles.source}",
            fix=f"Remove {reading_volume} from the profile's key features, or give candles with a volume",
        )
    missing = [name for name in features.covariate_inputs if name not in candles.covariates]
    if missing:
        covariates = [name for name in features.names if is_covariate(name)]
        origins = listed(list(dict.fromkeys(split_origin(name)[0] for name in missing)))
        raise DataError(
            where=location,
            rule=f"{listed(covariates)} need {listed(missing)} as covariates of the candles",
            got=f"candles without covariates of {origins}",
            fix='Give them, too: covariates={"BTCUSDT": candles, "funding.csv": table} in Python',
        )


def assemble(
    candles: Candles, features: FeatureSet, rows: Sequence[slice], columns: Mapping[str, Chunks]
) -> FeatureTable:
    """Build the table of the rows of `valid_rows` from columns of all candles; no column is copied."""
    open_time_s = np.concatenate([candles.open_time_s[segment] for segment in rows])
    num_rows = [segment.stop - segment.start for segment in rows]
    return FeatureTable(
        series=candles.series,
        open_time_s=open_time_s,
        chunks={name: tuple(_cut(columns[name], rows)) for name in features.names},
        segment=np.repeat(np.arange(len(rows), dtype=np.int32), num_rows),
        digest=digest_bytes(candles.digest.encode("ascii"), features.digest.encode("ascii")),
    )


def _cut(chunks: Chunks, rows: Sequence[slice]) -> Iterator[Column]:
    """Yield the parts of the chunks that lie in the selected rows, in order.

    >>> [part.tolist() for part in _cut((np.arange(4), np.arange(4, 6)), [slice(1, 3), slice(3, 6)])]
    [[1, 2], [3], [4, 5]]
    """
    starts = [0, *accumulate(len(chunk) for chunk in chunks)]
    for selected in rows:
        for start, chunk in zip(starts, chunks, strict=False):
            part = chunk[max(selected.start - start, 0) : max(selected.stop - start, 0)]
            if len(part):
                yield part


def compute_columns(candles: Candles, columns: Sequence[str], num_stored: int = 0) -> dict[str, Chunks]:
    """Compute columns of N candles, or only the rows after the K that are stored, segment by segment.

    The formulas are those of `v8.profile.indicators`; `_fill` has them computed for one segment.

    Args:
        candles: The candles.
        columns: Names of the columns.
        num_stored: K.

    Returns:
        Rows K to N by name, each as one chunk of shape (N - K,), float32, read-only, NaN in the warm-up of
        every segment and finite after it.

    Raises:
        DataError: If a value is beyond single precision.
    """
    return _compute(candles, {name: ancestry(name) for name in columns}, num_stored)


def _compute(candles: Candles, ancestries: Mapping[str, Ancestry], num_stored: int) -> dict[str, Chunks]:
    """Compute the rows of columns from `num_stored` on, NaN in each warm-up, as `compute_columns` does.

    `ancestries` say what each column is computed from.
    """
    block = np.full((len(ancestries), len(candles) - num_stored), np.nan, dtype=np.float32)
    results = dict(zip(ancestries, block, strict=True))  # each a row of the block, which `_fill` writes into
    for segment in segment_rows(candles.segment):
        if segment.stop > num_stored:
            _fill(results, candles, ancestries, segment, num_stored)
    return {name: (read_only(column),) for name, column in results.items()}  # of one chunk each


def segment_rows(segment: NDArray[np.int32]) -> list[slice]:
    """Return the contiguous segments as slices, in order; together they cover all rows.

    >>> segment_rows(np.array([0, 0, 1], dtype=np.int32))
    [slice(0, 2, None), slice(2, 3, None)]
    """
    if not len(segment):
        return []
    numbers = np.arange(segment[0], segment[-1] + 2, dtype=segment.dtype)
    return [slice(start, stop) for start, stop in pairwise(np.searchsorted(segment, numbers).tolist())]


def _fill(
    results: Mapping[str, Column],
    candles: Candles,
    ancestries: Mapping[str, Ancestry],
    segment: slice,
    num_stored: int,
) -> None:
    """Compute the columns of one segment and write them into results, whose first row is `num_stored`.

    For example, 100 rows are stored, the segment has rows 40 to 159, and a column warms up for 30 bars, on
    which each row depends: it is computed from row 70 on (30 before row 100), and rows 100 to 159, the last
    60, are written into the first 60 rows of its results. Were nothing stored, rows 70 to 159 would be.
    """
    rolling: dict[str, int] = {}  # bars before a row on which it depends, by column
    whole_segment: list[str] = []  # columns whose rows depend on all of the segment
    for name, column_ancestry in ancestries.items():
        if column_ancestry.warmup_bars >= segment.stop - segment.start:
            continue
        if column_ancestry.reach_bars is None:
            whole_segment.append(name)
        else:
            rolling[name] = column_ancestry.reach_bars
    first_needed = max(segment.start, num_stored - max(rolling.values(), default=0))
    computed: dict[str, FloatArray] = {}
    if rolling:
        computed |= computed_rows(rolling, _inputs(candles, slice(first_needed, segment.stop)))
    if whole_segment:
        computed |= computed_rows(whole_segment, _inputs(candles, segment))
    new_rows = {}
    for name, values in computed.items():
        first_valid = max(num_stored, segment.start + ancestries[name].warmup_bars)
        new_rows[name] = results[name][first_valid - num_stored : segment.stop - num_stored]
        # Values begin at `first_needed` or with the segment, and all end with it: so they are counted from
        # its end, by a negative index.
        new_rows[name][:] = values[first_valid - segment.stop :]
    _require_finite(candles, new_rows)


def _inputs(candles: Candles, rows: slice) -> dict[str, FloatArray]:
    """Return all columns of some candles by name, float64."""
    inputs = dict(zip(OHLCV, np.ascontiguousarray(candles.values[rows].T), strict=True))
    inputs[OPEN_TIME] = candles.open_time_s[rows].astype(np.float64)
    for name, values in candles.covariates.items():
        inputs[name] = values[rows]
    return inputs


def _require_finite(candles: Candles, columns: Mapping[str, Column]) -> None:
    """Refuse columns with values that single precision cannot hold."""
    if not columns or np.isfinite(np.concatenate(list(columns.values()))).all():
        return
    others = [name for name, values in columns.items() if not np.isfinite(values).all()]
    rule = "every value is a finite number in single precision (up to 3.4e38)"
    fix = f"Check the prices and volumes of these candles with `{command('data')}`"
    if is_of_package(others[0]):
        origin, plain = split_origin(others[0])
        filled = with_origin(origin, with_filling(plain))
        fix = "Leave it out: the market is flat there"
        if filled in FEATURES:
            fix = f"Name {filled}, which repeats its last value, or leave it out"
    raise DataError(
        where=f"features of {candles.series}", rule=rule, got=f"others in {listed(others)}", fix=fix
    )
