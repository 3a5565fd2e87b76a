"""HTML and SVG as values: whatever is not markup already is escaped on its way in.

There is no other way to put text on a page, so a hostile reason, name or machine cannot become markup.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final

_VOID: Final = frozenset({"br", "hr", "link", "meta"})


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


def table(
    head: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    caption: str | None = None,
    groups: Iterable[tuple[str, int]] = (),
    class_: str | None = None,
) -> Html:
    """Build a table whose first column names its rows, in a box that scrolls on narrow screens.

    Args:
        head: Titles of the columns.
        rows: Cells, the first of each is its name.
        caption: What the table shows.
        groups: Titles above several columns, and how many columns each spans.
        class_: How it looks.
    """
    parts = [] if caption is None else [element("caption", caption)]
    spans = [element("th", title, colspan=width, scope="colgroup") for title, width in groups]
    titles = element("tr", *(element("th", title, scope="col") for title in head))
    parts.append(element("thead", *([element("tr", *spans)] if spans else []), titles))
    body = []
    for first, *others in rows:
        cells = (element("td", cell) for cell in others)
        body.append(element("tr", element("th", first, scope="row"), *cells))
    content = element("table", *parts, element("tbody", *body), class_=class_)
    return element("div", content, class_="scroll")


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Build a list of names and values."""
    items = (element("div", element("dt", name), element("dd", value)) for name, value in pairs)
    return element("dl", *items)
