"""Two formulas that say how far the coming bars range: `calibration: ensemble` adds them to a network.

Both begin with one regression: for each step the log range of that bar, by least squares on the log ranges
behind and, where the profile has them and the train span holds them often enough, on the waves of the day and
of the week (`v8.windows.span.unheld_waves`). Then

* the *regression* gives each step and column two coefficients, fitted to the smallest absolute error in
  returns: for candles of the walk that these ranges make and of the bar's own range, for bands and volatility
  of the deviation that follows and of roll-forward's own;
* the *paths* are those of `v8.formulas.range_paths`, walked with these ranges: bars that followed train
  windows, chosen evenly over the span.

Nothing here needs a profile's scaling, and beside open, high, low and close nothing of its features: ranges
are read from the window's candles, those over more bars than the window from the features that hold them.
So every network can have it at its side, however small its window.

A window that does not tell of the longest range does not know how wild the market is of late, and a
regression on the others expects it to become what it was in the train span. Where it has just changed that is
wrong, so it is believed by half: the other half is a regression that knows no level, in which ranges of any
size, all so many times larger, lead to ranges that much larger.

Who has how much say the validation span tells. Per task and step there are two factors from 0 to 1: how much
of the way from the regression to the paths, then how much of the way from their mean to the network. Each is
the one with the smallest absolute error in returns, and goes but half of the way from where it would be
without any knowledge: equal shares of regression and paths, which are hard to beat by fitted ones (Clemen
1989, doi:10.1016/0169-2070(89)90012-5), and none of the network, which was fitted to one season and errs most
where the market has just changed. Half of the way may still be far from a member that is much better than the
others; where the mix errs by more than `MOST_LOST` times what one of its members does, that one speaks alone.

Why both formulas: the paths know fat tails and how calm and wild bars follow each other, the regression is
fitted to the very errors that are judged. scripts/FRONTIER.md has the figures.

Legend: W windows, H steps of the horizon, L terms of a log range, R terms of a task,
Q levels, C columns of a task, M members.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from v8.columns import (
    OHLC,
    RANGE_BARS,
    RECENT_RANGE,
    TASK_OHLC,
    WAVE_COLUMNS,
    range_column,
)
from v8.formulas.range_paths import (
    NUM_PATHS,
    least_deviation,
    lent_bars,
    log_ranges,
    path_medians,
    path_quantiles,
    walk_windows,
)
from v8.profile import Profile
from v8.tasks import RANGE_TO_VARIANCE, TASKS, Closes, variance_weights
from v8.windows.regression import fit_without, least_absolute_errors, least_squares, weighted_median
from v8.windows.span import Floats, Span, unheld_waves

MEMBERS: Final = ("network", "regression", "paths")
"""Who forecasts, in the order of an ensemble's shares."""


@dataclass(frozen=True)
class KnownRanges:
    """The ranges behind of which a profile's windows tell.

    Args:
        from_candles: Bars whose mean range is read from the candles of the window.
        from_features: Bars whose range is a feature, as a share of the recent range.
        waves: Features that tell the time.
    """

    from_candles: tuple[int, ...]
    from_features: tuple[int, ...]
    waves: tuple[str, ...]

    @property
    def num_ranges(self) -> int:
        """Ranges among the terms; the last one is the longest."""
        return len(self.from_candles) + len(self.from_features)

    @property
    def has_level(self) -> bool:
        """Whether the longest of all ranges is among them."""
        return RANGE_BARS[-1] in (*self.from_candles, *self.from_features)

    @property
    def num_terms(self) -> int:
        """Terms of a log range, L."""
        return 1 + self.num_ranges + len(self.waves)


def known_ranges(profile: Profile) -> KnownRanges:
    """Say which ranges behind a profile's windows tell of, each once; long ones may be missing."""
    longer = [bars for bars in RANGE_BARS if bars > profile.lookback_bars]
    has_recent = RECENT_RANGE in profile.features
    return KnownRanges(
        tuple(bars for bars in RANGE_BARS if bars <= profile.lookback_bars),
        tuple(bars for bars in longer if has_recent and range_column(bars) in profile.features),
        tuple(name for name in WAVE_COLUMNS if name in profile.features),
    )


