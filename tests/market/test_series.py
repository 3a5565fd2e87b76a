import pytest

from v8.errors import ProfileError
from v8.market.series import Series, load_universe


def test_a_series_reads_back_as_it_is_written():
    series = Series.parse("BTCUSDT-15m")
    assert (series.symbol, series.timeframe, series.bar_s, str(series)) == (
        "BTCUSDT",
        "15m",
        900,
        "BTCUSDT-15m",
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("BTCUSDT", "a series is SYMBOL-TIMEFRAME; got 'BTCUSDT'"),
        ("BTC§-15m", "capital letters and digits, .*; got 'BTC§'"),
        ("../X-15m", "capital letters and digits"),
        ("BTCUSDT-7m", "a timeframe is one of 1m, 3m, .*; got '7m'"),
    ],
)
def test_what_is_no_series_is_refused(text, reason):
    with pytest.raises(ProfileError, match=reason):
        Series.parse(text)


def test_the_shipped_universe_is_twenty_coins_at_two_timeframes():
    universe = load_universe()
    assert len(universe) == len(set(universe)) == 40
    assert [str(series) for series in universe[:3]] == ["BTCUSDT-15m", "BTCUSDT-1h", "ETHUSDT-15m"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("symbol: [BTCUSDT]\ntimeframes: [1h]\n", "key symbol: .* Did you mean symbols"),
        ("symbols: [BTCUSDT]\n", "key timeframes: needs a list of names; got None"),
        ("symbols: [BTCUSDT, BTCUSDT]\ntimeframes: [1h]\n", "names each entry once; got BTCUSDT more"),
        ("symbols: [BTCUSDT]\ntimeframes: [1y]\n", "a timeframe is one of"),
    ],
)
def test_a_universe_that_cannot_be_read_is_refused(tmp_path, content, reason):
    path = tmp_path / "universe.yaml"
    path.write_text(content)
    with pytest.raises(ProfileError, match=reason):
        load_universe(path)
