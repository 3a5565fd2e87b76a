"""Covariates: names, what they mean, and the same numbers as the features that they are of elsewhere."""

from __future__ import annotations

import re

import numpy as np
import pytest

from v8.base.errors import DataError
from v8.data.features import compute_table
from v8.data.market.companions import Companions
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.profile.columns import is_raw_column, split_origin
from v8.profile.formulas import Kind
from v8.profile.indicators import (
    FEATURES,
    ancestry,
    check_columns,
    covariate_inputs,
    definitions,
    plain_names,
    reading_volume,
    warmup_bars,
    why_unknown,
)

EVERY = tuple(FEATURES)
BESIDE = tuple(f"BTCUSDT.{name}" for name in EVERY)


def test_a_covariate_s_name_tells_where_it_comes_from_and_what_it_is_there() -> None:
    assert split_origin("BRK.B.close") == ("BRK.B", "close")
    assert split_origin("BTCUSDT.ta.stoch(window=10)") == ("BTCUSDT", "ta.stoch(window=10)")
    assert split_origin("csv.funding_rate") == ("csv", "funding_rate")
    for own in ("close", "ta.adx", "btcusdt.close", "CON.close", f"{31 * 'A'}.close", "csv.9", "."):
        assert split_origin(own) == ("", own)
    assert is_raw_column("BTCUSDT.close")
    assert is_raw_column("csv.close_of_oil")
    assert not is_raw_column("BTCUSDT.roc")
    assert not is_raw_column("BTCUSDT.open_time")


def test_a_covariate_is_the_feature_of_its_name_with_inputs_of_its_origin() -> None:
    assert all(name in FEATURES for name in (*BESIDE, "BTCUSDT.ta.rsi", "csv.funding_rate"))
    assert FEATURES["BTCUSDT.roc"].kind is FEATURES["roc"].kind
    assert FEATURES["csv.funding_rate"].kind is Kind.OTHER
    assert warmup_bars(["BTCUSDT.roc"]) == warmup_bars(["roc"]) == 12
    assert covariate_inputs(["atr", "BTCUSDT.atr"]) == ("BTCUSDT.high", "BTCUSDT.low", "BTCUSDT.close")
    assert covariate_inputs(["BTCUSDT.day_sin_1"]) == ()
    assert reading_volume(["BTCUSDT.volume_norm", "volume_norm"]) == ["volume_norm"]
    assert plain_names(["BTCUSDT.ta.adx(window=14)"]) == ("BTCUSDT.ta.adx",)
    assert all(len(sentence) <= 300 for sentence in definitions([*BESIDE, "BTCUSDT.ta.rsi"]).values())


def test_a_covariate_has_a_digest_of_its_own_and_own_features_keep_theirs() -> None:
    digests = {ancestry(name).digest for name in ("roc", "BTCUSDT.roc", "ETHUSDT.roc")}
    assert len(digests) == 3
    # What models were published with before there were covariates.
    assert ancestry("roc").digest == ("a39220e228876c236ce43655a8681672d1457a3eb2b3d91c0c678293560d45ba")
    # Of means of ranges, since November 2026.
    assert ancestry("recent_range").digest == (
        "73003a8178a0aa8ed7f52a91fe254ce8758326d60e8514abb4b1bc37e4e81d36"
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("BTCUSDT.rang_20", "'BTCUSDT.rang_20' is no .* of BTCUSDT: .*mean range_20"),
        ("BTCUSDT.ta.kst", "'BTCUSDT.ta.kst' is no .* of BTCUSDT: ta.kst looks ahead"),
        ("BTCUSDT.csv.x", "'BTCUSDT.csv.x' is no .*BTCUSDT"),
        ("btcusdt.close", "'btcusdt.close' is no feature; .*BTCUSDT.close"),
    ],
)
def test_an_unknown_covariate_is_refused_with_its_reason(name: str, why: str) -> None:
    assert name not in FEATURES
    with pytest.raises(DataError, match=f"feature columns: '{name}' is no feature"):
        check_columns([name])
    assert re.search(why, why_unknown(name))


def test_a_series_that_names_itself_gets_its_own_features_to_the_bit() -> None:
    source = open_source("demo")
    series = Series("BTCUSDT", "15m")
    names = (*EVERY, *BESIDE)
    table = compute_table(Companions(covariate_inputs(names)).candles(source, series, 400), names)
    for own, other in zip(EVERY, BESIDE, strict=True):
        assert table.column(own).tobytes() == table.column(other).tobytes(), own


def test_a_neighbour_s_features_are_those_of_its_own_table() -> None:
    source = open_source("demo")
    names = ("close", "BTCUSDT.range_20", "BTCUSDT.macd", "BTCUSDT.ta.rsi")
    joined = Companions(covariate_inputs(names)).candles(source, Series("ETHUSDT", "15m"), 700)
    beside = compute_table(joined, names)
    other = compute_table(source.candles(Series("BTCUSDT", "15m"), 700), ("range_20", "macd", "ta.rsi"))
    np.testing.assert_array_equal(beside.open_time_s, other.open_time_s)
    for name in other.columns:
        assert beside.column(f"BTCUSDT.{name}").tobytes() == other.column(name).tobytes()


def test_candles_alone_are_refused_where_something_must_lie_beside_them() -> None:
    candles = open_source("demo").candles(Series("ETHUSDT", "15m"), 300)
    with pytest.raises(DataError, match=r"BTCUSDT.roc, csv.x need BTCUSDT.close, csv.x as covariates"):
        compute_table(candles, ("close", "BTCUSDT.roc", "csv.x"))