@dataclass(frozen=True, eq=False)
class RangeEnsemble:
    """Both formulas, fitted to one series.

    Args:
        floor: Deviation of a bar to which smaller ones are raised, unitless, above 0.
        most: Log range beyond which none is forecast: the largest of the train span.
        path_LH: Coefficients of the log range of each coming bar, shape (L, H).
        moves: Per task, coefficients of the regression, shape (H, R, C), returns per unit of a term.
        lent_PHC: The bars that paths are made of, see `v8.formulas.range_paths`.
    """

    floor: float
    most: float
    path_LH: Floats
    moves: Mapping[str, Floats]
    lent_PHC: Floats

    def ranges(self, span: Span) -> Floats:
        """Forecast the log range of each coming bar, shape (W, H), unitless."""
        forecast = _log_terms(span, self.floor) @ self.path_LH
        return np.exp(np.clip(forecast, np.log(self.floor), self.most))

    def regress(self, span: Span) -> dict[str, Floats]:
        """Forecast by the regression, per task, shape (W, H, C), in the task's unit."""
        terms = move_terms(np, span.standing, self.ranges(span))
        made = {}
        for task, coefficients_HRC in self.moves.items():
            moved_WHC = np.einsum("whr,hrc->whc", terms[TASKS[task].has_window], coefficients_HRC)
            made[task] = span.rolled[task] + moved_WHC * _unit(span, task)
        return made

    def walk(self, span: Span) -> dict[str, Floats]:
        """Forecast by the paths, per task, shape (W, H, C), in the task's unit."""
        return walk_windows(span, self.ranges(span), self.lent_PHC, partial(path_medians, np))

    def walk_quantiles(self, span: Span, levels: Sequence[float]) -> dict[str, Floats]:
        """Say the quantiles over the paths, per task, shape (W, H, Q, C), in the task's unit."""
        return walk_windows(span, self.ranges(span), self.lent_PHC, partial(path_quantiles, np, levels))


