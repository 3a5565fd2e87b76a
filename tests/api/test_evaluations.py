"""Back-tests, exports, leaderboards, searches, comparisons and worth as frames."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from wandering import wandering

import v8
from v8.annexes.comparison.comparing import read_figures
from v8.annexes.search.search import read_trials
from v8.annexes.trading import TradingTerms
from v8.annexes.trading.page import write_trading_results
from v8.annexes.trading.rules import evaluate_trading
from v8.annexes.trading.worth import read_gains
from v8.api.results import long_forecasts
from v8.base.errors import ArgumentError, ArtifactError, ProfileError


def test_forecasts_are_long_and_their_cutoff_is_the_newest_known_candle() -> None:
    """The candle of 01:00 closes at 02:00, when the next one opens: then the forecast is issued."""
    written = pd.DataFrame(
        {
            "series": ["BTCUSDT-1h"] * 2,
            "fold": [1, 1],
            "issued_at": ["2024-01-01T02:00:00Z"] * 2,
            "step": [1, 2],
            "open_time": ["2024-01-01T02:00:00Z", "2024-01-01T03:00:00Z"],
            "close": [10.0, 11.0],
            "close_q5": [9.0, 9.5],
            "close_actual": [10.5, 10.0],
            "close_naive": [10.0, 10.0],
            "volatility": [0.1, 0.2],
            "volatility_actual": [0.1, 0.3],
            "volatility_naive": [0.1, 0.1],
        }
    )
    table = long_forecasts(written, "close")
    assert table.columns.tolist() == [
        *("series", "open_time", "cutoff", "issued_at", "fold", "step", "column"),
        *("y", "model", "naive", "model_q5"),
    ]
    assert table["cutoff"].unique().tolist() == [pd.Timestamp("2024-01-01 01:00", tz="UTC")]
    assert (table["open_time"] - table["cutoff"]).tolist() == [pd.Timedelta("1h"), pd.Timedelta("2h")]
    assert table["y"].tolist() == [10.5, 10.0] and table["model_q5"].tolist() == [9.0, 9.5]
    both = long_forecasts(written, None)
    assert both.groupby("column", sort=False).size().to_dict() == {"close": 2, "volatility": 2}
    assert both.query("column == 'volatility'")["model_q5"].isna().all()
    with pytest.raises(ArgumentError) as refused:
        long_forecasts(written, "open")
    assert refused.value.where == "column="
    assert refused.value.got == "'open'"


@pytest.mark.tf
@pytest.mark.process
def test_an_export_is_a_long_table_of_what_the_command_writes(trained_run: Any) -> None:
    table = v8.export(trained_run.path, data_dir=trained_run.candles_dir)
    assert table.attrs == {"folder": str(trained_run.path), "is_complete": True}
    assert {"cutoff", "step", "column", "y", "model", "naive"} <= {*table.columns}


@pytest.mark.tf
def test_a_leaderboard_has_a_row_for_each_run_series_and_task(trained_run: Any) -> None:
    table = v8.leaderboard([trained_run.path, str(trained_run.path)])  # one run, once
    assert table["task"].tolist() == ["ohlc", "bands", "volatility"]
    verdicts = v8.Run(trained_run.path)["BTCUSDT-15m"].about.verdicts
    for task, rows in table.groupby("task"):
        assert set(rows["relative_mae"]) == {verdicts[str(task)].naive.relative_mae}
        assert set(rows["best_baseline"]) == {verdicts[str(task)].best.name}
        assert set(rows["verdict"]) == {verdicts[str(task)].best.verdict}
    assert table["p_value"].dtype == float and str(table["newest_candle"].dt.tz) == "UTC"


@pytest.mark.tf
def test_a_folder_of_runs_is_read_without_those_that_were_not_evaluated(
    trained_run: Any, tmp_path: Path
) -> None:
    shutil.copytree(trained_run.path, tmp_path / "good")
    shutil.copytree(trained_run.path, tmp_path / "quick")
    record = json.loads((tmp_path / "quick" / "run.json").read_text())
    (tmp_path / "quick" / "run.json").write_text(json.dumps(record | {"is_evaluated": False}))
    table = v8.leaderboard([tmp_path, tmp_path / "good"])
    assert len(table) == 3 and set(table["run"]) == {str(tmp_path / "good")}
    with pytest.raises(ArtifactError) as refused:
        v8.leaderboard([tmp_path / "good", tmp_path / "quick"])
    assert refused.value.where == str(tmp_path / "quick")


def test_leaderboards_refuse_what_holds_no_run(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as refused:
        v8.leaderboard([])
    assert refused.value.where == "runs="
    assert refused.value.got == "no folder"
    with pytest.raises(ArtifactError) as refused:
        v8.leaderboard(tmp_path)
    assert refused.value.got == "a folder without one"


def test_gains_trials_and_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = evaluate_trading([wandering(60)], TradingTerms())
    write_trading_results(tmp_path, results)
    gains = read_gains(tmp_path)
    pooled = gains.query("series == 'all'").set_index("rule")
    assert pooled["model"].to_dict() == pytest.approx(
        {one.rule: one.gains["model"] for one in results.pooled}
    )
    assert gains.attrs == {"folder": str(tmp_path)}
    (tmp_path / "trials.csv").write_text("trial,state,folds,objective\n1,winner,3,0.9\nstart,,3,1.0\n")
    trials = read_trials(tmp_path)
    assert trials.index.tolist() == ["1", "start"] and trials.loc["start", "objective"] == 1.0
    (tmp_path / "compare.csv").write_text("profile,figure,unit,median\na,train_s,s,1.5\n")
    assert read_figures(tmp_path)["median"].tolist() == [1.5]


@pytest.mark.process
@pytest.mark.parametrize(
    ("call", "where", "got"),
    [
        (
            lambda: v8.backtest("demo", series=["BTCUSDT-1h", "BTCUSDT-1h"], progress=False),
            "series=",
            "BTCUSDT-1h 2 times",
        ),
        (
            lambda: v8.compare(["frontier"], "demo", full=True, epochs=2, progress=False),
            "full=",
            "epochs= 2 together with it",
        ),
    ],
)
def test_an_error_in_another_process_names_arguments_and_not_flags(
    call: Any, where: str, got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProfileError) as caught:
        call()
    assert (caught.value.where, caught.value.got) == (where, got)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: v8.backtest("frontier", "demo"), r'candles=: comes first .* Write \("vision", "frontier"\)'),
        (lambda: v8.train("demoo"), "candles=.*Did you mean demo"),
        (lambda: v8.Run("frontier"), r"got no such folder.* runs/frontier\."),
        (lambda: v8.backtest("demo", column="cloze"), r"column=: .*is one of bar_range.*close"),
        (lambda: v8.search("demo", "alignd"), r"profile= alignd: .* mean aligned"),
        (lambda: v8.compare("frontier"), "v8.compare, profiles=: is a list"),
    ],
)
def test_a_wrong_call_is_refused_before_any_process_starts(
    call: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/frontier").mkdir(parents=True)
    Path("runs/frontier/run.json").write_text("{}")
    with pytest.raises((ProfileError, ArtifactError), match=message):
        call()
