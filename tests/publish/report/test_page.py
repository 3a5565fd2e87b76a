"""The run report: whole, self-contained, escaped, and loud about a simulated market."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.base.errors import ArtifactError
from v8.base.wording import Table
from v8.forecaster.series_artifact import ForecastSample, SampledForecast
from v8.publish.report.markup import Html, element, facts, join, shown_table

VOID = {"meta", "br", "hr", "link", "img", "input"}
DEMO = "Simulated market: these numbers say nothing about real coins."


class Page(HTMLParser):
    """Collect elements, attributes and text, and check that every element ends where it should."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(content)
        assert self._open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data) -> None:
        if self._open[-1:] == ["script"]:
            self.scripts.append(data)
        elif "style" not in self._open:
            self.text += data


def figures_of(page: Page) -> list[dict[str, Any]]:
    return [json.loads(script) for script in page.scripts if script.startswith('{"data":')]


@pytest.fixture
def write(tmp_path: Path, write_page):
    def write(*arguments) -> Page:
        path = tmp_path / "report.html"
        write_page(path, *arguments)
        assert list(tmp_path.iterdir()) == [path]
        return Page(path.read_text("utf-8"))

    return write


def test_the_page_shows_every_series_with_its_verdicts_and_the_median(write, make_metadata, make_run) -> None:
    metadata = [make_metadata("AUSDT-1h", share=0.25), make_metadata("BUSDT-1h", share=-0.25)]
    page = write(make_run(("AUSDT-1h", "BUSDT-1h")), metadata)
    assert "2 of 2 series are finished." in page.text
    # Six windows are too few for a test, so nothing is known; offset: the median of 0.754 and 1.257.
    unknown = "not tested: too few windows"
    assert "Median of 2 series, " in page.text
    same = "the same errorcompared with the naive forecast"
    assert f"Candles{same}0.6 %higher errorthan the best baseline, naive × a constant{unknown}" in page.text
    # Nothing is better than naive there, so it stands alone.
    assert f"Bollinger bands{same}No baseline is better" in page.text
    assert page.text.count("-1h" + unknown) == 2  # the line of a series; a pointer shows its tasks
    titles = [value for name, value in page.attributes if name == "title"]
    assert any("Candles: too few windows; Bollinger bands: " in title for title in titles)
    assert page.text.index("AUSDT-1h") < page.text.index("BUSDT-1h")
    for content in ("0.750", "1.250", "1 min 2 s"):
        assert content in page.text


def test_a_series_to_which_holes_leave_few_windows_is_named_and_counted(
    write, make_metadata, make_run
) -> None:
    sound = make_metadata()
    holed = make_metadata("ETHUSDT-15m")
    for metadata, num in ((sound, 6_000), (holed, 60_000)):
        for name in ("train", "validation", "test"):
            metadata["split"][name]["num_windows_without_holes"] = num
    page = write(make_run(("BTCUSDT-15m", "ETHUSDT-15m")), [sound, holed])
    # 5,531 of 60,000 in each of three spans.
    assert page.text.count("16,593 of 180,000 windows (9 %)") == 1
    assert page.text.count(" windows of: ETHUSDT-15m.") == 1
    assert "Holes in the candles" not in write(make_run(), [sound]).text


def test_forecasts_that_were_kept_are_shown(write, make_metadata, make_run) -> None:
    candle = ((100.0, 102.0, 99.0, 101.0),)
    issued = (SampledForecast(1, {"ohlc": candle * 2}),)
    sample = ForecastSample("BTCUSDT-15m", 900, (0, 900, 1_800, 2_700), {"ohlc": candle * 4}, issued)
    page = write(make_run(), [make_metadata()], {}, {"BTCUSDT-15m": sample})
    assert "Newest 4 candles " in page.text
    assert " every 2 bars." in page.text
    # On the first screen, and in the section of the series.
    charts = [json.loads(script) for script in page.scripts if script.startswith('{"time":')]
    assert [chart["candles"] for chart in charts] == [[list(*candle)] * 4] * 2
    assert [len(chart["issued"][0]["candles"]) for chart in charts] == [2, 2]


