"""Every forecast of a test span in a table: those that were judged; none knows what came later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from v8.artifacts.forecaster import Forecaster
from v8.artifacts.metadata import read_metadata
from v8.cli.app import app

BAR = pd.Timedelta(minutes=15)
OHLC = ["open", "high", "low", "close"]


def export(*words: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, words)])


@pytest.fixture(scope="module")
def exported(trained_run: Any, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    file = tmp_path_factory.mktemp("exported") / "all.parquet"
    done = export(trained_run.path, "--out", file, "--data-dir", trained_run.candles_dir)
    assert done.exit_code == 0, done.output
    table = pd.read_parquet(file)
    assert f"Written: {file}, {len(table):,} rows." in done.stdout
    return table


def test_the_errors_of_what_is_exported_are_those_that_were_judged(
    trained_run: Any, exported: pd.DataFrame
) -> None:
    about = read_metadata(trained_run.folder)
    judged, tasks = about.judgement, {task: list(one.columns) for task, one in about.tasks.items()}
    assert list(tasks) == ["ohlc", "bands", "volatility"]
    assert len(exported) == judged.num_windows * judged.horizon_bars
    # A naive close is the last close, which errors are shares of.
    closes = exported[["close_naive"]].to_numpy()
    for task, columns in tasks.items():
        for who, end in {"model": "", "roll_forward": "_naive"}.items():
            made, truth = (exported[[f"{name}{each}" for name in columns]] for each in (end, "_truth"))
            errors = np.abs(made.to_numpy() - truth.to_numpy()) / (1.0 if task == "volatility" else closes)
            assert errors.mean() == pytest.approx(judged.error(task, who).overall, rel=1e-9)


def test_a_row_is_what_could_be_forecast_at_its_issue_and_no_earlier(
    trained_run: Any, exported: pd.DataFrame
) -> None:
    forecaster, candles = Forecaster.load(trained_run.folder), trained_run.candles
    assert (exported["open_time"] == exported["issued_at"] + (exported["step"] - 1) * BAR).all()
    assert int(exported["issued_at"].min().timestamp()) >= forecaster.seen_until_s
    issues = exported["issued_at"].unique()
    for issued_at in (issues[0], issues[len(issues) // 2], issues[-1]):
        closed_s = int(issued_at.timestamp())
        known = candles.picked(np.flatnonzero(candles.open_time_s + 900 <= closed_s))
        assert int(known.open_time_s[-1]) + 900 == closed_s  # the newest closed just then
        mine = exported[exported["issued_at"] == issued_at].set_index("open_time")
        alone = forecaster.predict(known)
        pd.testing.assert_frame_equal(mine[[*alone]], alone, check_freq=False)
        assert (mine["close_naive"] == np.float32(known.column("close")[-1])).all()


def test_truth_is_what_the_candles_tell(trained_run: Any, exported: pd.DataFrame) -> None:
    frame = trained_run.candles.to_frame()
    frame.index = pd.to_datetime(trained_run.candles.open_time_s, unit="s", utc=True)
    came = frame.loc[exported["open_time"], OHLC].to_numpy()
    np.testing.assert_allclose(exported[[f"{name}_truth" for name in OHLC]].to_numpy(), came, rtol=1e-6)
    assert exported.columns[:5].tolist() == ["series", "fold", "issued_at", "step", "open_time"]
    assert set(exported["series"]) == {"BTCUSDT-15m"} and set(exported["fold"]) == {0}


def test_a_csv_holds_the_same_and_other_endings_are_refused(
    trained_run: Any, exported: pd.DataFrame, tmp_path: Path
) -> None:
    words = (trained_run.path, "--data-dir", trained_run.candles_dir, "--series", "btc/usdt-15m", "--out")
    assert export(*words, tmp_path / "all.txt", "--format", "csv").exit_code == 0
    read = pd.read_csv(tmp_path / "all.txt", parse_dates=["issued_at", "open_time"])
    pd.testing.assert_frame_equal(read, exported, check_dtype=False)
    refused = export(*words, tmp_path / "all.xlsx")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: --out, its ending: is one of parquet, csv; got 'xlsx'.")
    assert len(refused.stderr.splitlines()) == 1
    assert export(*words, tmp_path / "new" / "all.csv").exit_code == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["all.txt"]


def test_other_candles_and_series_that_are_not_there_are_refused(trained_run: Any, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "all.parquet")
    frame = trained_run.candles.to_frame()
    frame.iloc[300, frame.columns.get_loc("volume")] += 1
    (tmp_path / "candles").mkdir()
    frame.to_csv(tmp_path / "candles" / "BTCUSDT-15m.csv")
    other = export(trained_run.path, *out, "--data-dir", tmp_path / "candles")
    assert other.exit_code == 3
    assert "BTCUSDT-15m: its model was made from 700 candles from " in other.stderr
    assert "Name where these are: --source, --data-dir, --tables" in other.stderr
    nobody = export(trained_run.path, *out, "--series", "BTCUSD-15m")
    assert nobody.exit_code == 3
    assert "must have a finished model of every series that is named; got none of BTCUSD-15m" in nobody.stderr
    unnamed = export(trained_run.path, *out)
    assert unnamed.exit_code == 2
    assert "--source files: needs the folder that holds the candle files; got no --data-dir" in unnamed.stderr
    assert not (tmp_path / "all.parquet").exists()
