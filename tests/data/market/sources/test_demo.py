import math

import numpy as np
import pytest

from v8.base.errors import DataError
from v8.data.market.series import TIMEFRAME_S, Series, load_universe
from v8.data.market.sources.demo import BLOCK_BARS, END_S, PRICE_DIGITS, DemoSource, coin

QUARTER = Series("BTCUSDT", "15m")
HOURLY = Series("BTCUSDT", "1h")


def test_every_series_of_the_universe_is_a_whole_world_of_its_own():
    digests = set()
    for series in load_universe():
        candles = DemoSource().candles(series, 500)
        assert (len(candles), candles.report.num_gaps) == (500, 0)
        assert not any(candles.report.dropped().values())
        assert candles.open_time_s[-1] + series.bar_s == END_S
        digests.add(candles.column("close").tobytes())
    assert len(digests) == 40


def test_the_same_series_is_the_same_on_every_machine_and_day():
    candles = DemoSource().candles(HOURLY, 100)
    assert DemoSource().candles(HOURLY, 100).digest == candles.digest
    assert candles.report.last_open == "2024-12-31T23:00:00Z"


@pytest.mark.parametrize("num_bars", [1, 100, BLOCK_BARS, BLOCK_BARS + 1])
def test_fewer_bars_are_the_newest_part_of_more(num_bars):
    more = DemoSource().candles(QUARTER, 2 * BLOCK_BARS + 5)
    assert DemoSource().candles(QUARTER, num_bars).digest == more.newest(num_bars).digest


def test_an_end_cuts_the_same_world():
    more = DemoSource().candles(QUARTER, 1_000)
    end_s = int(more.open_time_s[-101])
    for moment_s in (end_s, end_s + 1, end_s + 899):
        cut = DemoSource().candles(QUARTER, 50, end_s=moment_s)
        assert cut.digest == more.newest(50, end_s).digest
        assert len(cut) == 50
    assert DemoSource().candles(QUARTER, 50, end_s=END_S + 10**6).digest == more.newest(50).digest


@pytest.mark.parametrize("timeframe", ["1h", "4h", "1d", "1w"])
def test_a_coin_has_one_path_whatever_its_timeframe(timeframe):
    series = Series("XRPUSDT", timeframe)
    candles = DemoSource().candles(series, 3)
    num_parts = series.bar_s // QUARTER.bar_s
    # A week ends on Monday, up to 6 days before the market does.
    quarters = DemoSource().candles(Series("XRPUSDT", "15m"), 3 * num_parts + 6 * 96)
    for at, open_s in enumerate(candles.open_time_s):
        first = int(np.searchsorted(quarters.open_time_s, open_s))
        parts = {name: quarters.column(name)[first : first + num_parts] for name in ("high", "low", "volume")}
        assert candles.column("open")[at] == quarters.column("open")[first]
        assert candles.column("high")[at] == parts["high"].max()
        assert candles.column("low")[at] == parts["low"].min()
        assert candles.column("close")[at] == quarters.column("close")[first + num_parts - 1]
        assert candles.column("volume")[at] == pytest.approx(parts["volume"].sum(), rel=1e-12)


def test_the_world_has_a_beginning():
    # 2010-01-01 to 2025-01-01 are 15 years with 4 leap days: 5,479 days.
    candles = DemoSource().candles(Series("BTCUSDT", "1d"), 10**9)
    assert (len(candles), candles.report.first_open) == (5_479, "2010-01-01T00:00:00Z")
    with pytest.raises(DataError, match=" 2010-01-01T00:00:00Z"):
        DemoSource().candles(QUARTER, 10, end_s=1_262_304_000 - 1)


