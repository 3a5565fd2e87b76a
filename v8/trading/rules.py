"""What forecasts would have done in money on windows that nothing was fitted to, beside formulas: on arrays.

A decision at a window knows its candles and forecasts only, and trades from the open of the next bar on. Each
rule gives every window a *gain*, of which more is better:

* `volatility`: a position of target over forecast volatility, capped, changed where it is off by more than
  `BAND`. Its gain is the realised utility of an investor whose Sharpe ratio is `SHARPE` at any volatility
  (Bollerslev, Hood, Huss & Pedersen 2018, doi:10.1093/rfs/hhy041), less costs: no luck of the market.
* `limits`: an order to buy at the lowest forecast low and one to sell at the highest forecast high stand for
  all bars ahead, are filled where a bar trades through them, and are made good at the last close otherwise.
* `direction`: long where the close is forecast to rise, short where to fall, changed as soon as that changes.
* `ranges`: the 90 % interval of the last close by the interval score (Gneiting & Raftery 2007,
  doi:10.1198/016214506000001437): its width and twenty times what lies beyond. Its ends are stops, too.
* `variance`: the mean variance of the bars ahead, by QLIKE (Patton 2011, doi:10.1016/j.jeconom.2010.03.034).

Of a day's windows the mean gain counts. Differences of days are tested by a moving-block bootstrap (Kuensch
1989, doi:10.1214/aos/1176347265) with blocks of the cube root of the days, widened as for a mean of as many
blocks, after Student: without that a p below 5 % came in up to 19 % of trials of 10 to 50 independent days,
with it in 3 to 4 %, and in up to 9 % where days resemble those before them (correlation 0.3).

Legend: N windows, H steps of the horizon, D days.
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

from v8.arrays import FloatArray
from v8.evaluation.evaluation import MODEL
from v8.evaluation.leaderboard import TaskScore, with_corrected
from v8.evaluation.metrics import FLAT_RETURN, Z_95
from v8.evaluation.significance import BaselineComparison
from v8.features.formulas import DAY_S
from v8.tasks import RANGE_TO_VARIANCE

NAIVE: Final = "naive"
"""Coming bars range as widely as the newest did, and the close stays."""

ACTUAL: Final = "actual"
"""Who knows what comes and trades for nothing: a bound that nobody reaches."""

SHARPE: Final = 0.4  # of Bollerslev et al.: at a target of 20 % 8 % a year, less 4 % for the risk
BAND: Final = 0.5  # share that a position may be off before it is changed; less costs more than it gains
INTERVAL: Final = 0.9  # share of closes that a range promises to hold
BPS: Final = 1e4
LEAST_DAYS: Final = 10  # fewer tell nothing about how days differ
NUM_DRAWS: Final = 9_999
GAIN = "gain"
EARNED = "earned"
_LEAST_VARIANCE: Final = 1e-12
_JUST_WITHIN: Final = 1.0 + 1e-9 * np.array([0.0, -1.0, 1.0, 0.0])

Ends: TypeAlias = tuple[FloatArray, FloatArray] | None
"""Of an interval of the last close, each of shape (N,); None of whoever forecasts none."""
Played: TypeAlias = dict[str, Any]
"""What came of a rule in each window, shape (N,), or in all: its `GAIN` in its unit, figures by what they
are, and, where something is held, what it `EARNED` with the next bar, after costs, as a share of wealth."""


@dataclass(frozen=True)
class Terms:
    """What trading costs, and how much is dared, as shares."""

    fee: float = 0.001  # of each trade
    spread: float = 0.0002  # between bid and ask; half of it is paid by whoever cannot wait
    target: float = 0.4  # volatility of a year that a position aims at
    max_leverage: float = 2.0  # most that a position may be of the wealth

    @property
    def taker(self) -> float:
        """Cost of a trade that cannot wait."""
        return self.fee + self.spread / 2


@dataclass(frozen=True, eq=False)
class Market:
    """What came after N windows of one series, ascending."""

    bars_NHC: FloatArray  # open, high, low, close of the bars ahead, quote currency
    last_N: FloatArray  # last known closes
    bar_numbers: NDArray[np.int64]  # of the newest known bars, counted from the epoch
    bar_s: int  # length of a bar, seconds

    @property
    def a_year(self) -> float:
        """Bars of a year."""
        return 365 * DAY_S / self.bar_s

    @cached_property
    def realised(self) -> FloatArray:
        """Mean variance of the bars ahead."""
        return mean_variance(self.bars_NHC)


@dataclass(frozen=True, eq=False)
class Outlook:
    """What a forecaster says of N windows, each of shape (N,)."""

    low: FloatArray  # lowest low of the bars ahead
    high: FloatArray  # highest high
    close: FloatArray  # last close
    variance: FloatArray  # mean variance of the bars ahead
    ends: tuple[FloatArray, FloatArray]  # interval of the last close


def mean_variance(bars_NHC: FloatArray) -> FloatArray:
    """Return the mean variance of log returns of candles by their log ranges, shape (N,), above 0."""
    ranges = np.log(bars_NHC[:, :, 1] / bars_NHC[:, :, 2])
    return np.maximum(RANGE_TO_VARIANCE * np.square(ranges).mean(axis=1), _LEAST_VARIANCE)


def levelled(
    past: Market, past_NHC: FloatArray, last_N: FloatArray, bars_NHC: FloatArray, ends: Ends = None
) -> Outlook:
    """Make an outlook of forecast candles, (N, H, 4), after known closes, its level fitted to the past.

    Forecasts of ranges are medians, each on its own level. So the variance is multiplied by what makes its
    QLIKE least in the past, and an interval, if none is given, holds `INTERVAL` of the past's last closes.
    """
    known = mean_variance(past_NHC)
    ahead = mean_variance(bars_NHC)
    moved = np.abs(np.log(past.bars_NHC[:, -1, 3] / past.last_N)) / np.sqrt(known)
    beyond = np.exp(np.quantile(moved, INTERVAL) * np.sqrt(ahead))
    return Outlook(
        low=bars_NHC[:, :, 2].min(axis=1),
        high=bars_NHC[:, :, 1].max(axis=1),
        close=bars_NHC[:, -1, 3],
        variance=float(np.mean(past.realised / known)) * ahead,
        ends=ends or (last_N / beyond, last_N * beyond),
    )


def foreseen(market: Market) -> Outlook:
    """Return the outlook of who knows the actual values; orders are filled just within it."""
    bars = market.bars_NHC
    close = market.bars_NHC[:, -1, 3]
    return levelled(market, bars, market.last_N, bars * _JUST_WITHIN, (close, close))


def by_volatility(market: Market, outlook: Outlook | None, terms: Terms) -> Played:
    """Hold target over forecast volatility; without an outlook, all of the wealth."""
    held = np.ones_like(market.last_N)
    if outlook:
        wanted = np.minimum(terms.target / np.sqrt(market.a_year * outlook.variance), terms.max_leverage)
        held = steadied(wanted, BAND if terms.taker else 0.0)
    risk = held * np.sqrt(market.a_year * market.realised)
    utility = 100 * SHARPE * (risk - np.square(risk) / (2 * terms.target))
    told = _held(market, held, terms)
    aims = {"target volatility, % a year": 100 * terms.target, "utility before costs, % a year": utility}
    return {GAIN: utility - told["costs, % a year"], **aims, **told}


def by_direction(market: Market, outlook: Outlook | None, terms: Terms) -> Played:
    """Go with the forecast close; without an outlook, always up."""
    moves = np.ones_like(market.last_N) if outlook is None else outlook.close / market.last_N - 1.0
    told = _held(market, np.where(np.abs(moves) <= FLAT_RETURN, 0.0, np.sign(moves)), terms)
    return {GAIN: 100 * market.a_year * told[EARNED], **told}


def _held(market: Market, held: FloatArray, terms: Terms) -> Played:
    """Hold positions, shares of wealth, from open to open, and leave them where no window follows."""
    is_followed = np.append(np.diff(market.bar_numbers) == 1, False)
    opens = market.bars_NHC[:, 0, 0]
    returns = np.where(is_followed, np.roll(opens, -1), market.bars_NHC[:, 0, 3]) / opens - 1.0
    before = np.append(0.0, np.where(is_followed, held, 0.0)[:-1])
    traded = np.abs(held - before) + np.where(is_followed, 0.0, np.abs(held))
    earned = held * returns - terms.taker * traded
    wealth = np.cumprod(np.append(1.0, 1.0 + earned))
    return {
        EARNED: earned,
        "volatility, % a year": 100 * earned.std() * math.sqrt(market.a_year),
        "held, %": 100 * (held != 0),
        "right, %": 100 * (held * returns > 0),
        "traded, times a year": market.a_year * traded,
        "costs, % a year": 100 * market.a_year * terms.taker * traded,
        "worst fall, %": 100 * (1 - wealth / np.maximum.accumulate(wealth)).max(),
        "earned, %": 100 * (wealth[-1] - 1),
    }


def steadied(wanted: FloatArray, band: float) -> FloatArray:
    """Return positions that change only where what is wanted is off by more than a share of them.

    >>> steadied(np.array([1.0, 1.1, 1.3, 1.2]), 0.2).tolist()
    [1.0, 1.0, 1.3, 1.3]
    """
    held = wanted.copy()
    for at in range(1, len(held)):
        if abs(held[at] - held[at - 1]) <= band * held[at - 1]:
            held[at] = held[at - 1]
    return held


def by_limits(market: Market, outlook: Outlook | None, terms: Terms) -> Played:
    """Buy at the forecast low and sell at the forecast high; without an outlook, both at once."""
    last = market.last_N
    bars = market.bars_NHC
    fills = [1.0]
    costs = [np.full_like(last, terms.taker)]
    if outlook:
        orders = (1.0, np.minimum(outlook.low, last)), (-1.0, np.maximum(outlook.high, last))
        fills = [(side * bars).min(axis=(1, 2)) < side * price for side, price in orders]
        costs = [
            side * (np.where(is_filled, price, bars[:, -1, 3]) / last - 1.0)
            + np.where(is_filled, terms.fee, terms.taker)
            for is_filled, (side, price) in zip(fills, orders, strict=True)
        ]
    return {GAIN: -BPS * np.mean(costs, axis=0), "filled, %": 100 * np.mean(fills, axis=0)}


def by_ranges(market: Market, outlook: Outlook, terms: Terms) -> Played:
    """Count on the interval of the last close, and stop at its ends."""
    (low, high), last, close = outlook.ends, market.last_N, market.bars_NHC[:, -1, 3]
    beyond = np.maximum(low - close, 0.0) + np.maximum(close - high, 0.0)
    stopped = []
    lost = []
    for side, stop in ((1.0, low), (-1.0, high)):
        bars = side * market.bars_NHC
        is_past = bars.min(axis=2) <= side * stop[:, None]
        # Who opens beyond the stop is out at that open.
        out = np.minimum(side * stop, bars[np.arange(len(last)), is_past.argmax(axis=1), 0])
        stopped.append(is_past.any(axis=1))
        lost.append(np.where(stopped[-1], (side * close - out) / last, 0.0))
    return {
        GAIN: -BPS * (high - low + 2 / (1 - INTERVAL) * beyond) / last,
        "left, %": 100 * (beyond > 0),
        "width, bps": BPS * (high - low) / last,
        "stopped, %": 100 * np.mean(stopped, axis=0),
        "lost by stops, bps a trade": BPS * np.mean(lost, axis=0),
    }


def by_variance(market: Market, outlook: Outlook, terms: Terms) -> Played:
    """Score the forecast of variance itself."""
    ratio = market.realised / outlook.variance
    missed = np.sqrt(market.realised) - np.sqrt(outlook.variance)
    error = 100 * math.sqrt(market.a_year) * np.abs(missed)
    return {GAIN: 1.0 + np.log(ratio) - ratio, "MAE of volatility, % a year": error}


@dataclass(frozen=True)
class Rule:
    """What is done with forecasts."""

    title: str  # for people
    unit: str  # of its gain
    play: Callable[[Market, Any, Terms], Played]
    without: str = ""  # what needs no forecast and stands beside it; a score, which is no money, has none


RULES: Final = {
    "volatility": Rule("position by volatility", "% of utility a year", by_volatility, "buy and hold"),
    "limits": Rule("limit orders at low and high", "bps an order", by_limits, "market order"),
    "direction": Rule("direction of the close", "% a year", by_direction, "buy and hold"),
    "ranges": Rule("90 % range of the close", "bps of interval score", by_ranges),
    "variance": Rule("variance", "QLIKE", by_variance),
}


@dataclass(frozen=True, eq=False)
class Study:
    """One model's test span: what came, and what was forecast by name, `MODEL` and `NAIVE` among them."""

    series: str
    market: Market
    outlooks: Mapping[str, Outlook]


