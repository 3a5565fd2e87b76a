"""The source `demo`: a simulated market for trials without a network; never publishable.

The simulation has typical properties of a real market: volatility that switches between regimes on many time
scales (the binomial Markov-switching multifractal of Calvet and Fisher, 2004, doi:10.1093/jjfinec/nbh003), a
daily and weekly volatility pattern, rare jumps, candles drawn from a path within each bar, and a volume that
follows volatility. The close has no drift and no memory. Prices are those of coins: each coin of the default
universe ends at a price that it once had, and has its volatility (`demo.yaml`).

Every series is independent of the others and seeded by its name. The newest candle always closes at `END_S`
(weekly candles on the Monday before), so results can be repeated on any day. Time is simulated backwards from
there in blocks with seeds of their own, which is possible because the chain of regimes and the random walk
are both reversible; so a request for fewer candles returns exactly the newest part of a longer one.

Shapes: N bars, newest first until the end; K volatility components; S steps within a bar.
"""

import hashlib
import math
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from v8.base.errors import DataError
from v8.data.market.candles import Candles, require_num_bars
from v8.data.market.checks import check_candles
from v8.data.market.series import DAY_S, Series, iso
from v8.profile.columns import CLOSE, HIGH, LOW, OPEN, OPEN_TIME, VOLUME
from v8.profile.profile import read_yaml

END_S = 1_735_689_600  # 2025-01-01T00:00:00Z: where the newest candle closes
START_S = 1_262_304_000  # 2010-01-01T00:00:00Z: the first open time
BLOCK_BARS = 4_096
NUM_STEPS = 6

PRICE_DIGITS: Final = 6  # significant digits of the price at the end: an exchange has price steps
_NUM_REGIMES = 6
_REGIME_STRENGTH = 0.35  # each component multiplies the variance by 1 + this or 1 - this
_SHORTEST_REGIME_S = 2 * 3_600
_REGIME_RATIO = 4.0  # components last 2 hours on average, each 4 times as long as the one before: to 85 days
_JUMPS_PER_DAY = 0.2
_JUMP_SIZE = 0.6  # standard deviation of a jump, in daily standard deviations
_TURNOVER_PER_DAY = 5e7  # typical turnover in quote currency


class DemoSource:
    """Candles of the embedded simulator."""

    name = "demo"
    is_publishable = False

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        """Return the newest simulated candles; see `CandleSource`."""
        require_num_bars(num_bars, series)
        newest_s = series.last_closed_s(END_S)
        num_after = (newest_s - series.last_wanted_s(END_S, end_s)) // series.bar_s
        most_bars = (newest_s - START_S) // series.bar_s + 1
        if num_after >= most_bars:
            location = f"{series} from {self.name}"
            rule = f"the demo market opens at {iso(START_S)}"
            got = f"a request for candles until {iso(end_s or 0)}"
            raise DataError(where=location, rule=rule, got=got, fix="Ask for a later time")
        frame = _simulated(series, min(num_after + num_bars, most_bars))
        return check_candles(frame, series, source=self.name).newest(num_bars, end_s)


@cache
def coin(symbol: str) -> tuple[float, float]:
    """Return the price of a coin at the end, and the standard deviation of its daily log returns.

    For the coins of `demo.yaml` they are listed there; for other symbols they are derived from the name.
    """
    rng = np.random.default_rng(list(symbol.encode()))
    unlisted = float(f"{10.0 ** rng.uniform(-1.0, 2.0):.4g}"), rng.uniform(0.03, 0.06)
    price, volatility = read_yaml(Path(__file__).with_suffix(".yaml")).get(symbol, unlisted)
    return price, volatility


