"""HTML and SVG as values: whatever is not markup already is escaped on its way in.

There is no other way to put text on a page, so a hostile reason, name or machine cannot become markup. Bars
inside tables and text take their colours from the page's style sheet; their lengths are SVG user units.
"""

import html
from collections.abc import Iterable, Mapping
from typing import Final

from v8.wording import Table

_VOID: Final = frozenset({"br", "hr", "link", "meta"})

_BAR_WIDTH: Final = 96
_BAR_HEIGHT: Final = 14
_SPLIT_WIDTH: Final = 1000
_SPLIT_HEIGHT: Final = 18


class Html(str):
    """Text that is markup already. Only this module and constants make one."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | float | None) -> Html:
    """Build one element.

    Args:
        tag: Name of the element.
        children: Markup, which stays as it is, or text, which is escaped.
        attributes: By name; a final underscore goes and inner ones become dashes, so that `class_` and
            `stroke_width` can be written. None leaves an attribute out.

    >>> element("p", "a < b", element("b", "c"), class_="note")
    '<p class="note">a &lt; b<b>c</b></p>'
    """
    shown = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    end = "" if tag in _VOID else f"{join(children)}</{tag}>"
    return Html(f"<{tag}{shown}>{end}")


def join(parts: Iterable[str]) -> Html:
    """Put markup and text (escaped) behind one another."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def shown_table(
    table: Table,
    *,
    groups: Iterable[tuple[str, int]] = (),
    class_: str | None = None,
    is_titled: bool = True,
) -> Html:
    """Write a table, its title as caption unless that stands elsewhere, in a box that scrolls if need be.

    `groups` are titles above several columns, and how many columns each spans; `class_` is how it looks.
    """
    parts = [element("caption", table.title)] if table.title and is_titled else []
    spans = [element("th", title, colspan=width, scope="colgroup") for title, width in groups]
    titles = element("tr", *(element("th", title, scope="col") for title in table.columns))
    parts.append(element("thead", *([element("tr", *spans)] if spans else []), titles))
    body = []
    for first, *others in (
        [cell if isinstance(cell, str) else str(cell) for cell in row] for row in table.rows
    ):
        cells = (element("td", cell) for cell in others)
        body.append(element("tr", element("th", first, scope="row"), *cells))
    look = class_ or ("reasons" if table.is_prose else None)
    content = element("table", *parts, element("tbody", *body), class_=look)
    return element("div", content, class_="scroll")


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Build a list of names and values."""
    items = (element("div", element("dt", name), element("dd", value)) for name, value in pairs)
    return element("dl", *items)


def share_bar(share: float) -> Html:
    """Draw a share of a whole, 0 to 1, as a bar."""
    width = round(share * _BAR_WIDTH, 1)
    shown = element("rect", x=0, y=3, width=width, height=_BAR_HEIGHT - 6, class_="share")
    box, width, height = f"0 0 {_BAR_WIDTH} {_BAR_HEIGHT}", _BAR_WIDTH, _BAR_HEIGHT
    return element("svg", shown, width=width, height=height, viewBox=box, aria_hidden="true", class_="bar")


def split_bar(spans: Mapping[str, tuple[int, int]]) -> Html:
    """Draw spans, first row and row after the last, in time order; between them lies the embargo."""
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
