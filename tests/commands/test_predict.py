"""`python -m v8 predict`: every form prints the same numbers, and refuses what cannot mean anything."""

from __future__ import annotations

import io
import json
import re
import shutil
from csv import DictReader
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from v8.artifacts.forecaster import Forecaster
from v8.commands.app import app
from v8.evaluation.baselines import called
from v8.evaluation.judgement import Judgement
from v8.reports.pictures import draw_forecast

THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@pytest.fixture(autouse=True)
def _same_environment_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREADS:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["predict", *words])


def files(run: Any, *more: str) -> list[str]:
    return [str(run.folder), "--source", "files", "--data-dir", str(run.candles_dir), "--allow-old", *more]


@pytest.fixture(scope="module")
def forecast(trained_run: Any) -> pd.DataFrame:
    return Forecaster.load(trained_run.folder).predict(trained_run.candles)


def test_all_forms_print_the_same_forecast(trained_run: Any, forecast: pd.DataFrame) -> None:
    printed = call(*files(trained_run, "--bars", "700", "--format", "csv"))
    told = json.loads(call(*files(trained_run, "--bars", "700", "--format", "json")).stdout)
    table = call(*files(trained_run, "--bars", "700"))
    read = list(DictReader(io.StringIO(printed.stdout)))
    numbers = [[float(row[name]) for name in forecast.columns] for row in read]
    np.testing.assert_array_equal(numbers, forecast.to_numpy())
    rows = [{name: row[name] for name in forecast.columns} for row in told["forecast"]]
    np.testing.assert_array_equal(pd.DataFrame(rows).to_numpy(), forecast.to_numpy())
    assert [row["open_time"] for row in read] == [row["open_time"] for row in told["forecast"]]
    assert told["first_bar"] == "2025-01-01T00:00:00Z"
    assert told["model"]["seen_until"] < told["first_bar"] < "2026" < told["issued_at"]
    age_s = pd.Timestamp(told["issued_at"]) - pd.Timestamp(told["model"]["seen_until"])
    assert told["model"]["age_s"] == age_s.total_seconds()
    assert told["candles"] == {
        "source": "files",
        "num_bars": 700,
        "first_open": "2024-12-24T17:00:00Z",
        "last_open": "2024-12-31T23:45:00Z",
        "closed_at": "2025-01-01T00:00:00Z",
    }
    for value in forecast.to_numpy().ravel():
        assert f" {value:.7g} " in table.stdout
    quality = "Error on its test span as a multiple of the naive forecast's: ohlc "
    assert quality in table.stdout
    assert quality in printed.stderr
    assert told["model"]["quality"]["ohlc"]["verdict"] in table.stdout
    judgement = Judgement.from_json(
        json.loads((trained_run.folder / "metadata.json").read_text("utf-8"))["judgement"]
    )
    for task, quality in told["model"]["quality"].items():
        best = judgement.best_baseline(task)
        assert quality["best_baseline"] == called(best)
        assert quality["multiple_of_best"] == judgement.multiple(task, baseline=best)
        assert quality["verdict_against_best"] == judgement.verdict(task, best)
    beside = "As a multiple of the best baseline's: ohlc "
    assert beside in table.stdout
    assert told["model"]["quality"]["ohlc"]["verdict_against_best"] in table.stdout.partition(beside)[2]


def test_it_reads_as_many_candles_as_the_model_needs(trained_run: Any) -> None:
    needed = Forecaster.load(trained_run.folder).needed_bars
    assert f"Candles: {needed} from files" in call(*files(trained_run)).stdout


def test_old_candles_are_refused_unless_the_past_is_meant(trained_run: Any) -> None:
    done = call(*[word for word in files(trained_run) if word != "--allow-old"])
    assert (done.exit_code, done.stdout) == (3, "")
    assert re.match(
        r"error: BTCUSDT-15m: at most 2 bars may have closed after the newest candle; got .*--allow-old",
        done.stderr,
    )


def test_the_demo_market_has_no_present_and_says_what_it_is(trained_run: Any) -> None:
    done = call(str(trained_run.folder), "--source", "demo")
    assert done.exit_code == 0, done.stderr
    assert "Demo market: simulated candles; this forecast says nothing about real prices." in done.stdout


