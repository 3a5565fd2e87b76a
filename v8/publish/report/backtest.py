"""The headline, the tables and the page of a back-test, as the terminal and `backtest.html` show them.

`v8.model.evaluation.fold_losses` computes the figures and `v8.runs.backtest` reads them; here they
are only shown. `backtest.json` holds everything. `backtest.html` opens with the verdict over all folds and
folds the details away.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from v8.base.errors import MAX_LISTED, ArtifactError
from v8.base.records import read_json_object
from v8.base.storage import write_json, write_text
from v8.base.wording import (
    ABSENT,
    Table,
    between,
    digits,
    language,
    number,
    p_value,
    percent,
    plural,
    say,
    spaced,
    term,
)
from v8.model.evaluation import fold_losses
from v8.model.evaluation.bootstrap import ErrorInterval
from v8.model.evaluation.fold_losses import CellGroup, SeedSpread, TaskResult
from v8.model.evaluation.significance import ALPHA, BEATS, LOSES
from v8.profile.tasks import TASKS
from v8.publish.report.charts import plot
from v8.publish.report.figures import Dot, change_pct, spread_figure
from v8.publish.report.markup import Html, document, element, facts, filled, folded, join, shown_table
from v8.publish.report.page import marked, row_of_cards, task_card
from v8.publish.report.verdict import (
    TaskVerdict,
    baseline_in_words,
    best_first,
    in_words,
    source_in_words,
    titled,
)
from v8.runs.backtest import RESULTS_FILE, BacktestPlan, BacktestResults

PAGE_FILE: Final = "backtest.html"
_ADDED: Final = "sections"  # key of `backtest.json`: names of the flags that added sections to the page

_FOR_TERMINAL: Final = ("fold", "task", "model", "best baseline", "× best", "smaller", "p")
"""Columns of the terminal's tables, of 80 letters. The page adds verdicts, which sentences above the tables
give for all folds, every baseline, the shock and the quantiles."""

QUANTILE_NOTE: Final = (
    "CRPS: twice the mean pinball loss over the levels, relative to another forecaster's; below 1 the "
    "model's quantiles are better. In 90 %: share of the actual values within that interval, over all steps "
    "and columns. Medians over series."
)

NOTE: Final = (
    "Medians over series of the mean absolute error, in returns, relative to the naive forecast's. The best "
    "baseline of a task was chosen once, on validation spans of the archive, so that it is the same in every "
    "back-test. p: probability of such a difference from it if both were equally good (Diebold-Mariano on "
    "the closes that all series share, Benjamini-Hochberg over the table); "
    f"from {ALPHA:g} on the difference is not significant. Smaller: series and folds in which the model's "
    "error is the smaller one, significantly or not."
)

BREAK_RULE: Final = (
    "A fold is a break in volatility where the wildest of the n days after its train span (root mean square "
    f"range of a day's bars) exceeds the 1 - {fold_losses.WILD_DAYS:g} / n quantile of its train days by a "
    f"factor, its shock, above {fold_losses.BREAK_FACTOR:g}, at the median over series."
)

TaskResults = Mapping[str, TaskResult]
"""The result of each task, by the task's name."""


def write_backtest(
    path: Path, results: BacktestResults, sections: Mapping[str, Html] | None = None
) -> list[Path]:
    """Write `backtest.json` and `backtest.html` into a folder; return the files.

    Each is written atomically.

    Args:
        path: The folder.
        results: What is written.
        sections: Further sections of the page, by the names of the flags that add them.
    """
    added = dict(sections or {})
    json_file = path / RESULTS_FILE
    page_file = path / PAGE_FILE
    write_json(json_file, {**results.to_json(), _ADDED: list(added)})
    with language():
        write_text(page_file, backtest_page(results, list(added.values())))
    return [json_file, page_file]


def added_sections(path: Path) -> list[str]:
    """Return by which flags the page of a back-test was extended when it was last written."""
    try:
        content = read_json_object(path / RESULTS_FILE, fix="Repeat the back-test")
    except ArtifactError:  # there is none yet, or it is damaged: it will be written anew
        return []
    return [str(name) for name in content.get(_ADDED) or ()]


