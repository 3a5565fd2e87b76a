"""The plug-in for ccxt: the real package at an exchange on loopback, held to the rules of `rest`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange_api import ApiFault, ExchangeApi, too_many
from typer.testing import CliRunner

from v8.base import wording
from v8.base.errors import DataError, ProfileError
from v8.base.registry import load_plugins
from v8.cli.app import app
from v8.data.market.series import Series
from v8.data.market.sources import open_source
from v8.data.market.sources.rest import CandleSpan, RestSource

pytest.importorskip("ccxt", reason="the package ccxt is not installed: pip install 'v8-forecasters[ccxt]'")
pytestmark = pytest.mark.usefixtures("unloaded")

PLUGIN = Path(__file__).parents[4] / "docs/bridges/ccxt/ccxt_source.py"
SERIES = Series.parse("BTCUSDT-15m")
START_S = 1_704_067_200
NUM_BARS = 3_000
"""Candles that the exchange has, three answers of its."""
TOKEN = "a-token-in-the-options"


@pytest.fixture
def exchange(
    valid_frame: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ExchangeApi]:
    """An exchange seven minutes after a close, as ccxt's Binance."""
    with ExchangeApi(now_s=START_S + NUM_BARS * SERIES.bar_s + 420) as opened:
        opened.put(str(SERIES), valid_frame(NUM_BARS + 1, SERIES.bar_s))
        public = {"public": f"{opened.url}/api/v3"}
        options = {"urls": {"api": public}, "options": {"fetchMarkets": {"types": ["spot"]}}, "rateLimit": 1}
        monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("V8_REST_URL", opened.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("V8_CCXT", "binance")
        monkeypatch.setenv("V8_CCXT_OPTIONS", json.dumps({**options, "token": TOKEN}))
        yield opened


@pytest.fixture
def source(exchange: ExchangeApi, monkeypatch: pytest.MonkeyPatch) -> Any:
    load_plugins([PLUGIN])
    module = sys.modules["v8_plugin_ccxt_source"]
    monkeypatch.setattr(wording, "_kept", {})  # what is secret in this test may be a word of another one
    monkeypatch.setattr(module, "PATIENCE", replace(module.PATIENCE, sleep=lambda seconds: None))
    return open_source("ccxt")


def test_its_candles_are_those_of_rest_and_the_running_one_is_not_among_them(
    exchange: ExchangeApi, source: Any
) -> None:
    exchange.cut_hole(str(SERIES), START_S + 1_500 * 900, START_S + 1_509 * 900)
    candles = source.candles(SERIES, 2_500)
    wanted = RestSource().candles(SERIES, 2_500)
    assert candles.digest == wanted.digest
    assert (candles.source, len(candles), candles.report.num_gaps, candles.report.num_missing) == (
        "ccxt",
        2_500,
        1,
        10,
    )
    assert candles.open_time_s[-1] == START_S + (NUM_BARS - 1) * 900
    running_s = START_S + NUM_BARS * 900
    assert source.rest.api.edge_open_s(SERIES, running_s, is_newest=True) == running_s
    earlier = source.candles(SERIES, 50, int(candles.open_time_s[-100]))
    assert earlier.open_time_s[-1] == candles.open_time_s[-100]


def test_all_that_there_is_is_found_where_an_answer_holds_few_and_says_nothing_of_what_was_before(
    exchange: ExchangeApi, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many exchanges answer with the window that begins when they are asked for, empty or not."""
    limit = 100
    real = source.rest.api.exchange.fetch_ohlcv

    def windowed(symbol: str, timeframe: str, limit: int, since: int | None = None) -> list[Any]:
        rows = real(symbol, timeframe, limit=1_000, **({} if since is None else {"since": since}))
        last = np.inf if since is None else since + limit * 900_000
        return [row for row in rows if row[0] < last][-limit if since is None else 0 :]

    monkeypatch.setattr(source.rest.api.exchange, "fetch_ohlcv", windowed)
    monkeypatch.setattr(source.rest.api.exchange, "feature_value", lambda *given: limit)
    candles = source.candles(SERIES, 5_000)
    assert candles.digest == RestSource().candles(SERIES, 5_000).digest
    assert len(candles) == NUM_BARS
    exchange.requests.clear()
    since_s = START_S + 100 * 900
    rows = source.rest.api.klines(CandleSpan(SERIES, since_s, since_s + 999 * 900))
    assert len(rows) == 1_000
    asked = [int(asked["startTime"]) // 1_000 for asked in exchange.klines_requests()]
    assert asked == [since_s + number * limit * 900 for number in range(10)]


def test_a_second_call_asks_for_what_is_new_and_keeps_what_was_told_first(
    exchange: ExchangeApi, source: Any
) -> None:
    before = source.candles(SERIES, 500)
    exchange.revise(str(SERIES), int(before.open_time_s[-1]), close=float(before.values[-1, 3]) * 1.001)
    exchange.now_s += 900
    exchange.requests.clear()
    after = open_source("ccxt").candles(SERIES, 500)
    # Its time is years behind this machine's: its newest candle is asked for, too, to bear it out.
    assert [asked for asked in exchange.klines_requests() if "startTime" in asked] == [
        {"interval": "15m", "limit": "1000", "symbol": "BTCUSDT", "startTime": f"{before.open_time_s[-3]}000"}
    ]
    assert after.report.num_revised == 1
    assert np.array_equal(after.values[-2], before.values[-1])
    assert after.open_time_s[-1] == before.open_time_s[-1] + 900


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("BTCUSD-15m", "BTCUSD-15m from binance: .* 1 markets of kind spot .*; got none"),
        ("BTCUSDT-2h", "a candle that opens"),
    ],
)
def test_what_the_exchange_lacks_is_refused_in_a_sentence(source: Any, name: str, told: str) -> None:
    with pytest.raises(DataError, match=told) as error:
        source.candles(Series.parse(name), 100)
    assert "V8_REST_URL" not in str(error.value)
    with pytest.raises(DataError, match=told):
        source.require(Series.parse(name))


def test_trouble_that_passes_is_waited_for_and_other_trouble_told_without_secrets(
    exchange: ExchangeApi, source: Any
) -> None:
    source.candles(SERIES, 10)
    exchange.now_s += 900
    exchange.faults += [too_many(), ApiFault(503)]
    assert len(open_source("ccxt").candles(SERIES, 10)) == 10
    exchange.is_blocked = True
    exchange.now_s += 900
    with pytest.raises(DataError, match=r"^binance by ccxt: .* fetch_time; got binance") as error:
        open_source("ccxt").candles(SERIES, 10)
    assert "451" in str(error.value) or "restricted" in str(error.value)
    assert TOKEN not in str(error.value)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (
            {"V8_CCXT": ""},
            r"V8_CCXT: names one of the \d+ exchanges of ccxt .*; got none\. Write for example",
        ),
        ({"V8_CCXT": "krakn"}, "got 'krakn'. Did you mean kraken"),
        ({"V8_CCXT_OPTIONS": f"['{TOKEN}']"}, "V8_CCXT_OPTIONS: .*; got another"),
    ],
)
def test_an_exchange_that_is_none_is_refused_at_once(
    source: Any, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ProfileError, match=told) as error:
        open_source("ccxt")
    assert TOKEN not in str(error.value)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("symbol"),
        ValueError("could not convert string to float: 'x'"),
        AttributeError("'NoneType' object has no attribute 'get'"),
        RuntimeError(f"binance GET https://x/y?apiKey={TOKEN}&signature=ab {{'secret': '{TOKEN}'}} {TOKEN}"),
    ],
)
@pytest.mark.parametrize("call", ["fetch_time", "load_markets", "fetch_ohlcv", "feature_value"])
def test_whatever_ccxt_raises_is_a_sentence_without_secrets(
    source: Any, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(source.rest.api.exchange, call, fail)
    with pytest.raises(DataError, match=f"^binance by ccxt: .* {call}; got") as caught:
        source.candles(SERIES, 10)
    assert caught.value.got.startswith(f"{type(error).__name__}: ")
    assert TOKEN not in str(caught.value)


def test_options_that_ccxt_cannot_open_are_refused_in_a_sentence(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("V8_CCXT_OPTIONS", json.dumps({"has": 5, "token": TOKEN}))
    with pytest.raises(ProfileError) as caught:
        open_source("ccxt")
    assert caught.value.where == "V8_CCXT_OPTIONS"
    assert TOKEN not in str(caught.value)


def test_the_command_line_takes_it_as_a_plug_in(exchange: ExchangeApi) -> None:
    words = ["data", "--plugin", str(PLUGIN), "--source", "ccxt", "--series", str(SERIES), "--bars", "500"]
    result = CliRunner().invoke(app, words, prog_name="v8")
    assert (result.exit_code, str(SERIES) in result.stdout) == (0, True), result.output
    wrong = CliRunner().invoke(app, [*words[:-3], "XXXUSDT-15m"], prog_name="v8")
    assert wrong.exit_code == 3
    assert "XXXUSDT-15m" in wrong.output and "Traceback" not in wrong.output
