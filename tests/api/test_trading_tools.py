"""The examples of the page about other tools do what it says, where these tools are installed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from v8.data.market.series import Series
from v8.data.market.sources import open_source

PAGE = Path(__file__).parents[2] / "docs/en/how-to/trading-tools.md"
NUM_BARS = 400


def example(name: str) -> str:
    """Return the Python of a section."""
    section = PAGE.read_text("utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return str(code)


@pytest.fixture
def given() -> dict[str, Any]:
    """Return what the examples begin with; columns of forecasts as `forecast_history` names them."""
    candles = open_source("demo").candles(Series.parse("BTCUSDT-15m"), NUM_BARS).to_frame()
    frame = candles.assign(usable_from=candles.index + pd.Timedelta("15min"))
    spread = (candles["high"] - candles["low"]).rolling(20).mean()
    frame["high_ahead_1"] = candles["close"] + spread / 2
    frame["low_ahead_1"] = candles["close"] - spread / 2
    forecaster = SimpleNamespace(
        trained_until_s=int(frame.index[0].timestamp()),
        forecast_history=lambda candles, as_frame, start: frame[frame["usable_from"] >= start],
    )
    return {"forecaster": forecaster, "candles": candles}


RULE = "One rule for both"


def trades_of_backtesting(given: dict[str, Any]) -> pd.DataFrame:
    """Run the example; return coins bought, sold ones negative, and the price of each bar with an order."""
    exec(example("backtesting.py"), given)
    strategy = given["result"]["_strategy"]
    rows = []
    for trade in (*strategy.closed_trades, *strategy.trades):  # each is a part of a position
        rows.append((trade.entry_bar, trade.size / 1e6, trade.entry_price * 1e6))
        if trade.exit_bar is not None:
            rows.append((trade.exit_bar, -trade.size / 1e6, trade.exit_price * 1e6))
    trades = pd.DataFrame(rows, columns=["bar", "size", "price"]).groupby("bar")
    return pd.DataFrame({"size": trades["size"].sum(), "price": trades["price"].mean()})


def trades_of_vectorbt(given: dict[str, Any]) -> pd.DataFrame:
    """Run the example; return the same of it."""
    exec(example("vectorbt"), given)
    orders = given["portfolio"].orders.records_readable
    sign = orders["Side"].map({"Buy": 1.0, "Sell": -1.0})
    bars = given["frame"].index.get_indexer(orders["Timestamp"])
    return pd.DataFrame(
        {"size": (orders["Size"] * sign).to_numpy(), "price": orders["Price"].to_numpy()}, bars
    )


@pytest.mark.filterwarnings("ignore")
def test_the_rule_orders_from_time_to_time(given: dict[str, Any]) -> None:
    exec(example(RULE), given)
    ordered = given["share"].dropna()
    assert 10 < len(ordered) < NUM_BARS / 2
    assert given["share"].isna().iloc[0]
    assert ordered.between(0.05, 0.95).all()
    assert (ordered.diff().abs().iloc[1:] > 0.1).all()


@pytest.mark.filterwarnings("ignore")
def test_the_example_of_backtesting_trades_and_pays(given: dict[str, Any]) -> None:
    pytest.importorskip("backtesting", reason="needs backtesting.py: pip install backtesting")
    exec(example(RULE), given)
    trades = trades_of_backtesting(given)
    assert len(trades) > 10 and given["result"]["Commissions [$]"] > 0
    assert np.allclose(trades["price"], given["frame"]["open"].iloc[trades.index])
    assert trades.index.tolist() == [bar + 1 for bar in np.flatnonzero(given["share"].iloc[:-1].notna())]


@pytest.mark.filterwarnings("ignore")
def test_the_example_of_vectorbt_trades_at_the_next_open(given: dict[str, Any]) -> None:
    pytest.importorskip("vectorbt", reason="needs vectorbt: pip install vectorbt")
    exec(example(RULE), given)
    trades = trades_of_vectorbt(given)
    assert len(trades) > 10 and (given["portfolio"].orders.records_readable["Fees"] > 0).all()
    assert np.allclose(trades["price"], given["frame"]["open"].iloc[trades.index])
    assert trades.index.tolist() == [bar + 1 for bar in np.flatnonzero(given["share"].iloc[:-1].notna())]


@pytest.mark.filterwarnings("ignore")
def test_both_tools_make_the_same_trades(given: dict[str, Any]) -> None:
    pytest.importorskip("backtesting", reason="needs backtesting.py: pip install backtesting")
    pytest.importorskip("vectorbt", reason="needs vectorbt: pip install vectorbt")
    exec(example(RULE), given)
    ours = trades_of_backtesting(given)
    theirs = trades_of_vectorbt(given)
    assert ours.index.tolist() == theirs.index.tolist()
    # One buys millionths of a coin, the other any part of one.
    assert np.allclose(ours["size"], theirs["size"], rtol=0, atol=3e-6)
    assert np.allclose(ours["price"], theirs["price"])
    assert given["result"]["Return [%]"] == pytest.approx(100 * given["portfolio"].total_return(), abs=1e-3)