def fit_ensemble(train: Span) -> RangeEnsemble:
    """Fit both formulas to the train span alone."""
    ranges_WH = log_ranges(train.truth[TASK_OHLC])
    floor = least_deviation(ranges_WH)
    logs_WH = np.log(np.maximum(ranges_WH, floor))
    known = known_ranges(train.profile)
    unheld = [1 + known.num_ranges + place for place in unheld_waves(train, known.waves)]
    terms_WL = _log_terms(train, floor)
    path_LH = fit_without(unheld, lambda held_WK: fit_log_ranges(held_WK, logs_WH, known), terms_WL)
    most = float(logs_WH.max())
    unlent = np.empty((0, train.horizon_bars, len(OHLC)))
    forecast_WH = RangeEnsemble(floor, most, path_LH, {}, unlent).ranges(train)
    # Evenly over the span: as good as twice as many drawn by lot, see scripts/FRONTIER.md.
    chosen = np.linspace(0, len(train) - 1, NUM_PATHS // 2).round().astype(np.int64)
    moves = _fit_moves(train, forecast_WH)
    return RangeEnsemble(floor, most, path_LH, moves, lent_bars(train, forecast_WH, chosen))


def fit_log_ranges(terms_WL: Floats, logs_WH: Floats, known: KnownRanges) -> Floats:
    """Fit the coefficients of the log range of each coming bar, shape (L, H).

    Terms are one, the log ranges behind, the longest last, and the waves, if they are not left out.
    """
    fitted_LH = least_squares(terms_WL, logs_WH)
    if known.has_level:
        return fitted_LH
    return (fitted_LH + _fit_without_level(terms_WL, logs_WH, known.num_ranges)) / 2


def _fit_without_level(terms_WL: Floats, logs_WH: Floats, num_ranges: int) -> Floats:
    """Fit coefficients of which those of the ranges add up to one, shape (L, H)."""
    identity_LL = np.eye(terms_WL.shape[1])
    # What any other range has, the longest one lacks.
    basis_LK = np.delete(identity_LL, num_ranges, axis=1)
    basis_LK[num_ranges, 1:num_ranges] = -1.0
    free_KH = least_squares(terms_WL @ basis_LK, logs_WH - terms_WL[:, [num_ranges]])
    return np.asarray(identity_LL[:, [num_ranges]] + basis_LK @ free_KH)


def move_terms(xp: Any, standing: Closes, ranges: Any) -> dict[bool, Any]:
    """Compute the terms of the regression, (W, H, 2), in returns, by `Task.has_window`.

    Ranges are the log range of each coming bar, (W, H), unitless. Those with a window of closes are there
    where `standing`, the coming closes if the close stays where it is, has them.
    """
    squares = RANGE_TO_VARIANCE * xp.square(ranges)
    walk = [xp.sqrt(xp.cumsum(squares, axis=1)), xp.sqrt(squares)]
    terms = {False: xp.stack(walk, axis=-1)}
    if standing.deviation is not None:
        weights = variance_weights(ranges.shape[1]).T.astype(np.float32 if xp is not np else np.float64)
        widened = xp.sqrt(xp.square(standing.deviation) + xp.matmul(squares, weights))
        terms[True] = xp.stack([widened, standing.deviation], axis=-1)
    return terms


def _fit_moves(train: Span, ranges_WH: Floats) -> dict[str, Floats]:
    terms = move_terms(np, train.standing, ranges_WH)
    fitted = {}
    for task, truth_WHC in train.truth.items():
        moved_WHC = (truth_WHC - train.rolled[task]) / _unit(train, task)
        steps = zip(
            np.moveaxis(terms[TASKS[task].has_window], 1, 0), np.moveaxis(moved_WHC, 1, 0), strict=True
        )
        fitted[task] = np.stack([least_absolute_errors(*step) for step in steps]) * TASKS[task].is_moved
    return fitted


def _log_terms(span: Span, floor: float) -> Floats:
    """Return a constant, the floored log deviations behind and the waves, shape (W, L)."""
    known = known_ranges(span.profile)
    deviations = [np.sqrt(span.range_variance(bars)) for bars in known.from_candles]
    if known.from_features:
        shares_WX = span.known((RECENT_RANGE, *map(range_column, known.from_features)))
        deviations += [*(shares_WX[:, :1] * shares_WX[:, 1:]).T]
    logs = [np.log(np.maximum(one, floor)) for one in deviations]
    waves = span.known(known.waves).T if known.waves else ()
    return np.stack([np.ones(len(span)), *logs, *waves], axis=1)


def _unit(span: Span, task: str) -> Any:
    """What a return of one is in the task's unit."""
    return span.last_close[:, None, None] if TASKS[task].is_price else 1.0


MOST_LOST: Final = 1.02
"""Error of the mix over that of its best member, by step, up to which the mix is published: going half of the
way costs up to 0.5 % on the validation span of real candles, and that is meant."""


EQUAL_SHARE: Final = 0.5
"""Of two forecasts that count alike."""


@dataclass(frozen=True)
class TaskShares:
    """The network's share of the forecast of one task: a factor from 0 to 1 per step, unitless."""

    task: str
    factors: tuple[float, ...]
    anchor: str = "ensemble"
    """What the rest is; models from before have `constant` or `regression` in their files."""


@dataclass(frozen=True)
class Shares:
    """The network's shares of all tasks, in the profile's order."""

    tasks: tuple[TaskShares, ...]


def fit_shares(span: Span, said: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, Floats]:
    """Fit everybody's shares on the validation span: per task, (M, H) in the order of `MEMBERS`.

    Those of a step add up to one. `said` is what each member forecasts for these windows, per task, shape (W,
    H, C), in the task's unit.
    """
    shares = {}
    for task, truth_WHC in span.truth.items():
        members = [said[member][task].astype(np.float64) for member in MEMBERS]
        network, regressed, walked = members
        # Prices of a series weigh by their level alone, which hardly moves: no need of returns.
        paths_H = (EQUAL_SHARE + _factor(truth_WHC, regressed, walked)) / 2
        mean_WHC = regressed + paths_H[:, None] * (walked - regressed)
        network_H = _factor(truth_WHC, mean_WHC, network) / 2
        rest_H = 1.0 - network_H
        fitted_MH = np.stack([network_H, rest_H * (1.0 - paths_H), rest_H * paths_H])
        shares[task] = _without_loss(truth_WHC, members, fitted_MH)
    return shares


def mix(shares: Mapping[str, Floats], said: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, Floats]:
    """Return what the members forecast together, per task, shape (W, H, C)."""
    return {task: _mixed(one, (said[member][task] for member in MEMBERS)) for task, one in shares.items()}


def told_shares(shares: Mapping[str, Floats]) -> Shares:
    """Say what metadata holds of the shares: the network's."""
    kept = {task: shares_MH[MEMBERS.index("network")] for task, shares_MH in shares.items()}
    return Shares(tuple(TaskShares(task, tuple(map(float, kept_H))) for task, kept_H in kept.items()))


def _without_loss(truth_WHC: Floats, members: Sequence[Floats], shares_MH: Floats) -> Floats:
    """Leave the steps to the best member in which their mix errs by too much more than it, shape (M, H)."""
    mixed_WHC = _mixed(shares_MH, members)
    error_H, *errors = (np.abs(one - truth_WHC).mean(axis=(0, 2)) for one in (mixed_WHC, *members))
    best_H = np.argmin(errors, axis=0)
    alone_MH = (np.arange(len(members))[:, None] == best_H).astype(np.float64)
    return np.where(error_H > MOST_LOST * np.min(errors, axis=0), alone_MH, shares_MH)


def _mixed(shares_MH: Floats, members: Iterable[Floats]) -> Floats:
    return sum(share_H[:, None] * one for share_H, one in zip(shares_MH, members, strict=True))


def _factor(truth_WHC: Floats, start_WHC: Floats, end_WHC: Floats) -> Floats:
    """Fit how much of the way from start to end has the smallest absolute error, per step, shape (H,)."""
    asked, way = (
        np.moveaxis(one - start_WHC, 1, 2).reshape(-1, truth_WHC.shape[1]) for one in (truth_WHC, end_WHC)
    )
    ratios = np.divide(asked, way, out=np.zeros_like(asked), where=way != 0)
    return np.clip(weighted_median(ratios, np.abs(way)), 0.0, 1.0) + 0.0  # -0.0 is told as 0