def headline(results: BacktestResults) -> str:
    """Say what the back-test covers, how many models are evaluated, and which folds are incomplete."""
    plan = results.plan
    shares = results.evaluated
    num_models = sum(num for _, num in shares.values())
    absences = ""
    if num_models < len(plan.folds) * len(plan.series):
        absences = say(
            " {all} would be {num}, but series had no candles yet, or too few, in some folds: {series}.",
            all=f"{len(plan.folds)} × {len(plan.series)}",
            num=len(plan.folds) * len(plan.series),
            series=_absences(plan),
        )
    scope = say(
        "{folds} of {num} series, each trained again on {bars} candles from {source}: {have} of {all} models "
        "evaluated.",
        folds=plural(len(plan.folds), "fold"),
        num=len(plan.series),
        bars=f"{plan.profile['newest_bars']:,}",
        source=source_in_words(plan.source),
        have=len(results.cells),
        all=num_models,
    )
    num_failed = sum(len(reasons) for reasons in results.failures.values())
    failed = ""
    if num_failed:
        failed = say(" {models} failed or not finished.", models=plural(num_failed, "model"))
    incomplete = [
        say("fold {n} ({have} of {num} models)", n=fold, have=have, num=num)
        for fold, (have, num) in shares.items()
        if have < num
    ]
    completeness = say(" All folds are complete.")
    if incomplete:
        completeness = say(" Incomplete: {parts}.", parts=", ".join(incomplete))
    return scope + absences + failed + completeness


def _absences(plan: BacktestPlan) -> str:
    """Name the series that are not in every fold, at most five, each with the number of its folds."""
    parts = []
    for series in plan.series:
        num_folds = sum(series in fold.newest_s for fold in plan.folds)
        if num_folds < len(plan.folds):
            parts.append(say("{series} is in {n} of {num}", series=series, n=num_folds, num=len(plan.folds)))
    first_parts = say(", ").join(parts[:MAX_LISTED])
    num_more = len(parts) - MAX_LISTED
    return first_parts if num_more <= 0 else say("{shown} and {num} more", shown=first_parts, num=num_more)


def tables(results: BacktestResults, *, is_short: bool = False) -> Iterator[Table]:
    """Yield the table of pooled figures and the table by fold.

    A short one has only the columns that fit into a terminal.
    """
    for title, stretches in (("Pooled", results.pools), ("By fold", results.folds)):
        rows = [_stretch_cells(stretch, task) for stretch in stretches for task in stretch.tasks]
        if not rows:
            continue
        all_columns = list(dict.fromkeys(name for row in rows for name in row))
        columns = list(_FOR_TERMINAL) if is_short else all_columns
        cells = [[row.get(name, ABSENT) for name in columns] for row in rows]
        yield Table(columns, cells, title)


POOL_NOTE: Final = (
    "Errors are multiples of naive's. Near bars are easier, so only profiles that look equally far ahead "
    "compare. Smaller: series and folds in which the error is the smaller one, be it by chance."
)
"""Explains `pool_table`."""


def pool_table(results_by_profile: Mapping[str, BacktestResults], title: str) -> Table:
    """Put the pooled figures of several profiles, by name, into one short table."""
    columns = ("profile", *_FOR_TERMINAL, "verdict", "95 % interval")
    rows = []
    for profile, results in results_by_profile.items():
        for pool in results.pools:
            for task in pool.tasks:
                cells = {"profile": profile, **_stretch_cells(pool, task)}
                rows.append([cells[column] for column in columns])
    return Table(columns, rows, title)


_FIGURES: Final = {"relative_mae": "× naive", "against_best": "× best baseline"}
"""What tables call the figures of a `SeedSpread`."""


def seed_sentence(spread: SeedSpread, num_seeds: int) -> str:
    """Say how far a headline number of a back-test spreads over seeds."""
    low, middle, high = (f"{value:.4f}" for value in (spread.low, spread.middle, spread.high))
    place = f"{term(spread.task)}, {term(spread.pool)}, {spread.timeframe}, {_FIGURES[spread.figure]}"
    if spread.low == spread.high:  # to the last bit: no drawn weight has a part in it
        return f"{place}: {middle} with each of {plural(num_seeds, 'seed')}: formulas alone forecast it"
    return f"{place}: {middle}, over {plural(num_seeds, 'seed')} {low} to {high}"


def seeds_table(spreads: Sequence[SeedSpread], num_seeds: int) -> Table:
    """Show how far the headline numbers of a back-test spread over seeds."""
    columns = ["fold", "task", "figure", "median", "smallest", "largest"]
    rows: list[list[object]] = []
    for spread in spreads:
        fold = f"{term(spread.pool)}, {spread.timeframe}"
        # Seeds move a figure by less than a thousandth where an ensemble forecasts.
        figures = [f"{value:.4f}" for value in (spread.middle, spread.low, spread.high)]
        rows.append([fold, term(spread.task), _FIGURES[spread.figure], *figures])
    return Table(columns, rows, f"Over {plural(num_seeds, 'seed')}: errors as the tables above have them")


