"""The economic value of forecasts: what trading by them would have gained on the test span, on arrays.

A decision at a window knows its candles and forecasts only, and trades from the open of the next bar on. Each
rule gives every window a *gain*; a larger gain is better:

* `volatility`: a position of target over forecast volatility, capped, changed only where it differs from the
  wanted one by more than the no-trade band (`NO_TRADE_BAND`). Its gain is the realised utility of an investor
  whose Sharpe ratio is `SHARPE` at any volatility (Bollerslev, Hood, Huss & Pedersen 2018,
  doi:10.1093/rfs/hhy041), less costs. So it does not depend on whether the market happened to rise.
* `limits`: an order to buy at the lowest forecast low and one to sell at the highest forecast high are open
  during all bars ahead. They are filled where a bar trades through them; an order that was not filled is
  replaced by a market order at the last close.
* `direction`: long where the close is forecast to rise, short where to fall, changed as soon as that changes.
* `ranges`: the 90 % interval of the last close by the interval score (Gneiting & Raftery 2007,
  doi:10.1198/016214506000001437): its width and twenty times the distance by which the close lies outside.
  Its ends are used as stop prices, too.
* `variance`: the mean variance of the bars ahead, by QLIKE (Patton 2011, doi:10.1016/j.jeconom.2010.03.034).

The gain of a day is the mean over its windows. Differences of days are tested by a moving-block bootstrap
(Kuensch 1989, doi:10.1214/aos/1176347265). Blocks are as long as the cube root of the number of days, and the
distribution is widened to Student's t for a mean of as many blocks. Without this a p-value below 5 % appeared
in up to 19 % of trials of 10 to 50 independent days; with it in 3 to 4 %, and in up to 9 % where days
resemble those before them (correlation 0.3).

Legend: N windows, H steps of the horizon, C columns (open, high, low, close), D days.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from v8.annexes.trading import BPS, TradingTerms
from v8.base.arrays import FloatArray
from v8.base.errors import DataError, listed
from v8.model.evaluation.evaluation import MODEL
from v8.model.evaluation.leaderboard import Verdict, with_corrected
from v8.model.evaluation.metrics import FLAT_RETURN, Z_95
from v8.model.evaluation.significance import BaselineComparison
from v8.profile.formulas import DAY_S

NAIVE: Final = "naive"
"""The naive forecast of this package: the close stays, and bars ahead have the mean range of as many newest
bars.