def test_failed_series_stand_with_their_whole_reason(write, make_metadata, make_run) -> None:
    reason = "LUNAUSDT-1h: needs at least 70 bars; got 41. " + "A long reason is not cut. " * 20
    page = write(make_run(("BTCUSDT-15m",), {"LUNAUSDT-1h": reason}), [make_metadata()])
    assert reason in page.text
    assert "1 of 2 series are finished. 1 failed." in page.text


def test_a_hostile_reason_stays_text(write, make_metadata, make_run) -> None:
    hostile = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&"
    run = make_run(("BTCUSDT-15m",), {"<script>": hostile})
    run["machine"]["cpu"] = run["versions"]["keras"] = run["command"] = run["profile"]["name"] = hostile
    metadata = make_metadata(hostile, source=hostile)
    metadata["candles"]["report"] = {hostile: hostile, "list": [hostile], "map": {hostile: hostile}}
    metadata["split"] = {"train": {"first_open": hostile}, hostile: hostile}
    metadata["seconds"] = {hostile: 1.0}
    page = write(run, [metadata])
    assert page.text.count(hostile) >= 10
    assert "img" not in page.tags
    assert all(hostile not in script for script in page.scripts)
    assert page.tags.count("script") == write(make_run(), [make_metadata()]).tags.count("script")
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_the_page_fetches_nothing(write, make_metadata, make_run, tmp_path: Path) -> None:
    page = write(make_run(), [make_metadata()])
    assert not {name for name, _ in page.attributes} & {"src", "srcset", "action", "data"}
    assert {value[0] for name, value in page.attributes if name == "href"} == {"#"}
    assert not {"link", "iframe", "object", "img"} & set(page.tags)
    style = (tmp_path / "report.html").read_text("utf-8").split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [value for name, value in page.attributes if name == "content" and "script-src" in value]
    assert policy.startswith(
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src "
    )


