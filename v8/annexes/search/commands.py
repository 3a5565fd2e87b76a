"""The command `search`: its flags, and what it refuses before any work."""

import sys
from pathlib import Path

from typer import Option, echo

from v8.base.invocation import command
from v8.base.registry import require_package
from v8.cli import shared as cli
from v8.profile.profile import config_path, load_profile, profile_names
from v8.runs.options import chosen_series, require_covariate_files, served_series


def search(
    profile_argument: cli.ProfileArgument = None,
    profile: str | None = Option(
        None, metavar="NAME|FILE", help="What to start from: a shipped name or a file. Default: frontier."
    ),
    trials: int = Option(
        20, metavar="N", min=1, max=100_000, help="Trials in all, those of earlier calls included."
    ),
    hours: float | None = Option(None, metavar="H", min=0, help="Hours after which no trial is started."),
    ranges: Path | None = Option(None, metavar="FILE", help="Default: search/NAME.yaml next to the profile."),
    folds: int = Option(3, metavar="K", min=1, max=1_000, help="Folds that trials are evaluated on."),
    later: int = Option(2, metavar="K", min=1, max=1_000, help="Later folds that evaluate only the winner."),
    series: cli.SeriesOption = None,
    source: cli.SourceOption = "vision",
    data_dir: cli.DataDirOption = None,
    tables: cli.TablesOption = None,
    history: int | None = cli.some_bars("Newest candles that the folds lie in. Default: all there are."),
    bars: int | None = Option(None, metavar="N", help="Candles of each fold. Default: the profile's."),
    device: cli.DeviceOption = "auto",
    workers: cli.WorkersOption = "auto",
    engine: cli.EngineOption = cli.DEFAULT_ENGINE,
    address: cli.AddressOption = None,
    out: Path | None = Option(None, metavar="DIR", help="Its folder. Default: searches/PROFILE."),
    is_redone: bool = Option(False, "--redo", help="Set study.sqlite aside, and start the trials again."),
) -> None:
    """Search better settings of a profile by back-tests; the same call again continues.

    Examples:
        v8 search frontier --trials 50 --hours 8
        v8 search mine.yaml --ranges ranges.yaml --series BTCUSDT-15m
    """
    profile = cli.one_profile("search", profile_argument, profile) or "frontier"
    loaded = load_profile(profile).with_budget(newest_bars=bars)
    require_package("optuna", where=command("search"), rule="needs the extra `search` of v8")
    named_series = chosen_series(series)
    candles = cli.open_candles(source, data_dir, tables)
    require_covariate_files(loaded)
    chosen = named_series or served_series(candles)

    from v8.annexes.search.printing import search_settings
    from v8.annexes.search.ranges import read_ranges
    from v8.annexes.search.search import Search
    from v8.runs.backtest import BacktestOptions
    from v8.runs.engines import choose_engine

    file = config_path(profile) if profile in profile_names() else Path(profile)
    search_ranges = read_ranges(ranges or file.parent / "search" / file.name, loaded)
    cli.settle_process(device)
    chosen_engine = choose_engine(engine, device, workers, "auto", address)
    echo(f"Preparing to search from {loaded.name}.")
    words_to_continue = command(*(word for word in sys.argv[1:] if word != "--redo"))
    prepared_search = Search(
        path=out or Path("searches") / loaded.name,
        start=BacktestOptions(loaded, chosen, folds + 1 + later, history, words_to_continue),
        ranges=search_ranges,
        num_later=later,
        source=candles,
        engine=chosen_engine,
        observer=cli.fold_observer(),
        is_redone=is_redone,
    )
    search_settings(prepared_search, trials, hours)
