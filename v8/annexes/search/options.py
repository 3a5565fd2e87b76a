"""The options of a search, for the command line and Python: checked, and turned into what is carried out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from v8.base.invocation import command
from v8.base.options import Flag, Options
from v8.base.registry import require_package
from v8.data.market.sources.source import open_source
from v8.profile.profile import config_path, load_profile, profile_names
from v8.runs import options as run_options
from v8.runs.backtest_options import FoldBars, HistoryBars, NumFolds
from v8.runs.options import chosen_series, require_covariate_files, served_series

if TYPE_CHECKING:  # as in `v8.runs.options`
    from v8.annexes.search.search import Search
    from v8.runs.observers import RunObserver

NumTrials = Annotated[int, Field(ge=1, le=100_000)]
Hours = Annotated[float, Field(ge=0)]


class SearchOptions(Options):
    """Every option of a search. None stands for the default of the profile or of the machine."""

    profile: Annotated[
        str,
        Flag(
            "PROFILE to start from: a shipped name or a file. Default: frontier.", "NAME|FILE", word="PROFILE"
        ),
    ] = "frontier"
    trials: Annotated[NumTrials, Flag("Trials in all, those of earlier calls included.", "N")] = 20
    hours: Annotated[Hours | None, Flag("Hours after which no trial is started.", "H")] = None
    ranges: Annotated[Path | None, Flag("Default: search/NAME.yaml next to the profile.", "FILE")] = None
    folds: Annotated[NumFolds, Flag("Folds that trials are evaluated on.", "K")] = 3
    later: Annotated[NumFolds, Flag("Later folds that evaluate only the winner.", "K")] = 2
    series: run_options.SeriesNames = ()
    source: run_options.SourceName = "vision"
    data_dir: run_options.DataFolder = None
    tables: run_options.TablesFolder = None
    history: HistoryBars = None
    bars: FoldBars = None
    device: run_options.Device = "auto"
    workers: run_options.Workers = "auto"
    engine: run_options.EngineName = "local"
    address: run_options.ClusterAddress = None
    out: Annotated[Path | None, Flag("Its folder. Default: searches/PROFILE.", "DIR")] = None
    redo: Annotated[bool, Flag("Set study.sqlite aside, and start the trials again.", is_once=True)] = False


def prepare_search(options: SearchOptions, continuing: str, display: "RunObserver") -> "Search":
    """Check the options, and turn them into a search that only has to be begun.

    Args:
        options: The options.
        continuing: The command line that continues, for the record.
        display: Shows what happens in the folds of the trials.

    Raises:
        V8Error: If one of the options cannot mean anything, or what it names is not there.
    """
    profile = load_profile(options.profile).with_budget(newest_bars=options.bars)
    require_package("optuna", where=command("search"), rule="needs the extra `search` of v8")
    requested = chosen_series(options.series)
    source = open_source(options.source, data_dir=options.data_dir)
    require_covariate_files([profile], options.tables)
    series = requested or served_series(source)

    from v8.annexes.search.ranges import read_ranges  # noqa: PLC0415 - after what is refused in a moment
    from v8.annexes.search.search import Search  # noqa: PLC0415
    from v8.api.backtests import fold_observer  # noqa: PLC0415
    from v8.runs.backtest import Backtest  # noqa: PLC0415
    from v8.runs.engines import choose_engine  # noqa: PLC0415

    is_shipped = options.profile in profile_names()
    file = config_path(options.profile) if is_shipped else Path(options.profile)
    ranges = read_ranges(options.ranges or file.parent / "search" / file.name, profile)
    engine = choose_engine(options.engine, options.device, str(options.workers), "auto", options.address)
    num_folds = options.folds + 1 + options.later
    return Search(
        path=options.out or Path("searches") / profile.name,
        start=Backtest(
            profile=profile,
            series=series,
            num_folds=num_folds,
            history_bars=options.history,
            command=continuing,
            tables=options.tables,
        ),
        ranges=ranges,
        num_later=options.later,
        source=source,
        engine=engine,
        observer=fold_observer(display),
        is_redone=options.redo,
    )
