"""FeatureStore: shared columns, nothing computed twice, nothing damaged used."""

from __future__ import annotations

import json
import logging
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from walked import walk_candles

from v8.base.errors import DataError
from v8.data.feature_store import GROUP_ROWS, FeatureStore
from v8.data.features import FeatureTable, compute_table
from v8.data.market.candles import Candles
from v8.profile.indicators import ancestry

INDICATORS = ("bb_upper", "bb_lower", "macd", "macd_signal", "atr", "bb_width", "volatility")
INDICATORS += ("volume_norm", "rsi", "roc", "bb_position")
EVERY = ("open", "high", "low", "close", *INDICATORS)
"""The fifteen columns of the lineage: what the store does with a column does not depend on which it is."""


def assert_same(table: FeatureTable, expected: FeatureTable) -> None:
    assert (table.series, table.columns, table.digest) == (expected.series, expected.columns, expected.digest)
    for name in ("open_time_s", "segment"):
        np.testing.assert_array_equal(getattr(table, name), getattr(expected, name), strict=True)
    for name in table.columns:
        np.testing.assert_array_equal(table.column(name), expected.column(name), strict=True)


def counts(store: FeatureStore) -> tuple[int, int, int]:
    return store.stats.computed_columns, store.stats.reused_columns, len(store.stats.damaged_files)


def test_a_table_from_a_cold_store_a_warm_one_and_none_are_the_same_bits(tmp_path: Path) -> None:
    candles = walk_candles()
    expected = compute_table(candles, EVERY)
    cold = FeatureStore(tmp_path)
    warm = FeatureStore(tmp_path)
    assert_same(cold.table(candles, EVERY), expected)
    assert_same(warm.table(candles, EVERY), expected)
    assert (counts(cold), counts(warm)) == ((15, 0, 0), (0, 15, 0))


def test_profiles_share_columns_and_nothing_is_computed_twice(tmp_path: Path) -> None:
    candles = walk_candles()
    store = FeatureStore(tmp_path)
    store.table(candles, ["close", "rsi", "macd"])
    assert counts(store) == (3, 0, 0)
    assert_same(store.table(candles, ["macd", "atr"]), compute_table(candles, ["macd", "atr"]))
    assert counts(store) == (4, 1, 0)
    store.table(candles, ["atr", "rsi", "macd", "open"])
    assert counts(store) == (5, 4, 0)


def test_a_table_from_the_folder_is_the_bytes_of_the_file_and_outlives_it(tmp_path: Path) -> None:
    # Rsi is added and the file replaced, then removed; the first table must keep what was checked.
    candles = walk_candles()
    store = FeatureStore(tmp_path)
    store.table(candles, ["close", "atr"])
    table = store.table(candles, ["close", "atr"])
    assert not any(table.column(name).flags.owndata for name in table.columns)
    store.table(candles, ["close", "rsi"])
    store.path(candles).unlink()
    assert_same(table, compute_table(candles, ["close", "atr"]))


@pytest.mark.parametrize("num_rows", [300, GROUP_ROWS, 2 * GROUP_ROWS + 777])
def test_any_parquet_reader_sees_what_the_store_reads(tmp_path: Path, num_rows: int) -> None:
    # One page must hold a whole row group, else the runs the store takes would hold a page header.
    candles = walk_candles(num_rows)
    FeatureStore(tmp_path).table(candles, EVERY)
    store = FeatureStore(tmp_path)
    table = store.table(candles, EVERY)
    frame = pq.read_table(store.path(candles)).to_pandas()
    assert store.stats.reused_columns == 15
    assert frame["open_time"][187] == pd.Timestamp(int(table.open_time_s[0]), unit="s", tz="UTC")
    assert list(frame.columns) == [*EVERY, "open_time"]
    for name in EVERY:
        np.testing.assert_array_equal(frame[name].to_numpy()[187:], table.column(name), strict=True)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
            "does not match its checksum",
        ),
        (lambda content: content[: len(content) // 2], "is truncated"),
        (lambda content: b"", "empty file"),
        (lambda content: b"not a table at all", "was not written by this store"),
        (lambda content: content.replace(b'"definitions"', b'"definitiens"'), "does not match its checksum"),
        (lambda content: content.replace(b'"checksum"', b'"chocksum"'), "does not match its checksum"),
        (
            lambda content: content.replace(b'{"v8_features_format": 4', b'{"v8_features_format":,4'),
            "damaged (Expecting value",
        ),
    ],
)
def test_a_damaged_file_is_never_used_but_replaced_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage, reason: str
) -> None:
    candles = walk_candles()
    store = FeatureStore(tmp_path)
    expected = store.table(candles, EVERY)
    path = store.path(candles)
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert_same(store.table(candles, EVERY), expected)
    assert reason in caplog.text
    assert "computed again" in caplog.text
    assert store.stats.damaged_files == [path]
    assert_same(FeatureStore(tmp_path).table(candles, EVERY), expected)
    store.table(candles, EVERY)
    assert counts(store) == (30, 15, 1)


