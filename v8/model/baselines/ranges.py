"""Two formulas that forecast the ranges of future bars, and from these prices, bands and volatility.

Both start with one regression: for each step the log range of that bar, by least squares on past log ranges
and, if the profile has them and the train span contains their periods often enough, on the waves of day and
week (`v8.data.span.undersampled_waves`), whose coefficients are shrunk to zero. Then

* the *paths*: filtered historical simulation (Barone-Adesi, Giannopoulos & Vosper 1999). The bars that
  followed windows of the train span, as log ratios of open, high, low and close to the close before, are
  divided by the range forecast for them, and multiplied by the range forecast now. So fat tails and the order
  of calm and wild bars are preserved. Candles, bands and volatility are computed on each path, and their
  medians are the forecast. Every path is used twice, as it is and mirrored, because the direction cannot be
  forecast.
* the *regression*: two coefficients for each step and column, fitted with the smallest absolute error in
  returns, by which forecasts are evaluated. The terms are, for candles, the deviation of the random walk that
  the forecast ranges imply and the bar's own range; for bands and volatility, the deviation that follows and
  that of the naive forecast.

The baseline `range_paths` uses the paths and past ranges only. It is computed with `numpy`, in the single
precision of the published file of the profile of that name, which uses `keras.ops`; both simulate the paths
as `v8.model.baselines.paths` does. The ensemble uses both formulas, with bars that are chosen at equal
distances in the train span; `calibration: ensemble` adds it to a network. It needs no scaling and, in
addition to open, high, low and close, no features: ranges are computed from the candles of the window, and
ranges over more bars than the window are read from features. So it can be combined with any network, however
short its window.

If neither window nor features contain the longest range, the present level of volatility is not known, and a
regression on the other ranges predicts a return to the level of the train span, which is wrong after the
level has changed. Therefore its coefficients are averaged with those of a regression that is independent of
the level: multiplying all ranges by a factor multiplies the forecast by it.

The weights of network, regression and paths are fitted on the validation span: two factors from 0 to 1 per
task and step, the position between regression and paths, and the position between their mean and the network.
Each has the smallest absolute error in returns and is then shrunk halfway to a prior: equal weights of
regression and paths, which are hard to improve on by fitted ones (Clemen 1989,
doi:10.1016/0169-2070(89)90012-5), and weight zero for the network, which was fitted to one period and has its
highest errors after the market has changed. The result may still be much worse than its best member; where
its error is more than `MAX_ERROR_RATIO` times that of a member, this member is used alone.
docs/research/frontier.md has the figures.

Legend: W windows, H steps of the horizon, L terms of a log range, R terms of a task, P paths, Q levels, O of
them beside the median, C columns of a task, M members.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from v8.base.arrays import (
    FloatArray,
    fit_without,
    least_absolute_errors,
    least_squares,
    reduced_rows,
    weighted_median,
)
from v8.data.span import Span, undersampled_waves
from v8.model.baselines.paths import MIRRORED, mirrored_path_quantiles
from v8.profile.columns import (
    CLOSE,
    HIGH,
    LOW,
    MEDIAN,
    OHLC,
    OPEN_TIME,
    RANGE_BARS,
    RECENT_RANGE,
    TASK_OHLC,
    WAVE_COLUMNS,
    apart,
    outer,
    range_column,
    split_wave,
)
from v8.profile.formulas import FLOOR_SHARE, PERIODS_S, RANGE_TO_VARIANCE
from v8.profile.indicators import computed_rows
from v8.profile.profile import Profile
from v8.profile.tasks import (
    TASKS,
    Closes,
    variance_weights,
)

MEMBERS: Final = ("network", "regression", "paths")
"""Members of an ensemble, in the order of its shares."""

NUM_PATHS: Final = 512  # paths of a window, half of them mirror images of the others

PATH_LAYERS: Final = ("ensemble_paths", "paths")
"""Names of the layers that compute the paths in published models: with an ensemble, and in `range_paths`."""

MAX_MULTIPLE: Final = 20.0
"""Upper limit of returns in forecast ranges: after an hour without trades any move is huge."""

SEED: Final = 1999  # of all random numbers: the same candles give the same forecast


@dataclass(frozen=True)
class RangeTerms:
    """The past ranges that a profile's windows contain: terms of the regression of log ranges."""

    from_candles: tuple[int, ...]  # horizons, in bars, whose mean range is computed from the window's candles
    from_features: tuple[int, ...] = ()  # horizons whose range is a feature, relative to the recent range
    waves: tuple[str, ...] = ()  # columns that encode the time

    @property
    def num_ranges(self) -> int:
        """Number of ranges among the terms; the last one is the longest."""
        return len(self.from_candles) + len(self.from_features)

    @property
    def has_level(self) -> bool:
        """Whether the longest of all ranges is among the terms."""
        return RANGE_BARS[-1] in self.from_candles or RANGE_BARS[-1] in self.from_features

    def terms(self, span: Span, floor: float) -> FloatArray:
        """Return a constant, the past log deviations, at least log(floor), and the waves, shape (W, L)."""
        deviations = [np.sqrt(span.range_variance(bars)) for bars in self.from_candles]
        if self.from_features:
            names = [range_column(bars) for bars in self.from_features]
            recent_W1 = span.known_values((RECENT_RANGE,))
            shares_WX = span.known_values(tuple(names))
            deviations += list((recent_W1 * shares_WX).T)
        logs = [np.log(np.maximum(deviation, floor)) for deviation in deviations]
        # Not from the table: baselines use waves that are no features of the profile.
        open_time_s = span.table.open_time_s[span.anchors].astype(np.float64)
        waves = computed_rows(self.waves, {OPEN_TIME: open_time_s})
        return np.stack([np.ones(len(span)), *logs, *waves.values()], axis=1)


