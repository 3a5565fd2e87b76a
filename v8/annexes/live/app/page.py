"""The pages: an overview with a tile a series, a page for each series, the live record, and errors.

The parts of a page that change come from other modules; that of the live record is written here.

All text passes through `v8.publish.report.markup`, which escapes it, and is in the current language. Style,
scripts and icon are files of their own. When the next candle has closed, the script requests the part of a
page that changes again; other scripts draw charts, filter tiles and watch alerts. Without them pages work by
their links and their form, and show tables. They count their errors in `data-errors` of the root element,
where a test in a browser finds them, and in `data-shown` how often the part was shown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from v8.annexes.live import KINDS, sentence_of, title_of
from v8.annexes.live.app.service import (
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
from v8.annexes.live.entries import DailyCoverage, ForecastCounts
from v8.annexes.live.record import MIN_DAYS, LiveRecord, LiveTask, own_baseline_sentence
from v8.api.issuing import coverage_sentence, periods_ahead
from v8.base.process import command
from v8.base.storage import digest_bytes
from v8.base.wording import ABSENT, ENGLISH, Table, chosen, count, percent, plural, say, term
from v8.data.market.series import Series, iso
from v8.data.market.sources.live import LiveSource
from v8.model.baselines.paths import pooled
from v8.profile.tasks import TASKS
from v8.publish.report.markup import Html, element, facts, filled, folded, join, shown_table
from v8.publish.report.page import marked, row_of_cards, task_card
from v8.publish.report.verdict import RelativeError, TaskVerdict, is_tested, titled

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
            "shaded": say(
                "shaded: 9 of 10 times the price should stay within, {spans} from the newest candle on.",
                spans=spans,
            ),
            "ahead": say(
                "range ahead: 9 of 10 times the price should stay within, {spans} from the newest candle on.",
                spans=spans,
            ),
        }
        tested = pooled(row.price_range for row in snapshot.rows)
        measured = coverage_sentence(tested) if tested else ""
        return {name: f"{text} {measured}" for name, text in stated.items()}
    return {
        "shaded": say(
            "shaded: from the lowest to the highest forecast, {spans} from the newest candle on", spans=spans
        ),
        "ahead": say("range ahead: – for models that forecast no intervals"),
    }


def record_part(
    record: LiveRecord | None, series: Series, *, is_demo: bool = False, is_readable: bool = True
) -> Html:
    """Show the live record of a series, and of all series together; that of a demo market says why not."""
    if not is_readable:
        text = say("The live record cannot be read; the output of this server says why.")
        return element("p", text)
    if record:
        for live in record.series:
            if live.series == str(series):
                return filled(
                    "v8.annexes.live.app",
                    "record.html",
                    counts=_counts_text(live.counts),
                    errors=_record_of_series(live.tasks, record.tasks) if record.tasks else "",
                )
    return element("p", _no_record_of_demo_text() if is_demo else say("No live record yet."))


def _no_record_of_demo_text() -> str:
    return say("No live record: models of a simulated market cannot have one.")


def whole_record_part(
    record: LiveRecord | None,
    place: str = "",
    source: str = LiveSource.name,
    *,
    is_demo: bool = False,
    has_own_ledger: bool = False,
) -> Html:
    """Show the live record of all series, and how often their intervals held the actual values by day.

    Args:
        record: The record; None while there is none.
        place: The label of the models, see `ModelSnapshot`; the command that writes a record names them.
        source: Where the candles of the page come from, which that command names, too.
        is_demo: Whether the market is simulated, whose models cannot have a record.
        has_own_ledger: Whether another ledger than the default is shown; that command names one, too.
    """
    if record is None and is_demo:
        text = _no_record_of_demo_text()
        return element("p", text, data_status=text)
    if record is None:
        return _no_record_part(place, source, has_own_ledger=has_own_ledger)
    cards = ""
    if record.tasks:
        sentences = folded(say("The same in sentences"), _record_list(record.tasks))
        cards = join([row_of_cards(_record_cards(record.tasks)), sentences])
    parts = [_coverage(task, live.daily_coverage) for task, live in record.tasks.items()]
    return filled(
        "v8.annexes.live.app",
        "whole_record.html",
        sentence=" ".join(_record_sentences(record.tasks)),
        counts=_counts_text(record.counts),
        cards=cards,
        coverage=filled("v8.annexes.live.app", "coverage.html", parts=join(parts)) if any(parts) else "",
        table=_record_table(record),
    )


def _counts_text(counts: ForecastCounts) -> str:
    """Say how many forecasts were issued, and what became of them; what did not occur is left out."""
    scored = say("{n} scored", n=count(counts.num_scored))
    if counts.num_scored_late:
        late = count(counts.num_scored_late)
        scored = say("{n} scored ({late} of them issued too late)", n=count(counts.num_scored), late=late)
    parts = [say("{n} issued", n=count(counts.num_issued)), scored]
    if counts.num_pending:
        parts.append(say("{n} waiting for their actual values", n=count(counts.num_pending)))
    if counts.num_late:
        parts.append(say("{n} issued too late, which no error counts", n=count(counts.num_late)))
    if counts.num_void:
        parts.append(say("{n} without actual values for ever", n=count(counts.num_void)))
    return say("{parts}.", parts=say(", ").join(parts))


def _record_cards(tasks: Mapping[str, LiveTask]) -> Iterator[Html]:
    for task, live in tasks.items():
        best = RelativeError.of(live.best) if len(live.comparisons) > 1 else None
        yield task_card(TaskVerdict(task, RelativeError.of(live.naive), best, live.best.baseline))


def _record_of_series(own: Mapping[str, LiveTask], every: Mapping[str, LiveTask]) -> Html:
    """Show the errors of issued forecasts of a series in cards, and folded, beside those of all series."""
    both = facts([("This series", _record_list(own)), ("All series", _record_list(every))])
    return join(
        [row_of_cards(_record_cards(own)), folded(say("The same in sentences, and of all series"), both)]
    )


def _record_table(record: LiveRecord) -> Html:
    """Show the counts of each series, and the errors of each task relative to the naive forecast's."""
    tasks = list(record.tasks)
    rows = []
    for live in record.series:
        counts = live.counts
        cells: list[str] = [element("a", live.series, href=f"/series/{live.series}")]
        cells += [count(number) for number in (counts.num_issued, counts.num_scored, counts.num_pending)]
        for task in tasks:
            shown: str = ABSENT
            if task in live.tasks:
                naive = live.tasks[task].naive
                shown = marked(naive.relative_mae, naive.outcome, naive.name, naive.corrected_p_value)
            cells.append(shown)
        rows.append(cells)
    header = ["Series", "issued", "scored", "waiting", *["× naive"] * len(tasks)]
    groups = [("", 4), *((TASKS[task].title, 1) for task in tasks)] if tasks else []
    note = ""
    if tasks:
        note = say(
            "Error relative to that of the naive forecast: below 1 is better; in colour where it is "
            "significant."
        )
    return shown_table(Table(header, rows, note), groups=groups, class_="wrapped")


