"""The command `search`, and what it prints; its options are those of `SearchOptions`."""

from typing import TYPE_CHECKING

from typer import echo

from v8.annexes.search import SearchOptions
from v8.base.process import command
from v8.base.terminal import print_lines, print_table
from v8.base.wording import ABSENT, Table
from v8.cli import shared as cli
from v8.cli.shared import takes_options

if TYPE_CHECKING:  # usage errors are reported before this is imported
    from v8.annexes.search.search import Search


@takes_options(SearchOptions)
def search(options: SearchOptions) -> None:
    """Search better settings of a profile by back-tests; the same call again continues.

    Examples:
        v8 search frontier --trials 50 --hours 8
        v8 search mine.yaml --ranges ranges.yaml --series BTCUSDT-15m
    """
    from v8.annexes.search.search import prepare_search

    continuing = command("search", *options.words())
    prepared = prepare_search(options, continuing, cli.run_display())
    cli.settle_process(options.device)
    echo(f"Preparing to search from {prepared.start.profile.name}.")
    print_search(prepared, prepared.search(options.trials, options.hours))


def print_search(search: "Search", verdict: str) -> None:
    """Print every trial of a finished search, and the evaluation of the winner."""
    from v8.annexes.search.search import FILES
    from v8.publish.report import backtest as page

    trials = search.trials.astype(object).where(search.trials.notna(), ABSENT)
    trials = trials.map(lambda value: f"{value:.5g}" if isinstance(value, float) else value)
    title = "Trials: mean error as a multiple of the best baseline's; plateau: median of the five nearest"
    print_table(Table(("trial", *trials.columns), trials.itertuples(), title))
    print_table(page.pool_table(search.later, "The winner and the start on folds that no trial saw"))
    files = ", ".join(str(search.path / name) for name in FILES)
    print_lines(page.POOL_NOTE, verdict, f"Written: {files}")
