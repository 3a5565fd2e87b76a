"""What the forecasts of one model are measured by: errors, hit rates, and the importance of its inputs.

Errors of point forecasts and of quantiles are given per step and column.

Two units: *price* is the unit of the column (quote currency; volatility is unitless), *return* is the error
divided by the last known close, so that coins of any price can be compared (volatility, which is unitless, is
the same in both). There are no percentages of scaled numbers: the same forecast would score differently under
every scaling.

Pinball losses measure quantiles. Twice their mean over the levels approximates the continuous ranked
probability score (CRPS; Gneiting and Raftery 2007, doi:10.1198/016214506000001437). For a forecast of a
single number the CRPS is the absolute error. An interval is calibrated where its coverage is its nominal
level, and of calibrated intervals the narrower one is better. The open of the next bar is known up to the
rounding of its price: its intervals have no width, and whether they hold the actual value says nothing. Mean
coverage and mean width leave such steps and columns out; pinball losses, which are errors, count them.

Other studies of volatility and of probability forecasts report QLIKE, the interval score and the regression
of actual values on forecasts; with these, results are compared across studies.

Legend: N windows, H steps of the horizon, Q levels, I central intervals, C columns of a task; of importance
also W windows, T lookback, F features.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from v8.base.arrays import AnyFloatArray, FloatArray
from v8.base.errors import SeriesError
from v8.base.records import Count, Number, Word
from v8.base.wording import number
from v8.data.span import Span
from v8.model.evaluation.significance import diebold_mariano, num_effective
from v8.profile.columns import CLOSE, OHLC, TASK_OHLC, intervals, pinball, split_origin
from v8.profile.formulas import ANCHORED_KINDS
from v8.profile.indicators import FEATURES
from v8.profile.tasks import TASKS

Z_95: Final = 1.959963984540054
"""Standard normal quantile of 97.5 %: two-sided 95 %."""

FLAT_RETURN: Final = 2.0**-22
"""Forecast moves up to this return, two units in the last place of float32 prices, have no direction."""

MIN_WIDTH: Final = 2.0**-21
"""Intervals narrower than this share of the price, four units in the last place of float32, have no width."""

MAX_ERROR: Final = 1e100
"""Larger errors are refused: they are beyond any price. The squares of smaller ones can still be summed."""

_STABILISE_FIX: Final = "Train again with a lower learning_rate or a clip_norm"

Cell = Annotated[Number, Field(ge=0, lt=MAX_ERROR)]
"""One error, 0 or above."""

Share = Annotated[Number, Field(ge=0, le=1)]
Cells = tuple[tuple[tuple[Cell, ...], ...], ...]


@dataclass(frozen=True)
class ErrorGrid:
    """Mean absolute errors, H rows of C cells, all in one unit."""

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
        # math.fsum rounds once, so a mean is the same to the last bit wherever it is computed again.
        mean = _mean(cell**self.power for cell in cells)
        return math.sqrt(mean) if self.power == 2 else mean


@dataclass(frozen=True)
class SquaredErrorGrid(ErrorGrid):
    """Root mean squared errors, H rows of C cells, all in one unit."""

    power = 2


@dataclass(frozen=True)
class QlikeGrid:
    """Mean QLIKE losses of the squares of the values, H rows of C cells, unitless.

    A cell is None where no window has an actual value above zero, or a forecast is zero.
    """

    cells: Annotated[tuple[tuple[Cell | None, ...], ...], Field(alias="by_step_and_column")]

    @property
    def overall(self) -> float | None:
        """Loss over all steps and columns; None if a cell is."""
        cells = [cell for row in self.cells for cell in row]
        defined = [cell for cell in cells if cell is not None]
        return _mean(defined) if len(defined) == len(cells) else None


@dataclass(frozen=True)
class TaskErrors:
    """Errors of one forecaster on one task."""

    mae_price: ErrorGrid  # mean absolute errors in the unit of the column (quote currency, or unitless)
    rmse_price: SquaredErrorGrid  # root mean squared errors in that unit
    mae_return: ErrorGrid  # mean absolute errors as a share of the last close, unitless
    rmse_return: SquaredErrorGrid  # root mean squared errors as a share of the last close, unitless
    qlike: QlikeGrid | None = None  # of tasks of sizes, volatility and range; None for prices


@dataclass(frozen=True)
class StepDirection:
    """How often the forecast close of one step lay on the same side of the last close as the actual one.

    Windows whose actual close equals the last close have no direction, and neither do forecasts within
    `FLAT_RETURN` of it. They are neither hits nor misses, and are counted separately.
    """

    step: Count  # bars ahead, from 1
    num_hits: Count  # windows with a correct direction
    num_counted: Count  # windows in which actual values and forecast both have a direction
    num_rises: Count  # counted windows whose actual values rose: the hits of a forecast that always says "up"
    num_flat_actual: Count  # windows left out because the actual values did not move
    num_flat_forecast: Count  # further windows left out because the forecast did not move
    num_effective: Number  # effective sample size: at most `num_counted`, 0 if no window is counted

    @property
    def rate(self) -> float | None:
        """Hit rate, 0 to 1; None if no window is counted."""
        return self.num_hits / self.num_counted if self.num_counted else None

    @property
    def rise_rate(self) -> float | None:
        """Hit rate of a forecast that always says up: the base rate; None if no window is counted."""
        return self.num_rises / self.num_counted if self.num_counted else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the hit rate; None if no window is counted."""
        rate = self.rate
        return None if rate is None else wilson_interval(rate * self.num_effective, self.num_effective)

    def adds_up(self, num_windows: int) -> bool:
        """Return whether the counts are possible for a span of `num_windows` windows."""
        num_all = self.num_counted + self.num_flat_actual + self.num_flat_forecast
        is_part = max(self.num_hits, self.num_rises) <= self.num_counted
        return num_all == num_windows and is_part and 0 <= self.num_effective <= max(1, self.num_counted)


