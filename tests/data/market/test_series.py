import pytest

from v8.base.errors import ProfileError
from v8.data.market.series import TIMEFRAME_S, Series, is_series_name, load_universe, series_advice


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("BTCUSDT", "--series: .*got 'BTCUSDT'"),
        ("BTC§-15m", "series BTC§-15m: .*got 'BTC§'"),
        ("../X-15m", "capital letters and digits"),
        ("BTCUSDT-7m", "series BTCUSDT-7m: .*1m.*3m.*got '7m'"),
    ],
)
def test_what_is_no_series_is_refused(text, reason):
    with pytest.raises(ProfileError, match=reason):
        Series.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("btcusdt-1h", "BTC/USDT-1h", "BTC-USDT-1h", "BTC_USDT-1h", "btc/usdt:usdt-1h", "BTCUSDT:USDT-1h"),
        *("BINANCE:BTCUSDT-1h", "bybit:btc/usdt:usdt-1h", "BTC:USDT-1h"),
    ],
)
def test_other_ways_to_write_a_pair_are_the_same_series_but_never_its_name(text):
    assert str(Series.parse(text)) == "BTCUSDT-1h"
    assert not is_series_name(text)


def test_a_contract_that_ends_is_another_series_than_one_that_does_not():
    assert str(Series.parse("BTC/USDT:USDT-240628-1h")) == "BTCUSDT240628-1h"
    assert str(Series.parse("BINANCE:BTCUSDT.P-1h")) == "BTCUSDT.P-1h"


@pytest.mark.parametrize("symbol", ["BRK.B", "1000PEPEUSDT", "T", "CONUSDT", "A" * 30, "NULL"])
def test_any_name_that_is_safe_as_a_folder_is_a_symbol(symbol):
    assert is_series_name(f"{symbol}-1d")
    assert Series.parse(f"{symbol}-1d").symbol == symbol


@pytest.mark.parametrize(
    "symbol",
    ["", ".", "..", ".A", "A.", "A..B", "CON", "nul", "AUX.B", "COM1", "A" * 31, "A B", "BTC\\X", "Ä", "A\n"],
)
def test_what_is_no_safe_folder_everywhere_is_no_symbol(symbol):
    with pytest.raises(ProfileError, match=r"^series .*-1d: .*1 to 30 capital"):
        Series.parse(f"{symbol}-1d")


def test_timeframes_reach_from_a_minute_to_a_week():
    assert " ".join(TIMEFRAME_S) == "1m 3m 5m 15m 30m 1h 2h 4h 6h 8h 12h 1d 3d 1w"
    assert Series("BTCUSDT", "1w").bar_s == 7 * 86_400


def test_a_universe_may_list_its_series_or_have_hundreds(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("series: [BTC/USDT-1h, BRK.B-1d, ETHUSDT-15m]\n")
    assert [str(one) for one in load_universe(path)] == ["BTCUSDT-1h", "BRK.B-1d", "ETHUSDT-15m"]
    path.write_text(
        f"symbols: [{', '.join(f'C{number}USDT' for number in range(250))}]\ntimeframes: [1h, 1w]\n"
    )
    assert len(load_universe(path)) == 500


def test_the_shipped_universe_is_twenty_coins_at_two_timeframes():
    universe = load_universe()
    assert len(universe) == len(set(universe)) == 40
    assert [str(series) for series in universe[:3]] == ["BTCUSDT-15m", "BTCUSDT-1h", "ETHUSDT-15m"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("symbol: [BTCUSDT]\ntimeframes: [1h]\n", "key symbol: .*got 'symbol' where symbols and.*symbols"),
        ("symbols: [BTCUSDT]\n", "key timeframes: .*got None"),
        ("symbols: [BTCUSDT, BTCUSDT]\ntimeframes: [1h]\n", "universe.yaml, key symbols: .*got BTCUSDT more"),
        ("series: [BTCUSDT-1h, btcusdt-1h]\n", "universe.yaml: .*got BTCUSDT-1h more than once"),
        ("series: [BTCUSDT-1h]\nsymbols: [X]\n", "key symbols: .*got 'symbols' where series belong"),
        ("series: BTCUSDT-1h\n", "key series: .*got 'BTCUSDT-1h'"),
        ("symbols: [BTCUSDT]\ntimeframes: [1y]\n", "series BTCUSDT-1y: .*got '1y'"),
    ],
)
def test_a_universe_that_cannot_be_read_is_refused(tmp_path, content, reason):
    path = tmp_path / "universe.yaml"
    path.write_text(content)
    with pytest.raises(ProfileError, match=reason):
        load_universe(path)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("BTCUSD-15m", "BTCUSDT-15m"),
        ("BTCUSTD-15m", "BTCUSDT-15m"),
        ("BTCUSDT-1d", "BTCUSDT-1h"),
        ("SOLUSDT-15m", None),
        ("ETHWUSDT-1h", None),
        ("ETCUSDT-1h", None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_a_suggested_series_is_never_another_coin(asked: str, meant: str | None) -> None:
    known = ["ETHUSDT-1h", "BTCUSDT-15m", "BTCUSDT-1h"]
    expected = f"Did you mean {meant}" if meant else "Fetch it"
    assert series_advice(asked, known, "Fetch it") == expected