def test_a_file_of_other_candles_under_this_name_is_never_used(tmp_path: Path) -> None:
    candles = walk_candles(seed=1)
    others = walk_candles(seed=2)
    store = FeatureStore(tmp_path)
    store.table(candles, EVERY)
    store.path(candles).rename(store.path(others))
    assert_same(store.table(others, EVERY), compute_table(others, EVERY))
    assert store.stats.damaged_files == [store.path(others)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_single_flipped_bit_changes_a_table(tmp_path: Path, place: float, bit: int) -> None:
    candles = walk_candles(200)
    store = FeatureStore(tmp_path)
    store.table(candles, EVERY)
    content = bytearray(store.path(candles).read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    store.path(candles).write_bytes(content)
    assert_same(store.table(candles, EVERY), compute_table(candles, EVERY))


@pytest.mark.parametrize("num_new", [0, 10])
def test_a_column_whose_definition_has_changed_is_computed_anew_and_does_not_go_on(
    tmp_path: Path, num_new: int
) -> None:
    # The file of an older version of the formula: whole, but with another digest beside rsi.
    grown = walk_candles(300 + num_new)
    older = FeatureStore(tmp_path)
    older.table(first_of(grown, 300), EVERY)
    path = older.path(first_of(grown, 300))
    rewrite_index(path, lambda index: index["definitions"].update(rsi=ancestry("macd").digest))
    store = FeatureStore(tmp_path)
    assert_same(store.table(grown, EVERY), compute_table(grown, EVERY))
    assert (made(store) if num_new else counts(store)) == (1, 14, 0)


def test_a_file_of_another_format_is_written_anew(tmp_path: Path) -> None:
    candles = walk_candles()
    older = FeatureStore(tmp_path)
    older.table(candles, EVERY)
    rewrite_index(older.path(candles), lambda index: index.update(v8_features_format=0))
    store = FeatureStore(tmp_path)
    assert_same(store.table(candles, EVERY), compute_table(candles, EVERY))
    assert counts(store) == (15, 0, 0)


def rewrite_index(path: Path, change) -> None:
    """Change the index of a file and its checksum with it, as another version would have written it."""
    content = path.read_bytes()
    start = content.rfind(b'{"v8_features_format":')
    index, length = json.JSONDecoder().raw_decode(content[start:].decode("latin-1"))
    change(index)
    body = json.dumps(index | {"checksum": "0" * 8}).encode().ljust(length)
    before = content[:start] + body
    after = content[start + length :]
    at = before.rfind(b"0" * 8, 0, before.find(b'"candles"', start))
    checksum = zlib.crc32(before[at + 8 :] + after, zlib.crc32(before[:at]))
    path.write_bytes(before[:at] + f"{checksum:08x}".encode() + before[at + 8 :] + after)


def first_of(candles: Candles, num_rows: int) -> Candles:
    return candles.newest(num_rows, int(candles.open_time_s[num_rows - 1]))


def made(store: FeatureStore) -> tuple[int, int, int]:
    return store.stats.computed_columns, store.stats.continued_columns, len(store.stats.damaged_files)


@pytest.mark.parametrize(("num_new", "num_files"), [(1, 1), (60, 1), (80, 2)])
def test_new_candles_cost_their_rows_and_a_file_only_where_they_are_many(
    tmp_path: Path, num_new: int, num_files: int
) -> None:
    # A sixteenth of 1,000 rows is 62.
    grown = walk_candles(1000 + num_new)
    FeatureStore(tmp_path).table(first_of(grown, 1000), EVERY)
    for _ in range(2):
        store = FeatureStore(tmp_path)
        assert_same(store.table(grown, EVERY), compute_table(grown, EVERY))
        assert made(store) == ((0, 15, 0) if num_files == 1 or _ == 0 else (0, 0, 0))
    assert len(list(tmp_path.rglob("*.parquet"))) == num_files


def test_columns_that_the_older_file_lacks_are_computed_and_kept(tmp_path: Path) -> None:
    grown = walk_candles(310)
    FeatureStore(tmp_path).table(first_of(grown, 300), ["close", "rsi"])
    store = FeatureStore(tmp_path)
    assert_same(store.table(grown, ["rsi", "macd"]), compute_table(grown, ["rsi", "macd"]))
    assert made(store) == (1, 1, 0)
    warm = FeatureStore(tmp_path)
    assert_same(warm.table(grown, ["rsi", "macd"]), compute_table(grown, ["rsi", "macd"]))
    assert counts(warm) == (0, 2, 0)


def test_candles_whose_past_was_revised_or_that_begin_later_go_on_from_nothing(tmp_path: Path) -> None:
    grown = walk_candles(310)
    FeatureStore(tmp_path).table(first_of(grown, 300), EVERY)
    values = grown.values.copy()
    values[7, 4] = np.nextafter(values[7, 4], np.inf)
    for other in (replace(grown, values=values), grown.newest(305)):
        store = FeatureStore(tmp_path)
        assert_same(store.table(other, EVERY), compute_table(other, EVERY))
        assert made(store) == (15, 0, 0)


def test_a_damaged_file_of_the_first_candles_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grown = walk_candles(310)
    older = FeatureStore(tmp_path)
    older.table(first_of(grown, 300), EVERY)
    path = older.path(first_of(grown, 300))
    content = path.read_bytes()
    start = content.index(b'{"v8_features_format')
    unlike = (
        content.replace(b'"first"', b'"fIrst"'),
        content.replace(b'"first": [300', b'"first": {300'),
        content[:start] + b'{"v8_features_format":' + b"[" * 100_000 + b"PAR1",
        content[:start] + b'{"v8_features_format": 4, "first": 7}PAR1',
    )
    for damaged in (content[:40] + bytes([content[40] ^ 1]) + content[41:], content[:-300], b"", *unlike):
        path.write_bytes(damaged)
        store = FeatureStore(tmp_path)
        assert_same(store.table(grown, EVERY), compute_table(grown, EVERY))
        assert made(store) == (15, 0, 1)
        store.path(grown).unlink()
    assert caplog.text.count("it is not used") == 7


def test_writers_at_the_same_moment_never_mix_and_never_damage(tmp_path: Path) -> None:
    candles = walk_candles()
    wanted = [(first, second) for first in INDICATORS for second in INDICATORS if first < second]

    def ask(names: tuple[str, str]) -> tuple[FeatureTable, FeatureStore]:
        store = FeatureStore(tmp_path)
        return store.table(candles, names), store

    with ThreadPoolExecutor(8) as pool:
        for names, (table, store) in zip(wanted, pool.map(ask, wanted), strict=True):
            assert_same(table, compute_table(candles, names))
            assert store.stats.damaged_files == []


def test_too_few_candles_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="BTCUSDT-15m: needs at least 188 candles without a gap"):
        FeatureStore(tmp_path).table(walk_candles(187), EVERY)
    assert list(tmp_path.iterdir()) == []
