"""What a report's page does by itself: it draws a chart when it first becomes visible.

Charts in a folded section are drawn when the section opens, so a page of forty series opens at once.
The page counts what it draws and whatever goes wrong in `data-charts` and `data-errors` of its root
element, where a test in a browser finds it. An address that ends in `#all` opens every section, one
that ends in the name of a series opens that one.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from v8.reports.markup import Html

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
  const unfold = () => {
    const name = decodeURIComponent(location.hash.slice(1));
    document.querySelectorAll("details").forEach((fold) => {
      if (name === "all" || fold.id === name) fold.open = true;
    });
    drawOpen();
    const target = document.getElementById(name);
    if (target) target.scrollIntoView();
  };
  document.querySelectorAll("details").forEach((fold) => fold.addEventListener("toggle", drawOpen));
  addEventListener("hashchange", unfold);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    document.querySelectorAll(".plot.drawn").forEach(draw));
  unfold();
})();
""")
"""Draws charts; runs at the end of the page."""


@cache
def plotly_library() -> Html:
    """Return plotly.js, as the installed `plotly` package carries it, about 5 MB."""
    return Html((files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8"))
