"""Candle files as other exchanges and programs write them: read as what they are, or refused by name.

Each file is made with the facts of a public report or of an exchange's documentation.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hourly_files import COLUMNS, HOURLY, digest_of, read, refusal

from v8.base.errors import DataError, UnknownSeriesError
from v8.data.market.series import Series
from v8.data.market.sources import with_nearest
from v8.data.market.sources.files import FilesSource

NUM_BARS = 100
PRICES = ["open", "high", "low", "close"]


@pytest.fixture
def frame(valid_frame: Any) -> pd.DataFrame:
    return valid_frame(NUM_BARS, 3_600)[COLUMNS]


def quote_of(frame: pd.DataFrame) -> pd.Series:
    """The quote volume: the volume times the average price of the bar."""
    return frame["volume"] * (frame["low"] + frame["high"]) / 2


def put_csv(folder: Path, table: pd.DataFrame, **options: Any) -> None:
    (folder / "BTCUSDT-1h.csv").write_text(table.to_csv(index=False, **options))


def put_rows(folder: Path, rows: Any) -> None:
    (folder / "BTCUSDT-1h.json").write_text(json.dumps(rows))


def rows_of(*columns: pd.Series) -> list[list[Any]]:
    return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


# --- names and folders -----------------------------------------------------------------------------------


def put_archive(folder: Path, path: str, frame: pd.DataFrame) -> Path:
    """Save a zip of the exchange archive and its checksum, as the exchange's downloader does."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{file.stem}.csv", frame.to_csv(index=False, header=False))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    file.with_name(f"{file.name}.CHECKSUM").write_text(f"{digest}  {file.name}\n")
    return file


def test_zips_of_the_archive_are_read_where_the_exchange_s_downloader_leaves_them(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    folder = "data/spot/monthly/klines/BTCUSDT/1h"
    put_archive(tmp_path, f"{folder}/BTCUSDT-1h-2024-01.zip", frame[:60])
    second = put_archive(tmp_path, f"{folder}/2024-01-01_2024-03-01/BTCUSDT-1h-2024-02.zip", frame[60:])
    assert FilesSource(tmp_path).series() == (HOURLY,)
    assert read(tmp_path).digest == digest_of(frame)
    second.write_bytes(second.read_bytes() + b" ")
    error = refusal(tmp_path)
    assert error.where == str(second) and "BTCUSDT-1h-2024-02.zip.CHECKSUM" in error.rule


def test_a_zip_that_holds_no_candle_file_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "BTCUSDT-1h.zip", "w") as archive:
        archive.writestr("BTCUSDT-1h.xlsx", "x")
    assert refusal(tmp_path).got == "BTCUSDT-1h.xlsx"


def put_freqtrade(folder: Path, name: str, frame: pd.DataFrame) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(rows_of(*(frame[column] for column in COLUMNS))))


@pytest.mark.parametrize(
    "kind", ["mark", "index", "premiumIndex", "funding_rate", "Mark", "bid", "open_interest"]
)
def test_of_freqtrade_s_files_only_those_of_trades_are_read(
    tmp_path: Path, frame: pd.DataFrame, kind: str
) -> None:
    put_freqtrade(tmp_path, "BTC_USDT_USDT-1h-futures.json", frame)
    others = frame.assign(**{name: frame[name] * 1.5 for name in PRICES})
    put_freqtrade(tmp_path, f"BTC_USDT_USDT-1h-{kind}.json", others)
    put_freqtrade(tmp_path, f"BTC_USDT_USDT-8h-{kind}.json", others)
    assert read(tmp_path).digest == digest_of(frame)
    assert FilesSource(tmp_path).series() == (HOURLY,)


@pytest.mark.parametrize("name", ["BTC_USDT_USDT-1h-mark", "BTCUSDT_mark_1h", "BTCUSDT-1h.mark"])
def test_mark_prices_are_no_series(tmp_path: Path, frame: pd.DataFrame, valid_frame: Any, name: str) -> None:
    put_freqtrade(tmp_path, f"{name}.json", frame)
    put_freqtrade(tmp_path, "BTC_USDT_USDT-15m-futures.json", valid_frame(50, 900)[COLUMNS])
    source = FilesSource(tmp_path)
    assert source.series() == (Series("BTCUSDT", "15m"),)
    with pytest.raises(UnknownSeriesError) as caught:
        source.require(HOURLY)
    assert caught.value.got == f"{name}.json, which holds mark prices"
    assert "BTCUSDT-15m" in caught.value.fix


