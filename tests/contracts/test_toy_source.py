"""A source of one's own is one file: this one, from `--source` to the report and the saved model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny_profiles import tiny_profile

from v8.base.errors import ProfileError
from v8.data.market.candles import Candles
from v8.data.market.checks import check_candles
from v8.data.market.series import Series
from v8.data.market.sources import SOURCES, SourceKind, open_source

SERIES = Series.parse("ETHUSDT-1h")
NUM_BARS = 5_000


class TideSource:
    """A price that swings around 100 with two tides and a little noise, from July 2017 on."""

    name = "tide"
    is_publishable = False

    def candles(self, series: Series, num_bars: int, end_s: int | None = None) -> Candles:
        bars = np.arange(NUM_BARS)
        swing = 0.05 * np.sin(bars / 40) + 0.02 * np.sin(bars / 7)
        close = 100.0 * np.exp(swing + 0.002 * np.random.default_rng(7).normal(size=NUM_BARS))
        opened = np.roll(close, 1)
        frame = pd.DataFrame(
            {
                "open_time": 1_500_000_000 // series.bar_s * series.bar_s + bars * series.bar_s,
                "open": opened,
                "high": 1.001 * np.maximum(opened, close),
                "low": 0.999 * np.minimum(opened, close),
                "close": close,
                "volume": 1.0 + bars % 24,
            }
        )
        return check_candles(frame, series, source=self.name).newest(num_bars, end_s)


@pytest.fixture
def registered() -> Iterator[None]:
    SOURCES.register(SourceKind("tide", "a price that swings", "a toy of this test", TideSource))
    yield
    SOURCES.pop("tide")


@pytest.mark.nightly
@pytest.mark.tf
@pytest.mark.usefixtures("registered")
def test_a_source_of_one_file_goes_all_the_way(run_toy: Callable[..., Any], tmp_path: Path) -> None:
    profile = tiny_profile("dense_newest", training={"epochs": 1})
    source = open_source("tide")
    candles = source.candles(SERIES, profile.newest_bars)
    assert (candles.source, len(candles)) == ("tide", profile.newest_bars)
    assert source.candles(SERIES, profile.newest_bars).digest == candles.digest
    run = run_toy(profile, tmp_path, candles)
    metadata = json.loads((run.path / "ETHUSDT-1h" / "metadata.json").read_text())
    assert (metadata["candles"]["source"], metadata["candles"]["digest"]) == ("tide", candles.digest)
    assert metadata["candles"]["is_publishable"] is False
    assert set(run.evaluation["tasks"]) == {"ohlc", "bands", "volatility"}
    assert "ETHUSDT-1h" in run.leaderboard
    assert "tide" in run.page
    assert {task: values.shape for task, values in run.plain.items()} == {
        "ohlc": (1, 3, 4),
        "bands": (1, 3, 2),
        "volatility": (1, 3, 1),
    }


@pytest.mark.usefixtures("registered")
def test_it_reads_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="got --source tide"):
        open_source("tide", data_dir=tmp_path)


def test_without_its_file_nobody_knows_it() -> None:
    with pytest.raises(ProfileError, match=r"--source tide: .*got 'tide'"):
        open_source("tide")
