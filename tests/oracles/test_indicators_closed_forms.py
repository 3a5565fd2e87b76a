"""Indicators of markets simple enough to work out by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from indicator_values import compute

NUM_ROWS = 600
LINEAGE = ("rsi", "macd", "macd_signal", "roc", "bb_upper", "bb_lower", "bb_width", "bb_position")
LINEAGE += ("volatility", "atr", "volume_norm")


def last_values(
    close: np.ndarray, *, reach: float = 0.0, volume: np.ndarray | None = None
) -> dict[str, float]:
    candles = {"open": close, "high": close + reach, "low": close - reach, "close": close}
    candles["volume"] = np.ones(len(close)) if volume is None else volume
    return {name: float(values[-1]) for name, values in compute(LINEAGE, candles).items()}


@pytest.mark.parametrize("price", [0.1, 1e-5, 1e5])
def test_a_constant_market(price: float) -> None:
    # Nothing moves: bands meet at the price, strength is even, volume is its own average. Exactly.
    assert last_values(np.full(NUM_ROWS, price), volume=np.full(NUM_ROWS, 3.0)) == {
        "rsi": 50.0,
        "macd": 0.0,
        "macd_signal": 0.0,
        "roc": 0.0,
        "bb_upper": price,
        "bb_lower": price,
        "bb_width": 0.0,
        "bb_position": 0.5,
        "volatility": 0.0,
        "atr": 0.0,
        "volume_norm": 1.0,
    }


def test_a_market_that_rises_by_a_half_each_bar() -> None:
    # close = 100 + i / 2, last 399.5. An exponential average of span n trails a ramp by (n - 1) / 2
    # bars: 5.5 and 12.5, so MACD = 7 bars = 3.5, and its average is the same.
    # Average of 20 = close - 9.5 bars = 394.75. Sample variance of 1..20 = 20 * 21 / 12 = 35 bars^2, so
    # the deviation is sqrt(35) / 2 = 2.958039891549808 and the bands lie 5.916079783099616 away.
    # Position = 0.5 + 4.75 / 11.832159566199232, width 11.832159566199232 / 394.75, a quarter of it is
    # the volatility. Change over 12 bars: 6 on 393.5.
    # True range: the bar spans close +- 1 and the previous close lies inside: 2.
    values = last_values(100 + 0.5 * np.arange(NUM_ROWS), reach=1.0)
    assert values == pytest.approx(
        {
            "rsi": 100.0,
            "macd": 3.5,
            "macd_signal": 3.5,
            "roc": 1.524777636594663,
            "bb_upper": 400.6660797830996,
            "bb_lower": 388.8339202169004,
            "bb_width": 0.02997380510753447,
            "bb_position": 0.9014482709960454,
            "volatility": 0.0074934512768836175,
            "atr": 2.0,
            "volume_norm": 1.0,
        },
        rel=1e-9,
    )


def test_a_market_that_grows_one_percent_each_bar() -> None:
    # close = 1.01^i. Change over 12 bars: 1.01^12 - 1 = 12.6825030131970 %.
    # Average of 20, in closes: (1 - q^20) / (20 (1 - q)) with q = 1 / 1.01 is 0.911300417...; of squares
    # (1 - q^40) / (20 (1 - q^2)); variance = 20 / 19 * (squares - average^2); volatility = deviation /
    # average. True range of bars without reach = close - previous close = close (1 - q), averaged over 14.
    close = 1.01 ** np.arange(NUM_ROWS)
    q = 1 / 1.01
    average = (1 - q**20) / (20 * (1 - q))
    squares = (1 - q**40) / (20 * (1 - q**2))
    values = last_values(close, volume=close)
    assert values["rsi"] == 100.0
    assert values["roc"] == pytest.approx(12.682503013196977, rel=1e-12)
    assert values["volatility"] == pytest.approx(
        (20 / 19 * (squares - average**2)) ** 0.5 / average, rel=1e-9
    )
    assert values["volatility"] == pytest.approx(0.0588, abs=5e-5)
    assert values["volume_norm"] == pytest.approx(1 / average, rel=1e-12)
    assert values["atr"] / close[-1] == pytest.approx((1 - q**14) / 14, rel=1e-9)


def test_a_market_that_steps_up_and_down_in_turn() -> None:
    # Gains come every second bar. After one, the average gain is w / (1 - (1 - w)^2) = 1 / (2 - w) =
    # 14/27 of a step with w = 1/14, the average loss 13/27: 51.851851... after a gain, 48.148148... after
    # a loss. Ten closes at 101, ten at 100: average 100.5, variance 20 * 0.25 / 19, even change 0.
    close = 100 + np.arange(NUM_ROWS) % 2.0
    up = last_values(close)
    down = last_values(close[:-1])
    assert (up["rsi"], down["rsi"]) == pytest.approx((1400 / 27, 1300 / 27), rel=1e-9)
    assert up["volatility"] == pytest.approx((5 / 19) ** 0.5 / 100.5, rel=1e-12)
    assert up["roc"] == down["roc"] == 0.0
    assert up["atr"] == 1.0
    assert up["bb_position"] == pytest.approx(0.5 + 0.5 / (4 * (5 / 19) ** 0.5), rel=1e-12)


def test_one_trade_after_silence() -> None:
    # 8 of volume among 20 bars is 20 times its own average of 0.4.
    volume = np.zeros(NUM_ROWS)
    volume[-1] = 8.0
    assert last_values(np.full(NUM_ROWS, 2.0), volume=volume)["volume_norm"] == 20.0


def test_a_fall_without_recovery() -> None:
    values = last_values(1000 - 0.5 * np.arange(NUM_ROWS))
    assert values["rsi"] == 0.0
    assert values["macd"] == pytest.approx(-3.5, rel=1e-9)
    assert values["bb_position"] == pytest.approx(0.5 - 9.5 / (4 * 35**0.5), rel=1e-9)


TIMES = {
    # Monday midnight: both periods begin. Thursday noon: half of a day and (3 + 1/2) / 7 = half of a week.
    datetime(2024, 1, 1, tzinfo=UTC): ([0, 1, 0, 1, 0, 1], [0, 1, 0, 1]),
    datetime(2026, 11, 19, 12, tzinfo=UTC): ([0, -1, 0, 1, 0, -1], [0, -1, 0, 1]),
    # Tuesday 18:00: three quarters of a day and (1 + 3/4) / 7 = a quarter of a week.
    datetime(1970, 1, 6, 18, tzinfo=UTC): ([-1, 0, 0, -1, 1, 0], [1, 0, 0, -1]),
    # Thursday midnight 1970, where the epoch begins: 3 / 7 of a week.
    datetime(1970, 1, 1, tzinfo=UTC): (
        [0, 1, 0, 1, 0, 1],
        [0.4338837391, -0.9009688679, -0.7818314825, 0.6234898019],
    ),
}


@pytest.mark.parametrize("time", TIMES, ids=lambda time: f"{time:%A %H:%M %Y}")
def test_waves_tell_the_time_of_the_day_and_of_the_week(time: datetime) -> None:
    day = [f"day_{wave}_{waves}" for waves in (1, 2, 3) for wave in ("sin", "cos")]
    week = [f"week_{wave}_{waves}" for waves in (1, 2) for wave in ("sin", "cos")]
    values = compute([*day, *week], {"open_time": np.array([time.timestamp()])})
    for names, expected in zip((day, week), TIMES[time], strict=True):
        assert [float(values[name][0]) for name in names] == pytest.approx(expected, abs=1e-9)


def test_fast_waves_tell_the_quarter_of_the_hour() -> None:
    monday = datetime(2024, 1, 1, 18, tzinfo=UTC).timestamp()
    names = ["day_sin_24", "day_cos_24", "day_sin_48", "day_cos_48"]
    values = compute(names, {"open_time": monday + 900.0 * np.arange(4)})
    # An hour is one of 24 waves, and two of 48: its quarters are a half of the faster wave each.
    expected = [[0, 1, 0, -1], [1, 0, -1, 0], [0, 0, 0, 0], [1, -1, 1, -1]]
    assert [values[name].tolist() for name in names] == expected


@pytest.mark.parametrize(("bar_hours", "name"), [(4, "day_sin_3"), (12, "day_sin_1"), (24, "day_sin_2")])
def test_a_wave_that_every_bar_meets_at_zero_is_exactly_zero(bar_hours: int, name: str) -> None:
    """Rounding errors of 1e-16 would become the whole column when it is brought to unit size."""
    times = 1_700_006_400.0 + 3600 * bar_hours * np.arange(100)  # 2023-11-15 00:00
    assert compute([name], {"open_time": times})[name].tolist() == [0.0] * 100
