"""`python -m v8 backtest`: a profile judged over many seasons, fitted anew for each, or several profiles."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from v8.cli.options import (
    DEFAULT_ENGINE,
    MAX_BARS,
    AddressOption,
    DataDirOption,
    DeviceOption,
    EngineOption,
    EpochsOption,
    FleetSizeOption,
    SeriesOption,
    SourceOption,
    TablesOption,
    UniverseOption,
    WorkersOption,
)
from v8.errors import SeriesError
from v8.invocation import command
from v8.machine.interruption import set_last_words
from v8.market.series import Series
from v8.profile import Profile, load_profile
from v8.runs.options import asked_series, require_tables, served_series, take_tables
from v8.tables import Table
from v8.wording import number, p_value, plural

if TYPE_CHECKING:
    from v8.artifacts.nested_runs import BacktestPlan
    from v8.market.sources.source import CandleSource
    from v8.runs.backtest import Asked
    from v8.runs.execution import TrainAll
    from v8.views.backtest import BacktestResults


HEAD: Final = (
    *("profile", "folds", "task", "model", "best baseline", "its error", "× best", "smaller", "p"),
    "verdict",
)

NOTE: Final = (
    "Errors are multiples of naive's. Profiles that look differently far back or ahead judge other windows, "
    "and near bars are easier: compare × best. Smaller: series and folds in which the error is the smaller "
    "one, be it by chance."
)


def backtest(
    profile: Annotated[
        str,
        typer.Option("--profile", metavar="NAME|FILE", help="What to judge: a shipped name or a YAML file."),
    ] = "frontier",
    folds: Annotated[
        int, typer.Option("--folds", metavar="K", min=1, max=1_000, help="Seasons, spread over all history.")
    ] = 6,
    series: SeriesOption = None,
    universe: UniverseOption = None,
    source: SourceOption = "vision",
    data_dir: DataDirOption = None,
    tables: TablesOption = None,
    history: Annotated[
        int | None,
        typer.Option(
            "--history",
            metavar="N",
            min=1,
            max=MAX_BARS,
            help="Newest candles per series that the folds lie in. Default: all there are.",
        ),
    ] = None,
    bars: Annotated[
        int | None,
        typer.Option("--bars", metavar="N", help="Candles of each fold. Default: the profile's newest bars."),
    ] = None,
    epochs: EpochsOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = "auto",
    fleet_size: FleetSizeOption = "auto",
    engine: EngineOption = DEFAULT_ENGINE,
    address: AddressOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder of the back-test. Default: backtests/PROFILE."),
    ] = None,
) -> None:
    """Judge a profile over many seasons, fitted anew for each; the same call again continues."""
    budget = load_profile(profile).with_budget(newest_bars=bars, epochs=epochs)
    asked = asked_series(series, universe)

    from v8.market.sources.source import open_source
    from v8.runs.backtest import Asked
    from v8.runs.engines import choose_engine

    take_tables(tables)
    require_tables(budget)
    candle_source = open_source(source, data_dir=data_dir)
    chosen = asked or served_series(candle_source)
    train_all = choose_engine(engine, device, workers, fleet_size, address)
    path = out or Path("backtests") / budget.name
    words = command(*sys.argv[1:])
    results = judge_seasons(path, Asked(budget, chosen, folds, history, words), candle_source, train_all)
    if results.failures:
        raise typer.Exit(SeriesError.exit_code)


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


def judge_seasons(path: Path, wanted: Asked, source: CandleSource, train_all: TrainAll) -> BacktestResults:
    """Carry out a back-test in its folder, or what is left of it, and show what it found."""
    from v8.artifacts.nested_runs import BacktestLock
    from v8.cli.printing import open_display, print_lines
    from v8.runs.backtest import carry_out

    with BacktestLock(path):
        set_last_words(f"interrupted: {path} is saved. Continue with: {wanted.command}")
        return _show(path, *carry_out(path, wanted, source, train_all, show=open_display, tell=print_lines))


def _show(path: Path, plan: BacktestPlan, refused: Mapping[str, Mapping[str, str]]) -> BacktestResults:
    """Write the files of a back-test and print its tables."""
    from v8.cli.printing import print_lines, print_reasons, print_table
    from v8.views import backtest as page
    from v8.views.backtest import read_results
    from v8.views.page import DEMO_WARNING

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