@dataclass(frozen=True)
class QuantileErrors:
    """Errors of one forecaster's quantiles of one task."""

    pinball: Cells  # mean pinball losses in returns, Q x H x C, unitless
    coverage: tuple[
        tuple[tuple[Share, ...], ...], ...
    ]  # share of actual values inside each interval, I x H x C
    width: Cells  # mean widths of the intervals in returns, I x H x C, unitless
    below: tuple[Share, ...]
    """Share of actual values at or below each quantile, Q, over steps and columns whose intervals have a
    width: its level, if it is calibrated."""
    below_margin: tuple[Cell | None, ...]
    """Half the width of the 95 % interval of each of these shares, Q; None with too few windows, or where the
    share is the same in every window."""
    score: tuple[Cell, ...]
    """Interval score (Winkler) of each interval over all steps and columns, I, in returns: its width plus
    weighted misses."""

    @property
    def between(self) -> tuple[float, ...]:
        """Shares of actual values between neighbouring quantiles, Q + 1, which add up to one.

        They are those of the histogram of the probability integral transform.
        """
        return tuple(np.diff([0.0, *self.below, 1.0]).tolist())

    @property
    def crps(self) -> float:
        """Continuous ranked probability score over all steps and columns, in returns."""
        return 2.0 * _mean_of(self.pinball)

    def mean_coverage(self, interval: int) -> float:
        """Return the share of actual values inside an interval, 0 to 1, where the intervals have a width."""
        return self._mean_with_width(self.coverage[interval])

    def mean_width(self, interval: int) -> float:
        """Return the mean width of an interval over the steps and columns that have one, in returns."""
        return self._mean_with_width(self.width[interval])

    def _mean_with_width(self, cells_HC: tuple[tuple[float, ...], ...]) -> float:
        """Average the cells whose widest interval has a width; all of them where none has."""
        values = [cell for row in cells_HC for cell in row]
        widths = [width for row in self.width[0] for width in row]
        with_width = [value for value, width in zip(values, widths, strict=True) if width >= MIN_WIDTH]
        return _mean(with_width or values)


