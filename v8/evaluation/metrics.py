"""Errors of forecasts and of quantiles per step and column, and how often their direction is right.

Two units: *price* is the unit of the column (quote currency; volatility has none), *return* is the
error divided by the last known close, so that coins of any price compare (volatility, unitless as it
is, keeps its own unit in both). Percentages of scaled numbers do not appear anywhere: the same forecast
would score differently under every scaling.

Pinball losses say how good a quantile is; twice their mean over the levels is near the continuous ranked
probability score (CRPS; Gneiting and Raftery 2007, doi:10.1198/016214506000001437), of which the mean
absolute error is the case of one forecast without spread. An interval is honest where it holds the share of
actual values that it promises, and better the narrower it is.

Legend: N windows, H steps of the horizon, Q levels, I central intervals, C columns of a task.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from v8.columns import CLOSE, OHLC, TASK_OHLC
from v8.errors import SeriesError
from v8.evaluation.significance import num_effective
from v8.quantile_levels import intervals, pinball
from v8.records import Count, Number
from v8.tasks import TASKS
from v8.windows.span import Span

Floats = NDArray[np.floating[Any]]

Z_95: Final = 1.959963984540054
"""Standard normal quantile of 97.5 %: two-sided 95 %."""

FLAT_RETURN: Final = 2.0**-22
"""Forecast moves up to this return are rounding of float32 prices (two of their steps), no direction."""

MAX_ERROR: Final = 1e100
"""Errors are refused from here on: far beyond any price, and the squares of a span still have a sum."""

_TAME: Final = "Train again with a lower learning_rate or a clip_norm"

Cell = Annotated[Number, Field(ge=0, lt=MAX_ERROR)]
"""One error, 0 or above."""

Share = Annotated[Number, Field(ge=0, le=1)]
Cells = tuple[tuple[tuple[Cell, ...], ...], ...]


@dataclass(frozen=True)
class ErrorGrid:
    """Mean absolute errors, H rows of C cells in one unit; every mean over them follows from the cells."""

    cells: Annotated[tuple[tuple[Cell, ...], ...], Field(alias="by_step_and_column")]
    power: ClassVar[Literal[1, 2]] = 1

    @cached_property
    def overall(self) -> float:
        """Error over all steps and columns."""
        return self._mean(cell for row in self.cells for cell in row)

    @property
    def by_step(self) -> tuple[float, ...]:
        """Error of each step over all columns, first step first."""
        return tuple(self._mean(row) for row in self.cells)

    def _mean(self, cells: Iterable[float]) -> float:
        # fsum rounds once, so the means are the same to the last bit wherever they are recomputed.
        mean = _mean(cell**self.power for cell in cells)
        return math.sqrt(mean) if self.power == 2 else mean


@dataclass(frozen=True)
class SquaredErrorGrid(ErrorGrid):
    """Root mean squared errors per step and column, likewise."""

    power = 2


@dataclass(frozen=True)
class TaskErrors:
    """Errors of one forecaster on one task."""

    mae_price: ErrorGrid  # mean absolute errors in the unit of the column (quote currency, or unitless)
    rmse_price: SquaredErrorGrid  # root mean squared errors in that unit
    mae_return: ErrorGrid  # mean absolute errors as a share of the last close, unitless
    rmse_return: SquaredErrorGrid  # root mean squared errors as a share of the last close, unitless


@dataclass(frozen=True)
class StepDirection:
    """How often the forecast close of one step lay on the right side of the last close.

    Windows whose actual values end exactly at the last close have no direction to hit, and forecasts within
    `FLAT_RETURN` of it name none. Neither is a hit or a miss; both are counted here instead.
    """

    step: Count  # bars ahead, from 1
    num_hits: Count  # windows whose direction was right
    num_counted: Count  # windows in which actual values and forecast both had a direction
    num_rises: Count  # windows among the counted whose actual values rose: the hits of always saying "up"
    num_flat_actual: Count  # windows left out because the actual values did not move
    num_flat_forecast: Count  # further windows left out because the forecast did not
    num_effective: Number  # independent windows that would tell as much; at most as many, 0 when none counted

    @property
    def rate(self) -> float | None:
        """Share of counted windows that were right, 0 to 1; None when none was counted."""
        return self.num_hits / self.num_counted if self.num_counted else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the rate, for as many windows as are effective; None when none was counted."""
        rate = self.rate
        return None if rate is None else wilson_interval(rate * self.num_effective, self.num_effective)

    def adds_up(self, num_windows: int) -> bool:
        """Say whether the counts can be those of a span of so many windows."""
        num_all = self.num_counted + self.num_flat_actual + self.num_flat_forecast
        is_part = max(self.num_hits, self.num_rises) <= self.num_counted
        return num_all == num_windows and is_part and 0 <= self.num_effective <= max(1, self.num_counted)


