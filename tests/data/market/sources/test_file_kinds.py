"""Candle files as people have them: a small made sample of each kind, read to the same candles."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hourly_files import COLUMNS, digest_of, read, refusal

from v8.base.errors import DataError
from v8.data.market.sources import tables
from v8.data.market.sources.files import FilesSource


@pytest.fixture
def frame(valid_frame: Any) -> pd.DataFrame:
    return valid_frame(100, 3_600)[COLUMNS]


def moments(frame: pd.DataFrame) -> pd.Series:
    return pd.to_datetime(frame["open_time"], unit="ms", utc=True)


def freqtrade(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(date=moments(frame))[["date", *COLUMNS[1:]]]


def yfinance(frame: pd.DataFrame, ticker: str, *, levels: int) -> pd.DataFrame:
    """What `yfinance.download` returns: dates as the index, tickers below the prices or no tickers at all."""
    table = frame[COLUMNS[1:]].rename(columns=str.title).set_axis(pd.DatetimeIndex(moments(frame)), axis=0)
    table = table[["Close", "High", "Low", "Open", "Volume"]].rename_axis(index="Datetime", columns="Price")
    pairs = pd.MultiIndex.from_product([table.columns, [ticker]], names=["Price", "Ticker"])
    return table.set_axis(pairs, axis=1) if levels == 2 else table


def test_yfinance_s_header_of_two_levels_is_read(tmp_path: Path, frame: pd.DataFrame) -> None:
    table = yfinance(frame, "BTC-USDT", levels=2)
    text = table.to_csv()
    assert text.startswith("Price,Close,High,Low,Open,Volume\nTicker,BTC-USDT,BTC-USDT")
    (tmp_path / "BTCUSDT-1h.csv").write_text(text)
    assert read(tmp_path).digest == digest_of(frame)
    (tmp_path / "BTCUSDT-1h.csv").write_text(table.swaplevel(axis=1).to_csv())
    assert read(tmp_path).digest == digest_of(frame)
    (tmp_path / "BTCUSDT-1h.csv").write_text(yfinance(frame, "", levels=1).to_csv())
    assert read(tmp_path).digest == digest_of(frame)


def test_of_several_tickers_the_series_own_is_read(tmp_path: Path, frame: pd.DataFrame) -> None:
    other = yfinance(frame * 2, "T", levels=2).set_axis(moments(frame), axis=0)
    table = pd.concat([other, yfinance(frame, "BTC-USDT", levels=2)], axis=1).rename_axis(index="Datetime")
    (tmp_path / "BTCUSDT-1h.csv").write_text(table.to_csv())
    assert read(tmp_path).digest == digest_of(frame)
    (tmp_path / "BTCUSDT-1h.csv").write_text(other.rename_axis(index="Datetime").to_csv())
    assert "; got the tickers T." in str(refusal(tmp_path))


@pytest.mark.parametrize("name", ["BTC_USDT-1h.json", "BTCUSDT_1h.json"])
def test_ccxt_and_freqtrade_s_json_is_read(tmp_path: Path, frame: pd.DataFrame, name: str) -> None:
    rows = [[int(row[0]), *map(float, row[1:])] for row in frame.to_numpy()]
    for written in (rows, frame.to_dict("records"), frame.to_dict("list")):
        (tmp_path / name).write_text(json.dumps(written))
        assert read(tmp_path).digest == digest_of(frame)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    (tmp_path / name).unlink()
    assert read(tmp_path).digest == digest_of(frame)


@pytest.mark.parametrize("name", ["BTCUSDT-1h.json", "BTCUSDT-1h.jsonl", "BTCUSDT-1h.ndjson"])
def test_json_with_a_row_a_line_is_read(tmp_path: Path, frame: pd.DataFrame, name: str) -> None:
    for rows in (frame.to_dict("records"), frame.to_numpy().tolist()):
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        assert read(tmp_path).digest == digest_of(frame)
    text = (tmp_path / name).read_text()
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / name).unlink()
    assert read(tmp_path).digest == digest_of(frame)
    (tmp_path / f"{name}.gz").unlink()
    (tmp_path / name).write_text(f"{text}[1, 2\n")
    assert f"in line {len(frame) + 1}" in refusal(tmp_path).got


@pytest.mark.parametrize(
    "text",
    ["{", "[[1, 2]]", "[1, 2]", "{}", "7", "[]", "[[1, 2, 3, 4, 5, 6], [1]]", "[" * 100_000, '[{"a": 1}]'],
)
def test_json_that_is_no_table_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "BTCUSDT-1h.json").write_text(text)
    said = str(refusal(tmp_path))
    assert "must be JSON" in said or "table of candles" in said or "column open_time" in said


def test_rows_without_a_header_are_read(tmp_path: Path, frame: pd.DataFrame) -> None:
    for rows in (
        frame,
        frame.assign(volume=frame["volume"].where(frame.index > 0, 0.0)),
        frame.assign(count=1),
    ):
        expected = digest_of(rows)
        for separator in ",;":
            rows.to_csv(tmp_path / "BTCUSDT-1h.csv", index=False, header=False, sep=separator)
            assert read(tmp_path).digest == expected
    dated = frame.assign(open_time=moments(frame))
    dated.to_csv(tmp_path / "BTCUSDT-1h.csv", index=False, header=False)
    assert read(tmp_path).digest == digest_of(frame)


@pytest.mark.parametrize("compression", ["zstd", "lz4", "uncompressed"])
def test_freqtrade_s_feather_is_read(tmp_path: Path, frame: pd.DataFrame, compression: Any) -> None:
    freqtrade(frame).to_feather(tmp_path / "BTC_USDT-1h.feather", compression=compression, chunksize=30)
    assert read(tmp_path).digest == digest_of(frame)
    freqtrade(frame).to_parquet(tmp_path / "BTC_USDT-1h.parquet")
    assert read(tmp_path).report.num_identical == 100


def test_a_feather_that_is_damaged_or_claims_too_much_is_one_sentence(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    file = tmp_path / "BTCUSDT-1h.feather"
    freqtrade(frame).to_feather(file, compression="zstd")
    content = file.read_bytes()
    for length in (0, 7, 8, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        assert "a Feather file" in str(refusal(tmp_path))
    random = np.random.default_rng(0)
    for _ in range(100):
        broken = bytearray(content)
        broken[int(random.integers(len(broken)))] ^= int(random.integers(1, 256))
        file.write_bytes(broken)
        try:
            read(tmp_path)
        except DataError as error:
            assert str(error).isprintable()
    text = frame.astype(str)
    text.to_feather(file)
    assert read(tmp_path).digest == digest_of(frame)
    pa.feather.write_feather(
        pa.table({name: pa.array([[1.0]] * 3) for name in frame.columns}), file, compression="uncompressed"
    )
    assert "list<item: double> in open_time" in str(refusal(tmp_path))


def without_lengths(content: bytes) -> bytes:
    """Write a Feather file as Polars does: the schema at its start has no length before it.

    Readers find the batches through the footer, so the eight bytes are blanked and nothing is moved.
    """
    assert content[8:12] == b"\xff" * 4
    return content[:8] + bytes(8) + content[16:]


def test_polars_s_feather_is_read(tmp_path: Path, frame: pd.DataFrame) -> None:
    file = tmp_path / "BTCUSDT-1h.feather"
    for table in (freqtrade(frame), frame.astype(str)):
        views = pa.Table.from_pandas(table)
        for number, field in enumerate(views.schema):
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
                views = views.set_column(number, field.name, views[field.name].cast(pa.string_view()))
        pa.feather.write_feather(views, file, chunksize=30)
        file.write_bytes(without_lengths(file.read_bytes()))
        assert read(tmp_path).digest == digest_of(frame)


def test_a_small_feather_cannot_ask_for_much_memory(
    tmp_path: Path, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MAX_UNPACKED_BYTES", 10**6)
    file = tmp_path / "BTCUSDT-1h.feather"
    many = pd.DataFrame(np.zeros((10**5, 6)), columns=COLUMNS)
    for compression in ("zstd", "lz4", "uncompressed"):
        many.to_feather(file, compression=compression)
        before = pa.default_memory_pool().bytes_allocated()
        assert "columns that unpack to 4,800,000 bytes" in str(refusal(tmp_path))
        assert pa.default_memory_pool().bytes_allocated() - before < 10**6
    freqtrade(frame).to_feather(file)
    assert read(tmp_path).digest == digest_of(frame)


def test_packed_tables_are_read(tmp_path: Path, frame: pd.DataFrame) -> None:
    text = frame.to_csv(index=False).encode()
    (tmp_path / "BTCUSDT-1h.csv.gz").write_bytes(gzip.compress(text[:3_000]) + gzip.compress(text[3_000:]))
    assert read(tmp_path).digest == digest_of(frame)
    (tmp_path / "BTCUSDT-1h.csv.gz").unlink()
    with zipfile.ZipFile(tmp_path / "BTCUSDT-1h.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("anything.csv", text)
        archive.writestr("__MACOSX/._anything.csv", b"\0")
    assert read(tmp_path).digest == digest_of(frame)


def test_packed_files_that_cannot_be_unpacked_are_one_sentence(
    tmp_path: Path, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = frame.to_csv(index=False).encode()
    file = tmp_path / "BTCUSDT-1h.csv.gz"
    for content in (b"", b"no gzip", gzip.compress(text)[:-20], gzip.compress(text) + b"rest"):
        file.write_bytes(content)
        assert " compressed as gz" in str(refusal(tmp_path)) or not content
    file.unlink()
    file = tmp_path / "BTCUSDT-1h.csv.zip"
    two = io.BytesIO()
    with zipfile.ZipFile(two, "w") as archive:
        archive.writestr("a.csv", text)
        archive.writestr("b.csv", text)
    for content in (b"", b"no zip", two.getvalue()):
        file.write_bytes(content)
        assert " compressed as zip" in str(refusal(tmp_path))
    file.unlink()
    monkeypatch.setattr(tables, "MAX_FILE_BYTES", 10_000)
    (tmp_path / "BTCUSDT-1h.csv.gz").write_bytes(gzip.compress(b"0" * 10**8))
    tracemalloc.start()
    assert "unpacks to at most 10,000 bytes; got more" in str(refusal(tmp_path))
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


@pytest.mark.parametrize(
    "name", ["BINANCE_BTCUSDT, 60.csv", "BINANCE_BTCUSDT, 60_1a2b3.csv", "BTCUSDT 1h.csv", "BTC-USDT_1h.csv"]
)
def test_tradingview_s_columns_and_names_are_read(tmp_path: Path, frame: pd.DataFrame, name: str) -> None:
    exported = frame.assign(time=frame["open_time"] // 1_000, Volume=frame["volume"])
    exported[["time", "open", "high", "low", "close", "Volume"]].to_csv(tmp_path / name, index=False)
    assert read(tmp_path).digest == digest_of(frame)


@pytest.mark.parametrize(
    "names",
    [
        ["Open time", "Open", "High", "Low", "Close", "Volume"],
        ["Open Time", "Open", "High", "Low", "Close", "Volume"],
        ["openTime", "open", "high", "low", "close", "baseVolume"],
        ["Timestamp", "Open", "High", "Low", "Close", "Volume_(BTC)"],
        ["Unix Timestamp", "Open", "High", "Low", "Close", "Volume (BTC)"],
        ["unix", "open", "high", "low", "close", "Volume BTC"],
        ["t", "o", "h", "l", "c", "v"],
        ["time", "Open Price", "High Price", "Low Price", "Close Price", "volumefrom"],
    ],
)
def test_names_of_columns_as_they_are_published_are_read(
    tmp_path: Path, frame: pd.DataFrame, names: list[str]
) -> None:
    frame.set_axis(names, axis=1).assign(**{"Volume USDT": -1.0}).to_csv(
        tmp_path / "BTCUSDT-1h.csv", index=False
    )
    assert read(tmp_path).digest == digest_of(frame)


@pytest.mark.parametrize("name", ["close_time", "Close Time", "time_close", "End"])
def test_a_header_with_a_close_time_alone_is_not_to_be_renamed(
    tmp_path: Path, frame: pd.DataFrame, name: str
) -> None:
    frame.rename(columns={"open_time": name}).to_csv(tmp_path / "BTCUSDT-1h.csv", index=False)
    refused = refusal(tmp_path)
    assert "when it closes" in refused.got and "less a bar" in refused.fix
    frame.rename(columns={"open_time": "closed_at"}).to_csv(tmp_path / "BTCUSDT-1h.csv", index=False)
    assert "less a bar" in refusal(tmp_path).fix  # a name that nobody knows may be of either


def test_columns_without_names_in_another_order_are_refused_with_ours(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    others = frame[["open_time", "open", "close", "high", "low", "volume"]]
    others.to_csv(tmp_path / "BTCUSDT-1h.csv", index=False, header=False)
    assert "time, open, high, low, close, volume" in refusal(tmp_path).fix


def test_files_that_are_joined_are_named_where_they_contradict_each_other(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    frame.to_csv(tmp_path / "BTCUSDT-1h.csv", index=False)
    frame.assign(volume=frame["volume"] * 2).to_csv(tmp_path / "BTC-USDT-1h.csv", index=False)
    refused = refusal(tmp_path)
    assert "BTCUSDT-1h.csv" in refused.where and "BTC-USDT-1h.csv" in refused.where


def test_a_kind_that_is_not_read_is_told_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "BTCUSDT-1h.xlsx").write_bytes(b"PK")
    said = str(refusal(tmp_path))
    assert "got BTCUSDT-1h.xlsx. Save BTCUSDT-1h.xlsx as one of these" in said


def test_a_series_that_is_not_there_is_one_sentence_with_the_nearest(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    for name in ("BTCUSDT-15m", "ETHUSDT-1h", "notes"):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    assert "Did you mean BTCUSDT-15m" in str(refusal(tmp_path))


def test_the_series_of_a_folder_are_those_that_its_names_tell(tmp_path: Path) -> None:
    names = [
        "BTC_USDT-1h.feather",
        "BINANCE_ETHUSDT, 240.csv",
        "BRK.B-1d.csv.gz",
        "SOL_USDT_USDT-1w-futures.json",
    ]
    for name in (*names, "Binance_BTCUSDT_1h.csv", "BTCUSDT-1M.csv", "notes.csv", ".ADAUSDT-1h.csv"):
        (tmp_path / name).touch()
    found = [str(series) for series in FilesSource(tmp_path).series()]
    assert found == ["BRK.B-1d", "BTCUSDT-1h", "ETHUSDT-4h", "SOLUSDT-1w"]
    for name in ("notes.txt", "BTC_USDT_USDT-8h-funding_rate.feather", "BTCUSDT-1h.csv.CHECKSUM"):
        (tmp_path / name).touch()
    unread = str(FilesSource(tmp_path).unread())
    assert ": BTCUSDT-1M.csv, notes.csv. " in unread
    for name in names:
        (tmp_path / name).unlink()
    (tmp_path / "Binance_BTCUSDT_1h.csv").unlink()
    (tmp_path / "BTC_USDT_USDT-8h-funding_rate.feather").unlink()
    with pytest.raises(DataError, match=r"got BTCUSDT-1M.csv, notes.csv"):
        FilesSource(tmp_path).series()
