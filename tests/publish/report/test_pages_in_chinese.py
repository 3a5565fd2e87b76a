"""Pages in Traditional Chinese: no English is left but names, units and files, and no number is another."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from module_file import load_module
from wandering import wandering

from v8.annexes.comparison.page import comparison_page
from v8.annexes.trading import TradingTerms
from v8.annexes.trading.page import trading_page, trading_section
from v8.annexes.trading.rules import evaluate_trading
from v8.base.wording import language, spaced
from v8.forecaster.series_artifact import ForecastSample, SampledForecast
from v8.model.baselines.baselines import BASELINES
from v8.publish.report.backtest import backtest_page
from v8.publish.report.markup import join
from v8.runs.backtest import results_of

NAMES = (
    *(name for key in BASELINES for name in (key, spaced(key))),
    *(
        "naive",
        "aligned",
        "frontier",
        "stable",
        "range_paths",
        "vision",
        "Binance",
        "demo",
        "some cores",
        "v8",
    ),
    *("Diebold-Mariano", "Benjamini-Hochberg", "CRPS", "MAE", "RMSE", "pinball", "UTC", "CPU", "GPU"),
    *("python", "keras", "QLIKE"),
)
UNITS = ("MFLOP", "MB")
ELSE = (
    r"python -m v8[-. a-z]*|compare-profiles",  # commands
    r"--[a-z]+( \d)?",  # flags
    r"[\w-]+\.(csv|js|html)",  # files
    r"fold-\d",
    r"report/series",
    r"TradingView Lightweight Charts™, © TradingView, Inc\., https://www\.tradingview\.com/",
    r"[A-Z]{3,4}USDT-\d+[mh]",
    r"\b[0-9a-f]{64}\b",
    r"%\{[^}]*\}|<br>|<extra></extra>",  # places of numbers in Plotly's words
)
CANDLE = ((100.0, 102.0, 99.0, 101.0),)
SAMPLE = ForecastSample(
    "BTCUSDT-15m",
    900,
    tuple(900 * row for row in range(6)),
    {"ohlc": CANDLE * 6, "bands": ((103.0, 97.0),) * 6, "volatility": ((0.01,),) * 6},
    (SampledForecast(2, {"ohlc": CANDLE * 3, "bands": ((103.0, 97.0),) * 3, "volatility": ((0.01,),) * 3}),),
)
HISTORY = [{"epoch": float(n), "train_loss": 1 / n, "validation_loss": 1.1 / n} for n in (1, 2, 3)]


KINDS = ("report", "back-test", "worth", "comparison")


class Told(HTMLParser):
    """Collect whatever a reader sees or a pointer finds, and the numbers of tables."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.cells: list[str] = []
        self.language = ""
        self._tags: list[tuple[str, str | None]] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        self.texts += [about[name] or "" for name in ("title", "aria-label", "data-more") if about.get(name)]
        if tag == "html":
            self.language = about["lang"] or ""
        if tag not in {"meta", "br"}:
            self._tags.append((tag, about.get("type")))

    def handle_endtag(self, tag: str) -> None:
        self._tags.pop()

    def handle_data(self, data: str) -> None:
        tag, kind = self._tags[-1] if self._tags else ("", None)
        if kind == "application/json":
            self.texts += drawn(json.loads(data))
        elif tag not in {"script", "style"}:
            self.texts.append(data)
            if any(name == "td" for name, _ in self._tags):
                self.cells += re.findall(r"\d[\d.,]*", data)


def drawn(figure: Any, key: str = "") -> Iterator[str]:
    """List the words on a chart."""
    if isinstance(figure, dict):
        for name, part in figure.items():
            yield from drawn(part, name)
    elif isinstance(figure, list):
        for part in figure:
            yield from drawn(part, key)
    elif isinstance(figure, str) and key in {"text", "name", "ticktext", "title", "customdata", "x", "y"}:
        yield figure


def english(text: str) -> list[str]:
    """Return the English words of a text that are no names, units or files."""
    for pattern in ELSE:
        text = re.sub(pattern, " ", text)
    for name in sorted((*NAMES, *UNITS), key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z_]){re.escape(name)}(?![A-Za-z_])", " ", text)
    return re.findall(r"[A-Za-z]{3,}|(?<=\d )(?:ms|[hs])\b", text)