def _no_record_part(place: str, source: str, *, has_own_ledger: bool) -> Html:
    """Give the command that writes a record, and say what will be shown."""
    text = say("No live record yet.")
    run = run_name(place)
    words = ["--repo", place] if run is None else [f"runs/{run}"]
    if source != LiveSource.name:
        words += ["--source", source]
    if has_own_ledger:
        words += ["--ledger", "FILE"]
    line = element("code", command("forecast", *words, "--every"))
    after = say(
        "Here will stand how many forecasts were issued, their errors once the actual values are known, and "
        "how often the intervals held them. The first figures appear when the last bar of the first forecast "
        "has closed; errors are tested from {n} days on.",
        n=MIN_DAYS,
    )
    return join(
        [
            element("p", text, data_status=text),
            element("p", say("This command issues a forecast at each candle's close and writes it down:")),
            element("p", line, class_="copy"),
            element("p", say("FILE is the ledger that this page was started with."))
            if has_own_ledger
            else "",
            element("p", after),
        ]
    )


def _coverage(task: str, daily: DailyCoverage) -> Html:
    """Show the share of actual values in each interval by day, as a table that the script draws as well."""
    if not daily:
        return Html("")
    names = list(next(iter(daily.values())).num_inside)
    head = [element("th", say("day"), scope="col")]
    head += [element("th", say("in {name}", name=name), scope="col", data_nominal=name) for name in names]
    head.append(element("th", say("values"), scope="col"))
    rows = []
    for day_s in sorted(daily, reverse=True):
        coverage = daily[day_s]
        cells = [element("th", iso(day_s)[:10], scope="row", data_time=day_s)]
        for name in names:
            share = coverage.shares.get(name)
            cells.append(element("td", percent(share), data_value=None if share is None else f"{share:.5f}"))
        cells.append(element("td", count(coverage.num_actual_values)))
        rows.append(element("tr", *cells))
    table = element(
        "table",
        element("caption", say("{task}: actual values within the intervals, by day", task=titled(task))),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        class_="coverage",
    )
    shown = element("div", table, class_="scroll", data_more=say("scroll sideways for more →"))
    place = element("div", class_="coverage-place", hidden="hidden")
    return element("section", place, folded(say("{task}: coverage by day", task=titled(task)), shown))


def _record_sentences(tasks: Mapping[str, LiveTask]) -> list[str]:
    """Return the errors of issued forecasts per task, and how often intervals held the actual values."""
    sentences = []
    for task, live in tasks.items():
        naive = RelativeError.of(live.naive)
        best = RelativeError.of(live.best) if len(live.comparisons) > 1 else None
        days = plural(live.num_days, "day")
        parts = [
            str(TaskVerdict(task, naive, best)),
            say("{n} issued in time and scored, of {days}.", n=live.num_scored, days=days),
        ]
        if live.coverage:
            for name, share in live.coverage.shares.items():
                parts.append(say("Within {name}: {share}.", name=name, share=percent(share)))
        sentences.append(" ".join(parts))
    if not all(live.is_best_of_run for live in tasks.values()):
        sentences.append(own_baseline_sentence())
    return sentences or [say("No live record yet.")]


def _record_list(tasks: Mapping[str, LiveTask]) -> Html:
    return sentence_list(_record_sentences(tasks))


def sentence_list(sentences: Iterable[str]) -> Html:
    """Show sentences as a list of verdicts."""
    return element("ul", *(element("li", sentence) for sentence in sentences), class_="verdicts")
