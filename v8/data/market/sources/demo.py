"""The source `demo`: a simulated market for trials without a network; never publishable.

The simulation has typical properties of a real market: volatility that switches between regimes on many time
scales (the binomial Markov-switching multifractal of Calvet and Fisher, 2004, doi:10.1093/jjfinec/nbh003), a
daily and weekly volatility pattern, rare jumps, candles drawn from a path within each bar, and a volume that
follows volatility. The close has no drift and no memory. Prices are those of coins: each coin of the default
universe ends at a price that it once had, and has its volatility (`demo.yaml`).

Every coin is independent of the others and seeded by its name. Its candles of 15 minutes are simulated, and
those of longer timeframes put together from them, so that all have one price and one change of a day; those
of shorter timeframes, finer than what is simulated, are worlds of their own. The newest candle always closes
at `END_S` (weekly candles on the Monday before), so results can be repeated on any day. Time is simulated
backwards from there in blocks with seeds of their own, which is possible because the chain of regimes and the
random walk are both reversible; so a request for fewer candles returns exactly the newest part of a longer
one.

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
from v8.base.records import read_yaml
from v8.data.market.candles import Candles, require_num_bars
from v8.data.market.checks import check_candles
from v8.data.market.series import DAY_S, Series, iso
from v8.profile.columns import CLOSE, HIGH, LOW, OPEN, OPEN_TIME, VOLUME

END_S = 1_735_689_600  # 2025-01-01T00:00:00Z: where the newest candle closes
START_S = 1_262_304_000  # 2010-01-01T00:00:00Z: the first open time
BLOCK_BARS = 4_096
NUM_STEPS = 6
SIMULATED_TIMEFRAME: Final = "15m"

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
            raise DataError(
                where=f"{series} from {self.name}",
                rule=f"the demo market opens at {iso(START_S)}",
                got=f"a request for candles until {iso(end_s or 0)}",
                fix="Ask for a later time",
            )
        frame = _newest_bars(series, min(num_after + num_bars, most_bars))
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


def _newest_bars(series: Series, num_bars: int) -> pd.DataFrame:
    """Return the newest bars of a series, oldest first, in the columns of `check_candles`.

    Those of a timeframe longer than the simulated one are put together from its bars.
    """
    simulated = Series(series.symbol, SIMULATED_TIMEFRAME)
    num_parts = series.bar_s // simulated.bar_s
    if num_parts <= 1:
        return _simulated(series, num_bars)
    newest_s = series.last_closed_s(END_S)  # the grid of a timeframe may end before the market does
    num_after = (END_S - newest_s) // simulated.bar_s - num_parts
    parts = _simulated(simulated, num_after + num_bars * num_parts)[: num_bars * num_parts]
    columns = {name: parts[name].to_numpy().reshape(num_bars, num_parts) for name in parts}
    return pd.DataFrame(
        {
            OPEN_TIME: columns[OPEN_TIME][:, 0],
            OPEN: columns[OPEN][:, 0],
            HIGH: columns[HIGH].max(axis=1),
            LOW: columns[LOW].min(axis=1),
            CLOSE: columns[CLOSE][:, -1],
            VOLUME: columns[VOLUME].sum(axis=1),
        }
    )


def _simulated(series: Series, num_bars: int) -> pd.DataFrame:
    """Simulate the newest bars of a series, oldest first, in the columns of `check_candles`."""
    seed = int.from_bytes(hashlib.sha256(f"v8 demo {series}".encode()).digest()[:16], "big")
    num_blocks = -(-num_bars // BLOCK_BARS)
    newest_s = series.last_closed_s(END_S)  # the grid of a timeframe may end before the market does
    open_s = newest_s - series.bar_s * np.arange(num_blocks * BLOCK_BARS, dtype=np.int64)
    is_wild_K = np.random.default_rng([seed]).random(_NUM_REGIMES) < 0.5
    blocks = []
    for block in range(num_blocks):
        draws = _draw(series, np.random.default_rng([seed, block]))
        if block == 0:
            draws["has_switch"][:, 0] = True
            draws["is_wild"][:, 0] = is_wild_K
        is_wild_KN = _regimes(draws["has_switch"], draws["is_wild"], is_wild_K)
        is_wild_K = is_wild_KN[:, -1]
        factors_KN = np.where(is_wild_KN, 1.0 + _REGIME_STRENGTH, 1.0 - _REGIME_STRENGTH)
        times = open_s[block * BLOCK_BARS : (block + 1) * BLOCK_BARS]
        variance = factors_KN.prod(axis=0) * _time_pattern(times)
        blocks.append(_draw_paths(series, draws, np.sqrt(variance)))
    paths = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    columns = _candle_columns(series, paths)
    return pd.DataFrame({OPEN_TIME: open_s, **columns}).iloc[:num_bars][::-1].reset_index(drop=True)


def _draw(series: Series, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Draw the random numbers of one block of bars, in an order that never changes: (K or S, N), or (N,).

    A row a bar is drawn; columns of bars are computed with, which is several times as fast.
    """
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
    return {name: np.ascontiguousarray(values.T) for name, values in draws.items()}