def range_terms(profile: Profile) -> RangeTerms:
    """Return the past ranges and waves that a profile's windows contain; long ranges may be missing."""
    from_candles = [bars for bars in RANGE_BARS if bars <= profile.lookback_bars]
    from_features = []
    if RECENT_RANGE in profile.features:
        longer = [bars for bars in RANGE_BARS if bars > profile.lookback_bars]
        from_features = [bars for bars in longer if range_column(bars) in profile.features]
    waves = [name for name in WAVE_COLUMNS if name in profile.features]
    return RangeTerms(tuple(from_candles), tuple(from_features), tuple(waves))


@dataclass(frozen=True, eq=False)
class RangeFormula:
    """The formulas fitted to one series: the paths, and in an ensemble also the regression."""

    range_terms: RangeTerms  # terms of the log ranges
    floor: float  # lower limit of a bar's deviation, unitless, above 0
    path_LH: FloatArray  # coefficients of the log range of each future bar
    resampled_PHC: NDArray[Any]  # the bars of the paths, see `resampled_bars`, in the published precision
    bounds: tuple[float, float] = (-np.inf, np.inf)  # smallest and largest log range that is forecast
    moves: Mapping[str, FloatArray] = field(default_factory=dict)
    """Per task, coefficients (H, R, C) of the regression, in returns per unit of a term."""
    _ranges: WeakKeyDictionary[Span, FloatArray] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )
    """Ranges by the span that they were forecast for, as long as the span exists."""

    def ranges(self, span: Span) -> FloatArray:
        """Forecast the range of each future bar, shape (W, H), as a log ratio of high to low, unitless."""
        if span not in self._ranges:
            smallest, largest = self.bounds
            log_ranges_WH = self.range_terms.terms(span, self.floor) @ self.path_LH
            self._ranges[span] = np.exp(np.clip(log_ranges_WH, smallest, largest))
        return self._ranges[span]

    def path_bars(self, span: Span) -> FloatArray:
        """Return the bars of each path, log ratios to the close before, shape (W, H, C, P)."""
        return self.ranges(span)[:, :, None, None] * np.moveaxis(self.resampled_PHC, 0, -1)

    def simulate(
        self, span: Span, levels: Sequence[float], history_type: type[np.floating[Any]] = np.float64
    ) -> dict[str, FloatArray]:
        """Simulate the paths: quantiles per task, shape (W, H, Q, C), in its unit.

        The precision is that of the bars of the paths; known closes are divided by the last one in another.
        """
        half_HCP = np.moveaxis(self.resampled_PHC[: len(self.resampled_PHC) // 2], 0, -1)
        return mirrored_path_quantiles(
            levels,
            [TASKS[name] for name in span.profile.tasks],
            span.history_close.astype(history_type),
            self.ranges(span).astype(half_HCP.dtype),
            np.ascontiguousarray(half_HCP),
        )

    def regress(self, span: Span) -> dict[str, FloatArray]:
        """Forecast by the regression, per task, shape (W, H, C), in the task's unit."""
        return move_by(span, self.moves, by_step(span, self.ranges(span)))

    def member_forecasts(
        self, span: Span, network: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, Mapping[str, NDArray[Any]]], dict[str, FloatArray]]:
        """Return the forecasts of all members of the ensemble by name and task, shape (W, H, C).

        Those of the network are given. Also returned are the distances of the outer quantiles of the paths
        from their median, per task, shape (W, H, O, C).
        """
        levels = span.profile.quantiles or (MEDIAN,)
        medians = {}
        distances = {}
        # In the precision of the graph, so that shares are fitted to what it forecasts.
        for task, quantiles in self.simulate(span, levels, np.float32).items():
            medians[task], distances[task] = apart(np, levels, quantiles)
        members = {"network": network, "regression": self.regress(span), "paths": medians}
        return members, distances


def fit_range_paths(train: Span) -> RangeFormula:
    """Fit the paths only to the train span; they read all past ranges from candles."""
    floor, logs_WH = floored_logs(train)
    terms = RangeTerms(RANGE_BARS)
    terms_WL = terms.terms(train, floor)
    path_LH = least_squares(terms_WL, logs_WH)
    drawn = np.random.default_rng(SEED).integers(len(train), size=NUM_PATHS // 2)
    resampled_PHC = resampled_bars(train, np.exp(terms_WL @ path_LH), drawn).astype(np.float32)
    return RangeFormula(range_terms=terms, floor=floor, path_LH=path_LH, resampled_PHC=resampled_PHC)


def fit_formulas(train: Span) -> RangeFormula:
    """Fit both formulas to the train span only."""
    floor, logs_WH = floored_logs(train)
    terms = range_terms(train.profile)
    terms_WL = terms.terms(train, floor)
    path_LH = fit_with_waves(train, terms, terms_WL, logs_WH)
    smallest = float(np.log(floor))
    largest = float(logs_WH.max())
    forecast_WH = np.exp(np.clip(terms_WL @ path_LH, smallest, largest))
    del terms_WL, logs_WH  # of many rows hundreds of megabytes, which what follows needs, too
    # At equal distances: as good as twice as many random ones, see docs/research/frontier.md.
    rows = np.linspace(0, len(train) - 1, NUM_PATHS // 2).round().astype(np.int64)
    return RangeFormula(
        range_terms=terms,
        floor=floor,
        path_LH=path_LH,
        resampled_PHC=resampled_bars(train, forecast_WH, rows).astype(np.float32),
        bounds=(smallest, largest),
        moves=fit_moves(train, by_step(train, forecast_WH)),
    )


def floored_logs(train: Span) -> tuple[float, FloatArray]:
    """Return the lower limit of deviations, and the log ranges of the future bars with it, shape (W, H)."""
    ranges_WH = np.empty((len(train), train.horizon_bars))
    for rows, piece in train.pieces():
        ohlc_WHC = piece.actual[TASK_OHLC]
        ranges_WH[rows] = np.log(ohlc_WHC[:, :, OHLC.index(HIGH)] / ohlc_WHC[:, :, OHLC.index(LOW)])
    tiny = float(np.finfo(np.float32).tiny)
    # The limit must be positive even if no bar has a range.
    typical = float(np.median(ranges_WH)) or max(float(ranges_WH.mean()), tiny)
    floor = FLOOR_SHARE * typical
    return floor, np.log(np.maximum(ranges_WH, floor))


HALF_TRUST_PERIODS: Final = 2
"""Days, or weeks, after which half of a daily or weekly rhythm is believed.

Of six coins in six folds at 15m and 1h, log ranges had the same error with 2, 4 and 8, and up to 31 % less
than without this shrinkage in the shortest train spans; docs/research/frontier.md.
"""


def fit_with_waves(train: Span, terms: RangeTerms, terms_WL: FloatArray, logs_WH: FloatArray) -> FloatArray:
    """Fit the coefficients of the log range of each future bar, shape (L, H), those of waves shrunk to zero.

    The fit sees, in addition to the train span, as many windows as `HALF_TRUST_PERIODS` periods of a wave
    hold, in which the wave had no influence: of a rhythm seen over n periods, n / (n + 2) is left. This is
    ridge regression. The mean square of a wave is one half, so these windows are one row each, with the root
    of half their number as the wave and zero as the log range. Waves that the span cannot show are left out.

    Args:
        train: The train span.
        terms: Description of the terms.
        terms_WL: The terms of the train span, `RangeTerms.terms`.
        logs_WH: Log ranges of the future bars.
    """
    num_others = 1 + terms.num_ranges
    periods_s = np.array([PERIODS_S[split_wave(name)[0]] for name in terms.waves])
    num_windows = HALF_TRUST_PERIODS * periods_s / train.table.series.bar_s
    added_XL = np.diag(np.concatenate([np.zeros(num_others), np.sqrt(num_windows / 2)]))[num_others:]
    reduced_XL, logs_XH = reduced_rows(terms_WL, logs_WH)
    rows_NL = np.concatenate([reduced_XL, added_XL])
    logs_NH = np.concatenate([logs_XH, np.zeros((len(added_XL), logs_WH.shape[1]))])
    left_out = [num_others + position for position in undersampled_waves(train, terms.waves)]
    return fit_without(left_out, lambda used_NK: fit_log_ranges(used_NK, logs_NH, terms), rows_NL)


def fit_log_ranges(terms_WL: FloatArray, logs_WH: FloatArray, terms: RangeTerms) -> FloatArray:
    """Fit the coefficients of the log range of each future bar, shape (L, H).

    Args:
        terms_WL: One, the past log ranges, the longest last, and the waves that are not left out.
        logs_WH: Log ranges of the future bars, in the rows that `fit_with_waves` adds zeros.
        terms: Description of the terms.
    """
    fitted_LH = least_squares(terms_WL, logs_WH)
    if terms.has_level:
        return fitted_LH
    return (fitted_LH + _fit_without_level(terms_WL, logs_WH, terms.num_ranges)) / 2


def _fit_without_level(terms_WL: FloatArray, logs_WH: FloatArray, num_ranges: int) -> FloatArray:
    """Fit coefficients under the constraint that those of the ranges sum to one, shape (L, H).

    Then a factor on all past ranges is a factor on the forecast range.
    """
    identity_LL = np.eye(terms_WL.shape[1])
    # The constraint is substituted: the coefficient of the longest range is one minus those of the other
    # ranges.
    basis_LK = np.delete(identity_LL, num_ranges, axis=1)
    basis_LK[num_ranges, 1:num_ranges] = -1.0
    free_KH = least_squares(terms_WL @ basis_LK, logs_WH - terms_WL[:, [num_ranges]])
    return np.asarray(identity_LL[:, [num_ranges]] + basis_LK @ free_KH)


def move_terms(xp: Any, naive_closes: Closes, ranges: Any) -> dict[bool, Any]:
    """Compute the terms of the regression, (W, H, 2), in returns, by `Task.has_window`.

    Args:
        xp: `numpy` or `keras.ops`.
        naive_closes: Future closes of the naive forecast; terms with a window exist if it has deviations.
        ranges: Log range of each future bar, (W, H), unitless.
    """
    variances = RANGE_TO_VARIANCE * xp.square(ranges)
    terms = {False: _walk_terms(xp, variances)}
    if naive_closes.deviation is not None:
        terms[True] = _window_terms(xp, variances, naive_closes.deviation)
    return terms


def _walk_terms(xp: Any, variances: Any) -> Any:
    """Return the deviation of a random walk with these variances at each step, and of the bar itself."""
    return xp.stack([xp.sqrt(xp.cumsum(variances, axis=1)), xp.sqrt(variances)], axis=-1)


def _window_terms(xp: Any, variances: Any, deviation: Any) -> Any:
    """Return the deviation of the twenty closes after moves of these variances, and that of naive ones."""
    weights = variance_weights(variances.shape[1]).T.astype(np.float32 if xp is not np else np.float64)
    widened = xp.sqrt(xp.square(deviation) + xp.matmul(variances, weights))
    return xp.stack([widened, deviation], axis=-1)


Terms: TypeAlias = Callable[[bool], Iterable[tuple[slice, FloatArray]]]
"""Maps `Task.has_window` to successive steps and the terms that these have in common, shape (W, R)."""


def by_step(span: Span, ranges_WH: FloatArray) -> Terms:
    """Return the terms of `move_terms` step by step, from the log range forecast for each future bar."""

    def of_tasks(has_window: bool) -> Iterable[tuple[slice, FloatArray]]:
        # One kind at a time, and in pieces: of a million windows each takes 160 MB, and so would what is
        # between.
        terms_WHR = np.empty((*ranges_WH.shape, 2))
        for rows, _ in span.pieces():
            variances_WH = RANGE_TO_VARIANCE * np.square(ranges_WH[rows])
            if has_window:
                terms_WHR[rows] = _window_terms(np, variances_WH, span.naive_closes.deviation[rows])
            else:
                terms_WHR[rows] = _walk_terms(np, variances_WH)
        for step, terms_WR in enumerate(np.moveaxis(terms_WHR, 1, 0)):
            yield slice(step, step + 1), terms_WR

    return of_tasks


def fit_moves(train: Span, terms: Terms, *, without: Sequence[str] = ()) -> dict[str, FloatArray]:
    """Fit the moves of every task with the smallest absolute errors: coefficients per task, (H, R, C).

    Columns that a range does not move have coefficients of zero, because a range has no direction. Tasks are
    fitted apart, so that none depends on which others a profile has, not even in the last bit.
    """
    fitted = {}
    moves = train.moves()
    for task in moves:
        if task in without:
            continue
        is_moved = TASKS[task].is_moved > 0
        moved_WHM = np.compress(is_moved, moves[task], axis=-1)  # the rest of many rows takes 100 MB
        parts = []
        for steps, terms_WR in terms(TASKS[task].has_window):
            targets_WSM = moved_WHM[:, steps]
            fitted_RX = least_absolute_errors(terms_WR, targets_WSM.reshape(len(train), -1))
            parts.append(fitted_RX.reshape(-1, *targets_WSM.shape[1:]).swapaxes(0, 1))
        fitted[task] = np.concatenate(parts) @ np.eye(len(is_moved))[is_moved]
    return fitted


def move_by(span: Span, fitted: Mapping[str, FloatArray], terms: Terms) -> dict[str, FloatArray]:
    """Forecast with the coefficients of `fit_moves`, per task, shape (W, H, C), in the task's unit."""
    forecasts = {}
    for task, fitted_HRC in fitted.items():
        moves_WHC = np.empty(span.target_shape(task))
        for steps, terms_WR in terms(TASKS[task].has_window):
            moves_WHC[:, steps] = np.matmul(terms_WR, fitted_HRC[steps]).swapaxes(0, 1)
        forecasts[task] = span.moved(task, moves_WHC)
    return forecasts


def resampled_bars(train: Span, forecast_WH: FloatArray, drawn: NDArray[np.int64]) -> FloatArray:
    """Return the bars that followed some train windows, and their mirror images.

    Args:
        train: Windows of the train span.
        forecast_WH: Range forecast for each bar, unitless and positive.
        drawn: Numbers of the windows, (D,).

    Returns:
        Log ratios to the close before, in multiples of the range forecast, shape (2 D, H, C).
    """
    ohlc = train.actual[TASK_OHLC][drawn]
    close_before = np.concatenate([train.last_close[drawn, None], ohlc[:, :-1, OHLC.index(CLOSE)]], axis=1)
    multiples = np.log(ohlc / close_before[:, :, None]) / forecast_WH[drawn][:, :, None]
    resampled = np.clip(multiples, -MAX_MULTIPLE, MAX_MULTIPLE)
    return np.concatenate([resampled, -resampled[:, :, MIRRORED]])


MAX_ERROR_RATIO: Final = 1.02
"""Largest ratio, by step, of the error of the mix to that of its best member; beyond it the member is used
alone. The shrinkage costs up to 0.5 % on the validation span of real candles, which is accepted."""


EQUAL_SHARE: Final = 0.5  # of two forecasts with equal weights


def fit_shares(span: Span, forecasts: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, FloatArray]:
    """Fit the weights of all members on the validation span: per task, (M, H) in the order of `MEMBERS`.

    The weights of a step sum to one.

    Args:
        span: Windows of the validation span.
        forecasts: Forecasts of each member for these windows, per task, shape (W, H, C), in the task's unit.
    """
    shares = {}
    for task, actual_WHC in span.actual.items():
        members = [forecasts[member][task].astype(np.float64) for member in MEMBERS]
        network, regressed, simulated = members
        # Errors of prices are not divided by the price: its level hardly changes within the span.
        paths_H = (EQUAL_SHARE + _factor(actual_WHC, regressed, simulated)) / 2
        mean_WHC = regressed + paths_H[:, None] * (simulated - regressed)
        network_H = _factor(actual_WHC, mean_WHC, network) / 2
        rest_H = 1.0 - network_H
        fitted_MH = np.stack([network_H, rest_H * (1.0 - paths_H), rest_H * paths_H])
        shares[task] = _without_loss(actual_WHC, members, fitted_MH)
    return shares


def network_alone(horizon_bars: int) -> FloatArray:
    """Return the weights of a task, (M, H), with which the network is used alone."""
    return np.repeat(np.eye(len(MEMBERS))[:, [MEMBERS.index("network")]], horizon_bars, axis=1)


def mix(
    shares: Mapping[str, FloatArray], forecasts: Mapping[str, Mapping[str, NDArray[Any]]]
) -> dict[str, FloatArray]:
    """Return the weighted mean of the members' forecasts, per task, shape (W, H, C)."""
    mixed = {}
    for task, shares_MH in shares.items():
        mixed[task] = _mixed(shares_MH, [forecasts[member][task] for member in MEMBERS])
    return mixed


def shares_metadata(shares: Mapping[str, FloatArray]) -> list[dict[str, Any]]:
    """Return the entries of the metadata: per task the network's weights, from 0 to 1 per step.

    The anchor names the forecast with the remaining weight; older models have `constant` or `regression`
    there.
    """
    entries = []
    for task, shares_MH in shares.items():
        network_H = shares_MH[MEMBERS.index("network")].tolist()
        entries.append({"task": task, "factors": network_H, "anchor": "ensemble"})
    return entries


def _without_loss(actual_WHC: FloatArray, members: Sequence[FloatArray], shares_MH: FloatArray) -> FloatArray:
    """Use the best member alone in steps in which the mix has a much higher error, shape (M, H)."""
    mixed_WHC = _mixed(shares_MH, members)
    mixed_error_H = np.abs(mixed_WHC - actual_WHC).mean(axis=(0, 2))
    errors_MH = [np.abs(member_WHC - actual_WHC).mean(axis=(0, 2)) for member_WHC in members]
    best_H = np.argmin(errors_MH, axis=0)
    alone_MH = (np.arange(len(members))[:, None] == best_H).astype(np.float64)
    is_worse_H = mixed_error_H > MAX_ERROR_RATIO * np.min(errors_MH, axis=0)
    return np.where(is_worse_H, alone_MH, shares_MH)


def _mixed(shares_MH: FloatArray, members: Iterable[FloatArray]) -> FloatArray:
    """Return the weighted sum of forecasts, shape (W, H, C)."""
    return sum(share_H[:, None] * member_WHC for share_H, member_WHC in zip(shares_MH, members, strict=True))


def _factor(actual_WHC: FloatArray, start_WHC: FloatArray, end_WHC: FloatArray) -> FloatArray:
    """Fit the factor f in start + f * (end - start) with the smallest absolute error, shape (H,)."""
    num_steps = actual_WHC.shape[1]
    target_NH = np.moveaxis(actual_WHC - start_WHC, 1, 2).reshape(-1, num_steps)
    difference_NH = np.moveaxis(end_WHC - start_WHC, 1, 2).reshape(-1, num_steps)
    ratios_NH = np.divide(target_NH, difference_NH, out=np.zeros_like(target_NH), where=difference_NH != 0)
    factors_H = np.clip(weighted_median(ratios_NH, np.abs(difference_NH)), 0.0, 1.0)
    return factors_H + 0.0  # turns -0.0 into 0.0


HALF_TRUST_WINDOWS: Final = 200
"""Number of independent windows at which half of a correction is applied. In three periods of real candles
the full correction cost up to 1 % of CRPS where the market changed, and coverage was as good with half of
it."""


def conformal_widths(
    levels: Sequence[float],
    actual: Mapping[str, NDArray[Any]],
    points: Mapping[str, FloatArray],
    distances: Mapping[str, FloatArray],
) -> dict[str, FloatArray]:
    """Return the factors by which the outer quantiles must be stretched to have their nominal coverage.

    The distances of the quantiles from the median are those of the paths times a factor. On the validation
    span the factor is the level's quantile of (actual values - median) / distance (conformalised quantile
    regression: Romano, Patterson and Candès 2019, arXiv:1905.03222, each side separately). Because windows
    overlap, few of them are independent, so only a share of the correction is applied (`trusted_share`).

    Args:
        levels: All levels, ascending.
        actual: Per task, (W, H, C).
        points: Median forecasts per task, (W, H, C).
        distances: Distances of the outer quantiles from a median, per task, (W, H, O, C).

    Returns:
        Factors per task, (H, O, C).
    """
    factors = {}
    for task, actual_WHC in actual.items():
        num_windows, horizon_bars, _ = actual_WHC.shape
        share = trusted_share(num_windows, horizon_bars)
        error_WHC = actual_WHC - points[task]
        fitted = []
        for number, level in enumerate(outer(levels)):
            distance_WHC = distances[task][:, :, number]
            # A distance of zero cannot be stretched: its factor does not matter.
            ratio_WHC = np.divide(
                error_WHC, distance_WHC, out=np.ones_like(error_WHC), where=distance_WHC != 0
            )
            fitted.append(_conformal_quantile(ratio_WHC, max(level, 1 - level)))
        correction_HOC = np.stack(fitted, axis=1) - 1.0
        factors[task] = np.maximum(1.0 + share * correction_HOC, 0.0)
    return factors


def trusted_share(num_windows: int, horizon_bars: int) -> float:
    """Return the share of a correction to apply that was fitted to windows overlapping by their horizons.

    >>> trusted_share(2_000, 10)
    0.5
    """
    num_independent = num_windows / horizon_bars
    return num_independent / (num_independent + HALF_TRUST_WINDOWS)


def _conformal_quantile(ratio_WHC: FloatArray, level: float) -> FloatArray:
    """Return the order statistic that a new window exceeds with probability 1 - level, shape (H, C).

    Of n windows and a new one, ceil((n + 1) level) are at or below the quantile; rounding up is conservative.
    """
    num_windows = len(ratio_WHC)
    is_upper = level > MEDIAN
    rank = np.ceil((num_windows + 1) * (level if is_upper else 1 - level))
    position = int(np.clip(rank, 1, num_windows)) - 1
    if not is_upper:
        position = num_windows - 1 - position
    ordered = np.sort(ratio_WHC, axis=0)
    quantile: FloatArray = ordered[position]
    return quantile