def test_only_the_pages_own_four_scripts_may_run(write, make_metadata, make_run) -> None:
    page = write(make_run(), [make_metadata()])
    (policy,) = [value for name, value in page.attributes if name == "content" and "script-src" in value]
    allowed = policy.split("script-src ")[1].split()
    programs = [script for script in page.scripts if not script.startswith('{"data":')]
    assert len(programs) == 4
    digests = [hashlib.sha256(script.encode()).digest() for script in programs]
    assert allowed == [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    assert "unsafe-inline" not in policy.split("script-src")[1]


def test_g9_a_simulated_market_is_announced_before_anything_else(write, make_metadata, make_run) -> None:
    page = write(make_run(source="demo"), [make_metadata(source="demo")])
    assert page.text.split("v8: aligned")[1].startswith(DEMO)
    assert ("class", "banner") in page.attributes


@pytest.mark.parametrize(("run_source", "series_source"), [("vision", "demo"), ("demo", "vision")])
def test_g9_one_simulated_part_is_enough_for_the_banner(
    write, make_metadata, make_run, run_source: str, series_source: str
) -> None:
    assert DEMO in write(make_run(source=run_source), [make_metadata(source=series_source)]).text


def test_a_run_without_a_finished_series_still_has_its_page(write, make_run) -> None:
    page = write(make_run((), {"LUNAUSDT-1h": "no candles"}), [])
    assert "0 of 1 series are finished. 1 failed." in page.text
    assert "no candles" in page.text
    assert "Leaderboard" not in page.text


@pytest.mark.parametrize("share", [0.0, -40.0])
def test_one_step_of_candles_only_can_be_shown_whatever_the_skill(
    write, make_metadata, make_run, share: float
) -> None:
    page = write(make_run(), [make_metadata(share=share, horizon_bars=1, tasks=("ohlc",))])
    assert "nan" not in page.text.lower().replace("finance", "").replace("binance", "")
    assert "Volatility" not in page.text


def test_series_of_unlike_tasks_can_stand_together(write, make_metadata, make_run) -> None:
    metadata = [make_metadata(), make_metadata("ETHUSDT-1h", tasks=("ohlc",))]
    assert "no such task" in write(make_run(("BTCUSDT-15m", "ETHUSDT-1h")), metadata).text


def test_a_section_holds_horizon_charts_direction_spans_candles_and_times(
    write, make_metadata, make_run
) -> None:
    history = [
        {"epoch": epoch, "train_loss": 1 / epoch, "validation_loss": 1.1 / epoch} for epoch in (1.0, 2.0, 3.0)
    ]
    page = write(make_run(), [make_metadata()], {"BTCUSDT-15m": history})
    # The verdict twice, three tasks by step, one learning curve, time per stage.
    assert [value for name, value in page.attributes if name == "class"].count("plot") == 6
    for content in ("the naive forecast", "last close", "offset", "windows counted", "embargo bars", "5,531"):
        assert content in page.text
    assert "unclosed1" in page.text  # from the candle report, while zeros are left out:
    assert "off grid" not in page.text
    assert "after 2023-12-30T12:00:00+00:00, missing 28" in page.text
    assert "training1 min 1 s" in page.text
    assert "Weights of epoch 4 of 9 were kept." in page.text
    assert "No forecasts are stored" in page.text


def test_baselines_that_only_some_series_were_evaluated_beside_are_explained_and_the_others_are_not(
    write, make_metadata, make_run
) -> None:
    metadata = [make_metadata("AUSDT-1h"), make_metadata("BUSDT-1h")]
    run = make_run(("AUSDT-1h", "BUSDT-1h"))
    assert "boosted trees" not in write(run, metadata).text
    for task in metadata[1]["evaluation"]["tasks"].values():
        for part in ("errors", "significance"):
            task[part]["lightgbm"] = task[part]["offset"]  # where LightGBM was installed
    page = write(run, metadata)
    assert page.text.count("The naive forecast moved by boosted trees") == 1
    lines = [trace["name"] for figure in figures_of(page) for trace in figure["data"] if "name" in trace]
    assert lines.count("lightgbm") == 3  # one for each task of one series
    assert lines.count("offset") == 6
    assert "har" not in lines


def test_metadata_that_reports_cannot_read_leave_the_old_page_alone(
    make_metadata, make_run, write_page, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text("the old page")
    with pytest.raises(ArtifactError, match="metadata of BTCUSDT-15m, key evaluation"):
        write_page(path, make_run(), [{**make_metadata(), "evaluation": None}])
    assert path.read_text() == "the old page"


# Markup: text is escaped, markup stays, and there is no third way


@given(text=st.text())
def test_text_reads_the_same_inside_an_element_and_makes_no_markup(text: str) -> None:
    made = element("p", text)
    inner = made.removeprefix("<p>").removesuffix("</p>")
    assert html.unescape(inner) == html.unescape(html.escape(text))
    assert not set("<>\"'") & set(inner)


@given(text=st.text())
def test_an_attribute_cannot_be_left_by_its_value(text: str) -> None:
    made = element("p", class_=text)
    assert made.count('"') == 2
    assert made.endswith('"></p>')


def test_markup_is_not_escaped_again() -> None:
    assert element("p", element("b", "&")) == "<p><b>&amp;</b></p>"
    assert join([Html("<br>"), "<br>"]) == "<br>&lt;br&gt;"


def test_tables_and_facts_escape_every_cell() -> None:
    made = shown_table(Table(["<a>"], [["<b>", "<c>"]], "<d>")) + facts([("<e>", "<f>")])
    for letter in "abcdef":
        assert f"&lt;{letter}&gt;" in made
