"""FeatureTable: names, segments, warm-up, read-only arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from walked import walk_candles

from v8.base.errors import DataError
from v8.data.features import FeatureTable, compute_table
from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.profile.columns import OHLC
from v8.profile.indicators import FEATURES, FeatureSet

SERIES = Series("BTCUSDT", "15m")


def test_only_a_feature_that_reads_the_volume_needs_one() -> None:
    full = walk_candles(300)
    without = check_candles(full.to_frame().reset_index().drop(columns="volume"), SERIES, source="files")
    for name in ("close", "rsi"):
        np.testing.assert_array_equal(
            compute_table(without, [name]).column(name), compute_table(full, [name]).column(name)
        )
    with pytest.raises(
        DataError, match=r"features of BTCUSDT-15m: .*volume_norm .*got candles without .* key features"
    ):
        compute_table(without, ["close", "volume_norm"])


def test_g4_columns_are_picked_by_name_whatever_their_order() -> None:
    candles = walk_candles(300)
    one = compute_table(candles, ["bb_lower", "bb_width", "bb_upper", "volatility", "close"])
    other = compute_table(candles, ["close", "volatility", "bb_upper", "bb_lower", "bb_width"])
    for name in one.columns:
        np.testing.assert_array_equal(one.column(name), other.column(name))
    picked = one.select(["bb_upper", "bb_lower"])
    np.testing.assert_array_equal(picked[:, 0], one.column("bb_upper"))
    np.testing.assert_array_equal(picked[:, 1], one.column("bb_lower"))
    assert (picked[:, 0] > picked[:, 1]).all()


def test_g4_duplicates_refused_when_asking_and_when_selecting() -> None:
    candles = walk_candles(300)
    with pytest.raises(DataError, match="'close' is listed twice"):
        compute_table(candles, ["close", "rsi", "close"])
    with pytest.raises(DataError, match="'rsi' is listed twice"):
        compute_table(candles, ["rsi"]).select(["rsi", "rsi"])


def test_a_column_the_table_does_not_hold_is_refused_with_those_it_holds() -> None:
    table = compute_table(walk_candles(300), ["rsi", "close"])
    with pytest.raises(DataError, match=r"BTCUSDT-15m, column macd: .*got 'macd'"):
        table.column("macd")
    with pytest.raises(DataError, match="did you mean macd_signal"):
        table.column("macdsignal")


def test_values_are_single_precision_with_prices_as_they_were() -> None:
    candles = walk_candles(50)
    table = compute_table(candles, OHLC)
    assert table.select(table.columns).dtype == np.float32
    for name in OHLC:
        np.testing.assert_array_equal(table.column(name), candles.column(name).astype(np.float32))


def test_arrays_cannot_be_written() -> None:
    table = compute_table(walk_candles(50), ["close", "roc"])
    for array in (table.open_time_s, table.segment, table.column("roc")):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_selection_is_a_copy_with_its_rows_in_one_run() -> None:
    table = compute_table(walk_candles(50), ["close", "roc"])
    chosen = table.select(["roc", "close"])
    assert chosen.flags.c_contiguous
    chosen[:] = 0
    assert table.column("close").min() > 0


def test_the_warm_up_is_that_of_the_slowest_column() -> None:
    candles = walk_candles(200)
    assert len(compute_table(candles, ["close"])) == 200
    assert len(compute_table(candles, ["close", "roc"])) == 188
    assert len(compute_table(candles, ["roc", "rsi"])) == 13
    assert compute_table(candles, ["roc"]).open_time_s[0] == candles.open_time_s[12]


def test_every_piece_starts_anew_and_loses_its_own_warm_up() -> None:
    # Rows 100..104 are missing: segments of 100 and 95 candles, each less 12 rows for the rate of change.
    candles = walk_candles(200, missing=slice(100, 105))
    table = compute_table(candles, ["roc", "close"])
    assert np.bincount(table.segment).tolist() == [88, 83]
    assert table.open_time_s[88] == candles.open_time_s[100 + 12]
    change_pct = 100 * (candles.column("close")[112] / candles.column("close")[100] - 1)
    assert table.column("roc")[88] == pytest.approx(change_pct, rel=1e-6)


def test_a_piece_that_is_all_warm_up_vanishes_and_the_others_are_counted_from_zero() -> None:
    # Rows 12..14 are missing: the first segment of 12 candles is all warm-up.
    candles = walk_candles(100, missing=slice(12, 15))
    table = compute_table(candles, ["roc"])
    assert set(table.segment.tolist()) == {0}
    assert table.open_time_s[0] == candles.open_time_s[12 + 12]


def test_candles_that_are_all_warm_up_are_refused_with_the_number_needed() -> None:
    with pytest.raises(
        DataError,
        match=r"features of BTCUSDT-15m: .* 188 .*\(187 warm-up \+ 1\); got 250 candles, at most .*--bars",
    ):
        compute_table(walk_candles(260, missing=slice(150, 160)), ["close", "rsi"])


def test_one_row_more_than_the_warm_up_is_enough() -> None:
    assert len(compute_table(walk_candles(241), list(FEATURES))) == 1


def test_the_digest_follows_candles_and_columns() -> None:
    candles = walk_candles(60)
    digest = compute_table(candles, ["close", "roc"]).digest
    assert compute_table(walk_candles(60), ["close", "roc"]).digest == digest
    assert compute_table(walk_candles(60, seed=1), ["close", "roc"]).digest != digest
    assert compute_table(candles, ["roc", "close"]).digest != digest
    assert compute_table(candles, ["close", "atr"]).digest != digest


def test_a_column_in_runs_is_read_as_one_array_made_once() -> None:
    runs = tuple(np.arange(first, last, dtype=np.float32) for first, last in ((0, 2), (2, 3), (3, 7)))
    table = FeatureTable(
        SERIES, np.arange(7), {"close": runs, "rsi": (*runs[::-1],)}, np.zeros(7, int), "digest"
    )
    assert table.select(["rsi", "close"]).T.tolist() == [[3, 4, 5, 6, 2, 0, 1], [0, 1, 2, 3, 4, 5, 6]]
    assert table.column("close").tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert table.column("close") is table.column("close")
    assert not table.column("close").flags.writeable


def priced(prices: NDArray[np.float64]) -> Candles:
    """Return candles of any price, which the check of candles would refuse."""
    values = np.stack([*[prices] * len(OHLC), np.ones(len(prices))], axis=1)
    return replace(walk_candles(len(prices)), values=values)


def test_a_value_beyond_single_precision_is_refused() -> None:
    # The return over 12 bars from 1e-40 to 1 is 1e42 percent; single precision ends at 3.4e38.
    opened = np.concatenate([np.full(12, 1e-40), np.ones(5)])
    candles = priced(opened)
    with (
        np.errstate(over="ignore"),
        pytest.raises(DataError, match=r"features of BTCUSDT-15m: .*got others in roc"),
    ):
        compute_table(candles, ["roc"])


def test_a_feature_set_knows_what_its_columns_need() -> None:
    names = ["close", "volume_norm", "macd", "BTCUSDT.range_20"]
    features = FeatureSet.of(names)
    assert features.names == tuple(names)
    assert features.warmup_bars == 239  # of range_20: a share of the ranges of 240 bars
    assert features.reading_volume == ("volume_norm",)
    assert features.covariate_inputs == ("BTCUSDT.high", "BTCUSDT.low")
    assert features.digest != FeatureSet.of(names[:-1]).digest
    with pytest.raises(DataError, match=r"'close' is listed twice"):
        FeatureSet.of(["close", "close"])
