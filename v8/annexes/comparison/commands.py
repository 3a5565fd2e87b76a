"""`python -m v8 compare-profiles`: time, memory and errors of each profile, measured on equal data."""

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Exit, echo

from v8.annexes.comparison import ComparisonOptions
from v8.base.errors import SeriesError
from v8.base.terminal import print_lines, print_reasons, print_table
from v8.base.wording import Table, plural
from v8.cli import shared as cli
from v8.cli.shared import takes_options

if TYPE_CHECKING:  # usage errors are reported before these are imported
    from v8.annexes.comparison.comparing import PreparedComparison
    from v8.annexes.comparison.results import Comparison
    from v8.api.board import Board
    from v8.runs.backtest import BacktestResults


@takes_options(ComparisonOptions)
def compare_profiles(
    options: ComparisonOptions,
    more_profiles: list[str] | None = Argument(None, metavar="[NAME|FILE|RUN ...]", help="Further ones."),
    lang: cli.LangOption = None,
) -> None:
    """Measure profiles side by side on the same candles: time per stage, speed, memory, skill.

    Examples:
        v8 compare-profiles frontier aligned --series BTCUSDT-15m
        v8 compare-profiles runs/a runs/b --out comparisons/runs
        v8 compare-profiles frontier range_paths --folds 6
        v8 compare-profiles runs/frontier har theirs.csv --out boards/a
    """
    from v8.annexes.comparison import comparing
    from v8.annexes.comparison.places import is_board
    from v8.annexes.comparison.results import formulas_of, marked

    names = (*options.profiles, *(more_profiles or ()))
    options = options.model_copy(update={"profiles": names})
    if is_board(names):
        cli.settle_process(options.device)
        _print_board(comparing.make_board(options), options.out)
        return
    runs = comparing.check_places(options)
    if runs:
        comparison = comparing.compare_run_folders(runs, options, cli.this_command())
        _print_comparison(comparison, options.out)
        return
    prepared = comparing.PreparedComparison.from_options(options)
    formulas = formulas_of(prepared.profiles)
    echo(f"Preparing to compare {', '.join(marked(each.name, formulas) for each in prepared.profiles)}.")
    if options.folds:
        _compare_back_tests(prepared, options.folds)
        return
    cli.settle_process(options.device)
    _print_comparison(prepared.finish(cli.this_command(), print_lines), options.out)


def _compare_back_tests(prepared: "PreparedComparison", num_folds: int) -> None:
    """Compare profiles by a back-test of each over the same folds, and print their pools in one table.

    The folds are laid once, for the profile that needs most candles.
    """
    from v8.annexes.comparison.results import formulas_of, marked, share_windows, shared_windows_note
    from v8.publish.report.backtest import POOL_NOTE, pool_table
    from v8.runs.backtest import Backtest, read_cells, results_of
    from v8.runs.engines import choose_engine

    options = prepared.options
    cli.settle_process(options.device)
    engine = choose_engine(cli.DEFAULT_ENGINE, device=options.device, fleet_size=options.fleet_size)
    profiles = [
        profile.with_budget(newest_bars=options.bars, epochs=options.epochs) for profile in prepared.profiles
    ]
    results_by_profile: dict[str, BacktestResults] = {}
    folds_of = None
    for profile in sorted(profiles, key=lambda profile: profile.newest_bars, reverse=True):
        backtest = Backtest(
            profile=profile,
            series=prepared.series,
            num_folds=num_folds,
            history_bars=None,
            command=cli.this_command(),
            like=folds_of,
            tables=options.tables,
        )
        path = options.out / profile.name
        results = cli.evaluate_and_print(path, backtest, prepared.source, engine)
        results_by_profile[profile.name] = results
        folds_of = results.plan
    formulas = formulas_of(profiles)
    cells = {}
    for profile in profiles:
        results = results_by_profile[profile.name]
        own_cells, _ = read_cells(options.out / profile.name, results.plan, results.failures)
        cells[marked(profile.name, formulas)] = own_cells
    shared = share_windows(cells)
    on_shared = {name: results_of(results.plan, cells, {}) for name, cells in shared.cells.items()}
    title = f"{plural(len(profiles), 'profile')} over {plural(num_folds, 'fold')}"
    print_lines(shared_windows_note(shared.num_shared, shared.num_own))
    print_table(pool_table(on_shared, title))
    print_lines(POOL_NOTE)
    if any(results.failures for results in results_by_profile.values()):
        raise Exit(SeriesError.exit_code)


def _print_board(board: "Board", folder: Path) -> None:
    """Print a table for each task and timeframe of a board."""
    from v8.api.board import PAGE_FILE, board_sentences, board_tables

    print_lines(*board_sentences(board.table))
    for table in board_tables(board.table):
        print_table(table)
    print_lines(f"Written: {folder / PAGE_FILE}, and the data set beside it")


def _print_comparison(comparison: "Comparison", folder: Path) -> None:
    """Print the tables of a comparison."""
    from v8.annexes.comparison.page import (
        advice,
        budget_sentence,
        cautions,
        contents,
        failure_rows,
        formula_notes,
        windows_note,
        written,
    )
    from v8.publish.report.markup import DEMO_WARNING, Html

    lines = [DEMO_WARNING] if comparison.is_demo else []
    lines += [*windows_note(comparison), *advice(comparison), *formula_notes(comparison)]
    lines += [budget_sentence(comparison), *cautions(comparison)]
    print_lines(*lines)
    for _, parts in contents(comparison):
        for part in parts:
            if isinstance(part, Table):
                print_table(part)
            elif not isinstance(part, Html):
                print_lines(part)
    if comparison.failures:
        print_reasons("Failed profiles", failure_rows(comparison))
    print_lines(written(folder))
    if comparison.failures:
        raise Exit(SeriesError.exit_code)