@pytest.mark.parametrize("folder", ["markPriceKlines", "indexPriceKlines", "premiumIndexKlines"])
def test_the_archive_tells_other_prices_by_their_folder_alone(
    tmp_path: Path, frame: pd.DataFrame, folder: str
) -> None:
    path = f"data/futures/um/monthly/{folder}/BTCUSDT/1h"
    put_archive(tmp_path, f"{path}/BTCUSDT-1h-2024-01.zip", frame)
    for root in (tmp_path, tmp_path / path):
        with pytest.raises(UnknownSeriesError):
            read(root)
        with pytest.raises(DataError, match="whose names contain a symbol"):
            FilesSource(root).series()


def test_files_of_two_markets_are_never_joined(tmp_path: Path, frame: pd.DataFrame) -> None:
    put_freqtrade(tmp_path, "BTC_USDT-1h.json", frame[:50])
    put_freqtrade(tmp_path / "futures", "BTC_USDT_USDT-1h-futures.json", frame[50:])
    error = refusal(tmp_path)
    assert "spot: BTC_USDT-1h.json" in error.got and "futures: futures/" in error.got
    assert len(read(tmp_path / "futures")) == NUM_BARS - 50


@pytest.mark.parametrize("name", ["INDEX_USDT-1h", "INDEX-USDT-1h", "INDEXUSDT-1h"])
def test_a_coin_may_be_called_like_a_kind(tmp_path: Path, frame: pd.DataFrame, name: str) -> None:
    put_freqtrade(tmp_path, f"{name}.json", frame)
    assert [str(series) for series in FilesSource(tmp_path).series()] == ["INDEXUSDT-1h"]


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("BTC-USDT-SWAP-1h", "BTCUSDT-1h"),  # OKX
        ("BTC-PERP-1h", "BTCPERP-1h"),
        ("BTCUSD_PERP-1h-2024-06", "BTCUSDPERP-1h"),  # Binance, in the coin
        ("BTCUSDT_240628-1h-2024-06", "BTCUSDT240628-1h"),  # Binance, ends in June
        ("BTC_USDT_USDT_240628-1h-futures", "BTCUSDT240628-1h"),  # freqtrade
        ("BTCUSDT_20240628_1h", "BTCUSDT-1h"),
    ],
)
def test_contracts_are_named_by_their_pair_and_their_end(
    tmp_path: Path, frame: pd.DataFrame, name: str, series: str
) -> None:
    put_freqtrade(tmp_path, f"{name}.json", frame)
    assert [str(each) for each in FilesSource(tmp_path).series()] == [series]
    assert len(read(tmp_path, Series.parse(series))) == NUM_BARS


@pytest.mark.parametrize(
    ("name", "is_advised"),
    [("XBTUSD_60.csv", True), ("XBTUSD 1H.csv", True), ("XBT_USD.csv", True), ("XBTUSD_15.csv", False)],
)
def test_a_file_that_kraken_named_is_to_be_renamed(tmp_path: Path, name: str, is_advised: bool) -> None:
    (tmp_path / name).touch()
    series = Series("XBTUSD", "1h")
    error = refusal(tmp_path, series)
    assert isinstance(error, UnknownSeriesError)
    advised = with_nearest(error, series, "files", [Series("XBTUSDT", "1h")])
    assert (f"Rename {name} to XBTUSD-1h.csv" in advised.fix) == is_advised
    assert "USDT" not in advised.fix


# --- volumes ---------------------------------------------------------------------------------------------


def kraken(frame: pd.DataFrame) -> list[pd.Series]:
    average = (frame["low"] + frame["high"]) / 2
    times = frame["open_time"] // 1_000
    return [times, *(frame[name] for name in PRICES), average, frame["volume"], frame["volume"].astype(int)]


def test_rows_of_eight_values_cannot_be_told_apart(tmp_path: Path, frame: pd.DataFrame) -> None:
    put_rows(tmp_path, rows_of(*kraken(frame)))
    assert refusal(tmp_path).got.startswith("8 values, first 1704067200, 100")
    put_rows(tmp_path, rows_of(*kraken(frame)[:7]))  # the average price, then the volume
    assert "average price" in refusal(tmp_path).got
    names = ["time", *PRICES, "vwap", "volume", "count"]
    table = pd.DataFrame(dict(zip(names, kraken(frame), strict=True)))
    put_rows(tmp_path, table.to_dict("records"))
    assert read(tmp_path).digest == digest_of(frame)


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_of_seven_values_the_sixth_is_the_volume(tmp_path: Path, frame: pd.DataFrame, ending: str) -> None:
    def put(seventh: pd.Series, volume: pd.Series = frame["volume"]) -> None:
        table = frame.assign(volume=volume, seventh=seventh)
        if ending == "json":
            put_rows(tmp_path, rows_of(*(table[name] for name in table)))
        else:
            put_csv(tmp_path, table, header=False)

    for seventh in (quote_of(frame), frame["volume"].astype(int), frame["volume"] * 0):  # Bybit, Kraken
        put(seventh)
        assert read(tmp_path).digest == digest_of(frame)
    put(frame["volume"], volume=quote_of(frame))  # Bybit's inverse contracts: dollars, then coins
    assert "volume" in refusal(tmp_path).got
    put(frame["volume"], volume=(frame["low"] + frame["high"]) / 2)
    assert "average price" in refusal(tmp_path).got


