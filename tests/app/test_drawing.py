"""The chart holds every candle at its price, whatever prices are, and nothing of it lies off the paper."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.app.drawing import LOW_LAYOUTS, NARROW, TILE_LAYOUTS, WIDE, ChartData, draw


def picture(num: int, level: float, spread: float, *, seed: int = 0, has_bands: bool = True) -> ChartData:
    """Return a walk of so many candles and a forecast of five, `spread` a share of the level."""
    rng = np.random.default_rng(seed)
    close = level * np.exp(spread * np.cumsum(rng.standard_normal(num)) / 10)
    opened = np.concatenate([[level], close[:-1]])
    high, low = np.maximum(opened, close) * (1 + spread), np.minimum(opened, close) * (1 - spread / 2)
    bands = [("bands", np.full(6, high.max())), ("bands", np.full(6, low.min()))] if has_bands else []
    return ChartData(
        "AUSDT-1h: close",
        3_600 * np.arange(num + 5, dtype=np.int64),
        lambda price: f"{price:.3g}",
        {"open": opened, "high": high, "low": low, "close": close},
        [*bands, ("line", np.full(6, close[-1]))],
        [(np.full(6, low[-1]), np.full(6, high[-1]))],
    )


@given(
    st.integers(1, 200),
    st.floats(1e-8, 1e8),
    st.floats(0, 0.5),
    st.integers(0, 9),
    st.booleans(),
)
def test_everything_lies_on_the_paper(
    num: int, level: float, spread: float, seed: int, has_bands: bool
) -> None:
    drawn = ET.fromstring(draw(picture(num, level, spread, seed=seed, has_bands=has_bands), "caption"))
    for paper, chart in zip((WIDE, NARROW), drawn, strict=True):
        bodies = "".join(each.get("d", "") for each in chart if (each.get("class") or "").startswith("body"))
        assert bodies.count("M") == min(num, paper.num_known)
        for part in chart:
            for x, y in re.findall(r"[ML](-?[\d.e+-]+) (-?[\d.e+-]+)", part.get("d", "")):
                assert -0.2 <= float(x) <= paper.width
                assert -0.2 <= float(y) <= paper.height
            for y in re.findall(r"V(-?[\d.e+-]+)", part.get("d", "")):
                assert -0.2 <= float(y) <= paper.height
        assert len([each for each in chart if each.tag == "circle"]) == 5
        assert 1 <= len([each for each in chart if each.get("class") == "grid"]) <= 20


def test_a_higher_price_stands_higher_and_a_rise_is_not_a_fall() -> None:
    rising = {"open": [1.0, 3.0], "high": [2.5, 3.5], "low": [0.5, 1.0], "close": [2.0, 1.5]}
    columns = {name: np.array(values) for name, values in rising.items()}
    shown = ChartData("A", np.array([0, 3_600, 7_200]), str, columns, [("line", np.array([1.5, 1.5]))], ())
    drawn = ET.fromstring(draw(shown, ""))
    wicks = {
        each.get("class"): each.get("d") or ""
        for each in drawn[0]
        if each.get("class", "").startswith("wick")
    }
    (gain,) = re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)", wicks["wick gain"])
    (loss,) = re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)", wicks["wick loss"])
    assert float(loss[0]) < float(gain[0]) < float(loss[1]) < float(gain[1])  # y grows downwards


def test_a_stamp_has_neither_axes_nor_dots_and_the_newest_candles() -> None:
    (stamp,) = ET.fromstring(draw(picture(80, 60_000.0, 0.01), "", TILE_LAYOUTS))
    kinds = {each.tag for each in stamp}
    assert kinds == {"title", "path"}
    bodies = "".join(each.get("d", "") for each in stamp if (each.get("class") or "").startswith("body"))
    assert bodies.count("M") == 30


def test_a_line_goes_on_where_it_ended_before_what_is_usual_and_begins_where_it_has_values() -> None:
    known = np.array([np.nan, 0.02, 0.03])
    ahead = [("line", np.array([0.03, 0.02, 0.01]))]
    bars, fan = 3_600 * np.arange(5), [(np.array([0.03, 0.015, 0.005]), np.array([0.03, 0.04, 0.05]))]
    shown = ChartData("A: volatility", bars, str, {"volatility": known}, ahead, fan, (0.01, 0.02))
    wide, _ = ET.fromstring(draw(shown, "", LOW_LAYOUTS))
    drawn = {each.get("class"): each for each in wide if each.get("class")}
    ends = [re.findall(r"([\d.]+) ([\d.]+)", drawn[kind].get("d", "")) for kind in ("known", "line")]
    assert (len(ends[0]), len(ends[1])) == (2, 3)
    assert ends[0][-1] == ends[1][0]
    top = float(drawn["usual"].get("y", "nan"))
    assert top == pytest.approx(float(ends[1][1][1]), abs=0.2)  # 0.02, where the second forecast bar stands
    assert drawn["usual"].get("height") != "0.0"


def test_words_are_escaped() -> None:
    assert "<script>" not in draw(picture(3, 1.0, 0.1), "<script>")


@pytest.mark.parametrize("level", [1e-8, 65_000.0])
def test_a_market_that_stands_still_is_drawn(level: float) -> None:
    assert "NaN" not in draw(picture(10, level, 0.0), "")
