"""Two methods of the literature on volatility: GARCH(1,1), and a regression of log ranges with a clock.

GARCH(1,1) (Bollerslev 1986, doi:10.1016/0304-4076(86)90063-1) is fitted to the log returns of the train span
by the package `arch`, as others fit it: mean zero, normal likelihood. Its variance of each bar ahead takes
the place of that of `scaled` and `ewma`. The regression is a heterogeneous autoregression in logarithms
(Corsi 2009) with waves of the day and the week (Andersen & Bollerslev 1997,
doi:10.1016/S0927-5398(97)00004-2): more of them than the features of any profile, up to eight a day, and the
hour and its half, because markets move at the quarters of the hour (Hansen, Kim & Kimbrough 2024, Journal of
Financial Econometrics).

Both are offered where `arch` is installed. The regression needs no package; it is offered together with the
other because most runs have no use for either, and each costs as much as the other baselines.

Legend: N windows, H steps of the horizon, L terms, R rows of a table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from v8.base.arrays import FloatArray
from v8.base.regression import least_squares
from v8.data.windows.span import LEAST_PERIODS, Span
from v8.model.baselines import ranges
from v8.profile.columns import CLOSE, RANGE_BARS
from v8.profile.formulas import PERIODS_S, wave

WAVES_OF_DAY: Final = (1, 2, 3, 4, 5, 6, 7, 8, 24, 48)
"""Waves of the day that are terms, where a wave has two bars or more; 24 and 48 are the hour and its half."""
WAVES_OF_WEEK: Final = (1, 2)


@dataclass(frozen=True)
class Garch:
    """The variance of the next return: constant + of_square x squared return + of_variance x variance."""

    constant: float  # squared log return
    of_square: float  # unitless
    of_variance: float  # unitless

    def variances(self, span: Span) -> FloatArray:
        """Forecast the mean variance of the bars up to each step, (N, H), in squared log returns."""
        added_R = self.constant + self.of_square * np.square(log_returns(span))
        variance = 0.0
        next_variances = []
        for added in added_R.tolist():
            variance = added + self.of_variance * variance
            next_variances.append(variance)
        ahead_N = np.array(next_variances)[span.anchors]
        variances = []
        for _ in range(span.horizon_bars):
            variances.append(ahead_N)
            ahead_N = self.constant + (self.of_square + self.of_variance) * ahead_N
        steps = np.arange(1.0, span.horizon_bars + 1)
        return np.asarray(np.cumsum(np.stack(variances, axis=1), axis=1) / steps)


def log_returns(span: Span) -> FloatArray:
    """Return the log return of every row, (R,), zero where the row before is of another segment."""
    returns_R = np.diff(np.log(span.table.column(CLOSE).astype(np.float64)), prepend=np.nan)
    is_first = np.diff(span.table.segment, prepend=-1) != 0
    return np.where(is_first, 0.0, returns_R)


def fit_garch(train: Span, arch_model: Callable[..., Any]) -> Garch:
    """Fit to the returns from the first to the last known row of the train span.

    Args:
        train: The train span.
        arch_model: The function of that name of the package `arch`.
    """
    returns = log_returns(train)[int(train.anchors[0]) : int(train.anchors[-1]) + 1]
    deviation = float(returns.std())
    if deviation == 0.0:
        return Garch(0.0, 0.0, 0.0)  # nothing moves
    # In units of the deviation, in which the optimiser works well.
    model = arch_model(returns / deviation, mean="Zero", vol="GARCH", p=1, q=1, rescale=False)
    fitted = model.fit(disp="off", show_warning=False).params
    return Garch(
        constant=float(fitted["omega"]) * deviation**2,
        of_square=float(fitted["alpha[1]"]),
        of_variance=float(fitted["beta[1]"]),
    )


def fit_log_har_clock(train: Span) -> Callable[[Span], dict[str, FloatArray]]:
    """Fit the log range of each bar ahead to past ranges and the clock, then the moves of every task.

    The moves follow from the ranges as in the regression of the ensemble (`v8.model.baselines.ranges`).
    """
    floor, logs_NH = ranges.floored_logs(train)
    past = ranges.RangeTerms(RANGE_BARS)
    smallest = float(np.log(floor))
    largest = float(logs_NH.max())

    def terms(span: Span) -> FloatArray:
        return np.concatenate([past.terms(span, floor), _clock(span, len(train))], axis=1)

    fitted_LH = least_squares(terms(train), logs_NH)

    def forecast_ranges(span: Span) -> FloatArray:
        is_moving_N1 = (span.mean_range(RANGE_BARS[-1]) > 0)[:, None]  # a flat market stays flat
        ranges_NH = np.exp(np.clip(terms(span) @ fitted_LH, smallest, largest))
        return np.asarray(ranges_NH * is_moving_N1)

    moves = ranges.fit_moves(train, ranges.by_step(train, forecast_ranges(train)))
    return lambda span: ranges.move_by(span, moves, ranges.by_step(span, forecast_ranges(span)))


def _clock(span: Span, num_train: int) -> FloatArray:
    """Return the waves of the clock at the newest bar, (N, L), that a train span of so many windows holds."""
    bar_s = span.table.series.bar_s
    open_time_s = span.table.open_time_s[span.anchors].astype(np.float64)
    waves = []
    for period, counts in (("day", WAVES_OF_DAY), ("week", WAVES_OF_WEEK)):
        period_s = PERIODS_S[period]
        if num_train * bar_s < LEAST_PERIODS * period_s:
            continue
        for num_waves in counts:
            if 2 * bar_s * num_waves > period_s:
                continue  # a wave of less than two bars cannot be told from a longer one
            for is_cosine in (False, True):
                waves.append(wave(open_time_s, period_s, num_waves, is_cosine))
    return np.stack(waves, axis=1) if waves else np.zeros((len(span), 0))
