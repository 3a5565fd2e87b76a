"""A span: windows of one series, with the quantities known at each window and the actual values after it.

Everything is computed at the first use and cached, except very large arrays (`PerTask`); arrays are
read-only, because they are shared. The quantities of a window depend on its last known row and earlier rows
only; `actual` alone looks ahead. A forecast gets a `PastSpan`, which has no `actual`.

Legend: R rows of the table, W windows, T lookback, F features, H horizon, C columns of a task.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.base.arrays import MAX_STEPS_AGAIN, FloatArray, float32_step, read_only
from v8.base.errors import SeriesError, listed
from v8.data.features import FeatureTable
from v8.data.market.series import iso
from v8.profile import tasks
from v8.profile.columns import (
    BAND_PERIOD_BARS,
    BAND_WIDTH_STDS,
    CLOSE,
    HIGH,
    LOW,
    RECENT_RANGE,
    WAVE_COLUMNS,
    split_origin,
    split_wave,
)
from v8.profile.formulas import PERIODS_S, RANGE_TO_VARIANCE
from v8.profile.profile import Profile
from v8.profile.tasks import TASKS

SAME_SHARE: Final = 1e-6
"""Share by which forecasts in double precision of a plug-in's baseline may differ when they are repeated."""
NUM_CHECKED: Final = 4  # windows that a plug-in's baseline forecasts a second time

EWMA_DECAY: Final = 0.94
"""Factor of a bar's weight from one bar to the next; RiskMetrics Technical Document (1996), section 5.3."""

LEAST_PERIODS: Final = 4
"""Number of days or weeks in a train span from which on anything is fitted to the time of day or week: with
fewer, a single event would be mistaken for a regular pattern."""

LEAST_PERIODS_OF_FINE_WAVES: Final = 16
"""The same number for waves that tell single hours, or single days of the week, apart.

With eight weeks of 15m candles the regression of ranges has higher errors with them; see
docs/research/frontier.md.
"""
COARSE_WAVES: Final = {"day": 3, "week": 2}  # the most waves per period that do not


WINDOWS_AT_ONCE: Final = 65_536
"""Windows for which numbers are computed together: what is needed on the way would take gigabytes for a
million of them."""

LARGEST_KEPT_BYTES: Final = 64 << 20  # of one task: that is 200,000 windows of candles ten steps ahead


class PerTask(Mapping[str, FloatArray]):
    """Arrays per task, computed at the first use and cached unless they are large.

    The arrays of a span are used again and again. For a million windows ten steps ahead all of them would
    take gigabytes, and only a part is needed at a time: large arrays are computed again, bit for bit.
    `compute` must not refer to the object that holds this mapping: a reference cycle would keep the memory of
    both for long.
    """

    def __init__(self, tasks: Iterable[str], compute: Callable[[str], FloatArray]) -> None:
        self._tasks = tuple(tasks)
        self._compute = compute
        self._cache: dict[str, FloatArray] = {}

    def __getitem__(self, task: str) -> FloatArray:
        if task in self._cache:
            return self._cache[task]
        if task not in self._tasks:
            raise KeyError(task)
        values = read_only(self._compute(task))
        if values.nbytes <= LARGEST_KEPT_BYTES:
            self._cache[task] = values
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


