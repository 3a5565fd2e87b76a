"""HTML and SVG as values, and pages of them: whatever is not markup already is escaped on its way in.

There is no other way to put text on a page, so a hostile reason, name or machine cannot become markup.

A page is self-contained: nothing is fetched. A content policy allows the page's own three scripts by their
digest and no other, so even text that slipped through as markup could not run. A chart is drawn when it first
becomes visible: those in a folded section when the section opens, so a page of forty series opens at once.
The section of a page of more comes from a file beside it at that moment (`v8.reports.page`); then the policy
lets the page's own scripts, and nothing else, name another one.

The page counts what it draws and whatever goes wrong in `data-charts` and `data-errors` of its root element,
where a test in a browser finds it. An address that ends in `#all` opens every section, one that ends in the
name of a series opens that one.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from v8.language import chosen, say, term
from v8.own_files import PAGE_GENERATOR
from v8.reports.charts import DARK, LIGHT, NAMED, Chart, plotly
from v8.storage import packaged
from v8.wording import Table

DEMO_WARNING: Final = "Simulated market: these numbers say nothing about real coins."

BUTTONS: Final = ("Download plot as a PNG", "Zoom", "Pan", "Reset axes")
"""What the chart library calls its buttons."""

_SAID: Final = re.compile(r"\[\[(.+?)\]\]")
"""A sentence in a template."""

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


def filled(package: str, name: str, **values: object) -> Html:
    """Put values, markup or text (escaped), in the places `{name}` of a template, markup in a package.

    What stands in `[[...]]` is said in the language that holds; it may have such places, too.
    """
    said = _SAID.sub(lambda found: html.escape(term(found[1])), packaged(package, name))
    told = {key: value if isinstance(value, str) else str(value) for key, value in values.items()}
    return Html(said.format(**{key: join([value]) for key, value in told.items()}))


def shown_table(table: Table, groups: Iterable[tuple[str, int]] = (), class_: str | None = None) -> Html:
    """Write a table, its title as caption, in a box that scrolls if need be.

    Titles are said in the language of the page, cells stay as they are. `groups` are titles above several
    columns, and how many columns each spans; `class_` is how it looks.
    """
    parts = [element("caption", term(table.title))] if table.title else []
    spans = [element("th", term(title), colspan=width, scope="colgroup") for title, width in groups]
    titles = element("tr", *(element("th", term(title), scope="col") for title in table.columns))
    parts.append(element("thead", *([element("tr", *spans)] if spans else []), titles))
    body = []
    for first, *others in (
        [cell if isinstance(cell, str) else str(cell) for cell in row] for row in table.rows
    ):
        cells = (element("td", cell) for cell in others)
        body.append(element("tr", element("th", first, scope="row"), *cells))
    look = class_ or ("reasons" if table.is_prose else None)
    content = element("table", *parts, element("tbody", *body), class_=look)
    return element("div", content, class_="scroll", data_more=say("scroll sideways for more →"))


def folded(title: str, *content: str) -> Html:
    """Fold content away below its title."""
    return element("details", element("summary", title), *content)


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Build a list of names, in the language of the page, and values."""
    items = (element("div", element("dt", term(name)), element("dd", value)) for name, value in pairs)
    return element("dl", *items)


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_COLOURS: Final = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
"""

STYLE: Final = Html(_COLOURS + packaged("v8.reports", "page.css"))
"""Light and dark, wide and narrow."""

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:"
"""Styles are the page's own; images are what the chart library draws for "download as picture"."""

WATCH: Final = Html("\n" + packaged("v8.reports", "watch.js"))
"""Counts errors; runs before anything else can fail."""

DRAW: Final = Html("\n" + packaged("v8.reports", "draw.js"))
"""Draws charts and marks tables that do not fit; runs at the end of the page."""


def document(
    title: str, heading: str, parts: Iterable[str], *, is_demo: bool, has_files: bool = False
) -> Html:
    """Return a whole page; `has_files` tells whether sections lie in files beside it."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="generator", content=PAGE_GENERATOR),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(has_files=has_files)),
        element("title", title),
        element("style", STYLE),
        element("script", WATCH),
        element("script", plotly_library()),
    )
    warning = [element("p", term(DEMO_WARNING), class_="banner", role="alert")] if is_demo else []
    main = element("main", *warning, element("h1", heading), *parts)
    body = element("body", main, element("script", DRAW))
    words = json.dumps({word: term(word) for word in BUTTONS})
    whole = element("html", head, body, lang=chosen(), data_words=words)
    return join([Html("<!DOCTYPE html>\n"), whole, "\n"])


def plot(chart: Chart, label: str) -> Html:
    """Return a chart with its caption, unit included; the page draws it when it becomes visible."""
    content = json.dumps(plotly(chart, NAMED), separators=(",", ":"), allow_nan=False)
    return element(
        "figure",
        element("figcaption", label),
        # Nothing in a script is unescaped by the browser, so the one sign that could end it is written out.
        element("script", Html(content.replace("<", "\\u003c")), type="application/json"),
        element("div", class_="plot", role="img", aria_label=label, style=f"min-height:{chart.height}px"),
    )


@cache
def plotly_library() -> Html:
    """Return plotly.js, as the installed `plotly` package carries it, about 5 MB."""
    return Html(packaged("plotly", "package_data/plotly.min.js"))


@cache
def _policy(*, has_files: bool) -> str:
    hashes = (hashlib.sha256(script.encode("utf-8")) for script in (WATCH, plotly_library(), DRAW))
    digests = " ".join(f"'sha256-{base64.b64encode(each.digest()).decode()}'" for each in hashes)
    # The file of a section is no part of the page: only a script that is may bring it.
    bringing = " 'strict-dynamic'" if has_files else ""
    return f"{_POLICY}; script-src {digests}{bringing}"