def test_a_model_of_the_demo_market_says_nothing_about_real_candles(trained_run: Any, tmp_path: Path) -> None:
    shutil.copytree(trained_run.folder, tmp_path / "demo")
    metadata = json.loads((tmp_path / "demo" / "metadata.json").read_text())
    (tmp_path / "demo" / "metadata.json").write_text(json.dumps(metadata | {"is_demo_market": True}))
    done = call(str(tmp_path / "demo"), *files(trained_run)[1:])
    assert done.exit_code == 3
    assert "a model of the demo market forecasts the demo market only; got candles from files" in done.stderr
    assert call(str(tmp_path / "demo"), "--source", "demo").exit_code == 0


def test_the_picture_is_drawn_and_named(trained_run: Any, tmp_path: Path) -> None:
    file = tmp_path / "forecast.png"
    for _ in range(2):  # its own picture it draws anew
        done = call(*files(trained_run, "--plot", str(file)))
        assert done.exit_code == 0, done.stderr
    assert f"Picture: {file}" in done.stderr
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("columns", [["open", "high", "low", "close"], None])
@pytest.mark.parametrize("num_bars", [25, 700])
def test_a_picture_needs_neither_bands_nor_volatility_nor_a_long_history(
    columns: list[str] | None, num_bars: int, trained_run: Any, forecast: pd.DataFrame, tmp_path: Path
) -> None:
    shown = forecast if columns is None else forecast[columns]
    draw_forecast(
        trained_run.candles.newest(num_bars), shown, tmp_path / "a.png", notes=["A $note$ with _signs_."]
    )
    assert (tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ([], "error: python -m v8 predict: needs one place of the model: a folder, or --repo; got neither"),
        (["runs/aligned", "--repo", "a/b"], "got both"),
        (["runs/aligned", "--format", "xml"], "error: --format: is one of table, csv, json; got 'xml'"),
        (["runs/aligned", "--plot", "a.gif"], r"error: --plot: is a file that ends in \.png; got 'a\.gif'"),
        (["runs/aligned", "--source", "files"], "needs the folder that holds the candle files"),
    ],
)
def test_words_that_mean_nothing_are_one_line_and_exit_2(words: list[str], match: str) -> None:
    done = call(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.search(match, done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_several_series_are_forecast_each(trained_run: Any, tmp_path: Path) -> None:
    """At 4c79749 the first of two was ignored in silence."""
    run, candles = tmp_path / "run", tmp_path / "candles"
    shutil.copytree(trained_run.path, run)
    shutil.copytree(run / "BTCUSDT-15m", run / "ETHUSDT-15m")
    for file in (run / "run.json", run / "ETHUSDT-15m" / "metadata.json"):
        content = json.loads(file.read_text())
        if file.name == "run.json":
            content["series"]["ETHUSDT-15m"] = content["series"]["BTCUSDT-15m"]
        else:
            content["series"] = "ETHUSDT-15m"
        file.write_text(json.dumps(content))
    shutil.copytree(trained_run.candles_dir, candles)
    shutil.copy(candles / "BTCUSDT-15m.csv", candles / "ETHUSDT-15m.csv")
    words = [str(run), "--source", "files", "--data-dir", str(candles), "--allow-old"]
    both = ["--series", "BTCUSDT-15m", "--series", "eth/usdt-15m"]
    told = json.loads(call(*words, *both, "--format", "json").stdout)
    assert [one["series"] for one in told] == ["BTCUSDT-15m", "ETHUSDT-15m"]
    assert told[0]["forecast"] == told[1]["forecast"]
    table = call(*words, *both).stdout
    assert "BTCUSDT-15m: forecast issued" in table and "ETHUSDT-15m: forecast issued" in table
    rows = list(DictReader(io.StringIO(call(*words, *both, "--format", "csv").stdout)))
    assert [row["series"] for row in rows] == ["BTCUSDT-15m"] * 3 + ["ETHUSDT-15m"] * 3
    refused = call(*words, *both, "--plot", str(tmp_path / "both.png"))
    assert refused.exit_code == 2 and "draws the forecast of one series; got 2 series" in refused.output
    refused = call(*words, *both, *both)
    assert refused.exit_code == 2 and "each series is given once" in refused.output
