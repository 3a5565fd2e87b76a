"""The one style sheet of every page."""

from __future__ import annotations

from typing import Final

from v8.views.markup import Html
from v8.views.palette import DARK, LIGHT, variables

_COLOURS: Final = f"""
:root {{ color-scheme: light dark; {variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}
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
