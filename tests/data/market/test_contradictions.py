"""What a table tells against itself refuses it; what only looks odd is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from v8.base.errors import DataError
from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.frames import candle_table
from v8.data.market.series import Series
from v8.data.market.sources.files import FilesSource
from v8.forecaster.forecaster import checked_candles

HOURLY = Series("BTCUSDT", "1h")
HOUR_MS = 3_600_000
NOW_S = 1_735_689_600
PRICES = ["open", "high", "low", "close"]


@pytest.fixture
def frame(valid_frame: Any) -> pd.DataFrame:
    return valid_frame(100, 3_600)[["open_time", *PRICES, "volume"]]


def read(given: Any) -> Candles:
    return checked_candles(given, HOURLY, now_s=NOW_S)


@pytest.mark.parametrize(("early_ms", "said"), [(1_000, "1 s"), (1, "0.001 s")])
def test_times_at_which_bars_close_are_no_open_times(
    frame: pd.DataFrame, early_ms: int, said: str, tmp_path: Path
) -> None:
    closes = frame.rename(columns={"open_time": "time"})
    closes["time"] += HOUR_MS - early_ms
    expected = (
        rf"such as 2024-01-01T00:59:59.*Z, {said} before a bar ends: closes\. .* open: add {said} and sub"
    )
    with pytest.raises(DataError, match=expected):
        read(closes)
    closes.to_csv(tmp_path / "BTCUSDT-1h.csv", index=False)
    with pytest.raises(DataError, match=expected):
        FilesSource(tmp_path).candles(HOURLY, 10)


def test_rows_that_all_lie_off_the_minute_are_refused(frame: pd.DataFrame) -> None:
    with pytest.raises(
        DataError, match=r"BTCUSDT-1h from a frame: .*got times such as 2024-01-01T00:00:07Z, 7 s off"
    ):
        read(frame.assign(open_time=frame.open_time + 7_000))


def test_a_time_that_is_named_after_the_close_is_never_taken_for_the_open(frame: pd.DataFrame) -> None:
    closes = frame.assign(close_time=frame.open_time + HOUR_MS)
    assert read(closes).digest == read(frame).digest
    alone = closes.drop(columns="open_time")
    dates = alone.assign(close_time=pd.to_datetime(alone.close_time, unit="ms", utc=True))
    for given in (alone, alone.rename(columns={"close_time": "Close Time"}), dates.set_index("close_time")):
        with pytest.raises(DataError, match=r"BTCUSDT-1h from a frame: .*got close_time, which is when"):
            read(given)
    with pytest.raises(DataError) as unknown:  # a name that may be of either
        read(alone.rename(columns={"close_time": "closed_at"}))
    assert "less a bar" in unknown.value.fix


@pytest.mark.parametrize(
    ("name", "value", "is_own"),
    [
        ("interval", "1h", True),
        ("Interval", "60min", True),
        ("granularity", 3_600, True),
        ("interval", "15m", False),
        ("Time Frame", "1d", False),
        ("interval", "soon", False),
        ("Symbol", "BTC/USDT", True),
        ("coin", "ETH", True),
        ("symbol", "BTC", True),
        ("symbol", "BTCUSD", False),
        ("Ticker", "ETHUSDT", False),
        ("pair", np.nan, True),
    ],
)
def test_a_column_that_tells_a_series_tells_that_of_the_candles(
    frame: pd.DataFrame, tmp_path: Path, name: str, value: Any, is_own: bool
) -> None:
    told = frame.assign(**{name: value})
    csv = tmp_path / "csv"
    parquet = tmp_path / "parquet"
    for folder in (csv, parquet):
        folder.mkdir()
    told.to_csv(csv / "BTCUSDT-1h.csv", index=False)
    told.to_parquet(parquet / "BTCUSDT-1h.parquet")
    ways = [lambda: read(told), *(lambda f=f: FilesSource(f).candles(HOURLY, 999) for f in (csv, parquet))]
    for way in ways:
        if is_own:
            assert way().digest == read(frame).digest
        else:
            with pytest.raises(DataError, match=rf"its own series; got .* {value}"):
                way()


def test_rows_of_two_coins_in_one_table_are_refused(frame: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="got symbol ETHUSDT"):
        read(frame.assign(symbol=["BTCUSDT"] * 99 + ["ETHUSDT"]))
    with pytest.raises(DataError, match=r"BTCUSDT-1h from a frame: .*got 2 among"):
        read(frame.assign(symbol="BTCUSDT", Symbol="ETHUSDT"))


def test_numbers_of_16_bits_are_no_prices(frame: pd.DataFrame) -> None:
    coarse = frame.astype(dict.fromkeys(PRICES, "float16"))
    rows = [[row[0], *map(np.float16, row[1:])] for row in frame.to_numpy().tolist()]
    hidden = frame.assign(close=pd.Series([np.float16(each) for each in frame.close], dtype=object))
    array = np.ones((100, 6), np.float16)
    for given in (coarse, hidden, rows, {name: coarse[name] for name in coarse}, array):
        with pytest.raises(DataError, match=r"BTCUSDT-1h from a frame: .*16.*got float16 in"):
            read(given)
    assert len(read(frame.astype(dict.fromkeys(PRICES, "float32")))) == 100


def test_rows_without_names_are_refused_where_open_and_close_are_swapped(frame: pd.DataFrame) -> None:
    swapped = frame[["open_time", "close", "high", "low", "open", "volume"]]
    expected = "got opens .*, and closes 0.00% .*: open and close"
    for given in (swapped.to_numpy(), swapped.to_numpy().tolist(), swapped.set_axis(frame.columns, axis=1)):
        with pytest.raises(DataError, match=expected):
            read(given)
    for given in (swapped, swapped.to_records(index=False)):  # which have names
        assert read(given).digest == read(frame).digest


@pytest.mark.parametrize(
    "order",
    [["low", "high", "open", "close"], ["open", "close", "high", "low"], ["high", "low", "open", "close"]],
)
def test_rows_in_the_order_of_another_exchange_are_refused(frame: pd.DataFrame, order: list[str]) -> None:
    with pytest.raises(DataError, match=r"BTCUSDT-1h from a frame: .*got 100 of 100, mostly low <="):
        read(frame[["open_time", *order, "volume"]].to_numpy())


def test_prices_that_run_backwards_under_their_times_are_refused(frame: pd.DataFrame) -> None:
    backwards = frame.assign(**{name: frame[name].to_numpy()[::-1] for name in PRICES})
    with pytest.raises(DataError, match=r"BTCUSDT-1h from a frame: .*got opens 1.19% from the close.*0.00%"):
        read(backwards)
    assert read(frame.iloc[::-1]).digest == read(frame).digest


@pytest.mark.parametrize("first", [1, 50, 99])
def test_a_unit_that_changes_is_refused_where_it_does(frame: pd.DataFrame, first: int) -> None:
    mixed = frame.copy()
    mixed.loc[first:, PRICES] *= 100
    opens = pd.Timestamp(frame.open_time[first], unit="ms").isoformat()
    with pytest.raises(DataError, match=rf"above or below .*; got .* at {opens}Z"):
        read(mixed)


def test_a_whole_table_in_another_unit_is_one_of_candles(frame: pd.DataFrame) -> None:
    exact = frame.assign(low=frame.low.round(2))
    cents = exact.assign(**{name: (exact[name] * 100).round().astype(int) for name in PRICES})
    np.testing.assert_allclose(read(cents).values[:, :4], read(exact).values[:, :4] * 100)


def test_too_few_candles_to_tell_pass(frame: pd.DataFrame) -> None:
    swapped = frame.rename(columns={"open": "close", "close": "open"})
    table = candle_table(swapped.head(20), HOURLY, "here")
    assert len(check_candles(table, HOURLY, source="a frame")) == 20
