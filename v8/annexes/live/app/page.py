"""The pages: an overview with a tile a series, a page for each series, the live record, and errors.

All text passes through `v8.publish.report.markup`, which escapes it, and is in the current language. Style,
scripts and icon are files of their own. When the next candle has closed, the script requests the part of a
page that changes again; other scripts draw charts, filter tiles and watch alerts. Without them pages work by
their links and their form, and show tables. They count their errors in `data-errors` of the root element,
where a test in a browser finds them, and in `data-shown` how often the part was shown.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from v8.annexes.live.app.places import (
    ModelSnapshot,
    is_demo,
    place_in_words,
    run_name,
)
from v8.annexes.live.app.tiles import (
    MOODS,
    Selection,
    demo_banner,
)
from v8.annexes.live.limits import KINDS, sentence_of, title_of
from v8.api.issuing import coverage_sentence, periods_ahead
from v8.base.storage import digest_bytes
from v8.base.wording import ENGLISH, chosen, say, term
from v8.data.market.series import Series
from v8.model.evaluation.price_range import pooled
from v8.publish.report.markup import Html, element, filled, join
from v8.publish.report.verdict import is_tested

_CHART_SCRIPTS: Final = Html(
    '<script src="/lightweight-charts.js" defer></script>\n<script src="/touch.js" defer></script>\n'
    '<script type="module" src="/chart.js"></script>'
)
_OVERVIEW_SCRIPTS: Final = Html('<script type="module" src="/overview.js"></script>')
_ALERT_SCRIPTS: Final = Html('<script type="module" src="/alerts.js"></script>')


def overview_page(
    snapshot: ModelSnapshot, part: Html, selection: Selection | None = None, source: str = ""
) -> Html:
    """Return the page of all series, or of those that are selected."""
    selection = selection or Selection()
    all_metadata = snapshot.metadata.values()
    profiles = sorted({metadata.profile.name for metadata in all_metadata})
    timeframes = {series.timeframe: series.bar_s for series in snapshot.metadata}
    ordered = sorted(timeframes, key=lambda timeframe: timeframes[timeframe])
    orders = {
        "wild": say("By volatility percentile"),
        "series": say("By name"),
        "change": say("By change of 24 h"),
        "volatility": say("By volatility ahead"),
    }
    before = filled(
        "v8.annexes.live.app",
        "overview.html",
        demo=demo_banner(is_demo(snapshot, source)),
        scope=_scope(snapshot, profiles),
        total=len(snapshot.metadata),
        sought=selection.text,
        timeframes=_options(
            {"": say("All timeframes")} | dict(zip(ordered, ordered, strict=True)), selection.timeframe
        ),
        moods=_options({"": say("All moods")} | {mood: term(mood) for mood in MOODS}, selection.mood),
        orders=_options(orders, selection.order),
        view="table" if selection.is_table else "",
        **_range_legends(snapshot),
        shown="{n}",  # the script counts the shown series and fills this in
    )
    scripts = join([_OVERVIEW_SCRIPTS, "\n", _ALERT_SCRIPTS])
    return _page(
        say("Current forecasts"),
        snapshot,
        part,
        "/part",
        scripts=scripts,
        before=before,
        after=_alerts(),
    )


def _scope(snapshot: ModelSnapshot, profiles: Sequence[str]) -> str:
    """Say how many series there are, and whose models; a profile of the run's own name is left out."""
    sentence = _models_of(snapshot, profiles)
    if is_tested(snapshot.rows):
        return sentence
    return f"{sentence} {say('No model is tested: the test spans hold too few windows.')}"


def _models_of(snapshot: ModelSnapshot, profiles: Sequence[str]) -> str:
    place = place_in_words(snapshot.label)
    total = len(snapshot.metadata)
    if [run_name(snapshot.label)] == [*profiles]:
        return say("{total} series, forecast by the models of {place}.", total=total, place=place)
    return say(
        "{total} series, forecast by the models of {place}, profile {profiles}.",
        total=total,
        place=place,
        profiles=say(", ").join(profiles),
    )