@dataclass(frozen=True)
class Result(TaskScore):
    """A rule on one series, or on all: losses, gains below zero, beside naive and the best other way.

    That is the formula, or the way without a forecast, that gains most over all series.
    """

    rule: str  # a key of `RULES`
    series: str  # its name; empty for all of them
    num_days: int
    gains: Mapping[str, float]  # mean over days, by forecaster
    interval: tuple[float, float] | None  # 95 %, of what the model gains more than that way


@dataclass(frozen=True)
class Worth:
    """What forecasts are worth by each rule."""

    terms: Terms
    together: Sequence[Result]  # by rule
    each: Sequence[Result]  # by rule and series
    figures: Mapping[str, pd.DataFrame]  # of each rule, by forecaster: means over windows
    curves: Mapping[str, pd.DataFrame]  # earned until the end of each day, %, mean over series, likewise
    is_demo: bool = False  # whether the market was simulated


def worth_of(studies: Sequence[Study], terms: Terms) -> Worth:
    """Play every rule on every study, at least one; those of a series share no window."""
    together = []
    each = []
    figures = {}
    curves = {}
    for key, rule in RULES.items():
        played = pd.concat([_played(study, rule, terms) for study in studies])
        by_day = played.groupby(["series", "day", "who"], sort=False)
        gains = by_day[GAIN].mean().unstack()
        pooled = gains.groupby("day").mean()
        best = str(pooled.drop(columns=[MODEL, ACTUAL]).mean().idxmax())
        together.append(_result(key, "", pooled, best))
        each += [_result(key, str(name), one, best) for name, one in gains.groupby("series")]
        told = played.drop(columns=[GAIN, EARNED], errors="ignore")
        figures[key] = told.groupby("who", sort=False).mean().T
        if EARNED in played:
            earned = by_day[EARNED].sum().unstack().groupby("day").mean()
            curves[key] = 100 * earned.drop(columns=ACTUAL).cumsum()
    return Worth(terms, with_corrected(together), with_corrected(each), figures, curves)


