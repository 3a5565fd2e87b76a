import numpy as np
import pandas as pd
import pytest
from hourly_files import HOURLY, digest_of, read

from v8.base.errors import DataError
from v8.data.market.sources.files import FilesSource


@pytest.fixture
def frame(valid_frame):
    return valid_frame(100, 3_600)


@pytest.mark.parametrize(
    "name",
    [
        "BTCUSDT-1h.csv",
        "BTCUSDT_1h.csv",
        "btcusdt-1h-2024-01.csv",
        "original-BTCUSDT-1h-2024-12.CSV",
        "klines/BTCUSDT/BTCUSDT_1h_binance_us.csv",
    ],
)
def test_a_file_that_names_the_series_as_a_whole_word_is_read(tmp_path, frame, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(tmp_path / name, index=False)
    assert read(tmp_path).digest == digest_of(frame)


@pytest.mark.parametrize(
    "name", ["1000BTCUSDT-1h.csv", "BTCUSDT-1hour.csv", "BTCUSDT-15m.csv", "BTCUSDT.csv", "BTCUSDT-1H.csv"]
)
def test_g9_a_missing_file_is_an_error_and_never_a_random_walk(tmp_path, frame, name):
    frame.to_csv(tmp_path / name, index=False)
    with pytest.raises(
        DataError, match=rf"BTCUSDT-1h from files: .*\(.csv, .*\) with BTCUSDT-1h in .*; got {name}\."
    ):
        read(tmp_path)


def test_g2_the_months_of_several_files_are_joined_in_time_order(tmp_path, frame):
    frame[40:].to_csv(tmp_path / "BTCUSDT-1h-a.csv", index=False)
    frame[:50].assign(open_time=frame.open_time[:50] * 1_000).to_parquet(tmp_path / "BTCUSDT-1h-b.parquet")
    candles = read(tmp_path)
    assert candles.digest == digest_of(frame)
    assert candles.report.num_identical == 10


def test_numbers_are_preferred_to_text_among_several_time_columns(tmp_path, frame):
    # Like off-grid-LTCUSDT-1h.csv; the text is an hour off here to show which one counts.
    text = pd.to_datetime(frame.open_time + 3_600_000, unit="ms").dt.strftime("%Y-%m-%d %H:%M:%S")
    columns = ["open", "high", "low", "close", "volume"]
    reordered = pd.DataFrame({"time": text, **frame[columns], "timestamp": frame.open_time})
    reordered.to_csv(tmp_path / "BTCUSDT-1h.csv", index=False)
    assert read(tmp_path).digest == digest_of(frame)


def test_prices_are_read_to_the_last_bit(tmp_path, frame):
    exact = frame.assign(volume=np.random.default_rng(0).lognormal(0, 8, len(frame)))
    exact.to_csv(tmp_path / "BTCUSDT-1h.csv", index=False)
    np.testing.assert_array_equal(read(tmp_path).column("volume"), exact["volume"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "got an empty file"),
        (b"1,2,3,4,5,6\n", "got 6 columns that begin 1, 2, 3, 4, 5 "),
        (b"a,b\n1,2\n", "BTCUSDT-1h.csv: .*got 2 columns that begin"),
        (b"time,open,high,low,volume\n", "BTCUSDT-1h.csv: .*got none among time"),
        (b"time,open,high,low,close,volume,Volume\n", "BTCUSDT-1h.csv: .*one column volume.*got 2 among"),
        (b"time,open,Open,high,low,close,volume\n", "BTCUSDT-1h.csv: .*one column open.*got 2 among"),
        (b"time,open,high,low,close,volume\n", "BTCUSDT-1h from files: .*got none in 0 rows"),
        (b'time,open,high,low,close,volume\n1,2,3,4,5,"6\n', "must be a CSV"),
        (b"\xff\xfe\x00", "must be UTF-8 text"),
    ],
)
def test_a_csv_that_cannot_be_read_by_name_is_refused_with_its_reason(tmp_path, content, reason):
    (tmp_path / "BTCUSDT-1h.csv").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read(tmp_path)


def test_an_empty_file_beside_a_full_one_changes_nothing(tmp_path, frame):
    frame.iloc[:0].to_csv(tmp_path / "BTCUSDT-1h-2024-02.csv", index=False)
    frame.to_csv(tmp_path / "BTCUSDT-1h-2024-01.csv", index=False)
    assert read(tmp_path).digest == digest_of(frame)


def test_the_newest_bars_until_a_time_are_served(tmp_path, frame):
    frame.to_csv(tmp_path / "BTCUSDT-1h.csv", index=False)
    end_s = int(frame.open_time[59]) // 1_000
    assert read(tmp_path, num_bars=20, end_s=end_s).digest == digest_of(frame[40:60])


def test_the_bar_that_is_still_running_is_dropped(tmp_path, frame):
    frame.to_csv(tmp_path / "BTCUSDT-1h.csv", index=False)
    now_s = int(frame.open_time[99]) / 1_000 + 60
    candles = FilesSource(tmp_path, now=lambda: now_s).candles(HOURLY, 1_000)
    assert (len(candles), candles.report.num_unclosed) == (99, 1)
