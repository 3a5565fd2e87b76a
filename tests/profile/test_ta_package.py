"""Indicators of the package `ta` as features: which, computed how, refused why."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ta.momentum import RSIIndicator, StochasticOscillator
from ta.trend import ADXIndicator
from ta.volatility import AverageTrueRange
from walked_market import checked, rows_by_time, walked_market

from v8.base.errors import DataError
from v8.data.feature_store import FeatureStore
from v8.data.features import FeatureTable, compute_table
from v8.profile.formulas import Kind
from v8.profile.indicators import FEATURES, ancestry, check_columns, plain_names, warmup_bars
from v8.profile.ta_features import RefusedError, outputs, package_feature, read_name, suggestion

NUM_ROWS = 440
SIZES = (1e-4, 0.003, 0.03)
SEEDS = st.integers(0, 2**32 - 1)

LOOK_AHEAD = {"kst", "kst_sig", "kst_diff"}
ENDLESS = {"acc_dist_index", "on_balance_volume", "volume_price_trend", "cumulative_return"}
ENDLESS |= {"negative_volume_index"}
WITH_GAPS = {"psar_up", "psar_down"}
REFUSED = {
    **dict.fromkeys(LOOK_AHEAD, "looks ahead"),
    **dict.fromkeys(ENDLESS, "depends on the first candle"),
    **dict.fromkeys(WITH_GAPS, "has no value at some candles"),
}

SLOW = {"psar_up_indicator", "psar_down_indicator", "adx_pos", "adx_neg"}
"""They loop over candles in Python; psar and adx of the same classes stand for them here."""

SOME = (
    "close",
    "ta.rsi(window=2)",  # an exponential average
    "ta.stoch_signal(window=10, smooth_window=5)",  # windows
    "ta.adx(window=3)",  # two Wilder averages, in loops
    "ta.chaikin_money_flow",  # sums that move with a window, of the volume
    "ta.bollinger_hband_indicator",  # 0 or 1
)


def assert_agree(one: FeatureTable, other: FeatureTable, num_shared: int) -> None:
    first = rows_by_time(one)
    second = rows_by_time(other)
    shared = first.keys() & second.keys()
    assert len(shared) == num_shared
    assert [time for time in shared if first[time] != second[time]] == []


def test_every_public_method_of_every_indicator_is_known_by_its_name() -> None:
    assert {"adx", "adx_pos", "stoch", "psar", "ichimoku_a", "money_flow_index", "daily_return"} <= set(
        outputs()
    )
    assert read_name("ta.stoch").output.inputs == ("high", "low", "close")
    assert metadata.version("ta") != "0.11.0" or len(outputs()) == 84


@pytest.mark.parametrize("name", sorted(set(outputs()) - SLOW - {"sma_indicator"}))
def test_an_output_is_a_feature_or_refused_with_its_reason(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(RefusedError, match=rf"ta\.{name} {REFUSED[name]}"):
            package_feature(f"ta.{name}")
        assert f"ta.{name}" not in FEATURES
        return
    feature = FEATURES[f"ta.{name}"]
    assert feature.formula is not None
    assert feature.formula.warmup_bars < 2_000
    assert f"in ta {metadata.version('ta')}, " in feature.sentence
    assert len(f"{feature.name}: {feature.sentence}") <= 300  # what a published definition may have


@settings(max_examples=8)
@given(seed=SEEDS, cut=st.integers(1, 120), end=st.integers(320, NUM_ROWS))
def test_a_candle_has_one_value_wherever_its_table_begins_and_ends(seed: int, cut: int, end: int) -> None:
    frame = walked_market(seed, NUM_ROWS, sizes=SIZES)
    warmup = warmup_bars(SOME)
    whole = compute_table(checked(frame), SOME)
    part = compute_table(checked(frame[cut:end]), SOME)
    assert_agree(whole, part, end - cut - warmup)


@settings(max_examples=8)
@given(seed=SEEDS, cut=st.integers(200, NUM_ROWS - 1))
def test_a_later_candle_changes_no_earlier_value(seed: int, cut: int) -> None:
    frame = walked_market(seed, NUM_ROWS, sizes=SIZES)
    changed = walked_market(seed, NUM_ROWS, sizes=SIZES)
    changed.loc[cut:, ["open", "high", "low", "close"]] *= 1.7
    before, after = (rows_by_time(compute_table(checked(each), SOME)) for each in (frame, changed))
    times = frame["open_time"].tolist()
    same = [before[time] == after[time] for time in times if time in before]
    first = cut - warmup_bars(SOME)
    assert all(same[: max(0, first)])
    # The change itself must be seen, or the test would prove nothing.
    assert not all(same[max(0, first) :])


def test_values_are_those_of_the_package_on_all_history() -> None:
    frame = walked_market(3, 1_000, sizes=SIZES)
    candles = {name: frame[name] for name in ("open", "high", "low", "close", "volume")}
    high = candles["high"]
    low = candles["low"]
    close = candles["close"]
    expected = {
        "ta.rsi": RSIIndicator(close).rsi(),
        "ta.stoch(window=10)": StochasticOscillator(high, low, close, window=10).stoch(),
        "ta.adx_pos(window=20)": ADXIndicator(high, low, close, window=20).adx_pos(),
        "ta.average_true_range": AverageTrueRange(high, low, close).average_true_range(),
    }
    table = compute_table(checked(frame), tuple(expected))
    for name, values in expected.items():
        np.testing.assert_allclose(table.column(name), values[-len(table) :], rtol=2e-6)


def test_how_a_column_is_scaled_follows_from_its_unit() -> None:
    kinds = {
        "ta.rsi": Kind.CENTRED,
        "ta.ema_indicator": Kind.PRICE,
        "ta.donchian_channel_hband": Kind.PRICE,
        "ta.bollinger_lband": Kind.AMOUNT,  # may leave the prices, and even fall below zero
        "ta.macd": Kind.AMOUNT,
        "ta.force_index": Kind.OTHER,
    }
    assert {name: FEATURES[name].kind for name in kinds} == kinds
    assert FEATURES["ta.force_index"].sentence.endswith("quote currency times base currency")


def test_a_name_is_written_in_one_way() -> None:
    assert plain_names(["ta.adx( window = 14 )", "ta.adx(window=14.0)", "close"]) == (
        "ta.adx",
        "ta.adx",
        "close",
    )
    with pytest.raises(DataError, match=r"'ta.adx\(window=14\)' is written ta\.adx"):
        check_columns(["ta.adx(window=14)"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ta.adxx", r"feature columns: .*no output .*mean ta.adx"),
        ("ta.atr", "did you mean ta.average_true_range"),
        ("ta.adx(windo=14)", r"feature columns: .*'windo'.*window"),
        ("ta.adx(window=x)", r"feature columns: .*window=x of ta.adx must"),
        ("ta.adx(fillna=1)", r"feature columns: .*fillna=1 of"),
        ("ta.adx(14)", r"feature columns: .*parameter '14'"),
        ("ta.stoch(window=10", r"feature columns: .*not written like ta.adx"),
        ("ta.sma_indicator", r"feature columns: .*ta.sma_indicator needs window"),
        ("ta.adx(window=0)", r"ValueError: window .* 0"),
        ("ta.sma_indicator(window=-3)", "package says ValueError: "),
        ("ta.donchian_channel_hband(offset=-3)", r"no value at|looks ahead"),
        ("ta.ichimoku_a(visual=true)", r"feature columns: .*looks ahead"),
        ("ta.ema_indicator(window=2000)", r"feature columns: .*depends on the first"),
        ("ta.volume_price_trend(dropnans=true)", r"cannot be computed|depends on the"),
    ],
)
def test_a_name_that_cannot_be_a_feature_says_why_and_what_may_be_meant(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_columns(["close", name])


def test_more_columns_than_could_be_examined_soon_are_refused_unexamined() -> None:
    before = package_feature.cache_info().misses
    with pytest.raises(DataError, match=r"feature columns: .*100.*101"):
        check_columns([f"ta.psar(step=0.{number + 200})" for number in range(101)])
    assert package_feature.cache_info().misses == before


def test_a_name_without_its_prefix_is_found_in_the_package() -> None:
    assert suggestion("adx") == "ta.adx"
    with pytest.raises(DataError, match=r"feature columns: .*'adx'.*ta\.adx.*got 'adx'"):
        check_columns(["adx"])


def test_a_flat_market_has_no_value_unless_the_last_one_is_asked_for() -> None:
    frame = walked_market(2, NUM_ROWS, sizes=SIZES)
    frame.loc[300:360, ["open", "high", "low", "close"]] = frame.loc[299, "close"]
    candles = checked(frame)
    with pytest.raises(DataError, match=r"features of BTCUSDT-15m: .*got others in ta.stoch"):
        compute_table(candles, ["ta.stoch"])
    values = compute_table(candles, ["ta.stoch(fillna=true)"]).column("ta.stoch(fillna=true)")
    assert ((values >= 0) & (values <= 100)).all()


def test_the_version_of_the_package_is_part_of_what_a_column_means() -> None:
    formula = FEATURES["ta.stoch"].formula
    assert formula is not None
    assert formula.version == f"ta {metadata.version('ta')}, 1"
    assert (
        len({ancestry(name).digest for name in ("ta.stoch", "ta.stoch(window=10)", "ta.stoch_signal")}) == 3
    )


def test_a_file_with_columns_of_the_package_is_read_without_examining_them(tmp_path: Path) -> None:
    candles = checked(walked_market(5, NUM_ROWS, sizes=SIZES))
    store = FeatureStore(tmp_path)
    store.table(candles, ["close", "ta.cci(window=23)"])
    package_feature.cache_clear()
    FeatureStore(tmp_path).table(candles, ["close"])
    assert package_feature.cache_info().currsize == 0
    again = FeatureStore(tmp_path)
    again.table(candles, ["ta.cci(window=23)"])
    assert again.stats.reused_columns == 1
