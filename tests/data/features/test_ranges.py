"""Ranges, moves and times in markets simple enough to work out by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from indicator_values import compute

from v8.profile.indicators import FEATURES

FORMULAS = {name: feature.formula for name, feature in FEATURES.items() if feature.formula}
KINDS = {"recent", "range", "realised", "move", "day", "week", "rolled"}
OF_RANGES = [name for name in FORMULAS if name.split("_")[0] in KINDS]
OF_PRICES = [name for name in OF_RANGES if name.split("_")[0] not in {"day", "week"}]
BAR_DEVIATION = 0.6266570686577501
"""sqrt(pi / 8): deviation of a random walk whose mean log range is one."""


def last_values(close: np.ndarray, log_range: np.ndarray) -> dict[str, float]:
    """Return the newest row of bars that end at their high."""
    candles = {"open": close, "high": close, "low": close * np.exp(-log_range), "close": close}
    candles["open_time"] = 900.0 * np.arange(len(close))
    return {name: float(values[-1]) for name, values in compute(OF_PRICES, candles).items()}


@pytest.mark.parametrize("price", [0.1, 1e-5, 1e5])
def test_in_a_market_that_stands_still_every_share_is_one_and_nothing_moves(price: float) -> None:
    values = last_values(np.full(300, price), np.zeros(300))
    assert values.pop("recent_range") == 0.0
    assert {name: value for name, value in values.items() if value != 0.0} == {
        **dict.fromkeys(["range_1", "range_5", "range_20", "range_60", "range_240"], 1.0),
        **dict.fromkeys(["realised_5", "realised_20", "realised_60", "realised_240"], 1.0),
    }


def test_a_market_that_grows_one_percent_each_bar() -> None:
    # Every bar opens at the previous close: its log range is its log return, log 1.01, whatever the
    # horizon. A return is then 1 / 0.6266571 = 1.5957691 recent ranges, n of them over sqrt(n) are
    # sqrt(n) times that: 3.5682 for five, and above six for twenty and sixty.
    # 18 steps ahead one close but the last is known, q - 1 = 1 / 1.01 - 1 away from it: the average of
    # twenty is (1 - q) / 20 away, the variance (1 - q)^2 (1 - 1 / 20) / 19 = (1 - q)^2 / 20.
    # 17 steps ahead two are known: the average is (2 - q - q^2) / 20 away.
    growth = np.log(1.01)
    values = last_values(1.01 ** np.arange(300.0), np.full(300, growth))
    unit = BAR_DEVIATION * growth
    assert values["recent_range"] == pytest.approx(unit, rel=1e-12)
    assert [values[f"range_{bars}"] for bars in (1, 5, 20, 60, 240)] == pytest.approx([1.0] * 5, rel=1e-12)
    realised = [values[f"realised_{bars}"] for bars in (5, 20, 60, 240)]
    assert realised == pytest.approx([1.5957691216057308] * 4, rel=1e-9)
    moves = [values[f"move_{bars}"] for bars in (1, 5, 20, 60)]
    assert moves == pytest.approx([1.5957691216057308, 3.568248232305543, 6.0, 6.0], rel=1e-9)
    q = 1 / 1.01
    assert values["rolled_middle_18"] == pytest.approx((1 - q) / 20 / unit, rel=1e-9)
    assert values["rolled_deviation_18"] == pytest.approx((1 - q) / 20**0.5 / unit, rel=1e-9)
    assert values["rolled_middle_17"] == pytest.approx((2 - q - q**2) / 20 / unit, rel=1e-9)


def test_five_bars_of_twice_the_range_raise_each_horizon_by_its_share() -> None:
    # Means in old ranges: 2 over the five, (5 x 2 + 15) / 20 = 1.25, (5 x 2 + 55) / 60 = 13/12 and
    # (5 x 2 + 235) / 240 = 49/48. The recent range is 2^.25 x 1.25^.35 x (13/12)^.25 x (49/48)^.15
    # = 1.189207 x 1.081231 x 1.020212 x 1.003098 = 1.3158602 old ones.
    log_range = np.full(300, 0.01)
    log_range[-5:] = 0.02
    values = last_values(np.full(300, 7.0), log_range)
    old = BAR_DEVIATION * 0.01
    assert values["recent_range"] == pytest.approx(1.3158602 * old, rel=1e-6)
    assert values["range_1"] == values["range_5"] == pytest.approx(2 / 1.3158602, rel=1e-6)
    assert values["range_20"] == pytest.approx(1.25 / 1.3158602, rel=1e-6)
    assert values["range_240"] == pytest.approx(49 / 48 / 1.3158602, rel=1e-6)


def test_a_dead_hour_lowers_the_recent_range_to_a_fiftieth_at_most_on_each_horizon() -> None:
    # 60 of 240 bars do not trade: d(240) = 3 / 4 old ones, the others are raised to 2 % of it and weigh
    # 0.85 together: 0.75 x 0.02^0.85 = 0.02697347.
    log_range = np.full(300, 0.01)
    log_range[-60:] = 0.0
    values = last_values(np.full(300, 7.0), log_range)
    assert values["recent_range"] == pytest.approx(0.02697347 * BAR_DEVIATION * 0.01, rel=1e-6)
    assert (values["range_1"], values["range_60"]) == (0.0, 0.0)


def test_a_jump_after_a_dead_hour_counts_as_six_usual_moves_and_ten_deviations() -> None:
    close = np.full(300, 7.0)
    log_range = np.full(300, 0.001)
    log_range[-60:] = 0.0
    close[-1] = 7.7
    values = last_values(close, log_range)
    assert (values["move_1"], values["move_60"]) == (6.0, 6.0)
    assert (values["rolled_middle_1"], values["rolled_deviation_1"]) == (10.0, 10.0)


def test_a_fall_looks_like_the_rise_that_undoes_it() -> None:
    """Sizes carry no direction: only the bands' middle is a ratio of prices instead of their logarithms."""
    rise = 1.01 ** np.arange(300.0)
    up, down = (last_values(close, np.full(300, 0.01)) for close in (rise, rise[::-1]))
    for name in ("recent_range", "realised_20", "move_1", "move_5"):
        assert up[name] == pytest.approx(down[name], rel=1e-9)
        assert up[name] > 0
    assert down["rolled_middle_15"] > up["rolled_middle_15"] > 0


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
