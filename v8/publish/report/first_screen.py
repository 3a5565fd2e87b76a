"""What a report shows first: the verdict on each task as two differences, beside candles and their forecasts.

The numbers are those of the verdicts that are stored with the series (`v8.model.evaluation.leaderboard`), as
medians over the series; nothing is computed another way here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from v8.base.errors import listed
from v8.base.wording import ABSENT, count, moment, percent, say, term
from v8.data.market.series import iso
from v8.forecaster.series_artifact import ForecastSample
from v8.model.baselines.baselines import BASELINES, NAIVE
from v8.model.evaluation.bootstrap import ErrorInterval
from v8.model.evaluation.leaderboard import BEST, LeaderboardRow, compared
from v8.model.evaluation.price_range import RANGE_SHARE, RangeCoverage, pooled
from v8.model.evaluation.significance import ALPHA, is_equal
from v8.profile.columns import interval_names
from v8.profile.tasks import TASKS
from v8.publish.report import figures
from v8.publish.report.candle_chart import candle_chart
from v8.publish.report.markup import Html, element, facts, filled, join, plot
from v8.publish.report.verdict import (
    RelativeError,
    best_baselines_in_words,
    best_in_words,
    scope_of,
    source_in_words,
    titled,
)


def first_screen(
    rows: Sequence[LeaderboardRow],
    sample: ForecastSample | None,
    others: Sequence[str] = (),
    intervals: Mapping[str, ErrorInterval] | None = None,
) -> Html:
    """Return the first screen of a report of at least one evaluated series.

    Args:
        rows: The leaderboard.
        sample: Candles and forecasts of one series; None without stored forecasts.
        others: Names of the series whose charts can be chosen instead, see `candle_chart`.
        intervals: By task that of the error relative to the best baseline's, see `headline_intervals`.
    """
    compared_tasks = {task for task, _ in compared(rows)}
    return filled(
        "v8.publish.report",
        "opening.html",
        scope=scope_of(rows),
        candles_of=_candles_of(rows),
        cards=join(task_cards(rows, intervals or {})),
        price_range=_price_range(rows),
        candles=_candles(rows, sample, others) if sample else "",
        charts=join(plot(chart, chart.title) for chart in figures.verdict_figures(rows)),
        tasks=facts((titled(task), term(TASKS[task].sentence)) for task in TASKS if task in compared_tasks),
        alpha=percent(ALPHA, 0),
    )


def _candles_of(rows: Sequence[LeaderboardRow]) -> str:
    """Say whose candles were evaluated, and from when to when."""
    spans = [row.split["test"] for row in rows if "test" in row.split]
    if not spans:
        return ""
    return say(
        "Candles: {source}, test spans from {first} to {last}.",
        source=listed(sorted({source_in_words(row.source) for row in rows})),
        first=min(span["first_open"] for span in spans)[:10],
        last=max(span["last_open"] for span in spans)[:10],
    )


def _candles(rows: Sequence[LeaderboardRow], sample: ForecastSample, others: Sequence[str]) -> Html:
    is_demo = any(row.is_demo for row in rows)
    return candle_chart(sample, sample_note(sample), others, is_demo=is_demo)


def task_cards(rows: Sequence[LeaderboardRow], intervals: Mapping[str, ErrorInterval]) -> Iterator[Html]:
    """Show the verdict on each task, in the order of `TASKS`: what is of most use comes first.

    Args:
        rows: The leaderboard.
        intervals: By task that of the error relative to the best baseline's, see `headline_intervals`.
    """
    errors: dict[str, dict[str, RelativeError]] = {}
    for (task, name), comparisons in compared(rows).items():
        error = RelativeError.of(*comparisons.values())
        interval = None if name == NAIVE else intervals.get(task)
        errors.setdefault(task, {})[name] = replace(error, interval=interval)
    names = best_baselines_in_words(rows)
    for task, of_task in errors.items():
        yield task_card(task, of_task.pop(NAIVE), of_task, names)


def task_card(
    task: str, naive: RelativeError, others: Mapping[str, RelativeError], best_names: str = ""
) -> Html:
    """Return a card with the verdict on a task, in figures.

    Args:
        task: Name of the task.
        naive: The error relative to the naive forecast's.
        others: The errors relative to the best baselines', by the name of each, or `BEST`.
        best_names: Which baselines `BEST` stands for, for a pointer.
    """
    chips = [_chip(naive), *map(_chip, others.values())]
    # What is the same for both is written once, below them.
    shared: list[Html] = []
    if len(chips) > 1 and len(set(chips)) == 1:
        shared = chips[:1]
        chips = [Html()] * len(chips)
    figures_of_task = [_figure(naive, say("the naive forecast"), chips[0], _assumption(NAIVE))]
    for (name, error), chip in zip(others.items(), chips[1:], strict=True):
        meaning = best_names if name == BEST else _assumption(name)
        other = best_in_words(name, is_below_naive=error.is_below(naive), has_key=False)
        figures_of_task.append(_figure(error, other, chip, meaning))
    if not others:
        nothing = say("No baseline is better than the naive forecast.")
        figures_of_task.append(element("p", nothing, class_="soft"))
    # A class: the policy of the app allows no style in an element.
    title = element("h2", titled(task), class_=f"task-{TASKS[task].colour}")
    return element("section", title, element("div", *figures_of_task), *shared, class_="card")


def row_of_cards(cards: Iterable[Html]) -> Html:
    """Put cards side by side."""
    return element("div", *cards, class_="cards row")


def _assumption(name: str) -> str | None:
    """Say what a baseline assumes, for a pointer; None where its name is not known."""
    baseline = BASELINES.get(name)
    return term(baseline.sentence) if baseline else None


def _figure(error: RelativeError, other: str, chip: Html, title: str | None = None) -> Html:
    """Show a difference of errors in per cent, and whose error the other one is; then comes its chip."""
    multiple = error.multiple
    if multiple is None or is_equal(multiple, 1.0):
        label = say("compared with {other}", other=other)
    else:
        label = say("than {other}", other=other)
    strong = element("strong", change(multiple), class_=_style(error))
    certainty = element("span", error.certainty) if error.certainty else ""
    return element("div", strong, element("span", label, title=title), chip, certainty, class_="figure")


def _chip(error: RelativeError) -> Html:
    """Say whether a difference is significant; empty where there is no difference."""
    if not error.significance:
        return Html()
    # Its mark is filled where most series differ significantly, and half where some do.
    part = " some" if error.is_of_some and not error.is_of_most else ""
    return element("span", error.significance, class_=f"chip {_style(error)}{part}")


def _style(error: RelativeError) -> str:
    """Return the CSS class of a difference: it has a colour where most series differ significantly."""
    if not error.is_of_most:
        return "unclear"
    return "better" if (error.multiple or 1.0) < 1.0 else "worse"


def change(multiple: float | None) -> Html:
    """Write by how many per cent an error is lower or higher than another, given their ratio.

    The direction is a word: a sign alone reads as a gain where the error is higher.

    >>> change(0.854), change(1.0204)
    ('14.6 %<small>lower error</small>', '2.0 %<small>higher error</small>')
    >>> change(1.0), change(1.0003), change(None)
    ('<small>the same error</small>', '&lt; 0.1 %<small>higher error</small>', '–')
    """
    if multiple is None:
        return join([ABSENT])
    if is_equal(multiple, 1.0):
        return element("small", say("the same error"))
    direction = say("lower error") if multiple < 1.0 else say("higher error")
    return join([figures.amount(figures.change_pct(multiple)), element("small", direction)])


def _price_range(rows: Sequence[LeaderboardRow]) -> Html:
    """Say how often all bars ahead stayed within the range of prices; empty where that is not evaluated."""
    coverage = pooled(row.price_range for row in rows)
    if coverage is None:
        return Html()
    words, style = _range_verdict(coverage)
    sentence = say(
        "In {share} of {num} forecasts all bars ahead stayed inside the forecast range, "
        "which should hold them in {stated}: {verdict}.",
        share=percent(coverage.share),
        num=count(coverage.num_windows),
        stated=percent(RANGE_SHARE, 0),
        verdict=words,
    )
    strong = element("strong", percent(coverage.share), class_=style)
    figure = element("div", strong, element("span", sentence), class_="figure")
    return element("section", element("h2", say("Range of prices")), figure, class_="card")


def _range_verdict(coverage: RangeCoverage) -> tuple[str, str]:
    """Compare a share of windows with the stated one: in words, and the CSS class for it.

    They differ clearly beyond two standard errors.
    """
    if not coverage.has_enough_windows:
        return say("too few windows to tell"), "unclear"
    if coverage.is_too_narrow:
        return say("too narrow here"), "worse"
    if coverage.share > RANGE_SHARE + 2.0 * coverage.standard_error:
        return say("wider than needed here"), "unclear"
    return say("about as often as stated"), "unclear"


def sample_note(sample: ForecastSample) -> str:
    """Say what the chart of a sample shows."""
    num_steps = len(next(iter(sample.issued[0].values.values())))
    every = say("every bar") if num_steps == 1 else say("every {num} bars", num=num_steps)
    note = say(
        "Newest {num} candles of the test span, {first} to {last} UTC. A forecast was issued {every}. "
        "A flat line is an honest forecast of a close, which moves almost at random.",
        num=len(sample.open_time_s),
        first=moment(iso(sample.open_time_s[0])),
        last=moment(iso(sample.open_time_s[-1])),
        every=every,
    )
    names = interval_names(sample.levels)
    if not names:
        return note
    intervals = say(
        "The shaded areas are the {names} interval of the close: that share of the actual closes should lie "
        "within it.",
        names=say(" and ").join(names),
    )
    return f"{note} {intervals}"