def test_rows_of_the_exchange_s_own_answer_are_read(tmp_path: Path, frame: pd.DataFrame) -> None:
    rows = rows_of(*(frame[name] for name in COLUMNS), frame["open_time"] + 3_599_999, quote_of(frame))
    put_rows(tmp_path, [[*row, 3, "1", "1", "0"] for row in rows])
    assert read(tmp_path).digest == digest_of(frame)


def test_htx_s_amount_is_the_volume_and_its_vol_is_not(tmp_path: Path, frame: pd.DataFrame) -> None:
    table = frame.rename(columns={"volume": "amount", "open_time": "time"}).assign(vol=quote_of(frame))
    put_rows(tmp_path, table.to_dict("records"))
    assert read(tmp_path).digest == digest_of(frame)
    put_csv(tmp_path, table)
    assert read(tmp_path).report.num_identical == NUM_BARS


def test_of_okx_s_volumes_the_one_in_coins_is_read(tmp_path: Path, frame: pd.DataFrame) -> None:
    spot = frame.rename(columns={"volume": "vol", "open_time": "ts"})
    spot = spot.assign(volCcy=quote_of(frame), volCcyQuote=quote_of(frame), confirm=1)
    put_csv(tmp_path, spot)
    assert read(tmp_path).digest == digest_of(frame)
    swap = spot.assign(vol=frame["volume"] * 100, volCcy=frame["volume"])  # contracts of 0.01 coins
    put_csv(tmp_path, swap)
    assert read(tmp_path).digest == digest_of(frame)
    names = {"ts": "open_time", "volCcy": "vol_ccy", "volCcyQuote": "vol_quote"}  # in its files to download
    put_csv(tmp_path, swap.rename(columns=names).assign(instrument_name="BTC-USDT-SWAP"))
    assert read(tmp_path).digest == digest_of(frame)


@pytest.mark.parametrize("factor", [100.0, 0.001])
def test_a_volume_in_contracts_or_lots_is_refused(tmp_path: Path, frame: pd.DataFrame, factor: float) -> None:
    put_csv(tmp_path, frame.assign(volume=frame["volume"] * factor, quote_volume=quote_of(frame)))
    assert "volume" in refusal(tmp_path).got and "quote_volume" in refusal(tmp_path).got
    put_csv(tmp_path, frame.assign(volume=frame["volume"] * factor, quote_volume=0))
    assert len(read(tmp_path)) == NUM_BARS  # nothing contradicts it


@pytest.mark.parametrize(
    ("names", "quote"),
    [
        (["open_time", *PRICES, "volume"], "quote_asset_volume"),  # Binance
        (["start", *PRICES, "volume"], "turnover"),  # Bybit
        (["t", "o", "h", "l", "c", "a"], "v"),  # Gate, with the quote volume in v
        (["time", *PRICES, "base_volume"], "volume"),
        (["timestamp", *PRICES, "baseVolume"], "quoteVolume"),  # Bitget
    ],
)
def test_a_quote_volume_is_never_taken(
    tmp_path: Path, frame: pd.DataFrame, names: list[str], quote: str
) -> None:
    table = frame.set_axis(names, axis=1).rename(columns={"start": "timestamp"})
    put_csv(tmp_path, table.assign(**{quote: quote_of(frame)}))
    assert read(tmp_path).digest == digest_of(frame)


@pytest.mark.parametrize("sign", ["marketCap", "Market Cap", "Adj Close"])
def test_volumes_in_dollars_of_coinmarketcap_and_yahoo_are_not_read(
    tmp_path: Path, frame: pd.DataFrame, sign: str
) -> None:
    put_csv(tmp_path, frame.assign(**{sign: 1.0}), sep=";")
    assert not read(tmp_path).has_volume


