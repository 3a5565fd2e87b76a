"""The prepared data of one series: table, split, scaling and windows; and the batches of several series.

The split cuts the rows of the table into train, validation and test rows, in the order of time, with lookback
+ horizon rows between them that belong to none (an embargo). An anchor is the last known row of a window: its
lookback rows end there and its horizon rows follow. A `Span` holds the windows of one part of the split: all
their rows lie in it, and in one stretch of candles without a hole.

Windows are cut out of the table batch by batch: memory grows with rows, never with the lookback.

Shapes: N rows of the table, W windows, S batches of an epoch, B windows of a batch, M models, T lookback, F
features, H horizon, C columns of a task.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from v8.base.errors import DataError
from v8.base.wording import percent
from v8.data.features import FeatureTable, compute_table, fix_for_holes
from v8.data.market.candles import Candles
from v8.data.market.series import Series
from v8.data.scaling import Scaling, fit_scaling
from v8.data.span import Span, target_unit
from v8.profile.columns import CLOSE, RECENT_RANGE, VOLATILITY, neighbours, split_origin, with_origin
from v8.profile.indicators import warmup_bars
from v8.profile.profile import Profile
from v8.profile.tasks import TASKS

SPANS: Final = ("train", "validation", "test")
FEWEST_FITTED_WINDOWS: Final = 200  # of the past: baselines fitted to fewer windows are too weak

Split = dict[str, tuple[int, int]]  # first and past-the-end row of each of the spans


@dataclass(frozen=True)
class SeriesData:
    """Everything that training and evaluation need of one series."""

    profile: Profile
    table: FeatureTable  # raw columns, at least `table_columns(profile)`
    split: Split  # rows of each span
    spans: Mapping[str, Span]  # the complete windows of `train`, `validation` and `test`
    scaling: Scaling
    inputs_NF: NDArray[np.float32]  # scaled features of every row
    targets_NHC: dict[str, NDArray[np.float32]]  # scaled, by task and anchor row; 0 where no window is
    weight_N: NDArray[np.float32]  # in losses, of the window anchored at each row, mean about one

    @property
    def series(self) -> Series:
        """Which series."""
        return self.table.series

    def forget_targets(self) -> None:
        """Let go of the scaled targets, which only training reads: of many rows they take most memory."""
        self.targets_NHC.clear()

    @property
    def anchors(self) -> dict[str, NDArray[np.int64]]:
        """Per span, last known row of each window, shape (W,), int64."""
        return {name: span.anchors for name, span in self.spans.items()}

    def num_windows(self, span: str) -> int:
        """Return the complete windows of `train`, `validation` or `test`."""
        return len(self.spans[span])

    def describe_split(self, num_candles: int) -> dict[str, Any]:
        """Return rows, times (ISO, UTC) and windows of spans of so many candles, and the embargo, as JSON."""
        without_holes = windows_without_holes(num_candles, self.profile)
        described: dict[str, Any] = {}
        for name, (first, end) in self.split.items():
            ends_s = self.table.open_time_s[[first, end - 1]].tolist()
            first_open, last_open = (datetime.fromtimestamp(open_s, UTC).isoformat() for open_s in ends_s)
            described[name] = {
                "rows": [first, end],
                "first_open": first_open,
                "last_open": last_open,
                "num_windows": self.num_windows(name),
                "num_windows_without_holes": without_holes[name],
            }
        return {**described, "embargo_bars": self.profile.embargo_bars}


def table_columns(profile: Profile) -> tuple[str, ...]:
    """List the columns that a FeatureTable must hold for a profile: features, targets, close, volatility."""
    columns = list(profile.features)
    for task in profile.tasks:
        columns += TASKS[task].input_columns
    columns += [CLOSE, VOLATILITY]
    if profile.scaling == "ranged":
        columns.append(RECENT_RANGE)
    return tuple(dict.fromkeys(columns))


def prepare_series(table: FeatureTable, profile: Profile) -> SeriesData:
    """Split and scale a series and find its windows; its table holds at least `table_columns(profile)`.

    Raises:
        DataError: If a span holds no complete window.
        SeriesError: If the close never moves on the train span.
    """
    # Holes are named if the rows are too few.
    split = split_rows(len(table), profile, location=str(table.series), num_holes=table.num_holes)
    spans = {name: _span(table, rows, name, profile) for name, rows in split.items()}
    # Fitted to the train part alone: for inputs to its rows, for targets to its windows.
    scaling = fit_scaling(spans["train"], split["train"], table_columns(profile))
    # Prices among the inputs of a row are divided by the row's own close, or by that of their symbol.
    closes = _closes_by_symbol(table, profile)
    inputs_NF = scaling.scale_inputs(table.select(profile.features).astype(np.float64), closes)
    # Row n has the targets of the window whose anchor it is; a row that is no anchor has zeros. The arrays
    # hold all parts: training reads the rows of train and validation anchors, and nobody those of test.
    targets_NHC = {task: _targets(list(spans.values()), scaling, task) for task in profile.tasks}
    # With `scaling: ranged` `_targets` has divided by the recent range of prices (at least a small one), so
    # that calm and wild times look alike. Training multiplies the loss of a window by this weight, the range
    # as a multiple of its mean, so that a wild window counts as in an evaluation. Else all weights are 1.
    unit_N = scaling.floored_range(target_unit(table, profile))
    weight_N = unit_N / unit_N[spans["train"].anchors].mean()
    return SeriesData(
        profile=profile,
        table=table,
        split=split,
        # New spans: those above have cached actual values, and a fleet keeps many series in memory for long.
        spans={name: Span(table, profile, span.anchors) for name, span in spans.items()},
        scaling=scaling,
        inputs_NF=inputs_NF,
        targets_NHC=targets_NHC,
        weight_N=weight_N.astype(np.float32),
    )


def _closes_by_symbol(table: FeatureTable, profile: Profile) -> dict[str, NDArray[np.float64]]:
    """Return the closes by which features are divided, by the symbol that these are computed from.

    That is "" for the series itself, or another symbol whose columns the profile uses: "BTCUSDT" has
    `BTCUSDT.close`. A symbol without a close has only features that need none (the profile checks that).
    """
    closes = {}
    for origin in ("", *neighbours(profile.features)):
        name = with_origin(origin, CLOSE)
        if name in table.columns:
            closes[origin] = table.column(name).astype(np.float64)
    return closes


def whole_span(candles: Candles, profile: Profile) -> Span:
    """Return every window of candles, which may be none."""
    table = compute_table(candles, table_columns(profile))
    rows = (0, len(table))
    anchors = window_anchors(table.segment, rows, profile.lookback_bars, profile.horizon_bars)
    return Span(table, profile, anchors)


def _span(table: FeatureTable, rows: tuple[int, int], name: str, profile: Profile) -> Span:
    """Return all windows of some rows; a DataError without any, in which `name` is the name of the span."""
    anchors = window_anchors(table.segment, rows, profile.lookback_bars, profile.horizon_bars)
    if not len(anchors):
        window_bars = profile.lookback_bars + profile.horizon_bars
        longer = f"Fetch a longer history with param:bars (at least {rows_needed(profile)} unbroken rows)"
        raise DataError(
            where=str(table.series),
            rule=f"the {name} span needs an unbroken stretch of {window_bars} bars",
            got="gaps in the candles that leave none",
            fix=fix_for_holes(table.num_holes, longer),
        )
    return Span(table, profile, anchors)


def _targets(spans: Sequence[Span], scaling: Scaling, task: str) -> NDArray[np.float32]:
    """Return the scaled targets of a task by anchor row, shape (N, H, C); 0 where there is no window."""
    shape = (len(spans[0].table), spans[0].horizon_bars, len(TASKS[task].columns))
    rows_NHC = np.zeros(shape, np.float32)
    for span in spans:
        for _, piece in span.pieces():
            rows_NHC[piece.anchors] = scaling.scale_targets(piece, task)
    return rows_NHC


def split_rows(num_rows: int, profile: Profile, *, location: str, num_holes: int = 0) -> Split:
    """Divide the rows by the profile's shares; between each two spans an embargo of lookback + horizon bars.

    Args:
        num_rows: Rows of the table.
        profile: The profile.
        location: Name of the series for messages.
        num_holes: Holes in the candles, each followed by a warm-up, for messages.

    Raises:
        DataError: If a span would not hold a single window.
    """
    window_bars = profile.lookback_bars + profile.horizon_bars
    usable = num_rows - 2 * profile.embargo_bars
    num_train = round(usable * profile.split.train)
    num_validation = round(usable * profile.split.validation)
    smallest = min(num_train, num_validation, usable - num_train - num_validation)
    if smallest < window_bars:
        longer = "Fetch a longer history with param:bars, or lower lookback_bars in the profile"
        raise DataError(
            where=location,
            rule=f"needs at least {rows_needed(profile)} rows after the indicators' warm-up, so that train, "
            f"validation and test each hold one window of {window_bars} bars",
            got=str(max(num_rows, 0)),  # there may be fewer candles than the warm-up takes
            fix=fix_for_holes(num_holes, longer),
        )
    validation_start = num_train + profile.embargo_bars
    test_start = validation_start + num_validation + profile.embargo_bars
    validation = validation_start, validation_start + num_validation
    return {"train": (0, num_train), "validation": validation, "test": (test_start, num_rows)}


def rows_needed(profile: Profile) -> int:
    """Return the fewest unbroken rows with which every span holds a window."""
    window_bars = profile.lookback_bars + profile.horizon_bars
    smallest_share = min(profile.split.train, profile.split.validation, profile.split.test)
    # One row more than the exact quotient absorbs the rounding of the shares.
    return int(np.ceil((window_bars + 1) / smallest_share)) + 2 * profile.embargo_bars


def fewest_bars(profile: Profile) -> int:
    """Return the fewest candles without a hole with which every span holds a window.

    >>> from v8.profile.profile import load_profile
    >>> fewest_bars(load_profile("aligned"))
    801
    """
    return warmup_bars(table_columns(profile)) + rows_needed(profile)


def windows_without_holes(num_bars: int, profile: Profile) -> dict[str, int]:
    """Count the complete windows per span in so many candles without a hole.

    Raises:
        DataError: If they are too few for a window in every span.
    """
    num_rows = max(0, num_bars - warmup_bars(table_columns(profile)))
    split = split_rows(num_rows, profile, location=f"{num_bars} candles")
    window_bars = profile.lookback_bars + profile.horizon_bars
    return {name: split[name][1] - split[name][0] - window_bars + 1 for name in SPANS}


def window_anchors(
    segment: NDArray[np.int32], rows: tuple[int, int], lookback_bars: int, horizon_bars: int
) -> NDArray[np.int64]:
    """List the last known row of every complete window of some rows, ascending, int64; empty without any.

    `segment` gives for each row the number of its segment, shape (N,), ascending; the lookback includes the
    anchor.
    """
    first, end = rows
    anchors = np.arange(first + lookback_bars - 1, end - horizon_bars, dtype=np.int64)
    unbroken = segment[anchors - lookback_bars + 1] == segment[anchors + horizon_bars]
    return anchors[unbroken]


FEWEST_KEPT: Final = (
    0.5  # a smaller share of the windows of a span is said before training, and in the report
)


@dataclass(frozen=True)
class WindowCounts:
    """The windows of a series by span: `train`, `validation` and `test`."""

    kept: Mapping[str, int]  # that holes and the warm-up after each leave
    without_holes: Mapping[str, int]  # of as many candles if none were missing between them

    @property
    def share(self) -> float:
        """Share of the windows that is kept, 0 to 1."""
        return sum(self.kept.values()) / sum(self.without_holes.values())

    @property
    def are_few(self) -> bool:
        """Whether a span keeps less than `FEWEST_KEPT` of its windows."""
        return any(self.kept[name] < FEWEST_KEPT * num for name, num in self.without_holes.items())

    def __str__(self) -> str:
        num_kept = sum(self.kept.values())
        num = sum(self.without_holes.values())
        train, validation, test = (f"{self.kept[name]:,}" for name in SPANS)
        shares = f"{num_kept:,} of {num:,} windows ({percent(self.share, 0)})"
        return f"{shares}: {train} to train on, {validation} to validate, {test} to test"


def count_kept(segment: NDArray[np.int32], profile: Profile) -> WindowCounts | None:
    """Count the windows of candles; None if they would be too few without a hole, too.

    A bar that is missing takes lookback + horizon + warm-up windows, because after each hole the indicators
    need their warm-up again, and short runs between holes have no window at all.

    `segment` is that of `Candles`, shape (N,).
    """
    try:
        without_holes = windows_without_holes(len(segment), profile)
    except DataError:
        return None
    num_rows = np.bincount(segment) - warmup_bars(table_columns(profile))
    num_rows = num_rows[num_rows > 0]
    segment_of_row = np.repeat(np.arange(len(num_rows), dtype=np.int32), num_rows)
    try:
        split = split_rows(len(segment_of_row), profile, location="candles")
    except DataError:
        return WindowCounts(dict.fromkeys(SPANS, 0), without_holes)
    num_kept = {}
    for name, rows in split.items():
        anchors = window_anchors(segment_of_row, rows, profile.lookback_bars, profile.horizon_bars)
        num_kept[name] = len(anchors)
    return WindowCounts(num_kept, without_holes)


Rows = NDArray[np.int64]
Indices = NDArray[np.int32]
"""Anchors of windows, their last known rows; padding has the index -1 - anchor, below zero.

