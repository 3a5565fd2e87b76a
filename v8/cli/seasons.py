"""Profiles judged side by side over many seasons: what `compare-profiles --folds` does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from v8.cli.backtest import judge_seasons
from v8.errors import SeriesError
from v8.invocation import command
from v8.market.series import Series
from v8.profile import Profile
from v8.tables import Table
from v8.wording import number, p_value, plural

if TYPE_CHECKING:
    from v8.market.sources.source import CandleSource
    from v8.runs.execution import TrainAll
    from v8.views.backtest_results import BacktestResults

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
    from v8.cli.printing import print_lines, print_table
    from v8.runs.backtest import Asked

    words = command(*sys.argv[1:])
    found = {
        profile.name: judge_seasons(
            out / profile.name, Asked(profile, series, num_folds, None, words), source, train_all
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
                yield [
                    name,
                    f"{pool.name}, {pool.timeframe}",
                    task,
                    number(told.ours),
                    told.best,
                    number(told.multiples[told.best]),
                    number(told.against_best),
                    f"{told.num_better} of {told.num_cells}",
                    p_value(told.p_best),
                    told.verdict,
                ]
