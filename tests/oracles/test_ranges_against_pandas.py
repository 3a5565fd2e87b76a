"""Ranges, moves, times and rolled bands against pandas and the definitions, at three price levels."""

from __future__ import annotations

from collections.abc import Callable

import evaluating
import numpy as np
import pandas as pd
import pytest
from indicator_values import compute

from v8.profile.indicators import FEATURES, warmup_bars

NUM_ROWS = 560
DEAD = slice(340, 420)
"""Rows without any trade: long enough that the deviations over 5, 20 and 60 bars all reach the floor."""

JUMP = 410
"""A dead row whose price is another one, as after a halt: no range tells of it."""

FORMULAS = {name: feature.formula for name, feature in FEATURES.items() if feature.formula}
KINDS = {"recent", "range", "realised", "move", "day", "week", "rolled"}
OF_RANGES = sorted(name for name in FORMULAS if name.split("_")[0] in KINDS)


@pytest.fixture(scope="module", params=[1e-5, 1.0, 1e5])
def market(request: pytest.FixtureRequest) -> pd.DataFrame:
    rng = np.random.default_rng(20241121)
    steps = rng.normal(0, 0.01, NUM_ROWS)
    steps[DEAD] = 0.0
    is_dead = np.zeros(NUM_ROWS, bool)
    steps[JUMP] = 0.05
    is_dead[DEAD] = True
    close = request.param * np.exp(np.cumsum(steps))
    opened = np.where(is_dead, close, np.concatenate([close[:1], close[:-1]]))
    reach = rng.uniform(0, 0.004, (2, NUM_ROWS)) * ~is_dead
    opens = pd.date_range("2024-02-25 22:15", periods=NUM_ROWS, freq="15min", tz="UTC")
    return pd.DataFrame(
        {
            "open_time": (opens - pd.Timestamp(0, tz="UTC")).total_seconds(),
            "open": opened,
            "high": np.maximum(opened, close) * (1 + reach[0]),
            "low": np.minimum(opened, close) * (1 - reach[1]),
            "close": close,
        },
        index=opens,
    )


def arrays(market: pd.DataFrame) -> dict[str, np.ndarray]:
    return {column: market[column].to_numpy() for column in market}


def rolling_mean(values: pd.Series, num_bars: int) -> pd.Series:
    # pandas' own rolling mean keeps a running sum, which remembers wild prices in a dead hour.
    return values.rolling(num_bars).apply(np.mean, raw=True)


def deviation(market: pd.DataFrame, num_bars: int) -> pd.Series:
    return np.sqrt(np.pi / 8) * rolling_mean(np.log(market["high"] / market["low"]), num_bars)


def recent(market: pd.DataFrame) -> pd.Series:
    longest = deviation(market, 240)
    return np.exp(
        0.25 * np.log(deviation(market, 5).clip(lower=0.02 * longest))
        + 0.35 * np.log(deviation(market, 20).clip(lower=0.02 * longest))
        + 0.25 * np.log(deviation(market, 60).clip(lower=0.02 * longest))
        + 0.15 * np.log(longest)
    )


def realised(market: pd.DataFrame, num_bars: int) -> pd.Series:
    return np.sqrt(rolling_mean(np.log(market["close"]).diff() ** 2, num_bars)) / recent(market)


def move(market: pd.DataFrame, num_bars: int) -> pd.Series:
    size = np.log(market["close"] / market["close"].shift(num_bars)).abs()
    return (size / np.sqrt(num_bars) / recent(market)).clip(upper=6)


def rolled(market: pd.DataFrame, step: int, statistic: Callable[[np.ndarray], float]) -> pd.Series:
    """Apply a statistic to the newest 20 - step closes and `step` times the last of them."""
    close = market["close"].to_numpy()
    shares = np.full(len(close), np.nan)
    for row in range(19, len(close)):
        window = np.append(close[row - 19 + step : row + 1], np.full(step, close[row]))
        shares[row] = statistic(window / close[row])
    return (pd.Series(shares, market.index) / recent(market)).clip(upper=10)


def wave(market: pd.DataFrame, period: str, function: np.ufunc, num_waves: int) -> pd.Series:
    opens = pd.DatetimeIndex(market.index)
    hours = opens.hour + opens.minute / 60
    share = hours / 24 if period == "day" else (24 * opens.day_of_week + hours) / 168
    return pd.Series(function(2 * np.pi * num_waves * share), opens)


def oracle(name: str, market: pd.DataFrame) -> pd.Series:
    kind, *rest = name.split("_")
    if name == "recent_range":
        return recent(market)
    if kind == "rolled":
        if rest[0] == "middle":
            return rolled(market, int(rest[1]), lambda shares: abs(shares.mean() - 1))
        return rolled(market, int(rest[1]), lambda shares: shares.std(ddof=1))
    if kind in {"day", "week"}:
        return wave(market, kind, {"sin": np.sin, "cos": np.cos}[rest[0]], int(rest[1]))
    if kind == "range":
        return deviation(market, int(rest[0])) / recent(market)
    return {"realised": realised, "move": move}[kind](market, int(rest[0]))


@pytest.mark.parametrize("name", OF_RANGES)
def test_a_column_of_ranges_equals_its_definition(name: str, market: pd.DataFrame) -> None:
    ours = compute([name], arrays(market))[name]
    warmup = warmup_bars([name])
    assert np.isnan(ours[:warmup]).all()
    theirs = oracle(name, market).to_numpy()[warmup:]
    is_rounded = "_sin_" in name or "_cos_" in name  # to nine decimals
    np.testing.assert_allclose(ours[warmup:], theirs, rtol=1e-9, atol=1e-9 if is_rounded else 1e-12)


def test_the_market_of_the_oracles_reaches_floors_and_bounds(market: pd.DataFrame) -> None:
    """Otherwise they would not have been compared."""
    assert (deviation(market, 60) < 0.02 * deviation(market, 240)).any()
    assert (move(market, 1) == 6).any()
    assert (rolled(market, 1, lambda shares: shares.std(ddof=1)) == 10).any()
    assert (rolled(market, 1, lambda shares: abs(shares.mean() - 1)) == 10).any()
    assert market.index.day_of_week.nunique() == 7


def test_rolled_columns_are_the_naive_bands_around_the_close(market: pd.DataFrame) -> None:
    close = market["close"].to_numpy()
    names = [f"rolled_{what}" for what in ("middle", "deviation")]
    columns = compute([f"{name}_{step}" for step in range(1, 19) for name in names], arrays(market))
    rows = np.arange(240, 340)
    upper, lower = np.moveaxis(
        evaluating.rolled(close[rows[:, None] + np.arange(-19, 1)], 18)["bands"], -1, 0
    )
    unit = (close * recent(market).to_numpy())[rows]
    for step in range(1, 19):
        middle = np.minimum(np.abs((upper + lower)[:, step - 1] / 2 - close[rows]) / unit, 10)
        np.testing.assert_allclose(columns[f"rolled_middle_{step}"][rows], middle, rtol=1e-9, atol=1e-11)
        reach = np.minimum((upper - lower)[:, step - 1] / 4 / unit, 10)
        np.testing.assert_allclose(columns[f"rolled_deviation_{step}"][rows], reach, rtol=1e-9)
