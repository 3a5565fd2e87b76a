"""`python -m v8 backtest` in a process of its own: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from forked import called
from narrow import require_narrow

from v8.data.market.series import Series
from v8.data.market.sources.demo import DemoSource

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]
ONE = ("--source", "demo", "--series", "BTCUSDT-15m", "--workers", "1", "--device", "cpu", "--out", "folds")
SMALL = ("--profile", "range_paths", "--bars", "2300", "--folds", "1", "--history", "2400")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backtest")


def call(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "V8_HOME": str(place / "home")}
    return called("backtest", *words, cwd=place, env=env, tf=True)


def call_small(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Back-test one series of the demo market in one fold, in the folder `folds`."""
    return call(place, *SMALL, *ONE, *words)


def test_a_back_test_says_what_it_found_and_is_continued_only_as_it_was_begun(place: Path) -> None:
    process = call_small(place, "--forecasts", "all.parquet")
    assert process.returncode == 0, process.stderr
    table = pd.read_parquet(place / "all.parquet")
    assert set(table["fold"]) == {1} and f"Written: all.parquet, {len(table):,} rows." in process.stdout
    assert "Fold 1 of 1: 1 series." in process.stdout
    assert re.search("1 fold of 1 series, .* 2,300 candles .*: 1 of 1 models", process.stdout)
    assert "Simulated market" in process.stdout
    require_narrow(process.stdout, "all folds, 15m")
    content = json.loads((place / "folds" / "backtest.json").read_text("utf-8"))
    assert [one["name"] for one in content["results"]["pools"]] == ["all folds"]
    assert (place / "folds" / "fold-1" / "report.html").is_file()
    extended = call_small(place, "--worth")
    assert extended.returncode == 0, extended.stderr
    assert "has no longer" not in extended.stdout
    again = call_small(place, "--seeds", "2", "--forecasts", "all.parquet")
    assert again.returncode == 0, again.stderr
    assert "has no longer what --worth added" in again.stdout
    assert "These forecasts are of seed 42" in again.stdout
    pd.testing.assert_frame_equal(pd.read_parquet(place / "all.parquet"), table)
    other = call_small(place, "--epochs", "1", "--history", "2401")
    assert other.returncode != 0
    assert "--history 2400 -> 2401" in other.stderr
    assert other.stderr.count("\n") == 1


def test_a_named_series_in_no_fold_is_a_failure_the_first_time_and_again(place: Path) -> None:
    candles = place / "candles"
    candles.mkdir()
    frame = DemoSource().candles(Series.parse("BTCUSDT-15m"), 2_400).to_frame()
    frame.to_csv(candles / "BTCUSDT-15m.csv")
    frame[-100:].to_csv(candles / "ETHUSDT-15m.csv")  # too few for a fold
    named = [word for name in ("BTC", "ETH", "XYZ") for word in ("--series", f"{name}USDT-15m")]
    where = ("--source", "files", "--data-dir", "candles", "--out", "lacking", "--workers", "1")
    for _ in range(2):
        process = call(place, *SMALL, *where, *named)
        assert process.returncode == 4, process.stderr
        assert "1 fold of 3 series" in process.stdout
        assert re.search("Without candles.*XYZUSDT-15m", process.stdout, flags=re.DOTALL)
