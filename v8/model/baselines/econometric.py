"""Two methods of the literature on volatility: GARCH(1,1), and a regression of log ranges with a clock.

GARCH(1,1) (Bollerslev 1986, doi:10.1016/0304-4076(86)90063-1) is fitted to the log returns of the train span
by the package `arch`, as others fit it: mean zero, normal likelihood. Its variance of each bar ahead takes
the place of that of `scaled` and `ewma`; it is offered where `arch` is installed. The regression is a
heterogeneous autoregression in logarithms (Corsi 2009) with waves of the day and the week (Andersen &
Bollerslev 1997, doi:10.1016/S0927-5398(97)00004-2), all that `v8.profile.columns.WAVES` names, whatever
features a profile has. It needs no package.

Legend: N windows, H steps of the horizon, L terms, R rows of a table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from v8.base.arrays import FloatArray
from v8.data.span import Span
from v8.model.baselines import ranges
from v8.profile.columns import CLOSE, RANGE_BARS, WAVE_COLUMNS


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

    Ranges and moves are fitted as in the regression of the ensemble (`v8.model.baselines.ranges`).
    """
    floor, logs_NH = ranges.floored_logs(train)
    terms = ranges.RangeTerms(RANGE_BARS, waves=WAVE_COLUMNS)
    train_terms_NL = terms.terms(train, floor)
    fitted_LH = ranges.fit_with_waves(train, terms, train_terms_NL, logs_NH)
    smallest = float(np.log(floor))
    largest = float(logs_NH.max())

    def moved_by(span: Span, terms_NL: FloatArray) -> ranges.Terms:
        is_moving_N1 = (span.mean_range(RANGE_BARS[-1]) > 0)[:, None]  # a flat market stays flat
        ranges_NH = np.exp(np.clip(terms_NL @ fitted_LH, smallest, largest))
        return ranges.by_step(span, ranges_NH * is_moving_N1)

    train_terms_by_step = moved_by(train, train_terms_NL)
    del train_terms_NL, logs_NH  # of many rows hundreds of megabytes, which what follows needs, too
    moves = ranges.fit_moves(train, train_terms_by_step)
    return lambda span: ranges.move_by(span, moves, moved_by(span, terms.terms(span, floor)))
