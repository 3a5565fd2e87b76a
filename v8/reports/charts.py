"""Small bars inside tables and text: inline SVG that takes its colours from the page's style sheet.

Lengths are SVG user units. Colours are classes, so that light and dark follow the reader's setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from v8.reports.markup import Html, element

_BAR_WIDTH: Final = 96
_BAR_HEIGHT: Final = 14
_SPLIT_WIDTH: Final = 1000
_SPLIT_HEIGHT: Final = 18


def skill_bar(skill: float, limit: float) -> Html:
    """Draw one skill as a bar to the right (better than naive) or left (worse) of a middle line.

    Args:
        skill: Unitless, 1 at most.
        limit: Skill at the end of the drawing, above 0; a bar that is longer ends in a point.
    """
    middle, half = _BAR_WIDTH / 2, _BAR_WIDTH / 2 - 4
    side, style = (1, "good") if skill >= 0 else (-1, "bad")
    length = round(min(1.0, abs(skill) / limit) * half, 1)
    x = min(middle, middle + side * length)
    parts = [
        element("line", x1=middle, x2=middle, y1=0, y2=_BAR_HEIGHT, class_="axis"),
        element("rect", x=x, y=3, width=length, height=_BAR_HEIGHT - 6, class_=style),
    ]
    if abs(skill) > limit:
        tip = f"l{side * 4} {_BAR_HEIGHT / 2 - 1} l{-side * 4} {_BAR_HEIGHT / 2 - 1} z"
        parts.append(element("path", d=f"M{middle + side * half} 1 {tip}", class_=style))
    return _bar(*parts)


def share_bar(share: float) -> Html:
    """Draw a share of a whole, 0 to 1, as a bar."""
    width = round(share * _BAR_WIDTH, 1)
    return _bar(element("rect", x=0, y=3, width=width, height=_BAR_HEIGHT - 6, class_="share"))


def split_bar(spans: Mapping[str, tuple[int, int]]) -> Html:
    """Draw spans of rows in time order as one bar; what lies between two of them is the embargo.

    Args:
        spans: Per span, its first row and the row after its last one.
    """
    num_rows = max((end for _, end in spans.values()), default=0) or 1
    parts = [("embargo", 0, num_rows, "embargo")]
    for at, (name, (first, end)) in enumerate(spans.items()):
        parts.append((f"split{at}", first, end, f"{name}: rows {first:,} to {end - 1:,}"))
    drawn = []
    for style, first, end, label in parts:
        x, width = (round(rows / num_rows * _SPLIT_WIDTH, 2) for rows in (first, end - first))
        title = element("title", label)
        drawn.append(element("rect", title, x=x, y=0, width=width, height=_SPLIT_HEIGHT, class_=style))
    return element(
        "svg",
        *drawn,
        viewBox=f"0 0 {_SPLIT_WIDTH} {_SPLIT_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label="Spans in time order",
        class_="split",
    )


def _bar(*parts: Html) -> Html:
    box, width, height = f"0 0 {_BAR_WIDTH} {_BAR_HEIGHT}", _BAR_WIDTH, _BAR_HEIGHT
    return element("svg", *parts, width=width, height=height, viewBox=box, aria_hidden="true", class_="bar")
