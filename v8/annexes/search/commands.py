"""The command `search`; its options are those of `SearchOptions`."""

from typer import echo

from v8.annexes.search.options import SearchOptions, prepare_search
from v8.base.invocation import command
from v8.cli import shared as cli
from v8.cli.derived import takes_options


@takes_options(SearchOptions)
def search(options: SearchOptions) -> None:
    """Search better settings of a profile by back-tests; the same call again continues.

    Examples:
        v8 search frontier --trials 50 --hours 8
        v8 search mine.yaml --ranges ranges.yaml --series BTCUSDT-15m
    """
    continuing = command("search", *options.words())
    prepared = prepare_search(options, continuing, cli.run_display())
    cli.settle_process(options.device)
    echo(f"Preparing to search from {prepared.start.profile.name}.")

    from v8.annexes.search.printing import print_search

    print_search(prepared, prepared.search(options.trials, options.hours))
