"""The page: a series to choose, the part about it, the leaderboard, and where the API is.

All text passes through `v8.views.markup`, which escapes it. The page works without its script, too: then a
button shows the series that was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from v8.app.openapi import ROUTES
from v8.app.places import Fleet
from v8.market.series import Series
from v8.views.leaderboard_tables import LEADERBOARD_NOTE, multiples_table, summary_cards, verdicts
from v8.views.markup import Html, element, join, table
from v8.wording import plural

_READING: Final = (
    "The close of a coin is close to a random walk, so 1.000 times naive is an honest result for it; ranges, "
    "bands and volatility can be forecast, a little. Every number stands beside forecasts that need no "
    "training. Nothing here is advice to trade."
)

DOCTYPE: Final = Html("<!DOCTYPE html>\n")


def page(fleet: Fleet, chosen: Series, part: Html | None) -> Html:
    """Return the whole page.

    Args:
        fleet: What is shown.
        chosen: The series that is shown first.
        part: What is said of it; None lets the script ask for it.
    """
    waiting = element("p", "The forecast is being made.", data_status="")
    body = element(
        "main",
        *_head(fleet, chosen),
        element("section", part or waiting, id="present", aria_label="The chosen series"),
        _rest(fleet),
    )
    skip = element("a", "Skip to the chosen series", href="#present", class_="skip")
    return join([DOCTYPE, element("html", _meta(fleet), element("body", skip, body), lang="en"), "\n"])


def said(sentence: str, *, is_alert: bool = False) -> Html:
    """Return a sentence in place of the part about a series."""
    role = "alert" if is_alert else None
    return element("p", sentence, data_status=sentence, class_="banner" if is_alert else None, role=role)


def _meta(fleet: Fleet) -> Html:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"v8: forecasts of the present, {fleet.label}"),
        element("link", rel="icon", href="/icon.svg", type="image/svg+xml"),
        element("link", rel="stylesheet", href="/page.css"),
        element("script", src="/page.js", defer="defer"),
    )


def _head(fleet: Fleet, chosen: Series) -> Iterator[Html]:
    profiles = sorted({str(about["profile"]["name"]) for about in fleet.metadata.values()})
    yield element("h1", "Forecasts of the present")
    told = f"{plural(len(fleet.metadata), 'model')} of {fleet.label}, profile {', '.join(profiles)}."
    yield element("p", told)
    yield _form(fleet, chosen)
    yield element("p", "", id="status", class_="soft", role="status", aria_live="polite")


def _form(fleet: Fleet, chosen: Series) -> Html:
    names = sorted(fleet.metadata, key=str)
    options = (_option(series, is_chosen=series == chosen) for series in names)
    return element(
        "form",
        element("label", "Series", for_="series"),
        element("select", *options, id="series", name="series", autocomplete="off"),
        element("button", "Show"),
        id="choose",
        action="/",
        method="get",
    )


def _option(series: Series, *, is_chosen: bool) -> Html:
    return element("option", str(series), value=str(series), selected="selected" if is_chosen else None)


@lru_cache(maxsize=2)
def _leaderboard(fleet: Fleet) -> Html:
    parts = [
        element("h2", "Leaderboard"),
        summary_cards(fleet.rows),
        element("p", LEADERBOARD_NOTE, class_="soft"),
        multiples_table(fleet.rows, "/?series={}"),
        verdicts(fleet.rows),
    ]
    return join(parts)


def _rest(fleet: Fleet) -> Html:
    return join([_leaderboard(fleet), element("p", _READING), *_api()])


def _api() -> Iterator[Html]:
    yield element("h2", "For programs")
    rows = (
        [element("code", route if "{" in route else element("a", route, href=route)), about]
        for route, about in ROUTES.items()
    )
    yield table(["address", "what it answers, as JSON"], rows, class_="api")
