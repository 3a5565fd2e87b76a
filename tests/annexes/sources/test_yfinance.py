"""The source `yfinance`: what Yahoo has and nothing else, in the package's own form of tables."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
import requests
from local_server import LocalServer, QuietHandler
from requests.adapters import HTTPAdapter

from v8.annexes.sources import SYMBOLS_VARIABLE, YahooSource, ticker_of
from v8.base.errors import DataError, ProfileError
from v8.data.market.series import Series
from v8.data.market.sources import open_source

NOW_S = 1_761_999_300
"""2025-11-01T12:15:00Z, and a bar of a quarter begins."""

QUARTERS = Series("BTCUSDT", "15m")


def yahoo_table(begin_s: int, end_s: int, bar_s: int, ticker: str = "BTC-USD") -> pd.DataFrame:
    """Return what `yfinance.download` returns for one ticker: sorted prices first, then tickers."""
    opens = np.arange(-(-begin_s // bar_s) * bar_s, end_s, bar_s)
    close = 60_000 + 500 * np.sin(opens / 40_000)
    opened = 60_000 + 500 * np.sin((opens - bar_s) / 40_000)
    prices = {"Adj Close": close, "Close": close, "High": np.maximum(opened, close) * 1.001}
    prices |= {
        "Low": np.minimum(opened, close) * 0.999,
        "Open": opened,
        "Volume": np.where(opens % 1800, 9e8, 0),
    }
    index = pd.DatetimeIndex(pd.to_datetime(opens, unit="s", utc=True), name="Datetime")
    columns = pd.MultiIndex.from_product([sorted(prices), [ticker]], names=["Price", "Ticker"])
    return pd.DataFrame(
        np.stack([prices[name] for name in sorted(prices)], axis=1), index=index, columns=columns
    )


class Download:
    """Stands where `yfinance.download` does, has all bars up to `NOW_S`, and keeps what it was asked."""

    def __init__(self, change: Callable[[pd.DataFrame], pd.DataFrame | None] = lambda table: table) -> None:
        self.change = change
        self.asked = list[dict[str, Any]]()

    def __call__(self, ticker: str, **wish: Any) -> pd.DataFrame | None:
        self.asked.append({"ticker": ticker, **wish})
        bar_s = int(pd.Timedelta(wish["interval"].replace("m", "min")).total_seconds())
        # Yahoo tells the running bar, too, whatever was asked for.
        end_s = max(int(wish["end"].timestamp()), NOW_S + 1)
        return self.change(yahoo_table(int(wish["start"].timestamp()), end_s, bar_s, ticker))


def source(change: Callable[[pd.DataFrame], pd.DataFrame | None] = lambda table: table) -> YahooSource:
    return YahooSource(download=Download(change), now=lambda: float(NOW_S))


def test_candles_are_closed_on_the_grid_and_say_whose_prices_they_are() -> None:
    candles = source().candles(QUARTERS, 300)
    assert (len(candles), candles.source, candles.series) == (300, "yfinance", QUARTERS)
    assert int(candles.open_time_s[-1]) == NOW_S - 900  # the running one is not among them
    assert candles.report.num_unclosed == 1
    assert candles.report.priced_as == "BTC-USD"
    assert "prices of BTC-USD" in candles.report.summary()
    assert not candles.has_volume and "no volume" in candles.report.summary()


def test_what_was_traded_is_asked_for_unadjusted_with_a_limit_and_no_more_than_needed() -> None:
    yahoo = source()
    yahoo.candles(QUARTERS, 300)
    (wish,) = yahoo.download.asked  # type: ignore[attr-defined]
    assert (wish["end"].timestamp() - wish["start"].timestamp()) / 900 == 300
    assert not wish["auto_adjust"]
    assert wish["timeout"] > 0


def test_yahoo_has_sixty_days_of_quarters_and_two_years_of_hours_and_that_is_what_comes() -> None:
    # One hour less, because a begin that is a moment too old makes Yahoo refuse all; it is a quarter past.
    assert len(source().candles(QUARTERS, 8_000)) == 60 * 96 - 4
    assert len(source().candles(Series("BTCUSDT", "1h"), 20_000)) == 730 * 24 - 2


def test_an_end_is_kept_and_what_is_newer_is_counted() -> None:
    candles = source().candles(QUARTERS, 100, end_s=NOW_S - 10 * 900)
    assert int(candles.open_time_s[-1]) == NOW_S - 10 * 900
    assert (len(candles), candles.report.num_newer) == (100, 9)


@pytest.mark.parametrize(
    ("series", "end_s", "message"),
    [
        (Series("BTCUSDT", "4h"), None, r"BTCUSDT-4h from yfinance: .*1m.*5m.*got 4h"),
        (QUARTERS, NOW_S - 70 * 86_400, r"BTCUSDT-15m from yfinance: .*60.*got a request for"),
        (Series("OPUSDT", "1h"), None, f"not guessed; got OPUSDT.*{SYMBOLS_VARIABLE}=OPUSDT=NAME-USD"),
        (Series("ETHBTC", "1h"), None, r"ETHBTC-1h from yfinance: .*got ETHBTC"),
    ],
)
def test_what_yahoo_has_not_is_refused_before_it_is_asked(
    series: Series, end_s: int | None, message: str
) -> None:
    yahoo = source()
    with pytest.raises(DataError, match=message):
        yahoo.candles(series, 100, end_s)
    assert yahoo.download.asked == []  # type: ignore[attr-defined]


def test_a_user_may_say_what_yahoo_calls_a_coin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ticker_of(Series("UNIUSDT", "1h")) == "UNI7083-USD"  # UNI-USD is another coin
    monkeypatch.setenv(SYMBOLS_VARIABLE, "OP/USDT=OP-USD, DYDXUSDT = DYDX-USD")
    assert [ticker_of(Series(each, "1h")) for each in ("OPUSDT", "DYDXUSDT")] == ["OP-USD", "DYDX-USD"]
    monkeypatch.setenv(SYMBOLS_VARIABLE, "OPUSDT:OP")
    with pytest.raises(ProfileError, match=f"{SYMBOLS_VARIABLE}: names pairs and their tickers at Yahoo"):
        ticker_of(QUARTERS)


def test_rows_without_prices_and_impossible_ones_are_holes_and_counted() -> None:
    def spoiled(table: pd.DataFrame) -> pd.DataFrame:
        table.iloc[50] = np.nan
        table.loc[table.index[60], ("High", "BTC-USD")] = 1.0
        return pd.concat([table, table.iloc[70:71]])

    report = source(spoiled).candles(QUARTERS, 300).report
    assert (report.num_unreadable, report.num_inconsistent, report.num_identical) == (1, 1, 1)
    assert (report.num_gaps, report.num_missing) == (2, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: None, r"BTCUSDT-15m from yfinance: .*bars of BTC-USD that.*got none"),
        (lambda table: table.iloc[::4], "BTCUSDT-15m from yfinance"),
        (lambda table: table.iloc[:0], "needs bars of BTC-USD"),
        (lambda table: table * np.nan, "needs bars of BTC-USD"),
        (lambda table: table.droplevel("Ticker", axis=1), r"no single \('Open', 'BTC-USD'\) among"),
        (lambda table: table.rename(columns={"BTC-USD": "ETH-USD"}), "no single"),
        (lambda table: table.tz_localize(None), "times of another kind"),
    ],
)
def test_an_answer_of_another_form_is_one_sentence(
    change: Callable[[pd.DataFrame], pd.DataFrame | None], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        source(change).candles(QUARTERS, 300)


def test_what_the_package_logs_is_told_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def failing(table: pd.DataFrame) -> pd.DataFrame:
        logging.getLogger("yfinance").error("['BTC-USD']: YFRateLimitError('Too Many Requests.')")
        return table.iloc[:0]

    with pytest.raises(DataError, match=r"got .*YFRateLimitError.*Too Many Requests"):
        source(failing).candles(QUARTERS, 300)
    assert capfd.readouterr() == ("", "")


def test_without_the_package_the_source_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yfinance", None)  # as if it were not installed
    with pytest.raises(
        ProfileError, match=r"--source yfinance: needs the package yfinance.*pip install yfinance"
    ):
        open_source("yfinance")


class Yahoo(LocalServer):
    """Answers for Yahoo's charts on loopback, and for all else with nothing."""

    def __init__(self) -> None:
        super().__init__(Answering)
        self.asked: list[str] = []


