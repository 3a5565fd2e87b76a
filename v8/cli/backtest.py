"""What `backtest` does and prints: profiles judged over many seasons, fitted anew for each."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import typer

from v8.artifacts.nested_runs import BacktestLock
from v8.cli.printing import open_display, print_lines, print_reasons, print_table
from v8.errors import SeriesError
from v8.invocation import command
from v8.machine.interruption import set_last_words
from v8.market.series import Series
from v8.market.sources.source import CandleSource
from v8.profile import Profile
from v8.runs.execution import AskedBacktest, TrainAll, run_folds
from v8.views import backtest as page
from v8.views.backtest import BacktestResults, read_results, task_cells
from v8.views.markup import DEMO_WARNING
from v8.wording import Table, plural

HEAD: Final = (
    *("profile", "folds", "task", "model", "best baseline", "its error", "× best", "smaller", "p"),
    "verdict",
)

NOTE: Final = (
    "Errors are multiples of naive's. Profiles that look differently far back or ahead judge other windows, "
    "and near bars are easier: compare × best. Smaller: series and folds in which the error is the smaller "
    "one, be it by chance."
)


def compare_seasons(
    profiles: Sequence[Profile],
    series: Sequence[Series],
    num_folds: int,
    source: CandleSource,
    train_all: TrainAll,
    out: Path,
) -> None:
    """Back-test each profile in a folder of its name, or go on, and print their pools in one table."""
    words = command(*sys.argv[1:])
    found = {
        profile.name: judge_seasons(
            out / profile.name, AskedBacktest(profile, series, num_folds, None, words), source, train_all
        )
        for profile in profiles
    }
    title = f"{plural(len(found), 'profile')} over {plural(num_folds, 'fold')}"
    print_table(Table(HEAD, rows_of(found), title))
    print_lines(NOTE)
    if any(results.failures for results in found.values()):
        raise typer.Exit(SeriesError.exit_code)


def rows_of(found: Mapping[str, BacktestResults]) -> Iterator[list[str]]:
    """Return a row for each pool and task of each profile."""
    for name, results in found.items():
        for pool in results.pools:
            for task, told in pool.tasks.items():
                cells = task_cells(told) | {"best baseline": told.best}
                stretch = f"{pool.name}, {pool.timeframe}"
                yield [name, stretch, task, *(cells[column] for column in HEAD[3:])]


def judge_seasons(
    path: Path, wanted: AskedBacktest, source: CandleSource, train_all: TrainAll
) -> BacktestResults:
    """Carry out a back-test in its folder, or what is left of it; write its files and print its tables."""
    with BacktestLock(path):
        set_last_words(f"interrupted: {path} is saved. Continue with: {wanted.command}")
        plan, refused = run_folds(path, wanted, source, train_all, show=open_display, tell=print_lines)
        results = read_results(path, plan, refused)
        files = page.write_backtest(path, results)
    print_lines(*([] if plan.is_publishable else [DEMO_WARNING]), page.headline(results))
    for each in page.tables(results, is_short=True):
        print_table(each)
    if quantiles := page.quantile_table(results):
        print_table(quantiles)
        print_lines(page.QUANTILE_NOTE)
    print_lines(page.NOTE, page.BREAK_RULE)
    for fold, reasons in results.failures.items():
        print_reasons(f"Failed or not finished in {fold}", sorted(reasons.items()))
    if plan.missing:
        print_reasons("Without candles", sorted(plan.missing.items()))
    print_lines(f"Written: {', '.join(map(str, files))}")
    return results
