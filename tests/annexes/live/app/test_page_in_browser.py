"""The page in a real headless browser: quiet, offline, by keyboard, on a telephone, and always current."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import pytest

from v8.annexes.live.entries import Coverage, ForecastCounts, merge_coverages
from v8.annexes.live.record import LiveRecord, LiveSeries, LiveTask
from v8.model.evaluation.significance import BaselineComparison

pytestmark = [pytest.mark.process, pytest.mark.tf]

BTC = "BTCUSDT-15m"
ETH = "ETHUSDT-1h"

SHOWN = "document.documentElement.dataset.shown > 0"
READY = f"{SHOWN} && document.querySelectorAll('.tiles svg').length === 2"
HEADING = "document.querySelector('h1')?.textContent"
NAMES = "[...document.querySelectorAll('.tiles li:not([hidden]) h2')].map((each) => each.textContent)"
FOCUSED = "document.activeElement.querySelector('h2')?.textContent"
ROWS = "document.querySelector('#present .scroll table').tBodies[0].rows"
CELLS = f"[...{ROWS}].map((row) => [...row.cells].map((cell) => cell.textContent))"
OVERVIEW_FILES = ["/", "/alerts.js", "/overview.js", "/page.css", "/page.js", "/part?lang=en"]
LEGEND = "document.querySelector('.chart-legend').textContent"
DRAWN = f"{SHOWN} && document.documentElement.dataset.charts > 0 && ({LEGEND}).length > 0"
STATUS = "document.getElementById('status')"
STICKING_OUT = """[...document.querySelectorAll('body *')].filter((node) =>
  !node.parentElement.closest('.scroll, svg') &&
  getComputedStyle(node).position !== 'absolute' && node.className !== 'skip' &&
  node.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map((node) => node.outerHTML)"""


def numbers_of(served: Any, series: str, written: list[list[str]]) -> list[list[str]]:
    """Return the cells that the forecast of the API makes, with as many decimals as the page writes."""
    content = served.get(f"/api/forecast/{series}").json()
    decimals = len(written[0][1].partition(".")[2])
    return [
        [
            row["open_time"][:16].replace("T", " "),
            *(f"{row[name]:,.{decimals}f}" for name in ("close", "low", "high")),
            f"{100 * row['volatility']:.3f} %",
        ]
        for row in content["forecast"]
    ]


def test_the_page_is_quiet_offline_and_shows_the_numbers_of_the_api(served: Any, browser: Any) -> None:
    browser.open(f"{served.url}/series/{BTC}", SHOWN)
    cells = browser.value(CELLS)
    assert cells == numbers_of(served, BTC, cells)
    browser.wait("document.documentElement.dataset.charts > 0")
    assert browser.value("document.documentElement.dataset.errors") == "0"
    assert browser.complaints == []
    assert browser.strangers(served.url) == []
    assert len(browser.asked) >= 5  # the page, its style, script and icon, the part: the list is not blind
    # In bytes, nothing cached: the library of the charts is 198 kB of it.
    assert 200_000 < sum(browser.weights.values()) < 330_000


def test_the_overview_is_quiet_and_one_request(served: Any, browser: Any) -> None:
    served.until(lambda: "being made" not in served.get("/part").text)
    browser.open(served.url, READY)
    paths = [each.removeprefix(served.url) for each in browser.asked if each.startswith(served.url)]
    assert sorted(set(paths) - {"/icon.svg"}) == OVERVIEW_FILES
    assert 10_000 < sum(browser.weights.values()) < 60_000  # bytes: opened most, it goes without the charts
    assert browser.value("document.documentElement.dataset.errors") == "0"
    assert browser.complaints == []
    assert browser.strangers(served.url) == []


def test_a_series_is_found_and_opened_by_keyboard_alone_and_said_aloud(served: Any, browser: Any) -> None:
    served.until(lambda: "being made" not in served.get("/part").text)
    browser.open(served.url, READY)
    everything = browser.value(NAMES)
    browser.press("/")
    assert browser.value("document.activeElement.id") == "sought"
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.write("eth")
    assert browser.value(NAMES) == [ETH]
    assert browser.value(f"{STATUS}.textContent") == "1 of 2 series are shown."
    assert browser.value(f"{STATUS}.getAttribute('aria-live')") == "polite"
    browser.press("Escape")
    assert browser.value(NAMES) == everything
    browser.press("ArrowDown")
    assert browser.value(FOCUSED) == everything[0]
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("ArrowRight")
    assert browser.value(FOCUSED) == everything[1]
    browser.press("ArrowLeft")
    browser.press("ArrowLeft")
    assert browser.value("document.activeElement.id") == "sought"
    browser.press("ArrowDown")
    browser.press("Enter")
    browser.wait(f"{HEADING} === '{everything[0]}' && {SHOWN}")
    assert browser.value("location.pathname") == f"/series/{everything[0]}"
    cells = browser.value(CELLS)
    assert cells == numbers_of(served, everything[0], cells)


def test_on_a_telephone_nothing_is_cut_off(served: Any, browser: Any) -> None:
    for is_dark in (False, True):
        browser.look(390, is_dark=is_dark)
        for path in ("/", "/?view=table", f"/series/{BTC}", f"/series/{BTC}?lang=zh-TW"):
            browser.open(f"{served.url}{path}", "document.querySelector('h1') !== null")
            assert browser.value("document.documentElement.scrollWidth") == 390, path
            assert browser.value(STICKING_OUT) == [], path
    browser.wait(DRAWN)
    assert browser.value("document.querySelector('.chart-box').clientWidth") > 300


def test_a_chart_is_read_by_pointer_and_by_keys_and_zoomed(served: Any, browser: Any) -> None:
    """The values of the crosshair are those of the API, of known bars and of forecast ones."""
    browser.look(1_200)
    browser.open(f"{served.url}/series/{BTC}", DRAWN)
    chart = served.get(f"/api/chart/{BTC}").json()

    def legend_of(at: int) -> str:
        """Return what the legend begins with for a known bar, counted from the newest, or for one ahead."""
        is_ahead = at >= 0
        times = chart["open_times"]
        columns = chart["columns"]
        if is_ahead:
            times = chart["forecast_open_times"]
            columns = chart["forecast"]
        decimals = int(browser.value("document.querySelector('.chart-place').dataset.decimals"))
        moment = times[at][:16].replace("T", " ") + (" forecast" if is_ahead else "")
        prices = [f"{name} {columns[name][at]:,.{decimals}f}" for name in ("open", "high", "low", "close")]
        return moment + "".join(prices)

    assert browser.value(LEGEND).startswith(legend_of(-1))
    assert "Bollinger bands" in browser.value(LEGEND) and "volatility" in browser.value(LEGEND)
    browser.value("document.querySelector('.chart-box').focus()")
    browser.press("ArrowLeft")
    assert browser.value(LEGEND).startswith(legend_of(-2))
    for _ in range(3):
        browser.press("ArrowRight")
    assert browser.value(LEGEND).startswith(legend_of(1))
    browser.press("Escape")
    assert browser.value(LEGEND).startswith(legend_of(-1))

    bars = "Number(document.querySelector('.chart-box').dataset.bars)"
    before = browser.value(bars)
    browser.press("+")
    browser.wait(f"{bars} < {before}")
    browser.press("Home")
    browser.wait(f"{bars} === {before}")
    browser.press("-")
    browser.wait(f"{bars} > {before}")
    browser.value("document.querySelector('.chart-buttons button').click()")
    browser.wait(f"{bars} === {before}")

    browser.value("document.querySelector('.chart-box').scrollIntoView()")
    box = "document.querySelector('.chart-box').getBoundingClientRect()"
    left = browser.value(f"{box}.left")
    top = browser.value(f"{box}.top")
    browser.point(left + 300, top + 100)
    browser.wait(f"!({LEGEND}).startsWith({json.dumps(legend_of(-1))})")
    shown = browser.value(LEGEND)[:16].replace(" ", "T") + ":00Z"
    assert browser.value(LEGEND).startswith(legend_of(chart["open_times"].index(shown) - 500))
    assert browser.value("document.documentElement.dataset.errors") == "0"
    assert browser.complaints == []


def test_tiles_are_filtered_ordered_and_shown_as_a_table(served: Any, browser: Any) -> None:
    served.until(lambda: "being made" not in served.get("/part").text)
    browser.look(1_300)
    browser.open(served.url, READY)

    def choose(field: str, value: str) -> None:
        browser.value(f"""(() => {{ const field = document.getElementById('{field}'); field.value = '{value}';
            field.dispatchEvent(new Event('input', {{ bubbles: true }})); }})()""")

    choose("timeframe", "1h")
    assert browser.value(NAMES) == [ETH]
    assert browser.value(f"{STATUS}.textContent") == "1 of 2 series are shown."
    assert browser.value("location.search") == "?timeframe=1h"
    choose("timeframe", "")
    moods = browser.value("[...document.querySelectorAll('.tiles li')].map((tile) => tile.dataset.mood)")
    choose("mood", moods[0])
    assert browser.value(NAMES)[0] == browser.value("document.querySelector('.tiles li h2').textContent")
    assert len(browser.value(NAMES)) == moods.count(moods[0])
    choose("mood", "")
    choose("order", "series")
    assert browser.value(NAMES) == [BTC, ETH]
    choose("order", "volatility")
    by = "[...document.querySelectorAll('.tiles li')].map((tile) => Number(tile.dataset.volatility))"
    assert browser.value(by) == sorted(browser.value(by), reverse=True)
    height = "document.querySelector('.tiles li').getBoundingClientRect().height"
    tall = browser.value(height)
    chip = "document.querySelector('.tiles .chip')"
    tap = "new PointerEvent('click', { bubbles: true, cancelable: true, pointerType: 'touch' })"
    assert (
        browser.value(f"{chip}.dispatchEvent({tap})") is False
    )  # a tap shows the sentence, and opens no page
    assert browser.value(f"getComputedStyle({chip}, '::after').content.includes({chip}.title)")
    browser.value(f"{chip}.dispatchEvent({tap})")
    legend = "document.querySelector('.legend summary').innerText"
    assert browser.value(legend).startswith("How to read a tile shaded: ")
    browser.value("document.getElementById('toggle').click()")
    assert browser.value(legend).startswith("How to read the table range ahead: ")
    titles = browser.value(
        "[...document.querySelectorAll('.columns p:first-child span')].map((one) => one.innerText)"
    )
    assert titles[3] == "Range ahead, bottom to top"
    assert titles[5] == "Mood, volatility percentile"
    heads = "[...document.querySelector('.columns p').children]"
    cells = [".price", ".change", ".width", ".volatility", ".percentile", ".chip"]
    for width in (390, 1_300):  # on a telephone, too, each stands below its title
        browser.look(width)
        for at, cell in enumerate(cells, 1):
            title = browser.value(f"{heads}[{at}].getBoundingClientRect().toJSON()")
            own = browser.value(
                f"document.querySelector('.tiles li {cell}').getBoundingClientRect().toJSON()"
            )
            assert own["left"] < title["right"] and own["right"] > title["left"], (width, cell)
    assert browser.value("document.querySelector('.board').style.getPropertyValue('--rows')") == "1"
    rows = "[...document.querySelectorAll('.columns p, .tiles li')]"
    places = browser.value(f"{rows}.map((one) => one.getBoundingClientRect().left)")
    assert places[:2] == places[2:]  # the second row stands beside the first one, below its titles
    # Forty rows in two columns are on a screen: at most 27 pixels a row.
    assert browser.value(height) <= 27 < tall
    browser.open(served.url, READY)  # the browser remembers the view
    assert browser.value("document.querySelector('.tiles').classList.contains('table')")
    assert browser.complaints == []


def test_an_alert_notifies_once_when_its_limit_is_passed(served: Any, browser: Any) -> None:
    browser.tell(
        "Page.addScriptToEvaluateOnNewDocument",
        source="""window.notes = []; window.isAllowed = 'default'; window.Notification = class {
            static get permission() { return window.isAllowed; }
            static async requestPermission() { window.isAllowed = 'granted'; return 'granted'; }
            constructor(title, { body }) { window.notes.push(body); } };""",
    )
    browser.open(served.url, READY)
    volatility = f"Number(document.querySelector('[data-series=\"{BTC}\"]').dataset.volatility)"
    limit = 50 * browser.value(volatility)  # in per cent, half of the value

    def add(series: str, limit: float) -> None:
        browser.value(f"""(() => {{ document.getElementById('alert-series').value = '{series}';
            document.getElementById('alert-limit').value = {limit};
            document.getElementById('alert-form').requestSubmit(); }})()""")

    browser.value("document.getElementById('to-alerts').click()")
    browser.wait("document.querySelectorAll('#alert-series option').length === 3")
    now = "[...document.querySelectorAll('#alert-now li')].map((line) => line.textContent)"
    add(BTC, limit)
    browser.wait("window.notes.length === 1")
    assert browser.value("window.notes")[0].startswith(f"{BTC}: volatility ahead ")
    assert browser.value(now) == browser.value("window.notes")
    add("*", 1_000)
    browser.wait("document.querySelectorAll('#alert-list li').length === 2")
    assert len(browser.value("window.notes")) == 1
    # It is kept, here with a browser that refuses notifications now; what was above is not told again.
    browser.open(f"{served.url}/series/{BTC}", DRAWN)
    assert browser.value("document.querySelectorAll('#alert-list li').length") == 2
    assert len(browser.value(now)) == 1
    assert browser.value("window.notes") == []
    assert "appear here only" in browser.value("document.getElementById('alert-refused').textContent")
    for _ in range(2):
        browser.value("document.querySelector('#alert-list button').click()")
    assert browser.value(now) == []
    assert json.loads(browser.value("localStorage.getItem('v8-alerts')")) == {"rules": [], "above": {}}
    assert browser.complaints == []


def test_the_record_shows_coverage_by_day_as_charts_and_as_tables(
    serve: Callable[..., AbstractContextManager[Any]], browser: Any
) -> None:
    against = BaselineComparison("naive", 0.9, 1.0)
    daily = {86_400 * day: Coverage({"90 %": 80 + day, "50 %": 40}, 100) for day in (1, 2, 3)}
    task = LiveTask(
        naive=against,
        best=against,
        num_scored=3,
        num_days=3,
        errors={"model": 0.9, "naive": 1.0},
        is_best_of_run=True,
        coverage=merge_coverages(daily.values()),
        daily_coverage=daily,
    )
    live = LiveSeries(BTC, ForecastCounts(num_issued=3, num_scored=3), None, {"ohlc": task}, ())
    with serve(record=lambda: LiveRecord("place", (live,), {"ohlc": task})) as page:
        browser.open(f"{page.url}/record", f"{SHOWN} && document.documentElement.dataset.charts > 0")
        rows = "[...document.querySelector('table.coverage').tBodies[0].rows].map((row) => row.textContent)"
        assert browser.value(rows) == [f"1970-01-0{day + 1}{80 + day}.0 %40.0 %100" for day in (3, 2, 1)]
        assert browser.value("document.querySelectorAll('.coverage-place canvas').length") > 0
        assert "Within 90 %: 82.0 %." in browser.value("document.querySelector('main').textContent")
        browser.value("document.querySelector('#present tbody a').click()")
        browser.wait(f"{HEADING} === '{BTC}' && {SHOWN}")
        assert browser.complaints == []


def test_what_a_screen_reader_needs_is_there(served: Any, browser: Any) -> None:
    for path in ("/", f"/series/{BTC}"):
        browser.open(f"{served.url}{path}", SHOWN)
        assert browser.value("document.documentElement.lang") == "en"
        for landmark in ("header nav[aria-label]", "main", "footer"):
            assert browser.value(f"document.querySelectorAll('{landmark}').length") == 1
        unnamed = (
            "[...document.querySelectorAll('svg')].filter((each) => !each.getAttribute('aria-label')).length"
        )
        assert browser.value(unnamed) == 0
        assert browser.value("[...document.querySelectorAll('th')].filter((each) => !each.scope).length") == 0
        levels = browser.value(
            "[...document.querySelectorAll('h1,h2,h3')].map((each) => Number(each.tagName[1]))"
        )
        assert levels[0] == 1
        assert all(later - before <= 1 for before, later in pairwise(levels))
    assert (
        browser.value("document.querySelector('#present .scroll caption').textContent") == "Point forecasts"
    )
    assert browser.value(f"{STATUS}.textContent").startswith(f"{BTC}: Next 3 bars")
    browser.open(served.url, SHOWN)
    assert browser.value("document.querySelector('label').control.id") == "sought"


def test_the_browser_s_language_is_spoken_and_another_stays_chosen(served: Any, browser: Any) -> None:
    browser.tell("Network.setExtraHTTPHeaders", headers={"Accept-Language": "zh-TW"})
    browser.open(f"{served.url}/series/{BTC}", SHOWN)
    assert browser.value("document.documentElement.lang") == "zh-TW"
    assert "接下來" in browser.value(f"{STATUS}.textContent")
    browser.value("document.querySelector('a[hreflang=en]').click()")
    browser.wait(f"document.documentElement.lang === 'en' && {SHOWN}")
    browser.value("document.querySelector('header a').click()")
    browser.wait(f"location.pathname === '/' && {SHOWN}")
    assert browser.value("document.documentElement.lang") == "en"
    assert browser.complaints == []


@pytest.mark.nightly
def test_an_open_overview_follows_and_keeps_what_is_held_and_sought(
    serve: Callable[..., AbstractContextManager[Any]], browser: Any
) -> None:
    with serve() as page:
        page.until(lambda: "being made" not in page.get("/part").text)
        browser.open(page.url, READY)
        script = f"document.querySelector('.tiles a[href$=\"{BTC}\"]').textContent"
        first = browser.value(script)
        browser.press("/")
        browser.write("btc")
        browser.press("ArrowDown")
        assert browser.value(FOCUSED) == BTC
        page.exchange.now_s += 900
        browser.wait(f"{script} !== {json.dumps(first)}")
        assert browser.value(FOCUSED) == BTC
        assert browser.value(NAMES) == [BTC]