class Answering(QuietHandler):
    server: Yahoo

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        path = urlsplit(self.path).path
        query = parse_qs(urlsplit(self.path).query)
        content = b"crumb"
        if path == "/v8/finance/chart/BTC-USD":
            content = json.dumps(chart(query)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def chart(query: dict[str, list[str]]) -> dict[str, Any]:
    """Say what Yahoo says of a span of quarters, or of a ticker that is looked up."""
    begin_s, end_s = (int(query.get(key, [str(NOW_S)])[0]) for key in ("period1", "period2"))
    table = yahoo_table(begin_s, max(end_s, begin_s + 900), 900)
    prices = {
        name.lower(): table[name, "BTC-USD"].tolist() for name in ("Open", "High", "Low", "Close", "Volume")
    }
    period = {"timezone": "UTC", "start": begin_s, "end": end_s, "gmtoffset": 0}
    meta = {
        "currency": "USD",
        "symbol": "BTC-USD",
        "instrumentType": "CRYPTOCURRENCY",
        "exchangeTimezoneName": "UTC",
        "timezone": "UTC",
        "gmtoffset": 0,
        "firstTradeDate": 1_410_912_000,
        "regularMarketTime": NOW_S,
        "priceHint": 2,
        "dataGranularity": "15m",
        "range": "",
        "validRanges": ["1d", "5d", "max"],
        "currentTradingPeriod": dict.fromkeys(("pre", "regular", "post"), period),
        "tradingPeriods": [[period]],
    }
    result = {
        "meta": meta,
        "timestamp": [int(time.timestamp()) for time in table.index],
        "indicators": {"quote": [prices]},
    }
    return {"chart": {"result": [result], "error": None}}


class OnLoopback(HTTPAdapter):
    """Sends to a server of this machine what is meant for Yahoo."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # type: ignore[override]
        address = urlsplit(str(request.url))
        request.url = address._replace(scheme="http", netloc=f"127.0.0.1:{self.port}").geturl()
        return super().send(request, **options)


@pytest.fixture
def yahoo() -> Iterator[Yahoo]:
    with Yahoo() as server:
        yield server


@pytest.mark.filterwarnings("ignore")  # those of the package are its own
def test_the_package_itself_asks_and_its_tables_are_read(
    yahoo: Yahoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("yfinance", reason="needs yfinance: pip install yfinance")
    monkeypatch.setenv("V8_HOME", str(tmp_path))
    opened = open_source("yfinance")
    assert isinstance(opened, YahooSource)
    session = requests.Session()
    session.mount("https://", OnLoopback(yahoo.server_port))
    real = YahooSource(download=partial(opened.download, session=session), now=lambda: float(NOW_S))
    candles = real.candles(QUARTERS, 300)
    assert (len(candles), int(candles.open_time_s[-1])) == (300, NOW_S - 900)
    expected = yahoo_table(int(candles.open_time_s[0]), NOW_S, 900)
    np.testing.assert_allclose(candles.column("close"), expected["Close", "BTC-USD"])
    assert any("interval=15m" in path for path in yahoo.asked)
