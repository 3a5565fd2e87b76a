"""HTML and SVG as values, and pages of them: whatever is not markup already is escaped on its way in.

There is no other way to put text on a page, so a hostile reason, name or machine cannot become markup. Bars
inside tables and text take their colours from the page's style sheet; their lengths are SVG user units.

A page is self-contained: nothing is fetched. A content policy allows the page's own three scripts by their
digest and no other, so even text that slipped through as markup could not run. A chart is drawn when it first
becomes visible: those in a folded section when the section opens, so a page of forty series opens at once.
The section of a page of more comes from a file beside it at that moment (`v8.views.page`); then the policy
lets the page's own scripts, and nothing else, name another one.

The page counts what it draws and whatever goes wrong in `data-charts` and `data-errors` of its root element,
where a test in a browser finds it. An address that ends in `#all` opens every section, one that ends in the
name of a series opens that one.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from v8.views.charts import DARK, LIGHT, NAMED, Chart, plotly
from v8.wording import Table

DEMO_WARNING: Final = "Simulated market: these numbers say nothing about real coins."

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
    shown = element("rect", x=0, y=3, width=round(96 * share, 1), height=8, class_="share")
    box = "0 0 96 14"
    return element("svg", shown, width=96, height=14, viewBox=box, aria_hidden="true", class_="bar")


def split_bar(spans: Mapping[str, tuple[int, int]]) -> Html:
    """Draw spans, first row and row after the last, in time order; between them lies the embargo."""
    num_rows = max((end for _, end in spans.values()), default=0) or 1
    parts = [("embargo", 0, num_rows, "embargo")]
    for at, (name, (first, end)) in enumerate(spans.items()):
        parts.append((f"split{at}", first, end, f"{name}: rows {first:,} to {end - 1:,}"))
    drawn = []
    for style, first, end, label in parts:
        x, width = (round(rows / num_rows * 1000, 2) for rows in (first, end - first))
        drawn.append(element("rect", element("title", label), x=x, y=0, width=width, height=18, class_=style))
    place = {"viewBox": "0 0 1000 18", "preserveAspectRatio": "none", "role": "img"}
    return element("svg", *drawn, **place, aria_label="Spans in time order", class_="split")


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_COLOURS: Final = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
"""

STYLE: Final = Html(
    _COLOURS
    + """* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p { max-width: 44rem; margin: .5rem 0; }
.soft, caption, dt, figcaption { color: var(--soft); }
.banner { background: var(--loud); color: #fff; font-weight: 700; font-size: 1.1rem; max-width: none;
  padding: .9rem 1rem; border-radius: .5rem; margin: 0 0 1.25rem; }
.scroll { overflow-x: auto; margin: .5rem 0; }
.cut { background: linear-gradient(to left, var(--rule), transparent 1.5rem); }
.cut::before { content: "scroll sideways for more →"; position: sticky; left: 0; display: inline-block;
  font-size: .75rem; color: var(--soft); }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .25rem 0; }
p.soft { font-size: .85rem; }
th, td { padding: .3rem .75rem .3rem 0; text-align: right; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th { font-weight: 600; }
thead th { color: var(--soft); vertical-align: bottom; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
th[colspan] { text-align: center; padding-left: .75rem; }
details th:first-child { background: var(--card); }
.wrapped thead th { white-space: normal; min-width: 4.5rem; }
.better { color: var(--blue); } .worse { color: var(--orange); }
.mark { display: inline-block; width: 1.6em; font-size: .6em; vertical-align: .15em; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: 1rem; }
.cards div { background: var(--card); border: 1px solid var(--rule); border-radius: .5rem;
  padding: .75rem 1rem; }
.cards h3 { margin: 0; color: var(--soft); font-weight: 400; }
.cards p { margin: 0 0 .4rem; font-size: .85rem; color: var(--soft); }
.cards .lead { margin: 0; color: var(--ink); }
.lead b { font-size: 1.6rem; line-height: 1.3; margin-right: .5rem; font-variant-numeric: tabular-nums; }
.figures td { white-space: normal; min-width: 4.5rem; }
.figures tbody th { white-space: normal; min-width: 6rem; max-width: 16rem; }
.reasons th { text-align: left; }
.reasons td { text-align: left; white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .5rem 1.5rem;
  margin: .5rem 0; font-size: .9rem; }
dt { font-size: .8rem; } dd { margin: 0; overflow-wrap: anywhere; }
details { background: var(--card); border: 1px solid var(--rule); border-radius: .5rem;
  margin: .5rem 0; padding: 0 1rem; }
details[open] { padding-bottom: 1rem; }
summary { cursor: pointer; padding: .7rem 0; font-weight: 600; }
summary span { font-weight: 400; color: var(--soft); margin-left: .5rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1rem; }
figure { margin: .75rem 0; min-width: 0; } figcaption { font-size: .85rem; }
figure.wide { max-width: none; }
.plot { width: 100%; } .plot .modebar { opacity: 0; } .plot:hover .modebar { opacity: 1; }
.split { width: 100%; height: 1.1rem; display: block; border-radius: .25rem; }
.split0 { fill: var(--other); } .split1 { fill: var(--purple); } .split2 { fill: var(--blue); }
.embargo { fill: var(--loss); }
.axis { stroke: var(--soft); }
a { color: var(--blue); text-decoration: none; } a:hover { text-decoration: underline; }
.bar { vertical-align: middle; margin-right: .4rem; }
.share { fill: var(--other); }
@media (max-width: 40rem) { tbody th:first-child { white-space: normal; min-width: 6rem; max-width: 9rem; } }
@media print { body { max-width: none; } details { break-inside: avoid; } }
"""
)
"""Light and dark, wide and narrow."""

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:"
"""Styles are the page's own; images are what the chart library draws for "download as picture"."""

