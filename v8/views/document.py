"""One self-contained page: its style, its scripts, its charts and the policy that forbids everything else.

Nothing is fetched. A content policy allows the page's own three scripts by their digest and no other, so
even text that slipped through as markup could not run.

A chart is drawn when it first becomes visible: those in a folded section when the section opens, so a page
of forty series opens at once. The section of a page of more comes from a file beside it at that moment
(`v8.views.series_files`); then the policy lets the page's own scripts, and nothing else, name another one.
The page counts what it draws and whatever goes wrong in `data-charts` and `data-errors` of its root element,
where a test in a browser finds it. An address that ends in `#all` opens every section, one that ends in the
name of a series opens that one.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Final

import plotly.graph_objects as go

from v8.views.markup import Html, element, join
from v8.views.palette import named
from v8.views.style import STYLE

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


def document(title: str, body: Html, *, has_files: bool = False) -> Html:
    """Return a whole page.

    Args:
        title: Of the window.
        body: Everything a reader sees.
        has_files: Whether sections lie in files beside the page.
    """
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
    content = element("body", element("main", body), element("script", DRAW))
    return join([Html("<!DOCTYPE html>\n"), element("html", head, content, lang="en"), "\n"])


def plot(figure: go.Figure, label: str) -> Html:
    """Return a chart with its caption; the page draws it when it becomes visible.

    Args:
        figure: One of `v8.views.figures`, in the palette's light colours.
        label: What it shows, with its unit.
    """
    plain = figure.to_plotly_json()
    del plain["layout"]["template"]  # an empty one; only a figure without any gets Plotly's own
    height = figure.layout.height
    content = json.dumps(named(plain), separators=(",", ":"), allow_nan=False)
    return element(
        "figure",
        element("figcaption", label),
        # Nothing in a script is unescaped by the browser, so the one sign that could end it is written out.
        element("script", Html(content.replace("<", "\\u003c")), type="application/json"),
        element("div", class_="plot", role="img", aria_label=label, style=f"min-height:{height}px"),
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
