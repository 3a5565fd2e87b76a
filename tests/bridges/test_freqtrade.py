"""The bridge to freqtrade: what it joins, sizes and stops, and what freqtrade itself makes of it."""

from __future__ import annotations

import doctest
import json
import os
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import v8_columns
from broken_http import RawServer, drip
from broken_http import answer as http_answer
from local_server import LocalServer, QuietHandler
from programs import run_program
from v8_columns import (
    STOP,
    USABLE_FROM,
    USUAL,
    VOLATILITY,
    aligned,
    entries,
    forecasts_from,
    of_export,
    row_of,
    stop,
    volatility,
)

from v8.api.export import write_forecasts
from v8.data.market.series import Series
from v8.data.market.sources import OpenedSource, open_source
from v8.forecaster.forecaster import SeenCandlesWarning

SERIES = "BTCUSDT-1h"
HOUR = pd.Timedelta(hours=1)
BRIDGE = Path(v8_columns.__file__).parent


@contextmanager
def answering(answers: Sequence[Any]) -> Iterator[SimpleNamespace]:
    """Yield its `address` and what was `asked`: paths with their authorization."""
    asked: list[tuple[str, str | None]] = []

    class Answers(QuietHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answers[min(len(asked), len(answers)) - 1]).encode())

    with LocalServer(Answers) as server:
        yield SimpleNamespace(address=server.url, asked=asked)


def candles_of(num_bars: int) -> pd.DataFrame:
    frame = open_source("demo").candles(Series.parse(SERIES), num_bars).to_frame()
    return frame.rename_axis("date").reset_index()


def forecasts_of(candles: pd.DataFrame, steps: int = 3) -> pd.DataFrame:
    """Return forecasts of every close by the ranges before it, in the rows of an export."""
    spread = ((candles["high"] - candles["low"]) / 2).rolling(20).mean()
    rows = []
    for step in range(1, steps + 1):
        wide = spread * np.sqrt(step)
        told = {"high": candles["close"] + wide, "low": candles["close"] - wide, "close": candles["close"]}
        told |= {"low_q5": told["low"] - wide, "low_q95": told["low"] + wide / 2, "close_actual": -1.0}
        issued = candles["date"] + HOUR
        frame = pd.DataFrame({"series": SERIES, "fold": 0, "issued_at": issued, "step": step, **told})
        rows.append(frame.assign(open_time=issued + (step - 1) * HOUR))
    return pd.concat(rows).dropna().sort_values(["issued_at", "step"])


@pytest.fixture
def export(tmp_path: Path) -> Path:
    file = tmp_path / "forecasts.parquet"
    forecasts_of(candles_of(400)).to_parquet(file)
    return file


def test_its_examples_say_what_it_does() -> None:
    assert doctest.testmod(v8_columns).failed == 0


def test_a_forecast_stands_beside_the_candle_at_whose_close_it_was_issued_and_beside_no_other(
    export: Path,
) -> None:
    candles = candles_of(400)
    answer = of_export(str(export))(SERIES, candles)
    assert not [name for name in answer if "actual" in name]
    joined = aligned(candles, answer)
    assert len(joined) == 400 and joined[VOLATILITY].isna().sum() == 19  # ranges of 20 bars
    row = joined.iloc[100]
    known = answer[answer[USABLE_FROM] == row["date"] + HOUR].iloc[0]
    assert row[STOP] == known["low_q5_ahead_3"] == min(known[f"low_q5_ahead_{step}"] for step in (1, 2, 3))
    late = answer.assign(**{USABLE_FROM: answer[USABLE_FROM] + pd.Timedelta(minutes=1)})
    assert aligned(candles, late)[VOLATILITY].isna().all()


def test_what_comes_later_changes_nothing_before(export: Path) -> None:
    candles = candles_of(400)
    answer = of_export(str(export))(SERIES, candles_of(400))
    whole = aligned(candles, answer)
    cut = aligned(candles[:300], answer)
    pd.testing.assert_frame_equal(whole[:300], cut)
    changed = answer.assign(high_ahead_1=answer["high_ahead_1"].where(answer.index < 300, 1e9))
    pd.testing.assert_frame_equal(aligned(candles, changed)[:300], cut)
    assert cut[USUAL].iloc[299] == cut[VOLATILITY].iloc[100:300].median()


