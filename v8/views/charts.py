"""Small bars inside tables and text: inline SVG that takes its colours from the page's style sheet.

Lengths are SVG user units. Colours are classes, so that light and dark follow the reader's setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from v8.views.markup import Html, element

_BAR_WIDTH: Final = 96
_BAR_HEIGHT: Final = 14
_SPLIT_WIDTH: Final = 1000
_SPLIT_HEIGHT: Final = 18


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
