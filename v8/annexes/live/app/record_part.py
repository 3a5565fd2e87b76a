"""The live record on pages: of one series, and of all with the coverage of their intervals by day."""

from collections.abc import Iterable, Iterator, Mapping

from v8.annexes.live.app.places import (
    run_name,
)
from v8.annexes.live.ledger.entries import DailyCoverage, ForecastCounts
from v8.annexes.live.ledger.record import MIN_DAYS, LiveRecord, LiveTask, own_baseline_sentence
from v8.base.process import command
from v8.base.wording import ABSENT, Table, count, percent, plural, say
from v8.data.market.series import Series, iso
from v8.data.market.sources.live import LiveSource
from v8.profile.tasks import TASKS
from v8.publish.report.first_screen import row_of_cards, task_card
from v8.publish.report.markup import Html, element, facts, filled, folded, join, shown_table
from v8.publish.report.page import marked
from v8.publish.report.verdict import RelativeError, TaskVerdict, titled


def record_part(record: LiveRecord | None, series: Series, *, is_demo: bool = False) -> Html:
    """Show the live record of a series, and of all series together; that of a demo market says why not."""
    for live in record.series if record else ():
        if record and live.series == str(series):
            return filled(
                "v8.annexes.live.app",
                "record.html",
                counts=_counts_text(live.counts),
                errors=_record_of_series(live.tasks, record.tasks) if record.tasks else "",
            )
    text = _no_record_of_demo_text() if is_demo else say("No live record yet.")
    return element("p", text)


def _no_record_of_demo_text() -> str:
    return say("No live record: models of a simulated market cannot have one.")


def whole_record_part(
    record: LiveRecord | None, place: str = "", source: str = LiveSource.name, *, is_demo: bool = False
) -> Html:
    """Show the live record of all series, and how often their intervals held the actual values by day.

    Args:
        record: The record; None while there is none.
        place: The label of the models, see `ModelSnapshot`; the command that writes a record names them.
        source: Where the candles of the page come from, which that command names, too.
        is_demo: Whether the market is simulated, whose models cannot have a record.
    """
    if record is None and is_demo:
        text = _no_record_of_demo_text()
        return element("p", text, data_status=text)
    if record is None:
        return _no_record_part(place, source)
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
    parts = [
        say("{n} issued", n=count(counts.num_issued)),
        say("{n} scored", n=count(counts.num_scored)),
    ]
    if counts.num_pending:
        parts.append(say("{n} waiting for their actual values", n=count(counts.num_pending)))
    if counts.num_late:
        parts.append(say("{n} issued too late, which no error counts", n=count(counts.num_late)))
    if counts.num_void:
        parts.append(say("{n} without actual values for ever", n=count(counts.num_void)))
    return say("{parts}.", parts=say(", ").join(parts))


def _record_cards(tasks: Mapping[str, LiveTask]) -> Iterator[Html]:
    for task, live in tasks.items():
        best = {live.best.baseline: RelativeError.of(live.best)} if len(live.comparisons) > 1 else {}
        yield task_card(task, RelativeError.of(live.naive), best)


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
            of_task = live.tasks.get(task)
            naive = of_task.naive if of_task else None
            shown: str = ABSENT
            if naive:
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


def _no_record_part(place: str, source: str) -> Html:
    """Give the command that writes a record, and say what will be shown."""
    text = say("No live record yet.")
    run = run_name(place)
    words = ["--repo", place] if run is None else [f"runs/{run}"]
    if source != LiveSource.name:
        words += ["--source", source]
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
            say("{n} scored of {days}.", n=live.num_scored, days=days),
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