def _stretch_cells(stretch: CellGroup, task: str) -> dict[str, str]:
    """Write the figures of a task over some cells, by the names of columns."""
    result = stretch.tasks[task]
    best = result.best
    num_lower = say("{best} of {run}", best=result.num_better, run=result.num_cells)
    cells = {
        "fold": _fold_name(stretch),
        "task": term(task),
        "model": number(result.model_relative_mae),
        "best baseline": best,
        "its error": number(result.relative_mae.get(result.best)),
        "× best": number(result.against_best),
        "95 % interval": interval_cell(result.interval),
        "smaller": num_lower,
        "p": p_value(result.p_best),
        "verdict": in_words(result.outcome, best),
    }
    cells |= {name: number(multiple) for name, multiple in result.relative_mae.items()}
    cells["shock"] = digits(max(stretch.shock, 1e-9))
    cells |= {f"CRPS × {name}": number(multiple) for name, multiple in result.crps.items()}
    cells |= {say("in {interval}", interval=name): percent(share) for name, share in result.coverage.items()}
    return cells


def interval_cell(interval: ErrorInterval | None) -> str:
    """Write the interval of a ratio of errors in a cell of a table."""
    return between([number(interval.low), number(interval.high)]) if interval else ABSENT


def _fold_name(stretch: CellGroup) -> str:
    """Name a fold by its first day, and a pool by its name."""
    if stretch.name in fold_losses.POOLS:
        return f"{term(stretch.name)}, {stretch.timeframe}"
    name = f"{stretch.first_close[:10]}, {stretch.timeframe}"
    return say("{fold} (break)", fold=name) if stretch.is_break else name


def _days(stretch: CellGroup) -> str:
    return f"{stretch.first_close[:10]} – {stretch.last_close[:10]}"


def verdicts(results: BacktestResults) -> Iterator[list[str]]:
    """Yield for each timeframe the sentences of its verdict over all folds, first what it covers."""
    for pool in _pools_of_all_folds(results):
        yield [_scope_of(pool), *best_first(_task_verdicts(pool))]


def _pools_of_all_folds(results: BacktestResults) -> list[CellGroup]:
    all_folds = next(iter(fold_losses.POOLS))
    return [pool for pool in results.pools if pool.name == all_folds]


def _scope_of(pool: CellGroup) -> str:
    return say(
        "{timeframe}: median of {num} series in all their folds, short test periods within {days}, "
        "each trained again.",
        timeframe=pool.timeframe,
        num=pool.num_series,
        days=_days(pool),
    )


def _task_verdicts(pool: CellGroup) -> list[TaskVerdict]:
    return [TaskVerdict.pooled(task, result) for task, result in pool.tasks.items()]


def _verdict_cards(results: BacktestResults) -> Iterator[Html]:
    """Show for each timeframe what it covers, a card for each task, and the sentences folded."""
    for pool in _pools_of_all_folds(results):
        task_verdicts = _task_verdicts(pool)
        yield element("p", _scope_of(pool), class_="soft")
        yield row_of_cards(map(task_card, task_verdicts))
        sentences = [element("p", sentence) for sentence in best_first(task_verdicts)]
        yield folded(say("The same in sentences"), *sentences)


def backtest_page(results: BacktestResults, sections: Sequence[Html] = ()) -> Html:
    """Return the page, with sections that annexes add."""
    plan = results.plan
    tasks = results.tasks
    series = sorted(results.series.items(), key=lambda item: _mean_against_best(item[1]))
    ends = Html()
    if len(series) > 1:
        ends_table = _relative_table("series", tasks, [series[0], series[-1]])
        ends_note = element("p", _ends_note(series[0], series[-1]), class_="soft")
        ends = join([element("h2", say("The best and the worst series")), ends_table, ends_note])
    facts_of_plan = [(spaced(name), getattr(plan, name)) for name in ("command", "created_at", "source")]
    digest = element("span", plan.profile_digest[:12], title=plan.profile_digest)
    facts_of_plan.append(("profile digest", digest))
    folds_table = _relative_table("fold", tasks, _fold_rows(results))
    series_table = _relative_table("series", tasks, series)
    figures = join(shown_table(table, class_="figures") for table in tables(results))
    content = filled(
        "v8.publish.report",
        "backtest.html",
        verdicts=join(_verdict_cards(results)),
        picture=_picture(results),
        headline=headline(results),
        sections=join(sections),
        folds=folds_table,
        ends=ends,
        series=series_table,
        baselines=figures,
        notes=_notes(results),
        failed=_failures(results),
        provenance=folded(say("Where these numbers come from"), facts(facts_of_plan)),
    )
    heading = say("Back-test of profile {name}", name=plan.profile["name"])
    return document(f"v8: {heading}", heading, [content], is_demo=not plan.is_publishable)


