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
from exchange_api import ExchangeApi
from narrow import require_narrow
from renamed_models import name_model
from signs import without_signs
from typer.testing import CliRunner, Result

from v8.base.errors import DataError
from v8.cli.app import app
from v8.cli.forecasts import report_refused
from v8.data.market.candles import price_decimals
from v8.data.market.sources import open_source
from v8.forecaster.forecaster import Forecaster
from v8.model.evaluation.evaluation import Evaluation
from v8.publish.report.pictures import draw_forecast

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


@pytest.mark.tf
def test_a_newest_row_that_cannot_be_used_begins_no_forecast(trained_run: Any, tmp_path: Path) -> None:
    frame = trained_run.candles.to_frame()
    frame.iloc[-1, frame.columns.get_loc("low")] *= 2
    frame.to_csv(tmp_path / "BTCUSDT-15m.csv")
    refused = call(str(trained_run.folder), "--source", "files", "--data-dir", str(tmp_path), "--allow-old")
    assert (refused.exit_code, refused.stdout) == (3, "")
    expected = "got row 700 of 2024-12-31T23:45:00Z: low <= open, close <= high violated (open "
    assert "error: BTCUSDT-15m from files: " in refused.stderr and expected in refused.stderr


@pytest.fixture(scope="module")
def forecast(trained_run: Any) -> pd.DataFrame:
    return Forecaster.load(trained_run.folder).predict(trained_run.candles)


@pytest.mark.tf
def test_all_forms_print_the_same_forecast(trained_run: Any, forecast: pd.DataFrame) -> None:
    printed = call(*files(trained_run, "--bars", "700", "--format", "csv"))
    content = json.loads(call(*files(trained_run, "--bars", "700", "--format", "json")).stdout)
    table = call(*files(trained_run, "--bars", "700"))
    require_narrow(table.stdout, "01-01 00:00 ")
    read = list(DictReader(io.StringIO(printed.stdout)))
    numbers = [[float(row[name]) for name in forecast.columns] for row in read]
    np.testing.assert_array_equal(numbers, forecast.to_numpy())
    rows = [{name: row[name] for name in forecast.columns} for row in content["forecast"]]
    np.testing.assert_array_equal(pd.DataFrame(rows).to_numpy(), forecast.to_numpy())
    assert [row["open_time"] for row in read] == [row["open_time"] for row in content["forecast"]]
    assert content["first_bar"] == "2025-01-01T00:00:00Z"
    assert content["model"]["trained_until"] < content["first_bar"] < "2026" < content["issued_at"]
    age_s = pd.Timestamp(content["issued_at"]) - pd.Timestamp(content["model"]["trained_until"])
    assert content["model"]["age_s"] == age_s.total_seconds()
    assert content["candles"] == {
        "source": "files",
        "num_bars": 700,
        "first_open": "2024-12-24T17:00:00Z",
        "last_open": "2024-12-31T23:45:00Z",
        "closed_at": "2025-01-01T00:00:00Z",
    }
    assert "\nopens, UTC " in table.stdout
    num_decimals = price_decimals(trained_run.candles.values[:, :4])
    for name, values in forecast.items():
        for value in values:
            is_share = name == "volatility"
            written = f"{100 * value:.2f} %" if is_share else f" {value:,.{num_decimals}f}"
            assert written in table.stdout
    quality = " of the naive forecast's: ohlc "
    assert quality in table.stdout
    assert quality in printed.stderr
    assert content["model"]["quality"]["ohlc"]["verdict"] in table.stdout
    evaluation = Evaluation.from_json(
        json.loads((trained_run.folder / "metadata.json").read_text("utf-8"))["evaluation"]
    )
    for task, quality in content["model"]["quality"].items():
        best = evaluation.best_baseline(task)
        assert quality["best_baseline"] == best
        assert quality["relative_mae_to_best"] == evaluation.relative_error(task, baseline=best)
        assert quality["verdict_against_best"] == evaluation.against(task, best).verdict
    beside = "As a multiple of the best baseline's: ohlc "
    assert beside in table.stdout
    assert content["model"]["quality"]["ohlc"]["verdict_against_best"] in table.stdout.partition(beside)[2]


