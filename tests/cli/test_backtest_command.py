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


def test_a_back_test_says_what_it_found_and_is_continued_only_as_it_was_begun(place: Path) -> None:
    process = call(place, *SMALL, *ONE, "--forecasts", "all.parquet")
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
    other = call(place, *SMALL, *ONE, "--epochs", "1", "--history", "2401")
    assert other.returncode != 0
    assert "history_bars 2400 -> 2401" in other.stderr
    assert other.stderr.count("\n") == 1


def test_changed_candles_are_told_left_out_and_no_success(place: Path) -> None:
    series = Series("BTCUSDT", "15m")
    files = place / "files"
    files.mkdir()
    frame = DemoSource().candles(series, 2_400).to_frame()
    frame.to_csv(files / f"{series}.csv")
    wanted = [*SMALL, *ONE[2:-1], "changed", "--source", "files", "--data-dir", str(files)]
    process = call(place, *wanted)
    assert process.returncode == 0, process.stderr
    assert "1 of 1 models evaluated. " in process.stdout
    frame["volume"] *= 2
    frame.to_csv(files / f"{series}.csv")
    again = call(place, *wanted)
    assert again.returncode == 4, again.stderr
    assert "0 of 1 models evaluated. 1 model failed" in again.stdout
    assert "Incomplete: fold 1 (0 of 1 models)." in again.stdout
    assert "Pooled" not in again.stdout
    content = json.loads((place / "changed" / "backtest.json").read_text("utf-8"))["results"]
    assert (content["pools"], content["cells"]) == ([], [])
    assert list(content["failures"]["fold-1"]) == ["BTCUSDT-15m"]


def test_a_history_that_is_too_short_is_one_sentence(place: Path) -> None:
    process = call(place, *SMALL[:4], "--folds", "3", "--history", "2400", *ONE[:-1], "short")
    assert process.returncode == 3
    assert "3 folds of 15m: need " in process.stderr and "Lower --folds or --bars" in process.stderr
    assert process.stderr.count("\n") == 1
    assert not (place / "short" / "plan.json").exists()