@pytest.mark.parametrize("name", ["amount", "volume_contracts", "contracts", "trade_size", "Vol 24h"])
def test_a_volume_of_an_unknown_unit_is_named_and_refused(
    tmp_path: Path, frame: pd.DataFrame, name: str
) -> None:
    put_csv(tmp_path, frame.rename(columns={"volume": name}))
    assert name.lower().replace(" ", "_") in refusal(tmp_path).got
    put_csv(tmp_path, frame.assign(**{name: 5.0}))
    if name != "amount":
        assert read(tmp_path).digest == digest_of(frame)


@pytest.mark.parametrize("name", ["count", "trades", "vwap", "Volume USDT", "tick_volume", "volatility"])
def test_what_is_no_volume_leaves_candles_without_one(tmp_path: Path, frame: pd.DataFrame, name: str) -> None:
    put_csv(tmp_path, frame.rename(columns={"volume": name}))
    assert not read(tmp_path).has_volume


@pytest.mark.parametrize("blank", [None, "", "nan"])
def test_a_volume_that_is_missing_everywhere_is_none(
    tmp_path: Path, frame: pd.DataFrame, blank: str | None
) -> None:
    put_rows(tmp_path, [[*row[:5], blank] for row in rows_of(*(frame[name] for name in COLUMNS))])
    candles = read(tmp_path)
    assert (len(candles), candles.has_volume) == (NUM_BARS, False)
    put_rows(tmp_path, [[*row[:5], "many"] for row in rows_of(*(frame[name] for name in COLUMNS))])
    assert "many in volume" in refusal(tmp_path).got


# --- bars that are not closed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "no", "yes"),
    [
        ("confirm", 0, 1),
        ("confirm", "0", "1"),
        ("is_closed", False, True),
        ("x", "false", "true"),
        ("Complete", "False", "True"),
        ("isFinal", 0.0, 1.0),
        ("is_partial", True, False),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "json", "feather", "parquet"])
def test_a_row_that_is_not_confirmed_is_not_closed(
    tmp_path: Path, frame: pd.DataFrame, name: str, no: Any, yes: Any, ending: str
) -> None:
    table = frame.assign(**{name: [*[yes] * 97, no, yes, no]}).iloc[::-1]
    table.loc[NUM_BARS - 1, "close"] = table.loc[NUM_BARS - 1, "low"]
    path = tmp_path / f"BTCUSDT-1h.{ending}"
    if ending == "json":
        path.write_text(json.dumps(table.to_dict("records")))
    elif ending == "csv":
        table.to_csv(path, index=False)
    else:
        getattr(table.reset_index(drop=True), f"to_{ending}")(path)
    candles = read(tmp_path)
    assert candles.digest == digest_of(frame.drop(index=[97, 99]))
    assert (candles.report.num_read, candles.report.num_unclosed) == (NUM_BARS, 2)