@pytest.fixture(scope="module")
def pages(
    make_metadata: Callable[..., Any],
    make_run: Callable[..., Any],
    write_page: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Callable[[], str]]:
    """Drawers of every page that v8 writes into a file, with all that may stand on them."""
    folder = tmp_path_factory.mktemp("pages")
    names = ("BTCUSDT-15m", "ETHUSDT-1h")
    metadata = [
        make_metadata(name, share=share, num_windows=240, source="demo", best_epoch=best, epochs_run=runs)
        for name, share, best, runs in zip(names, (0.25, -0.1), (2, 0), (3, 0), strict=True)
    ]
    for content in metadata:
        content["seconds"] = {"train": 61.0, "validate": 2.0, "evaluate": 0.75}  # as real ones are called

    def report() -> str:
        run = make_run(names, {"LUNAUSDT-1h": "41"}, source="demo")
        write_page(folder / "report.html", run, metadata, {names[0]: HISTORY}, {names[0]: SAMPLE})
        return (folder / "report.html").read_text("utf-8")

    folds = load_module(Path(__file__).with_name("test_backtest.py"))
    profiles = load_module(Path(__file__).with_name("test_comparison.py"))

    def backtest() -> str:
        cells = [
            replace(folds.cell(fold, name, share=share, shock=shock), quantiles=folds.quantiles(0.9, 0.9))
            for fold, share, shock in ((1, 0.2, 1.1), (2, -0.1, 2.0))
            for name in names
        ]
        failures = {"fold-2": {"SOLUSDT-15m": "41"}}
        plan = replace(folds.plan(3, [*names]), created_at="2026-11-23T09:00:00+00:00")
        worth = join(trading_section(worths[12]))
        return str(backtest_page(results_of(plan, cells, failures), [worth]))

    worths = {
        days: replace(
            evaluate_trading([replace(wandering(days), series=name) for name in names], TradingTerms()),
            is_demo=True,
        )
        for days in (5, 12)
    }

    def comparison(**changes: Any) -> str:
        pair = profiles.worth("stable", 2.0, 0.84, 0.86), profiles.worth("aligned", 1.0, 0.9, 1.0)
        failed = {"failures": {"range_paths": "41"}, "formulas": {"range_paths": "range_paths"}}
        return str(comparison_page(profiles.compared(*pair, **failed, **changes)))

    return {
        "worth": lambda: trading_page(worths[12]),
        "worth of few days": lambda: trading_page(worths[5]),
        "report": report,
        "back-test": backtest,
        "comparison": lambda: comparison(epochs=None),
        "comparison of speed": lambda: comparison(epochs=1, num_repeats=1, is_demo=True),
    }


@pytest.mark.parametrize(
    "name", ["worth", "worth of few days", "report", "back-test", "comparison", "comparison of speed"]
)
def test_no_english_is_left_but_names_and_no_number_is_another(
    pages: dict[str, Callable[[], str]], name: str
) -> None:
    ours = Told(pages[name]())
    with language("zh-TW"):
        theirs = Told(pages[name]())
    assert (ours.language, theirs.language) == ("en", "zh-TW")
    left = {text: words for text in theirs.texts if (words := english(text))}
    assert left == {}
    assert any("一" <= letter <= "鿿" for text in theirs.texts for letter in text)
    assert theirs.cells == ours.cells
    # The net is fine enough: of the same page in English it would catch nearly everything.
    assert sum(bool(english(text)) for text in ours.texts) > 40


UNFOLDED = "document.querySelectorAll('details').forEach((fold) => { fold.open = true; })"
EDGE = """Math.max(document.documentElement.scrollWidth,
  ...[...document.querySelectorAll('caption span')].map((title) => title.getBoundingClientRect().right))"""


@pytest.mark.process
def test_no_page_scrolls_sideways_on_a_phone(
    pages: dict[str, Callable[[], str]], tmp_path: Path, browser: Any
) -> None:
    # In English, whose words are longer; tables may scroll within a box of their own.
    browser.look(390)
    for name in KINDS:
        file = tmp_path / f"{name}.html"
        file.write_text(pages[name](), "utf-8")
        browser.open(file.as_uri(), "document.documentElement.dataset.charts > 0")
        browser.value(UNFOLDED)
        time.sleep(1.0)  # what was folded is drawn
        assert browser.value(EDGE) <= 390, name
