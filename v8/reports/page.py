"""The report of a run as one self-contained page, `report.html`.

All text passes through `v8.reports.markup`, which escapes it; `v8.reports.document` makes the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from v8.artifacts.run_folder import RunRecord
from v8.evaluation.baselines import BASELINES, NAIVE
from v8.evaluation.significance import ALPHA
from v8.reports.charts import skill_bar
from v8.reports.document import document, plot
from v8.reports.figures import multiples_figure, stage_figure
from v8.reports.leaderboard import (
    LeaderboardRow,
    TaskScore,
    TaskSummary,
    median,
    rank_results,
    summarise,
)
from v8.reports.markup import Html, element, facts, join, table
from v8.reports.results import SeriesResult
from v8.tasks import TASKS
from v8.wording import ABSENT, count, duration, number, p_value, percent

DEMO_WARNING: Final = "Simulated market: these numbers say nothing about real coins."

_LONGEST_BAR_SKILL: Final = 1.0


def run_page(run: RunRecord, results: Sequence[SeriesResult], sections: Mapping[str, Html]) -> Html:
    """Return the whole page.

    Args:
        run: The run.
        results: Its finished series, in any order.
        sections: Each one's `series_section`.
    """
    rows = rank_results(results)
    by_name = {result.series: result for result in results}
    ranked = [by_name[row.series] for row in rows]
    body = join(
        [
            _banner(run, results),
            element("h1", f"Run of profile {run.profile_name}"),
            _opening(run, rows),
            _failures(run),
            _leaderboard(rows),
            _reading_guide(results),
            element("h2", "Series") if rows else Html(),
            *(sections[row.series] for row in rows),
            _time(ranked),
            _provenance(run),
        ]
    )
    return document(f"v8 run: {run.profile_name}", body)


def _banner(run: RunRecord, results: Iterable[SeriesResult]) -> Html:
    if not run.is_publishable or any(result.is_demo for result in results):
        return element("p", DEMO_WARNING, class_="banner", role="alert")
    return Html()


def _opening(run: RunRecord, rows: Sequence[LeaderboardRow]) -> Html:
    failed = f" {len(run.reasons)} failed." if run.reasons else ""
    state = f"{len(rows)} of {len(run.series)} series are finished.{failed}"
    cards = (_card(task, summary) for task, summary in summarise(rows).items())
    return join([element("p", state), element("div", *cards, class_="cards")])


def _card(task: str, summary: TaskSummary) -> Html:
    said = (
        f"times the naive forecast's error, median of {summary.num_series} series. "
        f"{summary.num_beating} beat it, {summary.num_significantly_beating} by more than chance; "
        f"{summary.num_significantly_losing} lose to it by more than chance."
    )
    return element(
        "div",
        element("h3", TASKS[task].title),
        element("b", number(summary.median_multiple)),
        element("p", said),
    )


def _failures(run: RunRecord) -> Html:
    if not run.reasons:
        return Html()
    content = table(["Series", "Reason"], sorted(run.reasons.items()), class_="reasons")
    return join([element("h2", "Failed series"), content])


def _leaderboard(rows: Sequence[LeaderboardRow]) -> Html:
    if not rows:
        return Html()
    tasks = list(summarise(rows))
    head = ["Series"]
    for task in tasks:
        head += [f"{TASKS[task].title} ÷ naive", "skill", "verdict", "p, corrected"]
    head += ["direction, step 1", "95 %", "best epoch", "epochs", "time"]
    limit = _bar_limit(rows)
    body = [_median_cells(rows), *(_row_cells(row, tasks, limit) for row in rows)]
    note = (
        "Mean absolute error on the test span, over all steps and columns, in returns. Ordered by the "
        f"candles' error ÷ naive, best first. Longest bar: a skill of {limit:.3g}. p: chance of a "
        f"difference to naive this large if there were none (Diebold-Mariano), corrected for {len(rows)} "
        "series at once (Benjamini-Hochberg)."
    )
    return join(
        [
            element("h2", "Leaderboard"),
            _multiples(rows),
            element("p", note, class_="soft"),
            table(head, body, class_="wrapped"),
        ]
    )


def _multiples(rows: Sequence[LeaderboardRow]) -> Html:
    label = (
        "Mean absolute error as a multiple of the naive forecast's: left of 1 is better. Filled dots differ "
        f"from 1 by more than chance (corrected p below {ALPHA:g}), hollow ones may be luck."
    )
    return plot(multiples_figure(rows, x_title="error ÷ naive error"), label)


def _median_cells(rows: Sequence[LeaderboardRow]) -> list[str]:
    cells = ["median"]
    for task in summarise(rows).values():
        cells += [number(task.median_multiple), number(task.median_skill)]
        cells.append(f"{task.num_beating} of {task.num_series} beat naive")
        cells.append(f"{task.num_significantly_beating} better, {task.num_significantly_losing} worse")
    epochs = (median(row.best_epoch for row in rows), median(row.epochs_run for row in rows))
    cells += [percent(median(row.hit_rate for row in rows)), "", *map(count, epochs)]
    return [*cells, duration(median(row.seconds for row in rows))]


def _row_cells(row: LeaderboardRow, tasks: Iterable[str], limit: float) -> list[str]:
    cells: list[str] = [element("a", row.series, href=f"#{row.series}")]
    for task in tasks:
        cells += _score_cells(row.tasks.get(task), limit)
    interval = row.hit_rate_95
    cells += [percent(row.hit_rate), ABSENT if interval is None else " to ".join(map(percent, interval))]
    return [*cells, str(row.best_epoch), str(row.epochs_run), duration(row.seconds)]


def _score_cells(score: TaskScore | None, limit: float) -> list[str]:
    if score is None:
        return [ABSENT, ABSENT, "no such task", ABSENT]
    bar = Html() if score.skill is None else skill_bar(score.skill, limit)
    p = p_value(score.corrected_p_value)
    is_sure = element("b", p) if score.is_significant else p
    return [number(score.multiple), join([bar, number(score.skill)]), score.verdict, is_sure]


def _bar_limit(rows: Iterable[LeaderboardRow]) -> float:
    """Return the largest skill in size, up to 1, so that one bad series does not flatten all others."""
    skills = [abs(score.skill) for row in rows for score in row.tasks.values() if score.skill is not None]
    return min(_LONGEST_BAR_SKILL, max(skills, default=0.0)) or _LONGEST_BAR_SKILL


def _reading_guide(results: Iterable[SeriesResult]) -> Html:
    shown = {name for one in results for errors in one.judgement.errors.values() for name in errors}
    baselines = facts(
        (name.replace("_", " "), baseline.sentence) for name, baseline in BASELINES.items() if name in shown
    )
    return join(
        [
            element("h2", "How to read this"),
            element(
                "p",
                f"Every error stands beside forecasts that need no training. The naive one is "
                f"“{NAIVE.replace('_', ' ')}”. Skill is 1 minus the error divided by the naive error: 1 is "
                "perfect, 0 is naive, negative is worse than naive. The close of a coin is close to a random "
                "walk, so 1.000 times naive is an honest result for it; ranges, bands and volatility can be "
                "forecast better.",
            ),
            element(
                "p",
                "“Beats naive” compares two averages on one test span; p says how often chance alone would "
                "part them as far. Windows overlap, so the test reckons with errors that move together, "
                "and with many tests at once. Direction counts windows in which both forecast and truth "
                "moved; its 95 % interval takes them for the fewer independent ones they are worth. "
                "None of this is advice to trade.",
            ),
            baselines,
        ]
    )


def _time(results: Sequence[SeriesResult]) -> Html:
    if not results:
        return Html()
    figure = stage_figure({result.series: result.seconds for result in results})
    label = "Wall time per stage and series, in seconds; members of one fleet share its time evenly."
    return join([element("h2", "Time per stage"), plot(figure, label)])


def _provenance(run: RunRecord) -> Html:
    pairs = [
        ("candle source", run.source),
        ("started", run.created_at),
        ("command", run.command),
        ("profile digest", run.profile_digest),
        *((f"version of {name}", str(value)) for name, value in run.versions.items()),
        *((f"machine: {name.replace('_', ' ')}", str(value)) for name, value in run.machine.items()),
    ]
    return join([element("h2", "Where these numbers come from"), facts(pairs)])