def measure_errors(span: Span, task: str, forecast: AnyFloatArray) -> tuple[TaskErrors, NDArray[np.float64]]:
    """Measure the errors of forecasts of one task.

    Args:
        span: The windows.
        task: The name of the task.
        forecast: Shape (N, H, C), in the task's unit.

    Returns:
        Errors per step and column in both units; and the loss of each window, its mean absolute error in
        returns, shape (N,), unitless. The mean of the losses is `TaskErrors.mae_return.overall`.

    Raises:
        SeriesError: If the shape is not that of the actual values, or an error is not a number or too large.
    """
    actual = span.actual[task]
    location = f"{span.table.series}, forecast of {task}"
    # NumPy would silently broadcast actual values of shape (N, 1, 4) against forecasts of shape (N, 4), and
    # compare every window with every other one.
    if forecast.shape != actual.shape:
        rule = f"has the shape of its actual values, {actual.shape}"
        got = f"the shape {forecast.shape}"
        raise SeriesError(
            where=location, rule=rule, got=got, fix="Give it the axes (windows, steps, columns)"
        )
    error = forecast.astype(np.float64) - actual
    relative = in_returns(task, error, span.last_close)
    largest = float(np.maximum(np.abs(error), np.abs(relative)).max())
    if not largest < MAX_ERROR:  # also true for NaN
        bad = [tuple(index) for index in np.argwhere(~np.isfinite(forecast)).tolist()]
        first = f" from {forecast[bad[0]]} at {bad[0]} ({len(bad)} such numbers in all)" if bad else ""
        rule = f"has errors below {MAX_ERROR:g}, which can be squared and averaged"
        raise SeriesError(where=location, rule=rule, got=f"{largest:.3g}{first}", fix=_STABILISE_FIX)
    errors = TaskErrors(
        mae_price=_absolute_errors(error),
        rmse_price=_squared_errors(error),
        mae_return=_absolute_errors(relative),
        rmse_return=_squared_errors(relative),
        qlike=None if TASKS[task].is_price else _qlike_grid(actual, forecast.astype(np.float64)),
    )
    losses = np.abs(relative).mean(axis=(1, 2))
    return errors, losses


def measure_quantiles(
    span: Span, task: str, forecast: AnyFloatArray, levels: Sequence[float]
) -> tuple[QuantileErrors, NDArray[np.float64]]:
    """Measure the errors of quantiles of one task.

    Args:
        span: The windows.
        task: The name of the task.
        forecast: Shape (N, H, Q, C), in the task's unit.
        levels: The Q levels, ascending.

    Returns:
        The errors; and the loss of each window, its CRPS in returns, shape (N,), unitless.

    Raises:
        SeriesError: If the shape is not that of actual values and levels, or a number is not finite.
    """
    actual_NHC = span.actual[task]
    num_windows, horizon, num_columns = actual_NHC.shape
    shape = (num_windows, horizon, len(levels), num_columns)
    if forecast.shape != shape or not np.isfinite(forecast).all():
        location = f"{span.table.series}, quantiles of {task}"
        got = f"the shape {forecast.shape}" if forecast.shape != shape else "others"
        rule = f"are finite numbers of the shape {shape}"
        raise SeriesError(where=location, rule=rule, got=got, fix=_STABILISE_FIX)
    by_level = dict(zip(levels, np.moveaxis(forecast.astype(np.float64), 2, 0), strict=True))
    losses = []
    for level, quantile_NHC in by_level.items():
        loss_NHC = pinball(np, actual_NHC - quantile_NHC, level)
        losses.append(in_returns(task, loss_NHC, span.last_close))
    losses_QNHC = np.stack(losses)
    coverage = []
    width = []
    score = []
    for low_level, high_level in intervals(levels):
        low_NHC = by_level[low_level]
        high_NHC = by_level[high_level]
        coverage.append(((low_NHC <= actual_NHC) & (actual_NHC <= high_NHC)).mean(axis=0))
        width.append(in_returns(task, high_NHC - low_NHC, span.last_close).mean(axis=0))
        scores_NHC = interval_scores(actual_NHC, low_NHC, high_NHC, high_level - low_level)
        score.append(float(in_returns(task, scores_NHC, span.last_close).mean()))
    has_width_HC = np.array(width[0]) >= MIN_WIDTH if width else np.ones((horizon, num_columns), bool)
    if not has_width_HC.any():
        has_width_HC[:] = True
    below = []
    below_margin = []
    for quantile_NHC in by_level.values():
        share_N = (actual_NHC <= quantile_NHC)[:, has_width_HC].mean(axis=1)
        below.append(float(share_N.mean()))
        # Windows overlap and volatility lasts: the long-run variance of a test is that of this mean, too.
        below_margin.append(diebold_mariano(share_N, horizon_bars=horizon).margin_95)
    errors = QuantileErrors(
        pinball=_tuples(losses_QNHC.mean(axis=1)),
        coverage=_tuples(coverage),
        width=_tuples(width),
        below=tuple(below),
        below_margin=tuple(below_margin),
        score=tuple(score),
    )
    return errors, 2.0 * losses_QNHC.mean(axis=(0, 2, 3))