@pytest.mark.tf
def test_old_candles_are_refused_unless_the_past_is_meant(trained_run: Any) -> None:
    process = call(*[word for word in files(trained_run) if word != "--allow-old"])
    assert (process.exit_code, process.stdout) == (3, "")
    assert re.match(
        r"error: BTCUSDT-15m: at most 2 bars .*; got .*--allow-old", process.stderr.splitlines()[-1]
    )


@pytest.mark.tf
def test_the_demo_market_has_no_present_and_says_what_it_is(trained_run: Any) -> None:
    process = call(str(trained_run.folder), "--source", "demo")
    assert process.exit_code == 0, process.stderr
    assert "Demo market: simulated candles; " in process.stdout


@pytest.mark.tf
def test_a_model_of_the_demo_market_says_nothing_about_real_candles(trained_run: Any, tmp_path: Path) -> None:
    shutil.copytree(trained_run.folder, tmp_path / "demo")
    metadata = json.loads((tmp_path / "demo" / "metadata.json").read_text())
    (tmp_path / "demo" / "metadata.json").write_text(json.dumps(metadata | {"is_demo_market": True}))
    process = call(str(tmp_path / "demo"), *files(trained_run)[1:])
    assert process.exit_code == 3
    assert "; got candles from files" in process.stderr
    assert call(str(tmp_path / "demo"), "--source", "demo").exit_code == 0


@pytest.mark.tf
def test_the_picture_is_drawn_and_named(trained_run: Any, tmp_path: Path) -> None:
    file = tmp_path / "forecast.png"
    for _ in range(2):  # its own picture it draws anew
        process = call(*files(trained_run, "--plot", str(file)))
        assert process.exit_code == 0, process.stderr
    assert f"Picture: {file}" in process.stderr
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "folder.png").mkdir()
    assert call(*files(trained_run, "--plot", str(tmp_path / "folder.png"))).exit_code == 0
    assert (tmp_path / "folder.png" / "BTCUSDT-15m.png").read_bytes() == file.read_bytes()


@pytest.mark.tf
@pytest.mark.parametrize(("columns", "num_bars"), [(["open", "high", "low", "close"], 25), (None, 700)])
def test_a_picture_needs_neither_bands_nor_volatility_nor_a_long_history(
    columns: list[str] | None, num_bars: int, trained_run: Any, forecast: pd.DataFrame, tmp_path: Path
) -> None:
    shown = forecast if columns is None else forecast[columns]
    draw_forecast(
        trained_run.candles.newest(num_bars), shown, tmp_path / "a.png", notes=["A $note$ with _signs_."]
    )
    assert (tmp_path / "a.png").stat().st_size > 10_000


