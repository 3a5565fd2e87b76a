"""One self-contained page: its style, its charts and the policy that forbids everything else.

Nothing is fetched. A content policy allows the page's own three scripts by their digest and no other, so
even text that slipped through as markup could not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from typing import Final

import plotly.graph_objects as go

from v8.reports.markup import Html, element, join
from v8.reports.page_script import DRAW, WATCH, plotly_library
from v8.reports.page_style import STYLE
from v8.reports.palette import named


def document(title: str, body: Html) -> Html:
    """Return a whole page.

    Args:
        title: Its title, as text.
        body: Everything a reader sees.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy()),
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
        figure: One of `v8.reports.figures`, in the palette's light colours.
        label: What it shows, with its unit.
    """
    plain = figure.to_plotly_json()
    del plain["layout"]["template"]  # an empty one; only a figure without any gets Plotly's own
    content = json.dumps(named(plain), separators=(",", ":"), allow_nan=False)
    return element(
        "figure",
        element("figcaption", label),
        # Nothing in a script is unescaped by the browser, so the one sign that could end it is written out.
        element("script", Html(content.replace("<", "\\u003c")), type="application/json"),
        element(
            "div",
            class_="plot",
            role="img",
            aria_label=label,
            style=f"min-height:{figure.layout.height}px",
        ),
    )


@cache
def _policy() -> str:
    digests = " ".join(f"'{_digest(script)}'" for script in (WATCH, plotly_library(), DRAW))
    return f"{_POLICY}; script-src {digests}"


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()


_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:"
"""Styles are the page's own; images are what the chart library draws for "download as picture"."""