def _simulated(series: Series, num_bars: int) -> pd.DataFrame:
    """Simulate the newest bars of a series, oldest first, in the columns of `check_candles`."""
    seed = int.from_bytes(hashlib.sha256(f"v8 demo {series}".encode()).digest()[:16], "big")
    num_blocks = -(-num_bars // BLOCK_BARS)
    blocks = [_draw(series, np.random.default_rng([seed, block])) for block in range(num_blocks)]
    draws = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    newest_s = series.last_closed_s(END_S)  # the grid of a timeframe may end before the market does
    open_s = newest_s - series.bar_s * np.arange(num_blocks * BLOCK_BARS, dtype=np.int64)
    is_wild_at_first = np.random.default_rng([seed]).random(_NUM_REGIMES) < 0.5
    variance = _regimes(draws["has_switch"], draws["is_wild"], is_wild_at_first) * _time_pattern(open_s)
    columns = _candle_columns(series, draws, np.sqrt(variance))
    return pd.DataFrame({OPEN_TIME: open_s, **columns}).iloc[:num_bars][::-1].reset_index(drop=True)


def _draw(series: Series, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Draw the random numbers of one block of bars, in an order that never changes."""
    durations_s = _SHORTEST_REGIME_S * _REGIME_RATIO ** np.arange(_NUM_REGIMES)
    # Probability of at least one event of a Poisson process within a bar: 1 - exp(-rate x length).
    switch_probability = -np.expm1(-series.bar_s / durations_s)
    jump_probability = -np.expm1(-_JUMPS_PER_DAY * series.bar_s / DAY_S)
    draws: dict[str, NDArray[Any]] = {}
    draws["has_switch"] = rng.random((BLOCK_BARS, _NUM_REGIMES)) < switch_probability
    draws["is_wild"] = rng.random((BLOCK_BARS, _NUM_REGIMES)) < 0.5
    draws["steps"] = rng.standard_normal((BLOCK_BARS, NUM_STEPS))
    draws["reach_up"] = rng.standard_exponential((BLOCK_BARS, NUM_STEPS))
    draws["reach_down"] = rng.standard_exponential((BLOCK_BARS, NUM_STEPS))
    jump_sizes = rng.standard_normal(BLOCK_BARS)
    draws["jumps"] = jump_sizes * (rng.random(BLOCK_BARS) < jump_probability)
    draws["jump_step"] = rng.integers(NUM_STEPS, size=BLOCK_BARS)
    draws["turnover"] = rng.standard_normal(BLOCK_BARS)
    return draws


def _regimes(
    has_switch: NDArray[np.bool_], is_wild: NDArray[np.bool_], is_wild_at_first: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the variance of each bar relative to the long run, shape (N,), mean 1."""
    has_switch[0] = True
    is_wild[0] = is_wild_at_first
    rows = np.where(has_switch, np.arange(len(has_switch))[:, None], 0)
    last_switch = np.maximum.accumulate(rows, axis=0)
    is_wild_now = np.take_along_axis(is_wild, last_switch, axis=0)
    factors = np.where(is_wild_now, 1.0 + _REGIME_STRENGTH, 1.0 - _REGIME_STRENGTH)
    return np.asarray(factors.prod(axis=1))


def _time_pattern(open_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the relative variance by UTC hour and weekday, shape (N,): a peak at 15:00, calm weekends."""
    hour = open_s % DAY_S / 3_600
    weekday = (open_s // DAY_S + 3) % 7  # 1970-01-01 was a Thursday, day 3 after Monday
    by_hour = 1.0 + 0.5 * np.cos((hour - 15.0) * np.pi / 12.0)
    by_weekday = np.where(weekday >= 5, 0.6, 1.16)
    return np.asarray(by_hour * by_weekday)


def _candle_columns(
    series: Series, draws: dict[str, NDArray[Any]], relative: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Draw the path within every bar and derive its candle: OHLCV, each of shape (N,), newest first.

    Args:
        series: Symbol and timeframe.
        draws: Random numbers of `_draw`.
        relative: Volatility of each bar relative to the long run, unitless, shape (N,).
    """
    price, volatility = coin(series.symbol)
    bar_share = series.bar_s / DAY_S
    spread = volatility * np.sqrt(bar_share) * relative
    step_spread = (spread / np.sqrt(NUM_STEPS))[:, None]
    steps = draws["steps"] * step_spread
    steps[np.arange(len(steps)), draws["jump_step"]] += draws["jumps"] * _JUMP_SIZE * volatility
    path = np.cumsum(steps, axis=1)
    log_end = np.log(price) - np.concatenate([[0.0], np.cumsum(path[:, -1])])
    opened = np.exp(log_end[1:])
    close = np.exp(log_end[:-1])
    # The maximum of a Brownian path between two known ends has this distribution (reflection principle).
    middle = path - steps / 2
    highest = (middle + np.sqrt(steps**2 + 2 * step_spread**2 * draws["reach_up"]) / 2).max(axis=1)
    lowest = (middle - np.sqrt(steps**2 + 2 * step_spread**2 * draws["reach_down"]) / 2).min(axis=1)
    activity = relative**1.3 * np.exp(0.4 * draws["turnover"] + 0.3 * np.abs(path[:, -1]) / spread)
    prices = {
        OPEN: opened,
        HIGH: np.maximum(opened * np.exp(highest), np.maximum(opened, close)),
        LOW: np.minimum(opened * np.exp(lowest), np.minimum(opened, close)),
        CLOSE: close,
    }
    decimals = PRICE_DIGITS - 1 - math.floor(math.log10(price))
    # Prices are rounded to steps, as on an exchange.
    smallest = 10.0**-decimals
    rounded = {name: np.maximum(np.round(column, decimals), smallest) for name, column in prices.items()}
    return {**rounded, VOLUME: _TURNOVER_PER_DAY * bar_share * activity / close}
