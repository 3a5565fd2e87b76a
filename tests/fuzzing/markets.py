"""Candles that are valid and odd: prices that leap, no ranges, holes, an end long ago; and their check."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from random import Random

import numpy as np
import pandas as pd

from v8.annexes.trading import TradingTerms
from v8.annexes.trading.rules import (
    NAIVE,
    MarketWindows,
    TradingCase,
    calibrate_forecast,
    evaluate_trading,
    require_ranges,
)
from v8.base.errors import MAX_MESSAGE
from v8.data.market.candles import LEAP_FACTOR, Candles
from v8.data.market.series import Series
from v8.forecaster.forecaster import checked_candles
from v8.model.evaluation.evaluation import MODEL
from v8.profile.formulas import DAY_S
from v8.profile.profile import load_profile
from v8.runs.reading import candle_findings

PRICES = ["open", "high", "low", "close"]
START_S = 1_717_200_000
NUM_BARS = 400


@dataclass(frozen=True)
class Market:
    """Raw candles, and what was done to them."""

    frame: pd.DataFrame
    factor: float  # by which the price leaps; 1 for no leap
    days_old: int  # since the last candle closed


def odd_market(random: Random, series: Series) -> Market:
    """Draw a random walk of a scale, with a price step, a leap and holes by chance."""
    rng = np.random.default_rng(random.randrange(2**32))
    steps = rng.normal(0, random.choice((0.0, 1e-8, 1e-4, 0.02)), NUM_BARS)
    factor = random.choice((1.0, 1.0, 5.0, 0.2, 1_000.0, 1e-3))
    first_after = random.randrange(50, 350)
    leap = np.where(np.arange(NUM_BARS) < first_after, 1.0, factor)
    close = random.choice((2e-8, 1.0, 6e4, 1e12)) * np.exp(np.cumsum(steps)) * leap
    opened = np.append(close[0], close[:-1] * leap[1:] / leap[:-1])
    wick = 1 + np.abs(rng.normal(0, random.choice((0.0, 0.01)), (2, NUM_BARS)))
    high = np.maximum(opened, close) * wick[0]
    low = np.minimum(opened, close) / wick[1]
    open_s = START_S + series.bar_s * np.arange(NUM_BARS)
    columns = {"open_time": open_s, "open": opened, "high": high, "low": low, "close": close, "volume": 1.0}
    frame = pd.DataFrame(columns)
    if random.random() < 0.5:
        price_step = close.min() / random.choice((1, 2, 50))
        frame[PRICES] = np.maximum(np.round(frame[PRICES] / price_step), 1) * price_step
    has_hole = np.zeros(NUM_BARS, np.bool_)
    if random.random() < 0.5:
        has_hole[first_after : first_after + random.choice((1, 24))] = True
    if random.random() < 0.3:
        has_hole[:: random.choice((30, 96))] = True
    return Market(frame[~has_hole], factor, random.choice((0, 1, 20, 812)))


def check_market(market: Market, series: Series) -> None:
    """Check the candles, name what is to be known of them, and score forecasts of them.

    Raises:
        AssertionError: If a leap or the age is not named, or a figure is not finite.
        V8Error: If the candles are refused, or cannot be scored.
    """
    candles = checked_candles(market.frame, series)
    closed_s = int(candles.open_time_s[-1]) + series.bar_s
    _check_findings(market, candles, closed_s + market.days_old * DAY_S)
    json.dumps(asdict(candles.report), allow_nan=False)
    _score(candles)


def _check_findings(market: Market, candles: Candles, now_s: float) -> None:
    findings = list(candle_findings(load_profile("frontier"), [candles], now_s))
    leap = candles.report.largest_leap
    is_leaping = max(market.factor, 1 / market.factor) > LEAP_FACTOR
    if is_leaping and (leap is None or abs(math.log(leap.factor / market.factor)) > math.log(3)):
        raise AssertionError(f"a leap of {market.factor:g} is described as {leap}")
    if is_leaping and sum("leaps" in finding for finding in findings) != 1:
        raise AssertionError(f"a leap is pointed out so: {findings}")
    if (market.days_old == 812) != any("812 days" in finding for finding in findings):
        raise AssertionError(f"candles {market.days_old} days old are described so: {findings}")
    if any(len(finding) > MAX_MESSAGE or not finding.isprintable() for finding in findings):
        raise AssertionError(f"not one short line each: {findings}")


def _score(candles: Candles) -> None:
    bars = candles.values[:, None, :4]
    numbers = candles.open_time_s // candles.series.bar_s
    market = MarketWindows(bars[1:], candles.column("close")[:-1], numbers[:-1], candles.series.bar_s)
    require_ranges(market, str(candles.series))
    last_close = market.last_close_N
    before = calibrate_forecast(market, bars[:-1], last_close, bars[:-1])
    flat = np.repeat(last_close[:, None, None], 4, axis=2)
    naive = calibrate_forecast(market, flat, last_close, flat)
    case = TradingCase(str(candles.series), market, {MODEL: before, NAIVE: naive})
    results = replace(evaluate_trading([case], TradingTerms()), curves={})
    json.dumps([dict(result.gains) for result in results.pooled], allow_nan=False)
