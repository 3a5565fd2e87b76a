"""The leaderboard and how good intervals were, as tables, for reports and the page of the present."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from v8.formulas.baselines import NAIVE, called
from v8.losses.judgement import MODEL, JudgedQuantiles, QuantileJudgement
from v8.losses.leaderboard import LeaderboardRow, SeriesResult, TaskSummary, Wins, median, summarise
from v8.losses.table import BEATS, LOSES, Against
from v8.quantile_levels import intervals, nominal, percent_of
from v8.tables import Table
from v8.tasks import TASKS
from v8.views.markup import Html, element, join, shown_table
from v8.wording import ABSENT, duration, epochs, number, p_value, percent, spaced

MARK: Final = "●"
"""Stands beside a number that differs from 1 by more than chance."""

LEADERBOARD_NOTE: Final = (
    "The model's mean absolute error on the test span, over all steps and columns, in returns, as a "
    "multiple of that of the forecast named above it: below 1 it is the smaller one. Ordered by the "
    f"candles' multiple of naive, best first. {MARK}, in blue or orange: better or worse by more than "
    "chance; without it there is no real difference. The best baseline "
    "of a task is the forecast without a network whose multiple of naive has the smallest median over "
    "these series."
)


def summary_cards(rows: Sequence[LeaderboardRow]) -> Html:
    """Show one card a task: the median beside naive and the best baseline, and how many beat them."""
    cards = (
        element("div", element("h3", TASKS[task].title), *map(_said_of, summary.shown))
        for task, summary in summarise(rows).items()
    )
    return element("div", *cards, class_="cards")


def _said_of(wins: Wins) -> Html:
    is_naive = wins.name == called(NAIVE)
    beside = "the naive forecast" if is_naive else f"{spaced(wins.name)}, the best baseline"
    counts = (
        f"Of {wins.num_series}, {wins.num_beating} beat it and {wins.num_losing} lose to it by more than "
        f"chance; {wins.num_undecided} without a real difference."
    )
    lead = element("b", f"× {number(wins.median_multiple)}")
    return join([element("p", lead, beside, class_="lead"), element("p", counts)])


def multiples_table(rows: Sequence[LeaderboardRow], link: str) -> Html:
    """Show one line a series, of at least one, the median first; `link` has `{}` in place of its name."""
    summaries = summarise(rows)
    groups = [("", 1), *((TASKS[task].title, len(one.shown)) for task, one in summaries.items()), ("", 3)]
    compared = [f"× {spaced(wins.name)}" for summary in summaries.values() for wins in summary.shown]
    head = ["Series", *compared, "direction, step 1", "best epoch", "time"]
    cells = [_median_cells(rows), *(_cells(row, summaries, link) for row in rows)]
    return shown_table(Table(head, cells), groups=groups, class_="wrapped")


def verdicts(rows: Sequence[LeaderboardRow]) -> Html:
    """Fold away one line a comparison: what the leaderboard tells by colour and mark, in words and digits."""
    head = ["Series", "task", "× error", "skill", "verdict", "p", "p, corrected"]
    cells = (
        [row.series, TASKS[task].title, *_compared(against)]
        for row in rows
        for task, score in row.tasks.items()
        for against in score.shown
    )
    note = (
        "Skill is 1 minus the multiple. p: chance of a difference this large if there were none "
        f"(Diebold-Mariano), corrected for {len(rows)} series at once (Benjamini-Hochberg). The same "
        "numbers, and the 95 % intervals of direction, are in leaderboard.csv."
    )
    title = element("summary", "Verdicts and p-values")
    return element("details", title, element("p", note, class_="soft"), shown_table(Table(head, cells)))


def interval(ends: tuple[float, float] | None) -> str:
    """Write both ends of an interval of shares."""
    return ABSENT if ends is None else " to ".join(map(percent, ends))


def _median_cells(rows: Sequence[LeaderboardRow]) -> list[str]:
    cells = ["median"]
    for summary in summarise(rows).values():
        cells += [number(wins.median_multiple) for wins in summary.shown]
    best, run = (median(getattr(row, name) for row in rows) for name in ("best_epoch", "epochs_run"))
    cells += [percent(median(row.hit_rate for row in rows)), epochs(best or 0, run or 0)]
    return [*cells, duration(median(row.seconds for row in rows))]


def _cells(row: LeaderboardRow, summaries: Mapping[str, TaskSummary], link: str) -> list[str]:
    cells: list[str] = [element("a", row.series, href=link.format(row.series))]
    for task, summary in summaries.items():
        score = row.tasks.get(task)
        lacking = ["no such task", *[ABSENT] * (len(summary.shown) - 1)]
        cells += map(_multiple_cell, score.shown) if score else lacking
    cells.append(element("span", percent(row.hit_rate), title=f"95 %: {interval(row.hit_rate_95)}"))
    return [*cells, epochs(row.best_epoch, row.epochs_run), duration(row.seconds)]


def _multiple_cell(against: Against) -> Html:
    """Show a multiple, coloured and marked where it is better or worse and no luck; a pointer finds p."""
    style = {BEATS: "better", LOSES: "worse"}.get(against.outcome)
    mark = element("span", MARK if against.is_significant else "", class_="mark")
    said = f"{against.verdict}, corrected p {p_value(against.corrected_p_value)}"
    return element("span", number(against.multiple), mark, class_=style, title=said)


def _compared(against: Against) -> list[str]:
    numbers = [number(against.multiple), number(against.skill)]
    return [*numbers, against.verdict, p_value(against.p_value), p_value(against.corrected_p_value)]


def named_intervals(levels: Sequence[float]) -> str:
    """Name the central intervals among levels: "90 % and 50 %"; nothing where there are none.

    >>> named_intervals([0.05, 0.25, 0.5, 0.75, 0.95])
    '90 % and 50 %'
    """
    return " and ".join(f"{percent_of(nominal(pair))} %" for pair in intervals(levels))


def interval_tables(judged: QuantileJudgement | None) -> Iterator[Html]:
    """Show how the quantiles of one series did, beside those of the baselines."""
    if judged is None:
        return
    yield element("h3", "Quantiles and intervals")
    note = (
        "CRPS is twice the mean pinball loss over the levels, in returns: what the mean absolute error is "
        "for one number. Within: how many of the truths lay in the interval; width: its mean, in returns."
    )
    yield element("p", note, class_="soft")
    each = [f"{what} {name}" for name in judged.named_intervals() for what in ("within", "width of")]
    head = ["", "CRPS", *each, "model's CRPS ÷ its", "p of it"]
    for task, about in judged.tasks.items():
        title = f"{TASKS[task].title}, over all steps"
        yield shown_table(Table(head, _rows(judged, about), title))
    num_steps = len(next(iter(judged.tasks.values())).errors[MODEL].pinball[0])
    by_step = [_step_cells(judged, task, step) for task in judged.tasks for step in range(num_steps)]
    yield shown_table(Table(["task and step", *_within(judged)], by_step, "The model's, step by step"))


def interval_summary(results: Sequence[SeriesResult]) -> str:
    """Write the medians over series as a table in Markdown; nothing where none has quantiles."""
    judged = [result.quantiles for result in results if result.quantiles]
    if not judged:
        return ""
    first, rows = judged[0], []
    for task, about in first.tasks.items():
        those = [one.tasks[task] for one in judged if one.levels == first.levels and task in one.tasks]
        for name in about.errors:
            errors = [one.errors[name] for one in those if name in one.errors]
            within = [
                percent(median(each.mean_coverage(at) for each in errors))
                for at in range(len(first.named_intervals()))
            ]
            crps = number(median(one.errors[name].crps / one.errors[MODEL].crps for one in those))
            rows.append((TASKS[task].title, spaced(name), crps, *within))
    return Table(("task", "forecaster", "CRPS, model = 1", *_within(first)), rows).markdown()


def _within(judged: QuantileJudgement) -> list[str]:
    return [f"within {name}" for name in judged.named_intervals()]


def _rows(judged: QuantileJudgement, about: JudgedQuantiles) -> Iterator[list[str]]:
    for name, errors in about.errors.items():
        cells = [spaced(name), percent(errors.crps, 4)]
        for place in range(len(judged.named_intervals())):
            cells += [percent(errors.mean_coverage(place)), percent(errors.mean_width(place), 3)]
        is_model = name == MODEL
        multiple = None if is_model else about.multiple(name)
        yield [*cells, number(multiple), p_value(None if is_model else about.significance[name].p_value)]


def _step_cells(judged: QuantileJudgement, task: str, step: int) -> list[str]:
    errors = judged.tasks[task].errors[MODEL]
    within = [percent(errors.coverage_by_step(place)[step]) for place in range(len(judged.named_intervals()))]
    return [f"{TASKS[task].title}, {step + 1}", *within]