The indices of an epoch take kilobytes. The tables that they refer to are copied to the device once, and
`gathered` cuts windows out of them there, within the compiled step (`v8.model.training.step`).
"""

FEWEST_TABLE_ROWS: Final = 1_024
LARGEST_DOUBLING: Final = 65_536
"""Tables are padded to a power of two rows, above this number of rows to a multiple of it."""


class Tables(NamedTuple):
    """The scaled rows of every series, from which windows are cut, and the geometry of a window.

    The rows of a fleet are stacked and padded with zeros that no anchor refers to. NumPy arrays or tensors of
    the device. A named tuple, because both backends compile functions of tuples.

    Args:
        inputs_MNF: Scaled features, float32, unitless.
        targets_MNHC: Scaled targets by task and anchor, float32, unitless.
        weights_MN: Weight in losses of the window anchored at each row, float32.
        steps_T: Rows of a window relative to its anchor, int32: 1 - lookback to 0.
        close_F: Column of the close that each feature is measured from, int32.
        is_anchored_F: 1 where the last close of a window is subtracted from the feature, else 0; float32.
    """

    inputs_MNF: Any
    targets_MNHC: dict[str, Any]
    weights_MN: Any
    steps_T: Any
    close_F: Any
    is_anchored_F: Any


@dataclass(frozen=True)
class Batch:
    """The windows of one optimiser step, float32."""

    x_BMTF: Any  # scaled input windows
    y_BMHC: dict[str, Any]  # scaled targets per task
    weight_BM: Any  # weight of each window, 0 for padding


def gathered(xp: Any, tables: Tables, indices_BM: Any) -> Batch:
    """Cut the windows of a batch out of the tables, each relative to its own last close.

    Args:
        xp: `numpy`, `keras.ops`, or `tensorflow.experimental.numpy`, whose tensors the tables are.
        tables: Of M series.
        indices_BM: One index for each window (see the module), int32.
    """
    num_models, num_rows, num_features = tables.inputs_MNF.shape
    is_real_BM = indices_BM >= 0
    anchors_BM = xp.where(is_real_BM, indices_BM, -1 - indices_BM)
    # The rows of all series in one axis: compilers fuse a single look-up with the operations that follow.
    flat_BM = anchors_BM + np.arange(num_models, dtype=np.int32) * num_rows
    rows_BMT = flat_BM[:, :, None] + tables.steps_T
    x_BMTF = xp.take(xp.reshape(tables.inputs_MNF, (-1, num_features)), rows_BMT, axis=0)
    closes_BMF = xp.take(x_BMTF[:, :, -1], tables.close_F, axis=2)
    # A product with 0 or 1 is exact, so the result does not depend on whether a compiler fuses it with the
    # sum.
    x_BMTF = x_BMTF - (closes_BMF * tables.is_anchored_F)[:, :, None]
    y_BMHC = {}
    for task, table in tables.targets_MNHC.items():
        rows = xp.reshape(table, (-1, *table.shape[2:]))
        y_BMHC[task] = xp.take(rows, flat_BM, axis=0)
    weight_BM = xp.take(xp.reshape(tables.weights_MN, (-1,)), flat_BM, axis=0)
    return Batch(x_BMTF, y_BMHC, xp.where(is_real_BM, weight_BM, xp.zeros_like(weight_BM)))


def epoch_order(anchors: Rows, seed: int, epoch: int) -> Rows:
    """Shuffle the anchors of a series, shape (W,), for one epoch, numbered from 1."""
    return np.random.default_rng([seed, epoch]).permutation(anchors)


def num_batches(num_windows: int, batch_size: int) -> int:
    """Return the number of optimiser steps of an epoch, including the padded last one."""
    return -(-num_windows // batch_size)


def batched_indices(orders: Sequence[Rows], batch_size: int) -> Indices:
    """Divide the anchors of each model, at least one, into full batches: indices (S, B, M), int32.

    The longest order determines S; the others are padded.
    """
    num_places = batch_size * max(num_batches(len(order), batch_size) for order in orders)
    columns = []
    for order in orders:
        column = np.resize(order, num_places).astype(np.int32)
        column[len(order) :] = -1 - column[len(order) :]
        columns.append(column)
    return np.stack(columns, axis=1).reshape(-1, batch_size, len(orders))


def padded_rows(num_rows: int) -> int:
    """Return the number of rows to which a table is padded.

    The number of rows is part of a compiled program: series of similar lengths share a program this way.

    >>> padded_rows(300), padded_rows(7_700), padded_rows(8_193), padded_rows(100_000)
    (1024, 8192, 16384, 131072)
    """
    if num_rows > LARGEST_DOUBLING:
        return -(-num_rows // LARGEST_DOUBLING) * LARGEST_DOUBLING
    return max(FEWEST_TABLE_ROWS, 1 << (num_rows - 1).bit_length())


class EpochOrders:
    """The shuffled train windows of a fleet, epoch after epoch; it holds anchors but no tables.

    The order of an epoch depends only on the seed and the number of the epoch, so a resumed run, a fleet and
    a single fit see the same batches. All batches have the same shape, so that one compiled program processes
    them: the last batch of an epoch is padded with windows of weight zero, and a series with fewer windows
    than the others of a fleet gets windows of weight zero until the longest series is complete.

    Args:
        series_data: One or many series of one profile.
        seeds: Seed of the order of each series.
        first_epochs: The number of each series' next epoch, from 1; they differ after a resume.
    """

    def __init__(
        self, series_data: Sequence[SeriesData], seeds: Sequence[int], first_epochs: Sequence[int]
    ) -> None:
        self._anchors = [data.anchors["train"] for data in series_data]
        self._seeds = list(seeds)
        self._batch_size = series_data[0].profile.training.windows_per_step
        self._later = [first - min(first_epochs) for first in first_epochs]
        self.start = min(first_epochs)
        """Number of the next epoch of the series with the fewest epochs; `indices` counts from it."""
        longest = max(len(anchors) for anchors in self._anchors)
        self.shape = (num_batches(longest, self._batch_size), self._batch_size, len(self._anchors))
        """Shape of the indices of one epoch: (S, B, M)."""

    def indices(self, epoch: int) -> Indices:
        """Return the indices (S, B, M), int32, of one epoch, numbered from `start`."""
        orders = [
            epoch_order(anchors, seed, epoch + later)
            for anchors, seed, later in zip(self._anchors, self._seeds, self._later, strict=True)
        ]
        return batched_indices(orders, self._batch_size)

    def __iter__(self) -> Iterator[Indices]:
        """Yield the indices of one epoch after another, without end."""
        return map(self.indices, count(self.start))


class FleetWindows:
    """The windows of one or many series of one profile."""

    def __init__(self, series_data: Sequence[SeriesData]) -> None:
        self._series_data = list(series_data)
        self.num_rows = padded_rows(max(len(data.inputs_NF) for data in series_data))
        """Rows of the tables."""

    def tables(self, to_device: Callable[[NDArray[Any]], Any] = np.asarray) -> Tables:
        """Stack the tables of the series, again in each call: they may take gigabytes.

        Each is passed to `to_device`, which may copy it to a device, before the next one is created.
        """
        first = self._series_data[0]
        close_F, is_anchored_F = _anchoring(first)
        inputs_MNF = to_device(self._stacked([data.inputs_NF for data in self._series_data]))
        targets_MNHC = {}
        for task in first.targets_NHC:
            targets_MNHC[task] = to_device(
                self._stacked([data.targets_NHC[task] for data in self._series_data])
            )
        weights_MN = to_device(self._stacked([data.weight_N for data in self._series_data]))
        return Tables(
            inputs_MNF=inputs_MNF,
            targets_MNHC=targets_MNHC,
            weights_MN=weights_MN,
            steps_T=to_device(np.arange(1 - first.profile.lookback_bars, 1, dtype=np.int32)),
            close_F=to_device(close_F),
            is_anchored_F=to_device(is_anchored_F),
        )

    def epochs(self, seeds: Sequence[int], first_epochs: Sequence[int]) -> EpochOrders:
        """Return the orders of the coming epochs."""
        return EpochOrders(self._series_data, seeds, first_epochs)

    def span_indices(self, span: str, batch_size: int) -> Indices:
        """Return the indices (S, B, M), int32, of one pass over a span of every series, in time order."""
        return batched_indices([data.anchors[span] for data in self._series_data], batch_size)

    def _stacked(self, arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Stack arrays of different lengths, padded with zeros: shape (M, N, ...)."""
        stacked = np.zeros((len(arrays), self.num_rows, *arrays[0].shape[1:]), np.float32)
        for number, array in enumerate(arrays):
            stacked[number, : len(array)] = array
        return stacked


def _anchoring(data: SeriesData) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the column of the close from which each feature is measured, and 1 for features that are."""
    features = data.profile.features
    origins = [split_origin(name)[0] for name in features]
    is_anchored_F = np.zeros(len(features), np.float32)
    for origin in dict.fromkeys(origins):
        is_anchored_F += data.scaling.anchored_mask(origin)
    closes = [
        features.index(with_origin(origin if is_anchored else "", CLOSE))
        for origin, is_anchored in zip(origins, is_anchored_F, strict=True)
    ]
    return np.array(closes, np.int32), is_anchored_F
