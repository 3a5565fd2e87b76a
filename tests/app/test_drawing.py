"""The chart holds every candle at its price, whatever prices are, and nothing of it lies off the paper."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.app.drawing import NARROW, WIDE, Picture, draw, tick_step


def picture(num: int, level: float, spread: float, *, seed: int = 0, has_bands: bool = True) -> Picture:
    """Return a walk of so many candles and a forecast of five, `spread` a share of the level."""
    rng = np.random.default_rng(seed)
    close = level * np.exp(spread * np.cumsum(rng.standard_normal(num)) / 10)
    opened = np.concatenate([[level], close[:-1]])
    high, low = np.maximum(opened, close) * (1 + spread), np.minimum(opened, close) * (1 - spread / 2)
    ahead = {"close": np.full(5, close[-1]), "high": np.full(5, high[-1]), "low": np.full(5, low[-1])}
    bands = {"bb_upper": np.full(5, high.max()), "bb_lower": np.full(5, low.min())} if has_bands else {}
    columns = {"open": opened, "high": high, "low": low, "close": close}
    return Picture("AUSDT-1h", 3_600, 3_600 * np.arange(num, dtype=np.int64), columns, ahead | bands)


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
        assert bodies.count("M") == min(num, paper.num_candles)
        for part in chart:
            for x, y in re.findall(r"[ML](-?[\d.e+-]+) (-?[\d.e+-]+)", part.get("d", "")):
                assert -0.2 <= float(x) <= paper.width
                assert -0.2 <= float(y) <= paper.height
        assert len([each for each in chart if each.tag == "circle"]) == 5
        assert 1 <= len([each for each in chart if each.get("class") == "grid"]) <= 20


def test_a_higher_price_stands_higher_and_a_rise_is_not_a_fall() -> None:
    rising = {"open": [1.0, 3.0], "high": [2.5, 3.5], "low": [0.5, 1.0], "close": [2.0, 1.5]}
    columns = {name: np.array(values) for name, values in rising.items()}
    drawn = ET.fromstring(
        draw(Picture("A", 3_600, np.array([0, 3_600]), columns, {"close": np.array([1.5])}), "")
    )
    wicks = {
        each.get("class"): each.get("d") or ""
        for each in drawn[0]
        if each.get("class", "").startswith("wick")
    }
    (gain,) = re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)", wicks["wick gain"])
    (loss,) = re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)", wicks["wick loss"])
    assert float(loss[0]) < float(gain[0]) < float(loss[1]) < float(gain[1])  # y grows downwards


@given(st.floats(1e-9, 1e12), st.integers(1, 12))
def test_steps_are_round_and_as_many_as_fit(span: float, most: int) -> None:
    step = tick_step(span, most)
    assert span / step <= most
    assert span / step > most / 2.6
    mantissa = f"{step:e}".partition("e")[0]
    assert float(mantissa) in (1.0, 2.0, 5.0)


def test_words_are_escaped() -> None:
    assert "<script>" not in draw(picture(3, 1.0, 0.1), "<script>")


@pytest.mark.parametrize("level", [1e-8, 65_000.0])
def test_a_market_that_stands_still_is_drawn(level: float) -> None:
    assert "NaN" not in draw(picture(10, level, 0.0), "")
