"""The options of a back-test, for the command line and Python: checked, and turned into what is done."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from v8.base.options import AtLeastOne, Flag, Options
from v8.data.market.sources.source import CandleSource, open_source
from v8.profile.profile import load_profile
from v8.runs import options as run_options
from v8.runs.options import chosen_series, require_covariate_files, served_series

if TYPE_CHECKING:  # as in `v8.runs.options`
    from v8.runs.backtest import Backtest
    from v8.runs.jobs import Engine

NumFolds = Annotated[int, Field(ge=1, le=1_000)]
NumBars = Annotated[int, Field(ge=1, le=run_options.MAX_BARS)]
HistoryBars = Annotated[
    NumBars | None, Flag("Newest candles that the folds lie in. Default: all there are.", "N")
]
FoldBars = Annotated[AtLeastOne | None, Flag("Candles of each fold. Default: the profile's.", "N")]


class BacktestOptions(Options):
    """Every option of a back-test. None stands for the default of the profile or of the machine."""

    profile: Annotated[
        str,
        Flag("PROFILE: a shipped name or a file. Default: frontier.", "NAME|FILE", word="PROFILE"),
    ] = "frontier"
    folds: Annotated[NumFolds, Flag("Folds, spread over all history.", "K")] = 6
    series: run_options.SeriesNames = ()
    universe: run_options.UniverseFile = None
    source: run_options.SourceName = "vision"
    data_dir: run_options.DataFolder = None
    tables: run_options.TablesFolder = None
    history: HistoryBars = None
    bars: FoldBars = None
    epochs: run_options.MostEpochs = None
    seeds: Annotated[AtLeastOne, Flag("Repeat with other seeds; how far numbers spread.", "N")] = 1
    device: run_options.Device = "auto"
    workers: run_options.Workers = "auto"
    fleet_size: run_options.FleetSize = "auto"
    engine: run_options.EngineName = "local"
    address: run_options.ClusterAddress = None
    out: Annotated[Path | None, Flag("Its folder. Default: backtests/PROFILE.", "DIR")] = None


@dataclass(frozen=True)
class PreparedBacktest:
    """A back-test that only has to be begun."""

    path: Path  # its folder
    backtest: "Backtest"  # what is to be done
    source: CandleSource  # where candles come from
    engine: "Engine"  # what trains
    num_seeds: int = 1  # how many seeds, the profile's own included

    @classmethod
    def from_options(cls, options: BacktestOptions, command: str) -> "PreparedBacktest":
        """Check the options, and turn them into a back-test, a source and an engine.

        Args:
            options: The options.
            command: The command line that continues, for the record.

        Raises:
            V8Error: If one of the options cannot mean anything, or what it names is not there.
        """
        profile = load_profile(options.profile).with_budget(newest_bars=options.bars, epochs=options.epochs)
        requested = chosen_series(options.series, options.universe)
        source = open_source(options.source, data_dir=options.data_dir)
        require_covariate_files([profile], options.tables)
        series = requested or served_series(source)

        from v8.runs.backtest import Backtest  # noqa: PLC0415 - after what is refused in a moment
        from v8.runs.engines import choose_engine  # noqa: PLC0415

        engine = choose_engine(
            options.engine,
            device=options.device,
            workers=options.workers,
            fleet_size=options.fleet_size,
            address=options.address,
        )
        return cls(
            path=options.out or Path("backtests") / profile.name,
            backtest=Backtest(
                profile=profile,
                series=series,
                num_folds=options.folds,
                history_bars=options.history,
                command=command,
                tables=options.tables,
            ),
            source=source,
            engine=engine,
            num_seeds=options.seeds,
        )