def series_page(snapshot: ModelSnapshot, series: Series, part: Html) -> Html:
    """Return the page of one series."""
    scripts = join([_CHART_SCRIPTS, "\n", _ALERT_SCRIPTS])
    before = element("ul", id="alert-now", class_="alert-now", role="alert")
    return _page(
        str(series), snapshot, part, f"/part/{series}", scripts=scripts, before=before, after=_alerts()
    )


def record_page(snapshot: ModelSnapshot, part: Html, source: str = "") -> Html:
    """Return the page of the live record of all series."""
    return _page(
        say("Live record"),
        snapshot,
        part,
        "/part-record",
        scripts=_CHART_SCRIPTS,
        before=demo_banner(is_demo(snapshot, source)),
    )


def api_page(snapshot: ModelSnapshot, source: str = "") -> Html:
    """Return the page of the JSON API; its script draws the reference, in English."""
    banner = demo_banner(is_demo(snapshot, source))
    is_english = chosen() == ENGLISH
    note = "" if is_english else element("p", say("The descriptions are in English only."), class_="soft")
    return filled(
        "v8.annexes.live.app",
        "api.html",
        language=chosen(),
        navigation=_navigation(),
        demo=banner,
        english_only=note,
    )


def _navigation() -> Html:
    return filled("v8.annexes.live.app", "navigation.html")


def error_page(status: int, content: Mapping[str, Any]) -> Html:
    """Return an error of the API as a page, in the current language; the error itself is in English."""
    return filled(
        "v8.annexes.live.app",
        "error.html",
        language=chosen(),
        title=_error_title(status),
        error=Html(element("p", "{where}: {rule}; got {got}. {fix}.".format(**content["error"]), lang="en")),
        status=status,
    )


def _error_title(status: int) -> str:
    if status == 404:
        return say("There is no such page")
    if status == 500:
        return say("The server made a mistake")
    if status in (429, 503):
        return say("Not now: please try again in a moment")
    return say("This request is not understood")


def _page(
    title: str,
    snapshot: ModelSnapshot,
    part: Html,
    address: str,
    *,
    scripts: str,
    before: str = "",
    after: str = "",
) -> Html:
    """Return a page with a part that the script requests again from an address."""
    return filled(
        "v8.annexes.live.app",
        "page.html",
        navigation=_navigation(),
        before=before,
        after=after,
        scripts=scripts,
        part=part,
        address=address,
        title=title,
        place=place_in_words(snapshot.label),
        language=chosen(),
        tag=digest_bytes(part.encode()),
    )


def _options(titles: Mapping[str, str], selected: str) -> Html:
    """Return the options of a choice, by value."""
    options = []
    for value, title in titles.items():
        options.append(
            element("option", title, value=value, selected="selected" if value == selected else None)
        )
    return join(options)


def _alerts() -> Html:
    """Return the form of alerts; the script fills the places in braces."""
    sentences = {kind: sentence_of(kind, "{series}", "{value}", "{limit}") for kind in KINDS}
    kinds = _options({kind: title_of(kind) for kind in KINDS}, selected="")
    return filled("v8.annexes.live.app", "alerts.html", **sentences, kinds=kinds, n="{n}")


def _range_legends(snapshot: ModelSnapshot) -> dict[str, str]:
    """Say what the range ahead of a tile and of the table is, and how far ahead it reaches."""
    spans = periods_ahead(
        (metadata.horizon_bars * series.bar_s, series.timeframe)
        for series, metadata in snapshot.metadata.items()
    )
    if any(metadata.profile.quantiles for metadata in snapshot.metadata.values()):
        stated = {
            "shaded": say("shaded: 9 of 10 times the price should stay within, next {spans}.", spans=spans),
            "ahead": say(
                "range ahead: 9 of 10 times the price should stay within, next {spans}.", spans=spans
            ),
        }
        tested = pooled(row.price_range for row in snapshot.rows)
        measured = coverage_sentence(tested) if tested else ""
        return {name: f"{text} {measured}" for name, text in stated.items()}
    return {
        "shaded": say("shaded: from the lowest to the highest forecast of the next {spans}", spans=spans),
        "ahead": say("range ahead: – for models that forecast no intervals"),
    }
