"""A back-test: what is read of its folders, what the terminal prints, and the files that hold the same.

`backtest.json` holds everything; `backtest.html` opens with what all folds come to, and folds away what few
ask for. The figures are worked out by `v8.evaluation.fold_losses`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from pydantic_core import to_jsonable_python

from v8.artifacts.metadata import read_metadata
from v8.artifacts.nested_runs import BacktestPlan
from v8.artifacts.run_folder import RUN_FILE, read_run
from v8.baselines.baselines import called
from v8.evaluation import fold_losses
from v8.evaluation.fold_losses import Cell, FoldLosses, FoldSummary, Stretch, TaskResult, summarize_folds
from v8.evaluation.significance import ALPHA, BEATS, LOSES
from v8.language import language, say, term
from v8.market.series import Series
from v8.reports.figures import Dot, change_pct, spread_figure
from v8.reports.markup import Html, document, element, facts, filled, join, plot, shown_table
from v8.reports.page import marked
from v8.reports.verdict import TaskVerdict, furthest_first, in_words, opening, titled
from v8.storage import write_json, write_text
from v8.tasks import TASKS
from v8.trading.page import trading_section
from v8.trading.rules import TradingResults
from v8.wording import ABSENT, Table, digits, number, p_value, percent, plural, spaced

RESULTS_FORMAT: Final = 2
"""Version of the keys of `backtest.json`."""

RESULTS_FILE: Final = "backtest.json"
PAGE_FILE: Final = "backtest.html"

SHORT: Final = ("fold", "task", "model", "best baseline", "its error", "× best", "smaller", "p", "verdict")
"""What a terminal tells of folds; a page tells of every baseline, the market and quantiles, too."""

QUANTILE_NOTE: Final = (
    "CRPS: twice the mean pinball loss over the levels, as a multiple of another forecaster's; below 1 the "
    "model's quantiles are better. In 90 %: how many actual values lay within that interval, over all steps and "
    "columns. Medians over series."
)

NOTE: Final = (
    "Medians over series of the mean absolute error, in returns, as a multiple of naive's. The best baseline "
    "is the one with the smallest median of these series and folds. p: chance of such a difference from it "
    "if both were as good (Diebold-Mariano on the closes that all series share, Benjamini-Hochberg over the "
    f"table); from {ALPHA:g} on there is no real difference. Smaller: series and folds in which the error is "
    "the smaller one, be it by chance."
)

BREAK_RULE: Final = (
    "A fold is a break in volatility where the wildest of the n days after its train span (root mean square "
    f"range of a day's bars) exceeds the 1 - {fold_losses.WILD_DAYS:g} / n quantile of its train days by a "
    f"factor, its shock, above {fold_losses.BREAK_FACTOR:g}, at the median over series."
)

Told = Mapping[str, TaskResult]
"""What is told by task."""


@dataclass(frozen=True, kw_only=True)
class BacktestResults(FoldSummary):
    """What a back-test found so far."""

    plan: BacktestPlan  # what was asked for
    failures: Mapping[str, Mapping[str, str]]  # per fold, why series of it failed or are not finished

    @property
    def evaluated(self) -> dict[int, tuple[int, int]]:
        """Per fold, by its number, how many models are evaluated and how many take part."""
        found = Counter(fold for fold, _ in self.cells)
        return {one.number: (found[one.number], len(one.newest_s)) for one in self.plan.folds}

    @property
    def tasks(self) -> list[str]:
        """Tasks of the profile, in their usual order."""
        return [task for task in TASKS if task in self.plan.profile["tasks"]]

    def to_json(self) -> Any:
        """Return everything as plain JSON values."""
        plan = {name: value for name, value in vars(self.plan).items() if name != "format"}
        rest = {name: value for name, value in vars(self).items() if name != "plan"}
        rule = {"break_factor": fold_losses.BREAK_FACTOR}
        return to_jsonable_python({"format": RESULTS_FORMAT, **plan, **rule, "results": rest})


def read_results(
    path: Path, plan: BacktestPlan, refused: Mapping[str, Mapping[str, str]] | None = None
) -> BacktestResults:
    """Read what is finished of a back-test and work out its figures; arguments as for `read_cells`."""
    return results_of(plan, *read_cells(path, plan, refused))


def read_cells(
    path: Path, plan: BacktestPlan, refused: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[list[Cell], dict[str, dict[str, str]]]:
    """Read the finished cells of the folds of a plan, and per fold why others are not.

    What an earlier call evaluated of series that failed now, per folder of a fold in `refused`, is left out: it
    was of other candles, or its files are not as they were saved.
    """
    cells = []
    failures = {}
    for fold in plan.folds:
        run = path / fold.folder
        states = read_run(run).series if (run / RUN_FILE).exists() else {}
        unfinished = {name: state.reason for name, state in states.items() if state.status != "done"}
        unfinished |= {name: None for name in fold.newest_s if name not in states}
        reasons = {name: why or "not finished" for name, why in unfinished.items() if name in fold.newest_s}
        failures[fold.folder] = reasons | dict((refused or {}).get(fold.folder, {}))
        for name in states:
            if name in fold.newest_s and name not in failures[fold.folder]:
                about = read_metadata(run / name, series=name)
                found = FoldLosses.load(run / name / fold_losses.FOLD_LOSSES_FILE)
                cells.append(Cell(fold.number, Series.parse(name), about.evaluation, found, about.quantiles))
    return cells, failures


def results_of(
    plan: BacktestPlan, cells: Sequence[Cell], failures: Mapping[str, Mapping[str, str]]
) -> BacktestResults:
    """Put the figures of some cells beside what was asked for, and beside what failed."""
    those = {fold: reasons for fold, reasons in failures.items() if reasons}
    return BacktestResults(**vars(summarize_folds(cells)), plan=plan, failures=those)


def write_backtest(path: Path, results: BacktestResults, worth: TradingResults | None = None) -> list[Path]:
    """Write `backtest.json` and `backtest.html`, each atomically, and return them."""
    files = [path / RESULTS_FILE, path / PAGE_FILE]
    write_json(files[0], results.to_json())
    with language():
        write_text(files[1], backtest_page(results, worth))
    return files


def headline(results: BacktestResults) -> str:
    """Say what was asked for, how much of it is finished, and which folds the figures are of."""
    plan = results.plan
    shares = results.evaluated
    failed = sum(len(those) for those in results.failures.values())
    lacking = say(" {models} failed or not finished.", models=plural(failed, "model")) if failed else ""
    parts = ", ".join(
        say("fold {n} ({have} of {num} models)", n=n, have=have, num=num)
        for n, (have, num) in shares.items()
        if have < num
    )
    folds = say(" Not in whole: {parts}.", parts=parts) if parts else say(" All folds are in.")
    about = say(
        "{folds} of {num} series, each fitted anew on {bars} candles from {source}: {have} of {all} models "
        "evaluated.",
        folds=plural(len(plan.folds), "fold"),
        num=len(plan.series),
        bars=f"{plan.profile['newest_bars']:,}",
        source=plan.source,
        have=len(results.cells),
        all=sum(num for _, num in shares.values()),
    )
    return about + lacking + folds


def tables(results: BacktestResults, *, is_short: bool = False) -> Iterator[Table]:
    """Tell the figures: pooled, calm periods and breaks apart, and fold by fold.

    A short table leaves out what does not fit into a terminal: all baselines but the best, and quantiles.
    """
    for title, chosen in {"Pooled": results.pools, "By fold": results.folds}.items():
        rows = [_stretch_cells(one, task) for one in chosen for task in one.tasks]
        columns = SHORT if is_short else [*dict.fromkeys(name for row in rows for name in row)]
        if rows:
            yield Table(columns, [[row.get(name, ABSENT) for name in columns] for row in rows], title)


def pool_table(found: Mapping[str, BacktestResults], title: str) -> Table:
    """Put the pools of several profiles, by name, into one short table."""
    pools = ((name, pool) for name, results in found.items() for pool in results.pools)
    rows = ({"profile": name, **_stretch_cells(pool, task)} for name, pool in pools for task in pool.tasks)
    columns = ("profile", *SHORT)
    return Table(columns, [[row[name] for name in columns] for row in rows], title)


def _stretch_cells(one: Stretch, task: str) -> dict[str, str]:
    """Write what is told of a task over some cells, by the names of columns."""
    told = one.tasks[task]
    return {
        "fold": _fold_name(one),
        "task": term(task),
        "model": number(told.ours),
        "best baseline": called(told.best),
        "its error": number(told.multiples.get(told.best)),
        "× best": number(told.against_best),
        "smaller": say("{best} of {run}", best=told.num_better, run=told.num_cells),
        "p": p_value(told.p_best),
        "verdict": in_words(told.outcome, called(told.best)),
        **{called(name): number(multiple) for name, multiple in told.multiples.items()},
        "shock": digits(max(one.shock, 1e-9)),
        **{f"CRPS × {called(name)}": number(multiple) for name, multiple in told.crps.items()},
        **{say("in {interval}", interval=name): percent(share) for name, share in told.coverage.items()},
    }


def _fold_name(one: Stretch) -> str:
    """Name a fold by its first day, and folds together by what they are."""
    if one.name in fold_losses.POOLS:
        return f"{term(one.name)}, {one.timeframe}"
    name = f"{one.first_close[:10]}, {one.timeframe}"
    return say("{fold_losses} (break)", fold_losses=name) if one.is_break else name


def _days(one: Stretch) -> str:
    return f"{one.first_close[:10]} – {one.last_close[:10]}"


def verdicts(results: BacktestResults) -> Iterator[list[str]]:
    """Say of each timeframe what all its folds are about and come to."""
    for pool in results.pools:
        if pool.name == next(iter(fold_losses.POOLS)):
            told = {"num": pool.num_series, "days": f"{_days(pool)}, {pool.timeframe}"}
            about = say("Median of {num} series, fitted anew for each fold of {days}:", **told)
            yield [about, *furthest_first(TaskVerdict.pooled(*told) for told in pool.tasks.items())]


def backtest_page(results: BacktestResults, worth: TradingResults | None = None) -> Html:
    """Return the page, and in it what forecasts are worth in money where that was asked for."""
    plan = results.plan
    tasks = results.tasks
    rows = [(f"{fold}, {name}", why) for fold, one in results.failures.items() for name, why in one.items()]
    failed = Table(["Model", "Reason"], [*rows, *sorted((plan.missing or {}).items())], is_prose=True)
    folders = {f"fold {fold.number}": fold.folder for fold in plan.folds}
    folds = (
        (element("a", _fold_name(one), href=f"{folders[one.name]}/report.html", title=_days(one)), one.tasks)
        for one in results.folds
    )
    has_quantiles = any(told.crps for one in results.folds for told in one.tasks.values())
    notes = (NOTE, BREAK_RULE, *([QUANTILE_NOTE] if has_quantiles else []))
    ranked = sorted(
        results.series.items(), key=lambda one: fmean(told.against_best or 1.0 for told in one[1].values())
    )
    ends = _beside_table("series", tasks, [*ranked[:1], *ranked[-1:]])
    made = [(spaced(name), getattr(plan, name)) for name in ("command", "created_at", "source")]
    content = filled(
        "v8.reports",
        "backtest.html",
        verdicts=join(opening(*told) for told in verdicts(results)),
        picture=_picture(results),
        headline=headline(results),
        worth=join(trading_section(worth)) if worth else "",
        folds=_beside_table("fold", tasks, folds),
        ends=join([element("h2", say("The best and the worst series")), ends]) if len(ranked) > 1 else "",
        series=_beside_table("series", tasks, ranked),
        formulas=join(shown_table(each, class_="figures") for each in tables(results)),
        notes=join(element("p", term(told), class_="soft") for told in notes),
        failed=join([element("h2", say("Failed, or not finished")), shown_table(failed)])
        if failed.rows
        else "",
        made=facts([*made, ("profile digest", plan.profile_digest)]),
    )
    heading = say("Back-test of profile {name}", name=plan.profile["name"])
    return document(f"v8: {heading}", heading, [content], is_demo=not plan.is_publishable)


def _picture(results: BacktestResults) -> Html:
    """Draw how each series, over its folds, stands beside its best formula."""
    rows: dict[str, list[Dot]] = {titled(task): [] for task in results.tasks}
    for name, told in results.series.items():
        for task, one in told.items():
            if one.against_best is not None:
                rows[titled(task)].append(
                    Dot(name, change_pct(one.against_best), one.outcome in {BEATS, LOSES})
                )
    label = say(
        "Error of each series beside that of its best formula, in %, median over its folds: left of 0 it "
        "is smaller; filled where that is more than chance. A diamond is the median."
    )
    return plot(spread_figure(rows, {titled(task): TASKS[task].colour for task in results.tasks}), label)


def _beside_table(what: str, tasks: Sequence[str], rows: Iterable[tuple[str, Told]]) -> Html:
    """Show a line each of what is told by task: beside naive, and beside its best formula."""
    head = [what, *("× naive", "× best formula") * len(tasks)]
    lines = [[name, *(cell for task in tasks for cell in _beside(told.get(task)))] for name, told in rows]
    groups = [("", 1), *((TASKS[task].title, 2) for task in tasks)]
    return shown_table(Table(head, lines), groups=groups, class_="wrapped")


def _beside(told: TaskResult | None) -> tuple[str, str]:
    if told is None:
        return ABSENT, ABSENT
    name = called(told.best)
    cell = marked(told.against_best, told.outcome, name, told.p_best)
    return number(told.ours), join([cell, " ", element("span", spaced(name), class_="soft")])