@dataclass(frozen=True)
class QuantileErrors:
    """How one forecaster's quantiles of one task did."""

    pinball: Cells  # mean pinball losses in returns, Q x H x C, unitless
    coverage: tuple[
        tuple[tuple[Share, ...], ...], ...
    ]  # shares of actual values within each interval, I x H x C
    width: Cells  # mean widths of the intervals in returns, I x H x C, unitless

    @property
    def crps(self) -> float:
        """Twice the mean pinball loss over all levels, steps and columns, in returns."""
        return 2.0 * _mean_of(self.pinball)

    def mean_coverage(self, interval: int) -> float:
        """Return the share within an interval over all steps and columns."""
        return _mean_of(self.coverage[interval : interval + 1])

    def mean_width(self, interval: int) -> float:
        """Return the mean width of an interval over all steps and columns, in returns."""
        return _mean_of(self.width[interval : interval + 1])


def measure_errors(span: Span, task: str, forecast: Floats) -> tuple[TaskErrors, NDArray[np.float64]]:
    """Measure forecasts of one task, shape (N, H, C), in the task's unit.

    Returns errors per step and column in both units; and what each window adds to the mean absolute error in
    returns, shape (N,), unitless: their mean is `TaskErrors.mae_return.overall`. Raises `SeriesError` if the
    shape is not that of the actual values, or an error is no number or too large.
    """
    actual = span.actual[task]
    where = f"{span.table.series}, forecast of {task}"
    # NumPy would broadcast actual values of shape (N, 1, 4) against forecasts of shape (N, 4) without a word and
    # evaluate every window against every other one.
    if forecast.shape != actual.shape:
        rule = f"has the shape of its actual values, {actual.shape}"
        got = f"the shape {forecast.shape}"
        raise SeriesError(where=where, rule=rule, got=got, fix="Give it the axes (windows, steps, columns)")
    error = forecast.astype(np.float64) - actual
    relative = in_returns(task, error, span.last_close)
    largest = float(np.maximum(np.abs(error), np.abs(relative)).max())
    if not largest < MAX_ERROR:  # also true for NaN
        bad = [tuple(index) for index in np.argwhere(~np.isfinite(forecast)).tolist()]
        first = f" from {forecast[bad[0]]} at {bad[0]} ({len(bad)} such numbers in all)" if bad else ""
        rule = f"has errors below {MAX_ERROR:g}, which can be squared and averaged"
        raise SeriesError(where=where, rule=rule, got=f"{largest:.3g}{first}", fix=_TAME)
    return TaskErrors(*_grids(error), *_grids(relative)), np.abs(relative).mean(axis=(1, 2))


def measure_quantiles(
    span: Span, task: str, forecast: Floats, levels: Sequence[float]
) -> tuple[QuantileErrors, NDArray[np.float64]]:
    """Measure quantiles of one task, shape (N, H, Q, C), in the task's unit, at ascending levels.

    Returns what is evaluated; and what each window adds to the CRPS, shape (N,), unitless. Raises `SeriesError`
    if the shape is not that of actual values and levels, or a number is not finite.
    """
    actual_NHC = span.actual[task]
    num_windows, horizon, num_columns = actual_NHC.shape
    shape = (num_windows, horizon, len(levels), num_columns)
    if forecast.shape != shape or not np.isfinite(forecast).all():
        where = f"{span.table.series}, quantiles of {task}"
        got = f"the shape {forecast.shape}" if forecast.shape != shape else "others"
        raise SeriesError(where=where, rule=f"are finite numbers of the shape {shape}", got=got, fix=_TAME)
    by_level = dict(zip(levels, np.moveaxis(forecast.astype(np.float64), 2, 0), strict=True))
    losses_QNHC = np.stack(
        [
            in_returns(task, pinball(np, actual_NHC - one, level), span.last_close)
            for level, one in by_level.items()
        ]
    )
    coverage = []
    width = []
    for low, high in ([by_level[level] for level in pair] for pair in intervals(levels)):
        coverage.append(((low <= actual_NHC) & (actual_NHC <= high)).mean(axis=0))
        width.append(in_returns(task, high - low, span.last_close).mean(axis=0))
    errors = QuantileErrors(*map(_tuples, (losses_QNHC.mean(axis=1), coverage, width)))
    return errors, 2.0 * losses_QNHC.mean(axis=(0, 2, 3))