def test_of_folds_that_overlap_the_newest_model_is_heard(tmp_path: Path) -> None:
    first = forecasts_of(candles_of(60))
    second = first[first["issued_at"] > first["issued_at"].median()].assign(fold=1, low_q5=7.0)
    file = tmp_path / "forecasts.csv"
    pd.concat([first, second]).to_csv(file, index=False)
    joined = aligned(candles_of(60), of_export(str(file))(SERIES, candles_of(60)))
    assert joined[STOP].iloc[-1] == 7.0 and joined[STOP].iloc[25] > 7.0


def test_volatility_and_stop_are_those_of_the_bars_ahead() -> None:
    told = {"high_ahead_1": [110.0], "low_ahead_1": [100.0], "high_ahead_2": [121.0], "low_ahead_2": [100.0]}
    squares = (np.log(1.1) ** 2 + np.log(1.21) ** 2) / 2
    yearly = np.sqrt(squares / (4 * np.log(2)) * 365 * 24)
    assert volatility(pd.DataFrame(told), HOUR).tolist() == pytest.approx([yearly])
    assert stop(pd.DataFrame(told)).tolist() == [100.0]  # no quantiles: the lows themselves
    told |= {"low_q2.5_ahead_1": [97.0], "low_q10_ahead_1": [98.0], "low_q2.5_ahead_2": [96.0]}
    assert stop(pd.DataFrame(told)).tolist() == [96.0]


def test_forecasts_come_from_one_place_that_holds_the_series(export: Path) -> None:
    with pytest.raises(ValueError, match="export, models, api; got export, api"):
        forecasts_from({"export": str(export), "api": "http://127.0.0.1:8008"})
    with pytest.raises(ValueError, match="must hold ETHUSDT-1h; got BTCUSDT-1h"):
        forecasts_from({"export": str(export)})("ETHUSDT-1h", candles_of(40))