In an evaluation the naive forecast has no range: open, high and low equal the last close.
"""

PERFECT_FORESIGHT: Final = "perfect_foresight"
"""Trades on the actual values, without costs: hardly any forecast gains as much."""

SHARPE: Final = 0.4
"""Sharpe ratio of Bollerslev et al.: a target of 20 % earns 8 % a year, less 4 % for bearing the risk."""
NO_TRADE_BAND: Final = 0.5
"""Share by which a position may differ from the wanted one before it is changed; a narrower band costs more
in trades than it gains."""
INTERVAL: Final = 0.9  # nominal coverage of the interval of the last close, a share
MIN_DAYS: Final = 10  # fewer days show nothing about how days differ
NUM_DRAWS: Final = 9_999  # of the bootstrap
GAIN = "gain"
EARNED = "earned"
HELD: Final = "held, %"
RIGHT: Final = "held and right, %"
HIT_RATE: Final = "hit rate, %"
SQUARED_RANGE_TO_VARIANCE: Final = 1 / (4 * math.log(2))
"""Variance of a random walk over its mean squared range (Parkinson 1980, doi:10.1086/296071)."""
_MIN_VARIANCE: Final = 1e-12
_MIN_RANGE: Final = 1e-6  # a smaller log range is the rounding of single precision, not a move of the price
_JUST_INSIDE: Final = 1.0 + 1e-9 * np.array([0.0, -1.0, 1.0, 0.0])
"""Factors of open, high, low and close: a limit order at the high or low itself would not be filled."""

# Positions of the columns of a candle.
_OPEN: Final = 0
_HIGH: Final = 1
_LOW: Final = 2
_CLOSE: Final = 3

CloseInterval: TypeAlias = tuple[FloatArray, FloatArray] | None
"""Lower and upper end of an interval of the last close, each of shape (N,); None without such a forecast."""
RuleOutcome: TypeAlias = dict[str, Any]
"""Outcome of a rule in each window, shape (N,), or over all windows: its `GAIN` in its unit, and figures by
their labels. Where a position is held, `EARNED` is its return in the next bar after costs, as a share of
wealth."""


@dataclass(frozen=True, eq=False)
class MarketWindows:
    """The actual candles after N windows of one series, ascending in time."""

    actual_NHC: FloatArray  # open, high, low, close of the bars ahead, quote currency
    last_close_N: FloatArray  # last known closes, quote currency
    bar_numbers: NDArray[np.int64]  # of the newest known bars, counted from the epoch, shape (N,)
    bar_s: int  # length of a bar, seconds

    @property
    def bars_per_year(self) -> float:
        """Bars of a year."""
        return 365 * DAY_S / self.bar_s

    @cached_property
    def smallest_variance(self) -> float:
        """Variance by the smallest range of a bar that has one: nothing smaller can be seen in these prices.

        A coin of two satoshi has bars without a range, then one of a third or more. What is forecast for
        them is no variance of zero, by which any move would be infinitely large.
        """
        ranges = log_ranges(self.actual_NHC)
        seen = ranges[ranges > _MIN_RANGE]
        return SQUARED_RANGE_TO_VARIANCE * float(seen.min()) ** 2 if len(seen) else _MIN_VARIANCE

    @cached_property
    def realised_variance(self) -> FloatArray:
        """Mean variance of the bars ahead, shape (N,)."""
        return mean_variance(log_ranges(self.actual_NHC), self.smallest_variance)


@dataclass(frozen=True, eq=False)
class MarketForecast:
    """What a forecaster says of N windows, each of shape (N,)."""

    low: FloatArray  # lowest low of the bars ahead, quote currency
    high: FloatArray  # highest high, quote currency
    close: FloatArray  # last close, quote currency
    variance: FloatArray  # mean variance of the log returns of the bars ahead, unitless
    close_interval: tuple[FloatArray, FloatArray]  # lower and upper end of the interval of the last close


def log_ranges(bars_NHC: FloatArray) -> FloatArray:
    """Return the log ratio of high to low of candles, shape (N, H)."""
    return np.log(bars_NHC[:, :, _HIGH] / bars_NHC[:, :, _LOW])


def mean_variance(ranges_NH: FloatArray, smallest_variance: float = _MIN_VARIANCE) -> FloatArray:
    """Return the mean variance of log returns of bars by their log ranges, shape (N,)."""
    return np.maximum(SQUARED_RANGE_TO_VARIANCE * np.square(ranges_NH).mean(axis=1), smallest_variance)


def require_ranges(market: MarketWindows, location: str) -> None:
    """Refuse windows whose bars all lack a range: nothing shows how far a price moves within a bar."""
    if log_ranges(market.actual_NHC).max(initial=0.0) <= _MIN_RANGE:
        raise DataError(
            where=location,
            rule="bars without a range, whose high is their low, cannot be scored",
            got=f"none with one in {len(market.last_close_N):,} windows",
            fix="Name other series with param:series, or take candles with their highs and lows",
        )


def calibrate_forecast(
    past: MarketWindows,
    past_forecast_NHC: FloatArray,
    last_close_N: FloatArray,
    forecast_NHC: FloatArray,
    close_interval: CloseInterval = None,
    *,
    ranges_NH: tuple[FloatArray | None, FloatArray | None] = (None, None),
) -> MarketForecast:
    """Make a market forecast of forecast candles, with its level calibrated on the past.

    Forecasts of ranges are medians, so each forecaster has its own level of variance. Therefore the variance
    is multiplied by the factor that minimises its QLIKE in the past. If no interval is given, it is as wide
    as to hold the share `INTERVAL` of the last closes of the past.

    Args:
        past: Windows before the test span, with their actual candles.
        past_forecast_NHC: Forecasts of these windows, quote currency.
        last_close_N: Last known closes of the windows to forecast, quote currency.
        forecast_NHC: Forecast candles of these windows, quote currency.
        close_interval: The forecaster's own interval of the last close, where it has one.
        ranges_NH: Its forecasts of the log range of each bar, in the past and in the windows to forecast;
            None for those of the forecast candles. The median of a range is not the ratio of the medians of
            high and low, so a forecast of the range itself says more of how far prices move.
    """
    past_ranges_NH, ahead_ranges_NH = ranges_NH
    if past_ranges_NH is None or ahead_ranges_NH is None:
        past_ranges_NH = log_ranges(past_forecast_NHC)
        ahead_ranges_NH = log_ranges(forecast_NHC)
    past_variance = mean_variance(past_ranges_NH, past.smallest_variance)
    variance = mean_variance(ahead_ranges_NH, past.smallest_variance)
    past_moves = np.abs(np.log(past.actual_NHC[:, -1, _CLOSE] / past.last_close_N)) / np.sqrt(past_variance)
    with np.errstate(over="ignore"):  # what is not finite is refused when it is scored
        factor = np.exp(np.quantile(past_moves, INTERVAL) * np.sqrt(variance))
    return MarketForecast(
        low=forecast_NHC[:, :, _LOW].min(axis=1),
        high=forecast_NHC[:, :, _HIGH].max(axis=1),
        close=forecast_NHC[:, -1, _CLOSE],
        variance=float(np.mean(past.realised_variance / past_variance)) * variance,
        close_interval=close_interval or (last_close_N / factor, last_close_N * factor),
    )


def perfect_foresight(market: MarketWindows) -> MarketForecast:
    """Return the forecast that equals the actual values; limit prices lie just inside, so they are filled."""
    close = market.actual_NHC[:, -1, _CLOSE]
    return calibrate_forecast(
        market,
        market.actual_NHC,
        market.last_close_N,
        market.actual_NHC * _JUST_INSIDE,
        close_interval=(close, close),
    )


def by_volatility(market: MarketWindows, forecast: MarketForecast | None, terms: TradingTerms) -> RuleOutcome:
    """Hold target over forecast volatility; without a forecast, buy and hold all of the wealth."""
    position = np.ones_like(market.last_close_N)
    if forecast:
        volatility = np.sqrt(market.bars_per_year * forecast.variance)
        wanted = np.minimum(terms.target / volatility, terms.max_leverage)
        position = apply_no_trade_band(wanted, NO_TRADE_BAND if terms.taker else 0.0)
    risk = position * np.sqrt(market.bars_per_year * market.realised_variance)
    utility = 100 * SHARPE * (risk - np.square(risk) / (2 * terms.target))
    figures = _hold_positions(market, position, terms)
    return {
        GAIN: utility - figures["costs, % a year"],
        "target volatility, % a year": 100 * terms.target,
        "utility before costs, % a year": utility,
        **figures,
    }


def by_direction(market: MarketWindows, forecast: MarketForecast | None, terms: TradingTerms) -> RuleOutcome:
    """Take the side of the forecast close; without a forecast, be always long."""
    returns = np.ones_like(market.last_close_N)
    if forecast:
        returns = forecast.close / market.last_close_N - 1.0
    position = np.where(np.abs(returns) <= FLAT_RETURN, 0.0, np.sign(returns))
    figures = _hold_positions(market, position, terms)
    return {GAIN: 100 * market.bars_per_year * figures[EARNED], **figures}


def _hold_positions(market: MarketWindows, position: FloatArray, terms: TradingTerms) -> RuleOutcome:
    """Hold positions, shares of wealth, from open to open, and close them where no window follows."""
    is_followed = np.append(np.diff(market.bar_numbers) == 1, False)
    opens = market.actual_NHC[:, 0, _OPEN]
    ends = np.where(is_followed, np.roll(opens, -1), market.actual_NHC[:, 0, _CLOSE])
    returns = ends / opens - 1.0
    position_before = np.append(0.0, np.where(is_followed, position, 0.0)[:-1])
    turnover = np.abs(position - position_before) + np.where(is_followed, 0.0, np.abs(position))
    earned = position * returns - terms.taker * turnover
    wealth = np.cumprod(np.append(1.0, 1.0 + earned))
    drawdown = 1 - wealth / np.maximum.accumulate(wealth)
    return {
        EARNED: earned,
        "volatility, % a year": 100 * earned.std() * math.sqrt(market.bars_per_year),
        HELD: 100 * (position != 0),
        RIGHT: 100 * (position * returns > 0),
        "traded, times a year": market.bars_per_year * turnover,  # turnover
        "costs, % a year": 100 * market.bars_per_year * terms.taker * turnover,
        "maximum drawdown in one test span, mean, %": 100 * drawdown.max(),
        "earned in one test span, mean, %": 100 * (wealth[-1] - 1),
    }


def apply_no_trade_band(wanted: FloatArray, band: float) -> FloatArray:
    """Return positions that change only where the wanted one differs by more than a share of the held one.

    >>> apply_no_trade_band(np.array([1.0, 1.1, 1.3, 1.2]), 0.2).tolist()
    [1.0, 1.0, 1.3, 1.3]
    """
    position = wanted.copy()
    for at in range(1, len(position)):
        if abs(position[at] - position[at - 1]) <= band * position[at - 1]:
            position[at] = position[at - 1]
    return position


def by_limits(market: MarketWindows, forecast: MarketForecast | None, terms: TradingTerms) -> RuleOutcome:
    """Buy at the forecast low and sell at the forecast high; without a forecast, by market orders."""
    last_close = market.last_close_N
    fills = [1.0]
    costs = [np.full_like(last_close, terms.taker)]
    if forecast:
        final_close = market.actual_NHC[:, -1, _CLOSE]
        buy_price = np.minimum(forecast.low, last_close)
        sell_price = np.maximum(forecast.high, last_close)
        fills = []
        costs = []
        # The side turns prices around, so that selling is buying in a market upside down.
        for side, limit_price in ((1.0, buy_price), (-1.0, sell_price)):
            is_filled = (side * market.actual_NHC).min(axis=(1, 2)) < side * limit_price
            price = np.where(is_filled, limit_price, final_close)
            fee = np.where(is_filled, terms.fee, terms.taker)
            fills.append(is_filled)
            costs.append(side * (price / last_close - 1.0) + fee)
    return {GAIN: -BPS * np.mean(costs, axis=0), "filled, %": 100 * np.mean(fills, axis=0)}


def by_ranges(market: MarketWindows, forecast: MarketForecast, terms: TradingTerms) -> RuleOutcome:
    """Score the interval of the last close, and use its ends as stop prices."""
    low, high = forecast.close_interval
    last_close = market.last_close_N
    close = market.actual_NHC[:, -1, _CLOSE]
    windows = np.arange(len(last_close))
    distance_outside = np.maximum(low - close, 0.0) + np.maximum(close - high, 0.0)
    stopped = []
    losses = []
    for side, stop_price in ((1.0, low), (-1.0, high)):
        bars = side * market.actual_NHC
        is_past_stop = bars.min(axis=2) <= side * stop_price[:, None]
        # Where a bar opens beyond the stop price, the position is closed at that open.
        first_bar = is_past_stop.argmax(axis=1)
        exit_price = np.minimum(side * stop_price, bars[windows, first_bar, _OPEN])
        is_stopped = is_past_stop.any(axis=1)
        stopped.append(is_stopped)
        losses.append(np.where(is_stopped, (side * close - exit_price) / last_close, 0.0))
    interval_score = high - low + 2 / (1 - INTERVAL) * distance_outside
    return {
        GAIN: -BPS * interval_score / last_close,
        "closes beyond the range, %": 100 * (distance_outside > 0),
        "width, bps": BPS * (high - low) / last_close,
        "stopped, %": 100 * np.mean(stopped, axis=0),
        "lost by stops (−: gained), bps a trade": BPS * np.mean(losses, axis=0),
    }


def by_variance(market: MarketWindows, forecast: MarketForecast, terms: TradingTerms) -> RuleOutcome:
    """Score the forecast of variance itself."""
    ratio = market.realised_variance / forecast.variance
    difference = np.sqrt(market.realised_variance) - np.sqrt(forecast.variance)
    error = 100 * math.sqrt(market.bars_per_year) * np.abs(difference)
    return {GAIN: 1.0 + np.log(ratio) - ratio, "MAE of volatility, % a year": error}


@dataclass(frozen=True)
class TradingRule:
    """How forecasts are used, or scored."""

    title: str  # for people
    unit: str  # of its gain
    apply: Callable[[MarketWindows, Any, TradingTerms], RuleOutcome]
    without_forecast: str = ""  # name of the alternative that needs no forecast; empty for a mere score
    is_yearly: bool = False  # whether its gain is a rate of a year
    is_return: bool = False  # whether its gain is what was earned, and not what that is worth to somebody

    @property
    def is_score(self) -> bool:
        """Whether its gain is a score and no money."""
        return not self.without_forecast


TRADING_RULES: Final = {
    "volatility": TradingRule(
        "position by volatility",
        "% a year after risk (utility)",
        by_volatility,
        without_forecast="buy and hold",
        is_yearly=True,
    ),
    "limits": TradingRule(
        "limit orders at low and high", "bps an order", by_limits, without_forecast="market order"
    ),
    "direction": TradingRule(
        "direction of the close",
        "% a year",
        by_direction,
        without_forecast="buy and hold",
        is_yearly=True,
        is_return=True,
    ),
    "ranges": TradingRule("90 % range of the close", "score in bps (interval score)", by_ranges),
    "variance": TradingRule("variance", "score (QLIKE)", by_variance),
}


@dataclass(frozen=True, eq=False)
class TradingCase:
    """The test span of one series: its market, and forecasts by name, `MODEL` and `NAIVE` among them."""

    series: str
    market: MarketWindows
    forecasts: Mapping[str, MarketForecast]


@dataclass(frozen=True)
class RuleResult(Verdict):
    """A rule on one series, or on all of them, compared with naive and with the best alternative.

    Its errors are gains with the sign reversed. The best alternative is the baseline, or the way without a
    forecast, with the largest gain over all series.
    """

    rule: str  # a key of `TRADING_RULES`
    series: str  # its name; empty for all of them
    num_days: int
    gains: Mapping[str, float]  # mean over days, by forecaster
    interval: tuple[float, float] | None  # 95 %, of the gain of the model above the best alternative


@dataclass(frozen=True)
class TradingResults:
    """What trading by forecasts would have gained, by each rule."""

    terms: TradingTerms
    pooled: Sequence[RuleResult]  # over all series, by rule
    by_series: Sequence[RuleResult]  # by rule and series
    figures: Mapping[str, pd.DataFrame]  # of each rule, by forecaster: means over windows
    curves: Mapping[str, pd.DataFrame]
    """Of each rule: the sum until each day, in %, of what was earned, mean over the series of a day."""
    is_demo: bool = False  # whether the market was simulated


def evaluate_trading(cases: Sequence[TradingCase], terms: TradingTerms) -> TradingResults:
    """Apply every rule to every case, at least one; the cases of one series share no window."""
    pooled = []
    by_series = []
    figures = {}
    curves = {}
    for key, rule in TRADING_RULES.items():
        outcomes = pd.concat([_apply_rule(case, rule, terms) for case in cases])
        by_day = outcomes.groupby(["series", "day", "forecaster"], sort=False)
        gains = by_day[GAIN].mean().unstack()
        pooled_gains = gains.groupby("day").mean()
        alternatives = pooled_gains.drop(columns=[MODEL, PERFECT_FORESIGHT])
        best = str(alternatives.mean().idxmax())
        pooled.append(_rule_result(key, "", pooled_gains, best))
        for name, series_gains in gains.groupby("series"):
            by_series.append(_rule_result(key, str(name), series_gains, best))
        rule_figures = outcomes.drop(columns=[GAIN, EARNED], errors="ignore")
        figures[key] = _with_hit_rate(rule_figures.groupby("forecaster", sort=False).mean()).T
        if EARNED in outcomes:
            earned = by_day[EARNED].sum().unstack().groupby("day").mean()
            curves[key] = 100 * earned.drop(columns=PERFECT_FORESIGHT).cumsum()
    return TradingResults(
        terms=terms,
        pooled=with_corrected(pooled),
        by_series=with_corrected(by_series),
        figures=figures,
        curves=curves,
    )


def _with_hit_rate(figures: pd.DataFrame) -> pd.DataFrame:
    """Add which share of the bars with a position was right; NaN where none was held."""
    if RIGHT not in figures:
        return figures
    with_rate = figures.copy()
    hit_rates = 100 * figures[RIGHT] / figures[HELD].where(figures[HELD] > 0)
    with_rate.insert(list(figures).index(RIGHT) + 1, HIT_RATE, hit_rates)
    return with_rate


def _apply_rule(case: TradingCase, rule: TradingRule, terms: TradingTerms) -> pd.DataFrame:
    """Apply a rule with every forecast, with perfect foresight, and without a forecast where possible."""
    market = case.market
    forecasts: dict[str, MarketForecast | None] = {**case.forecasts}
    if rule.without_forecast:
        forecasts[rule.without_forecast] = None
    without_costs = replace(terms, fee=0.0, spread=0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
        outcomes = {name: rule.apply(market, forecast, terms) for name, forecast in forecasts.items()}
        outcomes[PERFECT_FORESIGHT] = rule.apply(market, perfect_foresight(market), without_costs)
    for name, outcome in outcomes.items():
        _require_finite(f"{case.series}, {rule.title} by {name}", outcome)
    # The day of a window is the one in which its last known candle closed.
    days = pd.Index((market.bar_numbers + 1) * market.bar_s // DAY_S, name="day")
    frames = {(case.series, name): pd.DataFrame(outcome, index=days) for name, outcome in outcomes.items()}
    return pd.concat(frames, names=["series", "forecaster"])


def _require_finite(location: str, outcome: RuleOutcome) -> None:
    """Refuse an outcome that numbers cannot hold: no file or page could show it."""
    beyond = [label for label, values in outcome.items() if not np.isfinite(values).all()]
    if beyond:
        raise DataError(
            where=location,
            rule="every gain and figure is a finite number",
            got=f"others in {listed(beyond)}",
            fix="Name the other series with param:series; these prices move too far from bar to bar",
        )


def _rule_result(rule: str, series: str, gains: pd.DataFrame, best: str) -> RuleResult:
    means = {str(name): float(mean) for name, mean in gains.mean().items()}
    compared = {}
    intervals = {}
    for other in (NAIVE, best):
        interval, p_value = bootstrap_mean((gains[MODEL] - gains[other]).to_numpy())
        compared[other] = BaselineComparison(other, -means[MODEL], -means[other], p_value)
        intervals[other] = interval
    return RuleResult(
        naive=compared[NAIVE],
        best=compared[best],
        rule=rule,
        series=series,
        num_days=len(gains),
        gains=means,
        interval=intervals[best],
    )


def bootstrap_mean(differences: FloatArray) -> tuple[tuple[float, float] | None, float | None]:
    """Return the 95 % interval of a mean over days, and its two-sided p-value if the mean were 0.

    Both are None if there are too few days, or all of them are equal.

    Args:
        differences: One value a day, shape (D,).
    """
    num_days = len(differences)
    mean = differences.mean()
    if num_days < MIN_DAYS or np.ptp(differences) == 0:
        return None, None
    from scipy.special import stdtrit  # noqa: PLC0415 - slow to import

    length = math.ceil(num_days ** (1 / 3))
    num_blocks = math.ceil(num_days / length)
    block_means = sliding_window_view(differences, length).mean(axis=1)
    drawn_blocks = np.random.default_rng(0).integers(len(block_means), size=(NUM_DRAWS, num_blocks))
    draws = block_means[drawn_blocks].mean(axis=1)
    widening = math.sqrt(num_blocks * length / (num_days - length)) * stdtrit(num_blocks - 1, 0.975) / Z_95
    deviations = widening * (draws - draws.mean())
    high, low = mean - np.quantile(deviations, [0.025, 0.975])
    num_larger = np.count_nonzero(np.abs(deviations) >= abs(mean))
    return (float(low), float(high)), (1 + num_larger) / (1 + NUM_DRAWS)