@dataclass(frozen=True, eq=False)
class Span:
    """Windows of one series.

    Args:
        table: At least the columns `v8.data.windows.table_columns` of the profile.
        profile: The profile.
        anchors: Last known row of each window, shape (W,), int64, ascending.
    """

    table: FeatureTable
    profile: Profile
    anchors: NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "anchors", read_only(self.anchors))

    def __len__(self) -> int:
        return len(self.anchors)

    @property
    def horizon_bars(self) -> int:
        """Steps ahead."""
        return self.profile.horizon_bars

    def split_at(self, moment_s: float) -> tuple["Span", "Span"]:
        """Return the windows whose bars have all closed by a moment, and those issued at or after it.

        The moment is in seconds since the epoch, UTC. Windows across it belong to neither part.
        """
        closed_s = self.table.open_time_s + self.table.series.bar_s
        anchors = self.anchors
        before = anchors[closed_s[anchors + self.horizon_bars] <= moment_s]
        since = anchors[closed_s[anchors] >= moment_s]
        return Span(self.table, self.profile, before), Span(self.table, self.profile, since)

    def target_shape(self, task: str) -> tuple[int, int, int]:
        """Return the shape of forecasts of a task: windows, steps ahead, columns."""
        return len(self), self.horizon_bars, len(TASKS[task].columns)

    def forget_many(self) -> None:
        """Let go of what is cached if many windows make it large; it is computed again when used."""
        if len(self) <= WINDOWS_AT_ONCE:
            return
        for name in {*_PAST_PROPERTIES, "actual", "past_only"} & vars(self).keys():
            del vars(self)[name]

    @cached_property
    def past_only(self) -> "PastSpan":
        """The same windows without the actual values: all that a forecast may read."""
        stop = int(self.anchors[-1]) + 1 if len(self) else len(self.table)
        past = PastSpan(self.table.first(stop), self.profile, self.anchors)
        # Cached properties of the past are shared.
        for name in _PAST_PROPERTIES:
            if name in vars(self):
                vars(past)[name] = vars(self)[name]
        return past

    @cached_property
    def self_contained(self) -> "Span":
        """The same windows with a table that ends at the last forecast bar."""
        stop = int(self.anchors[-1]) + self.horizon_bars + 1 if len(self) else len(self.table)
        table = self.table.first(stop) if stop < len(self.table) else self.table
        # Always a new object: a span that caches itself would be a reference cycle and keep its memory for
        # long.
        return Span(table, self.profile, self.anchors)

    @cached_property
    def bar_numbers(self) -> NDArray[np.int64]:
        """Number of the bar of each window's last known row, counted from the epoch, shape (W,)."""
        return read_only(self.table.open_time_s[self.anchors] // self.table.series.bar_s)

    @cached_property
    def actual(self) -> PerTask:
        """The actual values of each window, per task, shape (W, H, C), in the task's unit."""
        table = self.table
        anchors = self.anchors
        steps = np.arange(1, self.horizon_bars + 1)

        def compute(name: str) -> FloatArray:
            return actual_values(table, name, anchors[:, None] + steps)

        return PerTask(self.profile.tasks, compute)

    @cached_property
    def history_close(self) -> FloatArray:
        """Closes of the last 20 known rows, oldest first, shape (W, 20), quote currency.

        With a lookback shorter than 20, these rows may begin before the table or lie across a gap. Only
        profiles with OHLC alone may have such a lookback, and OHLC uses the last close only.
        """
        rows = self.anchors[:, None] + np.arange(1 - BAND_PERIOD_BARS, 1)
        return read_only(self.table.column(CLOSE).astype(np.float64)[np.maximum(rows, 0)])

    @property
    def last_close(self) -> FloatArray:
        """Last known close of each window, shape (W,), quote currency."""
        # The twenty closes of each of a million windows take 160 MB: they are not read for their last ones.
        if "history_close" in vars(self):
            return self.history_close[:, -1]
        return self.table.column(CLOSE)[self.anchors].astype(np.float64)

    @cached_property
    def naive(self) -> PerTask:
        """The naive forecast, per task, shape (W, H, C), in the task's unit."""
        closes = self.naive_closes  # not `self` in the function: see `PerTask`
        return PerTask(self.profile.tasks, lambda name: TASKS[name].implied(np, closes))

    @cached_property
    def naive_closes(self) -> tasks.Closes:
        """The future closes of the naive forecast, and its range: the mean range of the newest bars."""
        pieces = [
            tasks.naive_closes(np, piece.history_close, self.horizon_bars) for _, piece in self.pieces()
        ]
        closes = pieces[0]
        if len(pieces) > 1:
            closes = replace(
                closes,
                unit=self.last_close[:, None],
                middle=np.concatenate([piece.middle for piece in pieces]),
                deviation=np.concatenate([piece.deviation for piece in pieces]),
            )
        return replace(closes, bar_range=self.range_of_bar(BAND_PERIOD_BARS))

    @cached_property
    def naive_deviation(self) -> FloatArray:
        """Deviation of the twenty closes of the naive forecast, shape (W, H), in returns."""
        upper, lower = np.moveaxis(tasks.BANDS_TASK.implied(np, self.naive_closes), -1, 0)
        deviation = (upper - lower) / (2 * BAND_WIDTH_STDS)
        return read_only(deviation / self.last_close[:, None])

    def unit(self, task: str, share_W: FloatArray | None = None) -> FloatArray:
        """Convert a share of the last close (1 if None) to a task's unit, shape (W, 1, 1)."""
        share_W = np.ones(len(self)) if share_W is None else share_W
        return np.asarray(TASKS[task].size(self.last_close, share_W))[:, None, None]

    def unmoved(self, task: str) -> FloatArray:
        """Return the values that moves are counted from, (W, H, C): naive, or zero for a task of sizes."""
        return np.zeros(self.target_shape(task)) if TASKS[task].is_size else self.naive[task]

    def moves(self) -> PerTask:
        """Return the actual values minus `unmoved`, per task, shape (W, H, C), in returns."""

        def compute(task: str) -> FloatArray:
            moved = np.empty(self.target_shape(task))
            for rows, piece in self.pieces():
                np.subtract(piece.actual[task], piece.unmoved(task), out=moved[rows])
                moved[rows] /= piece.unit(task)
            return moved

        return PerTask(self.actual, compute)

    def pieces(self) -> Iterator[tuple[slice, "Span"]]:
        """Yield the windows in pieces of `WINDOWS_AT_ONCE`: which they are, and their span."""
        if len(self) <= WINDOWS_AT_ONCE:
            yield slice(0, len(self)), self
            return
        for start in range(0, len(self), WINDOWS_AT_ONCE):
            rows = slice(start, start + WINDOWS_AT_ONCE)
            piece = type(self)(self.table, self.profile, self.anchors[rows])
            vars(piece)["_total_range"] = self._total_range  # of the whole table
            yield rows, piece

    def moved(self, task: str, moves_WHC: FloatArray) -> FloatArray:
        """Add moves, in returns, to `unmoved`: the inverse of `moves`, in the task's unit."""
        return self.unmoved(task) + moves_WHC * self.unit(task)

    @cached_property
    def target_unit(self) -> FloatArray:
        """The unit of targets at each window, shape (W,), see `target_unit`."""
        return read_only(target_unit(self.table, self.profile)[self.anchors])

    @cached_property
    def ewma_variance(self) -> FloatArray:
        """Exponentially weighted mean of squared log returns at each window, shape (W,), unitless.

        Returns across gaps are left out. The weights sum to one from the first return on.
        """
        squares = np.full(len(self.table), np.nan)
        squares[1:] = np.diff(np.log(self.table.column(CLOSE).astype(np.float64))) ** 2
        squares[1:][np.diff(self.table.segment) != 0] = np.nan
        smoothed = pd.Series(squares).ewm(alpha=1 - EWMA_DECAY, adjust=True, ignore_na=True).mean()
        return read_only(np.nan_to_num(smoothed.to_numpy(np.float64))[self.anchors])

    def range_variance(self, num_bars: int) -> FloatArray:
        """Estimate the variance of one bar's log return, (W,), from the mean range of the newest bars."""
        return RANGE_TO_VARIANCE * self.mean_range(num_bars) ** 2

    def mean_range(self, num_bars: int) -> FloatArray:
        """Return the mean log range of the newest bars at each window, shape (W,), unitless."""
        rows = self.anchors + 1
        first = np.maximum(rows - num_bars, 0)
        return np.maximum(self._total_range[rows] - self._total_range[first], 0.0) / (rows - first)

    def range_of_bar(self, num_bars: int) -> FloatArray | None:
        """Return the mean log range of the newest bars, (W, 1); None for profiles without a task of sizes."""
        if not any(TASKS[task].is_size for task in self.profile.tasks):
            return None
        return self.mean_range(num_bars)[:, None]

    def raw_windows(self) -> NDArray[np.float32]:
        """Return raw feature windows for the serving model, shape (W, T, F), float32."""
        rows = self.anchors[:, None] + np.arange(1 - self.profile.lookback_bars, 1)
        return self.table.select(self.profile.features)[rows]

    def known_values(self, names: tuple[str, ...]) -> FloatArray:
        """Return columns at the last known row of each window, shape (W, len(names))."""
        return self.table.select(names)[self.anchors].astype(np.float64)

    @cached_property
    def _total_range(self) -> FloatArray:
        """Sum of the log ranges of all bars before each row, shape (R + 1,)."""
        high = self.table.column(HIGH).astype(np.float64)
        low = self.table.column(LOW).astype(np.float64)
        return read_only(np.concatenate([[0.0], np.cumsum(np.log(high / low))]))


class PastSpan(Span):
    """Windows without the actual values.

    The table ends with the last known row of the last window. It does contain the actual values of earlier
    windows, because later windows know it.
    """

    @property
    def actual(self) -> PerTask:
        """Raise a SeriesError: a forecast must not read it."""
        raise SeriesError(
            where=f"{self.table.series}, span.actual",
            rule="a forecast reads only what is known at each window",
            got="a read of the actual values after it",
            fix="Read for example last_close, history_close or naive; target_shape(task) gives the shape",
        )

    def window(self, number: int) -> "PastSpan":
        """Return a single window, with a table that ends with its last known row."""
        anchors = self.anchors[number : number + 1]
        window = PastSpan(self.table.first(int(anchors[0]) + 1), self.profile, anchors)
        vars(window)["history_close"] = self.history_close[number : number + 1]
        return window

    @property
    def is_single_window(self) -> bool:
        """Whether this is a single window with a table that ends with its last known row, as of `window`."""
        return len(self) == 1 and int(self.anchors[0]) == len(self.table) - 1


_PAST_PROPERTIES: Final = (
    *("bar_numbers", "history_close", "naive_closes", "naive", "naive_deviation", "target_unit"),
    *("ewma_variance", "_total_range"),
)
"""Cached properties of `Span` that do not depend on the actual values."""


def actual_values(table: FeatureTable, task: str, rows_WH: NDArray[np.int64]) -> FloatArray:
    """Return the actual values of a task, (W, H, C), in its unit; a row holds the bars ahead of a window."""
    inputs = table.select(TASKS[task].input_columns).astype(np.float64)[rows_WH]
    return TASKS[task].realised(inputs)


def undersampled_waves(train: Span, names: Sequence[str]) -> list[int]:
    """Return the positions, ascending, of wave columns that a train span cannot show.

    Its period, day or week, is too long if the span contains it fewer than `LEAST_PERIODS` times, for fine
    waves fewer than `LEAST_PERIODS_OF_FINE_WAVES` times. A wave of less than two bars is too short: its
    values at the bars are those of a longer one, or constant.
    """
    bar_s = train.table.series.bar_s
    positions = []
    for position, name in enumerate(names):
        plain = split_origin(name)[1]
        if plain not in WAVE_COLUMNS:
            continue
        period, num_waves = split_wave(plain)
        is_coarse = num_waves <= COARSE_WAVES[period]
        least_periods = LEAST_PERIODS if is_coarse else LEAST_PERIODS_OF_FINE_WAVES
        is_too_long = len(train) * bar_s < least_periods * PERIODS_S[period]
        is_too_short = 2 * bar_s * num_waves > PERIODS_S[period]
        if is_too_long or is_too_short:
            positions.append(position)
    return positions


def target_unit(table: FeatureTable, profile: Profile) -> FloatArray:
    """Return the unit of targets at every row, (N,), unitless: the recent range, or 1 if not ranged."""
    if profile.scaling == "ranged":
        return table.column(RECENT_RANGE).astype(np.float64)
    return np.ones(len(table))


def require_forecasts(name: str, span: Span, forecasts: Any) -> None:
    """Refuse what a baseline of that name returns if it is no mapping from tasks to arrays of finite numbers.

    Raises:
        SeriesError: If it is another object, of other tasks, of another shape, or has NaN or infinity.
    """
    got = ""
    if not isinstance(forecasts, Mapping):
        got = f"a {type(forecasts).__name__}"
    elif not {*forecasts} <= {*TASKS}:
        got = f"forecasts of {listed([*forecasts])}"
    else:
        for task, values in forecasts.items():
            num_windows, num_steps, num_columns = span.target_shape(task)
            shape = np.shape(values)
            if (*shape[:2], *shape[-1:]) != (num_windows, num_steps, num_columns):  # quantiles lie between
                got = f"the shape {shape} of {task}"
            elif not np.isfinite(np.asarray(values, np.float64)).all():
                got = f"NaN or infinity in {task}"
    if got:
        raise SeriesError(
            where=f"{span.table.series}, baseline {name}",
            rule=f"returns arrays (windows, steps, columns) of finite numbers by task: {listed([*TASKS])}",
            got=got,
            fix="Correct its function; a task that it does not forecast it may leave out",
        )


def require_same_alone(
    name: str,
    forecast: Callable[[Span], Mapping[str, FloatArray]],
    span: PastSpan,
    forecasts: Mapping[str, FloatArray],
) -> None:
    """Refuse forecasts, by task (N, ...), that change when the candles end at the time of issue."""
    if span.is_single_window:
        return
    numbers = np.linspace(0, len(span) - 1, NUM_CHECKED).astype(int).tolist()
    for number in dict.fromkeys(numbers):
        window = span.window(number)
        single = forecast(window)
        for task, values in forecasts.items():
            together = np.asarray(values[number], np.float64)
            alone = np.asarray(single[task][0], np.float64)
            tolerance = SAME_SHARE * np.abs(alone)
            if np.asarray(values).dtype == np.float32:
                magnitude = TASKS[task].magnitude(window.last_close[0], alone)
                tolerance = MAX_STEPS_AGAIN * float32_step(magnitude)
            is_same_shape = together.shape == alone.shape
            if is_same_shape and np.allclose(together, alone, rtol=0.0, atol=tolerance, equal_nan=True):
                continue
            issued_s = int(window.table.open_time_s[-1]) + window.table.series.bar_s
            raise SeriesError(
                where=f"{span.table.series}, baseline {name}, forecast of {task} at {iso(issued_s)}",
                rule="is the same when it is made alone, from candles that end when it is issued",
                got=f"{together.flat[0]:.7g} among other windows, {alone.flat[0]:.7g} alone",
                fix="Let it read only data known at each window, and use no random numbers",
            )
