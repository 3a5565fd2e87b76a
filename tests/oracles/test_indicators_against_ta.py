"""Indicators against the `ta` package, an independent implementation, at three price levels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from indicator_values import compute
from ta.momentum import ROCIndicator, RSIIndicator
from ta.trend import MACD
from ta.volatility import AverageTrueRange, BollingerBands

from v8.profile.indicators import FEATURES, warmup_bars

NUM_ROWS = 1500


@pytest.fixture(scope="module", params=[1e-5, 1.0, 1e5])
def market(request: pytest.FixtureRequest) -> pd.DataFrame:
    rng = np.random.default_rng(20241121)
    close = request.param * np.exp(np.cumsum(rng.normal(0, 0.01, NUM_ROWS)))
    opened = np.concatenate([close[:1], close[:-1]]) * np.exp(rng.normal(0, 0.001, NUM_ROWS))
    return pd.DataFrame(
        {
            "open": opened,
            "high": np.maximum(opened, close) * 1.003,
            "low": np.minimum(opened, close) * 0.996,
            "close": close,
            "volume": rng.gamma(2.0, 10.0, NUM_ROWS),
        }
    )


def assert_equal(market: pd.DataFrame, name: str, theirs: pd.Series, *, atol: float = 0.0) -> None:
    ours = compute([name], {column: market[column].to_numpy() for column in market})[name]
    warmup = warmup_bars([name])
    assert np.isnan(ours[:warmup]).all()
    np.testing.assert_allclose(ours[warmup:], theirs.to_numpy()[warmup:], rtol=1e-9, atol=atol)


def test_rsi_equals_ta(market: pd.DataFrame) -> None:
    assert_equal(market, "rsi", RSIIndicator(market["close"], 14).rsi())


def test_macd_and_its_signal_equal_ta(market: pd.DataFrame) -> None:
    # A difference of two near-equal averages: what counts are digits of the price.
    theirs = MACD(market["close"], 26, 12, 9)
    digits = 1e-13 * market["close"].max()
    assert_equal(market, "macd", theirs.macd(), atol=digits)
    assert_equal(market, "macd_signal", theirs.macd_signal(), atol=digits)


def test_roc_equals_ta(market: pd.DataFrame) -> None:
    assert_equal(market, "roc", ROCIndicator(market["close"], 12).roc(), atol=1e-11)


def test_bollinger_columns_equal_ta_with_sample_deviations(market: pd.DataFrame) -> None:
    # ta divides squares by 20, the lineage by 19: deviations differ by the factor sqrt(20 / 19).
    theirs = BollingerBands(market["close"], 20, 2 * np.sqrt(20 / 19))
    assert_equal(market, "bb_upper", theirs.bollinger_hband())
    assert_equal(market, "bb_lower", theirs.bollinger_lband())
    assert_equal(market, "bb_width", theirs.bollinger_wband() / 100)
    assert_equal(market, "bb_position", theirs.bollinger_pband(), atol=1e-9)
    # The bands are 4 sample deviations apart.
    assert_equal(market, "volatility", theirs.bollinger_wband() / 100 / 4)


def test_atr_is_the_plain_average_of_the_true_range_of_ta(market: pd.DataFrame) -> None:
    # ta's own ATR has Wilder's smoothing; over one bar that smoothing is none and leaves the true range.
    true_range = AverageTrueRange(market["high"], market["low"], market["close"], 1).average_true_range()
    assert_equal(market, "atr", true_range.rolling(14).mean())


def test_volume_norm_equals_pandas(market: pd.DataFrame) -> None:
    # ta has no such indicator.
    assert_equal(market, "volume_norm", market["volume"] / market["volume"].rolling(20).mean())


def test_every_indicator_of_the_lineage_has_an_oracle_here() -> None:
    # Those of `ranges` have theirs in test_ranges_against_pandas.py.
    checked = {"rsi", "macd", "macd_signal", "roc", "atr", "volume_norm"}
    checked |= {"bb_upper", "bb_lower", "bb_width", "bb_position", "volatility"}
    known = {name: feature.formula for name, feature in FEATURES.items() if feature.formula}
    of_ranges = {"recent", "range", "realised", "move", "day", "week", "rolled"}
    untested = {name for name in known if name.split("_")[0] not in of_ranges} - checked
    assert not untested, (
        f"compare {sorted(untested)} with another program or a closed form, then add to `checked`"
    )
    assert checked <= set(known)