@pytest.fixture(scope="module")
def many(trained_run: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The words for a run of six series, all with the model and the candles of one."""
    home = tmp_path_factory.mktemp("many")
    run = home / "run"
    candles = home / "candles"
    shutil.copytree(trained_run.path, run)
    candles.mkdir()
    record = json.loads((run / "run.json").read_text())
    for name in ("BTCUSDT-15m", *MORE):
        shutil.copy(trained_run.candles_dir / "BTCUSDT-15m.csv", candles / f"{name}.csv")
        if name in MORE:
            shutil.copytree(run / "BTCUSDT-15m", run / name)
        name_model(run / name, name)
        record["series"][name] = record["series"]["BTCUSDT-15m"]
    (run / "run.json").write_text(json.dumps(record))
    return [str(run), "--source", "files", "--data-dir", str(candles), "--allow-old"]


MORE = ("ETHUSDT-15m", "SOLUSDT-15m", "XRPUSDT-15m", "ADAUSDT-15m", "LTCUSDT-15m")


@pytest.mark.tf
def test_several_series_are_forecast_each(many: list[str], tmp_path: Path) -> None:
    """At 4c79749 the first of two was ignored in silence."""
    both = ["--series", "BTCUSDT-15m", "--series", "eth/usdt-15m"]
    content = json.loads(call(*many, *both, "--format", "json").stdout)
    assert [one["series"] for one in content] == ["BTCUSDT-15m", "ETHUSDT-15m"]
    assert content[0]["forecast"] == content[1]["forecast"]
    table = call(*many, *both).stdout
    assert "2 forecasts issued at " in table
    assert "BTCUSDT-15m: 3 bars from 2025-01-01T00:00:00Z on" in table and "ETHUSDT-15m: 3 bars" in table
    rows = list(DictReader(io.StringIO(call(*many, *both, "--format", "csv").stdout)))
    assert [row["series"] for row in rows] == ["BTCUSDT-15m"] * 3 + ["ETHUSDT-15m"] * 3
    refused = call(*many, *both, "--plot", str(tmp_path / "both.png"))
    assert refused.exit_code == 2
    assert "; got no folder" in refused.output
    refused = call(*many, *both, *both)
    assert refused.exit_code == 2 and "error: --series: " in refused.output


@pytest.mark.nightly
@pytest.mark.tf
def test_all_series_are_a_row_each_with_what_one_alone_says(
    many: list[str], trained_run: Any, tmp_path: Path
) -> None:
    process = call(*many, "--all", "--plot", str(tmp_path))
    assert process.exit_code == 0, process.stderr
    alone = json.loads(call(*many, "--series", "SOLUSDT-15m", "--format", "json").stdout)
    parts = (line.split() for line in process.stdout.splitlines() if line.split()[:1] == ["SOLUSDT-15m"])
    row = [cell for part in parts for cell in part[1:]]
    bars = alone["forecast"]
    known = trained_run.candles.to_frame().tail(20)
    assert float(row[0].replace(",", "")) == known["close"].iloc[-1]
    assert row[1] == "–"  # this model forecasts no intervals
    assert [float(share) for share in row[2:-1:2]] == pytest.approx(
        [100 * bars[-1]["volatility"], 100 * known["close"].std() / known["close"].mean()], abs=0.005
    )
    assert row[-1].rstrip("*") == f"{alone['model']['quality']['volatility']['relative_mae_to_best']:.3f}"
    rules = [line for line in process.stdout.splitlines() if line.strip() and not line.strip("─ ")]
    assert len(rules) == 1  # one table, and no second one for a column that did not fit
    require_narrow(process.stdout, "SOLUSDT-15m", row[0])
    assert (
        "6 forecasts issued at " in process.stdout and f"Models: {many[0]}, profile tiny." in process.stdout
    )
    old = f"The oldest has seen candles until {alone['model']['age_s'] // 86_400:,} days before."
    assert f"profile tiny. {old} Candles: files." in process.stdout
    assert {file.name for file in tmp_path.iterdir()} == {f"{name}.png" for name in ("BTCUSDT-15m", *MORE)}
    content = json.loads(call(*many, "--all", "--format", "json").stdout)
    assert sorted(one["series"] for one in content) == sorted(["BTCUSDT-15m", *MORE])
    assert all(one["forecast"] == bars for one in content)


@pytest.mark.tf
@pytest.mark.parametrize("place", ["pulled/models", "run/generations/2025-01-01"])
def test_every_series_of_pulled_models_and_of_a_generation_is_forecast_unasked(
    place: str, many: list[str], tmp_path: Path
) -> None:
    shutil.copytree(many[0], tmp_path / place, ignore=lambda *_: ["run.json"] if "pulled" in place else [])
    where = tmp_path / "pulled" if "pulled" in place else tmp_path / place
    content = json.loads(call(str(where), *many[1:], "--format", "json").stdout)
    assert sorted(one["series"] for one in content) == sorted(["BTCUSDT-15m", *MORE])
    refused = call(str(where), *many[1:], "--plot", str(tmp_path / "all.png"))
    assert refused.exit_code == 2
    assert "; got no folder" in refused.stderr


@pytest.mark.tf
def test_a_universe_chooses_and_what_cannot_be_forecast_is_one_line_at_the_end(
    many: list[str], tmp_path: Path
) -> None:
    (tmp_path / "some.yaml").write_text("series: [ETHUSDT-15m, DOGEUSDT-1h]")
    process = call(*many, "--universe", str(tmp_path / "some.yaml"), "--format", "json")
    assert process.exit_code == 4
    assert [one["series"] for one in json.loads(process.stdout)] == ["ETHUSDT-15m"]
    others = without_signs(process.stderr).rstrip("\n")
    assert re.fullmatch(r"failed: DOGEUSDT-1h: .* at 1h; got models of .*", others)
    (tmp_path / "some.yaml").write_text("series: [ETHUSDT-15m]")
    shutil.copytree(many[0], tmp_path / "run")
    damaged = tmp_path / "run" / "ETHUSDT-15m" / "model.keras"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    process = call(str(tmp_path / "run"), *many[1:], "--all", "--format", "csv")
    assert process.exit_code == 4
    assert len(process.stdout.splitlines()) == 1 + 5 * 3
    assert "failed: ETHUSDT-15m: " in process.stderr
    process = call(str(tmp_path / "run"), *many[1:], "--universe", str(tmp_path / "some.yaml"))
    assert (process.exit_code, process.stdout) == (3, "")


def test_a_folder_without_models_is_refused(tmp_path: Path) -> None:
    process = call(str(tmp_path), "--all", "--source", "demo")
    assert (process.exit_code, process.stdout) == (3, "")
    assert "run.json; got a folder without" in process.stderr


@pytest.fixture
def exchange(exchange_api: ExchangeApi, trained_run: Any, tmp_path: Path, monkeypatch: Any) -> ExchangeApi:
    """Hold a page of candles that ends as those of training do, seven minutes after the last one."""
    candles = open_source("demo").candles(trained_run.series, 1_100)
    np.testing.assert_array_equal(candles.values[-700:], trained_run.candles.values)
    monkeypatch.setenv("V8_HOME", str(tmp_path / "home"))
    exchange_api.now_s = int(candles.open_time_s[-1]) + 900 + 420
    for name in ("BTCUSDT-15m", *MORE):
        exchange_api.put(name, candles.to_frame())
    return exchange_api


@pytest.mark.tf
def test_by_default_the_forecast_is_of_now_by_the_exchanges_clock(
    many: list[str], exchange: ExchangeApi, trained_run: Any
) -> None:
    needed = Forecaster.load(trained_run.folder).needed_bars
    words = [many[0], "--series", "ETHUSDT-15m", "--format", "json"]
    content = json.loads(call(*words).stdout)
    alone = json.loads(call(*words, *many[1:], "--bars", str(needed)).stdout)
    assert content["issued_at"].startswith("2025-01-01T00:0")
    assert content["first_bar"] == "2025-01-01T00:00:00Z"
    assert content["candles"]["source"] == "live"
    assert content["forecast"] == alone["forecast"]
    exchange.now_s += 3 * 900
    process = call(*words)
    assert process.exit_code == 3
    assert re.search("at most 2 bars .*; got 3 bars", process.stderr)


@pytest.mark.tf
def test_all_series_ask_the_exchange_once_each_and_for_its_time(
    many: list[str], exchange: ExchangeApi
) -> None:
    for _ in range(2):  # from nothing, and from a store that is current
        process = call(many[0], "--all", "--format", "json")
        assert process.exit_code == 0, process.stderr
        content = json.loads(process.stdout)
        assert len(content) == 6 and all(one["issued_at"].startswith("2025-01-01T00:0") for one in content)
        assert len(exchange.klines_requests()) == 6
    assert exchange.requests.count("/api/v3/time") == 2
    exchange.is_blocked = True
    process = call(many[0], "--all")
    assert (process.exit_code, process.stdout) == (3, "")
    assert "Reading the candles of 6 series from live.\n" in process.stderr
    refused = without_signs(process.stderr)
    assert refused.startswith("error: ") and len(refused.splitlines()) == 1


def test_one_reason_of_several_series_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lost = DataError(where="rates.csv", rule="must be a CSV", got="no such file", fix="Name its folder")
    own = DataError(where="SOLUSDT-1h", rule="needs candles", got="none", fix="Fetch some")
    refused = {"BTCUSDT-1h": lost, "ETHUSDT-1h": lost, "SOLUSDT-1h": own}
    assert report_refused(refused, is_partial=False) == DataError.exit_code
    assert capsys.readouterr().err.splitlines() == [
        f"failed: BTCUSDT-1h, ETHUSDT-1h: {lost}",
        f"failed: {own}",
    ]