def _played(study: Study, rule: Rule, terms: Terms) -> pd.DataFrame:
    """Play a rule by every forecaster, by who knows the actual values, and without a forecast where that can be."""
    market = study.market
    free = replace(terms, fee=0.0, spread=0.0)
    asked: dict[str, Outlook | None] = {**study.outlooks, **({rule.without: None} if rule.without else {})}
    told = {name: rule.play(market, outlook, terms) for name, outlook in asked.items()}
    told[ACTUAL] = rule.play(market, foreseen(market), free)
    # The day of a window is that in which its last known candle closed.
    days = pd.Index((market.bar_numbers + 1) * market.bar_s // DAY_S, name="day")
    frames = {(study.series, name): pd.DataFrame(one, index=days) for name, one in told.items()}
    return pd.concat(frames, names=["series", "who"])


def _result(rule: str, series: str, gains: pd.DataFrame, best: str) -> Result:
    means = {str(name): float(mean) for name, mean in gains.mean().items()}
    tested = {other: bootstrapped((gains[MODEL] - gains[other]).to_numpy()) for other in (NAIVE, best)}
    beside = {
        other: BaselineComparison(other, -means[MODEL], -means[other], p) for other, (_, p) in tested.items()
    }
    return Result(beside[NAIVE], beside[best], rule, series, len(gains), means, tested[best][0])


def bootstrapped(differences: FloatArray) -> tuple[tuple[float, float] | None, float | None]:
    """Return the 95 % interval of a mean over days, shape (D,), and its chance, two-sided, if it were 0.

    Both are None of days that are too few, or all alike.
    """
    num_days = len(differences)
    mean = differences.mean()
    if num_days < LEAST_DAYS or np.ptp(differences) == 0:
        return None, None
    from scipy.special import stdtrit  # noqa: PLC0415 - slow to import

    length = math.ceil(num_days ** (1 / 3))
    num_blocks = math.ceil(num_days / length)
    blocks = sliding_window_view(differences, length).mean(axis=1)
    draws = blocks[np.random.default_rng(0).integers(len(blocks), size=(NUM_DRAWS, num_blocks))].mean(axis=1)
    widened = math.sqrt(num_blocks * length / (num_days - length)) * stdtrit(num_blocks - 1, 0.975) / Z_95
    strayed = widened * (draws - draws.mean())
    high, low = mean - np.quantile(strayed, [0.025, 0.975])
    beyond = np.count_nonzero(np.abs(strayed) >= abs(mean))
    return (float(low), float(high)), (1 + beyond) / (1 + NUM_DRAWS)
