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
VisitPage = Callable[..., str]


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


# The first screen; per series: forecasts, three tasks by step, learning curve.
ALL_CHARTS = 3 + 2 * 5


def test_every_chart_is_drawn_with_the_numbers_of_the_metadata(
    page: Path, visit: VisitPage, metadata: list[dict[str, Any]]
) -> None:
    dom = visit(page, "#all", num_charts=ALL_CHARTS)
    assert len(re.findall(r'class="[^"]*\bmain-svg\b', dom)) >= 12
    # On the first screen and in both series.
    legends = re.findall(r'<div class="keys">(.*?)</details></div>', dom)
    assert len(legends) == 3
    for legend in legends:
        first, others = (re.findall(r"</i>(.*?)</button>", part) for part in legend.split("<details>"))
        assert first[:2] == ["actual candle", "forecast candle"]
        assert first[2:] == ["Bollinger bands, forecast", "Volatility, forecast"]
        assert others == ["Bollinger bands, actual values", "Volatility, actual values"]
    # Nothing is pointed at, so that no values are shown.
    assert len(re.findall('<div class="touch-tip" hidden=""></div>', dom)) == 3
    assert dom.count("<canvas") >= 3 * 2
    require_rows(dom, metadata)
    require_errors_by_step(dom, metadata)


def require_rows(dom: str, metadata: list[dict[str, Any]]) -> None:
    for content in metadata:
        row = re.search(rf'<tr><th scope="row"><a href="#{content["series"]}">.*?</tr>', dom)
        assert row
        told = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", row[0])]
        evaluation = Evaluation.from_json(content["evaluation"])
        for at, task in enumerate(evaluation.tasks):
            beside_naive, beside_best = (
                number(evaluation.relative_error(task, baseline=name)) for name in ("naive", "last_close")
            )
            assert told[2 * at].rstrip("●") == beside_naive
            assert told[2 * at + 1].rstrip("●") == beside_best
            for verdict in (evaluation.against(task).verdict, evaluation.against(task, "last_close").verdict):
                assert f'title="{spaced(verdict)}, corrected p ' in row[0]


def require_errors_by_step(dom: str, metadata: list[dict[str, Any]]) -> None:
    texts = re.findall(r'<script type="application/json">(.*?)</script>', dom, re.DOTALL)
    figures = [figure for figure in map(json.loads, texts) if "layout" in figure]  # the others are of candles
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


def test_a_chart_can_be_read_bar_by_bar_zoomed_and_pointed_at(
    page: Path, visit: VisitPage, browser: Any
) -> None:
    visit(page, num_charts=3)
    box = "document.querySelector('.candles .touch-box')"

    def values(*keys: str) -> Any:
        """Press keys, and return the values that are shown then."""
        for key in keys:
            browser.value(
                f"{box}.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))"
            )
        return browser.value("document.querySelector('.candles .touch-tip:not([hidden])')?.textContent")

    assert values() is None
    newest = values("End")
    assert "1970-01-01 11:00" in newest and "actual candleO 100 H 102 L 99 C 101" in newest
    assert "Bollinger bands, actual values97 – 103" in newest and "Volatility, actual values1.000 %" in newest
    fourth = values(*["ArrowLeft"] * 4)
    # The forecast after the sixth candle is of its values.
    assert "1970-01-01 07:00" in fourth and "forecast candleO 100 H 102 L 99 C 101" in fourth
    assert "Bollinger bands, forecast97 – 103" in fourth and "Volatility, forecast1.000 %" in fourth
    oldest = values("Home")
    assert "1970-01-01 00:00" in oldest and "forecast candle" not in oldest
    values("+")
    assert 3 <= int(browser.value(f"{box}.dataset.bars")) < 12
    browser.value(f"{box}.scrollIntoView()")
    place = browser.value(f"{box}.getBoundingClientRect().toJSON()")
    browser.point(place["left"] + place["width"] / 2, place["top"] + place["height"] / 2)
    browser.wait("/1970-01-01 0[1-9]:00/.test(document.querySelector('.candles .touch-tip')?.textContent)")
    browser.value("document.querySelector('.candles .key').click()")
    assert browser.value("document.querySelector('.candles .key').getAttribute('aria-pressed')") == "false"
    choice = "document.querySelector('.candles select')"
    browser.value(f"{choice}.value = 'BUSDT-1h'; {choice}.dispatchEvent(new Event('change'))")
    assert browser.value("document.querySelector('.candles').querySelectorAll('canvas').length") > 0


@pytest.mark.nightly
def test_a_folded_series_costs_nothing_before_it_is_opened(page: Path, visit: VisitPage) -> None:
    visit(page, num_charts=3)
    visit(page, "#BUSDT-1h", num_charts=8)


@pytest.mark.nightly
def test_the_page_takes_the_language_of_the_browser_if_it_was_made(
    make_run: Callable[..., Any], metadata: list[Any], tmp_path: Path, visit: VisitPage, browser: Any
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
    browser.tell("Emulation.setUserAgentOverride", userAgent="test", acceptLanguage="zh-TW,zh")
    chinese = visit(path, "#all", num_charts=3 + 2 * 4)
    assert re.search('<html[^>]* lang="zh-TW"', chinese)
    assert "<h2>排行榜</h2>" in chinese and "<h2>Leaderboard</h2>" not in chinese
    assert re.search('<button[^>]*data-language="zh-TW"[^>]*aria-pressed="true"', chinese)
    (tmp_path / "zh-TW.js").unlink()  # sent without its folder, it stays in English
    browser.tell("Network.setCacheDisabled", cacheDisabled=True)
    browser.open("about:blank", "true")
    browser.open(path.as_uri(), "document.documentElement.dataset.charts === '3'")
    assert "<h2>Leaderboard</h2>" in browser.value("document.documentElement.outerHTML")
    browser.tell("Emulation.setUserAgentOverride", userAgent="test", acceptLanguage="en")


def test_what_slips_in_as_a_script_is_stopped_and_counted(page: Path, tmp_path: Path, browser: Any) -> None:
    # The tests above trust the counter: here it has something to count.
    broken = tmp_path / "report.html"
    hostile = "<body><script>document.title = 'taken over'</script>"
    broken.write_text(page.read_text("utf-8").replace("<body>", hostile, 1), "utf-8")
    browser.open(broken.as_uri(), "document.documentElement.dataset.errors > 0")
    assert browser.complaints != []
    assert browser.value("document.title") != "taken over"
