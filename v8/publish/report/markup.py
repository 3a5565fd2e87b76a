"""HTML and SVG as values, and pages of them: text that is not markup already is escaped.

There is no other way to put text on a page, so a hostile reason, name or machine cannot become markup.

A page is self-contained: nothing is fetched. A content security policy allows the page's own scripts by
their digest and no other, so even text that was taken for markup by mistake could not run. A chart is drawn
when it first becomes visible, those in a folded section when the section opens, so that a page of forty
series opens quickly. On a page of more series a section is loaded from its own file at that moment
(`v8.publish.report.series_section`); then the policy allows the page's own scripts, and nothing else, to
load another script.

The page counts the charts it draws and the errors that occur in `data-charts` and `data-errors` of its root
element, where a test in a browser reads them. An address that ends in `#all` opens every section, one that
ends in the name of a series opens that section.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from v8.base.storage import PAGE_GENERATOR, packaged, packaged_yaml
from v8.base.wording import Table, chosen, say, term

COLOURS: Final[dict[str, tuple[str, str]]] = packaged_yaml("v8.publish.report", "palette.yaml")
"""By name: the colour on a light and on a dark background."""

LIGHT: Final = {name: light for name, (light, _) in COLOURS.items()}
DARK: Final = {name: dark for name, (_, dark) in COLOURS.items()}
NAMED: Final = {name: f"${name}" for name in COLOURS}
"""Names as a page writes them; its script replaces them by the colours of its style sheet."""

DEMO_WARNING: Final = "Simulated market: these numbers say nothing about real coins."

BUTTONS: Final = ("Download plot as a PNG", "Zoom", "Pan", "Reset axes")
"""Labels of the chart library's buttons, to be translated."""

LANGUAGE_NAMES: Final = {"en": "English", "zh-TW": "繁體中文"}
"""What a language calls itself."""

_SENTENCE: Final = re.compile(r"\[\[(.+?)\]\]")
"""A sentence in a template, which is translated."""

_VOID: Final = frozenset({"br", "hr", "link", "meta"})
"""Elements without an end tag."""


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
    attribute_text = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    end = "" if tag in _VOID else f"{join(children)}</{tag}>"
    return Html(f"<{tag}{attribute_text}>{end}")


def join(parts: Iterable[str]) -> Html:
    """Concatenate markup and text; text is escaped."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def filled(package: str, name: str, **values: object) -> Html:
    """Fill the places `{name}` of a template, a file of markup in a package, with values.

    Args:
        package: Name of the package.
        name: Name of the file. What it has in `[[...]]` is translated into the language of the page, and may
            have places, too.
        values: By the name of the place: markup, which stays as it is, or anything else, which is escaped.
    """
    template = _SENTENCE.sub(lambda match: html.escape(term(match[1])), packaged(package, name))
    texts = {key: value if isinstance(value, str) else str(value) for key, value in values.items()}
    return Html(template.format(**{key: join([text]) for key, text in texts.items()}))


def shown_table(table: Table, groups: Iterable[tuple[str, int]] = (), class_: str | None = None) -> Html:
    """Write a table, its title as caption, in a box that scrolls if need be.

    Args:
        table: Its titles are translated into the language of the page, its cells stay as they are.
        groups: Titles above several columns, each with the number of columns it spans.
        class_: CSS class of the table; by default `reasons` for prose.
    """
    group_row = [element("th", term(title), colspan=width, scope="colgroup") for title, width in groups]
    title_row = [element("th", term(title), scope="col") for title in table.columns]
    head = [element("tr", join(title_row))]
    if group_row:
        head.insert(0, element("tr", join(group_row)))
    body = []
    for row in table.rows:
        first, *others = [cell if isinstance(cell, str) else str(cell) for cell in row]
        cells = [element("th", first, scope="row")]
        cells += [element("td", cell) for cell in others]
        body.append(element("tr", join(cells)))
    parts = [element("thead", join(head)), element("tbody", join(body))]
    if table.title:
        # The text of a wide table stays within the window, see `caption` in the style sheet.
        parts.insert(0, element("caption", element("span", term(table.title))))
    content = element("table", join(parts), class_=class_ or ("reasons" if table.is_prose else None))
    return element("div", content, class_="scroll", data_more=say("scroll sideways for more →"))


def folded(title: str, *content: str) -> Html:
    """Fold content away below its title."""
    return element("details", element("summary", title), join(content))


def facts(pairs: Iterable[tuple[str, str]]) -> Html:
    """Build a list of names, in the language of the page, and values."""
    items = [element("div", element("dt", term(name)), element("dd", value)) for name, value in pairs]
    return element("dl", join(items))


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_COLOURS: Final = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
"""

_TASKS: Final = "".join(f".task-{name} {{ --task: var(--{name}); }}\n" for name in LIGHT)
"""The colour of a card's title, by a class."""

