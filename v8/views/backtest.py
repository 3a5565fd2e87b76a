"""A back-test: what is read of its folders, what the terminal prints, and the files that hold the same.

`backtest.json` holds everything; `backtest.html` shows the tables and sentences of the terminal beside its
maps of seasons. The figures are worked out by `v8.losses.season`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_jsonable_python

from v8.artifacts.metadata import read_metadata
from v8.artifacts.nested_runs import BacktestPlan
from v8.artifacts.run_folder import RUN_FILE, read_run
from v8.errors import listed
from v8.formulas.baselines import NAIVE, called
from v8.losses import season
from v8.losses.judgement import MODEL
from v8.losses.season import Cell, Season, Seasons, Stretch, TaskResult, seasons_of
from v8.losses.table import ALPHA
from v8.market.series import Series
from v8.storage import write_json, write_text
from v8.tasks import TASKS
from v8.views.figures import season_figure
from v8.views.markup import Html, document, element, facts, join, plot, shown_table
from v8.wording import ABSENT, Table, digits, number, p_value, percent, plural, spaced

RESULTS_FORMAT: Final = 1
"""Version of the keys of `backtest.json`."""

RESULTS_FILE: Final = "backtest.json"
PAGE_FILE: Final = "backtest.html"

MEDIAN: Final = "median"
"""First row of a map."""

_SHORT: Final = (
    *("fold", "judged from", "shock", "task", "model", "best baseline", "its error"),
    *("× best", "smaller", "p", "verdict"),
)
"""Columns on a terminal."""

_FIRST: Final = ("fold", "task", "model")
_LAST: Final = ("× which best", "smaller", "p", "verdict", "judged from", "to", "shock", "held")
"""Columns on a page, before those of the baselines and behind them."""

QUANTILE_NOTE: Final = (
    "CRPS: twice the mean pinball loss over the levels, as a multiple of another forecaster's; below 1 the "
    "model's quantiles are better. In 90 %: how many truths lay within that interval, over all steps and "
    "columns. Medians over series."
)

NOTE: Final = (
    "Medians over series of the mean absolute error, in returns, as a multiple of naive's. The best baseline "
    "is the one with the smallest median of these series and folds. p: chance of such a difference from it "
    "if both were as good (Diebold-Mariano on the closes that all series share, Benjamini-Hochberg over the "
    f"table); from {ALPHA:g} on there is no real difference. Smaller: series and folds in which the error is "
    "the smaller one, be it by chance. Held: true closes between forecast low and high, one and all steps "
    "ahead."
)

BREAK_RULE: Final = (
    "A fold is a break in volatility where the wildest of the n days after its train span (root mean square "
    f"range of a day's bars) exceeds the 1 - {season.WILD_DAYS:g} / n quantile of its train days by a factor "
    f"above {season.BREAK_FACTOR:g}, at the median over series (column shock)."
)


@dataclass(frozen=True, kw_only=True)
class BacktestResults(Seasons):
    """What a back-test found so far."""

    plan: BacktestPlan  # what was asked for
    failures: Mapping[str, Mapping[str, str]]  # per fold, why series of it failed or are not finished

    @property
    def judged(self) -> dict[str, tuple[int, int]]:
        """Per fold, such as "fold 1", how many models are judged and how many take part."""
        found = Counter(cell.fold for cell in self.cells)
        return {f"fold {one.number}": (found[one.number], len(one.newest_s)) for one in self.plan.folds}

    @property
    def tasks(self) -> list[str]:
        """Tasks of the profile, in their usual order."""
        return [task for task in TASKS if task in self.plan.profile["tasks"]]

    def to_json(self) -> Any:
        """Return everything as plain JSON values."""
        plan = {name: value for name, value in vars(self.plan).items() if name != "format"}
        rest = {name: value for name, value in vars(self).items() if name != "plan"}
        rule = {"break_factor": season.BREAK_FACTOR}
        return to_jsonable_python({"format": RESULTS_FORMAT, **plan, **rule, "results": rest})


def read_results(
    path: Path, plan: BacktestPlan, refused: Mapping[str, Mapping[str, str]] | None = None
) -> BacktestResults:
    """Read what is finished of a back-test and work out its figures.

    What an earlier call judged of series that failed now, per folder of a fold in `refused`, is left out: it
    was of other candles, or its files are not as they were saved.
    """
    cells, failures = [], {}
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
                found = Season.load(run / name / season.SEASON_FILE)
                cells.append(Cell(fold.number, Series.parse(name), about.judgement, found, about.quantiles))
    return results_of(plan, cells, failures)


def results_of(
    plan: BacktestPlan, cells: Sequence[Cell], failures: Mapping[str, Mapping[str, str]]
) -> BacktestResults:
    """Put the figures of some cells beside what was asked for, and beside what failed."""
    those = {fold: reasons for fold, reasons in failures.items() if reasons}
    return BacktestResults(**vars(seasons_of(cells)), plan=plan, failures=those)


def write_backtest(path: Path, results: BacktestResults) -> list[Path]:
    """Write `backtest.json` and `backtest.html`, each atomically, and return them."""
    files = [path / RESULTS_FILE, path / PAGE_FILE]
    write_json(files[0], results.to_json())
    write_text(files[1], backtest_page(results))
    return files


def headline(results: BacktestResults) -> str:
    """Say what was asked for, how much of it is finished, and which folds the figures are of."""
    plan, shares = results.plan, results.judged
    wanted = sum(num for _, num in shares.values())
    failed = sum(len(those) for those in results.failures.values())
    lacking = f" {plural(failed, 'model')} failed or not finished." if failed else ""
    whole = [fold for fold, (have, num) in shares.items() if have == num]
    parts = ", ".join(
        f"{fold} ({have} of {num} models)" for fold, (have, num) in shares.items() if have < num
    )
    folds = f"In whole: {listed(whole) if whole else 'no fold'}; not in whole: {parts}."
    return (
        f"{plural(len(plan.folds), 'fold')} of {len(plan.series)} series, each fitted anew on "
        f"{plan.profile['newest_bars']:,} candles from {plan.source}: {len(results.cells)} of {wanted} "
        f"models judged.{lacking} {folds if parts else 'All folds are in.'}"
    )


def tables(results: BacktestResults, *, is_short: bool = False) -> Iterator[Table]:
    """Tell the figures: pooled, then by fold, calm ones and breaks apart.

    A short table leaves out what does not fit into a terminal: all baselines but the best.
    """
    calm, breaks = ([one for one in results.folds if one.is_break == is_break] for is_break in (False, True))
    titled = {"Pooled": results.pools, "Calm folds": calm, "Folds with a break in volatility": breaks}
    for title, chosen in titled.items():
        rows = [_stretch_cells(one, task) for one in chosen for task in one.tasks]
        every = [name for one in chosen for told in one.tasks.values() for name in told.multiples]
        baselines = dict.fromkeys(called(name) for name in (NAIVE, *every) if name != MODEL)
        columns = [*_FIRST, *baselines, *_LAST]
        head = [*_FIRST, *baselines, "× best", *_LAST[1:]]
        if is_short:
            columns = head = [*_SHORT]
        if rows:
            yield Table(head, [[row.get(name, ABSENT) for name in columns] for row in rows], title)


def _stretch_cells(one: Stretch, task: str) -> dict[str, str]:
    """Write what is told of a task over some cells, by the names of columns."""
    told = one.tasks[task]
    return {
        **{called(name): number(multiple) for name, multiple in told.multiples.items()},
        **task_cells(told),
        "fold": f"{one.name}, {one.timeframe}",
        "task": task,
        "judged from": one.first_close[:10],
        "to": one.last_close[:10],
        "shock": digits(max(one.shock, 1e-9)),
        "held": " / ".join(percent(share, 0) for share in one.held),
    }


def task_cells(told: TaskResult) -> dict[str, str]:
    """Write what is told of a task, by the names of columns."""
    beside = number(told.against_best)
    return {
        "model": number(told.ours),
        "best baseline": called(told.best),
        "its error": number(told.multiples.get(told.best)),
        "× best": beside,
        "× which best": f"{beside} {spaced(called(told.best))}",
        "smaller": f"{told.num_better} of {told.num_cells}",
        "p": p_value(told.p_best),
        "verdict": told.verdict,
    }


def quantile_table(results: BacktestResults) -> Table | None:
    """Return CRPS and coverage by fold, pools first; None where the profile has no quantiles."""
    together = [*results.pools, *results.folds]
    those = [(one, task, told) for one in together for task, told in one.tasks.items() if told.crps]
    if not those:
        return None
    baselines = list(dict.fromkeys(name for _, _, told in those for name in told.crps))
    intervals = list(dict.fromkeys(name for _, _, told in those for name in told.coverage))
    head = ["fold", "task", *(f"CRPS × {called(name)}" for name in baselines)]
    rows = [
        [
            f"{one.name}, {one.timeframe}{' (break)' if one.is_break else ''}",
            task,
            *(number(told.crps.get(name)) for name in baselines),
            *(percent(told.coverage.get(name)) for name in intervals),
        ]
        for one, task, told in those
    ]
    return Table([*head, *(f"in {name}" for name in intervals)], rows, "Quantiles")


def series_table(results: BacktestResults) -> Table:
    """Return one row a series, over all its folds."""
    columns, head, rows = ("model", "× which best", "p", "verdict"), ["series"], []
    for task in results.tasks:
        head += [task, f"{task} × best", "p", "verdict"]
    for name, found in results.series.items():
        told = (task_cells(found[task]) if task in found else {} for task in results.tasks)
        rows.append([name, *(cells.get(column, ABSENT) for cells in told for column in columns)])
    return Table(head, rows, "By series, over its folds; the best baseline is that of the series")


def backtest_page(results: BacktestResults) -> Html:
    """Return the page; maps on it need a browser, tables do not."""
    plan, told = results.plan, quantile_table(results)
    rows = [(f"{fold}, {name}", why) for fold, one in results.failures.items() for name, why in one.items()]
    rows += sorted((plan.missing or {}).items())
    failed = shown_table(Table(["Model", "Reason"], rows, is_prose=True))
    reports = ", ".join(f"{fold.folder}/report.html" for fold in plan.folds)
    body = [
        *(element("p", sentence) for sentence in (headline(results), BREAK_RULE)),
        element("h2", "Map of seasons"),
        element("div", *_maps(results), class_="charts"),
        *(_on_page(each) for each in tables(results)),
        element("p", NOTE, class_="soft"),
        *([_on_page(told), element("p", QUANTILE_NOTE, class_="soft")] if told else []),
        _on_page(series_table(results)),
        *([element("h2", "Failed, or not finished"), failed] if rows else []),
        element("h2", "Where these numbers come from"),
        facts(
            [
                *(("command", plan.command), ("begun", plan.created_at), ("candles from", plan.source)),
                *(("profile digest", plan.profile_digest), ("each fold's own report", reports)),
            ]
        ),
    ]
    name = plan.profile["name"]
    title, heading = f"v8: back-test of {name}", f"Back-test of profile {name}"
    return document(title, heading, body, is_demo=not plan.is_publishable)


def _on_page(each: Table) -> Html:
    return join([element("h2", each.title), shown_table(each, class_="figures", is_titled=False)])


def _maps(results: BacktestResults) -> Iterator[Html]:
    """Draw a map a task and timeframe: skill against the best baseline of each fold."""
    for timeframe in dict.fromkeys(one.timeframe for one in results.folds):
        folds = [one for one in results.folds if one.timeframe == timeframe]
        cells = [one for one in results.cells if one.series.endswith(f"-{timeframe}")]
        kinds = {one.name: "break" if one.is_break else "" for one in folds}
        columns = {name: f"{name.removeprefix('fold ')}<br>{kind}" for name, kind in kinds.items()}
        days = {one.name: f"{one.first_close[:10]} to {one.last_close[:10]}" for one in folds}
        for task in results.tasks:
            middle = {one.name: _skill(one.tasks[task].against_best) for one in folds if task in one.tasks}
            found: dict[str, dict[str, float | None]] = {MEDIAN: middle}
            for one in cells:
                skill = _skill(one.against_best.get(task))
                found.setdefault(one.series, {})[f"fold {one.fold}"] = skill
            label = (
                f"{TASKS[task].title}, {timeframe}: skill against the best baseline of the fold, in %; "
                "blue where the error is smaller, orange where it is larger, be it by chance"
            )
            yield plot(season_figure(found, columns, days), label)


def _skill(ratio: float | None) -> float | None:
    return None if ratio is None else 100.0 * (1.0 - ratio)
