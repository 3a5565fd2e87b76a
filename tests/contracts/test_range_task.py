"""The task of ranges: first in the evaluation and on the page, and printed in per cent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from v8.api.issuing import issue_forecast
from v8.cli.forecasts import print_tables
from v8.data.market.sources import open_source
from v8.forecaster.forecaster import Forecaster
from v8.forecaster.metadata import read_metadata
from v8.model.evaluation.leaderboard import rank_results, read_result
from v8.publish.report.page import first_screen


@pytest.mark.tf
def test_the_range_comes_first_where_it_is_forecast(frontier_run: Path) -> None:
    folder = frontier_run / "BTCUSDT-1h"
    evaluated = read_metadata(folder).evaluation
    assert list(evaluated.tasks) == ["range", "ohlc", "bands", "volatility"]
    (row,) = rank_results([read_result(json.loads((folder / "metadata.json").read_text("utf-8")))])
    cards = re.findall(r'<section class="card"><h2[^>]*>(.*?)</h2>', first_screen([row], None))
    assert cards[:4] == ["Range", "Candles", "Bollinger bands", "Volatility"]


@pytest.mark.tf
def test_a_forecast_has_ranges_with_intervals_and_prints_them_in_per_cent(
    frontier_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forecaster = Forecaster.load(frontier_run / "BTCUSDT-1h")
    issued = issue_forecast(forecaster, open_source("demo"), "here", is_any_age=True)
    frame = issued.forecast
    assert (frame["bar_range"] > 0).all()
    assert (frame["total_range"] >= frame["bar_range"].cummax()).all()
    assert frame["total_range"].is_monotonic_increasing
    assert (frame["total_range_q5"] <= frame["total_range"]).all()
    print_tables([issued])
    assert f"{100 * frame['total_range'].iloc[-1]:.2f} %" in capsys.readouterr().out
