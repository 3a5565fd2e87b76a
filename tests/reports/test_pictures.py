"""Pictures for READMEs: whole PNG files of the right subjects, made without touching pyplot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from v8.artifacts.forecast_sample import ForecastSample, IssuedForecast
from v8.reports.pictures import write_pictures
from v8.reports.results import SeriesResult, read_results

CANDLE = ((100.0, 102.0, 99.0, 101.0),)
SAMPLE = ForecastSample(
    "AUSDT-1h",
    3_600,
    tuple(3_600 * row for row in range(6)),
    {"ohlc": CANDLE * 6},
    (IssuedForecast(2, {"ohlc": CANDLE * 3}),),
)
HISTORY = [{"epoch": float(n), "train_loss": 1 / n, "validation_loss": 1.1 / n} for n in (1, 2, 3)]


@pytest.fixture(scope="module")
def results(make_metadata: Any) -> list[SeriesResult]:
    return read_results([make_metadata("AUSDT-1h"), make_metadata("BUSDT-1h", tasks=("ohlc",))])


def test_a_run_has_four_pictures(results: list[SeriesResult], tmp_path: Path) -> None:
    histories = {"AUSDT-1h": HISTORY, "BUSDT-1h": HISTORY[:1]}
    had_pyplot = "matplotlib.pyplot" in sys.modules  # another test's library may have brought it
    written = write_pictures(tmp_path / "report", "tiny", results, histories, {"AUSDT-1h": SAMPLE})
    assert [path.name for path in written] == [
        "skill.png",
        "errors_by_step.png",
        "learning_curves.png",
        "forecasts.png",
    ]
    assert sorted(tmp_path.glob("report/*")) == sorted(written)  # nothing is left aside
    for path in written:
        pixels = matplotlib.image.imread(path)
        assert pixels.shape[1] >= 1_200  # wide enough for a README
        assert pixels[..., :3].std() > 0.02  # not blank
    assert had_pyplot or "matplotlib.pyplot" not in sys.modules


def test_only_what_is_there_is_drawn(results: list[SeriesResult], tmp_path: Path) -> None:
    assert [path.name for path in write_pictures(tmp_path, "tiny", results, {"AUSDT-1h": []}, {})] == [
        "skill.png",
        "errors_by_step.png",
    ]


def test_a_run_without_a_finished_series_has_no_picture(tmp_path: Path) -> None:
    assert write_pictures(tmp_path / "report", "tiny", [], {}, {}) == []
    assert not (tmp_path / "report").exists()
