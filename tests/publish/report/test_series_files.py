"""The page of a large run: a line a series, and its section in a file that is drawn once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from v8.base.storage import write_text
from v8.base.wording import language
from v8.model.evaluation.leaderboard import rank_results, read_result
from v8.publish.report.markup import Html, element, plotly_library
from v8.publish.report.page import MOST_IN_ONE_FILE, RunPage
from v8.publish.report.series_section import section_file, series_body, series_section, write_section
from v8.runs.run_folder import RunRecord

HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
LOST = "document.body.textContent"
NAMES = tuple(f"C{number:03}USDT-1h" for number in range(MOST_IN_ONE_FILE + 1))


@pytest.fixture(scope="module")
def folder(
    make_run: Callable[..., Any], make_metadata: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The page of 41 series; only the first one's file is there, and it tells what a stranger wrote."""
    folder = tmp_path_factory.mktemp("large")
    metadata = make_metadata()
    metadata["candles"]["report"] = {"hostile": HOSTILE}
    result = read_result(metadata | {"series": NAMES[0]})
    results = [result, *(read_result(metadata | {"series": name}) for name in NAMES[1:])]
    record = TypeAdapter(RunRecord).validate_python(make_run(NAMES))
    bodies = dict.fromkeys(NAMES)
    write_text(folder / "report.html", RunPage(record, rank_results(results), bodies).whole())
    body = series_body(result, (), None)
    write_section(folder, NAMES[0], folder, lambda: body, is_forced=False)
    return folder


def test_a_page_of_more_series_than_fit_holds_a_line_for_each(folder: Path) -> None:
    page = (folder / "report.html").read_text("utf-8")
    assert page.count("data-file=") == len(NAMES)
    assert f'data-file="report/series/{NAMES[0]}.js"' in page
    # 41 sections of 50 kB would be 2 MB; a line with its row of leaderboard and verdicts is a few kB.
    assert len(page) < len(plotly_library()) + 12_000 * len(NAMES)
    policy = re.findall(r'content="(default-src[^"]*)"', page)[0]
    assert policy.endswith(" &#x27;strict-dynamic&#x27;")
    assert "http" not in policy


def test_a_section_is_two_texts_and_no_markup_of_a_stranger(folder: Path) -> None:
    stamp, call = (folder / section_file(NAMES[0])).read_text("ascii").splitlines()
    assert re.fullmatch(r"// drawn from [0-9a-f]{64}", stamp)
    assert "<" not in call
    name, markup = json.loads(call.replace("v8Section(", "[").replace(");", "]"))
    assert name == NAMES[0]
    assert "&lt;/script&gt;" in markup
    assert HOSTILE not in markup


@pytest.mark.nightly
@pytest.mark.process
def test_an_opened_section_comes_from_its_file_and_one_that_is_not_there_says_so(
    folder: Path, visit: Callable[..., str], browser: Any
) -> None:
    # The verdict's two, and tasks by step; no section is drawn before it is wanted.
    opened = visit(folder / "report.html", f"#{NAMES[0]}", num_charts=5)
    assert browser.value("document.title") != "taken"
    assert "Direction of the close" in opened
    visit(folder / "report.html", num_charts=2)
    browser.open(f"{(folder / 'report.html').as_uri()}#{NAMES[1]}", f"{LOST}.includes('is not next to')")
    lost = browser.value("document.documentElement.outerHTML")
    assert f"report/series/{NAMES[1]}.js is not next to" in lost
    assert "Direction of the close" not in lost


def test_a_section_is_drawn_again_when_what_it_shows_has_changed_and_only_then(tmp_path: Path) -> None:
    served = tmp_path / "served"
    drawn = []
    write_text(served / "metadata.json", "{}")

    def draw() -> Html:
        drawn.append(len(drawn))
        return element("p", str(len(drawn)))

    for is_forced in (False, False, True):
        write_section(tmp_path, "AUSDT-1h", served, draw, is_forced=is_forced)
    assert drawn == [0, 1]
    for _ in range(2):  # another language is another section, and the same one is not
        with language("zh-TW"):
            write_section(tmp_path, "AUSDT-1h", served, draw, is_forced=False)
    assert drawn == [0, 1, 2]
    write_text(served / "metadata.json", "{ }")
    write_section(tmp_path, "AUSDT-1h", served, draw, is_forced=False)
    assert drawn == [0, 1, 2, 3]
    assert '"\\u003cp>4' in (tmp_path / section_file("AUSDT-1h")).read_text("ascii")


def test_the_address_of_a_section_is_one_for_a_browser(make_metadata: Callable[..., Any]) -> None:
    result = read_result(make_metadata("A%23#USDT-1h"))
    assert 'data-file="report/series/A%2523%23USDT-1h.js"' in series_section(*rank_results([result]), None)
