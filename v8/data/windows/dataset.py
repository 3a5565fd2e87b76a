"""The prepared data of one series: table, split, scaling and windows, addressed by row numbers.

Train, validation and test span follow one another in time, with an embargo between them. An anchor is the
last known row of a window: its lookback rows end there and its horizon rows follow. A window counts only when
all its rows lie in one span and in one contiguous segment, so no window contains a gap of the candles, and
none shares a row with a window of another span.

A bar that is missing takes lookback + horizon + warm-up windows, because after each hole the indicators need
their warm-up again, and short runs between holes have no window at all: `count_kept` counts what is left.

A window is never copied out of the table before its batch is made: memory grows with rows times
(features + horizon x targets), never with the lookback.

Shape legend: N rows, W windows, T lookback, F features, H horizon, C columns of a task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.base.errors import DataError
from v8.base.wording import percent
from v8.data.features.table import FeatureTable, compute_table, fix_for_holes
from v8.data.market.candles import Candles
from v8.data.market.series import Series
from v8.data.windows.scaling import Scaling, fit_scaling
from v8.data.windows.span import Span, target_unit
from v8.profile.columns import CLOSE, RECENT_RANGE, VOLATILITY, neighbours, with_origin
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
    """Split, scale and index a series; its table holds at least `table_columns(profile)`.

    Raises:
        DataError: If a span holds no complete window.
        SeriesError: If the close never moves on the train span.
    """
    split = split_rows(len(table), profile, location=str(table.series), num_holes=int(table.segment[-1]))
    spans = {name: _span(table, rows, name, profile) for name, rows in split.items()}
    scaling = fit_scaling(spans["train"], split["train"], table_columns(profile))
    # The closes by which price changes and amounts are divided, by origin: {"": that of the series itself,
    # "BTCUSDT": that of the column `BTCUSDT.close`}. A symbol without one has only features that need none
    # (the profile checks that).
    closes = {}
    for origin in ("", *neighbours(profile.features)):
        name = with_origin(origin, CLOSE)
        if name in table.columns:
            closes[origin] = table.column(name).astype(np.float64)
    inputs_NF = scaling.scale_inputs(table.select(profile.features).astype(np.float64), closes)
    targets_NHC = {task: _targets(list(spans.values()), scaling, task) for task in profile.tasks}
    # Under `scaling: ranged` scaled target = return / recent range, and weight = recent range / its mean: so
    # the weighted loss is in returns again, by which forecasts are evaluated. Otherwise the unit is 1.
    floored_N = scaling.floored_range(target_unit(table, profile))
    weight_N = floored_N / floored_N[spans["train"].anchors].mean()
    return SeriesData(
        profile=profile,
        table=table,
        split=split,
        # New spans without the arrays that were cached for scaling: a fleet holds many series for long.
        spans={name: Span(table, profile, span.anchors) for name, span in spans.items()},
        scaling=scaling,
        inputs_NF=inputs_NF,
        targets_NHC=targets_NHC,
        weight_N=weight_N.astype(np.float32),
    )


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
        location = str(table.series)
        rule = f"the {name} span needs an unbroken stretch of {window_bars} bars"
        longer = f"Fetch a longer history with param:bars (at least {rows_needed(profile)} unbroken rows)"
        fix = fix_for_holes(int(table.segment[-1]), longer)
        raise DataError(where=location, rule=rule, got="gaps in the candles that leave none", fix=fix)
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
        purpose = f"so that train, validation and test each hold one window of {window_bars} bars"
        rule = f"needs at least {rows_needed(profile)} rows after the indicators' warm-up, {purpose}"
        longer = "Fetch a longer history with param:bars, or lower lookback_bars in the profile"
        fix = fix_for_holes(num_holes, longer)
        raise DataError(where=location, rule=rule, got=str(num_rows), fix=fix)
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
    kept = {}
    for name, rows in split.items():
        kept[name] = len(window_anchors(segment_of_row, rows, profile.lookback_bars, profile.horizon_bars))
    return WindowCounts(kept, without_holes)