def test_it_has_the_habits_of_a_market_and_no_memory_in_the_close():
    candles = DemoSource().candles(HOURLY, 20_000)
    change = np.diff(np.log(candles.column("close")))
    size = np.abs(change)
    # A normal law has kurtosis 3; standard error of a correlation of 20,000 independent pairs: 0.007.
    assert np.mean(change**4) / np.mean(change**2) ** 2 > 4.5
    assert np.corrcoef(size[:-1], size[1:])[0, 1] > 0.1
    assert np.corrcoef(size[:-48], size[48:])[0, 1] > 0.03
    assert abs(np.corrcoef(change[:-1], change[1:])[0, 1]) < 0.05
    assert np.corrcoef(size, np.log(candles.column("volume")[1:]))[0, 1] > 0.3
    by_hour = [size[(candles.open_time_s[1:] // 3_600) % 24 == hour].mean() for hour in range(24)]
    assert 10 <= int(np.argmax(by_hour)) <= 20
    assert 0.02 < change.std() * np.sqrt(24) < 0.07


def test_a_bar_opens_where_the_last_one_closed_and_has_wicks_of_a_continuous_path():
    candles = DemoSource().candles(QUARTER, 1_000)
    opened, high, low, close = (candles.column(name) for name in ("open", "high", "low", "close"))
    np.testing.assert_allclose(opened[1:], close[:-1], rtol=1e-12)
    assert np.mean(high > np.maximum(opened, close)) > 0.99
    # The range of a Brownian path is sqrt(8 / pi) = 1.596 of its deviation on average (Feller, 1951), and
    # |change| is sqrt(2 / pi) = 0.798 of it: twice as much.
    ratio = np.log(high / low).mean() / np.abs(np.log(close / opened)).mean()
    assert 1.8 < ratio < 2.2
    assert np.mean(low < np.minimum(opened, close)) > 0.99


def test_every_coin_ends_at_its_price_and_moves_as_much_as_it_does():
    habits = {series.symbol: coin(series.symbol) for series in load_universe()}
    assert len({price for price, _ in habits.values()}) == 20
    assert 50_000 < habits["BTCUSDT"][0] < 200_000
    assert habits["PEPEUSDT"][0] < 1e-4
    assert all(0.02 < volatility < 0.07 for _, volatility in habits.values())
    for name, timeframe in (("BTCUSDT", "15m"), ("BTCUSDT", "1d"), ("PEPEUSDT", "1h")):
        close = DemoSource().candles(Series(name, timeframe), 8_000).column("close")
        price, volatility = habits[name]
        assert close[-1] == price
        # A random walk of 83 days to 15 years keeps within five standard deviations of where it ends.
        days = len(close) * Series(name, timeframe).bar_s / 86_400
        reach = math.exp(5 * volatility * math.sqrt(days))
        assert close.max() / close.min() < reach
    spread = {name: np.diff(np.log(daily(name))).std() for name in ("BTCUSDT", "PEPEUSDT")}
    assert spread["PEPEUSDT"] > 1.5 * spread["BTCUSDT"]  # 0.065 beside 0.025


def daily(name):
    return DemoSource().candles(Series(name, "1d"), 3_000).column("close")


def test_a_coin_that_nobody_listed_has_habits_of_its_own():
    one = coin("COIN1USDT")
    other = coin("COIN2USDT")
    assert one == coin("COIN1USDT") != other
    assert 0.1 <= one[0] <= 100
    assert 0.03 < one[1] < 0.06


def test_prices_have_the_steps_of_an_exchange():
    for name, step in (("BTCUSDT", 0.1), ("DOGEUSDT", 1e-6), ("PEPEUSDT", 1e-10)):
        # 93,576 has five digits before the point, so one behind it makes six; 0.31583 has six behind it.
        candles = DemoSource().candles(Series(name, "15m"), 500)
        for column in ("open", "high", "low", "close"):
            steps = candles.column(column) / step
            np.testing.assert_allclose(steps, np.round(steps), rtol=1e-9)
    assert PRICE_DIGITS == 6


def test_g9_the_demo_market_is_marked_and_never_publishable():
    source = DemoSource()
    assert (source.name, source.is_publishable) == ("demo", False)
    assert source.candles(HOURLY, 10).source == "demo"


def test_every_timeframe_has_its_candles_and_weeks_begin_on_monday():
    for timeframe in TIMEFRAME_S:
        candles = DemoSource().candles(Series("BTCUSDT", timeframe), 50)
        assert len(candles) == 50
    assert (candles.open_time_s // 86_400 % 7 == 4).all()  # 1970-01-01 was a Thursday
