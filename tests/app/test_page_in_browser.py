"""The page in a real headless browser: quiet, offline, by keyboard, on a telephone, and always current."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

BTC, ETH = "BTCUSDT-15m", "ETHUSDT-1h"

SHOWN = "document.documentElement.dataset.shown > 0"
HEADING = "document.querySelector('#present h2')?.textContent"
ROWS = """[...document.querySelector('#present table').tBodies[0].rows]
  .map((row) => [...row.cells].map((cell) => cell.textContent))"""
STICKING_OUT = """[...document.querySelectorAll('main *')].filter((node) =>
  !node.parentElement.closest('.scroll, svg') &&
  getComputedStyle(node).position !== 'absolute' &&
  node.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map((node) => node.outerHTML)"""


def numbers_of(served: Any, series: str) -> list[list[str]]:
    """Return the cells that the forecast of the API makes."""
    told = served.get(f"/api/forecast/{series}").json()
    return [
        [
            row["open_time"][:16].replace("T", " "),
            *(f"{row[name]:.7g}" for name in row if name != "open_time"),
        ]
        for row in told["forecast"]
    ]


def test_the_page_is_quiet_offline_and_shows_the_numbers_of_the_api(served: Any, browser: Any) -> None:
    browser.open(f"{served.url}/?series={BTC}", SHOWN)
    assert browser.value(ROWS) == numbers_of(served, BTC)
    assert browser.value("document.querySelectorAll('#present svg .body').length") == 4
    assert browser.value("document.documentElement.dataset.errors") == "0"
    assert browser.complaints == []
    assert browser.strangers(served.url) == []
    assert len(browser.asked) >= 5  # the page, its style, script and icon, the part: the list is not blind


def test_the_leaderboard_is_that_of_the_api(served: Any, browser: Any) -> None:
    browser.open(served.url, SHOWN)
    cells = browser.value(
        """[...document.querySelectorAll('.wrapped tbody tr')].slice(1)
           .map((row) => [row.cells[0].textContent, row.cells[1].textContent])"""
    )
    expected = [
        [row["series"], f"{row['tasks']['ohlc']['naive']['multiple']:.3f}"]
        for row in served.get("/api/leaderboard").json()["leaderboard"]
    ]
    assert [[name, told.rstrip("●")] for name, told in cells] == expected


def test_a_series_is_chosen_by_keyboard_alone_and_said_aloud(served: Any, browser: Any) -> None:
    browser.open(f"{served.url}/?series={BTC}", SHOWN)
    for _ in range(10):
        browser.press("Tab")
        if browser.value("document.activeElement.id") == "series":
            break
    outline = browser.value("getComputedStyle(document.activeElement).outlineStyle")
    assert (browser.value("document.activeElement.id"), outline) == ("series", "solid")
    browser.press("ArrowDown")
    browser.wait(f"{HEADING} === '{ETH}'")
    assert browser.value(ROWS) == numbers_of(served, ETH)
    assert browser.value("document.getElementById('status').textContent").startswith(f"{ETH}: the newest")
    assert browser.value("document.getElementById('status').getAttribute('aria-live')") == "polite"
    assert browser.value("location.search") == f"?series={ETH}"
    assert browser.value("document.activeElement.id") == "series"


def test_on_a_telephone_nothing_is_cut_off(served: Any, browser: Any) -> None:
    for is_dark in (False, True):
        browser.look(390, is_dark=is_dark)
        browser.open(f"{served.url}/?series={BTC}", SHOWN)
        assert browser.value("document.documentElement.scrollWidth") == 390
        assert browser.value(STICKING_OUT) == []
        assert browser.value("getComputedStyle(document.querySelector('.wide-chart')).display") == "none"
        assert browser.value("document.querySelector('.narrow-chart').clientWidth") > 300


def test_dark_follows_the_reader(served: Any, browser: Any) -> None:
    papers = set()
    for is_dark in (False, True):
        browser.look(1_200, is_dark=is_dark)
        browser.open(served.url, SHOWN)
        papers.add(browser.value("getComputedStyle(document.body).backgroundColor"))
    assert len(papers) == 2


def test_what_a_screen_reader_needs_is_there(served: Any, browser: Any) -> None:
    browser.open(served.url, SHOWN)
    assert browser.value("document.documentElement.lang") == "en"
    unnamed = (
        "[...document.querySelectorAll('svg')].filter((each) => !each.getAttribute('aria-label')).length"
    )
    assert browser.value(unnamed) == 0
    assert browser.value("[...document.querySelectorAll('th')].filter((each) => !each.scope).length") == 0
    assert browser.value("[...document.querySelectorAll('#present caption')].length") >= 2
    assert browser.value("document.querySelector('label').control.id") == "series"
    levels = browser.value(
        "[...document.querySelectorAll('h1,h2,h3')].map((each) => Number(each.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(later - before <= 1 for before, later in pairwise(levels))


def test_a_new_candle_and_a_dead_exchange_reach_an_open_page(
    serve: Callable[..., AbstractContextManager[Any]], browser: Any
) -> None:
    with serve() as page:
        # The page asks again when the candle has closed: here it closes in five seconds.
        page.exchange.now_s += 8 * 60 - 5
        page.until(lambda: page.get("/api/health").json()["now"] == "2024-12-31T18:14:55Z")
        browser.open(f"{page.url}/?series={BTC}", SHOWN)
        first = browser.value(ROWS)
        page.exchange.now_s += 10
        browser.wait(f"({ROWS})[0][0] === '2024-12-31 18:15'")
        assert browser.value(ROWS) == numbers_of(page, BTC) != first
        assert "2024-12-31 18:15 UTC" in browser.value("document.getElementById('status').textContent")
