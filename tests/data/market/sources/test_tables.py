"""Candle files as nobody should write them: read where they are unambiguous, else one sentence each."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hourly_files import COLUMNS, HOURLY, digest_of, read, refusal

from v8.base.errors import DataError
from v8.data.market.checks import check_candles

HEADER = "open_time,open,high,low,close,volume\n"


@pytest.fixture
def frame(valid_frame: Any) -> pd.DataFrame:
    return valid_frame(100, 3_600)[COLUMNS]


@pytest.mark.parametrize("front", ["", "\n", "https://www.example.org/a,b\n"])
@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_and_line_ends_are_found(
    tmp_path: Path, frame: pd.DataFrame, separator: str, line_end: str, front: str
) -> None:
    text = front.replace(",", "") + frame.to_csv(index=False, sep=separator, lineterminator="\n")
    (tmp_path / "BTCUSDT-1h.csv").write_bytes(text.replace("\n", line_end).encode())
    assert read(tmp_path).digest == digest_of(frame)
    content = f"sep={separator}\n{text}".replace("\n", line_end)
    (tmp_path / "BTCUSDT-1h.csv").write_bytes(content.encode("utf-8-sig"))
    assert read(tmp_path).digest == digest_of(frame)


def test_rows_of_the_archive_may_be_parted_by_semicolons_and_end_in_cr(
    tmp_path: Path, frame: pd.DataFrame, make_rows: Any
) -> None:
    text = make_rows(frame).replace(",", ";").replace("\n", "\r")
    (tmp_path / "BTCUSDT-1h.csv").write_text(text, newline="")
    assert read(tmp_path).digest == digest_of(frame)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ((HEADER + "1,2,3,4,5,6\n" * 3).encode("utf-16"), "must be UTF-8 text"),
        (HEADER.encode() + b"\xff,1,1,1,1,1\n", "must be UTF-8 text"),
        (b"\0" * 1_000, "or with a NUL"),
        (b"x" * 10_000_000, "got a line of 65,536 characters or more"),
        (b'"' + b"x" * 10_000_000, "got a line of 65,536 characters or more"),
        (b"\r" * 10_000_000, "got an empty file"),
        (b"," * 60_000, "got 60001 columns"),
        (HEADER.encode() + b"1" * 10_000_000, "open time is a number|must be a CSV"),
        (HEADER.encode() + b"1518048000,1\0,1,1,1,1\n", "1 of 1"),
        (HEADER.encode() + b'1518048000,"1,1,1,1,1\n' * 9, "must be a CSV"),
        (HEADER.encode() + b"1518048000,True,True,True,True,True\n", "got 1 of 1, mostly values"),
        (HEADER.encode() + b"1518048000,1e300,1e300,1e300,1e300,1\n", "not numbers or beyond 1e18"),
        (HEADER.encode() + b"1518048000,1e-300,1e-300,1e-300,1e-300,1\n", "prices not above zero"),
        (HEADER.encode() + b"1518048000,-1,-1,-1,-1,-1\n", "prices not above zero"),
        (HEADER.encode() + b"1518048000,inf,inf,inf,inf,inf\n", "got 1 of 1, mostly values"),
        (HEADER.encode() + b"1518048000,1_0,1_0,1_0,1_0,1\n", "got 1 of 1, mostly values"),
        (HEADER.encode() + b"1518048000," + b"9" * 5_000 + b",1,1,1,1\n", "1 of 1, mostly values that"),
        (HEADER.encode() + b"9" * 5_000 + b",1,1,1,1,1\n", "got 1 of 1 others: 9999"),
        (HEADER.encode() + b"300000-01-01,1,1,1,1,1\n", "got 1 of 1 others: 300000-01-01"),
        (HEADER.encode() + b"0001-01-01,1,1,1,1,1\n", "got 1 of 1 others: 0001-01-01"),
        (HEADER.encode() + b"true,1,1,1,1,1\n", "got 1 of 1 others: True"),
        (HEADER.replace("close", "c\x1b[31m\x07").encode(), "column close; got none among"),
        (b"sep=;\n" + HEADER.encode(), "got 1 columns that begin open_time,open"),
    ],
)
def test_a_csv_that_is_none_is_one_sentence(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "BTCUSDT-1h.csv").write_bytes(content)
    said = str(refusal(tmp_path))
    assert reason.split("|")[0] in said or reason.split("|")[-1] in said
    assert said.isprintable()


@pytest.mark.parametrize("quoted", ['"x', 'x"', '"x"y', '"'])
def test_a_quote_in_a_column_that_nobody_reads_hides_no_row(
    tmp_path: Path, frame: pd.DataFrame, quoted: str
) -> None:
    lines = frame.assign(note='"a, ""b"""').to_csv(index=False, quoting=3, escapechar="~").replace("~", "")
    (tmp_path / "BTCUSDT-1h.csv").write_text(lines)
    assert read(tmp_path).digest == digest_of(frame)
    changed = lines.splitlines()
    changed[40] = f"{changed[40].partition(chr(34))[0]}{quoted}"
    changed[60] = f"{changed[60].partition(chr(34))[0]}{quoted[::-1]}"
    (tmp_path / "BTCUSDT-1h.csv").write_text("\n".join(changed))
    if quoted.startswith('"'):
        assert "in line 41" in str(refusal(tmp_path))
    else:
        assert "in line 61" in str(refusal(tmp_path))