def test_updates_of_a_running_bar_are_dropped_and_its_end_is_kept(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    names = {"open_time": "t", "open": "o", "high": "h", "low": "l", "close": "c", "volume": "v"}
    ends = frame.rename(columns=names).assign(T=frame["open_time"] + 3_599_999, V=1.0, L=7, x=True)
    updates = ends.assign(c=ends["l"], v=ends["v"] / 2, x=False)
    put_rows(tmp_path, pd.concat([updates, updates, ends]).sort_values("t").to_dict("records"))
    candles = read(tmp_path)
    assert candles.digest == digest_of(frame)
    assert candles.report.num_unclosed == 2 * NUM_BARS


def test_only_one_of_several_files_may_tell_which_bars_are_closed(
    tmp_path: Path, frame: pd.DataFrame
) -> None:
    frame[:50].to_csv(tmp_path / "BTCUSDT-1h-2024-01.csv", index=False)
    rest = frame[50:].assign(confirm=[1] * 49 + [0])
    rest.to_csv(tmp_path / "BTCUSDT-1h-2024-02.csv", index=False)
    assert read(tmp_path).digest == digest_of(frame[:99])


@pytest.mark.parametrize(
    ("name", "value"),
    [("confirm", 2), ("is_closed", ""), ("x", "maybe"), ("bar_completed", 1), ("unfinished", 0)],
)
def test_what_does_not_say_whether_a_bar_is_closed_is_named_and_refused(
    tmp_path: Path, frame: pd.DataFrame, name: str, value: Any
) -> None:
    put_csv(tmp_path, frame.assign(**{name: [1] * 99 + [value]}))
    error = refusal(tmp_path)
    assert name in f"{error.rule} {error.got}"


def test_a_state_that_tells_it_decides_and_another_is_ignored(tmp_path: Path, frame: pd.DataFrame) -> None:
    put_csv(tmp_path, frame.assign(status=["closed"] * 99 + ["Open"]))
    assert read(tmp_path).digest == digest_of(frame[:99])
    put_csv(tmp_path, frame.assign(status=["TRADING"] * 99 + ["open"], type="candle"))
    assert read(tmp_path).digest == digest_of(frame)
    put_csv(tmp_path, frame.assign(type="mark"))
    assert refusal(tmp_path).got == "type mark: mark prices"


def test_cryptofeed_s_start_places_a_bar_and_not_its_last_trade(tmp_path: Path, frame: pd.DataFrame) -> None:
    start_s = frame["open_time"] // 1_000
    table = pd.DataFrame({"symbol": "BTC-USDT", "start": start_s, "stop": start_s + 3_599.999})
    table = table.assign(**frame[COLUMNS[1:]], closed=[True] * 99 + [False], timestamp=start_s + 3_600)
    put_csv(tmp_path, table)
    assert read(tmp_path).digest == digest_of(frame[:99])


@pytest.mark.parametrize("name", ["price_type", "candleType"])
def test_a_column_may_name_traded_prices_and_no_others(
    tmp_path: Path, frame: pd.DataFrame, name: str
) -> None:
    put_csv(tmp_path, frame.assign(**{name: "Futures"}))
    assert read(tmp_path).digest == digest_of(frame)
    for kind in ("mark", "index", "settled"):
        put_csv(tmp_path, frame.assign(**{name: ["trade"] * 99 + [kind]}))
        assert kind in refusal(tmp_path).got


# --- numbers and times as spreadsheets and trading programs write them -----------------------------------


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("1,234.5", "thousands comma"),
        ("5,78E+04", "decimal comma"),
        ("1.2K", "unit"),
        ("$1234.5", "unit"),
        ("12 %", "unit"),
    ],
)
def test_a_few_numbers_that_are_not_plain_are_not_dropped_in_silence(
    tmp_path: Path, frame: pd.DataFrame, text: str, cause: str
) -> None:
    table = frame.astype({"volume": object})
    table.loc[7, "volume"] = text
    put_csv(tmp_path, table)
    assert refusal(tmp_path).got == f"{text} in volume: {cause}"


def test_decimal_commas_between_commas_are_shown(tmp_path: Path, frame: pd.DataFrame) -> None:
    (tmp_path / "BTCUSDT-1h.csv").write_text(frame.to_csv(index=False).replace(".", ","))
    error = refusal(tmp_path)
    assert error.got.startswith("11 values in line 2, and 6 columns: 1704067200000, 100, 0, 100, 83 ...")
    assert "decimal point" in error.fix


@pytest.mark.parametrize("separator", [",", "\t", " "])
def test_date_and_time_apart_without_a_header_are_to_be_joined(tmp_path: Path, separator: str) -> None:
    row = ["2024.01.01", "00:00", *"11111"]
    (tmp_path / "BTCUSDT-1h.csv").write_text(f"{separator.join(row)}\n")
    error = refusal(tmp_path)
    assert "2024.01.01" in error.got and "time in one column" in error.fix


@pytest.mark.parametrize("clock", ["%H:%M:%S", "%H:%M", "%H%M%S"])
@pytest.mark.parametrize("names", [("<DATE>", "<TIME>"), ("Date", "Time")])
def test_date_and_time_apart_are_shown_and_the_cause_named(
    tmp_path: Path, frame: pd.DataFrame, names: tuple[str, str], clock: str
) -> None:
    moments = pd.to_datetime(frame["open_time"], unit="ms")
    date, time = names
    table = pd.DataFrame({date: moments.dt.strftime("%Y.%m.%d"), time: moments.dt.strftime(clock)})
    prices = frame[COLUMNS[1:]].rename(columns=lambda name: f"<{name.upper()}>" if "<" in date else name)
    put_csv(tmp_path, pd.concat([table, prices], axis=1), sep="\t")
    error = refusal(tmp_path)
    assert error.got.startswith(f"{NUM_BARS} of {NUM_BARS} without a date: ")
    assert moments.dt.strftime(clock).iloc[1].lstrip("0") in error.got
    joined = moments.dt.strftime("%Y-%m-%d %H:%M:%S").rename("open_time")
    put_csv(tmp_path, pd.concat([joined, prices], axis=1), sep="\t")
    assert read(tmp_path).digest == digest_of(frame)