def in_returns(
    task: str, error_NHC: NDArray[np.float64], last_close_N: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Divide errors by the last close; errors of a task that is unitless are returned unchanged."""
    return error_NHC / last_close_N[:, None, None] if TASKS[task].is_price else error_NHC


def measure_direction(span: Span, ohlc: AnyFloatArray) -> tuple[StepDirection, ...]:
    """Count how often the forecast and the actual close moved from the last close in the same direction.

    Args:
        span: The windows.
        ohlc: Forecasts of open, high, low and close, shape (N, H, 4), quote currency.

    Returns:
        One entry per step, in order.
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
        num_independent = 0.0
        if len(hits):
            num_independent = num_effective(hits, step, span.bar_numbers[is_counted])
        direction = StepDirection(
            step=step,
            num_hits=int(hits.sum()),
            num_counted=len(hits),
            num_rises=int(np.sum(is_counted & (actual > 0))),
            num_flat_actual=int(np.sum(actual == 0)),
            num_flat_forecast=int(np.sum((actual != 0) & (forecast == 0))),
            num_effective=num_independent,
        )
        steps.append(direction)
    return tuple(steps)


def wilson_interval(num_hits: float, num_trials: float) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share, 0 to 1.

    After Wilson (1927), doi:10.1080/01621459.1927.10502953. It assumes independent trials, but windows of a
    test span overlap: beyond step 1, neighbouring windows share most of the bars that they forecast. So pass
    the effective sample size (`v8.model.evaluation.significance.num_effective`), at least 1, which need not
    be an integer.

    >>> [round(end, 4) for end in wilson_interval(8, 10)]
    [0.4902, 0.9433]
    """
    share = num_hits / num_trials
    shrink = 1.0 + Z_95**2 / num_trials
    centre = (share + Z_95**2 / (2 * num_trials)) / shrink
    spread = share * (1.0 - share) / num_trials + Z_95**2 / (4 * num_trials**2)
    reach = Z_95 / shrink * math.sqrt(spread)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def _absolute_errors(error_NHC: NDArray[np.float64]) -> ErrorGrid:
    return ErrorGrid(_tuples(np.abs(error_NHC).mean(axis=0)))


def _squared_errors(error_NHC: NDArray[np.float64]) -> SquaredErrorGrid:
    return SquaredErrorGrid(_tuples(np.sqrt((error_NHC**2).mean(axis=0))))


def _qlike_grid(actual_NHC: NDArray[np.float64], forecast_NHC: NDArray[np.float64]) -> QlikeGrid:
    losses_NHC = qlike(np.square(actual_NHC), np.square(forecast_NHC))
    is_defined = ~np.isnan(losses_NHC)
    sums_HC = np.where(is_defined, losses_NHC, 0.0).sum(axis=0)
    means_HC = np.divide(
        sums_HC, is_defined.sum(axis=0), out=np.full_like(sums_HC, np.inf), where=is_defined.any(axis=0)
    )
    rows = [[float(cell) if cell < MAX_ERROR else None for cell in row] for row in means_HC]
    return QlikeGrid(tuple(tuple(row) for row in rows))


def _tuples(values: Any) -> Any:
    """Return an array as nested tuples of floats, which can be compared and hashed."""
    return _frozen(np.asarray(values, np.float64).tolist())


def _frozen(cells: Any) -> Any:
    """Return nested lists as tuples; a number is returned as it is."""
    return tuple(map(_frozen, cells)) if isinstance(cells, list) else cells


def _mean(numbers: Iterable[float]) -> float:
    values = list(numbers)
    return math.fsum(values) / len(values)


def _mean_of(cells: Cells) -> float:
    return _mean(cell for level in cells for row in level for cell in row)


IMPORTANCE_WINDOWS: Final = 256  # windows that are used at most; they take 3 s of a core with `frontier`
PERMUTATION_SEED: Final = 2001
INPUT_KINDS: Final = {
    "clock": r"(day|week)_",
    "volume": r"volume",
    "bands": r"bb_|rolled_",
    "ranges": r"(recent_)?range|realised_|volatility|atr",
    "candles": r"(open|high|low|close)$",
}
"""Kinds of inputs of the series itself, by the pattern that their names begin with; all others are moves."""

Importance: TypeAlias = Mapping[Word, Mapping[Word, Number]]
"""Error with one kind of inputs permuted divided by the error without, by kind and task, unitless."""


def kind_of(name: str) -> str:
    """Return the kind of an input.

    >>> kind_of("range_240"), kind_of("rsi"), kind_of("BTCUSDT.close")
    ('ranges', 'moves', 'beside')
    """
    origin, plain_name = split_origin(name)
    if origin:
        return "beside"
    for kind, beginning in INPUT_KINDS.items():
        if re.match(beginning, plain_name):
            return kind
    return "moves"


def measure_importance(span: Span, forecast: Callable[[NDArray[np.float32]], Any]) -> Importance:
    """Measure by how much a model's error grows when one kind of its inputs is permuted.

    Some windows are taken at equal distances. One kind of inputs at a time is replaced by the same inputs of
    another window, chosen at random (Breiman 2001, doi:10.1023/A:1010933404324). Inputs are permuted by
    kinds, because inputs of one kind can replace each other. Prices and amounts are scaled to the newest
    close of the window that receives them, because models read them relative to it.

    Args:
        span: Windows that the model was not fitted to.
        forecast: Takes raw windows, shape (W, T, F), float32; returns the model's `Forecasts`.
    """
    chosen = Span(span.table, span.profile, span.anchors[:: -(-len(span) // IMPORTANCE_WINDOWS)])
    windows_WTF = chosen.raw_windows()
    names = span.profile.features
    donor_W = np.random.default_rng(PERMUTATION_SEED).permutation(len(chosen))
    in_closes_F = np.array([FEATURES[name].kind in ANCHORED_KINDS for name in names])
    ratio_W1 = (chosen.last_close / chosen.last_close[donor_W])[:, None]
    donated_WTF = windows_WTF[donor_W] * np.where(in_closes_F, ratio_W1, 1.0)[:, None]

    def mean_errors(permuted_kind: str) -> dict[str, float]:
        is_permuted_F = np.array([kind_of(name) == permuted_kind for name in names])
        permuted_WTF = np.where(is_permuted_F, donated_WTF, windows_WTF).astype(np.float32)
        points = forecast(permuted_WTF).points
        errors = {}
        for task, actual in chosen.actual.items():
            scaled = (points[task] - actual) / chosen.unit(task)
            errors[task] = float(np.abs(scaled).mean())
        return errors

    unchanged = mean_errors("")  # no input is of the kind "": nothing is permuted
    return {
        kind: {task: error / (unchanged[task] or 1.0) for task, error in mean_errors(kind).items()}
        for kind in dict.fromkeys(map(kind_of, names))
    }


def importance_rows(importances: Sequence[Importance]) -> list[list[str]]:
    """Return the rows of a table of medians over models: a row per kind, a column per task.

    The rows are sorted by the last task, the most important kind first.
    """
    medians = {
        kind: [median(importance[kind][task] for importance in importances) for task in tasks]
        for kind, tasks in importances[0].items()
    }
    ranked = sorted(medians.items(), key=lambda row: -row[1][-1])
    return [[kind, *map(number, values)] for kind, values in ranked]


def qlike(actual_N: FloatArray, forecast_N: FloatArray) -> FloatArray:
    """Return the QLIKE loss of variance forecasts: a / f - log(a / f) - 1, unitless, 0 or above.

    After Patton (2011), doi:10.1016/j.jeconom.2010.03.034: it is zero for the actual variance, and the best
    forecast is the mean variance even where the actual one is a noisy proxy.

    It is not defined for an actual variance of zero, a window in which nothing moved; its loss is NaN. Leave
    such windows out with `numpy.nanmean`. A forecast of zero has an infinite loss.

    Args:
        actual_N: Actual variances, or an unbiased proxy such as squared returns; any shape, 0 or above.
        forecast_N: Forecast variances, same shape and unit, 0 or above.
    """
    is_defined = actual_N > 0
    losses = np.full(np.shape(actual_N), np.nan)
    with np.errstate(divide="ignore"):
        ratio = np.divide(actual_N, forecast_N, out=np.ones_like(losses), where=is_defined)
    is_finite = is_defined & np.isfinite(ratio)
    losses[is_defined] = np.inf
    losses[is_finite] = ratio[is_finite] - 1.0 - np.log(ratio[is_finite])
    return losses


def interval_scores(actual_N: FloatArray, low_N: FloatArray, high_N: FloatArray, share: float) -> FloatArray:
    """Return the interval score of each window, in the unit of the values: its width plus weighted misses.

    After Winkler (1972), doi:10.1080/01621459.1972.10481224.

    Args:
        actual_N: Actual values, any shape.
        low_N: Lower ends, same shape.
        high_N: Upper ends, same shape.
        share: Nominal coverage of the interval, above 0 and below 1.
    """
    misses = np.maximum(low_N - actual_N, 0.0) + np.maximum(actual_N - high_N, 0.0)
    return np.asarray(high_N - low_N + 2.0 / (1.0 - share) * misses)


@dataclass(frozen=True)
class CalibrationLine:
    """The least-squares line actual value = intercept + slope x forecast."""

    intercept: Number  # in the unit of the values; 0 without bias
    slope: Number  # unitless; 1 without bias, below 1 where the forecast moves too much
    r_squared: Number  # share of the variance of the actual values that the line explains, 0 to 1


def mincer_zarnowitz(actual_N: FloatArray, forecast_N: FloatArray) -> CalibrationLine | None:
    """Regress actual values on forecasts; None if the forecast is the same in every window.

    After Mincer & Zarnowitz (1969): the intercept is 0 and the slope 1 for a forecast without bias.
    """
    forecast_mean = math.fsum(forecast_N) / len(forecast_N)
    actual_mean = math.fsum(actual_N) / len(actual_N)
    forecast_moves = forecast_N - forecast_mean
    actual_moves = actual_N - actual_mean
    spread = float(forecast_moves @ forecast_moves)
    if np.ptp(forecast_N) == 0.0 or spread == 0.0:
        return None
    slope = float(forecast_moves @ actual_moves) / spread
    total = float(actual_moves @ actual_moves)
    explained = slope**2 * spread / total if total else 1.0
    return CalibrationLine(
        intercept=actual_mean - slope * forecast_mean, slope=slope, r_squared=min(explained, 1.0)
    )