def test_a_row_with_more_values_than_columns_is_refused(tmp_path: Path, frame: pd.DataFrame) -> None:
    lines = frame.to_csv(index=False).splitlines()
    (tmp_path / "BTCUSDT-1h.csv").write_text("\n".join(f"{line},," for line in lines))
    assert read(tmp_path).digest == digest_of(frame)
    lines[50] = lines[50].replace(",", ",1,", 1)  # a thousand's comma
    (tmp_path / "BTCUSDT-1h.csv").write_text("\n".join(lines))
    assert "got 7 values in line 51, and 6 columns" in str(refusal(tmp_path))


def test_what_is_no_file_is_never_opened_or_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "BTCUSDT-1h.parquet").mkdir()
    os.mkfifo(tmp_path / "BTCUSDT-1h.csv")
    (tmp_path / "BTCUSDT-1h-b.csv").symlink_to("/dev/zero")
    assert "got no candle file" in str(refusal(tmp_path))
    with (tmp_path / "BTCUSDT-1h-c.csv").open("wb") as stream:
        stream.truncate(2**40)
    assert "got 1,099,511,627,776 bytes, where at most 1,073,741,824 are read" in str(refusal(tmp_path))


def put(folder: Path, **columns: Any) -> None:
    pq.write_table(pa.table(columns), folder / "BTCUSDT-1h.parquet")


def columns_of(frame: pd.DataFrame) -> dict[str, Any]:
    return {name: pa.array(frame[name]) for name in frame.columns}


def test_a_parquet_s_index_of_any_name_decides_nothing(tmp_path: Path, frame: pd.DataFrame) -> None:
    file = tmp_path / "BTCUSDT-1h.parquet"
    for name in ("close", "Open", None):
        frame.rename_axis(name).to_parquet(file)  # a RangeIndex is only told in the metadata
        assert read(tmp_path).digest == digest_of(frame)
    pq.write_table(
        pa.Table.from_pandas(frame[["open_time", "open", "high", "low", "volume"]].set_index(frame["close"])),
        file,
    )
    assert read(tmp_path).digest == digest_of(frame)
    times = pd.to_datetime(frame["open_time"], unit="ms", utc=True)
    frame.drop(columns="open_time").set_index(pd.DatetimeIndex(times, name=None)).to_parquet(file)
    assert read(tmp_path).digest == digest_of(frame)


