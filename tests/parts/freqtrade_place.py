"""A place for freqtrade: candles as its feather files, an exchange whose markets are served on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from local_server import LocalServer, QuietHandler

BRIDGE = Path(__file__).parents[2] / "docs/bridges/freqtrade"


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