def _regimes(
    has_switch_KN: NDArray[np.bool_], is_wild_KN: NDArray[np.bool_], is_wild_before_K: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return whether each component is wild at each bar of a block, shape (K, N).

    Args:
        has_switch_KN: Whether a component is drawn anew at a bar.
        is_wild_KN: What it then becomes.
        is_wild_before_K: What it was at the newer end of the block.
    """
    rows_KN = np.where(has_switch_KN, np.arange(has_switch_KN.shape[1], dtype=np.int32), -1)
    last_switch_KN = np.maximum.accumulate(rows_KN, axis=1)
    is_wild_now_KN = np.take_along_axis(is_wild_KN, last_switch_KN, axis=1)
    return np.where(last_switch_KN < 0, is_wild_before_K[:, None], is_wild_now_KN)


def _time_pattern(open_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the relative variance by UTC hour and weekday, shape (N,): a peak at 15:00, calm weekends."""
    hour = open_s % DAY_S / 3_600
    weekday = (open_s // DAY_S + 3) % 7  # 1970-01-01 was a Thursday, day 3 after Monday
    by_hour = 1.0 + 0.5 * np.cos((hour - 15.0) * np.pi / 12.0)
    by_weekday = np.where(weekday >= 5, 0.6, 1.16)
    return np.asarray(by_hour * by_weekday)


def _draw_paths(
    series: Series, draws: dict[str, NDArray[Any]], relative_N: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Draw the path within every bar: how far it moves and reaches, as log ratios, and its activity.

    Args:
        series: Symbol and timeframe.
        draws: Random numbers of `_draw`.
        relative_N: Volatility of each bar relative to the long run, unitless.
    """
    _, volatility = coin(series.symbol)
    spread_N = volatility * np.sqrt(series.bar_s / DAY_S) * relative_N
    step_spread_N = spread_N / np.sqrt(NUM_STEPS)
    steps_SN = draws["steps"] * step_spread_N
    steps_SN[draws["jump_step"], np.arange(len(relative_N))] += draws["jumps"] * _JUMP_SIZE * volatility
    path_SN = np.cumsum(steps_SN, axis=0)
    # The maximum of a Brownian path between two known ends has this distribution (reflection principle).
    middle_SN = path_SN - steps_SN / 2
    squares_SN = steps_SN**2
    doubled_N = 2 * step_spread_N**2
    move_N = path_SN[-1]
    return {
        "move": move_N,
        "highest": (middle_SN + np.sqrt(squares_SN + doubled_N * draws["reach_up"]) / 2).max(axis=0),
        "lowest": (middle_SN - np.sqrt(squares_SN + doubled_N * draws["reach_down"]) / 2).min(axis=0),
        "activity": relative_N**1.3 * np.exp(0.4 * draws["turnover"] + 0.3 * np.abs(move_N) / spread_N),
    }


def _candle_columns(series: Series, paths: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Return the candles of paths of `_draw_paths`: OHLCV, each of shape (N,), newest first."""
    price, _ = coin(series.symbol)
    log_end = np.log(price) - np.concatenate([[0.0], np.cumsum(paths["move"])])
    ends = np.exp(log_end)
    opened = ends[1:]
    close = ends[:-1]
    prices = {
        OPEN: opened,
        HIGH: np.maximum(opened * np.exp(paths["highest"]), np.maximum(opened, close)),
        LOW: np.minimum(opened * np.exp(paths["lowest"]), np.minimum(opened, close)),
        CLOSE: close,
    }
    decimals = PRICE_DIGITS - 1 - math.floor(math.log10(price))
    # Prices are rounded to steps, as on an exchange.
    smallest = 10.0**-decimals
    rounded = {name: np.maximum(np.round(column, decimals), smallest) for name, column in prices.items()}
    bar_share = series.bar_s / DAY_S
    return {**rounded, VOLUME: _TURNOVER_PER_DAY * bar_share * paths["activity"] / close}