def test_plain_types_of_arrow_are_read_alike(tmp_path: Path, frame: pd.DataFrame) -> None:
    exact = frame.assign(**{name: np.round(frame[name], 2) for name in frame.columns[1:]})
    plain = columns_of(exact)
    text = {name: pa.array([str(value) for value in exact[name]]) for name in exact.columns}
    coded = {name: values.dictionary_encode() for name, values in text.items()}
    decimal = {name: plain[name].cast(pa.decimal128(38, 2)) for name in exact.columns[1:]}
    moment = pa.array(pd.to_datetime(exact["open_time"], unit="ms", utc=True).dt.tz_convert("Asia/Tokyo"))
    for changed in (
        text,
        coded,
        decimal,
        {"open_time": moment},
        {"open_time": plain["open_time"].cast(pa.timestamp("ms"))},
    ):
        put(tmp_path, **{**plain, **changed})
        assert read(tmp_path).digest == digest_of(exact)


def test_a_parquet_of_other_types_is_one_sentence(tmp_path: Path, frame: pd.DataFrame) -> None:
    plain = columns_of(frame)
    num_rows = len(frame)
    years = pa.array(np.full(num_rows, 10**13), pa.int64()).cast(pa.timestamp("s"))
    strange = {
        "list<element: double> in close": {"close": pa.array([[1.0]] * num_rows)},
        "struct<close: double> in close": {"close": pa.array([{"close": 1.0}] * num_rows)},
        "binary in close": {"close": pa.array([b"1"] * num_rows)},
        "bool in close": {"close": pa.array([True] * num_rows)},
        "duration[s] in close": {"close": pa.array(range(num_rows), pa.duration("s"))},
        "a text of 65 bytes where": {"close": pa.array(["9" * 65] * num_rows)},
        "a text of 1,000,000 bytes where": {"close": pa.array(["9" * 10**6] * num_rows)},
        "100 of 100, mostly values that are missing": {"close": pa.nulls(num_rows)},
        "100 of 100 others": {"open_time": years},
        "none among": {"close": None},
    }
    for said, changed in strange.items():
        put(tmp_path, **{name: values for name, values in {**plain, **changed}.items() if values is not None})
        assert said in str(refusal(tmp_path))
    twice = pa.table([*plain.values(), plain["close"]], names=[*plain, "Close"])
    pq.write_table(twice, tmp_path / "BTCUSDT-1h.parquet")
    assert "got 2 among" in str(refusal(tmp_path))


def test_a_small_parquet_cannot_ask_for_much_memory(tmp_path: Path) -> None:
    rows = pa.array(np.zeros(20_000_001, dtype=np.int8)).dictionary_encode().cast(pa.int8())
    put(tmp_path, open_time=rows, open=rows, high=rows, low=rows, close=rows, volume=rows)
    assert "; got 20,000,001 rows" in str(refusal(tmp_path))
    content = (tmp_path / "BTCUSDT-1h.parquet").read_bytes()
    for length in (0, 3, 8, len(content) // 2, len(content) - 1):
        (tmp_path / "BTCUSDT-1h.parquet").write_bytes(content[:length])
        assert "a Parquet file" in str(refusal(tmp_path))


@pytest.mark.parametrize("name", ["open_time", "open", "volume"])
def test_a_frame_with_odd_columns_is_refused(frame: pd.DataFrame, name: str) -> None:
    odd = [
        {},
        [1],
        *([None] if name != "volume" else []),  # candles may be without volume
        b"1",
        1j,
        object,
        datetime.timedelta(1),
        np.datetime64("300000-01-01"),
        10**400,
        "9" * 400,
        "\ud800",
    ]
    for item in odd:
        with pytest.raises(DataError, match="BTCUSDT-1h"):
            check_candles(
                frame.assign(**{name: pd.Series([item] * len(frame), dtype=object)}), HOURLY, source="a frame"
            )
    with pytest.raises(DataError, match=f"needs one column {name}.*; got 2 among"):
        check_candles(pd.concat([frame, frame[[name]]], axis=1), HOURLY, source="a frame")
    levels = frame.set_axis(pd.MultiIndex.from_product([["a"], frame.columns]), axis=1)
    with pytest.raises(DataError, match=r"BTCUSDT-1h: .*got the tickers a"):
        check_candles(levels, HOURLY, source="a frame")