STYLE: Final = Html(_COLOURS + packaged("v8.publish.report", "page.css") + _TASKS)
"""Light and dark, wide and narrow."""

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:"
"""Styles are the page's own; images are what the chart library draws for "download as picture"."""

WATCH: Final = Html("\n" + packaged("v8.publish.report", "watch.js"))
"""Counts errors; runs before anything else can fail."""

DRAW: Final = Html("\n" + packaged("v8.publish.report", "draw.js"))
"""Draws charts and marks tables that do not fit; runs at the end of the page."""

TOUCH: Final = packaged("v8.publish.report", "touch.js")
"""What scripts that draw candle charts share, here and in the app; comes after the library."""

CHART_NOTICE: Final = "TradingView Lightweight Charts™, © TradingView, Inc., https://www.tradingview.com/"
"""The notice that the licence of the library of candle charts asks for."""


def document(
    title: str,
    heading: str,
    parts: Iterable[str],
    *,
    is_demo: bool,
    has_files: bool = False,
    has_candles: bool = False,
    languages: Mapping[str, str] = MappingProxyType({}),
) -> Html:
    """Return a complete page.

    Args:
        title: What the browser's tab shows.
        heading: The headline.
        parts: Markup, or text, which is escaped.
        is_demo: Whether to warn that the market was simulated.
        has_files: Whether sections are in files of their own, next to that of the page.
        has_candles: Whether the page has charts of candles, whose library it then holds.
        languages: Other languages of the page, each with the file that `content_in_language` is in, relative
            to that of the page; the page takes the language of the browser, or the last one chosen.
    """
    loads_files = has_files or bool(languages)
    scripts = [WATCH, plotly_library(), *([candle_library()] if has_candles else []), DRAW]
    policy = _policy(*scripts, has_files=loads_files)
    metadata = [
        element("meta", charset="utf-8"),
        element("meta", name="generator", content=PAGE_GENERATOR),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("title", title),
    ]
    *libraries, draw = [element("script", script) for script in scripts]
    head = element("head", join(metadata), element("style", STYLE), join(libraries))
    main = element("main", _content(heading, parts, is_demo=is_demo, languages=[chosen(), *languages]))
    body = element("body", main, draw)
    labels = json.dumps(_button_labels())
    files = json.dumps(dict(languages)) if languages else None
    page = element("html", head, body, lang=chosen(), data_words=labels, data_languages=files)
    return join([Html("<!DOCTYPE html>\n"), page, "\n"])


def content_in_language(
    title: str, heading: str, parts: Iterable[str], *, is_demo: bool, languages: Iterable[str]
) -> str:
    """Return the content of a page in the current language as a script, which the page in another one loads.

    Args:
        title: As for `document`; likewise `heading`, `parts` and `is_demo`.
        languages: All languages of the page, that of its file first.
    """
    content = {
        "language": chosen(),
        "title": title,
        "words": _button_labels(),
        "markup": _content(heading, parts, is_demo=is_demo, languages=languages),
    }
    return f"v8Language({script_json(content)});\n"


def script_json(content: object) -> Html:
    """Write JSON for a script: in ASCII, and without the sign that could end it, for nothing is unescaped."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return Html(text.replace("<", "\\u003c"))


def _button_labels() -> dict[str, str]:
    return {label: term(label) for label in BUTTONS}


def _content(heading: str, parts: Iterable[str], *, is_demo: bool, languages: Iterable[str]) -> Html:
    """Return what is inside `main`: the headline with the choice of a language, then the parts."""
    names = [*languages]
    choice: list[Html] = []
    if len(names) > 1:
        buttons = [
            element(
                "button",
                LANGUAGE_NAMES[name],
                type="button",
                lang=name,
                data_language=name,
                aria_pressed="true" if name == chosen() else "false",
            )
            for name in names
        ]
        choice.append(element("div", join(buttons), class_="languages"))
    content = [element("div", element("h1", heading), *choice, class_="headline"), *parts]
    if is_demo:
        content.insert(0, element("p", term(DEMO_WARNING), class_="banner", role="alert"))
    return join(content)


@cache
def plotly_library() -> Html:
    """Return plotly.js of the installed `plotly` package, about 5 MB."""
    return Html(packaged("plotly", "package_data/plotly.min.js"))


@cache
def candle_library() -> Html:
    """Return the library of candle charts and the scripts that draw with it, about 0.2 MB."""
    library = packaged("v8.base", "vendor/lightweight-charts.js")
    return Html("\n".join([library, TOUCH, packaged("v8.publish.report", "candles.js")]))


@cache
def _policy(*scripts: str, has_files: bool) -> str:
    """Return the content security policy, which allows the page's own scripts by their digests."""
    sources = []
    for script in scripts:
        digest = hashlib.sha256(script.encode("utf-8")).digest()
        sources.append(f"'sha256-{base64.b64encode(digest).decode()}'")
    if has_files:
        # The file of a section is not part of the page: only an allowed script may load it.
        sources.append("'strict-dynamic'")
    return f"{_POLICY}; script-src {' '.join(sources)}"
