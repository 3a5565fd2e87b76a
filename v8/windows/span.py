"""A span: windows of one series, with all that is known at them, what followed, and how far it may lie off.

Everything is computed when first asked for, and kept, but for what is very large (`PerTask`); arrays are
read-only, for many share them. What is named *known* at a window reads its last known row and earlier ones
only; `actual` alone looks ahead. Who forecasts gets a `KnownSpan`, which has no `actual`.

Legend: R rows of the table, W windows, T lookback, F features, H horizon, C columns of a task.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8 import tasks
from v8.arrays import FloatArray
from v8.columns import BAND_PERIOD_BARS, BAND_WIDTH_STDS, CLOSE, HIGH, LOW, RECENT_RANGE, WAVE_COLUMNS, parted
from v8.errors import SeriesError
from v8.features.formulas import PERIODS_S
from v8.features.table import FeatureTable
from v8.profile import Profile
from v8.tasks import TASKS

EWMA_DECAY: Final = 0.94
"""What is left of a bar's weight one bar later; RiskMetrics Technical Document (1996), section 5.3."""

LEAST_PERIODS: Final = 4
"""Times that a train span must hold a day or a week before anything is fitted to the time of it: of fewer,
what happened once is taken for what always happens then."""

LARGEST_KEPT_BYTES: Final = 64 << 20  # of one task: 200,000 windows of candles ten steps ahead


class PerTask(Mapping[str, FloatArray]):
    """Arrays per task, computed when asked for, and kept unless they are large.

    What a span knows of a task is asked for again and again. Of a million windows ten steps ahead all of it
    would be gigabytes, and a part is needed at a time: that is worked out again, to the same bits. Who keeps
    this mapping must not be known to `compute`, or the two would hold on to each other, and to all memory of
    both, for long.
    """

    def __init__(self, tasks: Iterable[str], compute: Callable[[str], FloatArray]) -> None:
        self._tasks = tuple(tasks)
        self._compute = compute
        self._kept: dict[str, FloatArray] = {}

    def __getitem__(self, task: str) -> FloatArray:
        if task in self._kept:
            return self._kept[task]
        if task not in self._tasks:
            raise KeyError(task)
        found = _read_only(self._compute(task))
        if found.nbytes <= LARGEST_KEPT_BYTES:
            self._kept[task] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


