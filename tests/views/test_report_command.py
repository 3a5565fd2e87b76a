"""`python -m v8 report RUN` draws everything again from files alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from v8.artifacts.series_artifact import ForecastSample, IssuedForecast
from v8.storage import write_json

REPOSITORY = Path(__file__).parents[2]
CANDLE = ((100.0, 102.0, 99.0, 101.0),)
SAMPLE = ForecastSample(
    "BTCUSDT-15m",
    900,
    tuple(900 * row for row in range(6)),
    {"ohlc": CANDLE * 6},
    (IssuedForecast(2, {"ohlc": CANDLE * 3}),),
)


@pytest.fixture
def run(tmp_path: Path, make_run: Callable[..., Any], make_metadata: Callable[..., Any]) -> Path:
    folder = tmp_path / "aligned"
    write_json(folder / "run.json", make_run())
    write_json(folder / "BTCUSDT-15m" / "metadata.json", make_metadata(best_epoch=1, epochs_run=1))
    write_json(folder / "BTCUSDT-15m" / "forecasts.json", SAMPLE.to_json())
    (folder / "BTCUSDT-15m" / "history.csv").write_text("epoch,train_loss,validation_loss\n1,0.5,0.6\n")
    return folder


def call(run: Path) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    code = (
        "import sys\n"
        "from v8.cli.app import main\n"
        "try:\n"
        f"    main(['report', {str(run)!r}])\n"
        "finally:\n"
        "    print('imported:', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done, set(done.stdout.splitlines()[-1].removeprefix("imported:").split())


def test_page_pictures_and_table_come_from_files_without_tensorflow(run: Path) -> None:
    done, imported = call(run)
    assert done.returncode == 0, done.stderr
    assert imported.isdisjoint({"tensorflow", "keras", "jax"})
    assert f"Report: {run / 'report.html'}" in done.stdout
    assert f"forecasts.png in {run / 'report'}" in done.stdout
    page = (run / "report.html").read_text("utf-8")
    assert '"type":"candlestick"' in page
    assert sorted(path.name for path in (run / "report").iterdir()) == [
        "errors_by_step.png",
        "forecasts.png",
        "learning_curves.png",
        "skill.png",
    ]


def test_a_damaged_sample_is_one_line_and_exits_3(run: Path) -> None:
    content = SAMPLE.to_json()
    content["truth"]["ohlc"] = []
    (run / "BTCUSDT-15m" / "forecasts.json").write_text(json.dumps(content))
    done, _ = call(run)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "forecasts.json: must be a sample of forecasts" in done.stderr


def test_a_folder_of_runs_is_told_from_a_run(run: Path, tmp_path: Path) -> None:
    for place, words in (
        (run.parent, f"got a folder of runs: {run}. Name one of its runs, such as {run}."),
        (tmp_path / "nowhere", "got no such folder. Train one with `python -m v8 run`."),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "v8", "report", str(place)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3
        rule = "must be the folder of one run, which holds run.json"
        assert done.stderr == f"error: {place}: {rule}; {words}\n"
