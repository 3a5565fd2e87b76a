"""The examples of the page about other tools do what it says, where these tools are installed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from v8.market.series import Series
from v8.market.sources.source import open_source

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
    frame["high_ahead_1"], frame["low_ahead_1"] = candles["close"] + spread / 2, candles["close"] - spread / 2
    forecaster = SimpleNamespace(
        seen_until_s=int(frame.index[0].timestamp()),
        forecast_history=lambda candles, as_frame, start: frame[frame["usable_from"] >= start],
    )
    return {"forecaster": forecaster, "candles": candles}


@pytest.mark.filterwarnings("ignore")
def test_the_example_of_backtesting_trades_and_pays(given: dict[str, Any]) -> None:
    pytest.importorskip("backtesting")
    exec(example("backtesting.py"), given)
    result = given["result"]
    assert result["# Trades"] > 1 and result["Commissions [$]"] > 0
    assert result["_trades"]["EntryBar"].min() >= 1


@pytest.mark.filterwarnings("ignore")
def test_the_example_of_vectorbt_trades_at_the_next_open(given: dict[str, Any]) -> None:
    pytest.importorskip("vectorbt")
    exec(example("vectorbt"), given)
    orders, frame = given["portfolio"].orders.records_readable, given["frame"]
    assert len(orders) > 10 and (orders["Fees"] > 0).all()
    assert np.allclose(orders["Price"], frame["open"].loc[orders["Timestamp"]])
    assert orders["Timestamp"].min() == frame.index[1]
