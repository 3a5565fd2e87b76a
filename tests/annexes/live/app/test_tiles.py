"""Tiles say mood, change and the stored verdict in a word, are chosen and ordered, and draw what is ahead."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.annexes.live.app.answers import newest_apart
from v8.annexes.live.app.forecast_view import HEIGHT, WIDTH, sparkline
from v8.annexes.live.app.tiles import Selection, Tile, TileNumbers, tile_list, verdict_chip
from v8.base.errors import DataError
from v8.data.market.series import Series
from v8.model.evaluation.leaderboard import Verdict
from v8.model.evaluation.significance import BaselineComparison


def compared(ratio: float, p_value: float | None, baseline: str = "har") -> BaselineComparison:
    return BaselineComparison(baseline, ratio, 1.0, p_value, p_value)


@pytest.mark.parametrize(
    ("best", "text"),
    [
        ([(0.9, 0.01), (0.8, 0.2)], "better|beats both baselines: 1 of 2 tasks"),
        ([(1.1, 0.01), (0.8, 0.2)], "worse|worse than a baseline: 1 of 2 tasks"),
        ([(1.1, 0.01), (0.8, 0.01)], "mixed|tasks better than baselines: 1, worse: 1"),
        ([(0.9, 0.06), (1.1, None)], "untested|not clearly better than baseline"),
        ([(0.9, None)], "unknown|not tested: too few windows"),
        ([], "unknown|not tested: too few windows"),
    ],
)
def test_a_chip_counts_the_stored_verdicts(best: list[tuple[float, float | None]], text: str) -> None:
    naive = compared(0.9, 0.01, "naive")
    tasks = {f"task{at}": Verdict(naive, compared(*each)) for at, each in enumerate(best)}
    row: Any = SimpleNamespace(tasks=tasks)
    chip = verdict_chip(row, "A < B.")
    style, _, words = text.partition("|")
    assert chip == f'<span class="chip {style}" title="A &lt; B.">{words}</span>'


def test_a_model_that_beats_a_reference_worse_than_naive_is_not_called_better() -> None:
    row: Any = SimpleNamespace(tasks={"range": Verdict(compared(1.0, 0.6, "naive"), compared(0.1, 0.01))})
    assert "untested" in verdict_chip(row, "")


def tile(name: str, **numbers: Any) -> Tile:
    return Tile(Series.parse(name), TileNumbers(**numbers) if numbers else None)


def test_tiles_are_chosen_and_ordered_and_those_without_a_number_come_last() -> None:
    tiles = [
        tile("AUSDT-1h", change=-0.01, volatility=0.02, percentile=5),
        tile("BUSDT-15m", change=0.03, volatility=0.01, percentile=85),
        tile("CUSDT-15m"),
        tile("DUSDT-15m", change=None, volatility=0.04, percentile=50),
    ]

    def names(**query: str) -> str:
        chosen = Selection.from_query(query).arrange(tiles)
        return "".join(str(each.series)[0] for each in chosen)

    assert names() == "BDAC"  # wildest first: percentiles 85, 50, 5, and one that is not known
    assert names(order="series") == "ABCD"
    assert names(order="change") == "BACD"
    assert names(order="volatility") == "DABC"
    assert names(timeframe="15m") == "BDC"
    assert names(mood="wild") == "B"
    assert names(q="usdt-1h", mood="calm") == "A"
    assert names(mood="loud", order="loud") == "BDAC"


def view(price: str, closed_s: int, change: float) -> Any:
    """Return a forecast as far as the overview shows it."""
    numbers = TileNumbers(price=price, closed_s=closed_s, change=change, volatility=0.01)
    return SimpleNamespace(numbers=numbers, tiles={"en": "", "zh-TW": ""})


def test_a_coin_has_one_price_the_newest_known_one_with_its_time() -> None:
    day_s = 1_735_603_200  # 2024-12-31
    views = {
        "ADAUSDT-1h": view("192.74", day_s + 64_800, 0.01),  # closed at 18:00
        "ADAUSDT-15m": view("194.11", day_s + 67_500, 0.02),  # closed at 18:45
        "BUSDT-1h": view("7.5", day_s + 64_800, -0.01),
        "CUSDT-1d": view("3.25", day_s - 86_400, 0.0),
        "DUSDT-1h": view("1.1", day_s, 0.0),  # both closed at midnight
        "DUSDT-15m": view("1.2", day_s, 0.0),
        "EUSDT-1h": DataError(where="E", rule="has candles", got="none", fix="Wait"),
    }
    newest = {Series.parse(name): each for name, each in views.items()}
    snapshot: Any = SimpleNamespace(metadata=dict.fromkeys([*newest, Series.parse("FUSDT-1h")]))
    markup = tile_list(snapshot, newest, Selection(order="series"))
    assert "As of 2024-12-31 18:45 UTC." in markup and "7 of 8 forecasts are ready." in markup
    tiles = re.findall(r"<li (data-series=.*?)</li>", markup)
    found = [re.search(r'class="price">([\d.]+)<i> ([^<]*)</i>', each) for each in tiles]
    assert [match and match.groups() for match in found] == [
        ("194.11", "18:45 UTC"),
        ("194.11", "18:45 UTC"),
        ("7.5", "18:00 UTC"),
        ("3.25", "2024-12-30 00:00 UTC"),
        ("1.2", "00:00 UTC"),
        ("1.2", "00:00 UTC"),
        None,
        None,
    ]
    # Whose forecast was made from an older close says from which.
    assert [re.findall(r"forecast from ([\d.]+) at ([\d:]+) UTC", each) for each in tiles] == [
        [("192.74", "18:00")] if 'data-series="ADAUSDT-1h"' in each else [] for each in tiles
    ]
    # The change of a day is that of the price, for the order and for alerts, too.
    assert [re.search(r'data-change="([^"]*)"', each)[1] for each in tiles[:2]] == ["0.020000"] * 2
    assert all("+2.00 %" in each for each in tiles[:2])


@given(st.integers(1, 90), st.integers(1, 20), st.floats(1e-8, 1e6), st.floats(0, 0.5), st.integers(0, 9))
def test_a_sparkline_lies_within_its_box(
    num: int, num_ahead: int, level: float, spread: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    known = level * np.exp(spread * rng.standard_normal(num))
    ahead = np.full(num_ahead, known[-1])
    ends = (known[-1] * (1 - spread / 2), known[-1] * (1 + spread))
    drawn = ET.fromstring(sparkline(known, ahead, ends, "1 < 2"))
    assert drawn.get("aria-label") == "1 < 2"
    paths = [each.get("d") or "" for each in drawn if each.tag == "path"]
    assert [path.count(" ") for path in paths] == [min(num, max(24, 2 * num_ahead)), num_ahead + 1]
    for path in paths:
        for x, y in re.findall(r"[ML](-?[\d.e+-]+) (-?[\d.e+-]+)", path):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT
    box = drawn.find("rect")
    assert box is not None
    top = float(box.get("y", "nan"))
    assert 0 <= top <= top + float(box.get("height", "nan")) <= HEIGHT
    # The part ahead takes at least a fourth of the bars once there are enough ahead.
    assert num_ahead < 10 or num < 20 or float(box.get("width", "nan")) > WIDTH / 4


def test_earlier_forecasts_of_a_chart_are_in_time_over_and_apart() -> None:
    def entry(issued_for_s: int, written_s: int | None = None, columns: tuple[str, ...] = ("close",)) -> Any:
        issuer = SimpleNamespace(tasks={"ohlc": columns})
        is_late = written_s is not None and written_s >= issued_for_s + 10
        due_s = issued_for_s + 30
        return SimpleNamespace(issuer=issuer, issued_for_s=issued_for_s, is_late=is_late, due_s=due_s)

    entries = [entry(at) for at in (0, 10, 20, 40, 50, 70, 80)]
    entries += [entry(75, written_s=85), entry(65, columns=("open",))]
    # The last one ends at 110, after the newest close at 105; a horizon is 30 s.
    assert [each.issued_for_s for each in newest_apart(entries, 105)] == [10, 40, 70]