def test_the_app_is_asked_until_its_forecast_knows_the_newest_candle(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(closed: pd.Timestamp, low: float) -> dict[str, Any]:
        bar = {"open_time": closed.isoformat(), "high": 101.0, "low": 99.0, "low_q05": low}
        return {"series": SERIES, "first_bar": closed.isoformat(), "forecast": [bar]}

    candles = candles_of(40)
    newest = candles["date"].iloc[-1] + HOUR
    assert row_of(answer(newest, 98.0))["low_q5_ahead_1"] == 98.0
    monkeypatch.setenv("V8_APP_TOKEN", "secret")
    with answering([answer(newest - HOUR, 97.0), answer(newest, 98.0)]) as app:
        ask = forecasts_from({"api": app.address})
        joined = aligned(candles, ask(SERIES, candles))
        assert aligned(candles, ask(SERIES, candles)).equals(joined)  # what is known is not asked for again
    assert app.asked == [(f"/api/forecast/{SERIES}", "Bearer secret")] * 2
    assert joined[STOP].dropna().tolist() == [97.0, 98.0]


NEWEST = candles_of(40)["date"].iloc[-1] + HOUR
PRICES = {"open": 100.0, "high": 101.0, "low": 99.0, "close": 100.5, "low_q5": 98.0, "low_q95": 99.5}


def answer_of(num_steps: int = 3, step: int = 1, **changed: Any) -> dict[str, Any]:
    """Return an answer of the app; in one bar some values are others, None leaves one out."""
    bars = [{"open_time": (NEWEST + at * HOUR).isoformat(), **PRICES} for at in range(num_steps)]
    bars[step] = {key: value for key, value in (bars[step] | changed).items() if value is not Ellipsis}
    return {"series": SERIES, "first_bar": NEWEST.isoformat(), "forecast": bars}


HOSTILE = {
    "flat": answer_of(high=99.0, open=99.0, close=99.0),
    "negative low": answer_of(low=-7.0, low_q5=-8.0),
    "zero": answer_of(low_q5=0),
    "null": None,
    "null bar": answer_of() | {"forecast": [None]},
    "text": "98.0",
    "list": [],
    "true": answer_of(high=True),
    "not a number": answer_of(high=float("nan")),
    "huge whole number": answer_of(high=10**400),
    "far": answer_of(high=1_010.0),
    "close above high": answer_of(close=102.0),
    "quantiles crossed": answer_of(low_q95=97.0),
    "quantile above the low": answer_of(low_q5=99.3),
    "no high": answer_of(high=...),
    "unknown column": answer_of(low_qx=1.0) | {"forecast": [PRICES | {"low_qx": 1.0}]},
    "no bars": answer_of() | {"forecast": []},
    "many bars": answer_of() | {"forecast": [PRICES] * 1_001},
    "bars apart": answer_of(open_time=(NEWEST + 5 * HOUR).isoformat()),
    "another series": answer_of() | {"series": "ETHUSDT-1h"},
    "off the grid": answer_of() | {"first_bar": (NEWEST + HOUR / 7).isoformat()},
    "a far time": answer_of() | {"first_bar": "9999-01-01T00:00:00Z"},
    "a long time": answer_of() | {"first_bar": "2" * 100_000},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_answer_that_cannot_be_a_forecast_is_none_and_the_bot_goes_on(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    candles = candles_of(40)
    with answering([HOSTILE[name], answer_of()]) as app:
        ask = forecasts_from({"api": app.address})
        joined = aligned(candles, ask(SERIES, candles))
        assert joined[[VOLATILITY, STOP]].isna().all(axis=None) and len(joined) == 40
        assert entries(joined).sum() == 0
        (record,) = caplog.records
        assert record.levelname == "WARNING" and len(record.getMessage()) < 400
        joined = aligned(candles, ask(SERIES, candles))  # the next answer is taken
    assert joined[STOP].iloc[-1] == 98.0 and joined[VOLATILITY].iloc[-1] > 0


BROKEN = {
    "a head that drips": [b"HTTP/1.1 200 OK\r\nX-Part: ", *drip(b"x", 0.1, 30)],
    "a body that drips": [http_answer("Content-Length: 1000", body=b""), *drip(b" ", 0.1, 30)],
    "a redirect": [http_answer("Location: /elsewhere", status="302 Found", body=b"")],
    "13 MB": [http_answer(body=b" " * 65_536 * 200)],
    "nested": [http_answer(body=b"[" * 100_000)],
    "an error with a forecast": [http_answer(status="503 Busy", body=json.dumps(answer_of()).encode())],
    "no http": [b"\x00\xff\r\n\r\n"],
    "nothing": [],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_server_that_answers_by_no_rule_does_not_hold_the_bot(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(v8_columns, "WAITING_S", 0.4)
    candles = candles_of(40)
    with closing(RawServer(BROKEN[name])) as server:
        ask = forecasts_from({"api": server.url})
        started_s = time.monotonic()
        assert aligned(candles, ask(SERIES, candles))[VOLATILITY].isna().all()
        assert time.monotonic() - started_s < 2.5
        started_s = time.monotonic()
        assert ask("ETHUSDT-1h", candles).empty
        assert "drips" not in name or time.monotonic() - started_s < 0.5  # it rests for all series
    assert aligned(candles, ask(SERIES, candles))[STOP].isna().all()  # where nothing listens


def test_rows_of_any_source_whose_bars_cannot_be_are_no_forecasts() -> None:
    candles = candles_of(6)
    closed = candles["date"] + HOUR
    rows = pd.DataFrame({USABLE_FROM: closed, "high_ahead_1": 2.0, "low_ahead_1": 1.0, "low_q5_ahead_1": 0.9})
    rows.loc[0, "high_ahead_1"] = 1.0
    rows.loc[1, "low_ahead_1"] = -1.0
    rows.loc[2, "low_q5_ahead_1"] = -7.0
    rows.loc[3, "high_ahead_1"] = np.nan
    rows.loc[4, "high_ahead_1"] = np.inf
    joined = aligned(candles, rows)
    assert joined[VOLATILITY].notna().tolist() == joined[STOP].notna().tolist() == [False] * 5 + [True]


def test_nothing_is_entered_where_the_stop_is_not_below_the_price() -> None:
    frame = pd.DataFrame({"close": [1.0, 1.0, 1.0], STOP: [0.9, 1.0, np.nan], VOLATILITY: 0.1, USUAL: 0.2})
    assert entries(frame).tolist() == [True, False, False]


@pytest.mark.tf
def test_models_and_their_export_say_the_same(trained_run: Any, tmp_path: Path) -> None:
    place = trained_run.path
    file = tmp_path / "forecasts.parquet"
    opened = OpenedSource(open_source("files", data_dir=trained_run.candles_dir))
    write_forecasts(place, file, form="parquet", open_source=lambda name: opened)
    candles = trained_run.candles.to_frame().rename_axis("date").reset_index()
    with pytest.warns(SeenCandlesWarning):  # before the test span
        frames = [
            aligned(candles, forecasts_from({kind: str(where)})("BTCUSDT-15m", candles))
            for kind, where in (("export", file), ("models", place))
        ]
    exported, forecast = (frame.dropna(subset=[VOLATILITY]) for frame in frames)
    assert 0 < len(exported) < len(forecast)  # the test span, and all candles
    both = forecast.loc[exported.index, [VOLATILITY, STOP]]
    pd.testing.assert_frame_equal(exported[[VOLATILITY, STOP]], both, rtol=1e-6)


FREQAI_PACKAGES = ("datasieve", "sklearn")
"""What FreqAI itself imports; freqtrade without the extra `freqai` does not bring them."""


def require_freqai() -> None:
    """Skip the test where freqtrade is there, and what its FreqAI imports is not."""
    for name in FREQAI_PACKAGES:
        pytest.importorskip(name, reason=f"FreqAI needs {name}: pip install 'freqtrade[freqai]'")


def market_of(base: str) -> dict[str, Any]:
    """Return what the exchange says of a coin against USDT."""
    filters = [
        {"filterType": "PRICE_FILTER", "minPrice": "0.01", "maxPrice": "1000000.00", "tickSize": "0.01"},
        {"filterType": "LOT_SIZE", "minQty": "0.00001", "maxQty": "9000.0", "stepSize": "0.00001"},
        {"filterType": "NOTIONAL", "minNotional": "5.0", "applyMinToMarket": True, "avgPriceMins": 5},
    ]
    types = ["LIMIT", "LIMIT_MAKER", "MARKET", "STOP_LOSS", "STOP_LOSS_LIMIT"]
    allowed = {"isSpotTradingAllowed": True, "isMarginTradingAllowed": False, "orderTypes": types}
    digits = {"baseAssetPrecision": 8, "quotePrecision": 8, "quoteAssetPrecision": 8}
    names = {"symbol": f"{base}USDT", "baseAsset": base, "quoteAsset": "USDT"}
    return {**names, **digits, **allowed, "status": "TRADING", "permissions": ["SPOT"], "filters": filters}


@contextmanager
def markets(*bases: str) -> Iterator[str]:
    """Serve the markets of coins, and yield their address; whatever else is asked is not there."""
    told = json.dumps({"timezone": "UTC", "serverTime": 0, "symbols": [*map(market_of, bases)]}).encode()

    class Markets(QuietHandler):
        def do_GET(self) -> None:
            is_there = self.path.partition("?")[0].endswith("/exchangeInfo")
            self.send_response(200 if is_there else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(told if is_there else b"{}")

    with LocalServer(Markets) as server:
        yield f"{server.url}/api/v3"


def configuration(address: str, pairs: list[str], v8: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """Return the configuration of a bot that trades pairs by forecasts of v8."""
    urls = {"api": {"public": address}}
    ccxt = {"urls": urls, "options": {"fetchMarkets": {"types": ["spot"]}}, "enableRateLimit": False}
    exchange = {"name": "binance", "pair_whitelist": pairs, "ccxt_config": ccxt, "ccxt_async_config": ccxt}
    prices = {"price_side": "same", "use_order_book": False, "price_last_balance": 0.0}
    return {
        "dry_run": True,
        "dry_run_wallet": 10_000,
        "stake_currency": "USDT",
        "stake_amount": "unlimited",
        "max_open_trades": len(pairs),
        "fee": 0.001,
        "dataformat_ohlcv": "feather",
        "exchange": exchange,
        "pairlists": [{"method": "StaticPairList"}],
        "entry_pricing": prices,
        "exit_pricing": prices,
        "v8": dict(v8),
        **more,
    }


def write_candles(user_data: Path, pair: str, timeframe: str, candles: pd.DataFrame) -> None:
    """Write candles, by their open time, where freqtrade looks for those of an exchange."""
    folder = user_data / "data" / "binance"
    folder.mkdir(parents=True, exist_ok=True)
    frame = candles.rename_axis("date").reset_index()[["date", "open", "high", "low", "close", "volume"]]
    frame["date"] = frame["date"].astype("datetime64[ms, UTC]")
    frame.to_feather(folder / f"{pair.replace('/', '_')}-{timeframe}.feather")


FREQAI = {
    **{"enabled": True, "identifier": "v8", "train_period_days": 5, "backtest_period_days": 10},
    **{"save_backtest_models": False, "activate_tensorboard": False, "model_training_parameters": {}},
    "feature_parameters": {
        **{"include_timeframes": ["1h"], "include_corr_pairlist": [], "indicator_periods_candles": [10]}
    },
    "data_split_parameters": {"test_size": 0, "shuffle": False},
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a place of freqtrade's with candles of the simulated market."""
    pytest.importorskip("freqtrade", reason="freqtrade is not installed here, and v8 does not need it")
    for folder in ("strategies", "models", "backtest_results"):
        (tmp_path / "user_data" / folder).mkdir(parents=True)
    write_candles(tmp_path / "user_data", "BTC/USDT", "1h", candles_of(3_000).set_index("date"))
    forecasts_of(candles_of(3_000)).to_parquet(tmp_path / "forecasts.parquet")
    return tmp_path


def said(place: Path, command: str, *words: str, strategy: str = "V8Strategy", **more: Any) -> str:
    """Call freqtrade over the newest 60 days, and return what it said."""
    end = candles_of(1)["date"].iloc[0]
    span = f"{end - pd.Timedelta(days=60):%Y%m%d}-{end:%Y%m%d}"
    with markets("BTC") as address:
        v8 = {"export": str(place / "forecasts.parquet")}
        file = place / "config.json"
        file.write_text(json.dumps(configuration(address, ["BTC/USDT"], v8, timeframe="1h", **more)))
        places = ("--config", file, "--user-data-dir", place / "user_data", "--strategy-path", BRIDGE)
        call = (sys.executable, "-m", "freqtrade", command, *places, "--timerange", span)
        env = {**os.environ, "COLUMNS": "200", "HOME": str(place)}
        process = run_program([*call, "--strategy", strategy, *words], env=env, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout + process.stderr


def trades(place: Path) -> list[dict[str, Any]]:
    newest = max((place / "user_data/backtest_results").glob("*.zip"), key=lambda file: file.stat().st_mtime)
    with zipfile.ZipFile(newest) as held:
        (content,) = (
            json.loads(held.read(name)) for name in held.namelist() if name == f"{newest.stem}.json"
        )
    (told,) = content["strategy"].values()
    return [{key: value for key, value in trade.items() if key != "orders"} for trade in told["trades"]]


@pytest.mark.process
def test_freqtrade_trades_by_it_and_does_the_same_again(place: Path) -> None:
    said(place, "backtesting", "--cache", "none")
    first = trades(place)
    candles = candles_of(3_000)
    answer = aligned(candles, of_export(str(place / "forecasts.parquet"))(SERIES, candles)).set_index("date")
    assert len(first) > 5
    for trade in first:
        known = answer.loc[pd.Timestamp(trade["open_date"]) - HOUR]  # the candle that had closed by then
        assert known[VOLATILITY] <= known[USUAL]
        assert trade["stop_loss_abs"] == pytest.approx(known[STOP], rel=1e-3)
        assert trade["stake_amount"] <= 10_500 * min(0.3 / known[VOLATILITY], 1.0)
    said(place, "backtesting", "--cache", "none")
    assert trades(place) == first


@pytest.mark.process
def test_freqtrade_finds_no_look_ahead(place: Path) -> None:
    table = said(place, "lookahead-analysis", "--minimum-trade-amount", "3", "--targeted-trade-amount", "5")
    assert "V8Strategy: no bias detected" in table


@pytest.mark.process
def test_a_freqai_model_gives_the_same_trades(place: Path) -> None:
    require_freqai()
    said(place, "backtesting", "--cache", "none")
    plain = trades(place)
    model = ("--freqaimodel", "V8Forecaster", "--freqaimodel-path", str(BRIDGE))
    said(place, "backtesting", "--cache", "none", *model, strategy="V8FreqaiStrategy", freqai=FREQAI)
    keys = ("open_date", "close_date", "open_rate", "close_rate")
    assert [[one[key] for key in keys] for one in trades(place)] == [
        [one[key] for key in keys] for one in plain
    ]
