"""Pictures for READMEs: whole PNG files of the right subjects, made without touching pyplot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from matplotlib.figure import Figure as Sheet

from v8.forecaster.series_artifact import ForecastSample, SampledForecast
from v8.model.evaluation.leaderboard import LeaderboardRow, rank_results, read_result
from v8.publish.report.charts import plotly
from v8.publish.report.figures import Dot, issued_on_the_way, spread_figure
from v8.publish.report.pictures import _draw, _drawn, write_pictures

CANDLE = ((100.0, 102.0, 99.0, 101.0),)
SAMPLE = ForecastSample(
    "AUSDT-1h",
    3_600,
    tuple(3_600 * row for row in range(6)),
    {"ohlc": CANDLE * 6},
    (SampledForecast(2, {"ohlc": CANDLE * 3}),),
)


@pytest.fixture(scope="module")
def rows(make_metadata: Any) -> list[LeaderboardRow]:
    metadata = make_metadata("AUSDT-1h"), make_metadata("BUSDT-1h", tasks=("ohlc",))
    return rank_results(map(read_result, metadata))


def test_a_run_has_two_pictures(rows: list[LeaderboardRow], tmp_path: Path) -> None:
    had_pyplot = "matplotlib.pyplot" in sys.modules  # another test's library may have brought it
    written = write_pictures(tmp_path / "report", "tiny", rows, SAMPLE)
    assert [path.name for path in written] == ["skill.png", "forecasts.png"]
    assert sorted(tmp_path.glob("report/*")) == sorted(written)  # nothing is left aside
    for path in written:
        pixels = matplotlib.image.imread(path)
        assert pixels.shape[1] >= 1_200  # wide enough for a README
        assert pixels[..., :3].std() > 0.02  # not blank
    assert had_pyplot or "matplotlib.pyplot" not in sys.modules


def test_rows_stay_in_their_order_when_a_dot_is_far_off() -> None:
    axes = Sheet().subplots()
    rows = {"A": [Dot("x", 1.0)], "B": [Dot("x", 1.0), Dot("y", 80.0), Dot("z", 1.0)], "C": [Dot("x", -2.0)]}
    _draw([axes], spread_figure(rows, dict.fromkeys(rows, "blue")))
    assert list(axes.yaxis.units._mapping) == ["A", "B", "C"]
    texts = ["80 % higher", "1.0 % higher", "1.0 % higher", "2.0 % lower"]
    assert [text.get_text() for text in axes.texts] == texts


def test_the_axis_of_forecasts_issued_on_the_way_tells_dates() -> None:
    axis = plotly(issued_on_the_way(SAMPLE))["layout"]["xaxis"]
    assert axis["title"]["text"].endswith(", bars of 60 minutes")
    assert axis["ticktext"][0] == "01 Jan 1970<br>00:00"
    assert axis["ticktext"][-1] == "01 Jan 1970<br>05:00"


def test_the_legend_covers_no_notes_either_and_long_ones_are_wrapped(tmp_path: Path) -> None:
    notes = [f"What is said on line {number}, from one side to the other" for number in range(5)]
    notes.append(", ".join(["0.998 (not significantly different from range_paths)"] * 9))
    sheet = _drawn("title", [issued_on_the_way(SAMPLE)], inches=(10.0, 6.4), notes=notes)
    sheet.savefig(tmp_path / "drawn.png")
    above, below = sheet.subfigs
    (legend,) = above.legends
    (text,) = below.texts
    assert not legend.get_window_extent().overlaps(text.get_window_extent())
    assert text.get_window_extent().y0 >= 0
    assert text.get_window_extent().x1 <= sheet.bbox.x1


def test_only_what_is_there_is_drawn(rows: list[LeaderboardRow], tmp_path: Path) -> None:
    assert [path.name for path in write_pictures(tmp_path, "tiny", rows, None)] == ["skill.png"]


def test_a_run_without_a_finished_series_has_no_picture(tmp_path: Path) -> None:
    assert write_pictures(tmp_path / "report", "tiny", [], None) == []
    assert not (tmp_path / "report").exists()