@dataclass(frozen=True, eq=False)
class Span:
    """Windows of one series.

    The table holds at least `v8.windows.dataset.table_columns` of the profile; anchors are the last known row
    of each window, shape (W,), int64, ascending.
    """

    table: FeatureTable
    profile: Profile
    anchors: NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "anchors", _read_only(self.anchors))

    def __len__(self) -> int:
        return len(self.anchors)

    @property
    def horizon_bars(self) -> int:
        """Steps ahead."""
        return self.profile.horizon_bars

    def parted(self, moment_s: float) -> tuple["Span", "Span"]:
        """Return the windows of which all has closed by a moment, seconds, UTC, and those issued since."""
        closed_s = self.table.open_time_s + self.table.series.bar_s
        anchors = self.anchors
        before = anchors[closed_s[anchors + self.horizon_bars] <= moment_s]
        since = anchors[closed_s[anchors] >= moment_s]
        return Span(self.table, self.profile, before), Span(self.table, self.profile, since)

    def target_shape(self, task: str) -> tuple[int, int, int]:
        """Return the shape of forecasts of a task: windows, steps ahead, columns."""
        return len(self), self.horizon_bars, len(TASKS[task].columns)

    @cached_property
    def known_only(self) -> "KnownSpan":
        """The same windows without what followed them: all that a forecast may read."""
        stop = int(self.anchors[-1]) + 1 if len(self) else len(self.table)
        known = KnownSpan(self.table.first(stop), self.profile, self.anchors)
        # What has been computed already serves both.
        vars(known).update({name: vars(self)[name] for name in _KNOWN if name in vars(self)})
        return known

    @cached_property
    def self_contained(self) -> "Span":
        """The same windows of a table that ends with the last bar that they forecast."""
        stop = int(self.anchors[-1]) + self.horizon_bars + 1 if len(self) else len(self.table)
        is_whole = stop >= len(self.table)
        # Itself must not be kept by itself: both, and all that they hold, would stay in memory for long.
        return Span(self.table if is_whole else self.table.first(stop), self.profile, self.anchors)

    @cached_property
    def bar_numbers(self) -> NDArray[np.int64]:
        """Bar of each window's last known row, counted from the epoch, shape (W,)."""
        return _read_only(self.table.open_time_s[self.anchors] // self.table.series.bar_s)

    @cached_property
    def actual(self) -> PerTask:
        """What followed each window, per task, shape (W, H, C), by column name; in the task's unit."""
        table = self.table
        anchors = self.anchors
        steps = np.arange(1, self.horizon_bars + 1)

        def compute(name: str) -> FloatArray:
            return table.select(TASKS[name].columns).astype(np.float64)[anchors[:, None] + steps]

        return PerTask(self.profile.tasks, compute)

    @cached_property
    def history_close(self) -> FloatArray:
        """Closes of the last 20 known rows, oldest first, shape (W, 20), quote currency.

        Where the lookback is shorter than 20, an early window may reach before the first row or across a
        hole; profiles with bands or volatility demand a longer lookback, so only OHLC is affected, and
        OHLC uses the last close alone.
        """
        rows = self.anchors[:, None] + np.arange(1 - BAND_PERIOD_BARS, 1)
        return _read_only(self.table.column(CLOSE).astype(np.float64)[np.maximum(rows, 0)])

    @property
    def last_close(self) -> FloatArray:
        """Last known close of each window, shape (W,), quote currency."""
        return self.history_close[:, -1]

    @cached_property
    def naive(self) -> PerTask:
        """The naive forecast, per task, shape (W, H, C), in the task's unit."""
        standing = self.standing
        return PerTask(self.profile.tasks, lambda name: TASKS[name].implied(np, standing))

    @cached_property
    def standing(self) -> tasks.Closes:
        """The coming closes if the close stays where it is."""
        return tasks.standing_closes(np, self.history_close, self.horizon_bars)

    @cached_property
    def rolled_deviation(self) -> FloatArray:
        """Deviation of the twenty closes of the naive forecast, shape (W, H), in returns."""
        upper, lower = np.moveaxis(tasks.BANDS_TASK.implied(np, self.standing), -1, 0)
        return _read_only((upper - lower) / (2 * BAND_WIDTH_STDS) / self.last_close[:, None])

    def unit(self, task: str, share_W: FloatArray | None = None) -> FloatArray:
        """Return what a share of the last close, all of it if None, is in a task's unit, shape (W, 1, 1)."""
        share_W = np.ones(len(self)) if share_W is None else share_W
        return np.asarray(TASKS[task].size(self.last_close, share_W))[:, None, None]

    def moves(self) -> PerTask:
        """Return how far the actual values lay from the naive forecast, per task, shape (W, H, C), in returns."""

        def compute(task: str) -> FloatArray:
            moved = self.actual[task] - self.naive[task]
            return np.divide(moved, self.unit(task), out=moved)

        return PerTask(self.actual, compute)

    def moved(self, task: str, moves_WHC: FloatArray) -> FloatArray:
        """Move the naive forecast by so much, in returns: the inverse of `moves`, in the task's unit."""
        return self.naive[task] + moves_WHC * self.unit(task)

    @cached_property
    def recent_range(self) -> FloatArray:
        """The profile's unit of targets at each window, shape (W,), unitless; 1 where it has none."""
        return _read_only(recent_range(self.table, self.profile)[self.anchors])

    @cached_property
    def ewma_variance(self) -> FloatArray:
        """Exponentially weighted mean of squared log returns at each window, shape (W,), unitless.

        Returns across holes are left out. Weights add up to one from the first return on.
        """
        squares = np.full(len(self.table), np.nan)
        squares[1:] = np.diff(np.log(self.table.column(CLOSE).astype(np.float64))) ** 2
        squares[1:][np.diff(self.table.segment) != 0] = np.nan
        smoothed = pd.Series(squares).ewm(alpha=1 - EWMA_DECAY, adjust=True, ignore_na=True).mean()
        return _read_only(np.nan_to_num(smoothed.to_numpy(np.float64))[self.anchors])

    def range_variance(self, num_bars: int) -> FloatArray:
        """Estimate the variance of one bar's log return, (W,), from the mean range of the newest bars."""
        rows = self.anchors + 1
        first = np.maximum(rows - num_bars, 0)
        mean_range = np.maximum(self._total_range[rows] - self._total_range[first], 0.0) / (rows - first)
        return tasks.RANGE_TO_VARIANCE * mean_range**2

    def raw_windows(self) -> NDArray[np.float32]:
        """Gather raw feature windows for the serving model, shape (W, T, F), float32."""
        rows = self.anchors[:, None] + np.arange(1 - self.profile.lookback_bars, 1)
        return self.table.select(self.profile.features)[rows]

    def known(self, names: tuple[str, ...]) -> FloatArray:
        """Gather columns at the last known row of each window, shape (W, len(names))."""
        return self.table.select(names)[self.anchors].astype(np.float64)

    @cached_property
    def _total_range(self) -> FloatArray:
        """Sum of the log ranges of all bars before each row, shape (R + 1,)."""
        high, low = (self.table.column(name).astype(np.float64) for name in (HIGH, LOW))
        return _read_only(np.concatenate([[0.0], np.cumsum(np.log(high / low))]))


class KnownSpan(Span):
    """Windows with what is known at them, and without what followed.

    Its table ends with the last known row of the last window. Of earlier windows that table holds what
    followed, because later ones know it.
    """

    @property
    def actual(self) -> PerTask:
        """Refuse to tell: a SeriesError."""
        rule = "a forecast reads what is known at each window"
        got = "a read of the actual values after it"
        fix = "Read for example last_close, history_close or rolled; target_shape(task) gives the shape"
        raise SeriesError(where=f"{self.table.series}, span.actual", rule=rule, got=got, fix=fix)

    def window(self, place: int) -> "KnownSpan":
        """Return one window alone, of a table that ends with its last known row."""
        anchors = self.anchors[place : place + 1]
        alone = KnownSpan(self.table.first(int(anchors[0]) + 1), self.profile, anchors)
        vars(alone)["history_close"] = self.history_close[place : place + 1]
        return alone

    @property
    def ends_there(self) -> bool:
        """Whether it is one window, of a table that ends with its last known row."""
        return len(self) == 1 and int(self.anchors[0]) == len(self.table) - 1


_KNOWN: Final = (
    *("bar_numbers", "history_close", "standing", "naive", "rolled_deviation", "recent_range"),
    *("ewma_variance", "_total_range"),
)
"""What `Span` keeps, but for what followed."""


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.setflags(write=False)
    return view


def unheld_waves(train: Span, names: Sequence[str]) -> list[int]:
    """List the places, ascending, of columns that tell the time of a period too long for a train span.

    Columns that do not tell the time are never listed; no place where the span holds every period
    `LEAST_PERIODS` times.
    """
    held_s = len(train) * train.table.series.bar_s
    plain = [parted(name)[1] for name in names]
    return [
        place
        for place, name in enumerate(plain)
        if name in WAVE_COLUMNS and held_s < LEAST_PERIODS * PERIODS_S[name.partition("_")[0]]
    ]


def recent_range(table: FeatureTable, profile: Profile) -> FloatArray:
    """Return the profile's unit of targets at every row, shape (R,), unitless; ones where it has none."""
    if profile.scaling == "ranged":
        return table.column(RECENT_RANGE).astype(np.float64)
    return np.ones(len(table))