def in_returns(
    task: str, error_NHC: NDArray[np.float64], last_close_N: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Write errors in returns: as shares of the last close, or as they are where a task has no unit."""
    return error_NHC / last_close_N[:, None, None] if TASKS[task].is_price else error_NHC


def measure_direction(span: Span, ohlc: Floats) -> tuple[StepDirection, ...]:
    """Count how often the model's close moved from the last close as the actual values did.

    Forecasts are of open, high, low and close, shape (N, H, 4), quote currency. One entry per step, in order.
    """
    close = OHLC.index(CLOSE)
    last = span.last_close[:, None]
    actual_values = np.sign(span.actual[TASK_OHLC][:, :, close] - last)
    moves = ohlc[:, :, close].astype(np.float64) - last
    forecasts = np.where(np.abs(moves) <= FLAT_RETURN * last, 0.0, np.sign(moves))
    steps = []
    for step, (actual, forecast) in enumerate(zip(actual_values.T, forecasts.T, strict=True), start=1):
        is_counted = (actual != 0) & (forecast != 0)
        hits = (actual == forecast)[is_counted].astype(np.float64)
        one = StepDirection(
            step=step,
            num_hits=int(hits.sum()),
            num_counted=len(hits),
            num_rises=int(np.sum(is_counted & (actual > 0))),
            num_flat_actual=int(np.sum(actual == 0)),
            num_flat_forecast=int(np.sum((actual != 0) & (forecast == 0))),
            num_effective=num_effective(hits, step, span.bar_numbers[is_counted]) if len(hits) else 0.0,
        )
        steps.append(one)
    return tuple(steps)


def wilson_interval(num_hits: float, num_trials: float) -> tuple[float, float]:
    """Return the 95 % interval of a share, after Wilson (1927), doi:10.1080/01621459.1927.10502953.

    It assumes independent trials. Windows of a test span overlap: beyond step 1, neighbours share most
    of the bars they forecast. Pass the number of independent windows that would tell as much, which need
    not be whole, at least 1; see `v8.evaluation.significance.num_effective`. Returns both ends, 0 to 1.

    >>> [round(end, 4) for end in wilson_interval(8, 10)]
    [0.4902, 0.9433]
    """
    share = num_hits / num_trials
    shrink = 1.0 + Z_95**2 / num_trials
    centre = (share + Z_95**2 / (2 * num_trials)) / shrink
    spread = share * (1.0 - share) / num_trials + Z_95**2 / (4 * num_trials**2)
    reach = Z_95 / shrink * math.sqrt(spread)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def _grids(error: NDArray[np.float64]) -> tuple[ErrorGrid, SquaredErrorGrid]:
    mae = np.abs(error).mean(axis=0)
    rmse = np.sqrt((error**2).mean(axis=0))
    return ErrorGrid(_tuples(mae)), SquaredErrorGrid(_tuples(rmse))


def _tuples(values: Any) -> Any:
    """Write an array as tuples of numbers, so that it is compared and hashed by its cells."""
    cells = np.asarray(values)
    return tuple(map(_tuples if cells.ndim > 1 else float, cells))


def _mean(numbers: Iterable[float]) -> float:
    found = list(numbers)
    return math.fsum(found) / len(found)


def _mean_of(cells: Cells) -> float:
    return _mean(cell for level in cells for row in level for cell in row)
