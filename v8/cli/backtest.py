"""`python -m v8 backtest`: a profile judged over many seasons, fitted anew for each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from v8.cli.device import choose_engine
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
    asked_series,
    require_tables,
    served_series,
    take_tables,
)
from v8.errors import SeriesError
from v8.invocation import command
from v8.machine.interruption import set_last_words
from v8.profile import load_profile

if TYPE_CHECKING:
    from v8.artifacts.backtest_folder import BacktestPlan
    from v8.market.sources.source import CandleSource
    from v8.runs.backtest import Asked
    from v8.runs.execution import TrainAll
    from v8.views.backtest_results import BacktestResults


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


def judge_seasons(path: Path, wanted: Asked, source: CandleSource, train_all: TrainAll) -> BacktestResults:
    """Carry out a back-test in its folder, or what is left of it, and show what it found."""
    from v8.artifacts.backtest_folder import BacktestLock

    with BacktestLock(path):
        set_last_words(f"interrupted: {path} is saved. Continue with: {wanted.command}")
        return _show(path, *_carry_out(path, wanted, source, train_all))


def _carry_out(
    path: Path, wanted: Asked, source: CandleSource, train_all: TrainAll
) -> tuple[BacktestPlan, dict[str, dict[str, str]]]:
    """Finish what can be finished; return the plan and per fold why series failed now."""
    from v8.cli.printing import open_display, print_lines
    from v8.runs.backtest import begin_or_continue, carry_out, fold_plan
    from v8.runs.events import log_told_as_notes, told_once
    from v8.runs.plan import make_plan

    with open_display(make_plan(wanted.profile, wanted.series, path)) as show:
        plan = begin_or_continue(path, wanted, source, told_once(show))
    refused = {}
    for fold in plan.folds:
        print_lines(f"Fold {fold.number} of {len(plan.folds)}: {len(fold.newest_s)} series.")
        run = fold_plan(path, wanted.profile, fold)
        with open_display(run) as show, log_told_as_notes(listen := told_once(show)):
            summary = carry_out(run, fold, source, train_all, listen, command=wanted.command)
        refused[fold.folder] = {str(one.series): str(one.reason) for one in summary.failures}
    return plan, refused


def _show(path: Path, plan: BacktestPlan, refused: Mapping[str, Mapping[str, str]]) -> BacktestResults:
    """Write the files of a back-test and print its tables."""
    from v8.cli.printing import print_lines, print_reasons, print_table
    from v8.views import backtest_page as page
    from v8.views.backtest_results import read_results
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
