"""`python -m v8 report RUN` draws everything again from files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked import called
from module_file import load_module
from signs import without_signs

from v8.base.storage import write_json
from v8.forecaster.series_artifact import ForecastSample, SampledForecast

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[3]
CANDLE = ((100.0, 102.0, 99.0, 101.0),)
SAMPLE = ForecastSample(
    "BTCUSDT-15m",
    900,
    tuple(900 * row for row in range(6)),
    {"ohlc": CANDLE * 6},
    (SampledForecast(2, {"ohlc": CANDLE * 3}),),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one series; what lies in the place of its model is never read."""
    made_runs = load_module(Path(__file__).parents[1] / "hub" / "made_runs.py")
    (tmp_path / "model").write_bytes(b"no model")
    folder: Path = made_runs.RunMaker(tmp_path, tmp_path / "model")([SAMPLE.series])
    write_json(folder / SAMPLE.series / "forecasts.json", SAMPLE.to_json())
    return folder


def call(run: Path, *flags: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    code = (
        "import sys\n"
        "from v8.cli.app import main\n"
        "try:\n"
        f"    main({['report', str(run), *flags]!r})\n"
        "finally:\n"
        "    print('imported:', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return result, set(result.stdout.splitlines()[-1].removeprefix("imported:").split())


def test_page_pictures_and_table_come_from_files_without_tensorflow(run: Path) -> None:
    done, imported = call(run)
    assert done.returncode == 0, done.stderr
    assert imported.isdisjoint({"tensorflow", "keras", "jax"})
    assert f"Report: {(run / 'report.html').as_uri()}" in done.stdout
    assert f"Picture: {run / 'report' / 'forecasts.png'}" in done.stdout
    page = (run / "report.html").read_text("utf-8")
    assert 'class="touch"' in page
    assert "排行榜" in json.loads((run / "report" / "zh-TW.js").read_text("ascii")[11:-3])["markup"]
    assert sorted(path.name for path in (run / "report").iterdir()) == [
        "forecasts.png",
        "skill.png",
        "zh-TW.js",
    ]


@pytest.mark.nightly
def test_the_page_speaks_the_language_that_is_asked_for_and_the_terminal_english(run: Path) -> None:
    result = called("report", run, "--lang", "zh-TW", cwd=REPOSITORY)
    assert result.returncode == 0, result.stderr
    page = (run / "report.html").read_text("utf-8")
    assert '<html lang="zh-TW"' in page and "<h2>排行榜</h2>" in page
    assert "on candles that training had not seen:" in result.stdout and result.stdout.isascii() is False
    assert not any("一" <= letter <= "鿿" for letter in result.stdout)
    result = called("report", run, cwd=REPOSITORY, env={**os.environ, "V8_LANG": "zh"})
    assert result.returncode == 0, result.stderr
    assert '<html lang="zh-TW"' in (run / "report.html").read_text("utf-8")
    assert called("report", run, cwd=REPOSITORY).returncode == 0
    assert '<html lang="en"' in (run / "report.html").read_text("utf-8")


def test_a_damaged_sample_is_one_line_and_exits_3(run: Path) -> None:
    content = SAMPLE.to_json()
    content["actual"]["ohlc"] = []
    (run / "BTCUSDT-15m" / "forecasts.json").write_text(json.dumps(content))
    done, _ = call(run)
    assert done.returncode == 3
    assert len(without_signs(done.stderr).splitlines()) == 1
    assert "forecasts.json: " in done.stderr


def test_outputs_stay_where_none_of_the_models_can_be_read(run: Path) -> None:
    """A feature of a plug-in, which this call does not name: it says so, and leaves the files as they are."""
    call(run)
    outputs = [run / name for name in ("leaderboard.csv", "report.html")]
    before = [file.read_bytes() for file in outputs]
    file = run / SAMPLE.series / "metadata.json"
    metadata = json.loads(file.read_text())
    metadata["features"][0]["name"] = "body_share"
    write_json(file, metadata)
    done, _ = call(run)
    assert done.returncode == 3
    assert "body_share" in done.stderr and "--plugin" in done.stderr
    assert [file.read_bytes() for file in outputs] == before