WATCH: Final = Html("""
(() => {
  const root = document.documentElement;
  root.dataset.errors = root.dataset.charts = 0;
  const count = () => { root.dataset.errors = Number(root.dataset.errors) + 1; };
  addEventListener("error", count);
  addEventListener("unhandledrejection", count);
  addEventListener("securitypolicyviolation", count);
})();
""")
"""Counts errors; runs before anything else can fail."""

DRAW: Final = Html("""
(() => {
  const root = document.documentElement;
  const isTouch = matchMedia("(pointer: coarse)").matches;
  const painted = (value, style) => {
    if (typeof value === "string" && value[0] === "$")
      return style.getPropertyValue("--" + value.slice(1)).trim() || value;
    if (Array.isArray(value)) return value.map((each) => painted(each, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, painted(each, style)]));
  };
  const draw = (box) => {
    const text = box.parentElement.querySelector("script").textContent;
    const figure = painted(JSON.parse(text), getComputedStyle(root));
    if (isTouch) Object.assign(figure.layout, { dragmode: false, hovermode: "closest" });
    const isNew = !box.classList.contains("drawn");
    box.classList.add("drawn");
    Plotly.react(box, figure.data, figure.layout, {
      responsive: true, displaylogo: false, displayModeBar: isTouch ? false : "hover",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    }).then(() => { if (isNew) root.dataset.charts = Number(root.dataset.charts) + 1; });
  };
  const isFolded = (box) => { const fold = box.closest("details"); return fold !== null && !fold.open; };
  const drawOpen = () => document.querySelectorAll(".plot:not(.drawn)").forEach((box) => {
    if (!isFolded(box)) draw(box);
  });
  const load = (fold) => {
    if (!fold.open || !fold.dataset.file) return;
    const script = document.createElement("script");
    script.src = fold.dataset.file;
    script.onerror = () => {
      fold.querySelector(".far").textContent = script.getAttribute("src") + " is not beside this page.";
    };
    delete fold.dataset.file;
    document.head.append(script);
  };
  globalThis.v8Section = (name, markup) => {
    const fold = document.getElementById(name);
    fold.querySelector(".far").outerHTML = markup;
    fold.querySelectorAll(".scroll").forEach((box) => cut.observe(box));
    drawOpen();
  };
  const unfold = () => {
    const name = decodeURIComponent(location.hash.slice(1));
    document.querySelectorAll("details").forEach((fold) => {
      if (name === "all" || (name && fold.id === name)) fold.open = true;
    });
    drawOpen();
    const target = document.getElementById(name);
    if (target) target.scrollIntoView();
  };
  // A frame later: the mark itself changes the height of the box, and so would call this again at once.
  const cut = new ResizeObserver((seen) => requestAnimationFrame(() => seen.forEach(({ target }) =>
    target.classList.toggle("cut", target.scrollWidth > target.clientWidth))));
  document.querySelectorAll(".scroll").forEach((box) => cut.observe(box));
  document.querySelectorAll("details").forEach((fold) => fold.addEventListener("toggle", () => {
    load(fold);
    drawOpen();
  }));
  addEventListener("hashchange", unfold);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    document.querySelectorAll(".plot.drawn").forEach(draw));
  unfold();
})();
""")
"""Draws charts and marks tables that do not fit; runs at the end of the page."""


def document(
    title: str, heading: str, parts: Iterable[str], *, is_demo: bool, has_files: bool = False
) -> Html:
    """Return a whole page; `has_files` tells whether sections lie in files beside it."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(has_files=has_files)),
        element("title", title),
        element("style", STYLE),
        element("script", WATCH),
        element("script", plotly_library()),
    )
    warning = [element("p", DEMO_WARNING, class_="banner", role="alert")] if is_demo else []
    main = element("main", *warning, element("h1", heading), *parts)
    body = element("body", main, element("script", DRAW))
    return join([Html("<!DOCTYPE html>\n"), element("html", head, body, lang="en"), "\n"])


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
    return Html((files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8"))


@cache
def _policy(*, has_files: bool) -> str:
    hashes = (hashlib.sha256(script.encode("utf-8")) for script in (WATCH, plotly_library(), DRAW))
    digests = " ".join(f"'sha256-{base64.b64encode(each.digest()).decode()}'" for each in hashes)
    # The file of a section is no part of the page: only a script that is may bring it.
    bringing = " 'strict-dynamic'" if has_files else ""
    return f"{_POLICY}; script-src {digests}{bringing}"