def _ends_note(best: tuple[str, TaskResults], worst: tuple[str, TaskResults]) -> str:
    """Say by what the best and the worst series are chosen."""
    return say(
        "Chosen by the mean of × best baseline over the tasks, the lowest first, whatever × naive is: {best} "
        "has {low}, {worst} has {high}. Medians over the folds of a series.",
        best=best[0],
        low=number(_mean_against_best(best[1])),
        worst=worst[0],
        high=number(_mean_against_best(worst[1])),
    )


def _mean_against_best(results: TaskResults) -> float:
    """Average the error relative to the best baseline over tasks; a task without such a ratio counts as 1."""
    return fmean(result.against_best or 1.0 for result in results.values())


def _fold_rows(results: BacktestResults) -> list[tuple[Html, TaskResults]]:
    """Return the results of each fold with a link to the report of its run."""
    folders = {f"fold {fold.number}": fold.folder for fold in results.plan.folds}
    rows = []
    for fold in results.folds:
        report = f"{folders[fold.name]}/report.html"
        link = element("a", _fold_name(fold), href=report, title=_days(fold), class_="plain")
        rows.append((link, fold.tasks))
    return rows


def _notes(results: BacktestResults) -> Html:
    notes = [NOTE, BREAK_RULE]
    if any(result.crps for fold in results.folds for result in fold.tasks.values()):
        notes.append(QUANTILE_NOTE)
    return join(element("p", term(note), class_="soft") for note in notes)


def _failures(results: BacktestResults) -> Html:
    """Show which models failed, or are not finished, and which series have no candles; empty without any."""
    rows = []
    for fold, reasons in results.failures.items():
        for name, reason in reasons.items():
            rows.append((f"{fold}, {name}", reason))
    rows += sorted((results.plan.missing or {}).items())
    if not rows:
        return Html()
    table = Table(["Model", "Reason"], rows, is_prose=True)
    return join([element("h2", say("Failed, or not finished")), shown_table(table)])


def _picture(results: BacktestResults) -> Html:
    """Draw the error of each series over its folds, relative to the best baseline's."""
    dots: dict[str, list[Dot]] = {titled(task): [] for task in results.tasks}
    for name, task_results in results.series.items():
        for task, result in task_results.items():
            if result.against_best is not None:
                is_significant = result.outcome in {BEATS, LOSES}
                dots[titled(task)].append(Dot(name, change_pct(result.against_best), is_significant))
    colours = {titled(task): TASKS[task].colour for task in results.tasks}
    label = say(
        "Error of each series compared with the best baseline, in %, median "
        "over the folds of the series: left of 0 it is lower; filled where it is significant for this series "
        "alone. Pointing at a dot shows its series. A diamond is the median of all series of every "
        "timeframe, filled where most are significant; the cards above are about one timeframe each."
    )
    return plot(spread_figure(dots, colours), label)


def _relative_table(first_column: str, tasks: Sequence[str], rows: Iterable[tuple[str, TaskResults]]) -> Html:
    """Show the errors of each task relative to naive's and to the best baseline's, a line for each row."""
    columns = [first_column]
    groups = [("", 1)]
    for task in tasks:
        columns += ["× naive", "× best baseline"]
        groups.append((TASKS[task].title, 2))
    lines = []
    for name, results in rows:
        line = [name]
        for task in tasks:
            line += _relative_cells(results.get(task))
        lines.append(line)
    return shown_table(Table(columns, lines), groups=groups, class_="wrapped")


def _relative_cells(result: TaskResult | None) -> tuple[str, str]:
    if result is None:
        return ABSENT, ABSENT
    name = result.best
    ratio = marked(result.against_best, result.outcome, name, result.p_best)
    words = element("span", baseline_in_words(name), class_="soft")
    return number(result.model_relative_mae), join([ratio, " ", words])
