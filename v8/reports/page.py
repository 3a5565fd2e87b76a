"""The report of a run as one self-contained page, `report.html`.

Nothing is fetched: style and charts are inline and a content policy forbids the rest. All text passes
through `v8.reports.markup`, which escapes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from v8.evaluation.baselines import BASELINES, NAIVE
from v8.reports.charts import skill_bar
from v8.reports.leaderboard import LeaderboardRow, LeaderboardSummary, TaskScore, rank_results, summarise
from v8.reports.markup import Html, element, facts, join, table
from v8.reports.page_style import STYLE
from v8.reports.results import History, RunFacts, SeriesResult, read_results, read_run_facts
from v8.reports.series_section import series_section
from v8.reports.wording import ABSENT, TASK_TITLES, count, duration, number, percent
from v8.storage import write_text

DEMO_WARNING: Final = "Simulated market: these numbers say nothing about real coins."

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_LONGEST_BAR_SKILL: Final = 1.0


def write_run_report(
    path: Path,
    run: Mapping[str, Any],
    metadata: Sequence[Mapping[str, Any]],
    histories: Mapping[str, History] | None = None,
) -> None:
    """Write the page of a run, atomically.

    Args:
        path: Where to; replaced when it exists.
        run: The content of `run.json`, with the keys that `v8.reports.results` lists.
        metadata: The content of each finished series' `metadata.json`, in any order.
        histories: Per series, epochs for its learning curve (see `v8.reports.results.read_history`);
            a series without them is shown without the curve.

    Raises:
        ArtifactError: If a key is missing or damaged, or a series comes twice.
    """
    write_text(path, run_page(read_run_facts(run), read_results(metadata), histories or {}))


def run_page(run: RunFacts, results: Sequence[SeriesResult], histories: Mapping[str, History]) -> Html:
    """Return the whole page; see `write_run_report`."""
    rows = rank_results(results)
    by_name = {result.series: result for result in results}
    sections = (series_section(by_name[row.series], histories.get(row.series, ())) for row in rows)
    body = join(
        [
            _banner(run, results),
            element("h1", f"Run of profile {run.profile_name}"),
            _opening(run, rows),
            _failures(run),
            _leaderboard(rows),
            _reading_guide(),
            element("h2", "Series") if rows else Html(),
            *sections,
            _provenance(run),
        ]
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", f"v8 run: {run.profile_name}"),
        element("style", STYLE),
    )
    page = element("html", head, element("body", element("main", body)), lang="en")
    return join([Html("<!DOCTYPE html>\n"), page, "\n"])


def _banner(run: RunFacts, results: Iterable[SeriesResult]) -> Html:
    if run.is_demo or any(result.is_demo for result in results):
        return element("p", DEMO_WARNING, class_="banner", role="alert")
    return Html()


def _opening(run: RunFacts, rows: Sequence[LeaderboardRow]) -> Html:
    sentences = [f"{len(rows)} of {len(run.statuses)} series are finished."]
    if run.reasons:
        sentences.append(f"{len(run.reasons)} failed.")
    for task, summary in summarise(rows).tasks.items():
        sentences.append(
            f"{TASK_TITLES[task]}: {summary.num_beating} of {summary.num_series} beat the naive forecast; "
            f"the median error is {number(summary.median_multiple)} times its error."
        )
    return element("p", " ".join(sentences))


def _failures(run: RunFacts) -> Html:
    if not run.reasons:
        return Html()
    content = table(["Series", "Reason"], sorted(run.reasons.items()), class_="reasons")
    return join([element("h2", "Failed series"), content])


def _leaderboard(rows: Sequence[LeaderboardRow]) -> Html:
    if not rows:
        return Html()
    summary = summarise(rows)
    head = ["Series"]
    for task in summary.tasks:
        head += [f"{TASK_TITLES[task]}: error ÷ naive", "skill", "verdict"]
    head += ["direction, step 1", "95 %", "best epoch", "epochs", "time"]
    limit = _bar_limit(rows)
    body = [_median_cells(summary), *(_row_cells(row, summary.tasks, limit) for row in rows)]
    note = (
        "Mean absolute error on the test span, over all steps and columns, in returns. Ordered by the "
        f"candles' error ÷ naive, best first. Longest bar: a skill of {limit:.3g}."
    )
    return join([element("h2", "Leaderboard"), table(head, body, caption=note)])


def _median_cells(summary: LeaderboardSummary) -> list[str]:
    cells = ["median"]
    for task in summary.tasks.values():
        cells += [number(task.median_multiple), number(task.median_skill)]
        cells.append(f"{task.num_beating} of {task.num_series} beat naive")
    cells += [percent(summary.hit_rate), "", count(summary.best_epoch), count(summary.epochs_run)]
    return [*cells, duration(summary.seconds)]


def _row_cells(row: LeaderboardRow, tasks: Iterable[str], limit: float) -> list[str]:
    cells: list[str] = [row.series]
    for task in tasks:
        cells += _score_cells(row.tasks.get(task), limit)
    interval = row.hit_rate_95
    cells += [percent(row.hit_rate), ABSENT if interval is None else " to ".join(map(percent, interval))]
    return [*cells, str(row.best_epoch), str(row.epochs_run), duration(row.seconds)]


def _score_cells(score: TaskScore | None, limit: float) -> list[str]:
    if score is None:
        return [ABSENT, ABSENT, "no such task"]
    bar = Html() if score.skill is None else skill_bar(score.skill, limit)
    return [number(score.multiple), join([bar, number(score.skill)]), score.verdict]


def _bar_limit(rows: Iterable[LeaderboardRow]) -> float:
    """Return the largest skill in size, up to 1, so that one bad series does not flatten all others."""
    skills = [abs(score.skill) for row in rows for score in row.tasks.values() if score.skill is not None]
    return min(_LONGEST_BAR_SKILL, max(skills, default=0.0)) or _LONGEST_BAR_SKILL


def _reading_guide() -> Html:
    baselines = facts((name.replace("_", " "), baseline.sentence) for name, baseline in BASELINES.items())
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
                "Direction counts windows in which both forecast and truth moved. Windows overlap, so its "
                "95 % interval is narrower than it should be. “Beats naive” compares two averages on one "
                "test span and claims no statistical significance. None of this is advice to trade.",
            ),
            baselines,
        ]
    )


def _provenance(run: RunFacts) -> Html:
    pairs = [
        ("candle source", run.source),
        ("started", run.created_at),
        ("command", run.command),
        ("profile digest", run.profile_digest),
        *((f"version of {name}", str(value)) for name, value in run.versions.items()),
        *((f"machine: {name.replace('_', ' ')}", str(value)) for name, value in run.machine.items()),
    ]
    return join([element("h2", "Where these numbers come from"), facts(pairs)])
