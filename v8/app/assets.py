"""What the page is made of besides its text: style, script and icon, served as files of their own.

The script asks for another series when one is chosen, and again when the next candle has closed; without it
the same page works by its button. It counts whatever goes wrong in `data-errors` of the root element, where a
test in a browser finds it, and how often it showed a series in `data-shown`.
"""

from typing import Final

from v8.views.markup import STYLE

STYLE_SHEET: Final = (
    STYLE
    + """
.chart { width: 100%; height: auto; display: block; }
.chart text { fill: var(--soft); font: 13px system-ui, sans-serif; }
.chart path { fill: none; }
.chart .grid { stroke: var(--rule); }
.chart .now { stroke: var(--soft); stroke-dasharray: 2 4; }
.chart .wick { stroke-width: 1; }
.chart .gain { stroke: var(--gain); } .chart .body.gain { fill: var(--gain); }
.chart .loss { stroke: var(--loss); } .chart .body.loss { fill: var(--loss); }
.chart .fan { fill: var(--fan); }
.chart .line { stroke: var(--blue); stroke-width: 2.5; }
.chart .dot { fill: var(--blue); }
.chart .bands { stroke: var(--purple); stroke-width: 1.5; stroke-dasharray: 6 4; }
.narrow-chart { display: none; }
@media (max-width: 40rem) { .wide-chart { display: none; } .narrow-chart { display: block; } }
form { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; margin: 1.25rem 0 .5rem; }
label { font-weight: 600; }
select, button { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--soft);
  border-radius: .4rem; padding: .4rem .6rem; min-height: 2.75rem; max-width: 100%; }
:focus-visible { outline: 3px solid var(--blue); outline-offset: 2px; }
.skip { position: absolute; left: -99rem; } .skip:focus { position: static; }
#present { min-height: 24rem; }
.whole { white-space: nowrap; }
caption { max-width: calc(100vw - 2rem); }
#present > h2 { margin-top: 1rem; }
.quiet { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap; }
code { font-size: .9em; overflow-wrap: anywhere; }
.api td, .api th { text-align: left; white-space: normal; min-width: 10rem; }
"""
)

SCRIPT: Final = """"use strict";
(() => {
  const root = document.documentElement;
  root.dataset.errors = root.dataset.shown = 0;
  const count = (name) => { root.dataset[name] = Number(root.dataset[name]) + 1; };
  addEventListener("error", () => count("errors"));
  addEventListener("unhandledrejection", () => count("errors"));
  addEventListener("securitypolicyviolation", () => count("errors"));

  const select = document.getElementById("series");
  const present = document.getElementById("present");
  const status = document.getElementById("status");
  const MOST_S = 60;
  let timer = 0, turn = 0, tag = "";

  const cut = new ResizeObserver((seen) => requestAnimationFrame(() => seen.forEach(({ target }) =>
    target.classList.toggle("cut", target.scrollWidth > target.clientWidth))));
  const watch = (where) => where.querySelectorAll(".scroll").forEach((box) => cut.observe(box));

  const seconds = (answer) => {
    const told = answer.headers.get("retry-after") ||
      (/max-age=(\\d+)/.exec(answer.headers.get("cache-control") || "") || [])[1];
    return Math.min(MOST_S, Math.max(1, Number(told) || MOST_S));
  };
  const say = (text, isShownBelow) => {
    status.textContent = text;
    status.classList.toggle("quiet", isShownBelow);
  };
  const ask = async (name, mine) => {
    const answer = await fetch("/part/" + encodeURIComponent(name), {
      cache: "no-store", signal: AbortSignal.timeout(45000) });
    const text = await answer.text();
    if (mine !== turn) return 0;
    const found = name + " " + (answer.headers.get("etag") || answer.status);
    if (found !== tag) {
      tag = found;
      cut.disconnect();
      present.innerHTML = text;
      watch(document);
      say(present.querySelector("[data-status]").dataset.status, true);
    }
    count("shown");
    return seconds(answer);
  };
  const show = async (name) => {
    const mine = ++turn;
    clearTimeout(timer);
    present.setAttribute("aria-busy", "true");
    let next_s = 10;
    try { next_s = await ask(name, mine); }
    catch { if (mine === turn) { say("The server does not answer; trying again.", false); tag = ""; } }
    if (mine !== turn) return;
    present.removeAttribute("aria-busy");
    timer = setTimeout(() => show(name), 1000 * next_s);
  };

  document.getElementById("choose").querySelector("button").hidden = true;
  select.addEventListener("change", () => {
    history.replaceState(null, "", "/?series=" + encodeURIComponent(select.value));
    say(select.value + ": asking for the forecast.", false);
    show(select.value);
  });
  watch(document);
  show(select.value);
})();
"""

ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<path d="M4 2v12M12 2v12" stroke="#8a94a0"/><path fill="#2f9e83" d="M2 5h4v6H2z"/>'
    '<path fill="#1769aa" d="M10 4h4v6h-4z"/></svg>'
)
