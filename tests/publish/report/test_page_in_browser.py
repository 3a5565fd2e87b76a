"""The report in a real headless browser: no error, every chart drawn, the numbers of the metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluating import let_baselines_err
from pydantic import TypeAdapter

from v8.base.wording import language, number, spaced
from v8.forecaster.series_artifact import ForecastSample, SampledForecast
from v8.model.evaluation.evaluation import Evaluation
from v8.model.evaluation.leaderboard import rank_results, read_result
from v8.publish.report.page import RunPage
from v8.publish.report.series_section import series_body
from v8.runs.run_folder import RunRecord

pytestmark = pytest.mark.process

NAMES = ("AUSDT-1h", "BUSDT-1h")
Visit = Any
VisitPage = Callable[..., Visit]


def sample_of(series: str) -> ForecastSample:
    """Twelve flat candles, a forecast of three after the third and one after the sixth."""
    ohlc = (100.0, 102.0, 99.0, 101.0)
    bands = (103.0, 97.0)
    volatility = (0.01,)
    actual = {"ohlc": (ohlc,) * 12, "bands": (bands,) * 12, "volatility": (volatility,) * 12}
    values = {task: rows[:3] for task, rows in actual.items()}
    issued = tuple(SampledForecast(row, values) for row in (2, 5))
    return ForecastSample(series, 3_600, tuple(3_600 * row for row in range(12)), actual, issued)


@pytest.fixture(scope="module")
def metadata(make_metadata: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    made = [
        make_metadata(name, share=share, num_windows=240)
        for name, share in zip(NAMES, (0.25, -0.1), strict=True)
    ]
    for content in made:
        let_baselines_err(content, {"last_close": 0.8, "offset": 3.0})
    return made


@pytest.fixture(scope="module")
def page(
    make_run: Callable[..., dict[str, Any]],
    write_page: Callable[..., None],
    metadata: list[dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    history = [{"epoch": float(n), "train_loss": 1 / n, "validation_loss": 1.1 / n} for n in (1, 2, 3)]
    write_page(
        path,
        make_run(NAMES),
        metadata,
        dict.fromkeys(NAMES, history),
        {name: sample_of(name) for name in NAMES},
    )
    return path


@pytest.fixture(scope="module")
def opened(page: Path, visit: VisitPage) -> Visit:
    return visit(page, "#all")


def test_nothing_goes_wrong_and_every_chart_is_drawn(opened: Visit) -> None:
    assert opened.console == []
    assert opened.told("errors") == "0"
    # The first screen; per series: forecasts, three tasks by step, learning curve.
    assert opened.told("charts") == str(3 + 2 * 5)
    assert len(re.findall(r'class="[^"]*\bmain-svg\b', opened.dom)) >= 12


def test_candles_fans_and_bands_are_really_on_the_drawing(opened: Visit) -> None:
    # On the first screen and in both series.
    legends = re.findall(r'<div class="keys">(.*?)</details></div>', opened.dom)
    assert len(legends) == 3
    for legend in legends:
        first, others = (re.findall(r"</i>(.*?)</button>", part) for part in legend.split("<details>"))
        assert first == [
            "actual candle",
            "forecast candle",
            "Bollinger bands, forecast",
            "Volatility, forecast",
        ]
        assert others == ["Bollinger bands, actual values", "Volatility, actual values"]
    # Nothing is pointed at, so that no values are shown.
    assert len(re.findall('<div class="touch-tip" hidden=""></div>', opened.dom)) == 3
    assert opened.dom.count("<canvas") >= 3 * 2


READ = """<script>
addEventListener("load", () => setTimeout(() => {
  const figure = document.querySelector(".candles");
  const box = figure.querySelector(".touch-box");
  const values = () => figure.querySelector(".touch-tip:not([hidden])")?.textContent;
  const press = (key) => box.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const seen = { first: values() };
  press("End");
  seen.newest = values();
  for (let count = 0; count < 4; count++) press("ArrowLeft");
  seen.fourth = values();
  press("Home");
  seen.oldest = values();
  press("+");
  seen.bars = box.dataset.bars;
  const canvas = box.querySelector("canvas");
  const { left, top, width, height } = canvas.getBoundingClientRect();
  const at = { clientX: left + width / 2, clientY: top + height / 2, bubbles: true, view: window };
  const cell = canvas.parentElement.querySelector("canvas:last-of-type");
  for (const kind of ["mouseenter", "mouseover", "mousemove"]) cell.dispatchEvent(new MouseEvent(kind, at));
  setTimeout(() => {
    seen.pointed = values();
    const key = figure.querySelector(".key");
    key.click();
    seen.pressed = key.getAttribute("aria-pressed");
    const choice = figure.querySelector("select");
    choice.value = "BUSDT-1h";
    choice.dispatchEvent(new Event("change"));
    seen.chosen = figure.querySelectorAll("canvas").length;
    document.documentElement.dataset.measured = JSON.stringify(seen);
  }, 300);
}, 1000));
</script>"""
"""Reads the values of the first chart with arrow keys and a pointer."""


def test_a_chart_can_be_read_bar_by_bar_zoomed_and_pointed_at(page: Path, visit: VisitPage) -> None:
    measured = visit.act(page, READ)
    assert "first" not in measured  # nothing is shown before
    assert "1970-01-01 11:00" in measured["newest"]
    assert "actual candleO 100 H 102 L 99 C 101" in measured["newest"]
    assert "Bollinger bands, actual values97 – 103" in measured["newest"]
    assert "Volatility, actual values1.000 %" in measured["newest"]
    assert "1970-01-01 07:00" in measured["fourth"]
    # The forecast after the sixth candle is of its values.
    assert "forecast candleO 100 H 102 L 99 C 101" in measured["fourth"]
    assert "Bollinger bands, forecast97 – 103" in measured["fourth"]
    assert "Volatility, forecast1.000 %" in measured["fourth"]
    assert "1970-01-01 00:00" in measured["oldest"] and "forecast candle" not in measured["oldest"]
    assert 3 <= int(measured["bars"]) < 12
    assert re.search("1970-01-01 0[1-9]:00", measured["pointed"])
    assert measured["pressed"] == "false"
    assert measured["chosen"] > 0


@pytest.mark.nightly
def test_a_folded_series_costs_nothing_before_it_is_opened(page: Path, visit: VisitPage) -> None:
    folded = visit(page)
    assert (folded.told("errors"), folded.told("charts")) == ("0", "3")
    one = visit(page, "#BUSDT-1h")
    assert (one.told("errors"), one.told("charts")) == ("0", "8")


def test_the_numbers_are_those_of_the_metadata(opened: Visit, metadata: list[dict[str, Any]]) -> None:
    rows = {name: re.search(rf'<tr><th scope="row"><a href="#{name}">.*?</tr>', opened.dom) for name in NAMES}
    for content in metadata:
        row = rows[content["series"]]
        assert row
        cells = re.findall(r"<td>(.*?)</td>", row[0])
        told = [re.sub(r"<[^>]*>", "", cell) for cell in cells]
        evaluation = Evaluation.from_json(content["evaluation"])
        for at, task in enumerate(evaluation.tasks):
            beside_naive, beside_best = (
                number(evaluation.relative_error(task, baseline=name)) for name in ("naive", "last_close")
            )
            assert told[2 * at].rstrip("●") == beside_naive
            assert told[2 * at + 1].rstrip("●") == beside_best
            for verdict in (evaluation.against(task).verdict, evaluation.against(task, "last_close").verdict):
                assert f'title="{spaced(verdict)}, corrected p ' in row[0]


def test_the_charts_hold_the_errors_of_the_metadata(opened: Visit, metadata: list[dict[str, Any]]) -> None:
    figures = [
        json.loads(text)
        for text in re.findall(r'<script type="application/json">(.*?)</script>', opened.dom, re.DOTALL)
    ]
    figures = [figure for figure in figures if "layout" in figure]  # the others are of candles
    by_step = [figure for figure in figures if "error ÷ naive" in str(figure["layout"]["yaxis"].get("title"))]
    assert len(by_step) == 6
    evaluations = [Evaluation.from_json(one["evaluation"]) for one in metadata]
    evaluated = [(evaluation, task) for evaluation in evaluations for task in evaluation.tasks]
    for figure, (evaluation, task) in zip(by_step, evaluated, strict=True):
        model = figure["data"][-1]
        errors = np.array(evaluation.error(task).by_step)
        naive = np.array(evaluation.error(task, "naive").by_step)
        assert model["name"] == "model"
        assert model["y"] == pytest.approx(list(errors / naive), rel=1e-5)
        assert model["customdata"] == pytest.approx(list(100 * errors), rel=1e-5)


@pytest.mark.nightly
def test_the_page_takes_the_language_of_the_browser_if_it_was_made(
    make_run: Callable[..., dict[str, Any]],
    metadata: list[dict[str, Any]],
    tmp_path: Path,
    visit: VisitPage,
) -> None:
    record = TypeAdapter(RunRecord).validate_python(make_run(NAMES))
    rows = rank_results(map(read_result, metadata))
    path = tmp_path / "report.html"

    def drawn() -> RunPage:
        bodies = {row.series: series_body(row, (), sample_of(row.series)) for row in rows}
        return RunPage(record, rows, bodies, sample_of(NAMES[0]))

    path.write_text(drawn().whole({"zh-TW": "zh-TW.js"}), "utf-8")
    with language("zh-TW"):
        (tmp_path / "zh-TW.js").write_text(drawn().in_language(["en", "zh-TW"]), "ascii")
    chinese = visit(path, "#all", "--accept-lang=zh-TW,zh")
    assert re.search('<html[^>]* lang="zh-TW"', chinese.dom)
    assert "<h2>排行榜</h2>" in chinese.dom and "<h2>Leaderboard</h2>" not in chinese.dom
    assert (chinese.told("errors"), chinese.told("charts")) == ("0", str(3 + 2 * 4))
    assert chinese.console == []
    assert re.search('<button[^>]*data-language="zh-TW"[^>]*aria-pressed="true"', chinese.dom)
    (tmp_path / "zh-TW.js").unlink()  # sent without its folder, it stays in English
    alone = visit(path, "", "--accept-lang=zh-TW")
    assert "<h2>Leaderboard</h2>" in alone.dom and alone.told("charts") == "3"


def test_what_slips_in_as_a_script_is_stopped_and_counted(
    page: Path, tmp_path: Path, visit: VisitPage
) -> None:
    # The tests above trust the counter: here it has something to count.
    broken = tmp_path / "report.html"
    hostile = "<body><script>document.title = 'taken over'</script>"
    broken.write_text(page.read_text("utf-8").replace("<body>", hostile, 1), "utf-8")
    seen = visit(broken)
    assert int(seen.told("errors")) > 0
    assert seen.console != []
    assert "<title>taken over" not in seen.dom
