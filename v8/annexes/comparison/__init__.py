"""Comparison of several profiles on the same candles by errors, time and memory; its options."""

from pathlib import Path
from typing import Annotated, Final

from v8.base.records import AtLeastOne, Flag, Options
from v8.runs import options as run_options
from v8.runs.options import NumBars, NumFolds

COMPARED_SERIES: Final = ("BTCUSDT-15m", "BTCUSDT-1h")


class ComparisonOptions(Options):
    """Every option of a comparison. None stands for the default of the profiles or of the machine."""

    profiles: Annotated[
        tuple[str, ...],
        Flag(
            "Or runs, baselines, files of forecasts.",
            "NAME|FILE|RUN ...",
            names=("--profiles", "--profile", "--run"),
        ),
    ] = ()
    series: Annotated[
        tuple[str, ...],
        Flag("One; repeat for more. Default: BTCUSDT-15m and BTCUSDT-1h.", "BTCUSDT-15m"),
    ] = ()
    universe: run_options.UniverseFile = None
    epochs: Annotated[AtLeastOne | None, Flag("Most epochs of each. Default: 1, for speed.", "N")] = None
    full: Annotated[bool, Flag("Each profile's own epochs, for skill: hours on a CPU.")] = False
    repeat: Annotated[AtLeastOne, Flag("Measurements a profile.", "K")] = 1
    baseline_profile: Annotated[str | None, Flag("What ratios refer to. Default: last.", "NAME")] = None
    source: run_options.SourceName = "vision"
    data_dir: run_options.DataFolder = None
    tables: run_options.TablesFolder = None
    bars: Annotated[NumBars | None, Flag("Newest candles of each. Default: the profile's.", "N")] = None
    folds: Annotated[NumFolds | None, Flag("Evaluate each over so many folds.", "K")] = None
    device: run_options.Device = "auto"
    fleet_size: run_options.FleetSize = "auto"
    out: Annotated[Path, Flag("Folder for compare.json, .csv, .html, runs.", "DIR")] = Path("comparison")
    overwrite: Annotated[bool, Flag("Replace another comparison, or files of others.")] = False
