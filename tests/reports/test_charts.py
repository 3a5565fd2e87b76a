"""Charts: well-formed SVG whose points lie where the numbers say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v8.reports.charts import Line, line_chart, nice_ticks, share_bar, skill_bar

magnitudes = st.floats(1e-12, 1e12)


@given(low=st.one_of(st.just(0.0), magnitudes), size=st.one_of(st.just(0.0), magnitudes))
def test_ticks_enclose_the_range_and_are_evenly_spaced(low: float, size: float) -> None:
    ticks = nice_ticks(low, low + size)
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low * (1 + 1e-9)
    assert ticks[-1] >= (low + size) * (1 - 1e-9)
    assert 3 <= len(ticks) <= 7
    assert all(b - a == pytest.approx(step, rel=1e-3) for a, b in pairwise(ticks))


def test_a_line_goes_through_its_points() -> None:
    # Plot area: x from 52 to 328, y from 154 (bottom, 0) up to 12 (top tick, 4: of 0, 1, 2, 3, 4).
    chart = line_chart([Line("model", "model", [(1, 0), (2, 4), (3, 2)])], label="l", x_label="x")
    assert 'd="M52.0 154.0 L190.0 12.0 L328.0 83.0"' in chart


def test_a_single_step_is_a_dot_in_the_middle_for_every_line() -> None:
    lines = [Line(name, name, [(1.0, value)]) for name, value in (("roll_forward", 4.0), ("model", 2.0))]
    root = ET.fromstring(line_chart(lines, label="l", x_label="x"))
    assert [(dot.get("cx"), dot.get("cy")) for dot in root.iter("circle")] == [
        ("190.0", "12.0"),
        ("190.0", "83.0"),
    ]


def test_errors_start_at_zero_and_losses_need_not() -> None:
    line = Line("model", "model", [(1, 9.0), (2, 10.0)])
    assert _tick_labels(line_chart([line], label="l", x_label="x"))[0] == "0"
    assert _tick_labels(line_chart([line], label="l", x_label="x", is_from_zero=False))[0] == "9"


def test_a_mark_outside_the_lines_widens_the_axis() -> None:
    # Best epoch 0 is the untrained network, before the first epoch.
    line = Line("train", "train", [(1, 1.0), (2, 2.0)])
    root = ET.fromstring(line_chart([line], label="l", x_label="x", marked_x=(0.0, "best epoch 0")))
    mark = next(group for group in root.iter("g") if group.get("class") == "mark")
    assert mark[0].get("x1") == "52.0"
    assert mark[0][0].text == "best epoch 0"


def test_a_chart_of_zeros_can_be_drawn() -> None:
    chart = line_chart([Line("model", "model", [(1, 0.0), (2, 0.0)])], label="l", x_label="x")
    assert 'd="M52.0 154.0 L328.0 154.0"' in chart


def test_a_hostile_label_stays_text() -> None:
    chart = line_chart([Line("<script>", "model", [(1, 1.0)])], label="<script>", x_label="<script>")
    assert "<script>" not in chart
    assert ET.fromstring(chart)[0].text == "<script>"


@pytest.mark.parametrize(
    ("skill", "x", "width", "style", "is_pointed"),
    [
        # The middle is at 48, the longest bar 44: half of the limit is 22.
        (0.25, "48.0", "22.0", "good", False),
        (-0.25, "26.0", "22.0", "bad", False),
        (-3.0, "4.0", "44.0", "bad", True),
        (0.0, "48.0", "0.0", "good", False),
    ],
)
def test_a_skill_bar_grows_from_the_middle(
    skill: float, x: str, width: str, style: str, is_pointed: bool
) -> None:
    root = ET.fromstring(skill_bar(skill, 0.5))
    bar = root.find("rect")
    assert (bar.get("x"), bar.get("width"), bar.get("class")) == (x, width, style)
    assert (root.find("path") is not None) == is_pointed


def test_a_share_bar_is_as_long_as_its_share() -> None:
    assert ET.fromstring(share_bar(0.25)).find("rect").get("width") == "24.0"


def _tick_labels(chart: str) -> list[str]:
    return re.findall(r'text-anchor="end">([^<]*)<', chart)
